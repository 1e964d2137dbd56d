//! In which ways the driver lets this process export memory.

use std::sync::PoisonError;

use super::{Granularity, HandleTypes, PhysicalMemory};
use crate::{Capabilities, Context, Result};

impl HandleTypes {
    /// How memory of the context's device can be exported: as a file descriptor, and as a fabric handle too where the
    /// driver grants it to this process.
    ///
    /// The device says whether it could; whether this process may, only an attempt tells, since it takes an IMEX channel
    /// that the process can open ([`Error::NoFabric`](crate::Error::NoFabric)). A device that could is tried once for a
    /// [`Driver`](crate::Driver) and its clones, with the least memory that there is; nothing is left of it. Whatever
    /// the driver has against it, there is no fabric handle then.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) if the device has no memory left to try it with. Nothing is known then,
    /// and the next call tries again.
    pub fn granted(context: &Context) -> Result<Self> {
        let (device, known) = (context.device(), &context.driver().granted);
        let lock = || known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(granted) = lock().get(&device.ordinal()) {
            return Ok(*granted);
        }
        // Not under the lock: a call of the driver may wait for other threads.
        let granted = match fabric_goes_round(context) {
            Ok(true) => Self::POSIX_FD | Self::FABRIC,
            Err(error) if error.is_out_of_memory() => return Err(error),
            Ok(false) | Err(_) => Self::POSIX_FD,
        };
        // Of threads that try it at once, all go by what the first has found.
        Ok(*lock().entry(device.ordinal()).or_insert(granted))
    }
}

/// Whether memory can be made for both ways, exported as a fabric handle, and opened by it.
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
