//! Threads that want all the memory there is: none is told that there is not enough.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex};

use super::common::pause::Pause;
use super::common::{MIB, bench, remapping_bench, s};
use caching_alloc::core::{Allocator, Block, EventError, EventId, Reuse, Settings, StreamEvents, StreamId};
use caching_alloc::host::{HostSource, HostStreams};

/// Streams that stop a thread inside a query.
#[derive(Debug, Default)]
struct SlowQueries {
    streams: HostStreams,
    in_query: Pause,
}

impl StreamEvents for SlowQueries {
    fn record(&self, stream: StreamId) -> Result<EventId, EventError> {
        self.streams.record(stream)
    }
    fn query(&self, event: EventId) -> Result<bool, EventError> {
        self.in_query.pass();
        self.streams.query(event)
    }
    fn wait(&self, stream: StreamId, event: EventId) -> Result<(), EventError> {
        self.streams.wait(stream, event)
    }
    fn synchronize(&self, event: EventId) -> Result<(), EventError> {
        self.streams.synchronize(event)
    }
    fn synchronize_device(&self) -> Result<(), EventError> {
        self.streams.synchronize_device()
    }
    fn recycle(&self, event: EventId) {
        self.streams.recycle(event);
    }
    fn is_capturing(&self, stream: StreamId) -> Result<bool, EventError> {
        self.streams.is_capturing(stream)
    }
}

#[test]
fn a_block_that_another_thread_asks_about_is_not_overlooked() {
    let streams = Arc::new(SlowQueries::default());
    let source = Arc::new(HostSource::new(64 * MIB));
    let allocator = Allocator::new(source, streams.clone(), Settings::default());
    let blocks = [(); 2].map(|()| allocator.allocate(32 * MIB, s(1)).unwrap());
    streams.streams.enqueue(s(2));
    blocks.iter().for_each(|block| block.record_stream(s(2)).unwrap());
    drop(blocks);
    streams.in_query.arm();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| allocator.allocate(32 * MIB, s(1)));
        streams.in_query.wait_until_reached();
        let second = scope.spawn(|| allocator.allocate(32 * MIB, s(1)));
        streams.in_query.release_after(&second);
        for request in [first, second] {
            request.join().unwrap().expect("there is room for both");
        }
    });
}

/// Threads that allocate and free `bytes` each, with uses by another stream that have ended.
fn fill(allocator: &Allocator, threads: u64, one_stream: bool, bytes: u64, rounds: u32) {
    let failed = AtomicU64::new(0);
    let start = Barrier::new(threads as usize);
    std::thread::scope(|scope| {
        for thread in 1..=threads {
            let (failed, start) = (&failed, &start);
            scope.spawn(move || {
                start.wait();
                for _ in 0..rounds {
                    match allocator.allocate(bytes, s(if one_stream { 1 } else { thread })) {
                        Ok(block) => block.record_stream(s(99)).unwrap(),
                        Err(error) => {
                            if failed.fetch_add(1, Ordering::Relaxed) == 0 {
                                println!("{error}");
                            }
                        }
                    }
                }
            });
        }
    });
    assert_eq!(failed.into_inner(), 0, "{threads} threads, on one stream: {one_stream}");
}

#[test]
fn threads_that_together_want_all_memory_get_it() {
    let bytes = 20 * MIB;
    let exact = Settings { large_segment: 2 * MIB, growth_divisor: u64::MAX, ..Settings::default() };
    for (threads, one_stream) in [(2, true), (8, true), (2, false), (8, false)] {
        let capacity = threads * bytes;
        for bench in [bench(capacity, exact.clone()), remapping_bench(capacity, exact.clone())] {
            fill(&bench.allocator, threads, one_stream, bytes, 20_000 / threads as u32);
            assert_eq!(bench.allocator.stats().all.allocated.current, 0);
        }
    }
}

/// Streams in whose calls another thread of the program exchanges its block, of stream 1, for one of stream 2 and back:
/// one of the two is free always, the one that is not being looked at.
#[derive(Debug, Default)]
struct Exchanges {
    streams: HostStreams,
    theirs: Mutex<Option<(Allocator, Block)>>,
    left: AtomicU64,
}

impl Exchanges {
    const BYTES: u64 = 20 * MIB;

    fn exchange(&self, from: StreamId) {
        let mut theirs = self.theirs.lock().unwrap();
        let Some((allocator, block)) = theirs.take_if(|(_, block)| block.stream() == from) else { return };
        if self.left.load(Ordering::Relaxed) == 0 {
            *theirs = Some((allocator, block));
            return;
        }
        self.left.fetch_sub(1, Ordering::Relaxed);
        drop(block);
        let other = if from == s(1) { s(2) } else { s(1) };
        let block = allocator.allocate(Self::BYTES, other).unwrap();
        *theirs = Some((allocator, block));
    }
}

impl StreamEvents for Exchanges {
    fn record(&self, stream: StreamId) -> Result<EventId, EventError> {
        self.streams.record(stream)
    }
    fn query(&self, event: EventId) -> Result<bool, EventError> {
        self.streams.query(event)
    }
    fn wait(&self, stream: StreamId, event: EventId) -> Result<(), EventError> {
        self.streams.wait(stream, event)
    }
    fn synchronize(&self, event: EventId) -> Result<(), EventError> {
        self.exchange(s(2));
        self.streams.synchronize(event)
    }
    fn synchronize_device(&self) -> Result<(), EventError> {
        self.streams.synchronize_device()
    }
    fn recycle(&self, event: EventId) {
        self.streams.recycle(event);
    }
    fn is_capturing(&self, stream: StreamId) -> Result<bool, EventError> {
        if stream == s(2) {
            self.exchange(s(1));
        }
        self.streams.is_capturing(stream)
    }
}

#[test]
fn a_request_looks_again_when_blocks_have_moved_meanwhile() {
    let exact = Settings {
        small_segment: 2 * MIB,
        large_segment: 2 * MIB,
        growth_divisor: u64::MAX,
        reuse: Reuse::OwnStream,
        ..Settings::default()
    };
    let streams = Arc::new(Exchanges::default());
    let source = Arc::new(HostSource::new(2 * Exchanges::BYTES + 2 * MIB));
    let allocator = Allocator::new(source, streams.clone(), exact);
    let theirs = allocator.allocate(Exchanges::BYTES, s(1)).unwrap();
    drop(allocator.allocate(Exchanges::BYTES, s(2)).unwrap());
    // A request that finds nothing waits for the end of this one's use.
    let used = allocator.allocate(512, s(3)).unwrap();
    streams.streams.enqueue(s(4));
    used.record_stream(s(4)).unwrap();
    drop(used);
    *streams.theirs.lock().unwrap() = Some((allocator.clone(), theirs));
    streams.left.store(3, Ordering::Relaxed);
    let mine = allocator.allocate(Exchanges::BYTES, s(1)).expect("there is room for both blocks");
    assert_eq!(streams.left.load(Ordering::Relaxed), 0, "blocks have moved");
    drop((mine, streams.theirs.lock().unwrap().take()));
}
