//! The caching allocator of typed device memory.

use std::any::Any;
use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cuda_driver::graph::{BoundMemory, StreamBound};
use cuda_driver::{Context, DevicePtr, DeviceSlice, Element, Stream};

use super::{DriverEvents, Sharing, VirtualMemorySource};
use crate::core::{AllocError, Allocator, Block, Settings, SourceError, StreamId};

/// A caching allocator of a context's device memory that returns [`DeviceSlice`]s. Safe functions of `cuda-driver`
/// accept a slice, and order their work with the slice's stream. Clones of the allocator are cheap and share its state.
///
/// It is an [`Allocator`] over a [`VirtualMemorySource`], with the same trackers, snapshots and statistics
/// ([`allocator`](Self::allocator)). A slice that is dropped returns its block to the cache of its stream.
///
/// ```
/// # use cuda_driver::{Driver, sys};
/// use caching_alloc::core::Settings;
/// use caching_alloc::driver::{DeviceAllocator, Sharing};
/// use cuda_driver::{Stream, StreamFlags};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let machine = gpu_sim::World::builder().start()?;
/// # // SAFETY: the table keeps the C contracts, and the machine outlives everything made from it.
/// # let driver = Driver::new(unsafe { sys::Api::from_parts(machine.cuda()) }?)?;
/// let context = driver.device(0)?.retain_primary()?;
/// let stream = Stream::new(&context, StreamFlags::NON_BLOCKING)?;
/// let memory = DeviceAllocator::new(&context, Sharing::none(), Settings::default())?;
/// let mut values = memory.alloc::<f32>(1000, &stream)?;
/// stream.memset_zeros(&mut values)?;
/// assert_eq!(stream.clone_dtoh(&values)?, [0.0; 1000]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct DeviceAllocator {
    allocator: Allocator,
    source: Arc<VirtualMemorySource>,
    events: Arc<DriverEvents>,
    context: Context,
}

impl DeviceAllocator {
    /// Makes an allocator of the context's device. `sharing` determines which other devices and
    /// processes may access the memory.
    ///
    /// # Errors
    /// Those of [`VirtualMemorySource::new`].
    pub fn new(context: &Context, sharing: Sharing, settings: Settings) -> Result<Self, SourceError> {
        let source = Arc::new(VirtualMemorySource::new(context, sharing)?);
        let events = Arc::new(DriverEvents::new(context));
        let allocator = Allocator::new(source.clone(), events.clone(), settings);
        Ok(Self { allocator, source, events, context: context.clone() })
    }

    /// Returns the underlying allocator, for trackers, pools, snapshots and statistics.
    #[must_use]
    pub fn allocator(&self) -> &Allocator {
        &self.allocator
    }

    /// Returns the number of a stream for calls of [`allocator`](Self::allocator). Registers the stream if needed, and
    /// keeps it alive until [`forget`](Self::forget). [`alloc`](Self::alloc) registers its stream itself.
    pub fn register(&self, stream: &Stream) -> StreamId {
        self.events.register(stream)
    }

    /// Removes a stream, like [`DriverEvents::forget`].
    pub fn forget(&self, stream: StreamId) {
        self.events.forget(stream);
    }

    /// Allocates `len` elements with unspecified values. The slice belongs to `stream`, and its memory is reused in
    /// that stream's order. Does not wait for the driver if the stream's cache has a free block that fits. Trackers may
    /// run on this thread.
    ///
    /// # Errors
    /// Those of [`Allocator::allocate`]; [`AllocError::ForeignStream`] for a stream of another context;
    /// [`AllocError::PerThreadStream`] for a per-thread default stream; [`AllocError::ForeignMemory`] if the block is
    /// from a pool with a [source](crate::core::PoolSettings::source) of its own. A guard
    /// ([`Pool::use_on_this_thread`](crate::core::Pool::use_on_this_thread),
    /// [`GraphPool::capture`](crate::core::GraphPool::capture)) can select such a pool, or such a pool
    /// [lends](crate::core::PoolSettings::lends) to the default pool.
    #[track_caller]
    pub fn alloc<T: Element>(&self, len: usize, stream: &Stream) -> Result<DeviceSlice<T>, AllocError> {
        if *stream.context() != self.context {
            return Err(AllocError::ForeignStream);
        }
        if stream.is_per_thread() {
            return Err(AllocError::PerThreadStream);
        }
        let bytes = (len as u64).saturating_mul(size_of::<T>() as u64).max(1);
        let block = self.allocator.allocate(bytes, self.events.register(stream))?;
        if !block.is_from(&self.source) {
            return Err(AllocError::ForeignMemory { address: block.address(), pool: block.pool() });
        }
        let start = DevicePtr(block.address());
        let memory = Arc::new(BlockMemory {
            block: ManuallyDrop::new(block),
            stream: stream.clone(),
            is_kept: AtomicBool::new(false),
        });
        // SAFETY: the block has that many bytes of the source's memory, which the context's device can access. It
        // begins at a multiple of 512, and is this slice's alone until the last owner of `memory` is dropped. Only the
        // allocator can release it: no public function returns the source.
        Ok(unsafe { DeviceSlice::from_owner(memory, start, len) })
    }

    /// Returns the block that contains the elements of a slice or view, or `None` if no `DeviceAllocator` allocated
    /// them. `memory` is the [memory](cuda_driver::DeviceView::memory) of the view. The block stays allocated while
    /// `memory` or a clone of it exists.
    #[must_use]
    pub fn block_of(memory: &BoundMemory) -> Option<&Block> {
        let memory: &dyn Any = &**memory;
        memory.downcast_ref::<BlockMemory>().map(|memory| &*memory.block)
    }
}

/// The owner of a slice's block. Dropping it frees the block.
struct BlockMemory {
    block: ManuallyDrop<Block>,
    stream: Stream,
    /// True if the block must never be freed.
    is_kept: AtomicBool,
}

// SAFETY: the block was allocated on this stream. The stream's context is that of the block's source. The block stays
// allocated until this value is dropped. A freed block is reused on that stream at once. It is reused elsewhere only
// after an event that is recorded on that stream after the free. `Drop` frees no block after `keep_for_ever`.
unsafe impl StreamBound for BlockMemory {
    fn stream(&self) -> &Stream {
        &self.stream
    }

    fn keep_for_ever(&self) {
        self.is_kept.store(true, Ordering::SeqCst);
    }
}

impl Drop for BlockMemory {
    fn drop(&mut self) {
        if !self.is_kept.load(Ordering::SeqCst) {
            // SAFETY: dropped once, here.
            unsafe { ManuallyDrop::drop(&mut self.block) };
        }
    }
}

impl fmt::Debug for BlockMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.block.fmt(f)
    }
}
