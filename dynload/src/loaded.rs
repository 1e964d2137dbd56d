//! A loaded library.

use std::ffi::{CStr, c_void};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::call::CallError;
use crate::error::LoadError;
use crate::maps;
use crate::missing::{Item, Missing, Why};
use crate::open::{self, Opened};
use crate::table::{Features, Table};
use crate::version::Version;

/// The functions of a library, with its release and its file.
///
/// Clones are cheap, and threads can share the value. The library is never unloaded, because it may have threads,
/// exit handlers and memory that outlive every handle.
pub struct Loaded<T: Table>(Arc<Inner<T>>);

struct Inner<T: Table> {
    table: T,
    version: Version,
    features: T::Feature,
    path: Option<PathBuf>,
}

impl<T: Table> Loaded<T> {
    /// Loads the library from the first of these sources that applies:
    /// 1. the file that the library's environment variable names, if it is set and not empty;
    /// 2. a copy that this process has loaded already;
    /// 3. the file that the system's loader (`dlopen`) finds for one of the library's names.
    ///
    /// # Errors
    /// [`LoadError`] if there is no copy, or the copy cannot be used. If the file that the variable names cannot be
    /// used, the other sources are not tried.
    pub fn load() -> Result<Self, LoadError> {
        Self::from_opened(open::find(T::LIBRARY, Vec::new)?)
    }

    /// Like [`load`](Self::load), but tries the files that `files` returns before it asks the system's loader. `files`
    /// is called at most once, and only if the library's environment variable is not set or is empty, and no copy is
    /// loaded.
    ///
    /// # Errors
    /// [`LoadError`], as for [`load`](Self::load).
    ///
    /// # Safety
    /// Each file must be the library or one with the same C contracts, as for [`load_from`](Self::load_from).
    pub unsafe fn load_with(files: impl FnOnce() -> Vec<PathBuf>) -> Result<Self, LoadError> {
        Self::from_opened(open::find(T::LIBRARY, files)?)
    }

    /// Loads the library from `path`.
    ///
    /// The file is checked before it is mapped ([`FileFault`](crate::FileFault)). It must be a regular file, and an
    /// ELF shared object for this machine that is not truncated.
    ///
    /// # Errors
    /// [`LoadError`], also if this process has another copy loaded already: two copies in a process do not share
    /// state.
    ///
    /// # Safety
    /// Loading runs the file's initialisers. The file's functions are called with the signatures that the table
    /// declares. The file must be the library, or one that keeps the same C contracts. It must not be changed or
    /// truncated while the process runs.
    pub unsafe fn load_from(path: impl AsRef<Path>) -> Result<Self, LoadError> {
        Self::from_opened(open::open(T::LIBRARY, path.as_ref(), None)?)
    }

    /// Builds the handle from the addresses that `symbol` returns. `symbol` takes the name of a C symbol and returns
    /// its address, or null if the symbol is absent.
    ///
    /// # Errors
    /// [`LoadError`] if one of the functions in [`Library::required`](crate::Library::required) is absent, or if the
    /// library does not report its release.
    ///
    /// # Safety
    /// Every address that is not null must be that of the C function asked for, and stay valid for the rest of the
    /// process.
    pub unsafe fn from_loader(mut symbol: impl FnMut(&CStr) -> *const c_void) -> Result<Self, LoadError> {
        open::demand(T::LIBRARY, &mut symbol, None, None)?;
        // SAFETY: the caller's contract.
        let table = unsafe { T::resolve(&mut symbol) };
        let first = T::LIBRARY.required.first().and_then(|name| table.address(name));
        let path = first.and_then(|first| maps::file_at(first.addr()));
        // SAFETY: the caller's contract.
        unsafe { Self::new(table, path, None) }
    }

    /// Builds the handle from a table that the caller supplies, for example that of a simulated device.
    ///
    /// # Errors
    /// [`LoadError`] if the table's version function is absent or does not report a release.
    ///
    /// # Safety
    /// Every function of the table must keep the contract of the C function whose name it has, for the rest of the
    /// process.
    pub unsafe fn from_parts(table: T) -> Result<Self, LoadError> {
        // SAFETY: the caller's contract.
        unsafe { Self::new(table, None, None) }
    }

