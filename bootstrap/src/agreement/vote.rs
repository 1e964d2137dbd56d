//! One vote ([terms](super#terms)): every member posts its value, and the store keeps one result for all of them.
//!
//! A member posts its value, adds 1 to a counter, and waits for the result. A member reads all posts and proposes a
//! result in three cases:
//! - The member has raised the counter to the number of members.
//! - The member's wait has timed out. Some posts may then be missing.
//! - The member's own post decides the result. The member then proposes at once, without counting or waiting.
//!
//! The store keeps the first proposal, and every member takes that one as the result. So all members get the same
//! result, even if the wait of one member times out while the last member posts.
//!
//! Keys: `PREFIX/RANK`, the post of a rank; `PREFIX/count`, the counter; `PREFIX/result`, the result. Posts and result
//! are written once.

use std::time::Duration;

use super::place::{Place, result_key};

/// A request of a state machine to the store. It is safe to send any request twice. Every request may also be answered
/// with [`Answer::StoreFailed`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Adds an agreement to this rank's list of places. Answer: [`Answer::Stored`].
    Enter {
        /// The key of the list. All threads of the rank change it.
        key: String,
        /// The agreement.
        place: Place,
    },
    /// Removes an agreement from this rank's list of places. Answer: [`Answer::Stored`].
    Leave {
        /// The key of the list.
        key: String,
        /// The agreement.
        place: Place,
    },
    /// Posts a value. Answer: [`Answer::Stored`] if the key now has this value, [`Answer::Taken`] if the key already
    /// has another value, or [`Answer::Unsent`] if the store rejects the value.
    Post {
        /// The key.
        key: String,
        /// Its value.
        value: Vec<u8>,
    },
    /// Adds 1 to a number, which is 0 if the key has no value. Answer: [`Answer::Count`].
    Add {
        /// The key of the number.
        key: String,
    },
    /// Reads keys without waiting. Answer: [`Answer::Values`].
    Fetch {
        /// The keys.
        keys: Vec<String>,
    },
    /// Asks whether all of these keys have values. Answer: [`Answer::All`].
    Check {
        /// The keys.
        keys: Vec<String>,
    },
    /// Proposes a value. Answer: [`Answer::Result`] with the value that the key has then.
    Propose {
        /// The key.
        key: String,
        /// The proposed value.
        value: Vec<u8>,
    },
    /// Waits until a key has a value. Answer: [`Answer::Result`], [`Answer::Expired`] or [`Answer::Over`].
    Await {
        /// The key.
        key: String,
        /// The end of the wait, on the clock of [`Agreement::step`](super::Agreement::step).
        until: Duration,
    },
}

/// An answer of the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The change is stored.
    Stored,
    /// The key already has another value, and keeps it.
    Taken,
    /// True if all keys have values.
    All(bool),
    /// The number after the addition.
    Count(u64),
    /// The values of the keys, in order; `None` for a key without a value.
    Values(Vec<Option<Vec<u8>>>),
    /// The value of the key: the awaited value, or the value after a proposal.
    Result(Vec<u8>),
    /// The time limit of the wait has passed, and the key has no value.
    Expired,
    /// The wait was stopped, because the object has ended on this rank.
    Over(Gone),
    /// The store rejected the value of a [`Request::Post`], for example because of its size, and has not stored it.
    Unsent,
    /// The store failed. The request may have taken effect.
    StoreFailed,
}

/// The rank that ended the object, for example by aborting a process group, and the reason that the rank gave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gone {
    /// The rank that ended the object: this rank, or another one.
    pub rank: u32,
    /// The reason that the rank gave.
    pub cause: String,
}

/// The state of a vote. In all states but `Unposted` and `Holding`, the vote awaits the answer to a request:
/// [`Post`](Request::Post) in `Posting`, [`Add`](Request::Add) in `Counting`, [`Await`](Request::Await) in `Waiting`,
/// [`Fetch`](Request::Fetch) in `Gathering`, and [`Propose`](Request::Propose) in `Proposing`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// No request was sent yet.
    Unposted,
    Posting,
    Counting,
    Waiting,
    Gathering(Gathering),
    /// No request is pending: [`Step::Propose`] was returned, and the caller has to call [`Vote::propose`].
    Holding,
    Proposing,
}

/// The reason why a member reads the posts and proposes a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Gathering {
    /// The counter has reached the number of members.
    Counted,
    /// This member's post alone decides the result; see [`Vote::proposes_now`].
    Now,
    /// The wait for the result has timed out.
    Expired,
}

