//! Programs of several ranks in a seeded world: the in-process and file stores and `agreement::run`, unchanged, under
//! schedules that a seed chooses. Times are virtual, so a wait of an hour takes almost no real time.

use std::{
    fmt::Debug,
    panic::resume_unwind,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bootstrap::{
    agreement::{Absentee, Decision, Ending, Failed, Failure, Member, Protocol, Report, run},
    runtime::{self, Event, Instant, Seeded},
    store::{Deadline, FileStore, HashStore, PrefixStore, Store, StoreError, barrier, rendezvous},
    wire,
};
use gpu_sim::{RunError, Step, World};

const HOUR: Duration = Duration::from_secs(3600);
/// The patience of agreements that may fail. Their members poll the store until it ends, and each poll costs steps of
/// the scheduler. So it is short.
const PATIENCE: Duration = Duration::from_secs(60);
/// The maximum virtual time of a run in addition to its sleeps and deadlines. After a failure, members wait up to 3 s
/// for each other, and each step of the scheduler takes a microsecond.
const SLACK: Duration = Duration::from_secs(10);

/// Returns the number of seeds: 200 times the environment variable `TEST_EFFORT`, or 200.
fn seeds() -> u64 {
    200 * crate::test_effort()
}

/// A random number generator (xorshift).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) % bound
    }

    pub(crate) fn time(&mut self, below: Duration) -> Duration {
        Duration::from_micros(self.below(below.as_micros() as u64))
    }
}

/// Takes the lock that a test holds while its world exists, because a process can have only one world at a time.
fn turn() -> MutexGuard<'static, ()> {
    static ONE_WORLD: Mutex<()> = Mutex::new(());
    ONE_WORLD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Calls [`run_on`] with a new runtime.
fn try_run<T: Send + 'static>(
    seed: u64,
    ranks: u32,
    body: impl Fn(u32) -> T + Clone + Send + 'static,
) -> (Result<Vec<T>, RunError>, Vec<Step>) {
    run_on(Arc::new(Seeded::new()), seed, ranks, body)
}

/// Runs `body` for each rank in a world with this seed and runtime. Returns the results and the scheduling decisions.
pub(crate) fn run_on<T: Send + 'static>(
    runtime: Arc<Seeded>,
    seed: u64,
    ranks: u32,
    body: impl Fn(u32) -> T + Clone + Send + 'static,
) -> (Result<Vec<T>, RunError>, Vec<Step>) {
    let _turn = turn();
    let _runtime = runtime::enter(runtime);
    let world = World::builder().capacity(2 << 20).seeded(seed).start().unwrap();
    let actor = |rank| -> (String, Box<dyn FnOnce() -> T + Send>) {
        let body = body.clone();
        (format!("rank {rank}"), Box::new(move || body(rank)))
    };
    let results = world.run_actors((0..ranks).map(actor).collect());
    let history = world.history();
    world.finish().unwrap();
    (results, history)
}

/// Like [`try_run`], but panics if the run fails.
fn run_ranks<T: Send + 'static>(
    seed: u64,
    ranks: u32,
    body: impl Fn(u32) -> T + Clone + Send + 'static,
) -> Vec<T> {
    try_run(seed, ranks, body).0.unwrap_or_else(|error| panic!("seed {seed}: {error}"))
}

/// A protocol in which members agree on the sum of their numbers. The plan of the action is the sum.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sum;

impl Protocol for Sum {
    const PROTOCOL: wire::Protocol = wire::Protocol { magic: *b"SU", version: 1 };
    type Record = u64;
    type Plan = u64;
    /// True if the action has succeeded.
    type Outcome = bool;
    type Agreed = u64;
    type Refusal = String;

    fn decide(records: &[(u32, u64)]) -> Decision<Self> {
        Decision::Act { plan: records.iter().map(|(_, number)| number).sum() }
    }

    fn is_final(outcome: &bool) -> bool {
        !outcome
    }

