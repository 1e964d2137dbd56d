//! Physical memory, reservations, mappings, handles.

use std::os::fd::AsFd as _;

use cuda_driver::vmm::{
    Access, FabricHandle, Granularity, HandleTypes, PageTable, PhysicalMemory, Reservation,
};
use cuda_driver::{Context, DevicePtr, Driver, Error, Result};

use super::{attempt, note};

fn physical(driver: &Driver, handle_types: HandleTypes) -> Result<(Context, PhysicalMemory, usize)> {
    let context = driver.device(0)?.retain_primary()?;
    let granularity = Granularity::of(context.device(), handle_types)?;
    let bytes = granularity.round_up(1);
    assert!(bytes > 0 && bytes.is_multiple_of(granularity.minimum));
    let memory = PhysicalMemory::create(&context, bytes, handle_types)?;
    Ok((context, memory, bytes))
}

/// Writes one word, and waits for the copy even if the call fails, because the caller then unmaps the memory.
///
/// # Safety
/// As [`Context::copy_from_host`].
unsafe fn write(context: &Context, to: DevicePtr, word: u64) -> Result<()> {
    // SAFETY: the caller's promises are the same.
    let written = unsafe { context.copy_from_host(to, &[word]) };
    if written.is_err() { context.synchronize().and(written) } else { written }
}

pub(super) fn mappings(driver: &Driver) -> Result<()> {
    let (context, memory, bytes) = physical(driver, HandleTypes::empty())?;
    let device = context.device();
    assert_eq!((memory.bytes(), memory.context()), (bytes, &context));
    assert_ne!(memory.raw(), 0);
    let reservation = Reservation::new(driver, 2 * bytes, 0)?;
    assert_eq!(reservation.bytes(), 2 * bytes);
    let first = reservation.map(0, &memory, 0, bytes)?;
    assert_eq!((first.ptr(), first.bytes()), (reservation.ptr(), bytes));
    assert_eq!(first.reservation().ptr(), reservation.ptr());
    assert_eq!(first.memory().raw(), memory.raw());
    let retained = PhysicalMemory::retain(&context, first.ptr(), bytes)?;
    assert_eq!(retained.properties()?, memory.properties()?);
    let second = reservation.map(bytes, &retained, 0, bytes)?;

    assert_eq!(reservation.access(0, device)?, Access::None);
    reservation.set_access(0, 2 * bytes, &[(device, Access::ReadWrite)])?;
    assert_eq!(reservation.access(bytes, device)?, Access::ReadWrite);
    // SAFETY: both addresses are mapped, and nobody else uses the memory.
    unsafe {
        write(&context, first.ptr() + 8usize, 5)?;
        let mut found = [0u64];
        context.copy_to_host(&mut found, second.ptr() + 8usize)?;
        assert_eq!(found, [5], "the same pages");
    }
    // Devices without read-only mappings refuse the call.
    if attempt(second.set_access(&[(device, Access::Read)]))?.is_some() {
        assert_eq!(reservation.access(bytes, device)?, Access::Read);
    }
    drop(second);
    first.unmap()?;
    assert!(attempt(reservation.access(0, device))?.is_none(), "nothing is mapped");
    assert!(attempt(PhysicalMemory::retain(&context, reservation.ptr(), bytes))?.is_none());
    Ok(())
}

/// Maps one page at three addresses of a range far larger than any device's memory, and another page between them.
pub(super) fn page_tables(driver: &Driver) -> Result<()> {
    let (context, page, bytes) = physical(driver, HandleTypes::empty())?;
    let other = PhysicalMemory::create(&context, 2 * bytes, HandleTypes::empty())?;
    let mut table = PageTable::new(Reservation::new(driver, 256 << 30, bytes)?);
    for (at, memory) in [(0, &page), (1, &page), (2, &other), (4, &page)] {
        assert_eq!(table.map(at * bytes, memory)?, table.reservation().ptr() + at * bytes);
    }
    table.set_access(0, 5 * bytes, &[(context.device(), Access::ReadWrite)])?;
    let start = table.reservation().ptr();
    // SAFETY: the addresses are mapped, and nobody else uses the memory.
    unsafe {
        write(&context, start + 8usize, 5)?;
        write(&context, start + (2 * bytes + 8), 6)?;
        let mut found = [0u64];
        context.copy_to_host(&mut found, start + (4 * bytes + 8))?;
        assert_eq!(found, [5], "the same page");
    }
    assert_eq!(
        table.page_at(3 * bytes).map(|(at, memory)| (at, memory.raw())),
        Some((2 * bytes, other.raw()))
    );
    let refused = table.unmap(bytes, 2 * bytes);
    assert!(matches!(refused, Err(Error::NotPages { up_to, .. }) if up_to == 4 * bytes), "{refused:?}");
    table.unmap(bytes, 3 * bytes)?;
    assert_eq!(table.pages().map(|(at, _)| at / bytes).collect::<Vec<_>>(), [0, 4]);
    Ok(())
}

pub(super) fn file_descriptors(driver: &Driver) -> Result<()> {
    let (context, memory, bytes) = physical(driver, HandleTypes::POSIX_FD)?;
    assert_eq!(memory.handle_types(), HandleTypes::POSIX_FD);
    let descriptor = memory.export_fd()?;
    let imported = PhysicalMemory::import_fd(&context, descriptor.as_fd(), bytes)?;
    drop(descriptor);
    assert_eq!(imported.device_ordinal()?, 0);
    let mapping = Reservation::new(driver, bytes, 0)?.map(0, &imported, 0, bytes)?;
    mapping.set_access(&[(context.device(), Access::ReadWrite)])?;
    mapping.unmap()
}

/// Checks that memory can be exported and imported as a fabric handle, or that creating it returns
/// [`Error::NoFabric`].
pub(super) fn fabric_handles(driver: &Driver) -> Result<()> {
    let context = driver.device(0)?.retain_primary()?;
    let granularity = Granularity::of(context.device(), HandleTypes::empty())?;
    let bytes = granularity.round_up(1);
    let granted = HandleTypes::granted(&context)?;
    assert!(granted.contains(HandleTypes::POSIX_FD));
    match PhysicalMemory::create(&context, bytes, HandleTypes::FABRIC) {
        Err(error @ Error::NoFabric { .. }) => {
            note(format!("skipped: fabric handles: {error}"));
            assert!(error.to_string().contains("IMEX"), "{error}");
            assert_eq!(granted, HandleTypes::POSIX_FD);
        }
        Err(other) => return Err(other),
        Ok(memory) => {
            let opened = PhysicalMemory::import_fabric(&context, &memory.export_fabric()?, bytes)?;
            assert_eq!(opened.properties()?.device, 0);
        }
    }
    let nobody = PhysicalMemory::import_fabric(&context, &FabricHandle([0; 64]), bytes);
    assert!(attempt(nobody)?.is_none(), "nobody has that name");
    let private = PhysicalMemory::create(&context, bytes, HandleTypes::empty())?;
    for refused in [private.export_fabric().map(drop), private.export_fd().map(drop)] {
        match refused {
            Err(Error::NotExportable { .. }) => {}
            other => other.map(|()| panic!("it was not made for export"))?,
        }
    }
    Ok(())
}
