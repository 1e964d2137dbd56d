//! A member's part in one commit, as a state machine: no thread, socket, clock or lock.
//!
//! The driver gives [`Commit::step`] an input and the time, executes the output, and returns the answer as the next
//! input. Exactly one answer is due at any time. The phases and their time limits:
//!
//! | phase | action | limit |
//! |---|---|---|
//! | arrival | the rank publishes its place and posts its record ([`super::record_gather`]); [`decide`] | 8/16 of the rank's own deadline |
//! | search | rounds over prefix hashes, if the allocation logs differ | 2/16, at least [`VOTE_FLOOR`] |
//! | registration | [`Output::Register`] | 3/16, at least [`ACTION_FLOOR`] |
//! | outcome | every member posts the outcome of its registration; [`verdict`] | 2/16, at least [`VOTE_FLOOR`] |
//!
//! A rank's own deadline bounds only its wait for the other members: a short one leads to a refusal. Once the members
//! have decided, all of them have the same budgets, so they give up on the same phase at about the same time. The
//! budgets follow the longest deadline in the group. They have lower bounds because all members lose the group if a
//! registration is cut short.
//!
//! A member is [in doubt](Commit::is_in_doubt) from posting its record until it has read the outcome. If it loses the
//! store meanwhile, it does not know which windows the others hold, and treats the group as failed.

use std::time::Duration;

pub(super) use super::request::{Agreed, Conclusion, Ending, Input, Output};
use super::{
    decide::Outcome,
    decide::{Decision, Verdict, decide, verdict},
    decision_round::{DecisionRound, Step},
    history::Divergence,
    meeting_id::{MeetingId, MeetingKind, standing_key},
    poison::NoWindows,
    record::Record,
    record_gather::{Arriving, RecordGather, read},
    refusal::Refusal,
    search::{Finding, Hashes, Range, Recalled, name, narrow},
    wire::Message,
};

/// The continuation after a search.
#[derive(Debug)]
enum After {
    Refuse(Refusal),
    Commit { segments: u32, joined: Vec<u32>, without: Option<NoWindows>, pending: Refusal },
}

#[derive(Debug)]
enum Phase {
    RecordGather(RecordGather),
    HashesAsked(Search),
    Narrowing(Search, Range, DecisionRound),
    OperationAsked(Search, u64),
    Naming(Search, u64, DecisionRound),
    Registering { agreed: Agreed, outcome_until: Duration },
    Outcome { agreed: Agreed, vote: DecisionRound },
    Done,
}

/// A search in progress.
#[derive(Debug)]
struct Search {
    after: After,
    range: Range,
    until: Duration,
    deadline_ms: u64,
    rounds: u32,
}

/// One member's part in one commit.
#[derive(Debug)]
pub struct Commit {
    record: Record,
    place: MeetingId,
    phase: Phase,
    all_arrived: bool,
    keys: Vec<String>,
}

impl Commit {
    /// Creates the commit of `record` among `members` (ranks of the domain, in the group's order).
    pub fn new(record: Record, members: Vec<u32>) -> Self {
        let (pool, kind) = (record.pool, MeetingKind::Commit { group: record.group });
        let place = MeetingId { pool, kind, round: record.round, members };
        let patience = share(record.deadline_ms, 8);
        let arrival = RecordGather::new(record.rank, place.clone(), record.encode(), patience);
        let keys = arrival.keys_to_remove();
        Self { record, place, phase: Phase::RecordGather(arrival), all_arrived: false, keys }
    }

    /// Processes an input at the time `now` (since any fixed moment) and returns the next request.
    pub fn step(&mut self, input: Input, now: Duration) -> Output {
        if input == Input::StoreFailed {
            let in_doubt = self.is_in_doubt();
            return self.end(Err(Ending::StoreFailed { in_doubt }));
        }
        let phase = std::mem::replace(&mut self.phase, Phase::Done);
        match (phase, input) {
            (Phase::RecordGather(arrival), input) => self.arrival(arrival, input, now),
            (Phase::HashesAsked(search), Input::Hashes(at)) => {
                let prefix = format!("search{}", search.rounds);
                let vote = self.vote(&prefix, Hashes { at }.to_bytes(), search.until);
                let range = search.range;
                self.search_vote(search, Searched::Range(range), vote, Input::Start, now)
            }
            (Phase::Narrowing(search, range, vote), input) => {
                self.search_vote(search, Searched::Range(range), vote, input, now)
            }
            (Phase::OperationAsked(search, sequence), Input::Operation(operation)) => {
                let is_last = self.record.log.length <= sequence + 1;
                let recalled = Recalled { operation, is_last };
                let vote = self.vote("operation", recalled.to_bytes(), search.until);
                self.search_vote(search, Searched::Operation(sequence), vote, Input::Start, now)
            }
            (Phase::Naming(search, sequence, vote), input) => {
                self.search_vote(search, Searched::Operation(sequence), vote, input, now)
            }
            (Phase::Registering { agreed, outcome_until }, Input::Registered(outcome)) => {
                let failed = matches!(outcome, Outcome::Failed { .. } | Outcome::Ended { .. });
                let vote = self.vote("outcomes", outcome.to_bytes(), outcome_until).hurry(failed);
                self.outcome(agreed, vote, Input::Start)
            }
            (Phase::Outcome { agreed, vote }, input) => self.outcome(agreed, vote, input),
            _ => self.end(Err(Ending::OutOfStep)),
        }
    }

