//! Collectives and messages on device memory.

use cuda_driver::{DevicePtr, Stream};
use nccl_sys::{cudaStream_t, ncclComm_t};

use super::{
    ArgumentError, Communicator, DataType, Nccl, ReduceOp, Result,
    call::call,
    check::{InPlace, Span},
    gate::Kind,
    group,
};

/// A buffer for one rank's share.
fn one(ptr: DevicePtr) -> Span {
    Span { address: ptr.0, shares: 1 }
}

/// Every call enqueues work on `stream` and returns; a group that is open on the thread holds it back until the
/// group is finished. All ranks make the same calls in the same order, with the same counts and types; `count` is
/// in elements.
///
/// # Errors
/// - [`CommError::Argument`](super::CommError::Argument), when nothing was enqueued: a rank that does not exist,
///   a null or misaligned buffer, buffers that overlap in another way than the operation's in-place form, a type
///   that the release lacks, a stream of another device;
/// - [`CommError::Nccl`](super::CommError::Nccl), after which the communicator is poisoned unless NCCL refused the
///   arguments; [`CommError::Poisoned`](super::CommError::Poisoned) and
///   [`CommError::Closed`](super::CommError::Closed).
///
/// # Safety
/// Of every call: each buffer holds as many elements as the call says and is memory that the device can reach; it
/// stays so until the work is done, and nothing else writes what the call reads, or touches what it writes, in
/// between.
impl Communicator {
    /// Reduces `count` elements of every rank and gives the result to all. In place: the same address.
    ///
    /// # Errors
    /// See the head of this section.
    ///
    /// # Safety
    /// `send` and `receive` hold `count` elements; see the head of this section.
    #[doc(alias = "ncclAllReduce")]
    pub unsafe fn all_reduce(
        &self,
        send: DevicePtr,
        receive: DevicePtr,
        count: usize,
        dtype: DataType,
        op: ReduceOp,
        stream: &Stream,
    ) -> Result<()> {
        const CALL: &str = "all_reduce";
        self.place().buffers(CALL, one(send), one(receive), count, dtype, InPlace::Same)?;
        self.enqueue(CALL, stream, |nccl, name, comm, stream| {
            let (send, receive) = (send.0 as *const _, receive.0 as *mut _);
            // SAFETY: the communicator is alive inside the gate; the buffers are good by the caller's contract.
            unsafe {
                call!(nccl, name, ncclAllReduce(send, receive, count, dtype.raw(), op.raw(), comm, stream))
            }
        })
    }

    /// Gives `count` elements of `root` to all. `send` is read on the root only. In place: the same address.
    ///
    /// # Errors
    /// See the head of this section.
    ///
    /// # Safety
    /// `receive`, and on the root `send`, hold `count` elements; see the head of this section.
    #[doc(alias = "ncclBroadcast")]
    pub unsafe fn broadcast(
        &self,
        send: DevicePtr,
        receive: DevicePtr,
        count: usize,
        dtype: DataType,
        root: usize,
        stream: &Stream,
    ) -> Result<()> {
        const CALL: &str = "broadcast";
        let place = self.place();
        place.member(CALL, "root", root)?;
        let read = if place.rank == root { send } else { receive };
        place.buffers(CALL, one(read), one(receive), count, dtype, InPlace::Same)?;
        self.enqueue(CALL, stream, |nccl, name, comm, stream| {
            let (send, receive) = (send.0 as *const _, receive.0 as *mut _);
            // SAFETY: as in `all_reduce`.
            unsafe {
                call!(nccl, name, ncclBroadcast(send, receive, count, dtype.raw(), root as i32, comm, stream))
            }
        })
    }

