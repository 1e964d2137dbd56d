//! The group's operations: checked, enqueued on the caller's stream, counted.

use std::sync::atomic::Ordering;

use cuda_driver::{DevicePtr, Stream};

use super::{GroupError, ProcessGroup, Result, Work};
use crate::comm::{Communicator, DataType, Group, ReduceOp};

/// Device memory that holds elements of one type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Buffer {
    /// Where it starts.
    pub ptr: DevicePtr,
    /// How many elements it holds.
    pub elements: usize,
    /// Their type.
    pub dtype: DataType,
}

impl Buffer {
    /// `elements` elements of `dtype` at `ptr`.
    #[must_use]
    pub const fn new(ptr: DevicePtr, elements: usize, dtype: DataType) -> Self {
        Self { ptr, elements, dtype }
    }

    /// Its length in bytes.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.elements.saturating_mul(self.dtype.size())
    }
}

/// Every operation is enqueued on `stream` and returns; all members make the same calls in the same order. While
/// `stream` captures, the operation becomes a part of the graph.
///
/// Lengths, types and ranks are checked before anything is enqueued:
/// # Errors
/// [`GroupError::Lengths`]; [`GroupError::Comm`] with an argument that the communicator refuses, or with NCCL's
/// error; [`GroupError::Driver`] if the work was enqueued but could not be marked.
///
/// # Safety
/// Of every operation: the buffers are memory that the device can reach, as long as they say; they stay so until the
/// work is done, and nothing else writes what the operation reads, or touches what it writes, in between.
impl ProcessGroup {
    /// Reduces all members' `send` and gives the result to all. In place: the same buffer twice.
    ///
    /// # Errors
    /// See the head of this section.
    ///
    /// # Safety
    /// See the head of this section.
    #[doc(alias = "allreduce")]
    pub unsafe fn all_reduce(
        &self,
        send: Buffer,
        receive: Buffer,
        op: ReduceOp,
        stream: &Stream,
    ) -> Result<Work> {
        self.one("all_reduce", stream, |batch| {
            // SAFETY: the caller's contract.
            unsafe { batch.all_reduce(send, receive, op) }
        })
    }

    /// Gives the root's `buffer` to all, into theirs.
    ///
    /// # Errors
    /// See the head of this section.
    ///
    /// # Safety
    /// See the head of this section.
    pub unsafe fn broadcast(&self, buffer: Buffer, root: usize, stream: &Stream) -> Result<Work> {
        self.one("broadcast", stream, |batch| {
            // SAFETY: the caller's contract.
            unsafe { batch.broadcast(buffer, root) }
        })
    }

    /// Reduces all members' `send` into the root's `receive`; the others' `receive` stays as it is.
    ///
    /// # Errors
    /// See the head of this section.
    ///
    /// # Safety
    /// See the head of this section.
    pub unsafe fn reduce(
        &self,
        send: Buffer,
        receive: Buffer,
        op: ReduceOp,
        root: usize,
        stream: &Stream,
    ) -> Result<Work> {
        self.one("reduce", stream, |batch| {
            // SAFETY: the caller's contract.
            unsafe { batch.reduce(send, receive, op, root) }
        })
    }

    /// Gives all members' `send`, in the order of ranks, to all; `receive` holds as many for every member. In
    /// place: `send` is this rank's share of `receive`.
    ///
    /// # Errors
    /// See the head of this section.
    ///
    /// # Safety
    /// See the head of this section.
    #[doc(alias = "all_gather_into_tensor")]
    pub unsafe fn all_gather(&self, send: Buffer, receive: Buffer, stream: &Stream) -> Result<Work> {
        self.one("all_gather", stream, |batch| {
            // SAFETY: the caller's contract.
            unsafe { batch.all_gather(send, receive) }
        })
    }

    /// Reduces all members' `send`, which holds a share for every member, and gives each member its own. In place:
    /// `receive` is this rank's share of `send`.
    ///
    /// # Errors
    /// See the head of this section.
    ///
    /// # Safety
    /// See the head of this section.
    #[doc(alias = "reduce_scatter_tensor")]
    pub unsafe fn reduce_scatter(
        &self,
        send: Buffer,
        receive: Buffer,
        op: ReduceOp,
        stream: &Stream,
    ) -> Result<Work> {
        self.one("reduce_scatter", stream, |batch| {
            // SAFETY: the caller's contract.
            unsafe { batch.reduce_scatter(send, receive, op) }
        })
    }

