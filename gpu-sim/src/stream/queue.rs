//! One stream: its queue and its executor.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cuda_driver_sys::{CUgraphNodeType, CUresult};

use super::capture::Capturing;
use super::{Exec, Launched, Work};
use crate::abi::{DriverError, DriverResult};
use crate::device::Context;
use crate::fault::Fault;
use crate::sched::{self, Signal, WaitError, panic_text};
use crate::world::Machine;

/// Kind of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StreamKind {
    /// Created by the program; ordered with the legacy stream.
    Blocking,
    /// Created by the program with `CU_STREAM_NON_BLOCKING`.
    NonBlocking,
    /// The legacy default stream of a context.
    Legacy,
    /// The default stream of a rank in a context; ordered with the legacy stream.
    PerThread,
}

impl StreamKind {
    /// True if it is ordered with the legacy stream.
    pub(crate) fn is_blocking(self) -> bool {
        matches!(self, Self::Blocking | Self::PerThread)
    }

    /// True if the program created it and must destroy it.
    pub(crate) fn is_created(self) -> bool {
        matches!(self, Self::Blocking | Self::NonBlocking)
    }
}

/// A stream. Its queue runs to its end even if all handles are dropped.
pub(crate) struct Stream {
    pub(crate) id: u64,
    pub(crate) name: Arc<str>,
    pub(crate) context: Arc<Context>,
    pub(crate) flavour: StreamKind,
    pub(crate) priority: i32,
    /// The capture that it records into.
    pub(super) capture: Mutex<Option<Capturing>>,
    queue: Mutex<Queue>,
    done: AtomicU64,
    signal: Signal,
}

#[derive(Default)]
struct Queue {
    ops: VecDeque<Op>,
    submitted: u64,
    /// True while an executor drains the queue.
    running: bool,
}

/// Operations that a stream holds before an enqueuing thread waits for room. This is the depth of a hardware queue of
/// an H200 (driver 580, measured); streams that share a queue are not modelled.
const DEPTH: u64 = 1022;

/// An operation in a queue.
pub(crate) struct Op {
    pub(crate) what: String,
    pub(crate) run: Launched,
    /// True if it runs on a poisoned context too, as event records do.
    pub(crate) always: bool,
    /// Dependencies: (stream, ticket of its last operation that must be done before).
    pub(crate) after: Vec<(Arc<Stream>, u64)>,
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stream")
            .field("name", &self.name)
            .field("flavour", &self.flavour)
            .finish_non_exhaustive()
    }
}

