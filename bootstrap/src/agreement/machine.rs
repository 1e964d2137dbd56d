//! One member's part in one agreement, as a state machine: no thread, socket, clock or lock.
//!
//! The driver gives [`Agreement::step`] an input and the time, executes the output, and returns the answer as the next
//! input.
//!
//! | phase | what happens | limit |
//! |---|---|---|
//! | entering | the member publishes where it waits | |
//! | records | the member posts its record; [`Protocol::decide`] | its own patience |
//! | action | [`Output::Act`] | half of the longest patience, at least 10 s |
//! | outcomes | every member posts its outcome; [`Protocol::judge`] | a quarter of the longest patience, at least 5 s |
//! | acknowledgement | the member posts that it has read the result; one that finds all acknowledgements removes the keys | does not wait |

use std::time::Duration;

use super::{
    budget,
    failure::{Absentee, COMMON, Failure, Place, outcomes, place_key, records},
    protocol::{Decision, Protocol, Verdict},
    trace::{Trace, Traced},
    values::ValuesByRank,
    vote::{self, Answer, Request, Step, Vote},
};
use crate::{
    hash::fnv64,
    wire::{self, Malformed, Message, Reader, Wire, wire_struct},
};

/// This rank's seat in an agreement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// The name of the agreement, the prefix of its keys. One name serves one agreement.
    pub name: String,
    /// This rank of the job.
    pub rank: u32,
    /// All members, as ranks of the job, in one order on all of them.
    pub members: Vec<u32>,
    /// The generation of the object that the members agree on: how often this rank has made it.
    pub generation: u64,
    /// How long this member waits for the others.
    pub patience: Duration,
}

/// An input to the state machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input<P: Protocol> {
    /// The answer to [`Output::Store`].
    Store(Answer),
    /// The outcome of [`Output::Act`].
    Acted(P::Outcome),
}

/// A request of the state machine to its driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output<P: Protocol> {
    /// A request to the store.
    Store(Request),
    /// Do what the plan says.
    Act {
        /// The plan.
        plan: P::Plan,
        /// The time limit.
        until: Duration,
        /// The key of the verdict. If it has a value before this member is done, another member has failed.
        verdict: String,
    },
    /// The agreement has ended.
    Done(Conclusion<P>),
}

/// The end of an agreement on this member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conclusion<P: Protocol> {
    /// The result, or the reason why there is none.
    pub result: Result<P::Agreed, Ending<P>>,
    /// The keys that all members have read, to be removed.
    pub read: Vec<String>,
}

/// The reason why an agreement has no result on this member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending<P: Protocol> {
    /// Refused on all members, for a reason of the protocol. If this came after an action, members undo what they can.
    Refused(P::Refusal),
    /// Failed on all members.
    Failed(Failure),
    /// The store failed before this member posted its record, so the others do not act on it.
    StoreFailed,
    /// The store failed while this member was in doubt. The others may have acted: the object must be treated as failed.
    InDoubt,
    /// A value in the store cannot be read: another program writes there. The object must be treated as failed.
    Unreadable(Malformed),
    /// The driver gave an input that was not requested.
    OutOfStep,
}

/// A member's record with what identifies it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Posted<R> {
    /// The digest of the member list.
    members: u64,
    generation: u64,
    patience: Duration,
    record: R,
}
wire_struct!(Posted<R> { members, generation, patience, record });

/// A decision or verdict in the store.
enum Sealed<V> {
    Failed(Failure),
    Stands(V),
}

/// A decision with what the later steps need.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Decided<D> {
    /// The digest of the member list.
    members: u64,
    /// The longest patience among the members.
    patience: Duration,
    decision: D,
}
wire_struct!(Decided<D> { members, patience, decision });

/// The kinds of an agreement's own messages.
const RECORD: u8 = 0;
const DECISION: u8 = 1;
const OUTCOME: u8 = 2;
const VERDICT: u8 = 3;

fn message<P: Protocol>(kind: u8, value: &impl Wire) -> Vec<u8> {
    wire::to_message(P::PROTOCOL, kind, value)
}

