//! Drivers, devices and contexts; the current context of a thread; functions that a driver lacks.

use std::panic::AssertUnwindSafe;

use cuda_driver::memory::DeviceMemory;
use cuda_driver::sys::{Api, CUdevice_attribute, CUresult, Item, Table};
use cuda_driver::{DevicePtr, Driver, Error, Event, EventFlags, Stream, StreamFlags};

use super::{CAPACITY, context, driver, failed, on_devices, start, turn};

#[test]
fn a_device_says_what_it_is() {
    on_devices(2, |_, driver| {
        assert_eq!(driver.device_count().unwrap(), 2);
        let devices = driver.devices().unwrap();
        assert_eq!(devices.iter().map(|device| device.ordinal()).collect::<Vec<_>>(), [0, 1]);
        assert_ne!(devices[0].uuid().unwrap(), devices[1].uuid().unwrap());
        assert!(!devices[0].name().unwrap().is_empty());
        assert_eq!(devices[0].total_memory().unwrap() as u64, CAPACITY);
        let unified = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING;
        assert_eq!(devices[0].attribute(unified).unwrap(), 1);
        assert!(devices[0].can_access_peer(&devices[1]).unwrap());
        assert!(driver.version().major >= 11);
    });
}

#[test]
fn an_ordinal_past_the_last_device_is_an_error_with_both_numbers() {
    on_devices(2, |_, driver| match driver.device(2) {
        Err(error @ Error::NoSuchDevice { ordinal: 2, count: 2 }) => {
            let text = error.to_string();
            assert!(text.contains("with gpu-sim, World::builder().devices(n) or GPU_SIM_DEVICES"), "{text}");
        }
        other => panic!("{other:?}"),
    });
}

#[test]
fn entering_restores_what_was_current() {
    on_devices(2, |world, driver| {
        let (first, second) = (context(driver, 0), context(driver, 1));
        let current = || {
            let mut raw = std::ptr::null_mut();
            // SAFETY: writes one handle, to a local.
            assert_eq!(unsafe { driver.api().cuCtxGetCurrent().unwrap()(&mut raw) }, CUresult::CUDA_SUCCESS);
            raw
        };
        assert!(current().is_null());
        let in_second = || {
            assert_eq!(current(), second.raw());
            let pushes = world.calls("cuCtxPushCurrent_v2");
            second.with_current(|| assert_eq!(current(), second.raw())).unwrap();
            assert_eq!(world.calls("cuCtxPushCurrent_v2"), pushes, "it is current already");
            assert_eq!(current(), second.raw());
        };
        let in_first = || {
            assert_eq!(current(), first.raw());
            second.with_current(in_second).unwrap();
            assert_eq!(current(), first.raw());
            drop(DeviceMemory::new(&second, 4096).unwrap());
            assert_eq!(current(), first.raw(), "methods leave the current context as it was");
            let panics = || second.with_current(|| panic!("on purpose"));
            assert!(std::panic::catch_unwind(AssertUnwindSafe(panics)).is_err());
            assert_eq!(current(), first.raw(), "a panic restores it too");
        };
        first.with_current(in_first).unwrap();
        assert!(current().is_null());
    });
}

#[test]
fn another_librarys_current_context_is_neither_used_nor_lost() {
    on_devices(2, |_, driver| {
        let (first, second) = (context(driver, 0), context(driver, 1));
        // SAFETY: both contexts are alive throughout.
        unsafe { assert_eq!(driver.api().cuCtxSetCurrent().unwrap()(second.raw()), CUresult::CUDA_SUCCESS) };
        let memory = DeviceMemory::new(&first, 4096).unwrap();
        assert_eq!(driver.pointer_info(memory.ptr()).unwrap().unwrap().device, Some(0));
        drop(memory);
        let mut raw = std::ptr::null_mut();
        // SAFETY: writes one handle, to a local. Then makes no context current on this thread.
        unsafe {
            assert_eq!(driver.api().cuCtxGetCurrent().unwrap()(&mut raw), CUresult::CUDA_SUCCESS);
            assert_eq!(raw, second.raw());
            assert_eq!(driver.api().cuCtxSetCurrent().unwrap()(std::ptr::null_mut()), CUresult::CUDA_SUCCESS);
        }
    });
}

