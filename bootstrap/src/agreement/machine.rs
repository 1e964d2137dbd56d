//! One member's part in one agreement, as a state machine. It uses no thread, socket, clock or lock.
//!
//! The driver, such as [`run`](super::run), calls [`Agreement::begin`] once. It executes each output, and passes the
//! answer and the time to [`Agreement::step`], until the output is [`Output::Done`].
//!
//! | phase | what happens | limit |
//! |---|---|---|
//! | entering | the member publishes the agreement that it waits in | no wait |
//! | comparing | it compares its member list with that of the first member that came | no wait |
//! | rejecting | if the lists differ, or another process has posted as its rank: it proposes a failure | no wait |
//! | records | it posts its record and waits for the decision ([`Protocol::decide`]) | its own patience, from `begin` |
//! | tracing | if its patience has ended and records are missing: it searches for a circular wait | no wait |
//! | opening | it fails the other agreements of the circular wait, if there is one, and then this one | no wait |
//! | action | [`Output::Act`] | half of the longest patience, at most 10 min, at least [`Protocol::ACTION_FLOOR`] |
//! | outcomes | it posts its outcome and waits for the verdict ([`Protocol::judge`]) | see below |
//! | leaving | it publishes that it no longer waits in the agreement | no wait |
//! | acknowledgement | it publishes that it has read the result | no wait |
//!
//! The wait for the verdict ends a quarter of the longest patience after the deadline of the action, at least 5 s and
//! at most 10 min after it. The verdict may ask for another action: then the phases action and outcomes are repeated.
//! If all members have acknowledged the result, [`Conclusion::read`] has the keys that the driver removes.

use std::time::Duration;

use super::{
    budget,
    failure::{Absentee, Failure, Spoken},
    place::{self, COMMON, Place, Waiting, members_key, outcomes, places_key, records, result_key},
    protocol::{Decision, Protocol, Report, Verdict},
    trace::{Trace, Traced},
    values::ValuesByRank,
    vote::{self, Answer, Gathering, Gone, Request, Step, Vote},
};
use crate::wire::{self, Malformed, Message, Reader, Wire, wire_struct};

/// A member of an agreement.
///
/// A rank may take part in several agreements at a time, on several threads. It is part of a circular wait only if
/// none of these agreements can complete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// The name of the agreement, which is the prefix of its keys. Use a name only once: build it from the object's
    /// name, the object's generation and the number of the call.
    pub name: String,
    /// The rank of this member in the job, one of `members`.
    pub rank: u32,
    /// All members, as ranks of the job, in the same order on every member.
    pub members: Vec<u32>,
    /// The generation of the object that the members agree on: how many times this rank has created the object.
    pub generation: u64,
    /// The longest time, from the start of the agreement, that this member waits for the records of the others. It also
    /// limits the retries of failed requests, except that they go on for at least 5 s. The limits of actions and
    /// outcomes follow from the longest patience among the members.
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

/// An output of the state machine: a request to its driver, or the end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output<P: Protocol> {
    /// A request to the store. The answer is [`Input::Store`].
    Store(Request),
    /// A request to execute the plan. The answer is [`Input::Acted`].
    Act {
        /// The plan.
        plan: P::Plan,
        /// The deadline of the action, on the clock of [`Agreement::step`].
        until: Duration,
        /// The key of the verdict. If this key has a value while this member still acts, the verdict no longer depends
        /// on this member's outcome, and the member may stop its action. Possible causes: a final outcome of another
        /// member, a timeout, or a member that has left.
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
    /// The keys to remove, because every member has acknowledged the result. Remove them in this order. If the first
    /// key does not exist, stop: another member removes them. Empty on a member that does not see all acknowledgements.
    pub read: Vec<String>,
    /// The keys of the other members, if `result` is [`Ending::Failed`] or [`Ending::Refused`] before an action;
    /// otherwise empty. Also empty if this member's list differs and the others had decided already. The driver should
    /// wait briefly until the members that have posted a record acknowledge the result. If this process hosts the store
    /// and exits before that, they cannot read the reason.
    pub awaited: Vec<Awaited>,
    /// True if this member was asked to act. If there is no result, this member has to undo its part of the action.
    pub has_acted: bool,
}

