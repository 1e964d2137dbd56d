//! Raw NCCL, loaded at run time: nothing is linked, no toolkit is needed to build, and one binary runs with
//! every release from 2.13 to 2.32.
//!
//! | module | subject |
//! |---|---|
//! | `generated` | types, constants and the table of functions, from the newest headers |
//! | `dynamic` | how the library is found, and what it lacks |
//! | `config` | a communicator's configuration, and which of its fields a release ignores |
//! | `config_builder`, `environment` | a configuration for the library at hand, and what beats it |
//! | `initial` | other structures that say their own size, as the header initialises them |
//! | `device` | structures of the device interface that differ by release: room and handle |
//! | `history` | since when structures, fields and constants are as they are |
//! | `feature` | what depends on the release |
//! | `result` | what a result code means to a release |
//! | [`python`] | the copies that Python environments have |
//!
//! For: who wants NCCL's own functions without linking it. Not for: who wants a safe interface.
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
mod result;
mod version;

pub use binding::{NAMES, VARIABLE};
pub use config::*;
pub use config_builder::{Config, ConfigBuilder, ConfigError, CtaPolicy, GraphUsage};
pub use dynamic::{
    Api, Candidate, FileFault, Function, Item, KnownBad, LoadError, Missing, Origin, Release, Target,
    VersionFault, Why, candidates, releases,
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

#[cfg(test)]
extern crate self as nccl_sys;
#[cfg(test)]
#[path = "../tests/main.rs"]
mod end_to_end;
