//! The agreement on a plan, without I/O: the members check that both ends of every transfer match.
//!
//! - [`Record`]: the message of a member: its transfers, its exports, and the memory that it has already open.
//! - [`decide()`]: the decision, a pure function of the members' records.
//! - [`Agreement`]: the plan, and the [`Route`]s of a rank's transfers in it.
//! - [`ExchangeRefusal`]: why there is no plan, the same value on every member.
//!
//! One exchange is a [`meeting`]. All transfers of all members are one vote. So neither the order of the transfers
//! nor memory that is already open can make a member wait for one that does not come.

mod decide;
mod record;
mod refusal;
mod route;
#[cfg(test)]
mod tests;

pub use self::{
    decide::{Agreement, decide, missing},
    record::{AllocationId, End, Export, Held, Part, Record, Way},
    refusal::ExchangeRefusal,
    route::Route,
};
use crate::agreement::meeting::{self, Contribution};
pub use crate::agreement::meeting::{Input, Outcome, verdict};

impl Contribution for Record {
    type Opening = Agreement;
    type Agreed = Agreement;
    type Refusal = ExchangeRefusal;

    const DECISION: u8 = 21;
    const VERDICT: u8 = 22;

    fn rank(&self) -> u32 {
        self.rank
    }

    fn is_of_the_missing(refusal: &ExchangeRefusal) -> bool {
        matches!(refusal, ExchangeRefusal::ExchangeTimeout { .. } | ExchangeRefusal::MembersLost { .. })
    }

    fn deadline_ms(&self) -> u64 {
        self.deadline_ms
    }

    fn decide(records: &[Self]) -> Decision {
        decide(records)
    }

    fn agreed(&self, agreement: &Agreement) -> Agreement {
        agreement.clone()
    }
}

/// The decision for all members.
pub type Decision = meeting::Decision<Record>;
/// The verdict over the members' outcomes.
pub type Verdict = meeting::Verdict<Record>;
/// The state machine of one member in one exchange.
pub type Meeting = meeting::Meeting<Record>;
/// A request of the state machine to its driver.
pub type Output = meeting::Output<Record>;
/// The result of an exchange on this member: the plan, or the reason why there is none.
pub type Conclusion = meeting::Conclusion<Record>;
/// Why an exchange ended without a plan.
pub type Ending = meeting::Ending<Record>;
