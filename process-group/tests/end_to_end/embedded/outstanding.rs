//! Tracking of outstanding work: threads that share a stream, and driver calls that do not return.

use std::{
    sync::{
        Arc, Barrier,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use cuda_driver::Stream;
use gpu_sim::{Action, Injection};
use process_group::{
    ProcessGroup,
    comm::{DataType::F32, ReduceOp},
    group::{Buffer, Request, Work},
    store::Deadline,
};
use rusty_fork::rusty_fork_test;

use super::common::{Machine, far, hold, machine, soon};

/// Called right after a work's event is recorded.
const AFTER_THE_RECORD: &str = "cuStreamIsCapturing";

/// Delays the next `calls` calls of `function`.
fn delay(machine: &Machine, function: &str, calls: u64) {
    for nth in 1..=calls {
        let late = Injection::new(function, Action::Delay(Duration::from_millis(500)));
        machine.world.faults().inject(late.nth(nth)).unwrap();
    }
}

/// Waits until there were `calls` calls of `function`.
fn wait_for(machine: &Machine, function: &str, calls: u64) {
    let patience = far();
    while machine.world.calls(function) < calls {
        assert!(!patience.expired(), "{function} is not called");
        thread::yield_now();
    }
}

/// Makes `call` on `threads` threads, and then once more here. The event of this last call is recorded last, and its
/// stream is blocked. The calls on the threads return after it. Runs `then` with the work of the last call.
fn late_to_return<T>(
    machine: &Machine,
    stream: &Stream,
    threads: u64,
    call: impl Fn() -> Work + Sync,
    then: impl FnOnce(Work) -> T,
) -> T {
    delay(machine, AFTER_THE_RECORD, threads);
    let so_far = machine.world.calls(AFTER_THE_RECORD);
    let (open, held) = thread::scope(|scope| {
        let (call, late): (_, Vec<_>) = (&call, (0..threads).map(|_| scope.spawn(&call)).collect());
        wait_for(machine, AFTER_THE_RECORD, so_far + threads);
        let open = hold(stream);
        let held = call();
        late.into_iter().for_each(|late| late.join().unwrap().wait_until(far()).unwrap());
        (open, held)
    });
    let found = then(held);
    drop(open);
    stream.synchronize().unwrap();
    found
}

/// An all-reduce of a group of one rank.
fn reduce(group: &ProcessGroup, buffer: Buffer, stream: &Stream) -> Work {
    unsafe { group.raw().all_reduce(buffer, buffer, ReduceOp::Sum, stream) }.unwrap()
}

/// Several threads use one stream. One of them enqueues something that does not end, and all calls return: `quiesce` must
/// not succeed. Counts the rounds in which it does.
fn rounds_without_quiet(group: &ProcessGroup, stream: &Stream, threads: usize, time: Duration) -> (u64, u64) {
    let (barrier, is_over) = (Barrier::new(threads), AtomicBool::new(false));
    let (rounds, wrong) = (AtomicU64::new(0), AtomicU64::new(0));
    let begun = Instant::now();
    let hold_up = || {
        for _ in 0..(rounds.load(Ordering::Relaxed) % 64) * 20 {
            std::hint::spin_loop();
        }
        (hold(stream), group.track_graph_launch(stream).unwrap())
    };
    let judge = |(open, work): (mpsc::Sender<()>, Work)| {
        rounds.fetch_add(1, Ordering::Relaxed);
        let is_quiet = group.quiesce(Deadline::now()).is_ok();
        wrong.fetch_add(u64::from(is_quiet && !work.is_completed().unwrap()), Ordering::Relaxed);
        drop(open);
        work.wait_until(far()).unwrap();
        is_over.store(begun.elapsed() >= time, Ordering::Relaxed);
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                _ = group.dump()
            }
        });
        for thread in 0..threads {
            let (barrier, is_over) = (&barrier, &is_over);
            scope.spawn(move || {
                loop {
                    barrier.wait();
                    let held = (thread == 0).then(hold_up);
                    if thread > 0 {
                        group.track_graph_launch(stream).unwrap();
                    }
                    barrier.wait();
                    held.map(judge);
                    barrier.wait();
                    if is_over.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
        }
    });
    (rounds.into_inner(), wrong.into_inner())
}

rusty_fork_test! {
    /// More threads than the largest number of works that could be checked instead of all.
    #[test]
    fn quiesce_waits_for_work_whatever_order_threads_return_in() {
        let machine = machine(1);
        machine.ranks(1, |rank| {
            let (group, stream) = (rank.world(), rank.stream());
            late_to_return(&machine, &stream, 8, || group.track_graph_launch(&stream).unwrap(), |_| {
                group.quiesce(soon()).unwrap_err();
            });
            group.quiesce(far()).unwrap();
            group.destroy(far()).unwrap();
        });
        machine.world.finish().unwrap();
    }

    #[test]
    fn work_that_is_not_done_is_kept_and_recorded_so_whatever_order_threads_return_in() {
        let machine = machine(1);
        machine.ranks(1, |rank| {
            let (group, stream, memory) = (rank.world(), rank.stream(), rank.memory(&[0.0; 2]));
            let two = Buffer::new(memory.ptr(), 2, F32);
            late_to_return(&machine, &stream, 1, || reduce(&group, two, &stream), |held| {
                let entries = group.dump().entries;
                assert!(!held.is_completed().unwrap());
                let done: Vec<_> = entries.iter().map(|entry| entry.completed_ns.is_some()).collect();
                assert_eq!(done, [true, false]);
                group.quiesce(soon()).unwrap_err();
            });
            group.quiesce(far()).unwrap();
            group.destroy(far()).unwrap();
        });
        machine.world.finish().unwrap();
    }

    /// A call that was recorded first and launched last, on the stream of one that is done.
    #[test]
    fn a_call_is_not_recorded_as_done_for_a_later_record_that_is() {
        let machine = machine(1);
        machine.ranks(1, |rank| {
            let (group, stream, memory) = (rank.world(), rank.stream(), rank.memory(&[0.0; 4]));
            let other = group.split("other", &Request::Lists(vec![vec![0]])).unwrap().unwrap();
            let [two, also_two] = [0, 8].map(|at: usize| Buffer::new(memory.ptr() + at, 2, F32));
            delay(&machine, "ncclAllReduce", 1);
            let so_far = machine.world.calls("ncclAllReduce");
            let (open, late) = thread::scope(|scope| {
                let late = scope.spawn(|| reduce(&group, two, &stream));
                wait_for(&machine, "ncclAllReduce", so_far + 1);
                reduce(&other, also_two, &stream).wait_until(far()).unwrap();
                let open = hold(&stream);
                (open, late.join().unwrap())
            });
            let entries = group.dump().entries;
            // Unless this thread was delayed for so long that the other one came first.
            if !late.is_completed().unwrap() {
                assert!(entries[1].completed_ns.is_some());
                assert!(entries[0].completed_ns.is_none(), "it waits for the gate");
            }
            drop(open);
            late.wait_until(far()).unwrap();
            other.destroy(far()).unwrap();
            group.destroy(far()).unwrap();
        });
        machine.world.finish().unwrap();
    }

    #[test]
    fn quiesce_waits_for_the_work_of_all_threads_of_many_rounds() {
        let machine = machine(1);
        machine.ranks(1, |rank| {
            let (group, stream) = (rank.world(), rank.stream());
            for threads in [2, 6] {
                let time = Duration::from_millis(1500);
                let (rounds, wrong) = rounds_without_quiet(&group, &stream, threads, time);
                assert_eq!(wrong, 0, "of {rounds} rounds of {threads} threads");
            }
            group.destroy(far()).unwrap();
        });
        machine.world.finish().unwrap();
    }

    #[test]
    fn works_that_are_kept_are_asked_about_by_stream() {
        const WORKS: u64 = 1000;
        let machine = machine(1);
        struct Owner(mpsc::Sender<()>);
        impl Drop for Owner {
            fn drop(&mut self) {
                self.0.send(()).unwrap();
            }
        }
        machine.ranks(1, |rank| {
            let (told, dropped) = mpsc::channel();
            let group = rank.builder().work_timeout(Duration::from_secs(3600)).build().unwrap();
            let streams = [rank.stream(), rank.stream()];
            let open = streams.each_ref().map(hold);
            let works: Vec<_> =
                (0..WORKS).map(|work| group.track_graph_launch(&streams[work as usize % 2]).unwrap()).collect();
            works.iter().for_each(|work| work.keep(Owner(told.clone())).unwrap());
            drop(works);
            // From the first check of all works on.
            wait_for(&machine, "cuEventQuery", 1);
            let (so_far, begun) = (machine.world.calls("cuEventQuery"), Instant::now());
            thread::sleep(Duration::from_millis(500));
            let calls = machine.world.calls("cuEventQuery") - so_far;
            // One per stream and check, of which there is at most one per millisecond, and those of the
            // watchdog.
            let most = 3 * begun.elapsed().as_millis() as u64 + 50;
            assert!(calls <= most, "{calls} queries; at most {most} were expected");
            assert_eq!(dropped.try_iter().count(), 0);
            drop(open);
            for _ in 0..WORKS {
                dropped.recv_timeout(Duration::from_secs(60)).unwrap();
            }
            group.destroy(far()).unwrap();
        });
        machine.world.finish().unwrap();
    }
}

rusty_fork_test! {
    #![rusty_fork(timeout_ms = 50_000)]

    /// Blocks two queries: one of the watchdog, and one of a dump.
    #[test]
    fn a_driver_call_that_hangs_holds_up_nobody_who_makes_none() {
        let machine = machine(1);
        let hang = Injection::new("cuEventQuery", Action::Delay(Duration::from_secs(60)));
        machine.ranks(1, |rank| {
            let group = Arc::new(rank.world());
            let stream = rank.stream();
            let open = hold(&stream);
            group.track_graph_launch(&stream).unwrap();
            machine.world.faults().inject(hang.clone().forever()).unwrap();
            wait_for(&machine, "cuEventQuery", machine.world.calls("cuEventQuery") + 1);
            let dumping = {
                let (group, so_far) = (group.clone(), machine.world.calls("cuEventQuery"));
                let dumping = thread::spawn(move || drop(group.dump()));
                wait_for(&machine, "cuEventQuery", so_far + 1);
                dumping
            };
            // Calls of others, groups that are made, and groups that are dropped.
            for _ in 0..100 {
                group.track_graph_launch(&stream).unwrap();
            }
            let other = rank.builder().name("other").build().unwrap();
            other.track_graph_launch(&stream).unwrap();
            drop(other);
            assert!(!dumping.is_finished(), "the query has returned, so that nothing was shown");
            drop(open);
        });
    }
}
