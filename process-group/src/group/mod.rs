//! Process groups: ranks that found each other, agreed on what they are, and communicate.
//!
//! For: the ranks of a job, and groups of some of them. Not for: NCCL without a store ([`crate::comm`]); windows
//! that are agreed on (symm-mem).
//!
//! | file | subject |
//! |---|---|
//! | `builder`, `environment`, `join`, `agreed`, `seat` | how ranks become a group |
//! | `torch` | how a rank joins a group of PyTorch's |
//! | `member` | what each rank says of itself, and what follows from it for all |
//! | `process_group`, `hosted` | the group: who is in it, its end, and that of a store of its own |
//! | `counter` | how much it was given to do, in numbers that its members can compare |
//! | `plan`, `split`, `shrink` | groups of some of the ranks, and of those that are left |
//! | `startup` | what its making took |
//! | `buffer`, `collective`, `one_sided`, `batch` | operations, as a user calls them |
//! | `parts`, `list`, `launch` | what they are made of, and how that is launched |
//! | `work` | waiting for them |
//! | `connect`, `form` | when communicators are made, and how by all of their ranks or by none |
//! | [`p2p`] | on which of them messages go |
//! | [`path`] | ways beside NCCL, that other crates implement |
//! | `checked` | calls that are compared before they are launched |
//! | `registration`, `report` | whether memory is registered, on all members or on none; which buffers were |
//! | `sight`, `places` | whether buffers are memory of the group's device, and where in its windows they lie |
//! | `vigil`, `end` | what becomes of a group when a member is in trouble or leaves |
//! | `duty`, `calls`, `doubt` | how trouble is found |
//!
//! Invariants: what decides how members call NCCL is a function of records that all of them have; who is missing
//! is named; a group is known by its [`GroupId`], never by a pointer or a name that can come again.

mod agreed;
mod batch;
mod buffer;
mod builder;
mod calls;
mod checked;
mod collective;
mod connect;
mod counter;
mod doubt;
mod duty;
mod end;
mod environment;
mod error;
mod form;
mod hosted;
mod join;
mod launch;
mod list;
mod member;
mod one_sided;
pub mod p2p;
mod parts;
pub mod path;
mod places;
mod plan;
mod process_group;
mod registration;
mod report;
mod seat;
mod shrink;
mod sight;
mod split;
mod startup;
mod torch;
mod vigil;
mod work;

pub use batch::Batch;
pub use buffer::Buffer;
pub use builder::Builder;
pub use checked::Misplaced;
pub use counter::{Enqueued, MessageCounts, enqueued_on};
pub use environment::Environment;
pub use error::{GroupError, Result};
pub use member::{Disagreement, Member, Witnesses};
pub use p2p::{Explanation, P2pPolicy, P2pReport, PathReport, PeerChannel, lane};
pub use path::{MessageDifference, Path, PathError};
pub use places::{SymmetricPlaces, SymmetricPlan, SymmetricSegment, places_changed};
pub use plan::{Placement, Request, SplitError, SplitPlan};
pub use process_group::{GroupId, ProcessGroup, Standing};
pub use registration::{NotRegistered, Stance};
pub use report::{Lying, OperationBuffers, RegistrationReport};
pub use shrink::ShrinkError;
pub use startup::Startup;
pub use torch::TorchError;
pub use work::Work;

pub use crate::{
    memory::{BufferError, Unregistrable},
    watch::{Divergence, DivergentCall},
};

pub(crate) use duty::Duty;
pub(crate) use vigil::Vigil;
