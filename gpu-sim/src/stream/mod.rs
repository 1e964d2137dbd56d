//! Streams: ordered queues of work that executors run asynchronously to the host; events; capture and graphs.
//!
//! * `work`: work items ([`Work`]) and their execution environment ([`Exec`]).
//! * `queue`: one stream: its queue, its executor, waiting for it.
//! * `event`: marks in streams.
//! * `capture`: streams that record instead of running.
//! * `graph`: recorded work, and its execution.
//!
//! Invariants:
//! * Work of a stream runs in order, one at a time.
//! * [`Work::launch`] is called in the host's launch order, by the thread that launches.
//! * A stream holds a bounded number of operations that have not run. A thread that enqueues one more waits for room,
//!   before it checks whether the stream captures.
//! * On a poisoned context nothing runs any more, but queues still drain and events still complete, so every wait
//!   ends.
//! * The legacy default stream waits for the blocking streams of its context, and they wait for it.

pub(crate) mod capture;
pub(crate) mod event;
pub(crate) mod graph;
mod queue;
mod work;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cuda_driver_sys::{CUresult, CUstream};

use crate::abi::{DriverError, DriverResult};
use crate::device::Context;
use crate::sched::{WaitError, with_local};
use crate::world::{Leak, Machine};

use capture::Session;
use event::Event;
use graph::{Graph, GraphExec, UserObject};
pub(crate) use queue::{Op, Stream, StreamKind};
pub(crate) use work::Repeat;
pub use work::{Exec, Launched, Work};

/// The handles of the default streams (`CU_STREAM_LEGACY`, `CU_STREAM_PER_THREAD`); 0 is the legacy one too.
const LEGACY: u64 = 1;
const PER_THREAD: u64 = 2;

/// Every stream, event and graph of the world, by handle. Handles are never reused.
#[derive(Debug)]
pub(crate) struct Streams {
    next: AtomicU64,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    streams: BTreeMap<u64, Arc<Stream>>,
    events: BTreeMap<u64, Arc<Event>>,
    graphs: BTreeMap<u64, Arc<Graph>>,
    execs: BTreeMap<u64, Arc<GraphExec>>,
    /// User objects, with the program's own number of references.
    objects: BTreeMap<u64, (Arc<UserObject>, u32)>,
    /// The legacy stream of each context.
    legacy: BTreeMap<u64, Arc<Stream>>,
    sessions: Vec<Arc<Session>>,
    /// Destroyed streams whose work is not done yet.
    retiring: Vec<Arc<Stream>>,
}

impl Table {
    /// All streams that a synchronisation of a context or a device waits for.
    fn all(&self) -> impl Iterator<Item = &Arc<Stream>> {
        self.streams.values().chain(self.legacy.values()).chain(&self.retiring)
    }
}

impl Drop for Table {
    /// Breaks the reference cycle between an unfinished capture and its streams.
    fn drop(&mut self) {
        self.sessions.iter().for_each(|session| session.let_go());
    }
}

impl Default for Streams {
    fn default() -> Self {
        Self { next: AtomicU64::new(0x5_0001), table: Mutex::default() }
    }
}

/// The calling rank's own default stream in each context.
#[derive(Debug, Default)]
struct PerThread(BTreeMap<u64, Arc<Stream>>);

impl Machine {
    /// Returns the stream of a handle. Its context must not be poisoned.
    pub(crate) fn stream(&self, handle: CUstream) -> DriverResult<Arc<Stream>> {
        let stream = self.stream_even_poisoned(handle)?;
        stream.context.check()?;
        Ok(stream)
    }

