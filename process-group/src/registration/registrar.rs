//! The tracker of a registrar: the segments of one allocator or pool, and the communicators with which they are registered.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use caching_alloc::core::{Action, Entry, Hold, PoolId, Segment, SegmentId, Snapshot, Tracker, TrackerError};

use super::{Counts, RegistrarError, Result, Unregistrable};
use crate::{
    comm::{CommError, SegmentHold, Shared, Unsettled},
    memory::{self, Extent},
    store::Deadline,
};

/// The segments of one allocator or pool, and the communicators with which they are registered.
pub(super) struct Registrar {
    /// Unique in the process.
    pub(super) serial: u64,
    device: u32,
    /// The only pool that it follows; `None` for the whole allocator.
    pool: Option<PoolId>,
    pub(super) patience: Duration,
    state: Mutex<State>,
    tally: Arc<Tally>,
}

#[derive(Default)]
struct State {
    communicators: Vec<Weak<Shared>>,
    /// With the reason why a segment is not registered, if it is not.
    segments: BTreeMap<SegmentId, (Segment, Option<Unregistrable>)>,
    /// Holds on removed segments that a communicator still has registered.
    gone: Vec<Weak<Kept>>,
    /// Holds on present segments, one for each communicator.
    kept: BTreeMap<SegmentId, Vec<Weak<Kept>>>,
}

#[derive(Default)]
struct Tally {
    registered: AtomicU64,
    deregistered: AtomicU64,
    failures: AtomicU64,
    alive: AtomicU64,
}

