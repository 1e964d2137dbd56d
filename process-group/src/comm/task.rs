//! One operation of this rank: its argument checks, and the NCCL calls that it consists of.

use std::ptr;

use cuda_driver::{DevicePtr, Stream};
use nccl_sys::{
    Feature, Version, cudaStream_t, ncclComm_t, ncclRedOp_t, ncclScalarResidence_t, ncclWaitSignalDesc_t,
    ncclWindow_t,
};

use super::{
    ArgumentError, CommError, Communicator, DataType, Nccl, ReduceOp, Result,
    call::call,
    call_guard::Kind,
    check::{InPlace, Place, Span},
    group,
    one_sided::ONLY,
    open_group, types,
};
use crate::{BoxedResult, cold_err, memory::WindowOffset, operation::Operation};

/// An operation that NCCL carries out: by one call or, in old releases, by messages in one NCCL group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Primitive {
    AllReduce,
    Broadcast,
    Reduce,
    AllGather,
    ReduceScatter,
    AllToAll,
    Gather,
    Scatter,
    Send,
    Recv,
    PutSignal,
    Signal,
    WaitSignals,
}

impl Primitive {
    pub(crate) const ALL: [Self; 13] = [
        Self::AllReduce,
        Self::Broadcast,
        Self::Reduce,
        Self::AllGather,
        Self::ReduceScatter,
        Self::AllToAll,
        Self::Gather,
        Self::Scatter,
        Self::Send,
        Self::Recv,
        Self::PutSignal,
        Self::Signal,
        Self::WaitSignals,
    ];

    /// Returns the group operation that consists of this primitive alone.
    pub(crate) const fn operation(self) -> Operation {
        match self {
            Self::AllReduce => Operation::AllReduce,
            Self::Broadcast => Operation::Broadcast,
            Self::Reduce => Operation::Reduce,
            Self::AllGather => Operation::AllGather,
            Self::ReduceScatter => Operation::ReduceScatter,
            Self::AllToAll => Operation::AllToAll,
            Self::Gather => Operation::Gather,
            Self::Scatter => Operation::Scatter,
            Self::Send => Operation::Send,
            Self::Recv => Operation::Recv,
            Self::PutSignal => Operation::PutSignal,
            Self::Signal => Operation::Signal,
            Self::WaitSignals => Operation::WaitSignals,
        }
    }

    /// Returns true for a send or a receive.
    pub(crate) const fn is_message(self) -> bool {
        matches!(self, Self::Send | Self::Recv)
    }

    /// Returns true for puts, signals, and waits for signals.
    pub(crate) const fn is_one_sided(self) -> bool {
        matches!(self, Self::PutSignal | Self::Signal | Self::WaitSignals)
    }

    pub(crate) const fn reduces(self) -> bool {
        matches!(self, Self::AllReduce | Self::Reduce | Self::ReduceScatter)
    }

    /// Returns the length of the send buffer and of the receive buffer, in shares (of `count` elements each), for a
    /// communicator of `size` ranks; 0 for an unused buffer. `named` is true on the rank that is the operation's root
    /// or peer. Both lengths are 0 for one-sided operations, whose buffers lie in windows and are checked separately.
    #[inline(always)]
    pub(crate) fn shares(self, size: usize, named: bool) -> [usize; 2] {
        let root = if named { size } else { 0 };
        match self {
            Self::AllReduce => [1, 1],
            Self::Broadcast => [usize::from(named), 1],
            Self::Reduce => [1, usize::from(named)],
            Self::AllGather => [1, size],
            Self::ReduceScatter => [size, 1],
            Self::AllToAll => [size, size],
            Self::Gather => [1, root],
            Self::Scatter => [root, 1],
            Self::Send => [1, 0],
            Self::Recv => [0, 1],
            Self::PutSignal | Self::Signal | Self::WaitSignals => [0, 0],
        }
    }

    /// Returns the overlap of the send and the receive buffer that this primitive allows. `named` is as for
    /// [`shares`](Self::shares).
    const fn in_place(self, named: bool) -> InPlace {
        match self {
            // A put writes into the window of another rank.
            Self::PutSignal if !named => InPlace::Anywhere,
            Self::AllReduce | Self::Broadcast | Self::Reduce => InPlace::Same,
            Self::AllGather | Self::Gather => InPlace::ShareOfReceive,
            Self::ReduceScatter | Self::Scatter => InPlace::ShareOfSend,
            _ => InPlace::Never,
        }
    }

