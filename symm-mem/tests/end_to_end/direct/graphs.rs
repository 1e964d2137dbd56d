//! Captured messages: correct in every run, or refused before anything is captured.

use std::thread;

use cuda_driver::{
    Stream, WaitCondition,
    graph::{CaptureMode, GraphExec},
    memory::DeviceMemory,
};
use process_group::{
    ProcessGroup,
    comm::wait_for_dropped,
    group::{GroupErrorKind, PathError},
};

use super::rig::{Machine, Rank, buffer, bytes, far, pattern, small};

const LENGTH: usize = 500;

/// Every run of a graph delivers its own data, with other messages between the runs.
#[test]
fn a_graph_is_right_in_every_run() {
    let machine = Machine::start(2);
    machine.ranks(2, |rank| {
        let group = rank.group(small());
        let (me, peer, stream) = (rank.rank, 1 - rank.rank, rank.stream());
        let (from, to) = (rank.memory(&[0; LENGTH]), rank.memory(&[0; LENGTH]));
        let eager = rank.memory(&[0; 70]);
        let capture = stream.begin_capture(CaptureMode::ThreadLocal).unwrap();
        // SAFETY: the memory lives until the stream is done with the graph's last run.
        let works = unsafe {
            [
                group.batch(&stream, |batch| {
                    batch.send(buffer(&from), peer)?;
                    batch.recv(buffer(&to), peer)
                }),
                // The same as separate calls.
                if me == 0 {
                    group.raw().send(buffer(&from), 1, &stream)
                } else {
                    group.raw().recv(buffer(&to), 0, &stream)
                },
            ]
        };
        for work in works {
            let error = work.unwrap().wait_until(far()).unwrap_err();
            assert!(matches!(error.kind(), GroupErrorKind::Captured), "{error}");
        }
        let graph = capture.end().unwrap().instantiate().unwrap();
        for run in 0..5 {
            from.copy_from_host(0, &pattern(10 * run + me, LENGTH)).unwrap();
            stream.launch(&graph).unwrap();
            stream.synchronize().unwrap();
            assert_eq!(bytes(&to), pattern(10 * run + peer, LENGTH), "run {run}");
            // SAFETY: as above.
            let work = unsafe {
                if me == 0 {
                    eager.copy_from_host(0, &pattern(run, 70)).unwrap();
                    group.raw().send(buffer(&eager), 1, &stream)
                } else {
                    group.raw().recv(buffer(&eager), 0, &stream)
                }
            };
            work.unwrap().wait_until(far()).unwrap();
            assert_eq!(bytes(&eager), pattern(run, 70));
        }
        drop(graph);
        group.destroy(far()).unwrap();
    });
    machine.finish();
}

#[test]
fn without_slots_for_graphs_nothing_is_captured_and_the_group_goes_on() {
    let machine = Machine::start(2);
    machine.ranks(2, |rank| {
        let group = rank.group(small().graph_slots(0));
        let (peer, stream) = (1 - rank.rank, rank.stream());
        let memory = rank.memory(&pattern(rank.rank * 5, 100));
        let capture = stream.begin_capture(CaptureMode::ThreadLocal).unwrap();
        // SAFETY: nothing is enqueued.
        let error = unsafe { group.raw().send(buffer(&memory), peer, &stream) }.unwrap_err();
        let GroupErrorKind::Path { source, .. } = error.kind() else { panic!("{error}") };
        assert!(
            matches!(&**source, PathError::Refused(problem) if problem.contains("graph_slots")),
            "{source}"
        );
        drop(capture.end().unwrap());
        assert_eq!((group.sequence(), group.dump().entries.len()), (0, 0));
        // SAFETY: the memory lives until the work is done.
        let work = unsafe {
            if rank.rank == 0 {
                group.raw().send(buffer(&memory), 1, &stream)
            } else {
                group.raw().recv(buffer(&memory), 0, &stream)
            }
        };
        work.unwrap().wait_until(far()).unwrap();
        assert_eq!(bytes(&memory), pattern(0, 100));
        group.destroy(far()).unwrap();
    });
    machine.finish();
}

