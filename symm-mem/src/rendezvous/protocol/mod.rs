//! The rendezvous protocol without I/O: the members of a group agree to map each other's memory.
//!
//! - [`Record`]: the message of a rank, which describes its buffer, its device, and the handles of its memory.
//! - [`decide()`]: the common decision, a pure function of the members' messages.
//! - [`RendezvousRefusal`]: the reason for a failure. All members get the same one, unless two processes run as one
//!   rank, or members have different lists of members.
//!
//! One rendezvous is one agreement of the kind [`RendezvousProtocol`]. Its result is the number of the rendezvous that
//! mapped the memory: an earlier one, if all members still have its mappings, or else the current one.

mod decide;
mod record;
mod refusal;
#[cfg(test)]
mod tests;

use bootstrap::agreement::{self, Protocol, Report};

pub(crate) use self::record::prefix;
pub use self::{
    decide::decide,
    record::{Readiness, Record, Subject},
    refusal::RendezvousRefusal,
};
use crate::{
    agreement::{self as agreements, PROTOCOL, wire},
    sharing::{self, Outcome},
};

/// The agreement of one rendezvous.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RendezvousProtocol;

impl Protocol for RendezvousProtocol {
    const PROTOCOL: wire::Protocol = PROTOCOL;

    type Record = Record;
    type Plan = Vec<Record>;
    type Outcome = Outcome;
    type Agreed = u64;
    type Refusal = RendezvousRefusal;

    fn decide(records: &[(u32, Record)]) -> Decision {
        let records: Vec<Record> = records.iter().map(|(_, record)| record.clone()).collect();
        decide(&records)
    }

    fn is_final(outcome: &Outcome) -> bool {
        matches!(outcome, Outcome::Failed { .. })
    }

    fn judge(records: &Vec<Record>, reports: &[(u32, Report<Outcome>)]) -> Decision {
        match sharing::judge(reports) {
            // `decide` refuses records with different numbers, so the number of any record is right.
            None => Decision::Agreed { agreed: records.first().map_or(0, |record| record.number) },
            Some(failure) => Decision::Refused { refusal: failure.into() },
        }
    }
}

/// The decision that all members follow.
pub type Decision = agreement::Decision<RendezvousProtocol>;
/// The reason why a rendezvous failed on this member.
pub type Ending = agreements::Ending<RendezvousRefusal>;
