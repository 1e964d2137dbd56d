//! Serves requests. A `Check`, `MultiGet`, `MultiSet` or `ListKeys` may take several pieces of work, and other clients
//! may be served between two pieces. Any other request is one piece.

use super::{
    super::{
        budget::{Budget, copying},
        memory::PART,
        rejection::Rejection,
        request::ClientId,
        request::{Key, Part, Reply, Request},
    },
    Output, Server,
    task::{Listing, Work},
};

/// An upper bound of the size of replies without strings, in bytes.
const SMALL: usize = 16;

/// The progress of a request after a piece of work.
pub(super) enum Progress {
    /// The request is served completely.
    Done,
    /// A piece is done. This work is left.
    Piece(Work),
    /// Nothing was done, because the budget does not allow the next piece. This work is left.
    Unfinished(Work),
}

impl Server {
    /// Does the next piece of the work on a client's request, if the budget allows it.
    ///
    /// # Errors
    /// The reason to close the connection: the request is refused, or it needs more memory than this client may take.
    pub(super) fn work_on(
        &mut self,
        id: ClientId,
        work: Work,
        budget: &mut Budget,
        outputs: &mut Vec<Output>,
    ) -> Result<Progress, Rejection> {
        match work {
            Work::One(request) => self.serve_one(id, request, budget, outputs),
            Work::Check(mut keys) => {
                let count = keys.len().min(self.most_keys());
                if !budget.allows(count) {
                    return Ok(Progress::Unfinished(Work::Check(keys)));
                }
                budget.spend(count);
                if !keys.by_ref().take(count).all(|key| self.table.is_there(&key)) {
                    return Ok(self.answer(id, &Reply::Status(1), budget, outputs));
                }
                if keys.len() == 0 {
                    return Ok(self.answer(id, &Reply::Status(0), budget, outputs));
                }
                Ok(Progress::Piece(Work::Check(keys)))
            }
            Work::Values(keys, made) => self.send_values(id, keys, made, budget, outputs),
            Work::Entries(strings) => self.put_entries(id, strings, budget, outputs),
            Work::Listing(listing) => self.list(id, listing, budget, outputs),
        }
    }

    /// Returns the maximum number of keys in a piece: half of `ServerLimits::tick`, because a key may take two units
    /// of work, but at least one.
    fn most_keys(&self) -> usize {
        (self.limits.tick / 2).max(1)
    }

    /// Serves a request that is one piece.
    fn serve_one(
        &mut self,
        id: ClientId,
        request: Request,
        budget: &mut Budget,
        outputs: &mut Vec<Output>,
    ) -> Result<Progress, Rejection> {
        let work = self.table.work(&request);
        if !budget.allows(work) {
            return Ok(Progress::Unfinished(Work::One(request)));
        }
        budget.spend(work);
        // The bytes of a reply are in memory twice: as a string, and in the client's buffer of unsent
        // bytes, which may have to grow.
        let bytes = self.table.reply_size(&request);
        let string = if bytes > 0 { PART + bytes } else { 0 };
        let reply = string + self.unsent_growth(id, bytes.max(SMALL));
        self.make_room(id, self.table.growth(&request) + reply, outputs)?;
        let mut woken = Vec::new();
        let reply = self.table.serve(id, request, &mut woken);
        self.spend_and_wake(id, &woken, budget);
        if let Some(reply) = reply? {
            self.reply(id, &reply, outputs);
        }
        Ok(Progress::Done)
    }

    /// Sends the reply of a request that was served in pieces, and ends the request.
    fn answer(
        &mut self,
        id: ClientId,
        reply: &Reply,
        budget: &mut Budget,
        outputs: &mut Vec<Output>,
    ) -> Progress {
        self.reply(id, reply, outputs);
        self.finish(id, budget)
    }

    /// Ends a request that was served in pieces. If an earlier wait of the client ended because a queue got an element,
    /// the client had a claim to that element. No request that is served in pieces pops a queue, so the claim ends now.
    /// If an element is left, the next client that waits for the queue is woken.
    fn finish(&mut self, id: ClientId, budget: &mut Budget) -> Progress {
        let mut woken = Vec::new();
        self.table.release(id, &mut woken);
        self.spend_and_wake(id, &woken, budget);
        Progress::Done
    }

