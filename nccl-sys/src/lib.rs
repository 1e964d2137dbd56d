//! Raw NCCL, loaded at run time. Nothing is linked and no toolkit is needed to build. One binary runs with
//! every release from 2.13 to 2.32.
//!
//! | module | subject |
//! |---|---|
//! | `generated` | types, constants and the table of functions, from the newest headers |
//! | `dynamic` | how the library is found, and its missing functions and features |
//! | `config` | a communicator's configuration, and the fields ignored by a release |
//! | `config_builder`, `environment` | a configuration for the library at hand, and the variables overriding it |
//! | `initial` | initial values of other structures declaring their own size |
//! | `device` | structures of the device interface with layouts that differ by release, as opaque storage |
//! | `history` | the release of each structure, field and constant |
//! | `feature` | features depending on the release |
//! | `result` | the meaning of a result code for a release |
//! | [`python`] | copies installed in Python environments |
//!
//! For programs that call NCCL's own functions without linking it. Not a safe interface.
//!
//! Invariants: an enumeration is an integer and holds any value; a function is called only if the library has
//! it; the library is never unloaded.
//!
//! ```no_run
//! let nccl = nccl_sys::Api::load()?;
//! println!("NCCL {} at {:?}", nccl.version(), nccl.path());
//! nccl.require(nccl_sys::Feature::WINDOWS)?;
//! let mut id = nccl_sys::ncclUniqueId::default();
//! // SAFETY: the identifier is written in place.
//! let result = unsafe { (nccl.ncclGetUniqueId()?)(&mut id) };
//! assert_eq!(result, nccl_sys::ncclResult_t::ncclSuccess);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#[cfg(not(target_os = "linux"))]
compile_error!("lockstep-nccl-sys supports Linux only: NCCL runs on Linux alone");

mod binding;
#[macro_use]
mod config;
mod config_builder;
mod device;
#[macro_use]
mod dynamic;
mod environment;
mod feature;
#[macro_use]
mod history;
mod generated;
mod initial;
pub mod python;
#[cfg(test)]
mod python_tests;
mod result;
mod version;

pub use binding::{NAMES, VARIABLE};
pub use config::*;
pub use config_builder::{Config, ConfigBuilder, ConfigError, CtaPolicy, GraphUsage};
pub use dynamic::{
    Api, Candidate, FileFault, Function, Item, KnownBad, LoadError, LoaderError, Missing, Origin, Release,
    Target, VersionFault, Why, candidates, releases,
};
pub use environment::{Override, overrides};
pub use feature::Feature;
pub use generated::*;
pub use history::{Constant, Field, Structure};
pub use initial::NCCL_COMM_NULL;
pub use result::Meaning;
pub use version::Version;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
