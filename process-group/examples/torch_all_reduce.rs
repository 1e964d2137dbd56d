//! One rank of a job of both languages: ranks of Rust and of Python add up their numbers on their devices.
//!
//! `torch_all_reduce.py` beside it is the rank of Python. A launcher starts both and sets each rank's number
//! and the store's address. All ranks load the same file of NCCL, PyTorch's:
//!
//! ```text
//! cargo build -p lockstep-process-group --example torch_all_reduce
//! export NCCL_SYS_LIBRARY=$(python -c 'import nvidia.nccl; print(nvidia.nccl.__path__[0])')/lib/libnccl.so.2
//! torchrun --no-python --nproc-per-node 2 sh -c '[ $RANK = 0 ] &&
//!     exec python process-group/examples/torch_all_reduce.py || exec target/debug/examples/torch_all_reduce'
//! ```
//!
//! `lockstep launch --no-secret -n 2 -- sh -c …` works like `torchrun`, without a secret, which PyTorch
//! does not support. Ranks of Rust alone run without GPUs on the embedded device; see the example
//! `all_reduce`.

use std::{error::Error, process::ExitCode, time::Duration};

use cuda_driver::{Stream, StreamFlags, memory::DeviceMemory};
use process_group::{
    ProcessGroup,
    comm::{DataType, ReduceOp},
    group::Buffer,
    store::Deadline,
};

const ELEMENTS: usize = 1 << 20;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let world = ProcessGroup::builder().timeout(Duration::from_secs(60)).join_torch()?;
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
    println!("rank {rank} of {ranks}, of Rust: the sum is {expected}");
    world.destroy(Deadline::after(Duration::from_secs(60)))?;
    Ok(())
}