    /// Returns, for the send and the receive buffer, whether NCCL requires the same offset of the same window on
    /// every rank if the buffer lies in a window.
    pub(crate) const fn symmetric(self) -> [bool; 2] {
        match self {
            Self::AllReduce | Self::AllToAll => [true, true],
            Self::ReduceScatter | Self::Gather => [true, false],
            Self::AllGather | Self::Scatter => [false, true],
            _ => [false, false],
        }
    }

    /// Returns the role of the rank that is an argument of the operation. `None` if the operation has no such
    /// argument.
    pub(crate) const fn role(self) -> Option<&'static str> {
        match self {
            Self::Broadcast | Self::Reduce | Self::Gather | Self::Scatter => Some("root"),
            Self::Send | Self::Recv | Self::PutSignal | Self::Signal | Self::WaitSignals => Some("peer"),
            Self::AllReduce | Self::AllGather | Self::ReduceScatter | Self::AllToAll => None,
        }
    }
}

/// One operation of this rank. A buffer that this rank does not use is null. The receive buffer of a put is given by
/// the address at the same offset in this rank's own copy of the window.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Task {
    pub(crate) primitive: Primitive,
    /// The group operation that this task is a part of.
    pub(crate) call: Operation,
    pub(crate) send: DevicePtr,
    pub(crate) receive: DevicePtr,
    /// Number of elements of one share, or number of signals.
    pub(crate) count: usize,
    pub(crate) dtype: DataType,
    /// Used by reducing operations only.
    pub(crate) op: ReduceOp,
    /// The root, or the peer.
    pub(crate) rank: usize,
    /// Window offsets of the send and the receive buffer, if the operation needs them [equal](Primitive::symmetric)
    /// on all ranks.
    pub(crate) places: [WindowOffset; 2],
}

impl Task {
    /// Makes a task. Set the reduction with [`reduced_by`](Self::reduced_by) and the root or peer with
    /// [`with`](Self::with).
    pub(crate) const fn new(
        primitive: Primitive,
        send: DevicePtr,
        receive: DevicePtr,
        count: usize,
        dtype: DataType,
    ) -> Self {
        let (call, places) = (primitive.operation(), [WindowOffset::from_code(0); 2]);
        Self { primitive, call, send, receive, count, dtype, op: ReduceOp::Sum, rank: 0, places }
    }

    /// Makes a task that signals `peer`, or that waits for `count` signals from `peer`.
    pub(crate) const fn signals(primitive: Primitive, count: usize, peer: usize) -> Self {
        Self::new(primitive, DevicePtr(0), DevicePtr(0), count, DataType::U8).with(peer)
    }

    pub(crate) const fn reduced_by(self, op: ReduceOp) -> Self {
        Self { op, ..self }
    }

    /// Makes the task a part of the operation `call`.
    pub(crate) const fn within(self, call: Operation) -> Self {
        Self { call, ..self }
    }

    /// Sets the root or the peer.
    pub(crate) const fn with(self, rank: usize) -> Self {
        Self { rank, ..self }
    }

    /// Returns the buffers that this rank uses: name, address and size in bytes. An in-place buffer is returned once.
    #[inline(always)]
    pub(crate) fn buffers(&self, place: &Place) -> [Option<(&'static str, u64, u64)>; 2] {
        let buffer = |name, ptr: DevicePtr, shares| {
            (shares > 0).then(|| (name, ptr.0, self.bytes().saturating_mul(shares as u64)))
        };
        let [send, receive] = self.primitive.shares(place.size, place.rank == self.rank);
        let (send, receive) = (buffer("send", self.send, send), buffer("receive", self.receive, receive));
        match (send, receive) {
            (Some((_, from, bytes)), Some((_, to, length))) if from == to && bytes == length => [send, None],
            _ => [send, receive],
        }
    }

    /// Returns the ranges of this rank's memory that the operation uses.
    pub(crate) fn memory(&self, place: &Place) -> impl Iterator<Item = (DevicePtr, u64)> + use<> {
        let buffers = match self.primitive {
            Primitive::PutSignal => [Some(self.send), Some(self.receive)].map(|at| Some((at?, self.bytes()))),
            _ => self.buffers(place).map(|buffer| buffer.map(|(_, at, bytes)| (DevicePtr(at), bytes))),
        };
        let factor = match self.op {
            ReduceOp::PreMulSumAt(at) => Some((at, self.dtype.size() as u64)),
            _ => None,
        };
        buffers.into_iter().flatten().chain(factor)
    }

    /// Returns the buffers that need [equal](Primitive::symmetric) window offsets: name, address and size in bytes.
    pub(crate) fn symmetric_buffers(
        &self,
        place: &Place,
    ) -> impl Iterator<Item = (&'static str, u64, u64)> + use<> {
        let [send, receive] = match (self.buffers(place), self.primitive.symmetric()) {
            // In place: one buffer serves as both.
            ([Some((_, at, bytes)), None], [true, true]) => {
                [Some(("send", at, bytes)), Some(("receive", at, bytes))]
            }
            ([send, receive], [sends, receives]) => [send.filter(|_| sends), receive.filter(|_| receives)],
        };
        send.into_iter().chain(receive)
    }

    /// Returns true for a send or a receive that is not part of a collective.
    #[inline(always)]
    pub(crate) fn is_message(&self) -> bool {
        self.primitive.is_message() && self.call.is_message()
    }

    /// Returns the size of one share in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        (self.count as u64).saturating_mul(self.dtype.size() as u64)
    }