fn read<P: Protocol, V: Wire>(kind: u8, bytes: &[u8]) -> Result<V, Malformed> {
    wire::from_message(P::PROTOCOL, kind, bytes)
}

/// Writes a failure in place of a decision or verdict. All protocols can read it.
pub(super) fn sealed_failure(failure: Failure) -> Vec<u8> {
    failure.to_bytes()
}

/// Returns the failure that stands in place of a decision or verdict.
pub(super) fn told_failure(bytes: &[u8]) -> Option<Failure> {
    Failure::from_bytes(bytes).ok()
}

/// Reads a decision or verdict, or the failure in its place.
fn unseal<P: Protocol, V: Wire>(kind: u8, bytes: &[u8]) -> Result<Sealed<V>, Malformed> {
    match told_failure(bytes) {
        Some(failure) => Ok(Sealed::Failed(failure)),
        None => Ok(Sealed::Stands(read::<P, V>(kind, bytes)?)),
    }
}

fn digest(members: &[u32]) -> u64 {
    let bytes: Vec<u8> = members.iter().flat_map(|rank| rank.to_le_bytes()).collect();
    fnv64(&bytes)
}

#[derive(Debug, Clone)]
enum Phase<P: Protocol> {
    Begin,
    Entering,
    Records(Vote),
    /// Looking for a circular wait of the missing members.
    Tracing(Vote, Trace, Vec<Absentee>),
    /// Failing the other agreements of a circle, and then this one.
    Opening(Vote, Vec<Request>, Failure),
    Acting {
        plan: P::Plan,
        outcomes_until: Duration,
    },
    Outcomes {
        plan: P::Plan,
        vote: Vote,
    },
    Acknowledging(Acknowledging, Result<P::Agreed, Ending<P>>),
    Done,
}

/// The steps of an acknowledgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Acknowledging {
    /// Publishing that this rank waits in no agreement. Before the keys are removed: without a decision, the agreement
    /// would look as if this rank still waited in it.
    Leaving,
    Posting,
    Looking,
}

/// One member's part in one agreement.
#[derive(Debug, Clone)]
pub struct Agreement<P: Protocol> {
    member: Member,
    record: P::Record,
    begun: Duration,
    /// The longest patience of the members, from the decision on.
    patience: Duration,
    /// The number of actions so far.
    actions: u32,
    phase: Phase<P>,
}

impl<P: Protocol> Agreement<P> {
    /// Makes the part of this member, which posts `record`.
    #[must_use]
    pub fn new(member: Member, record: P::Record) -> Self {
        let patience = member.patience;
        Self { member, record, begun: Duration::ZERO, patience, actions: 0, phase: Phase::Begin }
    }

