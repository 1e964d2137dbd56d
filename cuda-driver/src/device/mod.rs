//! The GPUs that the process can see, and their properties.

mod capabilities;
mod enumerate;
mod peer;
mod primary;

use std::ffi::{CStr, c_int};
use std::fmt;

use cuda_driver_sys::{Api, CUdevice, CUdevice_attribute, CUuuid};

pub use self::capabilities::Capabilities;
pub use self::enumerate::uuid_text;
pub use self::peer::PeerLink;
pub use self::primary::PrimaryState;
use crate::call::call;
use crate::{Driver, Error, Result};

/// A GPU that the process can see. Cheap to clone. Two values are equal if they have the same driver and ordinal.
#[derive(Clone)]
pub struct Device {
    driver: Driver,
    ordinal: u32,
    raw: CUdevice,
}

impl Device {
    pub(crate) fn api(&self) -> &Api {
        self.driver.api()
    }

    /// Returns the driver of the device.
    #[must_use]
    pub fn driver(&self) -> &Driver {
        &self.driver
    }

    /// Returns the ordinal: the device's number in this process, counted from 0.
    #[must_use]
    pub fn ordinal(&self) -> u32 {
        self.ordinal
    }

    /// Returns the driver's handle.
    #[must_use]
    pub fn raw(&self) -> CUdevice {
        self.raw
    }

    /// Returns the name of the GPU model.
    ///
    /// # Errors
    /// [`Error::Driver`] from `cuDeviceGetName`.
    #[doc(alias = "cuDeviceGetName")]
    pub fn name(&self) -> Result<String> {
        let mut name = [0; 256];
        // SAFETY: the driver writes at most 255 bytes, including the NUL. The 256th byte stays 0.
        unsafe { call!(self.api(), cuDeviceGetName(name.as_mut_ptr(), 255, self.raw)) }?;
        // SAFETY: the last byte of the array is NUL, so the string ends inside it.
        Ok(unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned())
    }

    /// Returns the UUID, which identifies the device in every process and on every host.
    ///
    /// # Errors
    /// [`Error::Driver`] from `cuDeviceGetUuid_v2`; [`Error::Missing`] below CUDA 11.4.
    #[doc(alias = "cuDeviceGetUuid")]
    pub fn uuid(&self) -> Result<[u8; 16]> {
        let mut uuid = CUuuid { bytes: [0; 16] };
        // SAFETY: writes 16 bytes, to a local that outlives the call.
        unsafe { call!(self.api(), cuDeviceGetUuid_v2(&mut uuid, self.raw)) }?;
        Ok(uuid.bytes.map(|byte| byte.to_ne_bytes()[0]))
    }

    /// Returns the total size of the device's memory in bytes.
    ///
    /// # Errors
    /// [`Error::Driver`] from `cuDeviceTotalMem_v2`.
    #[doc(alias = "cuDeviceTotalMem")]
    pub fn total_memory(&self) -> Result<usize> {
        let mut bytes = 0;
        // SAFETY: writes one size, to a local that outlives the call.
        unsafe { call!(self.api(), cuDeviceTotalMem_v2(&mut bytes, self.raw)) }?;
        Ok(bytes)
    }

    /// Returns an attribute of the device, as the driver reports it.
    ///
    /// # Errors
    /// [`Error::Driver`] from `cuDeviceGetAttribute`: `CUDA_ERROR_INVALID_VALUE` for an attribute
    /// that the driver does not know.
    #[doc(alias = "cuDeviceGetAttribute")]
    pub fn attribute(&self, attribute: CUdevice_attribute) -> Result<i32> {
        let mut value: c_int = 0;
        // SAFETY: writes one integer, to a local that outlives the call; an unknown attribute is refused.
        unsafe { call!(self.api(), cuDeviceGetAttribute(&mut value, attribute, self.raw)) }?;
        Ok(value)
    }

    /// Returns the device's PCI bus id as text, such as `0000:3b:00.0`. The text consists of domain, bus, device and
    /// function, as hexadecimal numbers. The driver chooses upper or lower case for the letters.
    ///
    /// # Errors
    /// [`Error::Driver`] from `cuDeviceGetPCIBusId`.
    #[doc(alias = "cuDeviceGetPCIBusId")]
    pub fn pci_bus_id(&self) -> Result<String> {
        let mut id = [0; 32];
        // SAFETY: the driver writes at most 31 bytes, including the NUL. The 32nd byte stays 0.
        unsafe { call!(self.api(), cuDeviceGetPCIBusId(id.as_mut_ptr(), 31, self.raw)) }?;
        // SAFETY: the last byte of the array is NUL, so the string ends inside it.
        Ok(unsafe { CStr::from_ptr(id.as_ptr()) }.to_string_lossy().into_owned())
    }
}

/// Returns the error for a call in which `user` (an object of device `wanted`) was to use `what` (an object of device
/// `found`).
///
/// The error is [`Error::DifferentDrivers`] if the devices belong to different drivers, else
/// [`Error::DifferentDevices`].
#[cold]
pub(crate) fn mismatch(
    (what, found): (&'static str, &Device),
    (user, wanted): (&'static str, &Device),
) -> Error {
    match wanted.driver().require_same(what, found.driver(), user) {
        Ok(()) => Error::DifferentDevices { what, found: found.ordinal(), user, wanted: wanted.ordinal() },
        Err(error) => error,
    }
}

impl PartialEq for Device {
    fn eq(&self, other: &Self) -> bool {
        self.ordinal == other.ordinal && self.driver.is_same(&other.driver)
    }
}

impl Eq for Device {}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({})", self.ordinal)
    }
}
