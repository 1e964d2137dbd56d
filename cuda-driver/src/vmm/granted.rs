//! The ways in which the driver lets this process export memory.

use std::sync::PoisonError;

use super::{Granularity, HandleTypes, PhysicalMemory};
use crate::{Capabilities, Context, Result};

impl HandleTypes {
    /// Returns the handle types for memory of the context's device: file descriptors, and fabric handles too
    /// if the driver grants them to this process.
    ///
    /// The device reports whether it supports fabric handles, but only an attempt shows whether this process may use
    /// them: the process needs an IMEX channel that it can open ([`Error::NoFabric`](crate::Error::NoFabric)). On a
    /// device with support, the first call allocates memory of the
    /// [recommended granularity](Granularity::recommended), exports and imports it, and releases it again. The
    /// [`Driver`](crate::Driver) and its clones keep the result. If the driver refuses any of these steps, the result
    /// has no fabric handles.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) if the device or the host has no memory left for the attempt. The
    /// result is then unknown, and the next call tries again.
    pub fn granted(context: &Context) -> Result<Self> {
        let (device, known) = (context.device(), &context.driver().granted);
        let lock = || known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(granted) = lock().get(&device.ordinal()) {
            return Ok(*granted);
        }
        // The lock is not held here, because a call to the driver may wait for other threads.
        let granted = match fabric_goes_round(context) {
            Ok(true) => Self::POSIX_FD | Self::FABRIC,
            Err(error) if error.is_out_of_memory() => return Err(error),
            Ok(false) | Err(_) => Self::POSIX_FD,
        };
        // If several threads try at once, all use the result that was stored first.
        Ok(*lock().entry(device.ordinal()).or_insert(granted))
    }
}

/// Returns true if memory can be allocated for both handle types, exported as a fabric handle, and imported again.
/// Returns false if the device does not support fabric handles, and an error if one of the steps fails.
fn fabric_goes_round(context: &Context) -> Result<bool> {
    let (device, both) = (context.device(), HandleTypes::POSIX_FD | HandleTypes::FABRIC);
    if !device.can(Capabilities::FABRIC_HANDLES)? {
        return Ok(false);
    }
    let bytes = Granularity::of(device, both)?.round_up(1);
    let memory = PhysicalMemory::create(context, bytes, both)?;
    PhysicalMemory::import_fabric(context, &memory.export_fabric()?, bytes)?;
    Ok(true)
}
