//! Controls which threads may call NCCL on a communicator, and when.
//!
//! NCCL allows only one thread at a time to use a communicator, and none once the communicator is being freed. The
//! guard enforces both rules. A thread holds an [`Entry`] while it is inside NCCL. An abort closes the guard and waits
//! until no thread holds an entry. The guard's own lock is never held during an NCCL call.
//!
//! While a thread has an open NCCL group with queued work of the communicator, the group holds the communicator. Other
//! threads that want to enqueue work wait until the group ends, and so do management calls of all threads. Local calls,
//! such as registrations, do not wait for the group. They wait only while another call is inside NCCL.
//!
//! Most calls enter an open guard while no other thread uses it. Such a call changes one word from 0 to [`INSIDE`] and
//! back, and never takes the lock. A thread that takes the lock sets [`LOCKED`] in the word, which makes all other
//! threads take the lock too. The thread clears [`LOCKED`] when it releases the lock, but only if the guard is open,
//! empty, held by no group, and has no waiting threads.

mod rights;

use std::{
    fmt,
    sync::{Arc, PoisonError, Weak},
    thread::{self, ThreadId},
    time::Duration,
};

use self::rights::Locked;
pub(crate) use self::rights::{Entry, Observer};
use super::{
    CommError, Result, open_group,
    service::{Force, Listener},
};
use crate::{
    store::Deadline,
    sync::{
        Event, Mutex,
        atomic::{AtomicU8, Ordering},
    },
};

/// Kind of a call, which decides in which states the guard admits it. All kinds have exclusive access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Concerns only this rank, so the call is admitted while a group holds the communicator.
    Local,
    /// Like `Local`, but also admitted if the communicator is poisoned.
    Cleanup,
    /// Enqueues work on a stream, or queues work in this thread's open group.
    Enqueue,
    /// Ends this thread's group. Always admitted, even during an abort, because NCCL's group would stay open otherwise.
    /// The abort frees nothing until this call has returned.
    GroupEnd,
    /// A management call that every rank makes. Not admitted while a group holds the communicator.
    Collective,
    /// Like `Collective`, but also admitted if the communicator is revoked. Makes a child communicator, or the unique
    /// id for a growth.
    Child,
    /// Like `Child`, but also admitted if the communicator is poisoned. Shrinks it after a failure.
    Rescue,
    /// Like `Child`, but also admitted if the communicator is suspended. Suspends, resumes or finalizes it.
    Suspended,
    /// Makes the communicator. No other call is admitted before the communicator is made.
    Making,
}

/// Life-cycle state of the communicator. Decides which calls are admitted.
#[derive(Debug, Clone)]
enum Phase {
    /// NCCL has not made the communicator. Only the call that makes it is admitted.
    Unmade,
    Open,
    /// A call failed or is late. Contains the reason. Only calls of kind `Cleanup`, `Rescue` or `GroupEnd`, queries,
    /// and an abort are admitted.
    Poisoned(Arc<str>),
    /// The communicator is being destroyed or aborted, or has ended. Contains a description of how it ended.
    Closed(Arc<str>),
}

