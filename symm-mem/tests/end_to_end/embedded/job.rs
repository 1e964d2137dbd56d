//! A job of ranks as threads on the embedded device: a world, neighbouring pairs (TP) and strided groups (DP).
//!
//! One world lives in a process at a time, so jobs take turns ([`turn`]).

use std::{sync::Arc, thread, time::Duration};

use cuda_driver::{Context, DevicePtr, Driver, Stream, StreamFlags};
use gpu_sim::{Leak, Report, World, WorldError};
use process_group::{
    ProcessGroup,
    comm::{DataType, Nccl, ReduceOp},
    group::{Buffer, Builder, Request},
    store::{Deadline, HashStore, Store},
};
use symm_mem::{CommitOptions, Domain, Geometry, GroupId, PoolId, SymmetricBlock, SymmetricPool};

use crate::common::turn;

const MIB: u64 = 1 << 20;

/// Limit for anything that should succeed.
pub(crate) fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

/// The prefix of the store keys of a pool's meetings.
pub(crate) fn pool_key(pool: &SymmetricPool) -> String {
    let PoolId { domain, generation, pool, .. } = pool.id();
    format!("symm/{domain:x}.{generation}/{pool}")
}

/// A store key of the pool's first commit for a group.
pub(crate) fn commit_key(pool: &SymmetricPool, group: GroupId, key: &str) -> String {
    format!("{}/{}.{}/0/{key}", pool_key(pool), group.uid, group.epoch)
}

/// Options of commits in which all members vote, also those without anything new.
pub(crate) fn options() -> CommitOptions {
    CommitOptions::default().deadline(Duration::from_secs(60)).verify(true)
}

/// One rank of the job.
pub(crate) struct Rank {
    pub(crate) rank: u32,
    pub(crate) domain: Domain,
    pub(crate) context: Context,
    pub(crate) stream: Stream,
    pub(crate) world: ProcessGroup,
    pub(crate) tp: ProcessGroup,
    pub(crate) dp: ProcessGroup,
}

impl Rank {
    pub(crate) fn pool(&self) -> SymmetricPool {
        let geometry = Geometry { first_segment: 2 * MIB, largest_segment: 2 * MIB };
        SymmetricPool::new(&self.domain, &self.context, geometry).expect("the device has virtual memory")
    }

    /// A pool with a block of 1 MiB.
    pub(crate) fn pool_with_bucket(&self) -> (SymmetricPool, SymmetricBlock) {
        let pool = self.pool();
        let bucket = pool.allocate(MIB).expect("there is room");
        (pool, bucket)
    }

    /// Begins another group of all ranks of the job; it uses the world's part of the store.
    pub(crate) fn builder(&self) -> Builder {
        ProcessGroup::builder()
            .rank(self.rank as usize)
            .world_size(self.world.size())
            .store(Arc::new(self.world.store()))
            .context(&self.context)
            .nccl(self.world.nccl())
            .timeout(Duration::from_secs(60))
    }

    /// The groups in ascending order of their numbers.
    pub(crate) fn groups(&self) -> [&ProcessGroup; 3] {
        [&self.world, &self.tp, &self.dp]
    }