impl Stream {
    pub(super) fn new(id: u64, context: Arc<Context>, flavour: StreamKind, priority: i32) -> Arc<Self> {
        let kind = match flavour {
            StreamKind::Blocking | StreamKind::NonBlocking => "stream",
            StreamKind::Legacy => "legacy stream",
            StreamKind::PerThread => "per-thread stream",
        };
        Arc::new(Self {
            id,
            name: format!("{kind} {id:#x} of device {}", context.device).into(),
            context,
            flavour,
            priority,
            capture: Mutex::default(),
            queue: Mutex::default(),
            done: AtomicU64::new(0),
            signal: Signal::new(),
        })
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Launches `work`, or records it while the stream captures.
    pub(crate) fn enqueue(
        self: &Arc<Self>,
        machine: &Arc<Machine>,
        kind: CUgraphNodeType,
        work: Arc<dyn Work>,
    ) -> DriverResult {
        self.launch_or_record(machine, kind, work).map(drop)
    }

    /// Like [`Stream::enqueue`]. Returns true if the work was launched, false if it was recorded.
    pub(crate) fn launch_or_record(
        self: &Arc<Self>,
        machine: &Arc<Machine>,
        kind: CUgraphNodeType,
        work: Arc<dyn Work>,
    ) -> DriverResult<bool> {
        self.make_room();
        if self.record(machine, kind, &work)? {
            return Ok(false);
        }
        self.push_with(machine, |_| Op {
            what: work.describe(),
            run: work.launch(),
            always: false,
            after: Vec::new(),
        });
        Ok(true)
    }

    /// Blocks while the queue is full. Call it before any check that decides what to push, because the state may
    /// change during the wait. Concurrent threads may all find the last place free, and all take it.
    pub(crate) fn make_room(&self) {
        if self.capturing().is_some() {
            // Recorded work takes no place in the queue.
            return;
        }
        let has_room = || self.submitted() < self.done.load(SeqCst) + DEPTH;
        // An error ends the waits of the stream's work too, so it is ignored here.
        let _ = sched::wait(&self.signal, || format!("room in {}", self.name), None, has_room);
    }

    /// Appends an operation to the queue without waiting. Call [`Stream::make_room`] before.
    pub(crate) fn push(self: &Arc<Self>, machine: &Arc<Machine>, op: Op) {
        self.push_with(machine, |_| op);
    }

    /// Like [`Stream::push`]. `op` gets the operation's ticket (see [`Stream::wait_for`]) while the queue is locked,
    /// so launch order is queue order.
    pub(crate) fn push_with(self: &Arc<Self>, machine: &Arc<Machine>, op: impl FnOnce(u64) -> Op) {
        let barrier = self.ordered_after(machine);
        let start = {
            let mut queue = self.queue();
            let mut op = op(queue.submitted + 1);
            op.after.extend(barrier);
            queue.ops.push_back(op);
            queue.submitted += 1;
            !std::mem::replace(&mut queue.running, true)
        };
        if start {
            let (me, machine_) = (self.clone(), machine.clone());
            let pool = &machine.devices[self.context.device].pool;
            machine.sched.spawn(pool, self.name.clone(), Box::new(move || me.drain(machine_)));
        }
    }

    /// Dependencies of the next operation on this stream by the rules of the legacy default stream.
    fn ordered_after(&self, machine: &Machine) -> Vec<(Arc<Stream>, u64)> {
        let others = match self.flavour {
            StreamKind::NonBlocking => return Vec::new(),
            StreamKind::Blocking | StreamKind::PerThread => {
                Vec::from_iter(machine.streams.legacy_in_use(self.context.id))
            }
            StreamKind::Legacy => machine.streams.of_context(self.context.id),
        };
        let blocking =
            |s: &Stream| s.flavour.is_blocking() || (s.flavour == StreamKind::Legacy && s.id != self.id);
        others
            .into_iter()
            .filter(|s| blocking(s) && !s.is_idle())
            .map(|s| {
                let ticket = s.submitted();
                (s, ticket)
            })
            .collect()
    }

    /// Returns the ticket of the last operation.
    pub(crate) fn submitted(&self) -> u64 {
        self.queue().submitted
    }

    /// True if all work is done.
    pub(crate) fn is_idle(&self) -> bool {
        self.done.load(SeqCst) >= self.submitted()
    }

    /// Blocks until the operation of `ticket` is done.
    pub(crate) fn wait_for(&self, ticket: u64) -> Result<(), WaitError> {
        let reason = || format!("work {ticket} of {}", self.name);
        sched::wait(&self.signal, reason, None, || self.done.load(SeqCst) >= ticket)
    }

    /// Blocks until all work that is in the queue now is done.
    pub(crate) fn wait_all(&self) -> Result<(), WaitError> {
        self.wait_for(self.submitted())
    }

    /// The executor: runs the queued operations, in order, until none is left.
    fn drain(self: Arc<Self>, machine: Arc<Machine>) {
        let exec = Exec { machine, stream: self.clone() };
        loop {
            let op = {
                let mut queue = self.queue();
                let op = queue.ops.pop_front();
                queue.running = op.is_some();
                op
            };
            let Some(op) = op else { return };
            let what = op.what.clone();
            if let Err(fault) = self.run(&exec, op) {
                self.context.poison(&exec.machine, &fault, &format!("{what} on {}", self.name));
            }
            self.done.fetch_add(1, SeqCst);
            self.signal.notify();
        }
    }

    fn run(&self, exec: &Exec, op: Op) -> Result<(), Fault> {
        sched::point("an operation of the stream");
        for (stream, ticket) in &op.after {
            stream.wait_for(*ticket)?;
        }
        if !op.always && self.context.is_poisoned() {
            return Ok(());
        }
        catch_unwind(AssertUnwindSafe(|| (op.run)(exec)))
            .unwrap_or_else(|payload| Err(Fault::Panic(panic_text(&*payload))))
    }

    /// The handle that the program uses for it.
    pub(crate) fn handle(&self) -> cuda_driver_sys::CUstream {
        match self.flavour {
            StreamKind::Legacy => std::ptr::null_mut(),
            _ => self.id as *mut _,
        }
    }

    /// Fails while the stream captures: such a call needs a result now.
    pub(crate) fn refuse_while_capturing(&self, what: &str) -> DriverResult {
        let session = self.capturing().map(|c| c.session);
        let Some(session) = session else { return Ok(()) };
        session.invalidate(format!("{what} of {}, which captures", self.name));
        let why = format!("{what} of {} during its capture", self.name);
        Err(DriverError::new(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, why))
    }
}
