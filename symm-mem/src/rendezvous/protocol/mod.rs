//! The rendezvous protocol without I/O: the members of a group agree to map each other's memory.
//!
//! - [`Record`]: the message of a rank, which describes its buffer, its device, and the handles of its memory.
//! - [`decide()`]: the common decision, a pure function of the members' messages.
//! - [`RendezvousRefusal`]: the reason for a failure, equal on every member.
//!
//! One rendezvous is a [`meeting`]. Its result is the number of the rendezvous that mapped the memory: its own
//! number, or that of an earlier one if all members still have its mappings.

mod decide;
mod record;
mod refusal;
#[cfg(test)]
mod tests;

pub(crate) use self::record::prefix;
pub use self::{
    decide::decide,
    record::{Handles, Readiness, Record, Subject, Uuid},
    refusal::RendezvousRefusal,
};
use crate::agreement::meeting::{self, Contribution};
pub use crate::agreement::meeting::{Input, Outcome, verdict};

impl Contribution for Record {
    type Opening = Vec<Record>;
    type Agreed = u64;
    type Refusal = RendezvousRefusal;

    const DECISION: u8 = 17;
    const VERDICT: u8 = 19;

    fn rank(&self) -> u32 {
        self.rank
    }

    fn is_of_the_missing(refusal: &RendezvousRefusal) -> bool {
        matches!(refusal, RendezvousRefusal::RendezvousTimeout { .. } | RendezvousRefusal::MembersLost { .. })
    }

    fn deadline_ms(&self) -> u64 {
        self.deadline_ms
    }

    fn decide(records: &[Self]) -> Decision {
        decide(records)
    }

    fn agreed(&self, _: &Vec<Record>) -> u64 {
        self.number
    }
}

/// The decision that all members follow.
pub type Decision = meeting::Decision<Record>;
/// The common result of the members' outcomes.
pub type Verdict = meeting::Verdict<Record>;
/// One member's part in one rendezvous.
pub type Meeting = meeting::Meeting<Record>;
/// A request of the state machine to its driver.
pub type Output = meeting::Output<Record>;
/// The conclusion of a rendezvous on this member.
pub type Conclusion = meeting::Conclusion<Record>;
/// The reason why a rendezvous failed on this member.
pub type Ending = meeting::Ending<Record>;
