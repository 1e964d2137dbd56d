//! The raw CUDA driver API, loaded at run time: nothing is linked, no toolkit is needed to build, and one
//! binary runs with every driver from 11.7 to 13.x.
//!
//! | module | subject |
//! |---|---|
//! | `generated` | types, constants and the table of functions, from the newest `cuda.h` |
//! | `dynamic` | how the library is found, and what it lacks |
//! | `feature` | what depends on the release |
//!
//! The table has every function of `cuda.h` that a driver from 11.7 on can be asked for, each with the first release
//! that has it, except the variants `…_ptds` and `…_ptsz` (streams are passed explicitly,
//! [`CU_STREAM_PER_THREAD`] among them) and the revisions that all of these drivers have a newer one of
//! ([`SUPERSEDED`]). A structure is laid out as the newest header has it: what older releases do not know of it lies
//! in what was reserved, or at its end, and zero there is what they expect.
//!
//! For: who wants the driver's own functions without linking them. Not for: who wants a safe interface.
//!
//! Invariants: an enumeration is an integer and holds any value; a function is called only if the library has
//! it, in the revision that its name says (`cuMemAlloc_v2`); the library is never unloaded.
//!
//! ```no_run
//! let cuda = cuda_driver_sys::Api::load()?;
//! println!("CUDA driver {} at {:?}", cuda.version(), cuda.path());
//! cuda.require(cuda_driver_sys::Feature::VIRTUAL_MEMORY)?;
//! // SAFETY: may be called at any time.
//! let result = unsafe { (cuda.cuInit()?)(0) };
//! assert_eq!(result, cuda_driver_sys::CUresult::CUDA_SUCCESS);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod binding;
#[macro_use]
mod dynamic;
mod feature;
mod generated;
mod version;

pub use binding::{NAMES, VARIABLE};
pub use dynamic::{
    Api, Candidate, FileFault, Function, Item, KnownBad, LoadError, Missing, Origin, Release, Target,
    VersionFault, Why, candidates, releases,
};
pub use feature::Feature;
pub use generated::*;
pub use version::Version;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg(test)]
extern crate self as cuda_driver_sys;
#[cfg(test)]
#[path = "../tests/main.rs"]
mod end_to_end;
