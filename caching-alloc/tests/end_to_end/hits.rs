//! A hit, which is a request that cached memory serves, allocates nothing on the host and calls neither source nor
//! streams, with trackers or without.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::common::hooked::{Call, HookedStreams, StreamHook};
use super::common::{MIB, s};
use caching_alloc::core::{Allocator, Block, Entry, Filter, PoolSettings, Settings, Tracker, TrackerError};
use caching_alloc::host::{HostSource, HostStreams};

struct Counting;

thread_local! {
    static CALLS: Cell<u64> = const { Cell::new(0) };
    /// Bytes that this thread has allocated and not freed; negative if it frees memory of other threads.
    static HELD: Cell<i64> = const { Cell::new(0) };
}

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CALLS.set(CALLS.get() + 1);
        HELD.set(HELD.get() + layout.size() as i64);
        // SAFETY: the caller keeps the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        CALLS.set(CALLS.get() + 1);
        HELD.set(HELD.get() - layout.size() as i64);
        // SAFETY: the caller keeps the contract.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// Returns the bytes that this thread has allocated on the heap and not freed.
pub(crate) fn held_bytes() -> i64 {
    HELD.get()
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Counts calls of streams.
#[derive(Debug, Default)]
struct CallCount(AtomicU64);

impl StreamHook for CallCount {
    fn before(&self, _: Call) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

type Asked = HookedStreams<CallCount>;

/// A tracker that ignores all entries.
struct Deaf;

impl Tracker for Deaf {
    fn name(&self) -> &str {
        "deaf"
    }
    fn observe(&self, _: &[Entry]) -> Result<(), TrackerError> {
        Ok(())
    }
}

/// Allocates and frees blocks of many sizes, and keeps some for a while.
fn churn(allocator: &Allocator, blocks: &mut [Option<Block>]) {
    let mut numbers = 1u64;
    for _ in 0..20_000 {
        numbers = numbers.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let at = (numbers >> 33) as usize % blocks.len();
        let limit = [1000, 50_000, 3 * MIB][(numbers >> 20) as usize % 3];
        blocks[at] = None;
        blocks[at] = Some(allocator.allocate((numbers >> 40) % limit + 1, s(1)).unwrap());
    }
    blocks.iter_mut().for_each(|block| *block = None);
}

/// Makes the allocator.
type Make = fn(Arc<HostSource>, Arc<Asked>, Settings) -> Allocator;

/// Checks that hits cost nothing: without a tracker, with a tracker of structural entries, and with one of all
/// entries.
fn check_hits(make: Make) {
    for filter in [None, Some(Filter::structural()), Some(Filter::all())] {
        let source = Arc::new(HostSource::new(u64::MAX));
        let settings = Settings {
            large_segment: 1 << 30,
            small_segment: 64 * MIB,
            ring_entries: 1 << 10,
            ..Settings::default()
        };
        let streams = Arc::new(Asked::default());
        let allocator = make(source.clone(), streams.clone(), settings);
        let _attachment = filter.map(|filter| allocator.attach(Arc::new(Deaf), filter).unwrap());
        let mut blocks: Vec<Option<Block>> = (0..200).map(|_| None).collect();
        // These two requests make segments with room for all blocks. The loop then repeats the same requests until
        // all tables have their final lengths. A free block of a length that has not occurred before can still
        // lengthen a table.
        allocator.allocate(1, s(1)).unwrap();
        allocator.allocate(1 << 30, s(1)).unwrap();
        let cost = || {
            let asked = streams.hook.0.load(Ordering::Relaxed);
            (CALLS.get(), asked, source.calls(), allocator.generation())
        };
        let mut free_of_cost = 0;
        for _ in 0..200 {
            let before = cost();
            churn(&allocator, &mut blocks);
            free_of_cost = if cost() == before { free_of_cost + 1 } else { 0 };
            if free_of_cost == 4 {
                break;
            }
        }
        assert_eq!(free_of_cost, 4, "80,000 requests cost nothing outside, with {filter:?}: {:?}", cost());
    }
}

#[test]
fn a_hit_costs_nothing_outside_the_allocator() {
    check_hits(|source, streams, settings| Allocator::new(source, streams, settings));
}

#[test]
fn nor_does_one_of_memory_that_moves() {
    check_hits(|source, streams, settings| Allocator::remapping(source, streams, settings).unwrap());
}

#[test]
fn pools_that_come_and_go_leave_nothing_on_the_host() {
    const POOLS: i64 = 2000;
    // Few ring entries, so that a cache is small.
    let settings = Settings { ring_entries: 1, structural_entries: 1, ..Settings::default() };
    let allocator =
        Allocator::new(Arc::new(HostSource::new(u64::MAX)), Arc::new(HostStreams::new()), settings);
    let come_and_go = || {
        let pool = allocator.pool(PoolSettings::default()).unwrap();
        drop(pool.allocate(1, s(1)).unwrap());
    };
    (0..POOLS).for_each(|_| come_and_go());
    let held = HELD.get();
    (0..POOLS).for_each(|_| come_and_go());
    let left = HELD.get() - held;
    // Other tests run at the same time, and may take the slots of dropped caches. Then new slots are allocated here.
    assert!(left < 100 * POOLS, "{left} bytes of {POOLS} pools");
}
