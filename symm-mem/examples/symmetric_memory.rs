//! Two ranks reach into each other's memory: one fills the other's buffer with 42 and signals; that one sees it, copies 43
//! back with its copy engine, and both meet at a barrier. Each rank is a process:
//!
//! ```text
//! cargo build -p lockstep-symm-mem --features twins --example symmetric_memory
//! cargo xtask launch -n 2 -- target/debug/examples/symmetric_memory
//! cargo xtask launch -n 2 -- target/debug/examples/symmetric_memory --embedded
//! ```
//!
//! With `--embedded` it needs no GPU: each process has an embedded device of its own, and they share memory all the same.

use std::{error::Error, process::ExitCode, time::Duration};

use cuda_driver::{Driver, Stream, StreamFlags, memory::DeviceMemory};
use gpu_sim::World;
use process_group::{
    ProcessGroup,
    comm::{DataType, Nccl},
};
use symm_mem::rendezvous::{CudaAllocator, Layout, PeerAllocator, Rendezvous, RendezvousOptions};

const ELEMENTS: usize = 1 << 20;

/// How long a rank waits for the other, wherever it does.
const PATIENCE: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    let ran = match std::env::args().nth(1).as_deref() {
        None => on_gpus(),
        Some("--embedded") => embedded(),
        Some(other) => Err(format!("unknown argument {other:?}; there is --embedded").into()),
    };
    match ran {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            let mut cause = error.source();
            while let Some(error) = cause {
                eprintln!("  caused by: {error}");
                cause = error.source();
            }
            ExitCode::FAILURE
        }
    }
}

fn on_gpus() -> Result<(), Box<dyn Error>> {
    run(ProcessGroup::builder().timeout(PATIENCE).build()?)
}

fn embedded() -> Result<(), Box<dyn Error>> {
    let ranks: usize = std::env::var("WORLD_SIZE")?.parse()?;
    let rank: u32 = std::env::var("RANK")?.parse()?;
    let machine = World::builder().devices(ranks).capacity(1 << 30).start()?;
    symm_mem::kernels::twins::register(&machine);
    // SAFETY: the machine's functions keep the C contracts, and it outlives what is made of them.
    let (cuda, nccl) = unsafe {
        (cuda_driver::sys::Api::from_parts(machine.cuda())?, nccl_sys::Api::from_parts(machine.nccl())?)
    };
    let (driver, nccl) = (Driver::new(cuda)?, Nccl::new(nccl));
    let context = driver.device(rank)?.retain_primary()?;
    run(ProcessGroup::builder().timeout(PATIENCE).context(&context).nccl(&nccl).build()?)?;
    drop((context, driver, nccl));
    // Says what was left behind.
    machine.finish()?;
    Ok(())
}

fn run(world: ProcessGroup) -> Result<(), Box<dyn Error>> {
    if world.size() != 2 {
        return Err(format!("this is for 2 ranks, there are {}", world.size()).into());
    }
    let rendezvous = Rendezvous::of(&world, RendezvousOptions::default().deadline(PATIENCE))?;
    let layout = Layout::contiguous([ELEMENTS], DataType::U32);
    let buffer = CudaAllocator::new(world.context())?.allocate(ELEMENTS * size_of::<u32>())?;
    let symmetric = rendezvous.rendezvous(&buffer)?;
    let (rank, peer) = (symmetric.rank(), 1 - symmetric.rank());
    let there = symmetric.buffer(peer, &layout, 0)?;
    let stream = Stream::new(world.context(), StreamFlags::NON_BLOCKING)?;
    let bytes = ELEMENTS * size_of::<u32>();
    let values = || -> Result<Vec<u32>, Box<dyn Error>> {
        stream.synchronize()?;
        symmetric.check()?;
        let mut values = vec![0u32; ELEMENTS];
        // SAFETY: the stream is done, and with it the signal after which the peer leaves the buffer alone.
        unsafe { world.context().copy_to_host(&mut values, buffer.ptr())? };
        Ok(values)
    };
    let all_are = |values: &[u32], wanted: u32| match values.iter().position(|value| *value != wanted) {
        None => Ok(()),
        Some(at) => Err(format!("rank {rank}: element {at} is {}, not {wanted}", values[at])),
    };
    if rank == 0 {
        // SAFETY: the peer touches its buffer only when it has been signalled; nothing is captured.
        unsafe {
            stream.fill_u32(there.ptr, 42, ELEMENTS)?;
            symmetric.put_signal(&stream, peer, 0, PATIENCE)?;
            symmetric.barrier(&stream, 0, PATIENCE)?;
        }
        all_are(&values()?, 43)?;
        println!("rank 0: its buffer was filled with 43 by the copy engine of rank 1");
    } else {
        let source = DeviceMemory::new(world.context(), bytes)?;
        source.copy_from_host(0, &vec![43u32; ELEMENTS])?;
        // SAFETY: nothing is captured.
        unsafe { symmetric.wait_signal(&stream, peer, 0, PATIENCE)? };
        all_are(&values()?, 42)?;
        println!("rank 1: its buffer was filled with 42 by rank 0");
        // SAFETY: both are that long; the source lives until the stream is done, and the peer looks after the barrier.
        unsafe {
            stream.copy(there.ptr, source.ptr(), bytes)?;
            symmetric.barrier(&stream, 0, PATIENCE)?;
        }
        stream.synchronize()?;
        symmetric.check()?;
    }
    drop((symmetric, buffer, rendezvous, stream));
    world.destroy(process_group::store::Deadline::after(PATIENCE))?;
    Ok(())
}
