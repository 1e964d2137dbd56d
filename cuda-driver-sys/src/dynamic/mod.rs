//! A C library that is bound at run time: its functions and enumerations, how it is found, and its missing
//! parts.
//!
//! One folder for `cuda-driver-sys` and `nccl-sys` (in the latter a link to the former's): nothing in it
//! depends on the library that it serves. The differences are in each crate's `binding`, `feature` and
//! `version`.

#[macro_use]
mod enumeration;
#[macro_use]
mod features;
#[macro_use]
mod functions;
#[macro_use]
mod zeroed;
mod api;
mod candidates;
mod file;
pub(crate) mod library;
mod maps;
mod missing;
mod releases;
pub(crate) mod requirement;
#[cfg(test)]
pub(crate) mod tests;

pub use api::Api;
pub use candidates::{Candidate, Origin, candidates};
pub use file::{FileFault, Target};
pub use functions::Function;
pub use library::{LoadError, LoaderError, VersionFault};
pub use missing::{Item, Missing, Why};
pub use releases::{Release, releases};
pub use requirement::KnownBad;
