//! The two schedulers: guarantees about waiting, order, time and deadlock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use gpu_sim::sched::{self, Signal, WaitError};
use gpu_sim::{RunError, World};
use rusty_fork::rusty_fork_test;

type Body<T> = Box<dyn FnOnce() -> T + Send>;

fn ping_pong(rounds: u64) -> Vec<(String, Body<u64>)> {
    let turn = Arc::new((Signal::new(), AtomicU64::new(0)));
    (0..2)
        .map(|me| {
            let turn = turn.clone();
            let body: Body<u64> = Box::new(move || {
                for round in 0..rounds {
                    let mine = round * 2 + me;
                    sched::wait(&turn.0, || format!("turn {mine}"), None, || turn.1.load(SeqCst) == mine)
                        .unwrap();
                    turn.1.store(mine + 1, SeqCst);
                    turn.0.notify();
                }
                rounds
            });
            (format!("rank {me}"), body)
        })
        .collect()
}

/// Runs three ranks that pass scheduling points. Returns their order, and the scheduler's decisions.
fn order(seed: u64) -> (Vec<u64>, Vec<gpu_sim::Step>) {
    let world = World::builder().seeded(seed).start().unwrap();
    let log = Arc::new(std::sync::Mutex::new(Vec::new()));
    let actors = (0..3u64)
        .map(|me| {
            let log = log.clone();
            let body: Body<()> = Box::new(move || {
                for _ in 0..5 {
                    sched::point("step");
                    log.lock().unwrap().push(me);
                }
            });
            (format!("rank {me}"), body)
        })
        .collect();
    world.run_actors(actors).unwrap();
    let history = world.history();
    world.finish().unwrap();
    let log = log.lock().unwrap().clone();
    (log, history)
}

/// Returns numbers that a rank draws in a world with this seed.
fn drawn(seed: u64) -> Vec<u64> {
    let world = World::builder().seeded(seed).start().unwrap();
    let body: Body<Vec<u64>> = Box::new(|| (0..20).map(|_| sched::draw(100)).collect());
    let drawn = world.run_actors(vec![("rank 0".into(), body)]).unwrap().remove(0);
    world.finish().unwrap();
    drawn
}

rusty_fork_test! {
    #[test]
    fn drawn_numbers_come_from_the_seed() {
        let first = drawn(1);
        assert!(first.iter().all(|number| *number < 100));
        assert_eq!(drawn(1), first);
        assert_ne!(drawn(2), first);
        assert_eq!(sched::draw(100), 0);
    }

    #[test]
    fn a_condition_that_panics_leaves_no_wait_behind() {
        let world = World::builder().start().unwrap();
        let mut looks = 0;
        let wait = || {
            let soon = Some(sched::now() + Duration::from_millis(1));
            let signal = Signal::new();
            sched::wait(&signal, || "nothing".into(), soon, || {
                looks += 1;
                assert!(looks < 2, "looked at by the parked wait");
                false
            })
        };
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(wait)).unwrap_err();
        assert_eq!(world.waiting(), []);
        world.finish().unwrap();
    }

    #[test]
    fn a_deadline_beyond_the_clock_is_none() {
        let world = World::builder().seeded(1).start().unwrap();
        let error = sched::wait(&Signal::new(), || "ever".into(), Some(Duration::MAX), || false).unwrap_err();
        assert!(matches!(error, WaitError::Deadlock(_)), "{error}");
        world.finish().unwrap();
    }

    #[test]
    fn ranks_take_turns_in_both_modes() {
        for builder in [World::builder(), World::builder().seeded(7)] {
            let world = builder.start().unwrap();
            assert_eq!(world.run_actors(ping_pong(100)).unwrap(), [100, 100]);
            world.finish().unwrap();
        }
    }

    #[test]
    fn a_seed_is_a_run() {
        for seed in 0..20 {
            assert_eq!(order(seed), order(seed));
        }
        let orders: std::collections::BTreeSet<_> = (0..20).map(|seed| order(seed).0).collect();
        assert!(orders.len() > 10, "20 seeds gave only {} orders", orders.len());
    }

    #[test]
    fn a_deadlock_names_who_waits_for_what() {
        let world = World::builder().seeded(1).start().unwrap();
        let actors = ["left", "right"].map(|name| {
            let body: Body<Result<(), WaitError>> = Box::new(move || {
                sched::wait(&Signal::new(), || format!("the other of {name}"), None, || false)
            });
            (name.to_owned(), body)
        });
        let error = world.run_actors(actors.into()).unwrap_err();
        let RunError::Deadlock(deadlock) = &error else { panic!("{error}") };
        assert_eq!(deadlock.waiting.len(), 2);
        let text = error.to_string();
        assert!(text.contains("left waits for the other of left") && text.contains("right waits for"), "{text}");
        world.finish().unwrap();
    }

    #[test]
    fn the_main_thread_finds_deadlocks_too() {
        let world = World::builder().seeded(1).start().unwrap();
        let waited = sched::wait(&Signal::new(), || "nothing".to_owned(), None, || false);
        assert!(matches!(waited, Err(WaitError::Deadlock(_))), "{waited:?}");
        world.finish().unwrap();
    }

    #[test]
    fn virtual_time_jumps_to_the_next_deadline() {
        let world = World::builder().seeded(3).start().unwrap();
        let hour = Duration::from_secs(3600);
        let actors = (1..=3u32)
            .map(|n| {
                let body: Body<Duration> = Box::new(move || {
                    sched::sleep(hour * n).unwrap();
                    sched::now()
                });
                (format!("sleeper {n}"), body)
            })
            .collect();
        let woke = world.run_actors(actors).unwrap();
        for (n, at) in (1..).zip(woke) {
            assert!(at >= hour * n && at < hour * n + Duration::from_secs(1), "{at:?}");
        }
        world.finish().unwrap();
    }

    #[test]
    fn a_deadline_ends_a_wait_in_both_modes() {
        for builder in [World::builder(), World::builder().seeded(7)] {
            let world = builder.start().unwrap();
            let until = sched::now() + Duration::from_millis(5);
            let waited = sched::wait(&Signal::new(), || "nothing".to_owned(), Some(until), || false);
            assert!(matches!(waited, Err(WaitError::TimedOut { .. })), "{waited:?}");
            assert!(sched::now() >= until);
            world.finish().unwrap();
        }
    }

    #[test]
    fn a_panic_is_the_actors_alone() {
        for builder in [World::builder(), World::builder().seeded(7)] {
            let world = builder.start().unwrap();
            let bodies: Vec<(String, Body<()>)> = vec![
                ("good".to_owned(), Box::new(|| ())),
                ("bad".to_owned(), Box::new(|| panic!("on purpose"))),
            ];
            let error = world.run_actors(bodies).unwrap_err();
            assert_eq!(error.to_string(), "actor bad panicked: on purpose");
            world.finish().unwrap();
        }
    }

    #[test]
    fn one_world_at_a_time() {
        let world = World::builder().start().unwrap();
        assert!(World::builder().start().is_err());
        world.finish().unwrap();
        World::builder().start().unwrap().finish().unwrap();
    }
}