/// The path makes the caller's stream wait, but for no event of a capture.
#[test]
fn messages_of_slices_are_sent_beside_a_capture_of_another_stream() {
    // Chunks on two streams.
    const LONG: usize = 5000;
    let machine = Machine::start(2);
    machine.ranks(2, |rank| {
        let group = rank.group(small());
        let (streams, other) = ([rank.stream(), rank.stream()], rank.stream());
        let mut slices = streams.each_ref().map(|stream| stream.alloc_zeros::<u8>(LONG).unwrap());
        let capture = other.begin_capture(CaptureMode::Relaxed).unwrap();
        for number in 0..6 {
            let (stream, slice) = (&streams[number % 2], &mut slices[number % 2]);
            let work = if rank.rank == 0 {
                stream.memcpy_htod(&pattern(number, LONG), &mut *slice).unwrap();
                group.send(&*slice, 1)
            } else {
                group.recv(&mut *slice, 0)
            };
            work.unwrap().wait_until(far()).unwrap();
            if rank.rank == 1 {
                assert_eq!(stream.clone_dtoh(&*slice).unwrap(), pattern(number, LONG), "message {number}");
            }
        }
        drop(capture.end().unwrap());
        drop(slices);
        group.destroy(far()).unwrap();
    });
    machine.finish();
}

/// One end captures a message and the other runs it eagerly: that could be correct only once.
#[test]
fn a_message_that_one_end_alone_captures_is_a_difference() {
    let machine = Machine::start(2);
    machine.ranks(2, |rank| {
        let group = rank.group(small());
        let (stream, memory) = (rank.stream(), rank.memory(&[3; 10]));
        let error = if rank.rank == 0 {
            let capture = stream.begin_capture(CaptureMode::ThreadLocal).unwrap();
            // SAFETY: the graph never runs.
            let sent = unsafe { group.raw().send(buffer(&memory), 1, &stream) };
            drop(capture.end());
            sent.err().unwrap_or_else(|| {
                loop {
                    if let Err(error) = group.check() {
                        break error;
                    }
                    thread::yield_now();
                }
            })
        } else {
            // SAFETY: the memory lives until the stream is done.
            let received = unsafe { group.raw().recv(buffer(&memory), 0, &stream) };
            received.and_then(|work| work.wait_until(far())).unwrap_err()
        };
        let GroupErrorKind::MessagesDiffer { difference, .. } = error.kind() else { panic!("{error}") };
        assert_eq!((&*difference.sent, &*difference.received), ("10 u8, in a graph", "10 u8"));
        stream.synchronize().unwrap();
        group.abort(far()).unwrap();
    });
    machine.finish();
}

/// A graph is launched without a call to the group.
#[test]
fn a_run_long_after_an_abort_ends_too() {
    let machine = Machine::start(2);
    machine.ranks(2, |rank| {
        let group = rank.group(small());
        let (stream, memory) = (rank.stream(), rank.memory(&pattern(rank.rank, 1000)));
        let capture = stream.begin_capture(CaptureMode::ThreadLocal).unwrap();
        // SAFETY: the memory lives until the stream is done.
        let message = unsafe {
            if rank.rank == 0 {
                group.raw().send(buffer(&memory), 1, &stream)
            } else {
                group.raw().recv(buffer(&memory), 0, &stream)
            }
        };
        message.unwrap();
        let graph = capture.end().unwrap().instantiate().unwrap();
        group.barrier(far()).unwrap();
        let abort = group.abort_handle();
        abort.abort(far()).unwrap();
        while group.standing().is_ok() {
            thread::yield_now();
        }
        // Longer than an abort waits for work under way.
        thread::sleep(std::time::Duration::from_secs(11));
        if rank.rank == 1 {
            stream.launch(&graph).unwrap();
            stream.synchronize().unwrap();
        }
        drop(graph);
        let _ = group.abort(far());
    });
    machine.finish();
}

