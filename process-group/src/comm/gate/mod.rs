//! Who may call NCCL on a communicator, and when.
//!
//! NCCL allows one thread at a time on a communicator, and nobody once it is being freed. The gate keeps both
//! rules: a call holds an [`Entry`] while it is inside NCCL; an abort closes the gate and waits until nobody is
//! inside any more. The gate's own lock is never held during a call of NCCL.
//!
//! While a thread has an open NCCL group with queued work of the communicator, the communicator belongs to that
//! group: other threads' collectives wait. Local calls (registration) need to exclude only calls that are inside.
//!
//! Most calls find an open gate that nobody is near, and leave one: they change one word, 0 to [`INSIDE`] and back, and
//! never take the lock. Who takes it sets [`LOCKED`] in the word, which sends everybody else to the lock, and takes
//! that away again only when the gate is open, empty, in no group and waited for by nobody.

mod rights;

use std::{
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        atomic::{AtomicU8, Ordering},
    },
    thread::{self, ThreadId},
};

use self::rights::Locked;
pub(crate) use self::rights::{Entry, Observer};
use super::{CommError, Result, group};
use crate::store::Deadline;

/// What a call needs besides being alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Touches only this rank's bookkeeping: may happen while a group is open elsewhere.
    Local,
    /// Enqueues work, or queues it in this thread's open group.
    Enqueue,
    /// Ends this thread's group: must happen even when the communicator is being aborted, because NCCL's group
    /// would stay open otherwise. The abort waits for it before it frees anything.
    GroupEnd,
    /// A management call that every rank makes: no group may hold the communicator.
    Collective,
    /// The same, of those that a revoked communicator takes too: makes a communicator of this one, or ends it.
    Child,
    /// The same, of those that a poisoned communicator takes too.
    Rescue,
    /// The call that makes the communicator, which nothing comes before.
    Making,
}

/// Whether calls are let in.
#[derive(Debug, Clone)]
enum Phase {
    /// NCCL has not made it: nothing is let in but the call that does.
    Unmade,
    Open,
    /// A call failed or is late; only an abort is let in.
    Poisoned(Arc<str>),
    /// Being destroyed or aborted, or gone.
    Closed(Arc<str>),
}

#[derive(Debug)]
struct State {
    phase: Phase,
    /// Whether work was given up, and no more is taken.
    revoked: bool,
    inside: Option<&'static str>,
    group: Option<ThreadId>,
    /// Threads that only look, beside whoever is inside.
    observers: usize,
    /// Threads that wait for a change: to wake nobody costs a call of the system too.
    waiting: usize,
}

/// A call that went past the lock is inside.
const INSIDE: u8 = 1;
/// The lock's state decides.
const LOCKED: u8 = 2;

/// The gate of one communicator.
#[derive(Debug)]
pub(crate) struct Gate {
    communicator: String,
    word: AtomicU8,
    state: Mutex<State>,
    changed: Condvar,
}

