//! The raw CUDA driver API, loaded at run time. Nothing is linked, and no toolkit is needed to build. One binary runs
//! with every driver from 11.7 to 13.x.
//!
//! | module | subject |
//! |---|---|
//! | `generated` | types, constants and the table of functions, from the newest `cuda.h` |
//! | `feature` | features that depend on the release |
//! | `binding` | the description of the library for `dynload`, which finds and loads it |
//!
//! The table has every function of `cuda.h` that some driver from 11.7 on offers, and the first release of each. Two
//! groups are left out:
//! - The variants `…_ptds` and `…_ptsz`, whose default stream is that of the calling thread. In this crate the default
//!   stream is the legacy one. [`CU_STREAM_PER_THREAD`] can be passed to every function that takes a stream.
//! - The [`SUPERSEDED`] revisions. A revision is a version of a function with its own symbol: `cuMemAlloc` is the first
//!   revision, `cuMemAlloc_v2` the second. The table leaves a revision out if every driver from 11.7 on has a newer one
//!   of the same function.
//!
//! A structure is laid out as in the newest header. A field that a newer release added lies in space that the
//! older headers reserve, or after the end of the older structure. Set such a field to zero for an older driver.
//!
//! This crate is for programs that call the driver's own functions without linking them. Its interface is not safe.
//!
//! Invariants:
//! - An enumeration is an integer and holds any value.
//! - A function is called only if the library has it in the revision that its symbol names.
//! - The library is never unloaded.
//!
//! ```no_run
//! let cuda = cuda_driver_sys::Api::load()?;
//! println!("CUDA driver {} at {:?}", cuda.version(), cuda.path());
//! cuda.require(cuda_driver_sys::Feature::VIRTUAL_MEMORY)?;
//! // SAFETY: may be called at any time.
//! unsafe { cuda.init(0) }?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#[cfg(not(target_os = "linux"))]
compile_error!(
    "lockstep-cuda-driver-sys supports Linux only: it finds the driver through /proc and the loader of Linux"
);

mod binding;
mod feature;
mod generated;

pub use binding::{
    Api, CallError, NAMES, Release, VARIABLE, candidates, releases, version_code, version_from_code,
};
pub use dynload::{
    Candidate, FileFault, Function, Item, KnownBad, LoadError, LoaderError, Missing, Origin, Target, Version,
    VersionFault, Why,
};
pub use feature::Feature;
pub use generated::*;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
