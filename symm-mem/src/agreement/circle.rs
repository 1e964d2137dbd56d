//! Detects a circular wait: ranks wait for each other, each in another meeting. A meeting is one commit, retirement or
//! agreed length.
//!
//! Before a rank waits in a meeting of any pool, it publishes the meeting's [`MeetingId`], the rank's *place*. A rank
//! that has waited too long reads the places of its meeting's members, then those of the members of their meetings, and
//! so on. If this leads back to its own meeting, more waiting cannot help. All meetings of the circle are then refused
//! immediately, and every waiting rank gets the complete list of waits. If each rank only refused its own meeting, the
//! first rank to give up would release other ranks, and chance would decide which meetings fail.
//!
//! Every place is read twice. A rank that is in the same undecided meeting both times was waiting in between. So if
//! nothing has changed, all ranks of the circle waited at one moment. A circular wait does not end by itself.
//!
//! Several ranks may search for the same circle at the same time. They refuse its meetings one after the other. After
//! the first refusal, another search finds no complete circle any more. Its rank would refuse its own meeting without
//! naming a circle. So if a search reads a refusal with a circle that includes its rank, it returns that circle.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    ValuesByRank,
    decide::Decision,
    meeting_id::{MeetingId, place_key},
    refusal::{Refusal, Waiting},
    request::Output,
    wire::Message,
};

/// One rank's search for a circular wait that it is part of.
#[derive(Debug)]
pub(super) struct Trace {
    rank: u32,
    /// The places of ranks read so far; `None` for a rank that has published none.
    seen: BTreeMap<u32, Option<MeetingId>>,
    /// The decision keys read so far; true if the meeting is decided.
    decided: BTreeMap<String, bool>,
    asked: Asked,
}

#[derive(Debug)]
enum Asked {
    Nothing,
    /// The places of these ranks, and these decision keys.
    More(Vec<u32>, Vec<String>),
    /// The second read of the circle.
    Again(Vec<Waiting>),
}

/// The next step of a trace.
pub(super) enum Traced {
    Ask(Output),
    /// The circle in ascending order of ranks, or empty if there is none.
    Circle(Vec<Waiting>),
    /// The values do not answer the last request.
    Unasked,
}

impl Trace {
    /// Creates the search of `rank`, whose place is `own`. `seen` are the known places of the meeting's members.
    pub(super) fn new(
        rank: u32,
        own: MeetingId,
        seen: impl IntoIterator<Item = (u32, Option<MeetingId>)>,
    ) -> Self {
        let mut seen: BTreeMap<u32, Option<MeetingId>> = seen.into_iter().collect();
        seen.insert(rank, Some(own));
        Self { rank, seen, decided: BTreeMap::new(), asked: Asked::Nothing }
    }

    /// Processes the values of the keys that were requested; none at first.
    pub(super) fn step(&mut self, values: &[Option<Vec<u8>>]) -> Traced {
        let place = |value: &Option<Vec<u8>>| MeetingId::from_bytes(value.as_deref()?).ok();
        match std::mem::replace(&mut self.asked, Asked::Nothing) {
            Asked::Nothing if values.is_empty() => self.go_on(),
            Asked::More(ranks, keys) if values.len() == ranks.len() + keys.len() => {
                let (places, decisions) = values.split_at(ranks.len());
                if let Some(circle) = self.found_by_others(decisions) {
                    return Traced::Circle(circle);
                }
                self.seen.extend(ranks.into_iter().zip(places.iter().map(place)));
                self.decided.extend(keys.into_iter().zip(decisions.iter().map(Option::is_some)));
                self.go_on()
            }
            Asked::Again(circle) if values.len() == 2 * circle.len() => {
                let (places, decisions) = values.split_at(circle.len());
                if let Some(circle) = self.found_by_others(decisions) {
                    return Traced::Circle(circle);
                }
                let same =
                    circle.iter().zip(places).all(|(waiting, at)| place(at).as_ref() == Some(&waiting.place));
                let open = decisions.iter().all(Option::is_none);
                Traced::Circle(if same && open { circle } else { Vec::new() })
            }
            _ => Traced::Unasked,
        }
    }

