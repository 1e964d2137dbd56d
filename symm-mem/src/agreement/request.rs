//! The requests of the state machines of a pool's agreements, their answers, and how they end.

use std::time::Duration;

#[cfg(any(test, feature = "simulation"))]
use bootstrap::agreement::{Answer, Request};

use super::{
    decide::Outcome,
    history::Operation,
    poison::{NoWindows, Poison},
    refusal::Refusal,
    wire::Malformed,
};

/// An input from the driver to the state machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// The start.
    Start,
    /// [`Output::Set`] or [`Output::Post`] is complete.
    Stored,
    /// [`Output::Add`] is complete, with this sum.
    Count(u64),
    /// The answer to [`Output::Fetch`], in order; `None` for a missing key.
    Values(Vec<Option<Vec<u8>>>),
    /// The stored value, in answer to [`Output::Propose`] and [`Output::Await`].
    Stands(Vec<u8>),
    /// The key of [`Output::Await`] was still missing at the time limit.
    Expired,
    /// The group has ended on this rank, so the wait for the key of [`Output::Await`] was cancelled.
    Over,
    /// The answer to [`Output::Hashes`], in order; `None` for a length whose hash the log no longer has.
    Hashes(Vec<Option<u64>>),
    /// The answer to [`Output::Recall`]; `None` if the log has no such operation.
    Operation(Option<Operation>),
    /// The answer to [`Output::Register`].
    Registered(Outcome),
    /// The store failed. The machine makes no further requests.
    StoreFailed,
}

/// A request of the state machine to its driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Set `key` to `value` in the store.
    Set {
        /// The key.
        key: String,
        /// The value.
        value: Vec<u8>,
    },
    /// Set `key` to `value`, once. Only this member writes this key. The request fails if another value is already
    /// stored. The value may contain an address of a rank, so a later writer must not replace it.
    Post {
        /// The key.
        key: String,
        /// The value, never empty.
        value: Vec<u8>,
    },
    /// Add 1 to the number under `key`.
    Add {
        /// The key.
        key: String,
    },
    /// Read the values of `keys` without waiting.
    Fetch {
        /// The keys.
        keys: Vec<String>,
    },
    /// Set `key` to `value` unless it already has a value. The answer is the value stored after that.
    Propose {
        /// The key.
        key: String,
        /// The value, never empty.
        value: Vec<u8>,
    },
    /// Wait until `key` has a value.
    Await {
        /// The key.
        key: String,
        /// The time limit.
        until: Duration,
    },
    /// Return the allocation log's hashes at these lengths.
    Hashes {
        /// The lengths.
        lengths: Vec<u64>,
    },
    /// Return the operation with this number in the allocation log.
    Recall {
        /// The number, from 0.
        sequence: u64,
    },
    /// Register the first `segments` of the record's segments, in their order, in one NCCL group.
    Register {
        /// The number of segments.
        segments: u32,
        /// The ordinals of the segments that share a window with the segment before them, ascending.
        joined: Vec<u32>,
        /// The time limit. If it passes, the outcome is [`Outcome::Blocked`].
        until: Duration,
        /// The key of the members' [`Verdict`](super::Verdict). A [`Verdict::Poison`](super::Verdict::Poison) there means that the registration can no longer
        /// succeed, so a member blocked in it may be unblocked.
        verdict_key: String,
    },
    /// The commit has ended.
    Done(Conclusion),
}

/// The conclusion of a commit, a retirement or an agreement on a length on this member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conclusion<T = Agreed> {
    /// The agreement, or the reason for its failure.
    pub result: Result<T, Ending>,
    /// True if all members were present. Then no member reads the keys of earlier meetings any more.
    pub all_arrived: bool,
    /// The keys of this meeting that this member removes once no member reads them.
    pub keys: Vec<String>,
}

/// The agreement of the members of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Agreed {
    /// The number of the record's segments that the group has committed.
    pub segments: u32,
    /// The ordinals of the segments that share a window with the segment before them, ascending.
    pub joined: Vec<u32>,
    /// The reason why the segments have no windows, or `None` if they have windows.
    pub without: Option<NoWindows>,
    /// The difference because of which segments were left out.
    pub pending: Option<Refusal>,
}

/// The reason why a commit ended without agreement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    /// Nothing was registered on any member. The group is unchanged.
    Refused(Refusal),
    /// The group is dead on all members.
    Poisoned(Poison),
    /// This member could not reach the store. The others may report this member as missing.
    StoreFailed {
        /// True if this member had posted its record, so that the others may have acted on it.
        in_doubt: bool,
    },
    /// A value in the store cannot be decoded: another program writes there. The others may have read the value
    /// before it changed.
    Unreadable {
        /// The decoding error.
        source: Malformed,
    },
    /// The driver gave an input that was not requested.
    OutOfStep,
}

impl Output {
    /// Converts a request to the store to the form of [`bootstrap::agreement`], which has no [`Output::Set`].
    #[cfg(any(test, feature = "simulation"))]
    pub(crate) fn into_request(self) -> Option<Request> {
        Some(match self {
            Self::Post { key, value } => Request::Post { key, value },
            Self::Add { key } => Request::Add { key },
            Self::Fetch { keys } => Request::Fetch { keys },
            Self::Propose { key, value } => Request::Propose { key, value },
            Self::Await { key, until } => Request::Await { key, until },
            _ => return None,
        })
    }
}

#[cfg(any(test, feature = "simulation"))]
impl From<Answer> for Input {
    fn from(answer: Answer) -> Self {
        match answer {
            Answer::Stored => Self::Stored,
            Answer::Count(count) => Self::Count(count),
            Answer::Values(values) => Self::Values(values),
            Answer::Result(value) => Self::Stands(value),
            Answer::Expired => Self::Expired,
            Answer::Over(_) => Self::Over,
            _ => Self::StoreFailed,
        }
    }
}

impl Ending {
    /// Returns true if all members got this ending, for another reason than missing members.
    pub(crate) fn is_agreed(&self) -> bool {
        match self {
            Ending::Refused(refusal) => !matches!(refusal, Refusal::SyncTimeout { .. }),
            Ending::Poisoned(poison) => !matches!(poison, Poison::MembersLost { .. }),
            Ending::StoreFailed { .. } | Ending::Unreadable { .. } | Ending::OutOfStep => false,
        }
    }

    /// The poison for the groups of `rank` if it ended this way and does not know whether all members hold the same
    /// windows. `cause` is the store's error, if the store failed.
    pub(crate) fn doubt(&self, rank: u32, cause: Option<String>) -> Option<Poison> {
        let cause = match self {
            Ending::StoreFailed { in_doubt: true } => cause.unwrap_or_else(|| "it failed".to_owned()),
            Ending::Unreadable { source } => source.to_string(),
            Ending::OutOfStep => "the machine was driven out of step".to_owned(),
            _ => return None,
        };
        Some(Poison::StoreLost { rank, cause })
    }
}
