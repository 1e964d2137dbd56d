//! Errors of loading a library.

use std::ffi::c_int;
use std::fmt::Write;
use std::io;
use std::path::PathBuf;

use crate::file::{FileFault, Unfit};

/// The reason why a library could not be loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The file at the path does not exist or cannot be read.
    #[error("cannot read {}{}, which should be the file of the {library} library", .path.display(), named_by(.variable))]
    NoFile {
        /// The name of the library.
        library: &'static str,
        /// The path, as it was given.
        path: PathBuf,
        /// The environment variable that named the path, if one did.
        variable: Option<&'static str>,
        /// The reason why the file cannot be read.
        source: io::Error,
    },
    /// A check found that the file cannot be the library. The file was not loaded.
    #[error("{}{} cannot be the {library} library: {fault}", .path.display(), named_by(.variable))]
    InvalidFile {
        /// The name of the library.
        library: &'static str,
        /// The path, with symbolic links resolved.
        path: PathBuf,
        /// The environment variable that named the path, if one did.
        variable: Option<&'static str>,
        /// The fault that was found.
        fault: FileFault,
    },
    /// The system's loader (`dlopen`) could not load the file.
    #[error("{}{} cannot be loaded as the {library} library", .path.display(), named_by(.variable))]
    NotALibrary {
        /// The name of the library.
        library: &'static str,
        /// The path, with symbolic links resolved.
        path: PathBuf,
        /// The environment variable that named the path, if one did.
        variable: Option<&'static str>,
        /// The loader's error.
        source: LoaderError,
    },
    /// The library lacks a symbol that every supported release has. It is another library, or an older release.
    #[error("{}{} is not the {library} library: it has no symbol `{symbol}`", place(.path), named_by(.variable))]
    MissingSymbol {
        /// The name of the library.
        library: &'static str,
        /// The library's file, or the name that was passed to the system's loader if the file is not known. `None` if
        /// the caller supplied the addresses, or if the library was loaded already and its file is not known.
        path: Option<PathBuf>,
        /// The environment variable that named the path, if one did.
        variable: Option<&'static str>,
        /// The absent symbol.
        symbol: &'static str,
    },
    /// The process has loaded another copy of the library already.
    #[error(
        "{}{} was asked for, but this process has another {library} loaded already: {}; two copies do not know of \
         each other, and `Api::load` takes the one that is loaded",
        .wanted.display(), named_by(.variable), .loaded.display()
    )]
    OtherCopyLoaded {
        /// The name of the library.
        library: &'static str,
        /// The file that was to be loaded.
        wanted: PathBuf,
        /// The environment variable that named the path, if one did.
        variable: Option<&'static str>,
        /// The file of the copy that is loaded.
        loaded: PathBuf,
    },
    /// The library does not report its release.
    #[error("{}{} does not say which {library} release it is: {fault}", place(.path), named_by(.variable))]
    Version {
        /// The name of the library.
        library: &'static str,
        /// The library's file; `None` if it is not known, for example because the caller supplied the table.
        path: Option<PathBuf>,
        /// The environment variable that named the path, if one did.
        variable: Option<&'static str>,
        /// The fault that was found.
        fault: VersionFault,
    },
    /// The process has loaded a copy of the library for which `dlopen` does not return a handle. For example, the
    /// file was deleted, or the copy is in a linker namespace of its own (`dlmopen`). Only the code that loaded this
    /// copy has a handle, and can pass its symbols to `Api::from_loader`.
    #[error(
        "this process has {library} loaded already, from {}, but the system's loader does not hand it out; \
         its owner can, for `Api::from_loader`, and a second copy is refused", .loaded.display()
    )]
    OutOfReach {
        /// The name of the library.
        library: &'static str,
        /// The file of the copy that is loaded.
        loaded: PathBuf,
        /// The loader's error.
        source: LoaderError,
    },
    /// No copy of the library was found.
    #[error("no {library} found; {advice}. Tried:{}", list(.tried))]
    NotFound {
        /// The name of the library.
        library: &'static str,
        /// Advice on installing the library.
        advice: &'static str,
        /// Each file or name that was tried, with the error of the loader or of the check of the file.
        tried: Vec<(PathBuf, LoaderError)>,
    },
}

/// The message of an error of the system's loader, or of the check of a file before it is loaded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct LoaderError(String);

impl LoaderError {
    pub(crate) fn new(error: &libloading::Error) -> Self {
        Self(std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string))
    }
}

impl From<Unfit> for LoaderError {
    fn from(unfit: Unfit) -> Self {
        Self(match unfit {
            Unfit::Unreadable(error) => error.to_string(),
            Unfit::Fault(fault) => fault.to_string(),
        })
    }
}

/// The reason why a library does not report its release.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VersionFault {
    /// The library does not have the function that reports its release. The value is the name of the function.
    #[error("`{0}` is not there")]
    Absent(&'static str),
    /// The function that reports the release returned an error.
    #[error("`{function}` answered {status}{hint}")]
    Failed {
        /// The function's name.
        function: &'static str,
        /// The status that it returned.
        status: u32,
        /// An explanation of the status, which starts with a colon; empty if there is none.
        hint: &'static str,
    },
    /// The number that the function reported is not that of a release.
    #[error("`{function}` said {code}, which is no release")]
    Nonsense {
        /// The function's name.
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
        // The loader's message usually begins with the name, which is then not repeated.
        let (name, message) = (name.display().to_string(), &error.0);
        let _ = match message.starts_with(&name) {
            true => write!(text, "\n  {message}"),
            false => write!(text, "\n  {name}: {message}"),
        };
        text
    })
}
