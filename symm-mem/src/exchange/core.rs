//! A plan's transfers, as those who enqueue them and the exchange's threads know them.

use std::{
    ops::Range,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering},
    },
};

use cuda_driver::{DevicePtr, Event, Stream};

use super::{
    Fault, Memory, Transfer,
    generation::Generations,
    handles::Imported,
    protocol::Part,
    quiet::{self, Rounds},
    slots::Words,
};

/// A plan: its transfers, and what it holds.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) plan: String,
    pub(super) generation: u64,
    /// The generation that counts.
    pub(super) current: Generations,
    /// What begins the keys of its exchange.
    pub(super) key: String,
    pub(super) slots: Range<usize>,
    pub(super) wires: Vec<Wire>,
    /// Peers' memory, until the plan is closed.
    pub(super) imports: Mutex<Imports>,
    pub(super) fault: OnceLock<Fault>,
    /// Whether the peers have been told of the fault.
    pub(super) told: AtomicBool,
    /// Whether a graph may wait for toggles.
    pub(super) captured: AtomicBool,
    /// Operations that are watched, and failures that the peers have yet to be told of: until none is left, words of the
    /// plan may be written.
    pub(super) pending: AtomicUsize,
    /// How often graphs were launched by this rank, and by any of the plan's.
    pub(super) launched: AtomicU32,
    pub(super) launches: Rounds,
}

/// What a plan holds of its peers' memory, or has held.
#[derive(Debug)]
pub(super) enum Imports {
    Open(Vec<Arc<Imported>>),
    Closed(Vec<Weak<Imported>>),
}

/// One transfer.
#[derive(Debug)]
pub(super) struct Wire {
    /// As a rank of the job.
    pub(super) peer: u32,
    pub(super) part: Part,
    pub(super) memory: Memory,
    /// The peer's buffer, if this rank copies.
    pub(super) remote: Option<DevicePtr>,
    pub(super) own: Words,
    pub(super) theirs: Words,
    /// The highest count that was waited for.
    pub(super) awaited: AtomicU32,
    /// How far either end is, if both are in this process.
    pub(super) rounds: Rounds,
    pub(super) turn: Mutex<Turn>,
}

impl Wire {
    pub(super) fn new(
        peer: u32,
        transfer: &Transfer,
        remote: Option<DevicePtr>,
        own: Words,
        theirs: Words,
    ) -> Self {
        let (part, memory) = (transfer.part, transfer.memory.clone());
        let (awaited, rounds, turn) = (AtomicU32::new(0), Rounds::default(), Mutex::default());
        Self { peer, part, memory, remote, own, theirs, awaited, rounds, turn }
    }
}

/// How far a transfer is.
#[derive(Debug, Default)]
pub(super) struct Turn {
    /// Rounds that were begun: counted without end, compared as serial numbers.
    pub(super) round: u32,
    /// Whether the peer may copy: `ready` was called, and `wait` not yet.
    pub(super) offered: bool,
    /// The last operation: whatever its stream, the next comes behind it.
    pub(super) last: Option<(Stream, Arc<Event>)>,
}

impl Core {
    /// Why the plan does nothing any more, if so.
    pub(super) fn fault(&self) -> Result<(), Fault> {
        self.fault.get().map_or(Ok(()), |fault| Err(fault.clone()))
    }

    /// The first fault counts.
    pub(super) fn fail(&self, fault: Fault) {
        let _ = self.fault.set(fault);
    }

    /// Something of the plan is under way, until [`ended`](Self::ended).
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

    /// The peers, each once.
    pub(super) fn peers(&self) -> Vec<u32> {
        let mut peers: Vec<u32> = self.wires.iter().map(|wire| wire.peer).collect();
        peers.sort_unstable();
        peers.dedup();
        peers
    }

    fn imports(&self) -> MutexGuard<'_, Imports> {
        self.imports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets go of the peers' memory.
    pub(super) fn close(&self) {
        let mut imports = self.imports();
        let Imports::Open(open) = &*imports else { return };
        let closed = Imports::Closed(open.iter().map(Arc::downgrade).collect());
        let open = std::mem::replace(&mut *imports, closed);
        // Closing may take its time.
        drop(imports);
        drop(open);
    }

    pub(super) fn is_closed(&self) -> bool {
        matches!(&*self.imports(), Imports::Closed(_))
    }

    /// Whether what it held of its peers' memory is closed, or another of these plans holds it, to which it is lent too.
    pub(super) fn has_let_go(&self, plans: &[Arc<Self>]) -> bool {
        let Imports::Closed(held) = &*self.imports() else { return false };
        // Not upgraded: who lets go of it last closes it.
        let mut left = held.iter().filter(|memory| memory.strong_count() > 0);
        left.all(|memory| {
            plans.iter().any(|plan| !std::ptr::eq(&**plan, self) && plan.holds(memory.as_ptr()))
        })
    }

    fn holds(&self, memory: *const Imported) -> bool {
        matches!(&*self.imports(), Imports::Open(open) if open.iter().any(|own| Arc::as_ptr(own) == memory))
    }
}

/// The key under which `from` says to `to` that it has let go of a plan.
pub(crate) fn closed_key(key: &str, from: u32, to: u32) -> String {
    format!("{key}/closed/{from}/{to}")
}
