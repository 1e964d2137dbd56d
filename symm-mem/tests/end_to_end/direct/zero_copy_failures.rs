//! Zero-copy messages whose launch fails, or comes at the same time as an abort or a retirement.

use std::{
    sync::{Arc, Barrier, mpsc},
    thread,
};

use cuda_driver::{
    WaitCondition,
    graph::CaptureMode,
    sys::{CUresult, CUstreamCaptureMode},
};
use process_group::{
    comm::DataType,
    group::{Buffer, Work},
};
use symm_mem::Refusal;

use super::{
    hook,
    job::{Job, MIB},
    rig::{Machine, PATIENCE, buffer, far},
};
use crate::common::foreign_capture::ForeignCapture;

const LENGTH: usize = 1000;

/// A receive of rank 1 through the ring, which rank 0 never sends. Its wait ends only by aborts: the last of them has
/// ended the other waits too, and has withdrawn the offers.
fn unanswered(job: &Job<'_>) -> (Work, cuda_driver::Stream, cuda_driver::memory::DeviceMemory) {
    let (stream, memory) = (job.rank.stream(), job.rank.memory(&[0; 64 * 3 * 8]));
    // SAFETY: the caller keeps the memory until the stream is done.
    let work = unsafe { job.group.raw().recv(buffer(&memory), 0, &stream) }.unwrap();
    (work, stream, memory)
}

/// The launch of a receiver fails after the sender has taken its offers: the sender copies before the receiver's abort
/// returns, and not afterwards.
#[test]
fn no_peer_writes_into_a_buffer_after_a_receive_that_failed() {
    // Number of messages, and the one whose launch fails.
    for (messages, failing) in [(1, 1), (2, 1), (2, 2)] {
        let machine = Machine::start(2);
        let (claimed, taken, done) = (Barrier::new(2), Barrier::new(2), Barrier::new(2));
        let [claimed, taken, done] = [claimed, taken, done].map(Arc::new);
        machine.ranks(2, |rank| {
            let job = Job::new(&rank);
            let blocks: Vec<_> = (0..messages).map(|_| job.block(LENGTH)).collect();
            job.commit();
            let each = |at: &symm_mem::SymmetricBlock| Buffer::new(at.ptr(), LENGTH, DataType::U8);
            if job.me() == 0 {
                claimed.wait();
                // SAFETY: the memory lives until the stream is done.
                let work = job.group.batch(&job.stream, |batch| unsafe {
                    blocks.iter().try_for_each(|block| batch.send(each(block), 1))
                });
                work.unwrap();
                assert_eq!(job.report(), (messages as u64, 0), "all offers are taken");
                taken.wait();
                // Ends once rank 1 lets it copy, or with the aborts.
                job.stream.synchronize().unwrap();
            } else {
                let hook = (claimed.clone(), taken.clone());
                hook::before("cuStreamBatchMemOp_v2", failing, move || {
                    hook.0.wait();
                    hook.1.wait();
                    CUresult::CUDA_ERROR_UNKNOWN
                });
                // SAFETY: as above.
                let work = job.group.batch(&job.stream, |batch| unsafe {
                    blocks.iter().try_for_each(|block| batch.recv(each(block), 0))
                });
                work.unwrap_err();
                job.group.abort_handle().abort(far()).unwrap();
                job.stream.synchronize().unwrap();
                blocks.iter().for_each(|block| rank.write(block.ptr(), &[4; LENGTH]));
            }
            done.wait();
            if job.me() == 1 {
                assert!(blocks.iter().all(|block| rank.read(block.ptr(), LENGTH) == [4; LENGTH]));
            }
            job.group.abort(far()).unwrap();
            drop(blocks);
        });
        machine.finish();
    }
}

