//! One rank's end of a communicator.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use nccl_sys::ncclResult_t;

use super::bootstrap::Joining;
use super::collective::Factor;
use super::config::Config;
use super::error::{Failure, Interrupted, Result, set_last};
use super::p2p::Counters;
use super::reduce::Element;
use super::register::Registrations;
use super::shm::{Layout, Plane, Shared};
use super::ticket::Queue;
use super::window::Windows;
use crate::memory::Physical;
use crate::sched::{self, Signal};

/// One rank's end of a communicator; what an `ncclComm_t` names.
///
/// Callers on the host's side hold an `Arc` while they are inside, so a handle that is destroyed under them is an
/// error here and not a use after free.
#[derive(Debug)]
pub(crate) struct Comm {
    pub(crate) handle: usize,
    pub(crate) rank: usize,
    pub(crate) size: usize,
    /// Ordinal of the rank's device.
    pub(crate) device: usize,
    /// The release that it behaves as.
    pub(crate) release: u32,
    /// Whether differences between ranks are errors.
    pub(crate) strict: bool,
    pub(crate) config: Config,
    pub(crate) queue: Queue,
    pub(crate) counters: Mutex<Counters>,
    pub(crate) registrations: Mutex<Registrations>,
    pub(crate) windows: Mutex<Windows>,
    /// Device memory of its own.
    pub(crate) scratch: Mutex<Option<Scratch>>,
    /// The reductions that the program made: their element and factor, by number.
    pub(crate) reductions: Mutex<BTreeMap<u32, (Element, Factor)>>,
    /// Set once the ranks have met.
    topology: OnceLock<Topology>,
    shared: OnceLock<Arc<Shared>>,
    joining: Mutex<Option<Arc<Joining>>>,
    /// Waited at before there is shared memory.
    early: Signal,
    aborted: AtomicBool,
    revoked: AtomicBool,
    finalized: AtomicBool,
    async_error: AtomicU32,
    /// Communicators made from this one, to get their init out too.
    children: Mutex<Vec<Weak<Comm>>>,
    /// The child whose abort flag real NCCL raises together with this one's, by handle: of the last, until it is made.
    /// 0 for none.
    linked: AtomicUsize,
    /// Calls of the host that are inside the communicator.
    pub(crate) calls: AtomicUsize,
    /// Work that is recorded in live graphs.
    pub(crate) graphs: AtomicUsize,
    /// Whether a one-sided operation was called.
    pub(crate) one_sided: AtomicBool,
    /// Collectives that were begun.
    pub(crate) collectives: AtomicU64,
    /// How often the communicator was shrunk, by the ranks that were excluded.
    pub(crate) shrinks: Mutex<BTreeMap<Vec<usize>, u64>>,
}

/// What the ranks told each other when they met.
#[derive(Clone, Debug)]
pub(crate) struct Topology {
    /// Whether windows can be had.
    pub(crate) symmetric: bool,
    /// Bytes of symmetric address space.
    pub(crate) stride: u64,
}

/// Device memory that a communicator takes for itself: what it always needs, and buffers for its peers.
#[derive(Clone, Debug)]
pub(crate) struct Scratch {
    pub(crate) persistent: Arc<Physical>,
    pub(crate) buffers: Arc<Physical>,
}

/// What a communicator is made of.
#[derive(Clone, Debug)]
pub(crate) struct Parts {
    pub(crate) handle: usize,
    pub(crate) rank: usize,
    pub(crate) size: usize,
    pub(crate) device: usize,
    pub(crate) release: u32,
    pub(crate) strict: bool,
    pub(crate) config: Config,
}