impl Gate {
    /// The gate of what is not made yet; `communicator` is how errors call its owner.
    pub(crate) fn new(communicator: String) -> Self {
        let phase = Phase::Unmade;
        let state = State { phase, revoked: false, inside: None, group: None, observers: 0, waiting: 0 };
        let word = AtomicU8::new(LOCKED);
        Self { communicator, word, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Lets calls in: the communicator is made.
    pub(crate) fn open(&self) {
        let mut state = self.lock();
        if matches!(state.phase, Phase::Unmade) {
            state.phase = Phase::Open;
        }
    }

    /// Whether NCCL has not made it, and is not asked to again.
    pub(crate) fn is_unmade(&self) -> bool {
        matches!(self.lock().phase, Phase::Unmade)
    }

    /// Closes the gate of what was never made, and is not being made: there is nothing to end. `false` for any other.
    pub(crate) fn close_unmade(&self, how: &str) -> bool {
        let mut state = self.lock();
        let idle = matches!(state.phase, Phase::Unmade) && state.inside.is_none();
        if idle {
            state.phase = Phase::Closed(how.into());
        }
        self.changed(state);
        idle
    }

    /// How errors call the communicator.
    pub(crate) fn name(&self) -> &str {
        &self.communicator
    }

    fn lock(&self) -> Locked<'_> {
        // Every change of the state is one assignment, so a panic elsewhere leaves it consistent.
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.word.fetch_or(LOCKED, Ordering::Acquire);
        Locked { gate: self, state: Some(state) }
    }

    /// Lets go of the state after a change, and wakes those who wait for one.
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
        // The word stays locked meanwhile, since somebody waits.
        locked.state = locked.state.take().map(|state| match deadline {
            None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            Some(deadline) => {
                let waited = self.changed.wait_timeout(state, deadline.remaining());
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        });
        locked.waiting -= 1;
        locked
    }

    /// What is inside.
    fn inside(&self, state: &State) -> Option<&'static str> {
        // Nobody goes in past a lock that is held: what is inside now may only leave.
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

    /// Whether calls are let in.
    pub(crate) fn check(&self, call: &'static str) -> Result<()> {
        self.admitted(&self.lock(), call)
    }

    /// Refuses only what comes after an end has begun.
    pub(crate) fn check_not_closed(&self, call: &'static str) -> Result<()> {
        match self.check(call) {
            Err(closed @ CommError::Closed { .. }) => Err(closed),
            _ => Ok(()),
        }
    }

    /// Whether nothing is let in any more.
    pub(crate) fn is_closed(&self) -> bool {
        matches!(self.lock().phase, Phase::Closed(_))
    }

    /// Goes in as soon as nobody is inside; a deadline, if any, bounds the wait.
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
            return Ok(Entry { gate: self });
        }
        self.enter_locked(call, kind, deadline)
    }

    #[cold]
    fn enter_locked(&self, call: &'static str, kind: Kind, deadline: Option<Deadline>) -> Result<Entry<'_>> {
        let mut state = self.lock();
        loop {
            match (kind, self.admitted(&state, call)) {
                (Kind::GroupEnd, _)
                | (Kind::Rescue, Err(CommError::Poisoned { .. }))
                | (Kind::Making, Err(CommError::Unmade { .. })) => {}
                (Kind::Enqueue | Kind::Collective, Ok(())) if state.revoked => {
                    return Err(CommError::Revoked { call, communicator: self.communicator.clone() });
                }
                (_, admitted) => admitted?,
            }
            let held_by_other = state.group.is_some_and(|owner| owner != thread::current().id());
            let busy_with = match (self.inside(&state), kind) {
                (Some(inside), _) => inside,
                (None, Kind::Collective | Kind::Child | Kind::Rescue | Kind::Making)
                    if state.group.is_some() =>
                {
                    "an open group"
                }
                (None, Kind::Enqueue) if held_by_other => "another thread's open group",
                (None, _) => break,
            };
            if kind == Kind::Enqueue && held_by_other && group::is_open() {
                return Err(CommError::GroupConflict { call, communicator: self.communicator.clone() });
            }
            if let Some(deadline) = deadline.filter(Deadline::expired) {
                let (communicator, waited) = (self.communicator.clone(), deadline.waited());
                return Err(CommError::Busy { call, communicator, busy_with, waited });
            }
            state = self.wait(state, deadline);
        }
        state.inside = Some(call);
        Ok(Entry { gate: self })
    }

    #[cold]
    fn leave_locked(&self) {
        let mut state = self.lock();
        state.inside = None;
        self.word.fetch_and(!INSIDE, Ordering::Release);
        self.changed(state);
    }

    /// Comes near without going in: for queries that NCCL allows beside a call. A poisoned communicator may be
    /// looked at, one that is closed may not.
    pub(crate) fn observe(&self, call: &'static str) -> Result<Observer<'_>> {
        let mut state = self.lock();
        match self.admitted(&state, call) {
            Ok(()) | Err(CommError::Poisoned { .. }) => state.observers += 1,
            Err(error) => return Err(error),
        }
        Ok(Observer { gate: self })
    }

    /// Gives the communicator to the calling thread's open group. The caller is inside.
    pub(crate) fn join_group(&self) {
        self.lock().group = Some(thread::current().id());
    }

    /// The calling thread's group has ended.
    pub(crate) fn leave_group(&self) {
        let mut state = self.lock();
        state.group = None;
        self.changed(state);
    }

    /// Lets in nothing but an abort from now on. The first reason stays.
    pub(crate) fn poison(&self, reason: &str) {
        let mut state = self.lock();
        if matches!(state.phase, Phase::Open | Phase::Unmade) {
            state.phase = Phase::Poisoned(reason.into());
        }
        self.changed(state);
    }

    /// Lets in no work from now on.
    pub(crate) fn revoke(&self) {
        let mut state = self.lock();
        state.revoked = true;
        self.changed(state);
    }

    /// Whether no work is let in.
    pub(crate) fn is_revoked(&self) -> bool {
        self.lock().revoked
    }

    /// Lets in nothing from now on. `false` if that was so already, and then nothing changes.
    pub(crate) fn close(&self, how: &str) -> bool {
        let mut state = self.lock();
        let first = !matches!(state.phase, Phase::Closed(_));
        if first {
            state.phase = Phase::Closed(how.into());
        }
        self.changed(state);
        first
    }

    /// Says how a closed communicator ended.
    pub(crate) fn set_ending(&self, how: &str) {
        self.lock().phase = Phase::Closed(how.into());
    }

    /// Closes the gate of a communicator that works, and refuses if it does not.
    pub(crate) fn close_working(&self, call: &'static str, how: &str) -> Result<()> {
        let mut state = self.lock();
        self.admitted(&state, call)?;
        state.phase = Phase::Closed(how.into());
        self.changed(state);
        Ok(())
    }

    /// Waits until nobody is inside or looking, and no group holds queued work. The error says who still is.
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

    /// Goes in past the closed gate: for the destruction that closed it. Nobody else comes in any more.
    pub(crate) fn enter_closed(&self, call: &'static str) -> Entry<'_> {
        self.lock().inside = Some(call);
        Entry { gate: self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn gate() -> Gate {
        let gate = Gate::new("a".into());
        gate.open();
        gate
    }

    fn soon() -> Option<Deadline> {
        Some(Deadline::after(Duration::from_millis(5)))
    }

    fn far() -> Deadline {
        Deadline::after(Duration::from_secs(60))
    }

    #[test]
    fn one_call_at_a_time() {
        let gate = gate();
        let entry = gate.enter("first", Kind::Enqueue, None).unwrap();
        let error = gate.enter("second", Kind::Local, soon()).unwrap_err();
        assert!(error.to_string().contains("the enqueueing of an operation"), "{error}");
        drop(entry);
        let entry = gate.enter("first", Kind::Local, None).unwrap();
        let error = gate.enter("second", Kind::Enqueue, soon()).unwrap_err();
        assert!(matches!(error, CommError::Busy { busy_with: "first", .. }), "{error}");
        drop(entry);
        gate.enter("third", Kind::Collective, soon()).unwrap();
    }

    #[test]
    fn one_call_at_a_time_whichever_way_they_come() {
        use std::sync::atomic::AtomicBool;

        let gate = gate();
        let inside = AtomicBool::new(false);
        thread::scope(|scope| {
            for kind in [Kind::Enqueue, Kind::Enqueue, Kind::Local, Kind::Collective] {
                let (gate, inside) = (&gate, &inside);
                scope.spawn(move || {
                    for _ in 0..5_000 {
                        let entry = gate.enter("call", kind, None).unwrap();
                        assert!(!inside.swap(true, Ordering::Relaxed));
                        thread::yield_now();
                        assert!(inside.swap(false, Ordering::Relaxed));
                        drop(entry);
                    }
                });
            }
            scope.spawn(|| (0..5_000).for_each(|_| drop(gate.observe("look").unwrap())));
        });
        gate.wait_empty(Deadline::now()).unwrap();
        assert_eq!(gate.word.load(Ordering::Relaxed), 0, "everybody has left");
    }

    #[test]
    fn what_is_not_made_lets_in_its_making_alone() {
        let gate = Gate::new("a".into());
        assert!(matches!(gate.enter("all_reduce", Kind::Enqueue, None), Err(CommError::Unmade { .. })));
        let making = gate.enter("init", Kind::Making, None).unwrap();
        assert!(!gate.close_unmade("destroyed"));
        drop(making);
        gate.open();
        assert!(!gate.close_unmade("destroyed"));
        gate.enter("all_reduce", Kind::Enqueue, None).unwrap();
        let never = Gate::new("b".into());
        assert!(never.close_unmade("destroyed"));
        never.open();
        assert!(matches!(never.check("x"), Err(CommError::Closed { .. })));
    }

    #[test]
    fn a_group_keeps_out_collectives_of_others_but_not_local_calls() {
        let gate = gate();
        drop(gate.enter("queued", Kind::Enqueue, None).unwrap());
        gate.join_group();
        thread::scope(|scope| {
            scope.spawn(|| {
                assert!(gate.enter("all_reduce", Kind::Enqueue, soon()).is_err());
                assert!(gate.enter("split", Kind::Collective, soon()).is_err());
                gate.enter("register", Kind::Local, soon()).unwrap();
            });
        });
        drop(gate.enter("queued too", Kind::Enqueue, soon()).unwrap());
        assert!(gate.wait_empty(Deadline::now()).is_err());
        gate.leave_group();
        gate.wait_empty(Deadline::now()).unwrap();
        gate.enter("split", Kind::Collective, soon()).unwrap();
    }

    #[test]
    fn a_revoked_communicator_has_children_and_a_poisoned_one_is_rescued() {
        let gate = gate();
        gate.revoke();
        for kind in [Kind::Enqueue, Kind::Collective] {
            assert!(matches!(gate.enter("x", kind, None), Err(CommError::Revoked { .. })));
        }
        for kind in [Kind::Local, Kind::Child, Kind::Rescue] {
            gate.enter("x", kind, None).unwrap();
        }
        gate.poison("an error");
        assert!(matches!(gate.enter("x", Kind::Child, None), Err(CommError::Poisoned { .. })));
        gate.enter("x", Kind::Rescue, None).unwrap();
        gate.close("aborted");
        assert!(matches!(gate.enter("x", Kind::Rescue, None), Err(CommError::Closed { .. })));
    }

    #[test]
    fn those_who_wait_learn_that_the_gate_has_closed() {
        let gate = gate();
        let entry = gate.enter("register windows", Kind::Collective, None).unwrap();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| gate.enter("all_reduce", Kind::Enqueue, None).map(drop));
            gate.poison("registration was late");
            let error = waiting.join().unwrap().unwrap_err();
            assert!(error.to_string().contains("registration was late"), "{error}");
        });
        gate.poison("a second reason");
        assert!(gate.check("x").unwrap_err().to_string().contains("registration was late"));
        assert!(gate.close("aborted"));
        assert!(!gate.close("aborted again"));
        assert_eq!(gate.wait_empty(Deadline::now()), Err("register windows"));
        thread::scope(|scope| {
            let abort = scope.spawn(|| gate.wait_empty(far()));
            drop(entry);
            abort.join().unwrap().unwrap();
        });
        assert!(matches!(gate.check("x"), Err(CommError::Closed { .. })));
    }
}
