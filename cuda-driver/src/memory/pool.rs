//! Memory pools, which stream-ordered allocations come from.
//!
//! A device has a default pool and a current pool. [`StreamMemory::new`](super::StreamMemory::new) allocates from the
//! current pool. A pool caches freed memory for later allocations, up to its [release
//! threshold](MemoryPool::set_release_threshold).

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
    /// The cases in which a pool may reuse memory that another stream freed. A new pool has all of them, unlike
    /// `PoolReuse::default()`, which has none. Memory that the allocating stream itself freed earlier can always be
    /// reused.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct PoolReuse: u32 {
        /// The allocating stream has waited for the free, for example for an event that was recorded after the free.
        const AFTER_EVENTS = 1;
        /// The other stream has already completed the free.
        const OPPORTUNISTIC = 2;
        /// The other stream has not completed the free: the driver makes the allocating stream wait for it.
        const WITH_NEW_DEPENDENCIES = 4;
    }
}

/// The usage of a pool, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct PoolUsage {
    /// Bytes that the pool holds, allocated or cached.
    pub reserved: u64,
    /// The peak of `reserved` since the last [`MemoryPool::reset_peaks`].
    pub reserved_peak: u64,
    /// Bytes of the pool that are allocated.
    pub used: u64,
    /// The peak of `used` since the last [`MemoryPool::reset_peaks`].
    pub used_peak: u64,
}

/// A pool of a device's memory.
///
/// This is a handle, cheap to clone. Memory from [`StreamMemory::from_pool`](super::StreamMemory::from_pool) or
/// [`StreamMemory::import`](super::StreamMemory::import) holds a clone of its pool. Memory from
/// [`StreamMemory::new`](super::StreamMemory::new) does not. Dropping the last clone destroys a pool that the program
/// created or imported.
#[derive(Clone)]
pub struct MemoryPool {
    inner: Arc<Inner>,
}

struct Inner {
    context: Context,
    raw: CUmemoryPool,
    owned: bool,
}

// SAFETY: a pool's handle may be used on every thread.
unsafe impl Send for Inner {}
// SAFETY: as above; the driver synchronises calls from several threads.
unsafe impl Sync for Inner {}

impl MemoryPool {
    /// Creates a pool of the device's memory that can be exported as the given handle types.
    /// [`Device::pool_handle_types`] returns the types that the device supports.
    ///
    /// `max_bytes` limits the size of the pool from CUDA 12.2 on; 0 means the system's limit. With an older driver
    /// `max_bytes` must be 0, because the field is reserved.
    ///
    /// # Errors
    /// [`Error::Missing`](crate::Error::Missing) below CUDA 11.2; [`Error::Driver`](crate::Error::Driver) from
    /// `cuMemPoolCreate`: `CUDA_ERROR_NOT_SUPPORTED` if the device does not support memory pools, or one of the handle
    /// types.
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

