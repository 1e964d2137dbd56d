//! Draws the programs of all ranks. A program is a list of [`Action`]s, in parts called phases. The *trouble* is the
//! fault of the run, or the difference between ranks. The *culprit* is the rank that the trouble concerns. Further
//! terms are defined in [`super`], and the *second pool* in [`scenario`](crate::scenario).

use std::collections::BTreeMap;

use crate::{
    random::Random,
    scenario::{Action, MIB, RendezvousInput},
    trouble::Trouble,
    violation::Limits,
};

/// Writes the programs of all ranks. The trouble decides which actions of the culprit's program differ from those of
/// the other ranks.
pub(crate) struct Writer<'a> {
    random: Random,
    /// A second generator. Choices that draw from it do not change the numbers that other choices draw from `random`.
    aside: Random,
    limits: &'a Limits,
    trouble: Trouble,
    culprit: u32,
    groups: &'a BTreeMap<u64, Vec<u32>>,
    /// The uids of the groups that the programs written so far create.
    made: Vec<u64>,
    programs: Vec<Vec<Action>>,
    /// The number of collectives written so far. It is also the `site` of the last [`Action::Use`].
    site: u64,
}

impl<'a> Writer<'a> {
    pub(crate) fn new(
        seed: u64,
        limits: &'a Limits,
        trouble: Trouble,
        culprit: u32,
        groups: &'a BTreeMap<u64, Vec<u32>>,
        world: u32,
    ) -> Self {
        Self {
            random: Random(seed),
            aside: Random(!seed),
            limits,
            trouble,
            culprit,
            groups,
            made: Vec::new(),
            programs: vec![Vec::new(); world as usize],
            site: 0,
        }
    }

    /// Writes and returns the programs, by rank. They have `phases` phases. A trouble that concerns a single phase
    /// occurs in phase `bad`.
    pub(crate) fn write(mut self, phases: u64, bad: u64) -> Vec<Vec<Action>> {
        for phase in 0..phases {
            self.phase(phase, phase == bad);
        }
        self.last();
        self.programs
    }

    /// Appends an action to the programs of all ranks.
    fn for_all(&mut self, action: &Action) {
        self.programs.iter_mut().for_each(|program| program.push(action.clone()));
    }

    fn for_culprit(&mut self, action: Action) {
        self.programs[self.culprit as usize].push(action);
    }

    /// Appends an action to the programs of the group's members.
    fn for_members(&mut self, group: u64, action: &Action) {
        let members = &self.groups[&group];
        members.iter().for_each(|rank| self.programs[*rank as usize].push(action.clone()));
    }

    /// Appends an action to the programs of all ranks except the culprit.
    fn for_others(&mut self, action: &Action) {
        let others = (0..).zip(&mut self.programs).filter(|(rank, _)| *rank != self.culprit);
        others.for_each(|(_, program)| program.push(action.clone()));
    }

    /// Draws a group that the programs have created, or returns `None` if there is none.
    fn pick(&mut self) -> Option<u64> {
        (!self.made.is_empty()).then(|| *self.random.pick(&self.made))
    }

    /// Writes a phase of the programs: a part with requests to the pool, commits, and sometimes other actions. `bad` is
    /// true in exactly one phase of the run. A trouble that concerns a single phase occurs in that phase.
    fn phase(&mut self, phase: u64, bad: bool) {
        self.make_groups(phase);
        self.requests(bad);
        for rank in 0..self.programs.len() {
            let us = self.random.below(1000);
            self.programs[rank].push(Action::Pause { us });
        }
        if let (Trouble::Late(ms), true) = (self.trouble, bad) {
            self.for_culprit(Action::Pause { us: 1000 * ms });
        }
        if self.random.one_in(4) {
            for rank in 0..self.programs.len() {
                let bytes = self.random.below(3 << 20);
                self.programs[rank].push(Action::AllocateAgreed { bytes });
            }
        }
        let capturing = bad && matches!(self.trouble, Trouble::Capturing | Trouble::CapturingUndeclared);
        if capturing {
            let declared = self.trouble == Trouble::Capturing;
            self.for_culprit(Action::BeginCapture { declared });
        }
        self.commits(bad);
        self.second(bad);
        self.uses();
        // In some phases, the ranks capture a graph and keep it until a later `DropGraphs`. So they also allocate and
        // free blocks while a graph exists.
        if !capturing && self.aside.one_in(3) {
            self.capture();
            self.for_all(&Action::EndCapture);
        } else if self.aside.one_in(4) {
            self.for_all(&Action::DropGraphs);
        }
        self.messages();
        if self.random.one_in(3) {
            self.meet();
        }
        if self.random.one_in(3) || matches!(self.trouble, Trouble::ExchangesOtherwise(_)) {
            self.exchange();
        }
        if capturing {
            self.for_culprit(Action::EndCapture);
            self.for_culprit(Action::DropLastGraph);
        }
        self.maybe_retire(bad);
        if self.random.one_in(6)
            && !self.trouble.silences()
            && let Some(group) = self.pick()
        {
            let epoch = self.random.one_in(2);
            self.for_members(group, &Action::Make { group, epoch });
        }
    }

