//! Pools of stream-ordered memory.
//!
//! A device has a default pool, and a current one, from which [`StreamMemory::new`](super::StreamMemory::new) allocates. A pool caches
//! memory that is freed to it, up to its [release threshold](MemoryPool::set_release_threshold), for the next
//! allocation.

use std::ffi::c_int;
use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use bitflags::bitflags;
use cuda_driver_sys::{
    CUmemAccess_flags, CUmemAllocationHandleType, CUmemAllocationType, CUmemPool_attribute, CUmemPoolProps,
    CUmemoryPool,
};

use crate::call::{call, exported_fd, with_os_handle};
use crate::vmm::{Access, HandleTypes, access_descriptions, location};
use crate::{Context, Device, Result, teardown};

bitflags! {
    /// The ways in which a pool may reuse freed memory, besides stream order alone. All are on by default.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct PoolReuse: u32 {
        /// Memory that another stream freed before an event that the allocating stream waited for.
        const AFTER_EVENTS = 1;
        /// Memory that another stream freed, if that stream has passed the free already.
        const OPPORTUNISTIC = 2;
        /// Memory that another stream freed; the allocating stream is made to wait for the free.
        const WITH_NEW_DEPENDENCIES = 4;
    }
}

/// Bytes in a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct PoolUsage {
    /// Bytes reserved from the device.
    pub reserved: u64,
    /// The peak of `reserved` since [`MemoryPool::reset_peaks`].
    pub reserved_peak: u64,
    /// Bytes allocated by the program.
    pub used: u64,
    /// The peak of `used` since [`MemoryPool::reset_peaks`].
    pub used_peak: u64,
}

/// A pool of a device's memory. A handle, cheap to clone. The last handle of a pool that the program created
/// destroys it; memory allocated from the pool holds one.
#[derive(Clone)]
pub struct MemoryPool {
    inner: Arc<Inner>,
}

struct Inner {
    context: Context,
    raw: CUmemoryPool,
    owned: bool,
}

// SAFETY: a pool's handle may be used from every thread.
unsafe impl Send for Inner {}
// SAFETY: as above; the driver locks what it shares between threads.
unsafe impl Sync for Inner {}

impl MemoryPool {
    /// Makes a pool of the device's memory that can be handed to other processes in the given ways
    /// ([`Device::pool_handle_types`]). `max_bytes` limits it, from CUDA 12.2 on; 0: the system's limit. In older
    /// releases its place is reserved, and must be 0.
    ///
    /// # Errors
    /// [`Error::Missing`](crate::Error::Missing) below CUDA 11.2; [`Error::Driver`](crate::Error::Driver) from
    /// `cuMemPoolCreate`: `CUDA_ERROR_NOT_SUPPORTED` for a device without pools or a handle type.
    #[doc(alias = "cuMemPoolCreate")]
    pub fn new(context: &Context, handle_types: HandleTypes, max_bytes: usize) -> Result<Self> {
        let properties = CUmemPoolProps {
            allocType: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            handleTypes: CUmemAllocationHandleType(handle_types.bits()),
            location: location(context.device()),
            maxSize: max_bytes,
            ..CUmemPoolProps::default()
        };
        let mut raw = std::ptr::null_mut();
        // SAFETY: reads the properties and writes one handle; both are locals that outlive the call.
        unsafe { call!(context.api(), cuMemPoolCreate(&mut raw, &properties)) }?;
        Ok(Self::from_raw(context, raw, true))
    }

