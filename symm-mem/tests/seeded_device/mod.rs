//! Whole ranks on the embedded device under its one seeded scheduler: the commit's machine over the store's
//! machines, NCCL's raw table, and an arena over virtual memory.
//!
//! Every rank is an actor with two helpers, as in life: a service that makes the calls which block in the library,
//! and a watch that frees it when the members' verdict is that the group is dead. Everything that waits does so
//! by the scheduler, on the virtual clock.
//!
//! Checked for every seed: members are given the same result, before its deadline; nobody waits for ever; who is at
//! fault is named; groups without the culprit go on; sums over windows are right; nothing leaks and nothing is
//! misused; and the seed gives the same run again.

mod desk;
mod library;
mod network;
mod rank;
mod scenario;

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
    time::Instant,
};

use cuda_driver::Driver;
use gpu_sim::{World, sched::Actor};
use symm_mem::agreement::{Divergence, Ending, NoWindows, Poison, Refusal};

use self::{
    network::Network,
    rank::{Desks, Ended, Start},
    scenario::{DEADLINE, Scenario, Trouble},
};
use crate::{end_to_end::turn, simulation::Random};

/// What came of a seed.
struct Run {
    scenario: Scenario,
    ended: Vec<Ended>,
    /// How many calls were made to fail or to be slow.
    struck: u64,
    /// A hash of the scheduler's decisions.
    record: u64,
    steps: usize,
}

fn run(seed: u64) -> Run {
    let mut random = Random(seed);
    let scenario = Scenario::draw(&mut random);
    let _turn = turn();
    let world = World::builder()
        .devices(scenario.size as usize)
        .capacity(256 << 20)
        .seeded(random.next())
        .start()
        .expect("no other world is alive");
    // SAFETY: the functions are those of the living world, and nothing of it outlives the world.
    let (cuda, nccl) =
        unsafe { (cuda_driver::sys::Api::from_parts(world.cuda()), nccl_sys::Api::from_parts(world.nccl())) };
    let driver = Driver::new(cuda.expect("the table has what it must have")).expect("there is a device");
    let nccl = nccl.expect("the table has what it must have");
    if let Some(injection) = scenario.injection() {
        world.faults().inject(injection);
    }
    let id = library::unique_id(&nccl);
    let network = Arc::new(Network::new(random, scenario.slowest, 2 * u64::from(scenario.size)));

    let mut actors: Vec<Actor<Vec<Ended>>> = Vec::new();
    let mut add = |name: String, body: Box<dyn FnOnce() + Send>| {
        actors.push((name, Box::new(move || (body(), Vec::new()).1)));
    };
    let desks: Vec<Arc<Desks>> = (0..scenario.size).map(|_| Arc::default()).collect();
    for (rank, desks) in desks.iter().enumerate() {
        let (service, watch, network) = (desks.clone(), desks.clone(), network.clone());
        add(format!("service of rank {rank}"), Box::new(move || library::serve(&service.jobs)));
        add(format!("watch of rank {rank}"), Box::new(move || rank::watch(network, &watch.watches)));
    }
    let store = network.clone();
    add("the store".to_owned(), Box::new(move || store.serve()));
    for (rank, desks) in (0..).zip(desks) {
        let (scenario, network) = (scenario.clone(), network.clone());
        let start = Start { rank, scenario, driver: driver.clone(), nccl: nccl.clone(), id, network, desks };
        actors.push((format!("rank {rank}"), Box::new(move || rank::live(start))));
    }
    drop(driver);
    let ran = world.run_actors(actors);
    let ended =
        ran.unwrap_or_else(|error| panic!("seed {seed}, {scenario:?}: {error}\n{:#?}", world.notes()));
    let history = world.history();
    let mut record = DefaultHasher::new();
    for step in &history {
        (step.at, &step.who, &step.at_what).hash(&mut record);
    }
    let struck = world.faults().hits();
    world.finish().unwrap_or_else(|error| panic!("seed {seed}, {scenario:?}: {error}"));
    let ended = ended.into_iter().flatten().collect();
    Run { scenario, ended, struck, record: record.finish(), steps: history.len() }
}

