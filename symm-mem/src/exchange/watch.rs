//! The watch thread of an [exchange](super::Exchange), which enforces the deadlines of its transfers. A stream cannot
//! enforce them, because it waits for a word in device memory without a time limit. A caller cannot enforce them while
//! it is blocked in the synchronization of such a stream. The watch thread must not block in the same way, so it makes
//! no call that waits for the device or for another rank. It calls the driver only to query events and to enqueue
//! writes of words. On H200, these calls return even while another thread is blocked in `cuMemFree`, which waits for
//! the device. A call that copies memory or records an event would block then. So the *copy thread*, a thread of its
//! own, makes these calls.
//!
//! In this file, a *plan* is one [`Core`]: a [`Plan`](super::Plan), or the transfers between the regions of two ranks.
//! Ranks signal each other by words in [slots](super::slots): a rank's slots are its memory into which its peers write.
//!
//! When a plan has failed, the thread enqueues writes on the exchange's [control stream](Shared::control), in two
//! steps:
//! 1. It sets the abort word in each peer's slot of the plan, by which the peers learn of the failure.
//! 2. Once step 1 has succeeded, it sets the words in this rank's slots that this rank's streams wait for. This
//!    releases the streams.
//!
//! The order matters because a released stream runs the copies that were enqueued behind the wait. These may write to a
//! peer, which must be able to see by then that the plan has failed.
//!
//! While operations of the plan are under way, the thread repeats step 1 until it succeeds, and then repeats step 2,
//! for three reasons:
//! - A write of step 2 may not have been enqueued, because the driver returned an error.
//! - A peer may overwrite the words.
//! - Operations may have been enqueued after the last release.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Condvar, Mutex, PoisonError, atomic::Ordering},
    time::{Duration, Instant},
};

use cuda_driver::{Context, Event, EventFlags, Stream, graph::RelaxedCapture};
use process_group::store::Deadline;

use super::{
    Awaited, Fault,
    core::Core,
    shared::{Mirror, Shared},
};
use crate::lock::lock;

/// Interval at which the thread checks whether operations have ended or are past their deadlines. So it notices a
/// passed deadline at most about this much later.
pub(super) const CHECK_INTERVAL: Duration = Duration::from_millis(5);

/// Interval at which the thread reads the abort words in this rank's slots, to see on which peers a plan has failed.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Number of consecutive failed queries of an operation's event after which the device is considered lost.
const UNANSWERED: u32 = 4;

/// An operation that is under way.
struct Watched {
    core: Arc<Core>,
    /// The index of the transfer, and the condition that the operation waits for. `None` exactly if `deadline` is
    /// `None`:
    /// - for [`ready`](super::Plan::ready), which waits for no peer;
    /// - for a call that failed after it had enqueued some of its steps, because the plan has then failed already.
    wait: Option<(usize, Awaited)>,
    stream: Stream,
    done: Arc<Event>,
    since: Instant,
    deadline: Option<Duration>,
    /// Number of consecutive queries that failed.
    unanswered: u32,
}

impl Watched {
    /// Returns true if the operation has ended. Also returns true after [`UNANSWERED`] failed queries of its event in a
    /// row, because the device is then considered lost, and a lost device runs nothing. A single query may fail for
    /// another reason.
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

pub(super) struct Watch {
    state: Mutex<WatchState>,
    changed: Condvar,
    /// Host copy of this rank's slots.
    mirror: Mirror,
    /// The stream on which the copy thread copies. On the control stream, a copy that is blocked in the driver could
    /// also block the writes of the watch thread.
    copies: Stream,
    /// The copy thread records this event after each copy to `mirror`.
    mirrored: Event,
    copy: Mutex<SlotCopy>,
    copy_changed: Condvar,
}

/// The state of the copy of this rank's slots to the host.
#[derive(Clone, Copy)]
enum SlotCopy {
    /// No copy was enqueued yet, or the last one could not be enqueued.
    Missing,
    /// The copy thread is to enqueue a copy.
    Wanted,
    /// The copy thread began to enqueue the copy at this time, and has enqueued it.
    Enqueued(Instant),
    /// The copy thread is to end.
    Ended,
}

#[derive(Default)]
struct WatchState {
    /// Operations under way, in the order of the calls of [`Watch::begin`].
    watched: Vec<Watched>,
    /// Failed plans that [`handle_failed`] has not handled yet, or must handle again.
    failed: Vec<Arc<Core>>,
    /// Events for reuse.
    spare: Vec<Arc<Event>>,
    /// True while the thread sleeps until it is notified, because it has no work.
    idle: bool,
    stopping: bool,
}

impl WatchState {
    fn is_quiet(&self) -> bool {
        self.watched.is_empty() && self.failed.is_empty()
    }

