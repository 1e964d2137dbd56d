//! A hit allocates nothing on the host and calls neither source nor streams; with trackers or without.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::common::{MIB, s};
use caching_alloc::core::{
    Allocator, Block, Entry, EventError, EventId, Filter, Settings, StreamEvents, StreamId, Tracker,
    TrackerError,
};
use caching_alloc::host::{HostSource, HostStreams};

struct Counting;

thread_local! {
    static CALLS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CALLS.set(CALLS.get() + 1);
        // SAFETY: the caller keeps the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        CALLS.set(CALLS.get() + 1);
        // SAFETY: the caller keeps the contract.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Streams that count how often they are asked anything.
#[derive(Debug, Default)]
struct Asked(HostStreams, AtomicU64);

impl Asked {
    fn count(&self) -> &HostStreams {
        self.1.fetch_add(1, Ordering::Relaxed);
        &self.0
    }
}

impl StreamEvents for Asked {
    fn record(&self, stream: StreamId) -> Result<EventId, EventError> {
        self.count().record(stream)
    }
    fn query(&self, event: EventId) -> Result<bool, EventError> {
        self.count().query(event)
    }
    fn wait(&self, stream: StreamId, event: EventId) -> Result<(), EventError> {
        self.count().wait(stream, event)
    }
    fn synchronize(&self, event: EventId) -> Result<(), EventError> {
        self.count().synchronize(event)
    }
    fn synchronize_device(&self) -> Result<(), EventError> {
        self.count().synchronize_device()
    }
    fn recycle(&self, event: EventId) {
        self.count().recycle(event);
    }
    fn is_capturing(&self, stream: StreamId) -> Result<bool, EventError> {
        self.count().is_capturing(stream)
    }
}

struct Structure;

impl Tracker for Structure {
    fn name(&self) -> &str {
        "structure"
    }
    fn observe(&self, _: &[Entry]) -> Result<(), TrackerError> {
        Ok(())
    }
}

/// Blocks of many sizes, some kept for a while.
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

#[test]
fn a_hit_costs_nothing_outside_the_allocator() {
    let source = Arc::new(HostSource::new(u64::MAX));
    let settings = Settings {
        large_segment: 1 << 30,
        small_segment: 64 * MIB,
        ring_entries: 1 << 10,
        ..Settings::default()
    };
    let streams = Arc::new(Asked::default());
    let allocator = Allocator::new(source.clone(), streams.clone(), settings);
    let _attachment = allocator.attach(Arc::new(Structure), Filter::structural()).unwrap();
    let mut blocks: Vec<Option<Block>> = (0..200).map(|_| None).collect();
    // Room for everything, and tables as long as they get; then the same again.
    allocator.allocate(1, s(1)).unwrap();
    allocator.allocate(2 * MIB, s(1)).unwrap();
    (0..8).for_each(|_| churn(&allocator, &mut blocks));
    let (calls, asked) = (source.calls(), streams.1.load(Ordering::Relaxed));
    let (host, generation) = (CALLS.get(), allocator.generation());
    churn(&allocator, &mut blocks);
    assert_eq!(CALLS.get(), host, "no allocation on the host");
    assert_eq!(streams.1.load(Ordering::Relaxed), asked, "no call about a stream");
    assert_eq!((source.calls(), allocator.generation()), (calls, generation), "no growth");
}
