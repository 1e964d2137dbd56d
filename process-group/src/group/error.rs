//! What can go wrong with a process group.

use std::{io, time::Duration};

use super::{
    BufferError, Disagreement, MessageDifference, Misplaced, PathError, ShrinkError, SplitError, TorchError,
};
use crate::{
    comm::{ArgumentError, CommError, DataType},
    peers::{Loss, PeerError},
    record::{DumpError, Progress},
    store::StoreError,
    watch::Divergence,
};

/// The result of the calls of this module.
pub type Result<T, E = GroupError> = std::result::Result<T, E>;

/// Why a call of a process group failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GroupError {
    /// An environment variable that is needed is not there, or is not what it should be.
    #[error("{variable} {problem}; set it (torchrun does), or give the builder {instead}")]
    Environment {
        /// The variable.
        variable: &'static str,
        /// What is wrong with it.
        problem: String,
        /// What the builder can be told instead.
        instead: &'static str,
    },

    /// A rank that is not below the world size.
    #[error("rank {rank} is not below the world size {size}")]
    NoSuchRank {
        /// The rank.
        rank: usize,
        /// The world size.
        size: usize,
    },

    /// Ranks that did not come. Every rank that came gets the same list.
    #[error("{group}: rank(s) {} of {size} never came to {meeting} (waited {waited:?})", list(.ranks))]
    Absent {
        /// The group's name.
        group: String,
        /// The ranks of the job that are missing.
        ranks: Vec<usize>,
        /// How many ranks the group has.
        size: usize,
        /// What they should have come to.
        meeting: &'static str,
        /// How long this rank waited.
        waited: Duration,
    },

    /// The members are not what a group needs them to be. Every member gets the same error.
    #[error("{group}: its members cannot make a group")]
    Disagreement {
        /// The group's name.
        group: String,
        /// What does not fit.
        source: Disagreement,
    },

    /// A communicator was not made, because another of its ranks could not; all of them that came know.
    #[error("{group}: {what} was not made, on any of its ranks, for rank {rank}: {problem}")]
    Unmade {
        /// The group's name.
        group: String,
        /// Which.
        what: &'static str,
        /// The rank of the job that could not.
        rank: usize,
        /// What it met.
        problem: String,
    },

    /// A communicator would have to be made while the stream captures.
    #[error(
        "{operation} in {group}: its communicator is not made yet, and cannot be while the stream captures; connect \
         before (ProcessGroup::connect, or connect_to for a pair)"
    )]
    UnmadeInCapture {
        /// The operation.
        operation: &'static str,
        /// The group's name.
        group: String,
    },

    /// Settings of the builder that make no group.
    #[error("{group}: {problem}")]
    Setting {
        /// The group's name.
        group: String,
        /// What is wrong.
        problem: String,
    },

    /// The members asked for splits that do not fit together. Every member gets the same error.
    #[error("{group}: it cannot be split as its members asked")]
    Split {
        /// The name of the group that was to be split.
        group: String,
        /// What does not fit.
        source: SplitError,
    },

    /// The group cannot go on as those that are left have asked. Every one that came gets the same error.
    #[error("{group}: it cannot be shrunk as its members asked: {source}")]
    Shrink {
        /// The name of the group that was to be shrunk.
        group: String,
        /// What does not fit.
        source: ShrinkError,
    },

    /// What the rank that numbers a group has published is no number.
    #[error("{group}: rank {rank} published {bytes} bytes for the group's number; expected 8")]
    Number {
        /// The group's name.
        group: String,
        /// The rank of the job.
        rank: usize,
        /// How many bytes it published.
        bytes: usize,
    },

    /// Two buffers of an operation do not fit together.
    #[error(
        "{operation} in {group} of {size} ranks: send has {send} elements of {send_type}, receive {receive} of \
         {receive_type}; {rule}"
    )]
    Lengths {
        /// The operation.
        operation: &'static str,
        /// The group's name.
        group: String,
        /// How many ranks the group has.
        size: usize,
        /// Elements to send.
        send: usize,
        /// Their type.
        send_type: DataType,
        /// Elements to receive.
        receive: usize,
        /// Their type.
        receive_type: DataType,
        /// How they must relate.
        rule: &'static str,
    },

    /// A list of buffers that has not one for every member.
    #[error(
        "{operation} in {group}: {found} {list} buffers were given; {size} are needed, one for every member"
    )]
    ListLength {
        /// The operation.
        operation: &'static str,
        /// The group's name.
        group: String,
        /// `send` or `receive`.
        list: &'static str,
        /// How many were given.
        found: usize,
        /// How many ranks the group has.
        size: usize,
    },

    /// The root gave no buffer where it alone needs one.
    #[error("{operation} in {group}: rank {root} is the root and needs a {buffer} buffer, but gave none")]
    RootBuffer {
        /// The operation.
        operation: &'static str,
        /// The group's name.
        group: String,
        /// `send` or `receive`.
        buffer: &'static str,
        /// The root.
        root: usize,
    },

    /// Sizes that are not those of the whole.
    #[error("a buffer of {elements} elements cannot be split into {parts} parts of {sum} elements together")]
    Sizes {
        /// What the buffer holds.
        elements: usize,
        /// How many parts were asked for.
        parts: usize,
        /// What they hold together.
        sum: u128,
    },

    /// Work was not done by the deadline.
    #[error("{operation} (number {sequence} of {group}) is not done after {waited:?}: {}", late(.progress))]
    WorkTimeout {
        /// The operation.
        operation: &'static str,
        /// Its number in the group.
        sequence: u64,
        /// The group's name.
        group: String,
        /// How long the caller waited.
        waited: Duration,
        /// How far each member is, and so who has not joined. `None` if the members were not asked, because the deadline
        /// was shorter than a second, or could not be.
        progress: Option<Box<Progress>>,
    },

    /// A member is gone, or stopped: the group is over on every member that noticed, and what it had not finished may be
    /// unfinished or wrong. The others can make a new group.
    #[error("{group}: rank {rank} {loss}; the group was aborted")]
    Lost {
        /// The group's name.
        group: String,
        /// The rank of the job.
        rank: usize,
        /// What is wrong with it.
        loss: Loss,
    },

    /// Another member has dropped or aborted the group, and did not [destroy](super::ProcessGroup::destroy) it with all
    /// members: the group is over. What it had finished before stays good.
    #[error("{group}: rank {rank} has {how} the group, which ends it for all members")]
    Left {
        /// The group's name.
        group: String,
        /// The rank of the job.
        rank: usize,
        /// What it did: `dropped` or `aborted`.
        how: String,
    },

    /// A thread that the group needs could not be started.
    #[error("{group}: the {thread} thread could not be started")]
    Thread {
        /// The group's name.
        group: String,
        /// What the thread is for.
        thread: &'static str,
        /// What the operating system said.
        source: io::Error,
    },

    /// A `torch.distributed` job cannot be joined.
    #[error(transparent)]
    Torch(#[from] TorchError),

    /// What the members would have to agree on, in a group that PyTorch's ranks are members of.
    #[error(
        "{operation} in {group}: its members agree on it over the store, but the group was joined from PyTorch, whose \
         ranks do not; make a group of Rust's ranks for it"
    )]
    Joined {
        /// The operation.
        operation: &'static str,
        /// The group's name.
        group: String,
    },

    /// Work of a member was not done in the [time](super::Builder::work_timeout) that it has: the group is over on every
    /// member, with the same reason.
    #[error(
        "{group}: {operation} (number {sequence}) of rank {rank} was not done after {waited:.1?}, and the group was \
         aborted: {progress}"
    )]
    Overdue {
        /// The group's name.
        group: String,
        /// The rank of the job whose work it is.
        rank: usize,
        /// The operation.
        operation: String,
        /// Its number in the group.
        sequence: u64,
        /// How long it was the oldest of its stream.
        waited: Duration,
        /// How far each member was; empty if nobody could be asked.
        progress: Box<Progress>,
    },

    /// Members have called different collectives, or the same with buffers at different places of their
    /// [windows](super::ProcessGroup::compare_places): the group is over on every member, with the same reason. What was computed
    /// since may be wrong.
    #[error(
        "{group}: its members have called different collectives, and the group was aborted: {divergence}"
    )]
    CollectiveDiverged {
        /// The group's name.
        group: String,
        /// Who, where, and what they called.
        divergence: Box<Divergence>,
    },

    /// Members are about to call what does not fit together, as [checked mode](super::Builder::checked) finds: the same
    /// error on all that compared, and nothing was launched.
    #[error("{group}: rank {rank} {call}, but rank {other} {other_call}; nothing was launched")]
    CallsDiffer {
        /// The group's name.
        group: String,
        /// The rank of the job that differs from most, or that sends.
        rank: usize,
        /// What it was about to do.
        call: String,
        /// Another rank of the job.
        other: usize,
        /// What that one was about to do.
        other_call: String,
    },

    /// Members are about to call a collective with a buffer that does not lie at the same place of symmetric memory on all
    /// of them, as [checked mode](super::Builder::checked) finds: the same error on all, and nothing was launched.
    #[error("{group}: {misplaced}; nothing was launched")]
    SymmetricOffsetMismatch {
        /// The group's name.
        group: String,
        /// Which buffer lies where.
        misplaced: Box<Misplaced>,
    },

    /// The two ends of a message have called different things, on a [path](crate::Path): the group is over on every
    /// member, with the same reason. Neither end has taken what differs for right.
    #[error("{group}: {difference}; the group was aborted")]
    MessagesDiffer {
        /// The group's name.
        group: String,
        /// Who, which message, and both values.
        difference: Box<MessageDifference>,
    },

    /// Messages go on a path that is not there yet.
    #[error(
        "{operation} in {group}: its members agreed on P2pPolicy::Direct, and no path is installed; all members call \
         {installer} first, or agree on another policy"
    )]
    NoPath {
        /// The operation.
        operation: &'static str,
        /// The group's name.
        group: String,
        /// What installs one.
        installer: &'static str,
    },

    /// A group takes no such path.
    #[error("{group} takes no path {path}: {problem}")]
    PathRefused {
        /// The path's name.
        path: &'static str,
        /// The group's name.
        group: String,
        /// Why not.
        problem: String,
    },

    /// The group's path did not launch messages; [`PathError::Refused`] has changed nothing, after any other the group is
    /// over.
    #[error("{operation} in {group}")]
    Path {
        /// The operation.
        operation: &'static str,
        /// The group's name.
        group: String,
        /// Why not.
        source: Box<PathError>,
    },

    /// A member met what leaves the group useless: the group is over on every member, with the same reason.
    #[error("{group}: rank {rank} has failed, and the group was aborted: {reason}")]
    MemberFailed {
        /// The group's name.
        group: String,
        /// The rank of the job.
        rank: usize,
        /// What it met.
        reason: String,
    },

    /// A buffer is not memory that the group's operations take. Nothing was launched.
    #[error("{operation} in {group}: the {buffer} buffer cannot be used")]
    Buffer {
        /// The operation.
        operation: &'static str,
        /// The group's name.
        group: String,
        /// `send` or `receive`.
        buffer: &'static str,
        /// What is wrong with it.
        source: BufferError,
    },

    /// The processes of this host cannot watch each other.
    #[error(transparent)]
    Peers(#[from] PeerError),

    /// The flight recorder's folder.
    #[error(transparent)]
    Dump(#[from] DumpError),

    /// Captured work runs when its graph is launched, each time anew, so it is never done by itself.
    #[error(
        "{operation} (number {sequence} of {group}) was captured into a graph; wait for the stream that the graph is \
         launched on instead"
    )]
    Captured {
        /// The operation.
        operation: &'static str,
        /// Its number in the group.
        sequence: u64,
        /// The group's name.
        group: String,
    },

    /// NCCL, or the layer over it.
    #[error(transparent)]
    Comm(#[from] CommError),

    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),

    /// The CUDA driver.
    #[error(transparent)]
    Driver(Box<cuda_driver::Error>),
}