    fn judge(plan: &u64, reports: &[(u32, Report<bool>)]) -> Decision<Self> {
        match reports.iter().find(|(_, report)| *report != Report::Outcome(true)) {
            Some((rank, report)) => Decision::Refused { refusal: format!("rank {rank}: {report:?}") },
            None => Decision::Agreed { agreed: *plan },
        }
    }
}

pub(crate) type Outcome = Result<u64, Ending<Sum>>;

/// Runs the part of `rank` in an agreement of the ranks below `size` on the sum of their ranks. Its action takes
/// `time`, and fails if the deadline of the action passes meanwhile.
pub(crate) fn agree(
    store: &dyn Store,
    name: &str,
    (rank, size): (u32, u32),
    patience: Duration,
    time: Duration,
) -> Outcome {
    let member = Member {
        name: name.into(),
        rank,
        members: (0..size).collect(),
        generation: 1,
        patience,
        deadline: None,
    };
    let act = |_: &u64, deadline: Deadline, _: &dyn Fn() -> bool| {
        runtime::sleep(time);
        !deadline.expired()
    };
    run::<Sum>(store, member, rank.into(), act, || Ok(())).map_err(|failed: Box<Failed<Sum>>| failed.ending)
}

fn assert_alike<T: PartialEq + Debug>(seed: u64, results: &[T]) {
    assert!(results.windows(2).all(|pair| pair[0] == pair[1]), "seed {seed}: {results:?}");
}

#[test]
fn ranks_agree_on_every_schedule_and_remove_the_keys() {
    for seed in 0..seeds() {
        let (size, store) = (2 + (seed % 4) as u32, HashStore::new());
        let shared = store.clone();
        let results = run_ranks(seed, size, move |rank| {
            let store = PrefixStore::new("job", Arc::new(shared.clone()));
            let mut random = Random::new(seed << 8 | u64::from(rank));
            let agreed = |number| {
                runtime::sleep(random.time(Duration::from_secs(2)));
                let time = random.time(Duration::from_secs(3));
                agree(&store, &format!("agreement {number}"), (rank, size), HOUR, time)
            };
            (0..3).map(agreed).collect::<Vec<_>>()
        });
        let sum = u64::from(size * (size - 1) / 2);
        assert_eq!(results, vec![vec![Ok(sum); 3]; size as usize], "seed {seed}");
        let left: Vec<_> = store.list_keys().unwrap();
        assert!(left.iter().all(|key| key.contains("places/")), "seed {seed}: {left:?}");
    }
}

/// Either a late rank arrives before the patience of another rank ends, and all agree. Or all ranks get the same
/// failure, which names the late rank.
#[test]
fn a_late_rank_gets_the_result_of_the_others() {
    let (mut agreed, mut failed) = (0, 0);
    for seed in 0..seeds() {
        let mut random = Random::new(seed);
        let (size, store) = (2 + (seed % 4) as u32, HashStore::new());
        let (late, lateness) = (random.below(size.into()) as u32, random.time(PATIENCE * 2));
        let results = run_ranks(seed, size, move |rank| {
            let mut random = Random::new(seed << 8 | u64::from(rank));
            runtime::sleep(if rank == late { lateness } else { random.time(Duration::from_secs(1)) });
            agree(&store, "sum", (rank, size), PATIENCE, random.time(Duration::from_secs(3)))
        });
        assert_alike(seed, &results);
        match &results[0] {
            Ok(_) => {
                agreed += 1;
                assert!(lateness < PATIENCE + SLACK, "seed {seed}: {lateness:?}");
            }
            Err(Ending::Failed(Failure::Absent { missing, circle, .. })) => {
                failed += 1;
                assert!(lateness > PATIENCE - SLACK, "seed {seed}: {lateness:?}");
                assert_eq!(*missing, [Absentee { rank: late, elsewhere: Vec::new() }], "seed {seed}");
                assert!(circle.is_empty(), "seed {seed}");
            }
            other => panic!("seed {seed}: {other:?}"),
        }
    }
    assert!(agreed > 0 && failed > 0);
}

