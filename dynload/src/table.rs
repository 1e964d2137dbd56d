//! The traits that a raw crate, which declares one library's C interface, implements for this crate.

use std::ffi::{CStr, c_void};
use std::fmt;

use crate::error::VersionFault;
use crate::library::Library;
use crate::requirement::Requirement;
use crate::version::Version;

/// A table of a library's functions. [`functions!`](macro@crate::functions) defines the structure `Table`, and the raw
/// crate implements this trait for it.
///
/// # Safety
/// The functions of the library that [`LIBRARY`](Self::LIBRARY) names must be as the table declares them. It must be
/// sound to run the library's initialisers at any time. `resolve` and `version` may call no functions of the library
/// but those that the table declares.
pub unsafe trait Table: Sized + Send + Sync + 'static {
    /// The description of the library.
    const LIBRARY: &'static Library;

    /// The flags of the library's features.
    type Feature: Features;

    /// Builds the table from the library's symbols. `symbol` takes the name of a C symbol and returns its address, or
    /// null if the symbol is absent.
    ///
    /// # Safety
    /// Every address that is not null must be that of the C function asked for.
    unsafe fn resolve(symbol: &mut dyn FnMut(&CStr) -> *const c_void) -> Self;

    /// Asks the library for its release.
    ///
    /// # Errors
    /// [`VersionFault`] if the version function is absent, fails, or reports a number that is no release.
    ///
    /// # Safety
    /// Every function of the table must keep the contract of the C function whose name it has.
    unsafe fn version(&self) -> Result<Version, VersionFault>;

    /// Returns the address of the function with this C symbol; `None` if the library lacks the function, or the table
    /// does not declare it.
    fn address(&self, name: &str) -> Option<*const c_void>;
}

/// Flags of a library's features. [`features!`](macro@crate::features) defines them and implements this trait.
pub trait Features: Copy + fmt::Debug + Send + Sync + 'static {
    /// The requirements of each feature.
    const REQUIREMENTS: &'static [Requirement];

    /// The flags as an integer.
    fn bits(self) -> u64;

    /// The flags with these bits.
    fn from_bits(bits: u64) -> Self;

    /// Returns the requirements of each feature in `self`.
    fn requirements(self) -> impl Iterator<Item = &'static Requirement> {
        Self::REQUIREMENTS.iter().filter(move |needs| self.bits() & needs.bit != 0)
    }
}
