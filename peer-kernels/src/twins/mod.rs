//! Twins of the kernels: host functions that the embedded device (the CUDA device that [`gpu_sim`] simulates) calls
//! instead of the kernels. A twin runs the same algorithm as its kernel, through checked views of device memory. Tests
//! with twins cover the algorithm and its launches, not the PTX.
//!
//! A twin runs the thread blocks of a launch one after the other. On a device they run concurrently. The results are
//! equal, because a thread block waits only for other ranks, never for another thread block of its own launch. A twin
//! that waits for a peer occupies the thread of its stream until the peer signals, at most until the
//! [deadline](Ranks::deadline_ns).

mod collectives;
mod peers;

use gpu_sim::World;
use gpu_sim::fault::Fault;
use gpu_sim::kernel::{
    Element::{Bf16, F16, F32, F64, I8, I32, I64, U8, U32, U64},
    Launch,
    Op::{Avg, Max, Min, Prod, Sum},
};

use self::peers::Peers;
use super::arguments::{Gather, Reduce};
use super::code::{ELEMENTS, GATHER, OPERATIONS, REDUCE, SIGNALS, UNITS};
use super::{Kernel, Ranks};

/// Registers the twins in `world`. Call this function once for each world, before kernels are loaded in the world.
///
/// ```
/// let world = gpu_sim::World::builder().devices(2).start()?;
/// peer_kernels::twins::register(&world);
/// # world.finish()?;
/// # Ok::<(), gpu_sim::WorldError>(())
/// ```
pub fn register(world: &World) {
    let ranks = size_of::<Ranks>();
    let name = |unit: usize, entry: usize| UNITS[unit].entries[entry];
    world.register_kernel(name(SIGNALS, 0), &[ranks, 4], |launch| {
        Peers::enter(launch, Kernel::Barrier, |peers| peers.meet(launch.u32(1)?))
    });
    world.register_kernel(name(SIGNALS, 1), &[ranks, 4, 4], |launch| {
        Peers::enter(launch, Kernel::PutSignal, |peers| peers.put(launch.u32(1)?, launch.u32(2)?))
    });
    world.register_kernel(name(SIGNALS, 2), &[ranks, 4, 4], |launch| {
        Peers::enter(launch, Kernel::WaitSignal, |peers| peers.wait(launch.u32(1)?, launch.u32(2)?))
    });
    world.register_kernel(name(GATHER, 0), &[ranks, size_of::<Gather>()], collectives::gather);
    let elements: [_; ELEMENTS.len()] = [I8, U8, I32, U32, I64, U64, F16, Bf16, F32, F64];
    let operations: [_; OPERATIONS.len()] = [Sum, Prod, Max, Min, Avg];
    for (unit, element) in (REDUCE..).zip(elements) {
        for (kernel, op) in operations.into_iter().enumerate() {
            let twin = collectives::reducing(element, op);
            world.register_kernel(name(unit, kernel), &[ranks, size_of::<Reduce>()], twin);
        }
    }
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
