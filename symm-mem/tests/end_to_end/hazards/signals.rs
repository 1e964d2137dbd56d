//! Signals of groups that share memory: each group has pads of its own, and consumes no signal of another.

use std::time::Duration;

use cuda_driver::{DevicePtr, Stream, StreamFlags};
use symm_mem::{
    SymmetricGroup, commit_all,
    kernels::{KernelError, WaitKind, twins},
    rendezvous::{CudaAllocator, PeerAllocator, Rendezvous, RendezvousOptions, SymmetricMemory},
};

use super::NCCL;
use crate::embedded::job::{Rank, options, run, soon};

/// Longer than anything should take.
const LONG: Duration = Duration::from_secs(60);
/// For a signal that never comes.
const SHORT: Duration = Duration::from_millis(50);

/// The channel that all groups use.
const CHANNEL: u32 = 3;

/// Runs `job` on two ranks with two groups of both, whose memory is the same.
fn with_two_groups(job: impl Fn(&Rank, [&SymmetricMemory; 2]) + Sync) {
    run(2, NCCL, twins::register, |rank| {
        let options = RendezvousOptions::default().deadline(LONG);
        let groups = [&rank.world, &rank.tp].map(|group| Rendezvous::of(group, options).unwrap());
        let own = CudaAllocator::new(&rank.context).unwrap().allocate(4096).unwrap();
        let memories = groups.each_ref().map(|group| group.rendezvous(&own).unwrap());
        assert!(memories.iter().all(|memory| memory.own().ptr() == own.ptr()), "they share it");
        job(&rank, memories.each_ref());
        rank.world.barrier(soon()).unwrap();
        drop((memories, own, groups));
        rank.leave();
    });
}

fn stream(rank: &Rank) -> Stream {
    Stream::new(&rank.context, StreamFlags::NON_BLOCKING).unwrap()
}

fn put(memory: &SymmetricMemory, stream: &Stream) {
    // SAFETY: nothing is captured.
    unsafe { memory.put_signal(stream, 1 - memory.rank(), CHANNEL, LONG) }.unwrap();
}

fn wait(memory: &SymmetricMemory, stream: &Stream, deadline: Duration) {
    // SAFETY: nothing is captured.
    unsafe { memory.wait_signal(stream, 1 - memory.rank(), CHANNEL, deadline) }.unwrap();
}

#[test]
fn a_signal_of_one_group_is_not_consumed_by_another_over_the_same_memory() {
    for signals in [0, 1] {
        with_two_groups(|rank, memories| {
            let (signalled, other) = (memories[signals], memories[1 - signals]);
            let stream = stream(rank);
            if rank.rank == 0 {
                put(signalled, &stream);
                stream.synchronize().unwrap();
            }
            rank.world.barrier(soon()).unwrap();
            if rank.rank == 1 {
                // The signal has been there before this wait.
                wait(other, &stream, SHORT);
                stream.synchronize().unwrap();
                let Err(KernelError::Late(late)) = other.check() else {
                    panic!("a group has consumed the signal of another one")
                };
                assert_eq!((late.waiting, late.peer, late.channel), (WaitKind::Signal, 0, CHANNEL));
                wait(signalled, &stream, LONG);
                stream.synchronize().unwrap();
            }
            signalled.check().unwrap();
        });
    }
}

/// Rank 1 waits for a signal, checks the word that came with it, and answers. Rank 0 waits for the answer.
fn wait_or_answer(rank: &Rank, memory: &SymmetricMemory, stream: &Stream, word: DevicePtr, value: u32) {
    wait(memory, stream, LONG);
    stream.synchronize().unwrap();
    memory.check().unwrap();
    if rank.rank == 1 {
        let mut found = [0u32];
        // SAFETY: rank 0 writes again when it has the answer.
        unsafe { rank.context.copy_to_host(&mut found, word) }.unwrap();
        assert_eq!(found, [value]);
        put(memory, stream);
    }
}

#[test]
fn signals_of_two_groups_are_in_flight_at_once_and_bring_their_own_values() {
    with_two_groups(|rank, memories| {
        let streams = [stream(rank), stream(rank)];
        let word = |at: usize| memories[at].buffer_ptr(1).unwrap() + 4 * at;
        for round in 1..20u32 {
            let value = |at: usize| 100 * round + at as u32;
            // On one channel, there is room for one signal of each group.
            if rank.rank == 0 {
                for (at, stream) in streams.iter().enumerate() {
                    // SAFETY: the peer reads its word when it is told, and answers before it is written again.
                    unsafe { stream.fill_u32(word(at), value(at), 1) }.unwrap();
                    put(memories[at], stream);
                    // The peer waits for no signal before it is told that all are there.
                    stream.synchronize().unwrap();
                    memories[at].check().unwrap();
                }
            }
            rank.world.barrier(soon()).unwrap();
            for (at, stream) in streams.iter().enumerate().rev() {
                wait_or_answer(rank, memories[at], stream, word(at), value(at));
            }
            // Barriers of both groups, in another order on each rank.
            let mut order = [0, 1];
            order.rotate_left(rank.rank as usize);
            for at in order {
                // SAFETY: nothing is captured.
                unsafe { memories[at].barrier(&streams[at], CHANNEL, LONG) }.unwrap();
            }
            streams.iter().for_each(|stream| stream.synchronize().unwrap());
            memories.iter().for_each(|memory| memory.check().unwrap());
        }
    });
}

/// Each rank is in two groups with another peer in each, at the same place, and both signal at once over one block.
/// Then the world, which has the same block, has none of these signals.
#[test]
fn signals_of_groups_with_other_members_reach_only_their_own() {
    run(4, NCCL, twins::register, |rank| {
        let (pool, block) = rank.pool_with_bucket();
        let groups = rank.groups();
        let commits = groups.map(|group| (&pool, group as &dyn SymmetricGroup));
        for report in commit_all(&commits, options()) {
            assert_eq!(report.unwrap().unmapped, None);
        }
        let [world, pairs @ ..] = &groups.map(|group| pool.symmetric_memory(&block, group.id()).unwrap());
        assert_ne!(pairs[0].global_ranks(), pairs[1].global_ranks());
        let streams = [stream(&rank), stream(&rank)];
        for round in 1..10u32 {
            let value = |at: usize, from: u32| 100 * round + 10 * at as u32 + from;
            for (at, memory) in pairs.iter().enumerate() {
                let word = memory.buffer_ptr(1 - memory.rank()).unwrap() + 4 * at;
                // SAFETY: the peer reads its word when it is told, and all ranks meet before it is written again.
                unsafe { streams[at].fill_u32(word, value(at, rank.rank), 1) }.unwrap();
                put(memory, &streams[at]);
            }
            for (at, memory) in pairs.iter().enumerate().rev() {
                wait(memory, &streams[at], LONG);
                streams[at].synchronize().unwrap();
                memory.check().unwrap();
                let mut found = [0u32];
                // SAFETY: as above.
                unsafe { rank.context.copy_to_host(&mut found, block.ptr() + 4 * at) }.unwrap();
                assert_eq!(found, [value(at, memory.global_ranks()[1 - memory.rank()])]);
            }
            rank.world.barrier(soon()).unwrap();
        }
        if rank.rank < 2 {
            wait(world, &streams[0], SHORT);
            streams[0].synchronize().unwrap();
            let Err(KernelError::Late(late)) = world.check() else {
                panic!("nobody has signalled the world")
            };
            assert_eq!((late.waiting, late.peer), (WaitKind::Signal, 1 - rank.rank));
        }
        rank.world.barrier(soon()).unwrap();
        drop(block);
        drop(pool);
        rank.leave();
    });
}