impl From<cuda_driver::Error> for GroupError {
    fn from(error: cuda_driver::Error) -> Self {
        Self::Driver(Box::new(error))
    }
}

impl From<Box<Self>> for GroupError {
    #[cold]
    fn from(error: Box<Self>) -> Self {
        *error
    }
}

impl From<Box<CommError>> for GroupError {
    #[cold]
    fn from(error: Box<CommError>) -> Self {
        (*error).into()
    }
}

impl From<Box<CommError>> for Box<GroupError> {
    #[cold]
    fn from(error: Box<CommError>) -> Self {
        Self::new((*error).into())
    }
}

impl From<cuda_driver::Error> for Box<GroupError> {
    #[cold]
    fn from(error: cuda_driver::Error) -> Self {
        Self::new(error.into())
    }
}

impl From<ArgumentError> for GroupError {
    fn from(error: ArgumentError) -> Self {
        Self::Comm(error.into())
    }
}

/// What is known of work that is late.
fn late(progress: &Option<Box<Progress>>) -> String {
    match progress {
        Some(progress) => progress.to_string(),
        None => {
            "a member has not enqueued it, or the stream holds work before it that is not done".to_owned()
        }
    }
}

/// Writes numbers as `0, 2, 5`.
pub(super) fn list(numbers: &[usize]) -> String {
    numbers.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")
}