    /// Stores an event for reuse, if nothing else refers to it.
    fn keep(&mut self, event: Arc<Event>) {
        if Arc::strong_count(&event) == 1 {
            self.spare.push(event);
        }
    }
}

impl Watch {
    pub(super) fn new(mirror: Mirror, copies: Stream, mirrored: Event) -> Self {
        let (state, changed) = (Mutex::default(), Condvar::new());
        let (copy, copy_changed) = (Mutex::new(SlotCopy::Missing), Condvar::new());
        Self { state, changed, mirror, copies, mirrored, copy, copy_changed }
    }

    fn set_copy(&self, state: SlotCopy) {
        *lock(&self.copy) = state;
        self.copy_changed.notify_all();
    }

    /// Ends the copy thread.
    pub(super) fn end_copies(&self) {
        self.set_copy(SlotCopy::Ended);
    }

    fn update(&self, change: impl FnOnce(&mut WatchState)) {
        let mut state = lock(&self.state);
        change(&mut state);
        if std::mem::take(&mut state.idle) {
            self.changed.notify_all();
        }
    }

    /// Returns an event to record the end of an operation.
    pub(super) fn event(&self, context: &Context) -> Result<Arc<Event>, cuda_driver::Error> {
        let spare = lock(&self.state).spare.pop();
        match spare {
            Some(event) => Ok(event),
            None => Ok(Arc::new(Event::new(context, EventFlags::DISABLE_TIMING)?)),
        }
    }

    /// Watches an operation that the caller has just enqueued on `stream`. The caller has recorded `done` after the
    /// operation. The operation must end within `deadline` from now. `wait` is the index of the transfer, and the
    /// condition that the operation waits for; it is `None` exactly if `deadline` is. `previous` is the event of the
    /// previous operation of the same transfer, or of the previous [notification](super::Regions::transfer_and_notify)
    /// to the same peer. This event is reused if nothing else refers to it.
    pub(super) fn begin(
        &self,
        core: &Arc<Core>,
        stream: &Stream,
        done: Arc<Event>,
        wait: Option<(usize, Awaited)>,
        deadline: Option<Duration>,
        previous: Option<Arc<Event>>,
    ) {
        core.begun();
        let (core, stream, since) = (core.clone(), stream.clone(), Instant::now());
        let watched = Watched { core, wait, stream, done, since, deadline, unanswered: 0 };
        self.update(|state| {
            state.watched.push(watched);
            previous.into_iter().for_each(|event| state.keep(event));
        });
    }

    /// Hands a failed plan to the thread, which tells the peers and releases the plan's waits.
    pub(super) fn add_failed(&self, core: &Arc<Core>) {
        core.begun();
        self.update(|state| state.failed.push(core.clone()));
    }

    /// Tells the thread to end once nothing is under way.
    pub(super) fn stop(&self) {
        self.update(|state| state.stopping = true);
    }