    /// Returns the default pool of the context's device.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuDeviceGetDefaultMemPool`: `CUDA_ERROR_NOT_SUPPORTED` if the
    /// device has no memory pools.
    #[doc(alias = "cuDeviceGetDefaultMemPool")]
    pub fn default_of(context: &Context) -> Result<Self> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: writes one handle, to a local that outlives the call.
        unsafe { call!(context.api(), cuDeviceGetDefaultMemPool(&mut raw, context.device().raw())) }?;
        Ok(Self::from_raw(context, raw, false))
    }

    /// Returns true if this is the device's current pool, which [`StreamMemory::new`](super::StreamMemory::new)
    /// allocates from.
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

    /// Makes this the device's current pool, which [`StreamMemory::new`](super::StreamMemory::new) allocates from, for
    /// the whole process. When the pool is destroyed, the default pool becomes current again.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuDeviceSetMemPool`.
    #[doc(alias = "cuDeviceSetMemPool")]
    pub fn make_current(&self) -> Result<()> {
        let Inner { context, raw, .. } = &*self.inner;
        // SAFETY: the pool is alive.
        unsafe { call!(context.api(), cuDeviceSetMemPool(context.device().raw(), *raw)) }
    }

    /// Opens a pool that another process exported. Some drivers also open a pool that this process exported.
    ///
    /// The imported pool cannot allocate. It serves to open memory that the exporter allocated
    /// ([`StreamMemory::import`](super::StreamMemory::import)). The descriptor may be closed after the call.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuMemPoolImportFromShareableHandle`;
    /// [`Error::Descriptor`](crate::Error::Descriptor) if the descriptor is number 0 and cannot be duplicated.
    #[doc(alias = "cuMemPoolImportFromShareableHandle")]
    pub fn import_fd(context: &Context, descriptor: BorrowedFd<'_>) -> Result<Self> {
        let kind = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        let mut raw = std::ptr::null_mut();
        with_os_handle(descriptor, |number| {
            // SAFETY: for this handle type the "pointer" is the descriptor's number; writes one handle, to a local.
            unsafe { call!(context.api(), cuMemPoolImportFromShareableHandle(&mut raw, number, kind, 0)) }
        })?;
        Ok(Self::from_raw(context, raw, true))
    }

    fn from_raw(context: &Context, raw: CUmemoryPool, owned: bool) -> Self {
        Self { inner: Arc::new(Inner { context: context.clone(), raw, owned }) }
    }

    /// Exports the pool as a new file descriptor, to be passed to another process. The pool must have been created with
    /// [`HandleTypes::POSIX_FD`].
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuMemPoolExportToShareableHandle`: `CUDA_ERROR_INVALID_VALUE` if
    /// the pool was created without this handle type; [`Error::NoDescriptor`](crate::Error::NoDescriptor) if the driver
    /// reports success but returns no descriptor.
    #[doc(alias = "cuMemPoolExportToShareableHandle")]
    pub fn export_fd(&self) -> Result<OwnedFd> {
        let kind = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        let Inner { context, raw, .. } = &*self.inner;
        exported_fd("cuMemPoolExportToShareableHandle", |out| {
            // SAFETY: for this handle type the driver writes an int, and `out` points to one.
            unsafe { call!(context.api(), cuMemPoolExportToShareableHandle(out, *raw, kind, 0)) }
        })
    }

    /// The driver's handle, valid while this pool lives.
    #[must_use]
    pub fn raw(&self) -> CUmemoryPool {
        self.inner.raw
    }

    /// The context with which the pool was created, imported or looked up. The memory of an imported pool may be on
    /// another device than the context's.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.inner.context
    }

    /// Returns the release threshold in bytes. If the pool has reserved more than this, the driver releases unused
    /// memory when a stream, an event or the context is synchronised. The initial value is 0.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuMemPoolGetAttribute`.
    #[doc(alias = "cuMemPoolGetAttribute")]
    pub fn release_threshold(&self) -> Result<u64> {
        self.get(CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)
    }

    /// Sets the [release threshold](Self::release_threshold). With `u64::MAX` the pool keeps all unused memory.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuMemPoolSetAttribute`.
    #[doc(alias = "cuMemPoolSetAttribute")]
    pub fn set_release_threshold(&self, bytes: u64) -> Result<()> {
        self.set(CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, bytes)
    }

    /// Returns the cases in which the pool may reuse memory that another stream freed.
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

    /// Sets the [cases of reuse](Self::reuse). Without [`OPPORTUNISTIC`](PoolReuse::OPPORTUNISTIC) and
    /// [`WITH_NEW_DEPENDENCIES`](PoolReuse::WITH_NEW_DEPENDENCIES), the addresses of allocations do not depend on
    /// timing.
    ///
    /// # Errors
    /// As [`set_release_threshold`](Self::set_release_threshold). After an error, some of the flags may have been set.
    pub fn set_reuse(&self, reuse: PoolReuse) -> Result<()> {
        REUSE
            .iter()
            .try_for_each(|(flag, attribute)| self.set::<c_int>(*attribute, reuse.contains(*flag).into()))
    }

    /// Returns the bytes reserved and used, and their peaks.
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

    /// Releases unused memory of the pool to the device until the pool reserves at most `keep` bytes, or has no
    /// unused memory left.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuMemPoolTrimTo`.
    #[doc(alias = "cuMemPoolTrimTo")]
    pub fn trim(&self, keep: usize) -> Result<()> {
        let Inner { context, raw, .. } = &*self.inner;
        // SAFETY: the pool is alive.
        unsafe { call!(context.api(), cuMemPoolTrimTo(*raw, keep)) }
    }

    /// Sets the access of devices to the pool's memory, including memory that is already allocated. The pool's own
    /// device always has access.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuMemPoolSetAccess`: `CUDA_ERROR_INVALID_DEVICE` for a device that
    /// is not a peer of the pool's device; [`Error::DifferentDrivers`](crate::Error::DifferentDrivers).
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
    /// [`Error::Driver`](crate::Error::Driver) from `cuMemPoolGetAccess`;
    /// [`Error::DifferentDrivers`](crate::Error::DifferentDrivers).
    #[doc(alias = "cuMemPoolGetAccess")]
    pub fn access(&self, device: &Device) -> Result<Access> {
        self.context().driver().require_same("the device", device.driver(), "the pool")?;
        let mut flags = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_NONE;
        let mut at = location(device);
        let Inner { context, raw, .. } = &*self.inner;
        // SAFETY: the pool is alive; reads a location and writes one enum, both in locals that outlive the call.
        unsafe { call!(context.api(), cuMemPoolGetAccess(&mut flags, *raw, &mut at)) }?;
        Ok(Access::from_raw(flags))
    }

    fn get<T: Default>(&self, attribute: CUmemPool_attribute) -> Result<T> {
        let mut value = T::default();
        let Inner { context, raw, .. } = &*self.inner;
        let out = (&raw mut value).cast();
        // SAFETY: the pool is alive; each caller in this module chooses `T` as the attribute's type, an integer.
        unsafe { call!(context.api(), cuMemPoolGetAttribute(*raw, attribute, out)) }?;
        Ok(value)
    }

    fn set<T>(&self, attribute: CUmemPool_attribute, mut value: T) -> Result<()> {
        let Inner { context, raw, .. } = &*self.inner;
        let value = (&raw mut value).cast();
        // SAFETY: the pool is alive; each caller in this module chooses `T` as the attribute's type, an integer. The
        // driver reads the value during the call.
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
            // SAFETY: `self` owns the pool, and no call uses its handle after this. Memory of the pool may still be
            // allocated: the driver releases the pool's memory once all of it is freed and all pending frees are done.
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
