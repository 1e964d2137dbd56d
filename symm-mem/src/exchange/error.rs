//! What an exchange or a transfer can end with.

use std::{io, sync::Arc, time::Duration};

use process_group::{group::GroupError, store::StoreError};

use super::protocol::{ExchangeRefusal, Part};
use crate::{
    agreement::Malformed,
    rendezvous::{AllocationError, RendezvousError},
};

/// Why there is no plan.
///
/// [`Refused`](Self::Refused) is the same value on every member.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExchangeError {
    /// No member has the plan. A plan that was there under its name is what it was.
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
        /// How many the plan needs, next to each other.
        wanted: usize,
        /// How many are free.
        free: usize,
        /// How many there are.
        channels: usize,
    },
    /// This rank cannot give what its peers reach into. The others were told the same.
    #[error("plan {plan:?}: {cause}")]
    Unprepared {
        /// The plan's name.
        plan: String,
        /// What failed.
        cause: String,
    },
    /// The plan is to be exchanged among a set of ranks that this one is not in, or that is not of the group.
    #[error("ranks {members:?} are no part of a group of {world} ranks to which rank {rank} belongs")]
    NotAMember {
        /// The set.
        members: Vec<usize>,
        /// This rank's place in the group.
        rank: usize,
        /// How many the group has.
        world: usize,
    },
    /// The group is over: a member is lost, or in other trouble. Said instead of a refusal that only names who is missing
    /// ([`ExchangeRefusal::MembersLost`], [`ExchangeRefusal::ExchangeTimeout`]), and of what failed on this member alone.
    #[error("exchange of plan {plan:?} in group {group}: the group is over")]
    GroupOver {
        /// The group's name.
        group: String,
        /// The plan's name.
        plan: String,
        /// What has ended it.
        source: Arc<GroupError>,
    },
    /// The store failed, so that this member does not know what the others decided; they will miss it.
    #[error("exchange in group {group} could not reach the store")]
    Store {
        /// The group's name.
        group: String,
        /// What the store said.
        source: StoreError,
    },
    /// What stands in the store is no decision.
    #[error(
        "what stands in the store for group {group} cannot be read: does another program write under its keys?"
    )]
    Unreadable {
        /// The group's name.
        group: String,
        /// Why not.
        source: Malformed,
    },
    /// The exchange's machine was driven wrongly: a bug of this crate.
    #[error("the exchange of group {group} was driven out of step; this is a bug of symm-mem")]
    OutOfStep {
        /// The group's name.
        group: String,
    },
    /// Another rank of this process closes memory of its peers, and its device is not idle. The others were told.
    #[error(
        "another rank of this process has been closing memory of its peers for {waited:.1?}: what its device works on must          end first"
    )]
    Closing {
        /// How long that was waited for.
        waited: Duration,
    },
    /// The ranks' slots could not be exchanged.
    #[error(transparent)]
    Rendezvous(Box<RendezvousError>),
    /// This rank's slots cannot be had.
    #[error(transparent)]
    Allocation(#[from] AllocationError),
    /// The thread that bounds waits cannot be started.
    #[error("the thread that bounds the waits of transfers cannot be started")]
    Thread(#[source] io::Error),
    /// The driver refused what is asked of it before anything is said to the others.
    #[error(transparent)]
    Driver(#[from] cuda_driver::Error),
}

impl From<RendezvousError> for ExchangeError {
    fn from(error: RendezvousError) -> Self {
        Self::Rendezvous(Box::new(error))
    }
}

impl ExchangeError {
    /// What all members were told, if they were.
    #[must_use]
    pub fn refusal(&self) -> Option<&ExchangeRefusal> {
        match self {
            Self::Refused { refusal, .. } => Some(refusal),
            _ => None,
        }
    }
}

/// What a transfer waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Awaited {
    /// That the peer lets it begin.
    Ready,
    /// That the peer has copied.
    Done,
    /// The end of a graph, in which either may be waited for.
    Graph,
}

/// Why the transfers of a plan do nothing any more. What was in their buffers is not to be trusted; the memory, the context
/// and the exchange are as they were, and the next exchange of the plan gives a new one.
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
        /// Which of the plan's transfers; for a graph the plan's first.
        transfer: usize,
        /// The peer, as a rank of the job; for a graph that of the first transfer.
        peer: u32,
        /// What was waited for.
        awaited: Awaited,
        /// How long.
        waited: Duration,
    },
    /// A peer has given up the plan.
    #[error("Abandoned: rank {peer} has given up the plan: late, broken or aborted there")]
    Abandoned {
        /// The peer, as a rank of the job.
        peer: u32,
    },
    /// This rank was told to give up.
    #[error("Aborted: the plan was aborted on this rank")]
    Aborted,
    /// The group is over.
    #[error("GroupOver: the group has ended: {cause}")]
    GroupOver {
        /// What has ended it.
        cause: String,
    },
    /// A transfer was enqueued in part.
    #[error("Broken: transfer {transfer} was enqueued in part: {cause}")]
    Broken {
        /// Which.
        transfer: usize,
        /// What the driver said.
        cause: String,
    },
}

/// Why a transfer is refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransferError {
    /// A rank that there is not.
    #[error("rank {rank} in a group of {world}")]
    NoSuchRank {
        /// The rank.
        rank: usize,
        /// How many there are.
        world: usize,
    },
    /// A transfer from a rank to itself.
    #[error("rank {rank} has a transfer with itself; copy on a stream instead")]
    ToSelf {
        /// The rank.
        rank: usize,
    },
    /// No bytes.
    #[error("a transfer of no bytes")]
    Empty,
    /// A tensor whose elements do not lie next to each other in order.
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
    /// The memory ends before.
    #[error("{bytes} bytes at byte {offset} leave the memory of {whole} bytes")]
    OutOfBounds {
        /// Where they begin.
        offset: usize,
        /// How many.
        bytes: usize,
        /// What there is.
        whole: usize,
    },
    /// A transfer that the plan does not have.
    #[error("transfer {at} of a plan that has {transfers}")]
    NoSuchTransfer {
        /// Which.
        at: usize,
        /// How many there are.
        transfers: usize,
    },
    /// Something that this end of the transfer does not do.
    #[error("WrongPart: in transfer {at} this rank {found}; `{asked}` is for who {}", match expected {
        [one] => one.to_string(),
        [one, other] => format!("{one}, or {other}"),
        _ => "has another part".to_owned(),
    })]
    WrongPart {
        /// Which transfer.
        at: usize,
        /// What was called.
        asked: &'static str,
        /// For whom that is.
        expected: &'static [Part],
        /// What this rank does.
        found: Part,
    },
    /// Something that comes out of turn: `ready` and `wait` take turns.
    #[error("OutOfTurn: transfer {at}: `{asked}` comes after `{expected}`")]
    OutOfTurn {
        /// Which transfer.
        at: usize,
        /// What was called.
        asked: &'static str,
        /// What has to come before.
        expected: &'static str,
    },
    /// The plan has been exchanged again since.
    #[error(
        "StalePlan: plan {plan:?} of generation {found}, expected generation {expected}: it was exchanged again since"
    )]
    StalePlan {
        /// The plan's name.
        plan: String,
        /// The generation that counts.
        expected: u64,
        /// The one that this plan is.
        found: u64,
    },
    /// The plan does nothing any more.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// The driver.
    #[error(transparent)]
    Driver(#[from] cuda_driver::Error),
}
