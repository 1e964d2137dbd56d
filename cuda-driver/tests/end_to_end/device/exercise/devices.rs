//! Devices, contexts, peers.

use cuda_driver::memory::DeviceMemory;
use cuda_driver::sys::{CUdevice_attribute, CUlimit};
use cuda_driver::{Capabilities, Driver, Error, Result, uuid_text};

use super::{attempt, note};

pub(super) fn devices(driver: &Driver) -> Result<()> {
    assert_eq!(driver.version(), driver.api().version());
    let devices = driver.devices()?;
    assert_eq!(devices.len(), driver.device_count()? as usize);
    for (ordinal, device) in devices.iter().enumerate() {
        assert_eq!(device.ordinal() as usize, ordinal);
        assert_eq!(device.driver().version(), driver.version());
        assert_eq!(device.raw(), driver.device(device.ordinal())?.raw());
        assert!(!device.name()?.is_empty());
        assert!(device.total_memory()? > 0);

        let id = device.pci_bus_id()?;
        assert_eq!(id.matches([':', '.']).count(), 3, "domain, bus, device, function: {id}");
        assert_eq!(driver.device_by_pci_bus_id(&id)?, *device);
        assert_eq!(driver.device_by_uuid(device.uuid()?)?, *device);
        assert_eq!(uuid_text(&device.uuid()?).len(), 36);

        assert!(device.compute_capability()? >= (3, 0));
        assert!(device.multiprocessors()? > 0);
        assert_eq!(
            i64::from(device.max_threads_per_block()?),
            device.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?.into()
        );
        let found = device.capabilities()?;
        assert!(found.contains(Capabilities::UNIFIED_ADDRESSING | Capabilities::VIRTUAL_MEMORY), "{found:?}");
        assert!(device.can(found)?);
        device.pool_handle_types()?;
    }
    for strange in ["", "nowhere", "ffff:ff:1f.7", "0000:\0"] {
        match driver.device_by_pci_bus_id(strange) {
            Err(Error::NoDeviceNamed { .. }) => {}
            other => other.map(|device| panic!("{device:?} is at {strange:?}"))?,
        }
    }
    match driver.device_by_uuid([0; 16]) {
        Err(Error::NoDeviceNamed { .. }) => Ok(()),
        other => other.map(|device| panic!("{device:?} has no name")),
    }
}

pub(super) fn contexts(driver: &Driver) -> Result<()> {
    let device = driver.device(0)?;
    let state = device.primary_state()?;
    // Some drivers refuse any change of a context that is alive.
    attempt(device.set_primary_flags(state.flags))?;
    let context = device.retain_primary()?;
    assert!(device.primary_state()?.active);
    assert_eq!(context.device(), &device);
    assert_eq!(context.driver().version(), driver.version());
    assert!(!context.raw().is_null());
    assert_eq!(context.id()?, context.clone().id()?);
    context.flags()?;
    let stack = context.limit(CUlimit::CU_LIMIT_STACK_SIZE)?;
    context.set_limit(CUlimit::CU_LIMIT_STACK_SIZE, stack)?;
    assert_eq!(context.limit(CUlimit::CU_LIMIT_STACK_SIZE)?, stack);
    let (free, total) = context.memory_info()?;
    assert!(free <= total);
    let nested = || context.with_current(|| 7);
    assert_eq!(context.with_current(nested)??, 7);
    context.synchronize()
}

pub(super) fn peers(driver: &Driver) -> Result<()> {
    let context = driver.device(0)?.retain_primary()?;
    if driver.device_count()? < 2 {
        note("skipped: peers need a second device");
        return Ok(());
    }
    let peer = driver.device(1)?.retain_primary()?;
    let can = context.device().can_access_peer(peer.device())?;
    let link = context.device().link_to(peer.device())?;
    assert_eq!(link.access, can);
    let [here, there] = [DeviceMemory::new(&context, 4096)?, DeviceMemory::new(&peer, 4096)?];
    here.copy_from_host(0, &[7u8; 16])?;
    // SAFETY: both memories outlive the copy, which is waited for.
    unsafe { context.copy_to_peer((there.ptr(), &peer), here.ptr(), 16)? };
    context.synchronize()?;
    let mut found = [0u8; 16];
    there.copy_to_host(0, &mut found)?;
    assert_eq!(found, [7; 16]);
    if can {
        context.enable_peer_access(&peer)?;
        context.enable_peer_access(&peer)?;
        context.disable_peer_access(&peer)?;
        context.disable_peer_access(&peer)?;
    }
    Ok(())
}
