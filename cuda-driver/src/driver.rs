//! The loaded and initialised driver.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use cuda_driver_sys::{Api, Version};

use crate::call::call;
use crate::handle_types::HandleTypes;
use crate::{Error, Result};

/// The loaded and initialised CUDA driver, from which all other objects are made. Cheap to clone.
#[derive(Clone)]
pub struct Driver {
    api: Api,
    /// The results of [`HandleTypes::granted`], keyed by the device's ordinal.
    pub(crate) granted: Arc<Mutex<BTreeMap<u32, HandleTypes>>>,
    /// The counter of [`open_captures`](Self::open_captures).
    pub(crate) captures: Arc<AtomicUsize>,
}

/// A counter of captures. It can only be read, and is cheap to clone. This does not compile:
/// ```compile_fail,E0599
/// fn forget_captures(driver: &cuda_driver::Driver) {
///     driver.open_captures().store(0, std::sync::atomic::Ordering::Relaxed);
/// }
/// ```
#[derive(Clone, Debug, Default)]
pub struct CaptureCount(Arc<AtomicUsize>);

impl CaptureCount {
    /// Makes a value that reads `counter`.
    #[must_use]
    pub fn of(counter: &Arc<AtomicUsize>) -> Self {
        Self(counter.clone())
    }

    /// Returns the number of captures. The load is relaxed.
    #[inline]
    #[must_use]
    pub fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// The counters of open captures, by the [identity](Driver::identity) of the driver. A driver has one counter,
/// however often it is loaded, because a stream that was made through one [`Driver`] value may be used through
/// another.
static CAPTURES: Mutex<BTreeMap<usize, Weak<AtomicUsize>>> = Mutex::new(BTreeMap::new());

/// Returns the counter of the driver with this identity, and creates it if there is none.
fn captures_of(identity: usize) -> Arc<AtomicUsize> {
    let mut counters = CAPTURES.lock().unwrap_or_else(PoisonError::into_inner);
    counters.retain(|_, counter| counter.strong_count() > 0);
    if let Some(counter) = counters.get(&identity).and_then(Weak::upgrade) {
        return counter;
    }
    let counter = Arc::default();
    counters.insert(identity, Arc::downgrade(&counter));
    counter
}

/// Returns the identity of the driver with this table; see [`Driver::identity`].
fn identity_of(api: &Api) -> usize {
    api.table().cuInit.map_or(0, |init| init as usize)
}

impl Driver {
    /// Loads the driver's library and initialises it.
    ///
    /// # Errors
    /// [`Error::Load`] if no driver can be loaded, for example because the environment variable
    /// `CUDA_DRIVER_SYS_LIBRARY` names a file that is not a driver's library. Otherwise as [`Driver::new`].
    pub fn load() -> Result<Self> {
        Self::new(Api::load()?)
    }

    /// Initialises a driver that is already loaded, or one that a test provides as a table of functions.
    ///
    /// # Errors
    /// [`Error::Driver`] from `cuInit`, for example `CUDA_ERROR_NO_DEVICE`; [`Error::Missing`] if the table lacks
    /// `cuInit`.
    #[doc(alias = "cuInit")]
    pub fn new(api: Api) -> Result<Self> {
        // SAFETY: cuInit takes no pointer; it may be called any number of times.
        unsafe { call!(&api, cuInit(0)) }?;
        let captures = captures_of(identity_of(&api));
        Ok(Self { api, granted: Arc::default(), captures })
    }

    /// Returns a number that identifies the driver's library in this process: the address of its function `cuInit`. If
    /// the same library is loaded twice, both `Driver` values return the same number. CUDA handles and addresses from
    /// one are valid for the other.
    #[inline]
    pub(crate) fn identity(&self) -> usize {
        identity_of(&self.api)
    }

    /// Returns true if both values are of the same library. CUDA handles and addresses from one are then valid for
    /// the other.
    #[must_use]
    #[inline]
    pub fn is_same(&self, other: &Self) -> bool {
        self.identity() == other.identity()
    }

    /// Returns [`Error::DifferentDrivers`] unless `theirs` is this driver. `what` names an object of `theirs`, and
    /// `user` the object of this driver that would use it.
    #[inline]
    pub(crate) fn require_same(&self, what: &'static str, theirs: &Self, user: &'static str) -> Result<()> {
        if self.is_same(theirs) { Ok(()) } else { Err(Error::DifferentDrivers { what, user }) }
    }

    /// Returns the table of the driver's functions, for calls for which this crate has no method.
    #[must_use]
    pub fn api(&self) -> &Api {
        &self.api
    }

    /// Returns the newest release of CUDA that the driver supports.
    #[doc(alias = "cuDriverGetVersion")]
    #[must_use]
    pub fn version(&self) -> Version {
        self.api.version()
    }

    /// Returns the counter of open captures that [`Stream::begin_capture`](crate::Stream::begin_capture) began. The
    /// caller may only read the counter. If the same library is loaded several times, all `Driver` values share one
    /// counter. Reading the counter is cheaper than querying the capture state of each stream. The counter does not
    /// include captures that were begun by raw calls to the driver, or by another library.
    #[must_use]
    pub fn open_captures(&self) -> CaptureCount {
        CaptureCount::of(&self.captures)
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").field("version", &self.version()).field("path", &self.api.path()).finish()
    }
}
