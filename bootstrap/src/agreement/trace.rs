//! Detects a circular wait: ranks wait for each other in different agreements. The module docs of `agreement` define
//! *place*, *arrive* and other [terms](super#terms).
//!
//! A rank whose patience has ended starts a search. It reads the places of the missing members, then the places of the
//! ranks that have not arrived at those agreements, and so on. If this leads back to its own agreement, waiting longer
//! cannot help. The rank then fails all agreements of the circle, each with the complete list of waits. If it failed
//! only its own agreement, timing would determine which of the other agreements fail.
//!
//! An agreement does not wait for a rank that has arrived, because the rank posts its record without waiting for
//! others.
//!
//! When nothing is left to read, the search takes the set of all ranks that it found waiting. It removes a rank from
//! the set if one of the rank's places can complete: that agreement is decided, or every member that is still in the
//! set has arrived at it. The thread that waits there may then arrive at other agreements. The search repeats this
//! until no rank can be removed. The ranks that remain are *blocked*: they wait only for each other. An agreement is
//! *blocked* if it is undecided, and a blocked member has not arrived at it.
//!
//! A *link* leads from a blocked agreement, through a blocked rank that has not arrived at it, to a place of that rank.
//! An agreement is in the circle if links lead from this rank's own agreement to it, and from it back to this rank's
//! own agreement.
//!
//! If the search finds a circle, it reads two things again: the decision keys of all blocked agreements that links lead
//! to from this rank's own agreement, and the places of the blocked ranks that have not arrived at these agreements. If
//! the places are the same and no decision key has a value, these ranks waited in the same agreements from the first
//! read to the second, because the name of an agreement is used once. So all of them waited at the same moment.
//! Otherwise, a rank or an agreement may have gone on that the circle does not need. The search then continues once,
//! with the values of the second read.
//!
//! A circular wait ends only when one of its agreements fails, for example because the patience of a rank ends, a rank
//! [leaves](super::leave) the agreement, or a rank has ended the object (aborted the process group).
//!
//! Several ranks may search for the same circle at a time. If an agreement has already failed with a circle that
//! contains this rank's current wait, this rank reports that circle. Its own search could no longer find the circle,
//! because waits in decided agreements do not count. The agreements of a circle fail one after the other. A member that
//! reads the failure of one of them fails the others before it leaves, because a search that begins after it has left
//! may find no circle.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    failure::{Absentee, Failure},
    messages::told_failure,
    place::{self, Place, Waiting},
    vote::Request,
};

/// A rank's search for a circular wait that it is part of.
#[derive(Debug, Clone)]
pub(super) struct Trace {
    rank: u32,
    /// The agreement in which this rank's patience has ended.
    own: Place,
    /// The places read so far, by rank.
    seen: BTreeMap<u32, Vec<Place>>,
    /// For each decision key read so far: true if the key has a value.
    decided: BTreeMap<String, bool>,
    asked: Asked,
    /// How often the search may still continue after a second read that differs from the first.
    repeats: u32,
}

/// The pending request of a search.
#[derive(Debug, Clone)]
enum Asked {
    Nothing,
    /// The first read of the places of `ranks` and of the decision keys `keys`, in this order.
    First {
        ranks: Vec<u32>,
        keys: Vec<String>,
    },
    /// The second read, which decides whether `circle` is reported. It reads the places of the blocked ranks `ranks`,
    /// and then `keys`, the decision keys of the agreements that [`Trace::reached`] returned.
    Second {
        circle: Vec<Waiting>,
        ranks: Vec<u32>,
        keys: Vec<String>,
    },
}

/// The result of [`Trace::step`]: a request, or the end of the search.
pub(super) enum Traced {
    /// Send this request, and pass the values to [`Trace::step`].
    Ask(Request),
    /// The search has ended: the waits of the circle, in ascending order of ranks and names. Empty if there is no
    /// circle.
    Circle(Vec<Waiting>),
    /// The values do not match the pending request.
    Unasked,
}

/// The undecided agreements that [`Trace::missing`] finds, each with its members that have not arrived at it.
type Missing<'a> = BTreeMap<&'a Place, Vec<u32>>;

impl Trace {
    /// Makes the search of `rank`, whose patience has ended in `own`. `seen` contains the places of the members of
    /// `own`.
    pub(super) fn new(rank: u32, own: Place, seen: impl IntoIterator<Item = (u32, Vec<Place>)>) -> Self {
        let mut seen: BTreeMap<u32, Vec<Place>> = seen.into_iter().collect();
        place::add(seen.entry(rank).or_default(), &own);
        Self { rank, own, seen, decided: BTreeMap::new(), asked: Asked::Nothing, repeats: 1 }
    }

