//! The safe NCCL layer: communicators, groups, windows, registration, abort.
//!
//! Use it for NCCL calls with checked arguments, deadlines and aborts, with or without a [process
//! group](crate::group). It does not find the other ranks (a [store](crate::store) does), and it does not agree on
//! windows before they are made (symm-mem does).
//!
//! | file | subject |
//! |---|---|
//! | `nccl`, `unique_id`, `config`, `types` | the library, and the types of its arguments |
//! | `check` | argument checks that one rank makes alone before a launch |
//! | `communicator`, `shared`, `service` | creation, splitting; the thread for calls that may block |
//! | `children`, `grow`, `making` | shrinking, revoking; growing; the origin of each communicator |
//! | `adopt` | communicators that another library made and will destroy |
//! | `call_guard` | admission of calls to NCCL with a communicator |
//! | `collective`, `one_sided`, `task`, `group` | operations |
//! | `window`, `register`, `registry`, `memory`, `suspend` | registered memory, and the memory that NCCL holds itself |
//! | `ending`, `abort`, `reaper`, `turn` | destruction, abort, the end after a drop, one thread at a time |
//! | `call` | calls of NCCL's function table |
//!
//! Invariants: one thread at a time is inside NCCL with a communicator. No memory that NCCL may still write to is
//! freed. Every wait has a deadline except an enqueue, which an [`AbortHandle`] unblocks. `Drop` calls no collective
//! and does not panic. After an error that leaves a communicator in an unknown state, only an abort is admitted.

mod abort;
mod adopt;
pub(crate) mod call;
mod call_guard;
mod check;
mod children;
mod collective;
mod communicator;
mod config;
mod ending;
mod error;
mod group;
mod grow;
mod making;
mod memory;
mod nccl;
mod one_sided;
mod open_group;
mod reaper;
mod register;
#[cfg_attr(not(feature = "registration"), expect(dead_code, reason = "what comes and goes with segments"))]
mod registry;
#[cfg_attr(
    not(feature = "registration"),
    expect(dead_code, reason = "only segments and pools are registered")
)]
mod registry_calls;
mod service;
mod shared;
mod suspend;
mod task;
mod turn;
mod types;
mod unique_id;
mod window;

pub use abort::AbortHandle;
pub(crate) use abort::PATIENCE;
pub use check::ArgumentError;
#[cfg(test)]
pub(crate) use check::Place;
pub use communicator::Communicator;
pub(crate) use communicator::settings;
pub use config::{Config, ConfigBuilder, CtaPolicy, GraphUsage};
pub use error::{CommError, Result};
pub use group::Group;
pub use making::{Making, Origin, ShrinkMode};
pub use memory::MemoryStatistics;
pub use nccl::Nccl;
pub(crate) use open_group::refuse_inside as refuse_inside_group;
pub(crate) use reaper::Beside;
pub(crate) use reaper::report;
pub use reaper::{set_drop_error_hook, wait_for_dropped};
pub use register::Registration;
#[cfg(feature = "registration")]
pub(crate) use registry::{SegmentHold, Unsettled};
pub(crate) use service::{Force, Listener};
pub(crate) use shared::MemberSetup;
#[cfg(feature = "registration")]
pub(crate) use shared::Shared;
pub(crate) use task::{Primitive, Task};
pub(crate) use turn::Turn;
pub use types::{DataType, ReduceOp};
pub use unique_id::UniqueId;
pub use window::{
    Window, WindowFacts, WindowFlags, WindowOutcome, WindowRequest, WindowRequestError, WindowsUnsupported,
    register_windows_together,
};
