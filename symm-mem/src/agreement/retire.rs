//! How the ranks of a domain retire segments: on all of them, or on none.
//!
//! The whole domain takes part, whichever groups have the segments: where segments are is a part of the placement
//! that all promise to share. The phases, and what they may take: sixteenths of the longest deadline if nothing else is
//! said, with the floors of a [commit](super::machine):
//!
//! | phase | what | until |
//! |---|---|---|
//! | arrival | ranks post what they want retired and what still holds it; [`decide_retirement`] | 8, of the rank's own deadline |
//! | quiet | every device comes to rest; nothing has been touched yet, so who fails here refuses for all | 3 |
//! | quiet vote | all are at rest, or the refusal | 1 |
//! | deregistration | every rank deregisters its windows, group by group, in the order in which they were committed | 2 |
//! | outcomes | every member posts how it went | 1 |
//!
//! Deregistration is local in every release of NCCL, and frees addresses that steer where later windows lie: so it
//! is done by all, in one order, and only when no device works on the windows any more. Memory goes back last, when
//! all have posted that their windows are gone.

use std::{collections::BTreeSet, time::Duration};

use process_group::group::GroupId;

use super::{
    arrival::{Arrival, Arriving, read},
    decide::{Decision, half_enqueued, not_ready, unlike},
    machine::{Conclusion, Ending, Input, Output, action_budget, share, vote_budget},
    place::{Errand, Place},
    poison::Poison,
    ranks::RankList,
    record::{Enqueued, LogPoint, PoolId, Readiness},
    refusal::{Absentee, Held, Membership, Refusal},
    split::Split,
    vote::{Step, Vote},
    wire::{Message, wire_enum, wire_struct},
};

/// A group that has some of the segments, as one of its members sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Committed {
    /// The group.
    pub group: GroupId,
    /// The log of what it has committed.
    pub log: LogPoint,
}
wire_struct!(Committed { group, log });

/// What a rank says of a segment that is to be retired.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// The segment.
    pub ordinal: u32,
    /// What still holds it.
    pub held: Held,
    /// Groups that have it and were not given to the retirement.
    pub uncovered: Vec<GroupId>,
}
wire_struct!(Candidate { ordinal, held, uncovered });

/// What a rank tells the others before anything is retired.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetirementRecord {
    /// Who speaks.
    pub rank: u32,
    /// The ranks of the pool's domain.
    pub domain: RankList,
    /// The time that the rank gives the retirement, in milliseconds.
    pub deadline_ms: u64,
    /// Whether it can take part.
    pub readiness: Readiness,
    /// How much each group has been given to do on its device.
    pub enqueued: Vec<Enqueued>,
    /// The pool's allocation log.
    pub log: LogPoint,
    /// The groups of this rank that take part, ascending.
    pub groups: Vec<Committed>,
    /// The segments that it wants retired, ascending.
    pub segments: Vec<Candidate>,
}
wire_struct!(RetirementRecord { rank, domain, deadline_ms, readiness, enqueued, log, groups, segments });

impl Message for RetirementRecord {
    const KIND: u8 = 10;
}

/// Decides whether the segments are retired, from the records of all ranks: the same for every order of the records.
pub fn decide_retirement(records: &[RetirementRecord]) -> Decision {
    let mut records: Vec<&RetirementRecord> = records.iter().collect();
    records.sort_by_key(|record| record.rank);
    let domains = records.iter().map(|record| (record.rank, &record.domain));
    let refusal = unlike(Membership::Domain, domains)
        .or_else(|| differing(&records))
        .or_else(|| not_ready(records.iter().map(|record| (record.rank, &record.readiness))))
        .or_else(|| half_enqueued(records.iter().map(|record| (record.rank, record.enqueued.as_slice()))))
        .or_else(|| holding(&records))
        .or_else(|| parted(&records));
    match refusal {
        Some(refusal) => Decision::refuse(refusal),
        None => Decision::Retire {
            members: records.first().map(|record| record.domain.clone()).unwrap_or_default(),
            deadline_ms: records.iter().map(|it| it.deadline_ms).max().unwrap_or(0),
        },
    }
}

