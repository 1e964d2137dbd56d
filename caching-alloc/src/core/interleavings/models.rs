//! Small programs: few threads with few steps, so that a checker can try every order.

use std::any::Any;

use super::*;
use crate::sync::atomic::{AtomicBool, Ordering};

#[test]
fn a_block_freed_by_another_thread_is_found_or_not_but_never_lost() {
    check(|| {
        let program = Program::new(8 * MIB);
        let theirs = program.allocate(SHORT, 1);
        let other = thread::spawn(move || drop(theirs));
        let mine = program.allocate(SHORT, 1);
        other.join().unwrap();
        assert_eq!(program.allocator.stats().all.blocks.current, 1);
        drop(mine);
        program.end();
    });
}

#[test]
fn first_requests_of_two_threads_allocate_one_segment() {
    check(|| {
        let program = Program::new(8 * MIB);
        let other = program.spawn(|here| here.allocate(SHORT, 1));
        let mine = program.allocate(SHORT, 1);
        let theirs = other.join().unwrap();
        assert_eq!(program.source.calls().allocate, 1);
        drop((mine, theirs));
        program.end();
    });
}

#[test]
fn a_cached_block_of_an_unused_stream_is_found_by_others() {
    check(|| {
        let program = Program::new(4 * MIB);
        // The freed block stays with its stream, which no thread uses from then on. There is no other memory.
        let theirs = program.allocate(LONG, 2);
        let other = thread::spawn(move || drop(theirs));
        let mine = program.allocator.allocate(LONG, StreamId(1)).map(|block| program.own(block));
        other.join().unwrap();
        // The first request fails if the other thread still has the block.
        drop(mine.unwrap_or_else(|_| program.allocate(LONG, 1)));
        program.end();
    });
}

#[test]
fn of_two_releases_of_a_raw_block_one_finds_it_released() {
    check(|| {
        let program = Program::new(8 * MIB);
        let raw = program.allocator.allocate_raw(SHORT, StreamId(1)).unwrap();
        let other = program.spawn(move |here| here.allocator.release_raw(raw));
        let mut outcomes = [program.allocator.release_raw(raw), other.join().unwrap()];
        outcomes.sort_by_key(Result::is_err);
        assert_eq!(outcomes, [Ok(()), Err(RawError::Free { address: raw })]);
        program.end();
    });
}

#[test]
fn a_block_that_outlives_its_pool_leaves_its_slot_to_the_next() {
    check(|| {
        let program = Program::new(16 * MIB);
        let pool = program.pool(PoolSettings::default());
        let block = program.allocate_from(&pool, SHORT, 1);
        let other = thread::spawn(move || drop(block));
        drop(pool);
        let next = program.pool(PoolSettings::default());
        let mine = program.allocate_from(&next, SHORT, 1);
        other.join().unwrap();
        assert_eq!((mine.block().pool(), next.stats().all.blocks.current), (next.id(), 1));
        drop((mine, next));
        program.end();
    });
}

#[test]
fn a_block_borrowed_from_a_dropped_pool_keeps_its_cache() {
    check(|| {
        let program = Program::new(4 * MIB);
        let lender = program.pool(PoolSettings { lends: true, ..PoolSettings::default() });
        drop(program.allocate_from(&lender, LONG, 1));
        let other = thread::spawn(move || drop(lender));
        let mine = program.allocator.allocate(LONG, StreamId(1)).map(|block| program.own(block));
        other.join().unwrap();
        // The block is borrowed, or comes from the default pool. The request fails while the lender's memory is being
        // released.
        let mine = mine.unwrap_or_else(|_| program.allocate(LONG, 1));
        // If `mine` is borrowed, its state is still in the slot of the lender's cache. If that slot were free already,
        // the cache of the pool made here would get it, and `mine` would refer to the state of another cache.
        let next = program.pool(PoolSettings::default());
        assert!(next.allocate(LONG, StreamId(1)).is_err(), "there is no more memory");
        assert_eq!(mine.block().requested(), LONG);
        drop((mine, next));
        program.end();
    });
}

