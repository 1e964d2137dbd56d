//! The first decision round of every meeting: ranks publish their place and post their records, and the store keeps one
//! decision.
//!
//! A deadline is only known locally. A rank that gives up reports the missing ranks and their places, and searches
//! for a circular wait that includes itself ([`super::circle`]). Then it proposes to refuse its meeting, together
//! with all other meetings of such a circle.

use std::time::Duration;

use super::{
    ValuesByRank,
    circle::{Trace, Traced, generations, others, reported_circle},
    decide::{Decision, unlike},
    decision_round::{DecisionRound, Step},
    meeting_id::{ARRIVAL, MeetingId, MeetingKind, generation_key, place_key},
    ranks::RankList,
    record::PoolId,
    refusal::{Absentee, Membership, Refusal, Waiting},
    request::{Input, Output},
    versions,
    wire::Message,
};

#[derive(Debug)]
enum Phase {
    Begin,
    Entering,
    Voting,
    Tracing(Trace, Vec<Absentee>),
    /// Reading how often the missing ranks have created the domain.
    Counting(Vec<Absentee>),
    /// Refusing the other meetings of a circle, before the given continuation.
    Opening(Vec<(String, Vec<u8>)>, Then),
}

#[derive(Debug)]
enum Then {
    Refuse(Refusal),
    /// Ends with this stored decision.
    Leave(Vec<u8>),
}

/// The next step of an arrival.
pub(super) enum Arriving {
    Ask(Output),
    /// Compute a decision for [`RecordGather::propose`] from these posted records, in the members' order.
    Decide(Vec<Vec<u8>>),
    /// The stored decision.
    Stands(Vec<u8>),
    Unasked,
}

/// A member's part in the first decision round of a meeting.
#[derive(Debug)]
pub(super) struct RecordGather {
    rank: u32,
    place: MeetingId,
    begun: Duration,
    patience: Duration,
    posts: Vec<u8>,
    vote: DecisionRound,
    /// True if this rank stopped waiting although others might still come.
    leaves: bool,
    phase: Phase,
}

impl RecordGather {
    /// The arrival of `rank` in the meeting at `place`. It posts `posts` and waits for the others for the time
    /// `patience`.
    pub(super) fn new(rank: u32, place: MeetingId, posts: Vec<u8>, patience: Duration) -> Self {
        let vote = Self::vote(rank, &place, Vec::new(), Duration::ZERO);
        let (begun, leaves, phase) = (Duration::ZERO, false, Phase::Begin);
        Self { rank, place, begun, patience, posts, vote, leaves, phase }
    }

    fn vote(rank: u32, place: &MeetingId, posts: Vec<u8>, until: Duration) -> DecisionRound {
        let places = place.members.iter().map(|member| place_key(*member)).collect();
        let prefix = place.vote_prefix(ARRIVAL);
        DecisionRound::new(prefix, rank, place.members.clone(), posts, until).look_at(places)
    }

    /// Returns true if the record may be in the store.
    pub(super) fn has_posted(&self) -> bool {
        !matches!(self.phase, Phase::Begin | Phase::Entering)
    }

    /// The keys that this rank removes once no member reads them.
    pub(super) fn keys_to_remove(&self) -> Vec<String> {
        self.vote.keys_to_remove()
    }

    pub(super) fn step(&mut self, input: Input, now: Duration) -> Arriving {
        match (std::mem::replace(&mut self.phase, Phase::Voting), input) {
            (Phase::Begin, Input::Start) => {
                self.begun = now;
                self.phase = Phase::Entering;
                let key = place_key(self.rank);
                Arriving::Ask(Output::Set { key, value: self.place.to_bytes() })
            }
            (Phase::Entering, Input::Stored) => {
                let posts = std::mem::take(&mut self.posts);
                self.vote = Self::vote(self.rank, &self.place, posts, self.begun + self.patience);
                self.voted(Input::Start, now)
            }
            (Phase::Voting, input) => {
                self.leaves |= input == Input::Over;
                self.voted(input, now)
            }
            (Phase::Tracing(trace, missing), Input::Values(values)) => {
                self.trace(trace, missing, &values, now)
            }
            (Phase::Counting(missing), Input::Values(counts)) => self.count(missing, &counts, now),
            (Phase::Opening(rest, then), Input::Stands(_)) => self.open(rest, then),
            _ => Arriving::Unasked,
        }
    }

