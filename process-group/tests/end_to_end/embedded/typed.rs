//! Operations on typed slices: results, their order with other uses of the slices, graphs that hold slices, and waits of
//! asynchronous programs.

use std::{
    future::{Future, IntoFuture},
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
};

use cuda_driver::{DevicePtr, DeviceSlice, Stream, graph::CaptureMode};
use process_group::{
    Job,
    comm::{ArgumentError, ReduceOp},
    group::{GroupError, GroupErrorKind, Scalar},
};
use proptest::prelude::*;
use rusty_fork::rusty_fork_test;

use super::common::{far, machine};

const RANKS: usize = 3;

/// The elements that a rank brings to a program, all different.
fn brought(rank: usize, elements: usize) -> Vec<i64> {
    (0..elements as i64).map(|element| 1000 * (rank as i64 + 1) + element).collect()
}

/// All ranks' elements.
fn all(elements: usize) -> Vec<Vec<i64>> {
    (0..RANKS).map(|rank| brought(rank, elements)).collect()
}

fn sum(rows: &[Vec<i64>]) -> Vec<i64> {
    (0..rows[0].len()).map(|element| rows.iter().map(|row| row[element]).sum()).collect()
}

fn slice<T: Scalar>(stream: &Stream, values: &[T]) -> DeviceSlice<T> {
    stream.clone_htod(values).unwrap()
}

/// Every operation, with `elements` elements a share.
fn every_operation(elements: usize, root: usize) {
    let machine = machine(RANKS);
    machine.ranks(RANKS, |rank| {
        let (world, stream, me) = (rank.world(), rank.stream(), rank.rank);
        let read = |slice: &DeviceSlice<i64>| stream.clone_dtoh(slice).unwrap();
        let (one, whole) = (all(elements), all(elements * RANKS));
        let share = |row: &[i64], of: usize| row[of * elements..][..elements].to_vec();

        let mut values = slice(&stream, &one[me]);
        world.all_reduce(&mut values, ReduceOp::Sum).unwrap();
        assert_eq!(read(&values), sum(&one));

        let mut values = slice(&stream, &one[me]);
        world.reduce(&mut values, ReduceOp::Max, root).unwrap();
        assert_eq!(read(&values), one[if me == root { RANKS - 1 } else { me }]);

        let mut values = slice(&stream, &one[me]);
        world.broadcast(&mut values, root).unwrap();
        assert_eq!(read(&values), one[root]);

        let (send, mut receive) = (slice(&stream, &one[me]), stream.alloc(elements * RANKS).unwrap());
        world.all_gather(&send, &mut receive).unwrap();
        assert_eq!(read(&receive), one.concat());

        let (send, mut receive) = (slice(&stream, &whole[me]), stream.alloc(elements).unwrap());
        world.reduce_scatter(&send, &mut receive, ReduceOp::Sum).unwrap();
        assert_eq!(read(&receive), share(&sum(&whole), me));

        let (send, mut receive) = (slice(&stream, &whole[me]), stream.alloc(elements * RANKS).unwrap());
        world.all_to_all(&send, &mut receive).unwrap();
        let expected: Vec<_> = whole.iter().map(|row| share(row, me)).collect();
        assert_eq!(read(&receive), expected.concat());

        let mut gathered: DeviceSlice<i64> = stream.alloc(elements * RANKS).unwrap();
        let at_root = (me == root).then(|| gathered.as_view_mut());
        world.gather(&slice(&stream, &one[me]), at_root, root).unwrap();
        if me == root {
            assert_eq!(read(&gathered), one.concat());
        }

        let (send, mut receive) = (slice(&stream, &whole[me]), stream.alloc(elements).unwrap());
        world.scatter((me == root).then(|| send.as_view()), &mut receive, root).unwrap();
        assert_eq!(read(&receive), share(&whole[root], me));

        // A message to the next rank; rank 0 begins, so that no two ranks wait for each other.
        let (next, before) = ((me + 1) % RANKS, (me + RANKS - 1) % RANKS);
        let (send, mut receive) = (slice(&stream, &one[me]), stream.alloc(elements).unwrap());
        if me == 0 {
            world.send(&send, next).unwrap();
            world.recv(&mut receive, before).unwrap();
        } else {
            world.recv(&mut receive, before).unwrap();
            world.send(&send, next).unwrap();
        }
        assert_eq!(read(&receive), one[before]);
        world.destroy(far()).unwrap();
    });
}

