//! Sums a buffer over two GPUs with the raw bindings alone: `cargo run -p lockstep-nccl-sys --example raw_all_reduce`.

use cuda_driver_sys::Api as Cuda;
use nccl_sys::{Api as Nccl, ncclDataType_t, ncclRedOp_t};
use std::{error::Error, ffi::c_int, process::exit, ptr::null_mut};

const RANKS: usize = 2;
const COUNT: usize = 1 << 20;

/// Sums over two ranks. Each rank contributes its number plus one in every element, so the sums are 3.
pub fn run(cuda: &Cuda, nccl: &Nccl) -> Result<(), Box<dyn Error>> {
    let (mut contexts, mut streams) = ([null_mut(); RANKS], [null_mut(); RANKS]);
    let (mut devices, mut comms, mut buffers) = ([0; RANKS], [null_mut(); RANKS], [0; RANKS]);
    let (bytes, float, sum) = (COUNT * size_of::<f32>(), ncclDataType_t::ncclFloat32, ncclRedOp_t::ncclSum);
    // SAFETY: the pointers are to locals of the right size. Every object is used only between its creation and its end.
    unsafe {
        cuda.init(0)?;
        for rank in 0..RANKS {
            cuda.device_get(&mut devices[rank], rank as c_int)?;
            cuda.device_primary_ctx_retain(&mut contexts[rank], devices[rank])?;
            cuda.ctx_set_current(contexts[rank])?;
            cuda.stream_create(&mut streams[rank], 0)?;
            cuda.mem_alloc(&mut buffers[rank], bytes)?;
            cuda.memset_d32_async(buffers[rank], (rank as f32 + 1.0).to_bits(), COUNT, streams[rank])?;
        }
        nccl.comm_init_all(comms.as_mut_ptr(), RANKS as c_int, devices.as_ptr())?;
        // One thread makes the calls of both ranks, so it groups them. Without a group, the call of the first rank
        // could wait for the call of the second, which comes later.
        nccl.group_start()?;
        for rank in 0..RANKS {
            let (at, stream) = (buffers[rank] as *mut _, streams[rank].cast());
            nccl.all_reduce(at, at, COUNT, float, sum, comms[rank], stream)?;
        }
        nccl.group_end()?;
        for rank in 0..RANKS {
            let mut values = vec![0_f32; COUNT];
            cuda.ctx_set_current(contexts[rank])?;
            cuda.stream_synchronize(streams[rank])?;
            cuda.memcpy_dtoh(values.as_mut_ptr().cast(), buffers[rank], bytes)?;
            let right = values.iter().filter(|value| **value == 3.0).count();
            println!("rank {rank}: {right} of {COUNT} values are right");
            nccl.comm_destroy(comms[rank])?;
            cuda.mem_free(buffers[rank])?;
            cuda.stream_destroy(streams[rank])?;
            cuda.device_primary_ctx_release(devices[rank])?;
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
