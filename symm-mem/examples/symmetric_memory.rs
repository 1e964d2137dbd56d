//! Two ranks access each other's memory. Rank 0 fills the other's buffer with 42 and signals. Rank 1 checks it,
//! copies 43 back with its copy engine, and both meet at a barrier. Each rank is a process:
//!
//! ```text
//! cargo build -p lockstep-symm-mem --features twins --example symmetric_memory
//! lockstep launch -n 2 -- target/debug/examples/symmetric_memory
//! lockstep launch -n 2 -- target/debug/examples/symmetric_memory --embedded
//! ```
//!
//! With `--embedded` it needs no GPU: each process has an embedded device of its own, and they share memory all the same.

#[path = "support/mod.rs"]
mod support;

use std::process::ExitCode;

use cuda_driver::{Stream, StreamFlags, memory::DeviceMemory};
use process_group::{ProcessGroup, comm::DataType};
use symm_mem::{
    kernels::twins,
    rendezvous::{CudaAllocator, Layout, PeerAllocator, Rendezvous, RendezvousOptions},
};

use support::{PATIENCE, Result, as_rank, embedded, exit_code, soon};

const ELEMENTS: usize = 1 << 20;

fn main() -> ExitCode {
    exit_code(embedded().and_then(|embedded| {
        let start = |machine: gpu_sim::Builder| machine.start().inspect(twins::register);
        as_rank(embedded, start, |builder| run(builder.build()?))
    }))
}

fn run(world: ProcessGroup) -> Result<()> {
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
    let values = || -> Result<Vec<u32>> {
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
    world.destroy(soon())?;
    Ok(())
}