    fn voted(&mut self, input: Input, now: Duration) -> Arriving {
        let (posted, places) = match self.vote.step(input) {
            Step::Ask(ask) => return Arriving::Ask(ask),
            Step::Stands(value) => {
                // A rank that learns of a circle refuses all of its meetings before it enters another one, since
                // ranks might wait for it there.
                let refusals = |(circle, waited_ms): (Vec<Waiting>, u64)| self.refusals(&circle, waited_ms);
                let rest = reported_circle(&value).map(refusals).unwrap_or_default();
                return self.open(rest, Then::Leave(value));
            }
            Step::Unasked => return Arriving::Unasked,
            Step::Propose { posted, further } => (posted, further),
        };
        if let Some(versions) = versions::differing(&self.place.members, &posted) {
            return Arriving::Ask(self.vote.propose(versions::to_bytes(&versions)));
        }
        let places: Vec<Option<MeetingId>> =
            places.iter().map(|bytes| MeetingId::from_bytes(bytes.as_deref()?).ok()).collect();
        let members = || self.place.members.iter().copied().zip(places.iter().cloned());
        let mut missing: Vec<Absentee> = members()
            .zip(&posted)
            .filter(|(_, posted)| posted.is_none())
            .map(|((rank, last_seen), _)| Absentee { rank, last_seen })
            .collect();
        if missing.is_empty() {
            return Arriving::Decide(posted.into_iter().flatten().collect());
        }
        missing.sort_by_key(|absentee| absentee.rank);
        if let Some(refusal) = self.other_epoch(&missing) {
            return Arriving::Ask(self.refuse(refusal));
        }
        // A rank that leaves breaks every circle that includes it, so the other groups of the circle can go on.
        if self.leaves {
            let (waited_ms, circle) = (self.waited_ms(now), Vec::new());
            return Arriving::Ask(self.refuse(Refusal::SyncTimeout { missing, waited_ms, circle }));
        }
        let trace = Trace::new(self.rank, self.place.clone(), members());
        self.trace(trace, missing, &[], now)
    }

    fn trace(
        &mut self,
        mut trace: Trace,
        missing: Vec<Absentee>,
        values: &[Option<Vec<u8>>],
        now: Duration,
    ) -> Arriving {
        let circle = match trace.step(values) {
            Traced::Unasked => return Arriving::Unasked,
            Traced::Ask(ask) => {
                self.phase = Phase::Tracing(trace, missing);
                return Arriving::Ask(ask);
            }
            Traced::Circle(circle) if circle.is_empty() => {
                let domain = self.place.pool.domain;
                let keys = missing.iter().map(|it| generation_key(domain, it.rank)).collect();
                self.phase = Phase::Counting(missing);
                return Arriving::Ask(Output::Fetch { keys });
            }
            Traced::Circle(circle) => circle,
        };
        let waited_ms = self.waited_ms(now);
        let rest = self.refusals(&circle, waited_ms);
        self.open(rest, Then::Refuse(refusal(&self.place, missing, circle, waited_ms)))
    }

    /// Refuses the meeting, without a circle. Missing ranks that have not created this generation of the domain
    /// cannot come to its meetings.
    fn count(&mut self, missing: Vec<Absentee>, counts: &[Option<Vec<u8>>], now: Duration) -> Arriving {
        let (waited_ms, circle) = (self.waited_ms(now), Vec::new());
        let PoolId { domain, generation, .. } = self.place.pool;
        let count =
            |bytes: &Option<Vec<u8>>| std::str::from_utf8(bytes.as_deref()?).ok()?.trim().parse().ok();
        let behind = missing.iter().zip(counts).filter_map(|(it, bytes)| Some((it.rank, count(bytes)?)));
        let behind: Vec<(u32, u64)> = behind.filter(|(_, count)| *count < generation).collect();
        let is_here = |rank: &u32| missing.iter().all(|it| it.rank != *rank);
        let here = self.place.members.iter().copied().filter(is_here).map(|rank| (rank, generation));
        let refusal = match behind.is_empty() {
            true => Refusal::SyncTimeout { missing, waited_ms, circle },
            false => {
                let generations = ValuesByRank::of(here.chain(behind));
                Refusal::GenerationMismatch { domain, generations, waited_ms, circle }
            }
        };
        self.open(Vec::new(), Then::Refuse(refusal))
    }

    fn waited_ms(&self, now: Duration) -> u64 {
        now.saturating_sub(self.begun).as_millis() as u64
    }

