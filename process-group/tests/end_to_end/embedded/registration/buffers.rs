//! Buffers that are not memory of the group's device: refused before anything is launched.

use cuda_driver::{DevicePtr, graph::CaptureMode, memory::DeviceMemory};
use process_group::{
    ProcessGroup,
    comm::{DataType::F32, ReduceOp},
    group::{Buffer, BufferError, GroupErrorKind},
    registration::SegmentRegistrar,
};
use rusty_fork::rusty_fork_test;

use super::{
    super::common::{far, machine, machine_with, values},
    LARGE, Memory, allocator_of,
};

/// Returns the error for a buffer of an all-reduce and of an all-gather.
fn refused(
    world: &ProcessGroup,
    stream: &cuda_driver::Stream,
    ptr: DevicePtr,
    elements: usize,
) -> BufferError {
    let buffer = Buffer::new(ptr, elements, F32);
    let error = unsafe { world.raw().all_reduce(buffer, buffer, ReduceOp::Sum, stream) }.unwrap_err();
    assert!(matches!(error.kind(), GroupErrorKind::Buffer { buffer: "send", .. }), "{error}");
    assert_eq!(
        (error.group(), error.operation(), error.sequence()),
        (Some(world.name()), Some("all_reduce"), None)
    );
    let error = unsafe { world.batch(stream, |batch| batch.send(buffer, world.size() - 1 - world.rank())) }
        .unwrap_err();
    assert_eq!((error.group(), error.operation()), (Some(world.name()), Some("send")));
    let GroupErrorKind::Buffer { buffer: "send", source } = error.into_kind() else {
        panic!("expected the send buffer")
    };
    // The same error from a direct check.
    let checked = Buffer::checked(world.context(), ptr, elements, F32).unwrap_err();
    assert_eq!((checked.group(), checked.operation()), (None, None));
    let GroupErrorKind::Buffer { source: again, .. } = checked.kind() else { panic!("{checked}") };
    assert_eq!(again.to_string(), source.to_string());
    source
}