impl Comm {
    pub(crate) fn new(parts: Parts) -> Arc<Self> {
        let Parts { handle, rank, size, device, release, strict, config } = parts;
        Arc::new(Self {
            handle,
            rank,
            size,
            device,
            release,
            strict,
            config,
            queue: Queue::default(),
            counters: Mutex::new(Counters::new(size)),
            registrations: Mutex::default(),
            windows: Mutex::default(),
            scratch: Mutex::default(),
            reductions: Mutex::default(),
            topology: OnceLock::new(),
            shared: OnceLock::new(),
            joining: Mutex::default(),
            early: Signal::new(),
            aborted: AtomicBool::new(false),
            revoked: AtomicBool::new(false),
            finalized: AtomicBool::new(false),
            async_error: AtomicU32::new(ncclResult_t::ncclSuccess.0),
            children: Mutex::default(),
            linked: AtomicUsize::new(0),
            calls: AtomicUsize::new(0),
            graphs: AtomicUsize::new(0),
            one_sided: AtomicBool::new(false),
            collectives: AtomicU64::new(0),
            shrinks: Mutex::default(),
        })
    }

    /// The memory that all ranks share. Nobody gets hold of a communicator that has none, but init.
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        self.shared.get().unwrap_or_else(|| unreachable!("a communicator is used before its ranks have met"))
    }

    pub(crate) fn set_shared(&self, shared: Arc<Shared>) {
        // Init runs once for a communicator.
        let _ = self.shared.set(shared);
    }

    pub(crate) fn topology(&self) -> &Topology {
        self.topology
            .get()
            .unwrap_or_else(|| unreachable!("a communicator is used before its ranks have met"))
    }

    pub(crate) fn set_topology(&self, topology: Topology) {
        // As for `set_shared`.
        let _ = self.topology.set(topology);
    }

    /// Whether init has ended well.
    pub(crate) fn is_ready(&self) -> bool {
        self.topology.get().is_some()
    }

    /// Where everything that blocks in this communicator waits.
    pub(crate) fn signal(&self) -> &Signal {
        self.shared.get().map_or(&self.early, |shared| shared.signal())
    }

    /// Waits for a condition, an abort or the end of the world; work of streams also for a revocation.
    pub(crate) fn wait(
        &self,
        plane: Plane,
        reason: impl FnOnce() -> String,
        mut condition: impl FnMut() -> bool,
    ) -> std::result::Result<(), Interrupted> {
        let mut met = false;
        let waited = sched::wait(self.signal(), reason, None, || {
            met = condition();
            met || self.interruption(plane).is_some()
        });
        match (waited, self.interruption(plane)) {
            (_, Some(interrupted)) => Err(interrupted),
            (Err(error), None) if !met => Err(Interrupted::World(error)),
            _ => Ok(()),
        }
    }

    /// What ends every wait of this rank, if something does.
    pub(crate) fn interruption(&self, plane: Plane) -> Option<Interrupted> {
        if self.aborted.load(Ordering::SeqCst) {
            Some(Interrupted::Aborted)
        } else if plane == Plane::Stream && self.revoked.load(Ordering::SeqCst) {
            Some(Interrupted::Revoked)
        } else if plane == Plane::Stream && self.strict {
            let casualty = self.shared.get()?.word(Layout::CASUALTY).load(Ordering::SeqCst);
            casualty.checked_sub(1).map(|rank| Interrupted::Faulted(rank as usize))
        } else {
            None
        }
    }

    /// Strict mode: tells the other ranks that our device died, so that they do not wait for us.
    pub(crate) fn report_fault(&self) {
        if self.strict {
            self.shared().word(Layout::CASUALTY).store(self.rank as u64 + 1, Ordering::SeqCst);
            self.signal().notify();
        }
    }

    /// This rank leaves for good.
    pub(crate) fn depart(&self) {
        if let Some(shared) = self.shared.get() {
            shared.word(shared.layout().departed(self.rank)).store(1, Ordering::SeqCst);
            shared.signal().notify();
        }
    }

    /// Whether a rank has left for good, where that is an error.
    pub(crate) fn has_departed(&self, rank: usize) -> bool {
        let shared = self.shared();
        self.strict && shared.word(shared.layout().departed(rank)).load(Ordering::SeqCst) != 0
    }

    /// As real NCCL's hang: nothing but an abort gets out.
    pub(crate) fn hang(&self, plane: Plane, why: &str) -> Interrupted {
        match self.wait(plane, || format!("an abort of {self}: {why}"), || false) {
            Err(interrupted) => interrupted,
            Ok(()) => unreachable!("nothing but an interruption ends this wait"),
        }
    }

    /// The connection on which init waits, so that an abort can end the wait.
    pub(crate) fn set_joining(&self, joining: Option<Arc<Joining>>) {
        *self.joining.lock().unwrap_or_else(PoisonError::into_inner) = joining;
        if self.aborted.load(Ordering::SeqCst) {
            self.cancel_joining();
        }
    }

    fn cancel_joining(&self) {
        if let Some(joining) = &*self.joining.lock().unwrap_or_else(PoisonError::into_inner) {
            joining.cancel();
        }
    }

    /// Gets every blocked call and all work of this rank out, from any thread.
    pub(crate) fn abort(&self) {
        self.aborted.store(true, Ordering::SeqCst);
        self.cancel_joining();
        self.early.notify();
        self.signal().notify();
        let children = self.children.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for child in children.iter().filter_map(Weak::upgrade).filter(|child| !child.is_ready()) {
            child.abort();
        }
    }

    /// Makes an abort of this communicator reach the init of a child.
    pub(crate) fn adopt(&self, child: &Arc<Comm>) {
        let mut children = self.children.lock().unwrap_or_else(PoisonError::into_inner);
        children.retain(|child| child.strong_count() > 0);
        children.push(Arc::downgrade(child));
        drop(children);
        self.linked.store(child.handle, Ordering::SeqCst);
        if self.is_aborted() {
            child.abort();
        }
    }

    /// The child is made: what becomes of it is no longer this communicator's.
    pub(crate) fn let_live(&self) {
        self.linked.store(0, Ordering::SeqCst);
    }

    /// The child that is not made, or failed: its handle, 0 for none.
    pub(crate) fn linked(&self) -> usize {
        self.linked.load(Ordering::SeqCst)
    }

    pub(crate) fn is_aborted(&self) -> bool {
        self.aborted.load(Ordering::SeqCst)
    }

    /// Stops the work of this rank; the communicator can be split, shrunk and destroyed afterwards.
    pub(crate) fn revoke(&self) {
        self.revoked.store(true, Ordering::SeqCst);
        self.signal().notify();
    }

    pub(crate) fn is_revoked(&self) -> bool {
        self.revoked.load(Ordering::SeqCst)
    }

    /// No more work from now on.
    pub(crate) fn finalize(&self) {
        self.finalized.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_finalized(&self) -> bool {
        self.finalized.load(Ordering::SeqCst)
    }

    /// Refuses calls on a communicator that cannot serve any more.
    pub(crate) fn usable(&self) -> Result {
        if !self.is_ready() {
            return Err(Failure::argument(format!("{self} is not initialised yet")));
        }
        if let Some(interrupted) = self.interruption(Plane::Host) {
            return Err(interrupted.into());
        }
        if self.is_revoked() {
            return Err(Interrupted::Revoked.into());
        }
        if self.is_finalized() {
            return Err(Failure::usage(format!("{self} was finalized")));
        }
        Ok(())
    }

    /// Keeps the first asynchronous error.
    pub(crate) fn fail(&self, failure: &Failure) {
        set_last(&failure.text);
        let success = ncclResult_t::ncclSuccess.0;
        // A later error does not replace the first.
        let _ =
            self.async_error.compare_exchange(success, failure.code.0, Ordering::SeqCst, Ordering::SeqCst);
    }

    pub(crate) fn async_error(&self) -> ncclResult_t {
        ncclResult_t(self.async_error.load(Ordering::SeqCst))
    }

    /// The communicator's identity, equal on all ranks.
    pub(crate) fn id(&self) -> u64 {
        self.shared.get().map_or(0, |shared| shared.id())
    }
}

impl fmt::Display for Comm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "communicator {:08x} (rank {} of {})", self.id() as u32, self.rank, self.size)
    }
}
