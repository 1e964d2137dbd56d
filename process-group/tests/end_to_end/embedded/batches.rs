//! A batch has the same results as its operations one by one: in any order and number, enqueued and from a
//! graph.

use cuda_driver::{DevicePtr, Stream, graph::CaptureMode, memory::DeviceMemory};
use process_group::{
    ProcessGroup,
    comm::{DataType::F32, ReduceOp::Sum},
    group::Buffer,
};
use proptest::{
    collection::vec,
    sample::select,
    test_runner::{Config, TestRunner},
};
use rusty_fork::rusty_fork_test;

use super::{
    common::{Rank, far, machine_with, values},
    one_sided::windowed,
    window::segment,
};

#[derive(Debug, Clone, Copy)]
enum Kind {
    AllReduce,
    Broadcast,
    Reduce,
    AllGather,
    ReduceScatter,
    AllToAll,
    Gather,
    Scatter,
}

const KINDS: [Kind; 8] = [
    Kind::AllReduce,
    Kind::Broadcast,
    Kind::Reduce,
    Kind::AllGather,
    Kind::ReduceScatter,
    Kind::AllToAll,
    Kind::Gather,
    Kind::Scatter,
];

/// One operation with its own memory: a share for every member to send, and as much to receive.
struct Call {
    kind: Kind,
    root: usize,
    send: DeviceMemory,
    receive: DeviceMemory,
}

/// Makes a call by itself on a stream, or queues it.
macro_rules! call {
    ($case:expr, $call:expr, $to:expr $(, $stream:expr)?) => {{
        let Call { kind, root, send, receive } = $call;
        let (root, is_root) = (*root, *root == $case.world.rank());
        let one = |memory: &DeviceMemory| Buffer::new(memory.ptr(), $case.count, F32);
        let all = |memory: &DeviceMemory| Buffer::new(memory.ptr(), $case.world.size() * $case.count, F32);
        match kind {
            Kind::AllReduce => $to.all_reduce(all(send), all(receive), Sum $(, $stream)?),
            Kind::Broadcast => $to.broadcast(all(if is_root { send } else { receive }), root $(, $stream)?),
            Kind::Reduce => $to.reduce(all(send), all(receive), Sum, root $(, $stream)?),
            Kind::AllGather => $to.all_gather(one(send), all(receive) $(, $stream)?),
            Kind::ReduceScatter => $to.reduce_scatter(all(send), one(receive), Sum $(, $stream)?),
            Kind::AllToAll => $to.all_to_all(all(send), all(receive) $(, $stream)?),
            Kind::Gather => $to.gather(one(send), is_root.then(|| all(receive)), root $(, $stream)?),
            Kind::Scatter => $to.scatter(is_root.then(|| all(send)), one(receive), root $(, $stream)?),
        }
    }};
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Mode {
    Alone,
    Together,
    Captured,
}

/// One rank of a case.
struct CaseRank<'a> {
    rank: &'a Rank,
    world: &'a ProcessGroup,
    stream: &'a Stream,
    /// Elements of a share.
    count: usize,
    /// The window's addresses that this rank puts from and that others write to, if the release has windows.
    window: Option<(DevicePtr, DevicePtr)>,
}

