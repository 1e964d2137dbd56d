//! Finding and opening a library.

use std::ffi::{CStr, CString, OsStr, c_int, c_void};
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use libloading::os::unix::{self, RTLD_LOCAL, RTLD_NOW};

use crate::error::{LoadError, LoaderError};
use crate::file::{self, Unfit};
use crate::library::Library;
use crate::maps;

/// Returns only a library that is loaded already.
const RTLD_NOLOAD: c_int = 4;

/// Serialises the search for copies and the opening of one, so that two threads cannot open two copies.
fn lock() -> MutexGuard<'static, ()> {
    static LOADING: Mutex<()> = Mutex::new(());
    LOADING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An opened library, which has all required symbols and is never closed.
pub(crate) struct Opened {
    handle: ManuallyDrop<unix::Library>,
    pub(crate) path: PathBuf,
    /// The environment variable that named it.
    pub(crate) variable: Option<&'static str>,
}

impl Opened {
    /// Closes the library again if it lacks a required symbol.
    fn new(
        library: &Library,
        handle: unix::Library,
        path: Option<PathBuf>,
        variable: Option<&'static str>,
    ) -> Result<Self, LoadError> {
        demand(library, &mut |name| address(&handle, name), path.as_deref(), variable)?;
        // The file that the loader took, also where it searched by name.
        let first = library.required.first().map(|name| by_name(&mut |name| address(&handle, name), name));
        let path = first.and_then(|first| maps::file_at(first.addr())).or(path).unwrap_or_default();
        Ok(Self { handle: ManuallyDrop::new(handle), path, variable })
    }

    /// Returns the address of a symbol; null if there is none.
    pub(crate) fn symbol(&self, name: &CStr) -> *const c_void {
        address(&self.handle, name)
    }
}

fn address(handle: &unix::Library, name: &CStr) -> *const c_void {
    // SAFETY: only the address is taken.
    unsafe { handle.get_singlethreaded::<*const c_void>(name.to_bytes_with_nul()) }
        .map_or(std::ptr::null(), |symbol| symbol.into_raw().cast_const())
}

/// Finds the library: the variable's file, a copy that is loaded, the files of `packaged`, the names that the
/// system's loader knows.
pub(crate) fn find(
    library: &'static Library,
    packaged: impl FnOnce() -> Vec<PathBuf>,
) -> Result<Opened, LoadError> {
    let variable = library.variable;
    if let Some(path) = std::env::var_os(variable).filter(|path| !path.is_empty()) {
        return open(library, Path::new(&path), Some(variable));
    }
    if let Some(handle) = adopt(library, &lock())? {
        return Opened::new(library, handle, None, None);
    }
    // Computed without the lock, because it may run other programs.
    let packaged = packaged();
    let loading = lock();
    if let Some(handle) = adopt(library, &loading)? {
        return Opened::new(library, handle, None, None);
    }
    let mut tried = Vec::new();
    for name in packaged.into_iter().chain(library.names.iter().map(PathBuf::from)) {
        match dlopen(name.as_os_str(), 0) {
            Ok(handle) => return Opened::new(library, handle, None, None),
            Err(error) => tried.push((name, error)),
        }
    }
    Err(LoadError::NotFound { library: library.name, advice: library.advice, tried })
}

/// Returns a copy that is loaded already.
fn adopt(library: &Library, _: &MutexGuard<'_, ()>) -> Result<Option<unix::Library>, LoadError> {
    let by_name = library.names.iter().find_map(|name| dlopen(OsStr::new(name), RTLD_NOLOAD).ok());
    if by_name.is_some() {
        return Ok(by_name);
    }
    // A copy with an unusual SONAME.
    let mut out_of_reach = None;
    for copy in maps::copies(library) {
        match dlopen(copy.path.as_os_str(), RTLD_NOLOAD) {
            Ok(handle) => return Ok(Some(handle)),
            Err(source) => {
                out_of_reach =
                    Some(LoadError::OutOfReach { library: library.name, loaded: copy.path, source });
            }
        }
    }
    out_of_reach.map_or(Ok(None), Err)
}

/// Opens the library at `path`, which `variable` gave.
pub(crate) fn open(
    library: &'static Library,
    path: &Path,
    variable: Option<&'static str>,
) -> Result<Opened, LoadError> {
    let name = library.name;
    let unreadable = |source| LoadError::NoFile { library: name, path: path.to_path_buf(), variable, source };
    // Absolute, because the loader would search its folders for a bare name.
    let file = path.canonicalize().map_err(unreadable)?;
    file::check(&file).map_err(|unfit| match unfit {
        Unfit::Unreadable(source) => unreadable(source),
        Unfit::Fault(fault) => LoadError::InvalidFile { library: name, path: file.clone(), variable, fault },
    })?;
    let _loading = lock();
    let other = maps::copies(library).into_iter().find(|copy| !copy.is(&file));
    if let Some(copy) = other {
        let loaded = copy.path;
        return Err(LoadError::OtherCopyLoaded { library: name, wanted: file, variable, loaded });
    }
    match dlopen(file.as_os_str(), 0) {
        Ok(handle) => Opened::new(library, handle, Some(file), variable),
        Err(source) => Err(LoadError::NotALibrary { library: name, path: file, variable, source }),
    }
}

fn dlopen(name: &OsStr, flags: c_int) -> Result<unix::Library, LoaderError> {
    // SAFETY: the library's initialisers may run at any time, as in any program that is linked to it. The file is
    // such a library by the contract of `Loaded::load_from` and `Loaded::load_with`, by that of `Table` for its names,
    // or because whoever set up the process is trusted: its environment variable, the loader's path, and the
    // installed files.
    unsafe { unix::Library::open(Some(name), RTLD_NOW | RTLD_LOCAL | flags) }
        .map_err(|error| LoaderError::new(&error))
}

/// Fails unless every required function is there. Runs before any function is called.
pub(crate) fn demand(
    library: &Library,
    symbol: &mut dyn FnMut(&CStr) -> *const c_void,
    path: Option<&Path>,
    variable: Option<&'static str>,
) -> Result<(), LoadError> {
    let path = || path.map(Path::to_path_buf);
    match library.required.iter().find(|name| by_name(symbol, name).is_null()) {
        Some(symbol) => {
            Err(LoadError::MissingSymbol { library: library.name, path: path(), variable, symbol })
        }
        None => Ok(()),
    }
}

/// Returns the address of a symbol; null if there is none.
pub fn by_name(symbol: &mut dyn FnMut(&CStr) -> *const c_void, name: &str) -> *const c_void {
    CString::new(name).map_or(std::ptr::null(), |name| symbol(&name))
}
