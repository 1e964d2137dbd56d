//! The deadlines of waits: a thread of the exchange's own, since a stream that waits for a word is held by nothing else,
//! and a host that waits for the stream cannot look at the time. It makes no call that waits for the device or for others.
//!
//! A plan that has failed is given up thus: first its peers are told, by the word that tells them so; behind that, on the
//! same stream, this rank's waits are let go. So whatever a released stream still writes to a peer, the peer knows before
//! that it does not count. That is done again until nothing of the plan is under way, as a peer may write meanwhile.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, atomic::Ordering},
    time::{Duration, Instant},
};

use cuda_driver::{Context, Event, EventFlags, Stream, graph::RelaxedCapture};
use process_group::store::Deadline;

use super::{
    Awaited, Fault,
    core::Core,
    shared::{Mirror, Shared},
};

/// How often it looks while something is under way: how late a deadline may be noticed.
pub(super) const TICK: Duration = Duration::from_millis(5);

/// How often it looks whether peers have given up.
const GLANCE: Duration = Duration::from_millis(50);

/// After so many questions in a row without an answer the device is taken to be gone.
const UNANSWERED: u32 = 4;

/// An operation that is under way.
pub(super) struct Watched {
    pub(super) core: Arc<Core>,
    /// What it waits for, of which transfer; nothing: it only has to end.
    pub(super) wait: Option<(usize, Awaited)>,
    pub(super) stream: Stream,
    pub(super) done: Arc<Event>,
    pub(super) since: Instant,
    pub(super) deadline: Option<Duration>,
    /// How often in a row the device did not say whether it has ended.
    pub(super) unanswered: u32,
}

impl Watched {
    /// Whether it is under way no more. A device that does not answer any more does nothing any more; but one call may
    /// fail.
    fn has_ended(&mut self) -> bool {
        match self.done.query() {
            Ok(ended) => {
                self.unanswered = 0;
                ended
            }
            Err(_) => {
                self.unanswered += 1;
                self.unanswered >= UNANSWERED
            }
        }
    }
}

/// What is watched.
pub(super) struct Watch {
    state: Mutex<State>,
    changed: Condvar,
    /// This rank's slots as of the last glance at them, and when that was done.
    glance: Mirror,
    glanced: Event,
}

#[derive(Default)]
struct State {
    /// In the order in which they were enqueued.
    watched: Vec<Watched>,
    /// Plans that have failed, for their peers to be told.
    failed: Vec<Arc<Core>>,
    /// Events to be used again.
    spare: Vec<Arc<Event>>,
    /// Whether the thread sleeps until it is told.
    idle: bool,
    stopping: bool,
}

impl State {
    fn is_quiet(&self) -> bool {
        self.watched.is_empty() && self.failed.is_empty()
    }

    /// Keeps an event that nobody else has.
    fn keep(&mut self, event: Arc<Event>) {
        if Arc::strong_count(&event) == 1 {
            self.spare.push(event);
        }
    }
}

impl Watch {
    pub(super) fn new(glance: Mirror, glanced: Event) -> Self {
        Self { state: Mutex::default(), changed: Condvar::new(), glance, glanced }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.lock();
        change(&mut state);
        if std::mem::take(&mut state.idle) {
            self.changed.notify_all();
        }
    }

    /// An event for the end of an operation.
    pub(super) fn event(&self, context: &Context) -> Result<Arc<Event>, cuda_driver::Error> {
        let spare = self.lock().spare.pop();
        match spare {
            Some(event) => Ok(event),
            None => Ok(Arc::new(Event::new(context, EventFlags::DISABLE_TIMING)?)),
        }
    }

    /// An operation was enqueued, and its end recorded; `former` is the event of the one before it.
    pub(super) fn begin(&self, watched: Watched, former: Option<Arc<Event>>) {
        watched.core.begun();
        self.tell(|state| {
            state.watched.push(watched);
            former.into_iter().for_each(|event| state.keep(event));
        });
    }

    /// A plan has failed.
    pub(super) fn failed(&self, core: &Arc<Core>) {
        core.begun();
        self.tell(|state| state.failed.push(core.clone()));
    }

    /// Ends once nothing is under way.
    pub(super) fn stop(&self) {
        self.tell(|state| state.stopping = true);
    }