    fn from_opened(opened: Opened) -> Result<Self, LoadError> {
        // SAFETY: each symbol is looked up by its name in the opened library. The contract of `Table` says that the
        // function of that name is as the table declares it. An opened library is never closed.
        unsafe {
            let table = T::resolve(&mut |name| opened.symbol(name));
            Self::new(table, opened.path, opened.variable)
        }
    }

    /// # Safety
    /// As for [`Self::from_parts`].
    unsafe fn new(
        table: T,
        path: Option<PathBuf>,
        variable: Option<&'static str>,
    ) -> Result<Self, LoadError> {
        // SAFETY: the caller's contract.
        let version = unsafe { table.version() }.map_err(|fault| LoadError::Version {
            library: T::LIBRARY.name,
            path: path.clone(),
            variable,
            fault,
        })?;
        let has = |name: &str| table.address(name).is_some();
        let there = T::Feature::REQUIREMENTS.iter();
        let there = there.filter(|needs| needs.fault(T::LIBRARY, version, has).is_none());
        let features = T::Feature::from_bits(there.fold(0, |bits, needs| bits | needs.bit));
        Ok(Self(Arc::new(Inner { table, version, features, path })))
    }

    /// The table of the library's functions.
    #[inline]
    pub fn table(&self) -> &T {
        &self.0.table
    }

    /// The release that the library itself reports.
    pub fn version(&self) -> Version {
        self.0.version
    }

    /// The library's file; `None` if it is not known, as for a table passed to [`from_parts`](Self::from_parts).
    pub fn path(&self) -> Option<&Path> {
        self.0.path.as_deref()
    }

    /// Returns true if the library has every feature that is set in `feature`. The library has a feature if it has
    /// the feature's functions, its release is new enough, and the release has no known fault in the feature.
    pub fn has(&self, feature: T::Feature) -> bool {
        feature.bits() & !self.features().bits() == 0
    }

    /// The features for which [`Self::has`] returns true.
    pub fn features(&self) -> T::Feature {
        self.0.features
    }

    /// Returns an error unless [`Self::has`] returns true for `feature`.
    ///
    /// # Errors
    /// [`Missing`] for the first feature in `feature` that the library lacks, with the reason.
    pub fn require(&self, feature: T::Feature) -> Result<(), Missing> {
        let has = |name: &str| self.table().address(name).is_some();
        for needs in feature.requirements() {
            if let Some(why) = needs.fault(T::LIBRARY, self.version(), has) {
                return Err(self.lacks(Item::Feature(needs.feature), needs.needed(T::LIBRARY), why));
            }
        }
        Ok(())
    }

    /// Returns the file of every copy of the library that is loaded in this process. Copies are recognised by their
    /// file names: a copy under an unusual file name is left out, even the copy that this handle uses. More than one
    /// copy is a fault of the program, because the copies do not share state.
    pub fn copies(&self) -> Vec<PathBuf> {
        maps::copies(T::LIBRARY).into_iter().map(|copy| copy.path).collect()
    }

    /// Returns the error that reports the function with the C symbol `name` as absent.
    #[cold]
    pub fn missing(&self, name: &'static str) -> Missing {
        let needed = T::LIBRARY.function(name).map_or_else(Version::default, |function| function.since);
        let why = if self.version() < needed { Why::TooOld } else { Why::NoSymbol(name) };
        self.lacks(Item::Function(name), needed, why)
    }

    /// Returns the error of [`missing`](Self::missing) as a [`CallError`], the error type of the methods that call
    /// functions.
    #[cold]
    pub fn absent<S>(&self, name: &'static str) -> CallError<S> {
        CallError::Missing(Box::new(self.missing(name)))
    }

    /// Returns the error that reports `item` as missing from this library. `needed` is the first release with the
    /// item, and `why` the reason why the library lacks it.
    #[cold]
    pub fn lacks(&self, item: Item, needed: Version, why: Why) -> Missing {
        let (found, path, library) = (self.version(), self.path().map(Into::into), T::LIBRARY);
        Missing { item, needed, found, path, why, library }
    }
}

impl<T: Table> Clone for Loaded<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T: Table> fmt::Debug for Loaded<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(T::LIBRARY.name)
            .field("version", &self.0.version)
            .field("features", &self.0.features)
            .field("path", &self.0.path)
            .finish_non_exhaustive()
    }
}
