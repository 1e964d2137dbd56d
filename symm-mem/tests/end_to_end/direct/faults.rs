//! Every driver call fails in turn: while a path is made, and while messages are launched.

use std::{sync::Barrier, thread};

use cuda_driver::sys::CUresult;
use gpu_sim::{Action, Injection};
use process_group::{
    ProcessGroup,
    comm::Group,
    error_text,
    group::{Buffer, GroupError, GroupErrorKind},
    store::Deadline,
};
use symm_mem::direct;

use super::rig::{Machine, buffer, bytes, far, is_given_up, pattern, small};

/// Driver calls by which two ranks make a path, and which of these calls fail: calls of the rendezvous, of the rings,
/// and of the rest.
const MAKING: [(&str, &[u64]); 7] = [
    ("cuDeviceGetUuid_v2", &[1]),
    ("cuMemCreate", &[1, 2]),
    ("cuMemMap", &[1, 3]),
    ("cuMemSetAccess", &[1]),
    ("cuMemHostRegister_v2", &[1, 2]),
    ("cuMemHostGetDevicePointer_v2", &[1]),
    ("cuEventCreate", &[1, 3]),
];

/// Driver calls by which a message of 16 chunks is launched on two streams, and which of these calls fail: the first,
/// some in the middle, the last.
const LAUNCHING: [(&str, &[u64]); 7] = [
    ("cuStreamGetCaptureInfo_v2", &[1, 2]),
    ("cuStreamCreate", &[1]),
    ("cuStreamBatchMemOp_v2", &[1, 2, 9, 16]),
    ("cuMemcpyDtoDAsync_v2", &[1, 2, 9, 16]),
    ("cuStreamWriteValue32_v2", &[1, 2]),
    ("cuStreamWaitEvent", &[1, 2]),
    ("cuEventRecord", &[1, 2, 3]),
];

/// Waits until the group has ended, and returns the cause.
fn over(group: &ProcessGroup) -> GroupError {
    loop {
        if let Err(error) = group.standing() {
            return error;
        }
        thread::yield_now();
    }
}

fn failure() -> Action {
    Action::Fail(CUresult::CUDA_ERROR_UNKNOWN.0)
}

