//! A pattern in every block, to detect two blocks over the same memory, and a block whose memory changed.

use cuda_driver::memory::DeviceMemory;
use cuda_driver::module::{Function, JitOptions, LaunchConfig, Module};
use cuda_driver::{Context, DevicePtr, Result, Stream};
use gpu_sim::World;
use gpu_sim::fault::Fault;
use gpu_sim::kernel::Launch;
use gpu_sim::memory::Access;

const PTX: &str = include_str!("pattern.ptx");
/// Threads in a block, and the most blocks. A thread handles every n-th word, where n is the number of threads.
const THREADS: u32 = 256;
const BLOCKS: u64 = 2048;
/// The n-th word of a block is `n * FACTOR ^ tag`. The host functions add instead: they run without optimisation.
const FACTOR: u32 = 0x9e37_79b1;

/// The kernels that write and verify the pattern, and their count of wrong words.
#[derive(Debug)]
pub(super) struct Pattern {
    write: Function,
    check: Function,
    wrong: DeviceMemory,
}

impl Pattern {
    pub(super) fn new(context: &Context) -> Result<Self> {
        let module = Module::load_ptx(context, PTX, &JitOptions::new())?;
        let wrong = DeviceMemory::new(context, size_of::<u64>())?;
        wrong.copy_from_host(0, &[0u64])?;
        Ok(Self { write: module.function("write_pattern")?, check: module.function("check_pattern")?, wrong })
    }

    /// Enqueues filling a block with its own pattern.
    ///
    /// # Safety
    /// The block is the stream's, from now until what is enqueued here has run.
    pub(super) unsafe fn write(&self, stream: &Stream, at: u64, bytes: u64, block: u32) -> Result<()> {
        // SAFETY: the kernel writes the block alone, and the caller vouches for that.
        unsafe { stream.launch_kernel(&self.write, &shape(bytes), (DevicePtr(at), bytes / 4, tag(block))) }
    }

    /// Enqueues counting the words of a block that differ from its pattern.
    ///
    /// # Safety
    /// As [`write`](Self::write).
    pub(super) unsafe fn check(&self, stream: &Stream, at: u64, bytes: u64, block: u32) -> Result<()> {
        let arguments = (DevicePtr(at), bytes / 4, tag(block), self.wrong.ptr());
        // SAFETY: the kernel reads the block, for which the caller vouches, and adds to a counter that is freed only
        // when the device is done with everything.
        unsafe { stream.launch_kernel(&self.check, &shape(bytes), arguments) }
    }

    /// Returns the number of wrong words. Requires that all streams are done.
    pub(super) fn wrong(&self) -> Result<u64> {
        let mut count = [0];
        self.wrong.copy_to_host(0, &mut count)?;
        Ok(count[0])
    }
}

fn shape(bytes: u64) -> LaunchConfig {
    let blocks = (bytes / 4).div_ceil(THREADS.into()).clamp(1, BLOCKS);
    LaunchConfig::new(blocks as u32, THREADS)
}

/// Returns the value that distinguishes a block's words from those of others.
fn tag(block: u32) -> u32 {
    block.wrapping_add(1).wrapping_mul(0x85eb_ca6b)
}

/// Registers host functions for the kernels.
pub(super) fn register(world: &World) {
    world.register_kernel("write_pattern", &[8, 8, 4], |launch| {
        let (words, tag) = words(launch, Access::WRITE)?;
        // SAFETY: any bytes are a word, mapped memory is aligned for it, and the block is the launch's alone.
        let words = unsafe { words.as_mut_slice::<u32>() };
        let mut product = 0u32;
        for word in words {
            *word = product ^ tag;
            product = product.wrapping_add(FACTOR);
        }
        Ok(())
    });
    world.register_kernel("check_pattern", &[8, 8, 4, 8], |launch| {
        let (words, tag) = words(launch, Access::READ)?;
        // SAFETY: as above; whoever writes to the block meanwhile is what is looked for.
        let words = unsafe { words.as_slice::<u32>() };
        let (mut product, mut wrong) = (0u32, 0u64);
        for word in words {
            if *word != product ^ tag {
                wrong += 1;
            }
            product = product.wrapping_add(FACTOR);
        }
        let counter = launch.exec.view(launch.u64(3)?, 8, Access::all())?;
        let mut count = [0; 8];
        counter.read(0, &mut count);
        counter.write(0, &(u64::from_ne_bytes(count) + wrong).to_ne_bytes());
        Ok(())
    });
}

fn words(launch: &Launch<'_>, access: Access) -> Result<(gpu_sim::memory::View, u32), Fault> {
    Ok((launch.exec.view(launch.u64(0)?, launch.u64(1)? * 4, access)?, launch.u32(2)?))
}