rusty_fork_test! {
    #[test]
    fn memory_of_the_host_and_of_other_devices_is_refused_and_nothing_is_launched() {
        let machine = machine(2);
        machine.ranks(2, |rank| {
            let world = rank.world();
            let stream = rank.stream();
            let other = machine.context(1 - rank.rank);
            let theirs = DeviceMemory::new(&other, 4096).unwrap();
            let wanted = rank.rank as u32;
            for _ in 0..2 {
                let error = refused(&world, &stream, theirs.ptr(), 8);
                assert!(matches!(error, BufferError::OtherDevice { found, wanted: w, .. } if found == 1 - wanted && w == wanted), "{error}");
            }
            // Memory of a followed allocator, without asking the driver.
            let (allocator, id, _other_stream) = allocator_of(
                &super::super::common::Rank { context: other.clone(), nccl: rank.nccl.clone(), store: rank.store.clone(), ..rank },
                Memory::Exportable,
            );
            let registrar = SegmentRegistrar::attach(&allocator).unwrap();
            let block = allocator.allocate(LARGE, id).unwrap();
            let error = refused(&world, &stream, DevicePtr(block.address()), 8);
            assert!(matches!(error, BufferError::OtherDevice { .. }), "{error}");
            let pinned = cuda_driver::memory::PinnedMemory::new(&rank.context, 4096, cuda_driver::memory::PinnedFlags::empty()).unwrap();
            let host = DevicePtr(pinned.as_ptr().addr() as u64);
            let error = refused(&world, &stream, host, 8);
            assert!(matches!(error, BufferError::Host { .. }), "{error}");
            let plain = vec![0f32; 64];
            let error = refused(&world, &stream, DevicePtr(plain.as_ptr().addr() as u64), 8);
            assert!(matches!(error, BufferError::Unknown { .. }), "{error}");
            let own = rank.memory(&[1.0; 64]);
            let error = refused(&world, &stream, own.ptr(), 1 << 28);
            assert!(matches!(error, BufferError::Short { .. }), "{error}");
            assert_eq!(machine.world.calls("ncclAllReduce"), 0);
            assert_eq!(world.sequence(), 0);
            world.barrier(far()).unwrap();

            // A buffer that is not in a pool is checked once.
            let buffer = Buffer::checked(world.context(), own.ptr(), 64, F32).unwrap();
            for _ in 0..3 {
                unsafe { world.raw().all_reduce(buffer, buffer, ReduceOp::Sum, &stream) }.unwrap();
            }
            world.quiesce(far()).unwrap();
            assert_eq!(values(&own), [8.0; 64]);
            world.destroy(far()).unwrap();
            drop(block);
            registrar.detach().unwrap();
        });
        machine.world.finish().unwrap();
    }

    #[test]
    fn the_driver_is_asked_once_for_an_allocation() {
        let machine = machine(1);
        machine.ranks(1, |rank| {
            let world = rank.world();
            let stream = rank.stream();
            let memory = rank.memory(&vec![1.0; 1 << 20]);
            let before = machine.world.calls("cuPointerGetAttributes");
            for part in 0..64usize {
                let buffer = Buffer::new(memory.ptr() + part * 4096, 1024, F32);
                unsafe { world.raw().all_reduce(buffer, buffer, ReduceOp::Sum, &stream) }.unwrap();
            }
            assert_eq!(machine.world.calls("cuPointerGetAttributes"), before + 1);
            world.quiesce(far()).unwrap();
            world.destroy(far()).unwrap();

            let world = rank.builder().name("unseeing").check_buffers(false).build().unwrap();
            let before = machine.world.calls("cuPointerGetAttributes");
            let other = rank.memory(&[1.0]);
            let buffer = Buffer::new(other.ptr(), 1, F32);
            unsafe { world.raw().all_reduce(buffer, buffer, ReduceOp::Sum, &stream) }.unwrap();
            assert_eq!(machine.world.calls("cuPointerGetAttributes"), before);
            assert!(world.registration_report().operations.is_empty());
            world.quiesce(far()).unwrap();
            world.destroy(far()).unwrap();
        });
        machine.world.finish().unwrap();
    }

    #[test]
    fn an_address_that_is_other_memory_now_is_looked_up_again() {
        let machine = machine(2);
        machine.ranks(2, |rank| {
            let world = rank.world();
            let stream = rank.stream();
            for round in 0..40usize {
                // When one rank frees it, the other may get the same address.
                let memory = rank.memory(&vec![1.0; 64 << (round % 8)]);
                let buffer = Buffer::new(memory.ptr(), 64 << (round % 8), F32);
                unsafe { world.raw().all_reduce(buffer, buffer, ReduceOp::Sum, &stream) }.unwrap().wait_until(far()).unwrap();
            }
            world.destroy(far()).unwrap();
        });
        machine.world.finish().unwrap();
    }

    #[test]
    fn freed_memory_that_an_earlier_group_used_is_refused() {
        let machine = machine(1);
        machine.ranks(1, |rank| {
            let stream = rank.stream();
            let memory = rank.memory(&vec![1.0; 1 << 20]);
            let buffer = Buffer::new(memory.ptr(), 1 << 20, F32);
            let reduce = |world: &ProcessGroup| unsafe {
                world.raw().all_reduce(buffer, buffer, ReduceOp::Sum, &stream)
            };
            // The second group is alive when the memory is freed, but has not used it.
            let earlier = rank.world();
            let unused = rank.builder().name("unused").build().unwrap();
            reduce(&earlier).unwrap().wait_until(far()).unwrap();
            earlier.destroy(far()).unwrap();
            drop(memory);
            let later = rank.builder().name("later").build().unwrap();
            for world in [unused, later] {
                let error = refused(&world, &stream, buffer.ptr, buffer.elements);
                assert!(matches!(error, BufferError::Unknown { .. }), "{error}");
                world.destroy(far()).unwrap();
            }
        });
        machine.world.finish().unwrap();
    }

    #[test]
    fn the_report_of_the_world_says_what_freed_the_memory_that_an_operation_used() {
        let machine = machine(1);
        let address = machine.ranks(1, |rank| {
            let stream = rank.stream();
            let memory = rank.memory(&[1.0; 64]);
            let world = rank.builder().check_buffers(false).build().unwrap();
            let buffer = Buffer::new(memory.ptr(), 64, F32);
            drop(memory);
            let work = unsafe { world.raw().all_reduce(buffer, buffer, ReduceOp::Sum, &stream) };
            // The device may fault before the call has recorded its event.
            let error = work.and_then(|work| work.wait_until(far())).unwrap_err();
            let error = process_group::error_text(&error);
            assert!(error.contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{error}");
            buffer.ptr.0
        })[0];
        // The calls have returned the error, so the end of the world is no error.
        let report = machine.world.finish().unwrap();
        let access = format!("device 0 reads 256 bytes at {address:#x}: nothing is mapped at {address:#x}");
        let explains = |note: &String| note.contains(&access) && note.contains("that cuMemFree took away");
        assert!(report.notes.iter().any(explains), "{:?}", report.notes);
    }

    /// Before 2.29 NCCL itself registers the memory that a graph captures, as one allocation.
    #[test]
    fn memory_in_pieces_is_captured_where_the_library_knows_of_pieces() {
        for release in [22809, 22907] {
            let machine = machine_with(1, release);
            machine.ranks(1, |rank| {
                let (allocator, id, stream) = allocator_of(&rank, Memory::Remappable);
                let registrar = SegmentRegistrar::attach(&allocator).unwrap();
                let world = rank.builder().build().unwrap();
                let block = allocator.allocate(LARGE, id).unwrap();
                let reduce = |bytes: u64| {
                    let buffer = Buffer::new(DevicePtr(block.address()), bytes as usize / 4, F32);
                    unsafe { world.raw().all_reduce(buffer, buffer, ReduceOp::Sum, &stream) }
                };
                reduce(LARGE).unwrap().wait_until(far()).unwrap();
                let piece = rank.context.address_range(DevicePtr(block.address())).unwrap().bytes as u64;
                assert!(piece < LARGE, "{piece}");
                let capture = stream.begin_capture(CaptureMode::ThreadLocal).unwrap();
                reduce(piece).unwrap();
                match reduce(LARGE) {
                    Ok(_) => assert_eq!(release, 22907),
                    Err(error) => {
                        let GroupErrorKind::Buffer { source: BufferError::SpansHandles { bytes, found, .. }, .. } = error.kind() else {
                            panic!("{error}")
                        };
                        assert_eq!((release, *bytes, *found), (22809, LARGE, piece));
                    }
                }
                drop(capture.end().unwrap());
                stream.synchronize().unwrap();
                drop(block);
                world.destroy(far()).unwrap();
                drop((registrar, allocator));
            });
            machine.world.finish().unwrap();
        }
    }
}
