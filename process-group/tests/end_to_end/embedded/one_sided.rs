//! One-sided operations: their data and order, their behaviour in graphs, and refused calls.

use std::{env, thread, time::Duration};

use cuda_driver::{DevicePtr, Stream, graph::CaptureMode, vmm::Mapping};
use process_group::{
    ProcessGroup,
    comm::{ArgumentError, CommError, DataType::F32, WindowOutcome, WindowRequest, WindowsUnsupported},
    group::{Buffer, GroupError, GroupErrorKind, P2pPolicy},
    store::{Store, TcpStore},
};
use rusty_fork::rusty_fork_test;

use super::{
    common::{far, machine_with, soon},
    processes::{all_succeed, spawn},
    window::segment,
};

/// The release expected on hardware.
const RELEASE: i32 = 23007;
/// Elements of a segment for one rank's puts of one round.
const SHARE: usize = 1 << 12;

/// A number that all ranks compute alike: small, and exact as `f32`.
fn agreed(round: usize, from: usize, to: usize, i: usize) -> usize {
    (round * 31 + from * 7 + to * 3 + i) % 4093
}

/// Puts, signals and waits between all members. The first half of the memory is the source, the second is
/// written. In each round every member writes pieces of agreed lengths, different for each member, and all
/// wait for the puts to them.
pub(crate) fn every_one_sided(group: &ProcessGroup, memory: DevicePtr, bytes: usize, stream: &Stream) {
    let (n, me, context) = (group.size(), group.rank(), group.context());
    group.prepare_one_sided(far()).unwrap();
    group.prepare_one_sided(far()).unwrap();
    let before = group.sequence();
    let half = bytes / 2;
    assert!(n * SHARE * 4 <= half);
    let length = |round: usize, from: usize, to: usize| agreed(round * 17, from, to, 5) % SHARE;
    let place = |base: usize, rank: usize| memory + (base + rank * SHARE * 4);
    for round in 0..8 {
        let values: Vec<f32> =
            (0..n * SHARE).map(|i| agreed(round, me, i / SHARE, i % SHARE) as f32).collect();
        unsafe { context.copy_from_host(memory, &values) }.unwrap();
        let put = |to: usize| Buffer::new(place(0, to), length(round, me, to), F32);
        if round % 2 == 0 {
            // In one batch, all at once.
            let work = group.batch(stream, |batch| {
                (0..n).try_for_each(|to| unsafe { batch.put_signal(put(to), place(half, me), to) })
            });
            work.unwrap();
        } else {
            for to in 0..n {
                unsafe { group.put_signal(put(to), place(half, me), to, stream) }.unwrap();
                group.signal(to, stream).unwrap();
            }
        }
        for from in (0..n).rev() {
            group.wait_signals(from, 1 + round % 2, stream).unwrap();
        }
        // All have received their data before any rank writes there again.
        stream.synchronize().unwrap();
        let mut found = vec![0f32; n * SHARE];
        unsafe { context.copy_to_host(&mut found, memory + half) }.unwrap();
        for from in 0..n {
            let piece = &found[from * SHARE..][..length(round, from, me)];
            let expected: Vec<f32> = (0..piece.len()).map(|i| agreed(round, from, me, i) as f32).collect();
            assert_eq!(piece, expected, "round {round}, from {from} to {me}");
        }
        let work = group.batch(stream, |batch| (0..n).try_for_each(|to| batch.signal(to)));
        work.unwrap();
        (0..n).for_each(|from| drop(group.wait_signals(from, 1, stream).unwrap()));
    }
    group.quiesce(far()).unwrap();
    assert_eq!(group.sequence(), before, "one-sided calls are in no sequence");
    // They are recorded, but not in the output for PyTorch's analyser, which would fail on them.
    #[cfg(all(feature = "json", feature = "pickle"))]
    {
        let dump = group.dump();
        let (json, pickle) = (dump.to_json().unwrap(), dump.to_pickle().unwrap());
        let pickle = String::from_utf8_lossy(&pickle);
        for name in ["put_signal", "wait_signals"] {
            assert!(json.contains(name) && !pickle.contains(name), "{name}");
        }
    }
}

