//! Put and get: enqueues the transfers of an agreed plan on streams.

use std::{
    fmt,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use cuda_driver::{
    Event, Stream, WaitCondition,
    graph::{CaptureStatus, GraphExec},
    graph_memory,
};

use super::{
    Awaited, ExchangeState, Fault, Memory, Part, TransferError,
    copy::RangeCopy,
    core::{Core, TransferEndpoint},
    quiet,
};

/// Transfers that all members have agreed on, as returned by [`Exchange::exchange`](super::Exchange::exchange). The
/// argument `at` of the functions below is the index of a transfer in the list passed to `exchange`. Cheap to clone.
///
/// A round of a transfer:
///
/// | | the copying end ([`put`](Self::put), [`get`](Self::get)) | the other end |
/// |---|---|---|
/// | 1 | | [`ready`](Self::ready): the peer may write this end's buffer (put), or read it (get) |
/// | 2 | waits for `ready`, copies, and signals the end of the copy | |
/// | 3 | | [`wait`](Self::wait): waits for the end of the copy |
///
/// These four functions enqueue work, and do not wait for that work. The operations of one transfer run in the order in
/// which they were enqueued, even on different streams. Different transfers are independent. On the device, a wait
/// polls a word in this device's own memory, which one peer writes. The words count rounds, so the signal of one round
/// is not taken for that of a later round.
///
/// *Waits can delay other work.* Streams of a device that share a hardware queue block each other. If the program uses
/// many streams, set `CUDA_DEVICE_MAX_CONNECTIONS=32` to have more queues. The following two limits were measured on
/// H200 with driver 580:
///
/// - All copies that read a peer's memory go through one queue, whatever their streams and priorities, in the order of
///   their calls. So a `get` whose peer is not ready blocks every later `get`. Call `get` in the order in which the
///   peers become ready. If that order is unknown, use puts, which do not use this queue.
/// - A signal that is enqueued while a copy runs on the same device can be delayed until that copy has ended. So call
///   [`ready`](Self::ready) of one transfer before `put` and `get` of other transfers. To send data repeatedly,
///   alternate between two transfers, each with its own buffer. Then `ready` for the next buffer can be enqueued before
///   the copy of the current buffer begins.
///
/// *Memory of dropped plans.* When the driver frees memory of `cuMemAlloc`, or closes memory that was opened by legacy
/// IPC handle, it may wait for the device, and meanwhile block other threads of the process. If the device waits for a
/// transfer that one of the blocked threads must enqueue, the process deadlocks. So exchanges free and close such
/// memory only while no rank of the process has a transfer under way. While they do so, `ready`, `put`, `get`, `wait`,
/// `launch` and `watch` of all plans of the process may block the host.
///
/// An exchange considers only transfers. But other work of the device, such as a collective, can wait for another rank
/// too. Before a program drops a plan, such work must have ended, or all ranks must have enqueued everything that it
/// waits for. The same applies to such work that is enqueued later, until the memory of the plan is closed and freed
/// ([`Exchange::close`](super::Exchange::close) waits for that).
///
/// *Graphs.* Captured operations do not use the words that count rounds. Each launch of a graph repeats the values of
/// its capture, so a count would be valid for one launch only. Instead, each end has a toggle: a word that the peer
/// sets to 1, and that the end itself resets to 0. Each end resets its toggle before it signals the other end. So the
/// toggle is 0 whenever the other end may set it again, for any number of launches. If one end captures its calls for a
/// round, the other end must capture its calls for that round too. Within one graph, the calls of `ready` and `wait`
/// for a transfer must alternate, and the last call must be `wait`. Captured calls ignore their `deadline` argument. To
/// set a deadline for a graph, launch it with [`launch`](Self::launch), or call [`watch`](Self::watch) after each
/// launch.
///
/// *Deadlines.* A deadline counts from the call, so it includes the time of earlier work of the stream. If a peer
/// misses a deadline, the plan fails on the rank that waits, and then on its peers. The plan's waits are released, so
/// that streams and context stay usable. A `put` or `get` whose wait is released in this way still copies, even if the
/// peer has not called `ready`. So call [`check`](Self::check) before you use transferred data. After the failure,
/// `check` and all calls that enqueue work return the [`Fault`]. On the rank that noticed the delay, the fault names
/// the peer that missed the deadline (for a graph, see [`Fault::Late`]). On the other ranks, it names a peer on which
/// the plan had failed before. To continue, exchange a plan of the same name again.
#[derive(Clone)]
pub struct Plan {
    inner: Arc<PlanState>,
}

struct PlanState {
    core: Arc<Core>,
    owner: Arc<ExchangeState>,
    /// This rank's end of each transfer, in the order of `core.endpoints`.
    ends: Vec<TransferEnd>,
}

/// This rank's end of a transfer.
pub(super) struct TransferEnd {
    pub(super) part: Part,
    pub(super) memory: Memory,
    /// The copies that this rank enqueues, which together copy the whole buffer. Empty if the peer copies.
    pub(super) copies: Vec<RangeCopy>,
}

impl Drop for PlanState {
    /// Hands the plan to the [closing thread](super::close). That thread waits for transfers under way, closes (unmaps)
    /// the peers' memory, and then tells the peers that this rank has closed the plan.
    fn drop(&mut self) {
        self.owner.shared.closer.close(self.core.clone());
    }
}

/// An operation that a call of a function of [`Plan`] enqueues on a stream.
enum StreamStep {
    Wait,
    /// Resets this rank's toggle to 0. Only in a graph: otherwise signals are counts, which need no reset.
    Reset,
    Copy,
    Signal,
}

/// The steps of `put` and `get`.
const COPY: &[StreamStep] = &[StreamStep::Wait, StreamStep::Reset, StreamStep::Copy, StreamStep::Signal];

/// The roles of the end that does not copy. It calls `ready` and `wait`.
const PASSIVE: &[Part] = &[Part::PutTarget, Part::GetBy];

impl Plan {
    pub(super) fn new(owner: Arc<ExchangeState>, core: Arc<Core>, ends: Vec<TransferEnd>) -> Self {
        Self { inner: Arc::new(PlanState { core, owner, ends }) }
    }

    /// The name of the plan.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.inner.core.plan
    }

    /// The generation: a number that identifies this plan among the plans and regions of its name. It is the same on
    /// all members, and higher than the generations of all earlier plans and regions of this name on this rank. This
    /// does not apply between agreements that run at the same time, with different members.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.inner.core.generation
    }

    /// Number of transfers.
    #[must_use]
    pub fn transfers(&self) -> usize {
        self.inner.core.endpoints.len()
    }

    /// Signals to the peer of transfer `at` that it may copy: into this rank's buffer for a put, from this rank's
    /// buffer for a get.
    ///
    /// # Safety
    /// Until [`wait`](Self::wait) has completed on its stream, no other code writes this rank's buffer, and for a put
    /// no other code reads the buffer. If the plan fails before that, these accesses stay forbidden until both ends of
    /// the transfer have dropped the plan and its copies have ended. A graph that captures this call is launched only
    /// before this rank drops the plan. After each launch by other means than [`launch`](Self::launch),
    /// [`watch`](Self::watch) is called before the drop.
    ///
    /// # Errors
    /// [`TransferError`]: `NoSuchTransfer`, `WrongPart` on the end that copies, `OutOfTurn` if [`wait`](Self::wait) was
    /// not called for the previous round (not checked in a capture), `StalePlan`, `Fault`, and `Driver`.
    pub unsafe fn ready(&self, at: usize, stream: &Stream) -> Result<(), TransferError> {
        self.enqueue(at, stream, ("ready", PASSIVE), &[StreamStep::Signal], None)
    }

    /// Copies this rank's buffer of transfer `at` to the peer, once the peer is [ready](Self::ready).
    ///
    /// # Safety
    /// No other code writes this rank's buffer until the stream has passed the copy. A graph that captures this call is
    /// launched only before this rank drops the plan. After each launch by other means than [`launch`](Self::launch),
    /// [`watch`](Self::watch) is called before the drop.
    ///
    /// # Errors
    /// As [`ready`](Self::ready), but `WrongPart` on an end that does not put, and never `OutOfTurn`.
    pub unsafe fn put(&self, at: usize, stream: &Stream, deadline: Duration) -> Result<(), TransferError> {
        let awaited = Some((Awaited::Ready, deadline));
        self.enqueue(at, stream, ("put", &[Part::PutInitiator]), COPY, awaited)
    }

    /// Copies the peer's buffer of transfer `at` to this rank, once the peer is [ready](Self::ready).
    ///
    /// # Safety
    /// No other code uses this rank's buffer until the stream has passed the copy. A graph that captures this call is
    /// launched only before this rank drops the plan. After each launch by other means than [`launch`](Self::launch),
    /// [`watch`](Self::watch) is called before the drop.
    ///
    /// # Errors
    /// As [`ready`](Self::ready), but `WrongPart` on an end that does not get, and never `OutOfTurn`.
    pub unsafe fn get(&self, at: usize, stream: &Stream, deadline: Duration) -> Result<(), TransferError> {
        let awaited = Some((Awaited::Ready, deadline));
        self.enqueue(at, stream, ("get", &[Part::GetFrom]), COPY, awaited)
    }

    /// Makes the stream wait until the peer has ended the copy that this rank's last [`ready`](Self::ready) of transfer
    /// `at` allowed. Later work on this stream may use the buffer again.
    ///
    /// # Safety
    /// A graph that captures this call is launched only before this rank drops the plan. After each launch by other
    /// means than [`launch`](Self::launch), [`watch`](Self::watch) is called before the drop.
    ///
    /// # Errors
    /// As [`ready`](Self::ready), but `OutOfTurn` if `ready` was not called for this round (not checked in a capture).
    pub unsafe fn wait(&self, at: usize, stream: &Stream, deadline: Duration) -> Result<(), TransferError> {
        let awaited = Some((Awaited::Done, deadline));
        self.enqueue(at, stream, ("wait", PASSIVE), &[StreamStep::Wait, StreamStep::Reset], awaited)
    }

    /// Sets a deadline for the work enqueued on `stream` so far. If the work has not ended by the deadline, the plan
    /// fails. Call this after each launch of a graph that captures transfers of this plan, except for launches by
    /// [`launch`](Self::launch). Use `launch` if possible, for the reason given there.
    ///
    /// # Errors
    /// [`TransferError::Fault`], if the plan has failed; [`TransferError::Driver`]. If the driver cannot record the end
    /// of the work, the plan fails too ([`Fault::Broken`]).
    pub fn watch(&self, stream: &Stream, deadline: Duration) -> Result<(), TransferError> {
        let _gate = quiet::enqueueing();
        // Before the check for a fault: a launched graph must be watched even if the plan has failed.
        self.set_deadline(stream, deadline)?;
        Ok(self.inner.core.fault()?)
    }

    /// Launches a graph that captures transfers of this plan. If the graph has not ended by the deadline, the plan
    /// fails. If the plan has already failed, returns the fault and does not launch.
    ///
    /// Use this instead of [`watch`](Self::watch) if the process drops plans or regions at the same time. Between a
    /// launch and `watch`, a thread of an exchange could free memory of a dropped plan. The driver could make that
    /// thread wait for the end of the launched graph, and meanwhile block other threads of the process. If the graph
    /// waits for work that one of the blocked threads must enqueue, the process deadlocks. Two processes can also
    /// deadlock each other, if the graph of each waits for work that a blocked thread of the other must enqueue.
    ///
    /// # Errors
    /// As [`watch`](Self::watch).
    pub fn launch(
        &self,
        graph: &GraphExec,
        stream: &Stream,
        deadline: Duration,
    ) -> Result<(), TransferError> {
        let _gate = quiet::enqueueing();
        self.inner.core.fault()?;
        stream.launch(graph)?;
        self.set_deadline(stream, deadline)
    }

    /// Makes the plan fail if the work on `stream` has not ended within `deadline`.
    fn set_deadline(&self, stream: &Stream, deadline: Duration) -> Result<(), TransferError> {
        let (core, shared) = (&self.inner.core, &self.inner.owner.shared);
        let event = shared.watch.event(&shared.context);
        let recorded = event.and_then(|done| stream.record(&done).map(|()| done));
        let done = recorded.inspect_err(|error| {
            // The launch cannot be undone, and its end cannot be watched. So the plan fails.
            shared.fail(core, Fault::Broken { transfer: 0, cause: error.to_string() });
        })?;
        shared.watch.begin(core, stream, done, Some((0, Awaited::Graph)), Some(deadline), None);
        Ok(())
    }

    /// Returns an error if the plan has failed on this rank or on a peer. In that case, transferred data is not valid.
    /// Call this after the streams were synchronized. Copies a few bytes from the device, and waits for this copy.
    ///
    /// # Errors
    /// [`TransferError::Fault`], with the first failure; [`TransferError::Driver`].
    pub fn check(&self) -> Result<(), TransferError> {
        self.inner.owner.shared.check(&self.inner.core, |_| ()).map(drop)
    }

    /// Makes the plan fail with [`Fault::Aborted`]. A thread of the exchange then releases the plan's waits on this
    /// rank. The peers release theirs when they notice the failure.
    pub fn abort(&self) {
        self.inner.owner.shared.fail(&self.inner.core, Fault::Aborted);
    }

    /// Enqueues the steps of a call of the function `asked`, which only the roles in `expected` may call. `wait` is the
    /// condition that the first step waits for, and the deadline, or `None` if no step waits.
    fn enqueue(
        &self,
        at: usize,
        stream: &Stream,
        (asked, expected): (&'static str, &'static [Part]),
        steps: &[StreamStep],
        wait: Option<(Awaited, Duration)>,
    ) -> Result<(), TransferError> {
        let (core, shared) = (&self.inner.core, &self.inner.owner.shared);
        let transfers = core.endpoints.len();
        let both = core.endpoints.get(at).zip(self.inner.ends.get(at));
        let (endpoint, end) = both.ok_or(TransferError::NoSuchTransfer { at, transfers })?;
        if !expected.contains(&end.part) {
            return Err(TransferError::WrongPart { at, asked, expected, found: end.part });
        }
        shared.admit(core, stream)?;
        if stream.capture_status()? != CaptureStatus::None {
            core.captured.store(true, Ordering::Release);
            graph_memory::note(stream, [(end.memory.ptr(), end.memory.bytes() as u64)])?;
            return steps.iter().try_for_each(|step| Ok(run(step, (endpoint, end), stream, None)?));
        }
        let _gate = quiet::enqueueing();
        let begins = !matches!(asked, "wait");
        // Locked until the event `done` is recorded: the steps of two threads must not interleave.
        let mut progress = endpoint.progress();
        if !end.part.copies() && progress.offered == begins {
            let expected = if begins { "wait" } else { "ready" };
            return Err(TransferError::OutOfTurn { at, asked, expected });
        }
        let round = if begins { progress.count.wrapping_add(1) } else { progress.count };
        let done = shared.watch.event(&shared.context)?;
        if let Some((last, event)) = &progress.last
            && !last.is_same(stream)
        {
            stream.wait(event)?;
        }
        if wait.is_some() {
            endpoint.awaited.store(round, Ordering::Release);
        }
        self.enqueue_round(at, (endpoint, end), steps, round, stream, &done)?;
        (progress.count, progress.offered) = (round, !end.part.copies() && begins);
        let previous = progress.last.replace((stream.clone(), done.clone())).map(|(_, event)| event);
        drop(progress);
        let (awaited, deadline) = wait.unzip();
        let awaited = awaited.map(|awaited| (at, awaited));
        shared.watch.begin(core, stream, done, awaited, deadline, previous);
        Ok(())
    }

    /// Enqueues the steps of a call in round `round` of transfer `at`, and records `done` after them. If the driver
    /// fails after the first step was enqueued, the plan fails: enqueued steps cannot be undone, and the round is
    /// incomplete.
    fn enqueue_round(
        &self,
        at: usize,
        ends: (&TransferEndpoint, &TransferEnd),
        steps: &[StreamStep],
        round: u32,
        stream: &Stream,
        done: &Arc<Event>,
    ) -> Result<(), TransferError> {
        let (core, shared) = (&self.inner.core, &self.inner.owner.shared);
        let mut begun = false;
        let mut enqueue = || {
            for step in steps {
                run(step, ends, stream, Some(round))?;
                begun = true;
            }
            stream.record(done)
        };
        if let Err(error) = enqueue() {
            if begun {
                core.fail(Fault::Broken { transfer: at, cause: error.to_string() });
                if stream.record(done).is_ok() {
                    shared.watch.begin(core, stream, done.clone(), None, None, None);
                }
                shared.watch.add_failed(core);
            }
            return Err(error.into());
        }
        Ok(())
    }
}

