//! The loaded and initialised driver.

use std::collections::BTreeMap;
use std::ffi::{CString, c_int};
use std::fmt;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};

use cuda_driver_sys::{Api, CUresult, Version};

use crate::call::{call, check, code};
use crate::vmm::HandleTypes;
use crate::{Device, Error, Result};

/// The loaded and initialised CUDA driver: where everything starts. Cheap to clone.
#[derive(Clone)]
pub struct Driver {
    api: Api,
    /// Handle types for exporting memory of a device, by its ordinal, if they were tried.
    pub(crate) granted: Arc<Mutex<BTreeMap<u32, HandleTypes>>>,
    captures: Arc<AtomicUsize>,
}

impl Driver {
    /// Loads the driver's library and initialises it.
    ///
    /// # Errors
    /// [`Error::Load`] if there is no driver or the library named in `CUDA_DRIVER_SYS_LIBRARY` is wrong (the text
    /// says what to do); else as [`Driver::new`].
    pub fn load() -> Result<Self> {
        Self::new(Api::load()?)
    }

    /// Initialises a driver that is loaded already, or that a test embeds.
    ///
    /// # Errors
    /// [`Error::Driver`] if it cannot be initialised, for example `CUDA_ERROR_NO_DEVICE`; [`Error::Missing`] if
    /// the table lacks `cuInit`.
    #[doc(alias = "cuInit")]
    pub fn new(api: Api) -> Result<Self> {
        // SAFETY: cuInit takes no pointer; it may be called any number of times.
        unsafe { call!(&api, cuInit(0)) }?;
        Ok(Self { api, granted: Arc::default(), captures: Arc::default() })
    }

    /// A number that identifies the driver in this process: the address of its function `cuInit`. A driver
    /// that is loaded twice is one library, and both handles share its objects.
    #[inline]
    pub(crate) fn identity(&self) -> usize {
        self.api.table().cuInit.map_or(0, |init| init as usize)
    }

    /// Returns true if both are the same driver, so handles and addresses of one are valid for the other.
    #[inline]
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.identity() == other.identity()
    }

    /// Refuses `what`, an object of `theirs`, where `user` is an object of this driver.
    #[inline]
    pub(crate) fn require_same(&self, what: &'static str, theirs: &Self, user: &'static str) -> Result<()> {
        if self.is_same(theirs) { Ok(()) } else { Err(Error::DifferentDrivers { what, user }) }
    }

    /// The table under this driver, for calls that this crate has no method for.
    #[must_use]
    pub fn api(&self) -> &Api {
        &self.api
    }

    /// The newest release of CUDA that the driver supports.
    #[doc(alias = "cuDriverGetVersion")]
    #[must_use]
    pub fn version(&self) -> Version {
        self.api.version()
    }

    /// The number of open captures that [`Stream::begin_capture`](crate::Stream::begin_capture) began, over
    /// all clones of this driver. Reading it is cheaper than asking the driver for each stream. Captures that
    /// others began, with raw calls or through another library, are not counted.
    #[must_use]
    pub fn open_captures(&self) -> &Arc<AtomicUsize> {
        &self.captures
    }

    /// The number of devices that the process can see.
    ///
    /// # Errors
    /// [`Error::Driver`] from `cuDeviceGetCount`.
    #[doc(alias = "cuDeviceGetCount")]
    pub fn device_count(&self) -> Result<u32> {
        let mut count: c_int = 0;
        // SAFETY: writes one integer, to a local that outlives the call.
        unsafe { call!(&self.api, cuDeviceGetCount(&mut count)) }?;
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
        unsafe { call!(&self.api, cuDeviceGet(&mut raw, ordinal_c)) }?;
        Ok(Device::from_raw(self.clone(), ordinal, raw))
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
        match unsafe { code!(&self.api, cuDeviceGetByPCIBusId(&mut raw, text.as_ptr())) }? {
            CUresult::CUDA_ERROR_INVALID_DEVICE | CUresult::CUDA_ERROR_INVALID_VALUE => Err(unknown()),
            code => {
                check(&self.api, "cuDeviceGetByPCIBusId", code)?;
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

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").field("version", &self.version()).field("path", &self.api.path()).finish()
    }
}
