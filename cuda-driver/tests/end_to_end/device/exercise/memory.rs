//! Sections of the exercise (see the parent module): device memory, host memory, queries of both, and legacy IPC
//! handles.

use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

use cuda_driver::memory::{
    AddressRange, DeviceMemory, ImportedMemory, MemoryKind, PinnedFlags, PinnedMemory, RegisterFlags,
    RegisteredMemory,
};
use cuda_driver::{DevicePtr, Driver, Error, Result};

use super::attempt;

pub(super) fn plain(driver: &Driver) -> Result<()> {
    let context = driver.device(0)?.retain_primary()?;
    let memory = DeviceMemory::new(&context, 4096)?;
    assert!(!memory.ptr().is_null() && memory.ptr().is_aligned_to(256));
    assert_eq!((memory.ptr() + 16usize).offset_from(memory.ptr()), Some(16));
    assert_eq!((memory.bytes(), memory.context()), (4096, &context));
    memory.copy_from_host(8, &[1u32, 2, 3])?;
    let mut found = [0u32; 3];
    memory.copy_to_host(8, &mut found)?;
    assert_eq!(found, [1, 2, 3]);
    match DeviceMemory::new(&context, 1 << 50) {
        Err(error) if error.is_out_of_memory() => assert!(error.code().is_some()),
        other => other.map(|memory| panic!("{memory:?}"))?,
    }
    memory.free()
}

/// The addresses of memory that is never freed, stored here so that leak checkers do not report it.
static KEPT: Mutex<Vec<usize>> = Mutex::new(Vec::new());

pub(super) fn host(driver: &Driver) -> Result<()> {
    let context = driver.device(0)?.retain_primary()?;
    let mut pinned = PinnedMemory::new(&context, 4096, PinnedFlags::DEVICE_MAPPED | PinnedFlags::PORTABLE)?;
    assert_eq!((pinned.as_slice(), pinned.bytes()), (&[0; 4096][..], 4096));
    pinned.as_mut_slice()[0] = 1;
    assert!(!pinned.as_ptr().is_null() && !pinned.device_ptr()?.is_null());

    // The memory has a page of its own, because a page can be registered only once. The memory is never freed,
    // because the page stays pinned if a test makes unregistering fail. The next registration of the page would then
    // fail.
    let own = vec![0u8; 2 << 12].leak();
    KEPT.lock().unwrap_or_else(PoisonError::into_inner).push(own.as_ptr().addr());
    let offset = own.as_ptr().align_offset(4096);
    let page = &mut own[offset..][..4096];
    // SAFETY: the memory is never freed.
    let registered = unsafe { RegisteredMemory::new(&context, page, RegisterFlags::DEVICE_MAPPED) }?;
    assert_eq!(registered.bytes(), 4096);
    assert!(!registered.device_ptr()?.is_null());
    let start = NonNull::new(registered.as_ptr()).unwrap();
    // SAFETY: the memory is never freed.
    let again = unsafe { RegisteredMemory::from_raw(&context, start, 4096, RegisterFlags::empty()) };
    assert!(attempt(again)?.is_none(), "it is registered already");
    Ok(())
}

pub(super) fn queries(driver: &Driver) -> Result<()> {
    let context = driver.device(0)?.retain_primary()?;
    let memory = DeviceMemory::new(&context, 1 << 20)?;
    let pinned = PinnedMemory::new(&context, 4096, PinnedFlags::DEVICE_MAPPED)?;
    let inside = memory.ptr() + 4096usize;
    let whole = AddressRange { start: memory.ptr(), bytes: 1 << 20 };
    assert_eq!(context.address_range(inside)?, whole);
    let info = driver.pointer_info(inside)?.expect("the driver knows its memory");
    assert_eq!((info.kind, info.device), (MemoryKind::Device, Some(0)));
    let details = driver.pointer_details(inside)?.expect("the driver knows its memory");
    assert_eq!((details.info, details.range), (info, whole));
    assert!(details.is_mapped && details.is_legacy_ipc_capable && !details.is_managed);
    assert!(details.host_address.is_none() && details.handle_types.is_empty());
    assert_ne!(details.buffer_id, 0);

    let details = driver.pointer_details(pinned.device_ptr()?)?.expect("the driver knows pinned memory");
    assert_eq!(details.info.kind, MemoryKind::Host);
    assert_eq!(details.host_address, Some(pinned.as_ptr().addr() as u64));
    let local = 0u8;
    let unknown = DevicePtr((&raw const local).addr() as u64);
    assert_eq!((driver.pointer_info(unknown)?, driver.pointer_details(unknown)?), (None, None));
    Ok(())
}

pub(super) fn legacy_handles(driver: &Driver) -> Result<()> {
    let context = driver.device(0)?.retain_primary()?;
    let memory = DeviceMemory::new(&context, 2 << 20)?;
    let handle = memory.export_ipc()?;
    // A process cannot open its own allocation. `processes.rs` opens one in another process.
    match ImportedMemory::open(&context, handle) {
        Err(error @ Error::Driver { .. }) => attempt::<()>(Err(error)).map(drop),
        other => other.map(|memory| panic!("{memory:?} is this process's own")),
    }
}