/// Progress of the call that frees the communicator.
#[derive(Debug)]
enum Freeing {
    /// No call frees the communicator, or it has returned without an error.
    Idle,
    /// The guard was closed for this call, which has not returned.
    Running(&'static str),
    /// The communicator could not be freed, for this reason.
    Failed(String),
}

/// The reason why a communicator is not freed.
#[derive(Debug)]
pub(crate) enum Unfreed {
    /// This call has not returned, or this holds the communicator.
    Held(&'static str),
    /// The communicator could not be freed, for this reason.
    Failed(String),
}

struct State {
    phase: Phase,
    /// True while the communicator is being revoked, and once it is revoked. Further work is refused.
    revoked: bool,
    /// True while the communicator is suspended or about to be suspended. Work and the making of children are refused.
    suspended: bool,
    inside: Option<&'static str>,
    /// Progress of the call that frees the communicator.
    freeing: Freeing,
    group: Option<ThreadId>,
    /// Number of threads that only query the communicator. They may run beside the thread in `inside`.
    observers: usize,
    /// Number of threads that wait for a change of this state. If it is 0, no wake-up system call is made.
    waiting: usize,
    /// Called on aborts. Protected by the same lock as `phase`: an abort that finds the guard closed also finds the
    /// listener that was added when the guard closed.
    listeners: Vec<Weak<Listener>>,
}

/// Bit of the word: a call that entered without the lock is inside NCCL.
const INSIDE: u8 = 1;
/// Bit of the word: calls must take the lock and check the state.
const LOCKED: u8 = 2;

/// Controls which threads may call NCCL with one communicator, and when.
pub(crate) struct CallGuard {
    communicator: String,
    word: AtomicU8,
    state: Mutex<State>,
    changed: Event,
}

impl CallGuard {
    /// Makes the guard of a communicator that NCCL has not made yet. `communicator` is the communicator's name in
    /// errors.
    pub(crate) fn new(communicator: String) -> Self {
        let phase = Phase::Unmade;
        let state = State {
            phase,
            revoked: false,
            suspended: false,
            inside: None,
            freeing: Freeing::Idle,
            group: None,
            observers: 0,
            waiting: 0,
            listeners: Vec::new(),
        };
        let word = AtomicU8::new(LOCKED);
        Self {
            communicator,
            word,
            state: Mutex::new(state),
            changed: Event::new("a communicator to be free"),
        }
    }

    /// Opens the guard after NCCL has made the communicator. Does nothing if the guard is poisoned or closed.
    pub(crate) fn open(&self) {
        let mut state = self.lock();
        if matches!(state.phase, Phase::Unmade) {
            state.phase = Phase::Open;
        }
    }

    /// Returns true if the communicator is not made yet and the guard was neither poisoned nor closed.
    pub(crate) fn is_unmade(&self) -> bool {
        matches!(self.lock().phase, Phase::Unmade)
    }

    /// Closes the guard and returns true if NCCL has not begun to make the communicator. There is nothing to destroy
    /// then. Otherwise changes nothing and returns `false`.
    pub(crate) fn close_unmade(&self, how: &str) -> bool {
        let mut state = self.lock();
        let idle = matches!(state.phase, Phase::Unmade) && state.inside.is_none();
        if idle {
            state.phase = Phase::Closed(how.into());
        }
        self.changed(state);
        idle
    }

    /// Returns the communicator's name as it appears in errors.
    pub(crate) fn name(&self) -> &str {
        &self.communicator
    }

    fn lock(&self) -> Locked<'_> {
        // Every change of the state is a single assignment, so the state is consistent even after a panic.
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.word.fetch_or(LOCKED, Ordering::Acquire);
        Locked { guard: self, state: Some(state) }
    }

    /// Releases the lock after a change of the state, and wakes the threads that wait for changes.
    fn changed(&self, state: Locked<'_>) {
        let waiting = state.waiting > 0;
        drop(state);
        if waiting {
            self.changed.notify_all();
        }
    }

    /// Waits until the state changes or `deadline` passes.
    fn wait<'a>(&'a self, mut locked: Locked<'a>, deadline: Option<Deadline>) -> Locked<'a> {
        locked.waiting += 1;
        // `LOCKED` stays set in the word during the wait, because `waiting` is not 0.
        let limit = deadline.map_or(Duration::MAX, |deadline| deadline.remaining());
        locked.state = locked.state.take().map(|state| self.changed.wait_unlocked(&self.state, state, limit));
        locked.waiting -= 1;
        locked
    }