    /// Waits until no operation of `core` is under way and, if the plan has failed, the thread has handled the failure.
    /// Returns false if the deadline expires first.
    pub(super) fn drain(&self, core: &Core, deadline: Deadline) -> bool {
        let mut state = lock(&self.state);
        while !core.is_idle() {
            if deadline.expired() {
                return false;
            }
            let patience = deadline.remaining().min(CHECK_INTERVAL);
            state = self.changed.wait_timeout(state, patience).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}

/// Main loop of the copy thread. Returns after [`Watch::end_copies`].
pub(super) fn run_copies(shared: &Shared) {
    let _relaxed = RelaxedCapture::enter(shared.context.driver());
    let Watch { mirror, copies, mirrored, copy, copy_changed, .. } = &shared.watch;
    let mut state = lock(copy);
    loop {
        match *state {
            SlotCopy::Ended => return,
            SlotCopy::Missing | SlotCopy::Enqueued(_) => {
                state = copy_changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            SlotCopy::Wanted => {
                drop(state);
                let begun = Instant::now();
                let enqueued = mirror.read_all(shared, copies).and_then(|()| copies.record(mirrored));
                state = lock(copy);
                if !matches!(*state, SlotCopy::Ended) {
                    *state = enqueued.map_or(SlotCopy::Missing, |()| SlotCopy::Enqueued(begun));
                }
            }
        }
    }
}

/// Main loop of the watch thread. Returns when [`Watch::stop`] was called and nothing is under way, and ends the copy
/// thread.
pub(super) fn run(shared: &Shared) {
    // If a capture is open, calls from here must neither join it nor invalidate it.
    let _relaxed = RelaxedCapture::enter(shared.context.driver());
    let watch = &shared.watch;
    let mut state = lock(&watch.state);
    loop {
        if state.is_quiet() {
            if state.stopping {
                return watch.end_copies();
            }
            state.idle = true;
            state = watch.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            continue;
        }
        let mut watched = std::mem::take(&mut state.watched);
        let mut failed = std::mem::take(&mut state.failed);
        drop(state);

        let ended = check_operations(shared, &mut watched, &mut failed);
        check_peers(watch, &watched, &mut failed);
        handle_failed(shared, &watched, &mut failed);

        state = lock(&watch.state);
        // Operations that were added meanwhile stay behind the earlier ones.
        state.watched.splice(..0, watched);
        state.failed.splice(..0, failed);
        ended.into_iter().for_each(|event| state.keep(event));
        watch.changed.notify_all();
        if !state.is_quiet() {
            state =
                watch.changed.wait_timeout(state, CHECK_INTERVAL).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// Describes the first operation on a stream that has not ended. The first value is the operation's plan. The second
/// value is [`Watched::wait`]: the index of the transfer, and the condition that the operation waits for, if there is
/// one.
type FirstOperation = (Arc<Core>, Option<(usize, Awaited)>);

/// Removes from `all` the operations that have ended, and returns their events. Marks plans with operations past their
/// deadline as failed. If the group has ended, marks all plans with operations under way as failed. Adds failed plans
/// with operations under way to `failed`.
fn check_operations(shared: &Shared, all: &mut Vec<Watched>, failed: &mut Vec<Arc<Core>>) -> Vec<Arc<Event>> {
    let over = if all.is_empty() { None } else { shared.info.standing().err() };
    // The first operation under way on each stream, by the stream's handle. Per-thread default streams are left out:
    // all threads have the same handle for theirs.
    let mut busy: HashMap<usize, FirstOperation> = HashMap::new();
    let mut events = Vec::new();
    for mut watched in std::mem::take(all) {
        let stream = watched.stream.raw().addr();
        let waited = watched.since.elapsed();
        let late = watched.deadline.is_some_and(|deadline| waited >= deadline);
        // An operation behind one that is under way on the same stream is under way too, so it is not queried. An
        // operation past its deadline is queried in any case: two threads may call `begin` in another order than they
        // enqueued, so it may come first on the stream although it is not the first in this list.
        if (late || !busy.contains_key(&stream)) && watched.has_ended() {
            watched.core.ended();
            events.push(watched.done);
            continue;
        }
        // The fault names the condition that blocks the stream: that of the stream's first operation, if it is of the
        // same plan.
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
                let peer = watched.core.endpoints.get(transfer).map_or(u32::MAX, |endpoint| endpoint.peer);
                Some(Fault::Late { transfer, peer, awaited, waited })
            }
            _ => None,
        };
        if let Some(fault) = fault {
            watched.core.fail(fault);
        }
        // As long as an operation of a failed plan is under way, `handle_failed` releases the plan's waits again in
        // each iteration of `run`, for operations that were enqueued after the last release.
        if watched.core.fault().is_err() {
            watched.core.begun();
            failed.push(watched.core.clone());
        }
        all.push(watched);
    }
    events
}

/// If an operation has waited for [`POLL_INTERVAL`], asks the copy thread to copy the slots to the host. A later call
/// of this function reads the copy. If the copy shows that the operation's plan has failed on a peer, the later call
/// marks the plan as failed on this rank too, and adds it to `failed`.
fn check_peers(watch: &Watch, watched: &[Watched], failed: &mut Vec<Arc<Core>>) {
    let takes_long = |watched: &&Watched| {
        watched.wait.is_some() && watched.since.elapsed() >= POLL_INTERVAL && watched.core.fault().is_ok()
    };
    let waits = || watched.iter().filter(takes_long);
    // While a copy is wanted, only the copy thread changes this state, and otherwise only this thread.
    let copy = *lock(&watch.copy);
    let is_recent = |at: Instant| at.elapsed() < POLL_INTERVAL;
    match copy {
        SlotCopy::Wanted | SlotCopy::Ended => return,
        SlotCopy::Enqueued(at) if is_recent(at) => return,
        _ if waits().next().is_none() => return,
        SlotCopy::Missing => {}
        SlotCopy::Enqueued(at) => match watch.mirrored.query() {
            // No second copy is enqueued before the first has ended. If the device is stuck, copies would fill its
            // queue.
            Ok(false) => return,
            // Only operations that began before the copy are checked. A copy enqueued before an operation began may
            // still hold the words of an earlier plan that used the same slots.
            Ok(true) => {
                for watched in waits().filter(|watched| watched.since < at) {
                    if let Some(peer) = watch.mirror.abandoned(&watched.core) {
                        watched.core.fail(Fault::Abandoned { peer });
                        watched.core.begun();
                        failed.push(watched.core.clone());
                    }
                }
            }
            Err(_) => {}
        },
    }
    watch.set_copy(SlotCopy::Wanted);
}

/// Reports failed plans to their peers, and releases the plans' waits on this rank. Keeps those plans in `failed` that
/// have operations under way.
fn handle_failed(shared: &Shared, watched: &[Watched], failed: &mut Vec<Arc<Core>>) {
    let mut seen = HashSet::new();
    failed.retain(|core| {
        let again = seen.insert(Arc::as_ptr(core)) && tell_and_release(shared, watched, core);
        if !again {
            core.ended();
        }
        again
    });
}

/// Reports a failed plan to its peers, and releases the plan's waits on this rank. Returns true if the call must be
/// repeated, because operations of the plan are under way.
fn tell_and_release(shared: &Shared, watched: &[Watched], core: &Arc<Core>) -> bool {
    let under_way = watched.iter().any(|watched| Arc::ptr_eq(&watched.core, core));
    if !core.told.load(Ordering::Acquire) {
        // SAFETY: `word` is a word of a peer's slot. The peers' slots stay mapped as long as `shared` lives.
        let tell = |word| unsafe { shared.control.write_value32(word, 1) };
        if core.endpoints.iter().map(|endpoint| endpoint.theirs.abort).try_for_each(tell).is_err() {
            return under_way;
        }
        core.told.store(true, Ordering::Release);
    }
    for endpoint in &core.endpoints {
        let awaited = endpoint.awaited.load(Ordering::Acquire);
        // The stream runs this write after the writes to the peers, because it is the same stream. If the write cannot
        // be enqueued, the next call of this function repeats it.
        // SAFETY: `own.count` is a word of this rank's slots, which stay mapped as long as `shared` lives.
        let _ = unsafe { shared.control.write_value32(endpoint.own.count, awaited) };
        if core.captured.load(Ordering::Acquire) {
            // SAFETY: as above, for `own.toggle`.
            let _ = unsafe { shared.control.write_value32(endpoint.own.toggle, 1) };
        }
    }
    under_way
}
