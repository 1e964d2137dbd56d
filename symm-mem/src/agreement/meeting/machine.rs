//! A member's part in one meeting, as a state machine: no thread, socket, clock or lock.
//!
//! The driver gives [`Meeting::step`] an input and the time, executes the output, and returns the answer as the next
//! input. The phases and their limits, in sixteenths of a deadline, with the lower bounds of a
//! [commit](crate::agreement::Commit):
//!
//! | phase | action | limit |
//! |---|---|---|
//! | arrival | the rank posts its contribution; [`Contribution::decide`] | 8, of the rank's own deadline |
//! | opening | [`Output::Open`], unless no member lacks anything | 4, of the longest deadline |
//! | outcome | every member posts its outcome; [`verdict`] | 2, of the longest deadline |
//! | acknowledgement | the rank posts that it has read the result; a rank that finds all acknowledgements removes the keys | none: it does not wait |

use std::time::Duration;

use super::{Contribution, Decision, Failure, Outcome, Verdict, verdict};
use crate::agreement::{
    Input as Answer, Malformed, Output as Request,
    machine::{action_budget, share, vote_budget},
    versions,
    vote::{DecisionRound, Step},
    wire::Message,
};

/// An input from the driver to the state machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// The start, and then the store's answers to [`Output::Store`].
    Store(Answer),
    /// The answer to [`Output::Open`].
    Opened(Outcome),
}

/// A request of the state machine to its driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output<C: Contribution> {
    /// A request to the store: `Set`, `Add`, `Fetch`, `Propose` or `Await`.
    Store(Request),
    /// Share this rank's memory with the peers that lack it, and open the peers' memory that this rank lacks.
    Open {
        /// The data that all members need for that.
        opening: C::Opening,
        /// The time limit.
        until: Duration,
    },
    /// The meeting has ended.
    Done(Conclusion<C>),
}

/// The conclusion of a meeting on this member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conclusion<C: Contribution> {
    /// The agreement, or the reason for its failure.
    pub result: Result<C::Agreed, Ending<C>>,
    /// The keys that all members have read, to be removed.
    pub read: Vec<String>,
}

/// The reason why a meeting ended without an agreement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending<C: Contribution> {
    /// The meeting was refused on all members.
    Refused(C::Refusal),
    /// This member could not reach the store. The others may hold the agreement, and will miss this member.
    StoreFailed,
    /// A value in the store cannot be decoded: another program writes there.
    Unreadable(Malformed),
    /// The driver gave an input that was not requested.
    OutOfStep,
}

impl<C: Contribution> Ending<C> {
    /// Returns true if all members got this ending, for another reason than missing members.
    pub(crate) fn is_agreed(&self) -> bool {
        matches!(self, Ending::Refused(_)) && !self.is_of_the_missing()
    }

    /// Returns true if members did not come, or were lost.
    pub(crate) fn is_of_the_missing(&self) -> bool {
        matches!(self, Ending::Refused(refusal) if C::is_of_the_missing(refusal))
    }
}

#[derive(Debug)]
enum Phase<C: Contribution> {
    Begin,
    RecordGather(DecisionRound),
    Opening {
        agreed: C::Agreed,
        outcome_until: Duration,
    },
    Outcome {
        agreed: C::Agreed,
        vote: DecisionRound,
    },
    /// The acknowledgement phase: posts that this rank has read the result, then checks the other members'
    /// acknowledgements.
    Farewell {
        result: Result<C::Agreed, Ending<C>>,
        posted: bool,
    },
    Done,
}

/// One member's part in one meeting.
#[derive(Debug)]
pub struct Meeting<C: Contribution> {
    prefix: String,
    own: C,
    members: Vec<u32>,
    begun: Duration,
    phase: Phase<C>,
}