    /// Returns true if this member has posted its record and has not read the outcome. After a refusal, the search
    /// only adds details to the error, so the member is not in doubt during it.
    pub fn is_in_doubt(&self) -> bool {
        match &self.phase {
            Phase::RecordGather(arrival) => arrival.has_posted(),
            Phase::HashesAsked(search)
            | Phase::Narrowing(search, ..)
            | Phase::OperationAsked(search, _)
            | Phase::Naming(search, ..) => matches!(search.after, After::Commit { .. }),
            Phase::Registering { .. } | Phase::Outcome { .. } => true,
            Phase::Done => false,
        }
    }

    fn arrival(&mut self, mut arrival: RecordGather, input: Input, now: Duration) -> Output {
        let ask = match arrival.step(input, now) {
            Arriving::Ask(ask) => ask,
            Arriving::Decide(posted) => {
                let decision = match read(&self.place.members, &posted) {
                    Ok(records) => decide(&records),
                    Err(refusal) => Decision::refuse(refusal),
                };
                arrival.propose(&decision)
            }
            Arriving::Stands(value) => return self.decided(&value, now),
            Arriving::Unasked => return self.end(Err(Ending::OutOfStep)),
        };
        self.phase = Phase::RecordGather(arrival);
        ask
    }

    fn decided(&mut self, value: &[u8], now: Duration) -> Output {
        let decision = match Decision::decode(value) {
            Ok(decision) => decision,
            Err(source) => return self.end(Err(Ending::Unreadable { source })),
        };
        self.all_arrived = decision.is_of_all();
        let (after, search, deadline_ms) = match decision {
            Decision::Poison { poison } => return self.end(Err(Ending::Poisoned(poison))),
            Decision::Refuse { refusal, search, deadline_ms } => {
                (After::Refuse(refusal), search, deadline_ms)
            }
            Decision::Commit { segments, joined, without, pending: None, deadline_ms, .. } => {
                return self.register(Agreed { segments, joined, without, pending: None }, deadline_ms, now);
            }
            Decision::Commit {
                segments,
                joined,
                without,
                pending: Some(pending),
                search,
                deadline_ms,
                ..
            } => (After::Commit { segments, joined, without, pending }, search, deadline_ms),
            Decision::Retire { .. } | Decision::Reserve { .. } => return self.end(Err(Ending::OutOfStep)),
        };
        match search {
            None => self.searched(after, deadline_ms, None, now),
            Some(range) => {
                let until = now + vote_budget(deadline_ms, 2);
                self.ask_hashes(Search { after, range, until, deadline_ms, rounds: 0 })
            }
        }
    }

    fn ask_hashes(&mut self, search: Search) -> Output {
        let lengths = search.range.points();
        self.phase = Phase::HashesAsked(search);
        Output::Hashes { lengths }
    }

    fn search_vote(
        &mut self,
        mut search: Search,
        searched: Searched,
        mut vote: DecisionRound,
        input: Input,
        now: Duration,
    ) -> Output {
        let ask = match vote.step(input) {
            Step::Ask(ask) => ask,
            Step::Propose { posted, .. } => vote.propose(self.find(searched, &posted).to_bytes()),
            Step::Stands(value) => {
                return match Finding::from_bytes(&value) {
                    Err(source) => self.end(Err(Ending::Unreadable { source })),
                    Ok(Finding::Narrower { range }) => {
                        search.range = range;
                        search.rounds += 1;
                        self.ask_hashes(search)
                    }
                    Ok(Finding::Operation { sequence }) => {
                        self.phase = Phase::OperationAsked(search, sequence);
                        Output::Recall { sequence }
                    }
                    Ok(Finding::End { divergence }) => {
                        self.searched(search.after, search.deadline_ms, Some(divergence), now)
                    }
                };
            }
            Step::Unasked => return self.end(Err(Ending::OutOfStep)),
        };
        self.phase = match searched {
            Searched::Range(range) => Phase::Narrowing(search, range, vote),
            Searched::Operation(sequence) => Phase::Naming(search, sequence, vote),
        };
        ask
    }

    /// Locates the difference from the members' answers.
    fn find(&self, searched: Searched, posted: &[Option<Vec<u8>>]) -> Finding {
        fn read<M: Message>(posted: &[Option<Vec<u8>>]) -> Option<Vec<M>> {
            posted.iter().map(|bytes| M::from_bytes(bytes.as_deref()?).ok()).collect()
        }
        let found = match searched {
            Searched::Range(range) => read(posted).map(|answers: Vec<Hashes>| narrow(range, &answers)),
            Searched::Operation(sequence) => {
                read(posted).map(|answers| name(sequence, self.place.members.iter().copied().zip(answers)))
            }
        };
        found.unwrap_or(Finding::End { divergence: Divergence::NotFound {} })
    }

