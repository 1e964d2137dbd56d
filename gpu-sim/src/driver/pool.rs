//! Stream-ordered allocation: the devices' default pools, and pools that programs create.
//!
//! Memory exists when the call returns, and is freed when the stream reaches the free. Pools cache nothing: reserved
//! memory equals used memory, and a release threshold is stored and returned without effect. Sharing pools with other
//! processes, and allocation inside captures, are not modelled.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_ulonglong, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cuda_driver_sys::{
    CUdevice, CUdeviceptr, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationHandleType,
    CUmemAllocationType, CUmemLocation, CUmemPool_attribute, CUmemPoolProps, CUmemPoolPtrExportData,
    CUmemoryPool, CUresult, CUstream,
};

use super::memory::allocate;
use super::vmm::{access_of, device_of};
use crate::abi::{DriverError, DriverResult};
use crate::memory::{Access, Kind};
use crate::stream::{Exec, Op};
use crate::world::{Leak, Machine, WorldState};

/// First handle of the default pools; the device's ordinal is added. Handles of other pools follow.
const FIRST: u64 = 0x9001_0000;

abi! {
    call fn cuDeviceGetDefaultMemPool(machine, out: *mut CUmemoryPool, device: CUdevice) {
        put!(out, default_of(machine, device)? as CUmemoryPool)?;
    }

    call fn cuDeviceGetMemPool(machine, out: *mut CUmemoryPool, device: CUdevice) {
        let default = default_of(machine, device)?;
        put!(out, machine.part::<Pools>().table().current_of(default) as CUmemoryPool)?;
    }

    call fn cuDeviceSetMemPool(machine, device: CUdevice, pool: CUmemoryPool) {
        let default = default_of(machine, device)?;
        let home = pool_of(machine, pool, |pool| pool.device)?;
        if home != machine.device(device)?.ordinal {
            return Err(DriverError::invalid(format!("{pool:p} is a pool of device {home}, not of device {device}")));
        }
        machine.part::<Pools>().table().current.insert(default, pool as u64);
    }

    call fn cuMemPoolCreate(machine, out: *mut CUmemoryPool, properties: *const CUmemPoolProps) {
        let CUmemPoolProps { allocType: kind, handleTypes: handles, location, maxSize: limit, .. } = get!(properties)?;
        if kind != CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED {
            return Err(DriverError::invalid(format!("a pool of type {kind:?} is not modelled")));
        }
        if handles != CUmemAllocationHandleType(0) {
            return Err(DriverError::unsupported("pools shared with other processes are not modelled"));
        }
        let pool = Pool { limit: limit as u64, ..Pool::new(device_of(machine, &location)?) };
        put!(out, machine.part::<Pools>().table().add(pool) as CUmemoryPool)?;
    }

    call fn cuMemPoolDestroy(machine, pool: CUmemoryPool) {
        pool_of(machine, pool, |_| ())?;
        let pools = machine.part::<Pools>();
        let mut table = pools.table();
        if table.pools.remove(&(pool as u64)).is_none() {
            return Err(DriverError::invalid("a device's default pool cannot be destroyed"));
        }
        // Its memory stays until it is freed; the default pool becomes the current one again.
        table.current.retain(|_, current| *current != pool as u64);
    }

    call fn cuMemPoolTrimTo(machine, pool: CUmemoryPool, keep: usize) {
        pool_of(machine, pool, |_| ())?;
    }

    call fn cuMemPoolGetAttribute(machine, pool: CUmemoryPool, attribute: CUmemPool_attribute, value: *mut c_void) {
        use CUmemPool_attribute as A;
        let pool = pool_of(machine, pool, |pool| pool.clone())?;
        match attribute {
            A::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD => put!(value.cast::<u64>(), pool.threshold)?,
            A::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT | A::CU_MEMPOOL_ATTR_USED_MEM_CURRENT => {
                put!(value.cast::<u64>(), pool.used)?;
            }
            A::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH => put!(value.cast::<u64>(), pool.peaks[0])?,
            A::CU_MEMPOOL_ATTR_USED_MEM_HIGH => put!(value.cast::<u64>(), pool.peaks[1])?,
            other => put!(value.cast::<c_int>(), c_int::from(pool.reuse[reuse(other)?]))?,
        }
    }

    call fn cuMemPoolSetAttribute(machine, pool: CUmemoryPool, attribute: CUmemPool_attribute, value: *mut c_void) {
        use CUmemPool_attribute as A;
        let number = |value: *mut c_void| get!(value.cast::<u64>().cast_const());
        let flag = |value: *mut c_void| get!(value.cast::<c_int>().cast_const());
        pool_of(machine, pool, |pool| -> DriverResult {
            match attribute {
                A::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD => pool.threshold = number(value)?,
                A::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH | A::CU_MEMPOOL_ATTR_USED_MEM_HIGH if number(value)? == 0 => {
                    pool.peaks[usize::from(attribute == A::CU_MEMPOOL_ATTR_USED_MEM_HIGH)] = pool.used;
                }
                A::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH | A::CU_MEMPOOL_ATTR_USED_MEM_HIGH => {
                    return Err(DriverError::invalid("peaks can be set to 0 alone"));
                }
                other => pool.reuse[reuse(other)?] = flag(value)? != 0,
            }
            Ok(())
        })??;
    }

    call fn cuMemPoolSetAccess(machine, pool: CUmemoryPool, rights: *const CUmemAccessDesc, count: usize) {
        for right in list!(rights, count)? {
            let (device, access) = (device_of(machine, &right.location)?, access_of(right.flags)?);
            pool_of(machine, pool, |pool| -> DriverResult {
                if pool.device == device && access != Access::all() {
                    return Err(DriverError::invalid("a pool's own device keeps its access"));
                }
                pool.rights.insert(device, access);
                Ok(())
            })??;
        }
    }

    call fn cuMemPoolGetAccess(
        machine, out: *mut CUmemAccess_flags, pool: CUmemoryPool, at: *mut CUmemLocation,
    ) {
        let device = device_of(machine, &get!(at.cast_const())?)?;
        let access = pool_of(machine, pool, |pool| pool.access(device))?;
        put!(out, CUmemAccess_flags(access.bits().into()))?;
    }

    call fn cuMemPoolExportToShareableHandle(
        machine, out: *mut c_void, pool: CUmemoryPool, kind: CUmemAllocationHandleType, flags: c_ulonglong,
    ) {
        pool_of(machine, pool, |_| ())?;
        return Err(DriverError::invalid("the pool was made without a handle type (others are not modelled)"));
    }

    call fn cuMemPoolImportFromShareableHandle(
        machine, out: *mut CUmemoryPool, handle: *mut c_void, kind: CUmemAllocationHandleType, flags: c_ulonglong,
    ) {
        if handle.is_null() {
            return Err(DriverError::invalid("no handle: a descriptor's number in its place must be above 0"));
        }
        return Err(DriverError::unsupported("pools of other processes are not modelled"));
    }

    call fn cuMemPoolExportPointer(machine, out: *mut CUmemPoolPtrExportData, pointer: CUdeviceptr) {
        return Err(DriverError::invalid("the pool was made without a handle type (others are not modelled)"));
    }

    call fn cuMemPoolImportPointer(
        machine, out: *mut CUdeviceptr, pool: CUmemoryPool, data: *mut CUmemPoolPtrExportData,
    ) {
        pool_of(machine, pool, |_| ())?;
        return Err(DriverError::invalid("the pool is no imported one (which are not modelled)"));
    }

    call fn cuMemAllocAsync(machine, out: *mut CUdeviceptr, bytes: usize, stream: CUstream) {
        let device = machine.stream(stream)?.context.device;
        let pool = machine.part::<Pools>().table().current_of(FIRST + device as u64);
        allocate_async(machine, out, bytes, pool, stream)?;
    }

    call fn cuMemAllocFromPoolAsync(
        machine, out: *mut CUdeviceptr, bytes: usize, pool: CUmemoryPool, stream: CUstream,
    ) {
        allocate_async(machine, out, bytes, pool as u64, stream)?;
    }

    call fn cuMemFreeAsync(machine, pointer: CUdeviceptr, stream: CUstream) {
        let stream = machine.stream(stream)?;
        stream.make_room();
        stream.refuse_while_capturing("a stream-ordered free (not modelled)")?;
        let is_ours = |kind: &Kind| matches!(kind, Kind::Allocation { .. } | Kind::Pooled { .. });
        if !machine.memory.space().at(pointer).is_some_and(|m| m.base == pointer && is_ours(&m.kind)) {
            return Err(DriverError::invalid(format!("{pointer:#x} is no allocation's base")));
        }
        let run = Box::new(move |exec: &Exec| {
            let gone = exec.machine().memory.space().remove_whole(pointer, is_ours, "cuMemFreeAsync");
            match gone {
                Ok(gone) => record_free(exec.machine(), &gone.kind, gone.physical.size()),
                Err(error) => exec.machine().misuse(format!("{}: {error}", exec.stream_name())),
            }
            Ok(())
        });
        let what = format!("the free of {pointer:#x}");
        stream.push(machine, Op { what, run, always: true, after: Vec::new() });
    }
}