#[test]
fn a_block_in_use_by_another_stream_waits_for_it_and_comes_back() {
    check(|| {
        let program = Program::new(8 * MIB);
        let block = program.allocate(LONG, 1);
        block.block().record_stream(StreamId(2)).unwrap();
        program.streams.enqueue(StreamId(2));
        let (address, streams) = (block.block().address(), program.streams.clone());
        let freeing = thread::spawn(move || drop(block));
        let ending = thread::spawn(move || streams.complete(StreamId(2)));
        let mine = program.allocate(LONG, 1);
        if mine.block().address() == address {
            assert!(program.streams.comes_after(StreamId(1), StreamId(2), 1), "it is in use");
        }
        freeing.join().unwrap();
        ending.join().unwrap();
        drop(mine);
        program.end();
    });
}

#[test]
fn two_threads_that_look_for_pending_blocks_find_them_once() {
    check(|| {
        let program = Program::new(16 * MIB);
        let block = program.allocate(LONG, 1);
        block.block().record_stream(StreamId(2)).unwrap();
        drop(block);
        let other = program.spawn(|here| here.allocate(LONG, 1));
        let mine = program.allocate(LONG, 1);
        let theirs = other.join().unwrap();
        drop((mine, theirs));
        program.end();
    });
}

#[test]
fn a_block_freed_while_another_is_polled_becomes_pending() {
    check(|| {
        let program = Program::new(16 * MIB);
        let [first, second] = [(); 2].map(|()| program.allocate(LONG, 1));
        for block in [&first, &second] {
            block.block().record_stream(StreamId(2)).unwrap();
        }
        program.streams.enqueue(StreamId(2));
        drop(first);
        let other = thread::spawn(move || drop(second));
        let mine = program.allocate(LONG, 1);
        other.join().unwrap();
        drop(mine);
        program.end();
    });
}

/// A stream of a re-mappable pool is forgotten while another thread still allocates from its cache.
#[test]
fn memory_that_a_forgotten_stream_uses_again_is_given_to_others_in_order() {
    check(|| {
        let program = Program::remapping(4 * MIB);
        drop(program.allocate(LONG, 1));
        let other = program.spawn(|here| {
            let block = here.allocator.allocate(LONG, StreamId(1)).map(|block| here.own(block));
            here.streams.enqueue(StreamId(1));
            block.is_ok()
        });
        program.allocator.forget_stream(StreamId(1)).unwrap();
        assert!(other.join().unwrap(), "no other stream has memory");
        let mine = program.allocate(LONG, 2);
        assert!(program.streams.comes_after(StreamId(2), StreamId(1), 1), "it is in use");
        drop(mine);
        program.end();
    });
}

#[test]
fn a_tracker_misses_nothing_between_attaching_and_detaching() {
    // Deliveries to trackers have many steps. With one preemption more, loom needs ten times as long.
    check_within(3, || {
        let program = Program::new(16 * MIB);
        let first = program.allocate(SHORT, 1);
        let other = program.spawn(|here| {
            drop(first);
            here.allocate(LONG, 1)
        });
        let reader = Reader::attach(&program.allocator, Filter::all());
        let mine = program.allocate(SHORT, 2);
        let reader = reader.detach();
        assert!(reader.state().is_out(mine.block()), "a tracker gets the entries from before its detachment");
        let handed_out = reader.state().handed_out;
        drop((mine, other.join().unwrap()));
        reader.check();
        assert_eq!(reader.state().handed_out, handed_out, "a detached tracker gets no entries");
        program.end();
    });
}

#[test]
fn a_tracker_gets_every_segment_of_a_dropped_pool() {
    check(|| {
        let program = Program::new(8 * MIB);
        let pool = program.pool(PoolSettings::default());
        let block = program.allocate_from(&pool, SHORT, 1);
        drop(pool);
        let other = thread::spawn(move || drop(block));
        let reader = Reader::attach(&program.allocator, Filter::structural());
        other.join().unwrap();
        program.allocator.reap().unwrap();
        let reader = reader.detach();
        assert!(reader.state().segments.is_empty(), "{:?}", reader.state().segments);
        program.end();
    });
}