    /// The refusals of the other meetings of a circle, with their decision keys.
    fn refusals(&self, circle: &[Waiting], waited_ms: u64) -> Vec<(String, Vec<u8>)> {
        let place_of = |rank: u32| circle.iter().find(|it| it.rank == rank).map(|it| it.place.clone());
        let refused = |(place, absent): (MeetingId, Vec<u32>)| {
            let missing =
                absent.into_iter().map(|rank| Absentee { rank, last_seen: place_of(rank) }).collect();
            let refusal = refusal(&place, missing, circle.to_vec(), waited_ms);
            (place.decision_key(), Decision::refuse(refusal).encode())
        };
        others(circle, &self.place).into_iter().map(refused).collect()
    }

    fn open(&mut self, mut rest: Vec<(String, Vec<u8>)>, then: Then) -> Arriving {
        match (rest.pop(), then) {
            (Some((key, value)), then) => {
                self.phase = Phase::Opening(rest, then);
                Arriving::Ask(Output::Propose { key, value })
            }
            (None, Then::Refuse(refusal)) => Arriving::Ask(self.refuse(refusal)),
            (None, Then::Leave(value)) => Arriving::Stands(self.for_this_rank(value)),
        }
    }

    /// Converts the stored decision to the one for this rank. Different protocol versions among the members are a
    /// refusal. So is a decision of members other than those that this rank expects, because they decided without
    /// this rank.
    fn for_this_rank(&self, value: Vec<u8>) -> Vec<u8> {
        if let Some(versions) = versions::from_bytes(&value) {
            return Decision::refuse(Refusal::VersionMismatch { versions }).encode();
        }
        let decision = Decision::decode(&value);
        let own: RankList = self.place.members.as_slice().into();
        let Some(members) = decision.as_ref().ok().and_then(Decision::members) else { return value };
        let what = match self.place.kind {
            MeetingKind::Commit { .. } => Membership::Group,
            MeetingKind::Retire {} | MeetingKind::Length {} => Membership::Domain,
        };
        let others = members.0.iter().filter(|rank| **rank != self.rank).map(|rank| (*rank, members));
        let refusal = unlike(what, others.chain([(self.rank, &own)]));
        refusal.map_or(value, |refusal| Decision::refuse(refusal).encode())
    }

    /// Returns a refusal if a missing rank waits in another epoch of the same group.
    fn other_epoch(&self, missing: &[Absentee]) -> Option<Refusal> {
        let MeetingKind::Commit { group: own } = self.place.kind else { return None };
        let epoch_of = |rank: u32| match missing.iter().find(|absentee| absentee.rank == rank) {
            None => Some(own.epoch),
            Some(absentee) => match absentee.last_seen.as_ref()? {
                MeetingId { pool, kind: MeetingKind::Commit { group }, .. }
                    if (*pool, group.uid) == (self.place.pool, own.uid) =>
                {
                    Some(group.epoch)
                }
                _ => None,
            },
        };
        let members = self.place.members.iter();
        let epochs = ValuesByRank::of(members.filter_map(|rank| Some((*rank, epoch_of(*rank)?))));
        (!epochs.is_unanimous()).then_some(Refusal::EpochMismatch { epochs })
    }

    fn refuse(&mut self, refusal: Refusal) -> Output {
        self.propose(&Decision::refuse(refusal))
    }

    /// Proposes a decision, in answer to [`Arriving::Decide`].
    pub(super) fn propose(&mut self, decision: &Decision) -> Output {
        self.vote.propose(decision.encode())
    }
}

/// The refusal of the meeting at `place`, in which `missing` are missing, with the circular wait that it is part of,
/// if any.
fn refusal(place: &MeetingId, missing: Vec<Absentee>, circle: Vec<Waiting>, waited_ms: u64) -> Refusal {
    let domain = place.pool.domain;
    match generations(domain, &circle) {
        Some(generations) => Refusal::GenerationMismatch { domain, generations, waited_ms, circle },
        None => Refusal::SyncTimeout { missing, waited_ms, circle },
    }
}

/// Decodes the posts of `members`, in their order. Returns a refusal that names the rank if one cannot be decoded.
pub(super) fn read<M: Message>(members: &[u32], posted: &[Vec<u8>]) -> Result<Vec<M>, Refusal> {
    let one = |(rank, bytes): (&u32, &Vec<u8>)| {
        M::from_bytes(bytes)
            .map_err(|cause| Refusal::RecordUnreadable { rank: *rank, cause: cause.to_string() })
    };
    members.iter().zip(posted).map(one).collect()
}