    /// Writes the creation of groups that do not exist yet: of about three quarters of them in the first phase, and of
    /// all in later phases.
    fn make_groups(&mut self, phase: u64) {
        let late: Vec<u64> = self
            .groups
            .keys()
            .copied()
            .filter(|group| !self.made.contains(group))
            .filter(|_| phase > 0 || !self.random.one_in(4))
            .collect();
        for group in late {
            self.for_members(group, &Action::Make { group, epoch: false });
            self.made.push(group);
        }
        self.made.sort_unstable();
    }

    /// Writes a [retirement](Action::Retire) in about a third of the phases, and in every phase if the trouble needs
    /// one.
    fn maybe_retire(&mut self, bad: bool) {
        let wanted = matches!(
            self.trouble,
            Trouble::KeepsGraphs
                | Trouble::KeepsBlocks
                | Trouble::RetiresOther
                | Trouble::NeverAtRest
                | Trouble::RestsLate
                | Trouble::DeregistrationFails
        );
        if self.random.one_in(3) || wanted {
            if self.random.one_in(2) || self.trouble == Trouble::KeepsGraphs {
                self.capture();
                self.uses();
                self.for_all(&Action::EndCapture);
            }
            self.retire(bad);
        }
    }

    fn requests(&mut self, bad: bool) {
        let mut wanted = Vec::new();
        for _ in 0..self.random.below(24).min(self.limits.requests) {
            wanted.push(match self.random.one_in(4) {
                true => Action::Free { nth: self.random.next() },
                false => Action::Allocate { bytes: 1 + self.random.below(3 << 19) },
            });
        }
        let at = self.random.below(wanted.len() as u64 + 1) as usize;
        let mut of_culprit = wanted.clone();
        match self.trouble {
            Trouble::ExtraSegment if bad => of_culprit.insert(at, Action::Allocate { bytes: 64 * MIB }),
            Trouble::ExtraBlock if bad => of_culprit.insert(at, Action::Allocate { bytes: 7 }),
            Trouble::OtherSize if bad => match of_culprit.get_mut(at) {
                Some(Action::Allocate { bytes }) => *bytes += 16 * MIB,
                _ => of_culprit.insert(at, Action::Allocate { bytes: 16 * MIB }),
            },
            _ => {}
        }
        for (rank, program) in (0..).zip(&mut self.programs) {
            program.extend(if rank == self.culprit { &of_culprit } else { &wanted }.iter().cloned());
        }
    }

    fn commits(&mut self, bad: bool) {
        let swapped = bad && self.trouble == Trouble::Swapped;
        let absent = bad && self.trouble == Trouble::Absent;
        let skips = bad && self.trouble == Trouble::Skips;
        let together = self.random.one_in(2) && !swapped && !absent && !skips;
        // A member skips a commit without `verify` if the pool has nothing new for the group. If the trouble can make
        // the members' pools or commits differ, only some members might skip. So under such a trouble, all commits have
        // `verify`.
        let differs = self.trouble.delays() || self.trouble.makes_pools_differ();
        let verify = self.aside.one_in(2) || differs;
        for rank in 0..self.programs.len() {
            let mut groups = self.groups_of(rank as u32);
            if together {
                for at in (1..groups.len()).rev() {
                    groups.swap(at, self.random.below(at as u64 + 1) as usize);
                }
                self.programs[rank].push(Action::CommitAll { groups, last: false, verify });
                continue;
            }
            if rank as u32 == self.culprit && swapped {
                groups.reverse();
            }
            if rank as u32 == self.culprit && absent {
                groups.pop();
            }
            let skipped = if rank as u32 == self.culprit && skips { groups.pop() } else { None };
            let commit = |group| Action::Commit { group, second: false, last: false, verify };
            self.programs[rank].extend(groups.into_iter().map(commit));
            self.programs[rank].extend(skipped.map(|group| Action::Skip { group }));
        }
    }