#[test]
fn a_rank_that_never_comes_is_named_at_the_deadline() {
    for seed in 0..seeds() {
        let (size, store) = (3 + (seed % 4) as u32, HashStore::new());
        let absent = (seed % u64::from(size)) as u32;
        let results = run_ranks(seed, size, move |rank| {
            let begun = Instant::now();
            let result =
                (rank != absent).then(|| agree(&store, "sum", (rank, size), PATIENCE, Duration::ZERO));
            (result, begun.elapsed())
        });
        for (rank, (result, time)) in results.into_iter().enumerate().filter(|(_, (r, _))| r.is_some()) {
            let Some(Err(Ending::Failed(Failure::Absent { missing, .. }))) = result else {
                panic!("seed {seed}: {result:?}")
            };
            assert_eq!(
                missing,
                [Absentee { rank: absent, elsewhere: Vec::new() }],
                "seed {seed}, rank {rank}"
            );
            assert!((PATIENCE..PATIENCE + SLACK).contains(&time), "seed {seed}, rank {rank}: {time:?}");
        }
    }
}

#[test]
fn ranks_that_wait_for_each_other_get_the_circle() {
    for seed in 0..seeds() {
        let store = HashStore::new();
        let results = run_ranks(seed, 2, move |rank| {
            let names = if rank == 0 { ["a", "b"] } else { ["b", "a"] };
            names.map(|name| agree(&store, name, (rank, 2), PATIENCE, Duration::ZERO))
        });
        for result in results.iter().flatten() {
            let Err(Ending::Failed(Failure::Absent { circle, .. })) = result else {
                panic!("seed {seed}: {result:?}")
            };
            assert_eq!(circle.len(), 2, "seed {seed}: {result:?}");
        }
    }
}

/// Runs the part of `rank` in three meetings of all ranks, each followed by a barrier. The rank `absent`, if there is
/// one, leaves after the first meeting. Returns a text for the result of each meeting and barrier.
fn meet(store: Arc<dyn Store>, rank: usize, size: usize, absent: Option<usize>) -> Vec<String> {
    let store = PrefixStore::new("job", store);
    let mut met = Vec::new();
    for number in 0..3 {
        let deadline = Deadline::after(HOUR);
        met.push(
            match rendezvous(&store, &format!("meeting {number}"), rank, size, &[rank as u8], deadline) {
                Ok(cards) => format!("{cards:?}"),
                Err(StoreError::Absent { ranks, .. }) => format!("without {ranks:?}"),
                Err(error) => panic!("{error}"),
            },
        );
        if absent == Some(rank) {
            return met;
        }
        let ended = barrier(&store, &format!("barrier {number}"), rank, size, Deadline::after(HOUR));
        met.push(ended.map_or_else(|error| error.to_string(), |()| String::new()));
    }
    met
}

#[test]
fn ranks_meet_in_memory_and_in_a_file() {
    for seed in 0..seeds() {
        let size = 2 + (seed % 4) as usize;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store");
        let memory = HashStore::new();
        let results = run_ranks(seed, size as u32, move |rank| {
            let store: Arc<dyn Store> = match seed % 4 {
                0 => Arc::new(FileStore::options().workers(size as u64).open(&path).unwrap()),
                _ => Arc::new(memory.clone()),
            };
            meet(store, rank as usize, size, None)
        });
        assert_alike(seed, &results);
        let cards = format!("{:?}", (0..size as u8).map(|rank| vec![rank]).collect::<Vec<_>>());
        assert!(results[0].iter().all(|met| met.is_empty() || *met == cards), "seed {seed}: {results:?}");
    }
}

