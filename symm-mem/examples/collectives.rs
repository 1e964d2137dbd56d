//! Every collective kernel over the memory of a rendezvous: all-reduce (one-shot and two-shot), reduce-scatter,
//! all-gather and all-to-all. Runs several lengths at an unaligned address, eagerly and from a graph, and checks
//! every element. Each rank is a process:
//!
//! ```text
//! cargo build -p lockstep-symm-mem --features twins --example collectives
//! lockstep launch -n 2 -- target/debug/examples/collectives
//! lockstep launch -n 3 -- target/debug/examples/collectives --embedded
//! ```
//!
//! With `--embedded` it needs no GPU: the kernels' twins run on the embedded device. With `--one-gpu` all ranks use the
//! first GPU, which runs their kernels in turns. The ranks meet in a file of the folder for temporary files then,
//! because NCCL wants a GPU for each rank.

#[path = "support/mod.rs"]
mod support;

use std::{cell::Cell, process::ExitCode, sync::Arc, time::Duration};

use cuda_driver::{Context, Driver, Stream, StreamFlags, graph::CaptureMode};
use process_group::{
    comm::{DataType, ReduceOp},
    store::{FileStore, Store, barrier},
};
use symm_mem::{
    kernels::{Algorithm, AllGather, AllReduce, AllToAll, Kernels, ReduceScatter, Target, twins},
    rendezvous::{CudaAllocator, GroupInfo, PeerAllocator, Rendezvous, RendezvousOptions, SymmetricMemory},
};

use support::{PATIENCE, Result, as_rank, embedded, exit_code, soon};

/// Number of elements of each rank, or for each rank.
const LENGTHS: [usize; 5] = [1, 7, 1000, 1 << 16, (1 << 20) + 3];

/// Bytes of a rank's buffer: the input lies in the first half, the result in the second.
const BYTES: usize = 128 << 20;

/// Byte offset of the data in both halves: aligned to an element, but to nothing more.
const ODD: usize = 4;

const INT: usize = size_of::<u32>();

/// The argument that puts all ranks on the first GPU.
const ONE_GPU: &str = "--one-gpu";

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some(ONE_GPU) {
        return exit_code(on_one_gpu());
    }
    exit_code(embedded().and_then(|embedded| {
        let machine = |builder: gpu_sim::Builder| {
            let machine = builder.start()?;
            twins::register(&machine);
            Ok(machine)
        };
        as_rank(embedded, machine, |builder| {
            let world = builder.build()?;
            let options = RendezvousOptions::default();
            run(GroupInfo::from(&world), world.context(), options, &|| Ok(world.barrier(soon())?))?;
            Ok(world.destroy(soon())?)
        })
    }))
}

/// Runs this rank without a process group.
fn on_one_gpu() -> Result<()> {
    let number = |name: &str| -> Result<usize> { Ok(std::env::var(name)?.parse()?) };
    let (rank, size) = (number("RANK")?, number("WORLD_SIZE")?);
    let path = std::env::temp_dir().join(format!("collectives-{}", number("MASTER_PORT")?));
    let store: Arc<dyn Store> = Arc::new(FileStore::open(&path)?);
    let ranks = (0..size).map(u32::try_from).collect::<Result<Vec<_>, _>>()?;
    let info = GroupInfo::new("one GPU", rank, ranks, store.clone())?;
    let context = Driver::load()?.device(0)?.retain_primary()?;
    let meetings = Cell::new(0);
    let meet = || {
        meetings.set(meetings.get() + 1);
        Ok(barrier(&*store, &format!("collectives/{}", meetings.get()), rank, size, soon())?)
    };
    run(info, &context, RendezvousOptions::default().shared_devices(true), &meet)?;
    // The others use the file no more when they have been counted.
    store.add("left", 1)?;
    if rank == 0 {
        while store.add("left", 0)? < size as i64 {
            std::thread::sleep(Duration::from_millis(10));
        }
        std::fs::remove_file(path)?;
    }
    Ok(())
}

#[derive(Clone, Copy, Debug)]
enum Collective {
    AllReduce(Algorithm),
    ReduceScatter,
    AllGather,
    AllToAll,
}

const COLLECTIVES: [Collective; 5] = [
    Collective::AllReduce(Algorithm::OneShot),
    Collective::AllReduce(Algorithm::TwoShot),
    Collective::ReduceScatter,
    Collective::AllGather,
    Collective::AllToAll,
];

/// The input of `rank` at `index`.
fn input(rank: usize, index: usize) -> u32 {
    (index as u32).wrapping_mul(2_654_435_761).wrapping_add(rank as u32 * 40_503)
}