    fn go_on(&mut self) -> Traced {
        // Breadth-first search: reads everything reachable and not yet read.
        let reached = self.reached(self.rank);
        let ranks: Vec<u32> = reached.iter().copied().filter(|rank| !self.seen.contains_key(rank)).collect();
        let mut keys: Vec<String> =
            reached.iter().filter_map(|rank| self.place(*rank)).map(MeetingId::decision_key).collect();
        keys.sort_unstable();
        keys.dedup();
        keys.retain(|key| !self.decided.contains_key(key));
        if !ranks.is_empty() || !keys.is_empty() {
            let places = ranks.iter().map(|rank| place_key(*rank));
            let all = places.chain(keys.iter().cloned()).collect();
            self.asked = Asked::More(ranks, keys);
            return Traced::Ask(Output::Fetch { keys: all });
        }
        let circle: Vec<Waiting> = reached
            .into_iter()
            .filter(|rank| self.reached(*rank).contains(&self.rank))
            .filter_map(|rank| Some(Waiting { rank, place: self.place(rank)?.clone() }))
            .collect();
        // The members of one meeting always reach each other. That alone is no circular wait.
        if circle.iter().all(|waiting| circle.first().is_some_and(|first| waiting.place.meets(&first.place)))
        {
            return Traced::Circle(Vec::new());
        }
        let places = circle.iter().map(|waiting| place_key(waiting.rank));
        let decisions = circle.iter().map(|waiting| waiting.place.decision_key());
        let keys = places.chain(decisions).collect();
        self.asked = Asked::Again(circle);
        Traced::Ask(Output::Fetch { keys })
    }

    /// Returns the circle reported by one of these decisions, if this rank is in it at its current place.
    fn found_by_others(&self, decisions: &[Option<Vec<u8>>]) -> Option<Vec<Waiting>> {
        let own = self.place(self.rank)?;
        let is_own = |it: &Waiting| it.rank == self.rank && it.place == *own;
        let mut circles =
            decisions.iter().flatten().filter_map(|decision| Some(reported_circle(decision)?.0));
        circles.find(|circle| circle.iter().any(is_own))
    }

    fn place(&self, rank: u32) -> Option<&MeetingId> {
        self.seen.get(&rank)?.as_ref()
    }

    /// The members of the meeting of `rank`. Empty if the meeting is decided.
    fn bound_to(&self, rank: u32) -> &[u32] {
        match self.place(rank) {
            Some(at) if self.decided.get(&at.decision_key()) != Some(&true) => &at.members,
            _ => &[],
        }
    }

    /// `rank` itself, and all ranks that it waits for, directly or through others.
    fn reached(&self, rank: u32) -> BTreeSet<u32> {
        let (mut reached, mut front) = (BTreeSet::from([rank]), vec![rank]);
        while let Some(next) = front.pop() {
            front.extend(self.bound_to(next).iter().filter(|other| reached.insert(**other)));
        }
        reached
    }
}

/// Returns the circle reported by this decision, and the time that the rank which found it had waited, in
/// milliseconds.
pub(super) fn reported_circle(decision: &[u8]) -> Option<(Vec<Waiting>, u64)> {
    match Decision::decode(decision) {
        Ok(Decision::Refuse {
            refusal:
                Refusal::SyncTimeout { circle, waited_ms, .. }
                | Refusal::GenerationMismatch { circle, waited_ms, .. },
            ..
        }) => Some((circle, waited_ms)),
        _ => None,
    }
}

/// Returns the generations of `domain` in the places of a circle, if they differ. Each time a rank creates a domain
/// again, it increments the domain's generation.
pub(super) fn generations(domain: u64, circle: &[Waiting]) -> Option<ValuesByRank<u64>> {
    let inside = circle.iter().filter(|waiting| waiting.place.pool.domain == domain);
    let generations = ValuesByRank::of(inside.map(|waiting| (waiting.rank, waiting.place.pool.generation)));
    (!generations.is_unanimous()).then_some(generations)
}

/// The meetings of a circle other than `own`, each once, with the members that are missing there.
pub(super) fn others(circle: &[Waiting], own: &MeetingId) -> Vec<(MeetingId, Vec<u32>)> {
    let mut others: Vec<(MeetingId, Vec<u32>)> = Vec::new();
    for Waiting { place, .. } in circle {
        if place.meets(own) || others.iter().any(|(other, _)| other.meets(place)) {
            continue;
        }
        let absent = |rank: &&u32| circle.iter().any(|it| it.rank == **rank && !it.place.meets(place));
        others.push((place.clone(), place.members.iter().filter(absent).copied().collect()));
    }
    others
}
