//! Calls that not all ranks make: work that waits for a missing rank is ended. A library that compares the
//! ranks' buffers (`NCCL_CHECK_MODE=DEBUG_GLOBAL`) waits for all of them inside the call, so these tests do
//! not support that mode.

use std::{
    thread,
    time::{Duration, Instant},
};

use cuda_driver::{Stream, StreamFlags, memory::DeviceMemory};
use process_group::{
    ProcessGroup,
    comm::{
        CommError, Communicator, Config, DataType::F32, ReduceOp, ShrinkMode, WindowRequest, wait_for_dropped,
    },
    group::Buffer,
    store::{Deadline, Store},
};

use super::{far, hardware, segment};

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(2))
}

#[test]
fn a_survivor_goes_on_with_right_sums_in_order_and_after_a_failure() {
    let Some(hardware) = hardware() else { return };
    hardware.ranks(|rank, context, store, _| {
        let world = ProcessGroup::builder().store(store.clone()).rank(rank).world_size(2).context(context);
        let world = world.nccl(&hardware.nccl).timeout(Duration::from_secs(60)).build().unwrap();
        println!("rank {rank} {world:?}");
        let memory = DeviceMemory::new(context, 4 << 20).unwrap();
        let buffer = Buffer::new(memory.ptr(), 1 << 20, F32);
        let sum = |group: &ProcessGroup| {
            let stream = Stream::new(context, StreamFlags::NON_BLOCKING).unwrap();
            memory.copy_from_host(0, &vec![rank as f32 + 1.0; 1 << 20]).unwrap();
            let work = unsafe { group.raw().all_reduce(buffer, buffer, ReduceOp::Sum, &stream) }.unwrap();
            work.wait_until(far()).unwrap();
            let mut found = vec![0f32; 1 << 20];
            memory.copy_to_host(0, &mut found).unwrap();
            assert!(found.iter().all(|value| *value == found[0]));
            found[0]
        };
        assert_eq!(sum(&world), 3.0);
        if let Ok(held) = world.communicator().memory_statistics(far()) {
            println!("rank {rank} holds {held:?}");
        }
        if rank == 0 {
            let alone = world.shrink(&[1], ShrinkMode::Orderly).unwrap();
            println!("in order: {alone:?}");
            assert_eq!(sum(&alone), 1.0);
            alone.destroy(far()).unwrap();
        }
        world.barrier(far()).unwrap();
        assert_eq!(sum(&world), 3.0);
        if rank == 0 {
            // Waits for the other rank, which does not come.
            let stream = Stream::new(context, StreamFlags::NON_BLOCKING).unwrap();
            let lost = DeviceMemory::new(context, 4096).unwrap();
            let lost_buffer = Buffer::new(lost.ptr(), 1024, F32);
            unsafe { world.raw().all_reduce(lost_buffer, lost_buffer, ReduceOp::Sum, &stream) }.unwrap();
            let began = Instant::now();
            let alone = world.shrink(&[1], ShrinkMode::AfterFailure).unwrap();
            assert_eq!(sum(&alone), 1.0);
            println!("after a failure: {alone:?}, a sum after {:?}", began.elapsed());
            alone.destroy(far()).unwrap();
            world.abort_handle().abort(far()).unwrap();
            let _ = stream.synchronize();
            store.set("over", b"").unwrap();
        } else {
            store.wait(&["over"], far()).unwrap();
        }
        world.abort(far()).unwrap();
    });
}

