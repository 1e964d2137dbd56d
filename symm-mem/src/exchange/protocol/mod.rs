//! The agreement on a plan or on regions, without I/O: the members check that both ends of every transfer match, and
//! that all memory can be opened where it is needed.
//!
//! - [`Record`]: the message of a member. Contains its transfers or regions, its exports, and the list of the peers'
//!   allocations that it already has open.
//! - [`decide()`]: the decision, a pure function of the members' records.
//! - [`Agreement`]: the agreed plan or regions. Each rank derives from it the [`Route`]s of its transfers, or the
//!   [`RegionRoute`]s to its peers' regions.
//! - [`ExchangeRefusal`]: the reason why there is no plan, or why no regions are shared. The same value on every
//!   member.
//!
//! One exchange is one agreement by [`ExchangeProtocol`] on all transfers, or all regions, of all members. Every member
//! takes part, even if it has no transfers or already has all memory open.

mod decide;
mod record;
mod refusal;
mod route;
#[cfg(test)]
mod tests;

use bootstrap::agreement::{self, Protocol, Report};

pub use self::{
    decide::{Agreement, decide, missing},
    record::{AllocationId, End, Export, Held, Part, Record, RegionOffer, RegionPiece, SharedRegion},
    refusal::ExchangeRefusal,
    route::{RegionRoute, Route, RoutedRegion},
};
use crate::{
    agreement::{AgreementError, PROTOCOL, wire},
    sharing::{self, Outcome},
};

/// The agreement of one exchange. If no memory has to be opened, the result is `Some` with the agreed plan or regions.
/// Otherwise the result is `None`, because `Decision::Act` has already given the plan or regions to the members.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExchangeProtocol;

impl Protocol for ExchangeProtocol {
    const PROTOCOL: wire::Protocol = PROTOCOL;

    type Record = Record;
    type Plan = Agreement;
    type Outcome = Outcome;
    type Agreed = Option<Agreement>;
    type Refusal = ExchangeRefusal;

    fn decide(records: &[(u32, Record)]) -> Decision {
        let records: Vec<Record> = records.iter().map(|(_, record)| record.clone()).collect();
        decide(&records)
    }

    fn is_final(outcome: &Outcome) -> bool {
        matches!(outcome, Outcome::Failed { .. })
    }

    fn judge(_: &Agreement, reports: &[(u32, Report<Outcome>)]) -> Decision {
        match sharing::judge(reports) {
            None => Decision::Agreed { agreed: None },
            Some(failure) => Decision::Refused { refusal: failure.into() },
        }
    }
}

/// The decision for all members.
pub type Decision = agreement::Decision<ExchangeProtocol>;
/// The reason why an exchange ended without a plan or regions.
pub type Ending = AgreementError<ExchangeRefusal>;
