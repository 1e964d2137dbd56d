//! The signals that the ranks of a group send each other by work on streams.

use std::time::Duration;

use cuda_driver::Stream;

use process_group::group::path::Way;

use super::{SymmetricMemory, pads::Slot};
use crate::kernels::{KernelError, Kernels, Late, PadLayout, Ranks};

/// Signals between the ranks of the group, over its [signal pads](Self::signal_pads). A pad is device memory in which
/// one rank receives signals. It has [`PadLayout::USER_CHANNELS`] channels for these signals. On each channel, at most
/// one signal from one rank to another is in flight (sent, but not yet consumed) at a time.
///
/// Captured operations are ordered by their graph alone. Other operations are ordered by slots. A slot is the
/// combination of a direction (signals to the peer, or from it), a peer and a channel. Operations on one slot run in
/// the order in which this rank enqueued them, even on different streams. Operations on different slots and different
/// streams are independent. So an operation that waits for its peer delays only later operations on its slot or its
/// stream. A barrier uses all slots of its channel.
///
/// The argument `deadline` limits each wait of an operation, from the start of the wait on the device. The operations
/// wait as follows:
/// - [`put_signal`](Self::put_signal) waits until the peer has consumed this rank's previous signal on the channel.
/// - [`wait_signal`](Self::wait_signal) waits for the peer's signal.
/// - [`barrier`](Self::barrier) waits for all peers at the same time. For each of them, it first waits like
///   `put_signal` and then like `wait_signal`.
///
/// An operation that exceeds the deadline ends, and does not damage the context. [`check`](Self::check) then returns an
/// error. From then on, the operations of this rank on these pads do nothing. To signal again, create a new
/// [`Rendezvous`](super::Rendezvous): it has new pads.
impl SymmetricMemory {
    /// Returns a kernel parameter with the addresses of all ranks' memory. The array at [`Ranks::buffers`] has the
    /// start address of each rank's allocation. A rank's buffer begins [`offset`](Self::offset) bytes after this
    /// address. The addresses in the parameter are valid until all clones of this `SymmetricMemory` are dropped.
    ///
    /// Each wait in a kernel lasts at most `deadline`, and at most 2^64 ns (584 years).
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

    /// Enqueues a barrier of all ranks on a channel. Writes before the barrier on a rank's stream are visible to all
    /// ranks after the barrier.
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

    /// Enqueues a signal to `rank` on a channel. This rank's earlier writes on `stream` are visible to `rank` after the
    /// [`wait_signal`](Self::wait_signal) by which `rank` consumes the signal. The operation first waits, on the
    /// stream, until `rank` has consumed this rank's previous signal on the channel.
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

    /// Makes `stream` wait for a signal of `rank` on a channel, and consume it.
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

    /// Checks that none of the operations that this rank has enqueued on the group's pads has exceeded its deadline.
    /// Call it after you have synchronized the stream.
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
        // For an invalid channel or peer, do not order by slots: `launch` returns the error.
        let world = self.world_size() as u32;
        let is_valid = channel < PadLayout::USER_CHANNELS && slots.iter().all(|(_, peer, _)| *peer < world);
        if is_valid { pads.enqueue(stream, slots, || launch(kernels)) } else { launch(kernels) }
    }
}
