//! Programs of several ranks over a [`TcpStore`] in a seeded world: the real client and the real host over the sockets
//! of the world. Bytes arrive late and in parts, attempts to connect are refused, connections break, a rank crashes in
//! the middle of a call, and strangers connect and send random bytes.
//!
//! The results that ranks see are consistent with one order of operations. No operation takes effect twice, and none
//! that was acknowledged is lost. An operation whose connection broke takes effect at most once.

mod oracle;

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use bootstrap::{
    agreement::{Ending, Failure},
    runtime::{self, Instant, Seeded, SocketFaults},
    store::{Deadline, Secret, Store, StoreError, TcpOptions, TcpStore, barrier, machine::ServerLimits},
};
use gpu_sim::Step;

use super::seeded_ranks::{Outcome, Random, agree, run_on};

const ADDRESS: &str = "127.0.0.1:29500";
const PATIENCE: Duration = Duration::from_secs(20);
/// The maximum virtual time from the event that ends a wait to the end of the wait.
const PROMPT: Duration = Duration::from_secs(1);
/// The operations of a rank.
const OPERATIONS: usize = 20;
/// The number of keys that are set and waited for.
const KEYS: u64 = 12;

const COUNTER: &str = "counter";
const REGISTER: &str = "register";
const QUEUE: &str = "queue";

/// An operation of a rank on the store. No two operations of a run have the same `new` or `token`.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Op {
    /// Adds 1 to the counter.
    Count,
    /// Sets the register to `new` if it contains `expected`, which is the last value that this rank saw there.
    Swap { expected: Vec<u8>, new: Vec<u8> },
    /// Sets one of [`KEYS`] keys. The value is always the name of the key.
    Set { key: String },
    /// Waits for some of the [`KEYS`] keys, possibly none, and reads them.
    Wait { keys: Vec<String>, deadline: Instant },
    /// Waits until the queue has an element, and leaves it there.
    Watch { deadline: Instant },
    /// Pushes `token` to the queue.
    Push { token: Vec<u8> },
    /// Waits until the queue has an element, and pops it.
    Pop { deadline: Instant },
}

/// The result of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Answer {
    Done,
    Sum(i64),
    Value(Vec<u8>),
    Values(Vec<Vec<u8>>),
    /// The deadline has passed, with these keys missing.
    TimedOut(Vec<String>),
}

/// A moment in a run. The number defines the order of moments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Moment {
    number: usize,
    time: Instant,
}

/// An operation from its call to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Event {
    op: Op,
    called: Moment,
    /// `None` if the rank has crashed in the operation.
    ended: Option<Moment>,
    /// `None` if the connection broke or the rank crashed. Then it is unknown whether the operation has taken effect.
    answer: Option<Answer>,
}

/// The results of a rank after its operations.
#[derive(Debug, PartialEq)]
struct Last {
    /// True if the barrier has ended without an error.
    barrier: bool,
    agreement: Outcome,
}

/// A run.
#[derive(Debug, PartialEq)]
struct Run {
    seed: u64,
    events: Vec<Event>,
    /// The number of ranks that have arrived at the barrier.
    arrived: usize,
    /// The last results of each rank; `None` if it has crashed.
    last: Vec<Option<Last>>,
    /// The counter and the register at the end. Empty if they have no value.
    counter: Vec<u8>,
    register: Vec<u8>,
    /// The number of clients of the host after all ranks but the host's have ended.
    clients: usize,
    steps: Vec<Step>,
}

/// The state of a run that its ranks share.
struct Shared {
    seed: u64,
    size: u32,
    runtime: Arc<Seeded>,
    moments: AtomicUsize,
    events: Mutex<Vec<Event>>,
    arrived: AtomicUsize,
    /// The number of ranks that have ended, and the event that is notified when it has grown.
    ended: AtomicUsize,
    one_ended: runtime::Event,
}

impl Shared {
    fn now(&self) -> Moment {
        Moment { number: self.moments.fetch_add(1, Relaxed), time: Instant::now() }
    }

