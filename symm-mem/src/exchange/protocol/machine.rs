//! A member's part in one exchange, as a state machine: no thread, socket, clock or lock.
//!
//! The driver gives [`Meeting::step`] an input and the time, does what the output says, and gives the answer back as the
//! next input. The phases, and what of the deadline they may take (in sixteenths; the rest is for the store's answers):
//!
//! | phase | what | until |
//! |---|---|---|
//! | arrival | the rank posts its record, which names all of its transfers; [`decide`] | 8, of the rank's own deadline |
//! | opening | [`Output::Open`], unless all have open what they need | 4, of the shortest deadline |
//! | outcome | every member posts how it went; [`verdict`] | 2, of the shortest deadline |
//! | farewell | the rank says that it has read; who sees that all have removes the keys | none: it does not wait |
//!
//! All transfers of all members are one vote: no order of them, and nothing that a member has open already, lets one wait
//! for another that does not come.

use std::time::Duration;

use super::{
    decide::{Agreement, Decision, Verdict, decide, verdict},
    record::Record,
    refusal::ExchangeRefusal,
};
use crate::{
    agreement::{
        self, Malformed,
        vote::{Step, Vote},
        wire::Message,
    },
    rendezvous::protocol::Outcome,
};

/// What the driver tells the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// Begin.
    Start,
    /// The store's answer to [`Output::Store`].
    Store(agreement::Input),
    /// The answer to [`Output::Open`].
    Opened(Outcome),
    /// The store did not answer. No further output asks for anything.
    StoreFailed,
}

/// What the machine wants from its driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// A request to the store: `Set`, `Add`, `Fetch`, `Propose` or `Await`.
    Store(agreement::Output),
    /// Give the others what they lack of this rank's memory, and open what it lacks of theirs.
    Open {
        /// What the plan will be.
        agreement: Agreement,
        /// When to give up.
        until: Duration,
    },
    /// The exchange has ended.
    Done(Conclusion),
}

/// How an exchange ended on this member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conclusion {
    /// The plan.
    pub result: Result<Agreement, Ending>,
    /// Keys that all have read: to be removed.
    pub read: Vec<String>,
}

/// Why an exchange ended without a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    /// No member has the plan.
    Refused(ExchangeRefusal),
    /// This member could not reach the store: the others may have the plan, and will miss it there.
    StoreFailed,
    /// What stands in the store cannot be read: another program writes there.
    Unreadable(Malformed),
    /// The driver answered something that was not asked.
    OutOfStep,
}

#[derive(Debug)]
enum Phase {
    Begin,
    Arrival(Vote),
    Opening {
        agreement: Agreement,
        outcome_until: Duration,
    },
    Outcome {
        agreement: Agreement,
        vote: Vote,
    },
    /// Posting that this rank has read, then looking who else has.
    Farewell {
        result: Result<Agreement, Ending>,
        posted: bool,
    },
    Done,
}

/// One member's part in one exchange.
#[derive(Debug)]
pub struct Meeting {
    record: Record,
    prefix: String,
    members: Vec<u32>,
    begun: Duration,
    phase: Phase,
}

impl Meeting {
    /// The exchange that `record` speaks of, among `members` (ranks of the job, in the group's order). `prefix` begins its
    /// keys, and those of no other exchange.
    pub fn new(record: Record, prefix: String, members: Vec<u32>) -> Self {
        Self { record, prefix, members, begun: Duration::ZERO, phase: Phase::Begin }
    }

    /// Takes an input at the time `now` (since any fixed moment) and says what to do next.
    pub fn step(&mut self, input: Input, now: Duration) -> Output {
        let phase = std::mem::replace(&mut self.phase, Phase::Done);
        match (phase, input) {
            (Phase::Farewell { result, .. }, Input::StoreFailed) => self.end(result, Vec::new()),
            (_, Input::StoreFailed) => self.end(Err(Ending::StoreFailed), Vec::new()),
            (Phase::Begin, Input::Start) => {
                self.begun = now;
                let until = now + share(self.record.deadline_ms, 8);
                let vote = self.vote("records", self.record.encode(), until);
                self.arrival(vote, agreement::Input::Start, now)
            }
            (Phase::Arrival(vote), Input::Store(input)) => self.arrival(vote, input, now),
            (Phase::Opening { agreement, outcome_until }, Input::Opened(outcome)) => {
                let failed = matches!(outcome, Outcome::Failed { .. });
                let vote = self.vote("outcomes", outcome.to_bytes(), outcome_until).hurry(failed);
                self.outcome(agreement, vote, agreement::Input::Start)
            }
            (Phase::Outcome { agreement, vote }, Input::Store(input)) => self.outcome(agreement, vote, input),
            (Phase::Farewell { result, posted: false }, Input::Store(agreement::Input::Stored)) => {
                self.phase = Phase::Farewell { result, posted: true };
                let keys = self.members.iter().map(|rank| self.read_key(*rank)).collect();
                Output::Store(agreement::Output::Fetch { keys })
            }
            (Phase::Farewell { result, posted: true }, Input::Store(agreement::Input::Values(read))) => {
                let all = read.len() == self.members.len() && read.iter().all(Option::is_some);
                let keys = if all { self.all_keys() } else { Vec::new() };
                self.end(result, keys)
            }
            _ => self.end(Err(Ending::OutOfStep), Vec::new()),
        }
    }

