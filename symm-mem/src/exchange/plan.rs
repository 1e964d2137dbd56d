//! Put and get: the transfers of an exchanged plan, on streams.

use std::{
    fmt,
    sync::{Arc, PoisonError, atomic::Ordering},
    time::{Duration, Instant},
};

use cuda_driver::{
    Event, Stream, WaitCondition,
    graph::{CaptureStatus, GraphExec},
};
use process_group::graph_memory;

use super::{
    Awaited, Fault, Owner, Part, TransferError,
    core::{Core, Wire},
    quiet,
    shared::Shared,
    watch::Watched,
};

/// Transfers that all members have agreed on: what [`Exchange::exchange`](super::Exchange::exchange) gives. Transfers are
/// named by their place in what was given to it. Cheap to clone.
///
/// A round of a transfer:
///
/// | | who copies ([`put`](Self::put), [`get`](Self::get)) | the other end |
/// |---|---|---|
/// | 1 | | [`ready`](Self::ready): the peer may write this buffer (put), or read it (get) |
/// | 2 | waits for that, copies, and says that it is done | |
/// | 3 | | [`wait`](Self::wait): until then |
///
/// All are enqueued and return at once. The operations of one transfer run in the order in which they were enqueued,
/// whatever their streams; different transfers are independent. On the device a wait is for a word of this device's own
/// memory, which one peer writes; words count upwards, so a round that is missed cannot be taken for another.
///
/// *What waits may hold up others.* Streams of a device that share a queue of the hardware hold up each other: where there
/// are many, `CUDA_DEVICE_MAX_CONNECTIONS=32` gives them more. And all copies from peers go through one queue, in the order
/// of their calls, whatever their streams and priorities (measured on H200, driver 580; puts, and copies within a device, do
/// not): a `get` whose peer is not ready holds up every `get` that is called after it. So call them in an order in which
/// their peers can get ready; what may get ready in any order is better put. What is told while a copy of the same device
/// runs may be told only when that has ended (seen there): so call [`ready`](Self::ready) before `put` and `get`, and have a
/// second buffer where transfers follow each other. In a process of several ranks a call that begins a round may wait on
/// the host while plans that were dropped are closed, and for up to 50 ms before that.
///
/// *Graphs*: what a stream captures uses words of its own, a toggle for each end, which the peer sets and this rank resets:
/// a graph's values are those of its capture, and would count only once. Each end resets its toggle before it lets the other
/// go on, so it is down whenever the other may set it again, however often the graphs run; both ends capture, and in one
/// graph a transfer's `ready` and `wait` take turns, the last of which is `wait`. The deadline of a graph is bounded by
/// [`launch`](Self::launch), or by [`watch`](Self::watch) after each launch.
///
/// *Deadlines* count from the call, with what the stream has to do before. Who is late makes the plan fail: its waits are let go, so that streams and context
/// live, and [`check`](Self::check), to be asked before what was transferred is used, says who it was. So it does on the
/// other ends. A failed plan does nothing any more; the next exchange of its name gives one that works.
#[derive(Clone)]
pub struct Plan {
    inner: Arc<Inner>,
}

struct Inner {
    core: Arc<Core>,
    owner: Arc<Owner>,
}

impl Drop for Inner {
    /// Leaves the rest to the exchange's threads: what is under way ends, then the peers are told.
    fn drop(&mut self) {
        self.owner.shared.closer.close(self.core.clone());
    }
}

/// One operation on a stream.
enum Step {
    Wait,
    Reset,
    Copy,
    Signal,
}

impl Plan {
    pub(super) fn new(owner: Arc<Owner>, core: Arc<Core>) -> Self {
        Self { inner: Arc::new(Inner { core, owner }) }
    }

