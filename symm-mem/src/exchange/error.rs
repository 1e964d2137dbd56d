//! Errors of exchanges and transfers.

use std::{io, sync::Arc, time::Duration};

use process_group::{group::GroupError, store::StoreError};

use super::protocol::{ExchangeRefusal, Part};
use crate::{
    agreement::Malformed,
    commit::without_name,
    rendezvous::{AllocationError, RendezvousError},
};

/// Error of an exchange: no plan was made.
///
/// [`Refused`](Self::Refused) is the same value on every member.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExchangeError {
    /// No member has the plan. An earlier plan of the same name is unchanged.
    #[error("exchange of plan {plan:?} in group {group}: {refusal}")]
    Refused {
        /// The group's name.
        group: String,
        /// The plan's name.
        plan: String,
        /// Why.
        refusal: ExchangeRefusal,
    },
    /// All of this rank's slots for signals are in use. The others were told that this rank cannot take part.
    #[error(
        "NoChannels: the plan needs {wanted} channels, {free} of {channels} are free on this rank (some are held by plans \
         that peers have not let go of); drop plans, or make the exchange with more"
    )]
    NoChannels {
        /// Number of adjacent channels that the plan needs.
        wanted: usize,
        /// Number of free channels.
        free: usize,
        /// Number of channels of this exchange.
        channels: usize,
    },
    /// This rank cannot export memory that its peers need. The others were told the same.
    #[error("plan {plan:?}: {cause}")]
    Unprepared {
        /// The plan's name.
        plan: String,
        /// The failure on this rank.
        cause: String,
    },
    /// This rank is not in the given set of ranks, or the set is not part of the group.
    #[error("ranks {members:?} are no part of a group of {world} ranks to which rank {rank} belongs")]
    NotAMember {
        /// The set.
        members: Vec<usize>,
        /// This rank's place in the group.
        rank: usize,
        /// Size of the group.
        world: usize,
    },
    /// The group has ended: a member is lost, or failed otherwise. Returned in place of a refusal that only names
    /// missing ranks ([`ExchangeRefusal::MembersLost`], [`ExchangeRefusal::ExchangeTimeout`]), and in place of a
    /// failure of this member alone.
    #[error("exchange of plan {plan:?} in group {group}: the group ended: {}", without_name(cause, group))]
    GroupOver {
        /// The group's name.
        group: String,
        /// The plan's name.
        plan: String,
        /// Error that ended the group. It is part of this error's text, so [`source`](std::error::Error::source) does
        /// not return it.
        cause: Arc<GroupError>,
    },
    /// The store failed, so this member does not know the decision of the others. They may report this member as
    /// missing.
    #[error("exchange in group {group} could not reach the store")]
    Store {
        /// The group's name.
        group: String,
        /// Error of the store.
        source: StoreError,
    },
    /// The value in the store is not a decision.
    #[error(
        "what stands in the store for group {group} cannot be read; check that no other program writes under its keys"
    )]
    Unreadable {
        /// The group's name.
        group: String,
        /// Reason why it cannot be read.
        source: Malformed,
    },
    /// The exchange's state machine was driven in the wrong order: a bug of this crate.
    #[error("the exchange of group {group} was driven out of step; this is a bug of symm-mem")]
    OutOfStep {
        /// The group's name.
        group: String,
    },
    /// Another rank of this process is closing memory of its peers, and its device is not idle. The others were told.
    #[error(
        "another rank of this process has been closing memory of its peers for {waited:.1?}: \
         what its device works on must end first"
    )]
    Closing {
        /// Time waited for that.
        waited: Duration,
    },
    /// The ranks' slots could not be exchanged.
    #[error(transparent)]
    Rendezvous(Box<RendezvousError>),
    /// This rank's slots cannot be allocated.
    #[error(transparent)]
    Allocation(#[from] AllocationError),
    /// The thread that bounds waits cannot be started.
    #[error("the thread that bounds the waits of transfers cannot be started")]
    Thread(#[source] io::Error),
    /// The driver refused a call before anything was sent to the others.
    #[error(transparent)]
    Driver(#[from] cuda_driver::Error),
}

impl From<RendezvousError> for ExchangeError {
    fn from(error: RendezvousError) -> Self {
        Self::Rendezvous(Box::new(error))
    }
}

impl ExchangeError {
    /// Returns the refusal that all members were given, if there is one.
    #[must_use]
    pub fn refusal(&self) -> Option<&ExchangeRefusal> {
        match self {
            Self::Refused { refusal, .. } => Some(refusal),
            _ => None,
        }
    }
}

/// Event that a transfer waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Awaited {
    /// The peer's `ready`, which lets the copy begin.
    Ready,
    /// The end of the peer's copy.
    Done,
    /// The end of a graph, which may wait for either.
    Graph,
}

/// Reason why a plan has stopped. Its buffers hold undefined data. The memory, the context and the exchange are
/// intact, and the next exchange of the same name makes a new plan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// A peer did not do its part in time.
    #[error("Late: rank {peer} did not {} within {waited:.1?} (transfer {transfer})", match awaited {
        Awaited::Ready => "let the copy begin",
        Awaited::Done => "end the copy",
        Awaited::Graph => "take its part in the graph",
    })]
    Late {
        /// Index of the transfer in the plan; for a graph, the first one of the plan.
        transfer: usize,
        /// The peer, as a rank of the job; for a graph that of the first transfer.
        peer: u32,
        /// The event that did not occur in time.
        awaited: Awaited,
        /// Time waited.
        waited: Duration,
    },
    /// A peer has given up the plan.
    #[error("Abandoned: rank {peer} has given up the plan: late, broken or aborted there")]
    Abandoned {
        /// The peer, as a rank of the job.
        peer: u32,
    },
    /// The plan was aborted on this rank.
    #[error("Aborted: the plan was aborted on this rank")]
    Aborted,
    /// The group is over.
    #[error("GroupOver: the group ended: {cause}")]
    GroupOver {
        /// Error that ended the group.
        cause: String,
    },
    /// A transfer was enqueued in part.
    #[error("Broken: transfer {transfer} was enqueued in part: {cause}")]
    Broken {
        /// Index of the transfer.
        transfer: usize,
        /// Error of the driver.
        cause: String,
    },
}

