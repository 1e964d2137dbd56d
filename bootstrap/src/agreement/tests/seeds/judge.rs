//! The checks of a run.

use std::collections::BTreeSet;

use super::{
    super::super::{Ending, Failure, Output, Place, Request, Waiting, place},
    Fault, Outcome, Rank, Run, Sum, Thread,
};

impl Run {
    /// Returns the agreements in which a rank waits now. If the rank [is gone](Rank::is_gone), returns its list of
    /// places in the store.
    fn places(&self, index: usize) -> Vec<Place> {
        let rank = &self.ranks[index];
        let listed = self.store.places(&place::places_key(index as u32));
        if rank.is_gone {
            return listed;
        }
        let waits = |output: &Output<Sum>| match output {
            // The reply is outstanding. Only the list of places shows whether the request has taken effect.
            Output::Store(Request::Enter { place, .. } | Request::Leave { place, .. }) => {
                place::is_at(&listed, place)
            }
            Output::Store(Request::Post { key, .. } | Request::Add { key }) => !key.contains("/read/"),
            Output::Store(Request::Check { .. }) => false,
            _ => true,
        };
        let running = rank.threads.iter().filter_map(|thread| thread.running.as_ref());
        let names = running.filter(|(_, output)| waits(output)).map(|(machine, _)| machine.name());
        names.map(|name| Place { name: name.into(), members: self.members[name].clone() }).collect()
    }

    /// Returns true if `circle` is a circular wait now. A rank is *free* if it waits in no agreement, or if one of its
    /// agreements is decided or lacks only free ranks.
    ///
    /// For each entry of `circle`, the rank must wait at the place, and the agreement of the place must be undecided.
    /// At least one rank of the circle that is not free must be a member of the place, and must not have arrived there.
    pub(super) fn is_circle(&self, circle: &[Waiting]) -> bool {
        let places: Vec<Vec<Place>> = (0..self.ranks.len()).map(|rank| self.places(rank)).collect();
        let is_open = |place: &Place| !self.store.0.contains_key(&place.decision_key());
        let missing = |place: &Place| {
            let members = self.members[&place.name].iter().map(|rank| *rank as usize);
            members.filter(|rank| !place::is_at(&places[*rank], place)).collect::<Vec<_>>()
        };
        // Start without free ranks, and repeat the rule until it adds none.
        let mut free = BTreeSet::new();
        loop {
            let ends =
                |place: &Place| !is_open(place) || missing(place).iter().all(|rank| free.contains(rank));
            let is_free = |rank: &usize| places[*rank].is_empty() || places[*rank].iter().any(ends);
            let next: BTreeSet<usize> = (0..places.len()).filter(is_free).collect();
            if next == free {
                break;
            }
            free = next;
        }
        circle.iter().all(|Waiting { rank, place }| {
            let in_circle = |rank: &usize| circle.iter().any(|it| it.rank as usize == *rank);
            place::is_at(&places[*rank as usize], place)
                && is_open(place)
                && missing(place).iter().any(|rank| !free.contains(rank) && in_circle(rank))
        })
    }

    /// Checks all results of the run:
    /// - The ranks have the same results, and the fault can explain each result.
    /// - An agreement that needed an action has the outcomes of all members.
    /// - Every circular wait that was reported existed.
    /// - The ranks have detected the fault, and no rank waits for ever.
    ///
    /// Returns a description of the first problem as the error.
    pub(super) fn judge(&self) -> Result<(), String> {
        for (name, results) in &self.results {
            let told: Vec<&(usize, Outcome)> = results
                .iter()
                .filter(|(_, result)| !matches!(result, Err(Ending::InDoubt | Ending::StoreFailed)))
                .collect();
            // Only the rank with another member list may have another result.
            let has_others_list = |rank: usize| self.fault == Fault::OtherMembers && rank == self.culprit;
            let alike: Vec<_> = told.iter().filter(|(rank, _)| !has_others_list(*rank)).collect();
            if let Some(pair) = alike.windows(2).find(|pair| pair[0].1 != pair[1].1) {
                return Err(format!("{name}: {pair:?}"));
            }
            // A sum of 1 is agreed without an action. Every other sum needs the outcomes of all members.
            if results.iter().any(|(_, result)| matches!(result, Ok(sum) if *sum != 1)) {
                let posted = |rank: &u32| self.outcomes.contains(&format!("{name}/outcomes0/{rank}"));
                if let Some(rank) =
                    self.members.get(name).and_then(|all| all.iter().find(|rank| !posted(rank)))
                {
                    return Err(format!("{name}: agreed without the outcome of rank {rank}"));
                }
            }
            for (rank, result) in results {
                self.judge_one(name, *rank, result)?;
            }
        }
        if let Some(wrong) = &self.wrong_circle {
            return Err(wrong.clone());
        }
        self.judge_detection()?;
        let is_over = |thread: &Thread| thread.running.is_none() && thread.program.is_empty();
        let waits = |rank: &Rank| !rank.is_gone && !rank.threads.iter().all(is_over);
        match self.ranks.iter().position(waits) {
            Some(rank) => Err(format!("rank {rank} waits for ever")),
            None => Ok(()),
        }
    }

