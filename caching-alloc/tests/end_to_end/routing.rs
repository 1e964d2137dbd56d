//! Selection of the pool for a request: by thread, by capture, and, before a request fails for lack of memory, by
//! lending.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use super::common::hooked::{Call, HookedStreams, StreamHook};
use super::common::{Bench, MIB, bench, s, tight};
use caching_alloc::core::{AllocError, Allocator, Block, GraphPool, Pool, PoolId, PoolKind, PoolSettings};
use caching_alloc::host::HostSource;

fn pool(allocator: &Allocator) -> Pool {
    allocator.pool(PoolSettings::default()).unwrap()
}

fn graph_pool(allocator: &Allocator) -> GraphPool {
    allocator.graph_pool(PoolSettings { name: "graphs".into(), ..PoolSettings::default() }).unwrap()
}

#[test]
fn guards_nest_on_their_thread_alone() {
    let here = bench(u64::MAX, tight());
    let elsewhere = bench(u64::MAX, tight());
    let (outer, inner) = (pool(&here.allocator), pool(&here.allocator));
    let asked = |allocator: &Allocator| allocator.allocate(1, s(1)).unwrap().pool();
    let default = here.allocator.default_pool().id();
    let first = outer.use_on_this_thread();
    assert_eq!(asked(&here.allocator), outer.id());
    let second = inner.use_on_this_thread();
    assert_eq!(asked(&here.allocator), inner.id());
    assert_eq!(here.allocator.pool_for(1, s(9)).id(), inner.id());
    assert_eq!(asked(&elsewhere.allocator), elsewhere.allocator.default_pool().id(), "another allocator");
    thread::scope(|scope| {
        let other = scope.spawn(|| asked(&here.allocator)).join().unwrap();
        assert_eq!(other, default, "another thread");
    });
    assert_eq!(here.allocator.default_pool().allocate(1, s(1)).unwrap().pool(), default, "by name");
    // The guards may be dropped in any order.
    drop(first);
    assert_eq!(asked(&here.allocator), inner.id());
    drop(second);
    assert_eq!(asked(&here.allocator), default);
}

#[test]
fn a_guard_with_a_predicate_routes_what_it_selects() {
    let Bench { allocator, .. } = bench(u64::MAX, tight());
    let (long, odd) = (pool(&allocator), pool(&allocator));
    assert_eq!(long.use_count(), 1);
    let _long = long.use_on_this_thread_if(|request| request.bytes >= MIB);
    let _odd = odd.use_on_this_thread_if(|request| request.stream.0 % 2 == 1);
    assert_eq!((long.use_count(), long.clone().use_count()), (2, 3));
    let pool_of = |bytes, stream| allocator.allocate(bytes, s(stream)).unwrap().pool();
    assert_eq!(pool_of(2 * MIB, 2), long.id());
    assert_eq!(pool_of(2 * MIB, 3), odd.id(), "the newest guard that selects it");
    assert_eq!(pool_of(1000, 2), PoolId::default(), "none selects it");
    assert_eq!(allocator.pool_for(MIB, s(2)).id(), long.id());
    let elsewhere = allocator.clone();
    let other = thread::spawn(move || elsewhere.allocate(2 * MIB, s(2)).unwrap().pool());
    assert_eq!(other.join().unwrap(), PoolId::default());
}

#[test]
fn a_predicate_may_request_memory_and_change_guards() {
    let Bench { allocator, .. } = bench(u64::MAX, tight());
    let (plain, inner, outer) = (pool(&allocator), pool(&allocator), pool(&allocator));
    let asked = || allocator.allocate(1000, s(1)).unwrap().pool();
    let plain_guard = plain.use_on_this_thread();
    let inner_guard = inner.use_on_this_thread_if(|_| true);
    let nested = Rc::new(Cell::new(None));
    let guards = Rc::new(RefCell::new(vec![inner_guard]));
    let guard = outer.use_on_this_thread_if({
        let (allocator, inner) = (allocator.clone(), inner.clone());
        let (nested, guards) = (nested.clone(), guards.clone());
        move |_| {
            nested.set(Some(allocator.allocate(1000, s(1)).unwrap().pool()));
            guards.borrow_mut().pop();
            let _brief = inner.use_on_this_thread();
            assert_eq!(allocator.pool_for(1, s(1)).id(), inner.id(), "a guard without a predicate applies");
            false
        }
    });
    assert_eq!(asked(), plain.id(), "the predicate has dropped the guard of `inner`");
    assert_eq!(nested.get(), Some(plain.id()), "guards with predicates did not apply");
    drop(guard);
    assert_eq!((inner.use_count(), outer.use_count()), (1, 1));

    // After the panic of a predicate, predicates are called again.
    let guard = inner.use_on_this_thread_if(|request| request.bytes == 1000 || panic!("no such request"));
    catch_unwind(AssertUnwindSafe(|| allocator.allocate(1, s(1)))).unwrap_err();
    assert_eq!(asked(), inner.id());
    drop((guard, plain_guard));
    assert_eq!(asked(), PoolId::default());
}