/// The same put and wait in a graph that is launched again and again, alongside others outside of graphs.
pub(crate) fn captured_one_sided(group: &ProcessGroup, memory: DevicePtr, bytes: usize, stream: &Stream) {
    let (n, me, context) = (group.size(), group.rank(), group.context());
    group.prepare_one_sided(far()).unwrap();
    let (half, next, last) = (bytes / 2, (me + 1) % n, (me + n - 1) % n);
    let capture = stream.begin_capture(CaptureMode::ThreadLocal).unwrap();
    unsafe { group.put_signal(Buffer::new(memory, 8, F32), memory + half, next, stream) }.unwrap();
    group.wait_signals(last, 1, stream).unwrap();
    let graph = capture.end().unwrap().instantiate().unwrap();
    for round in 0..4 {
        unsafe { context.copy_from_host(memory, &[agreed(round, me, next, 0) as f32; 8]) }.unwrap();
        stream.launch(&graph).unwrap();
        group.signal(next, stream).unwrap();
        group.wait_signals(last, 1, stream).unwrap();
        stream.synchronize().unwrap();
        let mut found = [0f32; 8];
        unsafe { context.copy_to_host(&mut found, memory + half) }.unwrap();
        assert_eq!(found, [agreed(round, last, me, 0) as f32; 8], "round {round}");
        // No rank writes before all have read.
        (0..n).for_each(|to| drop(group.signal(to, stream).unwrap()));
        (0..n).for_each(|from| drop(group.wait_signals(from, 1, stream).unwrap()));
        stream.synchronize().unwrap();
    }
}

/// Makes a window of a segment.
pub(crate) fn windowed(group: &ProcessGroup, segment: &Mapping) {
    let request = WindowRequest::symmetric(segment.ptr(), segment.bytes());
    let outcomes = unsafe { group.communicator().register_windows(&[request], far()) }.unwrap();
    assert!(matches!(outcomes[0], WindowOutcome::Registered(_)), "{outcomes:?}");
}

fn refused(result: Result<process_group::group::Work, GroupError>) -> ArgumentError {
    match result.unwrap_err().into_kind() {
        GroupErrorKind::Argument { source: error, .. } => error,
        other => panic!("{other}"),
    }
}

const CASE: &str = "PROCESS_GROUP_TEST_ONE_SIDED";
const RANKS: usize = 8;

/// The body of a rank, when it is started by the test below.
#[test]
#[ignore = "the body of a process that a test starts"]
fn one_rank() {
    env::var(CASE).expect("the test below starts this process");
    let machine = machine_with(RANKS, RELEASE);
    let rank = machine.this_rank();
    let builder = ProcessGroup::builder().context(&rank.context).nccl(&machine.nccl);
    let world = builder.timeout(Duration::from_secs(60)).build().unwrap();
    let (stream, segment) = (rank.stream(), segment(&rank));
    windowed(&world, &segment);
    every_one_sided(&world, segment.ptr(), segment.bytes(), &stream);
    captured_one_sided(&world, segment.ptr(), segment.bytes(), &stream);
    world.destroy(far()).unwrap();
    drop((stream, segment, rank));
    machine.world.finish().unwrap();
}

#[test]
fn processes_write_into_each_other() {
    let store = TcpStore::host(0).unwrap();
    let (test, address) = (concat!(module_path!(), "::one_rank"), store.address());
    all_succeed((0..RANKS).map(|rank| spawn(test, (CASE, "all"), rank, RANKS, &address)).collect());
}

