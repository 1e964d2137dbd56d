//! Rows about memory: allocations, virtual memory, queries, copies.

use std::ffi::c_void;

use super::*;

pub(super) const ROWS: &[Row] = &[
    (
        "address range over two handles in one reservation",
        |cuda| {
            let start = two_mappings(cuda);
            let ask = |at: u64| {
                let (mut base, mut size) = (start, 0);
                let code = cu!(cuda, cuMemGetAddressRange_v2(&mut base, &mut size, at));
                format!("{} +{} {size}", codes([code]), if base == 0 { 0 } else { base.wrapping_sub(start) })
            };
            let silent = ask(start + G + 5);
            cuda.allow(0, start, 2 * GRANULE, RW);
            [silent, ask(start + G + 5), ask(start + 2 * G)].join(", ")
        },
        "NOT_FOUND +0 0, SUCCESS +2097152 2097152, NOT_FOUND +0 0",
    ),
    (
        "address range of a small allocation",
        |cuda| {
            let a = cuda.alloc(1000);
            let ask = |at: u64| {
                let (mut base, mut size) = (a, 0);
                let code = cu!(cuda, cuMemGetAddressRange_v2(&mut base, &mut size, at));
                format!("{} +{} {size}", codes([code]), if base == 0 { 0 } else { base.wrapping_sub(a) })
            };
            let without = cu!(cuda, cuMemGetAddressRange_v2(null(), null(), a + (64 << 20)));
            let local = 0u8;
            [ask(a + 999), ask(a + 1000), ask(a + 1024), ask(&raw const local as u64), codes([without])]
                .join(", ")
        },
        "SUCCESS +0 1000, NOT_FOUND +0 0, NOT_FOUND +0 0, NOT_FOUND +0 0, SUCCESS",
    ),
    (
        "pointer attributes of mapped memory",
        |cuda| {
            let start = two_mappings(cuda);
            use CUpointer_attribute as A;
            let kind = attribute(cuda, A::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, start + G);
            let base = attribute(cuda, A::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, start + G);
            let size = attribute(cuda, A::CU_POINTER_ATTRIBUTE_RANGE_SIZE, start + G);
            let context = attribute(cuda, A::CU_POINTER_ATTRIBUTE_CONTEXT, start);
            let handles = attribute(cuda, A::CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, start);
            let mapped = attribute(cuda, A::CU_POINTER_ATTRIBUTE_MAPPED, start);
            let reserved = attribute(cuda, A::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, start + 2 * G);
            format!(
                "{} type {} +{} {} context {} handles {} mapped {}",
                codes([kind.0, base.0, size.0, context.0, handles.0, mapped.0, reserved.0]),
                kind.1,
                base.1.wrapping_sub(start),
                size.1,
                context.1 != 0,
                handles.1,
                mapped.1
            )
        },
        "SUCCESS SUCCESS SUCCESS SUCCESS SUCCESS SUCCESS INVALID_VALUE type 2 +0 6291456 context false handles 1 mapped 1",
    ),
    (
        "pointer attributes of nothing",
        |cuda| {
            use CUpointer_attribute as A;
            let local = 0u8;
            let at = &raw const local as u64;
            let one = attribute(cuda, A::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at);
            let ordinal = attribute(cuda, A::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, at);
            let (mut kind, mut device) = (9u32, 9i32);
            let mut which = [A::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, A::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL];
            let mut data: [*mut c_void; 2] = [(&raw mut kind).cast(), (&raw mut device).cast()];
            let all = cu!(cuda, cuPointerGetAttributes(2, which.as_mut_ptr(), data.as_mut_ptr(), at));
            format!("{} {kind} {device}", codes([one.0, ordinal.0, all]))
        },
        "INVALID_VALUE INVALID_VALUE SUCCESS 0 -2",
    ),
    (
        "mapping out of place",
        |cuda| {
            let start = two_mappings(cuda);
            let handle = cuda.create(0, GRANULE);
            let mut out = 0;
            codes([
                cu!(cuda, cuMemMap(start, GRANULE, 0, handle, 0)),
                cu!(cuda, cuMemMap(start + 2 * G + 4096, GRANULE, 0, handle, 0)),
                cu!(cuda, cuMemMap(start + 2 * G, GRANULE, GRANULE, handle, 0)),
                cu!(cuda, cuMemMap(start + 2 * G, GRANULE, 0, handle, 1)),
                cu!(cuda, cuMemMap(start + 2 * G, GRANULE, 0, handle + 0x1000, 0)),
                cu!(cuda, cuMemUnmap(start, 4096)),
                cu!(cuda, cuMemUnmap(start + 2 * G, GRANULE)),
                cu!(cuda, cuMemAddressFree(start, 3 * GRANULE)),
                cu!(cuda, cuMemUnmap(start, 2 * GRANULE)),
                cu!(cuda, cuMemAddressFree(start, GRANULE)),
                cu!(cuda, cuMemAddressReserve(&mut out, 4096, 0, 0, 0)),
                cu!(cuda, cuMemCreate(&mut out, 4096, &cuda.properties(0, true), 0)),
            ])
        },
        "INVALID_VALUE INVALID_VALUE NOT_SUPPORTED INVALID_VALUE INVALID_VALUE INVALID_VALUE SUCCESS INVALID_VALUE SUCCESS INVALID_VALUE INVALID_VALUE INVALID_VALUE",
    ),
    (
        "mapping parts of handles",
        |cuda| {
            let start = cuda.reserve(4 * GRANULE);
            let (one, two) = (cuda.create(0, GRANULE), cuda.create(0, 2 * GRANULE));
            codes([
                cu!(cuda, cuMemMap(start, 2 * GRANULE, 0, one, 0)),
                cu!(cuda, cuMemMap(start, GRANULE, 0, two, 0)),
                cu!(cuda, cuMemMap(start, GRANULE, GRANULE, two, 0)),
                cu!(cuda, cuMemMap(start, 2 * GRANULE, 0, two, 0)),
            ])
        },
        "NOT_SUPPORTED NOT_SUPPORTED NOT_SUPPORTED SUCCESS",
    ),
    (
        "unmapping with holes",
        |cuda| {
            let start = two_mappings(cuda);
            let outside = cu!(cuda, cuMemUnmap(start + 64 * G, GRANULE));
            let hole = cu!(cuda, cuMemUnmap(start, 3 * GRANULE));
            let free = cu!(cuda, cuMemAddressFree(start, 3 * GRANULE));
            codes([outside, hole, free])
        },
        "INVALID_VALUE SUCCESS SUCCESS",
    ),
    (
        "several mappings by one call",
        |cuda| {
            // One handle mapped at both ends, and one of two granules between them.
            let (one, two, start) =
                (cuda.create(0, GRANULE), cuda.create(0, 2 * GRANULE), cuda.reserve(4 * GRANULE));
            let mapped = [(0, 1, one), (1, 2, two), (3, 1, one)].map(|(at, granules, handle)| {
                cu!(cuda, cuMemMap(start + at * G, granules * GRANULE, 0, handle, 0))
            });
            let right = CUmemAccessDesc { location: cuda.location(0), flags: RW };
            let access = cu!(cuda, cuMemSetAccess(start, 4 * GRANULE, &right, 1));
            let mut word = 0u32;
            let written = cu!(cuda, cuMemsetD32_v2(start + 4, 77, 1));
            let read = cu!(cuda, cuMemcpyDtoH_v2((&raw mut word).cast(), start + 3 * G + 4, 4));
            let unmapped = cu!(cuda, cuMemUnmap(start, 3 * GRANULE));
            let left = cu!(cuda, cuMemcpyDtoH_v2((&raw mut word).cast(), start + 3 * G + 4, 4));
            let all = mapped.into_iter().chain([access, written, read, unmapped, left]);
            format!("{} {word}", codes(all))
        },
        "SUCCESS SUCCESS SUCCESS SUCCESS SUCCESS SUCCESS SUCCESS SUCCESS 77",
    ),
    (
        "reservations larger than the device",
        |cuda| {
            let reserve = || {
                let mut start = 0;
                let code = cu!(cuda, cuMemAddressReserve(&mut start, 256 << 30, GRANULE, 0, 0));
                (code, start)
            };
            let ranges = [(); 8].map(|()| reserve());
            let handle = cuda.create(0, GRANULE);
            let last = ranges[7].1 + (256 << 30) - G;
            let mapped = cu!(cuda, cuMemMap(last, GRANULE, 0, handle, 0));
            let unmapped = cu!(cuda, cuMemUnmap(last, GRANULE));
            let freed = ranges.map(|(_, start)| cu!(cuda, cuMemAddressFree(start, 256 << 30)));
            let is_success = |code: &CUresult| *code == CUresult::CUDA_SUCCESS;
            let all = ranges.map(|(code, _)| code).iter().chain(&freed).all(is_success);
            format!("{} {all}", codes([mapped, unmapped]))
        },
        "SUCCESS SUCCESS true",
    ),
    (
        "access with holes",
        |cuda| {
            let start = two_mappings(cuda);
            let right = CUmemAccessDesc { location: cuda.location(0), flags: RW };
            codes([
                cu!(cuda, cuMemSetAccess(start, 3 * GRANULE, &right, 1)),
                cu!(cuda, cuMemSetAccess(start, 4096, &right, 1)),
            ])
        },
        "INVALID_VALUE INVALID_VALUE",
    ),
    (
        "words that are not there",
        |cuda| {
            let a = cuda.alloc(4 << 20);
            cuda.free(a);
            let stream = cuda.stream();
            let write = cu!(cuda, cuStreamWriteValue32_v2(stream, a, 1, 0));
            let wait = cu!(cuda, cuStreamWaitValue32_v2(stream, a, 0, 0));
            let misaligned = cu!(cuda, cuStreamWriteValue32_v2(stream, cuda.alloc(64) + 2, 1, 0));
            codes([write, wait, misaligned, cu!(cuda, cuStreamSynchronize(stream))])
        },
        "INVALID_VALUE INVALID_VALUE INVALID_VALUE SUCCESS",
    ),
    (
        "half of a mapping",
        |cuda| {
            let (handle, start) = (cuda.create(0, 2 * GRANULE), cuda.reserve(2 * GRANULE));
            ok!(cuda, cuMemMap(start, 2 * GRANULE, 0, handle, 0));
            let right = CUmemAccessDesc { location: cuda.location(0), flags: RW };
            let access = cu!(cuda, cuMemSetAccess(start, GRANULE, &right, 1));
            let unmap = cu!(cuda, cuMemUnmap(start, GRANULE));
            codes([access, unmap])
        },
        "INVALID_VALUE INVALID_VALUE",
    ),
    (
        "access to what is not mapped",
        |cuda| {
            let start = cuda.reserve(GRANULE);
            let right = CUmemAccessDesc { location: cuda.location(0), flags: RW };
            let set = cu!(cuda, cuMemSetAccess(start, GRANULE, &right, 1));
            let mut flags = 7;
            let get = cu!(cuda, cuMemGetAccess(&mut flags, &cuda.location(0), start));
            let mut handle = 0;
            let retain = cu!(cuda, cuMemRetainAllocationHandle(&mut handle, start as *mut c_void));
            let plain = cuda.alloc(100);
            let retain_plain = cu!(cuda, cuMemRetainAllocationHandle(&mut handle, plain as *mut c_void));
            codes([set, get, retain, retain_plain])
        },
        "INVALID_VALUE INVALID_VALUE INVALID_VALUE INVALID_VALUE",
    ),
    (
        "handles that are not",
        |cuda| {
            let private = {
                let mut handle = 0;
                ok!(cuda, cuMemCreate(&mut handle, GRANULE, &cuda.properties(0, false), 0));
                handle
            };
            let (mut descriptor, mut handle) = (-1i32, 0);
            let export =
                cu!(cuda, cuMemExportToShareableHandle((&raw mut descriptor).cast(), private, POSIX_FD, 0));
            let file = std::fs::File::open("/proc/self/exe").unwrap();
            let number = std::os::fd::AsRawFd::as_raw_fd(&file);
            let import =
                cu!(cuda, cuMemImportFromShareableHandle(&mut handle, number as isize as *mut _, POSIX_FD));
            // The number of a descriptor, passed as a pointer: 0 is NULL.
            let null_memory = cu!(cuda, cuMemImportFromShareableHandle(&mut handle, null(), POSIX_FD));
            let null_pool = cu!(cuda, cuMemPoolImportFromShareableHandle(&mut null(), null(), POSIX_FD, 0));
            codes([export, import, null_memory, null_pool])
        },
        "INVALID_VALUE UNKNOWN INVALID_VALUE INVALID_VALUE",
    ),
    (
        "what imported memory says of itself",
        |cuda| {
            let (made, mut imported, mut descriptor) = (cuda.create(0, GRANULE), 0, -1i32);
            ok!(cuda, cuMemExportToShareableHandle((&raw mut descriptor).cast(), made, POSIX_FD, 0));
            let number = descriptor as isize as *mut _;
            ok!(cuda, cuMemImportFromShareableHandle(&mut imported, number, POSIX_FD));
            [made, imported]
                .map(|handle| {
                    let mut properties = CUmemAllocationProp::default();
                    ok!(cuda, cuMemGetAllocationPropertiesFromHandle(&mut properties, handle));
                    let kind = properties.type_.0;
                    format!("type {kind} handles {}", properties.requestedHandleTypes.0)
                })
                .join(", ")
        },
        "type 1 handles 1, type 1 handles 0",
    ),
    (
        "frees of what is not there",
        |cuda| {
            let a = cuda.alloc(4096);
            let start = two_mappings(cuda);
            let inside = cu!(cuda, cuMemFree_v2(a + 512));
            let mapped = cu!(cuda, cuMemFree_v2(start));
            cuda.free(a);
            let again = cu!(cuda, cuMemFree_v2(a));
            let nothing = cu!(cuda, cuMemFree_v2(0));
            let asynchronous = cu!(cuda, cuMemFreeAsync(a, cuda.stream()));
            codes([inside, mapped, again, nothing, asynchronous])
        },
        "INVALID_VALUE INVALID_VALUE INVALID_VALUE SUCCESS INVALID_VALUE",
    ),
    (
        "copies from and to freed memory",
        |cuda| {
            let a = cuda.alloc(4 << 20);
            cuda.free(a);
            let (mut byte, stream) = (0u8, cuda.stream());
            let to_host = cu!(cuda, cuMemcpyDtoH_v2((&raw mut byte).cast(), a, 1));
            let to_device = cu!(cuda, cuMemcpyHtoD_v2(a, (&raw const byte).cast(), 1));
            let fill = cu!(cuda, cuMemsetD8Async(a, 1, 1, stream));
            let after = cu!(cuda, cuStreamSynchronize(stream));
            codes([to_host, to_device, fill, after])
        },
        "INVALID_VALUE INVALID_VALUE INVALID_VALUE SUCCESS",
    ),
    (
        "copies past the end",
        |cuda| {
            let a = cuda.alloc(2 << 20);
            let mut bytes = vec![0u8; 16 << 20];
            let to_host = cu!(cuda, cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), a, 16 << 20));
            let fill = cu!(cuda, cuMemsetD8_v2(a, 1, 16 << 20));
            codes([to_host, fill, cu!(cuda, cuCtxSynchronize())])
        },
        "INVALID_VALUE INVALID_VALUE SUCCESS",
    ),
    (
        "copies without the right",
        |cuda| {
            let start = two_mappings(cuda);
            let mut byte = 0u8;
            let to_host = cu!(cuda, cuMemcpyDtoH_v2((&raw mut byte).cast(), start, 1));
            let to_device = cu!(cuda, cuMemcpyHtoD_v2(start, (&raw const byte).cast(), 1));
            codes([to_host, to_device, cu!(cuda, cuCtxSynchronize())])
        },
        "INVALID_VALUE INVALID_VALUE SUCCESS",
    ),
    (
        "a copy over two mappings",
        |cuda| {
            let start = two_mappings(cuda);
            cuda.allow(0, start, 2 * GRANULE, RW);
            let bytes = [1u8; 8];
            codes([cu!(cuda, cuMemcpyHtoD_v2(start + G - 4, bytes.as_ptr().cast(), 8))])
        },
        "SUCCESS",
    ),
    (
        "a copy over two mappings without a context",
        |cuda| {
            let start = two_mappings(cuda);
            cuda.allow(0, start, 2 * GRANULE, RW);
            let (stream, bytes, mut context) = (cuda.stream(), [1u8; 8], null());
            ok!(cuda, cuCtxPopCurrent_v2(&mut context));
            let copy = |at| cu!(cuda, cuMemcpyHtoDAsync_v2(at, bytes.as_ptr().cast(), 8, stream));
            let found = [
                copy(start),
                copy(start + G - 4),
                cu!(cuda, cuMemcpyDtoDAsync_v2(start, start + G - 4, 8, stream)),
                cu!(cuda, cuMemsetD8Async(start + G - 4, 1, 8, stream)),
            ];
            ok!(cuda, cuCtxPushCurrent_v2(context));
            codes(found)
        },
        "SUCCESS INVALID_VALUE INVALID_VALUE SUCCESS",
    ),
    (
        "pools of one's own",
        |cuda| {
            let stream = cuda.stream();
            let properties = CUmemPoolProps {
                allocType: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
                location: cuda.location(0),
                ..CUmemPoolProps::default()
            };
            let (mut pool, mut a, mut threshold, mut used) = (null(), 0, 7u64, 7u64);
            ok!(cuda, cuMemPoolCreate(&mut pool, &properties));
            let get = |which, out: *mut u64| cu!(cuda, cuMemPoolGetAttribute(pool, which, out.cast()));
            ok!(cuda, cuMemAllocFromPoolAsync(&mut a, 1 << 20, pool, stream));
            let codes_of = [
                get(CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &mut threshold),
                get(CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &mut used),
                cu!(cuda, cuMemFreeAsync(a, stream)),
                cu!(cuda, cuStreamSynchronize(stream)),
            ];
            let during = used;
            ok!(cuda, cuMemPoolTrimTo(pool, 0));
            get(CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &mut used);
            let destroyed = cu!(cuda, cuMemPoolDestroy(pool));
            format!("{} {threshold} {during} {used} {}", codes(codes_of), codes([destroyed]))
        },
        "SUCCESS SUCCESS SUCCESS SUCCESS 0 1048576 0 SUCCESS",
    ),
    (
        "a pool that is no longer there is not current",
        |cuda| {
            let properties = CUmemPoolProps {
                allocType: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
                location: cuda.location(0),
                ..CUmemPoolProps::default()
            };
            let (mut pool, mut default, mut during, mut after) = (null(), null(), null(), null());
            ok!(cuda, cuDeviceGetDefaultMemPool(&mut default, 0));
            ok!(cuda, cuMemPoolCreate(&mut pool, &properties));
            ok!(cuda, cuDeviceSetMemPool(0, pool));
            ok!(cuda, cuDeviceGetMemPool(&mut during, 0));
            ok!(cuda, cuMemPoolDestroy(pool));
            ok!(cuda, cuDeviceGetMemPool(&mut after, 0));
            let destroyed = cu!(cuda, cuMemPoolDestroy(default)) == CUresult::CUDA_SUCCESS;
            format!("{} {} {destroyed}", during == pool, after == default)
        },
        "true true false",
    ),
    (
        "rights on a pool",
        |cuda| {
            let (mut pool, mut access, mut at) =
                (null(), CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_NONE, cuda.location(0));
            ok!(cuda, cuDeviceGetDefaultMemPool(&mut pool, 0));
            let own = cu!(cuda, cuMemPoolGetAccess(&mut access, pool, &mut at));
            let none = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_NONE;
            let right = CUmemAccessDesc { location: cuda.location(0), flags: none };
            let taken = cu!(cuda, cuMemPoolSetAccess(pool, &right, 1));
            format!(
                "{} {} {}",
                codes([own]),
                access.0,
                if taken == CUresult::CUDA_SUCCESS { "taken" } else { "kept" }
            )
        },
        "SUCCESS 3 kept",
    ),
    (
        "an event that was not made for other processes",
        |cuda| {
            let mut handle = CUipcEventHandle { reserved: [0; 64] };
            let given = cu!(cuda, cuIpcGetEventHandle(&mut handle, cuda.event())) == CUresult::CUDA_SUCCESS;
            if given { "given" } else { "refused" }.to_owned()
        },
        "refused",
    ),
    (
        "a limit that is set",
        |cuda| {
            let mut value = 0;
            let set = cu!(cuda, cuCtxSetLimit(CUlimit::CU_LIMIT_STACK_SIZE, 2048));
            let get = cu!(cuda, cuCtxGetLimit(&mut value, CUlimit::CU_LIMIT_STACK_SIZE));
            format!("{} {value}", codes([set, get]))
        },
        "SUCCESS SUCCESS 2048",
    ),
];
