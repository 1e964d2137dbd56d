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

    /// Returns the operation that consists of it alone.
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

    /// Returns true for one end of a message.
    pub(crate) const fn is_message(self) -> bool {
        matches!(self, Self::Send | Self::Recv)
    }

    /// Returns true if the other rank takes no part, or only waits.
    pub(crate) const fn is_one_sided(self) -> bool {
        matches!(self, Self::PutSignal | Self::Signal | Self::WaitSignals)
    }

    pub(crate) const fn reduces(self) -> bool {
        matches!(self, Self::AllReduce | Self::Reduce | Self::ReduceScatter)
    }

    /// Returns the number of ranks whose shares the send and the receive buffer hold, in a communicator of `size`; 0 for
    /// a buffer that is not used. `named` is true on the rank that the operation names. The buffers of one-sided
    /// operations lie in windows, or there are none.
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

    /// Returns the overlap of the two buffers that it allows; `named` as for [`shares`](Self::shares).
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

    /// Returns the role of the rank that the operation names, if it names one.
    pub(crate) const fn role(self) -> Option<&'static str> {
        match self {
            Self::Broadcast | Self::Reduce | Self::Gather | Self::Scatter => Some("root"),
            Self::Send | Self::Recv | Self::PutSignal | Self::Signal | Self::WaitSignals => Some("peer"),
            Self::AllReduce | Self::AllGather | Self::ReduceScatter | Self::AllToAll => None,
        }
    }
}

/// One operation of this rank. A buffer that this rank does not use is null. For a write into a peer's window, the
/// buffer is this rank's own address at the same offset of the window.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Task {
    pub(crate) primitive: Primitive,
    /// The operation that it is a part of.
    pub(crate) call: Operation,
    pub(crate) send: DevicePtr,
    pub(crate) receive: DevicePtr,
    /// Elements of one share, or signals.
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
    /// Makes an operation without a reduction and without a rank.
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

    /// Makes a one-sided operation without data.
    pub(crate) const fn signals(primitive: Primitive, count: usize, peer: usize) -> Self {
        Self::new(primitive, DevicePtr(0), DevicePtr(0), count, DataType::U8).with(peer)
    }

    pub(crate) const fn reduced_by(self, op: ReduceOp) -> Self {
        Self { op, ..self }
    }

    /// Makes it a part of the operation `call`.
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

    /// Returns true for a message that is not part of a collective.
    #[inline(always)]
    pub(crate) fn is_message(&self) -> bool {
        self.primitive.is_message() && self.call.is_message()
    }

    /// Returns the size of one share in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        (self.count as u64).saturating_mul(self.dtype.size() as u64)
    }

    /// Checks what one rank can check alone. `grouped` says whether it will be launched within a group.
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

/// The functions of every call are inlined into the operation's method, where the operation is a constant. NCCL's
/// work between two calls evicts most of this code from the processor's caches, so the cost of a call is the memory
/// that it touches.
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
    /// As for the public method of the operation's name.
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
        // SAFETY: the caller's contract; the communicator is alive inside the guard.
        let launched = shared.context.with_current(|| unsafe { launch.task(task) })?;
        launched.map_err(|error| shared.condemned(error))
    }
}

/// The arguments of a launch inside the guard.
struct Launch<'a> {
    nccl: &'a Nccl,
    name: &'a str,
    comm: ncclComm_t,
    stream: cudaStream_t,
    place: &'a Place,
    /// The window that a put writes into, and the offset in it in bytes.
    window: Option<(ncclWindow_t, usize)>,
}

impl Launch<'_> {
    fn release(&self) -> Version {
        self.place.release
    }

    /// # Safety
    /// The communicator is alive and this thread alone is inside it. The buffers meet the contract of the public method
    /// of the operation's name.
    #[inline(always)]
    unsafe fn task(&self, task: &Task) -> Result<()> {
        let Self { nccl, name, comm, stream, .. } = *self;
        let Task { primitive, count, dtype, rank, .. } = *task;
        let (send, receive, root) = (task.send.0 as *const _, task.receive.0 as *mut _, rank as i32);
        let moved = || dtype.moved(self.release());
        let native = || nccl.has(Feature::ALL_TO_ALL);
        // SAFETY: the caller's contract; ranks were checked.
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
                // A put of no elements is also a signal.
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
                Primitive::Gather if native() => {
                    call!(nccl, name, ncclGather(send, receive, count, moved(), root, comm, stream))
                }
                Primitive::Scatter if native() => {
                    call!(nccl, name, ncclScatter(send, receive, count, moved(), root, comm, stream))
                }
                Primitive::AllToAll | Primitive::Gather | Primitive::Scatter => self.messages(*task),
            }
        }
    }

    /// Before 2.28: launches the messages that make up the operation, in one group.
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
            // SAFETY: the caller's contract; every peer is a rank, and its share lies in the buffer.
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

    /// Calls `launch` with NCCL's number of the task's reduction. A reduction with a factor is created for the call.
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

    /// Calls `launch` with a reduction that is created for the call.
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
        // SAFETY: the communicator is alive. The call reads one element: of a local now, or of device memory when the
        // operation runs, which is valid by the caller's contract. It writes one number, to a local.
        unsafe { call!(nccl, name, ncclRedOpCreatePreMulSum(&mut op, scalar, dtype, residence, comm)) }?;
        let launched = launch(op);
        // SAFETY: made above; NCCL copies it into each call that uses it, also within a group.
        let destroyed = unsafe { call!(nccl, name, ncclRedOpDestroy(op, comm)) };
        launched.and(destroyed)
    }
}
