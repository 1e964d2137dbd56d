//! Transports besides NCCL, which other crates implement to serve operations of a group.
//!
//! For: crates above this one that move data without a communicator, and keep the group's order, its
//! [`Work`](super::Work), its recorder and its checks. Not for: selecting the operations that use the path.
//! The members agree on those when they join ([`P2pPolicy`](super::P2pPolicy)).

use std::fmt;

use cuda_driver::Stream;

use super::Buffer;
pub use super::{MessageDifference, PathError};
use crate::store::Deadline;

/// Serves operations of a group in place of NCCL, on this rank. One value for each group.
///
/// The group calls [`plan`](Self::plan) and checks its caller's arguments. It then calls
/// [`launch`](Self::launch) to enqueue the work, marks the place on the stream after it, and records the
/// operation, as with NCCL. When the group is over, however it ended, it calls [`abort`](Self::abort). The
/// group drops the path when it is dropped itself.
///
/// Ranks here are the group's.
pub trait Path: Send + Sync + fmt::Debug {
    /// Returns its name, one word.
    fn name(&self) -> &'static str;

    /// Describes the path and its resources in one line, for reports.
    fn describe(&self) -> String;

    /// Returns the device memory that it uses on this rank, in bytes.
    fn device_bytes(&self) -> u64;

    /// Returns `Ok` if the path takes an operation.
    ///
    /// All members that an operation concerns must get the same answer, or they would wait for each other on
    /// different transports. The answer therefore depends only on the operation, which all of them know, and
    /// on the settings that all members agreed on when the path was made. It must not depend on lengths,
    /// addresses, time, or one rank's state.
    ///
    /// # Errors
    /// The reason why the operation goes to NCCL instead.
    fn plan(&self, operation: Operation) -> Result<(), Declined>;

    /// Enqueues messages that it [takes](Self::plan) on `stream`: after the work that is on the stream
    /// already, and before work that is enqueued later. Messages of one call must not wait for each other to
    /// end. Messages of one rank to another are in the order of calls on both ends, whatever the streams.
    ///
    /// One end compares its message with the other's before it is launched, as soon as both are known,
    /// because a wrong message must not arrive. The call does not block on the host, unless this rank is too
    /// far ahead of a peer; then it blocks until `deadline`. A call that does not return within the [work
    /// timeout](super::Builder::work_timeout) ends the group.
    ///
    /// # Errors
    /// [`PathError::Refused`] with nothing changed. After any other the group is over.
    ///
    /// # Safety
    /// The buffers are valid until the stream has passed the work; in a capture, until every launch
    /// of its graph has. Until then nothing else uses the memory that is received into, and nothing writes
    /// the memory that is sent.
    unsafe fn launch(
        &self,
        messages: &[Message],
        stream: &Stream,
        deadline: Deadline,
    ) -> Result<(), PathError>;

    /// Ends all launched work, unfinished, even if it waits for something, and refuses later calls. May be
    /// called from any thread, also while another is in [`launch`](Self::launch). A second call only waits.
    /// Returns when no work runs any more, and at the deadline at the latest.
    fn abort(&self, deadline: Deadline);

    /// Returns a member that has ended unfinished work, if there is one, even if it could not report that to
    /// the group. Work that looks done from then on may be unfinished. Called when work is seen to be done.
    /// Must only read memory.
    fn given_up(&self) -> Option<usize>;
}

/// The operation that a path is asked about. It contains only data that all participating members know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// A message of one member to another, which may be itself.
    Message {
        /// The sender.
        from: usize,
        /// The receiver.
        to: usize,
    },
}

/// The reason why a path does not take an operation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Declined(pub String);

/// One end of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message {
    /// This rank's end.
    pub way: Way,
    /// The other end.
    pub peer: usize,
    /// The buffer to send, or to receive into.
    pub buffer: Buffer,
}

/// This rank's end of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Way {
    /// This rank sends.
    Send,
    /// This rank receives.
    Receive,
}