impl fmt::Debug for Plan {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, generation, transfers) = (self.name(), self.generation(), self.transfers());
        write!(out, "Plan({name:?} of generation {generation}, {transfers} transfers)")
    }
}

/// Enqueues one step. If `round` is `Some`, waits and signals use the [count words](super::slots::Words::count), and
/// the number of the round. If `round` is `None`, the stream captures the step, and waits and signals use the toggle
/// words.
fn run(
    step: &StreamStep,
    (endpoint, end): (&TransferEndpoint, &TransferEnd),
    stream: &Stream,
    round: Option<u32>,
) -> Result<(), cuda_driver::Error> {
    let (own, theirs) = (&endpoint.own, &endpoint.theirs);
    // SAFETY: the words lie in the ranks' slots, which stay mapped while any operation is under way. The caller has
    // promised that a graph is not launched after the plan is dropped. The buffers stay mapped too: the thread that
    // enforces deadlines (`watch`) keeps the plan alive until the operation has ended, and the plan holds this rank's
    // buffer and the mappings of the peer's buffer. Both ends have agreed on the length, and the pieces of the peer's
    // buffer have that length. The caller ensures that no other code accesses the buffers in conflict with the copies.
    unsafe {
        match (step, round) {
            (StreamStep::Wait, Some(round)) => {
                stream.wait_value32(own.count, WaitCondition::GreaterOrEqual, round)
            }
            (StreamStep::Wait, None) => stream.wait_value32(own.toggle, WaitCondition::Equal, 1),
            (StreamStep::Reset, Some(_)) => Ok(()),
            (StreamStep::Reset, None) => stream.write_value32(own.toggle, 0),
            (StreamStep::Copy, _) => end.copies.iter().try_for_each(|copy| copy.enqueue(stream)),
            (StreamStep::Signal, Some(round)) => stream.write_value32(theirs.count, round),
            (StreamStep::Signal, None) => stream.write_value32(theirs.toggle, 1),
        }
    }
}
