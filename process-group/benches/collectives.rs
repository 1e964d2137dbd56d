//! What the layers above NCCL's table add: to the enqueueing of a collective, and to the making of communicators.
//!
//! `cargo bench -p lockstep-process-group --bench collectives [-- RANKS]`, on ranks as threads of one process.

mod support;

use std::{
    ptr,
    sync::{Arc, Barrier},
};

use cuda_driver::{Context, Stream, StreamFlags, memory::DeviceMemory};
use nccl_sys::{ncclComm_t, ncclDataType_t, ncclRedOp_t, ncclResult_t, ncclUniqueId};
use process_group::{
    ProcessGroup,
    comm::{Communicator, Config, DataType, Nccl, ReduceOp, UniqueId},
    group::{Buffer, Request},
    store::{HashStore, Store},
};
use support::{Machine, Result, far, median, timed};

/// Collectives that are timed together: few enough that no launch waits for room in the stream.
const BURST: usize = 20;
const BURSTS: usize = 201;
const COMMUNICATORS: usize = 3;

/// One rank of the job.
struct Rank<'a> {
    rank: usize,
    machine: &'a Machine,
    context: &'a Context,
    store: Arc<HashStore>,
    barrier: &'a Barrier,
}

fn main() -> Result<()> {
    let machine = Machine::open()?;
    let (store, barrier) = (Arc::new(HashStore::new()), Barrier::new(machine.ranks));
    let (making, enqueueing) = machine.run(|rank, context| {
        let store = store.clone();
        let rank = Rank { rank, machine: &machine, context, store, barrier: &barrier };
        // The first communicator of a process also sets the library up.
        let first = rank.raw("first")?;
        Ok(((first, rank.making()?), rank.enqueueing()?))
    })?;

    let ((first, _), [raw, comm, group]) = making;
    println!("\nmaking, ms (the first of the process: {:.1})", first / 1e3);
    println!("{:24}{:>10}{:>8}{:>10}{:>8}", "", "init", "ratio", "split", "ratio");
    for (name, (init, split)) in [("raw table", raw), ("Communicator", comm), ("ProcessGroup", group)] {
        let ratios = (init / raw.0, split / raw.1);
        println!("{name:24}{:10.2}{:8.2}{:10.2}{:8.2}", init / 1e3, ratios.0, split / 1e3, ratios.1);
    }
    println!("\nall-reduce of 8 bytes, host ns a call (bursts of {BURST})");
    println!("{:24}{:>10}{:>8}", "", "ns", "ratio");
    let names = ["a raw table", "b Communicator", "c ProcessGroup, Work"];
    for (name, time) in names.into_iter().zip(enqueueing) {
        println!("{name:24}{time:10.0}{:8.2}", time / enqueueing[0]);
    }
    Ok(())
}