impl<C: Contribution> Meeting<C> {
    /// Creates the meeting of `members` (ranks of the job, in the group's order) with the contribution `own` of this
    /// rank. Its keys begin with `prefix`, which no other meeting uses.
    pub fn new(prefix: String, own: C, members: Vec<u32>) -> Self {
        Self { prefix, own, members, begun: Duration::ZERO, phase: Phase::Begin }
    }

    /// Processes an input at the time `now` (since any fixed moment) and returns the next request.
    pub fn step(&mut self, input: Input, now: Duration) -> Output<C> {
        let phase = std::mem::replace(&mut self.phase, Phase::Done);
        match (phase, input) {
            (Phase::Farewell { result, .. }, Input::Store(Answer::StoreFailed)) => {
                self.end(result, Vec::new())
            }
            (_, Input::Store(Answer::StoreFailed)) => self.end(Err(Ending::StoreFailed), Vec::new()),
            (Phase::Begin, Input::Store(Answer::Start)) => {
                self.begun = now;
                let until = now + share(self.own.deadline_ms(), 8);
                let vote = self.vote("records", self.own.to_bytes(), until);
                self.arrival(vote, Answer::Start, now)
            }
            (Phase::RecordGather(vote), Input::Store(input)) => self.arrival(vote, input, now),
            (Phase::Opening { agreed, outcome_until }, Input::Opened(outcome)) => {
                let failed = matches!(outcome, Outcome::Failed { .. });
                let vote = self.vote("outcomes", outcome.to_bytes(), outcome_until).hurry(failed);
                self.outcome(agreed, vote, Answer::Start)
            }
            (Phase::Outcome { agreed, vote }, Input::Store(input)) => self.outcome(agreed, vote, input),
            (Phase::Farewell { result, posted: false }, Input::Store(Answer::Stored)) => {
                self.phase = Phase::Farewell { result, posted: true };
                let keys = self.members.iter().map(|rank| self.read_key(*rank)).collect();
                Output::Store(Request::Fetch { keys })
            }
            (Phase::Farewell { result, posted: true }, Input::Store(Answer::Values(read))) => {
                let all = read.len() == self.members.len() && read.iter().all(Option::is_some);
                let keys = if all { self.all_keys() } else { Vec::new() };
                self.end(result, keys)
            }
            _ => self.end(Err(Ending::OutOfStep), Vec::new()),
        }
    }

    fn arrival(&mut self, mut vote: DecisionRound, input: Answer, now: Duration) -> Output<C> {
        let ask = match vote.step(input) {
            Step::Ask(ask) => ask,
            Step::Propose { posted, .. } => vote.propose(match versions::differing(&self.members, &posted) {
                Some(versions) => versions::to_bytes(&versions),
                None => self.decide(&posted, now).to_bytes(),
            }),
            Step::Stands(value) => return self.decided(&value, now),
            Step::Unasked => return self.end(Err(Ending::OutOfStep), Vec::new()),
        };
        self.phase = Phase::RecordGather(vote);
        Output::Store(ask)
    }

    /// Returns this member's decision for all, from the posted contributions.
    fn decide(&self, posted: &[Option<Vec<u8>>], now: Duration) -> Decision<C> {
        let mut contributions = Vec::new();
        let mut missing = Vec::new();
        for (&rank, posted) in self.members.iter().zip(posted) {
            let cause = match posted.as_deref().map(C::from_bytes) {
                None => {
                    missing.push(rank);
                    continue;
                }
                Some(Ok(found)) if found.rank() == rank => {
                    contributions.push(found);
                    continue;
                }
                Some(Ok(found)) => format!("it says to be of rank {}", found.rank()),
                Some(Err(malformed)) => malformed.to_string(),
            };
            return Decision::Refuse { refusal: Failure::Unreadable { rank, cause }.into() };
        }
        if missing.is_empty() {
            return C::decide(&contributions);
        }
        missing.sort_unstable();
        let waited_ms = now.saturating_sub(self.begun).as_millis() as u64;
        Decision::Refuse { refusal: Failure::Absent { missing, waited_ms }.into() }
    }

