//! A member's part in one commit, as a state machine: no thread, socket, clock or lock.
//!
//! The driver gives [`Commit::step`] an input and the time, does what the output says, and gives the answer
//! back as the next input; exactly one answer is due at any time. The phases, and what they may take:
//!
//! | phase | what | until |
//! |---|---|---|
//! | arrival | the rank says where it is, posts its record ([`super::arrival`]); [`decide`] | 8/16 of the rank's own deadline |
//! | search | rounds over prefix hashes, if the allocation logs differ | 2/16, at least [`VOTE_FLOOR`] |
//! | registration | [`Output::Register`] | 3/16, at least [`ACTION_FLOOR`] |
//! | outcome | every member posts how it went; [`verdict`] | 2/16, at least [`VOTE_FLOOR`] |
//!
//! A rank's own deadline bounds its wait for the other members, and nothing else: a short one refuses. Once the members
//! have decided, the budgets are the same on all of them, so that they give up on the same phase at about the same time.
//! They follow the longest deadline in the group and have floors, because a registration that is cut short costs all
//! members the group.
//!
//! From when it posts its record until it has read the outcome, a member is [in doubt](Commit::is_in_doubt). One that
//! loses the store meanwhile does not know what the others hold, and treats the group as failed.

use std::time::Duration;

use super::{
    arrival::{Arrival, Arriving, read},
    decide::{Decision, Outcome, Verdict, decide, verdict},
    history::{Divergence, Operation},
    place::{Errand, Place},
    poison::{NoWindows, Poison},
    record::Record,
    refusal::Refusal,
    search::{Finding, Hashes, Range, Recalled, name, narrow},
    vote::{Step, Vote, standing_key},
    wire::{Malformed, Message},
};

/// What the driver tells the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// Begin.
    Start,
    /// [`Output::Set`] is done.
    Stored,
    /// [`Output::Add`] is done; the sum.
    Count(u64),
    /// The answer to [`Output::Fetch`], in order; `None` where there is nothing.
    Values(Vec<Option<Vec<u8>>>),
    /// What stands, in answer to [`Output::Propose`] and [`Output::Await`].
    Stands(Vec<u8>),
    /// Nothing stood under the key of [`Output::Await`] until the time was up.
    Expired,
    /// The group is over on this rank, which waits no longer for the key of [`Output::Await`].
    Over,
    /// The answer to [`Output::Hashes`], in order; `None` where the log does not remember.
    Hashes(Vec<Option<u64>>),
    /// The answer to [`Output::Recall`]; `None` if there is no such operation.
    Operation(Option<Operation>),
    /// The answer to [`Output::Register`].
    Registered(Outcome),
    /// The store did not answer. No further output asks for anything.
    StoreFailed,
}

/// What the machine wants from its driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Set `key` to `value` in the store.
    Set {
        /// The key.
        key: String,
        /// The value.
        value: Vec<u8>,
    },
    /// Add 1 to the number under `key`.
    Add {
        /// The key.
        key: String,
    },
    /// Look what stands under `keys`, without waiting.
    Fetch {
        /// The keys.
        keys: Vec<String>,
    },
    /// Set `key` to `value` unless it is there already; what stands then is the answer.
    Propose {
        /// The key.
        key: String,
        /// The value, never empty.
        value: Vec<u8>,
    },
    /// Wait until `key` is there.
    Await {
        /// The key.
        key: String,
        /// When to give up.
        until: Duration,
    },
    /// The allocation log's hashes at these lengths.
    Hashes {
        /// The lengths.
        lengths: Vec<u64>,
    },
    /// The operation of this number in the allocation log.
    Recall {
        /// The number, from 0.
        sequence: u64,
    },
    /// Register the first `segments` of the record's segments, in their order, in one NCCL group.
    Register {
        /// How many.
        segments: u32,
        /// The ordinals of those that share a window with the segment before them, ascending.
        joined: Vec<u32>,
        /// When to give up; the outcome is then [`Outcome::Blocked`].
        until: Duration,
        /// Where the members' [`Verdict`] will stand. A [`Verdict::Poison`] there means that the registration cannot
        /// succeed any more: who is blocked in it may be freed.
        verdict_key: String,
    },
    /// The commit has ended.
    Done(Conclusion),
}