fn add(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// A hold on a segment that a communicator has registered, or will register.
struct Kept {
    _hold: Hold,
    tally: Arc<Tally>,
    is_registered: AtomicBool,
}

impl SegmentHold for Kept {
    fn registered(&self) {
        self.is_registered.store(true, Ordering::Relaxed);
        add(&self.tally.registered);
        add(&self.tally.alive);
    }

    fn deregistered(&self) {
        if self.is_registered.swap(false, Ordering::Relaxed) {
            add(&self.tally.deregistered);
            self.tally.alive.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn failed(&self) {
        add(&self.tally.failures);
    }
}

/// Returns true if a communicator still accepts calls.
fn works(shared: &Shared) -> bool {
    shared.guard.check("register").is_ok()
}

/// Returns true if a communicator has ended, or is about to.
fn has_ended(shared: &Shared) -> bool {
    matches!(shared.guard.check("register"), Err(CommError::Closed { .. }))
}

impl State {
    fn working(&mut self) -> Vec<Arc<Shared>> {
        self.communicators.retain(|weak| weak.upgrade().is_some_and(|shared| !has_ended(&shared)));
        self.communicators.iter().filter_map(Weak::upgrade).filter(|shared| works(shared)).collect()
    }

    fn position(&self, shared: &Arc<Shared>) -> Option<usize> {
        let weak = Arc::downgrade(shared);
        self.communicators.iter().position(|known| known.ptr_eq(&weak))
    }
}

impl Registrar {
    pub(super) fn new(device: u32, patience: Duration, pool: Option<PoolId>) -> Self {
        static SERIAL: AtomicU64 = AtomicU64::new(0);
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        Self { serial, device, pool, patience, state: Mutex::default(), tally: Arc::default() }
    }

    pub(super) fn device(&self) -> u32 {
        self.device
    }

    /// Returns true if it follows this pool of its allocator.
    pub(super) fn follows(&self, pool: PoolId) -> bool {
        self.pool.is_none_or(|own| own == pool)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is consistent between its calls. A panic inside one leaves, at worst, a segment held.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn counts(&self) -> Counts {
        let mut state = self.lock();
        state.gone.retain(|kept| kept.strong_count() > 0);
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            segments: state.segments.len(),
            communicators: state.working().len(),
            registrations: load(&self.tally.alive) as usize,
            registered: load(&self.tally.registered),
            deregistered: load(&self.tally.deregistered),
            failures: load(&self.tally.failures),
            kept: state.gone.len(),
        }
    }

    pub(super) fn check(&self) -> Result<()> {
        let communicators: Vec<_> = self.lock().communicators.iter().filter_map(Weak::upgrade).collect();
        communicators.iter().filter(|shared| !has_ended(shared)).try_for_each(|shared| {
            shared.registry.failure().map_or(Ok(()), |reason| {
                let communicator = shared.name().to_owned();
                Err(RegistrarError::Lacking { communicator, reason: reason.to_string() })
            })
        })
    }

    /// Adds a segment. It is registered before any block of it is handed out.
    fn come(&self, segment: &Segment, refusal: Option<Unregistrable>) -> Result<()> {
        if !self.follows(segment.pool()) {
            return Ok(());
        }
        match self.pool {
            // The map has one registrar for each segment: that of the allocator.
            Some(_) => memory::renew(),
            None => memory::come(Extent {
                start: segment.address(),
                end: segment.memory().end(),
                device: self.device,
                registrar: self.serial,
                refusal,
            }),
        }
        let mut state = self.lock();
        state.segments.insert(segment.id(), (segment.clone(), refusal));
        if refusal.is_some() {
            return Ok(());
        }
        let mut first = Ok(());
        for shared in state.working() {
            first = first.and(self.register_segment(&mut state, &shared, segment, false));
        }
        first
    }

    /// Removes a segment and deregisters it everywhere.
    fn go(&self, segment: &Segment) -> Result<()> {
        if !self.follows(segment.pool()) {
            return Ok(());
        }
        self.forget(segment);
        let mut state = self.lock();
        state.segments.remove(&segment.id());
        let kept = state.kept.remove(&segment.id()).unwrap_or_default();
        let communicators: Vec<_> = state.communicators.iter().filter_map(Weak::upgrade).collect();
        let mut first = Ok(());
        if !kept.is_empty() {
            for shared in communicators {
                first = first.and(deregister(&shared, segment.address()));
            }
        }
        state.gone.retain(|kept| kept.strong_count() > 0);
        state.gone.extend(kept.into_iter().filter(|kept| kept.strong_count() > 0));
        first
    }

    /// Removes a segment from the map of memory.
    fn forget(&self, segment: &Segment) {
        match self.pool {
            Some(_) => memory::renew(),
            None => memory::go(segment.address()),
        }
    }

    /// Registers a segment with a communicator. With `noted`, only records it for the communicator's next call.
    fn register_segment(
        &self,
        state: &mut State,
        shared: &Shared,
        segment: &Segment,
        noted: bool,
    ) -> Result<()> {
        let hold = segment.hold(shared.name())?;
        let is_registered = AtomicBool::new(false);
        let kept = Arc::new(Kept { _hold: hold, tally: self.tally.clone(), is_registered });
        let holders = state.kept.entry(segment.id()).or_default();
        holders.retain(|kept| kept.strong_count() > 0);
        holders.push(Arc::downgrade(&kept));
        let (address, bytes) = (segment.address(), usize::try_from(segment.bytes()).unwrap_or(usize::MAX));
        let brought = if noted {
            shared.note(address, bytes, kept)
        } else {
            shared.register_range(address, bytes, kept)
        };
        Ok(brought?)
    }

    /// Serves a communicator. On return every present segment is registered with it, and every new one will be. After
    /// a failure it is not served, and no segment is registered with it.
    pub(super) fn serve(&self, shared: &Arc<Shared>, deadline: Deadline) -> Result<()> {
        let found = shared.context.device().ordinal();
        if found != self.device {
            let communicator = shared.name().to_owned();
            return Err(RegistrarError::WrongDevice { communicator, found, wanted: self.device });
        }
        let noted = {
            let mut state = self.lock();
            if state.position(shared).is_some() {
                return Err(RegistrarError::AlreadyServed { communicator: shared.name().to_owned() });
            }
            state.communicators.push(Arc::downgrade(shared));
            shared.registry.begin();
            let registrable = state.segments.values().filter(|(_, refusal)| refusal.is_none());
            let registrable: Vec<_> = registrable.map(|(segment, _)| segment.clone()).collect();
            registrable
                .iter()
                .try_for_each(|segment| self.register_segment(&mut state, shared, segment, true))
        };
        let settled = noted.and_then(|()| shared.flush_by(deadline).map_err(RegistrarError::from));
        if settled.is_err() {
            // If a segment cannot be deregistered, the communicator keeps its memory.
            let _ = self.leave(shared, deadline);
        }
        settled
    }

    /// Stops serving a communicator, and deregisters every segment of this allocator from it.
    pub(super) fn leave(&self, shared: &Arc<Shared>, deadline: Deadline) -> Result<()> {
        let mut state = self.lock();
        let Some(at) = state.position(shared) else {
            return Err(RegistrarError::NotServed { communicator: shared.name().to_owned() });
        };
        state.communicators.swap_remove(at);
        shared.registry.end();
        let mut first = Ok(());
        for (segment, _) in state.segments.values().filter(|(_, refusal)| refusal.is_none()) {
            first = first.and(deregister(shared, segment.address()));
        }
        drop(state);
        if !works(shared) {
            return first;
        }
        first.and(shared.flush_by(deadline).map_err(RegistrarError::from))
    }

    /// Stops serving all communicators.
    pub(super) fn clear(&self) -> Result<()> {
        let communicators: Vec<_> = self.lock().communicators.iter().filter_map(Weak::upgrade).collect();
        let mut first = Ok(());
        for shared in communicators {
            first = first.and(self.leave(&shared, Deadline::after(self.patience)));
        }
        let segments = std::mem::take(&mut self.lock().segments);
        segments.values().for_each(|(segment, _)| self.forget(segment));
        first
    }
}

/// Deregisters a segment from a communicator. Does nothing if the communicator does not know it.
fn deregister(shared: &Shared, address: u64) -> Result<()> {
    match shared.deregister_range(address) {
        Err(Unsettled { source, .. }) if matches!(*source, CommError::Argument(_)) => Ok(()),
        other => Ok(other?),
    }
}

impl fmt::Debug for Registrar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Registrar({:?})", self.counts())
    }
}

impl Tracker for Registrar {
    fn name(&self) -> &str {
        "segment registrar"
    }

    fn attached(&self, snapshot: &Snapshot) -> Result<(), TrackerError> {
        for state in &snapshot.segments {
            self.come(&state.segment, Unregistrable::of_fixed(state.segment.source()))?;
        }
        for segment in snapshot.mapped.iter().flat_map(|mapped| &mapped.segments) {
            self.come(segment, Some(Unregistrable::Remappable))?;
        }
        Ok(())
    }

    fn observe(&self, entries: &[Entry]) -> Result<(), TrackerError> {
        let mut first = Ok(());
        for entry in entries {
            first = first.and(match &entry.action {
                Action::SegmentAlloc(segment) => {
                    self.come(segment, Unregistrable::of_fixed(segment.source()))
                }
                Action::SegmentMap(segment) => self.come(segment, Some(Unregistrable::Remappable)),
                Action::SegmentFree(segment) | Action::SegmentUnmap(segment) => self.go(segment),
                _ => Ok(()),
            });
        }
        Ok(first?)
    }
}