    /// Gives the `j`-th share of every member's `send` to member `j`, in the order of ranks. Never in place.
    ///
    /// # Errors
    /// See the head of this section.
    ///
    /// # Safety
    /// See the head of this section.
    #[doc(alias = "all_to_all_single")]
    pub unsafe fn all_to_all(&self, send: Buffer, receive: Buffer, stream: &Stream) -> Result<Work> {
        self.one("all_to_all", stream, |batch| {
            // SAFETY: the caller's contract.
            unsafe { batch.all_to_all(send, receive) }
        })
    }

    /// Sends `buffer` to member `peer`, which receives as many elements.
    ///
    /// # Errors
    /// See the head of this section.
    ///
    /// # Safety
    /// See the head of this section.
    pub unsafe fn send(&self, buffer: Buffer, peer: usize, stream: &Stream) -> Result<Work> {
        self.one("send", stream, |batch| {
            // SAFETY: the caller's contract.
            unsafe { batch.send(buffer, peer) }
        })
    }

    /// Receives `buffer` from member `peer`.
    ///
    /// # Errors
    /// See the head of this section.
    ///
    /// # Safety
    /// See the head of this section.
    pub unsafe fn recv(&self, buffer: Buffer, peer: usize, stream: &Stream) -> Result<Work> {
        self.one("recv", stream, |batch| {
            // SAFETY: the caller's contract.
            unsafe { batch.recv(buffer, peer) }
        })
    }

    /// Several operations that begin together, with one number and one [`Work`]: messages in both directions,
    /// buckets that are reduced at once.
    ///
    /// ```no_run
    /// # use process_group::{ProcessGroup, group::{Buffer, GroupError}};
    /// # fn exchange(group: &ProcessGroup, from: Buffer, to: Buffer, stream: &cuda_driver::Stream)
    /// # -> Result<(), GroupError> {
    /// let peer = group.rank() ^ 1;
    /// let work = group.batch(stream, |batch| {
    ///     // SAFETY: the buffers outlive the work.
    ///     unsafe {
    ///         batch.send(from, peer)?;
    ///         batch.recv(to, peer)
    ///     }
    /// })?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The closure's error, with what it had queued launched: members that wait for the rest must be told, or the
    /// group aborted; otherwise see the head of this section.
    #[doc(alias = "coalescing")]
    pub fn batch(&self, stream: &Stream, queue: impl FnOnce(&Batch<'_>) -> Result<()>) -> Result<Work> {
        let group = Group::begin(self.nccl())?;
        let queued = queue(&Batch { group: self, stream });
        let launched = group.finish();
        queued?;
        launched?;
        self.mark("batch", stream)
    }

    /// One operation.
    fn one(
        &self,
        operation: &'static str,
        stream: &Stream,
        enqueue: impl FnOnce(&Batch<'_>) -> Result<()>,
    ) -> Result<Work> {
        // In an open group the operation would be launched after the mark that says when it is done.
        crate::comm::refuse_inside_group(operation)?;
        enqueue(&Batch { group: self, stream })?;
        self.mark(operation, stream)
    }

    /// Counts what was enqueued and marks its place on the stream.
    fn mark(&self, operation: &'static str, stream: &Stream) -> Result<Work> {
        let sequence = self.counter.enqueued.fetch_add(1, Ordering::AcqRel) + 1;
        let handle = self.communicator.abort_handle();
        let work = Work::record(operation, sequence, &self.counter, handle, &self.events, stream)?;
        // What is captured is not on the stream; it must not hide what is.
        if !work.is_captured() {
            self.outstanding.put(&work);
        }
        Ok(work)
    }

    fn check(
        &self,
        operation: &'static str,
        send: Buffer,
        receive: Buffer,
        shares: (usize, usize),
        rule: &'static str,
    ) -> Result<()> {
        // A share that is no whole number of elements never fits.
        let share = |buffer: Buffer, shares: usize| {
            buffer.elements.is_multiple_of(shares).then_some(buffer.elements / shares)
        };
        let (from, to) = (share(send, shares.0), share(receive, shares.1));
        if send.dtype == receive.dtype && from.is_some() && from == to {
            return Ok(());
        }
        Err(GroupError::Lengths {
            operation,
            group: self.name.to_string(),
            size: self.size(),
            send: send.elements,
            send_type: send.dtype,
            receive: receive.elements,
            receive_type: receive.dtype,
            rule,
        })
    }
}

/// Operations that are being queued by [`ProcessGroup::batch`]. Each does what the method of the same name of
/// [`ProcessGroup`] does, and has its errors and its contract.
#[derive(Debug)]
pub struct Batch<'a> {
    group: &'a ProcessGroup,
    stream: &'a Stream,
}

impl Batch<'_> {
    fn communicator(&self) -> &Communicator {
        &self.group.communicator
    }

