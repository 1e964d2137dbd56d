//! One decision round: every member posts its value, and the store keeps one result for all of them.
//!
//! A member posts, increments a counter, and waits for the result. The member that increments last finds all posts
//! and proposes a result. A member whose wait times out reads the posts present so far and proposes too. The store
//! keeps the first proposal (compare-and-set), and every member follows the stored one. So all members act alike,
//! even if the deadline of one member passes while the last member arrives.
//!
//! Keys: `PREFIX/RANK`, written by that rank only, `PREFIX/count`, and `PREFIX/stands`, the result, which is written
//! once.

use std::time::Duration;

use super::{
    meeting_id::standing_key,
    request::{Input, Output},
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Unposted,
    Posting,
    Counting,
    Waiting,
    /// `counted` is true if the counter says that all members have posted.
    Gathering {
        counted: bool,
    },
    Holding,
    Proposing,
}

/// The next step of a decision round.
pub(crate) enum Step {
    /// A request to the store.
    Ask(Output),
    /// Call [`DecisionRound::propose`] with a result, from the members' posts (in their order; `None` if missing) and the
    /// values of the further keys.
    Propose { posted: Vec<Option<Vec<u8>>>, further: Vec<Option<Vec<u8>>> },
    /// The stored result.
    Stands(Vec<u8>),
    /// The input is not an answer to the last request.
    Unasked,
}

/// A member's part in one decision round.
#[derive(Debug)]
pub(crate) struct DecisionRound {
    prefix: String,
    rank: u32,
    members: Vec<u32>,
    posted: Vec<u8>,
    until: Duration,
    hurry: bool,
    further: Vec<String>,
    state: State,
}

impl DecisionRound {
    /// Creates a round in which `rank`, one of `members`, posts `posted` and waits for the others until `until`.
    pub(crate) fn new(
        prefix: String,
        rank: u32,
        members: Vec<u32>,
        posted: Vec<u8>,
        until: Duration,
    ) -> Self {
        let (hurry, further, state) = (false, Vec::new(), State::Unposted);
        Self { prefix, rank, members, posted, until, hurry, further, state }
    }

    /// If `hurry` is true, proposes without waiting for the others, because this member's post alone decides.
    pub(crate) fn hurry(mut self, hurry: bool) -> Self {
        self.hurry = hurry;
        self
    }

    /// Also reads these keys before proposing.
    pub(crate) fn look_at(mut self, further: Vec<String>) -> Self {
        self.further = further;
        self
    }

    /// The keys of this round that `rank` removes once no member reads them: its own key, and, for the first member,
    /// the shared keys.
    pub(crate) fn keys_to_remove(&self) -> Vec<String> {
        let mut keys = vec![self.key(self.rank)];
        if self.members.first() == Some(&self.rank) {
            keys.extend([self.count_key(), self.standing_key()]);
        }
        keys
    }

    /// Processes the answer to the last request.
    pub(crate) fn step(&mut self, input: Input) -> Step {
        let (state, ask) = match (self.state, input) {
            (State::Unposted, Input::Start) => {
                (State::Posting, Output::Post { key: self.key(self.rank), value: self.posted.clone() })
            }
            (State::Posting, Input::Stored) if self.hurry => {
                (State::Gathering { counted: false }, self.gather())
            }
            (State::Posting, Input::Stored) => (State::Counting, Output::Add { key: self.count_key() }),
            (State::Counting, Input::Count(count)) if count >= self.members.len() as u64 => {
                (State::Gathering { counted: true }, self.gather())
            }
            (State::Counting, Input::Count(_)) => (State::Waiting, self.wait()),
            (State::Waiting, Input::Expired | Input::Over) => {
                (State::Gathering { counted: false }, self.gather())
            }
            (State::Waiting | State::Proposing, Input::Stands(value)) => return Step::Stands(value),
            (State::Gathering { counted }, Input::Values(mut posted)) if posted.len() == self.asked() => {
                let further = posted.split_off(self.members.len());
                // A repeated request may increment the counter twice, so that it is ahead of the posts. Such a count
                // is ignored.
                if counted && posted.iter().any(Option::is_none) {
                    self.state = State::Waiting;
                    return Step::Ask(self.wait());
                }
                self.state = State::Holding;
                return Step::Propose { posted, further };
            }
            _ => return Step::Unasked,
        };
        self.state = state;
        Step::Ask(ask)
    }

    /// Returns the request that proposes `value`, in answer to [`Step::Propose`].
    pub(crate) fn propose(&mut self, value: Vec<u8>) -> Output {
        self.state = State::Proposing;
        Output::Propose { key: self.standing_key(), value }
    }

    fn asked(&self) -> usize {
        self.members.len() + self.further.len()
    }

    fn wait(&self) -> Output {
        Output::Await { key: self.standing_key(), until: self.until }
    }

    fn gather(&self) -> Output {
        let posted = self.members.iter().map(|rank| self.key(*rank));
        Output::Fetch { keys: posted.chain(self.further.iter().cloned()).collect() }
    }

    fn key(&self, rank: u32) -> String {
        format!("{}/{rank}", self.prefix)
    }

    fn count_key(&self) -> String {
        format!("{}/count", self.prefix)
    }

    fn standing_key(&self) -> String {
        standing_key(&self.prefix)
    }
}
