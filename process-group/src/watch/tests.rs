//! Simulation of a whole job: clocks that differ, requests that are slow or lost, and ranks that die, are stopped or
//! make a different call. Each case is deterministic.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use proptest::prelude::*;

use super::{
    evidence::CallHistory,
    machine::{COMPARISON, Input, Machine, Notices, Output, Post, StoreSnapshot},
    rolling::{Fold, Mark, Rolling},
    trouble::Trouble,
};
use crate::peers::Loss;

const HEARTBEAT: Duration = Duration::from_millis(1000);
const GROUP: &str = "1.0";

/// Number and hash marks of a heartbeat.
type Beat = (Option<u64>, Vec<Mark>);

/// The store's content.
#[derive(Default)]
struct Table {
    beats: HashMap<usize, Beat>,
    log: Vec<Option<Trouble>>,
    histories: BTreeMap<usize, CallHistory>,
    dumps: u64,
}

/// The fate of a rank.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fate {
    Lives,
    /// Stops running at this time, in ms.
    Stops(u64),
    /// Leaves at this time, in ms.
    Leaves(u64),
}

struct Rank {
    machine: Machine,
    rolling: Rolling,
    fate: Fate,
    /// The rank's clock is ahead by `offset`, and `drift` thousandths too fast.
    offset: Duration,
    drift: u32,
    /// Time and input of the rank's next step.
    next: (Duration, Input),
    notices: Notices,
    is_gone: bool,
    acted: Vec<(Duration, Trouble)>,
    /// Time at which one of the rank's communicators failed.
    failed: Option<Duration>,
    suspected: bool,
}

/// A cheap pseudo-random generator.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit.max(1)
    }
}

struct World {
    ranks: Vec<Rank>,
    table: Table,
    dice: Dice,
    /// Failed requests per thousand. Half of them take effect before they fail.
    losses: u64,
}

/// Longest duration of a request, in ms.
const REQUEST_MS: u64 = 20;

impl World {
    fn new(fates: &[Fate], seed: u64, losses: u64) -> Self {
        let size = fates.len();
        let mut dice = Dice(seed);
        let ranks = fates.iter().enumerate().map(|(rank, fate)| {
            let (offset, drift) = (Duration::from_millis(dice.below(100_000)), dice.below(50) as u32);
            let sites = (0..size).map(|rank| (rank, rank)).collect();
            let post = Post { rank, sites, heartbeat: HEARTBEAT, pause: HEARTBEAT / 4 };
            let begun = Duration::from_millis(dice.below(250));
            Rank {
                machine: Machine::new(post, clock(offset, drift, begun)),
                rolling: Rolling::new(),
                fate: *fate,
                offset,
                drift,
                next: (begun, Input::Done),
                notices: Notices::default(),
                is_gone: false,
                acted: Vec::new(),
                failed: None,
                suspected: false,
            }
        });
        let ranks: Vec<_> = ranks.collect();
        let table = Table {
            beats: (0..size).map(|rank| (rank, (Some(0), Vec::new()))).collect(),
            ..Table::default()
        };
        Self { ranks, table, dice, losses }
    }

    /// Runs until this time.
    fn run(&mut self, until: Duration) {
        loop {
            let next = self
                .ranks
                .iter()
                .enumerate()
                .filter(|(_, rank)| !rank.is_gone)
                .map(|(at, rank)| (rank.next.0, at))
                .min();
            let Some((now, at)) = next.filter(|(now, _)| *now <= until) else { return };
            match self.ranks[at].fate {
                Fate::Stops(time) if now >= Duration::from_millis(time) => {
                    self.ranks[at].is_gone = true;
                    continue;
                }
                Fate::Leaves(time) if now >= Duration::from_millis(time) => {
                    self.ranks[at].notices.leave = true
                }
                _ => {}
            }
            self.step(at, now);
        }
    }

