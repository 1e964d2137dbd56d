//! The inside of a world: all state that outlives one call.

use std::any::{Any, TypeId};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

pub(crate) use super::builder::Mode;
use super::{Builder, Leak, Report, WorldError, WorldState};
use crate::device::{Contexts, Device};
use crate::fault::Faults;
use crate::kernel::Kernels;
use crate::memory::Memory;
use crate::sched::{Free, Scheduler, Seeded, forget_locals};
use crate::stream::Streams;
use crate::{driver, nccl};

/// Time that a world waits at its end for remaining objects to be released.
const PATIENCE: Duration = Duration::from_secs(2);

/// The world's shared state; reached through [`machine()`].
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) id: u64,
    /// The thread that started the world.
    owner: ThreadId,
    pub(crate) mode: Mode,
    /// True if fabric handles are supported.
    pub(crate) fabric: bool,
    pub(crate) nccl_release: i32,
    pub(crate) sched: Scheduler,
    pub(crate) faults: Faults,
    pub(crate) devices: Vec<Device>,
    pub(crate) contexts: Contexts,
    pub(crate) memory: Memory,
    pub(crate) streams: Streams,
    pub(crate) kernels: Kernels,
    parts: Mutex<HashMap<TypeId, Arc<dyn PartOf>>>,
    notes: Mutex<Notes>,
    initialised: AtomicBool,
    ended: AtomicBool,
    /// True after the last task has ended.
    is_gone: AtomicBool,
}

#[derive(Debug, Default)]
struct Notes {
    notes: Vec<String>,
    misuse: Vec<String>,
}

/// A [`WorldState`] that can be found by its type.
trait PartOf: WorldState + std::fmt::Debug {
    fn any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync>;
}

impl<T: WorldState + std::fmt::Debug> PartOf for T {
    fn any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync> {
        self
    }
}

thread_local! {
    /// The world that only this thread sees, if there is one.
    static PRIVATE: RefCell<Option<Arc<Machine>>> = const { RefCell::new(None) };
}

/// The world that all threads see, if there is one.
static CURRENT: RwLock<Option<Arc<Machine>>> = RwLock::new(None);
static WORLDS: AtomicU64 = AtomicU64::new(1);

/// The world that this thread sees, if one is alive.
pub(crate) fn machine() -> Option<Arc<Machine>> {
    // Destructors of other thread-local variables may call this after the end of `PRIVATE`.
    let private = PRIVATE.try_with(|private| private.borrow().clone()).ok().flatten();
    // Another thread may have ended the world.
    let private = private.filter(|private| !private.is_gone.load(SeqCst));
    private.or_else(|| CURRENT.read().unwrap_or_else(PoisonError::into_inner).clone())
}

/// Makes a world, and lets this thread or all threads see it. A thread runs the tasks of at most one seeded world.
pub(super) fn install(
    is_private: bool,
    is_seeded: bool,
    make: impl FnOnce(u64) -> Result<Arc<Machine>, WorldError>,
) -> Result<Arc<Machine>, WorldError> {
    // True also if another thread has ended the world: its tasks are still on this thread.
    let runs_private = PRIVATE.with_borrow(Option::is_some);
    if runs_private && is_seeded {
        return Err(WorldError::AlreadyAlive);
    }
    if is_private {
        let current = CURRENT.read().unwrap_or_else(PoisonError::into_inner).clone();
        let runs_here =
            |it: &Machine| matches!(it.sched, Scheduler::Seeded(_)) && it.owner == thread::current().id();
        if current.is_some_and(|current| runs_here(&current)) {
            return Err(WorldError::AlreadyAlive);
        }
        let machine = make(WORLDS.fetch_add(1, SeqCst))?;
        PRIVATE.set(Some(machine.clone()));
        return Ok(machine);
    }
    let mut current = CURRENT.write().unwrap_or_else(PoisonError::into_inner);
    if current.is_some() {
        return Err(WorldError::AlreadyAlive);
    }
    let machine = make(WORLDS.fetch_add(1, SeqCst))?;
    *current = Some(machine.clone());
    Ok(machine)
}

/// The symbols of both ABIs in a world with this NCCL release.
fn functions(nccl_release: i32) -> BTreeSet<&'static str> {
    let (cuda, nccl) = (driver::table(), nccl::table(nccl_release));
    let cuda = cuda_driver_sys::FUNCTIONS.iter().filter(|known| cuda.address(known.name).is_some());
    let nccl = nccl_sys::FUNCTIONS.iter().filter(|known| nccl.address(known.name).is_some());
    cuda.map(|known| known.name).chain(nccl.map(|known| known.name)).collect()
}

