//! The devices of a driver.

use std::ffi::{CString, c_int};

use cuda_driver_sys::CUresult;

use super::Device;
use crate::call::{call, check, code};
use crate::{Driver, Error, Result};

impl Driver {
    /// The number of devices that the process can see.
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

    /// The device of an ordinal, counted from 0.
    ///
    /// # Errors
    /// [`Error::NoSuchDevice`] past the last one; [`Error::Driver`] from `cuDeviceGet`.
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

    /// Every device of the process, in order.
    ///
    /// # Errors
    /// As [`Driver::device_count`] and [`Driver::device`].
    pub fn devices(&self) -> Result<Vec<Device>> {
        (0..self.device_count()?).map(|ordinal| self.device(ordinal)).collect()
    }

    /// The device at a place on the PCI bus, `0000:3b:00.0` or shorter, with the domain or the function left out.
    ///
    /// # Errors
    /// [`Error::NoDeviceNamed`] if the process sees none there; [`Error::Driver`] from `cuDeviceGetByPCIBusId`.
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

    /// The device with these 16 bytes for a [name](Device::uuid).
    ///
    /// # Errors
    /// [`Error::NoDeviceNamed`] if the process sees none; else as [`Driver::devices`] and [`Device::uuid`].
    pub fn device_by_uuid(&self, uuid: [u8; 16]) -> Result<Device> {
        for device in self.devices()? {
            if device.uuid()? == uuid {
                return Ok(device);
            }
        }
        let name = uuid.map(|byte| format!("{byte:02x}")).concat();
        Err(Error::NoDeviceNamed { what: "UUID", name })
    }
}
