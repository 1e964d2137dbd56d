//! Messages of mapped segments: one copy from buffer to buffer, whichever end comes first.

use std::{sync::Barrier, thread, time::Duration};

use cuda_driver::{WaitCondition, graph::CaptureMode, memory::DeviceMemory};
use gpu_sim::{Action, Injection};
use process_group::{
    comm::{DataType, wait_for_dropped},
    group::Buffer,
};
use symm_mem::{CommitOptions, Refusal, SymmetricBlock};

use super::{
    job::{Job, KIB, MIB, commit},
    rig::{Machine, Memory, PATIENCE, far, pattern},
};

/// Every combination of the first end, memory, length and offset: the data is right, and only the first end's memory
/// decides whether a ring is used.
#[test]
fn the_first_ends_memory_decides_and_the_data_arrives() {
    let machine = Machine::start(2);
    machine.ranks(2, |rank| {
        let job = Job::new(&rank);
        let block = job.block(3 * MIB + KIB);
        assert_eq!(job.commit(), 1);
        assert_eq!(job.commit(), 0, "nothing is new");
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
        job.commit();
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

/// More messages in one direction than a rank may be ahead of its peer, and the receives alternate with the sends.
#[test]
fn a_long_batch_in_both_directions_arrives() {
    const MESSAGES: usize = 600;
    let machine = Machine::start(2);
    machine.ranks(2, |rank| {
        let job = Job::new(&rank);
        let blocks = [0, 1].map(|_| job.block(MESSAGES));
        job.commit();
        rank.write(blocks[0].ptr(), &pattern(job.me(), MESSAGES));
        let work = job.group.batch(&job.stream, |batch| {
            for message in 0..MESSAGES {
                let [from, to] =
                    [0, 1].map(|end: usize| Buffer::new(blocks[end].ptr() + message, 1, DataType::U8));
                // SAFETY: the memory lives until the work is done.
                unsafe {
                    batch.recv(to, 1 - job.me())?;
                    batch.send(from, 1 - job.me())?;
                }
            }
            Ok(())
        });
        work.unwrap().wait_until(far()).unwrap();
        assert!(rank.read(blocks[1].ptr(), MESSAGES) == pattern(1 - job.me(), MESSAGES));
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
            job.commit();
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
            job.commit();
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

/// Segments are mapped by each commit, also after others were retired. A block that was allocated elsewhere is found where it lies now.
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
        assert_eq!(job.report(), (0, 1), "nothing is mapped yet");
        // A commit with windows maps the segments too.
        job.group.connect(far()).unwrap();
        let report = job.pool.commit(&job.group, CommitOptions::default()).unwrap();
        assert_eq!((report.new_segments, report.unmapped), (1, None));
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
        assert_eq!(job.commit(), 1);
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
        assert_eq!(job.commit(), 1);
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
        job.commit();
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
        let retired = job.pool.retire(&[0], &[&job.group], PATIENCE);
        let retired = retired.expect_err("rank 1 has a graph");
        let Some(Refusal::SegmentPinned { ordinal: 0, graphs }) = retired.refusal() else {
            panic!("{retired}")
        };
        assert_eq!(graphs.entries.iter().map(|it| it.value).collect::<Vec<_>>(), [0, 1]);
        drop(graph);
        job.pool.retire(&[0], &[&job.group], PATIENCE).unwrap();
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
        commit(&pool, &group);
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

/// Rank 1's graph copies from the segment of rank 0.
#[test]
fn a_graph_reaches_the_peers_segment_after_its_pool_has_forgotten_the_group() {
    let machine = Machine::start(2);
    machine.ranks(2, |rank| {
        let job = Job::new(&rank);
        let block = job.block(MIB);
        let other = rank.memory(&[0; 1000]);
        job.commit();
        let at = if job.me() == 0 { block.ptr() } else { other.ptr() };
        if job.me() == 1 {
            job.group.barrier(far()).unwrap();
        }
        let capture = job.stream.begin_capture(CaptureMode::ThreadLocal).unwrap();
        job.message(at, 1000).unwrap();
        let graph = capture.end().unwrap().instantiate().unwrap();
        if job.me() == 0 {
            job.group.barrier(far()).unwrap();
            rank.write(block.ptr(), &pattern(5, 1000));
        }
        assert_eq!(job.report(), (1, 0));
        job.pool.forget(job.group.id());
        // This commit drops the mappings of groups that are gone.
        let more = job.block(4 * MIB);
        job.commit();
        job.stream.launch(&graph).unwrap();
        job.stream.synchronize().unwrap();
        assert!(rank.read(at, 1000) == pattern(5, 1000));
        drop((graph, block, more));
        job.leave();
    });
    machine.finish();
}

/// The group's list of mapped segments lives as long as any pool that was committed for the group.
#[test]
fn the_memory_of_a_dropped_pool_is_freed_with_the_group_although_another_pool_lives() {
    let machine = Machine::start(2);
    machine.ranks(2, |rank| {
        let Job { group, pool, .. } = Job::new(&rank);
        let other = rank.pool(&group);
        let [block, of_other] =
            [(&pool, MIB), (&other, 16 * MIB)].map(|(pool, bytes)| pool.allocate(bytes as u64).unwrap());
        assert_eq!((commit(&pool, &group), commit(&other, &group)), (1, 1));
        let free = || rank.context.memory_info().unwrap().0;
        drop((of_other, other));
        let before = free();
        group.destroy(far()).unwrap();
        wait_for_dropped(far());
        // Each rank maps the memory of the other until its own path is dropped.
        rank.installed.wait();
        assert!(free() >= before + 16 * MIB, "{} is free, and {before} was before", free());
        drop((block, pool));
    });
    machine.finish();
}
