//! The ranks of a domain agree on the length of an allocation: the greatest length that any of them needs. See
//! `SymmetricPool::allocate_agreed`.

use std::{convert::Infallible, time::Duration};

use bootstrap::agreement::{self, Absence, Absentee, Member, Protocol, Report};

use super::{
    PROTOCOL,
    ending::Ending,
    meeting_id::{MeetingId, MeetingKind},
    record::PoolId,
    refusal::Refusal,
    start::{self, Start, evidence, explain},
    wire,
};

/// The agreement on a length. The record of a rank (its message to the other ranks) is the number of bytes that it
/// needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LengthProtocol;

type LengthDecision = agreement::Decision<LengthProtocol>;

impl Protocol for LengthProtocol {
    const PROTOCOL: wire::Protocol = PROTOCOL;
    /// True, so that the member list stays in the store. If a rank with another list arrives after the others, it finds
    /// the stored list and fails with [`Refusal::MembersMismatch`]. Without the stored list, the rank would wait until
    /// its [patience](Member::patience) ends. Members remove the stored keys after a later agreement on a length in the
    /// same pool has succeeded.
    const KEEPS_RESULT: bool = true;

    type Record = u64;
    type Plan = Infallible;
    type Outcome = Infallible;
    type Agreed = u64;
    type Refusal = Refusal;

    fn decide(needs: &[(u32, u64)]) -> LengthDecision {
        LengthDecision::Agreed { agreed: needs.iter().map(|(_, bytes)| *bytes).max().unwrap_or(0) }
    }

    fn is_final(outcome: &Infallible) -> bool {
        match *outcome {}
    }

    fn judge(plan: &Infallible, _: &[(u32, Report<Infallible>)]) -> LengthDecision {
        match *plan {}
    }

    fn evidence(name: &str, missing: &[Absentee]) -> Vec<String> {
        evidence(name, missing)
    }

    fn explain(absence: &Absence<'_>) -> Option<Refusal> {
        explain(absence)
    }
}

impl Start<LengthProtocol> {
    /// Prepares the start of an agreement on the length of an allocation from `pool`. `round` is the number of the
    /// agreement among those on a length from `pool`, from 0. `rank` is this rank, and `members` are all ranks of the
    /// domain. This rank needs `bytes` bytes. `deadline` is the time limit of the agreement, counted from its start.
    #[must_use]
    pub fn length(
        pool: PoolId,
        round: u64,
        rank: u32,
        members: Vec<u32>,
        bytes: u64,
        deadline: Duration,
    ) -> Self {
        let meeting = MeetingId::new(pool, MeetingKind::Length {}, round);
        Self::new(meeting, rank, members, length_patience(deadline), deadline, bytes)
    }
}

/// Returns a member's patience in an agreement on a length: 15/16 of `deadline`. The patience is the longest time that
/// the member waits for the records of the others. The members do nothing more after the decision, so the remaining
/// 1/16 is enough for the requests to the store.
pub fn length_patience(deadline: Duration) -> Duration {
    deadline / 16 * 15
}

/// Converts the ending of an agreement on a length (the reason why it has no result on `member`) from the form of
/// [`bootstrap::agreement`] to an [`Ending`].
#[must_use]
pub fn length_ending(ending: agreement::Ending<LengthProtocol>, member: &Member) -> Ending {
    Ending::of(ending, |failure| start::failed(member, failure))
}
