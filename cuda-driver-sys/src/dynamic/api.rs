//! The loaded library.

use std::ffi::{CStr, c_void};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::library::{self, Loaded};
use super::{maps, requirement};
use crate::{Feature, Function, LoadError, Missing, Table, Version, Why, binding};

/// The library's functions, with their release and their file.
///
/// Cheap to clone, and shared by threads. Every function has an accessor of its name, which returns the
/// function or [`Missing`]. The library is never unloaded: it has threads and exit handlers of its own, and
/// memory that it allocated outlives every handle.
#[derive(Clone)]
pub struct Api(Arc<Inner>);

struct Inner {
    table: Table,
    version: Version,
    features: Feature,
    path: Option<PathBuf>,
}

impl Api {
    /// Loads the library. In this order:
    /// 1. the file that the environment variable [`VARIABLE`](crate::VARIABLE) names;
    /// 2. a copy that this process has loaded already;
    /// 3. the names [`NAMES`](crate::NAMES), as the system's loader finds them.
    ///
    /// # Errors
    /// [`LoadError`]; a path in the variable that cannot be used is an error, not a reason to look further.
    pub fn load() -> Result<Self, LoadError> {
        Self::from_library(library::find(Vec::new)?)
    }

    /// Loads the library from `path`.
    ///
    /// The file is checked before it is mapped ([`FileFault`](crate::FileFault)): a regular ELF file, a shared object
    /// for this machine, and as long as its headers say.
    ///
    /// # Errors
    /// [`LoadError`], also if this process has another copy loaded already: two copies do not know of each
    /// other's communicators, contexts and memory.
    ///
    /// # Safety
    /// Loading runs the file's initialisers and calls its functions under the signatures of this crate's headers. The
    /// file must be the library, or one that keeps the same C contracts, and must not be changed or cut off while the
    /// process runs.
    pub unsafe fn load_from(path: impl AsRef<Path>) -> Result<Self, LoadError> {
        Self::from_library(library::open(path.as_ref(), None)?)
    }

    /// Takes each function from `symbol`, which answers a C symbol's address, or null where there is none.
    ///
    /// # Errors
    /// [`LoadError`] if a function is absent without which nothing works, or the release cannot be asked.
    ///
    /// # Safety
    /// Every address must be that of the C function asked for, and stay valid for the rest of the process.
    pub unsafe fn from_loader(mut symbol: impl FnMut(&CStr) -> *const c_void) -> Result<Self, LoadError> {
        library::demand(&mut symbol, None, None)?;
        // SAFETY: the caller's contract.
        let table = unsafe { binding::resolve(&mut symbol) };
        let path = maps::file_of(&table);
        // SAFETY: the caller's contract.
        unsafe { Self::new(table, path, None) }
    }

    /// Takes the table as it is, for example that of an embedded device.
    ///
    /// # Errors
    /// [`LoadError`] if the release cannot be asked: the table's own version function says it.
    ///
    /// # Safety
    /// Every function must do what its C declaration promises, for the rest of the process.
    pub unsafe fn from_parts(table: Table) -> Result<Self, LoadError> {
        // SAFETY: the caller's contract.
        unsafe { Self::new(table, None, None) }
    }

    pub(crate) fn from_library(loaded: Loaded) -> Result<Self, LoadError> {
        let Loaded { table, path, variable } = loaded;
        // SAFETY: the functions are the library's own, resolved by name, and it is never unloaded.
        unsafe { Self::new(table, Some(path), variable) }
    }

    /// # Safety
    /// As [`Self::from_parts`].
    unsafe fn new(
        table: Table,
        path: Option<PathBuf>,
        variable: Option<&'static str>,
    ) -> Result<Self, LoadError> {
        // SAFETY: the caller's contract.
        let version = unsafe { binding::ask_version(&table) }.map_err(|fault| LoadError::Version {
            path: path.clone(),
            variable,
            fault,
        })?;
        let features = requirement::available(&table, version);
        Ok(Self(Arc::new(Inner { table, version, features, path })))
    }

    /// The functions.
    #[inline]
    pub fn table(&self) -> &Table {
        &self.0.table
    }

    /// The release that the library itself reports.
    pub fn version(&self) -> Version {
        self.0.version
    }

    /// The library's file; `None` for a table that was handed over.
    pub fn path(&self) -> Option<&Path> {
        self.0.path.as_deref()
    }

    /// Returns true if the library has all of `feature`: its functions exist, its release is new enough, and
    /// the release is not known to do it wrong.
    pub fn has(&self, feature: Feature) -> bool {
        self.0.features.contains(feature)
    }

    /// Everything that [`Self::has`].
    pub fn features(&self) -> Feature {
        self.0.features
    }

    /// [`Self::has`], with the reason.
    ///
    /// # Errors
    /// [`Missing`] for the first of `feature` that is not there.
    pub fn require(&self, feature: Feature) -> Result<(), Missing> {
        requirement::check(&self.0.table, self.0.version, feature).map_err(|fault| Missing {
            item: crate::Item::Feature(fault.feature),
            needed: fault.needed,
            found: self.0.version,
            path: self.0.path.clone(),
            why: fault.why,
        })
    }

    /// Returns the file of every copy of the library that is loaded in this process, including this one. More
    /// than one is a fault of the program, since the copies do not know of each other. Empty if none comes
    /// from a file.
    pub fn copies(&self) -> Vec<PathBuf> {
        maps::copies().into_iter().map(|copy| copy.path).collect()
    }

    /// The error for a function that is not in the table.
    #[cold]
    pub(crate) fn missing(&self, name: &'static str) -> Missing {
        let needed = Function::named(name).map_or_else(Version::default, |function| function.since);
        let why = if self.0.version < needed { Why::TooOld } else { Why::NoSymbol(name) };
        Missing {
            item: crate::Item::Function(name),
            needed,
            found: self.0.version,
            path: self.0.path.clone(),
            why,
        }
    }
}

impl fmt::Debug for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Api")
            .field("version", &self.0.version)
            .field("features", &self.0.features)
            .field("path", &self.0.path)
            .finish_non_exhaustive()
    }
}
