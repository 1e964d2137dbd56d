//! Tests of the interleavings of threads. Each test is a program of a few threads, which a checker runs in many orders.
//!
//! - Built with `--cfg loom`: runs [`models`] and [`captures`], in every order with at most `LOOM_MAX_PREEMPTIONS` (3
//!   unless set) preemptions of a runnable thread. Some models have at most 3, even if that variable is greater. Steps
//!   on different locks and atomics are independent of each other. Of several orders that differ only in the order of
//!   independent steps, loom runs one. Loom does not see the reference counts of `Arc` (see [`sync`](crate::sync)), so
//!   it does not try different orders of their changes.
//! - Built with `--cfg shuttle`: runs these and [`flows`], in `SHUTTLE_ORDERS` random orders (300 unless set). Then runs
//!   them in as many orders of the PCT scheduler with depth 3: the thread with the highest priority runs, and at two
//!   random steps the running thread gets the lowest priority.
//! - Otherwise: runs all of them 30 times each, on threads of the operating system, in the order of its scheduler.
//!
//! A program checks visible effects. No two blocks in its [`Ledger`] overlap. At its end, the source, the streams and
//! the statistics show that nothing is in use. A [`Reader`] is a tracker, and checks that the trace entries that it
//! got are consistent. The source, the streams and the readers also check that their caller holds no lock that a hit
//! takes. A hit is a request that its stream's cache serves.

mod captures;
#[cfg(not(loom))]
mod flows;
mod models;
mod reader;
mod source;
mod streams;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::*;
use crate::host::HostSource;
use reader::Reader;
use source::Source;
use streams::Streams;

#[cfg(loom)]
use loom::thread;
#[cfg(shuttle)]
use shuttle::thread;
#[cfg(not(any(loom, shuttle)))]
use std::thread;

const MIB: u64 = 1 << 20;
/// The length of a block of which the quick list can cache many. The quick list caches freed blocks without merging
/// them.
const SHORT: u64 = 1000;
/// The length of a block of which the quick list can cache one.
const LONG: u64 = 3 * MIB;

#[cfg(loom)]
fn check(program: impl Fn() + Send + Sync + 'static) {
    check_within(usize::MAX, program);
}

/// Checks a program with at most this many preemptions, even if `LOOM_MAX_PREEMPTIONS` is greater.
#[cfg(loom)]
fn check_within(preemptions: usize, program: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    let bound = builder.preemption_bound.unwrap_or(3);
    builder.preemption_bound = Some(bound.min(preemptions));
    builder.max_branches = 100_000;
    builder.check(program);
}

#[cfg(not(loom))]
fn check_within(_preemptions: usize, program: impl Fn() + Send + Sync + 'static) {
    check(program);
}

#[cfg(shuttle)]
fn check(program: impl Fn() + Send + Sync + 'static) {
    let orders = std::env::var("SHUTTLE_ORDERS").ok().and_then(|number| number.parse().ok()).unwrap_or(300);
    let program = Arc::new(program);
    let again = program.clone();
    shuttle::check_random(move || program(), orders);
    shuttle::check_pct(move || again(), orders, 3);
}

#[cfg(not(any(loom, shuttle)))]
fn check(program: impl Fn() + Send + Sync + 'static) {
    (0..30).for_each(|_| program());
}

/// An allocator with its source and streams, which are checked at the end, and the ledger of its blocks.
#[derive(Clone)]
struct Program {
    source: Arc<HostSource>,
    streams: Arc<Streams>,
    allocator: Allocator,
    ledger: Arc<Ledger>,
}

/// The blocks that are handed out, as a map from the first address to the end address. The lock is that of the standard
/// library, so a checker does not see it. Under a checker no thread waits for it, because the checker never switches
/// threads while it is held.
#[derive(Default)]
struct Ledger(Mutex<BTreeMap<u64, u64>>);

/// A block that is in the ledger.
#[derive(Debug)]
struct Owned {
    /// `None` once dropped.
    block: Option<Block>,
    ledger: Arc<Ledger>,
}

impl std::fmt::Debug for Ledger {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Ledger")
    }
}

impl Program {
    fn new(capacity: u64) -> Self {
        Self::with(capacity, Settings::default())
    }

    fn with(capacity: u64, settings: Settings) -> Self {
        Self::made(capacity, |source, streams| Allocator::new(source, streams, Self::small(settings)))
    }

    fn remapping(capacity: u64) -> Self {
        Self::made(capacity, |source, streams| {
            Allocator::remapping(source, streams, Self::small(Settings::default())).unwrap()
        })
    }

    fn small(settings: Settings) -> Settings {
        Settings {
            large_segment: 4 * MIB,
            small_segment: 2 * MIB,
            quick_list_bytes: MIB,
            ring_entries: 16,
            ..settings
        }
    }

    fn made(capacity: u64, make: impl FnOnce(Arc<Source>, Arc<Streams>) -> Allocator) -> Self {
        let (source, streams) = (Arc::new(HostSource::new(capacity)), Arc::new(Streams::new()));
        let allocator = make(Arc::new(Source(source.clone())), streams.clone());
        Self { source, streams, allocator, ledger: Arc::default() }
    }

    fn pool(&self, settings: PoolSettings) -> Pool {
        self.allocator.pool(PoolSettings { name: "private".into(), ..settings }).unwrap()
    }

    /// Calls `work` with this program on another thread.
    fn spawn<R: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> R + Send + 'static,
    ) -> thread::JoinHandle<R> {
        let program = self.clone();
        thread::spawn(move || work(&program))
    }

    fn own(&self, block: Block) -> Owned {
        let mut ledger = self.ledger.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (first, end) = (block.address(), block.address() + block.bytes());
        let below = ledger.range(..end).next_back();
        assert!(below.is_none_or(|(_, end)| *end <= first), "{block:?} is out already: {below:x?}");
        ledger.insert(first, end);
        Owned { block: Some(block), ledger: self.ledger.clone() }
    }

    /// Allocates from the allocator, in the pool that it selects.
    fn allocate(&self, bytes: u64, stream: u64) -> Owned {
        self.own(self.allocator.allocate(bytes, StreamId(stream)).unwrap())
    }

    fn allocate_from(&self, pool: &Pool, bytes: u64, stream: u64) -> Owned {
        self.own(pool.allocate(bytes, StreamId(stream)).unwrap())
    }

    /// Checks that nothing is left in use: no block is handed out, no event is live, all memory can be released, and no
    /// reference to the allocator is left. Also checks that no fault was recorded, and no capture was invalidated.
    fn end(self) {
        let stats = self.allocator.stats();
        assert_eq!((stats.all.blocks.current, stats.all.allocated.current), (0, 0), "blocks that are out");
        self.allocator.empty_cache().unwrap();
        let stats = self.allocator.stats();
        assert_eq!((stats.all.active.current, stats.reserved.current), (0, 0), "memory that is in use");
        assert_eq!(self.source.calls().live_bytes, 0, "memory that the source misses");
        assert_eq!(self.streams.live_events(), 0, "events that nobody waits for any more");
        assert_eq!(self.streams.invalidated(), 0, "queries of events that a capture has recorded");
        assert!(self.allocator.faults().is_empty(), "{:?}", self.allocator.faults());
        let registry = Arc::downgrade(&self.allocator.engine().registry);
        drop(self);
        assert_eq!(registry.strong_count(), 0, "somebody keeps the allocator");
    }
}

impl Owned {
    fn block(&self) -> &Block {
        self.block.as_ref().unwrap()
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        let Some(block) = self.block.take() else { return };
        self.ledger.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&block.address());
        drop(block);
    }
}
