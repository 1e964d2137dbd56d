//! Agreement of a domain's ranks on the length of an allocation: the greatest that any of them needs.

use std::{convert::Infallible, time::Duration};

use bootstrap::agreement::{self, Absence, Absentee, Member, Protocol, Report};

use super::{
    PROTOCOL,
    ending::Ending,
    meeting_id::{MeetingId, MeetingKind},
    record::PoolId,
    refusal::Refusal,
    start::{self, Start, evidence, explain, previous},
    wire,
};

/// The agreement on a length. The record of a rank is the number of bytes that it needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LengthProtocol;

type Decision = agreement::Decision<LengthProtocol>;

impl Protocol for LengthProtocol {
    const PROTOCOL: wire::Protocol = PROTOCOL;
    /// A rank that comes after the others with another domain is told so. The next meeting removes what is kept.
    const KEEPS_RESULT: bool = true;

    type Record = u64;
    type Plan = Infallible;
    type Outcome = Infallible;
    type Agreed = u64;
    type Refusal = Refusal;

    fn decide(needs: &[(u32, u64)]) -> Decision {
        Decision::Agreed { agreed: needs.iter().map(|(_, bytes)| *bytes).max().unwrap_or(0) }
    }

    fn is_final(outcome: &Infallible) -> bool {
        match *outcome {}
    }

    fn judge(plan: &Infallible, _: &[(u32, Report<Infallible>)]) -> Decision {
        match *plan {}
    }

    fn evidence(name: &str, missing: &[Absentee]) -> Vec<String> {
        evidence(name, missing)
    }

    fn explain(absence: &Absence<'_>) -> Option<Refusal> {
        explain(absence)
    }

    fn previous(name: &str) -> Option<String> {
        previous(name)
    }
}

impl Start<LengthProtocol> {
    /// Begins agreement number `round` among `members`. Rank `rank` needs `bytes` bytes, and the agreement takes at
    /// most `deadline`.
    #[must_use]
    pub fn length(
        pool: PoolId,
        round: u64,
        rank: u32,
        members: Vec<u32>,
        bytes: u64,
        deadline: Duration,
    ) -> Self {
        // No action follows the decision, so the wait for the others gets all of the deadline except for the share of
        // the store requests.
        let patience = deadline / 16 * 15;
        Self::new(
            MeetingId::new(pool, MeetingKind::Length {}, round),
            rank,
            members,
            patience,
            deadline,
            bytes,
        )
    }
}

/// Converts the ending of an agreement on a length on `member`.
#[must_use]
pub fn length_ending(ending: agreement::Ending<LengthProtocol>, member: &Member) -> Ending {
    Ending::of(ending, |failure| start::failed(member, failure))
}