    /// Performs an operation, and records it. Returns the answer.
    fn perform(&self, store: &TcpStore, op: Op) -> Option<Answer> {
        let index = {
            let mut events = self.events.lock().unwrap();
            events.push(Event { op: op.clone(), called: self.now(), ended: None, answer: None });
            events.len() - 1
        };
        let left = |at: &Instant| Deadline::after(at.saturating_duration_since(Instant::now()));
        let answer = match &op {
            Op::Count => store.add(COUNTER, 1).map(Answer::Sum),
            Op::Swap { expected, new } => store.compare_set(REGISTER, expected, new).map(Answer::Value),
            Op::Set { key } => store.set(key, key.as_bytes()).map(|()| Answer::Done),
            Op::Wait { keys, deadline } => {
                let keys: Vec<_> = keys.iter().map(String::as_str).collect();
                store.multi_get(&keys, left(deadline)).map(Answer::Values)
            }
            Op::Watch { deadline } => store.wait(&[QUEUE], left(deadline)).map(|()| Answer::Done),
            Op::Push { token } => store.queue_push(QUEUE, token).map(|()| Answer::Done),
            Op::Pop { deadline } => store.queue_pop(QUEUE, left(deadline)).map(Answer::Value),
        };
        let answer = match answer {
            Ok(answer) => Some(answer),
            Err(StoreError::Timeout { keys, .. }) => Some(Answer::TimedOut(keys)),
            Err(StoreError::Refused { .. } | StoreError::HostDied { .. } | StoreError::TurnedAway { .. }) => {
                None
            }
            Err(error) => panic!("seed {}: {op:?}: {error}", self.seed),
        };
        let event = &mut self.events.lock().unwrap()[index];
        (event.ended, event.answer) = (Some(self.now()), answer.clone());
        answer
    }

    /// Performs random operations.
    fn operate(&self, store: &TcpStore, rank: u32, random: &mut Random) {
        let weights: [u64; 7] = std::array::from_fn(|_| [0, 1, 1, 4][random.below(4) as usize]);
        let mut seen = Vec::new();
        for number in 0..OPERATIONS {
            if random.below(2) == 0 {
                runtime::sleep(random.time(Duration::from_millis(300)));
            }
            if random.below(16) == 0 {
                stranger(random);
            }
            let token = || format!("{rank} {number}{}", "-".repeat(number % 3 * 30)).into_bytes();
            let key = |random: &mut Random| format!("key {}", random.below(KEYS));
            let deadline = Instant::now() + random.time(Duration::from_secs(3));
            let mut choice = random.below(weights.iter().sum::<u64>().max(1));
            let chosen = weights.iter().position(|weight| {
                let rest = choice.checked_sub(*weight);
                choice = rest.unwrap_or(choice);
                rest.is_none()
            });
            let op = match chosen {
                Some(0) => Op::Swap { expected: seen.clone(), new: token() },
                Some(1) => Op::Set { key: key(random) },
                Some(2) => Op::Wait { keys: (0..random.below(4)).map(|_| key(random)).collect(), deadline },
                Some(3) => Op::Watch { deadline },
                Some(4) => Op::Push { token: token() },
                Some(5) => Op::Pop { deadline },
                _ => Op::Count,
            };
            let swaps = matches!(op, Op::Swap { .. });
            let answer = self.perform(store, op);
            if let Some(Answer::Value(value)) = answer.filter(|_| swaps) {
                seen = value;
            }
        }
    }

    /// Runs a rank: its operations, a barrier and an agreement of all ranks.
    fn body(&self, store: &TcpStore, rank: u32) -> Last {
        let mut random = Random::new(self.seed << 8 | u64::from(rank));
        self.operate(store, rank, &mut random);
        self.arrived.fetch_add(1, Relaxed);
        let deadline = Deadline::after(Duration::from_secs(60));
        let barrier = barrier(store, "end", rank as usize, self.size as usize, deadline).is_ok();
        let time = random.time(Duration::from_secs(3));
        Last { barrier, agreement: agree(store, "sum", (rank, self.size), PATIENCE, time) }
    }

    fn options(&self) -> TcpOptions {
        let limits = ServerLimits::default();
        let limits = match self.seed % 2 {
            0 => limits,
            // The server does little work per tick, so that it serves requests in pieces.
            _ => ServerLimits {
                tick: 1 + self.seed as usize % 24,
                at_once: 1 + self.seed as usize % 17,
                ..limits
            },
        };
        let options = TcpStore::options().limits(limits).patience(PATIENCE);
        match self.seed % 3 {
            0 => options.secret(Secret::new("a secret of the ranks").unwrap()),
            _ => options,
        }
    }

    /// Runs a rank. Returns `None` if it crashes.
    fn rank(&self, rank: u32) -> Option<Last> {
        let crashes = rank == 1 && self.seed % 4 < 2;
        if crashes {
            self.runtime.crash_after(1 + Random::new(self.seed).below(400));
        }
        let run = || {
            let connect = || self.options().connect(ADDRESS, Deadline::after(PATIENCE));
            // Connecting fails only if the seed cuts every attempt until `PATIENCE` has passed.
            self.body(&connect().unwrap(), rank)
        };
        let last = catch_unwind(AssertUnwindSafe(run));
        self.ended.fetch_add(1, Relaxed);
        self.one_ended.notify_all();
        match last {
            Ok(last) => Some(last),
            Err(_) if crashes => None,
            Err(payload) => std::panic::resume_unwind(payload),
        }
    }

