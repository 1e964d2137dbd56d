//! The description of a library. A raw crate, which declares the C interface of one library, supplies it.

use std::fmt;
use std::path::PathBuf;

use crate::version::Version;

/// The description of a library: how to find it, and how to report functions that it lacks.
pub struct Library {
    /// The name of the library in error messages.
    pub name: &'static str,
    /// The name of the environment variable that holds the path of the library's file.
    pub variable: &'static str,
    /// The names that are passed to the system's loader (`dlopen`), in order of preference.
    pub names: &'static [&'static str],
    /// The file name without a version, such as `libnccl.so`. Loaded copies are recognised by it.
    pub stem: &'static str,
    /// The C symbols of functions that every supported release has. A library that lacks one of them is refused. The
    /// first is the function that reports the release.
    pub required: &'static [&'static str],
    /// All functions of the table.
    pub functions: &'static [Function],
    /// Advice on getting the library, for the error that no copy was found.
    pub advice: &'static str,
    /// A description of the packages that install the library in folders that the system's loader does not search,
    /// for example "a Python environment".
    pub packages: &'static str,
    /// Returns the paths of the library's files that these packages have installed.
    pub packaged: fn() -> Vec<PathBuf>,
}

impl Library {
    /// Returns the function with this C symbol; `None` if the table does not have it.
    pub fn function(&self, name: &str) -> Option<&'static Function> {
        self.functions.iter().find(|function| function.name == name)
    }
}

impl PartialEq for Library {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for Library {}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Library({:?})", self.name)
    }
}

/// The description of one function of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Function {
    /// The C symbol, which is also the name of the table's field.
    pub name: &'static str,
    /// The symbol without the suffix of its revision: `cuMemAlloc` for `cuMemAlloc_v2`.
    pub base: &'static str,
    /// The first release whose library has the function in this revision.
    pub since: Version,
    /// The first release whose header declares the function; `None` if this is `since`.
    pub declared: Option<Version>,
}

impl Function {
    #[doc(hidden)]
    pub const fn new(
        name: &'static str,
        base: &'static str,
        since: Version,
        declared: Option<Version>,
    ) -> Self {
        Self { name, base, since, declared }
    }
}
