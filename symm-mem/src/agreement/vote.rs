//! One vote: every member posts what it has, one value comes to stand for all of them.
//!
//! A member posts, counts itself, and then waits for the standing value. The one that counts last holds
//! everything and proposes; who waits too long looks at what is there and proposes too. The store keeps the
//! first proposal (compare-and-set), and every member obeys what stands. So a deadline that passes on one
//! member while the last one arrives cannot make them act differently.
//!
//! Keys: `PREFIX/RANK` by its rank alone, `PREFIX/count`, and `PREFIX/stands`, never written twice.

use std::time::Duration;

use super::machine::{Input, Output};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Unposted,
    Posting,
    Counting,
    Waiting,
    /// Because the count says that all have posted, or for another reason.
    Gathering {
        counted: bool,
    },
    Holding,
    Proposing,
}

/// What a vote wants next.
pub(crate) enum Step {
    /// Something from the store.
    Ask(Output),
    /// A proposal, [`Vote::propose`], from what the members posted (in their order; `None`: nothing yet) and
    /// what stands under the further keys.
    Propose { posted: Vec<Option<Vec<u8>>>, further: Vec<Option<Vec<u8>>> },
    /// Nothing: this stands.
    Stands(Vec<u8>),
    /// The input answers something that was not asked.
    Unasked,
}

/// A member's part in one vote.
#[derive(Debug)]
pub(crate) struct Vote {
    prefix: String,
    rank: u32,
    members: Vec<u32>,
    posted: Vec<u8>,
    until: Duration,
    hurry: bool,
    further: Vec<String>,
    state: State,
}

impl Vote {
    /// A vote in which `rank`, one of `members`, posts `posted` and waits for the others until `until`.
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

    /// Proposes without waiting for the others: what this member posts decides alone.
    pub(crate) fn hurry(mut self, hurry: bool) -> Self {
        self.hurry = hurry;
        self
    }

    /// Looks at these keys too before proposing.
    pub(crate) fn look_at(mut self, further: Vec<String>) -> Self {
        self.further = further;
        self
    }

    /// The keys of this vote that `rank` removes once nobody reads them any more: its own, and for the first
    /// member those that nobody owns.
    pub(crate) fn keys_to_remove(&self) -> Vec<String> {
        let mut keys = vec![self.key(self.rank)];
        if self.members.first() == Some(&self.rank) {
            keys.extend([self.count_key(), self.standing_key()]);
        }
        keys
    }

    /// The vote is answered with what it asked for.
    pub(crate) fn step(&mut self, input: Input) -> Step {
        let (state, ask) = match (self.state, input) {
            (State::Unposted, Input::Start) => {
                (State::Posting, Output::Set { key: self.key(self.rank), value: self.posted.clone() })
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
                // A count that ran ahead of what was posted, as a repeated request makes it, decides nothing.
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

    /// Proposes `value`, in answer to [`Step::Propose`].
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

/// Where the value of the vote of this prefix stands.
pub(crate) fn standing_key(prefix: &str) -> String {
    format!("{prefix}/stands")
}