#[test]
fn a_guard_keeps_its_pool_and_gives_it_up() {
    let Bench { source, allocator, .. } = bench(u64::MAX, tight());
    let guard = pool(&allocator).use_on_this_thread();
    let block = allocator.allocate(3 * MIB, s(1)).unwrap();
    assert_ne!(block.pool(), allocator.default_pool().id());
    drop(block);
    drop(guard);
    assert_eq!(source.calls().live_bytes, 0, "nobody has the pool any more");
}

#[test]
fn a_capture_takes_its_streams_on_every_thread() {
    let Bench { allocator, .. } = bench(u64::MAX, tight());
    let (graphs, private) = (graph_pool(&allocator), pool(&allocator));
    let asked = |stream| allocator.allocate(1, s(stream)).unwrap().pool();
    let default = allocator.default_pool().id();
    let _private = private.use_on_this_thread();
    let capture = graphs.capture(&[s(1)]);
    assert_eq!([asked(1), asked(2)], [graphs.id(), private.id()]);
    thread::scope(|scope| {
        let other = scope.spawn(|| [asked(1), asked(2)]).join().unwrap();
        assert_eq!(other, [graphs.id(), default]);
    });
    capture.add_stream(s(2));
    assert_eq!(asked(2), graphs.id());
    // The guard made last counts.
    let inner = pool(&allocator);
    let guard = inner.use_on_this_thread();
    assert_eq!(asked(1), inner.id());
    drop(guard);
    let memory = capture.end();
    assert_eq!([asked(1), asked(2)], [private.id(); 2]);
    assert_eq!(memory.pool().id(), graphs.id());
}

#[test]
fn what_a_graph_has_stays_as_long_as_the_graph() {
    let bench = bench(64 * MIB, tight());
    let Bench { source, allocator, streams } = &bench;
    let graphs = graph_pool(allocator);
    let record = |bytes: u64| {
        let capture = graphs.capture(&[s(1)]);
        streams.set_capturing(s(1), true);
        let block = allocator.allocate(bytes, s(1)).unwrap();
        let address = block.address();
        drop(block);
        assert_eq!(allocator.allocate(bytes, s(1)).unwrap().address(), address, "within the capture");
        assert!(format!("{allocator:?}").contains("Pool"), "it can be looked at, though it goes in circles");
        streams.set_capturing(s(1), false);
        (address, capture.end())
    };
    let (first, one) = record(30 * MIB);
    let (second, two) = record(20 * MIB);
    assert_eq!(first, second, "captures that share a pool share its memory");
    let held = one.segments().next().unwrap().clone();
    assert_eq!(held.holders().len(), 2);
    assert!(held.holders()[0].contains("graphs"));

    // Neither a trim nor a lack of memory releases the graphs' memory, on any stream.
    assert_eq!(allocator.empty_cache().unwrap(), 0);
    for stream in [1, 2] {
        assert!(matches!(allocator.allocate(50 * MIB, s(stream)), Err(AllocError::OutOfMemory(_))));
    }
    let other = allocator.allocate(30 * MIB, s(1)).unwrap();
    assert_ne!(other.segment(), held);
    drop(other);
    drop(one);
    allocator.empty_cache().unwrap();
    assert_eq!(graphs.stats().reserved.current, held.bytes(), "the other graph still has it");
    drop(graphs);
    assert!(held.hold("still there").is_ok());
    drop(two);
    allocator.empty_cache().unwrap();
    assert_eq!(source.calls().live_bytes, 0);
    assert!(allocator.faults().is_empty(), "{:?}", allocator.faults());
}

#[test]
fn a_capture_that_is_dropped_keeps_nothing() {
    let Bench { source, allocator, .. } = bench(u64::MAX, tight());
    let graphs = graph_pool(&allocator);
    let capture = graphs.capture(&[s(1)]);
    drop(allocator.allocate(3 * MIB, s(1)).unwrap());
    drop(capture);
    // The warm-up has made enough segments for the following capture.
    let _freeze = graphs.freeze();
    let capture = graphs.capture(&[s(1)]);
    drop(allocator.allocate(3 * MIB, s(1)).unwrap());
    let error = allocator.allocate(30 * MIB, s(1)).unwrap_err();
    assert!(matches!(error, AllocError::PoolWouldGrowDuringCapture { .. }), "{error}");
    drop((capture, _freeze));
    allocator.empty_cache().unwrap();
    assert_eq!(source.calls().live_bytes, 0);
}

#[test]
fn graphs_have_pools_of_segments_that_stay() {
    let Bench { allocator, .. } = bench(u64::MAX, tight());
    for settings in [
        PoolSettings { kind: PoolKind::Remappable, ..PoolSettings::default() },
        PoolSettings { lends: true, ..PoolSettings::default() },
        PoolSettings { borrows: true, ..PoolSettings::default() },
    ] {
        let error = allocator.graph_pool(settings).unwrap_err();
        assert!(matches!(error, AllocError::PoolSettings { .. }), "{error}");
    }
    let whole = PoolSettings { kind: PoolKind::NoSplit, ..PoolSettings::default() };
    assert!(allocator.graph_pool(whole).is_ok());
}

