//! Rendezvous on the embedded device: ranks as threads, and as processes that die.

mod backends;
mod faults;
mod hosts;
mod meetings;
mod processes;
mod signals;
mod windows;

use symm_mem::rendezvous::{PeerBuffers, SymmetricMemory};

/// Fills this rank's buffer with its place, and reads every other rank's buffer through its own device. `meet`
/// synchronizes the ranks before and after.
fn each_reads_each(memory: &SymmetricMemory, meet: &dyn Fn()) {
    let context = memory.context();
    let words = memory.bytes() / 4;
    // SAFETY: the buffer is this rank's, and nobody reads it before the ranks have met.
    unsafe { context.fill_u32(memory.own().ptr(), 100 + memory.rank() as u32, words) }.unwrap();
    context.synchronize().unwrap();
    meet();
    for rank in 0..memory.world_size() {
        let mut found = vec![0u32; words];
        // SAFETY: nobody writes the buffers before the ranks have met again.
        unsafe { context.copy_to_host(&mut found, memory.buffer_ptr(rank).unwrap()) }.unwrap();
        assert_eq!(found, vec![100 + rank as u32; words], "rank {rank} as rank {} sees it", memory.rank());
    }
    meet();
}

/// The contents of an array of addresses on the device.
fn array(memory: &SymmetricMemory, buffers: &PeerBuffers) -> Vec<u64> {
    let mut words = vec![0u64; memory.world_size()];
    // SAFETY: nothing writes the array.
    unsafe { memory.context().copy_to_host(&mut words, buffers.array()) }.unwrap();
    words
}
