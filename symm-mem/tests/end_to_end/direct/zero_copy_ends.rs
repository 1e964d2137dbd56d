//! The ends of zero-copy messages that fail or are given up.

use std::{
    sync::{
        Barrier,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use cuda_driver::{Stream, WaitCondition, sys::CUresult};
use gpu_sim::{Action, Injection};
use process_group::{
    comm::{CommError, DataType},
    group::{Buffer, GroupErrorKind},
};
use symm_mem::{CommitOptions, Refusal};

use super::{
    job::{Job, MIB},
    rig::{Machine, PATIENCE, far, pattern},
};

/// The end that comes second finds the difference, and copies nothing.
#[test]
fn lengths_that_differ_are_named_and_nothing_is_copied() {
    for first in [0, 1] {
        let machine = Machine::start(2);
        machine.ranks(2, |rank| {
            let job = Job::new(&rank);
            let block = job.block(1000);
            job.commit();
            rank.write(block.ptr(), &[job.me() as u8; 1000]);
            let length = 200 + job.me();
            if job.me() != first {
                job.group.barrier(far()).unwrap();
            }
            let work = job.message(block.ptr(), length);
            if job.me() == first {
                job.group.barrier(far()).unwrap();
            }
            let error = work.and_then(|work| work.wait_until(far())).unwrap_err();
            let GroupErrorKind::MessagesDiffer { difference, .. } = error.kind() else { panic!("{error}") };
            assert_eq!((&*difference.sent, &*difference.received), ("200 u8", "201 u8"));
            job.stream.synchronize().unwrap();
            assert!(rank.read(block.ptr(), 1000) == [job.me() as u8; 1000]);
            job.group.abort(far()).unwrap();
        });
        machine.finish();
    }
}

/// Nobody takes the offers of rank 0. An abort withdraws them and ends the waits.
#[test]
fn an_abort_ends_offers_that_nobody_takes() {
    let machine = Machine::start(2);
    let done = Barrier::new(2);
    machine.ranks(2, |rank| {
        let job = Job::new(&rank);
        let block = job.block(1000);
        job.commit();
        let buffer = Buffer::new(block.ptr(), 1000, DataType::U8);
        let streams = [rank.stream(), rank.stream(), rank.stream()];
        let works = match job.me() {
            // SAFETY: the memory lives until the streams are done.
            0 => unsafe {
                vec![
                    job.group.raw().recv(buffer, 1, &streams[0]).unwrap(),
                    job.group.raw().send(buffer, 1, &streams[1]).unwrap(),
                    job.swap(1, block.ptr(), block.ptr(), 1000),
                    job.group.batch(&streams[2], |batch| batch.recv(buffer, 1)).unwrap(),
                ]
            },
            _ => Vec::new(),
        };
        job.group.barrier(far()).unwrap();
        if job.me() == 0 {
            let began = Instant::now();
            job.group.abort_handle().abort(far()).unwrap();
            println!("the abort took {:?}", began.elapsed());
            for work in &works {
                let error = work.wait_until(far()).unwrap_err();
                let is_it = matches!(error.kind(), GroupErrorKind::Comm(CommError::Closed { .. }));
                assert!(is_it, "{error}");
            }
            streams.iter().chain([&job.stream]).try_for_each(Stream::synchronize).unwrap();
        }
        done.wait();
        if job.me() == 1 {
            // The offer to receive was withdrawn: what is sent now does not reach the buffer of rank 0.
            // SAFETY: as above.
            let sent = unsafe { job.group.raw().send(buffer, 0, &streams[0]) };
            let ended = sent.and_then(|work| work.wait_until(far()));
            assert!(ended.is_err(), "rank 0 has given up");
            streams[0].synchronize().unwrap();
        }
        done.wait();
        job.group.abort(far()).unwrap();
        rank.write(block.ptr(), &[4; 1000]);
        done.wait();
        assert!(rank.read(block.ptr(), 1000) == [4; 1000]);
        drop(block);
    });
    machine.finish();
}

/// A rank may reuse its buffer when its stream has passed the message, also after an abort. So the abort of a receiver
/// leaves time to a sender that has taken the offer and has not copied yet.
#[test]
fn no_peer_writes_into_a_buffer_after_an_abort() {
    let machine = Machine::start(2);
    let (done, returned) = (Barrier::new(2), AtomicBool::new(false));
    machine.ranks(2, |rank| {
        let job = Job::new(&rank);
        let block = job.block(1000);
        job.commit();
        rank.write(block.ptr(), &[9; 1000]);
        let gate = rank.memory(&[0; 4]);
        if job.me() == 0 {
            // From rank 1 to rank 0: a receiver that comes first.
            let buffer = Buffer::new(block.ptr(), 1000, DataType::U8);
            // SAFETY: the memory lives until the stream is done.
            unsafe { job.group.raw().recv(buffer, 1, &job.stream) }.unwrap();
            done.wait();
            done.wait();
            job.group.abort_handle().abort(far()).unwrap();
            job.stream.synchronize().unwrap();
            returned.store(true, Ordering::SeqCst);
            rank.write(block.ptr(), &[4; 1000]);
            done.wait();
            // Rank 1 has nothing under way.
            done.wait();
            assert!(rank.read(block.ptr(), 1000) == [4; 1000]);
        } else {
            done.wait();
            let buffer = Buffer::new(block.ptr(), 1000, DataType::U8);
            // SAFETY: the memory lives until the stream is done.
            unsafe {
                job.stream.wait_value32(gate.ptr(), WaitCondition::GreaterOrEqual, 1).unwrap();
                job.group.raw().send(buffer, 0, &job.stream).unwrap();
            }
            assert_eq!(job.report(), (1, 0));
            done.wait();
            // Time for an abort that does not wait.
            let began = Instant::now();
            while !returned.load(Ordering::SeqCst) && began.elapsed() < Duration::from_millis(300) {
                thread::yield_now();
            }
            if returned.load(Ordering::SeqCst) {
                // The buffer of rank 0 was reused by now.
                done.wait();
                gate.copy_from_host(0, &1u32.to_le_bytes()).unwrap();
            } else {
                gate.copy_from_host(0, &1u32.to_le_bytes()).unwrap();
                done.wait();
            }
            job.stream.synchronize().unwrap();
            done.wait();
        }
        job.group.abort(far()).unwrap();
        drop(block);
    });
    machine.finish();
}

/// Each driver call of a launch fails in turn, on the end that comes first or second.
#[test]
fn a_message_that_cannot_be_launched_ends_the_group_on_both_ends() {
    // The rank that fails, the rank that comes first, and the driver call.
    let cases = [
        (0, 0, "cuStreamBatchMemOp_v2", 1),
        (0, 1, "cuStreamBatchMemOp_v2", 1),
        (0, 1, "cuMemcpyDtoDAsync_v2", 1),
        (0, 1, "cuStreamBatchMemOp_v2", 2),
        (1, 0, "cuMemcpyDtoDAsync_v2", 1),
        (1, 0, "cuStreamBatchMemOp_v2", 2),
        (1, 1, "cuStreamBatchMemOp_v2", 1),
    ];
    for (failing, first, call, count) in cases {
        let machine = Machine::start(2);
        machine.ranks(2, |rank| {
            let job = Job::new(&rank);
            let block = job.block(1000);
            job.commit();
            // A first end that fails makes no offer that the other could take.
            if job.me() != first && failing != first {
                job.group.barrier(far()).unwrap();
            }
            if job.me() == failing {
                let failure = Action::Fail(CUresult::CUDA_ERROR_UNKNOWN.0);
                machine.world.faults().inject(Injection::new(call, failure).nth(count)).unwrap();
            }
            let error = if failing == first && job.me() != failing {
                loop {
                    if let Err(error) = job.group.standing() {
                        break error;
                    }
                    thread::yield_now();
                }
            } else {
                let work = job.message(block.ptr(), 1000);
                if job.me() == first && job.me() != failing {
                    job.group.barrier(far()).unwrap();
                }
                work.and_then(|work| work.wait_until(far())).unwrap_err()
            };
            let GroupErrorKind::MemberFailed { rank: of, reason, .. } = error.kind() else {
                panic!("{call} {count}: {error}")
            };
            assert!(*of == failing && reason.contains("direct path"), "{error}");
            job.stream.synchronize().unwrap();
            job.group.abort(far()).unwrap();
            rank.write(block.ptr(), &[4; 1000]);
            assert!(rank.read(block.ptr(), 1000) == [4; 1000]);
            drop(block);
        });
        machine.finish();
    }
}

/// A pool whose segments differ is mapped by no rank.
#[test]
fn a_pool_that_differs_is_not_mapped() {
    let machine = Machine::start(2);
    machine.ranks(2, |rank| {
        let job = Job::new(&rank);
        let block = job.block(if job.me() == 0 { 2 * MIB } else { 4 * MIB });
        let options = CommitOptions::default().windows(false).deadline(PATIENCE);
        let error = job.pool.commit(&job.group, options).unwrap_err();
        assert!(matches!(error.refusal(), Some(Refusal::SegmentShapeMismatch { .. })), "{error}");
        rank.write(block.ptr(), &pattern(1 - job.me(), 1000));
        job.message(block.ptr(), 1000).unwrap().wait_until(far()).unwrap();
        assert_eq!(job.report(), (0, 1));
        assert!(rank.read(block.ptr(), 1000) == pattern(1, 1000));
        drop(block);
        job.leave();
    });
    machine.finish();
}
