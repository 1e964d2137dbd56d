//! Controls which threads may call NCCL on a communicator, and when.
//!
//! NCCL allows one thread at a time on a communicator, and none once it is being freed. The guard enforces both rules.
//! A call holds an [`Entry`] while it is inside NCCL. An abort closes the guard and waits until no thread is inside.
//! The guard's own lock is never held during a call of NCCL.
//!
//! While a thread has an open NCCL group with queued work of the communicator, the communicator belongs to that
//! group, and other threads' collectives wait. Local calls (registration) exclude only calls that are inside.
//!
//! Most calls find an open, idle guard and leave it idle. They change one word from 0 to [`INSIDE`] and back, and
//! never take the lock. A thread that takes the lock sets [`LOCKED`] in the word, which sends all other threads to
//! the lock. It clears [`LOCKED`] only when the guard is open, empty, held by no group, and has no waiting threads.

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

/// Admission rules of a call, besides exclusive access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Touches only this rank's bookkeeping, so it may run while another thread's group is open.
    Local,
    /// Like `Local`, but also admitted by a poisoned communicator.
    Cleanup,
    /// Enqueues work, or queues it in this thread's open group.
    Enqueue,
    /// Ends this thread's group. It must run even while the communicator is being aborted, because NCCL's group would
    /// stay open otherwise. The abort waits for it before it frees anything.
    GroupEnd,
    /// A management call that every rank makes. No group may hold the communicator.
    Collective,
    /// Like `Collective`, but also admitted by a revoked communicator: makes a communicator from this one, or ends
    /// it.
    Child,
    /// Like `Child`, but also admitted by a poisoned communicator.
    Rescue,
    /// Like `Child`, but also admitted by a suspended communicator: suspends, resumes or ends it.
    Suspended,
    /// The call that makes the communicator. No other call is admitted before it.
    Making,
}

/// State of the communicator that decides which calls are admitted.
#[derive(Debug, Clone)]
enum Phase {
    /// NCCL has not made it. Only the call that makes it is admitted.
    Unmade,
    Open,
    /// A call failed or is late. Only an abort is admitted.
    Poisoned(Arc<str>),
    /// Being destroyed or aborted, or gone.
    Closed(Arc<str>),
}

struct State {
    phase: Phase,
    /// True once the work was given up. Further work is refused.
    revoked: bool,
    /// True while NCCL has released the communicator's memory, or is about to. Work and children are refused.
    suspended: bool,
    inside: Option<&'static str>,
    group: Option<ThreadId>,
    /// Threads that only query the communicator, beside the thread inside.
    observers: usize,
    /// Threads that wait for a change. Without any, the wake-up system call is skipped.
    waiting: usize,
    /// Called on aborts. Kept under this lock, so an abort that finds the guard closed also finds the listeners added
    /// when it closed.
    listeners: Vec<Weak<Listener>>,
}

/// A call that did not take the lock is inside.
const INSIDE: u8 = 1;
/// The state under the lock decides.
const LOCKED: u8 = 2;

/// The guard of one communicator.
pub(crate) struct CallGuard {
    communicator: String,
    word: AtomicU8,
    state: Mutex<State>,
    changed: Event,
}