    /// What it is called.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.inner.core.plan
    }

    /// How often the plan of this name had been exchanged.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.inner.core.generation
    }

    /// How many transfers it has.
    #[must_use]
    pub fn transfers(&self) -> usize {
        self.inner.core.wires.len()
    }

    /// Lets the peer of transfer `at` copy: into this buffer for a put, from it for a get.
    ///
    /// # Safety
    /// From here until [`wait`](Self::wait) has been passed nobody else writes the buffer, and for a put nobody reads it.
    /// If the plan fails instead, that holds until all ends have dropped it. A graph that captures this is not launched
    /// once the plan is gone.
    ///
    /// # Errors
    /// [`TransferError`]: `WrongPart` on the end that copies, `OutOfTurn` before the former round was waited for,
    /// `StalePlan`, `Fault`, and what the driver says.
    pub unsafe fn ready(&self, at: usize, stream: &Stream) -> Result<(), TransferError> {
        const PASSIVE: &[Part] = &[Part::PutFrom, Part::GetBy];
        self.enqueue(at, stream, ("ready", PASSIVE), &[Step::Signal], None)
    }

    /// Copies this rank's buffer of transfer `at` to the peer, once that is [ready](Self::ready).
    ///
    /// # Safety
    /// Nobody writes this rank's buffer until the stream has passed the copy. A graph that captures this is not launched
    /// once the plan is gone.
    ///
    /// # Errors
    /// As [`ready`](Self::ready).
    pub unsafe fn put(&self, at: usize, stream: &Stream, deadline: Duration) -> Result<(), TransferError> {
        let steps = &[Step::Wait, Step::Reset, Step::Copy, Step::Signal];
        let awaited = Some((Awaited::Ready, deadline));
        self.enqueue(at, stream, ("put", &[Part::PutTo]), steps, awaited)
    }

    /// Copies the peer's buffer of transfer `at` to this rank, once that is [ready](Self::ready).
    ///
    /// # Safety
    /// Nobody uses this rank's buffer until the stream has passed the copy. A graph that captures this is not launched
    /// once the plan is gone.
    ///
    /// # Errors
    /// As [`ready`](Self::ready).
    pub unsafe fn get(&self, at: usize, stream: &Stream, deadline: Duration) -> Result<(), TransferError> {
        let steps = &[Step::Wait, Step::Reset, Step::Copy, Step::Signal];
        let awaited = Some((Awaited::Ready, deadline));
        self.enqueue(at, stream, ("get", &[Part::GetFrom]), steps, awaited)
    }

    /// Waits, on the stream, until the peer has copied what [`ready`](Self::ready) let it. Then the buffer is this rank's
    /// again.
    ///
    /// # Safety
    /// A graph that captures this is not launched once the plan is gone.
    ///
    /// # Errors
    /// As [`ready`](Self::ready); `OutOfTurn` if that was not called before.
    pub unsafe fn wait(&self, at: usize, stream: &Stream, deadline: Duration) -> Result<(), TransferError> {
        const PASSIVE: &[Part] = &[Part::PutFrom, Part::GetBy];
        let awaited = Some((Awaited::Done, deadline));
        self.enqueue(at, stream, ("wait", PASSIVE), &[Step::Wait, Step::Reset], awaited)
    }

    /// Bounds what was enqueued on `stream` so far, which is to be called after each launch of a graph that captures
    /// transfers of this plan: if it has not ended by the deadline, the plan fails.
    ///
    /// # Errors
    /// [`TransferError::Fault`], where it comes to its end undone; [`TransferError::Driver`].
    pub fn watch(&self, stream: &Stream, deadline: Duration) -> Result<(), TransferError> {
        let _gate = quiet::enqueueing();
        // What was launched has to end, also where the plan has failed since.
        self.bound(stream, deadline)?;
        Ok(self.inner.core.fault()?)
    }

    /// Launches a graph that captures transfers of this plan, and bounds it: if it has not ended by the deadline, the plan
    /// fails. In a process of several ranks this and not [`watch`](Self::watch): between a launch and that call a thread of
    /// an exchange could close memory, which waits for the launch in the driver, and other ranks' threads with it.
    ///
    /// # Errors
    /// As [`watch`](Self::watch).
    pub fn launch(
        &self,
        graph: &GraphExec,
        stream: &Stream,
        deadline: Duration,
    ) -> Result<(), TransferError> {
        let core = &self.inner.core;
        let is_behind = || core.launches.reach(core.launched.load(Ordering::Acquire).wrapping_add(1));
        let _gate = quiet::beginning(is_behind);
        core.fault()?;
        stream.launch(graph)?;
        core.launches.begun(core.launched.fetch_add(1, Ordering::AcqRel).wrapping_add(1));
        self.bound(stream, deadline)
    }

    fn bound(&self, stream: &Stream, deadline: Duration) -> Result<(), TransferError> {
        let Inner { core, owner } = &*self.inner;
        let watch = &owner.shared.watch;
        let recorded =
            watch.event(&owner.shared.context).and_then(|done| stream.record(&done).map(|()| done));
        let done = recorded.inspect_err(|error| {
            // What was launched cannot be taken back.
            core.fail(Fault::Broken { transfer: 0, cause: error.to_string() });
            watch.failed(core);
        })?;
        self.watched(stream, done, Some((0, Awaited::Graph)), Some(deadline), None);
        Ok(())
    }

    /// Asked when the streams have been waited for: whether what was transferred counts. It copies a few bytes from the
    /// device.
    ///
    /// # Errors
    /// [`TransferError::Fault`], with the first that went wrong; [`TransferError::Driver`].
    pub fn check(&self) -> Result<(), TransferError> {
        let Inner { core, owner } = &*self.inner;
        core.fault()?;
        if let Some(peer) = owner.shared.abandoned(core)? {
            core.fail(Fault::Abandoned { peer });
            owner.shared.watch.failed(core);
        }
        Ok(core.fault()?)
    }

    /// Gives the plan up: everything that waits for it is let go, here and on the other ends once they look.
    pub fn abort(&self) {
        self.inner.core.fail(Fault::Aborted);
        self.inner.owner.shared.watch.failed(&self.inner.core);
    }

    fn enqueue(
        &self,
        at: usize,
        stream: &Stream,
        (asked, expected): (&'static str, &'static [Part]),
        steps: &[Step],
        wait: Option<(Awaited, Duration)>,
    ) -> Result<(), TransferError> {
        let (core, shared) = (&self.inner.core, &self.inner.owner.shared);
        let transfers = core.wires.len();
        let wire = core.wires.get(at).ok_or(TransferError::NoSuchTransfer { at, transfers })?;
        if !expected.contains(&wire.part) {
            return Err(TransferError::WrongPart { at, asked, expected, found: wire.part });
        }
        core.current.admit(core.generation).map_err(|expected| {
            let (plan, found) = (core.plan.clone(), core.generation);
            TransferError::StalePlan { plan, expected, found }
        })?;
        core.fault()?;
        same_device(shared, stream)?;
        if stream.capture_status()? != CaptureStatus::None {
            core.captured.store(true, Ordering::Release);
            graph_memory::note(stream, [(wire.memory.ptr(), wire.memory.bytes() as u64)])?;
            return steps.iter().try_for_each(|step| Ok(captured(step, wire, stream)?));
        }
        let begins = !matches!(asked, "wait");
        let turn = || wire.turn.lock().unwrap_or_else(PoisonError::into_inner);
        // What completes a round that either end has begun goes on.
        let _gate = quiet::beginning(|| !begins || wire.rounds.reach(turn().round.wrapping_add(1)));
        // Until its end is recorded: two threads must not come between each other's steps.
        let mut turn = turn();
        if !wire.part.copies() && turn.offered == begins {
            let expected = if begins { "wait" } else { "ready" };
            return Err(TransferError::OutOfTurn { at, asked, expected });
        }
        let round = if begins { turn.round.wrapping_add(1) } else { turn.round };
        let done = shared.watch.event(&shared.context)?;
        if let Some((last, event)) = &turn.last
            && !last.is_same(stream)
        {
            stream.wait(event)?;
        }
        if wait.is_some() {
            wire.awaited.store(round, Ordering::Release);
        }
        let mut begun = false;
        let mut run = || {
            for step in steps.iter().filter(|step| !matches!(step, Step::Reset)) {
                eager(step, wire, stream, round)?;
                begun = true;
            }
            stream.record(&done)
        };
        if let Err(error) = run() {
            if begun {
                // What was enqueued cannot be taken back; nothing that comes behind it counts.
                core.fail(Fault::Broken { transfer: at, cause: error.to_string() });
                if stream.record(&done).is_ok() {
                    self.watched(stream, done, None, None, None);
                }
                shared.watch.failed(core);
            }
            return Err(error.into());
        }
        (turn.round, turn.offered) = (round, !wire.part.copies() && begins);
        wire.rounds.begun(round);
        let former = turn.last.replace((stream.clone(), done.clone())).map(|(_, event)| event);
        drop(turn);
        let (awaited, deadline) = wait.unzip();
        self.watched(stream, done, awaited.map(|awaited| (at, awaited)), deadline, former);
        Ok(())
    }

    fn watched(
        &self,
        stream: &Stream,
        done: Arc<Event>,
        wait: Option<(usize, Awaited)>,
        deadline: Option<Duration>,
        former: Option<Arc<Event>>,
    ) {
        let (core, stream) = (self.inner.core.clone(), stream.clone());
        let since = Instant::now();
        let watched = Watched { core, wait, stream, done, since, deadline, unanswered: 0 };
        self.inner.owner.shared.watch.begin(watched, former);
    }
}

