//! Small programs with captures and frozen pools.

use super::*;

#[test]
fn memory_of_a_capture_is_not_trimmed() {
    check(|| {
        let program = Program::new(8 * MIB);
        let graphs = program.allocator.graph_pool(PoolSettings::default()).unwrap();
        let warm = graphs.capture(&[StreamId(1)]);
        drop(program.allocate(LONG, 1));
        drop(warm);
        let other = program.spawn(|here| _ = here.allocator.empty_cache().unwrap());
        let capture = graphs.capture(&[StreamId(1)]);
        program.streams.set_capturing(StreamId(1), true);
        let address = program.allocate(LONG, 1).block().address();
        program.streams.set_capturing(StreamId(1), false);
        let graph = capture.end();
        other.join().unwrap();
        let holds = |segment: &Segment| segment.address() <= address && address < segment.memory().end();
        assert!(graph.segments().any(holds), "the graph keeps what it uses");
        assert!(program.source.physical(address).is_some(), "and it is there");
        drop((graph, graphs));
        program.end();
    });
}

#[test]
fn an_event_that_a_capture_has_recorded_is_not_queried() {
    check(|| {
        let program = Program::new(16 * MIB);
        let block = program.allocate(LONG, 1);
        block.block().record_stream(StreamId(2)).unwrap();
        let freeing = thread::spawn(move || drop(block));
        program.streams.set_capturing(StreamId(2), true);
        let mine = program.allocate(LONG, 1);
        freeing.join().unwrap();
        program.streams.set_capturing(StreamId(2), false);
        drop(mine);
        program.end();
    });
}

#[test]
fn a_frozen_pool_does_not_grow() {
    check(|| {
        let program = Program::new(16 * MIB);
        let pool = program.pool(PoolSettings::default());
        drop(program.allocate_from(&pool, SHORT, 1));
        let here = pool.clone();
        let other = thread::spawn(move || here.allocate(LONG, StreamId(1)));
        let frozen = pool.freeze();
        let reserved = pool.stats().reserved.current;
        let theirs = other.join().unwrap();
        assert_eq!(pool.stats().reserved.current, reserved, "nothing is made for {theirs:?}");
        drop((theirs, frozen, pool));
        program.end();
    });
}

#[test]
fn a_freeze_waits_for_a_growth_that_calls_trackers() {
    check_within(3, || {
        let program = Program::new(16 * MIB);
        let reader = Reader::attach(&program.allocator, Filter::structural());
        let pool = program.pool(PoolSettings::default());
        let here = pool.clone();
        let other = thread::spawn(move || here.allocate(LONG, StreamId(1)));
        let frozen = pool.freeze();
        let blocks = pool.stats().all.blocks.total;
        let theirs = other.join().unwrap();
        assert_eq!(u64::from(theirs.is_ok()), blocks, "nothing is handed out later: {theirs:?}");
        drop((theirs, frozen, pool));
        reader.detach();
        program.end();
    });
}

#[test]
fn a_captured_request_that_a_frozen_pool_serves_is_noted() {
    check(|| {
        let program = Program::new(8 * MIB);
        let pool = program.pool(PoolSettings::default());
        drop(program.allocate_from(&pool, SHORT, 1));
        program.streams.set_capturing(StreamId(1), true);
        let here = pool.clone();
        let other = thread::spawn(move || here.freeze());
        // The request is refused if it comes before the freeze.
        let served = pool.allocate(SHORT, StreamId(1)).map(|block| block.address());
        let frozen = other.join().unwrap();
        program.streams.set_capturing(StreamId(1), false);
        assert_eq!(program.streams.noted(), Vec::from_iter(served), "the graph uses it");
        drop((frozen, pool));
        program.end();
    });
}