#[test]
fn a_rank_that_leaves_is_missing_in_later_meetings() {
    for seed in 0..seeds() {
        let (size, store) = (3, HashStore::new());
        let absent = (seed % 3) as usize;
        let results = run_ranks(seed, size as u32, move |rank| {
            (meet(Arc::new(store.clone()), rank as usize, size, Some(absent)), Instant::now())
        });
        let met: Vec<_> = results.iter().map(|(met, _)| met).collect();
        let others: Vec<_> = (0..size).filter(|rank| *rank != absent).collect();
        assert_eq!(met[absent].len(), 1);
        let without = format!("without {:?}", [absent]);
        for rank in others {
            assert_eq!(met[rank].len(), 6, "seed {seed}: {met:?}");
            assert!(met[rank][1].contains(&format!("rank {absent}")), "seed {seed}: {met:?}");
            assert_eq!([&met[rank][2], &met[rank][4]], [&without; 2], "seed {seed}");
        }
    }
}

/// The results of a rank of [`program`]: those of [`meet`] and of [`agree`], and the virtual time that the rank took.
type Seen = (Vec<String>, Outcome, Duration);

/// Runs a small program with several kinds of waits. Returns the results of all ranks and the scheduling decisions.
fn program(seed: u64) -> (Vec<Seen>, Vec<Step>) {
    let store = HashStore::new();
    let (results, history) = try_run(seed, 3, move |rank| {
        let begun = Instant::now();
        let met = meet(Arc::new(store.clone()), rank as usize, 3, None);
        store.queue_push("queue", &[rank as u8]).unwrap();
        let beat = {
            let store = store.clone();
            runtime::spawn("heartbeat", move || {
                let _ = store.queue_pop("queue", Deadline::after(HOUR));
                runtime::sleep(Duration::from_secs(5));
            })
        };
        let agreed = agree(&store, "sum", (rank, 3), HOUR, Duration::from_secs(1));
        beat.unwrap().join().unwrap();
        (met, agreed, begun.elapsed())
    });
    (results.unwrap(), history)
}

#[test]
fn a_seed_gives_the_same_history() {
    let mut histories = Vec::new();
    for seed in 0..20 {
        let (first, second) = (program(seed), program(seed));
        assert!(first == second, "seed {seed}");
        histories.push(first.1);
    }
    assert!(histories.windows(2).all(|pair| pair[0] != pair[1]));
}

#[test]
fn the_end_of_the_world_ends_service_threads() {
    let dropped = Arc::new(Event::new("a service to end"));
    let of_service = dropped.clone();
    struct Last(Arc<Event>);
    impl Drop for Last {
        fn drop(&mut self) {
            // The service unwinds and runs this destructor, which waits.
            runtime::sleep(Duration::from_secs(1));
            self.0.notify_all();
        }
    }
    run_ranks(1, 2, move |_| {
        let last = Last(of_service.clone());
        let service = move || {
            let _last = &last;
            loop {
                runtime::sleep(Duration::from_secs(1));
            }
        };
        runtime::spawn::<()>("service", service).unwrap();
        runtime::sleep(Duration::from_secs(60));
    });
    assert_eq!(dropped.count(), 2);
}

#[test]
fn a_wait_that_nothing_can_end_is_a_deadlock() {
    let event = Arc::new(Event::new("a notification that never comes"));
    let (results, _) = try_run(1, 2, move |_| runtime::wait(&event, 0, Duration::MAX));
    let error = results.unwrap_err();
    assert!(matches!(&error, RunError::Deadlock(deadlock) if deadlock.waiting.len() == 2), "{error}");
    assert!(error.to_string().contains("rank 0 waits for a notification that never comes"), "{error}");
}

#[test]
fn a_rank_that_unwinds_waits_for_nobody() {
    struct Waits;
    impl Drop for Waits {
        fn drop(&mut self) {
            let store = HashStore::new();
            assert!(store.wait(&["nothing"], Deadline::after(HOUR)).is_err());
            let other = runtime::spawn("another", || ()).unwrap();
            assert!(other.join().is_err());
        }
    }
    let (results, _) = try_run(1, 2, |rank| {
        if rank == 1 {
            let _waits = Waits;
            resume_unwind(Box::new("broken"));
        }
    });
    let error = results.unwrap_err();
    assert!(matches!(&error, RunError::Panicked { actor, .. } if actor == "rank 1"), "{error}");
    assert!(error.to_string().contains("broken"), "{error}");
}
