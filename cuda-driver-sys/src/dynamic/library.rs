//! Finding and opening the library.

use std::ffi::{CStr, CString, OsStr, c_int, c_void};
use std::fmt::Write;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use super::file::{self, FileFault, Unfit};
use super::maps;
use crate::{Table, binding};

/// Returns only a library that is loaded already.
const RTLD_NOLOAD: c_int = 4;

/// Held while looking for copies and opening one, so that two threads cannot open two copies.
static LOADING: Mutex<()> = Mutex::new(());

/// A library that was opened.
pub(crate) struct Loaded {
    pub(crate) table: Table,
    pub(crate) path: PathBuf,
    /// The environment variable that named it.
    pub(crate) variable: Option<&'static str>,
}

/// The library could not be loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The path names nothing that can be read.
    #[error("cannot read {}{}, which should be the file of the {} library", .path.display(), told(.variable), binding::LIBRARY)]
    NoFile {
        /// The path.
        path: PathBuf,
        /// The environment variable that gave it.
        variable: Option<&'static str>,
        /// Why it cannot be read.
        source: io::Error,
    },
    /// The file cannot be the library; it was not loaded.
    #[error("{}{} cannot be the {} library: {fault}", .path.display(), told(.variable), binding::LIBRARY)]
    InvalidFile {
        /// The path.
        path: PathBuf,
        /// The environment variable that gave it.
        variable: Option<&'static str>,
        /// The fault that was found.
        fault: FileFault,
    },
    /// The loader does not take the file for a library.
    #[error("{}{} cannot be loaded as a library", .path.display(), told(.variable))]
    NotALibrary {
        /// The path.
        path: PathBuf,
        /// The environment variable that gave it.
        variable: Option<&'static str>,
        /// The loader's error.
        source: LoaderError,
    },
    /// The file is a library, but not this one.
    #[error(
        "{}{} is not the {} library: it has no symbol `{symbol}`",
        place(.path), told(.variable), binding::LIBRARY
    )]
    MissingSymbol {
        /// The library's file; `None` for functions that were handed over.
        path: Option<PathBuf>,
        /// The environment variable that gave it.
        variable: Option<&'static str>,
        /// The symbol that every release has.
        symbol: &'static str,
    },
    /// This process has another copy loaded already.
    #[error(
        "{}{} was asked for, but this process has another {} loaded already: {}; two copies do not know of each \
         other, and `Api::load` takes the one that is loaded",
        .wanted.display(), told(.variable), binding::LIBRARY, .loaded.display()
    )]
    OtherCopyLoaded {
        /// The path asked for.
        wanted: PathBuf,
        /// The environment variable that gave it.
        variable: Option<&'static str>,
        /// The copy that is loaded.
        loaded: PathBuf,
    },
    /// The library does not say which release it is.
    #[error("{}{} does not say which release it is: {fault}", place(.path), told(.variable))]
    Version {
        /// The library's file; `None` for a table that was handed over.
        path: Option<PathBuf>,
        /// The environment variable that gave it.
        variable: Option<&'static str>,
        /// The fault that was found.
        fault: VersionFault,
    },
    /// A copy is loaded that only its owner can reach: its file was deleted, or it is in a linker namespace
    /// of its own.
    #[error(
        "this process has {} loaded already, from {}, but the system's loader does not hand it out; \
         its owner can, for `Api::from_loader`, and a second copy is refused", binding::LIBRARY, .loaded.display()
    )]
    OutOfReach {
        /// The copy that is loaded.
        loaded: PathBuf,
        /// The loader's error.
        source: LoaderError,
    },
    /// Nothing was found.
    #[error("no {} found; {}. Tried:{}", binding::LIBRARY, binding::ADVICE, list(.tried))]
    NotFound {
        /// Each file or name, with the loader's error.
        tried: Vec<(PathBuf, LoaderError)>,
    },
}

/// An error of the system's loader, in its own words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct LoaderError(String);

impl LoaderError {
    fn new(error: &libloading::Error) -> Self {
        Self(std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string))
    }
}

/// Why a library does not say which release it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VersionFault {
    /// The function is absent.
    #[error("`{0}` is not there")]
    Absent(&'static str),
    /// The function failed.
    #[error("`{function}` answered {status}{}", binding::hint(*.status))]
    Failed {
        /// The function.
        function: &'static str,
        /// The status that it returned.
        status: u32,
    },
    /// The number is not that of a release.
    #[error("`{function}` said {code}, which is no release")]
    Nonsense {
        /// The function.
        function: &'static str,
        /// The number that it reported.
        code: c_int,
    },
}

fn told(variable: &Option<&'static str>) -> String {
    variable.map(|variable| format!(" (from {variable})")).unwrap_or_default()
}

fn place(path: &Option<PathBuf>) -> String {
    path.as_ref()
        .map_or_else(|| "the table that was handed over".to_owned(), |path| path.display().to_string())
}

fn list(tried: &[(PathBuf, LoaderError)]) -> String {
    tried.iter().fold(String::new(), |mut text, (name, error)| {
        // The loader's words begin with the name, as a rule.
        let (name, words) = (name.display().to_string(), &error.0);
        let _ = match words.starts_with(&name) {
            true => write!(text, "\n  {words}"),
            false => write!(text, "\n  {name}: {words}"),
        };
        text
    })
}

