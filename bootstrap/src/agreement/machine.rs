//! One member's part in one agreement, as a state machine. It uses no thread, socket, clock or lock. The module docs of
//! `agreement` define the [terms](super#terms).
//!
//! The caller, such as [`run`](super::run), calls [`Agreement::begin`] once. It then executes each output, and passes
//! the answer and the time to [`Agreement::step`], until the output is [`Output::Done`].
//!
//! | phase | work of the member | limit |
//! |---|---|---|
//! | entering | adds the agreement to its rank's list of places | no wait |
//! | comparing | compares its member list with the list that was stored first | no wait |
//! | rejecting | if the lists differ, or another process has posted as its rank: proposes a failure | no wait |
//! | records | posts its record and waits for the decision ([`Protocol::decide`]) | its own patience, from `begin` |
//! | tracing | if its patience has ended and members are missing: searches for a circular wait | no wait |
//! | explaining | if there is no circular wait: reads the keys that may explain why members are missing | no wait |
//! | opening | fails the other agreements of the circular wait, if there is one, and then this one | no wait |
//! | action | acts | half of the longest patience, at most 10 min, at least [`Protocol::ACTION_FLOOR`] |
//! | outcomes | posts its outcome and waits for the verdict ([`Protocol::judge`]) | see below |
//! | telling | if the failure lists a circular wait of this member: fails the other agreements of the circle | no wait |
//! | leaving | removes the agreement from its rank's list of places | no wait |
//! | acknowledgement | acknowledges the result | no wait |
//!
//! The wait for the verdict ends a quarter of the longest patience after the deadline of the action, at least 5 s and
//! at most 10 min after it. If the verdict asks for another action, the phases action and outcomes are repeated, with new
//! limits unless [`Protocol::shares_limits`] returns true (then the end of the wait moves by at most 5 s). The member that
//! sees all acknowledgements returns the keys to remove in [`Conclusion::read`].

mod absence;
mod action;

use std::time::Duration;

use super::{
    budget::Limits,
    failure::{Absentee, Failure},
    interface::{Awaited, Conclusion, Ending, Input, Member, OtherMembers, Output},
    messages::{
        DECISION, Decided, OUTCOME, Posted, RECORD, message, read, read_decided, sealed_failure, spoken,
        told_failure, unreadable,
    },
    place::{
        COMMON, Place, Waiting, members_key, outcomes, places_key, read_count_key, read_key, records,
        result_key,
    },
    protocol::{Decision, Protocol},
    trace::Trace,
    values::ValuesByRank,
    vote::{self, Answer, Gone, Request, Step, Vote},
};
use crate::wire::Message;

/// The phase of a member, see the table in the module docs.
#[derive(Debug, Clone)]
enum Phase<P: Protocol> {
    Begin,
    Entering,
    /// Comparing the member list with the list that was stored first.
    Comparing,
    /// Voting on the records or, if there is a plan, on the outcomes of its action.
    Voting(Vote, Option<P::Plan>),
    /// Searching for a circular wait through the places of the missing members.
    Tracing(Vote, Trace, Vec<Absentee>),
    /// Reading the keys that may explain why members are missing.
    Explaining(Vote, Vec<Absentee>),
    /// Failing the other agreements of a circular wait. Holds the requests that are not yet sent, and the failure with
    /// which this agreement fails afterwards.
    Opening(Vote, Vec<Request>, Failure),
    Acting(P::Plan),
    /// Failing the other agreements of the circular wait that this failure lists. Holds the requests that are not yet
    /// sent.
    Telling(Vec<Request>, Failure),
    Acknowledging(Acknowledging, Result<P::Agreed, Ending<P>>),
    /// Proposing this failure because the member cannot take part: another process has posted as its rank, or its
    /// member list differs from the list that was stored first.
    Rejecting(Failure),
    Done,
}

/// The steps of an acknowledgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Acknowledging {
    /// Removing the agreement from the rank's list of places. This step comes before the keys of the agreement are
    /// removed: once the decision key is removed, the agreement looks undecided, and a rank that still lists it would
    /// seem to wait in it. If `acknowledges` is false, the other members may have another result, and no step follows.
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
    /// This member's patience. Once the decision is read, the longest patience among the members.
    patience: Duration,
    /// The number of actions whose verdicts were read.
    actions: u32,
    /// The time limits of the last action.
    limits: Limits,
    has_acted: bool,
    /// True if this member's member list differs from that of the others, and the store already had a decision, not a
    /// failure, when this member proposed its failure.
    is_outside: bool,
    /// See [`Conclusion::others`].
    others: Option<OtherMembers<P::Agreed>>,
    phase: Phase<P>,
}

