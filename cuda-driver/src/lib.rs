//! Safe CUDA driver API: devices, contexts, streams, events, graph capture, memory of every kind, virtual memory with
//! shareable handles, modules and kernel launches.
//!
//! The crate does not cover textures, the runtime API (`cudart`), or any policy (caching, pooling, retrying).
//!
//! Building needs no toolkit, and nothing is linked: [`Driver::load`] loads the driver at run time. A call that needs a
//! function that the driver lacks returns [`Error::Missing`].
//!
//! ```no_run
//! use cuda_driver::{Driver, Stream, StreamFlags};
//!
//! # fn main() -> cuda_driver::Result<()> {
//! let context = Driver::load()?.device(0)?.retain_primary()?;
//! let stream = Stream::new(&context, StreamFlags::NON_BLOCKING)?;
//! let mut values = stream.clone_htod(&[1u32, 2, 3, 4])?;
//! stream.memset_zeros(values.slice_mut(2..)?)?;
//! assert_eq!(stream.clone_dtoh(&values)?, [1, 2, 0, 0]);
//! # Ok(())
//! # }
//! ```
//!
//! # Map
//! | module | contents |
//! | --- | --- |
//! | root | [`Driver`], [`Device`] and its [`Capabilities`], [`Context`], [`Stream`], [`Event`], [`Error`] |
//! | [`graph`] | stream capture as a guard, graphs and their executables |
//! | [`graph_memory`] | owners of memory that captured work uses by address |
//! | [`mod@slice`] | typed device and pinned slices, and safe copies between them |
//! | [`memory`] | [`DevicePtr`], untyped memory, memory pools, legacy IPC handles, pointer queries |
//! | [`module`] | device code (PTX and binaries), the log of the driver's compiler, kernels and their launches |
//! | [`vmm`] | physical memory, address reservations, mappings, page tables for frequent remapping, shareable handles |
//! | [`vmm::multicast`] | memory of several devices behind one address; a program must opt in with the `unsafe` [`Multicast::opt_in`](vmm::multicast::Multicast::opt_in) |
//!
//! # Invariants
//! - **Objects are released in the right order.** Every object keeps its parents alive: an event keeps its context, a
//!   mapping keeps its reservation and its physical memory. Contexts, streams, physical memory and reservations are
//!   handles that are cheap to clone. Dropping the last clone releases the object.
//! - **The current context of a thread does not change.** A method that needs a current context makes its own context
//!   current, and restores the former one before it returns. It can also return [`Error::Driver`] from
//!   `cuCtxGetCurrent` or `cuCtxPushCurrent_v2`; its documentation may leave this out. Most calls on a stream or an
//!   event need no current context, because the driver takes the context from the handle.
//! - **Objects of two drivers do not mix.** Two [`Driver`] values are the same driver if they call the same loaded
//!   library, as after two calls of [`Driver::load`]. A call on objects of different drivers returns
//!   [`Error::DifferentDrivers`]. Such objects are never equal.
//! - **`Drop` never panics, and reports failures.** The hook of [`set_drop_error_hook`] receives the error; without
//!   a hook it is written to standard error. Three kinds of failures are not reported: failures after the driver has
//!   shut down, failures to discard an invalidated or unjoined capture, and failures to relax the thread's capture
//!   mode before a release. Where the outcome matters, call the method that consumes the object and returns the outcome
//!   ([`vmm::Mapping::unmap`], [`memory::DeviceMemory::free`]).
//! - **Unknown values are kept.** A code, attribute, flag or kind of memory that this crate does not know is passed
//!   on as the driver reported it. There are two exceptions: an unknown capture status is
//!   [`Invalidated`](graph::CaptureStatus::Invalidated), and unknown access rights are
//!   [`ReadWrite`](vmm::Access::ReadWrite).
//! - Sizes and offsets are in bytes unless a name or its documentation says otherwise. Times are in µs.

mod address;
mod call;
mod context;
mod device;
mod driver;
mod driver_error;
mod element;
mod error;
mod event;
pub mod graph;
pub mod graph_memory;
mod handle_types;
pub mod memory;
pub mod module;
pub mod slice;
mod stream;
mod teardown;
mod unwind;
pub mod vmm;

pub use address::DevicePtr;
pub use context::{Context, ContextFlags};
pub use cuda_driver_sys as sys;
pub use device::{Capabilities, Device, PeerLink, PrimaryState, uuid_text};
pub use driver::{CaptureCount, Driver};
pub use driver_error::DriverError;
pub use element::Element;
pub use error::{Error, Result};
pub use event::{Event, EventFlags, IpcEventHandle};
pub use slice::{DeviceSlice, DeviceView, DeviceViewMut, PinnedSlice};
pub use stream::{MemoryOp, Stream, StreamFlags, WaitCondition};
pub use teardown::set_drop_error_hook;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
