//! The state of a [`Plan`](super::Plan), or of the transfers between the [regions](super::Regions) of this rank and one
//! peer. The callers that enqueue transfers and the exchange's threads share this state.
//!
//! In this file, "plan" stands for either of the two, and `Plan` for the first only.

use std::{
    ops::{Deref, Range},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock,
        atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering},
    },
};

use cuda_driver::{Event, Stream};

use super::{Fault, Memory, generation::Generations, quiet, slots::Words};
use crate::{lock::lock, sharing::Imported};

/// Number of attempts to tell a peer that this rank has dropped its regions. If all attempts fail, the peer's streams
/// that wait for a [notification](super::Regions::transfer_and_notify) from this rank are released only at the
/// deadlines of these waits.
const DROP_NOTICE_ATTEMPTS: u32 = 4;

/// The state of a `Plan`, or of the transfers between the regions of this rank and one peer: the signals, and the
/// memory that the transfers use.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) parts: CoreParts,
    /// The peers' memory that the plan uses, until the plan is [closed](Self::close).
    imports: Mutex<Vec<Arc<Imported>>>,
    fault: Arc<OnceLock<Fault>>,
    /// True once the [watch thread](super::watch) has reported the fault to the peers: it has written the [abort
    /// words](Words::abort) in their [slots](super::slots).
    pub(super) told: AtomicBool,
    /// True once a transfer of the plan was captured into a graph. Launches of the graph wait for
    /// [toggles](Words::toggle) instead of [counts](Words::count). So after a fault, the watch thread must write both
    /// to release the plan's waits.
    pub(super) captured: AtomicBool,
    /// Remaining attempts to tell the peer that this rank has dropped its regions. 0 after the first successful
    /// attempt, and always 0 if [`CoreParts::is_regions`] is false.
    pub(super) drop_notice_attempts: AtomicU32,
    /// True once this rank has noticed that the peer has dropped its regions.
    pub(super) peer_has_dropped: AtomicBool,
    /// Number of the plan's operations under way, plus the number of the plan's entries in the watch thread's list of
    /// failed plans. While the sum is not zero, this rank may still access the plan's memory and slots.
    pending: AtomicUsize,
}

/// The constant fields of a [`Core`].
#[derive(Debug)]
pub(super) struct CoreParts {
    pub(super) plan: String,
    pub(super) generation: u64,
    /// The current [generation](super::generation) of this plan name. If it differs from `generation`, the plan is
    /// stale: a later one has replaced it.
    pub(super) current: Generations,
    /// Prefix of the store keys of the agreement that made the plan.
    pub(super) key: String,
    /// This rank's [signal slots](super::slots): one for each transfer of a `Plan`, or one for the regions.
    pub(super) slots: Range<usize>,
    /// One element for each slot, in the order of `slots`.
    pub(super) endpoints: Vec<TransferEndpoint>,
    /// This rank's buffers, or its regions. This rank and its peers copy from them and to them.
    pub(super) memory: Vec<Memory>,
    /// True for agreed regions. The [closing thread](super::close) then tells the peer when this rank has dropped its
    /// regions. False for a `Plan`, and for the memory and slots that are left after a failed agreement on a plan or
    /// regions.
    pub(super) is_regions: bool,
}

impl Deref for Core {
    type Target = CoreParts;

    fn deref(&self) -> &CoreParts {
        &self.parts
    }
}

/// The signals between this rank and a peer: those of one transfer of a `Plan`, or those of the regions of the two
/// ranks.
#[derive(Debug)]
pub(super) struct TransferEndpoint {
    /// The peer, as a rank of the job.
    pub(super) peer: u32,
    /// The words of this rank's slot, by which the peer signals to this rank.
    pub(super) own: Words,
    /// The words of the peer's slot, by which this rank signals to the peer.
    pub(super) theirs: Words,
    /// The value that this rank's last enqueued wait expects in `own.count`. After a fault, the watch thread writes
    /// this value to `own.count` to release the wait.
    pub(super) awaited: AtomicU32,
    pub(super) progress: Mutex<SignalProgress>,
}

impl TransferEndpoint {
    pub(super) fn new(peer: u32, own: Words, theirs: Words) -> Self {
        Self { peer, own, theirs, awaited: AtomicU32::new(0), progress: Mutex::default() }
    }

    pub(super) fn progress(&self) -> MutexGuard<'_, SignalProgress> {
        lock(&self.progress)
    }
}

