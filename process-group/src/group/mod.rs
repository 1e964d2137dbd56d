//! Process groups: ranks that found each other, agreed on their settings, and communicate.
//!
//! For: the ranks of a job, and groups of some of them. Not for: NCCL without a store ([`crate::comm`]); windows
//! that are agreed on (symm-mem).
//!
//! | file | subject |
//! |---|---|
//! | `builder`, `environment`, `join`, `seat`, `terms` | building a group of ranks |
//! | `error`, `causes` | errors of groups, and what they report |
//! | `settings` | the settings that every group may have of its own |
//! | `torch` | joining a group of PyTorch's ranks |
//! | `meeting` | agreements of the members |
//! | `member` | each rank's record, and the decisions that follow from all records |
//! | `process_group`, `hosted` | the group: its members, its end, and the end of a store that it hosts |
//! | `counter` | counts of enqueued work that members can compare |
//! | `split`, `split_plan`, `shrink` | groups of some of the ranks, and of the remaining ranks |
//! | `job` | a rank of a job, with what most programs need |
//! | `startup` | the time that building a group took |
//! | `typed` | the operations on typed slices |
//! | `buffer`, `raw`, `one_sided`, `batch` | the operations on raw addresses |
//! | `parts`, `list`, `launch` | the tasks of an operation, and their launch |
//! | `work` | waiting for operations |
//! | `connect`, `connection`, `form` | making communicators, on all of their ranks or on none |
//! | [`p2p`] | selecting the communicators for messages |
//! | [`path`] | transports besides NCCL that other crates implement |
//! | `checked` | comparing calls before they are launched |
//! | `registration`, `registered`, `pools`, `report` | registering memory or single pools, on all members or on none, and a report of registered buffers |
//! | `sight`, `places`, `buffers` | checks that buffers are memory of the group's device, and their position in its windows |
//! | `vigil`, `end` | ending a group when a member is in trouble or leaves |
//! | `duty`, `duty_checks`, `calls`, `doubt` | the watchdog's checks of a group |
//!
//! Invariants: members decide how they call NCCL by a function of records that all of them have; missing
//! ranks are named; a group is identified by its [`GroupId`], never by a pointer or by a name that may be
//! used again.

mod batch;
mod buffer;
mod buffers;
mod builder;
mod calls;
mod causes;
mod checked;
mod connect;
mod connection;
mod counter;
mod doubt;
mod duty;
mod duty_checks;
mod end;
mod environment;
mod error;
mod form;
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
mod parts;
pub mod path;
mod places;
#[cfg(feature = "registration")]
mod pools;
mod process_group;
mod raw;
mod registered;
mod registration;
mod report;
mod seat;
mod settings;
mod shrink;
mod sight;
mod split;
mod split_plan;
mod startup;
mod terms;
mod torch;
mod typed;
mod vigil;
mod work;

pub use batch::Batch;
pub use buffer::Buffer;
pub use builder::Builder;
pub use causes::{MessageDifference, Misplaced, PathError, ShrinkError, TorchError};
pub use counter::{Enqueued, MessageCounts, enqueued_on};
pub use environment::Environment;
pub use error::{GroupError, Result};
pub use id::GroupId;
pub use job::Job;
pub use member::{Disagreement, Member, Stance, Witnesses};
pub use p2p::{Explanation, P2pPolicy, P2pReport, PathReport, PeerChannel, lane};
pub use path::Path;
pub use places::{SymmetricPlaces, SymmetricPlan, SymmetricSegment, places_changed};
pub use process_group::{ProcessGroup, Standing};
pub use raw::Raw;
pub use registered::NotRegistered;
pub use report::{Lying, OperationBuffers, RegistrationReport};
pub use settings::GroupSettings;
pub use split_plan::{Placement, Request, SplitError, SplitPlan};
pub use startup::Startup;
pub use typed::Scalar;
pub use work::{Work, WorkFuture};

pub use crate::{
    memory::{BufferError, Unregistrable},
    watch::{Divergence, DivergentCall},
};

pub(crate) use duty::Duty;
pub(crate) use vigil::Vigil;
