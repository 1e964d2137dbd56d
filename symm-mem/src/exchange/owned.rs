//! Memory that is neither a block of a [symmetric pool](crate::SymmetricPool) nor a
//! [`PeerMemory`](crate::rendezvous::PeerMemory): an allocation of the driver, or a block of a caching allocator with
//! the segments (allocations of the driver) that contain it.

use std::{
    any::Any,
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, Weak},
};

use caching_alloc::core::{Block, Hold, Segment};
use cuda_driver::{Context, DevicePtr, Error, memory::DeviceMemory, sys::CUresult, vmm::PhysicalMemory};

use super::TransferError;
use crate::{lock::lock, rendezvous::fresh_number};

/// The name of this module's [holds](Segment::hold) in reports of the caching allocator. A segment with a hold is
/// neither moved nor released.
const HOLDER: &str = "symm-mem exchange";

/// The numbers that identify the allocations of [`Owned`] memory. The key is the address of an allocation's first byte.
/// Several [`Owned`] values for one allocation find the same number here, so a peer opens the allocation only once. A
/// value that keeps a [`Number`] alive also keeps its allocation alive. So as long as a number is alive, no other
/// allocation can have the same address.
static NUMBERS: Mutex<Option<HashMap<u64, Weak<Number>>>> = Mutex::new(None);

/// A number that identifies an allocation in this process. It is never reused.
#[derive(Debug)]
pub(super) struct Number(pub(super) u64);

impl Number {
    fn of(base: DevicePtr) -> Arc<Self> {
        let mut numbers = lock(&NUMBERS);
        let numbers = numbers.get_or_insert_default();
        numbers.retain(|_, number| number.strong_count() > 0);
        if let Some(known) = numbers.get(&base.0).and_then(Weak::upgrade) {
            return known;
        }
        let number = Arc::new(Self(fresh_number()));
        numbers.insert(base.0, Arc::downgrade(&number));
        number
    }
}

/// Device memory, and the value that owns it.
pub(super) struct Owned {
    pub(super) context: Context,
    pub(super) ptr: DevicePtr,
    pub(super) bytes: usize,
    /// The allocations that contain this memory, in the order of their addresses. Declared before `_owner`, so that
    /// they are dropped first, and no [`Number`] outlives its allocation.
    pub(super) allocations: Vec<OwnedAllocation>,
    _owner: Box<dyn Any + Send + Sync>,
}

/// A whole allocation of the driver.
pub(super) struct OwnedAllocation {
    pub(super) number: Arc<Number>,
    pub(super) base: DevicePtr,
    pub(super) bytes: usize,
    /// The driver's virtual-memory handle of the allocation, which is exported to peers. `None` if the driver has no
    /// such handle, for example for memory of `cuMemAlloc`. That memory is exported by legacy IPC handle.
    pub(super) physical: Option<PhysicalMemory>,
}

impl OwnedAllocation {
    /// Describes the allocation of `bytes` bytes at `base`. The caller must keep the allocation alive while the result
    /// lives.
    fn new(context: &Context, base: DevicePtr, bytes: usize) -> Result<Self, Error> {
        let physical = match PhysicalMemory::retain(context, base, bytes) {
            Ok(physical) => Some(physical),
            Err(Error::Missing(_)) => None,
            Err(Error::Driver(error)) if error.code == CUresult::CUDA_ERROR_INVALID_VALUE => None,
            Err(error) => return Err(error),
        };
        Ok(Self { number: Number::of(base), base, bytes, physical })
    }
}

impl Owned {
    /// See [`Memory::foreign`](super::Memory::foreign). Returns the memory of the whole allocation, and the offset of
    /// `ptr` in the allocation, in bytes.
    pub(super) fn foreign(
        context: &Context,
        ptr: DevicePtr,
        owner: impl Any + Send + Sync,
    ) -> Result<(Self, usize), Error> {
        let range = context.address_range(ptr)?;
        let offset = ptr.offset_from(range.start).unwrap_or(u64::MAX) as usize;
        let allocations = vec![OwnedAllocation::new(context, range.start, range.bytes)?];
        let (context, _owner) = (context.clone(), Box::new(owner));
        Ok((Self { context, ptr: range.start, bytes: range.bytes, allocations, _owner }, offset))
    }

