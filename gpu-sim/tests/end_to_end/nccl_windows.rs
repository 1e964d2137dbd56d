//! Windows by release: the results of each release, and the additional checks of strict worlds.

use std::ffi::c_void;

use super::rig::{Comm, OK, Rank, Rig, run, run_in_comm, until_waiting};
use cuda_driver_sys as cu;
use gpu_sim::World;
use nccl_sys::*;
use rusty_fork::rusty_fork_test;

const MIB: usize = 1 << 20;
const ERAS: [i32; 5] = [22707, 22809, 22907, 23004, 23007];
const UNTOUCHED: usize = 0xdead;

fn world_of(release: i32, devices: usize) -> World {
    World::builder().devices(devices).capacity(1 << 30).nccl_release(release).start().unwrap()
}

/// Registers a window, and returns the code and the value of the out parameter.
fn register(rank: &Rank, comm: Comm, buffer: u64, size: usize) -> (ncclResult_t, usize) {
    let mut window = UNTOUCHED as ncclWindow_t;
    let code = nccl!(rank.rig, ncclCommWindowRegister(comm.0, buffer as *mut c_void, size, &mut window, 1));
    (code, window as usize)
}

fn registered(rank: &Rank, comm: Comm, buffer: u64, size: usize) -> usize {
    let (code, window) = register(rank, comm, buffer, size);
    assert_eq!(code, OK, "{}", rank.rig.last_error());
    assert!(window != 0 && window != UNTOUCHED);
    window
}

fn deregister(rank: &Rank, comm: Comm, window: usize) -> ncclResult_t {
    nccl!(rank.rig, ncclCommWindowDeregister(comm.0, window as ncclWindow_t))
}