    /// Returns the name of the call that is inside NCCL, if any.
    fn inside(&self, state: &State) -> Option<&'static str> {
        // While this thread holds the lock, no call can enter without it. A call that did so earlier can only leave.
        let past = self.word.load(Ordering::Acquire) & INSIDE != 0;
        state.inside.or_else(|| past.then_some("the enqueueing of an operation"))
    }

    fn admitted(&self, state: &State, call: &'static str) -> Result<()> {
        let communicator = || self.communicator.clone();
        match &state.phase {
            Phase::Open => Ok(()),
            Phase::Unmade => Err(CommError::Unmade { call, communicator: communicator() }),
            Phase::Poisoned(reason) => {
                Err(CommError::Poisoned { call, communicator: communicator(), reason: reason.to_string() })
            }
            Phase::Closed(how) => {
                Err(CommError::Closed { call, communicator: communicator(), how: how.to_string() })
            }
        }
    }

    fn suspended_error(&self, call: &'static str) -> CommError {
        CommError::Suspended { call, communicator: self.communicator.clone() }
    }

    /// Fails if the communicator is not made yet, poisoned, closed or suspended.
    pub(crate) fn check(&self, call: &'static str) -> Result<()> {
        let state = self.lock();
        self.admitted(&state, call)?;
        if state.suspended { Err(self.suspended_error(call)) } else { Ok(()) }
    }

    /// Fails only if the communicator is being destroyed or aborted, or has ended.
    pub(crate) fn check_not_closed(&self, call: &'static str) -> Result<()> {
        match self.check(call) {
            Err(closed @ CommError::Closed { .. }) => Err(closed),
            _ => Ok(()),
        }
    }

    /// Returns true if the communicator is being destroyed or aborted, or has ended.
    pub(crate) fn is_closed(&self) -> bool {
        matches!(self.lock().phase, Phase::Closed(_))
    }