    /// Checks four rules:
    /// - If the culprit has another version, generation or member list, it has not agreed.
    /// - If the culprit has another version or generation, at least one other member has not agreed either.
    /// - No agreement of several ranks has failed with [`Failure::Unreadable`].
    /// - If there was no fault and all members agreed, only lists of places are left in the store.
    fn judge_detection(&self) -> Result<(), String> {
        let culprit = self.culprit;
        for (name, results) in &self.results {
            let of_culprit = results.iter().find(|(rank, _)| *rank == culprit).map(|(_, result)| result);
            let differs = match self.fault {
                Fault::OtherGeneration | Fault::OtherMembers => self.changed.as_ref() == Some(name),
                Fault::OtherVersion => true,
                _ => false,
            };
            // A single rank has no other rank to differ from.
            let differs = differs && results.len() > 1;
            let is_unreadable = |(_, result): &(usize, Outcome)| {
                matches!(result, Err(Ending::Failed(Failure::Unreadable { .. })))
            };
            if results.len() > 1 && results.iter().any(is_unreadable) {
                return Err(format!("{name}: a record of another version was read"));
            }
            if differs && matches!(of_culprit, Some(Ok(_))) {
                return Err(format!("{name}: rank {culprit} has agreed with the fault {:?}", self.fault));
            }
            let all_others =
                results.iter().filter(|(rank, _)| *rank != culprit).all(|(_, result)| result.is_ok());
            if differs
                && self.fault != Fault::OtherMembers
                && of_culprit.is_some()
                && results.len() > 1
                && all_others
            {
                return Err(format!(
                    "{name}: ranks have agreed with rank {culprit} and the fault {:?}",
                    self.fault
                ));
            }
        }
        let left = self.store.0.keys().find(|key| !key.starts_with("places/"));
        let all_agreed = self.results.values().flatten().all(|(_, result)| result.is_ok());
        match left {
            Some(key) if self.fault == Fault::None && all_agreed => {
                Err(format!("{key} is left in the store"))
            }
            _ => Ok(()),
        }
    }

    /// Checks that the fault of this run can explain the result of one member.
    fn judge_one(&self, name: &str, rank: usize, result: &Outcome) -> Result<(), String> {
        let wrong = || Err(format!("{name}: rank {rank} has {result:?} with the fault {:?}", self.fault));
        match result {
            Err(Ending::OutOfStep | Ending::Unreadable(_)) => wrong(),
            Err(Ending::InDoubt | Ending::StoreFailed) if self.fault != Fault::StoreLost => wrong(),
            Err(Ending::Refused(_))
                if !matches!(self.fault, Fault::ActionFails | Fault::Crash | Fault::StoreLost) =>
            {
                wrong()
            }
            Err(Ending::Failed(Failure::Generations { generations }))
                if self.fault != Fault::OtherGeneration
                    || !generations.entries.iter().any(|entry| entry.ranks == [self.culprit as u32]) =>
            {
                wrong()
            }
            Err(Ending::Failed(Failure::Protocols { protocols }))
                if self.fault != Fault::OtherVersion
                    || !protocols.entries.iter().any(|entry| entry.ranks == [self.culprit as u32]) =>
            {
                wrong()
            }
            Err(Ending::Failed(Failure::Unreadable { .. })) if self.fault != Fault::OtherVersion => wrong(),
            Err(Ending::Failed(Failure::Taken { .. } | Failure::Left { .. })) => wrong(),
            Err(Ending::Failed(Failure::Members { .. })) if self.fault != Fault::OtherMembers => wrong(),
            Err(Ending::Failed(Failure::Absent { circle, .. })) if !circle.is_empty() => {
                let names: BTreeSet<&str> =
                    circle.iter().map(|waiting| waiting.place.name.as_str()).collect();
                // A circular wait spans several agreements. It can arise if the culprit takes part in two agreements in
                // reverse order, or if ranks have several threads, which run their agreements in different orders.
                let may_arise =
                    self.fault == Fault::OtherOrder || self.ranks.iter().any(|rank| rank.threads.len() > 1);
                if names.len() < 2 || !may_arise || !self.circles.contains(circle) { wrong() } else { Ok(()) }
            }
            _ => Ok(()),
        }
    }
}
