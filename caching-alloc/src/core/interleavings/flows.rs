//! Larger programs. They have too many steps for a checker to try every order.

use super::*;

const SIZES: [u64; 3] = [1000, 700_000, 3 << 20];

/// Allocates blocks of several lengths, records uses of some on another stream, and drops every second one.
fn churn(program: &Program, pool: &Pool, stream: u64) -> Vec<Owned> {
    let mut kept = Vec::new();
    for step in 0..8 {
        let block = program.allocate_from(pool, SIZES[step % SIZES.len()], stream);
        if step % 4 == 3 {
            program.streams.enqueue(StreamId(stream + 1));
            block.block().record_stream(StreamId(stream + 1)).unwrap();
        }
        if step % 2 == 0 {
            kept.push(block);
        }
    }
    kept
}

/// Threads allocate and free in a pool that is dropped meanwhile. Other threads free the blocks that are left. At the
/// same time, trackers are attached and detached. Another thread takes a snapshot and reads the entries after it,
/// without a tracker.
fn come_and_go(program: Program, kind: PoolKind) {
    let pool = program.pool(PoolSettings { kind, lends: true, ..PoolSettings::default() });
    let workers: Vec<_> = (0..3)
        .map(|worker| {
            let (program, pool) = (program.clone(), pool.clone());
            thread::spawn(move || churn(&program, &pool, 1 + worker % 2))
        })
        .collect();
    let structure = Reader::attach(&program.allocator, Filter::structural());
    let late = program.spawn(|here| {
        let mut state = reader::ReplayedState::default();
        state.begin(&here.allocator.snapshot().unwrap());
        (0..3).for_each(|_| models::catch_up(here, &mut state));
        assert!(state.errors.is_empty(), "{:#?}", state.errors);
    });
    let everything = Reader::attach(&program.allocator, Filter::all());
    let mine: Vec<_> = (0..5).map(|_| program.allocate(1000, 9)).collect();
    drop(pool);
    let rest: Vec<_> = workers.into_iter().map(|worker| worker.join().unwrap()).collect();
    let freeing: Vec<_> = rest.into_iter().map(|blocks| thread::spawn(move || drop(blocks))).collect();
    let everything = everything.detach();
    let handed_out = everything.state().handed_out;
    assert!(handed_out >= 5, "a tracker gets the entries from before its detachment");
    drop(mine);
    freeing.into_iter().for_each(|thread| thread.join().unwrap());
    late.join().unwrap();
    everything.check();
    assert_eq!(everything.state().handed_out, handed_out, "a detached tracker gets no entries");
    program.allocator.empty_cache().unwrap();
    let structure = structure.detach();
    assert!(structure.state().segments.is_empty(), "{:?}", structure.state().segments);
    program.end();
}

#[test]
fn threads_trackers_and_pools_come_and_go() {
    check(|| come_and_go(Program::new(1 << 30), PoolKind::Cached));
}

#[test]
fn pages_move_while_threads_trackers_and_pools_come_and_go() {
    check(|| come_and_go(Program::new(1 << 30), PoolKind::Remappable));
}

#[test]
fn threads_that_want_more_than_there_is_share_it() {
    check(|| {
        let program = Program::new(12 * MIB);
        let lender = program.pool(PoolSettings { lends: true, ..PoolSettings::default() });
        let workers: Vec<_> = (0..3u64)
            .map(|worker| {
                let (program, lender) = (program.clone(), (worker == 0).then(|| lender.clone()));
                thread::spawn(move || {
                    for step in 0..6 {
                        let bytes = SIZES[step % SIZES.len()];
                        let stream = StreamId(1 + worker);
                        let block = match &lender {
                            Some(lender) => lender.allocate(bytes, stream),
                            None => program.allocator.allocate(bytes, stream),
                        };
                        // There may be no memory for the block now, because other threads have it.
                        let Ok(block) = block else { continue };
                        let block = program.own(block);
                        if step % 2 == 0 {
                            program.streams.enqueue(StreamId(1 + (worker + 1) % 3));
                            block.block().record_stream(StreamId(1 + (worker + 1) % 3)).unwrap();
                        }
                    }
                })
            })
            .collect();
        drop(lender);
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        program.end();
    });
}