impl Machine {
    pub(super) fn new(id: u64, settings: &Builder) -> Result<Self, WorldError> {
        let sched = match settings.seed {
            Some(seed) => Scheduler::Seeded(Seeded::new(id, seed)),
            None => Scheduler::Free(Free::new()),
        };
        let nccl_release = settings.nccl_release;
        let device = |ordinal| Device::new(ordinal, settings.capacity, !settings.is_private);
        Ok(Self {
            id,
            owner: thread::current().id(),
            mode: settings.mode,
            fabric: settings.fabric,
            nccl_release,
            sched,
            faults: Faults::new(Box::new(move || functions(nccl_release))),
            devices: (0..settings.devices).map(device).collect(),
            contexts: Contexts::default(),
            memory: Memory::new(settings.seed, settings.reuses_addresses, settings.is_private)?,
            streams: Streams::default(),
            kernels: Kernels::default(),
            parts: Mutex::default(),
            notes: Mutex::default(),
            initialised: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            is_gone: AtomicBool::new(false),
        })
    }

    /// Returns the world's `T`, created on first use.
    pub(crate) fn part<T: WorldState + std::fmt::Debug + Default>(&self) -> Arc<T> {
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        let part = parts.entry(TypeId::of::<T>()).or_insert_with(|| Arc::new(T::default())).clone();
        part.any().downcast().unwrap_or_else(|_| unreachable!("parts are kept by their own type"))
    }

    /// Marks the driver as initialised (`cuInit`).
    pub(crate) fn initialise(&self) {
        self.initialised.store(true, SeqCst);
    }

    pub(crate) fn is_initialised(&self) -> bool {
        self.initialised.load(SeqCst)
    }

    fn noted(&self) -> MutexGuard<'_, Notes> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores an explanation for [`crate::World::notes`].
    pub(crate) fn note(&self, text: impl Into<String>) {
        self.noted().notes.push(text.into());
    }

    /// Records a misuse that hardware ignores; an error at the end of a strict world.
    pub(crate) fn misuse(&self, text: impl Into<String>) {
        self.noted().misuse.push(text.into());
    }

    pub(crate) fn notes(&self) -> Vec<String> {
        let noted = self.noted();
        noted.misuse.iter().chain(&noted.notes).cloned().collect()
    }

    fn parts(&self) -> Vec<Arc<dyn PartOf>> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// Returns the objects that were created and not destroyed so far. Memory comes first and contexts last: a program
    /// that forgets a buffer keeps the context too.
    fn leaks(&self) -> Vec<Leak> {
        let mut leaks = self.memory.leaks();
        leaks.extend(self.parts().iter().flat_map(|p| p.leaks()));
        leaks.extend(self.streams.leaks());
        leaks.extend(self.kernels.leaks());
        leaks.extend(self.contexts.leaks());
        leaks
    }

    /// Gives threads that the program does not wait for the time to release their last references. A seeded world has
    /// no such threads.
    pub(super) fn settle(&self) {
        let late = Instant::now() + PATIENCE;
        let is_free = matches!(self.sched, Scheduler::Free(_));
        while is_free && Instant::now() < late && !self.leaks().is_empty() {
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Ends the world: counts the remaining objects, ends every wait, joins every thread.
    pub(super) fn end(self: &Arc<Self>) -> Report {
        if self.ended.swap(true, SeqCst) {
            return Report::default();
        }
        let leaks = self.leaks();
        if self.mode == Mode::Strict {
            for note in self.contexts.unreturned_faults() {
                self.misuse(format!("no call has returned this fault: {note}"));
            }
        }
        for part in self.parts() {
            part.stop();
        }
        self.sched.stop(self);
        self.is_gone.store(true, SeqCst);
        let is_this = |other: &mut Arc<Machine>| Arc::ptr_eq(other, self);
        if PRIVATE.with_borrow_mut(|private| private.take_if(is_this)).is_none() {
            CURRENT.write().unwrap_or_else(PoisonError::into_inner).take_if(is_this);
        }
        forget_locals(self.id, None);
        let noted = std::mem::take(&mut *self.noted());
        let calls: BTreeMap<String, u64> = self.faults.all_calls();
        Report { leaks, misuse: noted.misuse, notes: noted.notes, calls }
    }
}