    fn step(&mut self, at: usize, now: Duration) {
        let rank = &mut self.ranks[at];
        // Like a group after a communicator's failure: the calls are compared before the failure is reported.
        let patience = HEARTBEAT * COMPARISON[usize::from(rank.suspected)];
        if rank.failed.is_some_and(|failed| now >= failed + patience) && rank.acted.is_empty() {
            rank.failed = None;
            let trouble = Trouble::Failed { group: GROUP.into(), rank: at, reason: "test".into() };
            rank.notices.troubles.push(trouble);
        }
        let mut input = std::mem::replace(&mut rank.next.1, Input::Done);
        if let Input::Woken(_) = input {
            input = Input::Woken(std::mem::take(&mut rank.notices));
        }
        let clock = clock(rank.offset, rank.drift, now);
        let output = rank.machine.step(input, clock);
        if let Output::Sleep(until) = output {
            // `until` is a time of the rank's own clock. A wake-up signal takes effect within 50 ms.
            let sleep =
                until.saturating_sub(clock).min(Duration::from_millis(50)).max(Duration::from_millis(1));
            rank.next = (now + sleep, Input::Woken(Notices::default()));
            return;
        }
        if output == Output::Gone {
            rank.is_gone = true;
            return;
        }
        let requests =
            matches!(output, Output::Act(Trouble::Suspect { .. })) || !matches!(output, Output::Act(_));
        let fails = self.dice.below(1000) < self.losses && requests;
        let effect = !fails || self.dice.below(2) == 0;
        let answer = if effect { self.perform(at, now, output) } else { Input::StoreFailed };
        let later = now + Duration::from_micros(200 + self.dice.below(REQUEST_MS * 1000));
        self.ranks[at].next = (later, if fails { Input::StoreFailed } else { answer });
    }

    fn perform(&mut self, at: usize, now: Duration, output: Output) -> Input {
        let (table, rank) = (&mut self.table, &mut self.ranks[at]);
        match output {
            Output::Exchange { beat, watched } => {
                table.beats.insert(at, (beat, rank.rolling.marks()));
                let mut snapshot = StoreSnapshot {
                    troubles: table.log.len() as u64,
                    dumps: table.dumps,
                    ..StoreSnapshot::default()
                };
                for other in watched {
                    snapshot.beats.push((other, table.beats[&other].0));
                }
                let size = table.beats.len();
                for other in [(at + 1) % size, (at + size - 1) % size] {
                    if let Some(number) = rank.rolling.differs(&table.beats[&other].1) {
                        snapshot.noticed.push(Trouble::Suspect {
                            group: GROUP.into(),
                            number,
                            ranks: [at, other],
                        });
                    }
                }
                Input::Read(snapshot)
            }
            Output::Append(trouble) => {
                table.log.push(Some(trouble));
                let count = table.log.len() as u64;
                self.wake();
                Input::Counted(count)
            }
            Output::Fetch(numbers) => {
                Input::Troubles(table.log[numbers.start as usize..numbers.end as usize].to_vec())
            }
            Output::Act(Trouble::Suspect { .. }) => {
                let marks = (1..=rank.rolling.count())
                    .filter_map(|number| Some((number, rank.rolling.after(number)?)));
                let history = CallHistory::new(marks.collect(), BTreeMap::new());
                table.histories.insert(at, history);
                rank.suspected = true;
                self.wake();
                Input::Done
            }
            Output::Act(trouble) => {
                rank.acted.push((now, trouble));
                Input::Done
            }
            Output::Collect { whoever, .. } => {
                let all = table.histories.len() == table.beats.len();
                let found = table.histories.iter().filter(|_| all || whoever);
                Input::Histories(found.map(|(rank, history)| (*rank, history.clone())).collect(), all)
            }
            Output::CallDumps => {
                table.dumps += 1;
                Input::Counted(table.dumps)
            }
            Output::Answer(_) | Output::Dump | Output::Sleep(_) | Output::Gone => Input::Done,
        }
    }

    /// Makes all ranks read the store soon.
    fn wake(&mut self) {
        self.ranks.iter_mut().for_each(|rank| rank.notices.hurry = true);
    }

    /// Returns the trouble that each living rank acted on first.
    fn verdicts(&self) -> Vec<Option<&(Duration, Trouble)>> {
        self.ranks.iter().filter(|rank| rank.fate == Fate::Lives).map(|rank| rank.acted.first()).collect()
    }
}

