//! Twins of the kernels: host functions that the embedded device (the CUDA device that [`gpu_sim`] simulates) calls
//! instead of the kernels. A twin runs the same algorithm as its kernel, through checked views of device memory. Tests
//! with twins cover the algorithm and its launches, not the PTX.
//!
//! A twin runs the thread blocks of a launch one after the other. On a device they run concurrently. The results are
//! equal, because a thread block waits only for other ranks, never for another thread block of its own launch. A twin
//! that waits for a peer occupies the thread of its stream until the peer signals, at most until the deadline.

mod collectives;
mod peers;
mod signals;

use gpu_sim::World;
use gpu_sim::fault::Fault;
use gpu_sim::kernel::{Element, Launch, Op};
use process_group::comm::{DataType, ReduceOp};

use self::peers::Peers;
use super::Ranks;
use super::arguments::{Gather, Reduce};
use super::code::{ELEMENTS, GATHER, OPERATIONS, REDUCE, SIGNALS, UNITS};

/// Registers the twins in `world`. Call this function once for each world, before kernels are loaded in the world.
///
/// ```
/// let world = gpu_sim::World::builder().devices(2).start()?;
/// symm_mem::kernels::twins::register(&world);
/// # world.finish()?;
/// # Ok::<(), gpu_sim::WorldError>(())
/// ```
pub fn register(world: &World) {
    let ranks = size_of::<Ranks>();
    let entry = |unit: usize, entry: usize| UNITS[unit].entries[entry];
    world.register_kernel(entry(SIGNALS, 0), &[ranks, 4], signals::barrier);
    world.register_kernel(entry(SIGNALS, 1), &[ranks, 4, 4], signals::put);
    world.register_kernel(entry(SIGNALS, 2), &[ranks, 4, 4], signals::wait);
    world.register_kernel(entry(GATHER, 0), &[ranks, size_of::<Gather>()], collectives::gather);
    for (unit, dtype) in (REDUCE..).zip(ELEMENTS) {
        for (kernel, op) in OPERATIONS.into_iter().enumerate() {
            let Some((element, op)) = arithmetic(dtype, op) else { continue };
            let twin = collectives::reducing(element, op);
            world.register_kernel(entry(unit, kernel), &[ranks, size_of::<Reduce>()], twin);
        }
    }
}

/// Converts an element type and an operation to those of [`gpu_sim`]. Returns `None` if no kernel supports them.
fn arithmetic(dtype: DataType, op: ReduceOp) -> Option<(Element, Op)> {
    let element = match dtype {
        DataType::I8 => Element::I8,
        DataType::U8 => Element::U8,
        DataType::I32 => Element::I32,
        DataType::U32 => Element::U32,
        DataType::I64 => Element::I64,
        DataType::U64 => Element::U64,
        DataType::F16 => Element::F16,
        DataType::Bf16 => Element::Bf16,
        DataType::F32 => Element::F32,
        DataType::F64 => Element::F64,
        _ => return None,
    };
    let op = match op {
        ReduceOp::Sum => Op::Sum,
        ReduceOp::Prod => Op::Prod,
        ReduceOp::Max => Op::Max,
        ReduceOp::Min => Op::Min,
        ReduceOp::Avg => Op::Avg,
        _ => return None,
    };
    Some((element, op))
}

/// Returns parameter `index` of the launch as a `T`, a `repr(C)` structure without padding. Fails if the parameter has
/// another size than `T`.
///
/// # Safety
/// Any bytes must be a valid `T`.
unsafe fn parameter<T: Copy>(launch: &Launch<'_>, index: usize) -> Result<T, Fault> {
    let bytes = launch.bytes(index)?;
    if bytes.len() != size_of::<T>() {
        let (found, wanted) = (bytes.len(), size_of::<T>());
        return Err(Fault::Trap(format!("parameter {index} has {found} bytes, {wanted} were asked for")));
    }
    // SAFETY: `bytes` has the size of a `T`, and the caller promises that any bytes are a valid `T`.
    Ok(unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
}
