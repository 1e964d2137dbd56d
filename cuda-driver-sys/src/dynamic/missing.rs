//! A missing function or feature, and the reason.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::{Feature, Version, binding};

/// The library at hand lacks a function or a feature.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Missing {
    /// The missing item.
    pub item: Item,
    /// The release that first has it.
    pub needed: Version,
    /// The release found.
    pub found: Version,
    /// The library's file; `None` for a table that was handed over.
    pub path: Option<PathBuf>,
    /// Why it counts as missing.
    pub why: Why,
}

/// A missing item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Item {
    /// A function, by its C symbol.
    Function(&'static str),
    /// One or several features.
    Feature(Feature),
    /// A field of a structure, which the library would ignore.
    Field {
        /// The structure.
        structure: &'static str,
        /// The field.
        field: &'static str,
    },
}

/// Why something counts as missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Why {
    /// The library is older than the release that first has it.
    TooOld,
    /// The library is new enough, yet does not export this symbol.
    NoSymbol(&'static str),
    /// The release is known to do this wrong.
    KnownBad {
        /// Description of the fault.
        fault: &'static str,
        /// The first release after it that is not known to do it wrong.
        mended: Version,
    },
}

impl std::error::Error for Missing {}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { item, needed, found, path, why } = self;
        let library = binding::LIBRARY;
        let place = Place(path.as_deref());
        match why {
            Why::TooOld => write!(f, "{item} needs {library} {needed} or newer; found {found}{place}"),
            Why::NoSymbol(symbol) => write!(
                f,
                "{item} came with {library} {needed}, but `{symbol}` is not in {library} {found}{place}"
            ),
            Why::KnownBad { fault, mended } => {
                write!(f, "{item} is not used with {library} {found}{place}: {fault}; use {mended} or newer")
            }
        }
    }
}

/// The location of a library, as the end of a sentence.
struct Place<'a>(Option<&'a Path>);

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(path) => write!(f, " ({})", path.display()),
            None => f.write_str(" (a table that was handed over)"),
        }
    }
}

impl fmt::Display for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Function(name) => write!(f, "`{name}`"),
            Self::Field { structure, field } => write!(f, "`{structure}.{field}`"),
            Self::Feature(feature) => {
                for (index, (name, _)) in feature.iter_names().enumerate() {
                    write!(f, "{}{name}", if index == 0 { "" } else { ", " })?;
                }
                Ok(())
            }
        }
    }
}
