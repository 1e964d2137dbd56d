//! The protocol of an exchange, without I/O. In this module, an *exchange* is one agreement of the members, and not the
//! handle `Exchange` of `symm-mem`. The members agree either on a plan, which is a list of transfers between them,
//! or on regions, which are memory that all members can access. They check that the two ends of every transfer match,
//! and that every member can open (map) the memory that it accesses.
//!
//! - [`ExchangeRecord`]: the message of a member. Contains its transfers or regions, its exports (its allocations that
//!   peers access), and the list of the peers' allocations that it already has open.
//! - [`decide()`]: the decision, a pure function of the members' records.
//! - [`Agreement`]: the agreed plan or regions. Each rank derives from it the [`Route`]s of its transfers, or the
//!   [`RegionRoute`]s to its peers' regions.
//! - [`ExchangeRefusal`]: the reason why there is no plan, or why no regions are shared. All members get the same
//!   value, except in two cases, which the documentation of the type describes.
//!
//! One exchange is one run of [`ExchangeProtocol`] for all transfers, or all regions, of all members. Every member
//! takes part, even if it has no transfers or already has all memory open.

mod decide;
mod record;
mod refusal;
mod route;
#[cfg(test)]
mod tests;

use bootstrap::agreement::{self, Protocol, Report};
use memory_sharing::{OpeningOutcome, judge};

pub use self::{
    decide::{Agreement, decide, missing},
    record::{
        AllocationId, End, ExchangeRecord, Held, MemoryPiece, Part, RegionOffer, SharedAllocation,
        SharedRegion,
    },
    refusal::ExchangeRefusal,
    route::{RegionRoute, RemotePiece, Route},
};
use crate::{PROTOCOL, wire};

/// The protocol of one exchange. The [agreed value](Protocol::Agreed) depends on the decision about the records:
/// - `ExchangeDecision::Agreed`, if no member has to open memory: the value is `Some` with the plan or regions.
/// - `ExchangeDecision::Act`, if members have to open memory: this decision contains the plan or regions, so the value
///   that is agreed afterwards is `None`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExchangeProtocol;

impl Protocol for ExchangeProtocol {
    const PROTOCOL: wire::Protocol = PROTOCOL;

    type Record = ExchangeRecord;
    type Plan = Agreement;
    type Outcome = OpeningOutcome;
    type Agreed = Option<Agreement>;
    type Refusal = ExchangeRefusal;

    fn decide(records: &[(u32, ExchangeRecord)]) -> ExchangeDecision {
        let records: Vec<ExchangeRecord> = records.iter().map(|(_, record)| record.clone()).collect();
        decide(&records)
    }

    fn is_final(outcome: &OpeningOutcome) -> bool {
        matches!(outcome, OpeningOutcome::Failed { .. })
    }

    fn judge(_: &Agreement, reports: &[(u32, Report<OpeningOutcome>)]) -> ExchangeDecision {
        match judge(reports) {
            None => ExchangeDecision::Agreed { agreed: None },
            Some(failure) => ExchangeDecision::Refused { refusal: failure.into() },
        }
    }
}

/// The result of [`decide()`], the same on all members. If it is `Act`, members open memory, and then a second value of
/// this type ends the exchange.
pub type ExchangeDecision = agreement::Decision<ExchangeProtocol>;
/// The reason why an exchange ended without a plan or regions on this rank: a refusal, or for example an error of the
/// store.
pub type ExchangeEnding = crate::Ending<ExchangeRefusal>;