/// A pool of a device's memory.
#[derive(Debug, Clone)]
struct Pool {
    device: usize,
    /// Bytes; 0: the device's memory.
    limit: u64,
    used: u64,
    /// High-water marks of reserved and of used bytes.
    peaks: [u64; 2],
    threshold: u64,
    /// Stored and returned without effect: memory is never reused before its free has run.
    reuse: [bool; 3],
    /// Access of other devices.
    rights: BTreeMap<usize, Access>,
}

impl Pool {
    fn new(device: usize) -> Self {
        Self {
            device,
            limit: 0,
            used: 0,
            peaks: [0; 2],
            threshold: 0,
            reuse: [true; 3],
            rights: BTreeMap::new(),
        }
    }

    fn access(&self, device: usize) -> Access {
        if device == self.device {
            return Access::all();
        }
        self.rights.get(&device).copied().unwrap_or(Access::empty())
    }
}

/// The world's pools.
#[derive(Debug, Default)]
pub(crate) struct Pools(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    made: u64,
    pools: BTreeMap<u64, Pool>,
    /// Default pools by handle; an entry is made when a setting is changed first.
    defaults: BTreeMap<u64, Pool>,
    /// Key: handle of the default pool.
    current: BTreeMap<u64, u64>,
}

impl Pools {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the access of a device to memory of a pool. Memory that outlives its pool belongs to its own device
    /// alone.
    pub(crate) fn access(&self, pool: u64, device: usize) -> Access {
        let table = self.table();
        let pool = table.pools.get(&pool).or_else(|| table.defaults.get(&pool));
        pool.map_or(Access::empty(), |pool| pool.access(device))
    }
}

