//! Put and get on the embedded device: ranks as threads, and as processes that die; and on GPUs.

mod captures;
mod faults;
mod flows;
mod hardware;
mod processes;
mod refusals;
mod regions;
mod waits;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use cuda_driver::{Context, Driver, Stream, StreamFlags, memory::DeviceMemory, sys::Api};
use gpu_sim::World;
use process_group::store::{Deadline, HashStore, Store, barrier};
use symm_mem::{
    exchange::{Exchange, ExchangeOptions, Memory, Part, Plan, Transfer},
    rendezvous::{CudaAllocator, GroupInfo, PeerAllocator, Rendezvous, RendezvousOptions},
};

use crate::common::turn;

/// Longer than anything should take.
const LONG: Duration = Duration::from_secs(60);

fn options() -> ExchangeOptions {
    ExchangeOptions::default().deadline(LONG).channels(64)
}

/// A member of a group that has an exchange.
struct Rank<'a> {
    exchange: Exchange,
    rendezvous: Rendezvous,
    context: Context,
    stream: Stream,
    rank: usize,
    world: usize,
    meet: &'a (dyn Fn() + Sync),
}

impl<'a> Rank<'a> {
    /// Joins as rank `rank` of `world`, on the device of `context`. Collective.
    fn join(
        context: Context,
        store: Arc<dyn Store>,
        (rank, world): (usize, usize),
        options: ExchangeOptions,
        meet: &'a (dyn Fn() + Sync),
    ) -> Self {
        let info = GroupInfo::new("exchange", rank, 0..world as u32, store).unwrap();
        let shared = RendezvousOptions::default().deadline(LONG).shared_devices(true);
        let rendezvous = Rendezvous::new(info, &context, shared).unwrap();
        let exchange = Exchange::new(&rendezvous, options).unwrap();
        let stream = Stream::new(&context, StreamFlags::NON_BLOCKING).unwrap();
        Self { exchange, rendezvous, context, stream, rank, world, meet }
    }

    fn plain(&self, bytes: usize) -> Memory {
        DeviceMemory::new(&self.context, bytes).unwrap().into()
    }

    fn mapped(&self, bytes: usize) -> Memory {
        Memory::from(&CudaAllocator::new(&self.context).unwrap().allocate(bytes).unwrap())
    }

    fn write(&self, memory: &Memory, bytes: &[u8]) {
        // On this rank's stream: synchronizing the whole device would invalidate a capture of another rank on it.
        // SAFETY: the memory is as long as the bytes, and nothing else uses it now.
        unsafe { self.stream.copy_from_host(memory.ptr(), bytes.as_ptr().cast(), bytes.len()) }.unwrap();
        self.stream.synchronize().unwrap();
    }

    fn read(&self, memory: &Memory) -> Vec<u8> {
        let mut bytes = vec![0; memory.bytes()];
        // SAFETY: nobody writes it now.
        unsafe { self.context.copy_to_host(&mut bytes, memory.ptr()) }.unwrap();
        bytes
    }

    fn transfer(&self, peer: usize, part: Part, memory: &Memory) -> Transfer {
        self.exchange.transfer(peer, part, memory).unwrap()
    }

    /// Enqueues this rank's operations of one round of all transfers.
    fn enqueue_round(&self, plan: &Plan, parts: &[Part], deadline: Duration) {
        let all: Vec<(usize, Part)> = parts.iter().copied().enumerate().collect();
        enqueue(plan, &all, &self.stream, deadline);
    }

    fn round(&self, plan: &Plan, parts: &[Part]) {
        self.enqueue_round(plan, parts, LONG);
        self.stream.synchronize().unwrap();
        plan.check().unwrap();
    }

    /// Ends the exchange, and checks that all lent memory was returned.
    fn leave(self) {
        let overdue = self.exchange.close(Deadline::after(LONG));
        assert!(overdue.is_empty(), "{overdue:?}");
    }
}

/// Enqueues a rank's operations of one round of these transfers.
fn enqueue(plan: &Plan, transfers: &[(usize, Part)], stream: &Stream, deadline: Duration) {
    let of = |wanted: &'static [Part]| {
        transfers.iter().filter(move |(_, part)| wanted.contains(part)).map(|(at, _)| *at)
    };
    // SAFETY: the buffers are used by nobody else until the stream is done.
    unsafe {
        // Operations that let the peers proceed come first, since one stream holds them all.
        of(&[Part::PutTarget, Part::GetBy]).for_each(|at| plan.ready(at, stream).unwrap());
        of(&[Part::PutInitiator]).for_each(|at| plan.put(at, stream, deadline).unwrap());
        of(&[Part::GetFrom]).for_each(|at| plan.get(at, stream, deadline).unwrap());
        of(&[Part::PutTarget, Part::GetBy]).for_each(|at| plan.wait(at, stream, deadline).unwrap());
    }
}

/// Bytes that depend on the writing rank, the round and the position.
fn pattern(rank: usize, round: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 31 + at / 251 + rank * 97 + round * 57 + 1) as u8).collect()
}

/// Runs `job` on ranks of one process, each on its own device, in a world that reports leaks.
fn on_ranks(size: usize, options: ExchangeOptions, job: impl Fn(&Rank<'_>) + Sync) {
    on_world(size, options, |_, rank| job(rank));
}

fn on_world(size: usize, options: ExchangeOptions, job: impl Fn(&World, &Rank<'_>) + Sync) {
    let _turn = turn();
    let world = World::builder().devices(size).capacity(512 << 20).start().unwrap();
    // SAFETY: the functions are those of the living world, and nothing of it outlives the world.
    let driver = Driver::new(unsafe { Api::from_parts(world.cuda()) }.unwrap()).unwrap();
    threads(&driver, size, size, options, |rank| job(&world, rank));
    drop(driver);
    world.finish().expect("nothing is left behind");
}

/// Runs `job` on `size` ranks of one process, spread over the driver's first `devices` devices.
fn threads(
    driver: &Driver,
    devices: usize,
    size: usize,
    options: ExchangeOptions,
    job: impl Fn(&Rank<'_>) + Sync,
) {
    threads_on(|store| Arc::new(store), driver, devices, size, options, job);
}

/// Like [`threads`], with the store that `store_of` makes of the job's store for each rank.
fn threads_on(
    store_of: impl Fn(HashStore) -> Arc<dyn Store>,
    driver: &Driver,
    devices: usize,
    size: usize,
    options: ExchangeOptions,
    job: impl Fn(&Rank<'_>) + Sync,
) {
    let store = HashStore::new();
    thread::scope(|scope| {
        for rank in 0..size {
            let (job, store) = (&job, store_of(store.clone()));
            scope.spawn(move || {
                let round = AtomicU64::new(0);
                // Fails at the deadline if another rank has panicked.
                let meet = || {
                    let name = format!("met/{}", round.fetch_add(1, Ordering::Relaxed));
                    barrier(&*store, &name, rank, size, Deadline::after(LONG)).unwrap();
                };
                let context = driver.device((rank % devices) as u32).unwrap().retain_primary().unwrap();
                let rank = Rank::join(context, store.clone(), (rank, size), options, &meet);
                job(&rank);
                rank.leave();
            });
        }
    });
}
