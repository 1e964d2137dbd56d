//! The ranks' signals to each other, on streams.

use std::time::Duration;

use cuda_driver::Stream;

use super::{
    SymmetricMemory,
    pads::{Slot, Way},
};
use crate::kernels::{KernelError, Kernels, Late, PadLayout, Ranks};

/// Signals between the ranks of the group, over its own pads. A pad has
/// [`PadLayout::USER_CHANNELS`] channels; on each, one signal is under way from each rank to each other.
///
/// Operations that use one slot (a way, a peer, a channel) run in the order in which this rank enqueued them, on whatever
/// streams; all others are independent: another channel, another peer, a wait and a put of one channel. So they never
/// hold up each other's peers. A barrier uses all slots of its channel. What a graph captures, the graph orders.
///
/// Each operation ends by its deadline, with or without its peer. A late one leaves the context as it was, is told by
/// [`check`](Self::check), and makes the signals of this rank do nothing from then on: a new
/// [`Rendezvous`](super::Rendezvous) has new pads.
impl SymmetricMemory {
    /// What kernels are told of the ranks: buffers are the allocations, in which this buffer begins
    /// [`offset`](Self::offset) bytes after their begin. Valid as long as this handle.
    ///
    /// A wait lasts at most `deadline`, at most 584 years.
    #[must_use]
    pub fn ranks(&self, deadline: Duration) -> Ranks {
        let pads = self.group.pads();
        Ranks {
            buffers: self.peers.array(),
            pads: pads.peers.array(),
            pad: pads.peers.addresses()[self.rank()],
            fault: pads.fault.ptr(),
            // A group has fewer ranks than that.
            rank: self.rank() as u32,
            world: self.world_size() as u32,
            deadline_ns: u64::try_from(deadline.as_nanos()).unwrap_or(u64::MAX),
        }
    }

    /// All ranks meet on a channel: what each wrote before on this stream, each sees after.
    ///
    /// # Safety
    /// A graph that captures it is not launched once the last handle to the group's memory and its
    /// [`Rendezvous`](super::Rendezvous) are gone. Without a capture there is nothing to see to.
    ///
    /// # Errors
    /// [`KernelError`] for a channel that there is not, and what the driver says.
    pub unsafe fn barrier(
        &self,
        stream: &Stream,
        channel: u32,
        deadline: Duration,
    ) -> Result<(), KernelError> {
        let peers = 0..self.world_size() as u32;
        let slots: Vec<Slot> =
            peers.flat_map(|peer| [(Way::To, peer, channel), (Way::From, peer, channel)]).collect();
        self.enqueue(stream, channel, &slots, |kernels| {
            // SAFETY: the pads and arrays are the group's own, and stay until what was enqueued is done, or by the
            // caller's promise; operations on one slot are ordered.
            unsafe { kernels.barrier(stream, &self.ranks(deadline), channel) }
        })
    }

    /// Signals `rank` on a channel: what this rank wrote before on this stream, that one sees after its
    /// [`wait_signal`](Self::wait_signal). Waits, on the stream, until the signal before this one was taken.
    ///
    /// # Safety
    /// As [`barrier`](Self::barrier).
    ///
    /// # Errors
    /// As [`barrier`](Self::barrier), and for a rank that there is not.
    pub unsafe fn put_signal(
        &self,
        stream: &Stream,
        rank: usize,
        channel: u32,
        deadline: Duration,
    ) -> Result<(), KernelError> {
        let peer = u32::try_from(rank).unwrap_or(u32::MAX);
        self.enqueue(stream, channel, &[(Way::To, peer, channel)], |kernels| {
            // SAFETY: as in `barrier`.
            unsafe { kernels.put_signal(stream, &self.ranks(deadline), peer, channel) }
        })
    }

    /// Waits, on the stream, for a signal of `rank` on a channel, and takes it.
    ///
    /// # Safety
    /// As [`barrier`](Self::barrier).
    ///
    /// # Errors
    /// As [`put_signal`](Self::put_signal).
    pub unsafe fn wait_signal(
        &self,
        stream: &Stream,
        rank: usize,
        channel: u32,
        deadline: Duration,
    ) -> Result<(), KernelError> {
        let peer = u32::try_from(rank).unwrap_or(u32::MAX);
        self.enqueue(stream, channel, &[(Way::From, peer, channel)], |kernels| {
            // SAFETY: as in `barrier`.
            unsafe { kernels.wait_signal(stream, &self.ranks(deadline), peer, channel) }
        })
    }

    /// Asked after the stream has been waited for: whether all signals came in time.
    ///
    /// # Errors
    /// [`KernelError::Late`], with the first that did not.
    pub fn check(&self) -> Result<(), KernelError> {
        self.group.pads().fault.check()
    }

    /// The first signal that was late, if one was. Free of calls to the driver.
    #[must_use]
    pub fn late(&self) -> Option<Late> {
        self.group.pads().fault.read()
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
        // What will be refused is no slot.
        let world = self.world_size() as u32;
        let there = channel < PadLayout::USER_CHANNELS && slots.iter().all(|(_, peer, _)| *peer < world);
        if there { pads.enqueue(stream, slots, || launch(kernels)) } else { launch(kernels) }
    }
}
