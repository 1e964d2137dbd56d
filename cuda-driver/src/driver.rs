//! The loaded and initialised driver.

use std::ffi::c_int;
use std::fmt;

use cuda_driver_sys::{Api, Version};

use crate::call::call;
use crate::{Device, Error, Result};

/// The loaded and initialised CUDA driver: where everything starts. Cheap to clone.
#[derive(Clone)]
pub struct Driver {
    api: Api,
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
        Ok(Self { api })
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

    /// How many devices the process can see.
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
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").field("version", &self.version()).field("path", &self.api.path()).finish()
    }
}
