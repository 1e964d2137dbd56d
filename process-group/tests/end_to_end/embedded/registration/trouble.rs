//! A registration that fails later, deaths, captures, and busy communicators.

use std::{sync::mpsc, thread};

use caching_alloc::core::PoolSettings;
use cuda_driver::{DevicePtr, graph::CaptureMode};
use gpu_sim::{Action, Injection};
use process_group::{
    comm::{CommError, DataType::F32, ReduceOp},
    group::{Buffer, GroupErrorKind},
    registration::SegmentRegistrar,
};
use rusty_fork::rusty_fork_test;

use super::{
    super::common::{faithful, far, machine, machine_with, soon},
    LARGE, Memory, add, allocator, allocator_of, alone, gather, numbers,
};

rusty_fork_test! {
    #[test]
    fn a_registration_that_fails_later_ends_the_group_on_every_rank_by_name() {
        // A machine on which a call with one registered side hangs, as on hardware.
        let machine = faithful(3, 22809);
        let (fail, failed) = (std::sync::Barrier::new(3), std::sync::Barrier::new(3));
        machine.ranks(3, |rank| {
            let (allocator, id, stream) = allocator_of(&rank, Memory::Exportable);
            let _registrar = SegmentRegistrar::attach(&allocator).unwrap();
            let world = rank.builder().registration(true).build().unwrap();
            assert_eq!(gather(&world, &allocator, id, &stream), numbers(3));
            fail.wait();
            let grown = (rank.rank == 1).then(|| {
                machine.world.faults().inject(Injection::new("ncclCommRegister", Action::Fail(2))).unwrap();
                let grown = allocator.allocate(LARGE, id).unwrap();
                // This rank knows at once, and enqueues nothing.
                let calls = machine.world.calls("ncclAllReduce");
                let buffer = Buffer::new(DevicePtr(grown.address()), 4, F32);
                let refused = unsafe { world.raw().all_reduce(buffer, buffer, ReduceOp::Sum, &stream) }.unwrap_err();
                assert!(matches!(refused.kind(), GroupErrorKind::MemberFailed { rank: 1, .. }), "{refused}");
                assert_eq!(machine.world.calls("ncclAllReduce"), calls);
                grown
            });
            failed.wait();
            if rank.rank != 1 {
                // These ranks call, or are in a call, and wait for rank 1 in vain, unless they were told
                // before.
                let block = allocator.allocate(64, id).unwrap();
                let buffer = Buffer::new(DevicePtr(block.address()), 4, F32);
                let called = unsafe { world.raw().all_reduce(buffer, buffer, ReduceOp::Sum, &stream) };
                let error = called.and_then(|work| work.wait_until(far())).unwrap_err();
                let GroupErrorKind::MemberFailed { rank: 1, reason, .. } = error.kind() else { panic!("{error:?}") };
                assert!(reason.contains("ncclCommRegister failed"), "{reason}");
            }
            // Later calls get the same error.
            let error = world.barrier(far()).unwrap_err();
            assert!(matches!(error.kind(), GroupErrorKind::MemberFailed { rank: 1, .. }), "{error}");
            drop(world);
            assert!(process_group::comm::wait_for_dropped(far()));
            drop(grown);
        });
    }

    #[test]
    fn a_busy_communicator_learns_of_a_segment_before_its_next_call() {
        let machine = machine(1);
        alone(&machine, |rank| {
            let (allocator, id) = allocator(&rank);
            let registrar = SegmentRegistrar::attach(&allocator).unwrap();
            let communicator = rank.communicator();
            add(&registrar, &communicator).unwrap();
            let before = allocator.allocate(LARGE, id).unwrap();
            let stream = rank.stream();
            let memory = rank.memory(&[1.0; 8]);
            // A slow call on another thread.
            machine.world.faults().inject(Injection::new("ncclAllReduce", Action::Delay(std::time::Duration::from_secs(2)))).unwrap();
            let (began, begun) = mpsc::channel();
            thread::scope(|scope| {
                let calls = machine.world.calls("ncclAllReduce");
                scope.spawn(|| {
                    began.send(()).unwrap();
                    unsafe { communicator.all_reduce(memory.ptr(), memory.ptr(), 8, F32, ReduceOp::Sum, &stream) }.unwrap();
                });
                begun.recv().unwrap();
                while machine.world.calls("ncclAllReduce") == calls {
                    thread::yield_now();
                }
                // The allocator does not wait for it, neither to grow nor to shrink.
                let grown = allocator.allocate(4 * LARGE, id).unwrap();
                drop(before);
                allocator.empty_cache().unwrap();
                let counts = registrar.counts();
                assert_eq!((counts.segments, counts.registrations, counts.kept), (1, 1, 1), "{counts:?}");
                assert_eq!(allocator.snapshot().unwrap().quarantined.len(), 1);
                drop(grown);
            });
            unsafe { communicator.all_reduce(memory.ptr(), memory.ptr(), 8, F32, ReduceOp::Sum, &stream) }.unwrap();
            let counts = registrar.counts();
            assert_eq!((counts.segments, counts.registrations, counts.kept), (1, 1, 0), "{counts:?}");
            assert_eq!((counts.registered, counts.deregistered), (2, 1));
            allocator.reap().unwrap();
            assert_eq!(allocator.snapshot().unwrap().quarantined.len(), 0);
            registrar.remove(&communicator).unwrap();
            communicator.destroy(far()).unwrap();
            registrar.detach().unwrap();
        });
        machine.world.finish().unwrap();
    }

    #[test]
    fn a_deregistration_waits_no_longer_than_its_deadline() {
        let machine = machine(1);
        alone(&machine, |rank| {
            let communicator = rank.communicator();
            let stream = rank.stream();
            let memory = rank.memory(&[1.0; 8]);
            let registration = unsafe { communicator.register(memory.ptr(), 32, far()) }.unwrap();
            let reduce = || {
                unsafe { communicator.all_reduce(memory.ptr(), memory.ptr(), 8, F32, ReduceOp::Sum, &stream) }.unwrap();
            };
            let slow = Action::Delay(std::time::Duration::from_secs(3));
            machine.world.faults().inject(Injection::new("ncclAllReduce", slow)).unwrap();
            thread::scope(|scope| {
                let inside = scope.spawn(reduce);
                while machine.world.calls("ncclAllReduce") == 0 {
                    thread::yield_now();
                }
                let error = registration.deregister(soon()).unwrap_err();
                assert!(matches!(error, CommError::Busy { .. }), "{error}");
                assert!(!inside.is_finished(), "it waited for the other call");
                assert_eq!(machine.world.calls("ncclCommDeregister"), 0);
            });
            reduce();
            assert_eq!(machine.world.calls("ncclCommDeregister"), 1);
            communicator.destroy(far()).unwrap();
        });
        machine.world.finish().unwrap();
    }

    #[test]
    fn segments_that_come_while_a_stream_captures_are_registered() {
        let machine = machine(2);
        // A capture in global mode does not survive that another thread waits or copies.
        let together = std::sync::Barrier::new(2);
        machine.ranks(2, |rank| {
            let (allocator, id, stream) = allocator_of(&rank, Memory::Exportable);
            let registrar = SegmentRegistrar::attach(&allocator).unwrap();
            let world = rank.builder().registration(true).build().unwrap();
            assert_eq!(registrar.counts().registrations, 0);
            let pool = allocator.graph_pool(PoolSettings::default()).unwrap();
            let requests = pool.capture(&[id]);
            together.wait();
            let capture = stream.begin_capture(CaptureMode::Global).unwrap();
            let block = allocator.allocate(LARGE, id).unwrap();
            assert_eq!(registrar.counts().registrations, 1);
            let buffer = Buffer::new(DevicePtr(block.address()), 4, F32);
            unsafe { world.raw().all_reduce(buffer, buffer, ReduceOp::Sum, &stream) }.unwrap();
            let graph = capture.end().unwrap();
            together.wait();
            let exec = graph.instantiate().unwrap();
            drop(graph);
            let _memory = requests.end();
            unsafe { world.context().copy_from_host(buffer.ptr, &[1f32; 4]) }.unwrap();
            stream.launch(&exec).unwrap();
            stream.synchronize().unwrap();
            let mut found = [0f32; 4];
            unsafe { world.context().copy_to_host(&mut found, buffer.ptr) }.unwrap();
            assert_eq!(found, [2.0; 4]);
            assert_eq!(world.registration_report().operations[0].registered, 1);
            drop(exec);
            world.destroy(far()).unwrap();
            assert_eq!(registrar.counts().registrations, 0);
            drop(block);
            registrar.detach().unwrap();
        });
        machine.world.finish().unwrap();
    }

    #[test]
    fn nothing_that_other_ranks_take_part_in_happens_under_the_allocators_lock() {
        let machine = machine(2);
        machine.ranks(2, |rank| {
            let (allocator, id, _stream) = allocator_of(&rank, Memory::Exportable);
            let registrar = SegmentRegistrar::attach(&allocator).unwrap();
            let world = rank.builder().registration(true).build().unwrap();
            world.barrier(far()).unwrap();
            // From here on every call of NCCL comes from the allocator, on one rank, while the other is idle.
            if rank.rank == 0 {
                let nccl = || -> Vec<(String, u64)> {
                    let calls = machine.world.faults().all_calls().into_iter();
                    // The watchdog makes that call on its own thread.
                    let is_watch = |name: &str| name == "ncclCommGetAsyncError";
                    calls.filter(|(name, _)| name.starts_with("nccl") && !is_watch(name)).collect()
                };
                let before = nccl();
                let blocks: Vec<_> = (0..20).map(|_| allocator.allocate(LARGE, id).unwrap()).collect();
                drop(blocks);
                allocator.empty_cache().unwrap();
                let local = ["ncclCommRegister", "ncclCommDeregister"];
                for (name, count) in nccl() {
                    let was = before.iter().find(|(known, _)| *known == name).map_or(0, |(_, count)| *count);
                    assert_eq!(local.contains(&name.as_str()), count > was, "{name}: {was}, then {count}");
                }
            }
            world.barrier(far()).unwrap();
            world.destroy(far()).unwrap();
            registrar.detach().unwrap();
        });
        machine.world.finish().unwrap();
    }

    /// NCCL is called after the communicator is resumed, and before the next operation.
    #[test]
    fn what_comes_and_goes_while_a_communicator_is_suspended_is_settled_after_it_is_resumed() {
        let machine = machine_with(1, 22907);
        let calls = || (machine.world.calls("ncclCommRegister"), machine.world.calls("ncclCommDeregister"));
        alone(&machine, |rank| {
            let (allocator, id, stream) = allocator_of(&rank, Memory::Exportable);
            let registrar = SegmentRegistrar::attach(&allocator).unwrap();
            let communicator = rank.communicator();
            add(&registrar, &communicator).unwrap();
            let early = allocator.allocate(LARGE, id).unwrap();
            assert_eq!(calls(), (1, 0));
            communicator.suspend(far()).unwrap();
            drop(early);
            allocator.empty_cache().unwrap();
            let late = allocator.allocate(2 * LARGE, id).unwrap();
            let refused = unsafe { communicator.register(DevicePtr(4096), 512, far()) }.unwrap_err();
            assert!(matches!(refused, CommError::Suspended { .. }), "{refused}");
            assert_eq!(calls(), (1, 0));
            communicator.resume(far()).unwrap();
            let at = DevicePtr(late.address());
            unsafe { communicator.all_reduce(at, at, 8, F32, ReduceOp::Sum, &stream) }.unwrap();
            assert_eq!(calls(), (2, 1));
            let counts = registrar.counts();
            assert_eq!((counts.segments, counts.registrations, counts.failures), (1, 1, 0), "{counts:?}");
            registrar.check().unwrap();
            stream.synchronize().unwrap();
            drop(late);
            communicator.destroy(far()).unwrap();
            registrar.detach().unwrap();
        });
        machine.world.finish().unwrap();
    }
}
