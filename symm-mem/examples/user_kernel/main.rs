//! A program's own kernel on the memory of all ranks: every rank gathers a strided slice of every other's buffer,
//! with the device arrays of buffers and signal pads from a rendezvous. Each rank is a process:
//!
//! ```text
//! cargo build -p lockstep-symm-mem --features twins --example user_kernel
//! lockstep launch -n 2 -- target/debug/examples/user_kernel
//! lockstep launch -n 4 -- target/debug/examples/user_kernel --embedded
//! ```
//!
//! The kernel is CUDA C++ (`strided_gather.cu`). Its PTX is committed too (`cargo xtask codegen kernels`), so no
//! compiler is needed. With `--embedded` no GPU is needed: `twin.rs` runs in place of the kernel.

#[path = "../support/mod.rs"]
mod support;
mod twin;

use std::process::ExitCode;

use cuda_driver::{
    Context, DevicePtr, Stream, StreamFlags,
    memory::DeviceMemory,
    module::{Function, JitOptions, LaunchConfig, Module, Parameter},
};
use process_group::ProcessGroup;
use symm_mem::{
    kernels::{PadLayout, twins},
    rendezvous::{CudaAllocator, PeerAllocator, Rendezvous, RendezvousOptions},
};

use support::{PATIENCE, Result, as_rank, embedded, exit_code, soon};

/// Name of the kernel in the PTX.
const KERNEL: &str = "strided_gather";

/// Number of elements of each rank's buffer.
const ELEMENTS: usize = 1 << 18;

/// Number of blocks of a launch. Each block has a channel of the pads: 0, 1, 2…
const BLOCKS: u32 = 8;

/// Channel of the library's own barrier, which the kernel does not use.
const CHANNEL: u32 = PadLayout::USER_CHANNELS - 1;

/// Argument of the kernel, with the layout of the device structure of the same name.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct Gather {
    buffers: DevicePtr,
    pads: DevicePtr,
    output: DevicePtr,
    late: DevicePtr,
    offset: u64,
    count: u64,
    deadline_ns: u64,
    rank: u32,
    world: u32,
}

// SAFETY: `repr(C)`, seven numbers of 64 bits and two of 32: the device's structure of the same name, without padding.
unsafe impl Parameter for Gather {}

fn main() -> ExitCode {
    exit_code(embedded().and_then(|embedded| {
        let start = |machine: gpu_sim::Builder| {
            let register = |machine: &gpu_sim::World| {
                twins::register(machine);
                twin::register(machine);
            };
            machine.start().inspect(register)
        };
        as_rank(embedded, start, |builder| run(builder.build()?))
    }))
}

/// Loads the kernel. The driver compiles the PTX for its device.
fn load(context: &Context) -> Result<Function> {
    let module = Module::load_ptx(context, include_str!("strided_gather.ptx"), &JitOptions::new())?;
    Ok(module.function(KERNEL)?)
}

/// Element `at` of rank `rank`'s buffer in a round.
fn element(round: usize, rank: usize, at: usize) -> f32 {
    (round + rank * ELEMENTS + at) as f32
}

fn run(world: ProcessGroup) -> Result<()> {
    let (rank, ranks, context) = (world.rank(), world.size(), world.context());
    let kernel = load(context)?;
    let rendezvous = Rendezvous::of(&world, RendezvousOptions::default().deadline(PATIENCE))?;
    let buffer = CudaAllocator::new(context)?.allocate(ELEMENTS * size_of::<f32>())?;
    let symmetric = rendezvous.rendezvous(&buffer)?;
    let stream = Stream::new(context, StreamFlags::NON_BLOCKING)?;
    let count = ELEMENTS / ranks;
    let output = DeviceMemory::new(context, ranks * count * size_of::<f32>())?;
    let late = DeviceMemory::new(context, size_of::<u32>())?;
    late.copy_from_host(0, &[0_u32])?;
    let gather = Gather {
        buffers: symmetric.buffers().array(),
        pads: symmetric.signal_pads().array(),
        output: output.ptr(),
        late: late.ptr(),
        offset: symmetric.offset() as u64,
        count: count as u64,
        deadline_ns: u64::try_from(PATIENCE.as_nanos())?,
        rank: u32::try_from(rank)?,
        world: u32::try_from(ranks)?,
    };
    for round in 0..3 {
        let mine: Vec<f32> = (0..ELEMENTS).map(|at| element(round, rank, at)).collect();
        // SAFETY: as much memory, which nobody reads before the ranks' kernels have met.
        unsafe { context.copy_from_host(buffer.ptr(), &mine)? };
        context.synchronize()?;
        // SAFETY: the kernel's parameter names memory that lives until the stream is done. No other kernel uses its
        // channels of the pads. The blocks of all ranks run concurrently. Nothing is captured.
        unsafe {
            stream.launch_kernel(&kernel, &LaunchConfig::new(BLOCKS, 256), (gather,))?;
            // No rank may write the next round's elements while another still reads.
            symmetric.barrier(&stream, CHANNEL, PATIENCE)?;
        }
        stream.synchronize()?;
        symmetric.check()?;
        check(round, rank, &output, &late, count)?;
    }
    println!("rank {rank} of {ranks}: its slice of every rank's buffer is right");
    drop((symmetric, buffer, rendezvous, stream, output, late, kernel));
    world.destroy(soon())?;
    Ok(())
}

fn check(round: usize, rank: usize, output: &DeviceMemory, late: &DeviceMemory, count: usize) -> Result<()> {
    let mut word = [0_u32];
    late.copy_to_host(0, &mut word)?;
    if word != [0] {
        return Err(format!("rank {rank}: another rank's kernel did not come in time").into());
    }
    let mut found = vec![0_f32; output.bytes() / size_of::<f32>()];
    output.copy_to_host(0, &mut found)?;
    let ranks = found.len() / count;
    let wanted = (0..found.len()).map(|at| element(round, at / count, at % count * ranks + rank));
    match found.iter().zip(wanted).position(|(found, wanted)| *found != wanted) {
        None => Ok(()),
        Some(at) => {
            Err(format!("rank {rank}, round {round}: element {at} is {}, which is wrong", found[at]).into())
        }
    }
}
