//! Detects a circular wait: ranks wait for each other, each in another agreement.
//!
//! Before a rank waits, it publishes its place: the agreement that it waits in. A rank whose patience has ended
//! follows the places of the missing ranks from agreement to agreement. If they lead back to its own agreement,
//! more waiting cannot help. The rank then fails all agreements of the circle, each with the complete list of
//! waits. If it failed only its own agreement, other ranks of the circle would go on, and timing would determine
//! which agreements fail.
//!
//! Each place is read twice. A rank that is in the same undecided agreement both times has waited there from the
//! first read to the second. If no place and no decision has changed, all ranks of the circle therefore waited at
//! the same moment. A circular wait ends only with the patience of a rank or the end of an object, and its
//! agreements have no result.
//!
//! Several ranks may search for the same circle at a time. If an agreement has already failed with a circle that
//! contains this rank's current wait, this rank reports that circle. Its own search is then incomplete, because
//! decided agreements do not count as waits.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    failure::{Absentee, Failure, Place, Waiting, place_key},
    machine::told_failure,
    vote::Request,
};
use crate::wire::Message;

/// A search for the circular wait that a rank is part of.
#[derive(Debug, Clone)]
pub(super) struct Trace {
    rank: u32,
    /// The places read so far; `None` for a rank that waits in no agreement.
    seen: BTreeMap<u32, Option<Place>>,
    /// The decision keys read so far; true if the key has a value.
    decided: BTreeMap<String, bool>,
    asked: Asked,
}

#[derive(Debug, Clone)]
enum Asked {
    Nothing,
    /// The places of these ranks, and these decision keys.
    More(Vec<u32>, Vec<String>),
    /// The second read of the circle.
    Again(Vec<Waiting>),
}

/// The next step of a trace.
pub(super) enum Traced {
    Ask(Request),
    /// The circle in ascending order of ranks, or empty if there is none.
    Circle(Vec<Waiting>),
    /// The values do not match the pending request.
    Unasked,
}

impl Trace {
    /// Makes the search of `rank`, which waits at `own`. `seen` contains the places of the members of `own`.
    pub(super) fn new(rank: u32, own: Place, seen: impl IntoIterator<Item = (u32, Option<Place>)>) -> Self {
        let mut seen: BTreeMap<u32, Option<Place>> = seen.into_iter().collect();
        seen.insert(rank, Some(own));
        Self { rank, seen, decided: BTreeMap::new(), asked: Asked::Nothing }
    }

    /// Processes the values of the keys that the last step requested. The first call passes no values.
    pub(super) fn step(&mut self, values: &[Option<Vec<u8>>]) -> Traced {
        let place =
            |value: &Option<Vec<u8>>| Place::from_bytes(value.as_deref()?).ok().filter(Place::is_somewhere);
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
        // Breadth-first search: each step reads all places and decisions that were reached and not yet read.
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
            return Traced::Ask(Request::Fetch { keys: all });
        }
        let circle: Vec<Waiting> = reached
            .into_iter()
            .filter(|rank| self.reached(*rank).contains(&self.rank))
            .filter_map(|rank| Some(Waiting { rank, place: self.place(rank)?.clone() }))
            .collect();
        // A circle needs at least two agreements.
        if circle
            .iter()
            .all(|waiting| circle.first().is_some_and(|first| waiting.place.name == first.place.name))
        {
            return Traced::Circle(Vec::new());
        }
        let places = circle.iter().map(|waiting| place_key(waiting.rank));
        let decisions = circle.iter().map(|waiting| waiting.place.decision_key());
        let keys = places.chain(decisions).collect();
        self.asked = Asked::Again(circle);
        Traced::Ask(Request::Fetch { keys })
    }

    /// Returns the circle with which one of these agreements has failed, if this rank's current wait is part of
    /// the circle.
    fn found_by_others(&self, decisions: &[Option<Vec<u8>>]) -> Option<Vec<Waiting>> {
        let own = self.place(self.rank)?;
        let told = |decision: &Vec<u8>| match told_failure(decision)? {
            Failure::Absent { circle, .. } => Some(circle),
            _ => None,
        };
        let is_own = |it: &Waiting| it.rank == self.rank && it.place == *own;
        decisions.iter().flatten().filter_map(told).find(|circle| circle.iter().any(is_own))
    }

    fn place(&self, rank: u32) -> Option<&Place> {
        self.seen.get(&rank)?.as_ref()
    }

    /// Returns the members of the agreement that `rank` waits in; none if that agreement is decided.
    fn bound_to(&self, rank: u32) -> &[u32] {
        match self.place(rank) {
            Some(at) if self.decided.get(&at.decision_key()) != Some(&true) => &at.members,
            _ => &[],
        }
    }

    /// Returns `rank` itself, and all ranks that it waits for, directly or through others.
    fn reached(&self, rank: u32) -> BTreeSet<u32> {
        let (mut reached, mut front) = (BTreeSet::from([rank]), vec![rank]);
        while let Some(next) = front.pop() {
            front.extend(self.bound_to(next).iter().filter(|other| reached.insert(**other)));
        }
        reached
    }
}

/// Returns the agreements of a circle other than `own`, each once, with the members that wait in another agreement
/// of the circle.
pub(super) fn others(circle: &[Waiting], own: &Place) -> Vec<(Place, Vec<Absentee>)> {
    let mut others: Vec<(Place, Vec<Absentee>)> = Vec::new();
    for Waiting { place, .. } in circle {
        if place.name == own.name || others.iter().any(|(other, _)| other.name == place.name) {
            continue;
        }
        let elsewhere = |rank: &u32| circle.iter().find(|it| it.rank == *rank && it.place.name != place.name);
        let missing = place.members.iter().filter_map(|rank| {
            let Waiting { rank, place } = elsewhere(rank)?.clone();
            Some(Absentee { rank, elsewhere: Some(place) })
        });
        others.push((place.clone(), missing.collect()));
    }
    others
}
