//! The protocol of a rendezvous, without I/O: the members of a group agree to map each other's memory.
//!
//! - [`RendezvousRecord`]: the message of a rank, which describes its buffer, its device, and the handles of its
//!   memory.
//! - [`decide()`]: the common decision, a pure function of the members' messages.
//! - [`RendezvousRefusal`]: the reason for a failure. All members get the same one, unless two processes run as one
//!   rank, or the ranks give different lists of the group's members.
//!
//! One rendezvous is one agreement ([`bootstrap::agreement`]) of the kind [`RendezvousProtocol`]. Its result is the
//! number of the rendezvous that mapped the memory. This is an earlier rendezvous if all members still have its
//! mappings, and otherwise the current one.

mod decide;
mod record;
mod refusal;
#[cfg(test)]
mod tests;

use bootstrap::agreement::{self, Protocol, Report};
use memory_sharing::{OpeningOutcome, judge};

pub use self::record::prefix;
pub use self::{
    decide::decide,
    record::{RendezvousRecord, SharingReadiness, Subject},
    refusal::RendezvousRefusal,
};
use crate::{PROTOCOL, wire};

/// The agreement of one rendezvous, as an implementation of [`Protocol`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RendezvousProtocol;

impl Protocol for RendezvousProtocol {
    const PROTOCOL: wire::Protocol = PROTOCOL;

    type Record = RendezvousRecord;
    type Plan = Vec<RendezvousRecord>;
    type Outcome = OpeningOutcome;
    type Agreed = u64;
    type Refusal = RendezvousRefusal;

    fn decide(records: &[(u32, RendezvousRecord)]) -> RendezvousDecision {
        let records: Vec<RendezvousRecord> = records.iter().map(|(_, record)| record.clone()).collect();
        decide(&records)
    }

    fn is_final(outcome: &OpeningOutcome) -> bool {
        matches!(outcome, OpeningOutcome::Failed { .. })
    }

    fn judge(
        records: &Vec<RendezvousRecord>,
        reports: &[(u32, Report<OpeningOutcome>)],
    ) -> RendezvousDecision {
        match judge(reports) {
            // `decide` refuses records with different numbers, so all records here have the same number.
            None => RendezvousDecision::Agreed { agreed: records.first().map_or(0, |record| record.number) },
            Some(failure) => RendezvousDecision::Refused { refusal: failure.into() },
        }
    }
}

/// The decision that all members follow: to map each other's memory, to keep the mappings of an earlier rendezvous, or
/// to refuse the rendezvous.
pub type RendezvousDecision = agreement::Decision<RendezvousProtocol>;
/// The reason why a rendezvous failed on this member.
pub type RendezvousEnding = crate::Ending<RendezvousRefusal>;