    pub(crate) fn stream_even_poisoned(&self, handle: CUstream) -> DriverResult<Arc<Stream>> {
        match handle as u64 {
            0 | LEGACY => Ok(self.streams.legacy(&self.current_even_poisoned()?)),
            PER_THREAD => {
                let context = self.current_even_poisoned()?;
                let own = with_local(self.id, |own: &mut PerThread| own.0.get(&context.id).cloned());
                Ok(own.unwrap_or_else(|| {
                    let stream = self.streams.create(&context, StreamKind::PerThread, 0);
                    with_local(self.id, |own: &mut PerThread| own.0.insert(context.id, stream.clone()));
                    stream
                }))
            }
            id => {
                self.streams.table().streams.get(&id).filter(|s| s.flavour.is_created()).cloned().ok_or_else(
                    || {
                        DriverError::new(
                            CUresult::CUDA_ERROR_INVALID_HANDLE,
                            format!("{id:#x} is no live stream"),
                        )
                    },
                )
            }
        }
    }
}

impl Streams {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn number(&self) -> u64 {
        self.next.fetch_add(1, SeqCst)
    }

    pub(crate) fn create(&self, context: &Arc<Context>, flavour: StreamKind, priority: i32) -> Arc<Stream> {
        let stream = Stream::new(self.number(), context.clone(), flavour, priority);
        self.table().streams.insert(stream.id, stream.clone());
        stream
    }

    /// Returns the legacy default stream of a context, creating it on first use.
    pub(crate) fn legacy(&self, context: &Arc<Context>) -> Arc<Stream> {
        let mut table = self.table();
        let make = || Stream::new(self.number(), context.clone(), StreamKind::Legacy, 0);
        table.legacy.entry(context.id).or_insert_with(make).clone()
    }

    /// Returns the legacy stream of a context, if it was ever used.
    pub(crate) fn legacy_in_use(&self, context: u64) -> Option<Arc<Stream>> {
        self.table().legacy.get(&context).cloned()
    }

    pub(crate) fn destroy(&self, id: u64) -> DriverResult<Arc<Stream>> {
        let mut table = self.table();
        let stream = table.streams.remove(&id).ok_or_else(|| {
            DriverError::new(CUresult::CUDA_ERROR_INVALID_HANDLE, format!("{id:#x} is no live stream"))
        })?;
        table.retiring.retain(|s| !s.is_idle());
        table.retiring.push(stream.clone());
        Ok(stream)
    }

    /// Returns all streams of a context, the default ones included.
    pub(crate) fn of_context(&self, context: u64) -> Vec<Arc<Stream>> {
        self.table().all().filter(|s| s.context.id == context).cloned().collect()
    }

    /// Waits until all work that was enqueued on a context before is done.
    pub(crate) fn synchronize_context(&self, context: &Context) -> Result<(), WaitError> {
        self.of_context(context.id).iter().try_for_each(|stream| stream.wait_all())
    }

    /// Waits until all work that was enqueued on a device before is done.
    pub(crate) fn synchronize_device(&self, device: usize) -> DriverResult {
        let streams: Vec<Arc<Stream>> =
            self.table().all().filter(|s| s.context.device == device).cloned().collect();
        for stream in streams {
            stream.wait_all()?;
        }
        Ok(())
    }

    /// Removes the objects of a context; its work is done or will never run.
    pub(crate) fn remove_context(&self, context: u64) {
        let mut table = self.table();
        table.streams.retain(|_, s| s.context.id != context);
        table.legacy.remove(&context);
        table.retiring.retain(|s| s.context.id != context);
        table.events.retain(|_, e| e.context != context);
    }

    pub(crate) fn leaks(&self) -> Vec<Leak> {
        let table = self.table();
        let streams = table.streams.values().filter(|s| s.flavour.is_created());
        let streams = streams.map(|s| Leak { kind: "stream", what: s.name.to_string() });
        let events = table.events.keys().map(|id| Leak { kind: "event", what: format!("{id:#x}") });
        let graphs = table.graphs.keys().map(|id| Leak { kind: "graph", what: format!("{id:#x}") });
        let execs = table.execs.keys().map(|id| Leak { kind: "executable graph", what: format!("{id:#x}") });
        let objects = table.objects.keys().map(|id| Leak { kind: "user object", what: format!("{id:#x}") });
        streams.chain(events).chain(graphs).chain(execs).chain(objects).collect()
    }
}