#[test]
fn work_that_is_revoked_ends() {
    let Some(hardware) = hardware() else { return };
    hardware.ranks(|rank, context, _, id| {
        let communicator = hardware.communicator(rank, context, id);
        if let Err(missing) = hardware.nccl.api().require(nccl_sys::Feature::REVOKE) {
            println!("skipped: {missing}");
            return communicator.destroy(far()).unwrap();
        }
        let stream = Stream::new(context, StreamFlags::NON_BLOCKING).unwrap();
        let memory = DeviceMemory::new(context, 4096).unwrap();
        let all_reduce = || {
            let (at, op) = (memory.ptr(), ReduceOp::Sum);
            unsafe { communicator.all_reduce(at, at, 1024, F32, op, &stream) }.unwrap();
        };
        // The first call connects, for which the host waits in NCCL. Revoke gives up work on the device.
        all_reduce();
        stream.synchronize().unwrap();
        if rank == 0 {
            all_reduce();
        }
        let began = Instant::now();
        communicator.revoke(far()).unwrap();
        let _ = stream.synchronize();
        println!("rank {rank}: revoked in {:?}", began.elapsed());
        let again = communicator.split(Some(0), 0, communicator.config(), far()).unwrap().unwrap();
        memory.copy_from_host(0, &[1f32; 1024]).unwrap();
        let (at, op) = (memory.ptr(), ReduceOp::Sum);
        unsafe { again.all_reduce(at, at, 1024, F32, op, &stream) }.unwrap();
        stream.synchronize().unwrap();
        let mut found = [0f32; 1024];
        memory.copy_to_host(0, &mut found).unwrap();
        assert_eq!(found, [2.0; 1024]);
        again.destroy(far()).unwrap();
        communicator.destroy(far()).unwrap();
    });
}

#[test]
fn an_abort_frees_a_blocked_registration() {
    let Some(hardware) = hardware() else { return };
    hardware.ranks(|rank, context, _, id| {
        let communicator = hardware.communicator(rank, context, id);
        if let Err(reason) = communicator.windows_supported() {
            println!("skipped: {reason}");
            return communicator.destroy(far()).unwrap();
        }
        let memory = segment(context, 2 << 20);
        if rank == 0 {
            let request = WindowRequest::symmetric(memory.ptr(), memory.bytes());
            let error = unsafe { communicator.register_windows(&[request], soon()) }.unwrap_err();
            assert!(matches!(error, CommError::DeadlineExceeded { .. }), "{error}");
        } else {
            thread::sleep(Duration::from_secs(3));
        }
        let began = Instant::now();
        communicator.abort(far()).unwrap();
        println!("rank {rank}: aborted in {:?}", began.elapsed());
    });
}

#[test]
fn an_abort_frees_work_that_waits_for_a_peer() {
    let Some(hardware) = hardware() else { return };
    hardware.ranks(|rank, context, _, id| {
        let communicator = hardware.communicator(rank, context, id);
        let stream = Stream::new(context, StreamFlags::NON_BLOCKING).unwrap();
        let memory = DeviceMemory::new(context, 1 << 20).unwrap();
        let reduce = || unsafe {
            communicator.all_reduce(memory.ptr(), memory.ptr(), 1 << 18, F32, ReduceOp::Sum, &stream)
        };
        reduce().unwrap();
        stream.synchronize().unwrap();
        if rank == 0 {
            reduce().unwrap();
            assert!(!stream.query().unwrap());
        }
        let began = Instant::now();
        communicator.abort(far()).unwrap();
        stream.synchronize().unwrap();
        println!("rank {rank}: aborted in {:?}", began.elapsed());
    });
}

#[test]
fn an_absent_rank_is_a_deadline_and_leaves_a_process_that_goes_on() {
    let Some(hardware) = hardware() else { return };
    let id = hardware.nccl.unique_id().unwrap();
    let context = &hardware.contexts[0];
    let made = Communicator::init(&hardware.nccl, context, &id, 0, 2, &Config::new(), soon());
    let error = made.unwrap_err();
    assert!(matches!(error, CommError::DeadlineExceeded { .. }), "{error}");
    let began = Instant::now();
    assert!(wait_for_dropped(far()));
    println!("ended in the background after {:?}", began.elapsed());
    hardware.ranks(|rank, context, _, id| hardware.communicator(rank, context, id).destroy(far()).unwrap());
}
