//! Messages of shared segments: one copy from buffer to buffer, whichever end comes first.

use std::{
    sync::{
        Barrier,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use cuda_driver::{
    DevicePtr, Stream, WaitCondition, graph::CaptureMode, memory::DeviceMemory, sys::CUresult,
};
use gpu_sim::{Action, Injection};
use process_group::{
    ProcessGroup,
    comm::{CommError, DataType},
    group::{Buffer, GroupErrorKind, Work},
};
use symm_mem::{
    CommitOptions, Refusal, RetireError, SymmetricBlock, SymmetricPool,
    direct::{Direct, DirectError, DirectReport},
};

use super::rig::{Machine, Memory, PATIENCE, Rank, far, pattern, small};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// A group with a direct path, and a pool.
struct Job<'a> {
    rank: &'a Rank,
    group: ProcessGroup,
    direct: Direct,
    pool: SymmetricPool,
    stream: Stream,
}

impl<'a> Job<'a> {
    fn new(rank: &'a Rank) -> Self {
        let (group, direct) = rank.direct(rank.builder(), small());
        let (pool, stream) = (rank.pool(&group), rank.stream());
        Self { rank, group, direct, pool, stream }
    }

    fn me(&self) -> usize {
        self.rank.rank
    }

    fn block(&self, bytes: usize) -> SymmetricBlock {
        self.pool.allocate(bytes as u64).unwrap()
    }

    /// Sends from rank 0 to rank 1.
    fn message(&self, at: DevicePtr, bytes: usize) -> process_group::group::Result<Work> {
        let buffer = Buffer::new(at, bytes, DataType::U8);
        // SAFETY: the callers keep the memory until the stream is done.
        unsafe {
            match self.me() {
                0 => self.group.raw().send(buffer, 1, &self.stream),
                _ => self.group.raw().recv(buffer, 0, &self.stream),
            }
        }
    }

    /// Calls [`message`](Self::message) on both ranks, on rank `first` before the other.
    fn ordered(&self, first: usize, at: DevicePtr, bytes: usize) -> process_group::group::Result<Work> {
        if self.me() != first {
            self.group.barrier(far()).unwrap();
        }
        let work = self.message(at, bytes);
        if self.me() == first {
            self.group.barrier(far()).unwrap();
        }
        work
    }

    /// Sends and receives in one batch, with this peer.
    fn swap(&self, peer: usize, from: DevicePtr, to: DevicePtr, bytes: usize) -> Work {
        let batch = self.group.batch(&self.stream, |batch| {
            // SAFETY: the callers keep the memory until the stream is done.
            unsafe {
                batch.send(Buffer::new(from, bytes, DataType::U8), peer)?;
                batch.recv(Buffer::new(to, bytes, DataType::U8), peer)
            }
        });
        batch.unwrap()
    }

    fn report(&self) -> (u64, u64) {
        let DirectReport { zero_copy, staged, .. } = self.direct.report().unwrap();
        (zero_copy, staged)
    }

    fn leave(self) {
        self.group.destroy(far()).unwrap();
        assert!(matches!(self.direct.report(), Ok(_) | Err(DirectError::Ended { .. })));
    }
}

/// Every combination of the first end, memory, length and offset: the data is right, and only the first end's memory
/// decides whether a ring is used.
#[test]
fn the_first_ends_memory_decides_and_the_data_arrives() {
    let machine = Machine::start(2);
    machine.ranks(2, |rank| {
        let job = Job::new(&rank);
        let block = job.block(3 * MIB + KIB);
        assert_eq!(job.direct.share(&job.pool).unwrap(), 1);
        assert_eq!(job.direct.share(&job.pool).unwrap(), 0, "nothing is new");
        let other = DeviceMemory::new(&rank.context, 3 * MIB + KIB).unwrap();
        let memory = [Memory::Other(other), Memory::Block(block)];
        let (mut number, mut expected) = (0, (0, 0));
        for (length, offset) in [(0, 0usize), (1, 3), (64, 17), (65, 0), (1000, 1), (3 * MIB + 5, 7)] {
            for (first, kinds) in [0, 1].into_iter().flat_map(|first| (0..4).map(move |kinds| (first, kinds)))
            {
                // Through the ring, this would take long.
                if length > MIB && kinds & (1 << first) == 0 {
                    continue;
                }
                let at = memory[(kinds >> job.me()) & 1].ptr() + offset;
                number += 1;
                let content = if job.me() == 0 { pattern(number, length) } else { vec![0; length] };
                rank.write(at, &content);
                job.ordered(first, at, length).unwrap().wait_until(far()).unwrap();
                assert!(rank.read(at, length) == pattern(number, length), "{length} bytes, {first}, {kinds}");
                match kinds & (1 << first) {
                    _ if length == 0 => {}
                    0 => expected.1 += 1,
                    _ => expected.0 += 1,
                }
                assert_eq!(job.report(), expected);
            }
        }
        let path = job.group.p2p().path.unwrap();
        let described = format!("{} zero-copy messages, {} through rings", expected.0, expected.1);
        assert!(path.description.contains(&described), "{}", path.description);
        drop(memory);
        job.leave();
    });
    machine.finish();
}

/// All ranks send to all others in one batch, in both directions, with several messages for each pair.
#[test]
fn all_to_all_in_one_batch_uses_no_ring() {
    const RANKS: usize = 4;
    let machine = Machine::start(RANKS);
    machine.ranks(RANKS, |rank| {
        let job = Job::new(&rank);
        let lengths = [1, 70 * KIB, 333];
        let blocks: Vec<_> = (0..2 * RANKS * lengths.len()).map(|_| job.block(70 * KIB)).collect();
        let block = |end: usize, peer: usize, message: usize| {
            blocks[(end * RANKS + peer) * lengths.len() + message].ptr()
        };
        job.direct.share(&job.pool).unwrap();
        let others: Vec<_> = (0..RANKS).filter(|peer| *peer != job.me()).collect();
        for run in 0..10 {
            let content = |from: usize, to: usize, message: usize| {
                pattern(((run * RANKS + from) * RANKS + to) * 3 + message, lengths[message])
            };
            for (peer, message) in others.iter().flat_map(|peer| (0..3).map(|message| (*peer, message))) {
                rank.write(block(0, peer, message), &content(job.me(), peer, message));
            }
            let work = job.group.batch(&job.stream, |batch| {
                for (peer, message) in others.iter().flat_map(|peer| (0..3).map(|message| (*peer, message))) {
                    let buffer = |end| Buffer::new(block(end, peer, message), lengths[message], DataType::U8);
                    // SAFETY: the memory lives until the work is done.
                    unsafe {
                        batch.recv(buffer(1), peer)?;
                        batch.send(buffer(0), peer)?;
                    }
                }
                Ok(())
            });
            work.unwrap().wait_until(far()).unwrap();
            for (peer, message) in others.iter().flat_map(|peer| (0..3).map(|message| (*peer, message))) {
                let found = rank.read(block(1, peer, message), lengths[message]);
                assert!(found == content(peer, job.me(), message), "run {run}: {message} of {peer}");
            }
        }
        assert_eq!(job.report(), (10 * 2 * 3 * 3, 0));
        drop(blocks);
        job.leave();
    });
    machine.finish();
}

/// The end that comes second is delayed before its copy, and the end that comes first reaches the message late. Each
/// waits for the other.
#[test]
fn each_end_waits_for_the_other() {
    const LATE: Duration = Duration::from_millis(100);
    for first in [0, 1] {
        let machine = Machine::start(2);
        let launched = Barrier::new(2);
        machine.ranks(2, |rank| {
            let job = Job::new(&rank);
            let [block, source] = [job.block(MIB), job.block(MIB)];
            job.direct.share(&job.pool).unwrap();
            for number in [1, 2] {
                let old = if job.me() == 0 { vec![0; 5000] } else { pattern(number + 7, 5000) };
                rank.write(block.ptr(), &old);
                rank.write(source.ptr(), &pattern(number, 5000));
                let gate = rank.memory(&[0; 4]);
                let work = if job.me() == first {
                    // SAFETY: the memory lives until the stream is done.
                    unsafe {
                        job.stream.wait_value32(gate.ptr(), WaitCondition::GreaterOrEqual, 1).unwrap();
                        // The sender's data, or an earlier use of the receiver's buffer.
                        job.stream.copy(block.ptr(), source.ptr(), 5000).unwrap();
                        if job.me() == 1 {
                            job.stream.fill_u8(block.ptr(), 0, 5000).unwrap();
                        }
                    }
                    let work = job.message(block.ptr(), 5000).unwrap();
                    launched.wait();
                    if number == 1 {
                        // A copy that does not wait for this stream is done by then.
                        thread::sleep(LATE);
                        gate.copy_from_host(0, &1u32.to_le_bytes()).unwrap();
                        launched.wait();
                    } else {
                        gate.copy_from_host(0, &1u32.to_le_bytes()).unwrap();
                    }
                    work
                } else {
                    if job.me() == 0 {
                        rank.write(block.ptr(), &pattern(number, 5000));
                    }
                    launched.wait();
                    if number == 2 {
                        let late = Injection::new("cuMemcpyDtoDAsync_v2", Action::Delay(LATE));
                        machine.world.faults().inject(late).unwrap();
                    }
                    let work = job.message(block.ptr(), 5000).unwrap();
                    if number == 1 {
                        launched.wait();
                    }
                    work
                };
                work.wait_until(far()).unwrap();
                assert!(rank.read(block.ptr(), 5000) == pattern(number, 5000), "{first} first, {number}");
            }
            assert_eq!(job.report(), (2, 0));
            drop((block, source));
            job.leave();
        });
        machine.finish();
    }
}

/// A graph's messages have words of their own, whichever end captured first.
#[test]
fn a_graph_is_right_in_every_run() {
    const LENGTH: usize = 100 * KIB;
    for first in [0, 1] {
        let machine = Machine::start(2);
        machine.ranks(2, |rank| {
            let job = Job::new(&rank);
            let (me, peer) = (job.me(), 1 - job.me());
            let [from, to, eager] = [LENGTH, LENGTH, LENGTH].map(|bytes| job.block(bytes));
            job.direct.share(&job.pool).unwrap();
            if me != first {
                job.group.barrier(far()).unwrap();
            }
            let capture = job.stream.begin_capture(CaptureMode::ThreadLocal).unwrap();
            for _ in 0..2 {
                job.swap(peer, from.ptr(), to.ptr(), LENGTH);
            }
            let graph = capture.end().unwrap().instantiate().unwrap();
            if me == first {
                job.group.barrier(far()).unwrap();
            }
            assert_eq!(job.report(), (4, 0));
            for run in 0..100 {
                rank.write(from.ptr(), &pattern(2 * run + me, LENGTH));
                job.stream.launch(&graph).unwrap();
                job.stream.synchronize().unwrap();
                assert!(rank.read(to.ptr(), LENGTH) == pattern(2 * run + peer, LENGTH), "run {run}");
                // Eager messages come between the runs.
                if run % 10 == 0 {
                    rank.write(eager.ptr(), &pattern(run * (1 - me), LENGTH));
                    job.message(eager.ptr(), LENGTH).unwrap().wait_until(far()).unwrap();
                    assert!(rank.read(eager.ptr(), LENGTH) == pattern(0, LENGTH) || run > 0);
                    assert!(rank.read(eager.ptr(), LENGTH) == pattern(run, LENGTH));
                }
            }
            assert_eq!(job.report(), (14, 0));
            drop((graph, from, to, eager));
            job.leave();
        });
        machine.finish();
    }
}

/// Segments are shared whenever the ranks call for it: after the installation, after a commit, and after others were
/// retired. A block that was allocated elsewhere is found where it lies now.
#[test]
fn segments_come_and_go() {
    let machine = Machine::start(2);
    machine.ranks(2, |rank| {
        let job = Job::new(&rank);
        let send = |block: &SymmetricBlock, number: usize| {
            rank.write(block.ptr(), &pattern(number * (1 - job.me()), 5000));
            job.message(block.ptr(), 5000).unwrap().wait_until(far()).unwrap();
            assert!(rank.read(block.ptr(), 5000) == pattern(number, 5000), "message {number}");
        };
        let first = job.block(2 * MIB);
        send(&first, 1);
        assert_eq!(job.report(), (0, 1), "nothing is shared yet");
        job.group.connect(far()).unwrap();
        job.pool.commit(&job.group, CommitOptions::default()).unwrap();
        assert_eq!(job.direct.share(&job.pool).unwrap(), 1);
        send(&first, 2);
        assert_eq!(job.report(), (1, 1));
        // The freed place is used again: part of it in another block.
        let place = first.placement();
        drop(first);
        let blocks = [job.block(MIB), job.block(MIB), job.block(MIB)];
        assert_eq!(blocks[0].placement(), place);
        send(&blocks[1], 3);
        assert_eq!(job.report(), (2, 1));
        send(&blocks[2], 4);
        assert_eq!(job.report(), (2, 2), "its segment is new");
        assert_eq!(job.direct.share(&job.pool).unwrap(), 1);
        send(&blocks[2], 5);
        assert_eq!(job.report(), (3, 2));
        let [second, third, kept] = blocks;
        drop((second, third));
        job.pool.retire(&[place.ordinal], &[&job.group], PATIENCE).unwrap();
        send(&kept, 6);
        let again = job.block(2 * MIB);
        assert_ne!(again.placement().ordinal, place.ordinal);
        send(&again, 7);
        assert_eq!(job.report(), (4, 3));
        assert_eq!(job.direct.share(&job.pool).unwrap(), 1);
        send(&again, 8);
        assert_eq!(job.report(), (5, 3));
        drop((again, kept));
        job.leave();
    });
    machine.finish();
}

/// A graph of the end that came second copies from the other rank's segment, so that segment stays.
#[test]
fn a_graph_keeps_the_peers_segment() {
    let machine = Machine::start(2);
    machine.ranks(2, |rank| {
        let job = Job::new(&rank);
        let block = job.block(MIB);
        let other = rank.memory(&[0; 1000]);
        job.direct.share(&job.pool).unwrap();
        let at = if job.me() == 0 { block.ptr() } else { other.ptr() };
        if job.me() == 1 {
            job.group.barrier(far()).unwrap();
        }
        let capture = job.stream.begin_capture(CaptureMode::ThreadLocal).unwrap();
        job.message(at, 1000).unwrap();
        let graph = capture.end().unwrap().instantiate().unwrap();
        if job.me() == 0 {
            job.group.barrier(far()).unwrap();
        }
        assert_eq!(job.report(), (1, 0));
        if job.me() == 0 {
            rank.write(block.ptr(), &pattern(3, 1000));
        }
        job.stream.launch(&graph).unwrap();
        job.stream.synchronize().unwrap();
        assert!(rank.read(at, 1000) == pattern(3, 1000));
        drop(block);
        let graph = (job.me() == 1).then_some(graph);
        let retired = job.pool.retire(&[0], &[], PATIENCE);
        let Err(RetireError::Refused { refusal: Refusal::SegmentPinned { ordinal: 0, graphs }, .. }) =
            retired
        else {
            panic!("rank 1 has a graph: {retired:?}")
        };
        assert_eq!(graphs.entries.iter().map(|it| it.value).collect::<Vec<_>>(), [0, 1]);
        drop(graph);
        job.pool.retire(&[0], &[], PATIENCE).unwrap();
        job.leave();
    });
    machine.finish();
}

/// The pool may go before the messages: the path keeps its memory.
#[test]
fn the_path_keeps_the_memory_of_a_pool_that_one_rank_drops() {
    let machine = Machine::start(2);
    machine.ranks(2, |rank| {
        let Job { group, direct, pool, stream, .. } = Job::new(&rank);
        let block = pool.allocate(MIB as u64).unwrap();
        let other = rank.memory(&[0; 1000]);
        direct.share(&pool).unwrap();
        let at = if rank.rank == 0 { block.ptr() } else { other.ptr() };
        rank.write(at, &pattern(4 * (1 - rank.rank), 1000));
        // Rank 1 has nothing of the pool left.
        let kept = (rank.rank == 0).then_some((pool, block));
        let buffer = Buffer::new(at, 1000, DataType::U8);
        // SAFETY: the memory lives until the work is done.
        let work = unsafe {
            if rank.rank == 0 {
                let work = group.raw().send(buffer, 1, &stream);
                group.barrier(far()).unwrap();
                work
            } else {
                group.barrier(far()).unwrap();
                group.raw().recv(buffer, 0, &stream)
            }
        };
        work.unwrap().wait_until(far()).unwrap();
        assert!(rank.read(at, 1000) == pattern(4, 1000));
        assert_eq!(direct.report().unwrap().zero_copy, 1);
        drop(kept);
        group.destroy(far()).unwrap();
    });
    machine.finish();
}

/// The end that comes second finds the difference, and copies nothing.
#[test]
fn lengths_that_differ_are_named_and_nothing_is_copied() {
    for first in [0, 1] {
        let machine = Machine::start(2);
        machine.ranks(2, |rank| {
            let job = Job::new(&rank);
            let block = job.block(1000);
            job.direct.share(&job.pool).unwrap();
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
        job.direct.share(&job.pool).unwrap();
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
        job.direct.share(&job.pool).unwrap();
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
            job.direct.share(&job.pool).unwrap();
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

/// A pool whose segments differ is shared by no rank.
#[test]
fn a_pool_that_differs_is_not_shared() {
    let machine = Machine::start(2);
    machine.ranks(2, |rank| {
        let job = Job::new(&rank);
        let block = job.block(if job.me() == 0 { 2 * MIB } else { 4 * MIB });
        let error = job.direct.share(&job.pool).unwrap_err();
        assert!(matches!(error, DirectError::Rendezvous(_)), "{error}");
        rank.write(block.ptr(), &pattern(1 - job.me(), 1000));
        job.message(block.ptr(), 1000).unwrap().wait_until(far()).unwrap();
        assert_eq!(job.report(), (0, 1));
        assert!(rank.read(block.ptr(), 1000) == pattern(1, 1000));
        drop(block);
        job.leave();
    });
    machine.finish();
}