rusty_fork_test! {
    #[test]
    fn every_release_that_has_them_does_the_same() {
        for release in [22902, 22907, 23003, RELEASE] {
            let machine = machine_with(4, release);
            machine.ranks(4, |rank| {
                let world = rank.world();
                let (stream, segment) = (rank.stream(), segment(&rank));
                windowed(&world, &segment);
                every_one_sided(&world, segment.ptr(), segment.bytes(), &stream);
                if release >= 23003 {
                    captured_one_sided(&world, segment.ptr(), segment.bytes(), &stream);
                } else {
                    let capture = stream.begin_capture(CaptureMode::ThreadLocal).unwrap();
                    let error = world.signal(0, &stream).unwrap_err();
                    assert!(matches!(error.kind(), GroupErrorKind::Comm(CommError::Missing(_))), "{error}");
                    assert!(error.to_string().contains("2.30.3"), "{error}");
                    drop(capture);
                }
                world.destroy(far()).unwrap();
            });
            machine.world.finish().unwrap();
        }
    }

    /// They use the group's communicator, which has the windows, and no communicator for messages.
    #[test]
    fn the_policy_for_messages_does_not_concern_them() {
        for policy in [P2pPolicy::Lanes(2), P2pPolicy::PerPair] {
            let machine = machine_with(3, RELEASE);
            machine.ranks(3, |rank| {
                let world = rank.builder().p2p(policy).build().unwrap();
                let (stream, segment) = (rank.stream(), segment(&rank));
                windowed(&world, &segment);
                every_one_sided(&world, segment.ptr(), segment.bytes(), &stream);
                assert!(world.p2p().explanations.is_empty() || policy != P2pPolicy::PerPair);
                world.destroy(far()).unwrap();
            });
            machine.world.finish().unwrap();
        }
    }

    #[test]
    fn releases_without_say_so() {
        for release in [22105, 22809] {
            let machine = machine_with(2, release);
            machine.ranks(2, |rank| {
                let world = rank.world();
                let error = world.communicator().prepare_one_sided(far()).unwrap_err();
                assert!(matches!(error, CommError::Missing(_)), "{error}");
                let stream = rank.stream();
                let error = refused(world.signal(1, &stream));
                assert!(matches!(error, ArgumentError::NotPrepared { call: "signal" }), "{error}");
                world.destroy(far()).unwrap();
            });
            machine.world.finish().unwrap();
        }
    }

    #[test]
    fn without_windows_there_are_none() {
        // SAFETY: this process has one thread yet.
        unsafe { env::set_var("NCCL_WIN_ENABLE", "0") };
        let machine = machine_with(2, RELEASE);
        machine.ranks(2, |rank| {
            let world = rank.world();
            assert!(matches!(world.windows_supported(), Err(WindowsUnsupported::Disabled { .. })));
            let error = world.prepare_one_sided(far()).unwrap_err();
            assert!(error.to_string().contains("NCCL_WIN_ENABLE"), "{error}");
            world.destroy(far()).unwrap();
        });
        machine.world.finish().unwrap();
    }

    #[test]
    fn what_nccl_would_not_look_at_is_refused() {
        let machine = machine_with(2, RELEASE);
        machine.ranks(2, |rank| {
            let world = rank.world();
            let (stream, segment) = (rank.stream(), segment(&rank));
            let (at, end) = (segment.ptr(), segment.bytes());
            let buffer = |ptr, elements| Buffer::new(ptr, elements, F32);
            let put = |local, place, peer| unsafe { world.put_signal(local, place, peer, &stream) };
            let peer = 1 - rank.rank;
            let error = refused(put(buffer(at, 1), at, peer));
            assert!(matches!(error, ArgumentError::NotPrepared { .. }), "{error}");
            world.prepare_one_sided(far()).unwrap();
            let error = refused(put(buffer(at, 1), at, peer));
            assert!(matches!(error, ArgumentError::OutsideWindows { buffer: "send", .. }), "{error}");
            windowed(&world, &segment);
            let other = rank.memory(&[0.0; 8]);
            let calls = machine.world.calls("ncclPutSignal");
            let cases = [
                (buffer(at, 8), other.ptr(), "receive"),
                (buffer(other.ptr(), 8), at, "send"),
                (buffer(at, 8), at + (end - 16), "receive"),
                (buffer(at + (end - 16), 8), at, "send"),
            ];
            for (local, place, side) in cases {
                let error = refused(put(local, place, peer));
                let ArgumentError::OutsideWindows { buffer, bytes: 32, .. } = error else { panic!("{error}") };
                assert_eq!(buffer, side);
            }
            let error = refused(put(buffer(at, 8), at, 2));
            assert!(matches!(error, ArgumentError::NoSuchRank { role: "peer", rank: 2, .. }), "{error}");
            // Onto itself, on the same rank.
            let error = refused(put(buffer(at, 8), at + 16usize, rank.rank));
            assert!(matches!(error, ArgumentError::Overlap { .. }), "{error}");
            let error = refused(put(Buffer::new(at + 1usize, 8, F32), at, peer));
            assert!(matches!(error, ArgumentError::Misaligned { dtype: F32, .. }), "{error}");
            for count in [0, 1 << 31] {
                let error = refused(world.wait_signals(0, count, &stream));
                assert!(matches!(error, ArgumentError::Signals { .. }), "{error}");
            }
            let error = refused(world.wait_signals(2, 1, &stream));
            assert!(matches!(error, ArgumentError::NoSuchRank { rank: 2, .. }), "{error}");
            assert_eq!(machine.world.calls("ncclPutSignal"), calls);
            // An empty put is only a signal.
            put(buffer(DevicePtr(0), 0), DevicePtr(0), peer).unwrap();
            let work = world.wait_signals(peer, 1, &stream).unwrap();
            work.wait_until(far()).unwrap();
            world.destroy(far()).unwrap();
        });
        machine.world.finish().unwrap();
    }

    #[test]
    fn preparing_without_a_rank_is_a_deadline() {
        let machine = machine_with(2, RELEASE);
        machine.ranks(2, |rank| {
            let communicator = rank.communicator();
            if rank.rank == 0 {
                let error = communicator.prepare_one_sided(soon()).unwrap_err();
                assert!(matches!(error, CommError::DeadlineExceeded { .. }), "{error}");
            }
            communicator.abort(far()).unwrap();
        });
        machine.world.finish().unwrap();
    }

    #[test]
    fn preparing_without_a_rank_ends_with_an_abort() {
        let machine = machine_with(2, RELEASE);
        machine.ranks(2, |rank| {
            let world = rank.world();
            if rank.rank == 1 {
                rank.store.wait(&["aborted"], far()).unwrap();
                return world.abort(far()).unwrap();
            }
            let aborter = world.abort_handle();
            thread::scope(|scope| {
                let inside = scope.spawn(|| world.prepare_one_sided(far()));
                while machine.world.calls("ncclSignal") == 0 {
                    thread::yield_now();
                }
                aborter.abort(far()).unwrap();
                let error = inside.join().unwrap().unwrap_err();
                assert!(matches!(error.kind(), GroupErrorKind::Comm(CommError::Closed { .. })), "{error}");
            });
            rank.store.set("aborted", b"").unwrap();
        });
        machine.world.finish().unwrap();
    }

    #[test]
    fn a_wait_for_a_signal_that_never_comes_ends_with_an_abort() {
        let machine = machine_with(2, RELEASE);
        machine.ranks(2, |rank| {
            let world = rank.world();
            let stream = rank.stream();
            world.prepare_one_sided(far()).unwrap();
            if rank.rank == 0 {
                let work = world.wait_signals(1, 1, &stream).unwrap();
                let error = work.wait_until(soon()).unwrap_err();
                assert!(matches!(error.kind(), GroupErrorKind::WorkTimeout { .. }), "{error}");
                assert_eq!(error.operation(), Some("wait_signals"), "{error}");
            }
            world.barrier(far()).unwrap();
            world.abort(far()).unwrap();
        });
        machine.world.finish().unwrap();
    }
}
