//! Device memory: accepted calls, refused calls, and accesses that fault.

use super::common::{Cuda, GRANULE, cu, ok};
use cuda_driver_sys::*;
use gpu_sim::{World, WorldError};
use rusty_fork::rusty_fork_test;

const RW: CUmemAccess_flags = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
const READ: CUmemAccess_flags = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READ;

fn free_bytes(cuda: &Cuda) -> usize {
    let (mut free, mut total) = (0, 0);
    ok!(cuda, cuMemGetInfo_v2(&mut free, &mut total));
    free
}

rusty_fork_test! {
    #[test]
    fn bytes_come_back() {
        for builder in [World::builder(), World::builder().seeded(5)] {
            let world = builder.start().unwrap();
            let cuda = Cuda::of(&world);
            let (a, b) = (cuda.alloc(10_000), cuda.alloc(10_000));
            let bytes: Vec<u8> = (0..10_000).map(|i| (i % 251) as u8).collect();
            cuda.upload(a, &bytes);
            ok!(cuda, cuMemcpyDtoD_v2(b, a, 10_000));
            ok!(cuda, cuMemsetD8_v2(a, 7, 5_000));
            assert_eq!(cuda.download(b, 10_000), bytes);
            assert_eq!(cuda.download(a, 10_000)[..5_000], [7; 5_000]);
            assert_eq!(cuda.download(a, 10_000)[5_000..], bytes[5_000..]);
            ok!(cuda, cuMemsetD32_v2(a, 0x01020304, 3));
            assert_eq!(cuda.download(a, 13), [4, 3, 2, 1, 4, 3, 2, 1, 4, 3, 2, 1, 7]);
            cuda.free(a);
            cuda.free(b);
            cuda.leave(0);
            world.finish().unwrap();
        }
    }

    #[test]
    fn capacity_is_counted_and_comes_back() {
        let world = World::builder().capacity(64 << 20).start().unwrap();
        let cuda = Cuda::of(&world);
        assert_eq!(free_bytes(&cuda), 64 << 20);
        let a = cuda.alloc(40 << 20);
        let mut b = 0;
        assert_eq!(cu!(cuda, cuMemAlloc_v2(&mut b, 40 << 20)), CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        let mut handle = 0;
        let properties = cuda.properties(0, false);
        assert_eq!(cu!(cuda, cuMemCreate(&mut handle, 40 << 20, &properties, 0)), CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        assert!(world.notes().iter().any(|n| n.contains("25165824 bytes of 67108864 left")), "{:?}", world.notes());
        cuda.free(a);
        assert_eq!(free_bytes(&cuda), 64 << 20);
        cuda.leave(0);
        world.finish().unwrap();
    }

    #[test]
    fn memory_that_is_never_touched_costs_nothing() {
        let world = World::builder().capacity(512 << 30).start().unwrap();
        let cuda = Cuda::of(&world);
        let before = resident();
        let plain: Vec<_> = (0..16).map(|_| cuda.alloc(16 << 30)).collect();
        let handle = cuda.create(0, 200 << 30);
        let start = cuda.reserve(200 << 30);
        ok!(cuda, cuMemMap(start, 200 << 30, 0, handle, 0));
        cuda.allow(0, start, 200 << 30, RW);
        ok!(cuda, cuMemsetD8_v2(start + (150 << 30), 1, 4096));
        ok!(cuda, cuCtxSynchronize());
        assert!(resident() < before + (16 << 20), "{} bytes became resident", resident() - before);
        ok!(cuda, cuMemUnmap(start, 200 << 30));
        ok!(cuda, cuMemRelease(handle));
        ok!(cuda, cuMemAddressFree(start, 200 << 30));
        plain.into_iter().for_each(|p| cuda.free(p));
        cuda.leave(0);
        world.finish().unwrap();
    }

    #[test]
    fn a_handle_at_two_addresses_is_one_memory() {
        let world = World::builder().start().unwrap();
        let cuda = Cuda::of(&world);
        let handle = cuda.create(0, 2 * GRANULE);
        let start = cuda.reserve(4 * GRANULE);
        let second = start + 2 * GRANULE as u64;
        ok!(cuda, cuMemMap(start, 2 * GRANULE, 0, handle, 0));
        ok!(cuda, cuMemMap(second, 2 * GRANULE, 0, handle, 0));
        ok!(cuda, cuMemRelease(handle));
        cuda.allow(0, start, 4 * GRANULE, RW);
        // The copy crosses the border of the two mappings, which are one range for it.
        cuda.upload(start + 2 * GRANULE as u64 - 4, &[1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(cuda.download(start, 4), [5, 6, 7, 8]);
        assert_eq!(cuda.download(second + 2 * GRANULE as u64 - 4, 4), [1, 2, 3, 4]);
        ok!(cuda, cuMemUnmap(start, 2 * GRANULE));
        assert_eq!(cuda.download(second, 4), [5, 6, 7, 8]);
        let before = free_bytes(&cuda);
        ok!(cuda, cuMemUnmap(second, 2 * GRANULE));
        assert_eq!(free_bytes(&cuda), before + 2 * GRANULE);
        ok!(cuda, cuMemAddressFree(start, 4 * GRANULE));
        cuda.leave(0);
        world.finish().unwrap();
    }

    #[test]
    fn the_drivers_rules_are_kept() {
        let world = World::builder().start().unwrap();
        let cuda = Cuda::of(&world);
        let invalid = CUresult::CUDA_ERROR_INVALID_VALUE;
        let handle = cuda.create(0, 2 * GRANULE);
        let start = cuda.reserve(4 * GRANULE);
        let mut out = 0;
        assert_eq!(cu!(cuda, cuMemCreate(&mut out, 1000, &cuda.properties(0, true), 0)), invalid);
        assert_eq!(cu!(cuda, cuMemAddressReserve(&mut out, 1000, 0, 0, 0)), invalid);
        assert_eq!(cu!(cuda, cuMemMap(start + 4096, GRANULE, 0, handle, 0)), invalid);
        let unsupported = CUresult::CUDA_ERROR_NOT_SUPPORTED;
        assert_eq!(cu!(cuda, cuMemMap(start, GRANULE, 0, handle, 0)), unsupported, "part of a handle");
        assert_eq!(cu!(cuda, cuMemMap(start, 3 * GRANULE, 0, handle, 0)), unsupported, "longer than the handle");
        assert_eq!(cu!(cuda, cuMemMap(start + 3 * GRANULE as u64, 2 * GRANULE, 0, handle, 0)), invalid, "past the end");
        ok!(cuda, cuMemUnmap(start, GRANULE));
        ok!(cuda, cuMemMap(start, 2 * GRANULE, 0, handle, 0));
        assert_eq!(cu!(cuda, cuMemMap(start + GRANULE as u64, 2 * GRANULE, 0, handle, 0)), invalid, "mapped already");
        assert_eq!(cu!(cuda, cuMemUnmap(start, GRANULE)), invalid, "half a mapping");
        assert_eq!(cu!(cuda, cuMemAddressFree(start, 4 * GRANULE)), invalid, "still mapped");
        assert_eq!(cu!(cuda, cuMemFree_v2(start)), invalid, "not from cuMemAlloc");
        assert_eq!(cu!(cuda, cuMemRelease(handle + 1)), invalid);
        ok!(cuda, cuMemUnmap(start, 2 * GRANULE));
        ok!(cuda, cuMemAddressFree(start, 4 * GRANULE));
        ok!(cuda, cuMemRelease(handle));
        cuda.leave(0);
        world.finish().unwrap();
    }

    #[test]
    fn rights_are_needed_before_use() {
        let world = World::builder().devices(2).start().unwrap();
        let cuda = Cuda::of(&world);
        let handle = cuda.create(0, GRANULE);
        let start = cuda.reserve(GRANULE);
        ok!(cuda, cuMemMap(start, GRANULE, 0, handle, 0));
        cuda.allow(0, start, GRANULE, READ);
        assert_eq!(cuda.download(start, 1), [0]);
        let mut flags = 0;
        ok!(cuda, cuMemGetAccess(&mut flags, &cuda.location(0), start));
        assert_eq!(flags, 1);
        ok!(cuda, cuMemGetAccess(&mut flags, &cuda.location(1), start));
        assert_eq!(flags, 0);
        // Copies are checked before they are enqueued, so this one is refused and has no effect.
        let byte = 1u8;
        let code = cu!(cuda, cuMemcpyHtoD_v2(start, (&raw const byte).cast(), 1));
        assert_eq!(code, CUresult::CUDA_ERROR_INVALID_VALUE);
        let denied = |n: &String| n.contains("grants it reads");
        assert!(world.notes().iter().any(denied), "{:?}", world.notes());
        ok!(cuda, cuCtxSynchronize());
        // Captured work has no such check, so it faults.
        let stream = cuda.stream();
        cuda.captured(stream, || ok!(cuda, cuMemsetD8Async(start, 1, 1, stream)));
        assert_eq!(cu!(cuda, cuStreamSynchronize(stream)), CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
        // The context stays unusable for every call.
        let mut pointer = 0;
        assert_eq!(cu!(cuda, cuMemAlloc_v2(&mut pointer, 1)), CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
        assert_eq!(cu!(cuda, cuCtxSynchronize()), CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
        // The other device is not affected.
        cuda.enter(1);
        let other = cuda.alloc(1);
        cuda.free(other);
    }

    #[test]
    fn use_after_free_and_past_the_end_fault_with_an_explanation() {
        for past in [false, true] {
            let world = World::builder().start().unwrap();
            let cuda = Cuda::of(&world);
            let (a, stream) = (cuda.alloc(1000), cuda.stream());
            if !past {
                cuda.free(a);
            }
            assert_eq!(cu!(cuda, cuMemsetD8Async(a, 1, 1001, stream)), CUresult::CUDA_ERROR_INVALID_VALUE);
            cuda.captured(stream, || ok!(cuda, cuMemsetD8Async(a, 1, 1001, stream)));
            assert_eq!(cu!(cuda, cuStreamSynchronize(stream)), CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
            let why = if past { "0 bytes past the end of the 1000 bytes" } else { "that cuMemFree took away" };
            assert!(world.notes().iter().filter(|n| n.contains(why)).count() == 2, "{:?}", world.notes());
        }
    }

    #[test]
    fn a_fault_that_no_call_returns_is_misuse() {
        for (builder, asks) in [
            (World::builder(), false),
            (World::builder(), true),
            (World::builder().seeded(3), false),
            (World::builder().seeded(3), true),
            (World::builder().faithful(), false),
        ] {
            let world = builder.clone().start().unwrap();
            let cuda = Cuda::of(&world);
            let (start, stream, other) = (cuda.reserve(2 * GRANULE), cuda.stream(), cuda.stream());
            let (handles, word) = ([cuda.create(0, GRANULE), cuda.create(0, GRANULE)], start + GRANULE as u64);
            ok!(cuda, cuMemMap(start, GRANULE, 0, handles[0], 0));
            ok!(cuda, cuMemMap(word, GRANULE, 0, handles[1], 0));
            cuda.allow(0, start, 2 * GRANULE, RW);
            ok!(cuda, cuStreamWaitValue32_v2(stream, word, 1, 0));
            ok!(cuda, cuMemsetD8Async(start, 1, 10, stream));
            ok!(cuda, cuMemUnmap(start, GRANULE));
            ok!(cuda, cuStreamWriteValue32_v2(other, word, 1, 0));
            if asks {
                assert_eq!(cu!(cuda, cuStreamSynchronize(stream)), CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
            }
            ok!(cuda, cuStreamDestroy_v2(stream));
            ok!(cuda, cuStreamDestroy_v2(other));
            cuda.leave(0);
            ok!(cuda, cuMemUnmap(word, GRANULE));
            for handle in handles {
                ok!(cuda, cuMemRelease(handle));
            }
            ok!(cuda, cuMemAddressFree(start, 2 * GRANULE));
            match world.finish() {
                Err(WorldError::Unclean(report)) if !asks => {
                    assert!(report.leaks.is_empty(), "{report}");
                    assert_eq!(report.misuse.len(), 1, "{report}");
                    let misuse = &report.misuse[0];
                    assert!(misuse.starts_with("no call has returned this fault: device 0 is poisoned by "), "{misuse}");
                    assert!(misuse.contains("cuMemUnmap took away"), "{misuse}");
                }
                Ok(report) if asks || format!("{builder:?}").contains("Faithful") => {
                    assert!(report.is_clean(), "{report}");
                    assert!(report.notes.iter().any(|n| n.contains("is poisoned by")), "{:?}", report.notes);
                }
                other => panic!("{builder:?}, asks {asks}: {other:?}"),
            }
        }
    }

    #[test]
    fn memory_that_goes_while_work_waits_is_a_fault() {
        let world = World::builder().start().unwrap();
        let cuda = Cuda::of(&world);
        let (handle, start, word) = (cuda.create(0, GRANULE), cuda.reserve(GRANULE), cuda.alloc(4));
        ok!(cuda, cuMemMap(start, GRANULE, 0, handle, 0));
        cuda.allow(0, start, GRANULE, RW);
        let (stream, other) = (cuda.stream(), cuda.stream());
        ok!(cuda, cuStreamWaitValue32_v2(stream, word, 1, 0));
        ok!(cuda, cuMemsetD8Async(start, 1, 10, stream));
        ok!(cuda, cuMemUnmap(start, GRANULE));
        ok!(cuda, cuStreamWriteValue32_v2(other, word, 1, 0));
        assert_eq!(cu!(cuda, cuStreamSynchronize(stream)), CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
        assert!(world.notes().iter().any(|n| n.contains("cuMemUnmap took away")), "{:?}", world.notes());
    }

    #[test]
    fn peers_need_to_be_enabled_but_copies_do_not() {
        let world = World::builder().devices(2).start().unwrap();
        let cuda = Cuda::of(&world);
        let a = cuda.alloc(8);
        ok!(cuda, cuMemsetD8_v2(a, 9, 8));
        ok!(cuda, cuCtxSynchronize());
        let own = cuda.enter(1);
        let b = cuda.alloc(8);
        let mut first = std::ptr::null_mut();
        ok!(cuda, cuDevicePrimaryCtxRetain(&mut first, 0));
        ok!(cuda, cuMemcpyPeer(b, own, a, first, 8));
        assert_eq!(cuda.download(b, 8), [9; 8]);
        use gpu_sim::memory::{Access, view};
        assert!(view(1, a, 8, Access::READ).is_err());
        ok!(cuda, cuCtxEnablePeerAccess(first, 0));
        assert_eq!(cu!(cuda, cuCtxEnablePeerAccess(first, 0)), CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
        assert_eq!(view(1, a, 8, Access::READ).unwrap().len(), 8);
        ok!(cuda, cuCtxDisablePeerAccess(first));
        assert!(view(1, a, 8, Access::READ).is_err());
    }

    #[test]
    fn pointers_say_what_they_are() {
        let world = World::builder().devices(2).start().unwrap();
        let cuda = Cuda::of(&world);
        cuda.enter(1);
        let a = cuda.alloc(1000);
        let (mut kind, mut ordinal) = (0u32, -1i32);
        let attribute = CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
        ok!(cuda, cuPointerGetAttribute((&raw mut kind).cast(), attribute, a + 5));
        assert_eq!(kind, CUmemorytype::CU_MEMORYTYPE_DEVICE.0);
        let attribute = CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL;
        ok!(cuda, cuPointerGetAttribute((&raw mut ordinal).cast(), attribute, a));
        assert_eq!(ordinal, 1);
        let (mut base, mut size) = (0, 0);
        ok!(cuda, cuMemGetAddressRange_v2(&mut base, &mut size, a + 999));
        assert_eq!((base, size), (a, 1000));
        let mut pinned = std::ptr::null_mut();
        ok!(cuda, cuMemHostAlloc(&mut pinned, 100, 0));
        let attribute = CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
        ok!(cuda, cuPointerGetAttribute((&raw mut kind).cast(), attribute, pinned as u64));
        assert_eq!(kind, CUmemorytype::CU_MEMORYTYPE_HOST.0);
        let local = 5u8;
        let code = cu!(cuda, cuPointerGetAttribute((&raw mut kind).cast(), attribute, &raw const local as u64));
        assert_eq!(code, CUresult::CUDA_ERROR_INVALID_VALUE);
        ok!(cuda, cuMemFreeHost(pinned));
    }

    #[test]
    fn retained_handles_outlive_the_first() {
        let world = World::builder().start().unwrap();
        let cuda = Cuda::of(&world);
        let handle = cuda.create(0, GRANULE);
        let start = cuda.reserve(GRANULE);
        ok!(cuda, cuMemMap(start, GRANULE, 0, handle, 0));
        let mut again = 0;
        ok!(cuda, cuMemRetainAllocationHandle(&mut again, (start + 100) as *mut _));
        ok!(cuda, cuMemRelease(handle));
        ok!(cuda, cuMemUnmap(start, GRANULE));
        ok!(cuda, cuMemMap(start, GRANULE, 0, again, 0));
        ok!(cuda, cuMemUnmap(start, GRANULE));
        ok!(cuda, cuMemRelease(again));
        assert_eq!(cu!(cuda, cuMemRelease(again)), CUresult::CUDA_ERROR_INVALID_VALUE);
        ok!(cuda, cuMemAddressFree(start, GRANULE));
        cuda.leave(0);
        world.finish().unwrap();
    }

    #[test]
    fn what_another_thread_lets_go_of_in_a_moment_is_no_leak() {
        for builder in [World::builder(), World::builder().faithful()] {
            let world = builder.start().unwrap();
            let cuda = Cuda::of(&world);
            let other = std::thread::spawn(move || {
                std::thread::sleep(std::time::Duration::from_millis(20));
                cuda.leave(0);
            });
            assert!(world.finish().unwrap().is_clean());
            other.join().unwrap();
        }
    }

    #[test]
    fn a_panic_lets_another_thread_release_what_it_has() {
        let world = World::builder().start().unwrap();
        let cuda = Cuda::of(&world);
        let other = std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(20));
            cuda.leave(0);
        });
        let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
            let _world = world;
            // Unlike a panic, this prints nothing first, which would take longer than the other thread.
            std::panic::resume_unwind(Box::new("a test fails"));
        }));
        assert!(unwound.is_err());
        other.join().unwrap();
    }

    #[test]
    fn leaks_are_errors_in_strict_mode_and_counted_in_the_other() {
        for strict in [true, false] {
            let builder = World::builder();
            let world = if strict { builder } else { builder.faithful() }.start().unwrap();
            let cuda = Cuda::of(&world);
            cuda.alloc(100);
            cuda.create(0, GRANULE);
            cuda.reserve(GRANULE);
            cuda.stream();
            let kinds = ["allocation", "reservation", "memory handle", "stream", "context"];
            let report = match (strict, world.finish()) {
                (true, Err(WorldError::Unclean(report))) => *report,
                (false, Ok(report)) => report,
                other => panic!("{other:?}"),
            };
            assert_eq!(report.leaks.iter().map(|l| l.kind).collect::<Vec<_>>(), kinds);
            let what = &report.leaks[0].what;
            let error = WorldError::Unclean(Box::new(report.clone()));
            assert_eq!(format!("{error:?}"), format!("{error}"), "`main` and `unwrap` print the text");
            assert!(what.starts_with("100 bytes at ") && what.contains("by cuMemAlloc in context "), "{what}");
        }
    }
}

/// Bytes of this process's shared memory that are resident.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10
}
