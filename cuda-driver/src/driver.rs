//! The loaded and initialised driver.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};

use cuda_driver_sys::{Api, Version};

use crate::call::call;
use crate::handle_types::HandleTypes;
use crate::{Error, Result};

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
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").field("version", &self.version()).field("path", &self.api.path()).finish()
    }
}