/// The keys of a member that may have to read the result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Awaited {
    /// The key of the member's record. It exists once the member has posted its record. It is removed after all members
    /// have read the result.
    pub record: String,
    /// The key of the member's acknowledgement. It exists once the member has read the result, until the keys are
    /// removed.
    pub read: String,
}

/// The reason why an agreement has no result on this member.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ending<P: Protocol> {
    /// [`Protocol::decide`] or [`Protocol::judge`] has found a reason why nothing is agreed. All members that read the
    /// result get the same reason.
    Refused(P::Refusal),
    /// The agreement has failed. All members that read a result get the same failure, with two exceptions: after
    /// [`Failure::Taken`] or [`Failure::Members`], the others may have another result, which was stored before this
    /// failure.
    Failed(Failure),
    /// The store failed before this member posted its record, or rejected the record. So the other members cannot act
    /// on the record. [`run`](super::run) also returns this if the agreement cannot begin, for example because of an
    /// invalid [`Member`].
    StoreFailed,
    /// The store failed while or after this member posted its record, and before it read the result. Or the store
    /// rejected its outcome. The others may have acted, so the object must be treated as failed.
    InDoubt,
    /// The member list, decision or verdict in the store cannot be read: another program, or another release of this
    /// one, has written it. The object must be treated as failed.
    Unreadable(Malformed),
    /// The driver passed an input that does not answer the last output. The object must be treated as failed.
    OutOfStep,
}

/// A posted record with its header.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Posted<R> {
    /// The version of [`COMMON`]. It is the first field, so that [`spoken`] can read it in records of every version.
    agreement: u16,
    /// A random number of this run. It makes the records of two processes with the same rank differ, so that the second
    /// post is answered with [`Answer::Taken`].
    nonce: u64,
    generation: u64,
    patience: Duration,
    record: R,
}
wire_struct!(Posted<R> { agreement, nonce, generation, patience, record });

/// The content of a result key: the protocol's value, or a failure in place of that value.
enum Sealed<V> {
    Failed(Failure),
    Stands(V),
}

/// A decision, and the patience from which the limits of the later steps follow.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Decided<D> {
    /// The longest patience among the members.
    patience: Duration,
    decision: D,
}
wire_struct!(Decided<D> { patience, decision });

// The message kinds of a protocol.
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

/// Encodes a failure that takes the place of a decision or verdict. Its encoding is the same for all protocols.
pub(super) fn sealed_failure(failure: Failure) -> Vec<u8> {
    failure.to_bytes()
}

/// Reads a failure that takes the place of a decision or verdict. Returns `None` if `bytes` is no failure, or one of
/// another version of [`COMMON`].
pub(super) fn told_failure(bytes: &[u8]) -> Option<Failure> {
    Failure::from_bytes(bytes).ok()
}

/// Returns true if `bytes` asks the members for an action. Returns false for every other value, also for one that
/// cannot be read. If `is_decision` is true, `bytes` is the value of a decision key, otherwise of a verdict key.
pub(super) fn asks_for_action<P: Protocol>(bytes: &[u8], is_decision: bool) -> bool {
    if is_decision {
        let decided = read::<P, Decided<Decision<P>>>(DECISION, bytes);
        matches!(decided, Ok(Decided { decision: Decision::Act { .. }, .. }))
    } else {
        matches!(read::<P, Verdict<P>>(VERDICT, bytes), Ok(Verdict::Act { .. }))
    }
}

/// Reads a decision or verdict, or the failure that takes its place.
fn unseal<P: Protocol, V: Wire>(kind: u8, bytes: &[u8]) -> Result<Sealed<V>, Malformed> {
    match told_failure(bytes) {
        Some(failure) => Ok(Sealed::Failed(failure)),
        None => Ok(Sealed::Stands(read::<P, V>(kind, bytes)?)),
    }
}

/// Reads the protocol and the versions of a posted record. Returns `None` if the record is too short.
fn spoken(bytes: &[u8]) -> Option<Spoken> {
    let mut reader = Reader::new(bytes);
    let magic = <[u8; 2]>::read(&mut reader).ok()?;
    let (version, _kind) = <(u16, u8)>::read(&mut reader).ok()?;
    Some(Spoken { magic, version, agreement: u16::read(&mut reader).ok()? })
}