/// How a commit, a retirement or an agreement on a length ended on this member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conclusion<T = Agreed> {
    /// What was agreed, or why nothing was.
    pub result: Result<T, Ending>,
    /// Whether all members were there, so that nobody reads the keys of earlier meetings.
    pub all_arrived: bool,
    /// The keys of this meeting that this member removes once nobody reads them.
    pub keys: Vec<String>,
}

/// What the members of a group now hold in common.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Agreed {
    /// How many of the record's segments became the group's.
    pub segments: u32,
    /// The ordinals of those that share a window with the segment before them, ascending.
    pub joined: Vec<u32>,
    /// Why they have no windows; `None`: they have.
    pub without: Option<NoWindows>,
    /// What was left out, and why.
    pub pending: Option<Refusal>,
}

/// Why a commit ended without agreement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    /// Nothing was registered, on no member; the group is as it was.
    Refused(Refusal),
    /// The group is dead on all members.
    Poisoned(Poison),
    /// This member could not reach the store; the others will miss it.
    StoreFailed {
        /// Whether it had posted its record, so that the others may have acted on it.
        in_doubt: bool,
    },
    /// What stands in the store cannot be read: another program writes there. The others may have read it.
    Unreadable {
        /// Why not.
        source: Malformed,
    },
    /// The driver answered something that was not asked.
    OutOfStep,
}

impl Ending {
    /// Whether all members were given this, and for another reason than that some of them are missing.
    pub(crate) fn is_agreed(&self) -> bool {
        match self {
            Ending::Refused(refusal) => !matches!(refusal, Refusal::SyncTimeout { .. }),
            Ending::Poisoned(poison) => !matches!(poison, Poison::MembersLost { .. }),
            Ending::StoreFailed { .. } | Ending::Unreadable { .. } | Ending::OutOfStep => false,
        }
    }

    /// What kills the groups of `rank`, which has ended so and does not know whether the members hold the same
    /// windows; `cause` is what the store said if it failed.
    pub(crate) fn doubt(&self, rank: u32, cause: Option<String>) -> Option<Poison> {
        let cause = match self {
            Ending::StoreFailed { in_doubt: true } => cause.unwrap_or_else(|| "it failed".to_owned()),
            Ending::Unreadable { source } => source.to_string(),
            Ending::OutOfStep => "the machine was driven out of step".to_owned(),
            _ => return None,
        };
        Some(Poison::StoreLost { rank, cause })
    }
}

/// What follows a search.
#[derive(Debug)]
enum After {
    Refuse(Refusal),
    Commit { segments: u32, joined: Vec<u32>, without: Option<NoWindows>, pending: Refusal },
}

#[derive(Debug)]
enum Phase {
    Arrival(Arrival),
    HashesAsked(Search),
    Narrowing(Search, Range, Vote),
    OperationAsked(Search, u64),
    Naming(Search, u64, Vote),
    Registering { agreed: Agreed, outcome_until: Duration },
    Outcome { agreed: Agreed, vote: Vote },
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
    place: Place,
    phase: Phase,
    all_arrived: bool,
    keys: Vec<String>,
}

impl Commit {
    /// The commit that `record` speaks of, among `members` (ranks of the domain, in the group's order).
    pub fn new(record: Record, members: Vec<u32>) -> Self {
        let (pool, errand) = (record.pool, Errand::Commit { group: record.group });
        let place = Place { pool, errand, round: record.round, members };
        let patience = share(record.deadline_ms, 8);
        let arrival = Arrival::new(record.rank, place.clone(), record.encode(), patience);
        let keys = arrival.keys_to_remove();
        Self { record, place, phase: Phase::Arrival(arrival), all_arrived: false, keys }
    }