    /// Waits until no other thread is inside NCCL with the communicator and no group excludes the call, then enters.
    /// Without a `deadline` the wait has no limit. Fails if the communicator's state does not admit a call of this
    /// `kind`, if the deadline passes, or if a wait for another thread's open group could deadlock.
    #[inline]
    pub(crate) fn enter(
        &self,
        call: &'static str,
        kind: Kind,
        deadline: Option<Deadline>,
    ) -> Result<Entry<'_>> {
        if kind == Kind::Enqueue
            && self.word.compare_exchange(0, INSIDE, Ordering::Acquire, Ordering::Relaxed).is_ok()
        {
            return Ok(Entry { guard: self });
        }
        self.enter_locked(call, kind, deadline)
    }

    #[cold]
    fn enter_locked(&self, call: &'static str, kind: Kind, deadline: Option<Deadline>) -> Result<Entry<'_>> {
        let mut state = self.lock();
        loop {
            match (kind, self.admitted(&state, call)) {
                (Kind::Rescue, Err(CommError::Poisoned { .. })) if state.suspended => {
                    return Err(self.suspended_error(call));
                }
                (Kind::GroupEnd, _)
                | (Kind::Rescue | Kind::Cleanup, Err(CommError::Poisoned { .. }))
                | (Kind::Making, Err(CommError::Unmade { .. })) => {}
                (Kind::Enqueue | Kind::Collective, Ok(())) if state.revoked => {
                    return Err(CommError::Revoked { call, communicator: self.communicator.clone() });
                }
                (Kind::Enqueue | Kind::Collective | Kind::Child | Kind::Rescue, Ok(()))
                    if state.suspended =>
                {
                    return Err(self.suspended_error(call));
                }
                (_, admitted) => admitted?,
            }
            let held_by_other = state.group.is_some_and(|owner| owner != thread::current().id());
            let busy_with = match (self.inside(&state), kind) {
                (Some(inside), _) => inside,
                (None, Kind::Collective | Kind::Child | Kind::Rescue | Kind::Suspended | Kind::Making)
                    if state.group.is_some() =>
                {
                    "an open group"
                }
                (None, Kind::Enqueue) if held_by_other => "another thread's open group",
                (None, _) => break,
            };
            if kind == Kind::Enqueue && held_by_other && open_group::is_open() {
                return Err(CommError::GroupConflict { call, communicator: self.communicator.clone() });
            }
            if let Some(deadline) = deadline.filter(Deadline::expired) {
                let (communicator, waited) = (self.communicator.clone(), deadline.waited());
                return Err(CommError::Busy { call, communicator, busy_with, waited });
            }
            state = self.wait(state, deadline);
        }
        state.inside = Some(call);
        Ok(Entry { guard: self })
    }

    #[cold]
    fn leave_locked(&self) {
        let mut state = self.lock();
        state.inside = None;
        self.word.fetch_and(!INSIDE, Ordering::Release);
        self.changed(state);
    }

    /// Admits a query that NCCL allows while another thread is inside. A poisoned communicator may be queried, a closed
    /// one may not.
    pub(crate) fn observe(&self, call: &'static str) -> Result<Observer<'_>> {
        let mut state = self.lock();
        match self.admitted(&state, call) {
            Ok(()) | Err(CommError::Poisoned { .. }) => state.observers += 1,
            Err(error) => return Err(error),
        }
        Ok(Observer { guard: self })
    }

    /// Records that the calling thread's open group holds the communicator. The caller holds an entry.
    pub(crate) fn join_group(&self) {
        self.lock().group = Some(thread::current().id());
    }

    /// Records that the calling thread's group no longer holds the communicator.
    pub(crate) fn leave_group(&self) {
        let mut state = self.lock();
        state.group = None;
        self.changed(state);
    }

    /// Poisons the communicator: from now on it takes no work. Keeps the first reason if called several times. Does
    /// nothing if the guard is closed.
    pub(crate) fn poison(&self, reason: &str) {
        let mut state = self.lock();
        if matches!(state.phase, Phase::Open | Phase::Unmade) {
            state.phase = Phase::Poisoned(reason.into());
        }
        self.changed(state);
    }

    /// Records whether the communicator is revoked or about to be revoked. In both cases the guard refuses work.
    pub(crate) fn set_revoked(&self, revoked: bool) {
        let mut state = self.lock();
        state.revoked = revoked;
        self.changed(state);
    }

    /// Records whether the communicator is suspended.
    pub(crate) fn set_suspended(&self, suspended: bool) {
        let mut state = self.lock();
        state.suspended = suspended;
        self.changed(state);
    }

    /// Returns true if the communicator is suspended or about to be suspended.
    pub(crate) fn is_suspended(&self) -> bool {
        self.lock().suspended
    }

    /// Returns true if the communicator is revoked or being revoked.
    pub(crate) fn is_revoked(&self) -> bool {
        self.lock().revoked
    }

    /// Closes the guard: every call but the end of an open group is refused from now on. Returns `false` and changes
    /// nothing if the guard was closed already. `freeing` names the NCCL call with which the caller will free the
    /// communicator, if any. After that call the caller must call [`set_freed`](Self::set_freed).
    pub(crate) fn close(&self, how: &str, freeing: Option<&'static str>) -> bool {
        let mut state = self.lock();
        let first = !matches!(state.phase, Phase::Closed(_));
        if first {
            state.phase = Phase::Closed(how.into());
            state.freeing = freeing.map_or(Freeing::Idle, Freeing::Running);
        }
        self.changed(state);
        first
    }

    /// Replaces the text that says how the communicator ended.
    pub(crate) fn set_ending(&self, how: &str) {
        self.lock().phase = Phase::Closed(how.into());
    }

    /// Records the result of the call that frees the communicator, or the reason why it was not made.
    pub(crate) fn set_freed(&self, freed: Result<(), &CommError>) {
        let mut state = self.lock();
        state.freeing = match freed {
            Ok(()) => Freeing::Idle,
            Err(error) => Freeing::Failed(error.to_string()),
        };
        self.changed(state);
    }

    /// Closes the guard if the communicator is made and not poisoned, and fails otherwise. From then on `listener` is
    /// called on aborts, as with [`tell`](Self::tell).
    pub(crate) fn close_working(
        &self,
        call: &'static str,
        how: &str,
        listener: &Arc<Listener>,
    ) -> Result<()> {
        let mut state = self.lock();
        self.admitted(&state, call)?;
        state.phase = Phase::Closed(how.into());
        state.freeing = Freeing::Running(call);
        state.listeners.push(Arc::downgrade(listener));
        self.changed(state);
        Ok(())
    }

    /// Calls `listener` on every abort from now on, as long as the listener is alive. If the guard is closed already,
    /// for any reason, also calls `listener` at once.
    pub(crate) fn tell(&self, listener: &Arc<Listener>) {
        let mut state = self.lock();
        state.listeners.retain(|listener| listener.strong_count() > 0);
        state.listeners.push(Arc::downgrade(listener));
        let is_closed = matches!(state.phase, Phase::Closed(_));
        drop(state);
        if is_closed {
            listener(Force::Aborted);
        }
    }

    /// Stops calling `listener` on aborts.
    pub(crate) fn tell_no_more(&self, listener: &Arc<Listener>) {
        let listener = Arc::downgrade(listener);
        self.lock().listeners.retain(|other| !other.ptr_eq(&listener));
    }

    /// Notifies the listeners of an abort, so threads that wait for calls of this rank stop waiting. Called after the
    /// guard is closed, so a listener that is added later is called by [`tell`](Self::tell). Exception: the abort of an
    /// adopted communicator poisons the guard and does not close it.
    pub(crate) fn interrupt(&self, force: Force) {
        let listeners = self.lock().listeners.clone();
        listeners.iter().filter_map(Weak::upgrade).for_each(|listener| listener(force));
    }

    /// Waits until no thread is inside NCCL with the communicator, no thread queries it, and no group holds it. After
    /// the deadline, fails with the name of a call that is still inside.
    pub(crate) fn wait_empty(&self, deadline: Deadline) -> Result<(), &'static str> {
        let mut state = self.lock();
        while let Some(held) = self.held(&state) {
            if deadline.expired() {
                return Err(held);
            }
            state = self.wait(state, Some(deadline));
        }
        Ok(())
    }

    /// Waits as [`wait_empty`](Self::wait_empty) does, and until the call that frees the communicator has returned.
    pub(crate) fn wait_freed(&self, deadline: Deadline) -> Result<(), Unfreed> {
        let mut state = self.lock();
        loop {
            let held = match (self.held(&state), &state.freeing) {
                (Some(held), _) => held,
                (None, Freeing::Running(call)) => call,
                (None, Freeing::Failed(why)) => return Err(Unfreed::Failed(why.clone())),
                (None, Freeing::Idle) => return Ok(()),
            };
            if deadline.expired() {
                return Err(Unfreed::Held(held));
            }
            state = self.wait(state, Some(deadline));
        }
    }

    /// Returns the name of a call that is inside NCCL with the communicator, or of what else holds the communicator.
    fn held(&self, state: &State) -> Option<&'static str> {
        match (self.inside(state), state.group, state.observers) {
            (Some(call), _, _) => Some(call),
            (None, Some(_), _) => Some("an open group"),
            (None, None, 1..) => Some("a query"),
            (None, None, 0) => None,
        }
    }

    /// Enters the closed guard for the destruction or release that closed it. The guard must be empty; no other thread
    /// enters it any more.
    pub(crate) fn enter_closed(&self, call: &'static str) -> Entry<'_> {
        self.lock().inside = Some(call);
        Entry { guard: self }
    }
}

impl fmt::Debug for CallGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallGuard").field("communicator", &self.communicator).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod interleavings;

#[cfg(test)]
mod tests;