fn differing(records: &[&RetirementRecord]) -> Option<Refusal> {
    let ordinals =
        |record: &RetirementRecord| record.segments.iter().map(|it| it.ordinal).collect::<Vec<_>>();
    let ordinals = Split::of(records.iter().map(|record| (record.rank, ordinals(record))));
    if !ordinals.is_unanimous() {
        return Some(Refusal::RetirementMismatch { ordinals });
    }
    let mut groups: Vec<GroupId> =
        records.iter().flat_map(|record| &record.groups).map(|it| it.group).collect();
    groups.sort_unstable();
    groups.dedup();
    groups.into_iter().find_map(|group| {
        let logs = records
            .iter()
            .filter_map(|record| Some((record.rank, record.groups.iter().find(|it| it.group == group)?.log)));
        let logs = Split::of(logs);
        (!logs.is_unanimous()).then_some(Refusal::CommittedLogDiverged { group, logs })
    })
}

/// Whether ranks came here by different allocations. Looked at last: where a rank still holds a segment that others
/// have let go of, their logs differ too.
fn parted(records: &[&RetirementRecord]) -> Option<Refusal> {
    let logs = Split::of(records.iter().map(|record| (record.rank, record.log)));
    let is_same = logs.is_unanimous();
    (!is_same).then_some(Refusal::AllocationDiverged { ordinal: None, common: 0, logs, divergence: None })
}

/// What still holds the segments, which all ranks named alike.
fn holding(records: &[&RetirementRecord]) -> Option<Refusal> {
    let count = records.first().map_or(0, |record| record.segments.len());
    (0..count).find_map(|at| {
        let all = || records.iter().filter_map(|record| Some((record.rank, record.segments.get(at)?)));
        let ordinal = all().next()?.1.ordinal;
        let uncovered = all()
            .find(|(_, it)| !it.uncovered.is_empty())
            .map(|(rank, it)| Refusal::SegmentCommitted { rank, ordinal, groups: it.uncovered.clone() });
        uncovered
            .or_else(|| {
                all().any(|(_, it)| it.held.graphs > 0).then(|| {
                    let graphs = Split::of(all().map(|(rank, it)| (rank, it.held.graphs)));
                    Refusal::SegmentPinned { ordinal, graphs }
                })
            })
            .or_else(|| {
                all().any(|(_, it)| it.held.blocks > 0).then(|| {
                    let blocks = Split::of(all().map(|(rank, it)| (rank, it.held.blocks)));
                    Refusal::SegmentInUse { ordinal, blocks }
                })
            })
    })
}

/// How one of a rank's parts in a retirement went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Release {
    /// Done.
    Done {},
    /// It failed.
    Failed {
        /// What was said.
        cause: String,
    },
    /// It did not return in time.
    Blocked {},
    /// All is done but for groups that are over, as one of their members is lost: their windows went with their
    /// communicators, or will.
    Over {
        /// The groups, ascending.
        groups: Vec<GroupId>,
        /// What has ended the first of them.
        cause: String,
    },
}
wire_enum!(Release { 0 => Done {}, 1 => Failed { cause }, 2 => Blocked {}, 3 => Over { groups, cause } });

impl Release {
    /// Whether the rank did what was asked of it.
    fn is_done(&self) -> bool {
        matches!(self, Self::Done {} | Self::Over { .. })
    }
}

impl Message for Release {
    const KIND: u8 = 11;
}

/// What the members make of how it went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Judged {
    Done {},
    Refuse { refusal: Refusal },
    Poison { poison: Poison, culprits: Vec<u32>, over: Vec<GroupId> },
}
wire_enum!(Judged { 0 => Done {}, 1 => Refuse { refusal }, 2 => Poison { poison, culprits, over } });

impl Message for Judged {
    const KIND: u8 = 12;
}