    /// Runs the rank that hosts the store, until all others have ended. Then pops all elements that are left in the
    /// queue. Returns its last results, the counter, the register, and the number of clients that have not
    /// disconnected.
    fn host(&self) -> (Last, [Vec<u8>; 2], usize) {
        let address = ADDRESS.parse::<std::net::SocketAddr>().unwrap();
        let store = loop {
            // The host is a client of itself, so a fault may end its first connection.
            if let Ok(store) = self.options().host(address.port(), Deadline::after(PATIENCE)) {
                break store;
            }
        };
        let last = self.body(&store, 0);
        loop {
            let seen = self.one_ended.count();
            if self.ended.load(Relaxed) + 1 == self.size as usize {
                break;
            }
            runtime::wait(&self.one_ended, seen, Duration::MAX);
        }
        let clients = store.drain(Deadline::after(Duration::from_secs(60)));
        let pop = || self.perform(&store, Op::Pop { deadline: Instant::now() });
        while !matches!(pop(), Some(Answer::TimedOut(_))) {}
        let read = |key| loop {
            match store.get(key, Deadline::now()) {
                Ok(value) => break value,
                Err(StoreError::Timeout { .. }) => break Vec::new(),
                Err(_) => {}
            }
        };
        (last, [read(COUNTER), read(REGISTER)], clients)
    }
}

/// Connects, sends random bytes, sometimes after a valid greeting, and disconnects.
fn stranger(random: &mut Random) {
    let Ok(mut socket) = runtime::connect(ADDRESS.parse().unwrap(), PROMPT) else { return };
    let mut bytes = if random.below(2) == 0 { crate::GREETING.to_vec() } else { Vec::new() };
    // A request of these bytes practically never contains the name of a key that ranks use.
    bytes.extend((0..random.below(40)).map(|_| random.below(20) as u8));
    let _ = socket.write_all(&bytes, PROMPT);
    let _ = socket.read(&mut [0; 100], Some(random.time(PROMPT)));
}

fn run(seed: u64) -> Run {
    let faults = match seed % 5 {
        0 => SocketFaults::default(),
        _ => SocketFaults { refused: 20, cut: 40 + 60 * (seed % 7) },
    };
    let (size, runtime) = (2 + (seed % 4) as u32, Arc::new(Seeded::with_faults(faults)));
    let shared = Arc::new(Shared {
        seed,
        size,
        runtime: runtime.clone(),
        moments: AtomicUsize::new(0),
        events: Mutex::default(),
        arrived: AtomicUsize::new(0),
        ended: AtomicUsize::new(0),
        one_ended: runtime::Event::new("the ranks to end"),
    });
    let of_ranks = shared.clone();
    let (results, steps) = run_on(runtime, seed, size, move |rank| match rank {
        0 => {
            let (last, read, clients) = of_ranks.host();
            (Some(last), Some((read, clients)))
        }
        rank => (of_ranks.rank(rank), None),
    });
    let mut results = results.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    let ([counter, register], clients) = results[0].1.take().unwrap();
    let last = results.into_iter().map(|(last, _)| last).collect();
    let events = std::mem::take(&mut *shared.events.lock().unwrap());
    let arrived = shared.arrived.load(Relaxed);
    Run { seed, events, arrived, last, counter, register, clients, steps }
}

#[test]
fn ranks_see_one_order_and_a_seed_gives_the_same_run() {
    let (mut answered, mut broken, mut crashed, mut agreed, mut failed) = (0, 0, 0, 0, 0);
    let seeds = 200 * crate::test_effort();
    for seed in 0..seeds {
        let (first, second) = (run(seed), run(seed));
        assert!(first == second, "seed {seed} gives two different runs");
        first.judge();
        answered += first.events.iter().filter(|event| event.answer.is_some()).count();
        broken += first.events.iter().filter(|event| event.ended.is_some() && event.answer.is_none()).count();
        crashed += first.last.iter().filter(|last| last.is_none()).count();
        let is_agreed = |last: &Last| last.agreement.is_ok();
        agreed += usize::from(first.last.iter().flatten().all(is_agreed));
        let is_absent = |last: &Last| matches!(last.agreement, Err(Ending::Failed(Failure::Absent { .. })));
        failed += usize::from(first.last.iter().flatten().any(is_absent));
    }
    println!(
        "{seeds} runs: {answered} operations answered, {broken} broken; {crashed} ranks crashed; {agreed} agreements, {failed} without a rank"
    );
    // If these numbers were small, the checks above would test little.
    assert!(answered as u64 > seeds * 20 && broken as u64 > seeds && crashed as u64 > seeds / 5);
    assert!(agreed as u64 > seeds / 5 && failed as u64 > seeds / 20);
}
