//! A stream-ordered caching allocator for GPU memory, with pools and trace hooks.
//!
//! - [`core`]: the allocator itself, pure safe code over [`SegmentSource`](core::SegmentSource) and
//!   [`StreamEvents`](core::StreamEvents); [`core::symmetric`]: placement that is the same on every rank.
//! - [`driver`]: sources and streams of real devices.
//! - [`host`]: a source and streams without a device.
//!
//! It is not for host memory, and knows nothing of collectives: registrars follow it as trackers.

pub mod core;
pub mod driver;
pub mod host;
