//! Runs commits of several ranks on the embedded device, under its seeded scheduler. A rank uses the real state machines
//! of agreements and of the store's clients, NCCL's raw function table, and an arena over virtual memory. The tests in
//! `simulation` cover more, but with a model of NCCL.
//!
//! Every rank is an actor with two helpers, as in a real program: a service actor makes the library's blocking calls,
//! and a watch actor aborts a group if the members' verdict says that it is dead, or if a member is lost. All waits go
//! through the scheduler, on its virtual clock.
//!
//! Every seed checks:
//! - All members of a commit get the same result by the deadline plus `FLOORS` (the minimum time limits of the phases
//!   after a decision), and no rank waits forever.
//! - An error names the culprit, which is the rank that the seed makes differ or fail. A timeout may instead name a
//!   rank that waited for the culprit in another group. If the seed makes a registration call fail, the error may name
//!   any rank. Groups without the culprit stay usable.
//! - Sums over windows are correct.
//! - Nothing leaks and the device is not misused, even if a rank dies.
//! - The same seed repeats the same run.

mod library;
mod network;
mod oracle;
mod queue;
mod rank;
mod scenario;
mod watch;

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
    time::Instant,
};

use cuda_driver::Driver;
use gpu_sim::{World, sched::Actor};

use self::{
    network::Network,
    oracle::{Tally, check},
    rank::{Ended, Start},
    scenario::Scenario,
    watch::Queues,
};
use crate::{common::turn, simulation::Random};

/// Result of a seed.
struct Run {
    scenario: Scenario,
    ended: Vec<Ended>,
    /// Number of calls to which the injected fault was applied, which made them fail or slow.
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
    // SAFETY: the functions belong to `world`, and none of them is called after it has finished.
    let (cuda, nccl) =
        unsafe { (cuda_driver::sys::Api::from_parts(world.cuda()), nccl_sys::Api::from_parts(world.nccl())) };
    let driver = Driver::new(cuda.expect("the table has what it must have")).expect("there is a device");
    let nccl = nccl.expect("the table has what it must have");
    if let Some(injection) = scenario.injection() {
        world.faults().inject(injection).unwrap();
    }
    let id = library::unique_id(&nccl);
    let network = Arc::new(Network::new(random, scenario.slowest, 2 * u64::from(scenario.size)));

    let mut actors: Vec<Actor<Vec<Ended>>> = Vec::new();
    let mut add = |name: String, body: Box<dyn FnOnce() + Send>| {
        actors.push((name, Box::new(move || (body(), Vec::new()).1)));
    };
    let queues: Vec<Arc<Queues>> = (0..scenario.size).map(|_| Arc::default()).collect();
    for (rank, queues) in queues.iter().enumerate() {
        let (service, own, network) = (queues.clone(), queues.clone(), network.clone());
        add(format!("service of rank {rank}"), Box::new(move || library::serve(&service.jobs)));
        add(format!("watch of rank {rank}"), Box::new(move || watch::watch(network, &own)));
    }
    let store = network.clone();
    add("the store".to_owned(), Box::new(move || store.serve()));
    for rank in 0..scenario.size {
        let (scenario, network, queues) = (scenario.clone(), network.clone(), queues.clone());
        let (driver, nccl) = (driver.clone(), nccl.clone());
        let start = Start { rank, scenario, driver, nccl, id, network, queues };
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

/// The number of seeds: 100, which draws every trouble several times. The environment variable `TEST_EFFORT` multiplies
/// it.
fn seeds() -> u64 {
    100 * crate::common::test_effort()
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
    // The scenarios reach every result for which they are made.
    for name in [
        "committed and summed",
        "prefix",
        "without windows",
        "SegmentCountMismatch",
        "SegmentShapeMismatch",
        "SyncTimeout",
        "RegistrationFailed",
        "AllocationDiverged",
        "CapabilityMismatch",
        "MembersLost",
    ] {
        assert!(tally.get(name).is_some_and(|count| *count > 0), "{name} never happened: {tally:?}");
    }
}