impl<P: Protocol> Agreement<P> {
    /// Makes the state machine of `member`, which posts `record`. `nonce` is a random number. It distinguishes the
    /// record of this process from that of another process with the same rank.
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
            limits: Limits::default(),
            has_acted: false,
            is_outside: false,
            others: None,
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
            | Phase::Telling(..)
            | Phase::Acknowledging(..)
            | Phase::Done => false,
            Phase::Voting(vote, None)
            | Phase::Tracing(vote, ..)
            | Phase::Explaining(vote, _)
            | Phase::Opening(vote, ..) => vote.has_posted(),
            Phase::Acting(_) | Phase::Voting(_, Some(_)) => true,
        }
    }

    /// Processes the answer to the last output at the time `now`, and returns the next output. An input that cannot
    /// answer the last output usually ends the agreement with [`Ending::OutOfStep`].
    pub fn step(&mut self, input: Input<P>, now: Duration) -> Output<P> {
        let is_in_doubt = self.is_in_doubt();
        match (std::mem::replace(&mut self.phase, Phase::Done), input) {
            (Phase::Acknowledging(step, result), Input::Store(answer)) => {
                self.acknowledge(step, result, answer)
            }
            // Another process has posted as this rank. The other members get this failure, unless the agreement is
            // already decided.
            (Phase::Voting(_, None), Input::Store(Answer::Taken)) => {
                self.reject(Failure::Taken { rank: self.member.rank })
            }
            // Keep the agreement in this rank's list of places, because the other process with this rank uses the same
            // list.
            (Phase::Rejecting(failure @ Failure::Taken { .. }), Input::Store(_)) => {
                self.end(Err(Ending::Failed(failure)), Vec::new())
            }
            // The record is not in the store. So the others do not act, but wait until their patience ends.
            (Phase::Voting(_, None), Input::Store(Answer::Unsent)) => {
                self.leave(Err(Ending::StoreFailed), false)
            }
            // This member has read the result, so it does not lose it with the store.
            (Phase::Telling(_, failure), Input::Store(Answer::StoreFailed)) => {
                self.end(Err(Ending::Failed(failure)), Vec::new())
            }
            (Phase::Telling(rest, failure), Input::Store(Answer::Result(_))) => self.tell(rest, failure),
            (_, Input::Store(Answer::Unsent)) => self.end(Err(Ending::InDoubt), Vec::new()),
            // If the agreement had failed before, report the stored failure, so that all members report the same one.
            (Phase::Rejecting(failure), Input::Store(Answer::Result(stands))) => {
                let told = told_failure(&stands);
                self.is_outside = told.is_none();
                self.see_others(told.as_ref(), &stands);
                let failure = told.unwrap_or(failure);
                self.leave(Err(Ending::Failed(failure)), false)
            }
            (Phase::Voting(vote, plan), Input::Store(Answer::Over(Gone { rank, cause }))) => {
                self.propose(vote, plan, sealed_failure(Failure::Left { rank, cause }))
            }
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
                    let lists = ValuesByRank::of([(rank, place.members.clone()), own]);
                    self.others = Some(OtherMembers { members: place.members, agreed: None });
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
                let posted = message::<P>(RECORD, &posted);
                self.post(self.vote(records(&self.member.name), posted, until).reads(places), None)
            }
            (Phase::Voting(vote, plan), Input::Store(answer)) => self.vote_on(vote, plan, answer, now),
            (Phase::Tracing(vote, trace, missing), Input::Store(Answer::Values(values))) => {
                self.trace(vote, trace, missing, &values, now)
            }
            (Phase::Explaining(vote, missing), Input::Store(Answer::Values(values))) => {
                self.explain(vote, missing, &values, now)
            }
            (Phase::Opening(vote, rest, failure), Input::Store(Answer::Result(_))) => {
                self.open(vote, rest, failure)
            }
            (Phase::Acting(plan), Input::Acted(outcome)) => {
                let prefix = outcomes(&self.member.name, self.actions);
                let vote = self.vote(prefix, message::<P>(OUTCOME, &outcome), self.limits.outcomes);
                self.post(vote.proposes_now(P::is_final(&outcome)), Some(plan))
            }
            _ => self.end(Err(Ending::OutOfStep), Vec::new()),
        }
    }

    /// Processes an answer during the acknowledgement of `result`.
    fn acknowledge(
        &mut self,
        step: Acknowledging,
        result: Result<P::Agreed, Ending<P>>,
        answer: Answer,
    ) -> Output<P> {
        let members = &self.member.members;
        let (next, ask) = match (step, answer) {
            (Acknowledging::Leaving { acknowledges: true }, Answer::Stored) => {
                let key = read_key(&self.member.name, self.member.rank);
                (Acknowledging::Posting, Request::Post { key, value: vec![1] })
            }
            (Acknowledging::Posting, Answer::Stored) => {
                (Acknowledging::Counting, Request::Add { key: read_count_key(&self.member.name) })
            }
            (Acknowledging::Counting, Answer::Count(count)) if count >= members.len() as u64 => {
                let keys = members.iter().map(|rank| read_key(&self.member.name, *rank)).collect();
                (Acknowledging::Looking, Request::Check { keys })
            }
            (Acknowledging::Looking, Answer::All(true)) => {
                let keys = self.all_keys();
                return self.end(result, keys);
            }
            (Acknowledging::Leaving { acknowledges: false }, _)
            | (Acknowledging::Counting, Answer::Count(_))
            | (Acknowledging::Looking, Answer::All(false))
            | (Acknowledging::Posting, Answer::Taken | Answer::Unsent)
            | (_, Answer::StoreFailed) => return self.end(result, Vec::new()),
            _ => return self.end(Err(Ending::OutOfStep), Vec::new()),
        };
        self.phase = Phase::Acknowledging(next, result);
        Output::Store(ask)
    }

    fn post(&mut self, mut vote: Vote, plan: Option<P::Plan>) -> Output<P> {
        let ask = vote.begin();
        self.phase = Phase::Voting(vote, plan);
        Output::Store(ask)
    }

    fn propose(&mut self, mut vote: Vote, plan: Option<P::Plan>, value: Vec<u8>) -> Output<P> {
        let ask = vote.propose(value);
        self.phase = Phase::Voting(vote, plan);
        Output::Store(ask)
    }

    /// Processes an answer to a vote on records or, if there is a plan, on outcomes.
    fn vote_on(&mut self, mut vote: Vote, plan: Option<P::Plan>, answer: Answer, now: Duration) -> Output<P> {
        match (vote.step(answer), &plan) {
            (Step::Ask(ask), _) => {
                self.phase = Phase::Voting(vote, plan);
                Output::Store(ask)
            }
            (Step::Unasked, _) => self.end(Err(Ending::OutOfStep), Vec::new()),
            (Step::Result(value), None) => self.decided(&value, true, now),
            (Step::Result(value), Some(_)) => {
                self.actions += 1;
                self.decided(&value, false, now)
            }
            (Step::Propose { posted, further, .. }, None) => self.take_records(vote, &posted, &further, now),
            (Step::Propose { posted, why, .. }, Some(of)) => {
                let verdict = self.judge(of, &posted, why);
                self.propose(vote, plan, verdict)
            }
        }
    }

    /// Decides from the posted records of all members, in the order of the member list. Returns the encoded decision.
    /// Returns an encoded failure in its place if protocols or generations differ, or if a record cannot be read.
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
                Err(malformed) => return unreadable(rank, &malformed),
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

    /// Follows the decision or verdict in the store, or the failure that takes its place.
    fn decided(&mut self, value: &[u8], is_decision: bool, now: Duration) -> Output<P> {
        if let Some(failure) = told_failure(value) {
            return self.follow(failure);
        }
        let (patience, decision) = match read_decided::<P>(value, is_decision) {
            Ok(decided) => decided,
            Err(malformed) => return self.leave(Err(Ending::Unreadable(malformed)), false),
        };
        self.patience = patience.unwrap_or(self.patience);
        match decision {
            Decision::Act { plan } => self.act(plan, now),
            Decision::Agreed { agreed } => self.leave(Ok(agreed), true),
            Decision::Refused { refusal } => self.leave(Err(Ending::Refused(refusal)), true),
        }
    }

    /// Proposes `failure` in place of the decision. If a decision or another failure is already stored, it stays.
    fn reject(&mut self, failure: Failure) -> Output<P> {
        let key = result_key(&records(&self.member.name));
        let value = sealed_failure(failure.clone());
        self.phase = Phase::Rejecting(failure);
        Output::Store(Request::Propose { key, value })
    }

    /// Completes [`Conclusion::others`] after this member's member list was found to differ. `stands` is the value of
    /// the decision key. If that value is a failure, `told` is the failure, otherwise `None`.
    fn see_others(&mut self, told: Option<&Failure>, stands: &[u8]) {
        match (told, &mut self.others) {
            // The others fail with the same failure as this member.
            (Some(Failure::Members { .. }), others) => *others = None,
            (None, Some(others)) => match read_decided::<P>(stands, true) {
                Ok((_, Decision::Agreed { agreed })) => others.agreed = Some(agreed),
                Ok((_, Decision::Refused { .. })) => {}
                // The result of the others is unknown: the verdict on their action is not read here, or another program
                // has written the decision.
                Ok((_, Decision::Act { .. })) | Err(_) => self.others = None,
            },
            _ => {}
        }
    }

    /// Removes the agreement from this rank's list of places. After that, acknowledges `result` if `acknowledges` is
    /// true, otherwise ends the agreement on this member. `acknowledges` must be false unless all members get `result`.
    fn leave(&mut self, result: Result<P::Agreed, Ending<P>>, acknowledges: bool) -> Output<P> {
        self.phase = Phase::Acknowledging(Acknowledging::Leaving { acknowledges }, result);
        Output::Store(Request::Leave { key: places_key(self.member.rank), place: self.place() })
    }

    fn place(&self) -> Place {
        Place { name: self.member.name.clone(), members: self.member.members.clone() }
    }

    fn vote(&self, prefix: String, posted: Vec<u8>, until: Duration) -> Vote {
        Vote::new(prefix, self.member.rank, self.member.members.clone(), posted, until)
    }

    /// Returns the keys of the agreement, in the order in which to remove them. The keys of the lists of places are not
    /// among them, nor are the member list and the decision if [`Protocol::KEEPS_RESULT`] is true. The member that
    /// succeeds in removing the first key removes the other ones. The acknowledgements and their counter are the last,
    /// because other members may still check them.
    fn all_keys(&self) -> Vec<String> {
        let Member { name, members, .. } = &self.member;
        let decision = result_key(&records(name));
        let votes = std::iter::once(records(name));
        let votes = votes.chain((0..self.actions).map(|action| outcomes(name, action)));
        let votes = votes.flat_map(|prefix| vote::keys(&prefix, members).collect::<Vec<_>>());
        let mut keys = Vec::from_iter((!P::KEEPS_RESULT).then(|| decision.clone()));
        keys.extend(votes.filter(|key| *key != decision));
        keys.extend((!P::KEEPS_RESULT).then(|| members_key(name)));
        keys.extend(members.iter().map(|rank| read_key(name, *rank)));
        keys.push(read_count_key(name));
        keys
    }

    /// Returns the keys for [`Conclusion::awaited`]. There are none after an action, because a member may act for a
    /// long time before it reads the result.
    fn awaited(&self, result: &Result<P::Agreed, Ending<P>>) -> Vec<Awaited> {
        if self.has_acted || self.is_outside || !matches!(result, Err(Ending::Failed(_) | Ending::Refused(_)))
        {
            return Vec::new();
        }
        let name = &self.member.name;
        let records = records(name);
        let others = self.member.members.iter().filter(|rank| **rank != self.member.rank);
        let keys = |rank: &u32| Awaited { record: format!("{records}/{rank}"), read: read_key(name, *rank) };
        others.map(keys).collect()
    }

    fn end(&mut self, result: Result<P::Agreed, Ending<P>>, read: Vec<String>) -> Output<P> {
        self.phase = Phase::Done;
        let awaited = self.awaited(&result);
        let others = self.others.take().filter(|_| matches!(result, Err(Ending::Failed(_))));
        Output::Done(Conclusion { result, read, awaited, has_acted: self.has_acted, others })
    }
}
