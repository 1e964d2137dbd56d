//! Memory that is allocated and freed in stream order.

use cuda_driver_sys::CUmemPoolPtrExportData;

use super::MemoryPool;
use crate::call::call;
use crate::{DevicePtr, Result, Stream, device, teardown};

/// Names memory of a shared pool to the processes that have the pool: plain bytes, to be sent by any means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct PoolPointer(pub [u8; 64]);

/// Device memory from a stream-ordered pool.
#[derive(Debug)]
pub struct StreamMemory {
    stream: Stream,
    /// The pool that the memory was allocated from, unless it is the device's current pool.
    _pool: Option<MemoryPool>,
    ptr: DevicePtr,
    bytes: usize,
    /// False once it is freed.
    owned: bool,
}

impl StreamMemory {
    /// Allocates `bytes` bytes of the device's current pool that work enqueued later on `stream` may use. Dropping it
    /// frees it in the order of the same stream.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuMemAllocAsync`: `CUDA_ERROR_OUT_OF_MEMORY`, `CUDA_ERROR_NOT_SUPPORTED`.
    #[doc(alias = "cuMemAllocAsync")]
    pub fn new(stream: &Stream, bytes: usize) -> Result<Self> {
        let _current = stream.enter_if_implicit()?;
        let mut ptr = 0;
        // SAFETY: the stream is alive; writes one address, to a local that outlives the call.
        unsafe { call!(stream.api(), cuMemAllocAsync(&mut ptr, bytes, stream.raw())) }?;
        Ok(Self::from_driver(stream, DevicePtr(ptr), bytes, None))
    }

    /// Allocates `bytes` bytes of a pool that work enqueued later on `stream` may use. Dropping it frees it in the
    /// order of the same stream.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuMemAllocFromPoolAsync`: `CUDA_ERROR_OUT_OF_MEMORY`, also past
    /// the pool's limit; `CUDA_ERROR_INVALID_VALUE` for an imported pool.
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

    /// Names this memory to the processes that have imported its pool. It must stay until all of them have freed
    /// theirs.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuMemPoolExportPointer`: `CUDA_ERROR_INVALID_VALUE` unless the
    /// pool was made for sharing and [exported](MemoryPool::export_fd) before.
    #[doc(alias = "cuMemPoolExportPointer")]
    pub fn export_pointer(&self) -> Result<PoolPointer> {
        let mut data = CUmemPoolPtrExportData::default();
        // SAFETY: the memory is alive; writes 64 bytes, to a local that outlives the call.
        unsafe { call!(self.stream().api(), cuMemPoolExportPointer(&mut data, self.ptr().0)) }?;
        Ok(PoolPointer(data.reserved))
    }

    /// Opens memory of another process's pool. `bytes` is the size that the exporter states. Dropping it closes it
    /// in the order of `stream`, which must come before the exporter frees the memory.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuMemPoolImportPointer`.
    #[doc(alias = "cuMemPoolImportPointer")]
    pub fn import(pool: &MemoryPool, stream: &Stream, pointer: PoolPointer, bytes: usize) -> Result<Self> {
        let ours = stream.context().driver();
        ours.require_same("the pool", pool.context().driver(), "the stream")?;
        let mut data = CUmemPoolPtrExportData { reserved: pointer.0 };
        let mut ptr = 0;
        // SAFETY: the pool is alive; reads 64 bytes and writes one address, locals that outlive the call.
        unsafe { call!(stream.api(), cuMemPoolImportPointer(&mut ptr, pool.raw(), &mut data)) }?;
        Ok(Self::from_driver(stream, DevicePtr(ptr), bytes, Some(pool.clone())))
    }

    /// Takes ownership of memory that the driver just allocated, to be freed in the order of `stream`.
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

    /// Hands the memory to another stream, which then frees it. That stream must be ordered after all uses so
    /// far (by an event).
    ///
    /// # Errors
    /// [`Error::DifferentDevices`](crate::Error::DifferentDevices) or [`Error::DifferentDrivers`](crate::Error::DifferentDrivers) for a stream of another device; the memory is then
    /// freed on its own stream.
    pub fn move_to(mut self, stream: &Stream) -> Result<Self> {
        let (found, wanted) = (stream.context().device(), self.stream.context().device());
        if found != wanted {
            return Err(device::mismatch(("the stream", found), ("the memory that it should free", wanted)));
        }
        self.stream = stream.clone();
        Ok(self)
    }

    /// Frees the memory in the order of its stream, as dropping does, and returns the outcome. Memory is
    /// leaked if the call fails.
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
    // SAFETY: the owner of the memory calls this once, and gives it up; the stream is alive.
    unsafe { call!(stream.api(), cuMemFreeAsync(ptr.0, stream.raw())) }
}

impl Drop for StreamMemory {
    fn drop(&mut self) {
        if self.owned {
            teardown::report(free_in_order(&self.stream, self.ptr));
        }
    }
}