/// A call that has begun before an abort makes no offer after it.
#[test]
fn a_call_makes_no_offer_after_an_abort() {
    // The call asks several times whether the stream captures: once in the path.
    for nth in 1..=4 {
        let machine = Machine::start(2);
        let done = Barrier::new(2);
        machine.ranks(2, |rank| {
            let job = Job::new(&rank);
            let block = job.block(LENGTH);
            job.commit();
            let mut result = None;
            if job.me() == 1 {
                let (_work, stream, _memory) = unanswered(&job);
                let (entered, has_entered) = mpsc::channel();
                let (aborted, is_aborted) = mpsc::channel::<()>();
                thread::scope(|scope| {
                    let call = scope.spawn(|| {
                        hook::before("cuStreamGetCaptureInfo_v2", nth, move || {
                            entered.send(()).unwrap();
                            is_aborted.recv().unwrap();
                            CUresult::CUDA_SUCCESS
                        });
                        let work = job.message(block.ptr(), LENGTH);
                        hook::remove();
                        work
                    });
                    let is_inside = has_entered.recv().is_ok();
                    let abort = scope.spawn(|| job.group.abort_handle().abort(far()));
                    stream.synchronize().unwrap();
                    if is_inside {
                        aborted.send(()).unwrap();
                        result = Some((call.join().unwrap().is_err(), job.report().0));
                    }
                    abort.join().unwrap().unwrap();
                });
            }
            done.wait();
            job.group.abort(far()).unwrap();
            assert!(result.is_none_or(|result| result == (true, 0)), "call {nth}: {result:?}");
            drop(block);
        });
        machine.finish();
    }
}

/// A sender has taken one of two offers when the receiver aborts, and its call for the other one has begun. The other
/// offer is withdrawn at once, although the receiver still waits for the first copy.
#[test]
fn an_abort_withdraws_the_offers_behind_one_that_is_taken() {
    // As above.
    for nth in 1..=4 {
        let machine = Machine::start(2);
        let at = Arc::new(Barrier::new(2));
        machine.ranks(2, |rank| {
            let job = Job::new(&rank);
            let blocks = [job.block(LENGTH), job.block(LENGTH)];
            job.commit();
            if job.me() == 1 {
                let (_work, stream, _memory) = unanswered(&job);
                let _works = blocks.each_ref().map(|block| job.message(block.ptr(), LENGTH).unwrap());
                at.wait();
                at.wait();
                thread::scope(|scope| {
                    let abort = scope.spawn(|| job.group.abort_handle().abort(far()));
                    stream.synchronize().unwrap();
                    at.wait();
                    abort.join().unwrap().unwrap();
                });
                job.stream.synchronize().unwrap();
                blocks.iter().for_each(|block| rank.write(block.ptr(), &[4; LENGTH]));
                at.wait();
                at.wait();
                assert!(blocks.iter().all(|block| rank.read(block.ptr(), LENGTH) == [4; LENGTH]));
            } else {
                let (gate, side) = (rank.memory(&[0; 4]), rank.memory(&[0; 64 * 3 * 8]));
                at.wait();
                // The message through the ring is the first one. It waits for a stream that is held.
                let held = rank.stream();
                // SAFETY: the memory lives until the streams are done.
                unsafe {
                    held.wait_value32(gate.ptr(), WaitCondition::GreaterOrEqual, 1).unwrap();
                    job.group.raw().send(buffer(&side), 1, &held).unwrap();
                }
                job.message(blocks[0].ptr(), LENGTH).unwrap();
                let hook = at.clone();
                hook::before("cuStreamGetCaptureInfo_v2", nth, move || {
                    hook.wait();
                    hook.wait();
                    CUresult::CUDA_SUCCESS
                });
                // Refused, or sent to nobody.
                let _ = job.message(blocks[1].ptr(), LENGTH);
                let is_before = hook::remove();
                if is_before {
                    at.wait();
                    at.wait();
                }
                let zero_copy = job.report().0;
                gate.copy_from_host(0, &1u32.to_le_bytes()).unwrap();
                held.synchronize().unwrap();
                job.stream.synchronize().unwrap();
                at.wait();
                at.wait();
                assert_eq!(zero_copy, 1 + u64::from(is_before), "call {nth}");
            }
            job.group.abort(far()).unwrap();
            drop(blocks);
        });
        machine.finish();
    }
}