/// How often which result came of a commit.
type Tally = BTreeMap<&'static str, u64>;

fn check(seed: u64, run: &Run, tally: &mut Tally) {
    let Scenario { trouble, culprit, .. } = run.scenario;
    let mut meetings: BTreeMap<(u64, u64), Vec<&Ended>> = BTreeMap::new();
    for ended in &run.ended {
        meetings.entry((ended.round, ended.group)).or_default().push(ended);
        *tally.entry(name(ended)).or_default() += 1;
    }
    let mut poisoned: Vec<u64> = Vec::new();
    for ((round, group), ended) in &meetings {
        let (first, members) = (ended[0], &ended[0].members);
        let at =
            format!("seed {seed}, {trouble:?} on rank {culprit}, group {group} {members:?}, round {round}");
        let expected = members.iter().filter(|rank| trouble != Trouble::Absent || **rank != culprit).count();
        assert_eq!(ended.len(), expected, "{at}: {ended:#?}");
        for it in ended {
            assert_eq!(it.result, first.result, "{at}: ranks {} and {} differ", first.rank, it.rank);
            assert!(it.ended - it.begun <= it.deadline, "{at}: rank {} is late: {it:?}", it.rank);
            assert_ne!(it.sum, Some(false), "{at}: rank {} sums to something else", it.rank);
            assert_eq!(it.sum, first.sum, "{at}");
        }
        let last = *round > 0;
        check_result(ended, &run.scenario, last, poisoned.contains(group), &at);
        if matches!(first.result, Err(Ending::Poisoned(_))) {
            poisoned.push(*group);
        }
    }
    let registrations = matches!(trouble, Trouble::RegistrationFails(_) | Trouble::RegistrationSlow(..));
    poisoned.dedup();
    let most = usize::from(registrations && run.struck > 0);
    assert!(poisoned.len() <= most, "seed {seed}, {trouble:?}: groups {poisoned:?} are poisoned");
    if matches!(trouble, Trouble::RegistrationFails(_)) {
        assert_eq!(poisoned.len() as u64, run.struck, "seed {seed}, {trouble:?}");
    }
}

