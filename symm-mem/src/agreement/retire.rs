//! Retirement: the ranks of a domain retire segments, on all of them or on none.
//!
//! The whole domain takes part, whichever groups have committed the segments, because the list of segments is part of
//! the placement that all ranks share. The limits below are sixteenths of the longest deadline, unless stated
//! otherwise, with the lower bounds of a [commit](super::machine):
//!
//! | phase | action | limit |
//! |---|---|---|
//! | arrival | ranks post the segments to be retired and their remaining uses; [`decide_retirement`] | 8, of the rank's own deadline |
//! | quiet | every device becomes idle; nothing has changed yet, so a failure here refuses the retirement on all ranks | 3 |
//! | quiet round | all devices are idle, or the retirement is refused | 1 |
//! | deregistration | every rank deregisters its windows, group by group, in the order of their commits | 2 |
//! | outcomes | every member posts its outcome | 1 |
//!
//! Deregistration is local in every release of NCCL, and frees addresses that determine the place of later windows.
//! All ranks therefore deregister in one order, and only after no device uses the windows any more. Memory is freed
//! last, after all ranks have posted that their windows are gone.

use std::{collections::BTreeSet, time::Duration};

use process_group::group::GroupId;

use super::{
    ValuesByRank,
    decide::{Decision, half_enqueued, not_ready, unlike},
    decision_round::{DecisionRound, Step},
    machine::{Conclusion, Ending, Input, Output, action_budget, share, vote_budget},
    meeting_id::{MeetingId, MeetingKind},
    poison::Poison,
    ranks::RankList,
    record::{Enqueued, LogPoint, PoolId, Readiness},
    record_gather::{Arriving, RecordGather, read},
    refusal::{Absentee, Held, Membership, Refusal},
    wire::{Message, wire_enum, wire_struct},
};

/// A group that has committed some of the segments, as seen by one of its members.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Committed {
    /// The group.
    pub group: GroupId,
    /// The log of the group's commits.
    pub log: LogPoint,
}
wire_struct!(Committed { group, log });

/// The report of a rank on a segment that is to be retired.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// The segment.
    pub ordinal: u32,
    /// The remaining uses of the segment on this rank.
    pub held: Held,
    /// Groups that have committed the segment and were not given to the retirement.
    pub uncovered: Vec<GroupId>,
}
wire_struct!(Candidate { ordinal, held, uncovered });

/// The message of a rank to the others before anything is retired.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetirementRecord {
    /// The sender.
    pub rank: u32,
    /// The ranks of the pool's domain.
    pub domain: RankList,
    /// The rank's deadline for the retirement, in milliseconds.
    pub deadline_ms: u64,
    /// The readiness of the rank.
    pub readiness: Readiness,
    /// The work enqueued on its device, by group.
    pub enqueued: Vec<Enqueued>,
    /// The pool's allocation log.
    pub log: LogPoint,
    /// The groups of this rank that take part, ascending.
    pub groups: Vec<Committed>,
    /// The segments that it asks to retire, ascending.
    pub segments: Vec<Candidate>,
}
wire_struct!(RetirementRecord { rank, domain, deadline_ms, readiness, enqueued, log, groups, segments });

impl Message for RetirementRecord {
    const PROTOCOL: crate::agreement::wire::Protocol = crate::agreement::PROTOCOL;
    const KIND: u8 = 10;
}

/// Decides from the records of all ranks whether the segments are retired. The result does not depend on the order of
/// the records.
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
    let ordinals = ValuesByRank::of(records.iter().map(|record| (record.rank, ordinals(record))));
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
        let logs = ValuesByRank::of(logs);
        (!logs.is_unanimous()).then_some(Refusal::CommittedLogDiverged { group, logs })
    })
}

/// Returns a refusal if the ranks' allocation logs differ. This check comes last: if a rank still uses a segment that
/// others have released, their logs differ too, and the earlier refusal names the cause.
fn parted(records: &[&RetirementRecord]) -> Option<Refusal> {
    let logs = ValuesByRank::of(records.iter().map(|record| (record.rank, record.log)));
    let is_same = logs.is_unanimous();
    (!is_same).then_some(Refusal::AllocationDiverged { ordinal: None, common: 0, logs, divergence: None })
}

/// Returns a refusal if the segments, which are the same on all ranks, still have uses.
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
                    let graphs = ValuesByRank::of(all().map(|(rank, it)| (rank, it.held.graphs)));
                    Refusal::SegmentPinned { ordinal, graphs }
                })
            })
            .or_else(|| {
                all().any(|(_, it)| it.held.blocks > 0).then(|| {
                    let blocks = ValuesByRank::of(all().map(|(rank, it)| (rank, it.held.blocks)));
                    Refusal::SegmentInUse { ordinal, blocks }
                })
            })
    })
}

/// The outcome of one phase of a retirement on a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Release {
    /// Done.
    Done {},
    /// It failed.
    Failed {
        /// A description of the failure.
        cause: String,
    },
    /// It did not return in time.
    Blocked {},
    /// All is done, except for groups that have ended because a member is lost. The windows of these groups are freed
    /// with their communicators.
    Over {
        /// The groups, ascending.
        groups: Vec<GroupId>,
        /// The error that ended the first of them.
        cause: String,
    },
}
wire_enum!(Release { 0 => Done {}, 1 => Failed { cause }, 2 => Blocked {}, 3 => Over { groups, cause } });

impl Release {
    /// Returns true if the rank completed its part.
    fn is_done(&self) -> bool {
        matches!(self, Self::Done {} | Self::Over { .. })
    }
}

impl Message for Release {
    const PROTOCOL: crate::agreement::wire::Protocol = crate::agreement::PROTOCOL;
    const KIND: u8 = 11;
}