/// Frees a block in another thread, which then drops the last owner of the pool: a handle, or another block. Detaches a
/// tracker meanwhile. If the free came before the detachment, checks that the tracker got its entry.
fn deliver_frees_until_detached(last_is_handle: bool) {
    let program = Program::new(8 * MIB);
    let pool = program.pool(PoolSettings::default());
    let [first, second] = [(); 2].map(|()| program.allocate_from(&pool, SHORT, 1));
    let reader = Reader::attach(&program.allocator, Filter::all());
    let last: Box<dyn Any + Send> = if last_is_handle {
        drop(second);
        Box::new(pool)
    } else {
        drop(pool);
        Box::new(second)
    };
    let address = first.block().address();
    let is_freed = Arc::new(AtomicBool::new(false));
    let freed = is_freed.clone();
    let other = thread::spawn(move || {
        drop(first);
        freed.store(true, Ordering::Release);
        drop(last);
    });
    let was_freed = is_freed.load(Ordering::Acquire);
    let reader = reader.detach();
    assert!(
        !was_freed || !reader.state().is_out_at(address),
        "the tracker did not get the free, which came before its detachment"
    );
    other.join().unwrap();
    reader.check();
    program.end();
}

#[test]
fn a_tracker_gets_the_frees_of_a_pool_whose_last_block_is_freed() {
    check_within(3, || deliver_frees_until_detached(false));
}

#[test]
fn a_tracker_gets_the_frees_of_a_pool_whose_last_handle_is_dropped() {
    check_within(3, || deliver_frees_until_detached(true));
}

/// A tracker that frees a block.
struct Freeing(Mutex<Option<Owned>>);

impl Tracker for Freeing {
    fn name(&self) -> &str {
        "freeing"
    }

    fn observe(&self, _: &[Entry]) -> Result<(), TrackerError> {
        drop(self.0.lock().unwrap().take());
        Ok(())
    }
}

#[test]
fn a_tracker_gets_the_entries_of_a_cache_that_another_tracker_ends() {
    check_within(3, || {
        let program = Program::new(8 * MIB);
        let pool = program.pool(PoolSettings::default());
        let block = program.allocate_from(&pool, SHORT, 1);
        let address = block.block().address();
        drop(pool);
        let freeing = Arc::new(Freeing(Mutex::new(Some(block))));
        let freeing = program.allocator.attach(freeing, Filter::structural()).unwrap();
        let reader = Reader::attach(&program.allocator, Filter::all());
        program.allocator.annotate("this frees the block").unwrap();
        let other = program.spawn(|here| _ = here.allocator.snapshot().unwrap());
        let reader = reader.detach();
        assert!(!reader.state().is_out_at(address), "the tracker did not get the free");
        other.join().unwrap();
        reader.check();
        freeing.detach().unwrap();
        program.end();
    });
}

#[test]
fn a_tracker_is_not_called_after_its_end_for_a_cache_that_is_retired() {
    check_within(3, || {
        let program = Program::remapping(16 * MIB);
        let reader = Reader::attach(&program.allocator, Filter::all());
        [1, 2].into_iter().for_each(|stream| drop(program.allocate(SHORT, stream)));
        let other = program.spawn(|here| _ = here.allocator.snapshot().unwrap());
        // The caches of streams 1 and 2 are empty. When stream 3 gets a cache, that of stream 1 is retired; that of
        // stream 2 is too recent (`RECENT` of the cache table is 1 for model checkers).
        let mine = program.allocate(SHORT, 3);
        let reader = reader.detach();
        other.join().unwrap();
        reader.check();
        drop(mine);
        program.end();
    });
}

#[test]
fn a_late_reader_gets_the_snapshot_and_exactly_what_follows() {
    check(|| {
        let program = Program::new(16 * MIB);
        let other = program.spawn(|here| {
            drop(here.allocate(SHORT, 1));
            here.allocator.empty_cache().unwrap();
        });
        let mut state = reader::ReplayedState::default();
        state.begin(&program.allocator.snapshot().unwrap());
        catch_up(&program, &mut state);
        other.join().unwrap();
        catch_up(&program, &mut state);
        assert!(state.errors.is_empty(), "{:#?}", state.errors);
        assert_eq!((state.generation, state.segments.len()), (Some(program.allocator.generation()), 0));
        program.end();
    });
}

/// Applies the structural entries after the last one in `state`.
pub(super) fn catch_up(program: &Program, state: &mut reader::ReplayedState) {
    match program.allocator.since(state.generation.unwrap_or(0)).unwrap() {
        Since::Entries(entries) => entries.iter().for_each(|entry| state.apply(entry)),
        Since::TooOld(snapshot) => state.begin(&snapshot),
    }
}

