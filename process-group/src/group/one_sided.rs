//! One-sided operations of a group: those of a communicator, with work and the flight recorder.

use std::panic::Location;

use cuda_driver::{DevicePtr, Stream};

use super::{Batch, Buffer, ProcessGroup, Result, Work};
use crate::{comm::CommError, operation::Operation, profile, store::Deadline};

/// One-sided operations, from NCCL 2.29 and with a driver of CUDA 12.5: a member writes into another's
/// window, and the other only waits for the signal. They are not counted in [`sequence`](Self::sequence),
/// since members need not make equally many. Their work has the number of the last counted call before it.
/// Tested on the embedded device, and on two GPUs with NCCL 2.30.7.
///
/// ```no_run
/// # use process_group::{ProcessGroup, group::{Buffer, GroupError}};
/// # fn halo(group: &ProcessGroup, edge: Buffer, halo: cuda_driver::DevicePtr, stream: &cuda_driver::Stream)
/// # -> Result<(), GroupError> {
/// group.prepare_one_sided(group.timeout())?;
/// let (size, rank) = (group.size(), group.rank());
/// // `edge` and `halo` lie in windows of the group.
/// // SAFETY: nobody uses `halo` before it was waited for, and `edge` stays as it is until then.
/// unsafe { group.put_signal(edge, halo, (rank + 1) % size, stream)? };
/// group.wait_signals((rank + size - 1) % size, 1, stream)?;
/// # Ok(()) }
/// ```
impl ProcessGroup {
    /// Prepares one-sided operations:
    /// [`Communicator::prepare_one_sided`](crate::comm::Communicator::prepare_one_sided), decided from the
    /// records of all members. Collective.
    ///
    /// # Errors
    /// [`GroupError::Comm`](super::GroupError::Comm) with the reason why there are none, which is
    /// the same on every member unless it is a member's environment. Otherwise the communicator's errors;
    /// [`GroupError::Lost`](super::GroupError::Lost); [`GroupError::Joined`](super::GroupError::Joined).
    pub fn prepare_one_sided(&self, deadline: Deadline) -> Result<()> {
        let _range = profile::range("prepare_one_sided", &self.name, 0);
        self.agrees("prepare_one_sided")?;
        self.counter.health.check()?;
        self.windows_supported().map_err(CommError::from)?;
        self.connect(deadline)?;
        let prepared = self.communicator.prepare_one_sided(deadline);
        self.counter.health.explain(prepared.map_err(Into::into))
    }

    /// Writes `local` to member `peer`'s memory at the position that `place` has on this rank, and then
    /// raises the peer's count of this rank's signals:
    /// [`Communicator::put_signal`](crate::comm::Communicator::put_signal).
    ///
    /// # Errors
    /// [`GroupError::Comm`](super::GroupError::Comm), [`GroupError::Driver`](super::GroupError::Driver),
    /// [`GroupError::Lost`](super::GroupError::Lost).
    ///
    /// # Safety
    /// As for the communicator's method.
    #[track_caller]
    pub unsafe fn put_signal(
        &self,
        local: Buffer,
        place: DevicePtr,
        peer: usize,
        stream: &Stream,
    ) -> Result<Work> {
        // SAFETY: the caller's contract.
        unsafe {
            self.alone(
                Operation::PutSignal,
                self.validate().put_signal(local, place, peer),
                stream,
                Location::caller(),
            )
        }
    }

    /// Raises member `peer`'s count of this rank's signals, after all earlier puts to it.
    ///
    /// # Errors
    /// As for [`put_signal`](Self::put_signal).
    #[track_caller]
    pub fn signal(&self, peer: usize, stream: &Stream) -> Result<Work> {
        // SAFETY: it touches no memory of the program.
        unsafe { self.alone(Operation::Signal, self.validate().signal(peer), stream, Location::caller()) }
    }

    /// Makes `stream` wait for `count` further signals of member `peer`, beyond those already waited for.
    ///
    /// # Errors
    /// As for [`put_signal`](Self::put_signal).
    #[track_caller]
    pub fn wait_signals(&self, peer: usize, count: usize, stream: &Stream) -> Result<Work> {
        // SAFETY: it touches no memory of the program.
        unsafe {
            self.alone(
                Operation::WaitSignals,
                self.validate().wait_signals(peer, count),
                stream,
                Location::caller(),
            )
        }
    }
}

/// One-sided operations of a batch run in their order, before its other operations. A wait for a member that
/// itself waits for this rank therefore belongs in a later batch.
impl Batch<'_> {
    /// [`ProcessGroup::put_signal`].
    ///
    /// # Errors
    /// See [`ProcessGroup::put_signal`].
    ///
    /// # Safety
    /// See [`ProcessGroup::put_signal`].
    pub unsafe fn put_signal(&self, local: Buffer, place: DevicePtr, peer: usize) -> Result<()> {
        self.queue(self.group.validate().put_signal(local, place, peer)?)
    }

    /// [`ProcessGroup::signal`].
    ///
    /// # Errors
    /// See [`ProcessGroup::signal`].
    pub fn signal(&self, peer: usize) -> Result<()> {
        self.queue(self.group.validate().signal(peer)?)
    }

    /// [`ProcessGroup::wait_signals`].
    ///
    /// # Errors
    /// See [`ProcessGroup::wait_signals`].
    pub fn wait_signals(&self, peer: usize, count: usize) -> Result<()> {
        self.queue(self.group.validate().wait_signals(peer, count)?)
    }
}
