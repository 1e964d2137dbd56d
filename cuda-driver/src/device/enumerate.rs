//! Finding devices of a driver, by ordinal, PCI bus id or UUID.

use std::ffi::{CString, c_int};

use cuda_driver_sys::CUresult;

use super::Device;
use crate::call::{call, check, code};
use crate::{Driver, Error, Result};

impl Driver {
    /// Returns the number of devices that the process can see.
    ///
    /// # Errors
    /// [`Error::Driver`] from `cuDeviceGetCount`.
    #[doc(alias = "cuDeviceGetCount")]
    pub fn device_count(&self) -> Result<u32> {
        let mut count: c_int = 0;
        // SAFETY: writes one integer, to a local that outlives the call.
        unsafe { call!(self.api(), cuDeviceGetCount(&mut count)) }?;
        Ok(u32::try_from(count).unwrap_or(0))
    }

    /// Returns the device with the given ordinal. Ordinals count from 0.
    ///
    /// # Errors
    /// [`Error::NoSuchDevice`] if there is no device with this ordinal; [`Error::Driver`] from `cuDeviceGetCount` or
    /// `cuDeviceGet`.
    #[doc(alias = "cuDeviceGet")]
    pub fn device(&self, ordinal: u32) -> Result<Device> {
        let count = self.device_count()?;
        let no_such_device = Error::NoSuchDevice { ordinal, count };
        if ordinal >= count {
            return Err(no_such_device);
        }
        let ordinal_c = c_int::try_from(ordinal).map_err(|_| no_such_device)?;
        let mut raw = 0;
        // SAFETY: writes one device handle, to a local that outlives the call.
        unsafe { call!(self.api(), cuDeviceGet(&mut raw, ordinal_c)) }?;
        Ok(Device { driver: self.clone(), ordinal, raw })
    }

    /// Returns all devices that the process can see, by ascending ordinal.
    ///
    /// # Errors
    /// As [`Driver::device_count`] and [`Driver::device`].
    pub fn devices(&self) -> Result<Vec<Device>> {
        (0..self.device_count()?).map(|ordinal| self.device(ordinal)).collect()
    }

    /// Returns the device with the given PCI bus id, such as `0000:3b:00.0`. The domain or the function may be left
    /// out: `3b:00.0`, `0000:3b:00`.
    ///
    /// # Errors
    /// [`Error::NoDeviceNamed`] if the process sees no such device, or if `id` is not a PCI bus id; [`Error::Driver`]
    /// from `cuDeviceGetByPCIBusId`; otherwise as [`Driver::devices`].
    #[doc(alias = "cuDeviceGetByPCIBusId")]
    pub fn device_by_pci_bus_id(&self, id: &str) -> Result<Device> {
        let unknown = || Error::NoDeviceNamed { what: "PCI bus id", name: id.to_owned() };
        let text = CString::new(id).map_err(|_| unknown())?;
        let mut raw = 0;
        // SAFETY: reads a C string and writes one device handle; both outlive the call.
        match unsafe { code!(self.api(), cuDeviceGetByPCIBusId(&mut raw, text.as_ptr())) }? {
            CUresult::CUDA_ERROR_INVALID_DEVICE | CUresult::CUDA_ERROR_INVALID_VALUE => Err(unknown()),
            code => {
                check(self.api(), "cuDeviceGetByPCIBusId", code)?;
                self.devices()?.into_iter().find(|device| device.raw() == raw).ok_or_else(unknown)
            }
        }
    }

    /// Returns the device with this [UUID](Device::uuid).
    ///
    /// # Errors
    /// [`Error::NoDeviceNamed`] if the process sees no such device; otherwise as [`Driver::devices`] and
    /// [`Device::uuid`].
    pub fn device_by_uuid(&self, uuid: [u8; 16]) -> Result<Device> {
        for device in self.devices()? {
            if device.uuid()? == uuid {
                return Ok(device);
            }
        }
        Err(Error::NoDeviceNamed { what: "UUID", name: uuid_text(&uuid) })
    }
}

/// Formats a [UUID](Device::uuid) as `nvidia-smi -L` does, without the prefix `GPU-` or `MIG-`.
///
/// ```
/// let uuid = *b"gpu-sim device 0";
/// assert_eq!(cuda_driver::uuid_text(&uuid), "6770752d-7369-6d20-6465-766963652030");
/// ```
#[must_use]
pub fn uuid_text(uuid: &[u8; 16]) -> String {
    let hex = uuid.map(|byte| format!("{byte:02x}")).concat();
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}
