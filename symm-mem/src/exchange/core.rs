//! The state of a plan, or of the transfers between the regions of two ranks. The callers that enqueue transfers and
//! the exchange's threads share it.

use std::{
    ops::{Deref, Range},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering},
    },
};

use cuda_driver::{Event, Stream};

use super::{
    Fault, Memory,
    generation::Generations,
    quiet::{self, Rounds},
    slots::Words,
};
use crate::sharing::Imported;

/// Number of attempts to tell a peer that regions were dropped. If all fail, the peer's waits end at their
/// deadlines.
const LEFT_ATTEMPTS: u32 = 4;

/// The state of a plan, or of the transfers between the regions of this rank and one peer: the signals, and the memory
/// that the transfers use.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) parts: CoreParts,
    /// The peers' memory that the plan uses.
    imports: Mutex<Imports>,
    fault: Arc<OnceLock<Fault>>,
    /// The peers have been told of the fault.
    pub(super) told: AtomicBool,
    /// A graph has captured transfers of this plan. Launches of the graph may wait for [toggles](Words::toggle).
    pub(super) captured: AtomicBool,
    /// Attempts left to tell the peers that this rank sends no further notification; 0 once they have been told.
    pub(super) left_attempts: AtomicU32,
    /// The peer has dropped its regions, and sends no further notification.
    pub(super) peer_left: AtomicBool,
    /// Number of watched operations, plus the number of reported failures that the watch thread has not finished with.
    /// While it is not zero, this rank may still write signal words of the plan.
    pending: AtomicUsize,
    /// Number of graph launches by this rank through `Plan::launch`.
    pub(super) launched: AtomicU32,
    /// The largest value of `launched` among the plan's ranks in this process.
    pub(super) launches: Rounds,
}

/// The constant fields of a [`Core`].
#[derive(Debug)]
pub(super) struct CoreParts {
    pub(super) plan: String,
    pub(super) generation: u64,
    /// The current generation of this plan name.
    pub(super) current: Generations,
    /// Prefix of the store keys of the agreement that made the plan.
    pub(super) key: String,
    pub(super) slots: Range<usize>,
    /// The signals of each slot, in the order of `slots`.
    pub(super) wires: Vec<Wire>,
    /// This rank's memory, which copies of this rank and of the peers use.
    pub(super) memory: Vec<Memory>,
    /// True for regions. This rank tells the peers when it drops its regions.
    pub(super) is_regions: bool,
}

impl Deref for Core {
    type Target = CoreParts;

    fn deref(&self) -> &CoreParts {
        &self.parts
    }
}

/// The peers' memory: held open by the plan, or, after the plan was closed, weak references to the same memory.
#[derive(Debug)]
enum Imports {
    Open(Vec<Arc<Imported>>),
    Closed(Vec<Weak<Imported>>),
}

/// The signals that this rank and a peer send each other: for one transfer, or for regions.
#[derive(Debug)]
pub(super) struct Wire {
    /// The peer, as a rank of the job.
    pub(super) peer: u32,
    pub(super) own: Words,
    pub(super) theirs: Words,
    /// The count that this rank's last enqueued wait waits for.
    pub(super) awaited: AtomicU32,
    /// The last round that this end has begun, or that the peer has begun if it is in this process. Not used for
    /// regions.
    pub(super) rounds: Rounds,
    pub(super) turn: Mutex<Turn>,
}

impl Wire {
    pub(super) fn new(peer: u32, own: Words, theirs: Words) -> Self {
        let (awaited, rounds, turn) = (AtomicU32::new(0), Rounds::default(), Mutex::default());
        Self { peer, own, theirs, awaited, rounds, turn }
    }

