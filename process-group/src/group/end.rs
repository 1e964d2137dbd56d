//! Ends a group on this rank, and tells its other members that this rank has left it.

use std::sync::{Arc, MutexGuard, PoisonError, Weak, atomic::Ordering};

use bootstrap::{
    runtime::{self, Instant},
    wire::Unsent,
};

use super::{
    Result,
    health::{End, GroupHealth},
    settings::EndCallback,
};
use crate::{
    comm::{self, AbortHandle, Beside, CommError, Force, PATIENCE},
    store::Deadline,
    watch::Trouble,
};

impl GroupHealth {
    /// Ends the group on this rank. Does not block, so threads of the watch may call it.
    pub(crate) fn trouble(self: &Arc<Self>, trouble: Trouble) {
        self.end(End::Trouble(trouble));
    }

    /// Ends the group on this rank. Does not block: the caller is a thread of the watch, or one that aborts.
    pub(super) fn end(self: &Arc<Self>, end: End) {
        let (culprit, force) = match &end {
            End::Trouble(trouble) => (trouble.culprit(), None),
            End::Force(force) => (None, Some(*force)),
        };
        let has_left = matches!(end, End::Trouble(Trouble::Left { .. }));
        if self.end.set(end.clone()).is_err() {
            // Another member had left before. The order matters because aborted work looks done.
            if force.is_some() && self.was_left() && self.settled.set(false).is_ok() {
                self.abort();
            }
            return;
        }
        if let Some(force) = force {
            self.leave(force);
        }
        self.report_end();
        // After a member has left, the watchdog aborts instead, once work that can still complete has completed.
        if !has_left {
            self.abort();
        }
        self.end_children(&end, culprit.filter(|_| has_left));
        let dumps = if has_left { self.is_waiting() } else { force != Some(Force::Dropped) };
        if dumps {
            let recorder = self.recorder.clone();
            aside("farewell", move || recorder.trouble());
        }
    }

    /// Sets the callback for the end of the group, which is made now.
    pub(super) fn notify_of_end(&self, callback: Option<EndCallback>) {
        *self.on_end() = callback;
        self.report_end();
    }

    fn on_end(&self) -> MutexGuard<'_, Option<EndCallback>> {
        self.on_end.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls the callback for the group's end, unless this rank has ended it. Does not block. The callback runs on its
    /// own thread, which also confines a panic. If no thread can be started, the watchdog tries again.
    pub(super) fn report_end(&self) {
        let Some(End::Trouble(trouble)) = self.end.get() else { return };
        let Some(callback) = self.on_end().take() else { return };
        let (error, call) = (trouble.error(&self.name), callback.clone());
        if runtime::spawn("group-end", move || call(error)).is_err() {
            *self.on_end() = Some(callback);
        }
    }

    /// Drops the callback, because this rank ends the group.
    fn forget_end(&self) {
        let callback = self.on_end().take();
        // Dropped without the lock: it may own objects with locks of their own.
        drop(callback);
    }

    /// Ends child groups that are still being made and do not notice this end themselves. A forced end reaches all of
    /// them. If a member has `left`, the end reaches the children that list it as a member.
    fn end_children(&self, end: &End, left: Option<usize>) {
        let pending_children = self.pending_children.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let is_over = |child: &Arc<Self>| match end {
            End::Force(_) => true,
            End::Trouble(_) => left.is_some_and(|rank| child.ranks.contains(&rank)),
        };
        let children = pending_children.iter().filter_map(Weak::upgrade);
        children.filter(|child| is_over(&child.0)).for_each(|child| child.0.end(end.clone()));
    }

    /// Checks a group that was just made. Fails if a member left the parent group meanwhile. Only this rank may know that,
    /// because others had made the group before. So it tells them that it does not have the group.
    pub(super) fn check_made(&self) -> Result<()> {
        let Some(End::Trouble(trouble @ Trouble::Left { rank, how, .. })) = self.end.get() else {
            return Ok(());
        };
        let Some(monitor) = self.monitor().filter(|_| !self.is_about(trouble)) else { return Ok(()) };
        let reason = format!("while it made the group, rank {rank} {how} the parent group");
        self.signal.tell(Trouble::Failed { group: monitor.id().to_owned(), rank: self.rank(), reason });
        self.check()
    }