/// One step of a program on a slice. Every step is on one of two streams.
#[derive(Debug, Clone, Copy)]
enum Step {
    AllReduce,
    /// Copies the slice on the second stream, and goes on with the copy; the original is dropped.
    MoveToOther,
    /// Copies the slice on the first stream, and goes on with the copy.
    MoveToFirst,
    /// Fills other memory of the same length, which may be memory of a slice that was just dropped.
    Fill,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![Just(Step::AllReduce), Just(Step::MoveToOther), Just(Step::MoveToFirst), Just(Step::Fill)]
}

/// Runs a program on every rank, on a slice of ones, and returns the slices at its end.
fn run(steps: &[Step], elements: usize) -> Vec<Vec<i64>> {
    machine(RANKS).ranks(RANKS, |rank| {
        let (world, streams) = (rank.world(), [rank.stream(), rank.stream()]);
        let mut values = slice(&streams[0], &vec![1i64; elements]);
        for step in steps {
            match step {
                Step::AllReduce => drop(world.all_reduce(&mut values, ReduceOp::Sum).unwrap()),
                Step::MoveToOther => values = streams[1].clone_dtod(&values).unwrap(),
                Step::MoveToFirst => values = streams[0].clone_dtod(&values).unwrap(),
                Step::Fill => drop(values.stream().alloc_zeros::<i64>(elements).unwrap()),
            }
        }
        let found = streams[1].clone_dtoh(&values).unwrap();
        drop(values);
        world.destroy(far()).unwrap();
        found
    })
}

/// Wakes a thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future on this thread.
fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    let patience = far();
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        assert!(!patience.expired(), "the future is not woken");
        thread::park_timeout(patience.remaining());
    }
}