    /// Takes an input at the time `now` (since any fixed moment) and says what to do next.
    pub fn step(&mut self, input: Input, now: Duration) -> Output {
        if input == Input::StoreFailed {
            let in_doubt = self.is_in_doubt();
            return self.end(Err(Ending::StoreFailed { in_doubt }));
        }
        let phase = std::mem::replace(&mut self.phase, Phase::Done);
        match (phase, input) {
            (Phase::Arrival(arrival), input) => self.arrival(arrival, input, now),
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
                let vote = self.vote("operation", Recalled { operation }.to_bytes(), search.until);
                self.search_vote(search, Searched::Operation(sequence), vote, Input::Start, now)
            }
            (Phase::Naming(search, sequence, vote), input) => {
                self.search_vote(search, Searched::Operation(sequence), vote, input, now)
            }
            (Phase::Registering { agreed, outcome_until }, Input::Registered(outcome)) => {
                let failed = matches!(outcome, Outcome::Failed { .. });
                let vote = self.vote("outcomes", outcome.to_bytes(), outcome_until).hurry(failed);
                self.outcome(agreed, vote, Input::Start)
            }
            (Phase::Outcome { agreed, vote }, input) => self.outcome(agreed, vote, input),
            _ => self.end(Err(Ending::OutOfStep)),
        }
    }

    /// Whether this member has posted its record and has not read the outcome. A search after a refusal only looks for
    /// what to say of it.
    pub fn is_in_doubt(&self) -> bool {
        match &self.phase {
            Phase::Arrival(arrival) => arrival.has_posted(),
            Phase::HashesAsked(search)
            | Phase::Narrowing(search, ..)
            | Phase::OperationAsked(search, _)
            | Phase::Naming(search, ..) => matches!(search.after, After::Commit { .. }),
            Phase::Registering { .. } | Phase::Outcome { .. } => true,
            Phase::Done => false,
        }
    }

    fn arrival(&mut self, mut arrival: Arrival, input: Input, now: Duration) -> Output {
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
        self.phase = Phase::Arrival(arrival);
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
        mut vote: Vote,
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

    /// What the members' answers say about the place of the difference.
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

    fn outcome(&mut self, mut agreed: Agreed, mut vote: Vote, input: Input) -> Output {
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

    fn vote(&mut self, name: &str, posted: Vec<u8>, until: Duration) -> Vote {
        let members = self.place.members.clone();
        let vote = Vote::new(self.vote_prefix(name), self.record.rank, members, posted, until);
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

/// What a vote of the search is about.
#[derive(Debug, Clone, Copy)]
enum Searched {
    Range(Range),
    Operation(u64),
}

/// The least time that an action on every member may take once it is decided: to register, to deregister, to come to
/// rest, to open peers' memory.
pub(crate) const ACTION_FLOOR: Duration = Duration::from_secs(10);
/// The least time that members wait for each other's answers once they have decided.
pub(crate) const VOTE_FLOOR: Duration = Duration::from_secs(5);

/// What the phases after a decision may take together, where their floors count.
#[cfg(any(test, feature = "simulation"))]
pub(crate) const FLOORS: Duration =
    ACTION_FLOOR.saturating_add(VOTE_FLOOR).saturating_mul(2).saturating_add(VOTE_FLOOR);

/// So many sixteenths of a deadline.
pub(super) fn share(deadline_ms: u64, sixteenths: u32) -> Duration {
    Duration::from_millis(deadline_ms) / 16 * sixteenths
}

/// What an action may take that all members have decided on, given the longest deadline among them.
pub(super) fn action_budget(deadline_ms: u64, sixteenths: u32) -> Duration {
    share(deadline_ms, sixteenths).max(ACTION_FLOOR)
}

/// How long members wait for each other's answers once they have decided, given the longest deadline among them.
pub(super) fn vote_budget(deadline_ms: u64, sixteenths: u32) -> Duration {
    share(deadline_ms, sixteenths).max(VOTE_FLOOR)
}