    fn arrival(&mut self, mut vote: Vote, input: agreement::Input, now: Duration) -> Output {
        let ask = match vote.step(input) {
            Step::Ask(ask) => ask,
            Step::Propose { posted, .. } => vote.propose(self.decide(&posted, now).to_bytes()),
            Step::Stands(value) => return self.decided(&value, now),
            Step::Unasked => return self.end(Err(Ending::OutOfStep), Vec::new()),
        };
        self.phase = Phase::Arrival(vote);
        Output::Store(ask)
    }

    /// What this member would have all do, from the records that are there.
    fn decide(&self, posted: &[Option<Vec<u8>>], now: Duration) -> Decision {
        let mut records = Vec::new();
        let mut missing = Vec::new();
        for (rank, posted) in self.members.iter().zip(posted) {
            match posted.as_deref().map(Record::decode) {
                None => missing.push(*rank),
                Some(Ok(record)) if record.rank == *rank => records.push(record),
                Some(found) => {
                    let cause = match found {
                        Ok(record) => format!("it says to be of rank {}", record.rank),
                        Err(malformed) => malformed.to_string(),
                    };
                    let refusal = ExchangeRefusal::RecordUnreadable { rank: *rank, cause };
                    return Decision::Refuse { refusal };
                }
            }
        }
        if missing.is_empty() {
            return decide(&records);
        }
        missing.sort_unstable();
        let waited_ms = now.saturating_sub(self.begun).as_millis() as u64;
        Decision::Refuse { refusal: ExchangeRefusal::ExchangeTimeout { missing, waited_ms } }
    }

    fn decided(&mut self, value: &[u8], now: Duration) -> Output {
        match Decision::from_bytes(value) {
            Err(malformed) => self.end(Err(Ending::Unreadable(malformed)), Vec::new()),
            Ok(Decision::Refuse { refusal }) => self.farewell(Err(Ending::Refused(refusal))),
            Ok(Decision::Settled { agreement }) => self.farewell(Ok(agreement)),
            Ok(Decision::Open { agreement, deadline_ms }) => {
                let outcome_until = now + share(deadline_ms, 6);
                self.phase = Phase::Opening { agreement: agreement.clone(), outcome_until };
                Output::Open { agreement, until: now + share(deadline_ms, 4) }
            }
        }
    }

    fn outcome(&mut self, agreement: Agreement, mut vote: Vote, input: agreement::Input) -> Output {
        let ask = match vote.step(input) {
            Step::Ask(ask) => ask,
            Step::Propose { posted, .. } => {
                let read = |bytes: &Option<Vec<u8>>| match Outcome::from_bytes(bytes.as_deref()?) {
                    Ok(outcome) => Some(outcome),
                    Err(cause) => Some(Outcome::Failed { cause: cause.to_string() }),
                };
                let outcomes: Vec<(u32, Option<Outcome>)> =
                    self.members.iter().zip(&posted).map(|(rank, bytes)| (*rank, read(bytes))).collect();
                vote.propose(verdict(&outcomes).to_bytes())
            }
            Step::Stands(value) => {
                return match Verdict::from_bytes(&value) {
                    Err(malformed) => self.end(Err(Ending::Unreadable(malformed)), Vec::new()),
                    Ok(Verdict::Opened) => self.farewell(Ok(agreement)),
                    Ok(Verdict::Failed { refusal }) => self.farewell(Err(Ending::Refused(refusal))),
                };
            }
            Step::Unasked => return self.end(Err(Ending::OutOfStep), Vec::new()),
        };
        self.phase = Phase::Outcome { agreement, vote };
        Output::Store(ask)
    }

    fn farewell(&mut self, result: Result<Agreement, Ending>) -> Output {
        self.phase = Phase::Farewell { result, posted: false };
        let key = self.read_key(self.record.rank);
        Output::Store(agreement::Output::Set { key, value: vec![1] })
    }

    fn vote(&self, name: &str, posted: Vec<u8>, until: Duration) -> Vote {
        Vote::new(self.vote_prefix(name), self.record.rank, self.members.clone(), posted, until)
    }

    fn vote_prefix(&self, name: &str) -> String {
        format!("{}/{name}", self.prefix)
    }

    fn read_key(&self, rank: u32) -> String {
        format!("{}/read/{rank}", self.prefix)
    }

    /// Everything that the members may have written. What they have read comes last: while it is there, whoever looks
    /// finds that all have.
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

    fn end(&mut self, result: Result<Agreement, Ending>, read: Vec<String>) -> Output {
        self.phase = Phase::Done;
        Output::Done(Conclusion { result, read })
    }
}

/// So many sixteenths of a deadline.
fn share(deadline_ms: u64, sixteenths: u32) -> Duration {
    Duration::from_millis(deadline_ms) / 16 * sixteenths
}