#[test]
fn a_path_that_one_cannot_make_none_has_and_all_may_try_again() {
    let each = |(call, counts): (_, &'static [u64])| counts.iter().map(move |count| (call, *count));
    for (call, count) in MAKING.into_iter().flat_map(each) {
        let machine = Machine::start(2);
        let made = machine.ranks(2, |rank| {
            let group = rank.builder().build().unwrap();
            group.barrier(far()).unwrap();
            if rank.rank == 0 {
                machine.world.faults().inject(Injection::new(call, failure()).nth(count)).unwrap();
            }
            group.barrier(far()).unwrap();
            let made = direct::install(&group, small());
            group.barrier(far()).unwrap();
            if made.is_err() {
                direct::install(&group, small()).unwrap();
                assert_eq!(group.p2p().communicators, 0);
            }
            // An abort would end the other rank's call.
            group.barrier(far()).unwrap();
            group.abort(far()).unwrap();
            made.err().map(|error| error_text(&error))
        });
        // Ranks on which the call did not fail are told the cause too, and not that a rank is missing.
        let is_told = |told: &Option<String>| told.as_ref().is_some_and(|told| told.contains(call));
        assert!(made.iter().all(is_told), "{call} {count}: {made:?}");
        machine.finish();
    }
}

#[test]
fn a_message_that_cannot_be_launched_ends_the_group_on_both_ends() {
    let each = |(call, counts): (_, &'static [u64])| counts.iter().map(move |count| (call, *count));
    for (call, count) in LAUNCHING.into_iter().flat_map(each) {
        let machine = Machine::start(2);
        machine.ranks(2, |rank| {
            let group = rank.group(small());
            let (stream, memory) = (rank.stream(), rank.memory(&pattern(rank.rank, 1000)));
            if rank.rank == 1 {
                // It already waits, and makes no call that is to fail.
                // SAFETY: the memory lives until the stream is done.
                let work = unsafe { group.raw().recv(buffer(&memory), 0, &stream) }.unwrap();
                group.barrier(far()).unwrap();
                let error = match work.wait_until(far()) {
                    // The failing call comes after the message, which is complete.
                    Ok(()) => {
                        assert!(call == "cuEventRecord" || call == "cuStreamWaitEvent", "{call} {count}");
                        assert_eq!(bytes(&memory), pattern(0, 1000));
                        over(&group)
                    }
                    Err(error) => error,
                };
                let GroupErrorKind::MemberFailed { rank: 0, reason, .. } = error.kind() else {
                    panic!("{call} {count}: {error}")
                };
                assert!(reason.contains("direct path"), "{reason}");
            } else {
                group.barrier(far()).unwrap();
                machine.world.faults().inject(Injection::new(call, failure()).nth(count)).unwrap();
                // SAFETY: as above.
                let error = unsafe { group.raw().send(buffer(&memory), 1, &stream) }.unwrap_err();
                assert!(
                    matches!(error.kind(), GroupErrorKind::MemberFailed { rank: 0, .. }),
                    "{call} {count}: {error}"
                );
            }
            stream.synchronize().unwrap();
            let found = bytes(&memory);
            assert!(rank.rank == 1 || found == pattern(0, 1000));
            group.abort(far()).unwrap();
        });
        machine.finish();
    }
}

/// Nobody answers, so only the group's end can end the enqueued waits.
#[test]
fn what_could_not_be_marked_is_ended_too() {
    for count in 1..=3 {
        let machine = Machine::start(2);
        let done = Barrier::new(2);
        machine.ranks(2, |rank| {
            let group = rank.group(small());
            let (stream, memory) = (rank.stream(), rank.memory(&pattern(rank.rank, 1000)));
            group.barrier(far()).unwrap();
            if rank.rank == 0 {
                machine.world.faults().inject(Injection::new("cuEventRecord", failure()).nth(count)).unwrap();
                // SAFETY: the memory lives until the stream is done.
                let error = unsafe { group.raw().send(buffer(&memory), 1, &stream) }.unwrap_err();
                assert!(
                    matches!(error.kind(), GroupErrorKind::MemberFailed { rank: 0, .. }),
                    "{count}: {error}"
                );
                stream.synchronize().unwrap();
            }
            done.wait();
            group.abort(far()).unwrap();
        });
        machine.finish();
    }
}

/// A rank that ends its waits copies chunks into slots that are not free: from then on none of its messages is valid.
#[test]
fn what_may_have_been_given_up_is_no_message() {
    for drops in [false, true] {
        let machine = Machine::start(2);
        let meet = Barrier::new(2);
        machine.ranks(2, |rank| {
            let group = rank.group(small());
            let (stream, memory) = (rank.stream(), rank.memory(&pattern(rank.rank, 1000)));
            // SAFETY: the memory lives until the stream is done.
            let message = |part: Buffer| unsafe {
                if rank.rank == 0 {
                    group.raw().send(part, 1, &stream)
                } else {
                    group.raw().recv(part, 0, &stream)
                }
            };
            let first = message(Buffer { elements: 100, ..buffer(&memory) }).unwrap();
            first.wait_until(far()).unwrap();
            meet.wait();
            if rank.rank == 0 {
                // Nobody receives it.
                message(buffer(&memory)).unwrap();
                group.abort(far()).unwrap();
                meet.wait();
                return;
            }
            meet.wait();
            assert_eq!(bytes(&memory)[..100], pattern(0, 1000)[..100]);
            let group = if drops {
                drop(group);
                None
            } else {
                assert!(!first.is_completed().unwrap(), "it may have been given up");
                Some(group)
            };
            // A rank that aborts by itself gives no reason. The other rank still learns which rank aborted: first by
            // the path, later by the health monitor.
            for deadline in [Deadline::now(), far()] {
                let error = first.wait_until(deadline).unwrap_err();
                assert!(is_given_up(&error, 0), "{error}");
            }
            group.into_iter().for_each(|group| group.abort(far()).unwrap());
        });
        machine.finish();
    }
}

/// Inside a group of calls, communicators cannot be aborted: the group ends like one that is dropped.
#[test]
fn an_abort_inside_a_group_of_calls_leaves_no_message_that_seems_to_have_come() {
    let machine = Machine::start(2);
    let enqueued = Barrier::new(2);
    machine.ranks(2, |rank| {
        let group = rank.group(small());
        let (stream, memory) = (rank.stream(), rank.memory(&pattern(rank.rank, 1000)));
        if rank.rank == 0 {
            enqueued.wait();
            group.abort(far()).unwrap();
            return;
        }
        // SAFETY: the memory lives until the stream is done.
        let work = unsafe { group.raw().recv(buffer(&memory), 0, &stream) }.unwrap();
        enqueued.wait();
        let open = Group::begin(group.nccl()).unwrap();
        let error = group.abort(far()).unwrap_err();
        assert!(error.to_string().contains("ncclCommAbort"), "{error}");
        open.finish().unwrap();
        stream.synchronize().unwrap();
        assert!(work.is_completed().is_err());
    });
    machine.finish();
}
