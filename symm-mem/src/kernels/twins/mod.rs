//! Host functions in the kernels' place, for the embedded device: the same algorithm, word by word through checked
//! views of its memory. They prove the algorithm and its launches, not the PTX.
//!
//! A block after the other, where a device runs them at the same time: a kernel's blocks never wait for each other. What
//! a twin waits for parks its executor, until the deadline.

mod peers;
mod signals;

use gpu_sim::World;
use gpu_sim::fault::Fault;
use gpu_sim::kernel::Launch;

use self::peers::Peers;
use super::code::UNITS;
use super::{Ranks, code};

/// Puts the twins into a world: once, before kernels are loaded there.
pub fn register(world: &World) {
    let [barrier, put, wait] = [0, 1, 2].map(|entry| UNITS[code::SIGNALS].entries[entry]);
    world.register_kernel(barrier, &[size_of::<Ranks>(), 4], signals::barrier);
    world.register_kernel(put, &[size_of::<Ranks>(), 4, 4], signals::put);
    world.register_kernel(wait, &[size_of::<Ranks>(), 4, 4], signals::wait);
}

/// A parameter that is a structure of `repr(C)` without padding.
///
/// # Safety
/// Any bytes are a valid `T`.
unsafe fn parameter<T: Copy>(launch: &Launch<'_>, index: usize) -> Result<T, Fault> {
    let bytes = launch.bytes(index)?;
    if bytes.len() != size_of::<T>() {
        let (found, wanted) = (bytes.len(), size_of::<T>());
        return Err(Fault::Trap(format!("parameter {index} has {found} bytes, {wanted} were asked for")));
    }
    // SAFETY: as many bytes as a `T` has; that they are one is the caller's promise.
    Ok(unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
}
