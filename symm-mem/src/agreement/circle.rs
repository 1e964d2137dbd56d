//! Circles of ranks that wait for each other, each in another meeting.
//!
//! Ranks say which meeting they enter before they wait there, of whatever pool. Who has waited too long follows from meeting to meeting
//! where the missing are. If that leads back to its own, no patience helps: then all meetings of the circle are refused
//! at once, and every rank that waits in one of them hears who waits where. Otherwise the first to give up would set others free, and who
//! fails would be an accident.
//!
//! Everything is looked at twice. A rank that is in the same meeting both times, not yet decided at the second, was
//! waiting all the time between; so if nothing has changed, all of the circle waited at one moment, and a circle
//! of waiting does not open by itself.
//!
//! Several ranks look for the same circle at a time, and its meetings are refused one after the other. Who comes upon one
//! that is refused for a circle it is itself in takes that circle over: what it sees now is no longer complete, and to
//! take it for "no circle" would refuse its own meeting without one.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    decide::Decision,
    machine::Output,
    place::{Place, place_key},
    refusal::{Refusal, Waiting},
    split::Split,
    wire::Message,
};

/// A search for the circle that a rank is in.
#[derive(Debug)]
pub(super) struct Trace {
    rank: u32,
    /// Where ranks are, as far as looked at; `None`: nowhere yet.
    seen: BTreeMap<u32, Option<Place>>,
    /// Whether the meeting of that decision is decided, as far as looked at.
    decided: BTreeMap<String, bool>,
    asked: Asked,
}

#[derive(Debug)]
enum Asked {
    Nothing,
    /// The places of ranks, and decisions.
    More(Vec<u32>, Vec<String>),
    /// The circle once more.
    Again(Vec<Waiting>),
}

/// What a trace wants next.
pub(super) enum Traced {
    Ask(Output),
    /// The circle, by rank; empty if there is none.
    Circle(Vec<Waiting>),
    Unasked,
}

impl Trace {
    /// Of `rank`, which waits at `own`; `seen` is where the members of its meeting are.
    pub(super) fn new(rank: u32, own: Place, seen: impl IntoIterator<Item = (u32, Option<Place>)>) -> Self {
        let mut seen: BTreeMap<u32, Option<Place>> = seen.into_iter().collect();
        seen.insert(rank, Some(own));
        Self { rank, seen, decided: BTreeMap::new(), asked: Asked::Nothing }
    }

    /// Takes what stands under the keys that were asked for; nothing at first.
    pub(super) fn step(&mut self, values: &[Option<Vec<u8>>]) -> Traced {
        let place = |value: &Option<Vec<u8>>| Place::from_bytes(value.as_deref()?).ok();
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
        // Breadth first: all that is reached from here and not yet looked at.
        let reached = self.reached(self.rank);
        let ranks: Vec<u32> = reached.iter().copied().filter(|rank| !self.seen.contains_key(rank)).collect();
        let mut keys: Vec<String> =
            reached.iter().filter_map(|rank| self.place(*rank)).map(Place::decision_key).collect();
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
        // Those who wait in one meeting for somebody who waits nowhere are in no circle.
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

    /// The circle that one of these decisions tells of, if this rank is in it where it is now.
    fn found_by_others(&self, decisions: &[Option<Vec<u8>>]) -> Option<Vec<Waiting>> {
        let own = self.place(self.rank)?;
        let is_own = |it: &Waiting| it.rank == self.rank && it.place == *own;
        let mut circles = decisions.iter().flatten().filter_map(|decision| Some(told(decision)?.0));
        circles.find(|circle| circle.iter().any(is_own))
    }

    fn place(&self, rank: u32) -> Option<&Place> {
        self.seen.get(&rank)?.as_ref()
    }

    /// The ranks that the meeting of `rank` is about, if it is not decided.
    fn bound_to(&self, rank: u32) -> &[u32] {
        match self.place(rank) {
            Some(at) if self.decided.get(&at.decision_key()) != Some(&true) => &at.members,
            _ => &[],
        }
    }

    /// `rank` itself, and all that are bound up with it, directly or through others.
    fn reached(&self, rank: u32) -> BTreeSet<u32> {
        let (mut reached, mut front) = (BTreeSet::from([rank]), vec![rank]);
        while let Some(next) = front.pop() {
            front.extend(self.bound_to(next).iter().filter(|other| reached.insert(**other)));
        }
        reached
    }
}

/// The circle that this decision tells of, and how long who found it had waited, in milliseconds.
pub(super) fn told(decision: &[u8]) -> Option<(Vec<Waiting>, u64)> {
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

/// The generations of a domain that the ranks of a circle wait in, if they are several.
pub(super) fn generations(domain: u64, circle: &[Waiting]) -> Option<Split<u64>> {
    let inside = circle.iter().filter(|waiting| waiting.place.pool.domain == domain);
    let generations = Split::of(inside.map(|waiting| (waiting.rank, waiting.place.pool.generation)));
    (!generations.is_unanimous()).then_some(generations)
}

/// The places of a circle, each once, but for that of `own`, with the ranks that are missing there.
pub(super) fn others(circle: &[Waiting], own: &Place) -> Vec<(Place, Vec<u32>)> {
    let mut others: Vec<(Place, Vec<u32>)> = Vec::new();
    for Waiting { place, .. } in circle {
        if place.meets(own) || others.iter().any(|(other, _)| other.meets(place)) {
            continue;
        }
        let absent = |rank: &&u32| circle.iter().any(|it| it.rank == **rank && !it.place.meets(place));
        others.push((place.clone(), place.members.iter().filter(absent).copied().collect()));
    }
    others
}