impl Rank<'_> {
    fn size(&self) -> usize {
        self.machine.ranks
    }

    fn nccl(&self) -> &Nccl {
        &self.machine.nccl
    }

    /// A new id, the same on all ranks.
    fn id(&self, name: &str) -> Result<UniqueId> {
        if self.rank == 0 {
            self.store.set(name, self.nccl().unique_id()?.as_bytes())?;
        }
        Ok(UniqueId::try_from(&self.store.get(name, far())?[..])?)
    }

    /// µs of ncclCommInitRank, and of ncclCommSplit into a communicator of the same ranks.
    fn raw(&self, name: &str) -> Result<(f64, f64)> {
        let (api, _current) = (self.nccl().api(), self.context.enter()?);
        let id = ncclUniqueId { internal: self.id(name)?.as_bytes().map(u8::cast_signed) };
        let (size, rank) = (self.size() as i32, self.rank as i32);
        let (mut parent, mut child): (ncclComm_t, ncclComm_t) = (ptr::null_mut(), ptr::null_mut());
        self.barrier.wait();
        // SAFETY: both communicators are written to locals, and destroyed once, by all ranks, with no work in them;
        // a null configuration asks for the parent's.
        unsafe {
            let (init, ()) =
                timed(|| check((api.ncclCommInitRank()?)(&mut parent, size, id, rank), "ncclCommInitRank"))?;
            self.barrier.wait();
            let config = ptr::null_mut();
            let (split, ()) = timed(|| {
                check((api.ncclCommSplit()?)(parent, 0, rank, &mut child, config), "ncclCommSplit")
            })?;
            for comm in [child, parent] {
                check((api.ncclCommDestroy()?)(comm), "ncclCommDestroy")?;
            }
            Ok((init, split))
        }
    }

    fn communicator(&self, name: &str) -> Result<(f64, f64)> {
        let (id, config) = (self.id(name)?, Config::new());
        self.barrier.wait();
        let init = || {
            Ok(Communicator::init(self.nccl(), self.context, &id, self.rank, self.size(), &config, far())?)
        };
        let (init, parent) = timed(init)?;
        self.barrier.wait();
        let (split, child) = timed(|| Ok(parent.split(Some(0), self.rank as i32, &config, far())?))?;
        child.ok_or("every rank has a color")?.destroy(far())?;
        parent.destroy(far())?;
        Ok((init, split))
    }

    fn process_group(&self, name: &str) -> Result<(f64, f64)> {
        self.barrier.wait();
        let (init, parent) = timed(|| self.world(name))?;
        self.barrier.wait();
        let request = Request::Color { color: Some(0), key: self.rank as i64 };
        let (split, child) = timed(|| Ok(parent.split("all", &request)?))?;
        child.ok_or("every rank has a color")?.destroy(far())?;
        parent.destroy(far())?;
        Ok((init, split))
    }

    fn world(&self, name: &str) -> Result<ProcessGroup> {
        let builder = ProcessGroup::builder().name(name).store(self.store.clone()).rank(self.rank);
        Ok(builder.world_size(self.size()).context(self.context).nccl(self.nccl()).build()?)
    }

    /// Medians of (init, split) in µs: raw, communicator, process group, turn by turn.
    fn making(&self) -> Result<[(f64, f64); 3]> {
        let mut samples: [(Vec<f64>, Vec<f64>); 3] = Default::default();
        for round in 0..COMMUNICATORS {
            let turn = [
                self.raw(&format!("raw {round}"))?,
                self.communicator(&format!("communicator {round}"))?,
                self.process_group(&format!("group {round}"))?,
            ];
            for ((inits, splits), (init, split)) in samples.iter_mut().zip(turn) {
                inits.push(init);
                splits.push(split);
            }
        }
        Ok(samples.map(|(inits, splits)| (median(inits), median(splits))))
    }

    /// Medians of ns a call on one communicator: raw, communicator, process group, turn by turn.
    fn enqueueing(&self) -> Result<[f64; 3]> {
        let world = self.world("enqueueing")?;
        let stream = Stream::new(self.context, StreamFlags::NON_BLOCKING)?;
        let memory = DeviceMemory::new(self.context, 8)?;
        memory.copy_from_host(0, &[0f32; 2])?;
        let (at, buffer) = (memory.ptr(), Buffer::new(memory.ptr(), 2, DataType::F32));
        let (communicator, all_reduce) = (world.communicator(), self.nccl().api().ncclAllReduce()?);
        let (from, to, comm) = (at.0 as *const _, at.0 as *mut _, communicator.raw());
        let (float, sum) = (ncclDataType_t::ncclFloat32, ncclRedOp_t::ncclSum);

        let mut layers: [&mut dyn FnMut() -> Result<()>; 3] = [
            // SAFETY: the memory holds two elements and outlives the work; this thread alone uses the communicator.
            &mut || unsafe {
                check(all_reduce(from, to, 2, float, sum, comm, stream.raw().cast()), "ncclAllReduce")
            },
            // SAFETY: as above.
            &mut || unsafe { Ok(communicator.all_reduce(at, at, 2, DataType::F32, ReduceOp::Sum, &stream)?) },
            &mut || {
                // SAFETY: as above.
                let work = unsafe { world.all_reduce(buffer, buffer, ReduceOp::Sum, &stream)? };
                drop(work);
                Ok(())
            },
        ];
        // As programs have it: the device's context is current on the thread that enqueues.
        let current = self.context.enter()?;
        let mut samples = [const { Vec::new() }; 3];
        for _ in 0..BURSTS {
            for (samples, layer) in samples.iter_mut().zip(&mut layers) {
                self.barrier.wait();
                let (time, ()) = timed(|| (0..BURST).try_for_each(|_| layer()))?;
                samples.push(time * 1e3 / BURST as f64);
                stream.synchronize()?;
            }
        }
        drop(current);
        world.destroy(far())?;
        Ok(samples.map(median))
    }
}

fn check(code: ncclResult_t, call: &str) -> Result<()> {
    if code == ncclResult_t::ncclSuccess { Ok(()) } else { Err(format!("{call}: {code:?}").into()) }
}