/// Returns the time of a clock that is ahead by `offset` and too fast by `drift` thousandths.
fn clock(offset: Duration, drift: u32, now: Duration) -> Duration {
    offset + now + now * drift / 1000
}

fn ms(time: u64) -> Duration {
    Duration::from_millis(time)
}

proptest! {
    /// A running rank is never reported as lost, for any clocks, while some requests fail. A rank that leaves is not
    /// reported either.
    #[test]
    fn nobody_who_runs_is_lost(size in 2usize..9, seed: u64, losses in 0u64..100, leaves in 500u64..3000) {
        let mut fates = vec![Fate::Lives; size];
        fates[size - 1] = Fate::Leaves(leaves);
        let mut world = World::new(&fates, seed, losses);
        world.run(ms(10_000));
        prop_assert!(world.table.log.is_empty(), "{:?}", world.table.log);
        prop_assert!(world.ranks[size - 1].is_gone || losses > 0);
    }

    /// All other ranks act on the loss of the stopped rank, within twice the heartbeat period.
    #[test]
    fn who_is_stopped_is_named_by_all(size in 3usize..12, seed: u64, victim in any::<prop::sample::Index>(), stops in 500u64..3000) {
        let victim = victim.index(size);
        let mut fates = vec![Fate::Lives; size];
        fates[victim] = Fate::Stops(stops);
        let mut world = World::new(&fates, seed, 0);
        world.run(ms(stops) + HEARTBEAT * 2);
        for verdict in world.verdicts() {
            let Some((time, Trouble::Lost { rank, loss: Loss::Silent(_) })) = verdict else {
                return Err(TestCaseError::fail(format!("{verdict:?}")));
            };
            prop_assert_eq!(*rank, victim);
            prop_assert!(*time >= ms(stops));
        }
    }

    /// Several ranks stop while requests fail: all remaining ranks eventually act on the same trouble first.
    #[test]
    fn all_act_on_the_same(
        seed: u64, losses in 0u64..100, stops in prop::collection::vec(prop::option::of(0u64..2000), 3..12),
    ) {
        let mut fates: Vec<_> = stops.iter().map(|time| time.map_or(Fate::Lives, Fate::Stops)).collect();
        // At least one rank lives, and one stops.
        (fates[0], fates[1]) = (Fate::Lives, Fate::Stops(500));
        let size = fates.len();
        let mut world = World::new(&fates, seed, losses);
        world.run(ms(60_000));
        let verdicts: Vec<_> = world.verdicts().into_iter().map(|verdict| verdict.map(|(_, trouble)| trouble)).collect();
        prop_assert!(verdicts[0].is_some());
        prop_assert!(verdicts.iter().all(|verdict| *verdict == verdicts[0]), "{:?}", verdicts);
        let lost: std::collections::BTreeSet<_> = world.table.log.iter().flatten().map(|trouble| match trouble {
            Trouble::Lost { rank, .. } => *rank,
            _ => usize::MAX,
        }).collect();
        // The lost ranks include those whose heartbeat readers have stopped too.
        let stopped = (0..size).filter(|rank| matches!(world.ranks[*rank].fate, Fate::Stops(_)));
        prop_assert!(lost.into_iter().eq(stopped), "{:?}", world.table.log);
    }

    /// All ranks name the member with one different call, and the number of that call, even if no calls follow.
    #[test]
    fn who_calls_something_else_is_named_by_all(
        size in 3usize..8, seed: u64, odd in any::<prop::sample::Index>(), calls in 1u64..200, at in any::<prop::sample::Index>(), losses in 0u64..50,
    ) {
        let (odd, at) = (odd.index(size), at.index(calls as usize) as u64);
        let mut world = World::new(&vec![Fate::Lives; size], seed, losses);
        world.run(ms(400));
        for rank in 0..size {
            // Ranks have made different numbers of calls.
            let own = (calls - world.dice.below(30).min(calls - 1)).max(at + 1);
            for call in 0..own {
                let other = u64::from(rank == odd && call == at);
                world.ranks[rank].rolling.step(Fold::default().with(call % 3 + 10 * other, 8));
            }
        }
        world.run(ms(20_000));
        for verdict in world.verdicts() {
            let Some((_, Trouble::Diverged { divergence, .. })) = verdict else {
                return Err(TestCaseError::fail(format!("{verdict:?}")));
            };
            prop_assert_eq!(&divergence.ranks, &[odd]);
            prop_assert_eq!((divergence.after, divergence.by), (at, at + 1));
        }
    }

    /// Different calls make the communicators of all ranks fail in the background, at different times. All ranks
    /// learn that the calls differ, and no rank is blamed for the failure.
    #[test]
    fn a_failure_of_calls_that_differ_is_told_as_that(
        size in 2usize..9, seed: u64, odd in any::<prop::sample::Index>(), calls in 0u64..100,
    ) {
        let odd = odd.index(size);
        let mut world = World::new(&vec![Fate::Lives; size], seed, 0);
        world.run(ms(400));
        for rank in 0..size {
            for call in 0..=calls {
                let other = u64::from(rank == odd && call == calls);
                world.ranks[rank].rolling.step(Fold::default().with(call % 3 + 10 * other, 8));
            }
            // The watchdog checks ten times a second.
            world.ranks[rank].failed = Some(ms(400 + world.dice.below(100)));
        }
        world.wake();
        world.run(ms(20_000));
        for verdict in world.verdicts() {
            let Some((_, Trouble::Diverged { divergence, .. })) = verdict else {
                return Err(TestCaseError::fail(format!("{verdict:?}")));
            };
            prop_assert!(divergence.ranks.contains(&odd));
            prop_assert_eq!(divergence.by, calls + 1);
        }
    }

    /// Several ranks notice different troubles at once: all act on the same one first.
    #[test]
    fn the_first_in_the_log_counts(size in 2usize..9, seed: u64, losses in 0u64..100, reporters in 1usize..5) {
        let mut world = World::new(&vec![Fate::Lives; size], seed, losses);
        world.run(ms(300));
        for rank in 0..reporters.min(size) {
            let trouble = Trouble::Failed { group: GROUP.into(), rank, reason: "test".into() };
            world.ranks[rank].notices.troubles.push(trouble);
        }
        world.run(ms(30_000));
        let verdicts: Vec<_> = world.verdicts().into_iter().map(|verdict| verdict.map(|(_, trouble)| trouble)).collect();
        prop_assert!(verdicts[0].is_some());
        prop_assert!(verdicts.iter().all(|verdict| *verdict == verdicts[0]), "{:?}", verdicts);
    }
}