/// What a rank posted, by rank; `None`: nothing.
pub(super) type Posted = Vec<(u32, Option<Release>)>;

fn read_releases(members: &[u32], posted: &[Option<Vec<u8>>]) -> Posted {
    let read = |bytes: &Option<Vec<u8>>| match Release::from_bytes(bytes.as_deref()?) {
        Ok(release) => Some(release),
        Err(cause) => Some(Release::Failed { cause: cause.to_string() }),
    };
    let mut releases: Posted = members.iter().zip(posted).map(|(rank, bytes)| (*rank, read(bytes))).collect();
    releases.sort_by_key(|(rank, _)| *rank);
    releases
}

fn failed(releases: &Posted) -> Option<(u32, String)> {
    releases.iter().find_map(|(rank, release)| match release {
        Some(Release::Failed { cause }) => Some((*rank, cause.clone())),
        _ => None,
    })
}

fn ranks_that(releases: &Posted, is: fn(&Option<Release>) -> bool) -> Vec<u32> {
    releases.iter().filter(|(_, release)| is(release)).map(|(rank, _)| *rank).collect()
}

/// Whether all devices are at rest.
fn judge_quiet(releases: &Posted, waited_ms: u64) -> Judged {
    let missing = ranks_that(releases, Option::is_none);
    let blocked = ranks_that(releases, |release| *release == Some(Release::Blocked {}));
    let refusal = if let Some((rank, cause)) = failed(releases) {
        Refusal::QuiesceFailed { rank, cause }
    } else if !missing.is_empty() {
        let missing = missing.into_iter().map(|rank| Absentee { rank, last_seen: None }).collect();
        Refusal::SyncTimeout { missing, waited_ms, circle: Vec::new() }
    } else if let Some(rank) = blocked.first() {
        Refusal::QuiesceFailed { rank: *rank, cause: "it works on past the deadline".to_owned() }
    } else {
        return Judged::Done {};
    };
    Judged::Refuse { refusal }
}

/// Whether all windows are gone. Who says that a group is over is not to blame for that: who is silent is.
pub(super) fn judge_released(releases: &Posted) -> Judged {
    let missing = ranks_that(releases, Option::is_none);
    let blocked = ranks_that(releases, |release| *release == Some(Release::Blocked {}));
    let culprits = ranks_that(releases, |release| !release.as_ref().is_some_and(Release::is_done));
    let told = releases.iter().filter_map(|(rank, release)| match release {
        Some(Release::Over { groups, cause }) => Some((*rank, groups, cause)),
        _ => None,
    });
    let over: BTreeSet<GroupId> = told.clone().flat_map(|(_, groups, _)| groups.iter().copied()).collect();
    let poison = if let Some((rank, cause)) = failed(releases) {
        Poison::RetirementFailed { rank, cause }
    } else if !culprits.is_empty() {
        Poison::MembersLost { missing, blocked }
    } else if let Some((rank, _, cause)) = told.clone().next() {
        Poison::RetirementFailed { rank, cause: cause.clone() }
    } else {
        return Judged::Done {};
    };
    Judged::Poison { poison, culprits, over: over.into_iter().collect() }
}

/// How a retirement that was decided ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Retired {
    /// The windows are gone on all ranks, and the memory may go.
    Everywhere,
    /// The segments are out of use, but on some ranks it is not known that their windows are gone: the groups of
    /// those are dead, and the memory stays.
    Poisoned {
        /// Why.
        poison: Poison,
        /// The ranks that are to blame, ascending.
        culprits: Vec<u32>,
        /// The groups that ended meanwhile, ascending.
        over: Vec<GroupId>,
    },
}

/// What the machine wants from its driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RetireOutput {
    /// Something from the store.
    Ask(Output),
    /// Wait until this rank's device has nothing to do; answered by [`RetireInput::Quiet`].
    Quiesce {
        /// When to give up: [`Release::Blocked`] then.
        until: Duration,
    },
    /// Deregister the windows of the segments; answered by [`RetireInput::Deregistered`].
    Deregister {
        /// When to give up: [`Release::Blocked`] then.
        until: Duration,
    },
    /// It has ended.
    Done(Conclusion<Retired>),
}

