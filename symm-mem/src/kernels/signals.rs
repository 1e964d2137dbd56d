//! The launches of barrier, put and wait: one block each.

use cuda_driver::Stream;
use cuda_driver::module::LaunchConfig;

use super::code::SIGNALS;
use super::{Kernel, KernelError, Kernels, PadLayout, Ranks};

/// Threads of a warp.
const WARP: u32 = 32;

/// Places of the kernels in their unit.
const BARRIER: usize = 0;
const PUT: usize = 1;
const WAIT: usize = 2;

impl Kernels {
    /// All ranks meet on a channel: what each wrote before, on this stream, each sees after.
    ///
    /// A barrier is a signal from every rank to every other: between two of a channel there is nothing else on it.
    ///
    /// # Safety
    /// [What a launch asks of the caller](Kernels#what-a-launch-asks-of-the-caller).
    ///
    /// # Errors
    /// What is wrong with the arguments, before anything is launched; [`KernelError::Driver`] from the launch. A peer
    /// that does not come is in the [`FaultRecord`](super::FaultRecord), once the stream has passed.
    pub unsafe fn barrier(&self, stream: &Stream, ranks: &Ranks, channel: u32) -> Result<(), KernelError> {
        ranks.check(Kernel::Barrier)?;
        check_channel(Kernel::Barrier, channel)?;
        let config = LaunchConfig::new(1, ranks.world.next_multiple_of(WARP));
        let barrier = self.function(SIGNALS, BARRIER)?;
        // SAFETY: the kernel's parameters; the rest is the caller's promise.
        unsafe { stream.launch_kernel(barrier, &config, (*ranks, channel))? };
        Ok(())
    }

    /// Signals rank `to` on a channel: what this rank wrote before, on this stream, that rank sees after its
    /// [`wait_signal`](Self::wait_signal). Waits until the signal before this one was taken.
    ///
    /// # Safety
    /// [What a launch asks of the caller](Kernels#what-a-launch-asks-of-the-caller).
    ///
    /// # Errors
    /// As [`barrier`](Self::barrier).
    pub unsafe fn put_signal(
        &self,
        stream: &Stream,
        ranks: &Ranks,
        to: u32,
        channel: u32,
    ) -> Result<(), KernelError> {
        // SAFETY: the caller's promise.
        unsafe { self.signal(stream, ranks, (Kernel::PutSignal, PUT, "to"), to, channel) }
    }

    /// Waits for a signal of rank `from` on a channel, and takes it.
    ///
    /// # Safety
    /// [What a launch asks of the caller](Kernels#what-a-launch-asks-of-the-caller).
    ///
    /// # Errors
    /// As [`barrier`](Self::barrier).
    pub unsafe fn wait_signal(
        &self,
        stream: &Stream,
        ranks: &Ranks,
        from: u32,
        channel: u32,
    ) -> Result<(), KernelError> {
        // SAFETY: the caller's promise.
        unsafe { self.signal(stream, ranks, (Kernel::WaitSignal, WAIT, "from"), from, channel) }
    }

    /// # Safety
    /// As [`put_signal`](Self::put_signal).
    unsafe fn signal(
        &self,
        stream: &Stream,
        ranks: &Ranks,
        (kernel, entry, what): (Kernel, usize, &'static str),
        peer: u32,
        channel: u32,
    ) -> Result<(), KernelError> {
        ranks.check(kernel)?;
        ranks.check_rank(kernel, what, peer)?;
        check_channel(kernel, channel)?;
        let function = self.function(SIGNALS, entry)?;
        // SAFETY: the kernel's parameters; the rest is the caller's promise.
        unsafe { stream.launch_kernel(function, &LaunchConfig::new(1, WARP), (*ranks, peer, channel))? };
        Ok(())
    }
}

fn check_channel(kernel: Kernel, channel: u32) -> Result<(), KernelError> {
    let channels = PadLayout::USER_CHANNELS;
    if channel < channels { Ok(()) } else { Err(KernelError::NoSuchChannel { kernel, channel, channels }) }
}