    /// Tells the other members that this rank has left the group, unless they know why it is over. Does not block.
    pub(super) fn leave(&self, how: Force) {
        let Some(monitor) = self.monitor().filter(|_| self.ranks.len() > 1) else { return };
        if self.is_in_trouble() || !self.is_member.swap(false, Ordering::AcqRel) {
            return;
        }
        self.has_told.store(true, Ordering::Release);
        self.signal.tell(Trouble::Left {
            group: monitor.id().to_owned(),
            rank: self.rank(),
            how: how.how().into(),
            collectives: monitor.rolling().count(),
            members: Unsent(self.ranks.clone()),
        });
    }

    /// After another member has left: aborts the group's communicators as soon as this rank waits in vain for
    /// work, or after one heartbeat. Until then work that both have called may still complete, and is valid.
    pub(super) fn settle(&self, now: Instant) {
        let Some(End::Trouble(Trouble::Left { collectives, .. })) = self.end.get() else { return };
        let Some(monitor) = self.monitor().filter(|_| self.settled.get().is_none()) else { return };
        let since = *self.left.get_or_init(|| now);
        let is_behind = monitor.rolling().count() > *collectives;
        // Errors are checked after the event, because failed work looks done.
        let is_done = monitor.is_done() && !is_behind && self.check_background().is_ok();
        if !is_behind && now.saturating_duration_since(since) < self.heartbeat {
            return;
        }
        // Set before the abort, because aborted work looks done.
        if self.settled.set(is_done).is_ok() {
            self.abort();
            let recorder = self.recorder.clone();
            if !is_done {
                aside("farewell", move || recorder.trouble());
            }
        }
    }

    /// Aborts communicators that were added while the group ended and that the end therefore missed.
    pub(super) fn abort_late(&self) {
        if !self.is_over() {
            return;
        }
        if self.was_left() {
            // Aborted work looks done.
            let _ = self.settled.set(false);
        }
        self.abort();
    }

    /// Aborts the group's communicators and its path, in the background.
    pub(super) fn abort(&self) {
        // In parallel: either may block a stream, or a thread, that the other waits for.
        if let Some(path) = self.path() {
            let held = Held::new(path);
            aside("abort", move || {
                let held = held;
                held.what.abort(Deadline::after(PATIENCE));
            });
        }
        let (ending, communicators): (Vec<_>, Vec<_>) =
            self.communicators().into_iter().partition(AbortHandle::has_ended);
        ending.iter().for_each(AbortHandle::interrupt);
        if communicators.is_empty() {
            return;
        }
        let held = Held::new(communicators);
        aside("abort", move || {
            let held = held;
            // A later abort finds the communicators aborted, whether or not this succeeded.
            let aborted = AbortHandle::abort_together(&held.what, Deadline::after(PATIENCE));
            let failed = aborted.iter().filter_map(|aborted| aborted.as_ref().err());
            // An adopted communicator is its owner's to abort.
            failed.filter(|error| !matches!(error, CommError::Adopted { .. })).for_each(comm::report);
        });
    }

    /// Called when the group is dropped with its path. Fails work that is not done.
    pub(super) fn leave_path(self: &Arc<Self>) {
        let Some(monitor) = self.monitor() else { return };
        if !monitor.is_done() {
            self.end(End::Force(Force::Dropped));
        }
        // Another member may have given up work that looks done. The path cannot be asked later.
        self.given_up();
    }
}

/// An object to abort on another thread. Its owner may wait for `_beside`. Fields drop in order, so `what` is dropped
/// before that wait ends.
#[derive(Clone)]
struct Held<T> {
    what: T,
    _beside: Arc<Beside>,
}

impl<T> Held<T> {
    fn new(what: T) -> Self {
        Self { what, _beside: Arc::new(Beside::begin()) }
    }
}

/// Runs `job` on a new thread. Runs it here if no thread can be started: delaying the watch is better than leaving the
/// group blocked.
fn aside(name: &str, job: impl FnOnce() + Clone + Send + 'static) {
    let here = job.clone();
    if runtime::spawn(name, job).is_err() {
        here();
    }
}

/// This rank's membership in a group. Dropping it tells the other members that this rank has left, if it has
/// begun.
pub(super) struct Membership(Arc<GroupHealth>);

impl Membership {
    pub(super) fn new(health: &Arc<GroupHealth>) -> Self {
        Self(health.clone())
    }

    /// Marks the group as made. Before that, members learn in their meetings which rank has failed.
    pub(super) fn begin(&self) {
        self.0.is_member.store(true, Ordering::Release);
    }

    /// Marks that all members have ended the group together.
    pub(super) fn end(&self) {
        self.0.is_member.store(false, Ordering::Release);
        self.0.forget_end();
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.0.leave(Force::Dropped);
        self.0.forget_end();
    }
}
