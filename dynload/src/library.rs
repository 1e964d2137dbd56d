//! The description of a library, which the raw crates supply.

use std::fmt;
use std::path::PathBuf;

use crate::version::Version;

/// The facts about a library that finding it and reporting its gaps depend on.
pub struct Library {
    /// The name in messages.
    pub name: &'static str,
    /// The environment variable that names the library's file.
    pub variable: &'static str,
    /// The names that are passed to the system's loader, in this order.
    pub names: &'static [&'static str],
    /// The file name without the version, by which loaded copies are recognised: `libnccl.so`.
    pub stem: &'static str,
    /// Functions that every supported release has; the first one reports the release.
    pub required: &'static [&'static str],
    /// All functions of the table.
    pub functions: &'static [Function],
    /// Advice for a host without the library.
    pub advice: &'static str,
    /// Description of the packages whose folders the system's loader does not search.
    pub packages: &'static str,
    /// Returns the files of such packages.
    pub packaged: fn() -> Vec<PathBuf>,
}

impl Library {
    /// Returns the function with this C symbol, if the table has it.
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

/// The facts about one function of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Function {
    /// The C symbol, and the field of the table.
    pub name: &'static str,
    /// The symbol without the suffix of its revision: `cuMemAlloc` for `cuMemAlloc_v2`.
    pub base: &'static str,
    /// The release whose library first has it, in this revision.
    pub since: Version,
    /// The release whose header first declares it, if that is later than `since`.
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