    /// Waits until nothing of `core` is under way; whether that came to be.
    pub(super) fn drain(&self, core: &Core, deadline: Deadline) -> bool {
        let mut state = self.lock();
        while !core.is_idle() {
            if deadline.expired() {
                return false;
            }
            let patience = deadline.remaining().min(TICK);
            state = self.changed.wait_timeout(state, patience).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}

/// The thread's work, until [`Watch::stop`].
pub(super) fn run(shared: &Shared) {
    // What is asked here is no part of a capture that happens to be open, and must not ruin it.
    let _relaxed = RelaxedCapture::enter(shared.context.driver());
    let watch = &shared.watch;
    let mut glance = None;
    let mut state = watch.lock();
    loop {
        if state.is_quiet() {
            if state.stopping {
                return;
            }
            state.idle = true;
            state = watch.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            continue;
        }
        let mut watched = std::mem::take(&mut state.watched);
        let mut failed = std::mem::take(&mut state.failed);
        drop(state);

        let ended = look(shared, &mut watched, &mut failed);
        look_around(shared, &watched, &mut failed, &mut glance);
        give_up(shared, &watched, &mut failed);

        state = watch.lock();
        // Before what has come meanwhile.
        state.watched.splice(..0, watched);
        state.failed.splice(..0, failed);
        ended.into_iter().for_each(|event| state.keep(event));
        watch.changed.notify_all();
        if !state.is_quiet() {
            state = watch.changed.wait_timeout(state, TICK).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// What of a stream has to end first: of which plan, and what it waits for.
type First = (Arc<Core>, Option<(usize, Awaited)>);

/// Takes out what has ended, with its events; notes what is late.
fn look(shared: &Shared, all: &mut Vec<Watched>, failed: &mut Vec<Arc<Core>>) -> Vec<Arc<Event>> {
    let over = if all.is_empty() { None } else { shared.info.standing().err() };
    // What comes behind something that is under way, on its stream, is so too; the first of each stream is what the others
    // wait for.
    let mut busy: HashMap<usize, First> = HashMap::new();
    let mut events = Vec::new();
    for mut watched in std::mem::take(all) {
        let stream = watched.stream.raw().addr();
        let waited = watched.since.elapsed();
        let late = watched.deadline.is_some_and(|deadline| waited >= deadline);
        // What is late is asked in any case: two threads may have come here in another order than to the stream.
        if (late || !busy.contains_key(&stream)) && watched.has_ended() {
            watched.core.ended();
            events.push(watched.done);
            continue;
        }
        let wait = watched.wait.map(|own| match busy.get(&stream) {
            Some((core, Some(first))) if Arc::ptr_eq(core, &watched.core) => *first,
            _ => own,
        });
        if !watched.stream.is_per_thread() {
            busy.entry(stream).or_insert_with(|| (watched.core.clone(), watched.wait));
        }
        let fault = match (&over, late, wait) {
            (Some(error), ..) => Some(Fault::GroupOver { cause: error.to_string() }),
            (None, true, Some((transfer, awaited))) => {
                let peer = watched.core.wires.get(transfer).map_or(u32::MAX, |wire| wire.peer);
                Some(Fault::Late { transfer, peer, awaited, waited })
            }
            _ => None,
        };
        if let Some(fault) = fault {
            watched.core.fail(fault);
        }
        // Also what was enqueued while the plan failed, and not there yet when its waits were let go.
        if watched.core.fault().is_err() {
            watched.core.begun();
            failed.push(watched.core.clone());
        }
        all.push(watched);
    }
    events
}

/// Notes the plans that peers have given up, if something takes long. What is read now is there when this is asked again,
/// since nothing here waits for the device; `begun` is when it was read.
fn look_around(
    shared: &Shared,
    watched: &[Watched],
    failed: &mut Vec<Arc<Core>>,
    begun: &mut Option<Instant>,
) {
    let Watch { glance, glanced, .. } = &shared.watch;
    let takes_long = |watched: &&Watched| {
        watched.wait.is_some() && watched.since.elapsed() >= GLANCE && watched.core.fault().is_ok()
    };
    let waits = || watched.iter().filter(takes_long);
    if begun.is_some_and(|begun| begun.elapsed() < GLANCE) || waits().next().is_none() {
        return;
    }
    if let Some(begun) = begun.take()
        && glanced.query().unwrap_or(false)
    {
        // What was read before a plan had its slots is another's.
        for watched in waits().filter(|watched| watched.since < begun) {
            if let Some(peer) = glance.abandoned(&watched.core) {
                watched.core.fail(Fault::Abandoned { peer });
                watched.core.begun();
                failed.push(watched.core.clone());
            }
        }
    }
    let now = Instant::now();
    let read = glance.read_all(shared).and_then(|()| shared.control.record(glanced));
    *begun = read.is_ok().then_some(now);
}

/// Tells the peers of plans that have failed, and lets their waits here go; keeps those of which something is under way.
fn give_up(shared: &Shared, watched: &[Watched], failed: &mut Vec<Arc<Core>>) {
    let mut seen = HashSet::new();
    failed.retain(|core| {
        let again = seen.insert(Arc::as_ptr(core)) && tell_and_release(shared, watched, core);
        if !again {
            core.ended();
        }
        again
    });
}

/// Tells the peers of a plan that has failed, and lets its waits here go; whether that is to be done again.
fn tell_and_release(shared: &Shared, watched: &[Watched], core: &Arc<Core>) -> bool {
    let under_way = watched.iter().any(|watched| Arc::ptr_eq(&watched.core, core));
    if !core.told.load(Ordering::Acquire) {
        // SAFETY: a word of the slab, which is mapped as long as `shared`.
        let tell = |word| unsafe { shared.control.write_value32(word, 1) };
        if core.wires.iter().map(|wire| wire.theirs.abort).try_for_each(tell).is_err() {
            return under_way;
        }
        core.told.store(true, Ordering::Release);
    }
    for wire in &core.wires {
        let awaited = wire.awaited.load(Ordering::Acquire);
        // SAFETY: as above; behind the words that tell the peers, on the same stream. What fails is done again.
        let _ = unsafe { shared.control.write_value32(wire.own.count, awaited) };
        if core.captured.load(Ordering::Acquire) {
            // SAFETY: as above.
            let _ = unsafe { shared.control.write_value32(wire.own.toggle, 1) };
        }
    }
    under_way
}