impl CaseRank<'_> {
    fn calls(&self, operations: &[(Kind, usize)]) -> Vec<Call> {
        let (size, me) = (self.world.size(), self.world.rank());
        let call = |(number, (kind, root)): (usize, &(Kind, usize))| {
            let values: Vec<_> =
                (0..size * self.count).map(|i| ((number * 13 + me * 31 + i * 7) % 97) as f32).collect();
            let receive = self.rank.memory(&vec![-1.0; size * self.count]);
            Call { kind: *kind, root: root % size, send: self.rank.memory(&values), receive }
        };
        operations.iter().enumerate().map(call).collect()
    }

    /// Enqueues two batches of the calls, or each call by itself. The first also puts the window's data to
    /// the next member, and the second waits for the previous member's signal.
    fn enqueue(&self, mode: Mode, calls: &[Call]) {
        let Self { world, stream, window, count, .. } = self;
        let (size, me) = (world.size(), world.rank());
        let (next, former) = ((me + 1) % size, (me + size - 1) % size);
        let put = window.map(|(from, to)| (Buffer::new(from, *count, F32), to));
        let (first, second) = calls.split_at(calls.len() / 2);
        if mode == Mode::Alone {
            let alone = |call: &Call| {
                drop(
                    unsafe {
                        {
                            let raw = world.raw();
                            call!(self, call, raw, stream)
                        }
                    }
                    .unwrap(),
                )
            };
            first.iter().for_each(alone);
            if let Some((from, to)) = put {
                unsafe { world.put_signal(from, to, next, stream) }.unwrap();
                world.wait_signals(former, 1, stream).unwrap();
            }
            second.iter().for_each(alone);
            return;
        }
        let one = world.batch(stream, |batch| unsafe {
            first.iter().try_for_each(|call| call!(self, call, batch))?;
            put.map_or(Ok(()), |(from, to)| batch.put_signal(from, to, next))
        });
        let other = world.batch(stream, |batch| unsafe {
            put.map_or(Ok(()), |_| batch.wait_signals(former, 1))?;
            second.iter().try_for_each(|call| call!(self, call, batch))
        });
        drop((one.unwrap(), other.unwrap()));
    }

    /// Returns the results of each operation, and the data that the previous member has written here.
    fn results(&self, mode: Mode, operations: &[(Kind, usize)]) -> Vec<Vec<f32>> {
        let context = &self.rank.context;
        let calls = self.calls(operations);
        if let Some((from, to)) = self.window {
            let own = vec![self.world.rank() as f32; self.count];
            unsafe { context.copy_from_host(from, &own) }.unwrap();
            unsafe { context.copy_from_host(to, &vec![-1f32; self.count]) }.unwrap();
        }
        // No rank writes before all have filled their memory.
        self.world.barrier(far()).unwrap();
        if mode == Mode::Captured {
            let capture = self.stream.begin_capture(CaptureMode::ThreadLocal).unwrap();
            self.enqueue(mode, &calls);
            let graph = capture.end().unwrap().instantiate().unwrap();
            self.stream.launch(&graph).unwrap();
            self.stream.synchronize().unwrap();
        } else {
            self.enqueue(mode, &calls);
            self.stream.synchronize().unwrap();
        }
        let mut results: Vec<_> = calls.iter().map(|call| values(&call.receive)).collect();
        if let Some((_, to)) = self.window {
            let mut found = vec![0f32; self.count];
            unsafe { context.copy_to_host(&mut found, to) }.unwrap();
            results.push(found);
        }
        // No rank writes before all have read their results.
        self.world.barrier(far()).unwrap();
        results
    }
}

rusty_fork_test! {
    #[test]
    fn a_batch_gives_what_its_operations_give_one_by_one() {
        // The first release lacks all-to-all, gather, scatter and one-sided operations. A single rank has no
        // windows.
        let programs = (1..5usize, select(vec![21705, 23007]), 1..40usize, vec((select(KINDS.to_vec()), 0..4usize), 1..12));
        let mut runner = TestRunner::new(Config { cases: 24, failure_persistence: None, ..Config::default() });
        let tried = runner.run(&programs, |(size, release, count, operations)| {
            let machine = machine_with(size, release);
            machine.ranks(size, |rank| {
                let (world, stream) = (rank.world(), rank.stream());
                let segment = (release == 23007 && size > 1).then(|| segment(&rank));
                if let Some(segment) = &segment {
                    world.prepare_one_sided(far()).unwrap();
                    windowed(&world, segment);
                }
                let window = segment.as_ref().map(|segment| (segment.ptr(), segment.ptr() + segment.bytes() / 2));
                let case = CaseRank { rank: &rank, world: &world, stream: &stream, count, window };
                let expected = case.results(Mode::Alone, &operations);
                for mode in [Mode::Together, Mode::Captured] {
                    assert_eq!(case.results(mode, &operations), expected, "{mode:?}, rank {}", rank.rank);
                }
                world.destroy(far()).unwrap();
            });
            machine.world.finish().unwrap();
            Ok(())
        });
        tried.unwrap();
    }
}
