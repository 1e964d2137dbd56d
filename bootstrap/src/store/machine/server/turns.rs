//! The queue of clients with unfinished work. It determines the client that is served next.

use std::collections::BTreeSet;

use super::super::request::ClientId;

/// The clients with unfinished work, in the order of start-time fair queueing.
///
/// Every client has a work count: the work done in its turns so far, in units of a `Budget`. In an `Input::Tick`, the
/// server gives one turn after another, each to the client in the queue with the smallest count. Exception: if a client
/// is woken while the server handles the bytes of another client, it may have a turn at once, regardless of its count.
///
/// If the count of a client that joins the queue is smaller than `now`, the largest count with which a turn has begun,
/// it is raised to `now`. So the client gets no extra turns for the time before it joined. Each client in the queue
/// delays the others by about one turn, however much work it has.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// The work count and the id of each client in the queue.
    queue: BTreeSet<(u64, ClientId)>,
    /// The largest work count with which a client has begun a turn so far. After a turn out of order, it may exceed the
    /// counts of the next turns.
    now: u64,
}

/// A client's state in the queue.
#[derive(Debug, Default)]
pub(super) struct Place {
    /// The client's work count. It must not change while the client is in the queue, because it is part of the client's
    /// entry there.
    work: u64,
    /// The number of the server's step in which the client joined the queue; `None` if it is not in the queue.
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

    /// Returns the client whose turn is next; `None` if the queue is empty.
    pub(super) fn first(&self) -> Option<ClientId> {
        self.queue.first().map(|(_, client)| *client)
    }

    /// Adds a client to the queue, unless it is already there. `step` is the number of the server's current step.
    pub(super) fn add(&mut self, client: ClientId, place: &mut Place, step: u64) {
        if place.since.is_none() {
            place.since = Some(step);
            place.work = place.work.max(self.now);
            self.queue.insert((place.work, client));
        }
    }

    /// Removes a client from the queue. Returns the step in which it was added; `None` if it was not in the queue.
    pub(super) fn remove(&mut self, client: ClientId, place: &mut Place) -> Option<u64> {
        let since = place.since.take()?;
        self.queue.remove(&(place.work, client));
        Some(since)
    }

    /// Begins the turn of a client. Removes the client from the queue. If `now` is smaller than the client's work
    /// count, sets it to that count. Returns the step in which the client joined the queue; `None` if it was not in the
    /// queue.
    pub(super) fn begin(&mut self, client: ClientId, place: &mut Place) -> Option<u64> {
        self.now = self.now.max(place.work);
        self.remove(client, place)
    }

    /// Ends the turn of a client, and adds `work`, the units of work of the turn, to the client's work count. Puts the
    /// client back into the queue if work `is_left`, or if it was added again during its turn. `since` is the result of
    /// [`begin`](Self::begin), and must not be `None` if work is left. The client then counts as having joined the
    /// queue in step `since` or, if that is `None`, in the step in which it was added again.
    pub(super) fn end(
        &mut self,
        client: ClientId,
        place: &mut Place,
        work: usize,
        is_left: bool,
        since: Option<u64>,
    ) {
        // The client may have been added again during its own turn: its connection was closed, and its next turn frees
        // its memory; or it was woken because another connection was closed.
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

    /// Gives the next client a turn of `work` units, after which it has work left.
    fn next(turns: &mut Turns, places: &mut [Place], work: usize) -> ClientId {
        let client = turns.first().unwrap();
        let place = &mut places[client as usize];
        let since = turns.begin(client, place);
        turns.end(client, place, work, true, since);
        client
    }

    #[test]
    fn a_late_client_goes_first_but_gets_no_turns_for_the_time_before() {
        let (mut turns, mut places) = (Turns::default(), [(); 4].map(|()| Place::default()));
        for client in 0..3 {
            turns.add(client, &mut places[client as usize], 0);
        }
        let first: Vec<_> = (0..30).map(|_| next(&mut turns, &mut places, 1000)).collect();
        assert_eq!(first[..6], [0, 1, 2, 0, 1, 2]);
        turns.add(3, &mut places[3], 1);
        // Client 3 joins with the smallest count, and its turns are small. So it has every turn until its count equals
        // those of the others. Then another client has a turn.
        let then: Vec<_> = (0..12).map(|_| next(&mut turns, &mut places, 100)).collect();
        assert!(then[..2].contains(&3), "{then:?}");
        assert!(then.iter().any(|client| *client != 3), "{then:?}");
    }

    #[test]
    fn a_client_is_in_the_queue_at_most_once() {
        let (mut turns, mut place) = (Turns::default(), Place::default());
        turns.add(7, &mut place, 3);
        turns.add(7, &mut place, 4);
        assert_eq!(turns.begin(7, &mut place), Some(3));
        assert!(turns.is_empty());
        // The client is woken during its own turn, and has work left as well.
        turns.add(7, &mut place, 5);
        turns.end(7, &mut place, 10, true, Some(3));
        assert_eq!(turns.remove(7, &mut place), Some(3));
        assert!(turns.is_empty() && !place.is_queued());
    }
}
