//! The order in which clients with work left have their turns.

use std::collections::BTreeSet;

use super::super::clients::ClientId;

/// Clients with work left, in the order of start-time fair queueing: the client for which the least work was
/// done has the next turn. A client with few requests is not delayed by any number of clients with many.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// Ordered by the work that was done for them.
    queue: BTreeSet<(u64, ClientId)>,
    /// The work that was done for the client that had the last turn. A client that returns after a pause
    /// starts here.
    now: u64,
}

/// A client's place among the others.
#[derive(Debug, Default)]
pub(super) struct Place {
    /// The work that was done for it, or for others while it had none left.
    work: u64,
    /// The step in which it was added to the queue, if it is there.
    since: Option<u64>,
}

impl Place {
    pub(super) fn is_queued(&self) -> bool {
        self.since.is_some()
    }
}

impl Turns {
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Returns the client whose turn is next.
    pub(super) fn first(&self) -> Option<ClientId> {
        self.queue.first().map(|(_, client)| *client)
    }

    /// Adds a client, unless it is in the queue.
    pub(super) fn add(&mut self, client: ClientId, place: &mut Place, step: u64) {
        if place.since.is_none() {
            place.since = Some(step);
            place.work = place.work.max(self.now);
            self.queue.insert((place.work, client));
        }
    }

    /// Removes a client. Returns the step in which it was added.
    pub(super) fn remove(&mut self, client: ClientId, place: &mut Place) -> Option<u64> {
        let since = place.since.take()?;
        self.queue.remove(&(place.work, client));
        Some(since)
    }

    /// Removes a client for its turn. Returns the step in which it was added.
    pub(super) fn begin(&mut self, client: ClientId, place: &mut Place) -> Option<u64> {
        self.now = self.now.max(place.work);
        self.remove(client, place)
    }

    /// Ends the turn of a client for which so much work was done. A client with work left keeps the step in
    /// which it was first added.
    pub(super) fn end(
        &mut self,
        client: ClientId,
        place: &mut Place,
        work: usize,
        is_left: bool,
        since: Option<u64>,
    ) {
        // It may have been woken in its own turn.
        let again = self.remove(client, place);
        place.work = place.work.saturating_add(work as u64);
        if is_left || again.is_some() {
            place.since = since.or(again);
            self.queue.insert((place.work, client));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives the next client its turn, with work left afterwards.
    fn next(turns: &mut Turns, places: &mut [Place], work: usize) -> ClientId {
        let client = turns.first().unwrap();
        let place = &mut places[client as usize];
        let since = turns.begin(client, place);
        turns.end(client, place, work, true, since);
        client
    }

    #[test]
    fn who_comes_late_goes_before_those_who_had_much_and_has_no_claim_to_the_past() {
        let (mut turns, mut places) = (Turns::default(), [(); 4].map(|()| Place::default()));
        for client in 0..3 {
            turns.add(client, &mut places[client as usize], 0);
        }
        let first: Vec<_> = (0..30).map(|_| next(&mut turns, &mut places, 1000)).collect();
        assert_eq!(first[..6], [0, 1, 2, 0, 1, 2]);
        turns.add(3, &mut places[3], 1);
        // Its turns are small, so it has all of them until as much work was done for it as for the others.
        let then: Vec<_> = (0..12).map(|_| next(&mut turns, &mut places, 100)).collect();
        assert!(then[..2].contains(&3), "{then:?}");
        assert!(then.iter().any(|client| *client != 3), "{then:?}");
    }

    #[test]
    fn a_client_is_there_once() {
        let (mut turns, mut place) = (Turns::default(), Place::default());
        turns.add(7, &mut place, 3);
        turns.add(7, &mut place, 4);
        assert_eq!(turns.begin(7, &mut place), Some(3));
        assert!(turns.is_empty());
        // It is woken in its own turn, and has work left as well.
        turns.add(7, &mut place, 5);
        turns.end(7, &mut place, 10, true, Some(3));
        assert_eq!(turns.remove(7, &mut place), Some(3));
        assert!(turns.is_empty() && !place.is_queued());
    }
}