    /// The device's default pool.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuDeviceGetDefaultMemPool`: `CUDA_ERROR_NOT_SUPPORTED` for a
    /// device without pools.
    #[doc(alias = "cuDeviceGetDefaultMemPool")]
    pub fn default_of(context: &Context) -> Result<Self> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: writes one handle, to a local that outlives the call.
        unsafe { call!(context.api(), cuDeviceGetDefaultMemPool(&mut raw, context.device().raw())) }?;
        Ok(Self::from_raw(context, raw, false))
    }

    /// Returns true if [`StreamMemory::new`](super::StreamMemory::new) allocates from this pool now.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuDeviceGetMemPool`.
    #[doc(alias = "cuDeviceGetMemPool")]
    pub fn is_current(&self) -> Result<bool> {
        let Inner { context, raw, .. } = &*self.inner;
        let mut current = std::ptr::null_mut();
        // SAFETY: writes one handle, to a local that outlives the call.
        unsafe { call!(context.api(), cuDeviceGetMemPool(&mut current, context.device().raw())) }?;
        Ok(current == *raw)
    }

    /// Makes [`StreamMemory::new`](super::StreamMemory::new) allocate from this pool, for the whole process, while the pool lives.
    /// After it is destroyed, the default pool is current again.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuDeviceSetMemPool`.
    #[doc(alias = "cuDeviceSetMemPool")]
    pub fn make_current(&self) -> Result<()> {
        let Inner { context, raw, .. } = &*self.inner;
        // SAFETY: the pool is alive.
        unsafe { call!(context.api(), cuDeviceSetMemPool(context.device().raw(), *raw)) }
    }

    /// Opens a pool that another process, or this one, exported. Nothing can be allocated from it; it opens
    /// the exporter's memory ([`StreamMemory::import`](super::StreamMemory::import)). The descriptor can be closed afterwards.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuMemPoolImportFromShareableHandle`;
    /// [`Error::Descriptor`](crate::Error::Descriptor).
    #[doc(alias = "cuMemPoolImportFromShareableHandle")]
    pub fn import_fd(context: &Context, descriptor: BorrowedFd<'_>) -> Result<Self> {
        let kind = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        let mut raw = std::ptr::null_mut();
        with_os_handle(descriptor, |number| {
            // SAFETY: for this kind the "pointer" is the descriptor's number; writes one handle, to a local.
            unsafe { call!(context.api(), cuMemPoolImportFromShareableHandle(&mut raw, number, kind, 0)) }
        })?;
        Ok(Self::from_raw(context, raw, true))
    }

    fn from_raw(context: &Context, raw: CUmemoryPool, owned: bool) -> Self {
        Self { inner: Arc::new(Inner { context: context.clone(), raw, owned }) }
    }

    /// Exports the pool as a new file descriptor, to be passed to another process. The pool must have been
    /// made for [`HandleTypes::POSIX_FD`].
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuMemPoolExportToShareableHandle`: `CUDA_ERROR_INVALID_VALUE` for
    /// a pool made otherwise; [`Error::NoDescriptor`](crate::Error::NoDescriptor).
    #[doc(alias = "cuMemPoolExportToShareableHandle")]
    pub fn export_fd(&self) -> Result<OwnedFd> {
        let kind = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        let Inner { context, raw, .. } = &*self.inner;
        exported_fd("cuMemPoolExportToShareableHandle", |out| {
            // SAFETY: for this kind an int is written, to the place for one.
            unsafe { call!(context.api(), cuMemPoolExportToShareableHandle(out, *raw, kind, 0)) }
        })
    }

    /// The driver's handle, valid while this pool lives.
    #[must_use]
    pub fn raw(&self) -> CUmemoryPool {
        self.inner.raw
    }

    /// The context whose device the memory is of.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.inner.context
    }

    /// Unused bytes that the pool keeps when a stream, an event or the context is synchronised; 0 at first.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuMemPoolGetAttribute`.
    #[doc(alias = "cuMemPoolGetAttribute")]
    pub fn release_threshold(&self) -> Result<u64> {
        self.get(CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)
    }

    /// Sets [`release_threshold`](Self::release_threshold); `u64::MAX` keeps everything.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuMemPoolSetAttribute`.
    #[doc(alias = "cuMemPoolSetAttribute")]
    pub fn set_release_threshold(&self, bytes: u64) -> Result<()> {
        self.set(CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, bytes)
    }

    /// The ways in which the pool may reuse freed memory.
    ///
    /// # Errors
    /// As [`release_threshold`](Self::release_threshold).
    pub fn reuse(&self) -> Result<PoolReuse> {
        let mut reuse = PoolReuse::empty();
        for (flag, attribute) in REUSE {
            reuse.set(flag, self.get::<c_int>(attribute)? != 0);
        }
        Ok(reuse)
    }

    /// Sets [`reuse`](Self::reuse). Without the last two ways, placement does not depend on timing.
    ///
    /// # Errors
    /// As [`set_release_threshold`](Self::set_release_threshold); some flags may be set by then, and others
    /// not.
    pub fn set_reuse(&self, reuse: PoolReuse) -> Result<()> {
        REUSE
            .iter()
            .try_for_each(|(flag, attribute)| self.set::<c_int>(*attribute, reuse.contains(*flag).into()))
    }

    /// Bytes reserved and used, with their peaks.
    ///
    /// # Errors
    /// As [`release_threshold`](Self::release_threshold).
    pub fn usage(&self) -> Result<PoolUsage> {
        use CUmemPool_attribute as A;
        Ok(PoolUsage {
            reserved: self.get(A::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)?,
            reserved_peak: self.get(A::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH)?,
            used: self.get(A::CU_MEMPOOL_ATTR_USED_MEM_CURRENT)?,
            used_peak: self.get(A::CU_MEMPOOL_ATTR_USED_MEM_HIGH)?,
        })
    }

    /// Resets the peaks of [`usage`](Self::usage) to the current values.
    ///
    /// # Errors
    /// As [`set_release_threshold`](Self::set_release_threshold).
    pub fn reset_peaks(&self) -> Result<()> {
        self.set(CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, 0u64)?;
        self.set(CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH, 0u64)
    }

    /// Releases unused memory to the device, until no more than `keep` bytes are reserved.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuMemPoolTrimTo`.
    #[doc(alias = "cuMemPoolTrimTo")]
    pub fn trim(&self, keep: usize) -> Result<()> {
        let Inner { context, raw, .. } = &*self.inner;
        // SAFETY: the pool is alive.
        unsafe { call!(context.api(), cuMemPoolTrimTo(*raw, keep)) }
    }

    /// Sets the access of devices to the pool's memory, including memory that is allocated already. Its own
    /// device always has access.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuMemPoolSetAccess`: `CUDA_ERROR_INVALID_DEVICE` for a device
    /// that is no peer.
    #[doc(alias = "cuMemPoolSetAccess")]
    pub fn set_access(&self, devices: &[(&Device, Access)]) -> Result<()> {
        let Inner { context, raw, .. } = &*self.inner;
        let descriptions = access_descriptions(context.driver(), devices, "the pool")?;
        // SAFETY: the pool is alive; reads the descriptions, which outlive the call.
        unsafe { call!(context.api(), cuMemPoolSetAccess(*raw, descriptions.as_ptr(), descriptions.len())) }
    }

    /// Returns the access that a device has to the pool's memory.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuMemPoolGetAccess`.
    #[doc(alias = "cuMemPoolGetAccess")]
    pub fn access(&self, device: &Device) -> Result<Access> {
        self.context().driver().require_same("the device", device.driver(), "the pool")?;
        let mut flags = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_NONE;
        let mut at = location(device);
        let Inner { context, raw, .. } = &*self.inner;
        // SAFETY: the pool is alive; reads a location and writes one enum, locals that outlive the call.
        unsafe { call!(context.api(), cuMemPoolGetAccess(&mut flags, *raw, &mut at)) }?;
        Ok(Access::from_raw(flags))
    }

    fn get<T: Default>(&self, attribute: CUmemPool_attribute) -> Result<T> {
        let mut value = T::default();
        let Inner { context, raw, .. } = &*self.inner;
        let out = (&raw mut value).cast();
        // SAFETY: the pool is alive; this module asks for each attribute in its own type, an integer.
        unsafe { call!(context.api(), cuMemPoolGetAttribute(*raw, attribute, out)) }?;
        Ok(value)
    }

    fn set<T>(&self, attribute: CUmemPool_attribute, mut value: T) -> Result<()> {
        let Inner { context, raw, .. } = &*self.inner;
        let value = (&raw mut value).cast();
        // SAFETY: the pool is alive; this module sets each attribute in its own type, an integer, which is read.
        unsafe { call!(context.api(), cuMemPoolSetAttribute(*raw, attribute, value)) }
    }
}

const REUSE: [(PoolReuse, CUmemPool_attribute); 3] = [
    (PoolReuse::AFTER_EVENTS, CUmemPool_attribute::CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES),
    (PoolReuse::OPPORTUNISTIC, CUmemPool_attribute::CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC),
    (
        PoolReuse::WITH_NEW_DEPENDENCIES,
        CUmemPool_attribute::CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES,
    ),
];

impl Drop for Inner {
    #[doc(alias = "cuMemPoolDestroy")]
    fn drop(&mut self) {
        if self.owned {
            // SAFETY: made for `self` and used by nobody after this; the driver waits for frees that are under way.
            teardown::report(unsafe { call!(self.context.api(), cuMemPoolDestroy(self.raw)) });
        }
    }
}

impl PartialEq for MemoryPool {
    fn eq(&self, other: &Self) -> bool {
        self.raw() == other.raw() && self.context().driver().is_same(other.context().driver())
    }
}

impl Eq for MemoryPool {}

impl fmt::Debug for MemoryPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemoryPool({:p} of {:?})", self.inner.raw, self.inner.context.device())
    }
}
