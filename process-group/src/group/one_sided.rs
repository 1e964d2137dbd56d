//! One-sided operations of a group. They are those of a communicator, and also return a [`Work`] and appear
//! in the flight recorder.

use std::panic::Location;

use cuda_driver::{DevicePtr, Stream};

use super::{Batch, Buffer, KindResult, ProcessGroup, Result, Work};
use crate::{comm::CommError, profile, store::Deadline};

/// The operation in errors, and the name of its range in profiles.
const PREPARE: &str = "prepare_one_sided";

/// One-sided operations: a member writes into another member's window, and the other member only waits for a
/// signal. Require NCCL 2.29 and a driver of CUDA 12.5 or newer. [`sequence`](Self::sequence) does not count
/// these operations, because members need not make equally many. The [`Work`] of a one-sided operation has
/// the number of the last counted call before it. Tested on the embedded device, and on two GPUs with NCCL
/// 2.30.7.
///
/// ```no_run
/// # use process_group::{ProcessGroup, group::{Buffer, GroupError}};
/// # fn halo(group: &ProcessGroup, edge: Buffer, halo: cuda_driver::DevicePtr, stream: &cuda_driver::Stream)
/// # -> Result<(), GroupError> {
/// group.prepare_one_sided(group.timeout())?;
/// let (size, rank) = (group.size(), group.rank());
/// // `edge` and `halo` lie in windows of the group.
/// // SAFETY: nothing writes `edge` until the put is done. Each member uses its `halo` only after it has
/// // waited for the signal.
/// unsafe { group.put_signal(edge, halo, (rank + 1) % size, stream)? };
/// group.wait_signals((rank + size - 1) % size, 1, stream)?;
/// # Ok(()) }
/// ```
impl ProcessGroup {
    /// Prepares one-sided operations, like
    /// [`Communicator::prepare_one_sided`](crate::comm::Communicator::prepare_one_sided). The records of all
    /// members decide whether they are supported. Collective. A lazy group is connected first.
    ///
    /// # Errors
    /// - [`GroupErrorKind::Comm`](super::GroupErrorKind::Comm) with the reason if one-sided operations are not
    ///   supported. The reason is the same on every member, unless it lies in one member's environment.
    /// - The errors of [`connect`](Self::connect) and of the communicator's method;
    ///   [`GroupErrorKind::Lost`](super::GroupErrorKind::Lost);
    ///   [`GroupErrorKind::Joined`](super::GroupErrorKind::Joined).
    pub fn prepare_one_sided(&self, deadline: Deadline) -> Result<()> {
        self.in_call(PREPARE, self.prepare_one_sided_by(deadline))
    }

    fn prepare_one_sided_by(&self, deadline: Deadline) -> KindResult<()> {
        let _range = profile::range(PREPARE, &self.name, 0);
        self.agrees()?;
        self.counter.health.check()?;
        self.windows_supported().map_err(CommError::from)?;
        self.connect_by(deadline)?;
        let prepared = self.communicator.prepare_one_sided(deadline);
        self.counter.health.explain(prepared.map_err(Into::into))
    }

    /// Writes `local` to the memory of member `peer`, at the window and offset that `place` has on this rank,
    /// and then raises the peer's count of signals from this rank. See
    /// [`Communicator::put_signal`](crate::comm::Communicator::put_signal).
    ///
    /// # Errors
    /// [`GroupErrorKind::Comm`](super::GroupErrorKind::Comm),
    /// [`GroupErrorKind::Driver`](super::GroupErrorKind::Driver),
    /// [`GroupErrorKind::Lost`](super::GroupErrorKind::Lost).
    ///
    /// # Safety
    /// As for [`Communicator::put_signal`](crate::comm::Communicator::put_signal).
    #[track_caller]
    pub unsafe fn put_signal(
        &self,
        local: Buffer,
        place: DevicePtr,
        peer: usize,
        stream: &Stream,
    ) -> Result<Work> {
        // SAFETY: the caller upholds this function's contract.
        unsafe { self.alone(self.ops().put_signal(local, place, peer), stream, Location::caller()) }
    }

    /// Raises member `peer`'s count of signals from this rank, after all earlier puts to that member.
    ///
    /// # Errors
    /// As for [`put_signal`](Self::put_signal).
    #[track_caller]
    pub fn signal(&self, peer: usize, stream: &Stream) -> Result<Work> {
        // SAFETY: a signal accesses no memory of the program.
        unsafe { self.alone(self.ops().signal(peer), stream, Location::caller()) }
    }

    /// Makes `stream` wait for `count` more signals from member `peer`, in addition to those already waited
    /// for.
    ///
    /// # Errors
    /// As for [`put_signal`](Self::put_signal).
    #[track_caller]
    pub fn wait_signals(&self, peer: usize, count: usize, stream: &Stream) -> Result<Work> {
        // SAFETY: a wait for signals accesses no memory of the program.
        unsafe { self.alone(self.ops().wait_signals(peer, count), stream, Location::caller()) }
    }
}

/// In a batch, the one-sided operations run first, in the order in which they were queued, and the other
/// operations run afterwards. If the peer sends a signal only after another operation of this rank, for example a
/// message, do not queue the wait for the signal in the batch of that operation. Queue it in a later batch.
impl Batch<'_> {
    /// Queues [`ProcessGroup::put_signal`].
    ///
    /// # Errors
    /// See [`ProcessGroup::put_signal`].
    ///
    /// # Safety
    /// See [`ProcessGroup::put_signal`].
    pub unsafe fn put_signal(&self, local: Buffer, place: DevicePtr, peer: usize) -> Result<()> {
        self.queue(self.group.ops().put_signal(local, place, peer))
    }

    /// Queues [`ProcessGroup::signal`].
    ///
    /// # Errors
    /// See [`ProcessGroup::signal`].
    pub fn signal(&self, peer: usize) -> Result<()> {
        self.queue(self.group.ops().signal(peer))
    }

    /// Queues [`ProcessGroup::wait_signals`].
    ///
    /// # Errors
    /// See [`ProcessGroup::wait_signals`].
    pub fn wait_signals(&self, peer: usize, count: usize) -> Result<()> {
        self.queue(self.group.ops().wait_signals(peer, count))
    }
}