    /// Makes the argument checks that need no other rank. `grouped` is true if the task will be launched in an NCCL
    /// group.
    #[inline(always)]
    pub(crate) fn check(&self, place: &Place, grouped: bool) -> BoxedResult<(), ArgumentError> {
        let Self { primitive, call, count, dtype, op, rank, .. } = *self;
        let call = call.name();
        if primitive.reduces() {
            place.reduction(call, op, dtype)?;
        }
        if let Some(role) = primitive.role() {
            place.member(call, role, rank)?;
        }
        let named = place.rank == rank;
        if primitive.is_message() && named && !grouped {
            return Err(cold_err(move || ArgumentError::ToOneself { call, rank }));
        }
        if primitive == Primitive::WaitSignals {
            return place.signals(call, count);
        }
        let [send, receive] = match primitive {
            Primitive::PutSignal => [1, 1],
            _ => primitive.shares(place.size, named),
        };
        let send = Span { address: self.send.0, shares: send };
        let receive = Span { address: self.receive.0, shares: receive };
        place.buffers(call, send, receive, count, dtype, primitive.in_place(named))
    }
}

/// The functions that every call runs are inlined into the public method of each operation. There the operation is a
/// constant, so the compiler removes all other branches. NCCL evicts most of this code from the CPU caches between
/// two calls, so the cost of a call is mostly the code and data that it loads.
impl Communicator {
    /// Checks `task` without launching anything; `grouped` as for [`Task::check`].
    #[inline(always)]
    pub(crate) fn check_task(
        &self,
        task: &Task,
        stream: &Stream,
        grouped: bool,
    ) -> BoxedResult<(), CommError> {
        task.check(self.place(), grouped)?;
        if task.primitive.is_one_sided() {
            self.check_one_sided(*task, stream)?;
        }
        self.check_stream(task.call.name(), stream)
    }

    /// Checks that `stream` is of the communicator's device.
    #[inline(always)]
    pub(crate) fn check_stream(&self, call: &'static str, stream: &Stream) -> BoxedResult<(), CommError> {
        let (theirs, ours) = (stream.context().device().ordinal(), self.shared().context.device().ordinal());
        if theirs != ours {
            return Err(cold_err(move || {
                ArgumentError::ForeignStream { call, stream: theirs, communicator: ours }.into()
            }));
        }
        Ok(())
    }

    /// Enqueues `task`, which the caller has checked.
    ///
    /// # Safety
    /// The caller upholds the contract of the public method with the operation's name.
    #[inline(always)]
    pub(crate) unsafe fn launch(&self, task: &Task, stream: &Stream) -> BoxedResult<(), CommError> {
        let shared = self.shared();
        let window = self.window_of(*task)?;
        let _entry = shared.guard.enter(task.call.name(), Kind::Enqueue, None)?;
        if shared.registry.has_pending() {
            shared.flush_before(task.call.name())?;
        }
        if open_group::is_open() {
            group::enrol(shared);
        }
        let launch = Launch {
            nccl: &shared.nccl,
            name: shared.name(),
            comm: shared.raw(),
            // The driver's and the runtime's stream are one type under two names.
            stream: stream.raw().cast(),
            place: self.place(),
            window,
        };
        // SAFETY: the caller upholds the contract of `launch`. The guard keeps the communicator alive, and admits
        // this thread alone.
        let launched = shared.context.with_current(|| unsafe { launch.task(task) })?;
        launched.map_err(|error| shared.condemned(error))
    }
}