/// The next step of a vote.
pub(super) enum Step {
    /// Send this request, and pass the answer to [`Vote::step`].
    Ask(Request),
    /// Call [`Vote::propose`] with a result. `posted`: the posts in the order of the members; `None` if missing.
    /// `further`: the values of the keys passed to [`Vote::reads`]. `why`: the reason why this member proposes.
    Propose { posted: Vec<Option<Vec<u8>>>, further: Vec<Option<Vec<u8>>>, why: Gathering },
    /// The stored result.
    Result(Vec<u8>),
    /// The answer does not match the pending request.
    Unasked,
}

/// A member's part in one vote.
#[derive(Debug, Clone)]
pub(super) struct Vote {
    prefix: String,
    rank: u32,
    members: Vec<u32>,
    /// The value that this member posts.
    posted: Vec<u8>,
    /// The end of the wait for the result.
    until: Duration,
    proposes_now: bool,
    /// Further keys to read with the posts.
    further: Vec<String>,
    state: State,
}

impl Vote {
    /// Makes a vote in which `rank`, one of `members`, posts `posted` and waits for the result until `until`, on the
    /// clock of [`Agreement::step`](super::Agreement::step).
    pub(super) fn new(
        prefix: String,
        rank: u32,
        members: Vec<u32>,
        posted: Vec<u8>,
        until: Duration,
    ) -> Self {
        let (proposes_now, further, state) = (false, Vec::new(), State::Unposted);
        Self { prefix, rank, members, posted, until, proposes_now, further, state }
    }

    /// If `now` is true, makes this member propose without waiting for the others, because its post alone decides the
    /// result.
    pub(super) fn proposes_now(mut self, now: bool) -> Self {
        self.proposes_now = now;
        self
    }

    /// Makes this member also read the keys `further` when it reads the posts.
    pub(super) fn reads(mut self, further: Vec<String>) -> Self {
        self.further = further;
        self
    }

    /// Returns true if this member's post may be in the store.
    pub(super) fn has_posted(&self) -> bool {
        self.state != State::Unposted
    }

    /// Returns the first request.
    pub(super) fn begin(&mut self) -> Request {
        self.state = State::Posting;
        Request::Post { key: self.key(self.rank), value: self.posted.clone() }
    }

    /// Processes the answer to the last request, and returns the next step.
    pub(super) fn step(&mut self, answer: Answer) -> Step {
        let (state, ask) = match (self.state, answer) {
            (State::Posting, Answer::Stored) if self.proposes_now => {
                (State::Gathering(Gathering::Now), self.gather())
            }
            (State::Posting, Answer::Stored) => {
                (State::Counting, Request::Add { key: format!("{}/count", self.prefix) })
            }
            (State::Counting, Answer::Count(count)) if count >= self.members.len() as u64 => {
                (State::Gathering(Gathering::Counted), self.gather())
            }
            (State::Counting, Answer::Count(_)) => (State::Waiting, self.wait()),
            (State::Waiting, Answer::Expired) => (State::Gathering(Gathering::Expired), self.gather()),
            (State::Waiting | State::Proposing, Answer::Result(value)) => return Step::Result(value),
            (State::Gathering(why), Answer::Values(mut posted)) if posted.len() == self.asked() => {
                let further = posted.split_off(self.members.len());
                // A repeated increment may count one member twice. So the counter may reach the number of members
                // while posts are missing.
                if why == Gathering::Counted && posted.iter().any(Option::is_none) {
                    self.state = State::Waiting;
                    return Step::Ask(self.wait());
                }
                self.state = State::Holding;
                return Step::Propose { posted, further, why };
            }
            _ => return Step::Unasked,
        };
        self.state = state;
        Step::Ask(ask)
    }

    /// Returns the request that proposes `value`. Call it after [`Step::Propose`], or to end the wait with a failure.
    pub(super) fn propose(&mut self, value: Vec<u8>) -> Request {
        self.state = State::Proposing;
        Request::Propose { key: result_key(&self.prefix), value }
    }

    fn asked(&self) -> usize {
        self.members.len() + self.further.len()
    }

    fn wait(&self) -> Request {
        Request::Await { key: result_key(&self.prefix), until: self.until }
    }

    fn gather(&self) -> Request {
        let posted = self.members.iter().map(|rank| self.key(*rank));
        Request::Fetch { keys: posted.chain(self.further.iter().cloned()).collect() }
    }

    fn key(&self, rank: u32) -> String {
        format!("{}/{rank}", self.prefix)
    }
}

/// Returns all keys of the vote with this prefix.
pub(super) fn keys(prefix: &str, members: &[u32]) -> impl Iterator<Item = String> {
    let posts = members.iter().map(move |rank| format!("{prefix}/{rank}"));
    posts.chain([format!("{prefix}/count"), result_key(prefix)])
}
