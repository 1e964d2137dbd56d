//! The ranks' signals to each other, on streams.

use std::time::Duration;

use cuda_driver::Stream;

use process_group::group::path::Way;

use super::{SymmetricMemory, pads::Slot};
use crate::kernels::{KernelError, Kernels, Late, PadLayout, Ranks};

/// Signals between the ranks of the group, over its [signal pads](Self::signal_pads). A pad has
/// [`PadLayout::USER_CHANNELS`] channels for these signals. On each channel, at most one signal at a time is in flight
/// from one rank to another.
///
/// A slot is a direction, a peer and a channel. Operations on one slot run in the order in which this rank enqueued
/// them, even on different streams. Operations on different slots are independent. So an operation that waits for its
/// peer delays only later operations on its slot or its stream. A barrier uses all slots of its channel. Captured
/// operations are not ordered by slot: only their graph orders them.
///
/// `deadline` limits each wait of an operation, from the start of the wait on the device.
/// [`put_signal`](Self::put_signal) waits until the peer has consumed this rank's previous signal on the channel.
/// [`wait_signal`](Self::wait_signal) waits for the peer's signal. [`barrier`](Self::barrier) waits for all peers at
/// the same time, and for each of them first like `put_signal` and then like `wait_signal`. An operation that exceeds
/// the deadline ends, and does not damage the context. [`check`](Self::check) then returns an error. From then on, the
/// operations of this rank on these pads do nothing. To signal again, create a new [`Rendezvous`](super::Rendezvous):
/// it has new pads.
impl SymmetricMemory {
    /// Returns the parameter by which kernels reach the memory of all ranks. The array at [`Ranks::buffers`] has the
    /// start address of each rank's allocation. The buffer begins [`offset`](Self::offset) bytes after this address.
    /// The addresses in the parameter are valid until all clones of this value are dropped.
    ///
    /// A wait in a kernel lasts at most `deadline`, and at most 2^64 ns (584 years).
    #[must_use]
    pub fn ranks(&self, deadline: Duration) -> Ranks {
        let pads = self.group.pads();
        Ranks {
            buffers: self.peers.array(),
            pads: pads.peers.array(),
            pad: pads.peers.addresses()[self.rank()],
            fault: pads.own.fault.ptr(),
            // The number of ranks fits into 32 bits.
            rank: self.rank() as u32,
            world: self.world_size() as u32,
            deadline_ns: u64::try_from(deadline.as_nanos()).unwrap_or(u64::MAX),
        }
    }

    /// Synchronizes all ranks on a channel. Writes that precede the barrier on a rank's stream are visible to all ranks
    /// after the barrier.
    ///
    /// # Safety
    /// If a graph captures this call, the pads must stay allocated until every launch of the graph has ended. A clone
    /// of the [`Rendezvous`](super::Rendezvous) or any [`SymmetricMemory`] with these pads keeps them allocated.
    /// Without a capture, there is no requirement.
    ///
    /// # Errors
    /// [`KernelError`] for a channel out of range, a deadline of 0, more ranks than kernels support, a device that is
    /// too old, and for errors of the driver.
    pub unsafe fn barrier(
        &self,
        stream: &Stream,
        channel: u32,
        deadline: Duration,
    ) -> Result<(), KernelError> {
        let peers = 0..self.world_size() as u32;
        let slots: Vec<Slot> =
            peers.flat_map(|peer| [(Way::Send, peer, channel), (Way::Receive, peer, channel)]).collect();
        self.enqueue(stream, channel, &slots, |kernels| {
            // SAFETY: the pads and arrays belong to the group. They stay allocated until the enqueued work is done. For
            // launches of a graph, the caller promises this. Operations on one slot are ordered.
            unsafe { kernels.barrier(stream, &self.ranks(deadline), channel) }
        })
    }

    /// Signals `rank` on a channel. This rank's earlier writes on this stream are visible to `rank` after its
    /// [`wait_signal`](Self::wait_signal). The operation first waits, on the stream, until `rank` has consumed this
    /// rank's previous signal on the channel.
    ///
    /// # Safety
    /// As for [`barrier`](Self::barrier).
    ///
    /// # Errors
    /// Those of [`barrier`](Self::barrier), and an error for a rank that is not in the group.
    pub unsafe fn put_signal(
        &self,
        stream: &Stream,
        rank: usize,
        channel: u32,
        deadline: Duration,
    ) -> Result<(), KernelError> {
        let peer = u32::try_from(rank).unwrap_or(u32::MAX);
        self.enqueue(stream, channel, &[(Way::Send, peer, channel)], |kernels| {
            // SAFETY: as in `barrier`.
            unsafe { kernels.put_signal(stream, &self.ranks(deadline), peer, channel) }
        })
    }

    /// Waits, on the stream, for a signal of `rank` on a channel, and consumes it.
    ///
    /// # Safety
    /// As for [`barrier`](Self::barrier).
    ///
    /// # Errors
    /// Those of [`put_signal`](Self::put_signal).
    pub unsafe fn wait_signal(
        &self,
        stream: &Stream,
        rank: usize,
        channel: u32,
        deadline: Duration,
    ) -> Result<(), KernelError> {
        let peer = u32::try_from(rank).unwrap_or(u32::MAX);
        self.enqueue(stream, channel, &[(Way::Receive, peer, channel)], |kernels| {
            // SAFETY: as in `barrier`.
            unsafe { kernels.wait_signal(stream, &self.ranks(deadline), peer, channel) }
        })
    }

    /// Checks that no operation that this rank has enqueued on the group's pads has exceeded its deadline. Call it
    /// after you have synchronized the stream.
    ///
    /// # Errors
    /// [`KernelError::Late`], with the first wait of this rank that exceeded its deadline.
    pub fn check(&self) -> Result<(), KernelError> {
        self.group.pads().own.fault.check()
    }

    /// The first wait of this rank that exceeded its deadline, or `None`. Makes no driver call.
    #[must_use]
    pub fn late(&self) -> Option<Late> {
        self.group.pads().own.fault.read()
    }

    fn enqueue(
        &self,
        stream: &Stream,
        channel: u32,
        slots: &[Slot],
        launch: impl FnOnce(&Kernels) -> Result<(), KernelError>,
    ) -> Result<(), KernelError> {
        let pads = self.group.pads();
        let kernels = pads.kernels(&self.group.context)?;
        // With an invalid channel or peer, only call `launch`, which returns the error.
        let world = self.world_size() as u32;
        let is_valid = channel < PadLayout::USER_CHANNELS && slots.iter().all(|(_, peer, _)| *peer < world);
        if is_valid { pads.enqueue(stream, slots, || launch(kernels)) } else { launch(kernels) }
    }
}