/// The arguments of the NCCL calls of one launch. Exists only while this thread is inside the call guard.
struct Launch<'a> {
    nccl: &'a Nccl,
    name: &'a str,
    comm: ncclComm_t,
    stream: cudaStream_t,
    place: &'a Place,
    /// The window that a put writes into, and the byte offset in that window.
    window: Option<(ncclWindow_t, usize)>,
}

impl Launch<'_> {
    fn release(&self) -> Version {
        self.place.release
    }

    /// # Safety
    /// The communicator is alive, and no other thread is inside NCCL with it. The buffers meet the contract of the
    /// public method with the operation's name.
    #[inline(always)]
    unsafe fn task(&self, task: &Task) -> Result<()> {
        let Self { nccl, name, comm, stream, .. } = *self;
        let Task { primitive, count, dtype, rank, .. } = *task;
        let (send, receive, root) = (task.send.0 as *const _, task.receive.0 as *mut _, rank as i32);
        let moved = || dtype.moved(self.release());
        let native = || nccl.has(Feature::ALL_TO_ALL);
        // SAFETY: the caller upholds this function's contract. `Task::check` has checked the ranks.
        unsafe {
            match primitive {
                Primitive::AllReduce => self.reduction(task, move |op| {
                    call!(nccl, name, ncclAllReduce(send, receive, count, dtype.raw(), op, comm, stream))
                }),
                Primitive::Reduce => self.reduction(task, move |op| {
                    call!(nccl, name, ncclReduce(send, receive, count, dtype.raw(), op, root, comm, stream))
                }),
                Primitive::ReduceScatter => self.reduction(task, move |op| {
                    call!(nccl, name, ncclReduceScatter(send, receive, count, dtype.raw(), op, comm, stream))
                }),
                Primitive::Broadcast => {
                    call!(nccl, name, ncclBroadcast(send, receive, count, moved(), root, comm, stream))
                }
                Primitive::AllGather => {
                    call!(nccl, name, ncclAllGather(send, receive, count, moved(), comm, stream))
                }
                Primitive::Send => call!(nccl, name, ncclSend(send, count, moved(), root, comm, stream)),
                Primitive::Recv => call!(nccl, name, ncclRecv(receive, count, moved(), root, comm, stream)),
                Primitive::PutSignal if count > 0 => {
                    let (window, at) = self.window.unwrap_or((ptr::null_mut(), 0));
                    let flags = ONLY.cast_unsigned();
                    call!(
                        nccl,
                        name,
                        ncclPutSignal(
                            send,
                            count,
                            moved(),
                            root,
                            window,
                            at,
                            ONLY,
                            ONLY,
                            flags,
                            comm,
                            stream
                        )
                    )
                }
                // A put without elements is launched as a signal.
                Primitive::PutSignal | Primitive::Signal => {
                    let flags = ONLY.cast_unsigned();
                    call!(nccl, name, ncclSignal(root, ONLY, ONLY, flags, comm, stream))
                }
                Primitive::WaitSignals => {
                    let mut awaited =
                        ncclWaitSignalDesc_t { opCnt: count as i32, peer: root, sigIdx: ONLY, ctx: ONLY };
                    call!(nccl, name, ncclWaitSignal(1, &mut awaited, comm, stream))
                }
                Primitive::AllToAll if native() => {
                    call!(nccl, name, ncclAlltoAll(send, receive, count, moved(), comm, stream))
                }
                // Only the root has both buffers. The others give NCCL their one buffer twice: with
                // `NCCL_CHECK_MODE=DEBUG_GLOBAL` or `DEBUG_LOCAL`, it refuses a null buffer that it does not use.
                Primitive::Gather if native() => {
                    let receive = if receive.is_null() { send.cast_mut() } else { receive };
                    call!(nccl, name, ncclGather(send, receive, count, moved(), root, comm, stream))
                }
                Primitive::Scatter if native() => {
                    let send = if send.is_null() { receive.cast_const() } else { send };
                    call!(nccl, name, ncclScatter(send, receive, count, moved(), root, comm, stream))
                }
                Primitive::AllToAll | Primitive::Gather | Primitive::Scatter => self.messages(*task),
            }
        }
    }

    /// Launches an all-to-all, a gather or a scatter as sends and receives in one NCCL group. For releases before
    /// 2.28, which have no calls for these operations.
    ///
    /// # Safety
    /// As for [`task`](Self::task).
    #[inline(never)]
    unsafe fn messages(&self, task: Task) -> Result<()> {
        let Self { nccl, name, place, .. } = *self;
        let own = place.rank == task.rank;
        let share = (task.count * task.dtype.size()) as u64;
        let part = |ptr: DevicePtr, rank: usize| DevicePtr(ptr.0 + rank as u64 * share);
        let message = |primitive, ptr, peer| Task { primitive, send: ptr, receive: ptr, rank: peer, ..task };
        let send = |ptr, peer| message(Primitive::Send, ptr, peer);
        let recv = |ptr, peer| message(Primitive::Recv, ptr, peer);
        let queue = || {
            // SAFETY: the caller upholds this function's contract. Every peer is a rank, and the share of each peer
            // lies in the buffer.
            let put = |message: Task| unsafe { self.task(&message) };
            match task.primitive {
                Primitive::Gather => {
                    put(send(task.send, task.rank))?;
                    (0..if own { place.size } else { 0 })
                        .try_for_each(|peer| put(recv(part(task.receive, peer), peer)))
                }
                Primitive::Scatter => {
                    (0..if own { place.size } else { 0 })
                        .try_for_each(|peer| put(send(part(task.send, peer), peer)))?;
                    put(recv(task.receive, task.rank))
                }
                _ => (0..place.size).try_for_each(|peer| {
                    put(send(part(task.send, peer), peer))?;
                    put(recv(part(task.receive, peer), peer))
                }),
            }
        };
        // SAFETY: the function has no arguments.
        unsafe { call!(nccl, name, ncclGroupStart()) }?;
        let queued = queue();
        // SAFETY: closes the group that was opened above, also after a failure.
        let ended = unsafe { call!(nccl, name, ncclGroupEnd()) };
        queued.and(ended)
    }

    /// Calls `launch` with the NCCL operator of the task's reduction. For a reduction with a factor, creates an
    /// operator for this call.
    ///
    /// # Safety
    /// As for [`task`](Self::task).
    #[inline(always)]
    unsafe fn reduction(&self, task: &Task, launch: impl FnOnce(ncclRedOp_t) -> Result<()>) -> Result<()> {
        match task.op.raw(task.dtype) {
            Some(op) => launch(op),
            // SAFETY: the caller's contract.
            None => unsafe { self.own_reduction(*task, launch) },
        }
    }

    /// Creates an NCCL operator for a reduction with a factor, calls `launch` with it, and destroys the operator.
    ///
    /// # Safety
    /// As for [`task`](Self::task).
    #[cold]
    unsafe fn own_reduction(&self, task: Task, launch: impl FnOnce(ncclRedOp_t) -> Result<()>) -> Result<()> {
        let Self { nccl, name, comm, .. } = *self;
        let mut element = match task.op {
            ReduceOp::PreMulSum(factor) => types::scalar(factor, task.dtype),
            _ => 0,
        };
        let (scalar, residence) = match task.op {
            ReduceOp::PreMulSum(_) => {
                ((&raw mut element).cast(), ncclScalarResidence_t::ncclScalarHostImmediate)
            }
            ReduceOp::PreMulSumAt(factor) => (factor.0 as *mut _, ncclScalarResidence_t::ncclScalarDevice),
            op => return launch(op.raw(task.dtype).unwrap_or(ncclRedOp_t::ncclSum)),
        };
        let (mut op, dtype) = (ncclRedOp_t::ncclSum, task.dtype.raw());
        // SAFETY: the communicator is alive. NCCL reads one element: from the local `element` during this call, or
        // from device memory when the operation runs. The caller keeps that device memory valid. NCCL writes the
        // operator to the local `op`.
        unsafe { call!(nccl, name, ncclRedOpCreatePreMulSum(&mut op, scalar, dtype, residence, comm)) }?;
        let launched = launch(op);
        // SAFETY: `op` was created above. NCCL copies the operator into each call that uses it, also in an open
        // group, so it can be destroyed now.
        let destroyed = unsafe { call!(nccl, name, ncclRedOpDestroy(op, comm)) };
        launched.and(destroyed)
    }
}
