//! The caching allocator of pinned host memory.

use std::sync::Arc;

use super::block::PinnedBlock;
use super::chain::PinnedSource;
use super::error::PinnedError;
use crate::core::{Allocator, Settings, StreamId};
use crate::driver::DriverEvents;

/// A caching allocator of pinned host memory, with blocks that the host may access. A cheap handle, usable from any
/// thread.
///
/// It is an [`Allocator`] over a [`PinnedHostSource`](super::PinnedHostSource), with the same trackers, snapshots and
/// statistics ([`allocator`](Self::allocator)). In addition, a [`PinnedBlock`] can wait for its streams before the host
/// accesses the bytes.
///
/// # Staging without waits
/// [`PinnedBlock::wait_ready`] waits for all work enqueued on the block's stream, which takes long if the stream is
/// busy. To fill buffers while earlier copies still run, set [`Reuse::HostSeen`](crate::core::Reuse::HostSeen),
/// allocate on a stream that gets no work, fill the buffer, and pass the copying stream to
/// [`PinnedBlock::record_stream`]. The allocator then reuses a buffer only after the host has seen its copies end, so
/// each new buffer is ready at once.
///
/// ```
/// # use cuda_driver::{Driver, sys};
/// use std::sync::Arc;
/// use caching_alloc::core::{Reuse, Settings};
/// use caching_alloc::driver::{DriverEvents, PinnedAllocator, PinnedHostSource};
/// use cuda_driver::memory::{DeviceMemory, PinnedFlags};
/// use cuda_driver::{Stream, StreamFlags};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let machine = gpu_sim::World::builder().start()?;
/// # // SAFETY: the table keeps the C contracts, and the machine outlives everything made from it.
/// # let driver = Driver::new(unsafe { sys::Api::from_parts(machine.cuda()) }?)?;
/// # let context = driver.device(0)?.retain_primary()?;
/// let events = Arc::new(DriverEvents::new(&context));
/// let [staging, copies] = [(); 2].map(|()| Stream::new(&context, StreamFlags::NON_BLOCKING));
/// let (staging, copies) = (events.register(&staging?), copies?);
/// let copies_id = events.register(&copies);
///
/// let source = Arc::new(PinnedHostSource::new(&context, PinnedFlags::PORTABLE));
/// let settings = Settings { reuse: Reuse::HostSeen, ..Settings::default() };
/// let pinned = PinnedAllocator::new(source, events, settings);
/// let memory = DeviceMemory::new(&context, 1000)?;
/// for round in 0..3 {
///     let mut buffer = pinned.allocate(1000, staging)?;
///     buffer.wait_ready()?.fill(round); // ready at once: nothing is enqueued on its stream
///     buffer.record_stream(copies_id)?;
///     // SAFETY: the buffer is dropped after the call, and `copies` is recorded as its user.
///     unsafe { copies.copy_from_host(memory.ptr(), buffer.as_ptr().cast(), buffer.len())? };
/// }
/// copies.synchronize()?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct PinnedAllocator {
    allocator: Allocator,
    source: Arc<dyn PinnedSource>,
    events: Arc<DriverEvents>,
}

impl PinnedAllocator {
    /// Makes an allocator over `source`, which is a [`PinnedHostSource`](super::PinnedHostSource) or adapters over one,
    /// for the streams registered with `events`. It allocates nothing until the first request.
    ///
    /// A segment serves many blocks, so the first request above 1 MiB pins up to [`Settings::large_segment`] bytes, or
    /// more if the request is longer than that.
    #[must_use]
    pub fn new(source: Arc<dyn PinnedSource>, events: Arc<DriverEvents>, settings: Settings) -> Self {
        let allocator = Allocator::new(source.clone(), events.clone(), settings);
        Self { allocator, source, events }
    }

    /// Returns the underlying allocator, for trackers, snapshots, statistics and trimming. The host must not access
    /// blocks that are allocated from it directly. They are for work enqueued on streams.
    #[must_use]
    pub fn allocator(&self) -> &Allocator {
        &self.allocator
    }

    /// Allocates a block of `bytes` bytes from the default pool, for use on `stream` from now on. Earlier work of
    /// `stream`, or work that `stream` waits for, may still use the bytes. So the host must call
    /// [`PinnedBlock::wait_ready`] before it accesses them.
    ///
    /// Routes of threads and captures to other pools ([`Allocator::pool_for`]) do not apply, since the host cannot wait
    /// for the uses of memory in graphs.
    ///
    /// # Errors
    /// [`PinnedError::Alloc`], also for a stream that captures, unless the default pool is frozen;
    /// [`PinnedError::NotPinned`].
    #[track_caller]
    pub fn allocate(&self, bytes: u64, stream: StreamId) -> Result<PinnedBlock, PinnedError> {
        let block = self.allocator.default_pool().allocate(bytes, stream)?;
        // `place_of` looks a block up only by the address and token of its segment. Another source might return memory that
        // this source has allocated, so the block's source must also be this one.
        let own = block.is_from(&self.source).then_some(&block);
        let place = own.and_then(|block| self.source.pinned().place_of(block));
        let place = place.ok_or(PinnedError::NotPinned { address: block.address() })?;
        Ok(PinnedBlock::new(block, place, self.events.clone()))
    }
}
