//! Device, pinned and queried memory.

use std::{
    ffi::{c_uint, c_void},
    thread,
    time::Duration,
};

use cuda_driver::memory::{AddressRange, DeviceMemory, MemoryKind, PinnedFlags, PinnedMemory};
use cuda_driver::sys::{CUdeviceptr, CUmemorytype, CUpointer_attribute, CUresult};
use cuda_driver::{DevicePtr, Error, Stream};
use proptest::prelude::*;

use super::{CAPACITY, context, driver, failed, on_devices, on_stream};

#[test]
fn free_memory_goes_down_and_up_again() {
    on_stream(|_, context, _| {
        let (before, total) = context.memory_info().unwrap();
        assert_eq!(total as u64, CAPACITY);
        let memory = DeviceMemory::new(context, 64 << 20).unwrap();
        let (during, _) = context.memory_info().unwrap();
        assert!(during + (64 << 20) <= before);
        memory.free().unwrap();
        assert_eq!(context.memory_info().unwrap().0, before);
    });
}

/// A driver may return from a copy of pageable memory before the device memory is written.
#[test]
fn a_copy_to_memory_is_done_when_the_call_returns() {
    on_stream(|_, context, stream| {
        let memory = DeviceMemory::new(context, 4).unwrap();
        let legacy = Stream::legacy_default(context);
        legacy.launch_host_fn(|| thread::sleep(Duration::from_millis(50))).unwrap();
        memory.copy_from_host(0, &[1u32]).unwrap();
        // SAFETY: the memory outlives the work, for which the test waits below.
        unsafe { stream.fill_u32(memory.ptr(), 2, 1) }.unwrap();
        stream.synchronize().unwrap();
        legacy.synchronize().unwrap();
        let mut found = [0u32];
        memory.copy_to_host(0, &mut found).unwrap();
        assert_eq!(found, [2], "the copy came after later work");
    });
}

#[test]
fn too_much_is_out_of_memory() {
    on_stream(|_, context, _| {
        let error = DeviceMemory::new(context, 2 * CAPACITY as usize).unwrap_err();
        assert!(error.is_out_of_memory(), "{error}");
        assert_eq!(failed(&error), ("cuMemAlloc_v2", 2));
        assert!(error.to_string().contains("CUDA_ERROR_OUT_OF_MEMORY"), "{error}");
    });
}

/// A `cuPointerGetAttribute` that describes host memory that belongs to no device.
unsafe extern "C" fn of_no_device(
    out: *mut c_void,
    attribute: CUpointer_attribute,
    _: CUdeviceptr,
) -> CUresult {
    let answer = match attribute {
        CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL => -2,
        _ => CUmemorytype::CU_MEMORYTYPE_HOST.0 as i32,
    };
    // SAFETY: the caller's pointer, to an integer.
    unsafe { out.cast::<i32>().write(answer) };
    CUresult::CUDA_SUCCESS
}

#[test]
fn memory_of_no_device_is_not_of_the_first() {
    on_devices(1, |world, _| {
        let mut table = world.cuda();
        table.cuPointerGetAttribute = Some(of_no_device);
        let info = driver(table).pointer_info(DevicePtr(1 << 30)).unwrap().unwrap();
        assert_eq!((info.kind, info.device), (MemoryKind::Host, None));
    });
}

#[test]
fn the_driver_knows_its_own_memory() {
    on_stream(|_, context, _| {
        let driver = context.driver();
        let memory = DeviceMemory::new(context, 4 << 20).unwrap();
        let inside = memory.ptr() + 4096usize;
        let info = driver.pointer_info(inside).unwrap().unwrap();
        assert_eq!((info.kind, info.device), (MemoryKind::Device, Some(0)));
        let range = context.address_range(inside).unwrap();
        assert_eq!(range, AddressRange { start: memory.ptr(), bytes: memory.bytes() });
        let pinned = PinnedMemory::new(context, 4096, PinnedFlags::DEVICE_MAPPED).unwrap();
        let mapped = pinned.device_ptr().unwrap();
        assert_eq!(driver.pointer_info(mapped).unwrap().unwrap().kind, MemoryKind::Host);
        let plain = 0u8;
        assert_eq!(driver.pointer_info(DevicePtr((&raw const plain).addr() as u64)).unwrap(), None);
    });
}

#[test]
fn addresses_are_numbers() {
    let base = DevicePtr(0x1000);
    assert_eq!((base + 16u64).offset_from(base), Some(16));
    assert_eq!(base.offset_from(base + 1usize), None);
    assert!(base.is_aligned_to(0x1000) && !(base + 2u64).is_aligned_to(4));
    assert_eq!(format!("{base:?} {base} {base:x}"), "0x1000 0x1000 1000");
}

#[test]
fn copies_stay_in_bounds_and_keep_every_byte() {
    on_stream(|_, context, _| {
        const BYTES: usize = 1024;
        let memory = DeviceMemory::new(context, BYTES).unwrap();
        memory.copy_from_host(0, &[0u8; BYTES]).unwrap();
        let model = std::cell::RefCell::new([0u8; BYTES]);
        proptest!(ProptestConfig::with_cases(256), |(offset in 0..2 * BYTES, len in 0..2 * BYTES, value: u8)| {
            let written = memory.copy_from_host(offset, &vec![value; len]);
            let mut read = vec![0u8; len];
            let found = memory.copy_to_host(offset, &mut read);
            if offset + len <= BYTES {
                written.unwrap();
                found.unwrap();
                model.borrow_mut()[offset..offset + len].fill(value);
                let mut all = [0u8; BYTES];
                memory.copy_to_host(0, &mut all).unwrap();
                prop_assert_eq!(all, *model.borrow());
            } else {
                for outcome in [written, found] {
                    match outcome {
                        Err(Error::OutOfBounds { offset: o, bytes, size, .. }) => {
                            prop_assert_eq!((o, bytes, size), (offset, len, BYTES));
                        }
                        other => prop_assert!(false, "{:?}", other),
                    }
                }
            }
        });
    });
}

/// An allocation that reports success and returns a null pointer.
unsafe extern "C" fn allocate_nothing(_: *mut *mut c_void, _: usize, _: c_uint) -> CUresult {
    CUresult::CUDA_SUCCESS
}

#[test]
fn pinned_memory_without_an_address_is_out_of_memory() {
    on_devices(1, |world, _| {
        let mut table = world.cuda();
        table.cuMemHostAlloc = Some(allocate_nothing);
        let error = context(&driver(table), 0).alloc_pinned::<u64>(4).unwrap_err();
        assert_eq!(error.code(), Some(CUresult::CUDA_ERROR_OUT_OF_MEMORY));
    });
}
