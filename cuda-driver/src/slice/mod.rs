//! Typed memory: device slices, pinned host slices, and safe copies between them.
//!
//! | type | memory | like |
//! | --- | --- | --- |
//! | [`DeviceSlice`] | of the device, owned | `Vec<T>` of fixed length |
//! | [`DeviceView`], [`DeviceViewMut`] | part of a device slice | `&[T]`, `&mut [T]` |
//! | [`PinnedSlice`] | of the host, pinned | `Box<[T]>` |
//!
//! ```
//! # let world = gpu_sim::World::builder().start()?;
//! # // SAFETY: the embedded device keeps the C contracts.
//! # let driver = cuda_driver::Driver::new(unsafe { cuda_driver::sys::Api::from_parts(world.cuda()) }?)?;
//! use cuda_driver::{Stream, StreamFlags};
//!
//! let context = driver.device(0)?.retain_primary()?;
//! let stream = Stream::new(&context, StreamFlags::NON_BLOCKING)?;
//! let mut values = stream.clone_htod(&[1u32, 2, 3, 4])?;
//! stream.memset_zeros(values.slice_mut(2..)?)?;
//! assert_eq!(stream.clone_dtoh(&values)?, [1, 2, 0, 0]);
//!
//! // Asynchronous: the host goes on while the copies run, and waits when it reads `pinned`.
//! let mut pinned = context.alloc_pinned::<u32>(4)?;
//! pinned.as_mut_slice()?.copy_from_slice(&[5, 6, 7, 8]);
//! stream.memcpy_htod_async(&pinned, &mut values)?;
//! stream.memcpy_dtoh_async(&values, &mut pinned)?;
//! assert_eq!(pinned.as_slice()?, [5, 6, 7, 8]);
//! # drop((values, pinned, stream, context, driver));
//! # world.finish()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Order
//! A device slice belongs to the stream that allocated it, and is freed in that stream's order. A slice that
//! [`DeviceSlice::from_owner`] made belongs to the [stream](crate::graph::StreamBound::stream) of its memory. Any
//! stream of the same context may use a slice. Copies between devices and launches of graphs also use slices of other
//! contexts.
//!
//! A call that enqueues a use of a slice on another stream makes the two streams wait for each other: the using stream
//! waits for all earlier work of the slice's stream, and the slice's stream waits for the use. Calls on a slice
//! therefore take effect in the order in which they are made. Such a call records one event on the using stream, and
//! one on each other stream that its slices belong to. Where this cost matters, use a slice only on the stream that it
//! belongs to.
//!
//! This crate does not order raw work that uses the address of a slice
//! ([`Stream::launch_kernel`](crate::Stream::launch_kernel) with [`DeviceSlice::device_ptr`]). The caller orders such
//! work with the slice's stream.
//!
//! # Host memory
//! - Copies from and to plain host slices return when they are done.
//! - Copies from and to a [`PinnedSlice`] return when they are enqueued. The pinned slice stores an event for each
//!   copy. Host access and `drop` wait for these events.
//!
//! # Captures
//! A capture that [`Stream::begin_capture`](crate::Stream::begin_capture) began records launches, fills and copies
//! between device slices. The graph and its executables hold the slices, and each launch of the graph is a use of all
//! of them. A slice that is dropped while its stream is in such a capture is freed with the graph. Allocation and
//! copies from and to the host are refused ([`Error::WhileCapturing`](crate::Error::WhileCapturing)).
//!
//! While a stream without [`NON_BLOCKING`](crate::StreamFlags::NON_BLOCKING) captures, the driver refuses all work on
//! the legacy default stream, and invalidates the capture. Copies from and to plain host slices are such work, whatever
//! stream they are called on. A slice of the legacy default stream that is dropped meanwhile is never freed.
//!
//! In a capture that another library began, all work on slices is refused. A slice that is dropped while its stream is
//! in such a capture, or in an invalidated one, is never freed.
//!
//! # Failures
//! If this crate cannot find out when a use ends, it never frees the memory, and host access to a pinned slice is an
//! error. Forgetting any value ([`std::mem::forget`]) only leaks memory.
//!
//! One such case is a race of threads. One thread enqueues work on a stream. Meanwhile another thread begins a capture
//! of that stream with [`Stream::begin_capture`](crate::Stream::begin_capture), or makes the stream wait for an event
//! that such a capture may have recorded. The work may then be part of a graph, and the call returns
//! [`Error::CaptureRace`](crate::Error::CaptureRace). This cannot happen to streams that only one thread at a time
//! uses. Such a race with a capture that another library began is not detected.

/// Defines the methods that report the length of a slice or view, from its field `len` and its parameter `T`.
macro_rules! length_methods {
    () => {
        /// The number of elements.
        #[must_use]
        pub fn len(&self) -> usize {
            self.len
        }

        /// Returns true if there are no elements.
        #[must_use]
        pub fn is_empty(&self) -> bool {
            self.len == 0
        }

        /// The size in bytes.
        #[must_use]
        pub fn bytes(&self) -> usize {
            self.len * size_of::<T>()
        }
    };
}

mod allocation;
mod copy;
mod device;
mod pinned;

use self::allocation::Allocation;
pub(crate) use self::allocation::require_context;
pub use self::device::{DeviceSlice, DeviceView, DeviceViewMut};
pub use self::pinned::PinnedSlice;
