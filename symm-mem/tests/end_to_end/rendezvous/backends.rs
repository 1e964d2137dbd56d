//! Allocators of peer memory outside of the crate, and a rendezvous with memory of its own.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use cuda_driver::{
    Context,
    memory::DeviceMemory,
    vmm::{Access, Granularity, HandleTypes, PhysicalMemory, Reservation},
};
use process_group::comm::DataType;
use symm_mem::{
    ErrorKind,
    rendezvous::{
        AllocationError, Allocators, DeviceKind, Layout, PeerAllocator, PeerMemory, Rendezvous,
        RendezvousOptions, RendezvousRefusal,
    },
};

use super::each_reads_each;
use crate::embedded::job::{Rank, run, soon};

fn on_ranks<T: Send>(size: u32, job: impl Fn(Rank) -> T + Sync) -> Vec<T> {
    run(size, 22809, |_| {}, job)
}

/// Memory of a kind of device that the crate does not know: behind pages that stay free, and shared by descriptor only.
struct Guarded {
    context: Context,
    persistent: Mutex<HashMap<u64, PeerMemory>>,
}

impl Guarded {
    fn make(&self, bytes: usize, id: Option<u64>) -> Result<PeerMemory, AllocationError> {
        let handles = HandleTypes::POSIX_FD;
        let step = Granularity::of(self.context.device(), handles)?;
        let whole = step.round_up(bytes.max(1));
        let reservation = Reservation::new(self.context.driver(), whole + 2 * step.minimum, 0)?;
        let memory = PhysicalMemory::create(&self.context, whole, handles)?;
        let mapping = reservation.map(step.minimum, &memory, 0, whole)?;
        mapping.set_access(&[(self.context.device(), Access::ReadWrite)])?;
        PeerMemory::from_mapping(mapping, bytes, id)
    }
}

impl PeerAllocator for Guarded {
    fn allocate(&self, bytes: usize) -> Result<PeerMemory, AllocationError> {
        self.make(bytes, None)
    }

    fn persistent(&self, id: u64, bytes: usize) -> Result<PeerMemory, AllocationError> {
        let mut persistent = self.persistent.lock().unwrap();
        if let Some(memory) = persistent.get(&id) {
            return match memory.is_unique() {
                true => Ok(memory.clone()),
                false => Err(AllocationError::StillAlive { id }),
            };
        }
        let memory = self.make(bytes, Some(id))?;
        persistent.insert(id, memory.clone());
        Ok(memory)
    }
}

#[test]
fn an_allocator_of_another_crate_serves_a_rendezvous() {
    on_ranks(3, |rank| {
        let kind = DeviceKind::Other("guarded".into());
        let mut allocators = Allocators::new(&rank.context).unwrap();
        let own = Guarded { context: rank.context.clone(), persistent: Mutex::default() };
        assert!(allocators.register(kind.clone(), Arc::new(own)).is_none());
        let layout = Layout::contiguous([1000], DataType::F32);
        let rendezvous = Rendezvous::of(&rank.world, RendezvousOptions::default()).unwrap();
        let memory = allocators.empty_strided(&kind, &layout, None).unwrap();
        assert_eq!((memory.bytes(), memory.id()), (4000, None));
        each_reads_each(&rendezvous.rendezvous(&memory).unwrap(), &|| rank.world.barrier(soon()).unwrap());
        let kept = allocators.empty_strided(&kind, &layout, Some(5)).unwrap();
        assert_eq!(kept.id(), Some(5));
        each_reads_each(&rendezvous.rendezvous(&kept).unwrap(), &|| rank.world.barrier(soon()).unwrap());
        let alive = allocators.empty_strided(&kind, &layout, Some(5)).unwrap_err();
        assert!(matches!(alive, AllocationError::StillAlive { id: 5 }), "{alive}");
        drop(kept);
        let kept = allocators.empty_strided(&kind, &layout, Some(5)).unwrap();
        let none = allocators.of(&kind).unwrap().allocate(0).unwrap_err();
        assert!(matches!(none, AllocationError::Size { bytes: Some(0) }), "{none}");
        rank.world.barrier(soon()).unwrap();
        drop((memory, kept, allocators, rendezvous));
        rank.leave();
    });
}

#[test]
fn memory_is_allocated_and_mapped_in_one_call() {
    on_ranks(2, |rank| {
        let rendezvous = Rendezvous::of(&rank.world, RendezvousOptions::default()).unwrap();
        let layout = Layout::contiguous([32, 32], DataType::F32);
        let symmetric = rendezvous.empty(&layout).unwrap();
        assert_eq!(symmetric.bytes(), 4096);
        each_reads_each(&symmetric, &|| rank.world.barrier(soon()).unwrap());

        // A rank without memory is named to the others, and the group has its next rendezvous.
        let taken = (rank.rank == 1).then(|| {
            let (free, _) = rank.context.memory_info().unwrap();
            DeviceMemory::new(&rank.context, free).unwrap()
        });
        let error = rendezvous.empty(&layout).unwrap_err();
        match rank.rank {
            0 => assert!(
                matches!(
                    error.rendezvous_refusal(),
                    Some(RendezvousRefusal::PeerPrepareFailed { rank: 1, .. })
                ),
                "{error}"
            ),
            _ => assert!(matches!(error.kind(), ErrorKind::Allocation(_)), "{error}"),
        }
        drop(taken);
        drop(rendezvous.empty(&layout).unwrap());
        rank.world.barrier(soon()).unwrap();
        drop((symmetric, rendezvous));
        rank.leave();
    });
}