    /// Reduces `count` elements of every rank and gives the result to `root`. `receive` is written on the root
    /// only. In place: the same address.
    ///
    /// # Errors
    /// See the head of this section.
    ///
    /// # Safety
    /// `send`, and on the root `receive`, hold `count` elements; see the head of this section.
    #[doc(alias = "ncclReduce")]
    #[allow(clippy::too_many_arguments)]
    pub unsafe fn reduce(
        &self,
        send: DevicePtr,
        receive: DevicePtr,
        count: usize,
        dtype: DataType,
        op: ReduceOp,
        root: usize,
        stream: &Stream,
    ) -> Result<()> {
        const CALL: &str = "reduce";
        let place = self.place();
        place.member(CALL, "root", root)?;
        let written = if place.rank == root { receive } else { send };
        place.buffers(CALL, one(send), one(written), count, dtype, InPlace::Same)?;
        self.enqueue(CALL, stream, |nccl, name, comm, stream| {
            let (send, receive) = (send.0 as *const _, receive.0 as *mut _);
            let (dtype, op, root) = (dtype.raw(), op.raw(), root as i32);
            // SAFETY: as in `all_reduce`.
            unsafe { call!(nccl, name, ncclReduce(send, receive, count, dtype, op, root, comm, stream)) }
        })
    }

    /// Gives `count` elements of every rank to all, in the order of ranks. In place: `send` is this rank's share
    /// of `receive`.
    ///
    /// # Errors
    /// See the head of this section.
    ///
    /// # Safety
    /// `send` holds `count` elements and `receive` as many for every rank; see the head of this section.
    #[doc(alias = "ncclAllGather")]
    pub unsafe fn all_gather(
        &self,
        send: DevicePtr,
        receive: DevicePtr,
        count: usize,
        dtype: DataType,
        stream: &Stream,
    ) -> Result<()> {
        const CALL: &str = "all_gather";
        let all = Span { address: receive.0, shares: self.size() };
        self.place().buffers(CALL, one(send), all, count, dtype, InPlace::ShareOfReceive)?;
        self.enqueue(CALL, stream, |nccl, name, comm, stream| {
            let (send, receive) = (send.0 as *const _, receive.0 as *mut _);
            // SAFETY: as in `all_reduce`.
            unsafe { call!(nccl, name, ncclAllGather(send, receive, count, dtype.raw(), comm, stream)) }
        })
    }

    /// Reduces `count` elements for each rank, and gives each rank its own. In place: `receive` is this rank's
    /// share of `send`.
    ///
    /// # Errors
    /// See the head of this section.
    ///
    /// # Safety
    /// `send` holds `count` elements for every rank and `receive` holds `count`; see the head of this section.
    #[doc(alias = "ncclReduceScatter")]
    pub unsafe fn reduce_scatter(
        &self,
        send: DevicePtr,
        receive: DevicePtr,
        count: usize,
        dtype: DataType,
        op: ReduceOp,
        stream: &Stream,
    ) -> Result<()> {
        const CALL: &str = "reduce_scatter";
        let all = Span { address: send.0, shares: self.size() };
        self.place().buffers(CALL, all, one(receive), count, dtype, InPlace::ShareOfSend)?;
        self.enqueue(CALL, stream, |nccl, name, comm, stream| {
            let (send, receive) = (send.0 as *const _, receive.0 as *mut _);
            // SAFETY: as in `all_reduce`.
            unsafe {
                call!(
                    nccl,
                    name,
                    ncclReduceScatter(send, receive, count, dtype.raw(), op.raw(), comm, stream)
                )
            }
        })
    }