/// Error of one transfer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransferError {
    /// The group has no such rank.
    #[error("rank {rank} in a group of {world}")]
    NoSuchRank {
        /// The rank.
        rank: usize,
        /// Size of the group.
        world: usize,
    },
    /// A transfer from a rank to itself.
    #[error("rank {rank} has a transfer with itself; copy on a stream instead")]
    ToSelf {
        /// The rank.
        rank: usize,
    },
    /// The memory is empty.
    #[error("a transfer of no bytes")]
    Empty,
    /// A tensor whose elements are not contiguous in row-major order.
    #[error(
        "NotContiguous: strides {strides:?} of shape {shape:?}; copy engines move bytes that lie next to each other: \
         transfer a contiguous copy"
    )]
    NotContiguous {
        /// The tensor's shape.
        shape: Vec<usize>,
        /// Its strides, in elements.
        strides: Vec<usize>,
    },
    /// The range leaves the memory.
    #[error("{bytes} bytes at byte {offset} leave the memory of {whole} bytes")]
    OutOfBounds {
        /// First byte of the range.
        offset: usize,
        /// Length of the range in bytes.
        bytes: usize,
        /// Length of the memory in bytes.
        whole: usize,
    },
    /// The plan has no such transfer.
    #[error("transfer {at} of a plan that has {transfers}")]
    NoSuchTransfer {
        /// The index asked for.
        at: usize,
        /// Number of transfers of the plan.
        transfers: usize,
    },
    /// The call belongs to the other end of the transfer.
    #[error("WrongPart: in transfer {at} this rank {found}; `{asked}` is for who {}", match expected {
        [one] => one.to_string(),
        [one, other] => format!("{one}, or {other}"),
        _ => "has another part".to_owned(),
    })]
    WrongPart {
        /// Index of the transfer.
        at: usize,
        /// Name of the function called.
        asked: &'static str,
        /// Roles that may call it.
        expected: &'static [Part],
        /// Role of this rank.
        found: Part,
    },
    /// `ready` and `wait` were not called alternately.
    #[error("OutOfTurn: transfer {at}: `{asked}` comes after `{expected}`")]
    OutOfTurn {
        /// Index of the transfer.
        at: usize,
        /// Name of the function called.
        asked: &'static str,
        /// Name of the function that must be called before.
        expected: &'static str,
    },
    /// A later exchange has replaced the plan.
    #[error(
        "StalePlan: plan {plan:?} of generation {found}, expected generation {expected}: it was exchanged again since"
    )]
    StalePlan {
        /// The plan's name.
        plan: String,
        /// The current generation.
        expected: u64,
        /// The generation of this plan.
        found: u64,
    },
    /// The plan has stopped.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// The driver failed.
    #[error(transparent)]
    Driver(#[from] cuda_driver::Error),
}
