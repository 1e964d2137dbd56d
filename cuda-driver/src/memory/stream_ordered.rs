//! Memory that is allocated and freed in stream order.

use cuda_driver_sys::CUmemPoolPtrExportData;

use super::MemoryPool;
use crate::call::call;
use crate::{DevicePtr, Result, Stream, device, teardown};

/// A handle with which processes that share a pool can open memory of the pool. It is plain bytes, and may be sent to
/// them by any means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct PoolPointer(pub [u8; 64]);

/// Device memory from a memory pool. Dropping the value frees the memory in the order of its stream. If the stream is
/// the per-thread default stream, drop the value on the thread that allocated it.
///
/// Do not allocate while the stream captures: the driver would record the allocation in the graph. Do not drop the
/// value while the stream captures: the driver would refuse the free, because the graph did not allocate the memory.
/// The memory would then be leaked.
#[derive(Debug)]
pub struct StreamMemory {
    stream: Stream,
    /// The pool that the memory was allocated from or imported through; `None` for memory from [`new`](Self::new).
    _pool: Option<MemoryPool>,
    ptr: DevicePtr,
    bytes: usize,
    /// False after a call of [`free`](Self::free), even if it failed.
    owned: bool,
}

impl StreamMemory {
    /// Allocates `bytes` bytes from the device's current pool. Work that is enqueued on `stream` after this call may
    /// use the memory. Dropping the value frees the memory in the order of the same stream.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuMemAllocAsync`: `CUDA_ERROR_OUT_OF_MEMORY`;
    /// `CUDA_ERROR_NOT_SUPPORTED` if the device has no memory pools.
    #[doc(alias = "cuMemAllocAsync")]
    pub fn new(stream: &Stream, bytes: usize) -> Result<Self> {
        let _current = stream.enter_if_implicit()?;
        let mut ptr = 0;
        // SAFETY: the stream is alive; writes one address, to a local that outlives the call.
        unsafe { call!(stream.api(), cuMemAllocAsync(&mut ptr, bytes, stream.raw())) }?;
        Ok(Self::from_driver(stream, DevicePtr(ptr), bytes, None))
    }

    /// Allocates `bytes` bytes from `pool`. Work that is enqueued on `stream` after this call may use the memory.
    /// Dropping the value frees the memory in the order of the same stream.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuMemAllocFromPoolAsync`: `CUDA_ERROR_OUT_OF_MEMORY`, also if the
    /// pool's size limit is exceeded; `CUDA_ERROR_INVALID_VALUE` for an imported pool.
    /// [`Error::DifferentDrivers`](crate::Error::DifferentDrivers).
    #[doc(alias = "cuMemAllocFromPoolAsync")]
    pub fn from_pool(pool: &MemoryPool, stream: &Stream, bytes: usize) -> Result<Self> {
        let ours = stream.context().driver();
        ours.require_same("the pool", pool.context().driver(), "the stream")?;
        let _current = stream.enter_if_implicit()?;
        let mut ptr = 0;
        // SAFETY: the pool and the stream are alive; writes one address, to a local that outlives the call.
        unsafe { call!(stream.api(), cuMemAllocFromPoolAsync(&mut ptr, bytes, pool.raw(), stream.raw())) }?;
        Ok(Self::from_driver(stream, DevicePtr(ptr), bytes, Some(pool.clone())))
    }

    /// Returns a handle with which processes that have imported the pool can open this memory. The memory must stay
    /// allocated until all of these processes have closed it.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuMemPoolExportPointer`: `CUDA_ERROR_INVALID_VALUE` unless the
    /// pool was created for sharing and has been [exported](MemoryPool::export_fd).
    #[doc(alias = "cuMemPoolExportPointer")]
    pub fn export_pointer(&self) -> Result<PoolPointer> {
        let mut data = CUmemPoolPtrExportData::default();
        // SAFETY: the memory is alive; writes 64 bytes, to a local that outlives the call.
        unsafe { call!(self.stream().api(), cuMemPoolExportPointer(&mut data, self.ptr().0)) }?;
        Ok(PoolPointer(data.reserved))
    }

    /// Opens memory of an imported pool. The process that exported the pool, the exporter, allocated the memory. It
    /// provides `pointer` and the size `bytes` of the memory. The driver does not report the size, so `bytes` is not
    /// checked.
    ///
    /// Dropping the value closes the memory in the order of `stream`. The exporter may free the memory only after
    /// `stream` has closed it.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuMemPoolImportPointer`;
    /// [`Error::DifferentDrivers`](crate::Error::DifferentDrivers).
    #[doc(alias = "cuMemPoolImportPointer")]
    pub fn import(pool: &MemoryPool, stream: &Stream, pointer: PoolPointer, bytes: usize) -> Result<Self> {
        let ours = stream.context().driver();
        ours.require_same("the pool", pool.context().driver(), "the stream")?;
        let mut data = CUmemPoolPtrExportData { reserved: pointer.0 };
        let mut ptr = 0;
        // SAFETY: the pool is alive; reads 64 bytes and writes one address, in locals that outlive the call.
        unsafe { call!(stream.api(), cuMemPoolImportPointer(&mut ptr, pool.raw(), &mut data)) }?;
        Ok(Self::from_driver(stream, DevicePtr(ptr), bytes, Some(pool.clone())))
    }

    /// Takes ownership of memory that the driver just returned. It will be freed in the order of `stream`.
    fn from_driver(stream: &Stream, ptr: DevicePtr, bytes: usize, pool: Option<MemoryPool>) -> Self {
        Self { stream: stream.clone(), _pool: pool, ptr, bytes, owned: true }
    }

    /// The address of the first byte.
    #[must_use]
    pub fn ptr(&self) -> DevicePtr {
        self.ptr
    }

    /// The size in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The stream in whose order the memory is freed.
    #[must_use]
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Moves the memory to another stream, which then frees it. That stream must be ordered after all earlier uses of
    /// the memory, for example by an event.
    ///
    /// # Errors
    /// [`Error::DifferentDevices`](crate::Error::DifferentDevices) or
    /// [`Error::DifferentDrivers`](crate::Error::DifferentDrivers) if `stream` is of another device or driver. `self`
    /// is then dropped, which frees the memory in the order of its former stream.
    pub fn move_to(mut self, stream: &Stream) -> Result<Self> {
        let (found, wanted) = (stream.context().device(), self.stream.context().device());
        if found != wanted {
            return Err(device::mismatch(("the stream", found), ("the memory that it should free", wanted)));
        }
        self.stream = stream.clone();
        Ok(self)
    }

    /// Frees the memory in the order of its stream, as dropping it does, and returns the outcome. If the call fails,
    /// the memory is leaked.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuMemFreeAsync`.
    #[doc(alias = "cuMemFreeAsync")]
    pub fn free(mut self) -> Result<()> {
        self.owned = false;
        free_in_order(&self.stream, self.ptr)
    }
}

fn free_in_order(stream: &Stream, ptr: DevicePtr) -> Result<()> {
    let _current = stream.enter_if_implicit()?;
    // SAFETY: the owner of the memory calls this once and does not use the memory afterwards; the stream is alive.
    unsafe { call!(stream.api(), cuMemFreeAsync(ptr.0, stream.raw())) }
}

impl Drop for StreamMemory {
    fn drop(&mut self) {
        if self.owned {
            teardown::report(free_in_order(&self.stream, self.ptr));
        }
    }
}
