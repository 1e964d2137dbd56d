//! At every point where another rank can stay away, an abort from another thread ends the call that waits for
//! it, with the abort's error and not with that of a deadline.

use std::{
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::{self, ThreadId},
    time::{Duration, Instant},
};

use process_group::{
    ProcessGroup,
    comm::{CommError, ShrinkMode, set_drop_error_hook, wait_for_dropped},
    group::{Builder, GroupError, GroupErrorKind, P2pPolicy, Request},
    store::Store,
};
use rusty_fork::rusty_fork_test;

use super::{
    common::{Machine, far, machine_with},
    hooked::Hooked,
};

type Call = fn(&ProcessGroup) -> Result<(), GroupError>;

/// A call of ranks 0 and 1, on a group of `size`.
struct Case {
    size: usize,
    release: i32,
    build: fn(Builder) -> Builder,
    call: Call,
}

const fn case(size: usize, release: i32, build: fn(Builder) -> Builder, call: Call) -> Case {
    Case { size, release, build, call }
}

/// Makes the call while rank 1 stops before its write number `place` to the store. Rank 0 is aborted as soon
/// as it waits for an absent key, or makes no store call for a while because it waits in NCCL. Returns rank
/// 0's result, or `None` if rank 1 makes fewer writes.
fn without_the_other(case: &Case, place: usize) -> Option<Result<(), GroupError>> {
    let machine = machine_with(case.size, case.release);
    let away = Arc::new(AtomicBool::new(false));
    // The key that rank 0 waits for, and the start of the wait.
    let looks_at = Arc::new(Mutex::new((String::new(), Instant::now())));
    let mut results = machine.ranks(case.size, |rank| {
        let caller = Arc::new(OnceLock::<ThreadId>::new());
        let hook = {
            let (me, store, writes) = (rank.rank, rank.store.clone(), AtomicUsize::new(0));
            let (caller, away, looks_at) = (caller.clone(), away.clone(), looks_at.clone());
            move |call: &'static str, key: &str| {
                if caller.get() != Some(&thread::current().id()) {
                    return Ok(());
                }
                if me == 0 {
                    *looks_at.lock().unwrap() = (key.to_owned(), Instant::now());
                } else if matches!(call, "set" | "add" | "compare_set")
                    && writes.fetch_add(1, Ordering::Relaxed) == place
                {
                    away.store(true, Ordering::SeqCst);
                    store.wait(&["released"], far())?;
                }
                Ok(())
            }
        };
        let builder = rank.builder().store(Arc::new(Hooked::new(&rank.store, hook)));
        let world = (case.build)(builder).build().unwrap();
        let aborter = world.abort_handle();
        let result = thread::scope(|scope| {
            let call = (rank.rank < 2).then(|| {
                scope.spawn(|| {
                    caller.set(thread::current().id()).unwrap();
                    (case.call)(&world)
                })
            });
            if let (0, Some(call)) = (rank.rank, &call) {
                let is_blocked = || {
                    let (key, since) = looks_at.lock().unwrap().clone();
                    let is_missing = || !key.is_empty() && !rank.store.check(&[&key]).unwrap();
                    away.load(Ordering::SeqCst) && (is_missing() || since.elapsed() > Duration::from_secs(1))
                };
                while !call.is_finished() && !is_blocked() {
                    thread::yield_now();
                }
            } else {
                rank.store.wait(&["over"], far()).unwrap();
            }
            aborter.abort(far()).unwrap();
            if rank.rank == 1 {
                rank.store.set("released", b"").unwrap();
            }
            let result = call.map(|call| call.join().unwrap());
            rank.store.set("over", b"").unwrap();
            result
        });
        world.abort(far()).unwrap();
        result
    });
    assert!(wait_for_dropped(far()));
    // A call that had not begun when it was ended releases its device when its thread handles it.
    let (late, devices) = (far(), 0..case.size as u32);
    while !late.expired() && devices.clone().any(|device| is_in_use(&machine, device)) {
        thread::yield_now();
    }
    machine.world.finish().unwrap();
    away.load(Ordering::SeqCst).then(|| results.swap_remove(0).unwrap())
}

fn is_in_use(machine: &Machine, device: u32) -> bool {
    machine.driver.device(device).unwrap().primary_state().unwrap().active
}

/// An abort ends the call at every point where the other rank can stay away.
fn is_ended_everywhere(name: &str, case: &Case) {
    set_drop_error_hook(|_| ());
    let at = |place: usize| {
        let result = without_the_other(case, place)?;
        if let Err(error) = &result {
            let closed = matches!(error.kind(), GroupErrorKind::Comm(CommError::Closed { .. }));
            assert!(closed, "{name}, away from write {place}: {error}");
        }
        Some(result)
    };
    let results: Vec<_> = (0..).map_while(at).collect();
    let ended = results.iter().filter(|result| result.is_err()).count();
    println!("{name}: ended at {ended} of {} places", results.len());
    assert!(ended > 1, "{name}: ended at {ended} places");
}

/// The other of ranks 0 and 1.
fn other(world: &ProcessGroup) -> usize {
    1 - world.rank()
}

fn split(world: &ProcessGroup) -> Result<(), GroupError> {
    world.split("all", &Request::Color { color: Some(0), key: 0 }).map(drop)
}

rusty_fork_test! {
    #[test]
    fn an_abort_ends_the_making_of_communicators() {
        let connect: Call = |world| world.connect(far());
        let connect_to: Call = |world| world.connect_to(other(world), far());
        for (name, case) in [
            ("connect", case(2, 22809, Builder::lazy, connect)),
            ("lanes", case(2, 22809, |builder| builder.lazy().p2p(P2pPolicy::Lanes(2)), connect)),
            ("pair", case(2, 22809, |builder| builder.lazy().p2p(P2pPolicy::PerPair), connect_to)),
            ("choice", case(2, 22809, |builder| builder.lazy().p2p(P2pPolicy::Auto), connect_to)),
            ("one-sided", case(2, 23007, Builder::lazy, |world| world.prepare_one_sided(far()))),
        ] {
            is_ended_everywhere(name, &case);
        }
    }

    #[test]
    fn an_abort_ends_the_making_of_groups() {
        let orderly: Call = |world| world.shrink(&[2], ShrinkMode::Orderly).map(drop);
        let after_failure: Call = |world| world.shrink(&[2], ShrinkMode::AfterFailure).map(drop);
        for (name, case) in [
            ("split", case(2, 22809, |builder| builder, split)),
            ("shrink", case(3, 22809, |builder| builder, orderly)),
            ("shrink after a failure", case(3, 22809, |builder| builder, after_failure)),
            ("shrink over the store", case(3, 22602, |builder| builder, orderly)),
        ] {
            is_ended_everywhere(name, &case);
        }
    }
}