    /// Sends the next values of a `MultiGet`. `made` is the size of the reply so far, in bytes.
    fn send_values(
        &mut self,
        id: ClientId,
        mut keys: std::vec::IntoIter<Key>,
        made: usize,
        budget: &mut Budget,
        outputs: &mut Vec<Output>,
    ) -> Result<Progress, Rejection> {
        // The next piece is the longest prefix of the keys within the limits, but at least one key if any is left.
        let (mut count, mut work, mut bytes) = (0, 0, 0);
        for key in keys.as_slice().iter().take(self.most_keys()) {
            let size = self.table.value_size(key);
            // The key is looked up twice: here for its size, and below for its value.
            let more = 2 + copying(size);
            if count > 0 && work + more > self.limits.tick {
                break;
            }
            (count, work, bytes) = (count + 1, work + more, bytes + size);
        }
        let limits = &self.limits.sizes;
        limits.part(Part::Reply, &[], made + bytes, limits.request_bytes)?;
        if !budget.allows(work) {
            return Ok(Progress::Unfinished(Work::Values(keys, made)));
        }
        budget.spend(work);
        self.make_room(id, self.unsent_growth(id, bytes), outputs)?;
        if let Some(client) = self.clients.get_mut(&id).filter(|_| count > 0) {
            for key in keys.by_ref().take(count) {
                client.unsent.string(self.table.value(&key).unwrap_or_default());
            }
            send(id, outputs);
        }
        Ok(match keys.len() {
            0 => self.finish(id, budget),
            _ => Progress::Piece(Work::Values(keys, made + bytes)),
        })
    }

    /// Sets the next values of a `MultiSet`. `strings` contains each key, followed by its value.
    fn put_entries(
        &mut self,
        id: ClientId,
        mut strings: std::vec::IntoIter<Vec<u8>>,
        budget: &mut Budget,
        outputs: &mut Vec<Output>,
    ) -> Result<Progress, Rejection> {
        let count = strings.len().min(2 * self.most_keys());
        if !budget.allows(count) {
            return Ok(Progress::Unfinished(Work::Entries(strings)));
        }
        budget.spend(count);
        let entries = strings.as_slice()[..count].chunks_exact(2);
        let growth = entries.map(|entry| self.table.put_growth(&entry[0], entry[1].len())).sum();
        self.table.check_growth(growth)?;
        self.make_room(id, growth, outputs)?;
        let mut woken = Vec::new();
        for _ in 0..count / 2 {
            if let (Some(key), Some(value)) = (strings.next(), strings.next()) {
                self.table.put(key, value, &mut woken);
            }
        }
        self.spend_and_wake(id, &woken, budget);
        Ok(match strings.len() {
            0 => self.finish(id, budget),
            _ => Progress::Piece(Work::Entries(strings)),
        })
    }

    /// Collects the next keys for the reply to a `ListKeys` or, if the reply is complete, sends its next piece. Ends
    /// the request when all pieces were sent.
    fn list(
        &mut self,
        id: ClientId,
        mut listing: Listing,
        budget: &mut Budget,
        outputs: &mut Vec<Output>,
    ) -> Result<Progress, Rejection> {
        if !listing.is_whole() {
            let keys = listing.next(&self.table, self.most_keys());
            if !budget.allows(keys.work()) {
                return Ok(Progress::Unfinished(Work::Listing(listing)));
            }
            budget.spend(keys.work());
            self.make_room(id, keys.memory(), outputs)?;
            listing.gather(&self.table, &keys, &self.limits.sizes)?;
            return Ok(Progress::Piece(Work::Listing(listing)));
        }
        let Some(piece) = listing.first() else { return Ok(self.finish(id, budget)) };
        let (bytes, work) = (piece.len(), 1 + copying(piece.len()));
        if !budget.allows(work) {
            return Ok(Progress::Unfinished(Work::Listing(listing)));
        }
        budget.spend(work);
        self.make_room(id, self.unsent_growth(id, bytes), outputs)?;
        if let (Some(piece), Some(client)) = (listing.first(), self.clients.get_mut(&id)) {
            client.unsent.extend(piece);
            send(id, outputs);
        }
        listing.skip();
        Ok(Progress::Piece(Work::Listing(listing)))
    }

    /// Adds woken clients to the queue of turns, except `id`, the client that is being served. Counts this work in
    /// `budget`: a quarter of a unit for each client in `woken`, rounded down.
    fn spend_and_wake(&mut self, id: ClientId, woken: &[ClientId], budget: &mut Budget) {
        budget.spend(woken.len() / 4);
        self.wake(id, woken);
    }

    /// Returns an upper bound of the additional memory, in bytes, that a client's buffer needs for `bytes` more unsent
    /// bytes; 0 if they fit.
    fn unsent_growth(&self, id: ClientId, bytes: usize) -> usize {
        self.clients.get(&id).map_or(0, |client| client.unsent.growth(bytes))
    }

    /// Adds a reply to the client's unsent bytes, and outputs [`Output::Send`].
    pub(super) fn reply(&mut self, id: ClientId, reply: &Reply, outputs: &mut Vec<Output>) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        reply.encode(client.unsent.end());
        self.count(id);
        send(id, outputs);
    }
}

/// Outputs [`Output::Send`] for a client, unless it is the last output already.
pub(super) fn send(id: ClientId, outputs: &mut Vec<Output>) {
    if outputs.last() != Some(&Output::Send(id)) {
        outputs.push(Output::Send(id));
    }
}
