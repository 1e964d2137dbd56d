//! The safe NCCL layer: communicators, groups, windows, registration, abort.
//!
//! For: who wants NCCL without its traps, with or without a [process group](crate::group). Not for: finding the
//! other ranks, which takes a [store](crate::store); agreeing on windows before they are made, which is
//! symm-mem's.
//!
//! | file | subject |
//! |---|---|
//! | `nccl`, `unique_id`, `config`, `types` | the library, and what is given to it |
//! | `check` | what one rank can refuse before a launch |
//! | `communicator`, `shared`, `service` | making, splitting; the thread for calls that may block |
//! | `children`, `making` | shrinking, revoking; how each came to be |
//! | `gate` | who may be inside NCCL with a communicator |
//! | `collective`, `one_sided`, `task`, `group` | work |
//! | `window`, `register`, `registry`, `memory` | memory that NCCL knows, and what it takes for itself |
//! | `ending`, `abort`, `reaper`, `turn` | the end, the end by force, that of what was dropped; one at a time |
//! | `call` | the one way into the table |
//!
//! Invariants: one thread at a time is inside NCCL with a communicator; no memory that NCCL may still write to is
//! freed; nothing waits without a deadline but an enqueue, which an [`AbortHandle`] frees; `Drop` calls no
//! collective and does not panic; after an error that leaves a communicator in doubt, nothing but an abort is let
//! in.

mod abort;
pub(crate) mod call;
mod check;
mod children;
mod collective;
mod communicator;
mod config;
mod ending;
mod error;
mod gate;
mod group;
mod making;
mod memory;
mod nccl;
mod one_sided;
mod reaper;
mod register;
#[cfg_attr(not(feature = "registration"), expect(dead_code, reason = "what comes and goes with segments"))]
mod registry;
mod service;
mod shared;
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
pub use children::ShrinkMode;
pub use communicator::Communicator;
pub(crate) use communicator::settings;
pub use config::{Config, CtaPolicy};
pub use error::{CommError, Result};
pub use group::Group;
pub(crate) use group::refuse_inside as refuse_inside_group;
pub use making::{Making, Origin};
pub use memory::MemoryStatistics;
pub use nccl::Nccl;
pub(crate) use reaper::Beside;
pub(crate) use reaper::report;
pub use reaper::{set_drop_error_hook, wait_for_dropped};
pub use register::Registration;
#[cfg(feature = "registration")]
pub(crate) use registry::{Keeper, Unsettled};
pub(crate) use service::{Force, Listener};
pub(crate) use shared::Seat;
#[cfg(feature = "registration")]
pub(crate) use shared::Shared;
pub(crate) use task::{Operation, Task};
pub use types::{DataType, ReduceOp};
pub use unique_id::UniqueId;
pub use window::{
    Window, WindowFacts, WindowFlags, WindowOutcome, WindowRequest, WindowRequestError, WindowsUnsupported,
    register_windows_together,
};
