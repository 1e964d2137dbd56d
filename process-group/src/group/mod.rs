//! Process groups: ranks that found each other, agreed on their settings, and communicate.
//!
//! Use this module for groups of all ranks of a job, or of some of them. For NCCL without a store, use [`crate::comm`].
//! For windows whose registration the members agree on, use symm-mem.
//!
//! | file | subject |
//! |---|---|
//! | `builder`, `source`, `store_keys`, `environment`, `join`, `group_parts`, `shared_settings` | building a group of ranks |
//! | `error`, `error_kind`, `causes` | the error of a group's calls; why a call failed; the data of such errors |
//! | `settings` | settings that each group may have of its own |
//! | `torch` | joining a group of PyTorch's ranks |
//! | `meeting` | agreements among the members |
//! | `member` | each rank's record, and the decisions that follow from all records |
//! | `process_group`, `id`, `hosted` | the group: its members, identity and end, and the store that a rank hosts |
//! | `counter` | counts of enqueued work that members can compare |
//! | `split`, `split_plan`, `shrink`, `grow` | groups of some of the ranks, of the surviving ranks, and of all ranks plus new ones |
//! | `suspend` | releasing the memory of an idle group's communicators |
//! | `job` | a rank of a job, with what most programs need |
//! | `startup` | the time that building a group took |
//! | `typed` | operations on typed slices |
//! | `buffer`, `raw`, `one_sided`, `batch` | operations on raw addresses |
//! | `launch`, `list` | the `Op`s of each operation, and their launch |
//! | `work` | waiting for operations |
//! | `connect`, `connection`, `form` | making communicators, on all of their ranks or on none |
//! | [`p2p`] | selecting the communicators for messages |
//! | [`path`] | transports besides NCCL that other crates implement |
//! | `preflight` | comparing calls before they are launched |
//! | `registration`, `registered`, `pools`, `report` | registering memory or single pools, on all members or on none, and a report of registered buffers |
//! | `buffer_cache`, `places`, `buffers` | checks that buffers are memory of the group's device, and lookup of the buffers' positions in its windows |
//! | `health`, `health_handle`, `explain`, `end` | ending a group when a member fails or leaves, and the cause of a call's error |
//! | `work_monitor`, `work_checks`, `calls`, `doubt` | the watchdog's checks of a group |
//!
//! Invariants:
//! - Members decide how they call NCCL by a function of records that all members have, so all decide alike.
//! - Errors name the missing ranks.
//! - A group is identified by its [`GroupId`], never by a pointer, nor by a name, which may be used again.

mod batch;
mod buffer;
mod buffer_cache;
mod buffers;
mod builder;
mod calls;
mod causes;
mod connect;
mod connection;
mod counter;
mod doubt;
mod end;
mod end_listener;
mod environment;
mod error;
mod error_kind;
mod explain;
mod form;
mod group_parts;
mod grow;
mod health;
mod health_handle;
mod hosted;
mod id;
mod job;
mod join;
mod launch;
mod list;
mod meeting;
mod member;
mod one_sided;
pub mod p2p;
pub mod path;
mod places;
#[cfg(feature = "registration")]
mod pools;
mod preflight;
mod process_group;
mod raw;
mod registered;
mod registration;
mod report;
mod settings;
mod shared_settings;
mod shrink;
mod source;
mod split;
mod split_plan;
mod startup;
mod store_keys;
mod suspend;
mod torch;
mod typed;
mod work;
mod work_checks;
mod work_monitor;

pub use batch::Batch;
pub use buffer::Buffer;
pub use builder::Builder;
pub use causes::{Misplaced, PathError, ShrinkError, TorchError};
pub use counter::{Enqueued, MessageCounts, enqueued_on};
pub use end_listener::EndListener;
pub use environment::Environment;
pub use error::{GroupError, Result};
pub use error_kind::GroupErrorKind;
use error_kind::KindResult;
pub use health_handle::HealthHandle;
pub use id::GroupId;
pub use job::Job;
pub use member::{Disagreement, Member, RegistrationSupport, Witnesses};
pub use p2p::{Explanation, P2pPolicy, P2pReport, PathReport, PeerChannel, lane};
pub use path::Path;
pub use places::{SymmetricPlaces, SymmetricPlan, SymmetricSegment, places_changed};
pub use process_group::ProcessGroup;
pub use raw::Raw;
pub use registered::NotRegistered;
pub use report::{OperationBuffers, RegistrationReport, RegistrationStatus};
pub use settings::GroupSettings;
pub use split_plan::{Placement, Request, SplitError, SplitPlan};
pub use startup::Startup;
pub use typed::Scalar;
pub use work::{Work, WorkFuture};

pub use crate::{
    memory::{BufferError, Unregistrable},
    watch::{Divergence, DivergentCall, MessageDifference},
};

pub(crate) use health::GroupHealth;
pub(crate) use settings::CHECK_INTERVAL;
pub(crate) use work_monitor::WorkMonitor;