/// A sender copies into a buffer that its receiver has not reached only after the receiver's own time for copies is
/// over. Here, rank 1 still reads the buffer. The end of its wait for rank 2 shows that the time is over.
#[test]
fn a_sender_waits_longer_for_a_buffer_than_its_receiver_for_the_copy() {
    let machine = Machine::start(3);
    let at = Barrier::new(3);
    machine.ranks(3, |rank| {
        let job = Job::new(&rank);
        let blocks = [job.block(LENGTH), job.block(LENGTH)];
        job.commit();
        let (gate, seen, other) = (rank.memory(&[0; 4]), rank.memory(&[0; LENGTH]), rank.stream());
        let at_block = |block: usize| Buffer::new(blocks[block].ptr(), LENGTH, DataType::U8);
        rank.write(blocks[0].ptr(), &[1 + job.me() as u8; LENGTH]);
        // SAFETY: the memory lives until the streams are done.
        let hold = || unsafe { job.stream.wait_value32(gate.ptr(), WaitCondition::GreaterOrEqual, 1) };
        let open = || gate.copy_from_host(0, &1u32.to_le_bytes()).unwrap();
        match job.me() {
            // SAFETY: as above.
            1 => unsafe {
                hold().unwrap();
                job.stream.copy(seen.ptr(), blocks[0].ptr(), LENGTH).unwrap();
                job.group.raw().recv(at_block(0), 0, &job.stream).unwrap();
                job.group.raw().recv(at_block(1), 2, &other).unwrap();
                at.wait();
                at.wait();
                at.wait();
                thread::scope(|scope| {
                    let abort = scope.spawn(|| job.group.abort_handle().abort(far()));
                    other.synchronize().unwrap();
                    open();
                    abort.join().unwrap().unwrap();
                });
                job.stream.synchronize().unwrap();
                at.wait();
                assert_eq!(rank.read(seen.ptr(), LENGTH), [2; LENGTH], "the buffer was in use");
            },
            // SAFETY: as above.
            0 => unsafe {
                // A receive that nobody sends: its end shows that the abort has begun.
                let memory = rank.memory(&[0; LENGTH]);
                job.group.raw().recv(buffer(&memory), 2, &other).unwrap();
                at.wait();
                job.group.raw().send(at_block(0), 1, &job.stream).unwrap();
                assert_eq!(job.report().0, 1);
                // The abort ends the group on all ranks, so rank 2 sends first.
                at.wait();
                thread::scope(|scope| {
                    let abort = scope.spawn(|| job.group.abort_handle().abort(far()));
                    other.synchronize().unwrap();
                    at.wait();
                    abort.join().unwrap().unwrap();
                });
                at.wait();
            },
            // SAFETY: as above.
            _ => unsafe {
                at.wait();
                hold().unwrap();
                job.group.raw().send(at_block(1), 1, &job.stream).unwrap();
                assert_eq!(job.report().0, 1);
                at.wait();
                at.wait();
                at.wait();
                open();
                job.stream.synchronize().unwrap();
            },
        }
        job.group.abort(far()).unwrap();
        drop(blocks);
    });
    machine.finish();
}

/// A capture that another library began cannot keep a segment. A declared capture keeps it as long as its pin lives.
#[test]
fn a_declared_capture_keeps_the_peers_segment_as_long_as_its_pin() {
    let machine = Machine::start(2);
    machine.ranks(2, |rank| {
        let job = Job::new(&rank);
        let block = job.block(MIB);
        let other = rank.memory(&[0; LENGTH]);
        job.commit();
        let pin = if job.me() == 0 {
            let capture = job.stream.begin_capture(CaptureMode::ThreadLocal).unwrap();
            job.message(block.ptr(), LENGTH).unwrap();
            drop(capture.end().unwrap());
            job.group.barrier(far()).unwrap();
            None
        } else {
            job.group.barrier(far()).unwrap();
            let declared = job.pool.begin_capture();
            // SAFETY: the stream outlives the capture, and the graph is not launched.
            unsafe {
                let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
                let capture = ForeignCapture::begin(&rank.context, job.stream.raw(), mode);
                job.message(other.ptr(), LENGTH).unwrap();
                drop(capture.end().unwrap());
            }
            assert_eq!(job.report(), (1, 0));
            Some(declared.finish())
        };
        drop(block);
        let retired = job.pool.retire(&[0], &[&job.group], PATIENCE);
        let retired = retired.expect_err("rank 1 has a pin");
        let Some(Refusal::SegmentPinned { ordinal: 0, graphs }) = retired.refusal() else {
            panic!("{retired}")
        };
        assert_eq!(graphs.entries.len(), 2);
        drop(pin);
        job.pool.retire(&[0], &[&job.group], PATIENCE).unwrap();
        job.leave();
    });
    machine.finish();
}