/// The common result of the members' outcomes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Judged {
    Done {},
    Refuse { refusal: Refusal },
    Poison { poison: Poison, culprits: Vec<u32>, over: Vec<GroupId> },
}
wire_enum!(Judged { 0 => Done {}, 1 => Refuse { refusal }, 2 => Poison { poison, culprits, over } });

impl Message for Judged {
    const PROTOCOL: crate::agreement::wire::Protocol = crate::agreement::PROTOCOL;
    const KIND: u8 = 12;
}

/// The outcome that each rank posted, or `None` if it posted none.
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

/// Judges whether all devices are idle.
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

/// Judges whether all windows are gone. Blames ranks without a successful outcome. A report of an ended group is not
/// a failure of the reporting rank.
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

/// The end of a decided retirement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Retired {
    /// The windows are gone on all ranks, and the memory may be freed.
    Everywhere,
    /// The segments are out of use, but some ranks did not confirm that their windows are gone. The groups of these
    /// ranks are dead, and the memory is not freed.
    Poisoned {
        /// The reason.
        poison: Poison,
        /// The ranks that are to blame, ascending.
        culprits: Vec<u32>,
        /// The groups that ended meanwhile, ascending.
        over: Vec<GroupId>,
    },
}

/// A request of the state machine to its driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RetireOutput {
    /// A request to the store.
    Ask(Output),
    /// Wait until this rank's device is idle; answered by [`RetireInput::Quiet`].
    Quiesce {
        /// The time limit. If it passes, the answer is [`Release::Blocked`].
        until: Duration,
    },
    /// Deregister the windows of the segments; answered by [`RetireInput::Deregistered`].
    Deregister {
        /// The time limit. If it passes, the answer is [`Release::Blocked`].
        until: Duration,
    },
    /// The retirement has ended.
    Done(Conclusion<Retired>),
}

/// An input from the driver to the state machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RetireInput {
    /// The start, or an answer of the store.
    Answer(Input),
    /// The answer to [`RetireOutput::Quiesce`].
    Quiet(Release),
    /// The answer to [`RetireOutput::Deregister`].
    Deregistered(Release),
}

#[derive(Debug)]
enum Phase {
    RecordGather(Box<RecordGather>),
    Quiescing { until: Duration, deadline_ms: u64 },
    Quiet { vote: DecisionRound, deadline_ms: u64 },
    Deregistering { until: Duration },
    Outcomes(DecisionRound),
    Done,
}

/// One member's part in one retirement.
#[derive(Debug)]
pub struct Retire {
    rank: u32,
    place: MeetingId,
    begun: Duration,
    phase: Phase,
    all_arrived: bool,
    keys: Vec<String>,
}

impl Retire {
    /// Creates retirement number `round` from `record`, among `members`, which are the whole domain.
    pub fn new(pool: PoolId, round: u64, record: &RetirementRecord, members: Vec<u32>) -> Self {
        let place = MeetingId { pool, kind: MeetingKind::Retire {}, round, members };
        let patience = share(record.deadline_ms, 8);
        let arrival = RecordGather::new(record.rank, place.clone(), record.to_bytes(), patience);
        let keys = arrival.keys_to_remove();
        let (begun, phase) = (Duration::ZERO, Phase::RecordGather(Box::new(arrival)));
        Self { rank: record.rank, place, begun, phase, all_arrived: false, keys }
    }

    /// Processes an input at the time `now` (since any fixed moment) and returns the next request.
    pub fn step(&mut self, input: RetireInput, now: Duration) -> RetireOutput {
        if input == RetireInput::Answer(Input::StoreFailed) {
            let in_doubt = self.is_in_doubt();
            return self.end(Err(Ending::StoreFailed { in_doubt }));
        }
        let phase = std::mem::replace(&mut self.phase, Phase::Done);
        match (phase, input) {
            (Phase::RecordGather(arrival), RetireInput::Answer(input)) => {
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

    /// Returns true if this rank has posted its record and has not read the outcome.
    pub fn is_in_doubt(&self) -> bool {
        match &self.phase {
            Phase::RecordGather(arrival) => arrival.has_posted(),
            Phase::Done => false,
            _ => true,
        }
    }

    /// Returns true while windows are being deregistered. In this phase, every live rank posts its outcome before the
    /// time limit. The wait must not end early because another rank is lost, or ranks that are still deregistering
    /// would be blamed too.
    pub fn is_releasing(&self) -> bool {
        matches!(self.phase, Phase::Deregistering { .. } | Phase::Outcomes(_))
    }

    fn arrive(&mut self, mut arrival: Box<RecordGather>, input: Input, now: Duration) -> RetireOutput {
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
        self.phase = Phase::RecordGather(arrival);
        RetireOutput::Ask(ask)
    }

    fn quiet(
        &mut self,
        mut vote: DecisionRound,
        deadline_ms: u64,
        input: Input,
        now: Duration,
    ) -> RetireOutput {
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

    fn outcomes(&mut self, mut vote: DecisionRound, input: Input) -> RetireOutput {
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

    fn vote(&mut self, name: &str, posted: Vec<u8>, until: Duration) -> DecisionRound {
        let members = self.place.members.clone();
        let vote = DecisionRound::new(self.place.vote_prefix(name), self.rank, members, posted, until);
        self.keys.extend(vote.keys_to_remove());
        vote
    }

    fn end(&mut self, result: Result<Retired, Ending>) -> RetireOutput {
        self.phase = Phase::Done;
        let keys = std::mem::take(&mut self.keys);
        RetireOutput::Done(Conclusion { result, all_arrived: self.all_arrived, keys })
    }
}