impl Collective {
    /// Number of elements of the input and of the result.
    fn sizes(self, world: usize, length: usize) -> (usize, usize) {
        match self {
            Self::AllReduce(_) => (length, length),
            Self::ReduceScatter => (length * world, length),
            Self::AllGather => (length, length * world),
            Self::AllToAll => (length * world, length * world),
        }
    }

    /// The expected result on `rank` at `index`.
    fn outcome(self, rank: usize, world: usize, length: usize, index: usize) -> u32 {
        let sum = |index| (0..world).fold(0, |sum: u32, peer| sum.wrapping_add(input(peer, index)));
        let (from, within) = (index / length, index % length);
        match self {
            Self::AllReduce(_) => sum(index),
            Self::ReduceScatter => sum(rank * length + index),
            Self::AllGather => input(from, within),
            Self::AllToAll => input(from, rank * length + within),
        }
    }

    /// Launches the collective: the input begins at `from` in all buffers, the result at `to`.
    ///
    /// # Safety
    /// Both lie in all ranks' buffers, which stay until the stream is done.
    unsafe fn launch(
        self,
        kernels: &Kernels,
        (memory, stream): (&SymmetricMemory, &Stream),
        (from, to): (usize, usize),
        length: usize,
    ) -> Result<()> {
        let ranks = memory.ranks(PATIENCE);
        let (dtype, op, target) = (DataType::U32, ReduceOp::Sum, Target::Offset(to as u64));
        let (input, elements) = (from as u64, length as u64);
        let bytes = elements * INT as u64;
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Self::AllReduce(algorithm) => {
                    let call = AllReduce { input, target, elements, dtype, op, algorithm };
                    kernels.all_reduce(stream, &ranks, &call)?;
                }
                Self::ReduceScatter => {
                    let call = ReduceScatter { input, target, elements, dtype, op };
                    kernels.reduce_scatter(stream, &ranks, &call)?;
                }
                Self::AllGather => kernels.all_gather(stream, &ranks, &AllGather { input, target, bytes })?,
                Self::AllToAll => kernels.all_to_all(stream, &ranks, &AllToAll { input, target, bytes })?,
            }
        }
        Ok(())
    }
}

fn run(
    info: GroupInfo,
    context: &Context,
    options: RendezvousOptions,
    meet: &dyn Fn() -> Result<()>,
) -> Result<()> {
    let rendezvous = Rendezvous::new(info, context, options.deadline(PATIENCE))?;
    let buffer = CudaAllocator::new(context)?.allocate(BYTES)?;
    let memory = rendezvous.rendezvous(&buffer)?;
    let stream = Stream::new(context, StreamFlags::NON_BLOCKING)?;
    let kernels = Kernels::load(context)?;
    kernels.prepare(DataType::U32)?;
    let (rank, size) = (memory.rank(), memory.world_size());
    let (from, to) = (memory.offset() + ODD, memory.offset() + BYTES / 2 + ODD);
    let mut right = 0;
    for collective in COLLECTIVES {
        for length in LENGTHS {
            let (inputs, outcomes) = collective.sizes(size, length);
            if inputs.max(outcomes) * INT + ODD > BYTES / 2 {
                continue;
            }
            let values: Vec<u32> = (0..inputs).map(|index| input(rank, index)).collect();
            let mut found = vec![0_u32; outcomes];
            for captured in [false, true] {
                // SAFETY: all offsets lie in the buffers. Between the two barriers of the host, only the kernels
                // access the buffers, and the graph is launched once, while they live.
                unsafe {
                    context.copy_from_host(buffer.ptr() + ODD as u64, &values)?;
                    stream.fill_u32(buffer.ptr() + (BYTES / 2 + ODD) as u64, 0, outcomes)?;
                    stream.synchronize()?;
                    context.synchronize()?;
                    meet()?;
                    let launch = || collective.launch(&kernels, (&memory, &stream), (from, to), length);
                    let graph;
                    if captured {
                        let capture = stream.begin_capture(CaptureMode::ThreadLocal)?;
                        launch()?;
                        graph = capture.end()?.instantiate()?;
                        stream.launch(&graph)?;
                    } else {
                        launch()?;
                    }
                    stream.synchronize()?;
                    memory.check()?;
                    context.copy_to_host(&mut found, buffer.ptr() + (BYTES / 2 + ODD) as u64)?;
                    meet()?;
                }
                for (index, found) in found.iter().enumerate() {
                    let wanted = collective.outcome(rank, size, length, index);
                    if *found != wanted {
                        let call = format!("{collective:?} of {length}, captured: {captured}");
                        return Err(
                            format!("{call}: rank {rank} found {found} at {index}, not {wanted}").into()
                        );
                    }
                }
                right += 1;
            }
        }
    }
    println!("rank {rank} of {size}: {right} collectives were right");
    Ok(())
}
