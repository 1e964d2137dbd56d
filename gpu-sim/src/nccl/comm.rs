//! One rank's end of a communicator.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use nccl_sys::ncclResult_t;

use super::bootstrap::{Joining, UniqueId};
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

/// One rank's end of a communicator; an `ncclComm_t` names it.
///
/// Host calls hold an `Arc` while they are inside, so a handle that is destroyed during a call is an error here and
/// not a use after free.
#[derive(Debug)]
pub(crate) struct Comm {
    pub(crate) handle: usize,
    pub(crate) rank: usize,
    pub(crate) size: usize,
    /// Ordinal of the rank's device.
    pub(crate) device: usize,
    /// The modelled release.
    pub(crate) release: u32,
    /// True if differences between ranks are errors.
    pub(crate) strict: bool,
    pub(crate) config: Config,
    pub(crate) queue: Queue,
    pub(crate) counters: Mutex<Counters>,
    pub(crate) registrations: Mutex<Registrations>,
    pub(crate) windows: Mutex<Windows>,
    /// Device memory that the communicator uses itself.
    pub(crate) scratch: Mutex<Option<Scratch>>,
    /// Reductions that the program created: their element and factor, by number.
    pub(crate) reductions: Mutex<BTreeMap<u32, (Element, Factor)>>,
    /// Set once the ranks have met.
    topology: OnceLock<Topology>,
    shared: OnceLock<Arc<Shared>>,
    joining: Mutex<Option<Arc<Joining>>>,
    /// The signal used before shared memory exists.
    early: Signal,
    aborted: AtomicBool,
    revoked: AtomicBool,
    finalized: AtomicBool,
    async_error: AtomicU32,
    /// Communicators made from this one. An abort of this one also ends their init.
    children: Mutex<Vec<Weak<Comm>>>,
    /// Handle of the last child until it is made; 0 for none. In real NCCL this child shares the parent's abort flag.
    linked: AtomicUsize,
    /// Host calls that are inside the communicator.
    pub(crate) calls: AtomicUsize,
    /// Work recorded in live graphs.
    pub(crate) graphs: AtomicUsize,
    /// True if a one-sided operation was called.
    pub(crate) one_sided: AtomicBool,
    /// Collectives that were started.
    pub(crate) collectives: AtomicU64,
    /// The unique id that this rank has made for growing, until it is used.
    pub(crate) growth: Mutex<Option<UniqueId>>,
    /// Number of shrinks, by the excluded ranks.
    pub(crate) shrinks: Mutex<BTreeMap<Vec<usize>, u64>>,
}

/// The facts that the ranks exchanged when they met.
#[derive(Clone, Debug)]
pub(crate) struct Topology {
    /// True if windows are supported.
    pub(crate) symmetric: bool,
    /// The buffers of collectives must lie in allocations, also if they are unused or empty (`NCCL_CHECK_MODE`).
    pub(crate) checks_buffers: bool,
    /// Bytes of symmetric address space.
    pub(crate) stride: u64,
}

/// Device memory of the communicator itself: a base amount, and buffers for its peers.
#[derive(Clone, Debug)]
pub(crate) struct Scratch {
    pub(crate) persistent: Arc<Physical>,
    /// `None` while the communicator is suspended.
    pub(crate) buffers: Option<Arc<Physical>>,
    pub(crate) buffer_bytes: u64,
}

/// Arguments of a communicator's construction.
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
            growth: Mutex::default(),
            shrinks: Mutex::default(),
        })
    }

    /// The memory that all ranks share. Only init handles a communicator before this memory exists.
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
        // Like `set_shared`.
        let _ = self.topology.set(topology);
    }

    /// True if init has succeeded.
    pub(crate) fn is_ready(&self) -> bool {
        self.topology.get().is_some()
    }

    /// The signal on which all blocking calls of this communicator wait.
    pub(crate) fn signal(&self) -> &Signal {
        self.shared.get().map_or(&self.early, |shared| shared.signal())
    }

    /// Waits for a condition, an abort or the end of the world; stream work also waits for a revocation.
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

    /// Returns the reason that ends every wait of this rank, if there is one.
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

    /// Strict mode: tells the other ranks that this rank's device faulted, so that they do not wait for it.
    pub(crate) fn report_fault(&self) {
        if self.strict {
            self.shared().word(Layout::CASUALTY).store(self.rank as u64 + 1, Ordering::SeqCst);
            self.signal().notify();
        }
    }

    /// Marks this rank as gone for good.
    pub(crate) fn depart(&self) {
        if let Some(shared) = self.shared.get() {
            shared.word(shared.layout().departed(self.rank)).store(1, Ordering::SeqCst);
            shared.signal().notify();
        }
    }

    /// True if a rank is gone for good, in strict mode; faithful worlds ignore it.
    pub(crate) fn has_departed(&self, rank: usize) -> bool {
        let shared = self.shared();
        self.strict && shared.word(shared.layout().departed(rank)).load(Ordering::SeqCst) != 0
    }

    /// Hangs as real NCCL does: only an abort ends the wait.
    pub(crate) fn hang(&self, plane: Plane, why: &str) -> Interrupted {
        match self.wait(plane, || format!("an abort of {self}: {why}"), || false) {
            Err(interrupted) => interrupted,
            Ok(()) => unreachable!("nothing but an interruption ends this wait"),
        }
    }

    /// Stores the connection on which init waits, so that an abort can end the wait.
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

    /// Ends every blocked call and all work of this rank, from any thread.
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

    /// Links a child, so that an abort of this communicator reaches the child's init.
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

    /// Unlinks the child once it is made: an abort of this communicator no longer affects it.
    pub(crate) fn unlink_child(&self) {
        self.linked.store(0, Ordering::SeqCst);
    }

    /// Handle of the child that is not made, or has failed; 0 for none.
    pub(crate) fn linked(&self) -> usize {
        self.linked.load(Ordering::SeqCst)
    }

    pub(crate) fn is_aborted(&self) -> bool {
        self.aborted.load(Ordering::SeqCst)
    }

    /// Stops the work of this rank. The communicator can be split, shrunk and destroyed afterwards.
    pub(crate) fn revoke(&self) {
        self.revoked.store(true, Ordering::SeqCst);
        self.signal().notify();
    }

    pub(crate) fn is_revoked(&self) -> bool {
        self.revoked.load(Ordering::SeqCst)
    }

    /// Refuses new work from now on.
    pub(crate) fn finalize(&self) {
        self.finalized.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_finalized(&self) -> bool {
        self.finalized.load(Ordering::SeqCst)
    }

    /// Refuses calls on a communicator that is not usable any more.
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

    /// True while the memory of its buffers is released.
    pub(crate) fn is_suspended(&self) -> bool {
        let scratch = self.scratch.lock().unwrap_or_else(PoisonError::into_inner);
        scratch.as_ref().is_some_and(|scratch| scratch.buffers.is_none())
    }

    /// Refuses calls that need the communicator's buffers. Real NCCL does not check it: its kernels then access memory
    /// that is not mapped.
    pub(crate) fn active(&self) -> Result {
        self.usable()?;
        if self.is_suspended() {
            return Err(Failure::usage(format!("{self} is suspended")));
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
