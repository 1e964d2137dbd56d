//! The agreement on a plan, without I/O: how the members come to know that both ends of every transfer mean the same.
//!
//! - [`Record`]: what a member tells the others: its transfers, what it exports, what it has open already.
//! - [`decide()`] and [`verdict`]: pure functions of what the members said.
//! - [`Agreement`]: the plan, and the [`Route`]s that a rank's transfers have by it.
//! - [`ExchangeRefusal`]: why there is no plan, the same value on every member.
//! - [`Meeting`]: one member's part in one exchange.
//!
//! Votes, their keys and the binary form are those of [`crate::agreement`].

mod decide;
mod machine;
mod record;
mod refusal;
mod route;
#[cfg(test)]
mod tests;

pub use decide::{Agreement, Decision, Verdict, decide, missing, verdict};
pub use machine::{Conclusion, Ending, Input, Meeting, Output};
pub use record::{AllocationId, End, Export, Held, Part, Record, Way};
pub use refusal::ExchangeRefusal;
pub use route::Route;
