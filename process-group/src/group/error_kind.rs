//! The kinds of errors of a process group.

use std::{io, time::Duration};

use bootstrap::{Ranges, agreement::Failure};

use super::{
    BufferError, Disagreement, Misplaced, NotRegistered, PathError, ShrinkError, SplitError, TorchError,
};
use crate::{
    comm::{ArgumentError, CommError},
    peers::{Loss, PeerError},
    record::{DumpError, Progress},
    store::StoreError,
    watch::{Divergence, MessageDifference, Trouble},
};

/// The result of functions below the calls of a group, which know neither the group's name nor the call.
pub(super) type KindResult<T, E = GroupErrorKind> = Result<T, E>;

/// The kind of a [`GroupError`](super::GroupError): why a call of a process group failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GroupErrorKind {
    /// A required environment variable is missing or has an invalid value.
    #[error("{variable} {problem}; set it (torchrun does), or give the builder {instead}")]
    Environment {
        /// The name of the variable.
        variable: &'static str,
        /// The problem with the variable.
        problem: String,
        /// The builder's setting that replaces the variable.
        instead: &'static str,
    },

    /// A rank is not below the world size, or the peer of a message is this rank itself.
    #[error("rank {rank} is not {} {size}", if rank < size { "another member of a group of" } else { "below the world size" })]
    NoSuchRank {
        /// The rank.
        rank: usize,
        /// The world size. For the peer of a message: the number of members.
        size: usize,
    },

    /// Some ranks took no part in an agreement before the deadline. Every rank that took part gets the same list of
    /// missing ranks.
    #[error("rank(s) {} never came to {meeting} (expected {size} ranks, waited {waited:.1?})", Ranges(.ranks))]
    Absent {
        /// The ranks of the job that are missing.
        ranks: Vec<usize>,
        /// The number of ranks that the agreement expects.
        size: usize,
        /// The agreement that the ranks missed.
        meeting: &'static str,
        /// The time that this rank waited.
        waited: Duration,
    },

    /// The members could not agree: they wait for each other in different calls, or differ in the data that every
    /// agreement compares, such as the list of members. Every member gets the same error, and nothing has changed.
    #[error("its members did not agree on {meeting}: {source}")]
    NotAgreed {
        /// The subject of the agreement.
        meeting: &'static str,
        /// The reason.
        source: Box<Failure>,
    },

    /// The members' settings or environments do not match. Every member gets the same error.
    #[error("its members cannot make a group")]
    Disagreement {
        /// The difference.
        source: Disagreement,
    },

    /// A communicator was not made, or a group not suspended or resumed, because another rank could not take part.
    /// Every other rank that took part gets this error.
    #[error("{what} was not made, on any of its ranks, for rank {rank}: {problem}")]
    Unmade {
        /// The communicator that was not made, or the step that failed.
        what: &'static str,
        /// The rank of the job that could not take part.
        rank: usize,
        /// The problem on that rank.
        problem: String,
    },

    /// The communicator that an operation needs is not made yet, and cannot be made while the stream is capturing.
    #[error(
        "its communicator is not made yet, and cannot be while the stream captures; connect before \
         (ProcessGroup::connect, or connect_to for a pair)"
    )]
    UnmadeInCapture,

    /// Invalid settings of the builder.
    #[error("{problem}")]
    Setting {
        /// The problem.
        problem: String,
    },

    /// The members' calls that split the group do not match. Every member gets the same error.
    #[error("it cannot be split as its members asked")]
    Split {
        /// The difference.
        source: SplitError,
    },

    /// The remaining members' calls that shrink the group do not match. Every member that took part gets the same
    /// error.
    #[error("it cannot be shrunk as its members asked: {source}")]
    Shrink {
        /// The reason.
        source: ShrinkError,
    },

    /// The ranks that took part in growing a group are not the members of one group followed by new ranks. Every rank
    /// gets the same error.
    #[error("it cannot be grown from another group: {problem}")]
    Grow {
        /// The difference.
        problem: String,
    },

    /// [`register_pool`](super::ProcessGroup::register_pool) failed: no member has registered its pool, and every
    /// member gets the same error. Or [`deregister_pool`](super::ProcessGroup::deregister_pool) was called for a pool
    /// that is not registered.
    #[error("{}", not_registered(source))]
    NotRegistered {
        /// The reason.
        source: NotRegistered,
    },

    /// The arguments of an operation do not fit together. Nothing was launched.
    #[error("{source}")]
    Argument {
        /// The problem with the arguments.
        source: ArgumentError,
    },

    /// The sum of the sizes to split a buffer into is not the length of the buffer.
    #[error("a buffer of {elements} elements cannot be split into {parts} parts of {sum} elements together")]
    Sizes {
        /// The number of elements in the buffer.
        elements: usize,
        /// The number of parts.
        parts: usize,
        /// The sum of the parts' sizes, in elements.
        sum: u128,
    },

    /// Work was not done by the deadline.
    #[error("not done after {waited:.1?}: {}", late(.progress))]
    WorkTimeout {
        /// The time that the caller waited.
        waited: Duration,
        /// The progress of each member, which shows the members that have not called the operation. `None` if the
        /// members were not asked, because the deadline was shorter than a second or because asking was not possible.
        progress: Option<Box<Progress>>,
    },

    /// A call that needs an idle group was refused, because work is not done. Nothing has changed.
    #[error("{operation} (number {sequence}) is not done; wait for it first")]
    InFlight {
        /// The operation.
        operation: &'static str,
        /// The operation's number in the group.
        sequence: u64,
    },

    /// A member has died or stopped. The group is over on every member that noticed. Work that was not done before may
    /// be incomplete or wrong. The remaining members can make a new group.
    #[error("rank {rank} {loss}; the group was aborted")]
    Lost {
        /// The member's rank of the job.
        rank: usize,
        /// The kind of loss.
        loss: Loss,
    },

    /// Another member has dropped or aborted the group, or has [destroyed](super::ProcessGroup::destroy) it
    /// after fewer collectives and graph launches than other members have made. The group is over. Work that was
    /// finished before stays valid.
    #[error(
        "rank {rank} has {how} the group, which ends it for all members; collectives and graph launches that it had \
         made: {steps}"
    )]
    Left {
        /// The member's rank of the job.
        rank: usize,
        /// The member's action: `dropped`, `aborted` or `destroyed`.
        how: String,
        /// Number of collectives that the member had called, plus the graph launches that it had
        /// [marked](super::ProcessGroup::track_graph_launch).
        steps: u64,
    },

    /// A thread that the group needs could not be started.
    #[error("the {thread} thread could not be started")]
    Thread {
        /// The purpose of the thread.
        thread: &'static str,
        /// The operating system's error.
        source: io::Error,
    },

    /// A `torch.distributed` job cannot be joined.
    #[error(transparent)]
    Torch(#[from] TorchError),

    /// An operation needs an agreement of the members, but the group was joined from PyTorch, whose ranks make no
    /// agreements.
    #[error(
        "its members agree on it over the store, but the group was joined from PyTorch, whose ranks do not; make a \
         group of Rust's ranks for it"
    )]
    Joined,

    /// A member's work was not done within the [work timeout](super::Builder::work_timeout). The group is
    /// over on every member, with the same reason.
    #[error(
        "{operation} (number {sequence}) of rank {rank} was not done after {waited:.1?}, and the group was \
         aborted: {progress}"
    )]
    Overdue {
        /// The rank of the job whose work was late.
        rank: usize,
        /// The operation.
        operation: String,
        /// The operation's number in the group.
        sequence: u64,
        /// The time for which the work was the oldest of its stream.
        waited: Duration,
        /// The progress of each member; empty if no member could be asked.
        progress: Box<Progress>,
    },

    /// Members have called different collectives, or the same collective with buffers at different positions in their
    /// [windows](super::ProcessGroup::compare_places). The group is over on every member, with the same reason. Results
    /// of these and later calls may be wrong.
    #[error("its members have called different collectives, and the group was aborted: {divergence}")]
    CollectiveDiverged {
        /// The ranks that differ, the range of call numbers in which they differ, and their calls.
        divergence: Box<Divergence>,
    },

    /// [Checked mode](super::Builder::checked) found calls that do not match before their launch. All members that
    /// compared get the same error, and nothing was launched.
    #[error("rank {rank} {call}, but rank {other} {other_call}; nothing was launched")]
    CallsDiffer {
        /// For a collective: the rank of the job whose call differs from the majority's. For a message: the sender's
        /// rank of the job.
        rank: usize,
        /// The call that `rank` was about to make.
        call: String,
        /// Another rank of the job.
        other: usize,
        /// The call that `other` was about to make.
        other_call: String,
    },

    /// [Checked mode](super::Builder::checked) found a collective's buffer that is not at the same position of
    /// symmetric memory on all members. All members get the same error, and nothing was launched.
    #[error("{misplaced}; nothing was launched")]
    SymmetricOffsetMismatch {
        /// The buffer and its positions on two ranks.
        misplaced: Box<Misplaced>,
    },

    /// The two ends of a message on a [path](crate::Path) have made different calls. The group is over on every member,
    /// with the same reason. The message was not delivered.
    #[error("{difference}; the group was aborted")]
    MessagesDiffer {
        /// The two ranks, the number of the message, and the data of both calls.
        difference: Box<MessageDifference>,
    },

    /// The members agreed on [`P2pPolicy::Direct`](super::P2pPolicy::Direct), which needs a [path](crate::Path), but no
    /// path is installed yet.
    #[error(
        "its members agreed on P2pPolicy::Direct, and no path is installed; all members call \
         {installer} first, or agree on another policy"
    )]
    NoPath {
        /// The call that installs a path.
        installer: &'static str,
    },

    /// The group does not accept this path.
    #[error("the group takes no path {path}: {problem}")]
    PathRefused {
        /// The path's name.
        path: &'static str,
        /// The reason.
        problem: String,
    },

    /// The group's path did not launch messages. After [`PathError::Refused`] nothing has changed. After any other
    /// error the group is over.
    #[error("an error of the group's path")]
    Path {
        /// The path's error.
        source: Box<PathError>,
    },

    /// A member had a failure that leaves the group unusable. The group is over on every member, with the
    /// same reason.
    #[error("rank {rank} has failed, and the group was aborted: {reason}")]
    MemberFailed {
        /// The member's rank of the job.
        rank: usize,
        /// The failure.
        reason: String,
    },

    /// A buffer is not memory that the group's operations accept. Nothing was launched.
    #[error("the {buffer} buffer cannot be used")]
    Buffer {
        /// `send` or `receive`.
        buffer: &'static str,
        /// The problem with the buffer.
        source: BufferError,
    },

    /// The processes of this host cannot detect each other's death.
    #[error(transparent)]
    Peers(#[from] PeerError),

    /// The flight recorder's folder cannot be used.
    #[error(transparent)]
    Dump(#[from] DumpError),

    /// A call waited for captured work. Captured work runs with each launch of its graph, so it has no completion of
    /// its own.
    #[error(
        "captured into a graph; after each launch of the graph, call track_graph_launch and wait for the work \
         that it returns"
    )]
    Captured,

    /// An error of NCCL, or of [`comm`](crate::comm), the layer above NCCL.
    #[error(transparent)]
    Comm(#[from] CommError),

    /// An error of the store.
    #[error(transparent)]
    Store(#[from] StoreError),

    /// An error of the CUDA driver.
    #[error(transparent)]
    Driver(Box<cuda_driver::Error>),
}

impl GroupErrorKind {
    #[cold]
    pub(super) fn of_argument(source: ArgumentError) -> Self {
        Self::Argument { source }
    }

    /// Returns the error for callers of a group that `trouble` has ended.
    #[cold]
    pub(super) fn of_trouble(trouble: Trouble) -> Self {
        match trouble {
            Trouble::Lost { rank, loss } => Self::Lost { rank, loss },
            Trouble::Left { rank, how, steps, .. } => Self::Left { rank, how, steps },
            Trouble::Failed { rank, reason, .. } => Self::MemberFailed { rank, reason },
            Trouble::Overdue { rank, operation, sequence, waited, progress, .. } => {
                Self::Overdue { rank, operation, sequence, waited, progress: Box::new(progress) }
            }
            Trouble::Diverged { divergence, .. } => {
                Self::CollectiveDiverged { divergence: Box::new(divergence) }
            }
            Trouble::MessagesDiffer { difference, .. } => {
                Self::MessagesDiffer { difference: Box::new(difference) }
            }
            Trouble::Suspect { ranks: [rank, other], number, .. } => {
                let reason = format!("its calls up to collective {number} differ from those of rank {other}");
                Self::MemberFailed { rank, reason }
            }
        }
    }
}

impl From<cuda_driver::Error> for GroupErrorKind {
    fn from(error: cuda_driver::Error) -> Self {
        Self::Driver(Box::new(error))
    }
}

impl From<Box<Self>> for GroupErrorKind {
    #[cold]
    fn from(error: Box<Self>) -> Self {
        *error
    }
}

impl From<Box<CommError>> for GroupErrorKind {
    #[cold]
    fn from(error: Box<CommError>) -> Self {
        (*error).into()
    }
}

impl From<Box<CommError>> for Box<GroupErrorKind> {
    #[cold]
    fn from(error: Box<CommError>) -> Self {
        Self::new((*error).into())
    }
}

impl From<CommError> for Box<GroupErrorKind> {
    #[cold]
    fn from(error: CommError) -> Self {
        Self::new(error.into())
    }
}

impl From<cuda_driver::Error> for Box<GroupErrorKind> {
    #[cold]
    fn from(error: cuda_driver::Error) -> Self {
        Self::new(error.into())
    }
}

/// The text of [`GroupErrorKind::NotRegistered`].
fn not_registered(reason: &NotRegistered) -> String {
    match reason {
        NotRegistered::UnknownPool { .. } => format!("nothing was deregistered: {reason}"),
        _ => format!("register_pool failed on all members, and no pool was registered: {reason}"),
    }
}

/// Describes the progress of late work, or the possible causes if the progress is unknown.
fn late(progress: &Option<Box<Progress>>) -> String {
    match progress {
        Some(progress) => progress.to_string(),
        None => {
            "a member has not enqueued it, or the stream holds work before it that is not done".to_owned()
        }
    }
}