    fn searched(
        &mut self,
        after: After,
        deadline_ms: u64,
        divergence: Option<Divergence>,
        now: Duration,
    ) -> Output {
        let add = |refusal: Refusal| match divergence {
            Some(divergence) => refusal.with_divergence(divergence),
            None => refusal,
        };
        match after {
            After::Refuse(refusal) => self.end(Err(Ending::Refused(add(refusal)))),
            After::Commit { segments, joined, without, pending } => {
                let pending = Some(add(pending));
                self.register(Agreed { segments, joined, without, pending }, deadline_ms, now)
            }
        }
    }

    fn register(&mut self, agreed: Agreed, deadline_ms: u64, now: Duration) -> Output {
        if agreed.segments == 0 || agreed.without.is_some() {
            return self.end(Ok(agreed));
        }
        let (segments, joined) = (agreed.segments, agreed.joined.clone());
        let until = now + action_budget(deadline_ms, 3);
        let outcome_until = until + vote_budget(deadline_ms, 2);
        self.phase = Phase::Registering { agreed, outcome_until };
        let verdict_key = standing_key(&self.vote_prefix("outcomes"));
        Output::Register { segments, joined, until, verdict_key }
    }

    fn outcome(&mut self, mut agreed: Agreed, mut vote: DecisionRound, input: Input) -> Output {
        let ask = match vote.step(input) {
            Step::Ask(ask) => ask,
            Step::Propose { posted, .. } => {
                let read = |bytes: &Option<Vec<u8>>| match Outcome::from_bytes(bytes.as_deref()?) {
                    Ok(outcome) => Some(outcome),
                    Err(cause) => Some(Outcome::Failed { ordinal: None, cause: cause.to_string() }),
                };
                let outcomes: Vec<(u32, Option<Outcome>)> = self
                    .place
                    .members
                    .iter()
                    .zip(&posted)
                    .map(|(rank, bytes)| (*rank, read(bytes)))
                    .collect();
                vote.propose(verdict(&outcomes).to_bytes())
            }
            Step::Stands(value) => {
                let result = match Verdict::from_bytes(&value) {
                    Err(source) => Err(Ending::Unreadable { source }),
                    Ok(Verdict::Registered) => Ok(agreed),
                    Ok(Verdict::Without { reason }) => {
                        agreed.without = Some(reason);
                        Ok(agreed)
                    }
                    Ok(Verdict::Poison { poison }) => Err(Ending::Poisoned(poison)),
                };
                return self.end(result);
            }
            Step::Unasked => return self.end(Err(Ending::OutOfStep)),
        };
        self.phase = Phase::Outcome { agreed, vote };
        ask
    }

    fn vote(&mut self, name: &str, posted: Vec<u8>, until: Duration) -> DecisionRound {
        let members = self.place.members.clone();
        let vote = DecisionRound::new(self.vote_prefix(name), self.record.rank, members, posted, until);
        self.keys.extend(vote.keys_to_remove());
        vote
    }

    fn vote_prefix(&self, name: &str) -> String {
        self.place.vote_prefix(name)
    }

    fn end(&mut self, result: Result<Agreed, Ending>) -> Output {
        self.phase = Phase::Done;
        let keys = std::mem::take(&mut self.keys);
        Output::Done(Conclusion { result, all_arrived: self.all_arrived, keys })
    }
}

/// The subject of a decision round of the search.
#[derive(Debug, Clone, Copy)]
enum Searched {
    Range(Range),
    Operation(u64),
}

/// The least time limit for an action on every member after a decision: to register or deregister windows, to quiesce
/// the device, or to open peers' memory.
pub(crate) const ACTION_FLOOR: Duration = Duration::from_secs(10);
/// The least time that members wait for each other's answers after a decision.
pub(crate) const VOTE_FLOOR: Duration = Duration::from_secs(5);

/// The time that the phases after a decision may take together, if their lower bounds apply.
#[cfg(any(test, feature = "simulation"))]
pub(crate) const FLOORS: Duration =
    ACTION_FLOOR.saturating_add(VOTE_FLOOR).saturating_mul(2).saturating_add(VOTE_FLOOR);

/// The given number of sixteenths of a deadline.
pub(super) fn share(deadline_ms: u64, sixteenths: u32) -> Duration {
    Duration::from_millis(deadline_ms) / 16 * sixteenths
}

/// The time limit for an action of all members after a decision, from the longest deadline among them.
pub(super) fn action_budget(deadline_ms: u64, sixteenths: u32) -> Duration {
    share(deadline_ms, sixteenths).max(ACTION_FLOOR)
}

/// The time that members wait for each other's answers after a decision, from the longest deadline among them.
pub(super) fn vote_budget(deadline_ms: u64, sixteenths: u32) -> Duration {
    share(deadline_ms, sixteenths).max(VOTE_FLOOR)
}
