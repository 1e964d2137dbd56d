//! Collectives beside a registration: those of a library that this crate does not see, and those of another thread
//! between the record of a commit and its registration.

use std::{ffi::c_void, thread};

use cuda_driver::{DevicePtr, Stream, StreamFlags, memory::DeviceMemory};
use nccl_sys::{cudaStream_t, ncclComm_t, ncclDataType_t, ncclRedOp_t};
use process_group::{
    comm::{Communicator, Config, DataType, ReduceOp, UniqueId},
    error_text,
    group::Buffer,
    store::Store,
};
use symm_mem::{Refusal, SymmetricPool};

use super::NCCL;
use crate::embedded::job::{self, Rank, commit_key, options, soon};

const ELEMENTS: usize = 1 << 12;

/// Enqueues a sum as another library does, by a call of NCCL alone.
fn sum_elsewhere(rank: &Rank, communicator: ncclComm_t, at: DevicePtr, elements: usize, stream: &Stream) {
    let (nccl, ptr) = (rank.world.nccl(), at.0 as *mut c_void);
    let (float, sum) = (ncclDataType_t::ncclFloat32, ncclRedOp_t::ncclSum);
    let call = || {
        let stream = stream.raw().cast::<c_void>() as cudaStream_t;
        // SAFETY: the memory is there until the stream has been synchronised, and one thread uses the communicator.
        unsafe { nccl.api().all_reduce(ptr, ptr, elements, float, sum, communicator, stream) }
    };
    rank.context.with_current(call).expect("the context is alive").expect("it is enqueued");
}

/// Makes another communicator of all ranks, of which process groups and pools know nothing.
fn another_communicator(rank: &Rank) -> Communicator {
    let (nccl, store) = (rank.world.nccl(), rank.world.store());
    if rank.rank == 0 {
        store.set("foreign", nccl.unique_id().expect("an id").as_bytes()).expect("the store is there");
    }
    let id = store.get("foreign", soon()).expect("rank 0 writes it").try_into().expect("as long");
    let (id, size) = (UniqueId::from_bytes(id), rank.world.size());
    Communicator::init(nccl, &rank.context, &id, rank.rank as usize, size, &Config::new(), soon())
        .expect("all ranks join")
}

/// Memory of another library, and a stream for it.
fn foreign(rank: &Rank) -> (DeviceMemory, Stream) {
    let memory = DeviceMemory::new(&rank.context, ELEMENTS * 4).expect("there is room");
    (memory, Stream::new(&rank.context, StreamFlags::NON_BLOCKING).expect("a stream"))
}

fn fill(memory: &DeviceMemory, stream: &Stream, value: f32) {
    // SAFETY: the memory's own words.
    unsafe { stream.fill_u32(memory.ptr(), value.to_bits(), ELEMENTS) }.expect("it can be filled");
}

#[track_caller]
fn holds(memory: &DeviceMemory, value: f32) {
    let mut found = vec![0u32; ELEMENTS];
    memory.copy_to_host(0, &mut found).expect("it can be read");
    assert!(found == vec![value.to_bits(); ELEMENTS], "not all are {value}: {}", f32::from_bits(found[0]));
}

/// Rank 0 enqueues a collective of another communicator before a commit, and rank 1 after it: the registration waits for
/// no work of the device.
#[test]
fn a_commit_does_not_wait_for_collectives_of_another_library() {
    job::run(
        2,
        NCCL,
        |_| {},
        |rank| {
            let other = another_communicator(&rank);
            let (memory, stream) = foreign(&rank);
            let (pool, block) = rank.pool_with_bucket();
            fill(&memory, &stream, (rank.rank + 1) as f32);
            let enqueue = || sum_elsewhere(&rank, other.raw(), memory.ptr(), ELEMENTS, &stream);
            if rank.rank == 0 {
                enqueue();
            }
            let result = pool.commit(&rank.world, options());
            // Enqueued after a failure too, so that the collective ends.
            if rank.rank == 1 {
                enqueue();
            }
            assert_eq!(result.expect("both agree").new_windows, 1);
            stream.synchronize().expect("the work is done");
            holds(&memory, 3.0);
            rank.sum(&block, &rank.world);
            drop((block, pool, memory, stream));
            other.destroy(soon()).expect("all leave");
            rank.leave();
        },
    );
}

/// Both ranks have enqueued collectives by calls of NCCL on the group's own communicator, on memory that becomes a window
/// before they run.
#[test]
fn a_commit_beside_enqueued_calls_of_another_library_on_its_communicator() {
    job::run(
        2,
        NCCL,
        |_| {},
        |rank| {
            let (pool, block) = rank.pool_with_bucket();
            let (raw, elements) = (rank.world.communicator().raw(), block.bytes() as usize / 4);
            for new in [1, 0] {
                rank.fill(&block);
                sum_elsewhere(&rank, raw, block.ptr(), elements, &rank.stream);
                assert_eq!(pool.commit(&rank.world, options()).expect("both agree").new_windows, new);
                rank.stream.synchronize().expect("the work is done");
                rank.check(&block, &rank.world);
            }
            rank.sum(&block, &rank.world);
            drop((block, pool));
            rank.leave();
        },
    );
}

