//! The numbers of a rank's meetings, and the list of the meetings that may have left keys in the store. A
//! [meeting](super::MeetingId) is one agreement on a commit, on a retirement, or on the length of an allocation.

/// The maximum number of meetings in [`Rounds::left`]. The keys of older meetings stay in the store.
const MOST: usize = 64;

/// Counts a rank's meetings of one [kind](super::MeetingKind) about one pool, and lists those that may have left keys
/// in the store. A meeting leaves keys in two cases: a member did not take part or did not acknowledge the result, or
/// [`KEEPS_RESULT`](bootstrap::agreement::Protocol::KEEPS_RESULT) is true for the kind of agreement.
#[derive(Debug, Clone, Default)]
pub struct Rounds {
    next: u64,
    /// The numbers of meetings that may have left keys. Late members may still read these keys.
    left: Vec<u64>,
    /// The numbers of meetings whose keys this rank can remove, because no member reads them any more.
    removable: Vec<u64>,
}

impl Rounds {
    /// Returns the number of the next meeting, from 0, and increments the counter.
    pub fn count(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    /// Returns the number of the last meeting, or 0 if there was none.
    pub fn last(&self) -> u64 {
        self.next.saturating_sub(1)
    }

    /// Records that all members have taken part in meeting `round`. So none of them reads the keys of earlier meetings
    /// any more.
    pub fn meet(&mut self, round: u64) {
        self.removable.extend(self.left.extract_if(.., |left| *left < round));
    }

    /// Records that meeting `round` may have left keys.
    pub fn leave(&mut self, round: u64) {
        self.left.push(round);
        if self.left.len() > MOST {
            self.left.remove(0);
        }
    }

    /// Returns the meetings whose keys this rank can remove now. Each meeting is returned only once.
    pub fn take_left(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.removable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_removed_once_all_members_have_met_later() {
        let mut rounds = Rounds::default();
        for round in 0..3 {
            assert_eq!((rounds.count(), rounds.last()), (round, round));
            rounds.leave(round);
        }
        assert!(rounds.take_left().is_empty());
        rounds.meet(2);
        assert_eq!(rounds.take_left(), [0, 1]);
        assert!(rounds.take_left().is_empty());
        (0..2 * MOST as u64).for_each(|_| rounds.leave(3));
        assert_eq!(rounds.left.len(), MOST);
    }
}
