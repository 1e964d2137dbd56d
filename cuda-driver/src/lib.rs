//! Safe CUDA driver API: devices, contexts, streams, events, graph capture, memory of every kind, virtual
//! memory with shareable handles, modules and launches of kernels.
//!
//! Not here: textures, the runtime API (`cudart`), and any policy (caching, pooling, retrying). No toolkit is
//! needed to build, nothing is linked: the driver is loaded when [`Driver::load`] is called, and a function that it
//! lacks is [`Error::Missing`], not a crash.
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
//! | module | holds |
//! | --- | --- |
//! | root | [`Driver`], [`Device`] and its [`Capabilities`], [`Context`], [`Stream`], [`Event`], [`Error`] |
//! | [`graph`] | stream capture as a guard, graphs and their executables |
//! | [`mod@slice`] | typed device and pinned slices, and safe copies between them |
//! | [`memory`] | [`DevicePtr`], untyped device, pinned, registered and stream-ordered memory, pools, legacy inter-process handles, pointer queries |
//! | [`module`] | device code: PTX and binaries with the driver's log, kernels, their launches |
//! | [`vmm`] | physical memory, address reservations, mappings, tables of pages that move, shareable handles |
//! | [`vmm::multicast`] | memory of several devices behind one address; off unless a program asks for it by name |
//!
//! # Invariants
//! - **Nothing is torn down in the wrong order.** Every object holds its parents: an event its context, a
//!   mapping its reservation and its physical memory. Contexts, streams, physical memory and reservations are
//!   handles, cheap to clone; the last one gone releases.
//! - **The current context of a thread stays what it was.** A method that needs a current context makes its own
//!   current and restores the former before it returns. Calls on a stream or an event need none: the driver
//!   takes the context from the handle.
//! - **Objects of two drivers do not mix.** A call that is given both is refused ([`Error::DifferentDrivers`]), and they
//!   are never equal.
//! - **`Drop` never panics and never hides a failure**: it goes to the hook of [`set_drop_error_hook`]. Where
//!   the outcome matters there is a consuming method that returns it ([`vmm::Mapping::unmap`],
//!   [`memory::DeviceMemory::free`]).
//! - **Integers from the driver are data.** A code, status or attribute that this crate does not know is kept,
//!   not interpreted.
//! - Sizes and offsets are bytes unless a name says otherwise; times are µs.

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
mod handle_types;
pub mod memory;
pub mod module;
pub mod slice;
mod stream;
mod teardown;
pub mod vmm;

pub use address::DevicePtr;
pub use context::{Context, ContextFlags};
pub use cuda_driver_sys as sys;
pub use device::{Capabilities, Device, PeerLink, PrimaryState};
pub use driver::Driver;
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
