//! Ways beside NCCL: what another crate implements to serve operations inside a group.
//!
//! For: crates above this one that move data without a communicator, and are to keep the group's order, its
//! [`Work`](super::Work), its recorder and its checks. Not for: which operations go there, which the group's members agree
//! on when they join ([`P2pPolicy`](super::P2pPolicy)).

use std::fmt;

use cuda_driver::Stream;

use super::Buffer;
use crate::store::Deadline;

/// Serves operations of a group in NCCL's place, on this rank; one value for each group.
///
/// The group asks [`plan`](Self::plan), checks its caller's arguments, has [`launch`](Self::launch) enqueue, marks the place
/// on the stream after it, and records all of it, as with NCCL. When the group is over, by whatever end, it calls
/// [`abort`](Self::abort). It drops the path when it goes itself.
///
/// Ranks here are the group's.
pub trait Path: Send + Sync + fmt::Debug {
    /// What it is called, in one word.
    fn name(&self) -> &'static str;

    /// What it is made of and what that takes, in one line for who reads reports.
    fn describe(&self) -> String;

    /// How many bytes of this rank's device it takes.
    fn device_bytes(&self) -> u64;

    /// Whether it takes an operation.
    ///
    /// The members that an operation concerns ask alike and must be told alike, or they would wait for each other on
    /// different ways. So an answer follows from the operation, which all of them know, and from what all members agreed
    /// on when the path was made: never from lengths, addresses, time, or what one rank sees.
    ///
    /// # Errors
    /// Why not: it goes to NCCL.
    fn plan(&self, operation: Operation) -> Result<(), Declined>;

    /// Enqueues messages that it [takes](Self::plan), so that work that is enqueued on `stream` later comes after all of
    /// them, and they after what is there already. Of messages that are given together none waits for another of them to
    /// end. Messages of one rank to another are in the order of calls on both ends, whatever the streams.
    ///
    /// One end compares its message with the other's before it is launched, as soon as both are known: what is wrong must
    /// not arrive. It waits for nothing on the host, but where this rank is too far ahead of a peer: then until
    /// `deadline`. A call that does not return in the [time](super::Builder::work_timeout) that work has ends the group.
    ///
    /// # Errors
    /// [`PathError::Refused`] with nothing changed. After any other the group is over.
    ///
    /// # Safety
    /// The buffers are valid until the stream has passed the work (of a capture, until every launch of its graph has),
    /// what is received into is used by nobody else until then, and what is sent is written by nobody.
    unsafe fn launch(
        &self,
        messages: &[Message],
        stream: &Stream,
        deadline: Deadline,
    ) -> Result<(), PathError>;

    /// Has everything that was launched end, undone, whatever it waits for, and refuses what comes later. From any
    /// thread, also while another is in [`launch`](Self::launch); a second one only waits. Returns when nothing runs any
    /// more, and at the deadline at the latest.
    fn abort(&self, deadline: Deadline);

    /// A member that has ended what was under way, if one has, and whether or not it could say so to the group: what looks
    /// done from then on may have been ended. Asked once work is seen to be done; a look at memory.
    fn given_up(&self) -> Option<usize>;
}

/// What a path is asked about: what all members that take part know alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// A message of one member to another, which may be itself.
    Message {
        /// Who sends.
        from: usize,
        /// Who receives.
        to: usize,
    },
}

/// Why a path does not take an operation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Declined(pub String);

/// One end of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message {
    /// Which end this rank is.
    pub way: Way,
    /// The other end.
    pub peer: usize,
    /// What is sent, or where it is received.
    pub buffer: Buffer,
}

/// Which end of a message this rank is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Way {
    /// It sends.
    Send,
    /// It receives.
    Receive,
}

/// The two ends of a message have called different things.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("message {number} of rank {from} to rank {to}: {sent} were sent, but {received} received")]
pub struct MessageDifference {
    /// Who sends: in a group's error, a rank of the job.
    pub from: usize,
    /// Who receives.
    pub to: usize,
    /// Which message from the one to the other, beginning with 1.
    pub number: u64,
    /// What is sent: how many elements of which type.
    pub sent: String,
    /// What the other end would receive.
    pub received: String,
}

/// Why a path has not launched messages.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PathError {
    /// They cannot be: nothing was enqueued, and the other ends were told nothing.
    #[error("{0}")]
    Refused(String),
    /// One does not fit to what the other end has called.
    #[error(transparent)]
    Differ(#[from] MessageDifference),
    /// This rank is too far ahead of a peer.
    #[error(
        "{messages} messages with rank {peer} are under way, and it has not called for the first of them after {waited:?}"
    )]
    Ahead {
        /// The peer.
        peer: usize,
        /// How many messages.
        messages: u64,
        /// How long this rank waited.
        waited: std::time::Duration,
    },
    /// The path was aborted.
    #[error("the path was aborted")]
    Aborted,
    /// A member has ended what was under way: what has arrived is not to be trusted, and the group is over.
    #[error("rank {peer} has ended what was under way, so what has arrived is not to be trusted")]
    GivenUp {
        /// The member.
        peer: usize,
    },
    /// The CUDA driver.
    #[error(transparent)]
    Driver(#[from] cuda_driver::Error),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_names_both_values() {
        let (sent, received) = ("3 f32".to_owned(), "4 f32".to_owned());
        let text = MessageDifference { from: 5, to: 6, number: 2, sent, received }.to_string();
        assert_eq!(text, "message 2 of rank 5 to rank 6: 3 f32 were sent, but 4 f32 received");
    }
}