#[test]
fn held_memory_is_not_released() {
    check(|| {
        let program = Program::new(8 * MIB);
        let segment = program.allocate(LONG, 1).block().segment();
        let other = program.spawn(|here| _ = here.allocator.empty_cache().unwrap());
        let hold = segment.hold("model");
        if hold.is_ok() {
            assert_eq!(program.source.calls().live_bytes, segment.bytes(), "it is here");
        }
        other.join().unwrap();
        assert_eq!(program.source.calls().live_bytes > 0, hold.is_ok());
        drop(hold);
        program.allocator.reap().unwrap();
        assert_eq!(program.allocator.stats().quarantined, 0);
    });
}

#[test]
fn two_streams_share_re_mappable_pages() {
    check(|| {
        // There is memory for two pages. The long block may have to share a page with the other stream's block.
        let program = Program::remapping(4 * MIB);
        let first = program.allocate(SHORT, 1);
        let other = program.spawn(|here| drop(here.allocate(SHORT, 2)));
        drop(first);
        drop(program.allocate(LONG, 1));
        other.join().unwrap();
        program.end();
    });
}

#[test]
fn a_page_that_is_being_mapped_is_shown_as_a_page() {
    check_within(3, || {
        let program = Program::remapping(16 * MIB);
        let reader = Reader::attach(&program.allocator, Filter::structural());
        let other = program.spawn(|here| drop(here.allocate(SHORT, 1)));
        let snapshot = program.allocator.snapshot().unwrap();
        assert!(snapshot.segments.is_empty(), "{:?}", snapshot.segments);
        other.join().unwrap();
        reader.detach();
        program.end();
    });
}

#[test]
fn two_threads_that_want_all_memory_get_it() {
    check(|| {
        // There is room for two blocks. Both are used by stream 2.
        let exact = Settings { growth_divisor: u64::MAX, ..Settings::default() };
        let program = Program::with(8 * MIB, exact);
        drop([(); 2].map(|()| {
            let block = program.allocate(4 * MIB, 1);
            block.block().record_stream(StreamId(2)).unwrap();
            block
        }));
        let other = program.spawn(|here| drop(here.allocate(4 * MIB, 1)));
        let mine = program.allocate(4 * MIB, 1);
        mine.block().record_stream(StreamId(2)).unwrap();
        drop(mine);
        drop(program.allocate(4 * MIB, 1));
        other.join().unwrap();
        program.end();
    });
}

#[test]
fn a_stream_whose_cache_is_retired_gets_another_one() {
    check(|| {
        let program = Program::new(16 * MIB);
        // Streams 1 and 2 have empty caches, which are in this thread's table of recent caches (see `recent`). When
        // stream 3 gets a cache, one of the two may be retired.
        [1, 2].into_iter().for_each(|stream| drop(program.allocate(SHORT, stream)));
        program.allocator.empty_cache().unwrap();
        let other = program.spawn(|here| here.allocate(SHORT, 3));
        let mine = program.allocate(SHORT, 1);
        let theirs = other.join().unwrap();
        let again = program.allocate(SHORT, 1);
        assert_eq!(program.allocator.stats().all.blocks.current, 3);
        drop((mine, theirs, again));
        program.end();
    });
}

#[test]
fn a_tracker_attached_during_frees_sees_all_blocks_in_use() {
    check(|| {
        let program = Program::new(16 * MIB);
        let [first, second, third, last] = [(); 4].map(|()| program.allocate(SHORT, 1));
        let other = program.spawn(|here| {
            drop(last);
            drop(second);
            here.allocate(SHORT, 1)
        });
        let reader = Reader::attach(&program.allocator, Filter::all());
        let theirs = other.join().unwrap();
        let reader = reader.detach();
        reader.check();
        assert!([&first, &third, &theirs].iter().all(|block| reader.state().is_out(block.block())));
        drop((first, third, theirs));
        program.end();
    });
}

#[test]
fn a_request_waits_for_a_release_that_calls_trackers() {
    check_within(3, || {
        // There is room for one segment, which the other thread may be releasing.
        let exact = Settings { growth_divisor: u64::MAX, ..Settings::default() };
        let program = Program::with(4 * MIB, exact);
        let reader = Reader::attach(&program.allocator, Filter::structural());
        drop(program.allocate(4 * MIB, 1));
        let other = program.spawn(|here| _ = here.allocator.empty_cache().unwrap());
        drop(program.allocate(4 * MIB, 1));
        other.join().unwrap();
        reader.detach();
        program.end();
    });
}