    /// Fills `block` with this rank's number plus one, sums it over the group in place, and checks every element.
    pub(crate) fn sum(&self, block: &SymmetricBlock, group: &ProcessGroup) {
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

    pub(crate) fn all_reduce(&self, at: DevicePtr, bytes: u64, group: &ProcessGroup) {
        let buffer = Buffer::new(at, bytes as usize / 4, DataType::F32);
        // SAFETY: the block is alive until the stream has been synchronised.
        unsafe { group.raw().all_reduce(buffer, buffer, ReduceOp::Sum, &self.stream) }
            .expect("the all-reduce is enqueued");
    }

    pub(crate) fn check(&self, block: &SymmetricBlock, group: &ProcessGroup) {
        let expected: f32 = group.global_ranks().iter().map(|rank| (rank + 1) as f32).sum();
        let mut found = vec![0u32; block.bytes() as usize / 4];
        // SAFETY: nothing writes to the block meanwhile.
        unsafe { self.context.copy_to_host(&mut found, block.ptr()) }.expect("the block can be read");
        // Slices of integers are compared fast without optimisation too.
        let is_right = found == vec![expected.to_bits(); found.len()];
        assert!(is_right, "rank {}: not all are {expected}", self.rank);
    }

    /// Ends the communicators by force.
    pub(crate) fn abandon(self) {
        let Self { world, tp, dp, .. } = self;
        for group in [dp, tp, world] {
            group.abort(soon()).expect("every group can be aborted");
        }
    }

    /// Ends the communicators together, subgroups first.
    pub(crate) fn leave(self) {
        let Self { world, tp, dp, .. } = self;
        for group in [dp, tp, world] {
            group.destroy(soon()).expect("all ranks leave");
        }
    }
}

/// Runs `job` on `size` ranks with the NCCL of `release`, one thread each, in a fresh world that reports leaks and
/// misuse. Returns the results in the order of the ranks.
pub(crate) fn run<T: Send>(
    size: u32,
    release: i32,
    prepare: impl FnOnce(&World),
    job: impl Fn(Rank) -> T + Sync,
) -> Vec<T> {
    run_on_one_thread(size, release, prepare, |ranks| {
        thread::scope(|scope| {
            let threads: Vec<_> = ranks.into_iter().map(|rank| scope.spawn(|| job(rank))).collect();
            threads.into_iter().map(|thread| thread.join().expect("no rank panics")).collect()
        })
    })
}

/// Like [`run`], for a job in which one thread drives all ranks.
pub(crate) fn run_on_one_thread<T>(
    size: u32,
    release: i32,
    prepare: impl FnOnce(&World),
    job: impl FnOnce(Vec<Rank>) -> T,
) -> T {
    run_seen(size, release, prepare, |_, ranks| job(ranks))
}

/// Like [`run_on_one_thread`], for a job that also uses the world itself.
pub(crate) fn run_seen<T>(
    size: u32,
    release: i32,
    prepare: impl FnOnce(&World),
    job: impl FnOnce(&World, Vec<Rank>) -> T,
) -> T {
    run_in(machine(size, release), size, prepare, job)
}

/// Like [`run`], for a job that leaves objects of the driver behind. Returns these objects.
pub(crate) fn run_leaving(size: u32, release: i32, job: impl Fn(Rank) + Sync) -> Vec<Leak> {
    let on_threads = |_: &World, ranks: Vec<Rank>| {
        thread::scope(|scope| ranks.into_iter().for_each(|rank| _ = scope.spawn(|| job(rank))));
    };
    match run_until_end(machine(size, release), size, |_| {}, on_threads).1 {
        Err(WorldError::Unclean(report)) if report.misuse.is_empty() => report.leaks,
        end => panic!("nothing was left behind, or something was misused: {end:?}"),
    }
}

fn machine(size: u32, release: i32) -> gpu_sim::Builder {
    World::builder().devices(size as usize).capacity(256 * MIB).nccl_release(release)
}

/// Like [`run`], in a world that handles mismatched calls as hardware does: without an error.
pub(crate) fn run_faithful(size: u32, release: i32, job: impl Fn(Rank) + Sync) {
    let on_threads = |_: &World, ranks: Vec<Rank>| {
        thread::scope(|scope| ranks.into_iter().for_each(|rank| _ = scope.spawn(|| job(rank))));
    };
    run_in(machine(size, release).faithful(), size, |_| {}, on_threads);
}

fn run_in<T>(
    machine: gpu_sim::Builder,
    size: u32,
    prepare: impl FnOnce(&World),
    job: impl FnOnce(&World, Vec<Rank>) -> T,
) -> T {
    let (result, end) = run_until_end(machine, size, prepare, job);
    end.expect("nothing is left behind");
    result
}

/// Returns the result of the job and that of the world's end.
fn run_until_end<T>(
    machine: gpu_sim::Builder,
    size: u32,
    prepare: impl FnOnce(&World),
    job: impl FnOnce(&World, Vec<Rank>) -> T,
) -> (T, Result<Report, WorldError>) {
    let _turn = turn();
    let world = machine.start().expect("no other world is alive");
    // SAFETY: the functions are those of the living world, and nothing of it outlives the world.
    let (cuda, nccl) =
        unsafe { (cuda_driver::sys::Api::from_parts(world.cuda()), nccl_sys::Api::from_parts(world.nccl())) };
    let driver = Driver::new(cuda.expect("the table has what it must have")).expect("there is a device");
    let nccl = Nccl::new(nccl.expect("the table has what it must have"));
    prepare(&world);
    let ranks = ranks(&driver, &nccl, size);
    drop((driver, nccl));
    let result = job(&world, ranks);
    process_group::comm::wait_for_dropped(soon());
    (result, world.finish())
}

/// Joins the ranks of a job, on the first devices of a driver.
pub(crate) fn ranks(driver: &Driver, nccl: &Nccl, size: u32) -> Vec<Rank> {
    let store: Arc<dyn Store> = Arc::new(HashStore::new());
    thread::scope(|scope| {
        let join = |rank| join(driver, nccl, store.clone(), rank, size);
        let threads: Vec<_> = (0..size).map(|rank| scope.spawn(move || join(rank))).collect();
        threads.into_iter().map(|thread| thread.join().expect("every rank joins")).collect()
    })
}

/// Joins one rank of a job.
pub(crate) fn join(driver: &Driver, nccl: &Nccl, store: Arc<dyn Store>, rank: u32, size: u32) -> Rank {
    let context = driver.device(rank).and_then(|device| device.retain_primary()).expect("a device for each");
    let world = ProcessGroup::builder()
        .rank(rank as usize)
        .world_size(size as usize)
        .store(store)
        .context(&context)
        .nccl(nccl)
        .timeout(Duration::from_secs(60))
        .build()
        .expect("all ranks join");
    let split = |name: &str, color: u32| {
        let request = Request::Color { color: Some(color), key: rank.into() };
        world.split(name, &request).expect("all ranks split").expect("every rank is in a group")
    };
    let (tp, dp) = (split("tp", rank / 2), split("dp", rank % 2));
    Rank {
        rank,
        domain: Domain::of(&world).expect("a rank of the job"),
        stream: Stream::new(&context, StreamFlags::NON_BLOCKING).expect("a stream"),
        context,
        world,
        tp,
        dp,
    }
}