    /// Returns the name of the agreement.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.member.name
    }

    /// Returns the first request, at the time `now`. All times are since one moment, and never go backwards.
    pub fn begin(&mut self, now: Duration) -> Output<P> {
        self.begun = now;
        self.phase = Phase::Entering;
        let value = self.place().to_bytes();
        Output::Store(Request::Set { key: place_key(self.member.rank), value })
    }

    /// Returns true if this member has posted its record and has not read the result.
    #[must_use]
    pub fn is_in_doubt(&self) -> bool {
        match &self.phase {
            Phase::Begin | Phase::Entering | Phase::Acknowledging(..) | Phase::Done => false,
            Phase::Records(vote) | Phase::Tracing(vote, ..) | Phase::Opening(vote, ..) => vote.has_posted(),
            Phase::Acting { .. } | Phase::Outcomes { .. } => true,
        }
    }

    /// Processes an input, and returns the next request.
    pub fn step(&mut self, input: Input<P>, now: Duration) -> Output<P> {
        let is_in_doubt = self.is_in_doubt();
        match (std::mem::replace(&mut self.phase, Phase::Done), input) {
            (Phase::Acknowledging(_, result), Input::Store(Answer::StoreFailed)) => {
                self.end(result, Vec::new())
            }
            (_, Input::Store(Answer::StoreFailed)) => {
                let ending = if is_in_doubt { Ending::InDoubt } else { Ending::StoreFailed };
                self.end(Err(ending), Vec::new())
            }
            (Phase::Entering, Input::Store(Answer::Stored)) => {
                let posted = Posted {
                    members: digest(&self.member.members),
                    generation: self.member.generation,
                    patience: self.member.patience,
                    record: self.record.clone(),
                };
                let places = self.member.members.iter().map(|rank| place_key(*rank)).collect();
                let until = self.begun + self.member.patience;
                let mut vote =
                    self.vote(records(&self.member.name), message::<P>(RECORD, &posted), until).reads(places);
                let ask = vote.begin();
                self.phase = Phase::Records(vote);
                Output::Store(ask)
            }
            (Phase::Records(vote), Input::Store(answer)) => self.records(vote, answer, now),
            (Phase::Tracing(vote, trace, missing), Input::Store(Answer::Values(values))) => {
                self.trace(vote, trace, missing, &values, now)
            }
            (Phase::Opening(vote, rest, failure), Input::Store(Answer::Result(_))) => {
                self.open(vote, rest, failure)
            }
            (Phase::Acting { plan, outcomes_until }, Input::Acted(outcome)) => {
                let prefix = outcomes(&self.member.name, self.actions);
                let vote = self.vote(prefix, message::<P>(OUTCOME, &outcome), outcomes_until);
                let mut vote = vote.proposes_now(P::is_final(&outcome));
                let ask = vote.begin();
                self.phase = Phase::Outcomes { plan, vote };
                Output::Store(ask)
            }
            (Phase::Outcomes { plan, vote }, Input::Store(answer)) => self.outcomes(plan, vote, answer, now),
            (Phase::Acknowledging(Acknowledging::Leaving, result), Input::Store(Answer::Stored)) => {
                self.phase = Phase::Acknowledging(Acknowledging::Posting, result);
                Output::Store(Request::Set { key: self.read_key(self.member.rank), value: vec![1] })
            }
            (Phase::Acknowledging(Acknowledging::Posting, result), Input::Store(Answer::Stored)) => {
                self.phase = Phase::Acknowledging(Acknowledging::Looking, result);
                let keys = self.member.members.iter().map(|rank| self.read_key(*rank)).collect();
                Output::Store(Request::Fetch { keys })
            }
            (Phase::Acknowledging(Acknowledging::Looking, result), Input::Store(Answer::Values(read))) => {
                let all = read.len() == self.member.members.len() && read.iter().all(Option::is_some);
                let keys = if all { self.all_keys() } else { Vec::new() };
                self.end(result, keys)
            }
            _ => self.end(Err(Ending::OutOfStep), Vec::new()),
        }
    }

    fn records(&mut self, mut vote: Vote, answer: Answer, now: Duration) -> Output<P> {
        let (posted, places) = match vote.step(answer) {
            Step::Ask(ask) => {
                self.phase = Phase::Records(vote);
                return Output::Store(ask);
            }
            Step::Result(value) => return self.decided(&value, now),
            Step::Unasked => return self.end(Err(Ending::OutOfStep), Vec::new()),
            Step::Propose { posted, further } => (posted, further),
        };
        let place =
            |bytes: &Option<Vec<u8>>| Place::from_bytes(bytes.as_deref()?).ok().filter(Place::is_somewhere);
        let places: Vec<_> = self.member.members.iter().copied().zip(places.iter().map(place)).collect();
        let missing = places.iter().zip(&posted).filter(|(_, posted)| posted.is_none());
        let mut missing: Vec<Absentee> = missing
            .map(|((rank, last_seen), _)| Absentee { rank: *rank, last_seen: last_seen.clone() })
            .collect();
        missing.sort_by_key(|absentee| absentee.rank);
        if missing.is_empty() {
            let sealed = self.decide(posted.iter().flatten());
            return self.propose(vote, sealed);
        }
        let trace = Trace::new(self.member.rank, self.place(), places);
        self.trace(vote, trace, missing, &[], now)
    }

    /// Decides from the posted records of all members, in their order.
    fn decide<'a>(&self, posted: impl Iterator<Item = &'a Vec<u8>> + Clone) -> Vec<u8> {
        let members = || self.member.members.iter().copied();
        let versions = members().zip(posted.clone()).filter_map(|(rank, bytes)| {
            let rest = bytes.strip_prefix(&P::PROTOCOL.magic)?;
            Some((rank, u16::read(&mut Reader::new(rest)).ok()?))
        });
        let versions = ValuesByRank::of(versions);
        if !versions.is_unanimous() {
            return sealed_failure(Failure::Versions { versions });
        }
        let mut records = Vec::new();
        for (rank, bytes) in members().zip(posted) {
            match read::<P, Posted<P::Record>>(RECORD, bytes) {
                Ok(posted) => records.push((rank, posted)),
                Err(malformed) => {
                    return sealed_failure(Failure::Unreadable { rank, cause: malformed.to_string() });
                }
            }
        }
        let digests = ValuesByRank::of(records.iter().map(|(rank, posted)| (*rank, posted.members)));
        if !digests.is_unanimous() {
            return sealed_failure(Failure::Members { digests });
        }
        let generations = ValuesByRank::of(records.iter().map(|(rank, posted)| (*rank, posted.generation)));
        if !generations.is_unanimous() {
            return sealed_failure(Failure::Generations { generations });
        }
        let patience = records.iter().map(|(_, posted)| posted.patience).max().unwrap_or_default();
        let records: Vec<_> = records.into_iter().map(|(rank, posted)| (rank, posted.record)).collect();
        let members = digest(&self.member.members);
        message::<P>(DECISION, &Decided { members, patience, decision: P::decide(&records) })
    }

    fn trace(
        &mut self,
        vote: Vote,
        mut trace: Trace,
        missing: Vec<Absentee>,
        values: &[Option<Vec<u8>>],
        now: Duration,
    ) -> Output<P> {
        let circle = match trace.step(values) {
            Traced::Unasked => return self.end(Err(Ending::OutOfStep), Vec::new()),
            Traced::Ask(ask) => {
                self.phase = Phase::Tracing(vote, trace, missing);
                return Output::Store(ask);
            }
            Traced::Circle(circle) => circle,
        };
        let waited_ms = now.saturating_sub(self.begun).as_millis() as u64;
        let own = self.place();
        let others =
            super::trace::others(&circle, &own).into_iter().map(|(place, missing)| Request::Propose {
                key: place.decision_key(),
                value: sealed_failure(Failure::Absent { missing, waited_ms, circle: circle.clone() }),
            });
        let others = others.collect();
        self.open(vote, others, Failure::Absent { missing, waited_ms, circle })
    }

    /// Fails the other agreements of a circle, and then this one.
    fn open(&mut self, vote: Vote, mut rest: Vec<Request>, failure: Failure) -> Output<P> {
        match rest.pop() {
            Some(ask) => {
                self.phase = Phase::Opening(vote, rest, failure);
                Output::Store(ask)
            }
            None => self.propose(vote, sealed_failure(failure)),
        }
    }

    fn propose(&mut self, mut vote: Vote, value: Vec<u8>) -> Output<P> {
        let ask = vote.propose(value);
        self.phase = Phase::Records(vote);
        Output::Store(ask)
    }

    fn decided(&mut self, value: &[u8], now: Duration) -> Output<P> {
        let decided: Decided<Decision<P>> = match unseal::<P, _>(DECISION, value) {
            Ok(Sealed::Stands(decided)) => decided,
            Ok(Sealed::Failed(failure)) => return self.acknowledge(Err(Ending::Failed(failure))),
            Err(malformed) => return self.end(Err(Ending::Unreadable(malformed)), Vec::new()),
        };
        let own = digest(&self.member.members);
        // Members with another list have decided without this rank.
        if decided.members != own {
            let others = self.member.members.iter().filter(|rank| **rank != self.member.rank);
            let digests = others.map(|rank| (*rank, decided.members)).chain([(self.member.rank, own)]);
            let failure = Failure::Members { digests: ValuesByRank::of(digests) };
            return self.end(Err(Ending::Failed(failure)), Vec::new());
        }
        self.patience = decided.patience;
        match decided.decision {
            Decision::Act { plan } => self.act(plan, now),
            Decision::Agreed { agreed } => self.acknowledge(Ok(agreed)),
            Decision::Refused { refusal } => self.acknowledge(Err(Ending::Refused(refusal))),
        }
    }

    fn act(&mut self, plan: P::Plan, now: Duration) -> Output<P> {
        let until = now + budget::action(self.patience);
        let outcomes_until = until + budget::outcomes(self.patience);
        self.phase = Phase::Acting { plan: plan.clone(), outcomes_until };
        let verdict = vote::result_key(&outcomes(&self.member.name, self.actions));
        Output::Act { plan, until, verdict }
    }

    fn outcomes(&mut self, plan: P::Plan, mut vote: Vote, answer: Answer, now: Duration) -> Output<P> {
        let ask = match vote.step(answer) {
            Step::Ask(ask) => ask,
            Step::Propose { posted, .. } => {
                let outcome =
                    |bytes: &Option<Vec<u8>>| read::<P, P::Outcome>(OUTCOME, bytes.as_deref()?).ok();
                let outcomes: Vec<_> =
                    self.member.members.iter().copied().zip(posted.iter().map(outcome)).collect();
                vote.propose(message::<P>(VERDICT, &P::judge(&plan, &outcomes)))
            }
            Step::Result(value) => {
                return match unseal::<P, Verdict<P>>(VERDICT, &value) {
                    Err(malformed) => self.end(Err(Ending::Unreadable(malformed)), Vec::new()),
                    Ok(Sealed::Failed(failure)) => self.acknowledge(Err(Ending::Failed(failure))),
                    Ok(Sealed::Stands(Verdict::Agreed { agreed })) => self.acknowledge(Ok(agreed)),
                    Ok(Sealed::Stands(Verdict::Failed { refusal })) => {
                        self.acknowledge(Err(Ending::Refused(refusal)))
                    }
                    Ok(Sealed::Stands(Verdict::Act { plan })) => {
                        self.actions += 1;
                        self.act(plan, now)
                    }
                };
            }
            Step::Unasked => return self.end(Err(Ending::OutOfStep), Vec::new()),
        };
        self.phase = Phase::Outcomes { plan, vote };
        Output::Store(ask)
    }

    fn acknowledge(&mut self, result: Result<P::Agreed, Ending<P>>) -> Output<P> {
        self.phase = Phase::Acknowledging(Acknowledging::Leaving, result);
        let nowhere = Place { name: String::new(), members: Vec::new() };
        Output::Store(Request::Set { key: place_key(self.member.rank), value: nowhere.to_bytes() })
    }

    fn place(&self) -> Place {
        Place { name: self.member.name.clone(), members: self.member.members.clone() }
    }

    fn vote(&self, prefix: String, posted: Vec<u8>, until: Duration) -> Vote {
        Vote::new(prefix, self.member.rank, self.member.members.clone(), posted, until)
    }

    fn read_key(&self, rank: u32) -> String {
        format!("{}/read/{rank}", self.member.name)
    }

    /// Returns all keys that the members may have written. The acknowledgements come last: while they exist, every
    /// member that looks finds them complete.
    fn all_keys(&self) -> Vec<String> {
        let Member { name, members, .. } = &self.member;
        let votes =
            std::iter::once(records(name)).chain((0..=self.actions).map(|action| outcomes(name, action)));
        let mut keys: Vec<String> =
            votes.flat_map(|prefix| vote::keys(&prefix, members).collect::<Vec<_>>()).collect();
        keys.extend(members.iter().map(|rank| self.read_key(*rank)));
        keys
    }

    fn end(&mut self, result: Result<P::Agreed, Ending<P>>, read: Vec<String>) -> Output<P> {
        self.phase = Phase::Done;
        Output::Done(Conclusion { result, read })
    }
}

// Kept beside the protocol's own magics: no protocol may use it.
const _: () = assert!(COMMON.magic[0] == b'A' && COMMON.magic[1] == b'G');
