//! The error for a function, feature or field that the library lacks, and the reason.

use std::fmt;
use std::path::Path;

use crate::library::Library;
use crate::version::Version;

/// The loaded library lacks a function, a feature or a field of a structure.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Missing {
    /// The missing item.
    pub item: Item,
    /// The first release with the item.
    pub needed: Version,
    /// The release of the loaded library.
    pub found: Version,
    /// The library's file; `None` if it is not known, as for a table that the caller supplied.
    pub path: Option<Box<Path>>,
    /// The reason why the item counts as missing.
    pub why: Why,
    pub(crate) library: &'static Library,
}

/// A function, feature or field that a library can lack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Item {
    /// A function, by its C symbol.
    Function(&'static str),
    /// A feature, by its name.
    Feature(&'static str),
    /// A field of a structure. The library is older than the field and would ignore its value.
    Field {
        /// The structure.
        structure: &'static str,
        /// The field.
        field: &'static str,
    },
}

/// The reason why an item counts as missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Why {
    /// The library is older than the first release with the item.
    TooOld,
    /// The library is new enough, yet does not export this symbol.
    NoSymbol(&'static str),
    /// The library's release has the item, but with a known fault.
    KnownBad {
        /// Description of the fault.
        fault: &'static str,
        /// The first later release without a known fault in this item.
        mended: Version,
    },
}

impl Missing {
    /// The name of the library.
    pub fn library(&self) -> &'static str {
        self.library.name
    }
}

impl std::error::Error for Missing {}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { item, needed, found, path, why, library: Library { name, .. } } = self;
        let place = path.as_ref().map(|path| path.display().to_string());
        let place = format!(" ({})", place.as_deref().unwrap_or("a table that was handed over"));
        match why {
            Why::TooOld => write!(f, "{item} needs {name} {needed} or newer; found {found}{place}"),
            Why::NoSymbol(symbol) => {
                write!(f, "{item} came with {name} {needed}, but `{symbol}` is not in {name} {found}{place}")
            }
            Why::KnownBad { fault, mended } => {
                write!(f, "{item} is not used with {name} {found}{place}: {fault}; use {mended} or newer")
            }
        }
    }
}

impl fmt::Display for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Function(name) => write!(f, "`{name}`"),
            Self::Field { structure, field } => write!(f, "`{structure}.{field}`"),
            Self::Feature(name) => f.write_str(name),
        }
    }
}
