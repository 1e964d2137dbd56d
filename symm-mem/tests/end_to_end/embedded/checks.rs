//! Problems that are found before anything is registered: all members are told, and the group stays usable.

use std::sync::Arc;

use caching_alloc::driver::{Sharing, VirtualMemorySource};
use process_group::{
    comm::{DataType, WindowOutcome, WindowRequest},
    group::Buffer,
};
use symm_mem::{CommitReport, Error, ErrorKind, Geometry, Refusal, SymmetricGroup, SymmetricPool};

use super::{
    job::{Rank, soon},
    on_ranks, options, windows,
};

const MIB: u64 = 1 << 20;

/// The refusal of a commit, which is the same on all ranks.
fn refused(result: Result<CommitReport, Error>) -> Refusal {
    match result.map_err(Error::into_kind) {
        Err(ErrorKind::Refused(refusal)) => refusal,
        other => panic!("{other:?}"),
    }
}

/// Enqueues one end of a message over the world.
fn message(rank: &Rank, from: u32, to: u32, buffer: Buffer) {
    // SAFETY: the memory is alive until the stream has been synchronised.
    let enqueued = unsafe {
        if rank.rank == from {
            rank.world.raw().send(buffer, to as usize, &rank.stream)
        } else if rank.rank == to {
            rank.world.raw().recv(buffer, from as usize, &rank.stream)
        } else {
            return;
        }
    };
    enqueued.expect("the message is enqueued");
}

#[test]
fn stages_of_a_pipeline_commit_and_retire_with_unequal_numbers_of_messages() {
    on_ranks(4, |rank| {
        let pool = rank.pool();
        let [first, second] = [0, 1].map(|_| pool.allocate(2 * MIB).expect("there is room"));
        let buffer = Buffer::new(second.ptr(), 1 << 10, DataType::F32);
        for (from, to) in [(0, 1), (1, 2), (1, 2)] {
            message(&rank, from, to, buffer);
        }
        rank.stream.synchronize().expect("the messages are done");
        assert_eq!(rank.world.sequence(), [1, 3, 2, 0][rank.rank as usize]);
        assert_eq!(windows(&pool.commit(&rank.world, options())), (2, 2));
        message(&rank, 2, 3, buffer);
        drop(first);
        let groups: [&dyn SymmetricGroup; 1] = [&rank.world];
        let report = pool.retire(&[0], &groups, options().deadline).expect("nothing is outstanding");
        assert_eq!(report.windows, 1);
        rank.sum(&second, &rank.world);
        drop((second, pool));
        rank.leave();
    });
}

#[test]
fn a_message_with_one_end_is_refused_on_all() {
    on_ranks(4, |rank| {
        let (pool, bucket) = rank.pool_with_bucket();
        let buffer = Buffer::new(bucket.ptr(), 1 << 10, DataType::F32);
        message(&rank, 0, 1, buffer);
        if rank.rank == 2 {
            message(&rank, 2, 3, buffer);
        }
        let outstanding =
            Refusal::MessagesOutstanding { group: rank.world.id(), from: 2, to: 3, sent: 1, received: 0 };
        assert_eq!(refused(pool.commit(&rank.world, options())), outstanding);
        if rank.rank == 3 {
            message(&rank, 2, 3, buffer);
        }
        assert_eq!(windows(&pool.commit(&rank.world, options())), (1, 1));
        rank.stream.synchronize().expect("the messages are done");
        rank.sum(&bucket, &rank.world);
        drop((bucket, pool));
        rank.leave();
    });
}

#[test]
fn memory_that_is_a_window_already_is_refused_on_all() {
    on_ranks(2, |rank| {
        let (pool, other) = (rank.pool(), rank.pool());
        let [first, second] = [0, 1].map(|_| pool.allocate(2 * MIB).expect("there is room"));
        let elsewhere = other.allocate(2 * MIB).expect("there is room");
        // The program makes a window itself; on rank 1 it covers the pool's second segment.
        let at = if rank.rank == 1 { second.ptr() } else { elsewhere.ptr() };
        let communicator = rank.world.communicator();
        let request = WindowRequest::symmetric(at, 2 << 20);
        // SAFETY: the memory is there until the window is deregistered.
        let made = unsafe { communicator.register_windows(&[request], soon()) }.expect("both register");
        let Some(WindowOutcome::Registered(window)) = made.into_iter().next() else {
            panic!("there are windows")
        };

        let Refusal::PeerPrepareFailed { rank: 1, ordinal: Some(1), cause } =
            refused(pool.commit(&rank.world, options()))
        else {
            panic!("rank 1 has a window there")
        };
        assert!(cause.contains("it overlaps 2097152 bytes"), "{cause}");
        rank.sum(&first, &rank.world);

        // SAFETY: no work and no graph uses the window.
        unsafe { communicator.deregister_windows(vec![window], soon()) }.expect("both deregister");
        assert_eq!(windows(&pool.commit(&rank.world, options())), (2, 2));
        rank.sum(&second, &rank.world);
        drop((first, second, elsewhere, pool, other));
        rank.leave();
    });
}

#[test]
fn memory_that_cannot_be_shared_is_refused_on_all() {
    on_ranks(2, |rank| {
        let geometry = Geometry { first_segment: 2 * MIB, largest_segment: 2 * MIB };
        let sharing = if rank.rank == 0 { Sharing::none() } else { Sharing::by_descriptor() };
        let source = VirtualMemorySource::new(&rank.context, sharing).expect("the device has virtual memory");
        let pool = SymmetricPool::with_source(&rank.domain, Arc::new(source), geometry)
            .expect("its steps are small");
        let bucket = pool.allocate(MIB).expect("there is room");
        let Refusal::PeerPrepareFailed { rank: 0, ordinal: Some(0), cause } =
            refused(pool.commit(&rank.world, options()))
        else {
            panic!("nobody can be given rank 0's memory")
        };
        assert!(cause.contains("cannot be shared"), "{cause}");
        rank.sum(&bucket, &rank.world);
        drop((bucket, pool));

        let (pool, bucket) = rank.pool_with_bucket();
        assert_eq!(windows(&pool.commit(&rank.world, options())), (1, 1));
        rank.sum(&bucket, &rank.world);
        drop((bucket, pool));
        rank.leave();
    });
}