    /// See [`Memory::block`](super::Memory::block). `owner` keeps `block` allocated.
    pub(super) fn block(
        context: &Context,
        block: &Block,
        owner: impl Any + Send + Sync,
    ) -> Result<Self, TransferError> {
        let (found, wanted) = (block.device(), context.device().ordinal());
        if found != wanted {
            let (what, user) = ("the block", "the context");
            return Err(Error::DifferentDevices { what, found, user, wanted }.into());
        }
        let address = block.address();
        let segments = block.segments();
        let holds = holds(address, &segments)?;
        let allocations = segments.iter().map(|segment| {
            let (base, bytes) = (DevicePtr(segment.address()), segment.bytes() as usize);
            let allocation = OwnedAllocation::new(context, base, bytes)?;
            if allocation.physical.is_none() {
                // Refuse memory that the driver did not allocate: for such memory, this call fails.
                context.address_range(base)?;
            }
            Ok::<_, Error>(allocation)
        });
        let allocations = allocations.collect::<Result<Vec<_>, _>>()?;
        let (ptr, bytes) = (DevicePtr(address), block.bytes() as usize);
        Ok(Self { context: context.clone(), ptr, bytes, allocations, _owner: Box::new((holds, owner)) })
    }
}

/// Takes a hold on each segment of the block at `address`. If one of them cannot be held, keeps no hold.
fn holds(address: u64, segments: &[Segment]) -> Result<Vec<Hold>, TransferError> {
    let hold = |segment: &Segment| segment.hold(HOLDER);
    let holds = segments.iter().map(hold).collect::<Result<_, _>>();
    holds.map_err(|error| TransferError::Unheld { address, cause: error.to_string() })
}

impl From<DeviceMemory> for Owned {
    fn from(memory: DeviceMemory) -> Self {
        let (context, base, bytes) = (memory.context().clone(), memory.ptr(), memory.bytes());
        let allocation = OwnedAllocation { number: Number::of(base), base, bytes, physical: None };
        Self { context, ptr: base, bytes, allocations: vec![allocation], _owner: Box::new(memory) }
    }
}

impl fmt::Debug for Owned {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers: Vec<u64> = self.allocations.iter().map(|allocation| allocation.number.0).collect();
        write!(out, "Owned({} bytes at {}, allocations {numbers:?})", self.bytes, self.ptr)
    }
}

#[cfg(test)]
mod tests {
    use caching_alloc::{
        core::{Allocator, PoolKind, PoolSettings, Settings, StreamId},
        host::{HostSource, HostStreams},
    };

    use super::*;

    /// Pages (segments) that an allocator has released cannot be held. The error names the block. Afterwards, no hold
    /// is left on the other pages.
    #[test]
    fn a_block_with_a_released_page_is_not_held() {
        let source = Arc::new(HostSource::new(1 << 30));
        let allocator = Allocator::new(source, Arc::new(HostStreams::new()), Settings::default());
        let kind = PoolKind::Remappable;
        let pool = allocator.pool(PoolSettings { kind, ..PoolSettings::default() }).unwrap();
        let block = pool.allocate(5 << 20, StreamId(1)).unwrap();
        let live = block.segments();
        assert!(live.len() > 1, "the block spans pages");
        assert_eq!(holds(block.address(), &live).unwrap().len(), live.len());
        let other = pool.allocate(5 << 20, StreamId(1)).unwrap();
        let released = other.segments();
        drop(other);
        allocator.empty_cache().unwrap();
        let refused = holds(7, &[&live[..1], &released[..]].concat()).unwrap_err();
        let TransferError::Unheld { address: 7, cause } = &refused else { panic!("{refused}") };
        assert!(cause.starts_with(HOLDER), "{cause}");
        assert!(live.iter().all(|segment| segment.holders().is_empty()), "a hold is left");
        // The block that is in use can still be held.
        assert_eq!(holds(block.address(), &live).unwrap().len(), live.len());
    }
}
