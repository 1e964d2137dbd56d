//! Finds and opens a library.

use std::ffi::{CStr, CString, OsStr, c_int, c_void};
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use libloading::os::unix::{self, RTLD_LOCAL, RTLD_NOW};

use crate::error::{LoadError, LoaderError};
use crate::file::{self, Unfit};
use crate::library::Library;
use crate::maps;

/// The flag of `dlopen` that opens a library only if it is loaded already.
const RTLD_NOLOAD: c_int = 4;

/// Takes the lock that serialises finding a loaded copy and opening one, so that two threads cannot open two copies.
fn lock() -> MutexGuard<'static, ()> {
    static LOADING: Mutex<()> = Mutex::new(());
    LOADING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An opened library. It has all required symbols, and is never closed.
pub(crate) struct Opened {
    handle: ManuallyDrop<unix::Library>,
    /// The library's file; `None` if it is not known.
    pub(crate) path: Option<PathBuf>,
    /// The environment variable that named the library's file, if one did.
    pub(crate) variable: Option<&'static str>,
}

impl Opened {
    /// Checks the required symbols of a library that was just opened. If one is missing, closes the library and returns
    /// an error.
    fn new(
        library: &Library,
        handle: unix::Library,
        path: Option<PathBuf>,
        variable: Option<&'static str>,
    ) -> Result<Self, LoadError> {
        // The mappings tell which file the loader opened. `path` does not always tell: it is a bare name if the loader
        // searched its folders, and `None` if the copy was loaded already.
        let symbols = library.required.iter().map(|name| by_name(&mut |name| address(&handle, name), name));
        let path = symbols
            .filter(|symbol| !symbol.is_null())
            .find_map(|symbol| maps::file_at(symbol.addr()))
            .or(path);
        demand(library, &mut |name| address(&handle, name), path.as_deref(), variable)?;
        Ok(Self { handle: ManuallyDrop::new(handle), path, variable })
    }

    /// Returns the address of a symbol; null if the library does not have it.
    pub(crate) fn symbol(&self, name: &CStr) -> *const c_void {
        address(&self.handle, name)
    }
}

fn address(handle: &unix::Library, name: &CStr) -> *const c_void {
    // SAFETY: only takes the address of the symbol.
    unsafe { handle.get_singlethreaded::<*const c_void>(name.to_bytes_with_nul()) }
        .map_or(std::ptr::null(), |symbol| symbol.into_raw().cast_const())
}

/// Finds and opens the library. Tries, in this order:
/// 1. the file named by the environment variable;
/// 2. a copy that is loaded already;
/// 3. the files that `packaged` returns;
/// 4. the files that the system's loader finds for the library's names.
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
    // Called without the lock, because `packaged` may run other programs and take long.
    let packaged = packaged();
    let loading = lock();
    if let Some(handle) = adopt(library, &loading)? {
        return Opened::new(library, handle, None, None);
    }
    let mut tried = Vec::new();
    for name in packaged.into_iter().chain(library.names.iter().map(PathBuf::from)) {
        // A bare name is not checked, because the loader searches its folders for the file.
        let checked = if name.is_absolute() { file::check(&name) } else { Ok(()) };
        match checked.map_err(LoaderError::from).and_then(|()| dlopen(name.as_os_str(), 0)) {
            Ok(handle) => return Opened::new(library, handle, Some(name), None),
            Err(error) => tried.push((name, error)),
        }
    }
    Err(LoadError::NotFound { library: library.name, advice: library.advice, tried })
}

/// Returns a copy of the library that is loaded already; `None` if there is none. Returns an error if copies are
/// loaded, but the loader returns a handle for none of them. The caller holds the lock.
fn adopt(library: &Library, _: &MutexGuard<'_, ()>) -> Result<Option<unix::Library>, LoadError> {
    let by_name = library.names.iter().find_map(|name| dlopen(OsStr::new(name), RTLD_NOLOAD).ok());
    if by_name.is_some() {
        return Ok(by_name);
    }
    // A copy whose SONAME is none of the usual names is found by its file.
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

/// Opens the library at `path`. `variable` is the environment variable that named it, if one did.
pub(crate) fn open(
    library: &'static Library,
    path: &Path,
    variable: Option<&'static str>,
) -> Result<Opened, LoadError> {
    let name = library.name;
    let unreadable = |source| LoadError::NoFile { library: name, path: path.to_path_buf(), variable, source };
    // The loader needs an absolute path: it would search its folders for a bare name.
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
    // SAFETY: opening runs the library's initialisers, which may run at any time, as in a program that is linked to the
    // library. The file is the library for one of these reasons: the contract of `Loaded::load_from` or
    // `Loaded::load_with`; the contract of `Table`, for the library's names; or trust in the setup of the process (its
    // environment variable, the loader's path, and the installed files).
    unsafe { unix::Library::open(Some(name), RTLD_NOW | RTLD_LOCAL | flags) }
        .map_err(|error| LoaderError::new(&error))
}

/// Returns an error unless `symbol` finds every required function. This check comes before any call of a
/// function of the library.
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

/// Returns the address that `symbol` returns for the C symbol `name`; null if the symbol is absent. For
/// implementations of [`Table::resolve`](crate::Table::resolve).
pub fn by_name(symbol: &mut dyn FnMut(&CStr) -> *const c_void, name: &str) -> *const c_void {
    CString::new(name).map_or(std::ptr::null(), |name| symbol(&name))
}