/// Progress of a transfer, or of this rank's [notifications](super::Regions::transfer_and_notify) to a peer. Captured
/// calls do not change it.
#[derive(Debug, Default)]
pub(super) struct SignalProgress {
    /// For a transfer of a `Plan`, the number of rounds that this rank has begun. In a round, one end calls `put` or
    /// `get`. The other end calls `ready` and then `wait`. A rank begins its next round by `put`, `get` or `ready`. For
    /// regions, the number of notifications that this rank has sent. The counter wraps around.
    pub(super) count: u32,
    /// True between this rank's calls of `ready` and of `wait` in one round. In this time the peer may copy. Always
    /// false for regions and for a transfer in which this rank copies, because this rank then never calls `ready`.
    pub(super) offered: bool,
    /// The stream of the last operation (for regions: of the last notification), and the event recorded after it. The
    /// next operation or notification runs after this event, even on another stream.
    pub(super) last: Option<(Stream, Arc<Event>)>,
}

impl Core {
    pub(super) fn new(parts: CoreParts, imports: Vec<Arc<Imported>>) -> Self {
        let drop_notice_attempts = if parts.is_regions { DROP_NOTICE_ATTEMPTS } else { 0 };
        Self {
            parts,
            imports: Mutex::new(imports),
            fault: Arc::default(),
            told: AtomicBool::new(false),
            captured: AtomicBool::new(false),
            drop_notice_attempts: AtomicU32::new(drop_notice_attempts),
            peer_has_dropped: AtomicBool::new(false),
            pending: AtomicUsize::new(0),
        }
    }

    /// Returns the cell of the fault, for callers that must not keep the plan's memory alive.
    pub(super) fn fault_cell(&self) -> Arc<OnceLock<Fault>> {
        self.fault.clone()
    }

    /// Returns the fault as the error, if the plan has failed.
    pub(super) fn fault(&self) -> Result<(), Fault> {
        self.fault.get().map_or(Ok(()), |fault| Err(fault.clone()))
    }

    /// Records a fault; only the first one is kept.
    pub(super) fn fail(&self, fault: Fault) {
        let _ = self.fault.set(fault);
    }

    /// Adds 1 to [`pending`](Self::pending) and to the process's count of operations under way (see [`quiet`]). Each
    /// call must be followed by one call of [`ended`](Self::ended), which subtracts 1 from both.
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
        let mut peers: Vec<u32> = self.endpoints.iter().map(|endpoint| endpoint.peer).collect();
        peers.sort_unstable();
        peers.dedup();
        peers
    }

    fn imports(&self) -> MutexGuard<'_, Vec<Arc<Imported>>> {
        lock(&self.imports)
    }

    /// Closes the plan: drops the plan's references to the peers' allocations. `plans` are all plans of the exchange.
    /// For each allocation, the first of these cases applies:
    /// - Another plan uses the allocation: drops the reference. The allocation stays open until the other plan is
    ///   closed.
    /// - Closing the allocation may wait for the device, and there is no [quiet moment](quiet::try_quiesce) now: keeps
    ///   the reference.
    /// - An agreement on a new plan is under way, and this rank has reported in it that the allocation is open: keeps
    ///   the reference.
    /// - None of the above: closes the allocation.
    ///
    /// Returns true if no reference was kept. The plan is then closed, and the closing thread reports this to the
    /// peers. After the result false, the closing thread calls this function again later.
    pub(super) fn close(&self, plans: &[Arc<Self>]) -> bool {
        let is_shared = |memory: &Arc<Imported>| {
            let mut others = plans.iter().filter(|plan| !std::ptr::eq(&***plan, self));
            others.any(|plan| plan.imports().iter().any(|other| Arc::ptr_eq(other, memory)))
        };
        let close = |memory: Arc<Imported>| {
            if is_shared(&memory) {
                return None;
            }
            // An agreement under way may hold another reference, and a new agreement can take one at any time.
            let may_wait = memory.may_wait_when_closed();
            quiet::free(memory, may_wait)
        };
        let open = std::mem::take(&mut *self.imports());
        let left: Vec<Arc<Imported>> = open.into_iter().filter_map(close).collect();
        let is_closed = left.is_empty();
        *self.imports() = left;
        is_closed
    }

    /// Returns whether freeing this rank's buffers may make a driver call that waits for the device.
    pub(super) fn may_wait_when_freed(&self) -> bool {
        self.memory.iter().any(Memory::may_wait_when_freed)
    }
}

/// Store key by which rank `from` reports to rank `to` that `from` has closed a plan. `key` is `CoreParts::key`.
pub fn closed_key(key: &str, from: u32, to: u32) -> String {
    format!("{key}/closed/{from}/{to}")
}
