//! Threads that want all the memory there is: none is told that there is not enough.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};

use super::common::pause::Pause;
use super::common::{MIB, bench, remapping_bench, s};
use caching_alloc::core::{Allocator, EventError, EventId, Settings, StreamEvents, StreamId};
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