impl fmt::Debug for Plan {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, generation, transfers) = (self.name(), self.generation(), self.transfers());
        write!(out, "Plan({name:?} of generation {generation}, {transfers} transfers)")
    }
}

fn same_device(shared: &Shared, stream: &Stream) -> Result<(), cuda_driver::Error> {
    let (found, wanted) = (stream.context().device().ordinal(), shared.context.device().ordinal());
    if stream.context() == &shared.context {
        return Ok(());
    }
    let (what, user) = ("the stream", "the exchange");
    Err(cuda_driver::Error::DifferentDevices { what, found, user, wanted })
}

/// One step of a round, by counts.
fn eager(step: &Step, wire: &Wire, stream: &Stream, round: u32) -> Result<(), cuda_driver::Error> {
    let (own, theirs) = (wire.own.count, wire.theirs.count);
    // SAFETY: the words lie in the slabs, which stay mapped until nothing is under way; for the buffers see `copy`.
    unsafe {
        match step {
            Step::Wait => stream.wait_value32(own, WaitCondition::GreaterOrEqual, round),
            Step::Signal => stream.write_value32(theirs, round),
            Step::Reset => Ok(()),
            Step::Copy => copy(wire, stream),
        }
    }
}

/// One step of a round of a graph, by toggles.
fn captured(step: &Step, wire: &Wire, stream: &Stream) -> Result<(), cuda_driver::Error> {
    let (own, theirs) = (wire.own.toggle, wire.theirs.toggle);
    // SAFETY: as in `eager`; the plan outlives every launch, as whoever captures has promised.
    unsafe {
        match step {
            Step::Wait => stream.wait_value32(own, WaitCondition::Equal, 1),
            Step::Signal => stream.write_value32(theirs, 1),
            Step::Reset => stream.write_value32(own, 0),
            Step::Copy => copy(wire, stream),
        }
    }
}

/// # Safety
/// Nobody uses the buffers in conflict until the stream has passed the copy. They stay until then: the plan, which is
/// watched, holds this rank's and the mapping of the peer's.
unsafe fn copy(wire: &Wire, stream: &Stream) -> Result<(), cuda_driver::Error> {
    let (own, bytes) = (wire.memory.ptr(), wire.memory.bytes());
    let Some(remote) = wire.remote else { return Ok(()) };
    let (to, from) = if wire.part == Part::PutTo { (remote, own) } else { (own, remote) };
    // SAFETY: the two ends have agreed on the length, which lies in either allocation; the rest is the caller's.
    unsafe { stream.copy(to, from, bytes) }
}