    /// Gives `count` elements of every rank to every rank: what rank `i` has at place `j` of `send` comes to place
    /// `i` of `receive` on rank `j`. Never in place. Made of messages in one group, on every release.
    ///
    /// # Errors
    /// See the head of this section.
    ///
    /// # Safety
    /// `send` and `receive` hold `count` elements for every rank; see the head of this section.
    #[doc(alias = "ncclAlltoAll")]
    pub unsafe fn all_to_all(
        &self,
        send: DevicePtr,
        receive: DevicePtr,
        count: usize,
        dtype: DataType,
        stream: &Stream,
    ) -> Result<()> {
        const CALL: &str = "all_to_all";
        let size = self.size();
        let all = |ptr: DevicePtr| Span { address: ptr.0, shares: size };
        self.place().buffers(CALL, all(send), all(receive), count, dtype, InPlace::Never)?;
        let share = (count * dtype.size()) as u64;
        self.enqueue(CALL, stream, |nccl, name, comm, stream| {
            // SAFETY: takes nothing.
            unsafe { call!(nccl, name, ncclGroupStart()) }?;
            let queued = (0..size).try_for_each(|peer| {
                let at = |ptr: DevicePtr| ptr.0 + peer as u64 * share;
                let (from, to) = (at(send) as *const _, at(receive) as *mut _);
                // SAFETY: as in `all_reduce`; `peer` is a rank.
                unsafe {
                    call!(nccl, name, ncclSend(from, count, dtype.raw(), peer as i32, comm, stream))?;
                    call!(nccl, name, ncclRecv(to, count, dtype.raw(), peer as i32, comm, stream))
                }
            });
            // SAFETY: closes what was opened above, also after a failure.
            let ended = unsafe { call!(nccl, name, ncclGroupEnd()) };
            queued.and(ended)
        })
    }

    /// Sends `count` elements to `peer`, which receives as many. Messages of two ranks to each other belong in one
    /// group, or both wait.
    ///
    /// # Errors
    /// See the head of this section; [`ArgumentError::ToOneself`] outside a group.
    ///
    /// # Safety
    /// `send` holds `count` elements; see the head of this section.
    #[doc(alias = "ncclSend")]
    pub unsafe fn send(
        &self,
        send: DevicePtr,
        count: usize,
        dtype: DataType,
        peer: usize,
        stream: &Stream,
    ) -> Result<()> {
        const CALL: &str = "send";
        self.check_peer(CALL, peer)?;
        self.place().buffer(CALL, "send", one(send), count, dtype)?;
        self.enqueue(CALL, stream, |nccl, name, comm, stream| {
            let (send, peer) = (send.0 as *const _, peer as i32);
            // SAFETY: as in `all_reduce`.
            unsafe { call!(nccl, name, ncclSend(send, count, dtype.raw(), peer, comm, stream)) }
        })
    }

    /// Receives `count` elements from `peer`.
    ///
    /// # Errors
    /// As for [`send`](Self::send).
    ///
    /// # Safety
    /// `receive` holds `count` elements; see the head of this section.
    #[doc(alias = "ncclRecv")]
    pub unsafe fn recv(
        &self,
        receive: DevicePtr,
        count: usize,
        dtype: DataType,
        peer: usize,
        stream: &Stream,
    ) -> Result<()> {
        const CALL: &str = "recv";
        self.check_peer(CALL, peer)?;
        self.place().buffer(CALL, "receive", one(receive), count, dtype)?;
        self.enqueue(CALL, stream, |nccl, name, comm, stream| {
            let (receive, peer) = (receive.0 as *mut _, peer as i32);
            // SAFETY: as in `all_reduce`.
            unsafe { call!(nccl, name, ncclRecv(receive, count, dtype.raw(), peer, comm, stream)) }
        })
    }

    fn check_peer(&self, call: &'static str, peer: usize) -> Result<(), ArgumentError> {
        let place = self.place();
        place.member(call, "peer", peer)?;
        if peer == place.rank && !group::is_open() {
            return Err(ArgumentError::ToOneself { call, rank: peer });
        }
        Ok(())
    }

    fn enqueue(
        &self,
        call: &'static str,
        stream: &Stream,
        launch: impl FnOnce(&Nccl, &str, ncclComm_t, cudaStream_t) -> Result<()>,
    ) -> Result<()> {
        let shared = self.shared();
        let (theirs, ours) = (stream.context().device().ordinal(), shared.context.device().ordinal());
        if theirs != ours {
            return Err(ArgumentError::ForeignStream { call, stream: theirs, communicator: ours }.into());
        }
        let _entry = shared.gate.enter(call, Kind::Enqueue, None)?;
        group::enrol(shared);
        let _current = shared.context.enter()?;
        // The driver's and the runtime's stream are one type under two names.
        let result = launch(&shared.nccl, shared.name(), shared.raw(), stream.raw().cast());
        shared.judge(result)
    }
}
