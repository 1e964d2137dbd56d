//! A job of ranks as threads on the embedded device: a world, neighbouring pairs (TP) and strided groups (DP).
//!
//! One world lives in a process at a time, so jobs take turns.

use std::{
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Duration,
};

use cuda_driver::{Context, DevicePtr, Driver, Stream, StreamFlags};
use gpu_sim::World;
use process_group::{
    comm::{Communicator, Config, DataType, Nccl, ReduceOp, WindowFacts},
    store::{Deadline, HashStore, Store},
};
use symm_mem::{CommitOptions, CommunicatorGroup, Domain, Geometry, GroupId, SymmetricBlock, SymmetricPool};

const MIB: u64 = 1 << 20;

/// How long anything may take.
pub(crate) fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

pub(crate) fn options() -> CommitOptions {
    CommitOptions::default().deadline(Duration::from_secs(60))
}

/// A group of the job, seen from one rank.
pub(crate) struct Group {
    pub(crate) id: GroupId,
    pub(crate) ranks: Vec<u32>,
    pub(crate) communicator: Communicator,
}

impl Group {
    pub(crate) fn view(&self) -> CommunicatorGroup<'_> {
        CommunicatorGroup { id: self.id, ranks: self.ranks.clone(), communicator: &self.communicator }
    }
}

/// One rank of the job.
pub(crate) struct Rank {
    pub(crate) rank: u32,
    pub(crate) domain: Domain,
    pub(crate) context: Context,
    pub(crate) stream: Stream,
    pub(crate) nccl: Nccl,
    pub(crate) world: Group,
    pub(crate) tp: Group,
    pub(crate) dp: Group,
}

impl Rank {
    pub(crate) fn pool(&self) -> SymmetricPool {
        let geometry = Geometry { first_segment: 2 * MIB, largest_segment: 8 * MIB };
        SymmetricPool::new(&self.domain, &self.context, geometry).expect("the device has virtual memory")
    }

    /// The groups in the order of their numbers.
    pub(crate) fn groups(&self) -> [&Group; 3] {
        [&self.world, &self.tp, &self.dp]
    }

    /// Fills `block` with this rank's number plus one, sums it over the group in place, and checks every element.
    pub(crate) fn sum(&self, block: &SymmetricBlock, group: &Group) {
        self.fill(block);
        self.all_reduce(block.ptr(), block.bytes(), group);
        self.stream.synchronize().expect("the work is done");
        self.check(block, group);
    }

    pub(crate) fn fill(&self, block: &SymmetricBlock) {
        let value = (self.rank + 1) as f32;
        // SAFETY: the block is alive until the stream has been synchronised.
        unsafe { self.stream.fill_u32(block.ptr(), value.to_bits(), block.bytes() as usize / 4) }
            .expect("the block can be filled");
    }

    pub(crate) fn all_reduce(&self, at: DevicePtr, bytes: u64, group: &Group) {
        let count = bytes as usize / 4;
        // SAFETY: the block is alive until the stream has been synchronised.
        unsafe { group.communicator.all_reduce(at, at, count, DataType::F32, ReduceOp::Sum, &self.stream) }
            .expect("the all-reduce is enqueued");
    }

    pub(crate) fn check(&self, block: &SymmetricBlock, group: &Group) {
        let expected: f32 = group.ranks.iter().map(|rank| (rank + 1) as f32).sum();
        let mut found = vec![0f32; block.bytes() as usize / 4];
        // SAFETY: nothing writes to the block meanwhile.
        unsafe { self.context.copy_to_host(&mut found, block.ptr()) }.expect("the block can be read");
        assert!(found.iter().all(|value| *value == expected), "rank {}: not all are {expected}", self.rank);
    }

    /// Ends the communicators together, subgroups first.
    pub(crate) fn leave(self) {
        let Self { world, tp, dp, .. } = self;
        for group in [dp, tp, world] {
            group.communicator.destroy(soon()).expect("all ranks leave");
        }
    }
}

static TURN: Mutex<()> = Mutex::new(());

/// Runs `job` on `size` ranks with the NCCL of `release`, in a fresh world. What the ranks return comes back in
/// their order. Strict: nothing may leak or be misused, unless `torn` (communicators were aborted).
pub(crate) fn run<T: Send>(
    size: u32,
    release: i32,
    prepare: impl FnOnce(&World),
    job: impl Fn(Rank) -> T + Sync,
) -> Vec<T> {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let world = World::builder()
        .devices(size as usize)
        .capacity(256 * MIB)
        .nccl_release(release)
        .start()
        .expect("no other world is alive");
    // SAFETY: the functions are those of the living world, and nothing of it outlives the world.
    let (cuda, nccl) =
        unsafe { (cuda_driver::sys::Api::from_parts(world.cuda()), nccl_sys::Api::from_parts(world.nccl())) };
    let driver = Driver::new(cuda.expect("the table has what it must have")).expect("there is a device");
    let nccl = Nccl::new(nccl.expect("the table has what it must have"));
    let store: Arc<dyn Store> = Arc::new(HashStore::new());
    let id = nccl.unique_id().expect("the root can listen");
    prepare(&world);
    let results = thread::scope(|scope| {
        let threads: Vec<_> = (0..size)
            .map(|rank| {
                let (driver, nccl, store, job) = (&driver, &nccl, store.clone(), &job);
                scope.spawn(move || job(join(driver, nccl, store, &id, rank, size)))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no rank panics")).collect()
    });
    drop((driver, nccl));
    process_group::comm::wait_for_dropped(soon());
    world.finish().expect("nothing is left behind");
    results
}

fn join(
    driver: &Driver,
    nccl: &Nccl,
    store: Arc<dyn Store>,
    id: &process_group::comm::UniqueId,
    rank: u32,
    size: u32,
) -> Rank {
    let context = driver.device(rank).and_then(|device| device.retain_primary()).expect("a device for each");
    let facts = WindowFacts { one_host: Some(true), peer_access: Some(true), ..WindowFacts::default() };
    let named = |name: &str| {
        let mut config = Config::new().name(name);
        config.window_facts = facts;
        config
    };
    let communicator =
        Communicator::init(nccl, &context, id, rank as usize, size as usize, &named("world"), soon())
            .expect("all ranks join");
    let split = |name: &str, color: u32| {
        communicator
            .split(Some(color), rank as i32, &named(name), soon())
            .expect("all ranks split")
            .expect("every rank is in a group")
    };
    let (tp, dp) = (split("tp", rank / 2), split("dp", rank % 2));
    let group = |uid: u32, ranks: Vec<u32>, communicator: Communicator| Group {
        id: GroupId { uid: uid.into(), epoch: 0 },
        ranks,
        communicator,
    };
    let pair = rank / 2 * 2;
    Rank {
        rank,
        domain: Domain::new(store, 1, rank, 0..size).expect("a rank of the job"),
        stream: Stream::new(&context, StreamFlags::NON_BLOCKING).expect("a stream"),
        context: context.clone(),
        nccl: nccl.clone(),
        world: group(0, (0..size).collect(), communicator),
        tp: group(1 + rank / 2, (pair..(pair + 2).min(size)).collect(), tp),
        dp: group(100 + rank % 2, (rank % 2..size).step_by(2).collect(), dp),
    }
}