    fn decided(&mut self, value: &[u8], now: Duration) -> Output<C> {
        if let Some(versions) = versions::from_bytes(value) {
            return self.farewell(Err(Ending::Refused(Failure::Versions { versions }.into())));
        }
        match Decision::<C>::from_bytes(value) {
            Err(malformed) => self.end(Err(Ending::Unreadable(malformed)), Vec::new()),
            Ok(Decision::Refuse { refusal }) => self.farewell(Err(Ending::Refused(refusal))),
            Ok(Decision::Settled { agreed }) => self.farewell(Ok(agreed)),
            Ok(Decision::Open { opening, deadline_ms }) => {
                let until = now + action_budget(deadline_ms, 4);
                let outcome_until = until + vote_budget(deadline_ms, 2);
                self.phase = Phase::Opening { agreed: self.own.agreed(&opening), outcome_until };
                Output::Open { opening, until }
            }
        }
    }

    fn outcome(&mut self, agreed: C::Agreed, mut vote: DecisionRound, input: Answer) -> Output<C> {
        let ask = match vote.step(input) {
            Step::Ask(ask) => ask,
            Step::Propose { posted, .. } => {
                let read = |bytes: &Option<Vec<u8>>| match Outcome::from_bytes(bytes.as_deref()?) {
                    Ok(outcome) => Some(outcome),
                    Err(cause) => Some(Outcome::Failed { cause: cause.to_string() }),
                };
                let outcomes: Vec<(u32, Option<Outcome>)> =
                    self.members.iter().zip(&posted).map(|(rank, bytes)| (*rank, read(bytes))).collect();
                vote.propose(verdict::<C>(&outcomes).to_bytes())
            }
            Step::Stands(value) => {
                return match Verdict::<C>::from_bytes(&value) {
                    Err(malformed) => self.end(Err(Ending::Unreadable(malformed)), Vec::new()),
                    Ok(Verdict::Opened) => self.farewell(Ok(agreed)),
                    Ok(Verdict::Failed { refusal }) => self.farewell(Err(Ending::Refused(refusal))),
                };
            }
            Step::Unasked => return self.end(Err(Ending::OutOfStep), Vec::new()),
        };
        self.phase = Phase::Outcome { agreed, vote };
        Output::Store(ask)
    }

    fn farewell(&mut self, result: Result<C::Agreed, Ending<C>>) -> Output<C> {
        self.phase = Phase::Farewell { result, posted: false };
        let key = self.read_key(self.own.rank());
        Output::Store(Request::Set { key, value: vec![1] })
    }

    fn vote(&self, name: &str, posted: Vec<u8>, until: Duration) -> DecisionRound {
        DecisionRound::new(self.vote_prefix(name), self.own.rank(), self.members.clone(), posted, until)
    }

    fn vote_prefix(&self, name: &str) -> String {
        format!("{}/{name}", self.prefix)
    }

    fn read_key(&self, rank: u32) -> String {
        format!("{}/read/{rank}", self.prefix)
    }

    /// All keys that the members may have written. The acknowledgements come last: while they exist, every member
    /// that looks finds them complete.
    fn all_keys(&self) -> Vec<String> {
        let votes = ["records", "outcomes"].map(|name| self.vote_prefix(name));
        let mut keys: Vec<String> = votes
            .iter()
            .flat_map(|prefix| self.members.iter().map(move |rank| format!("{prefix}/{rank}")))
            .collect();
        keys.extend(votes.iter().flat_map(|prefix| [format!("{prefix}/count"), format!("{prefix}/stands")]));
        keys.extend(self.members.iter().map(|rank| self.read_key(*rank)));
        keys
    }

    fn end(&mut self, result: Result<C::Agreed, Ending<C>>, read: Vec<String>) -> Output<C> {
        self.phase = Phase::Done;
        Output::Done(Conclusion { result, read })
    }
}
