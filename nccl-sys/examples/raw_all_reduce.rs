//! Sums a buffer over two GPUs with the raw tables alone: `cargo run -p lockstep-nccl-sys --example raw_all_reduce`.

use cuda_driver_sys::{Api as Cuda, CUresult};
use nccl_sys::{Api as Nccl, ncclDataType_t, ncclRedOp_t, ncclResult_t};
use std::{error::Error, ffi::c_int, process::exit, ptr::null_mut};

const RANKS: usize = 2;
const COUNT: usize = 1 << 20;

/// Each rank gives its number plus one, and gets 3.
pub fn run(cuda: &Cuda, nccl: &Nccl) -> Result<(), Box<dyn Error>> {
    let cu = |code| if code == CUresult::CUDA_SUCCESS { Ok(()) } else { Err(format!("CUDA: {code:?}")) };
    let nc = |code| {
        if code == ncclResult_t::ncclSuccess { Ok(()) } else { Err(format!("NCCL: {}", nccl.meaning(code))) }
    };
    let (mut contexts, mut streams) = ([null_mut(); RANKS], [null_mut(); RANKS]);
    let (mut devices, mut comms, mut buffers) = ([0; RANKS], [null_mut(); RANKS], [0; RANKS]);
    let (bytes, float, sum) = (COUNT * size_of::<f32>(), ncclDataType_t::ncclFloat32, ncclRedOp_t::ncclSum);
    // SAFETY: pointers are to locals of the right size; what is made is used until its end, and no longer.
    unsafe {
        cu(cuda.cuInit()?(0))?;
        for rank in 0..RANKS {
            cu(cuda.cuDeviceGet()?(&mut devices[rank], rank as c_int))?;
            cu(cuda.cuDevicePrimaryCtxRetain()?(&mut contexts[rank], devices[rank]))?;
            cu(cuda.cuCtxSetCurrent()?(contexts[rank]))?;
            cu(cuda.cuStreamCreate()?(&mut streams[rank], 0))?;
            cu(cuda.cuMemAlloc_v2()?(&mut buffers[rank], bytes))?;
            cu(cuda.cuMemsetD32Async()?(buffers[rank], (rank as f32 + 1.0).to_bits(), COUNT, streams[rank]))?;
        }
        nc(nccl.ncclCommInitAll()?(comms.as_mut_ptr(), RANKS as c_int, devices.as_ptr()))?;
        nc(nccl.ncclGroupStart()?())?; // One thread calls for both ranks, and neither may wait for the other.
        for rank in 0..RANKS {
            let (at, stream) = (buffers[rank] as *mut _, streams[rank].cast());
            nc(nccl.ncclAllReduce()?(at, at, COUNT, float, sum, comms[rank], stream))?;
        }
        nc(nccl.ncclGroupEnd()?())?;
        for rank in 0..RANKS {
            let mut values = vec![0_f32; COUNT];
            cu(cuda.cuCtxSetCurrent()?(contexts[rank]))?;
            cu(cuda.cuStreamSynchronize()?(streams[rank]))?;
            cu(cuda.cuMemcpyDtoH_v2()?(values.as_mut_ptr().cast(), buffers[rank], bytes))?;
            let right = values.iter().filter(|value| **value == 3.0).count();
            println!("rank {rank}: {right} of {COUNT} values are right");
            nc(nccl.ncclCommDestroy()?(comms[rank]))?;
            cu(cuda.cuMemFree_v2()?(buffers[rank]))?;
            cu(cuda.cuStreamDestroy_v2()?(streams[rank]))?;
            cu(cuda.cuDevicePrimaryCtxRelease_v2()?(devices[rank]))?;
            (right == COUNT).then_some(()).ok_or("the sum is wrong")?;
        }
    }
    Ok(())
}

fn main() {
    let outcome = || run(&Cuda::load()?, &Nccl::load()?);
    if let Err(error) = outcome() {
        eprintln!("error: {error}");
        exit(1);
    }
}
