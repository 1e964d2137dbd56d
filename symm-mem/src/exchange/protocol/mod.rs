//! The agreement on a plan, without I/O: how the members come to know that both ends of every transfer mean the same.
//!
//! - [`Record`]: what a member tells the others: its transfers, what it exports, what it has open already.
//! - [`decide()`]: what all do, a pure function of what the members said.
//! - [`Agreement`]: the plan, and the [`Route`]s that a rank's transfers have by it.
//! - [`ExchangeRefusal`]: why there is no plan, the same value on every member.
//!
//! One exchange is a [`meeting`]. All transfers of all members are one vote: no order of them, and nothing that a member has
//! open already, lets one wait for another that does not come.

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

/// What all members do.
pub type Decision = meeting::Decision<Record>;
/// What the members make of their outcomes.
pub type Verdict = meeting::Verdict<Record>;
/// One member's part in one exchange.
pub type Meeting = meeting::Meeting<Record>;
/// What it wants from its driver.
pub type Output = meeting::Output<Record>;
/// How an exchange ended on this member: with the plan, or why there is none.
pub type Conclusion = meeting::Conclusion<Record>;
/// Why an exchange ended without a plan.
pub type Ending = meeting::Ending<Record>;