/// The result is one that the trouble makes, and names the culprit.
fn check_result(ended: &[&Ended], scenario: &Scenario, last: bool, was_poisoned: bool, at: &str) {
    let Scenario { trouble, culprit, .. } = *scenario;
    let (result, members) = (&ended[0].result, &ended[0].members);
    let affected = members.contains(&culprit);
    let refusal = match result {
        Ok(agreed) => {
            let alone = (members.len() == 1).then_some(NoWindows::SingleMember {});
            assert!(agreed.segments == 0 || agreed.without == alone, "{at}: {agreed:?}");
            assert!(!was_poisoned, "{at}: the group rose from the dead");
            agreed.pending.as_ref()
        }
        Err(Ending::Refused(refusal)) => Some(refusal),
        Err(Ending::Poisoned(poison)) => {
            assert!(members.len() > 1, "{at}: {poison}");
            return match poison {
                Poison::RegistrationFailed { rank, .. } => {
                    assert!(matches!(trouble, Trouble::RegistrationFails(_)), "{at}: {poison}");
                    let refused = ended.iter().find(|it| it.refused).map(|it| it.rank);
                    assert!(was_poisoned || refused == Some(*rank), "{at}: {poison}, but {refused:?}");
                    // Whoever was blocked in the library is freed by the verdict, long before it would give up.
                    let all_here = ended.iter().map(|it| it.begun).max().unwrap_or_default();
                    let freed = ended.iter().all(|it| it.ended < all_here + DEADLINE / 8);
                    assert!(was_poisoned || freed, "{at}: {ended:#?}");
                }
                Poison::MembersLost { .. } | Poison::RegistrationBlocked { .. } => {
                    assert!(matches!(trouble, Trouble::RegistrationSlow(..)), "{at}: {poison}");
                }
                other => panic!("{at}: {other}"),
            };
        }
        Err(other) => panic!("{at}: {other:?} is no agreed result"),
    };
    let Some(refusal) = refusal else {
        let parted = affected && members.len() > 1;
        assert!(trouble != Trouble::ExtraSegment || !parted, "{at}: the extra segment was not found");
        assert!(trouble != Trouble::Absent || !affected, "{at}: agreed without rank {culprit}");
        return;
    };
    let text = refusal.to_string();
    match refusal {
        Refusal::SegmentCountMismatch { .. } | Refusal::SegmentShapeMismatch { .. } => {
            assert!(trouble == Trouble::ExtraSegment && affected, "{at}: {text}");
            let Some(Divergence::At { sequence, operations }) = refusal.divergence() else {
                panic!("{at}: the first allocation that differs was not found: {text}");
            };
            assert_eq!(*sequence, scenario.extra_at as u64, "{at}: {text}");
            let side = operations.sides.iter().find(|side| side.ranks == [culprit]);
            let bytes = side.and_then(|side| side.value.as_ref()).map(|operation| operation.bytes);
            assert_eq!(bytes, Some(20 << 20), "{at}: {text}");
        }
        Refusal::SyncTimeout { missing, .. } => {
            assert!(!last, "{at}: the last commit fails: {text}");
            let missing: Vec<u32> = missing.iter().map(|absentee| absentee.rank).collect();
            match trouble {
                Trouble::Absent if affected => assert_eq!(missing, [culprit], "{at}: {text}"),
                // Whoever waited for the culprit elsewhere may come too late here.
                Trouble::Absent | Trouble::Late(_) | Trouble::Swapped | Trouble::RegistrationSlow(..) => {
                    assert!(missing.iter().all(|rank| members.contains(rank)), "{at}: {text}");
                }
                _ => panic!("{at}: {text}"),
            }
        }
        other => panic!("{at}: {other}"),
    }
}

fn name(ended: &Ended) -> &'static str {
    match &ended.result {
        Ok(agreed) if agreed.pending.is_some() => "prefix",
        Ok(agreed) if agreed.without.is_some() => "without windows",
        Ok(_) if ended.sum.is_some() => "committed and summed",
        Ok(_) => "committed",
        Err(Ending::Refused(refusal)) => refusal.name(),
        Err(Ending::Poisoned(poison)) => poison.name(),
        Err(_) => "store failed",
    }
}

/// How many seeds to run: `SYMM_MEM_DEVICE_SEEDS`, or enough for every trouble many times over.
fn seeds() -> u64 {
    std::env::var("SYMM_MEM_DEVICE_SEEDS").ok().and_then(|count| count.parse().ok()).unwrap_or(300)
}

#[test]
fn ranks_on_devices_agree_whatever_happens_and_a_seed_repeats_its_run() {
    let (start, mut tally, mut steps) = (Instant::now(), Tally::new(), 0);
    let mut records = Vec::new();
    for seed in 0..seeds() {
        let (one, other) = (run(seed), run(seed));
        check(seed, &one, &mut tally);
        assert_eq!(one.ended, other.ended, "seed {seed}: another result");
        assert_eq!(one.record, other.record, "seed {seed}: another run");
        records.push(one.record);
        steps += one.steps + other.steps;
    }
    let seconds = start.elapsed().as_secs_f64();
    let runs = 2 * seeds();
    println!("{runs} runs, {:.0} a second, {steps} steps: {tally:?}", runs as f64 / seconds);
    let distinct = records.len();
    records.sort_unstable();
    records.dedup();
    assert_eq!(records.len(), distinct, "two seeds give the same run");
    // The scenarios reach every end that they are made for.
    for name in [
        "committed and summed",
        "prefix",
        "without windows",
        "SegmentCountMismatch",
        "SegmentShapeMismatch",
        "SyncTimeout",
        "RegistrationFailed",
        "RegistrationBlocked",
    ] {
        assert!(tally.get(name).is_some_and(|count| *count > 0), "{name} never happened: {tally:?}");
    }
}