impl CallGuard {
    /// Makes the guard of a communicator that is not made yet. `communicator` is the communicator's name in errors.
    pub(crate) fn new(communicator: String) -> Self {
        let phase = Phase::Unmade;
        let state = State {
            phase,
            revoked: false,
            suspended: false,
            inside: None,
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

    /// Opens the guard once the communicator is made.
    pub(crate) fn open(&self) {
        let mut state = self.lock();
        if matches!(state.phase, Phase::Unmade) {
            state.phase = Phase::Open;
        }
    }

    /// Returns true if NCCL has neither made the communicator nor failed to make it.
    pub(crate) fn is_unmade(&self) -> bool {
        matches!(self.lock().phase, Phase::Unmade)
    }

    /// Closes the guard if the communicator was never made and is not being made; it then needs no end. Returns
    /// `false` for any other.
    pub(crate) fn close_unmade(&self, how: &str) -> bool {
        let mut state = self.lock();
        let idle = matches!(state.phase, Phase::Unmade) && state.inside.is_none();
        if idle {
            state.phase = Phase::Closed(how.into());
        }
        self.changed(state);
        idle
    }

    /// Returns the communicator's name in errors.
    pub(crate) fn name(&self) -> &str {
        &self.communicator
    }

    fn lock(&self) -> Locked<'_> {
        // Every change of the state is one assignment, so a panic elsewhere leaves it consistent.
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.word.fetch_or(LOCKED, Ordering::Acquire);
        Locked { guard: self, state: Some(state) }
    }

    /// Releases the state after a change, and wakes the threads that wait for one.
    fn changed(&self, state: Locked<'_>) {
        let waiting = state.waiting > 0;
        drop(state);
        if waiting {
            self.changed.notify_all();
        }
    }

    /// Waits for a change.
    fn wait<'a>(&'a self, mut locked: Locked<'a>, deadline: Option<Deadline>) -> Locked<'a> {
        locked.waiting += 1;
        // The word stays locked meanwhile because `waiting` is not 0.
        let limit = deadline.map_or(Duration::MAX, |deadline| deadline.remaining());
        locked.state = locked.state.take().map(|state| self.changed.wait_unlocked(&self.state, state, limit));
        locked.waiting -= 1;
        locked
    }

    /// Returns the name of the call that is inside, if any.
    fn inside(&self, state: &State) -> Option<&'static str> {
        // While the lock is held no call can pass it by, so a call that is inside now can only leave.
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

    /// Checks that calls are admitted, and that the communicator is not suspended.
    pub(crate) fn check(&self, call: &'static str) -> Result<()> {
        let state = self.lock();
        self.admitted(&state, call)?;
        if state.suspended { Err(self.suspended_error(call)) } else { Ok(()) }
    }

    /// Like [`check`](Self::check), but fails only if an end has begun.
    pub(crate) fn check_not_closed(&self, call: &'static str) -> Result<()> {
        match self.check(call) {
            Err(closed @ CommError::Closed { .. }) => Err(closed),
            _ => Ok(()),
        }
    }

    /// Returns true if no call is admitted any more.
    pub(crate) fn is_closed(&self) -> bool {
        matches!(self.lock().phase, Phase::Closed(_))
    }

    /// Enters as soon as no thread is inside. `deadline`, if any, bounds the wait.
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

    /// Admits a query that NCCL allows beside a call. A poisoned communicator may be queried, a closed one may not.
    pub(crate) fn observe(&self, call: &'static str) -> Result<Observer<'_>> {
        let mut state = self.lock();
        match self.admitted(&state, call) {
            Ok(()) | Err(CommError::Poisoned { .. }) => state.observers += 1,
            Err(error) => return Err(error),
        }
        Ok(Observer { guard: self })
    }

    /// Gives the communicator to the calling thread's open group. The caller is inside.
    pub(crate) fn join_group(&self) {
        self.lock().group = Some(thread::current().id());
    }

    /// Ends the calling thread's group on this communicator.
    pub(crate) fn leave_group(&self) {
        let mut state = self.lock();
        state.group = None;
        self.changed(state);
    }

    /// Admits nothing but an abort from now on. The first reason is kept.
    pub(crate) fn poison(&self, reason: &str) {
        let mut state = self.lock();
        if matches!(state.phase, Phase::Open | Phase::Unmade) {
            state.phase = Phase::Poisoned(reason.into());
        }
        self.changed(state);
    }

    /// Refuses work from now on.
    pub(crate) fn revoke(&self) {
        let mut state = self.lock();
        state.revoked = true;
        self.changed(state);
    }

    /// Records whether the communicator is suspended.
    pub(crate) fn set_suspended(&self, suspended: bool) {
        let mut state = self.lock();
        state.suspended = suspended;
        self.changed(state);
    }

    /// Returns true if the communicator is suspended, or about to be.
    pub(crate) fn is_suspended(&self) -> bool {
        self.lock().suspended
    }

    /// Returns true if work is refused.
    pub(crate) fn is_revoked(&self) -> bool {
        self.lock().revoked
    }

    /// Refuses every call from now on. Returns `false`, without a change, if the guard was closed already.
    pub(crate) fn close(&self, how: &str) -> bool {
        let mut state = self.lock();
        let first = !matches!(state.phase, Phase::Closed(_));
        if first {
            state.phase = Phase::Closed(how.into());
        }
        self.changed(state);
        first
    }

    /// Records how a closed communicator ended.
    pub(crate) fn set_ending(&self, how: &str) {
        self.lock().phase = Phase::Closed(how.into());
    }

    /// Closes the guard of a working communicator, and fails for any other. From then on `listener` is called on
    /// aborts, as with [`tell`](Self::tell).
    pub(crate) fn close_working(
        &self,
        call: &'static str,
        how: &str,
        listener: &Arc<Listener>,
    ) -> Result<()> {
        let mut state = self.lock();
        self.admitted(&state, call)?;
        state.phase = Phase::Closed(how.into());
        state.listeners.push(Arc::downgrade(listener));
        self.changed(state);
        Ok(())
    }

    /// Calls `listener` on aborts from now on, as long as it is alive. Calls it at once if the guard is closed for any
    /// reason.
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

    /// Removes `listener`.
    pub(crate) fn tell_no_more(&self, listener: &Arc<Listener>) {
        let listener = Arc::downgrade(listener);
        self.lock().listeners.retain(|other| !other.ptr_eq(&listener));
    }

    /// Called when an abort begins on a closed guard. Notifies the listeners, so threads that wait for this rank's
    /// calls stop waiting.
    pub(crate) fn interrupt(&self, force: Force) {
        let listeners = self.lock().listeners.clone();
        listeners.iter().filter_map(Weak::upgrade).for_each(|listener| listener(force));
    }

    /// Waits until no thread is inside or queries, and no group holds queued work. The error names the call that
    /// still holds the guard.
    pub(crate) fn wait_empty(&self, deadline: Deadline) -> Result<(), &'static str> {
        let mut state = self.lock();
        loop {
            let held = match (self.inside(&state), state.group, state.observers) {
                (Some(call), _, _) => call,
                (None, Some(_), _) => "an open group",
                (None, None, 1..) => "a query",
                (None, None, 0) => return Ok(()),
            };
            if deadline.expired() {
                return Err(held);
            }
            state = self.wait(state, Some(deadline));
        }
    }

    /// Enters the closed guard, for the destruction that closed it. No other call is admitted any more.
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