/// Finds the library: the variable's file, a copy that is loaded, the files of `packaged`, the names that the
/// system's loader knows.
pub(crate) fn find(packaged: impl FnOnce() -> Vec<PathBuf>) -> Result<Loaded, LoadError> {
    if let Some(path) = std::env::var_os(binding::VARIABLE).filter(|path| !path.is_empty()) {
        return open(Path::new(&path), Some(binding::VARIABLE));
    }
    let _loading = LOADING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(library) = adopt()? {
        return resolve(library, None, None);
    }
    let mut tried = Vec::new();
    for name in packaged().into_iter().chain(binding::NAMES.iter().map(PathBuf::from)) {
        match dlopen(name.as_os_str(), 0) {
            Ok(library) => return resolve(library, None, None),
            Err(error) => tried.push((name, error)),
        }
    }
    Err(LoadError::NotFound { tried })
}

/// A copy that is loaded already.
fn adopt() -> Result<Option<Library>, LoadError> {
    let by_name = binding::NAMES.iter().find_map(|name| dlopen(OsStr::new(name), RTLD_NOLOAD).ok());
    if by_name.is_some() {
        return Ok(by_name);
    }
    // A copy with an unusual SONAME.
    let mut out_of_reach = None;
    for copy in maps::copies() {
        match dlopen(copy.path.as_os_str(), RTLD_NOLOAD) {
            Ok(library) => return Ok(Some(library)),
            Err(source) => out_of_reach = Some(LoadError::OutOfReach { loaded: copy.path, source }),
        }
    }
    out_of_reach.map_or(Ok(None), Err)
}

/// Opens the library at `path`, which `variable` gave.
pub(crate) fn open(path: &Path, variable: Option<&'static str>) -> Result<Loaded, LoadError> {
    let unreadable = |source| LoadError::NoFile { path: path.to_path_buf(), variable, source };
    // Absolute, since the loader would search its folders for a bare name.
    let file = path.canonicalize().map_err(unreadable)?;
    file::check(&file).map_err(|unfit| match unfit {
        Unfit::Unreadable(source) => unreadable(source),
        Unfit::Fault(fault) => LoadError::InvalidFile { path: file.clone(), variable, fault },
    })?;
    let _loading = LOADING.lock().unwrap_or_else(PoisonError::into_inner);
    let other = maps::copies().into_iter().find(|copy| !copy.is(&file));
    if let Some(copy) = other {
        return Err(LoadError::OtherCopyLoaded { wanted: file, variable, loaded: copy.path });
    }
    let library = dlopen(file.as_os_str(), 0).map_err(|source| LoadError::NotALibrary {
        path: file.clone(),
        variable,
        source,
    })?;
    resolve(library, Some(file), variable)
}

fn dlopen(name: &OsStr, flags: c_int) -> Result<Library, LoaderError> {
    // SAFETY: the libraries' initialisers are fit to run at any time, as any program linked to them does. That the
    // file is such a library is the promise of `Api::load_from`'s caller, else of whoever set up the process: its
    // environment variable, the loader's path and what is installed there are trusted.
    unsafe { Library::open(Some(name), RTLD_NOW | RTLD_LOCAL | flags) }
        .map_err(|error| LoaderError::new(&error))
}

/// Binds the functions. The library is closed again only if it is not the right one.
fn resolve(
    library: Library,
    path: Option<PathBuf>,
    variable: Option<&'static str>,
) -> Result<Loaded, LoadError> {
    let mut symbol = |name: &CStr| -> *const c_void {
        // SAFETY: only the address is taken.
        unsafe { library.get_singlethreaded::<*const c_void>(name.to_bytes_with_nul()) }
            .map_or(std::ptr::null(), |symbol| symbol.into_raw().cast_const())
    };
    demand(&mut symbol, path.as_deref(), variable)?;
    // SAFETY: addresses of the library's own symbols, which stay valid: it is not closed below.
    let table = unsafe { binding::resolve(&mut symbol) };
    // The file that the loader took, also where it searched by name.
    let path = maps::file_of(&table).or(path).unwrap_or_default();
    std::mem::forget(library);
    Ok(Loaded { table, path, variable })
}

/// Fails unless every required function is there. Runs before any function is called.
pub(crate) fn demand(
    symbol: &mut dyn FnMut(&CStr) -> *const c_void,
    path: Option<&Path>,
    variable: Option<&'static str>,
) -> Result<(), LoadError> {
    match binding::REQUIRED.iter().find(|name| by_name(symbol, name).is_null()) {
        Some(symbol) => Err(LoadError::MissingSymbol { path: path.map(Path::to_path_buf), variable, symbol }),
        None => Ok(()),
    }
}

/// The address of a symbol; null where there is none.
pub(crate) fn by_name(symbol: &mut dyn FnMut(&CStr) -> *const c_void, name: &str) -> *const c_void {
    CString::new(name).map_or(std::ptr::null(), |name| symbol(&name))
}