/// Makes one reservation with memory of two handles.
fn two_segments(rank: &Rank) -> (u64, impl FnOnce()) {
    let size = 2 * MIB;
    let mut address = 0;
    cuda!(rank.rig, cuMemAddressReserve(&mut address, 2 * size, 0, 0, 0));
    let location = cu::CUmemLocation {
        type_: cu::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
        ..cu::CUmemLocation::default()
    };
    let mut property = cu::CUmemAllocationProp {
        type_: cu::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: cu::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        location,
        ..cu::CUmemAllocationProp::default()
    };
    property.location.__bindgen_anon_1.id = rank.rank as i32;
    let access = cu::CUmemAccessDesc {
        location: property.location,
        flags: cu::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    for part in 0..2 {
        let mut handle = 0;
        cuda!(rank.rig, cuMemCreate(&mut handle, size, &property, 0));
        cuda!(rank.rig, cuMemMap(address + (part * size) as u64, size, 0, handle, 0));
        cuda!(rank.rig, cuMemRelease(handle));
    }
    cuda!(rank.rig, cuMemSetAccess(address, 2 * size, &access, 1));
    let rig = rank.rig.clone();
    (address, move || {
        cuda!(rig, cuMemUnmap(address, 2 * size));
        cuda!(rig, cuMemAddressFree(address, 2 * size));
    })
}

rusty_fork_test! {
    #![rusty_fork(timeout_ms = 300000)]

    #[test]
    fn every_release_registers_and_uses_windows() {
        for release in ERAS {
            let world = world_of(release, 2);
            run_in_comm(&world, 2, |rank, comm| {
                let buffer = rank.symmetric(2 * MIB);
                rank.write(buffer + 4096, &7i32.to_ne_bytes());
                let window = registered(rank, comm, buffer, 2 * MIB);
                assert_eq!(rank.all_reduce(comm, buffer + 4096, 1), OK);
                rank.synchronize();
                assert_eq!(rank.rig.async_error(comm), OK);
                assert_eq!(rank.read(buffer + 4096, 4), 14i32.to_ne_bytes());
                assert_eq!(deregister(rank, comm, window), OK);
                assert_eq!(deregister(rank, comm, window), ncclResult_t::ncclInvalidUsage);
                rank.free_symmetric(buffer);
            });
            world.finish().unwrap();
        }
    }

    #[test]
    fn nothing_to_register() {
        for (release, wanted) in ERAS.into_iter().zip([
            (OK, 0),
            (OK, UNTOUCHED),
            (ncclResult_t::ncclInvalidArgument, UNTOUCHED),
            (ncclResult_t::ncclInvalidArgument, UNTOUCHED),
            (ncclResult_t::ncclInvalidArgument, UNTOUCHED),
        ]) {
            let world = world_of(release, 1);
            run_in_comm(&world, 1, move |rank, comm| {
                let buffer = rank.symmetric(2 * MIB);
                assert_eq!(register(rank, comm, 0, 4096), wanted, "{release}");
                assert_eq!(register(rank, comm, buffer, 0), wanted, "{release}");
                rank.free_symmetric(buffer);
            });
            world.finish().unwrap();
        }
    }

    #[test]
    fn alignment() {
        for release in ERAS {
            let world = world_of(release, 2);
            run_in_comm(&world, 2, move |rank, comm| {
                let buffer = rank.symmetric(2 * MIB);
                let (code, window) = register(rank, comm, buffer + 256, MIB);
                if release < 22800 {
                    // 2.27 checks only the allocation's alignment.
                    assert_eq!(code, OK);
                    assert_eq!(deregister(rank, comm, window), OK);
                    let small = rank.alloc(4096);
                    assert_eq!(register(rank, comm, small, 4096), (OK, 0));
                    rank.free(small);
                } else {
                    assert_eq!(code, ncclResult_t::ncclInvalidArgument, "{release}");
                }
                let window = registered(rank, comm, buffer + 4096, MIB);
                assert_eq!(deregister(rank, comm, window), OK);
                rank.free_symmetric(buffer);
            });
            world.finish().unwrap();
        }
    }

    #[test]
    fn several_physical_segments() {
        for release in ERAS {
            let world = world_of(release, 2);
            run_in_comm(&world, 2, move |rank, comm| {
                let (buffer, free) = two_segments(rank);
                let (code, window) = register(rank, comm, buffer, 4 * MIB);
                match release {
                    ..22800 => assert_eq!((code, window), (OK, 0)),
                    // 2.28 would fail later, so a strict world refuses it. 2.29 refuses it itself.
                    22800..23000 => assert_eq!(code, ncclResult_t::ncclInvalidArgument),
                    _ => {
                        assert_eq!(code, OK);
                        assert_eq!(deregister(rank, comm, window), OK);
                    }
                }
                let window = registered(rank, comm, buffer, 2 * MIB);
                assert_eq!(deregister(rank, comm, window), OK);
                free();
            });
            world.finish().unwrap();
        }
    }

    #[test]
    fn memory_that_cannot_be_mapped_by_others() {
        let world = world_of(22809, 2);
        run_in_comm(&world, 2, |rank, comm| {
            let plain = rank.alloc(2 * MIB);
            assert_eq!(register(rank, comm, plain, MIB).0, ncclResult_t::ncclUnhandledCudaError);
            rank.free(plain);
            assert_eq!(register(rank, comm, plain, MIB).0, ncclResult_t::ncclUnhandledCudaError);
            assert!(rank.rig.last_error().contains("nothing is mapped"), "{}", rank.rig.last_error());
            // One rank alone registers bad memory: all ranks get an error.
            let good = rank.symmetric(2 * MIB);
            let bad = rank.alloc(2 * MIB);
            let code = register(rank, comm, if rank.rank == 0 { bad } else { good }, MIB).0;
            assert_ne!(code, OK);
            rank.free(bad);
            let window = registered(rank, comm, good, MIB);
            assert_eq!(deregister(rank, comm, window), OK);
            rank.free_symmetric(good);
        });
        world.finish().unwrap();
    }

    #[test]
    fn memory_registered_twice() {
        for release in ERAS {
            let world = world_of(release, 2);
            run_in_comm(&world, 2, move |rank, comm| {
                let buffer = rank.symmetric(2 * MIB);
                let first = registered(rank, comm, buffer, MIB);
                let second = registered(rank, comm, buffer, 2 * MIB);
                assert_ne!(first, second);
                assert_eq!(deregister(rank, comm, first), OK);
                let left = deregister(rank, comm, second);
                // 2.27: the first deregistration unmapped both.
                assert_eq!(left == OK, release >= 22800, "{release}");
                rank.free_symmetric(buffer);
            });
            world.finish().unwrap();
        }
    }

    #[test]
    fn symmetric_addresses_run_out() {
        // The space has the size of the device's memory, in units of 4 GiB. Windows do not fill it, registrations do.
        for release in ERAS {
            let world = World::builder().devices(2).capacity(2 << 30).nccl_release(release).start().unwrap();
            run_in_comm(&world, 2, move |rank, comm| {
                let buffer = rank.symmetric(1 << 30);
                for _ in 0..4 {
                    let window = registered(rank, comm, buffer, MIB);
                    assert_eq!(deregister(rank, comm, window), OK);
                }
                // 2.27 never reuses addresses.
                let (code, window) = register(rank, comm, buffer, MIB);
                assert_eq!(code == OK, release >= 22800, "{release}");
                if code == OK {
                    let more: Vec<usize> = (0..3).map(|_| registered(rank, comm, buffer, MIB)).collect();
                    // 2.30.7 takes new addresses for each window; the others share them.
                    let (code, another) = register(rank, comm, buffer, MIB);
                    assert_eq!(code == OK, release < 23007, "{release}: {}", rank.rig.last_error());
                    if code == OK {
                        assert_eq!(deregister(rank, comm, another), OK);
                    } else {
                        assert_eq!(code, ncclResult_t::ncclInternalError);
                    }
                    for window in more.into_iter().chain([window]) {
                        assert_eq!(deregister(rank, comm, window), OK);
                    }
                }
                rank.free_symmetric(buffer);
            });
            world.finish().unwrap();
        }
    }

    #[test]
    fn sizes_that_differ() {
        for release in ERAS {
            let world = world_of(release, 2);
            run_in_comm(&world, 2, move |rank, comm| {
                let size = (rank.rank + 1) * 2 * MIB;
                let buffer = rank.symmetric(size);
                let (code, window) = register(rank, comm, buffer, size);
                if release < 23007 {
                    assert_eq!(code, ncclResult_t::ncclInvalidUsage);
                    let text = rank.rig.last_error();
                    assert!(text.contains("2097152") && text.contains("4194304"), "{text}");
                    assert!(text.contains("rank 0") && text.contains("rank 1"), "{text}");
                } else {
                    assert_eq!(code, OK);
                    assert_eq!(deregister(rank, comm, window), OK);
                }
                rank.free_symmetric(buffer);
            });
            world.finish().unwrap();
        }
    }

    #[test]
    fn an_order_that_differs_is_an_error_although_sizes_agree() {
        let world = world_of(22809, 3);
        let texts = run_in_comm(&world, 3, |rank, comm| {
            let buffers = [rank.symmetric(2 * MIB), rank.symmetric(2 * MIB)];
            let order = if rank.rank == 1 { [1, 0] } else { [0, 1] };
            let first = registered(rank, comm, buffers[order[0]], 2 * MIB);
            let (code, _) = register(rank, comm, buffers[order[1]], 2 * MIB);
            assert_eq!(code, ncclResult_t::ncclInvalidUsage);
            let text = rank.rig.last_error();
            assert_eq!(deregister(rank, comm, first), OK);
            buffers.into_iter().for_each(|buffer| rank.free_symmetric(buffer));
            text
        });
        for text in texts {
            assert!(text.contains("rank 1 registers") && text.contains("the 1. oldest"), "{text}");
            assert!(text.contains("the 2. oldest") && text.contains("its registration 1"), "{text}");
        }
        world.finish().unwrap();
    }

    #[test]
    fn a_faithful_world_pairs_in_silence() {
        let world = World::builder().devices(2).capacity(1 << 30).faithful().start().unwrap();
        run_in_comm(&world, 2, |rank, comm| {
            let buffers = [rank.symmetric(2 * MIB), rank.symmetric(2 * MIB)];
            let order = if rank.rank == 1 { [1, 0] } else { [0, 1] };
            let windows = order.map(|i| registered(rank, comm, buffers[i], 2 * MIB));
            windows.into_iter().for_each(|window| assert_eq!(deregister(rank, comm, window), OK));
            buffers.into_iter().for_each(|buffer| rank.free_symmetric(buffer));
        });
        world.finish().unwrap();
    }

    #[test]
    fn windows_at_different_places_are_an_error() {
        let world = world_of(22809, 2);
        run_in_comm(&world, 2, |rank, comm| {
            let buffer = rank.symmetric(2 * MIB);
            let window = registered(rank, comm, buffer, 2 * MIB);
            assert_eq!(rank.all_reduce(comm, buffer + rank.rank as u64 * 512, 1), OK);
            rank.synchronize();
            assert_eq!(rank.rig.async_error(comm), ncclResult_t::ncclInvalidUsage);
            let text = rank.rig.last_error();
            assert!(text.contains("window 0 at 0x200") && text.contains("window 0 at 0x0"), "{text}");
            assert_eq!(deregister(rank, comm, window), OK);
            rank.free_symmetric(buffer);
        });
        world.finish().unwrap();
    }

    #[test]
    fn collectives_of_a_group_see_the_windows_that_it_registers() {
        let world = world_of(22809, 2);
        run_in_comm(&world, 2, |rank, comm| {
            let buffer = rank.symmetric(2 * MIB);
            let mut window = std::ptr::null_mut();
            ok!(rank.rig, ncclGroupStart());
            assert_eq!(rank.all_reduce(comm, buffer + rank.rank as u64 * 512, 1), OK);
            ok!(rank.rig, ncclCommWindowRegister(comm.0, buffer as *mut c_void, 2 * MIB, &mut window, 1));
            ok!(rank.rig, ncclGroupEnd());
            rank.synchronize();
            assert_eq!(rank.rig.async_error(comm), ncclResult_t::ncclInvalidUsage);
            assert!(rank.rig.last_error().contains("window 0 at 0x200"), "{}", rank.rig.last_error());
            assert_eq!(deregister(rank, comm, window as usize), OK);
            rank.free_symmetric(buffer);
        });
        world.finish().unwrap();
    }

    #[test]
    fn an_abort_gets_a_blocked_registration_out() {
        let world = world_of(22809, 2);
        let rig = Rig::new(&world);
        let id = rig.unique_id();
        let comms: Vec<Comm> = run(&world, 2, move |rank| rank.init(id, 2));
        std::thread::scope(|scope| {
            let registering = scope.spawn(|| {
                let rank = rig.rank(0);
                let buffer = rank.symmetric(2 * MIB);
                let (code, _) = register(&rank, comms[0], buffer, MIB);
                assert_eq!(code, ncclResult_t::ncclInternalError);
                assert!(rig.last_error().contains("aborted"), "{}", rig.last_error());
                rank.free_symmetric(buffer);
                rank.leave();
            });
            until_waiting(&world, "ncclCommWindowRegister", 1);
            rig.abort(comms[0]);
            registering.join().unwrap();
        });
        rig.abort(comms[1]);
        world.finish().unwrap();
    }

    #[test]
    fn memory_unmapped_under_its_window_is_misuse() {
        let world = world_of(22809, 1);
        run_in_comm(&world, 1, |rank, comm| {
            let buffer = rank.symmetric(2 * MIB);
            let window = registered(rank, comm, buffer, 2 * MIB);
            rank.free_symmetric(buffer);
            assert_eq!(deregister(rank, comm, window), OK);
        });
        let error = world.finish().unwrap_err().to_string();
        assert!(error.contains("unmapped before its window"), "{error}");
    }

    #[test]
    fn a_communicator_without_support() {
        // SAFETY: this process runs one test, and no other thread yet.
        unsafe { std::env::set_var("NCCL_WIN_ENABLE", "0") };
        for release in ERAS {
            let world = world_of(release, 2);
            run_in_comm(&world, 2, move |rank, comm| {
                let buffer = rank.symmetric(2 * MIB);
                // The call is local, so one rank alone may make it.
                if rank.rank == 0 {
                    let (code, window) = register(rank, comm, buffer, MIB);
                    assert_eq!(code, OK);
                    if release < 22900 {
                        assert!(window != 0 && window != UNTOUCHED, "a local registration's handle");
                    } else {
                        assert_eq!(window, 0);
                    }
                    assert_eq!(deregister(rank, comm, window), OK);
                }
                rank.free_symmetric(buffer);
            });
            world.finish().unwrap();
        }
    }

    #[test]
    fn flags_by_release() {
        let world = world_of(22809, 1);
        run_in_comm(&world, 1, |rank, comm| {
            let buffer = rank.symmetric(2 * MIB);
            let mut window = std::ptr::null_mut();
            let pointer = buffer as *mut c_void;
            let code = nccl!(rank.rig, ncclCommWindowRegister(comm.0, pointer, MIB, &mut window, 2));
            assert_eq!(code, ncclResult_t::ncclInvalidArgument);
            ok!(rank.rig, ncclCommWindowRegister(comm.0, pointer, MIB, &mut window, 0));
            ok!(rank.rig, ncclCommWindowDeregister(comm.0, window));
            rank.free_symmetric(buffer);
        });
        world.finish().unwrap();
    }
}
