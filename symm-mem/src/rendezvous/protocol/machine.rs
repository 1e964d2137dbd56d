//! A member's part in one rendezvous, as a state machine: no thread, socket, clock or lock.
//!
//! The driver gives [`Meeting::step`] an input and the time, does what the output says, and gives the answer back as the
//! next input. The phases, and what of the deadline they may take (in sixteenths; the rest is for the store's answers):
//!
//! | phase | what | until |
//! |---|---|---|
//! | arrival | the rank posts its record; [`decide`] | 8, of the rank's own deadline |
//! | sharing | [`Output::Share`] | 4, of the shortest deadline |
//! | outcome | every member posts how it went; [`verdict`] | 2, of the shortest deadline |
//! | farewell | the rank says that it has read; who sees that all have removes the keys | none: it does not wait |
//!
//! Keys are under (group number, epoch, life, number of the rendezvous): never under a name, and counted by the group's
//! own rendezvous, not by the process.

use std::time::Duration;

use super::{
    decide::{Decision, Outcome, Verdict, decide, verdict},
    record::Record,
    refusal::RendezvousRefusal,
};
use crate::agreement::{
    self, Malformed,
    vote::{Step, Vote},
    wire::Message,
};

/// What the driver tells the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// Begin.
    Start,
    /// The store's answer to [`Output::Store`].
    Store(agreement::Input),
    /// The answer to [`Output::Share`].
    Shared(Outcome),
    /// The store did not answer. No further output asks for anything.
    StoreFailed,
}

/// What the machine wants from its driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// A request to the store: `Set`, `Add`, `Fetch`, `Propose` or `Await`.
    Store(agreement::Output),
    /// Give the others this rank's memory, and map theirs.
    Share {
        /// All members, in the order of the group.
        records: Vec<Record>,
        /// When to give up.
        until: Duration,
    },
    /// The rendezvous has ended.
    Done(Conclusion),
}

/// How a rendezvous ended on this member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conclusion {
    /// The number of the rendezvous in which the memory was mapped: this one, or an earlier one that all have still.
    pub result: Result<u64, Ending>,
    /// Keys that all have read: to be removed.
    pub read: Vec<String>,
}

/// Why a rendezvous ended without peers' buffers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    /// Nothing is mapped, on no member.
    Refused(RendezvousRefusal),
    /// This member could not reach the store; the others will miss it.
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
    Sharing {
        outcome_until: Duration,
    },
    Outcome(Vote),
    /// Posting that this rank has read, then looking who else has.
    Farewell {
        result: Result<u64, Ending>,
        posted: bool,
    },
    Done,
}

/// One member's part in one rendezvous.
#[derive(Debug)]
pub struct Meeting {
    record: Record,
    members: Vec<u32>,
    begun: Duration,
    phase: Phase,
}

impl Meeting {
    /// The rendezvous that `record` speaks of, among `members` (ranks of the job, in the group's order).
    pub fn new(record: Record, members: Vec<u32>) -> Self {
        Self { record, members, begun: Duration::ZERO, phase: Phase::Begin }
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
            (Phase::Sharing { outcome_until }, Input::Shared(outcome)) => {
                let failed = matches!(outcome, Outcome::Failed { .. });
                let vote = self.vote("outcomes", outcome.to_bytes(), outcome_until).hurry(failed);
                self.outcome(vote, agreement::Input::Start)
            }
            (Phase::Outcome(vote), Input::Store(input)) => self.outcome(vote, input),
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
                    let refusal = RendezvousRefusal::RecordUnreadable { rank: *rank, cause };
                    return Decision::Refuse { refusal };
                }
            }
        }
        if missing.is_empty() {
            return decide(&records);
        }
        missing.sort_unstable();
        let waited_ms = now.saturating_sub(self.begun).as_millis() as u64;
        Decision::Refuse { refusal: RendezvousRefusal::RendezvousTimeout { missing, waited_ms } }
    }

    fn decided(&mut self, value: &[u8], now: Duration) -> Output {
        match Decision::from_bytes(value) {
            Err(malformed) => self.end(Err(Ending::Unreadable(malformed)), Vec::new()),
            Ok(Decision::Refuse { refusal }) => self.farewell(Err(Ending::Refused(refusal))),
            Ok(Decision::Reuse { number }) => self.farewell(Ok(number)),
            Ok(Decision::Share { records, deadline_ms }) => {
                self.phase = Phase::Sharing { outcome_until: now + share(deadline_ms, 6) };
                Output::Share { records, until: now + share(deadline_ms, 4) }
            }
        }
    }

    fn outcome(&mut self, mut vote: Vote, input: agreement::Input) -> Output {
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
                    Ok(Verdict::Mapped) => self.farewell(Ok(self.record.number)),
                    Ok(Verdict::Failed { refusal }) => self.farewell(Err(Ending::Refused(refusal))),
                };
            }
            Step::Unasked => return self.end(Err(Ending::OutOfStep), Vec::new()),
        };
        self.phase = Phase::Outcome(vote);
        Output::Store(ask)
    }

    fn farewell(&mut self, result: Result<u64, Ending>) -> Output {
        self.phase = Phase::Farewell { result, posted: false };
        let key = self.read_key(self.record.rank);
        Output::Store(agreement::Output::Set { key, value: vec![1] })
    }

    fn vote(&self, name: &str, posted: Vec<u8>, until: Duration) -> Vote {
        Vote::new(self.prefix(name), self.record.rank, self.members.clone(), posted, until)
    }

    fn prefix(&self, name: &str) -> String {
        let Record { group, life, number, .. } = self.record;
        format!("symm/meeting/{:x}.{}/{life}/{number}/{name}", group.uid, group.epoch)
    }

    fn read_key(&self, rank: u32) -> String {
        format!("{}/{rank}", self.prefix("read"))
    }

    /// Everything that the members may have written. What they have read comes last: while it is there, whoever looks
    /// finds that all have.
    fn all_keys(&self) -> Vec<String> {
        let votes = ["records", "outcomes"].map(|name| self.prefix(name));
        let mut keys: Vec<String> = votes
            .iter()
            .flat_map(|prefix| self.members.iter().map(move |rank| format!("{prefix}/{rank}")))
            .collect();
        keys.extend(votes.iter().flat_map(|prefix| [format!("{prefix}/count"), format!("{prefix}/stands")]));
        keys.extend(self.members.iter().map(|rank| self.read_key(*rank)));
        keys
    }

    fn end(&mut self, result: Result<u64, Ending>, read: Vec<String>) -> Output {
        self.phase = Phase::Done;
        Output::Done(Conclusion { result, read })
    }
}

/// So many sixteenths of a deadline.
fn share(deadline_ms: u64, sixteenths: u32) -> Duration {
    Duration::from_millis(deadline_ms) / 16 * sixteenths
}
