//! The tracker of a registrar, which knows the segments of one allocator or pool, and the communicators with which
//! these segments are registered.

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
    comm::{CommError, SegmentHold, Shared},
    memory::{self, Extent},
    store::Deadline,
};

/// The segments of one allocator or pool, and the communicators with which they are registered.
pub(super) struct Registrar {
    /// Unique in the process.
    pub(super) serial: u64,
    device: u32,
    /// The followed pool. `None` if the whole allocator is followed.
    pool: Option<PoolId>,
    pub(super) patience: Duration,
    state: Mutex<State>,
    tally: Arc<Tally>,
}

#[derive(Default)]
struct State {
    services: Vec<Arc<Service>>,
    /// Every followed segment. A segment that cannot be registered has the reason beside it.
    segments: BTreeMap<SegmentId, (Segment, Option<Unregistrable>)>,
    /// Holds on removed segments that are still registered with a communicator.
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

/// A communicator that a registrar serves.
struct Service {
    communicator: Weak<Shared>,
    reliance: Mutex<Reliance>,
}

/// Whether the members rely on the registrations of a service.
#[derive(Default)]
struct Reliance {
    /// Set once the members rely on the registrations.
    alarm: Option<Arc<Alarm>>,
    /// The reason why a segment is not registered, if there is one.
    failure: Option<Arc<str>>,
}

/// A callback that receives the reason when a segment cannot be registered with a communicator on which the members
/// rely. It must not block.
pub(super) type Alarm = dyn Fn(&str) + Send + Sync;

impl Service {
    fn lock(&self) -> MutexGuard<'_, Reliance> {
        self.reliance.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Declares that the members rely on the registrations. Every failure since the service began, or from here on,
    /// poisons the communicator and is passed to `alarm`.
    fn rely(&self, alarm: Arc<Alarm>) {
        let failure = {
            let mut reliance = self.lock();
            reliance.alarm = Some(alarm.clone());
            reliance.failure.clone()
        };
        if let Some(reason) = failure {
            self.raise(&alarm, &reason);
        }
    }

    /// Records that a segment could not be registered. If the members rely on the registrations, raises the alarm.
    fn lacks(&self, reason: &str) {
        let (alarm, reason) = {
            let mut reliance = self.lock();
            let reason = reliance.failure.get_or_insert_with(|| reason.into()).clone();
            (reliance.alarm.clone(), reason)
        };
        if let Some(alarm) = alarm {
            self.raise(&alarm, &reason);
        }
    }

    fn raise(&self, alarm: &Arc<Alarm>, reason: &str) {
        if let Some(shared) = self.communicator.upgrade() {
            shared.guard.poison(reason);
        }
        alarm(reason);
    }
}

/// A hold on a segment that is registered with a communicator, or will be.
struct Kept {
    _hold: Hold,
    service: Arc<Service>,
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

    fn not_registered(&self, reason: &str) {
        add(&self.tally.failures);
        self.service.lacks(reason);
    }

    fn not_deregistered(&self) {
        add(&self.tally.failures);
    }
}

/// Returns true if segments can be registered with a communicator: now, or after it is resumed if it is suspended.
fn works(shared: &Shared) -> bool {
    matches!(shared.guard.check("register"), Ok(()) | Err(CommError::Suspended { .. }))
}

/// Returns true if a communicator has ended, or is about to end.
fn has_ended(shared: &Shared) -> bool {
    matches!(shared.guard.check("register"), Err(CommError::Closed { .. }))
}

impl State {
    /// Returns the services of communicators with which segments [can be registered](works). Forgets the services of
    /// communicators that have ended.
    fn working(&mut self) -> Vec<(Arc<Service>, Arc<Shared>)> {
        self.services
            .retain(|service| service.communicator.upgrade().is_some_and(|shared| !has_ended(&shared)));
        let communicator = |service: &Arc<Service>| Some((service.clone(), service.communicator.upgrade()?));
        self.services.iter().filter_map(communicator).filter(|(_, shared)| works(shared)).collect()
    }