/// What the driver tells the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RetireInput {
    /// An answer of the store, or the start.
    Answer(Input),
    /// The answer to [`RetireOutput::Quiesce`].
    Quiet(Release),
    /// The answer to [`RetireOutput::Deregister`].
    Deregistered(Release),
}

#[derive(Debug)]
enum Phase {
    Arrival(Box<Arrival>),
    Quiescing { until: Duration, deadline_ms: u64 },
    Quiet { vote: Vote, deadline_ms: u64 },
    Deregistering { until: Duration },
    Outcomes(Vote),
    Done,
}

/// One member's part in one retirement.
#[derive(Debug)]
pub struct Retire {
    rank: u32,
    place: Place,
    begun: Duration,
    phase: Phase,
    all_arrived: bool,
    keys: Vec<String>,
}

impl Retire {
    /// The retirement number `round` that `record` speaks of, among `members`: the whole domain.
    pub fn new(pool: PoolId, round: u64, record: &RetirementRecord, members: Vec<u32>) -> Self {
        let place = Place { pool, errand: Errand::Retire {}, round, members };
        let patience = share(record.deadline_ms, 8);
        let arrival = Arrival::new(record.rank, place.clone(), record.to_bytes(), patience);
        let keys = arrival.keys_to_remove();
        let (begun, phase) = (Duration::ZERO, Phase::Arrival(Box::new(arrival)));
        Self { rank: record.rank, place, begun, phase, all_arrived: false, keys }
    }

    /// Takes an input at the time `now` (since any fixed moment) and says what to do next.
    pub fn step(&mut self, input: RetireInput, now: Duration) -> RetireOutput {
        if input == RetireInput::Answer(Input::StoreFailed) {
            let in_doubt = self.is_in_doubt();
            return self.end(Err(Ending::StoreFailed { in_doubt }));
        }
        let phase = std::mem::replace(&mut self.phase, Phase::Done);
        match (phase, input) {
            (Phase::Arrival(arrival), RetireInput::Answer(input)) => {
                if input == Input::Start {
                    self.begun = now;
                }
                self.arrive(arrival, input, now)
            }
            (Phase::Quiescing { until, deadline_ms }, RetireInput::Quiet(release)) => {
                let failed = matches!(release, Release::Failed { .. });
                let vote = self.vote("quiet", release.to_bytes(), until).hurry(failed);
                self.quiet(vote, deadline_ms, Input::Start, now)
            }
            (Phase::Quiet { vote, deadline_ms }, RetireInput::Answer(input)) => {
                self.quiet(vote, deadline_ms, input, now)
            }
            (Phase::Deregistering { until }, RetireInput::Deregistered(release)) => {
                let vote = self.vote("outcomes", release.to_bytes(), until);
                self.outcomes(vote, Input::Start)
            }
            (Phase::Outcomes(vote), RetireInput::Answer(input)) => self.outcomes(vote, input),
            _ => self.end(Err(Ending::OutOfStep)),
        }
    }

    /// Whether this rank has posted its record and has not read the outcome.
    pub fn is_in_doubt(&self) -> bool {
        match &self.phase {
            Phase::Arrival(arrival) => arrival.has_posted(),
            Phase::Done => false,
            _ => true,
        }
    }

    /// Whether windows are being deregistered. Who is alive says how that went before its time is up: a wait is not cut short
    /// then because somebody is lost, or those who are still at it would be blamed with the lost.
    pub fn is_releasing(&self) -> bool {
        matches!(self.phase, Phase::Deregistering { .. } | Phase::Outcomes(_))
    }

