//! Threads that request all the memory there is: none gets an out-of-memory error.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex};

use super::common::hooked::{Call, HookedStreams, StreamHook};
use super::common::pause::Pause;
use super::common::{MIB, bench, remapping_bench, s};
use super::stress::Yields;
use caching_alloc::core::{Allocator, Block, Filter, Reuse, Settings, StreamId};
use caching_alloc::host::HostSource;

/// Stops a thread that queries an event.
#[derive(Debug, Default)]
struct PausedQuery(Pause);

impl StreamHook for PausedQuery {
    fn before(&self, call: Call) {
        if call == Call::Query {
            self.0.pass();
        }
    }
}

#[test]
fn a_block_that_another_thread_asks_about_is_not_overlooked() {
    let streams = Arc::new(HookedStreams::<PausedQuery>::default());
    let source = Arc::new(HostSource::new(64 * MIB));
    let allocator = Allocator::new(source, streams.clone(), Settings::default());
    let blocks = [(); 2].map(|()| allocator.allocate(32 * MIB, s(1)).unwrap());
    streams.host.enqueue(s(2));
    blocks.iter().for_each(|block| block.record_stream(s(2)).unwrap());
    drop(blocks);
    streams.hook.0.arm();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| allocator.allocate(32 * MIB, s(1)));
        streams.hook.0.wait_until_reached();
        let second = scope.spawn(|| allocator.allocate(32 * MIB, s(1)));
        streams.hook.0.release_after(&second);
        for request in [first, second] {
            request.join().unwrap().expect("there is room for both");
        }
    });
}

/// Runs threads that each allocate a block of `bytes`, record a use by an idle stream, and free the block, `rounds`
/// times. Checks that no request fails.
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
            // While a tracker is called, memory that moves between caches or to the source is in no cache.
            let yields = bench.allocator.attach(Arc::new(Yields), Filter::all()).unwrap();
            fill(&bench.allocator, threads, one_stream, bytes, 4_000 / threads as u32);
            yields.detach().unwrap();
            assert_eq!(bench.allocator.stats().all.allocated.current, 0);
        }
    }
}

/// Plays another thread of the program. During calls of streams it exchanges its block of stream 1 for one of stream
/// 2, and back. One of the two is always free, but it is the one that the running request has already passed by.
#[derive(Debug, Default)]
struct Exchanges {
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

impl StreamHook for Exchanges {
    fn before(&self, call: Call) {
        match call {
            Call::Synchronize => self.exchange(s(2)),
            Call::IsCapturing(stream) if stream == s(2) => self.exchange(s(1)),
            _ => {}
        }
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
    let streams = Arc::new(HookedStreams::<Exchanges>::default());
    let source = Arc::new(HostSource::new(2 * Exchanges::BYTES + 2 * MIB));
    let allocator = Allocator::new(source, streams.clone(), exact);
    let theirs = allocator.allocate(Exchanges::BYTES, s(1)).unwrap();
    drop(allocator.allocate(Exchanges::BYTES, s(2)).unwrap());
    // A request that finds no block waits for the end of this block's use.
    let used = allocator.allocate(512, s(3)).unwrap();
    streams.host.enqueue(s(4));
    used.record_stream(s(4)).unwrap();
    drop(used);
    *streams.hook.theirs.lock().unwrap() = Some((allocator.clone(), theirs));
    streams.hook.left.store(3, Ordering::Relaxed);
    let mine = allocator.allocate(Exchanges::BYTES, s(1)).expect("there is room for both blocks");
    assert_eq!(streams.hook.left.load(Ordering::Relaxed), 0, "blocks have moved");
    drop((mine, streams.hook.theirs.lock().unwrap().take()));
}