#[test]
fn work_of_a_stream_needs_no_current_context() {
    on_devices(1, |_, driver| {
        let context = context(driver, 0);
        let stream = Stream::new(&context, StreamFlags::NON_BLOCKING).unwrap();
        let event = Event::new(&context, EventFlags::DISABLE_TIMING).unwrap();
        let memory = DeviceMemory::new(&context, 4096).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // SAFETY: the memory outlives the stream's work, which is waited for.
                unsafe { stream.fill_u8(memory.ptr(), 3, 4096).unwrap() };
                stream.record(&event).unwrap();
                stream.wait(&event).unwrap();
                event.synchronize().unwrap();
                assert!(event.query().unwrap());
                stream.synchronize().unwrap();
            });
        });
        let mut bytes = [0u8; 4096];
        memory.copy_to_host(0, &mut bytes).unwrap();
        assert_eq!(bytes, [3; 4096]);
    });
}

#[test]
fn a_context_lives_as_long_as_anything_made_from_it() {
    on_devices(1, |world, driver| {
        let event = {
            let context = context(driver, 0);
            Event::new(&context, EventFlags::empty()).unwrap()
        };
        assert_eq!(world.calls("cuDevicePrimaryCtxRelease_v2"), 0);
        drop(event);
        assert_eq!(world.calls("cuEventDestroy_v2"), 1);
        assert_eq!(world.calls("cuDevicePrimaryCtxRelease_v2"), 1);
    });
}

#[test]
fn peer_access_is_given_and_taken_once_however_often_it_is_asked_for() {
    on_devices(2, |_, driver| {
        let (first, second) = (context(driver, 0), context(driver, 1));
        for _ in 0..2 {
            first.enable_peer_access(&second).unwrap();
        }
        for _ in 0..2 {
            first.disable_peer_access(&second).unwrap();
        }
    });
}

#[test]
fn a_function_that_the_driver_lacks_is_named() {
    let _turn = turn();
    let world = start(1);
    let mut table = world.cuda();
    table.cuMemCreate = None;
    table.cuStreamWriteValue32_v2 = None;
    let driver = driver(table);
    {
        let context = context(&driver, 0);
        let bytes = 2 << 20;
        let missing =
            cuda_driver::vmm::PhysicalMemory::create(&context, bytes, Default::default()).unwrap_err();
        match missing {
            Error::Missing(missing) => assert_eq!(missing.item, Item::Function("cuMemCreate")),
            other => panic!("{other}"),
        }
        let stream = Stream::new(&context, StreamFlags::NON_BLOCKING).unwrap();
        // SAFETY: nothing is enqueued.
        let missing = unsafe { stream.write_value32(DevicePtr::NULL, 0) }.unwrap_err();
        assert!(missing.to_string().contains("STREAM_MEMORY_OPERATIONS"), "{missing}");
    }
    drop(driver);
    world.finish().unwrap();
}

#[test]
fn a_code_without_a_name_is_told_by_its_number() {
    unsafe extern "C" fn init(_: u32) -> CUresult {
        CUresult(4242)
    }
    unsafe extern "C" fn version(code: *mut i32) -> CUresult {
        // SAFETY: the caller gives room for one integer.
        unsafe { *code = 12_040 };
        CUresult::CUDA_SUCCESS
    }
    let mut table = Table::default();
    table.cuInit = Some(init);
    table.cuDriverGetVersion = Some(version);
    // SAFETY: both functions keep the contracts of their C declarations.
    let error = Driver::new(unsafe { Api::from_parts(table) }.unwrap()).unwrap_err();
    assert_eq!(failed(&error), ("cuInit", 4242));
    assert!(error.to_string().contains("4242"), "{error}");
}