    fn arrive(&mut self, mut arrival: Box<Arrival>, input: Input, now: Duration) -> RetireOutput {
        let ask = match arrival.step(input, now) {
            Arriving::Ask(ask) => ask,
            Arriving::Decide(posted) => {
                let decision = match read(&self.place.members, &posted) {
                    Ok(records) => decide_retirement(&records),
                    Err(refusal) => Decision::refuse(refusal),
                };
                arrival.propose(&decision)
            }
            Arriving::Stands(value) => {
                let decision = match Decision::decode(&value) {
                    Ok(decision) => decision,
                    Err(source) => return self.end(Err(Ending::Unreadable { source })),
                };
                self.all_arrived = decision.is_of_all();
                return match decision {
                    Decision::Retire { deadline_ms, .. } => {
                        let until = now + action_budget(deadline_ms, 3);
                        let vote_until = until + vote_budget(deadline_ms, 1);
                        self.phase = Phase::Quiescing { until: vote_until, deadline_ms };
                        RetireOutput::Quiesce { until }
                    }
                    Decision::Refuse { refusal, .. } => self.end(Err(Ending::Refused(refusal))),
                    _ => self.end(Err(Ending::OutOfStep)),
                };
            }
            Arriving::Unasked => return self.end(Err(Ending::OutOfStep)),
        };
        self.phase = Phase::Arrival(arrival);
        RetireOutput::Ask(ask)
    }

    fn quiet(&mut self, mut vote: Vote, deadline_ms: u64, input: Input, now: Duration) -> RetireOutput {
        let ask = match vote.step(input) {
            Step::Ask(ask) => ask,
            Step::Propose { posted, .. } => {
                let waited_ms = now.saturating_sub(self.begun).as_millis() as u64;
                let judged = judge_quiet(&read_releases(&self.place.members, &posted), waited_ms);
                vote.propose(judged.to_bytes())
            }
            Step::Stands(value) => {
                return match Judged::from_bytes(&value) {
                    Ok(Judged::Done {}) => {
                        let until = now + action_budget(deadline_ms, 2);
                        self.phase = Phase::Deregistering { until: until + vote_budget(deadline_ms, 1) };
                        RetireOutput::Deregister { until }
                    }
                    Ok(Judged::Refuse { refusal }) => self.end(Err(Ending::Refused(refusal))),
                    Ok(Judged::Poison { .. }) => self.end(Err(Ending::OutOfStep)),
                    Err(source) => self.end(Err(Ending::Unreadable { source })),
                };
            }
            Step::Unasked => return self.end(Err(Ending::OutOfStep)),
        };
        self.phase = Phase::Quiet { vote, deadline_ms };
        RetireOutput::Ask(ask)
    }

    fn outcomes(&mut self, mut vote: Vote, input: Input) -> RetireOutput {
        let ask = match vote.step(input) {
            Step::Ask(ask) => ask,
            Step::Propose { posted, .. } => {
                vote.propose(judge_released(&read_releases(&self.place.members, &posted)).to_bytes())
            }
            Step::Stands(value) => {
                let result = match Judged::from_bytes(&value) {
                    Ok(Judged::Done {}) => Ok(Retired::Everywhere),
                    Ok(Judged::Poison { poison, culprits, over }) => {
                        Ok(Retired::Poisoned { poison, culprits, over })
                    }
                    Ok(Judged::Refuse { .. }) => Err(Ending::OutOfStep),
                    Err(source) => Err(Ending::Unreadable { source }),
                };
                return self.end(result);
            }
            Step::Unasked => return self.end(Err(Ending::OutOfStep)),
        };
        self.phase = Phase::Outcomes(vote);
        RetireOutput::Ask(ask)
    }

    fn vote(&mut self, name: &str, posted: Vec<u8>, until: Duration) -> Vote {
        let members = self.place.members.clone();
        let vote = Vote::new(self.place.vote_prefix(name), self.rank, members, posted, until);
        self.keys.extend(vote.keys_to_remove());
        vote
    }

    fn end(&mut self, result: Result<Retired, Ending>) -> RetireOutput {
        self.phase = Phase::Done;
        let keys = std::mem::take(&mut self.keys);
        RetireOutput::Done(Conclusion { result, all_arrived: self.all_arrived, keys })
    }
}
