//! Binds C libraries at run time. Nothing is linked, and one binary runs with every release of a library. A call of a
//! function that the loaded release lacks returns an error that names the release needed.
//!
//! A raw crate declares the C interface of one library: it supplies a [`Library`] description and a [`Table`] of
//! functions. This crate finds and checks the file ([`Loaded::load`], [`LoadError`]) and resolves the functions. It
//! reports functions and features that the library lacks ([`Missing`]), and calls that fail ([`CallError`]).
//! `lockstep-nccl-sys` and `lockstep-cuda-driver-sys` are raw crates.
//!
//! | module, from the bottom up | subject |
//! |---|---|
//! | `version`, `library` | a release; the description of a library and of its functions |
//! | `missing`, `requirement` | a missing function, feature or field; the functions and releases a feature needs |
//! | `file`, `maps`, `error` | checks of an ELF file; files mapped into this process; errors of loading |
//! | `open`, `candidates` | finding and opening the library; listing the copies in the usual places of the host |
//! | `call` | result codes, and errors of calls |
//! | `table`, `loaded` | the traits that a raw crate implements; the loaded library |
//! | `releases` | the functions and features that each release adds |
//! | `enumeration`, `features`, `functions`, `api` | macros that define the items of a raw crate |
//!
//! The README has a complete example. `enumeration!` and the other macros define public items in the module that calls
//! them. If that module is private, the raw crate must re-export the items to make them available to its users.

#[cfg(not(target_os = "linux"))]
compile_error!(
    "lockstep-dynload supports Linux only: it finds libraries through /proc and the loader of Linux"
);

mod api;
mod call;
mod candidates;
mod enumeration;
mod error;
mod features;
mod file;
mod functions;
mod library;
mod loaded;
mod maps;
mod missing;
mod open;
mod releases;
mod requirement;
mod table;
mod version;

#[doc(hidden)]
pub use bitflags;
pub use call::{CallError, Status};
pub use candidates::{Candidate, Origin};
pub use error::{LoadError, LoaderError, VersionFault};
pub use file::{FileFault, Target};
pub use library::{Function, Library};
pub use loaded::Loaded;
pub use missing::{Item, Missing, Why};
pub use open::by_name;
pub use releases::{Release, releases};
pub use requirement::{KnownBad, Requirement};
pub use table::{Features, Table};
pub use version::Version;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
