//! Ranks as threads, with groups whose messages go directly, and helpers to fill and read memory.

use std::{
    sync::{Arc, Barrier, MutexGuard},
    thread,
    time::Duration,
};

use cuda_driver::{Context, DevicePtr, Driver, Stream, StreamFlags, memory::DeviceMemory};
use gpu_sim::World;
use process_group::{
    ProcessGroup,
    comm::{DataType, Nccl, wait_for_dropped},
    group::{Buffer, Builder, GroupError, GroupErrorKind, P2pPolicy, PathError},
    store::{Deadline, HashStore, Store},
};
use symm_mem::{
    Domain, Geometry, SymmetricBlock, SymmetricPool,
    direct::{self, Direct, DirectOptions},
};

use super::hook;
use crate::common::turn;

/// Limit for anything that should succeed.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

pub(super) fn far() -> Deadline {
    Deadline::after(PATIENCE)
}

/// Rings that a few bytes fill.
pub(super) fn small() -> DirectOptions {
    DirectOptions::default().slot_bytes(64).slots(3).graph_slots(2)
}

/// Bytes of a message that needs more driver calls than a device queue holds, with slots as in [`small`].
pub(super) const MORE_THAN_A_QUEUE: usize = 64 * 600;

/// An embedded machine with its driver and NCCL.
pub(super) struct Machine {
    pub(super) world: World,
    driver: Driver,
    nccl: Nccl,
    _turn: MutexGuard<'static, ()>,
}

impl Machine {
    pub(super) fn start(devices: usize) -> Self {
        let turn = turn();
        let world = World::builder().devices(devices).capacity(256 << 20).start().unwrap();
        hook::remember(|| world.cuda());
        // SAFETY: the world's functions behave as the driver's and NCCL's, and it outlives what is made of them.
        let (cuda, nccl) = unsafe {
            (
                cuda_driver::sys::Api::from_parts(hook::hooked(world.cuda())).unwrap(),
                nccl_sys::Api::from_parts(world.nccl()).unwrap(),
            )
        };
        Self { world, driver: Driver::new(cuda).unwrap(), nccl: Nccl::new(nccl), _turn: turn }
    }

    /// Runs `body` on a thread for each rank; returns the results in the order of the ranks.
    pub(super) fn ranks<T: Send>(&self, size: usize, body: impl Fn(Rank) -> T + Sync) -> Vec<T> {
        ranks(&self.driver, &self.nccl, size, body)
    }

    /// Checks that nothing is left behind.
    pub(super) fn finish(self) {
        let Self { world, driver, nccl, _turn } = self;
        wait_for_dropped(far());
        drop((driver, nccl));
        world.finish().unwrap();
    }
}

