//! The launches of barrier, put and wait, with one thread block each.

use cuda_driver::Stream;
use cuda_driver::module::LaunchConfig;

use super::code::SIGNALS;
use super::{Kernel, KernelError, Kernels, PadLayout, Ranks};

const WARP: u32 = 32;

// Indices of the kernels in their unit (PTX module), `SIGNALS`.
const BARRIER: usize = 0;
const PUT: usize = 1;
const WAIT: usize = 2;

impl Kernels {
    /// Synchronizes all ranks on a [channel](PadLayout): writes that precede the barrier on a rank's stream are visible
    /// to all ranks after the barrier.
    ///
    /// A barrier sends a signal from every rank to every other, on this channel. If the channel is also used for
    /// [`put_signal`](Self::put_signal) and [`wait_signal`](Self::wait_signal), the two ranks of each pair must launch
    /// their barriers, puts and waits in matching order: a barrier matches a barrier, and a put of one rank matches a
    /// wait of the other.
    ///
    /// # Safety
    /// [What a launch asks of the caller](Kernels#what-a-launch-asks-of-the-caller).
    ///
    /// # Errors
    /// Invalid arguments are rejected before anything is launched. Returns [`KernelError::Driver`] if the launch fails.
    /// This call succeeds even if a peer does not arrive by the [deadline](Ranks::deadline_ns). Once the stream has
    /// completed the kernel, the [`FaultRecord`](super::FaultRecord) then contains the failed wait.
    pub unsafe fn barrier(&self, stream: &Stream, ranks: &Ranks, channel: u32) -> Result<(), KernelError> {
        ranks.check(Kernel::Barrier)?;
        check_channel(Kernel::Barrier, channel)?;
        let config = LaunchConfig::new(1, ranks.world.next_multiple_of(WARP));
        let barrier = self.function(SIGNALS, BARRIER)?;
        // SAFETY: the arguments are those of the kernel; the caller promises the rest.
        unsafe { stream.launch_kernel(barrier, &config, (*ranks, channel))? };
        Ok(())
    }

    /// Signals rank `to` on a [channel](PadLayout): writes that precede the signal on this stream are visible to rank
    /// `to` after its [`wait_signal`](Self::wait_signal). The kernel first waits until rank `to` has consumed this
    /// rank's previous signal on the channel.
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

    /// Makes the stream wait for a signal of rank `from` on a [channel](PadLayout), and consume it: the kernel resets
    /// the signal's word in this rank's pad to 0.
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

    /// Launches `kernel`, which has the index `entry` in its unit (PTX module). `role` is the role of `peer` (`to` or
    /// `from`), for errors.
    ///
    /// # Safety
    /// As [`put_signal`](Self::put_signal).
    unsafe fn signal(
        &self,
        stream: &Stream,
        ranks: &Ranks,
        (kernel, entry, role): (Kernel, usize, &'static str),
        peer: u32,
        channel: u32,
    ) -> Result<(), KernelError> {
        ranks.check(kernel)?;
        ranks.check_rank(kernel, role, peer)?;
        check_channel(kernel, channel)?;
        let function = self.function(SIGNALS, entry)?;
        // SAFETY: the arguments are those of the kernel; the caller promises the rest.
        unsafe { stream.launch_kernel(function, &LaunchConfig::new(1, WARP), (*ranks, peer, channel))? };
        Ok(())
    }
}

fn check_channel(kernel: Kernel, channel: u32) -> Result<(), KernelError> {
    let channels = PadLayout::USER_CHANNELS;
    if channel < channels { Ok(()) } else { Err(KernelError::NoSuchChannel { kernel, channel, channels }) }
}