    pub(super) fn turn(&self) -> MutexGuard<'_, Turn> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Progress of a transfer.
#[derive(Debug, Default)]
pub(super) struct Turn {
    /// Number of rounds begun; for regions, number of notifications sent. The counter wraps around.
    pub(super) round: u32,
    /// The peer may copy: `ready` was called, and `wait` was not called yet.
    pub(super) offered: bool,
    /// The last operation, or for regions the last notification: its stream, and the event recorded after it. The next
    /// one runs after this event, even on another stream.
    pub(super) last: Option<(Stream, Arc<Event>)>,
}

impl Core {
    pub(super) fn new(parts: CoreParts, imports: Vec<Arc<Imported>>) -> Self {
        let launches = Rounds::of(parts.key.clone());
        let left_attempts = if parts.is_regions { LEFT_ATTEMPTS } else { 0 };
        Self {
            parts,
            imports: Mutex::new(Imports::Open(imports)),
            fault: Arc::default(),
            told: AtomicBool::new(false),
            captured: AtomicBool::new(false),
            left_attempts: AtomicU32::new(left_attempts),
            peer_left: AtomicBool::new(false),
            pending: AtomicUsize::new(0),
            launched: AtomicU32::new(0),
            launches,
        }
    }

    /// Returns the cell of the fault, for callers that must not keep the plan's memory alive.
    pub(super) fn fault_cell(&self) -> Arc<OnceLock<Fault>> {
        self.fault.clone()
    }

    /// Returns the fault that has stopped the plan as an error, if there is one.
    pub(super) fn fault(&self) -> Result<(), Fault> {
        self.fault.get().map_or(Ok(()), |fault| Err(fault.clone()))
    }

    /// Records a fault; only the first one is kept.
    pub(super) fn fail(&self, fault: Fault) {
        let _ = self.fault.set(fault);
    }

    /// Counts one more operation as under way, until [`ended`](Self::ended) is called for it.
    pub(super) fn begun(&self) {
        quiet::begun();
        self.pending.fetch_add(1, Ordering::AcqRel);
    }

    pub(super) fn ended(&self) {
        self.pending.fetch_sub(1, Ordering::AcqRel);
        quiet::ended();
    }

    pub(super) fn is_idle(&self) -> bool {
        self.pending.load(Ordering::Acquire) == 0
    }

    /// The peers, each once, ascending.
    pub(super) fn peers(&self) -> Vec<u32> {
        let mut peers: Vec<u32> = self.wires.iter().map(|wire| wire.peer).collect();
        peers.sort_unstable();
        peers.dedup();
        peers
    }

    fn imports(&self) -> MutexGuard<'_, Imports> {
        self.imports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes the peers' memory, unless another holder is left.
    pub(super) fn close(&self) {
        let mut imports = self.imports();
        let Imports::Open(open) = &*imports else { return };
        let closed = Imports::Closed(open.iter().map(Arc::downgrade).collect());
        let open = std::mem::replace(&mut *imports, closed);
        // Release the lock first: closing the memory may block.
        drop(imports);
        drop(open);
    }

    pub(super) fn is_closed(&self) -> bool {
        matches!(&*self.imports(), Imports::Closed(_))
    }

    /// Returns whether this plan no longer keeps a peer's memory open: the plan is closed, and each allocation that it
    /// held is closed too, or another one of `plans` holds the allocation open.
    pub(super) fn has_let_go(&self, plans: &[Arc<Self>]) -> bool {
        let Imports::Closed(held) = &*self.imports() else { return false };
        // Do not upgrade the weak references: the upgraded reference could become the last one, and dropping it would
        // close the memory outside of a quiet moment.
        let mut left = held.iter().filter(|memory| memory.strong_count() > 0);
        left.all(|memory| {
            plans.iter().any(|plan| !std::ptr::eq(&**plan, self) && plan.holds(memory.as_ptr()))
        })
    }

    fn holds(&self, memory: *const Imported) -> bool {
        matches!(&*self.imports(), Imports::Open(open) if open.iter().any(|own| Arc::as_ptr(own) == memory))
    }
}

/// Store key under which rank `from` tells rank `to` that it has closed a plan.
pub(crate) fn closed_key(key: &str, from: u32, to: u32) -> String {
    format!("{key}/closed/{from}/{to}")
}
