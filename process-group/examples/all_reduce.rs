//! One rank of a job: all ranks add up their numbers on their devices.
//!
//! A launcher starts it and sets each rank's number and the store's address:
//!
//! ```text
//! cargo build -p lockstep-process-group --example all_reduce
//! lockstep launch -n 4 -- target/debug/examples/all_reduce
//! torchrun --no-python --nproc-per-node 4 target/debug/examples/all_reduce
//! mpirun -n 4 -x MASTER_ADDR=127.0.0.1 -x MASTER_PORT=29500 target/debug/examples/all_reduce
//! ```
//!
//! Without GPUs, it runs on the embedded device: see gpu-sim's README. `GPU_SIM_DEVICES` must be at least the
//! number of ranks.

use std::{error::Error, process::ExitCode, time::Duration};

use cuda_driver::{Stream, StreamFlags, memory::DeviceMemory};
use process_group::{
    ProcessGroup,
    comm::{DataType, ReduceOp},
    error_text,
    group::Buffer,
    store::Deadline,
};

const ELEMENTS: usize = 1 << 20;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", error_text(&*error));
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let world = ProcessGroup::builder().timeout(Duration::from_secs(60)).build()?;
    let (rank, ranks) = (world.rank(), world.size());
    let stream = Stream::new(world.context(), StreamFlags::NON_BLOCKING)?;
    let memory = DeviceMemory::new(world.context(), ELEMENTS * size_of::<f32>())?;
    memory.copy_from_host(0, &vec![rank as f32; ELEMENTS])?;
    let buffer = Buffer::new(memory.ptr(), ELEMENTS, DataType::F32);
    // SAFETY: the memory holds the elements, nobody else uses it, and it outlives the work.
    let work = unsafe { world.raw().all_reduce(buffer, buffer, ReduceOp::Sum, &stream)? };
    work.wait_until(world.timeout())?;
    let mut sums = vec![0f32; ELEMENTS];
    memory.copy_to_host(0, &mut sums)?;
    let expected = (0..ranks).sum::<usize>() as f32;
    if sums.iter().any(|sum| *sum != expected) {
        return Err(format!("rank {rank}: the sum of 0 to {} is not {expected}", ranks - 1).into());
    }
    println!("rank {rank} of {ranks}: the sum is {expected}");
    world.destroy(Deadline::after(Duration::from_secs(60)))?;
    Ok(())
}