/// Rank 0 enqueues a collective alone, by a call of NCCL on the group's own communicator that no count sees. The windows
/// of the commit are paired nevertheless, and the collective ends once rank 1 makes the same call.
#[test]
fn a_commit_beside_a_call_that_one_rank_alone_has_enqueued_on_its_communicator() {
    job::run(
        2,
        NCCL,
        |_| {},
        |rank| {
            let (pool, block) = rank.pool_with_bucket();
            let raw = rank.world.communicator().raw();
            let (memory, stream) = foreign(&rank);
            fill(&memory, &stream, (rank.rank + 1) as f32);
            if rank.rank == 0 {
                sum_elsewhere(&rank, raw, memory.ptr(), ELEMENTS, &stream);
            }
            assert_eq!(pool.commit(&rank.world, options()).expect("both agree").new_windows, 1);
            if rank.rank == 1 {
                sum_elsewhere(&rank, raw, memory.ptr(), ELEMENTS, &stream);
            }
            stream.synchronize().expect("both have called");
            holds(&memory, 3.0);
            rank.sum(&block, &rank.world);
            drop((block, pool));
            rank.leave();
        },
    );
}

/// Waits until the commit of this rank has posted its record.
fn await_record(rank: &Rank, pool: &SymmetricPool) {
    let record = commit_key(pool, rank.world.id(), &format!("records/{}", rank.rank));
    rank.world.job_store().wait(&[&record], soon()).expect("the commit begins");
}

/// A thread of rank 0 enqueues a collective of the group after the rank's record and before its registration. If rank 1
/// has enqueued it before its own record, the commit is refused on both: one record counts it, and the other does not.
#[test]
fn a_collective_that_another_thread_enqueues_after_the_record_is_counted_by_the_next_commit() {
    job::run(
        2,
        NCCL,
        |_| {},
        |rank| {
            let (pool, block) = rank.pool_with_bucket();
            let (memory, stream) = foreign(&rank);
            fill(&memory, &stream, (rank.rank + 1) as f32);
            let buffer = Buffer::new(memory.ptr(), ELEMENTS, DataType::F32);
            let enqueue = || {
                // SAFETY: the memory is there until the stream has been synchronised.
                unsafe { rank.world.raw().all_reduce(buffer, buffer, ReduceOp::Sum, &stream) }
                    .expect("it is enqueued");
            };
            let commit = || pool.commit(&rank.world, options());
            let store = rank.world.job_store();
            let error = if rank.rank == 0 {
                thread::scope(|scope| {
                    let committing = scope.spawn(commit);
                    await_record(&rank, &pool);
                    enqueue();
                    store.set("enqueued", b"1").expect("the store is there");
                    committing.join().expect("no panic")
                })
            } else {
                store.wait(&["enqueued"], soon()).expect("rank 0 enqueues");
                enqueue();
                commit()
            };
            let error = error.expect_err("the records differ");
            let refusal = error.refusal().expect("both are told the same");
            assert!(matches!(refusal, Refusal::CollectivesOutstanding { .. }), "{error}");
            assert_eq!(commit().expect("both have enqueued the same").new_windows, 1);
            stream.synchronize().expect("the work is done");
            holds(&memory, 3.0);
            rank.sum(&block, &rank.world);
            drop((block, pool, memory, stream));
            rank.leave();
        },
    );
}

/// As above, but rank 1 enqueues the collective after the commit, and its buffer lies in the segment that has become a
/// window in between. NCCL would use the window on rank 1 alone: the group ends on both ranks, which are told the places.
#[test]
fn a_collective_on_both_sides_of_the_registration_of_its_buffer_is_told_to_all() {
    let told = job::run(
        2,
        NCCL,
        |_| {},
        |rank| {
            let (pool, block) = rank.pool_with_bucket();
            rank.fill(&block);
            let buffer = Buffer::new(block.ptr(), block.bytes() as usize / 4, DataType::F32);
            // SAFETY: the memory is there until the group has been aborted.
            let enqueue =
                || unsafe { rank.world.raw().all_reduce(buffer, buffer, ReduceOp::Sum, &rank.stream) };
            let commit = || pool.commit(&rank.world, options()).expect("both records count no collective");
            let store = rank.world.job_store();
            let work = if rank.rank == 0 {
                thread::scope(|scope| {
                    let committing = scope.spawn(commit);
                    await_record(&rank, &pool);
                    let work = enqueue();
                    store.set("enqueued", b"1").expect("the store is there");
                    assert_eq!(committing.join().expect("no panic").new_windows, 1);
                    work
                })
            } else {
                store.wait(&["enqueued"], soon()).expect("rank 0 enqueues");
                assert_eq!(commit().new_windows, 1);
                enqueue()
            };
            let ended = work.and_then(|work| work.wait_until(soon()));
            drop((block, pool));
            for group in [rank.dp, rank.tp, rank.world] {
                let _ = group.abort(soon());
            }
            error_text(&ended.expect_err("rank 1 alone has a window"))
        },
    );
    for said in told {
        let of_rank_1 = said.split_once("rank 1 called").map_or("", |(_, text)| text);
        assert!(of_rank_1.contains("send and receive buffers at offset 0 in segment 0 of pool 0"), "{said}");
        assert_eq!(said.matches("in segment 0").count(), 1, "{said}");
    }
}