/// Makes a pool that has 12 of the 16 MiB of memory. 8 of its 12 MiB are free on stream 1, whose work has not ended.
/// The default pool has no memory.
fn poor(lends: bool) -> (Bench, Pool, Block) {
    let bench = bench(16 * MIB, tight());
    let pool = bench.allocator.pool(PoolSettings { lends, ..PoolSettings::default() }).unwrap();
    let keep = pool.allocate(4 * MIB, s(1)).unwrap();
    drop(pool.allocate(8 * MIB, s(1)).unwrap());
    bench.streams.enqueue(s(1));
    (bench, pool, keep)
}

#[test]
fn a_pool_lends_before_the_default_pool_is_out_of_memory() {
    for lends in [true, false] {
        let (bench, pool, _keep) = poor(lends);
        let before = bench.source.calls();
        let block = bench.allocator.allocate(7 * MIB, s(1)).unwrap();
        assert_eq!(block.pool() == pool.id(), lends);
        // Without lending, a segment must be released and another one allocated.
        assert_eq!(bench.source.calls().release - before.release, u64::from(!lends));
        assert_eq!(bench.allocator.stats().borrowed, u64::from(lends));
        let address = block.address();
        drop(block);
        if lends {
            assert_eq!(pool.allocate(7 * MIB, s(1)).unwrap().address(), address, "it goes home");
        }
    }
}

#[test]
fn what_is_lent_to_another_stream_is_ordered() {
    let (bench, pool, _keep) = poor(true);
    let block = bench.allocator.allocate(7 * MIB, s(2)).unwrap();
    assert_eq!((block.pool(), block.stream()), (pool.id(), s(2)));
    assert_eq!(bench.streams.waits(), [(s(2), s(1))]);
    bench.streams.enqueue(s(2));
    let address = block.address();
    drop(block);
    let again = pool.allocate(7 * MIB, s(1)).unwrap();
    assert_eq!(again.address(), address);
    assert_eq!(bench.streams.waits().last(), Some(&(s(1), s(2))));
}

/// Drops a pool when an event is recorded on stream 1.
#[derive(Debug, Default)]
struct DropsPool(Mutex<Option<Pool>>);

impl StreamHook for DropsPool {
    fn before(&self, call: Call) {
        if call == Call::Record(s(1)) {
            let pool = self.0.lock().unwrap().take();
            // On another thread, so that a lock that the drop needs makes the test fail and not hang.
            let (done, is_done) = mpsc::channel();
            thread::spawn(move || {
                drop(pool);
                let _ = done.send(());
            });
            is_done.recv_timeout(Duration::from_secs(10)).expect("no lock on the lender's memory is held");
        }
    }
}

#[test]
fn a_pool_that_is_dropped_while_it_is_about_to_lend_does_not_lend() {
    let streams = Arc::new(HookedStreams::<DropsPool>::default());
    let source = Arc::new(HostSource::new(4 * MIB));
    let allocator = Allocator::new(source.clone(), streams.clone(), tight());
    let lender = allocator.pool(PoolSettings { lends: true, ..PoolSettings::default() }).unwrap();
    drop(lender.allocate(3 * MIB, s(1)).unwrap());
    *streams.hook.0.lock().unwrap() = Some(lender);
    let block = allocator.allocate(3 * MIB, s(2)).unwrap();
    assert!(streams.hook.0.lock().unwrap().is_none(), "the lender is gone");
    assert_eq!(block.pool(), allocator.default_pool().id());
    assert_eq!(source.calls().release, 1, "of the lender's segment");
}

#[test]
fn a_pool_borrows_only_if_it_is_to() {
    for borrows in [true, false] {
        let bench = bench(16 * MIB, tight());
        drop(bench.allocator.allocate(16 * MIB, s(1)).unwrap());
        let keep = bench.allocator.allocate(4 * MIB, s(1)).unwrap();
        let own = Arc::new(HostSource::at(0x10_0000_0000, 4 * MIB));
        let settings = PoolSettings { source: Some(own.clone()), borrows, ..PoolSettings::default() };
        let pool = bench.allocator.pool(settings).unwrap();
        let got = pool.allocate(8 * MIB, s(2));
        assert_eq!(got.is_ok(), borrows, "{got:?}");
        if let Ok(block) = got {
            assert_eq!((block.pool(), block.segment()), (keep.pool(), keep.segment()));
        }
        // A capture does not borrow: the lender could use the block while the graph uses it.
        bench.streams.set_capturing(s(2), true);
        let refused = pool.allocate(8 * MIB, s(2));
        assert!(matches!(refused, Err(AllocError::CaptureOutsideGraphPool { .. })), "{refused:?}");
    }
}

#[test]
fn a_pool_that_does_not_split_does_not_borrow() {
    let Bench { allocator, .. } = bench(u64::MAX, tight());
    let name = "of two minds".to_owned();
    let settings = PoolSettings { name, kind: PoolKind::NoSplit, borrows: true, ..PoolSettings::default() };
    let error = allocator.pool(settings).unwrap_err();
    assert!(error.to_string().contains("of two minds"), "{error}");
}