/// The graph keeps the flag pages and rings, which the group's path had allocated.
#[test]
fn a_graph_runs_after_the_drop_of_its_group() {
    let machine = Machine::start(2);
    machine.ranks(2, |rank| {
        let group = rank.group(small());
        let (stream, memory) = (rank.stream(), rank.memory(&[0; 1000]));
        let capture = stream.begin_capture(CaptureMode::ThreadLocal).unwrap();
        // SAFETY: the memory lives until the stream is done.
        let message = unsafe {
            if rank.rank == 0 {
                group.raw().send(buffer(&memory), 1, &stream)
            } else {
                group.raw().recv(buffer(&memory), 0, &stream)
            }
        };
        message.unwrap();
        let graph = capture.end().unwrap().instantiate().unwrap();
        group.destroy(far()).unwrap();
        wait_for_dropped(far());
        for seed in 1..4 {
            if rank.rank == 0 {
                rank.write(memory.ptr(), &pattern(seed, 1000));
            }
            stream.launch(&graph).unwrap();
            stream.synchronize().unwrap();
            assert!(rank.read(memory.ptr(), 1000) == pattern(seed, 1000));
        }
    });
    machine.finish();
}

/// A graph with a message from rank 0 to rank 1. The message waits until `gate` is 1.
fn gated(
    rank: &Rank,
    group: &ProcessGroup,
    gate: &DeviceMemory,
    memory: &DeviceMemory,
) -> (Stream, GraphExec) {
    let stream = rank.stream();
    let capture = stream.begin_capture(CaptureMode::ThreadLocal).unwrap();
    // SAFETY: the memory lives until the stream is done.
    let message = unsafe {
        stream.wait_value32(gate.ptr(), WaitCondition::GreaterOrEqual, 1).unwrap();
        if rank.rank == 0 {
            group.raw().send(buffer(memory), 1, &stream)
        } else {
            group.raw().recv(buffer(memory), 0, &stream)
        }
    };
    message.unwrap();
    let graph = capture.end().unwrap().instantiate().unwrap();
    (stream, graph)
}

/// The last graph is dropped before the group, while it runs.
#[test]
fn the_memory_is_kept_until_the_run_of_a_dropped_graph_has_ended() {
    let machine = Machine::start(2);
    let calls = || ["cuCtxSynchronize", "cuMemHostUnregister"].map(|name| machine.world.calls(name));
    machine.ranks(2, |rank| {
        let group = rank.group(small());
        let gate = rank.memory(&[0; 4]);
        let memory = rank.memory(&if rank.rank == 0 { pattern(7, 1000) } else { vec![0; 1000] });
        let (stream, graph) = gated(&rank, &group, &gate, &memory);
        rank.installed.wait();
        let before = calls();
        rank.installed.wait();
        stream.launch(&graph).unwrap();
        drop(graph);
        let freed = thread::scope(|scope| {
            scope.spawn(|| {
                group.destroy(far()).unwrap();
                wait_for_dropped(far());
            });
            let mut now = calls();
            while now == before {
                thread::yield_now();
                now = calls();
            }
            gate.copy_from_host(0, &[1_u32]).unwrap();
            now[1] - before[1]
        });
        stream.synchronize().unwrap();
        assert_eq!(freed, 0, "the run uses flag pages that are freed");
        assert!(bytes(&memory) == pattern(7, 1000));
    });
    machine.finish();
}

/// The path waits for an idle device before it drops its memory. That wait would invalidate the capture.
#[test]
fn a_graph_that_is_dropped_last_leaves_a_capture_valid() {
    let machine = Machine::start(2);
    let calls = |name| machine.world.calls(name);
    machine.ranks(2, |rank| {
        let group = rank.group(small());
        let (gate, memory) = (rank.memory(&[0; 4]), rank.memory(&[0; 1000]));
        let (stream, graph) = gated(&rank, &group, &gate, &memory);
        group.destroy(far()).unwrap();
        wait_for_dropped(far());
        let capture = stream.begin_capture(CaptureMode::ThreadLocal).unwrap();
        let (queries, waits) = (calls("cuStreamIsCapturing"), calls("cuCtxSynchronize"));
        drop(graph);
        // Until the path has found the capture several times.
        while calls("cuStreamIsCapturing") < queries + 100 && calls("cuCtxSynchronize") == waits {
            thread::yield_now();
        }
        capture.end().unwrap();
    });
    machine.finish();
}