    /// [`ProcessGroup::all_reduce`].
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// As there.
    pub unsafe fn all_reduce(&self, send: Buffer, receive: Buffer, op: ReduceOp) -> Result<()> {
        self.group.check("all_reduce", send, receive, (1, 1), "both must be equal")?;
        let (count, dtype) = (send.elements, send.dtype);
        // SAFETY: the caller's contract; the buffers hold as many elements.
        Ok(unsafe { self.communicator().all_reduce(send.ptr, receive.ptr, count, dtype, op, self.stream) }?)
    }

    /// [`ProcessGroup::broadcast`].
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// As there.
    pub unsafe fn broadcast(&self, buffer: Buffer, root: usize) -> Result<()> {
        let Buffer { ptr, elements, dtype } = buffer;
        // SAFETY: as above.
        Ok(unsafe { self.communicator().broadcast(ptr, ptr, elements, dtype, root, self.stream) }?)
    }

    /// [`ProcessGroup::reduce`].
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// As there.
    pub unsafe fn reduce(&self, send: Buffer, receive: Buffer, op: ReduceOp, root: usize) -> Result<()> {
        if self.group.rank == root {
            self.group.check("reduce", send, receive, (1, 1), "both must be equal on the root")?;
        }
        let (count, dtype) = (send.elements, send.dtype);
        // SAFETY: as above.
        Ok(unsafe { self.communicator().reduce(send.ptr, receive.ptr, count, dtype, op, root, self.stream) }?)
    }

    /// [`ProcessGroup::all_gather`].
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// As there.
    pub unsafe fn all_gather(&self, send: Buffer, receive: Buffer) -> Result<()> {
        let shares = (1, self.group.size());
        self.group.check(
            "all_gather",
            send,
            receive,
            shares,
            "receive must hold send's once for every member",
        )?;
        let (count, dtype) = (send.elements, send.dtype);
        // SAFETY: as above.
        Ok(unsafe { self.communicator().all_gather(send.ptr, receive.ptr, count, dtype, self.stream) }?)
    }

    /// [`ProcessGroup::reduce_scatter`].
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// As there.
    pub unsafe fn reduce_scatter(&self, send: Buffer, receive: Buffer, op: ReduceOp) -> Result<()> {
        let shares = (self.group.size(), 1);
        self.group.check(
            "reduce_scatter",
            send,
            receive,
            shares,
            "send must hold receive's once for every member",
        )?;
        let (count, dtype) = (receive.elements, receive.dtype);
        // SAFETY: as above.
        Ok(unsafe {
            self.communicator().reduce_scatter(send.ptr, receive.ptr, count, dtype, op, self.stream)
        }?)
    }

    /// [`ProcessGroup::all_to_all`].
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// As there.
    pub unsafe fn all_to_all(&self, send: Buffer, receive: Buffer) -> Result<()> {
        let shares = (self.group.size(), self.group.size());
        self.group.check("all_to_all", send, receive, shares, "both must hold one share for every member")?;
        let (count, dtype) = (send.elements / self.group.size(), send.dtype);
        // SAFETY: as above.
        Ok(unsafe { self.communicator().all_to_all(send.ptr, receive.ptr, count, dtype, self.stream) }?)
    }

    /// [`ProcessGroup::send`].
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// As there.
    pub unsafe fn send(&self, buffer: Buffer, peer: usize) -> Result<()> {
        let Buffer { ptr, elements, dtype } = buffer;
        // SAFETY: as above.
        Ok(unsafe { self.communicator().send(ptr, elements, dtype, peer, self.stream) }?)
    }

    /// [`ProcessGroup::recv`].
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// As there.
    pub unsafe fn recv(&self, buffer: Buffer, peer: usize) -> Result<()> {
        let Buffer { ptr, elements, dtype } = buffer;
        // SAFETY: as above.
        Ok(unsafe { self.communicator().recv(ptr, elements, dtype, peer, self.stream) }?)
    }
}