/// The phase of a member, see the table in the module docs.
#[derive(Debug, Clone)]
enum Phase<P: Protocol> {
    Begin,
    Entering,
    /// Comparing the member list with that of the first member.
    Comparing,
    Records(Vote),
    /// Searching for a circular wait through the missing members.
    Tracing(Vote, Trace, Vec<Absentee>),
    /// Failing the other agreements of a circular wait. Holds the requests that are not yet sent, and the failure with
    /// which this agreement fails afterwards.
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
    /// Proposing this failure because the member cannot take part: another process has posted as its rank, or its
    /// member list differs from that of the first member.
    Rejecting(Failure),
    Done,
}

/// The steps of an acknowledgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Acknowledging {
    /// Publishing that this rank no longer waits in the agreement. This precedes the removal of keys: if the decision
    /// key were removed first, the agreement would look like one in which the rank still waits. `acknowledges` is false
    /// if the other members may have or get another result. This is then the last step.
    Leaving { acknowledges: bool },
    /// Posting the acknowledgement.
    Posting,
    /// Counting the acknowledgement. A repeated request may count it twice.
    Counting,
    /// Checking that all acknowledgements exist, after the counter has reached the number of members.
    Looking,
}

/// One member's part in one agreement.
#[derive(Debug, Clone)]
pub struct Agreement<P: Protocol> {
    member: Member,
    record: P::Record,
    nonce: u64,
    /// The time of [`Agreement::begin`].
    begun: Duration,
    /// This member's patience; from the decision on, the longest patience among the members.
    patience: Duration,
    /// The number of verdicts that asked for another action.
    actions: u32,
    has_acted: bool,
    /// True if this member's list differs, and the others had decided before it proposed its failure.
    is_outside: bool,
    phase: Phase<P>,
}

