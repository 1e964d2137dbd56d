//! Transports that other crates implement, to carry operations of a group in place of NCCL.
//!
//! Use this module to move data without a communicator while the group keeps the order of calls,
//! [`Work`](super::Work), the flight recorder and the checks. A path does not select the operations that it
//! carries: the members agree on those when the group is built; see [`P2pPolicy`](super::P2pPolicy).

use std::fmt;

use cuda_driver::Stream;

use super::Buffer;
pub use super::{MessageDifference, PathError};
use crate::store::Deadline;

/// Carries operations of a group in place of NCCL, on this rank. Each group has its own value.
///
/// For each call, the group asks [`plan`](Self::plan) and checks the caller's arguments. It then calls
/// [`launch`](Self::launch) to enqueue the work, marks the end of the work on the stream, and records the
/// operation, as for NCCL. When the group is over, for whatever reason, the group calls
/// [`abort`](Self::abort). The path is dropped together with the group.
///
/// All ranks in this trait are ranks in the group.
pub trait Path: Send + Sync + fmt::Debug {
    /// Returns the path's name, one word.
    fn name(&self) -> &'static str;

    /// Describes the path and its resources in one line, for reports.
    fn describe(&self) -> String;

    /// Returns the device memory that the path uses on this rank, in bytes.
    fn device_bytes(&self) -> u64;

    /// Returns `Ok` if the path carries this operation.
    ///
    /// All members that take part in an operation must get the same answer, or they would wait for each other
    /// on different transports. The answer therefore depends only on `operation`, whose fields all these
    /// members know, and on the settings that all members agreed on when the path was made. The answer must
    /// not depend on lengths, addresses, time, or one rank's state.
    ///
    /// # Errors
    /// The reason why the operation goes to NCCL instead.
    fn plan(&self, operation: Operation) -> Result<(), Declined>;

    /// Enqueues on `stream` messages that the path [carries](Self::plan), after the work that is already on
    /// the stream and before work that is enqueued later. Messages of one call must not wait for each other
    /// to end. Messages from one rank to another are matched in the order of calls on both ends, even if they
    /// are on different streams.
    ///
    /// As soon as both ends of a message are known, and before the message is launched, one end compares the
    /// two, because a wrong message must not arrive. The call does not block the host, with two exceptions. It
    /// blocks while this rank is too far ahead of a peer, at most until `deadline`. And it may wait for the other
    /// end of a large message, for a small part of the time of the copy. A call that does not return within the
    /// [work timeout](super::Builder::work_timeout) ends the group.
    ///
    /// # Errors
    /// [`PathError::Refused`] if nothing has changed. After any other error the group is over.
    ///
    /// # Safety
    /// The buffers are valid until the stream has passed the work. In a capture, they are valid until the
    /// stream of every launch of the graph has passed the work. Until then nothing else uses memory that is
    /// received into, and nothing writes memory that is sent.
    unsafe fn launch(
        &self,
        messages: &[Message],
        stream: &Stream,
        deadline: Deadline,
    ) -> Result<(), PathError>;

    /// Ends all launched work without completing it, even if the work waits for a peer, and makes the path
    /// refuse later calls. May be called from any thread, also while another thread is in
    /// [`launch`](Self::launch). A second call only waits. Returns when no work runs any more, at the latest
    /// at `deadline`.
    fn abort(&self, deadline: Deadline);

    /// Returns a member that has given up work before completion, if there is one, even if that member could
    /// not report it to the group. From then on, work that looks done may be incomplete. The group calls this
    /// method when it sees that work is done. The method must only read memory.
    fn given_up(&self) -> Option<usize>;
}

/// The operation that is passed to [`Path::plan`]. Contains only data that all participating members know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// A message from one member to another, or to itself.
    Message {
        /// The sender's rank.
        from: usize,
        /// The receiver's rank.
        to: usize,
    },
}

/// The reason why a path does not take an operation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Declined(pub String);

/// A message that this rank sends or receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message {
    /// The direction of the message.
    pub way: Way,
    /// The rank on the other end.
    pub peer: usize,
    /// The buffer to send, or to receive into.
    pub buffer: Buffer,
}

/// The direction of a message, seen from this rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Way {
    /// This rank sends.
    Send,
    /// This rank receives.
    Receive,
}

impl Way {
    /// Returns the direction as the other end sees it.
    #[must_use]
    pub const fn opposite(self) -> Self {
        match self {
            Self::Send => Self::Receive,
            Self::Receive => Self::Send,
        }
    }
}