    /// In some phases, writes for one group a commit of the first pool and one of the second pool, in this order. If
    /// `bad` is true and the trouble is [`Trouble::CrossesPools`], always writes them, for a group of the culprit, and
    /// the culprit has the opposite order. Writes nothing if no such group exists yet.
    fn second(&mut self, bad: bool) {
        let crosses = bad && self.trouble == Trouble::CrossesPools;
        let groups = if crosses { self.groups_of(self.culprit) } else { self.made.clone() };
        if groups.is_empty() || !(crosses || self.aside.one_in(6)) {
            return;
        }
        let group = *self.aside.pick(&groups);
        for rank in self.groups[&group].clone() {
            let order = if rank == self.culprit && crosses { [true, false] } else { [false, true] };
            let commits = order.map(|second| Action::Commit { group, second, last: false, verify: true });
            self.programs[rank as usize].extend(commits);
        }
    }

    fn groups_of(&self, rank: u32) -> Vec<u64> {
        self.made.iter().copied().filter(|group| self.groups[group].contains(&rank)).collect()
    }

    fn uses(&mut self) {
        for group in self.made.clone() {
            self.site += 1;
            let action = Action::Use { group, nth: self.random.next(), site: self.site };
            self.for_members(group, &action);
        }
    }

    /// In about half of the phases, writes messages from each member of one group to the next member, like those
    /// between the stages of a pipeline. So the first and the last member exchange messages with one peer, and the
    /// members between them with two.
    fn messages(&mut self) {
        if self.made.is_empty() || !self.aside.one_in(2) {
            return;
        }
        let group = *self.aside.pick(&self.made);
        for pair in self.groups[&group].clone().windows(2) {
            for _ in 0..1 + self.aside.below(2) {
                self.for_members(group, &Action::Message { group, from: pair[0], to: pair[1] });
            }
        }
    }

    fn meet(&mut self) {
        let Some(group) = self.pick() else { return };
        let what = match self.random.one_in(3) {
            true => RendezvousInput::Persistent { id: self.random.below(2) },
            false => RendezvousInput::Block { nth: self.random.next() },
        };
        // Sometimes writes the rendezvous twice, so that the second one finds the memory already mapped.
        for _ in 0..1 + self.random.below(2) {
            self.for_members(group, &Action::Meet { group, what });
        }
    }

    fn exchange(&mut self) {
        let Some(group) = self.pick() else { return };
        let name = self.random.below(2);
        for _ in 0..1 + self.random.below(2) {
            let seed = self.random.next();
            self.for_members(group, &Action::Exchange { group, name, seed });
            for former in [self.random.one_in(2), false] {
                self.for_members(group, &Action::Copy { group, name, former });
            }
        }
        if self.random.one_in(2) {
            let all = self.random.one_in(2);
            self.for_members(group, &Action::DropPlans { group, name, all });
        }
    }

    /// Begins a capture in the programs of all ranks, and writes up to three uses of blocks into the capture.
    fn capture(&mut self) {
        let declared = self.aside.one_in(2);
        self.for_all(&Action::BeginCapture { declared });
        for _ in 0..self.aside.below(4) {
            let nth = self.aside.next();
            self.for_all(&Action::Capture { nth });
        }
    }

    fn retire(&mut self, bad: bool) {
        let (nth, count) = (self.random.next(), 1 + self.random.below(2));
        match bad && self.trouble == Trouble::KeepsGraphs {
            true => self.for_others(&Action::DropGraphs),
            false => self.for_all(&Action::DropGraphs),
        }
        let retire = |nth, count| Action::Retire { nth, count };
        if bad && self.trouble == Trouble::RetiresOther {
            self.for_others(&retire(nth, count));
            self.for_culprit(retire(nth + 1, 3 - count));
        } else {
            self.for_all(&retire(nth, count));
        }
    }

    /// Writes the actions at the end of the programs: commits of all groups, collectives, and the closing of the
    /// exchanges. If the trouble kills the culprit, the commits leave out the groups of which the culprit is a member.
    fn last(&mut self) {
        let dies = matches!(self.trouble, Trouble::Killed(_));
        for rank in 0..self.programs.len() {
            let mut groups = self.groups_of(rank as u32);
            groups.retain(|group| !dies || !self.groups[group].contains(&self.culprit));
            self.programs[rank].push(Action::CommitAll { groups, last: true, verify: true });
        }
        self.uses();
        self.for_all(&Action::CloseExchanges);
    }
}