impl Table {
    fn add(&mut self, pool: Pool) -> u64 {
        // Far from the default pools. Handles are never reused.
        self.made += 1;
        let handle = FIRST + (1 << 15) + self.made;
        self.pools.insert(handle, pool);
        handle
    }

    fn current_of(&self, default: u64) -> u64 {
        self.current.get(&default).copied().unwrap_or(default)
    }

    fn get(&mut self, handle: u64, devices: usize) -> Option<&mut Pool> {
        if let Some(device) = handle.checked_sub(FIRST).filter(|&d| d < devices as u64) {
            return Some(self.defaults.entry(handle).or_insert_with(|| Pool::new(device as usize)));
        }
        self.pools.get_mut(&handle)
    }
}

impl WorldState for Pools {
    fn leaks(&self) -> Vec<Leak> {
        let what = |(handle, pool): (&u64, &Pool)| format!("{handle:#x} of device {}", pool.device);
        self.table().pools.iter().map(|p| Leak { kind: "memory pool", what: what(p) }).collect()
    }

    fn stop(&self) {}
}

fn default_of(machine: &Machine, device: CUdevice) -> DriverResult<u64> {
    Ok(FIRST + machine.device(device)?.ordinal as u64)
}

/// Calls `look` with a pool; fails if the handle is not a pool.
fn pool_of<T>(machine: &Machine, pool: CUmemoryPool, look: impl FnOnce(&mut Pool) -> T) -> DriverResult<T> {
    let pools = machine.part::<Pools>();
    let mut table = pools.table();
    let found = table.get(pool as u64, machine.devices.len());
    found
        .map(look)
        .ok_or_else(|| DriverError::new(CUresult::CUDA_ERROR_INVALID_HANDLE, format!("{pool:p} is no pool")))
}

fn reuse(attribute: CUmemPool_attribute) -> DriverResult<usize> {
    use CUmemPool_attribute as A;
    match attribute {
        A::CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES => Ok(0),
        A::CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC => Ok(1),
        A::CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES => Ok(2),
        other => Err(DriverError::invalid(format!("pool attribute {other:?} is not modelled"))),
    }
}

/// Subtracts freed memory from its pool, if it has one.
pub(super) fn record_free(machine: &Machine, kind: &Kind, bytes: u64) {
    if let Kind::Pooled { pool, .. } = kind {
        // A destroyed pool counts nothing.
        let _ = pool_of(machine, *pool as CUmemoryPool, |pool| pool.used = pool.used.saturating_sub(bytes));
    }
}

fn allocate_async(
    machine: &Arc<Machine>,
    out: *mut CUdeviceptr,
    bytes: usize,
    pool: u64,
    stream: CUstream,
) -> DriverResult {
    let stream = machine.stream(stream)?;
    stream.refuse_while_capturing("a stream-ordered allocation (not modelled)")?;
    let kind = Kind::Pooled { context: stream.context.id, pool };
    let device = take(machine, pool, bytes as u64)?;
    let pointer = match allocate(machine, device, bytes as u64, kind.clone()) {
        Err(refusal) if refusal.code == CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
            // Frees that streams have not reached yet may make room.
            machine.streams.synchronize_device(device)?;
            allocate(machine, device, bytes as u64, kind)
        }
        other => other,
    };
    let size = |pointer| machine.memory.space().at(pointer).map_or(0, |m| m.physical.size());
    let taken = pointer.as_ref().map_or(0, |&pointer| size(pointer));
    pool_of(machine, pool as CUmemoryPool, |pool| {
        pool.used += taken;
        pool.peaks = pool.peaks.map(|peak| peak.max(pool.used));
    })?;
    put!(out, pointer?)
}

/// Counts `bytes` against a pool and returns its device. Fails if the pool has no room.
fn take(machine: &Machine, pool: u64, bytes: u64) -> DriverResult<usize> {
    pool_of(machine, pool as CUmemoryPool, |pool| {
        let room = pool.limit.saturating_sub(pool.used);
        if pool.limit != 0 && bytes > room {
            let why = format!("{bytes} bytes of a pool of {}, {} of which are used", pool.limit, pool.used);
            return Err(DriverError::new(CUresult::CUDA_ERROR_OUT_OF_MEMORY, why));
        }
        Ok(pool.device)
    })?
}
