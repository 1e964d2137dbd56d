//! The rendezvous protocol, without I/O: how the members of a group agree that each maps the others' memory.
//!
//! - [`Record`]: what a rank tells the others of its buffer, its device, and how its memory can be had.
//! - [`decide()`]: what all do, a pure function of what the members said.
//! - [`RendezvousRefusal`]: why there are no peers' buffers, the same value on every member.
//!
//! One rendezvous is a [`meeting`]. It gives the number of the one in which the memory was mapped: its own, or that of an
//! earlier one that all have still.

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

/// What all members do.
pub type Decision = meeting::Decision<Record>;
/// What the members make of their outcomes.
pub type Verdict = meeting::Verdict<Record>;
/// One member's part in one rendezvous.
pub type Meeting = meeting::Meeting<Record>;
/// What it wants from its driver.
pub type Output = meeting::Output<Record>;
/// How a rendezvous ended on this member.
pub type Conclusion = meeting::Conclusion<Record>;
/// Why a rendezvous ended without peers' buffers.
pub type Ending = meeting::Ending<Record>;
