//! Symmetric memory.

pub mod agreement;
mod commit;
mod domain;
mod error;
mod pool;

pub use agreement::{Enqueued, GroupId, NoWindows, Poison, Policy, PoolId, Refusal, decide};
pub use caching_alloc::core::symmetric::{Geometry, Placement, SymmetricError};
pub use commit::{CommitOptions, CommitReport, CommunicatorGroup, SymmetricGroup, commit_all};
pub use domain::{Domain, DomainError};
pub use error::CommitError;
pub use pool::{GraphPin, LookupError, PoolCapture, Residence, Standing, SymmetricBlock, SymmetricPool};