    /// Processes the values of the keys that the last step requested, and returns the next step. The first call passes
    /// no values.
    pub(super) fn step(&mut self, values: &[Option<Vec<u8>>]) -> Traced {
        let places = |value: &Option<Vec<u8>>| place::from_value(value.as_deref());
        match std::mem::replace(&mut self.asked, Asked::Nothing) {
            Asked::Nothing if values.is_empty() => self.go_on(),
            Asked::First { ranks, keys } if values.len() == ranks.len() + keys.len() => {
                let (lists, decisions) = values.split_at(ranks.len());
                if let Some(circle) = self.found_by_others(decisions) {
                    return Traced::Circle(circle);
                }
                self.keep(ranks, lists, keys, decisions);
                self.go_on()
            }
            Asked::Second { circle, ranks, keys } if values.len() == ranks.len() + keys.len() => {
                let (lists, decisions) = values.split_at(ranks.len());
                if let Some(circle) = self.found_by_others(decisions) {
                    return Traced::Circle(circle);
                }
                let same = ranks.iter().zip(lists).all(|(rank, list)| places(list) == self.places(*rank));
                let open = decisions.iter().all(Option::is_none);
                if same && open {
                    return Traced::Circle(circle);
                }
                if self.repeats == 0 {
                    return Traced::Circle(Vec::new());
                }
                self.repeats -= 1;
                self.keep(ranks, lists, keys, decisions);
                self.go_on()
            }
            _ => Traced::Unasked,
        }
    }

    /// Stores what a request has read: the lists of places of `ranks`, and the values of the decision keys `keys`.
    fn keep(
        &mut self,
        ranks: Vec<u32>,
        lists: &[Option<Vec<u8>>],
        keys: Vec<String>,
        decisions: &[Option<Vec<u8>>],
    ) {
        let lists = lists.iter().map(|list| place::from_value(list.as_deref()));
        self.seen.extend(ranks.into_iter().zip(lists));
        self.decided.extend(keys.into_iter().zip(decisions.iter().map(Option::is_some)));
    }

    /// Continues the search. Requests all unread places of missing members, and all unread decision keys of the
    /// agreements in [`Trace::missing`]. If nothing is unread, looks for a circle. If a circle exists, requests the
    /// second read, otherwise ends the search.
    fn go_on(&mut self) -> Traced {
        let missing = self.missing();
        let ranks: BTreeSet<u32> =
            missing.values().flatten().copied().filter(|rank| !self.seen.contains_key(rank)).collect();
        let keys: BTreeSet<String> = missing
            .keys()
            .map(|place| place.decision_key())
            .filter(|key| !self.decided.contains_key(key))
            .collect();
        if !ranks.is_empty() || !keys.is_empty() {
            let (ranks, keys) = (Vec::from_iter(ranks), Vec::from_iter(keys));
            let lists = ranks.iter().map(|rank| place::places_key(*rank));
            let all = lists.chain(keys.iter().cloned()).collect();
            self.asked = Asked::First { ranks, keys };
            return Traced::Ask(Request::Fetch { keys: all });
        }
        let blocked = self.blocked(&missing);
        let reached = self.reached(&missing, &blocked);
        let circle = self.circle(&missing, &blocked, &reached);
        if circle.is_empty() {
            return Traced::Circle(circle);
        }
        let ranks: BTreeSet<u32> = reached
            .iter()
            .flat_map(|place| &missing[place])
            .copied()
            .filter(|it| blocked.contains(it))
            .collect();
        let lists = ranks.iter().map(|rank| place::places_key(*rank));
        let keys: Vec<String> = reached.iter().map(|place| place.decision_key()).collect();
        let all = lists.chain(keys.iter().cloned()).collect();
        self.asked = Asked::Second { circle, ranks: Vec::from_iter(ranks), keys };
        Traced::Ask(Request::Fetch { keys: all })
    }

    /// If one of these decisions is a failure with a circle that contains this rank's current wait, returns that
    /// circle.
    fn found_by_others(&self, decisions: &[Option<Vec<u8>>]) -> Option<Vec<Waiting>> {
        let told = |decision: &Vec<u8>| match told_failure(decision)? {
            Failure::Absent { circle, .. } => Some(circle),
            _ => None,
        };
        let is_own = |it: &Waiting| it.rank == self.rank && it.place == self.own;
        decisions.iter().flatten().filter_map(told).find(|circle| circle.iter().any(is_own))
    }

    /// Returns the places of a rank. The list is empty if they were not read.
    fn places(&self, rank: u32) -> &[Place] {
        self.seen.get(&rank).map_or(&[], |places| places)
    }