impl<P: Protocol> Agreement<P> {
    /// Makes the state machine of `member`, which posts `record`. `nonce` is a random number. It tells this process
    /// from another one that takes part as the same rank.
    ///
    /// # Errors
    /// A description of the problem with `member`: the rank is not among the members, a rank is named twice, or
    /// the name is empty.
    pub fn new(member: Member, record: P::Record, nonce: u64) -> Result<Self, String> {
        const {
            assert!(
                P::PROTOCOL.magic[0] != COMMON.magic[0] || P::PROTOCOL.magic[1] != COMMON.magic[1],
                "the magic AG is reserved"
            );
        }
        let Member { name, rank, members, .. } = &member;
        if name.is_empty() {
            return Err("an agreement needs a name".into());
        }
        if !members.contains(rank) {
            return Err(format!("rank {rank} is not among the members {members:?} of {name}"));
        }
        let mut sorted = members.clone();
        sorted.sort_unstable();
        if let Some(pair) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(format!("rank {} is named twice among the members of {name}", pair[0]));
        }
        let patience = member.patience;
        Ok(Self {
            member,
            record,
            nonce,
            begun: Duration::ZERO,
            patience,
            actions: 0,
            has_acted: false,
            is_outside: false,
            phase: Phase::Begin,
        })
    }

    /// Returns the name of the agreement.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.member.name
    }

    /// Starts the agreement at the time `now`, and returns the first output. The times passed to this and to
    /// [`step`](Self::step) count from the same arbitrary origin, and must not decrease.
    pub fn begin(&mut self, now: Duration) -> Output<P> {
        self.begun = now;
        self.phase = Phase::Entering;
        Output::Store(Request::Enter { key: places_key(self.member.rank), place: self.place() })
    }

    /// Returns true while this member may have posted its record and has not read the result. Returns false once the
    /// agreement has ended on this member, also with [`Ending::InDoubt`].
    #[must_use]
    pub fn is_in_doubt(&self) -> bool {
        match &self.phase {
            Phase::Begin
            | Phase::Entering
            | Phase::Comparing
            | Phase::Rejecting(_)
            | Phase::Acknowledging(..)
            | Phase::Done => false,
            Phase::Records(vote) | Phase::Tracing(vote, ..) | Phase::Opening(vote, ..) => vote.has_posted(),
            Phase::Acting { .. } | Phase::Outcomes { .. } => true,
        }
    }

    /// Processes the answer to the last output at the time `now`, and returns the next output. An input that cannot
    /// answer the last output usually ends the agreement with [`Ending::OutOfStep`].
    pub fn step(&mut self, input: Input<P>, now: Duration) -> Output<P> {
        let is_in_doubt = self.is_in_doubt();
        match (std::mem::replace(&mut self.phase, Phase::Done), input) {
            (Phase::Acknowledging(_, result), Input::Store(Answer::StoreFailed)) => {
                self.end(result, Vec::new())
            }
            // Another process has posted as this rank. The other members get this failure, unless a result is
            // already stored.
            (Phase::Records(_), Input::Store(Answer::Taken)) => {
                self.reject(Failure::Taken { rank: self.member.rank })
            }
            // Keep the agreement in this rank's list: the other process with this rank uses the same list.
            (Phase::Rejecting(failure @ Failure::Taken { .. }), Input::Store(_)) => {
                self.end(Err(Ending::Failed(failure)), Vec::new())
            }
            // The record is not in the store. So the others do not act, and wait until their patience ends.
            (Phase::Records(_), Input::Store(Answer::Unsent)) => self.leave(Err(Ending::StoreFailed), false),
            (_, Input::Store(Answer::Unsent)) => self.end(Err(Ending::InDoubt), Vec::new()),
            // If another member's failure was stored first, report that one, so that all members report the same
            // failure.
            (Phase::Rejecting(failure), Input::Store(Answer::Result(stands))) => {
                let told = told_failure(&stands);
                self.is_outside = told.is_none();
                let failure = told.unwrap_or(failure);
                self.leave(Err(Ending::Failed(failure)), false)
            }
            (
                phase @ (Phase::Records(_) | Phase::Outcomes { .. }),
                Input::Store(Answer::Over(Gone { rank, cause })),
            ) => self.propose_in(phase, sealed_failure(Failure::Left { rank, cause })),
            (_, Input::Store(Answer::StoreFailed)) => {
                let ending = if is_in_doubt { Ending::InDoubt } else { Ending::StoreFailed };
                self.end(Err(ending), Vec::new())
            }
            (Phase::Entering, Input::Store(Answer::Stored)) => {
                self.phase = Phase::Comparing;
                let own = Waiting { rank: self.member.rank, place: self.place() };
                Output::Store(Request::Propose { key: members_key(&self.member.name), value: own.to_bytes() })
            }
            (Phase::Comparing, Input::Store(Answer::Result(first))) => {
                let Waiting { rank, place } = match Waiting::from_bytes(&first) {
                    Ok(first) => first,
                    Err(malformed) => return self.leave(Err(Ending::Unreadable(malformed)), false),
                };
                if place.members != self.member.members {
                    let own = (self.member.rank, self.member.members.clone());
                    let lists = ValuesByRank::of([(rank, place.members), own]);
                    return self.reject(Failure::Members { lists });
                }
                let posted = Posted {
                    agreement: COMMON.version,
                    nonce: self.nonce,
                    generation: self.member.generation,
                    patience: self.member.patience,
                    record: self.record.clone(),
                };
                let places = self.member.members.iter().map(|rank| places_key(*rank)).collect();
                let until = self.begun.saturating_add(self.member.patience);
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
            (
                Phase::Acknowledging(Acknowledging::Leaving { acknowledges: false }, result),
                Input::Store(_),
            ) => self.end(result, Vec::new()),
            (
                Phase::Acknowledging(Acknowledging::Leaving { acknowledges: true }, result),
                Input::Store(Answer::Stored),
            ) => {
                self.phase = Phase::Acknowledging(Acknowledging::Posting, result);
                Output::Store(Request::Set { key: self.read_key(self.member.rank), value: vec![1] })
            }
            (Phase::Acknowledging(Acknowledging::Posting, result), Input::Store(Answer::Stored)) => {
                self.phase = Phase::Acknowledging(Acknowledging::Counting, result);
                Output::Store(Request::Add { key: self.read_count_key() })
            }
            (Phase::Acknowledging(Acknowledging::Counting, result), Input::Store(Answer::Count(count))) => {
                if count < self.member.members.len() as u64 {
                    return self.end(result, Vec::new());
                }
                self.phase = Phase::Acknowledging(Acknowledging::Looking, result);
                let keys = self.member.members.iter().map(|rank| self.read_key(*rank)).collect();
                Output::Store(Request::Check { keys })
            }
            (Phase::Acknowledging(Acknowledging::Looking, result), Input::Store(Answer::All(all))) => {
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
            Step::Propose { posted, further, .. } => (posted, further),
        };
        let places = places.iter().map(|value| place::from_value(value.as_deref()));
        let places: Vec<_> = self.member.members.iter().copied().zip(places).collect();
        let missing = places.iter().zip(&posted).filter(|(_, posted)| posted.is_none());
        let absentee = |((rank, places), _): (&(u32, Vec<Place>), _)| {
            let elsewhere = places.iter().filter(|place| place.name != self.member.name);
            Absentee { rank: *rank, elsewhere: elsewhere.cloned().collect() }
        };
        let mut missing: Vec<Absentee> = missing.map(absentee).collect();
        missing.sort_by_key(|absentee| absentee.rank);
        if missing.is_empty() {
            let sealed = self.decide(posted.iter().flatten());
            return self.propose(vote, sealed);
        }
        let trace = Trace::new(self.member.rank, self.place(), places);
        self.trace(vote, trace, missing, &[], now)
    }

    /// Decides from the posted records of all members, in the order of the member list. Returns the encoded decision,
    /// or the failure in its place if protocols or generations differ or a record cannot be read.
    fn decide<'a>(&self, posted: impl Iterator<Item = &'a Vec<u8>> + Clone) -> Vec<u8> {
        let members = || self.member.members.iter().copied();
        let protocols =
            members().zip(posted.clone()).filter_map(|(rank, bytes)| Some((rank, spoken(bytes)?)));
        let protocols = ValuesByRank::of(protocols);
        if !protocols.is_unanimous() {
            return sealed_failure(Failure::Protocols { protocols });
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
        let generations = ValuesByRank::of(records.iter().map(|(rank, posted)| (*rank, posted.generation)));
        if !generations.is_unanimous() {
            return sealed_failure(Failure::Generations { generations });
        }
        let patience = records.iter().map(|(_, posted)| posted.patience).max().unwrap_or_default();
        let records: Vec<_> = records.into_iter().map(|(rank, posted)| (rank, posted.record)).collect();
        message::<P>(DECISION, &Decided { patience, decision: P::decide(&records) })
    }

    /// Continues the search for a circular wait. When it ends, fails the agreements of the circle, or only this one.
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
        let others = super::trace::others(&circle, &self.place()).into_iter();
        let others = others.map(|(place, missing)| Request::Propose {
            key: place.decision_key(),
            value: sealed_failure(self.absent(missing, circle.clone(), now)),
        });
        let others = others.collect();
        self.open(vote, others, self.absent(missing, circle, now))
    }

    fn absent(&self, missing: Vec<Absentee>, circle: Vec<Waiting>, now: Duration) -> Failure {
        let waited_ms = now.saturating_sub(self.begun).as_millis() as u64;
        Failure::Absent { missing, by: self.member.rank, waited_ms, circle }
    }

    /// Sends the last request of `rest`, which fails another agreement of a circular wait. If `rest` is empty, fails
    /// this agreement.
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
            Err(malformed) => return self.leave(Err(Ending::Unreadable(malformed)), false),
        };
        self.patience = decided.patience;
        match decided.decision {
            Decision::Act { plan } => self.act(plan, now),
            Decision::Agreed { agreed } => self.acknowledge(Ok(agreed)),
            Decision::Refused { refusal } => self.acknowledge(Err(Ending::Refused(refusal))),
        }
    }

    fn act(&mut self, plan: P::Plan, now: Duration) -> Output<P> {
        let until = now.saturating_add(budget::action(self.patience, P::ACTION_FLOOR));
        let outcomes_until = until.saturating_add(budget::outcomes(self.patience));
        self.has_acted = true;
        self.phase = Phase::Acting { plan: plan.clone(), outcomes_until };
        let verdict = result_key(&outcomes(&self.member.name, self.actions));
        Output::Act { plan, until, verdict }
    }

    fn outcomes(&mut self, plan: P::Plan, mut vote: Vote, answer: Answer, now: Duration) -> Output<P> {
        let ask = match vote.step(answer) {
            Step::Ask(ask) => ask,
            Step::Propose { posted, why, .. } => {
                let report = |bytes: &Option<Vec<u8>>| match (bytes, why) {
                    // An unreadable outcome counts as late: its key is written once, so waiting does not help.
                    (Some(bytes), _) => {
                        read::<P, P::Outcome>(OUTCOME, bytes).map_or(Report::Late, Report::Outcome)
                    }
                    (None, Gathering::Expired) => Report::Late,
                    (None, Gathering::Now | Gathering::Counted) => Report::Pending,
                };
                let reports: Vec<_> =
                    self.member.members.iter().copied().zip(posted.iter().map(report)).collect();
                vote.propose(message::<P>(VERDICT, &P::judge(&plan, &reports)))
            }
            Step::Result(value) => {
                return match unseal::<P, Verdict<P>>(VERDICT, &value) {
                    Err(malformed) => self.leave(Err(Ending::Unreadable(malformed)), false),
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

    /// Proposes `failure` in place of the decision. If a decision or another failure is already stored, it stays.
    fn reject(&mut self, failure: Failure) -> Output<P> {
        let key = result_key(&records(&self.member.name));
        let value = sealed_failure(failure.clone());
        self.phase = Phase::Rejecting(failure);
        Output::Store(Request::Propose { key, value })
    }

    fn acknowledge(&mut self, result: Result<P::Agreed, Ending<P>>) -> Output<P> {
        self.leave(result, true)
    }

    /// Publishes that this rank no longer waits in the agreement. If `acknowledges` is true, all members get this
    /// result, and this member acknowledges it next. Otherwise the agreement then ends on this member.
    fn leave(&mut self, result: Result<P::Agreed, Ending<P>>, acknowledges: bool) -> Output<P> {
        self.phase = Phase::Acknowledging(Acknowledging::Leaving { acknowledges }, result);
        Output::Store(Request::Leave { key: places_key(self.member.rank), place: self.place() })
    }

    /// Proposes `value`, an encoded failure, in place of the decision or verdict that `phase` waits for.
    fn propose_in(&mut self, phase: Phase<P>, value: Vec<u8>) -> Output<P> {
        match phase {
            Phase::Records(vote) => self.propose(vote, value),
            Phase::Outcomes { plan, mut vote } => {
                let ask = vote.propose(value);
                self.phase = Phase::Outcomes { plan, vote };
                Output::Store(ask)
            }
            _ => self.end(Err(Ending::OutOfStep), Vec::new()),
        }
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

    fn read_count_key(&self) -> String {
        format!("{}/read/count", self.member.name)
    }

    /// Returns the keys of the agreement, in the order in which to remove them. The lists of the ranks' agreements are
    /// not among them, nor is the member list if [`Protocol::KEEPS_MEMBERS`] is true. The decision is the first: the
    /// member that succeeds in removing it removes the other keys. The acknowledgements and their counter are the last,
    /// because other members may still check them.
    fn all_keys(&self) -> Vec<String> {
        let Member { name, members, .. } = &self.member;
        let decision = result_key(&records(name));
        let actions = if self.has_acted { 0..self.actions + 1 } else { 0..0 };
        let votes = std::iter::once(records(name)).chain(actions.map(|action| outcomes(name, action)));
        let votes = votes.flat_map(|prefix| vote::keys(&prefix, members).collect::<Vec<_>>());
        let mut keys = vec![decision.clone()];
        keys.extend(votes.filter(|key| *key != decision));
        keys.extend((!P::KEEPS_MEMBERS).then(|| members_key(name)));
        keys.extend(members.iter().map(|rank| self.read_key(*rank)));
        keys.push(self.read_count_key());
        keys
    }

    /// Returns the keys for [`Conclusion::awaited`]. There are none after an action, because a member may act for a
    /// long time before it reads the result.
    fn awaited(&self, result: &Result<P::Agreed, Ending<P>>) -> Vec<Awaited> {
        if self.has_acted || self.is_outside || !matches!(result, Err(Ending::Failed(_) | Ending::Refused(_)))
        {
            return Vec::new();
        }
        let records = records(&self.member.name);
        let others = self.member.members.iter().filter(|rank| **rank != self.member.rank);
        let keys = |rank: &u32| Awaited { record: format!("{records}/{rank}"), read: self.read_key(*rank) };
        others.map(keys).collect()
    }

    fn end(&mut self, result: Result<P::Agreed, Ending<P>>, read: Vec<String>) -> Output<P> {
        self.phase = Phase::Done;
        let awaited = self.awaited(&result);
        Output::Done(Conclusion { result, read, awaited, has_acted: self.has_acted })
    }
}
