//! Errors of loading a library.

use std::ffi::c_int;
use std::fmt::Write;
use std::io;
use std::path::PathBuf;

use crate::file::FileFault;

/// A library could not be loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The path names nothing that can be read.
    #[error("cannot read {}{}, which should be the file of the {library} library", .path.display(), named_by(.variable))]
    NoFile {
        /// The name of the library.
        library: &'static str,
        /// The path.
        path: PathBuf,
        /// The environment variable that gave it.
        variable: Option<&'static str>,
        /// Why it cannot be read.
        source: io::Error,
    },
    /// The file cannot be the library; it was not loaded.
    #[error("{}{} cannot be the {library} library: {fault}", .path.display(), named_by(.variable))]
    InvalidFile {
        /// The name of the library.
        library: &'static str,
        /// The path.
        path: PathBuf,
        /// The environment variable that gave it.
        variable: Option<&'static str>,
        /// The fault that was found.
        fault: FileFault,
    },
    /// The system's loader does not accept the file.
    #[error("{}{} cannot be loaded as the {library} library", .path.display(), named_by(.variable))]
    NotALibrary {
        /// The name of the library.
        library: &'static str,
        /// The path.
        path: PathBuf,
        /// The environment variable that gave it.
        variable: Option<&'static str>,
        /// The loader's error.
        source: LoaderError,
    },
    /// The file is a library, but not this one.
    #[error("{}{} is not the {library} library: it has no symbol `{symbol}`", place(.path), named_by(.variable))]
    MissingSymbol {
        /// The name of the library.
        library: &'static str,
        /// The library's file; `None` for functions that were handed over.
        path: Option<PathBuf>,
        /// The environment variable that gave it.
        variable: Option<&'static str>,
        /// The symbol that every release has.
        symbol: &'static str,
    },
    /// This process has another copy loaded already.
    #[error(
        "{}{} was asked for, but this process has another {library} loaded already: {}; two copies do not know of \
         each other, and `Api::load` takes the one that is loaded",
        .wanted.display(), named_by(.variable), .loaded.display()
    )]
    OtherCopyLoaded {
        /// The name of the library.
        library: &'static str,
        /// The path asked for.
        wanted: PathBuf,
        /// The environment variable that gave it.
        variable: Option<&'static str>,
        /// The copy that is loaded.
        loaded: PathBuf,
    },
    /// The library does not report its release.
    #[error("{}{} does not say which {library} release it is: {fault}", place(.path), named_by(.variable))]
    Version {
        /// The name of the library.
        library: &'static str,
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
        "this process has {library} loaded already, from {}, but the system's loader does not hand it out; \
         its owner can, for `Api::from_loader`, and a second copy is refused", .loaded.display()
    )]
    OutOfReach {
        /// The name of the library.
        library: &'static str,
        /// The copy that is loaded.
        loaded: PathBuf,
        /// The loader's error.
        source: LoaderError,
    },
    /// Nothing was found.
    #[error("no {library} found; {advice}. Tried:{}", list(.tried))]
    NotFound {
        /// The name of the library.
        library: &'static str,
        /// Advice on getting it.
        advice: &'static str,
        /// Each file or name, with the loader's error.
        tried: Vec<(PathBuf, LoaderError)>,
    },
}

/// An error of the system's loader, in its own words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct LoaderError(String);

impl LoaderError {
    pub(crate) fn new(error: &libloading::Error) -> Self {
        Self(std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string))
    }
}

/// Why a library does not report its release.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VersionFault {
    /// The function is absent.
    #[error("`{0}` is not there")]
    Absent(&'static str),
    /// The function failed.
    #[error("`{function}` answered {status}{hint}")]
    Failed {
        /// The function.
        function: &'static str,
        /// The status that it returned.
        status: u32,
        /// Explanation of the status, starting with a colon; empty if there is none.
        hint: &'static str,
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

fn named_by(variable: &Option<&'static str>) -> String {
    variable.map(|variable| format!(" (from {variable})")).unwrap_or_default()
}

fn place(path: &Option<PathBuf>) -> String {
    path.as_ref()
        .map_or_else(|| "the table that was handed over".to_owned(), |path| path.display().to_string())
}

fn list(tried: &[(PathBuf, LoaderError)]) -> String {
    tried.iter().fold(String::new(), |mut text, (name, error)| {
        // The loader's message usually begins with the name.
        let (name, message) = (name.display().to_string(), &error.0);
        let _ = match message.starts_with(&name) {
            true => write!(text, "\n  {message}"),
            false => write!(text, "\n  {name}: {message}"),
        };
        text
    })
}
