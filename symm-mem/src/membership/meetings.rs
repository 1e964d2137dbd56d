//! Counts the agreements about a pool in which all ranks of its [domain](crate::Domain) take part.

use bootstrap::agreement::{Member, Place};

use crate::agreement::{MeetingId, MeetingKind, Rounds};

/// Counters of the agreements in which all ranks of the domain take part: on the lengths of allocations, and on the
/// [retirement](crate::SymmetricPool::retire) of segments. Such an agreement is called a meeting.
#[derive(Debug, Default)]
pub struct Meetings {
    pub(super) lengths: Rounds,
    pub(super) retirements: Rounds,
}

impl Meetings {
    /// Records the end of a retirement or of an agreement on a length. Returns the agreements whose keys the caller
    /// must remove from the store. `member` describes this rank in the agreement. `has_met` is true if all members have
    /// taken part.
    ///
    /// If `has_met` is true, no member reads the keys of earlier agreements of the same kind any more. The list has
    /// those whose keys may still exist. If `has_met` is false, the list is empty, because a late member may still read
    /// such keys.
    ///
    /// For a commit, records nothing and returns an empty list, because [`GroupLog`](crate::agreement::GroupLog) counts
    /// commits.
    pub fn end(&mut self, member: &Member, has_met: bool) -> Vec<Place> {
        let Some(meeting) = MeetingId::named(&member.name) else { return Vec::new() };
        let rounds = match meeting.kind {
            MeetingKind::Retire {} => &mut self.retirements,
            MeetingKind::Length {} => &mut self.lengths,
            MeetingKind::Commit { .. } => return Vec::new(),
        };
        if has_met {
            rounds.meet(meeting.round);
        }
        rounds.leave(meeting.round);
        let place = |round| {
            let name = MeetingId { round, ..meeting }.name();
            Place { name, members: member.members.clone() }
        };
        rounds.take_left().into_iter().map(place).collect()
    }
}