/// A rank that was stopped itself reports no other rank as lost when it continues.
#[test]
fn who_was_away_blames_nobody() {
    let post = Post { rank: 0, sites: vec![(0, 0), (1, 1)], heartbeat: HEARTBEAT, pause: HEARTBEAT / 4 };
    let mut machine = Machine::new(post, ms(0));
    let snapshot = |beat| StoreSnapshot { beats: vec![(1, Some(beat))], ..StoreSnapshot::default() };
    assert!(matches!(machine.step(Input::Done, ms(0)), Output::Exchange { .. }));
    assert!(matches!(machine.step(Input::Read(snapshot(1)), ms(1)), Output::Sleep(_)));
    let woken = || Input::Woken(Notices::default());
    assert!(matches!(machine.step(woken(), ms(90_000)), Output::Exchange { .. }));
    // Rank 1 may have been stopped together with rank 0, so rank 1's time limit starts again now.
    assert!(matches!(machine.step(Input::Read(snapshot(1)), ms(90_001)), Output::Sleep(_)));
    let mut now = 90_001;
    let lost = loop {
        now += 250;
        match machine.step(woken(), ms(now)) {
            Output::Exchange { .. } => {}
            other => panic!("{other:?}"),
        }
        match machine.step(Input::Read(snapshot(1)), ms(now)) {
            Output::Append(trouble) => break trouble,
            Output::Sleep(_) => assert!(now < 92_000),
            other => panic!("{other:?}"),
        }
    };
    assert!(matches!(lost, Trouble::Lost { rank: 1, loss: Loss::Silent(time) } if time > HEARTBEAT));
}
