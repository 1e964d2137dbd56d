//! The safe NCCL layer: communicators, groups, windows, registration, abort.
//!
//! Use this module for NCCL calls with checked arguments, deadlines and aborts, with or without a [process
//! group](crate::group). This module does not find the other ranks: use a [store](crate::store) for that. It does not
//! make ranks agree before windows are registered: the crate `symm-mem` does.
//!
//! | file | subject |
//! |---|---|
//! | `nccl`, `unique_id`, `config`, `types` | the library, and the types of its arguments |
//! | `op`, `launch`, `composed`, `argument` | one operation; its argument check and its NCCL calls; operations of several calls; errors of arguments |
//! | `communicator`, `shared`, `service` | creation and splitting; the thread that runs calls that may block |
//! | `children`, `grow`, `making` | shrinking and revoking; growing; how each communicator was made |
//! | `adopt` | communicators that another library made and will destroy |
//! | `call_guard` | decides which threads may call NCCL with a communicator, and when |
//! | `collective`, `one_sided`, `group`, `open_group` | operations and NCCL groups |
//! | `window`, `register`, `registry`, `registry_calls` | windows and registered memory |
//! | `memory`, `suspend` | the memory that NCCL holds for a communicator |
//! | `ending`, `abort`, `reaper` | destruction; abort; background abort of dropped communicators |
//! | `turn` | frees one communicator at a time |
//! | `call` | calls functions of NCCL's function table |
//!
//! Invariants:
//! - One thread at a time is inside NCCL with a communicator; queries of asynchronous errors are exempt.
//! - Memory that NCCL may still write to is never freed.
//! - Every wait of a caller has a deadline, except an enqueue, which an [`AbortHandle`] unblocks.
//! - `Drop` calls no collective and does not panic.
//! - After an error that leaves a communicator in an unknown state, the communicator takes no further work. It can be
//!   aborted, or [shrunk after a failure](ShrinkMode::AfterFailure).

mod abort;
mod adopt;
mod argument;
pub(crate) mod call;
mod call_guard;
mod children;
mod collective;
mod communicator;
mod composed;
mod config;
mod ending;
mod error;
mod group;
mod grow;
mod launch;
mod making;
mod memory;
mod nccl;
mod one_sided;
mod op;
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
mod turn;
mod types;
mod unique_id;
mod window;

pub use abort::AbortHandle;
pub(crate) use abort::PATIENCE;
pub use argument::{ArgumentError, ListBuffer};
pub(crate) use children::check_excluded;
pub use communicator::Communicator;
pub(crate) use communicator::settings;
pub use config::{Config, ConfigBuilder, CtaPolicy, GraphUsage};
pub use error::{CommError, Result};
pub use group::Group;
pub use making::{Making, Origin, ShrinkMode};
pub use memory::MemoryStatistics;
pub use nccl::Nccl;
pub(crate) use op::{Given, Op};
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
pub(crate) use turn::Turn;
pub use types::{DataType, ReduceOp};
pub use unique_id::UniqueId;
pub use window::{
    Window, WindowFacts, WindowFlags, WindowOutcome, WindowRequest, WindowRequestError, WindowsUnsupported,
    register_windows_together,
};