/// Runs `body` on a thread for each rank, each with its own device.
pub(super) fn ranks<T: Send>(
    driver: &Driver,
    nccl: &Nccl,
    size: usize,
    body: impl Fn(Rank) -> T + Sync,
) -> Vec<T> {
    let store: Arc<dyn Store> = Arc::new(HashStore::new());
    let installed = Arc::new(Barrier::new(size));
    thread::scope(|scope| {
        let (body, store, installed) = (&body, &store, &installed);
        let spawn = |rank: usize| {
            scope.spawn(move || {
                let context = driver.device(rank as u32).unwrap().retain_primary().unwrap();
                let (nccl, store, installed) = (nccl.clone(), store.clone(), installed.clone());
                body(Rank { rank, size, context, nccl, store, installed })
            })
        };
        let threads: Vec<_> = (0..size).map(spawn).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// One rank.
pub(super) struct Rank {
    pub(super) rank: usize,
    pub(super) size: usize,
    pub(super) context: Context,
    pub(super) nccl: Nccl,
    pub(super) store: Arc<dyn Store>,
    pub(super) installed: Arc<Barrier>,
}

impl Rank {
    /// Begins a group that makes no communicator before it needs one.
    pub(super) fn builder(&self) -> Builder {
        self.eager().lazy()
    }

    pub(super) fn eager(&self) -> Builder {
        ProcessGroup::builder()
            .store(self.store.clone())
            .rank(self.rank)
            .world_size(self.size)
            .context(&self.context)
            .nccl(&self.nccl)
            .timeout(PATIENCE)
            .p2p(P2pPolicy::Direct)
    }

    /// A group whose messages go directly.
    pub(super) fn group(&self, options: DirectOptions) -> ProcessGroup {
        self.installed(self.builder(), options)
    }

    /// Such a group, from this builder. Every rank calls this equally often.
    pub(super) fn installed(&self, builder: Builder, options: DirectOptions) -> ProcessGroup {
        self.direct(builder, options).0
    }

    /// Such a group with its path.
    pub(super) fn direct(&self, builder: Builder, options: DirectOptions) -> (ProcessGroup, Direct) {
        let group = builder.build().unwrap();
        let direct = direct::install(&group, options).unwrap();
        // An abort by a rank that was faster would end the installation of the others.
        self.installed.wait();
        (group, direct)
    }

    /// A pool with segments of 2 MiB, unless a block is larger. Every rank of the group calls this equally often.
    pub(super) fn pool(&self, group: &ProcessGroup) -> SymmetricPool {
        let geometry = Geometry { first_segment: 2 << 20, largest_segment: 2 << 20 };
        SymmetricPool::new(&Domain::of(group).unwrap(), &self.context, geometry).unwrap()
    }

    /// Writes these bytes, and waits until they have arrived.
    pub(super) fn write(&self, at: DevicePtr, bytes: &[u8]) {
        // SAFETY: the callers write to their own memory, which is as long.
        unsafe { self.context.copy_from_host(at, bytes) }.unwrap();
        self.context.synchronize().unwrap();
    }

    /// Reads as many bytes.
    pub(super) fn read(&self, at: DevicePtr, length: usize) -> Vec<u8> {
        let mut found = vec![0; length];
        // SAFETY: the callers read their own memory, which is as long.
        unsafe { self.context.copy_to_host(&mut found, at) }.unwrap();
        found
    }

    pub(super) fn stream(&self) -> Stream {
        Stream::new(&self.context, StreamFlags::NON_BLOCKING).unwrap()
    }

    /// Memory with these bytes.
    pub(super) fn memory(&self, bytes: &[u8]) -> DeviceMemory {
        let memory = DeviceMemory::new(&self.context, bytes.len().max(1)).unwrap();
        self.fill(&memory, bytes);
        memory
    }

    /// Writes these bytes, and waits until they have arrived: a copy from pageable memory may still be under way when
    /// the call returns, and the ranks' streams do not wait for it.
    pub(super) fn fill(&self, memory: &DeviceMemory, bytes: &[u8]) {
        memory.copy_from_host(0, bytes).unwrap();
        self.context.synchronize().unwrap();
    }
}

/// Memory of a pool, or other memory.
pub(super) enum Memory {
    Block(SymmetricBlock),
    Other(DeviceMemory),
}

impl Memory {
    pub(super) fn ptr(&self) -> DevicePtr {
        match self {
            Self::Block(block) => block.ptr(),
            Self::Other(memory) => memory.ptr(),
        }
    }
}

/// All of `memory` as bytes.
pub(super) fn buffer(memory: &DeviceMemory) -> Buffer {
    Buffer::new(memory.ptr(), memory.bytes(), DataType::U8)
}

pub(super) fn bytes(memory: &DeviceMemory) -> Vec<u8> {
    let mut found = vec![0; memory.bytes()];
    memory.copy_to_host(0, &mut found).unwrap();
    found
}

/// The content of message `number`.
pub(super) fn pattern(number: usize, length: usize) -> Vec<u8> {
    (0..length).map(|at| (number * 37 + at * 11 + at / 251) as u8 | 1).collect()
}

/// Returns whether the error reports that member `by` has ended its work.
pub(super) fn is_given_up(error: &GroupError, by: usize) -> bool {
    match error.kind() {
        GroupErrorKind::Path { source, .. } => matches!(**source, PathError::GivenUp { peer } if peer == by),
        // The member has left the group, and the health monitor has reported that.
        GroupErrorKind::Left { rank, .. } => *rank == by,
        _ => false,
    }
}