    fn position(&self, shared: &Arc<Shared>) -> Option<usize> {
        let weak = Arc::downgrade(shared);
        self.services.iter().position(|service| service.communicator.ptr_eq(&weak))
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

    /// Returns true if this pool of the allocator is followed.
    pub(super) fn follows(&self, pool: PoolId) -> bool {
        self.pool.is_none_or(|own| own == pool)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic leaves the state usable: at worst, a segment stays held.
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
        let services = self.lock().services.clone();
        for service in services {
            let communicator = service.communicator.upgrade().filter(|shared| !has_ended(shared));
            let failure = service.lock().failure.clone();
            if let (Some(shared), Some(reason)) = (communicator, failure) {
                let communicator = shared.name().to_owned();
                return Err(RegistrarError::Lacking { communicator, reason: reason.to_string() });
            }
        }
        Ok(())
    }

    /// Adds a segment. If there is no `refusal`, also requests the registration of the segment with every served
    /// communicator, and executes the requests as [`flush`] does. The allocator calls this before it hands out any
    /// block of the segment.
    fn come(&self, segment: &Segment, refusal: Option<Unregistrable>) -> Result<()> {
        if !self.follows(segment.pool()) {
            return Ok(());
        }
        match self.pool {
            // The map of memory names one registrar for each segment: that of the whole allocator, not that of a
            // pool.
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
        let working = state.working();
        let mut first = Ok(());
        for (service, shared) in &working {
            first = first.and(self.note_segment(&mut state, service, shared, segment));
        }
        drop(state);
        flush(working.iter().map(|(_, shared)| shared), first)
    }

    /// Removes a segment and deregisters it from every communicator.
    fn go(&self, segment: &Segment) -> Result<()> {
        if !self.follows(segment.pool()) {
            return Ok(());
        }
        self.forget(segment);
        let mut state = self.lock();
        state.segments.remove(&segment.id());
        let kept = state.kept.remove(&segment.id()).unwrap_or_default();
        let holders = kept.iter().filter_map(Weak::upgrade);
        let communicators: Vec<_> = holders.filter_map(|kept| kept.service.communicator.upgrade()).collect();
        communicators.iter().for_each(|shared| shared.note_removal(segment.address()));
        state.gone.retain(|kept| kept.strong_count() > 0);
        state.gone.extend(kept);
        drop(state);
        flush(&communicators, Ok(()))
    }

    /// Removes a segment from the map of memory.
    fn forget(&self, segment: &Segment) {
        match self.pool {
            Some(_) => memory::renew(),
            None => memory::go(segment.address()),
        }
    }

    /// Requests the registration of a segment with a communicator, without a call of NCCL.
    fn note_segment(
        &self,
        state: &mut State,
        service: &Arc<Service>,
        shared: &Shared,
        segment: &Segment,
    ) -> Result<()> {
        let hold = segment.hold(shared.name())?;
        let is_registered = AtomicBool::new(false);
        let (service, tally) = (service.clone(), self.tally.clone());
        let kept = Arc::new(Kept { _hold: hold, service, tally, is_registered });
        let holders = state.kept.entry(segment.id()).or_default();
        holders.retain(|kept| kept.strong_count() > 0);
        holders.push(Arc::downgrade(&kept));
        let (address, bytes) = (segment.address(), usize::try_from(segment.bytes()).unwrap_or(usize::MAX));
        Ok(shared.note(address, bytes, kept)?)
    }

    /// Serves a communicator. On success every present segment is registered with the communicator, and every new
    /// segment will be. After a failure the communicator is not served, and the segments are deregistered from it.
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
            let communicator = Arc::downgrade(shared);
            let service = Arc::new(Service { communicator, reliance: Mutex::default() });
            state.services.push(service.clone());
            let registrable = state.segments.values().filter(|(_, refusal)| refusal.is_none());
            let registrable: Vec<_> = registrable.map(|(segment, _)| segment.clone()).collect();
            registrable
                .iter()
                .try_for_each(|segment| self.note_segment(&mut state, &service, shared, segment))
        };
        let settled = noted.and_then(|()| shared.flush_by(deadline).map_err(RegistrarError::from));
        if settled.is_err() {
            // If a segment cannot be deregistered, the communicator keeps the memory of the segment.
            let _ = self.leave(shared, deadline);
        }
        settled
    }

    /// Declares that the members rely on the registrations with a served communicator. Every failure since the
    /// service began, or from here on, poisons the communicator and is passed to `alarm`.
    pub(super) fn rely(&self, shared: &Arc<Shared>, alarm: Arc<Alarm>) {
        let service = {
            let state = self.lock();
            state.position(shared).map(|at| state.services[at].clone())
        };
        if let Some(service) = service {
            service.rely(alarm);
        }
    }

    /// Stops serving a communicator, and deregisters every segment of this allocator from it.
    pub(super) fn leave(&self, shared: &Arc<Shared>, deadline: Deadline) -> Result<()> {
        let mut state = self.lock();
        let Some(at) = state.position(shared) else {
            return Err(RegistrarError::NotServed { communicator: shared.name().to_owned() });
        };
        let service = state.services.swap_remove(at);
        for (id, kept) in &state.kept {
            let own = kept.iter().filter_map(Weak::upgrade).any(|kept| Arc::ptr_eq(&kept.service, &service));
            if let Some((segment, _)) = state.segments.get(id).filter(|_| own) {
                shared.note_removal(segment.address());
            }
        }
        drop(state);
        // A suspended communicator deregisters the segments after it is resumed.
        if !works(shared) || shared.guard.is_suspended() {
            return Ok(());
        }
        Ok(shared.flush_by(deadline)?)
    }

    /// Stops serving all communicators, and removes all segments.
    pub(super) fn clear(&self) -> Result<()> {
        let services = self.lock().services.clone();
        let mut first = Ok(());
        for shared in services.iter().filter_map(|service| service.communicator.upgrade()) {
            first = first.and(self.leave(&shared, Deadline::after(self.patience)));
        }
        let segments = std::mem::take(&mut self.lock().segments);
        segments.values().for_each(|(segment, _)| self.forget(segment));
        first
    }
}

/// Executes the noted requests of each communicator, unless another thread is inside NCCL with it. Returns the first
/// failure. The registrar's lock is not held, because NCCL's calls may take long.
fn flush<'a>(communicators: impl IntoIterator<Item = &'a Arc<Shared>>, first: Result<()>) -> Result<()> {
    let flushed = communicators.into_iter().map(|shared| shared.flush_if_free());
    flushed.fold(first, |first, flushed| first.and(flushed.map_err(RegistrarError::from)))
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
            self.come(&state.segment, Unregistrable::of_fixed(&state.segment))?;
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
                Action::SegmentAlloc(segment) => self.come(segment, Unregistrable::of_fixed(segment)),
                Action::SegmentMap(segment) => self.come(segment, Some(Unregistrable::Remappable)),
                Action::SegmentFree(segment) | Action::SegmentUnmap(segment) => self.go(segment),
                _ => Ok(()),
            });
        }
        Ok(first?)
    }
}