    /// Returns the undecided agreements among these: this rank's own one and, step by step, the places of all ranks,
    /// blocked or not, that have not arrived at an undecided agreement found before. An unread decision key counts as
    /// undecided. A rank with unread places counts as one that has arrived nowhere.
    fn missing(&self) -> Missing<'_> {
        let (mut all, mut front) = (Missing::new(), vec![&self.own]);
        while let Some(place) = front.pop() {
            if all.contains_key(place) || self.decided.get(&place.decision_key()) == Some(&true) {
                continue;
            }
            let has_come = |rank: &u32| place::is_at(self.places(*rank), place);
            let missing: Vec<u32> = place.members.iter().copied().filter(|rank| !has_come(rank)).collect();
            front.extend(missing.iter().flat_map(|rank| self.places(*rank)));
            all.insert(place, missing);
        }
        all
    }

    /// Returns the blocked ranks, see the module docs.
    fn blocked(&self, missing: &Missing<'_>) -> BTreeSet<u32> {
        let mut blocked: BTreeSet<u32> =
            self.seen.iter().filter(|(_, places)| !places.is_empty()).map(|(rank, _)| *rank).collect();
        loop {
            let stuck: BTreeSet<&Place> = missing
                .iter()
                .filter(|(_, missing)| missing.iter().any(|rank| blocked.contains(rank)))
                .map(|(place, _)| *place)
                .collect();
            let before = blocked.len();
            blocked.retain(|rank| self.places(*rank).iter().all(|place| stuck.contains(place)));
            if blocked.len() == before {
                return blocked;
            }
        }
    }

    /// Returns the agreements that one link leads to from `place`: the places of the blocked ranks that have not
    /// arrived at `place`.
    fn next<'a>(
        &'a self,
        place: &Place,
        missing: &'a Missing<'_>,
        blocked: &BTreeSet<u32>,
    ) -> impl Iterator<Item = &'a Place> {
        let ranks = missing.get(place).into_iter().flatten().filter(|rank| blocked.contains(rank));
        ranks.flat_map(|rank| self.places(*rank))
    }

    /// Returns this rank's own agreement, and the blocked agreements that links lead to from it.
    fn reached<'a>(&'a self, missing: &'a Missing<'_>, blocked: &BTreeSet<u32>) -> BTreeSet<&'a Place> {
        let (mut reached, mut front) = (BTreeSet::from([&self.own]), vec![&self.own]);
        while let Some(place) = front.pop() {
            front.extend(self.next(place, missing, blocked).filter(|next| reached.insert(next)));
        }
        reached
    }

    /// Returns the waits of all ranks, blocked or not, in the agreements of the circle: this rank's own agreement, and
    /// those in `reached` from which links lead to the own agreement. Returns no waits if there are no such others.
    fn circle(
        &self,
        missing: &Missing<'_>,
        blocked: &BTreeSet<u32>,
        reached: &BTreeSet<&Place>,
    ) -> Vec<Waiting> {
        let mut places = BTreeSet::from([&self.own]);
        loop {
            let before = places.len();
            let leads_back =
                |place: &Place| self.next(place, missing, blocked).any(|next| places.contains(next));
            let more: Vec<&Place> = reached.iter().copied().filter(|place| leads_back(place)).collect();
            places.extend(more);
            if places.len() == before {
                break;
            }
        }
        if places.len() == 1 {
            return Vec::new();
        }
        let mut circle = Vec::new();
        for (rank, at) in &self.seen {
            let at: BTreeSet<&Place> = at.iter().filter(|place| places.contains(place)).collect();
            circle.extend(at.into_iter().map(|place| Waiting { rank: *rank, place: place.clone() }));
        }
        circle
    }
}

/// Returns the agreements of a circle other than `own`, each once. With each agreement, returns the members that wait
/// in other agreements of the circle and not in this one.
pub(super) fn others(circle: &[Waiting], own: &Place) -> Vec<(Place, Vec<Absentee>)> {
    let mut others: Vec<(Place, Vec<Absentee>)> = Vec::new();
    for Waiting { place, .. } in circle {
        if place.name == own.name || others.iter().any(|(other, _)| other.name == place.name) {
            continue;
        }
        let absentee = |rank: &u32| {
            let waits = circle.iter().filter(|it| it.rank == *rank).map(|it| it.place.clone());
            let elsewhere = Vec::from_iter(waits);
            let is_missing = !elsewhere.is_empty() && !place::is_at(&elsewhere, place);
            is_missing.then_some(Absentee { rank: *rank, elsewhere })
        };
        others.push((place.clone(), place.members.iter().filter_map(absentee).collect()));
    }
    others
}