rusty_fork_test! {
    #[test]
    fn every_operation_gives_what_its_name_says() {
        proptest!(ProptestConfig::with_cases(4), |(elements in 1usize..600, root in 0..RANKS)| {
            every_operation(elements, root);
        });
    }

    #[test]
    fn operations_take_effect_in_the_order_of_calls_whatever_the_streams() {
        let programs = (prop::collection::vec(step(), 1..12), 1usize..2000);
        proptest!(ProptestConfig::with_cases(8), |((steps, elements) in programs)| {
            let reductions = steps.iter().filter(|step| matches!(step, Step::AllReduce)).count();
            let expected = vec![(RANKS as i64).pow(reductions as u32); elements];
            prop_assert!(run(&steps, elements).iter().all(|found| *found == expected));
        });
    }

    #[test]
    fn a_graph_holds_the_slices_of_its_operations() {
        const ELEMENTS: usize = 1000;
        let machine = machine(RANKS);
        machine.ranks(RANKS, |rank| {
            let (world, stream) = (rank.world(), rank.stream());
            let send = slice(&stream, &vec![rank.rank as f32; ELEMENTS]);
            let mut receive: DeviceSlice<f32> = stream.alloc(ELEMENTS * RANKS).unwrap();
            stream.synchronize().unwrap();
            let capture = stream.begin_capture(CaptureMode::ThreadLocal).unwrap();
            world.all_gather(&send, &mut receive).unwrap();
            drop(send);
            let exec = capture.end().unwrap().instantiate().unwrap();
            // Had the slice been freed, this would be its memory.
            let other = slice(&stream, &vec![-1f32; ELEMENTS]);
            for _ in 0..3 {
                stream.memset_zeros(&mut receive).unwrap();
                stream.launch(&exec).unwrap();
                let expected: Vec<_> = (0..RANKS).flat_map(|rank| vec![rank as f32; ELEMENTS]).collect();
                assert_eq!(stream.clone_dtoh(&receive).unwrap(), expected);
            }
            drop((exec, other, receive));
            world.destroy(far()).unwrap();
        });
    }

    #[test]
    fn a_future_is_ready_when_the_work_is_done_or_the_group_has_ended() {
        let machine = machine(2);
        machine.ranks(2, |rank| {
            let job = Job::new(rank.world()).unwrap();
            let mut values = slice(job.stream(), &[1f32; 100]);
            block_on(job.world().all_reduce(&mut values, ReduceOp::Sum).unwrap().into_future()).unwrap();
            assert_eq!(job.stream().clone_dtoh(&values).unwrap(), [2.0; 100]);
            if rank.rank == 1 {
                return; // drops the world
            }
            let work = job.world().all_reduce(&mut values, ReduceOp::Sum);
            let ended = work.and_then(|work| block_on(work.into_future()));
            assert!(matches!(ended.as_ref().map_err(GroupError::kind), Err(GroupErrorKind::Left { rank: 1, .. })), "{ended:?}");
        });
    }

    #[test]
    fn a_factor_at_an_address_is_refused() {
        let machine = machine(1);
        machine.ranks(1, |rank| {
            let job = Job::new(rank.world()).unwrap();
            let mut values = slice(job.stream(), &[1f32; 10]);
            let refused = job.world().all_reduce(&mut values, ReduceOp::PreMulSumAt(DevicePtr(8)));
            let Err(GroupErrorKind::Argument { source: ArgumentError::RawFactor, .. }) = refused.as_ref().map_err(GroupError::kind) else {
                panic!("expected RawFactor, found {refused:?}");
            };
            drop(values);
            job.finish().unwrap();
        });
    }

    /// Also in checked mode, whose error names the call sites of both sides.
    #[test]
    fn the_call_site_of_an_operation_is_the_callers() {
        let machine = machine(2);
        machine.ranks(2, |rank| {
            let (world, stream, me) = (rank.builder().checked(true).build().unwrap(), rank.stream(), rank.rank);
            let mut values = slice(&stream, &[0i64; 8]);
            let (send, mut receive) = (slice(&stream, &[0i64; 16]), slice(&stream, &[0i64; 16]));
            let begin = line!();
            world.all_reduce(&mut values, ReduceOp::Sum).unwrap();
            world.broadcast(&mut values, 0).unwrap();
            world.reduce(&mut values, ReduceOp::Sum, 0).unwrap();
            world.all_gather(&values, &mut receive).unwrap();
            world.reduce_scatter(&send, &mut values, ReduceOp::Sum).unwrap();
            world.all_to_all(&send, &mut receive).unwrap();
            world.gather(&values, (me == 0).then(|| receive.as_view_mut()), 0).unwrap();
            world.scatter((me == 0).then(|| send.as_view()), &mut values, 0).unwrap();
            if me == 0 {
                world.send(&values, 1).unwrap();
            } else {
                world.recv(&mut values, 0).unwrap();
            }
            let end = line!();
            let entries = world.dump().entries;
            assert_eq!(entries.len(), 9);
            for entry in entries {
                let (file, line) = (entry.site.file(), entry.site.line());
                assert!(file == file!() && (begin..end).contains(&line), "{:?} at {file}:{line}", entry.operation);
            }
            let other = slice(&stream, &vec![0i64; 4 + 4 * me]);
            let differ = world.all_reduce(&mut { other }, ReduceOp::Sum).unwrap_err();
            let GroupErrorKind::CallsDiffer { call, other_call, .. } = differ.kind() else { panic!("{differ}") };
            let site = format!("{}:{}", file!(), line!() - 2);
            assert!(call.ends_with(&site) && other_call.ends_with(&site), "{differ}");
            world.destroy(far()).unwrap();
        });
    }

    #[test]
    fn lengths_that_do_not_fit_are_refused_before_anything_is_enqueued() {
        let machine = machine(1);
        machine.ranks(1, |rank| {
            let job = Job::new(rank.world()).unwrap();
            let (send, mut receive) = (slice(job.stream(), &[1u8; 10]), slice(job.stream(), &[0u8; 9]));
            let refused = job.world().all_gather(&send, &mut receive);
            assert!(matches!(refused.as_ref().map_err(GroupError::kind), Err(GroupErrorKind::Argument { source: ArgumentError::Lengths { send: 10, receive: 9, .. }, .. })), "{refused:?}");
            assert_eq!(job.stream().clone_dtoh(&receive).unwrap(), [0; 9]);
            drop((send, receive));
            job.finish().unwrap();
        });
    }
}
