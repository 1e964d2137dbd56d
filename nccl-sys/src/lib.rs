//! Raw bindings of NCCL. The library is loaded at run time. Nothing is linked, and no toolkit is needed to build. One
//! binary runs with every release from 2.13 to 2.32.
//!
//! | module | subject |
//! |---|---|
//! | `generated` | types, constants and the table of functions, from the newest headers |
//! | `config` | the configuration of a communicator, and the fields that a release ignores |
//! | `config_builder`, `environment` | a builder of configurations; environment variables that override one |
//! | `initial` | initial values of other structures that declare their own size and release |
//! | `device` | structures of the device interface whose layout differs by release, as opaque storage |
//! | `history` | the first release with each field and constant; the sizes of structures |
//! | `feature` | features that depend on the release |
//! | `binding` | the description of the library for `dynload`, which finds and loads it |
//! | `result` | the meaning of a result code in a release |
//! | [`python`] | finds the copies of NCCL in Python environments |
//!
//! This crate is for programs that call NCCL's own functions without linking NCCL. Its interface is not safe.
//!
//! Invariants:
//! - An enumeration is an integer and holds any value.
//! - A function is called only if the library has it.
//! - The library is never unloaded.
//!
//! ```no_run
//! let nccl = nccl_sys::Api::load()?;
//! println!("NCCL {} at {:?}", nccl.version(), nccl.path());
//! nccl.require(nccl_sys::Feature::WINDOWS)?;
//! let mut id = nccl_sys::ncclUniqueId::default();
//! // SAFETY: NCCL writes the identifier to `id`.
//! unsafe { nccl.get_unique_id(&mut id) }?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#[cfg(not(target_os = "linux"))]
compile_error!("lockstep-nccl-sys supports Linux only: NCCL runs on Linux alone");

mod binding;
#[macro_use]
mod config;
mod config_builder;
mod device;
mod environment;
mod feature;
#[macro_use]
mod history;
mod generated;
mod initial;
pub mod python;
mod result;

pub use binding::{
    Api, CallError, NAMES, Release, VARIABLE, candidates, releases, version_code, version_from_code,
};
pub use config::*;
pub use config_builder::{Config, ConfigBuilder, ConfigError, CtaPolicy, GraphUsage};
pub use dynload::{
    Candidate, FileFault, Function, Item, KnownBad, LoadError, LoaderError, Missing, Origin, Target, Version,
    VersionFault, Why,
};
pub use environment::{Override, overrides};
pub use feature::Feature;
pub use generated::*;
pub use history::{Constant, Field, Structure};
pub use initial::NCCL_COMM_NULL;
pub use result::Meaning;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
