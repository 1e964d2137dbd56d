//! Ends a group on this rank, and notifies the other members when this rank leaves the group.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, MutexGuard, PoisonError, Weak, atomic::Ordering},
};

use bootstrap::{
    agreement::Gone,
    runtime::{self, Instant},
    wire::Unsent,
};

use super::{
    GroupErrorKind, KindResult,
    error::CallContext,
    health::{End, GroupHealth},
    meeting::id,
    settings::EndCallback,
};
use crate::{
    comm::{self, AbortHandle, Beside, CommError, Force, PATIENCE},
    error_text,
    store::Deadline,
    watch::Trouble,
};

impl GroupHealth {
    /// Ends the group on this rank because of `trouble`. Does not block, so threads of the watch may call this method.
    pub(crate) fn trouble(self: &Arc<Self>, trouble: Trouble) {
        self.end(End::Trouble(trouble));
    }

    /// Ends the group on this rank. Does not block, because threads of the watch and aborting threads call `end`.
    pub(super) fn end(self: &Arc<Self>, end: End) {
        let force = match &end {
            End::Trouble(_) => None,
            End::Force(force) => Some(*force),
        };
        let has_left = matches!(end, End::Trouble(Trouble::Left { .. }));
        if self.end.set(end.clone()).is_err() {
            // If another member had left before, the watchdog may not have aborted yet. `settled` is set before the
            // abort. Otherwise a wait for work could return success, because aborted work looks done.
            if force.is_some() && self.was_left() && self.settled.set(false).is_ok() {
                self.abort();
            }
            return;
        }
        if let Some(force) = force {
            self.leave(force);
        }
        self.end_waits();
        self.report_end();
        // After a member has left, the watchdog aborts later, in `settle`, because some work can still complete.
        if !has_left {
            self.abort();
        }
        self.end_children(&end);
        let dumps = if has_left { self.is_waiting() } else { force != Some(Force::Dropped) };
        if dumps {
            let recorder = self.recorder.clone();
            aside("farewell", move || recorder.trouble());
        }
    }

    /// Sets the callback for the end of the group, once the group is made. Calls the callback at once if trouble has
    /// ended the group already.
    pub(super) fn notify_of_end(&self, callback: Option<EndCallback>) {
        *self.on_end() = callback;
        self.report_end();
    }

    fn on_end(&self) -> MutexGuard<'_, Option<EndCallback>> {
        self.on_end.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls the callback for the group's end, once. Does not call the callback if this rank aborted or dropped the
    /// group. Does not block: the callback runs on a new thread, which also confines a panic. If no thread can be
    /// started, the watchdog tries again.
    pub(super) fn report_end(&self) {
        let Some(End::Trouble(trouble)) = self.end.get() else { return };
        let Some(callback) = self.on_end().take() else { return };
        let error = CallContext::of_group(&self.name).error(GroupErrorKind::of_trouble(trouble.clone()));
        let call = callback.clone();
        if runtime::spawn("group-end", move || call(error)).is_err() {
            *self.on_end() = Some(callback);
        }
    }

    /// Drops the callback for the group's end without calling it.
    fn forget_end(&self) {
        let callback = self.on_end().take();
        // The callback is dropped after the lock is released, because it may own objects with locks of their own.
        drop(callback);
    }

    /// If the group is over, returns the member that ended it and the reason, as agreements name them. If that member
    /// is not known, it is this rank. For `is_larger` see [`Meeting::is_larger`](super::meeting::Meeting::is_larger).
    pub(super) fn gone(&self, is_larger: bool) -> Option<Gone> {
        let end = self.end.get()?;
        let culprit = match end {
            End::Trouble(trouble) => trouble.culprit(),
            End::Force(_) => None,
        };
        let rank = culprit.unwrap_or_else(|| self.rank());
        let place = self.place_of(rank).filter(|_| is_larger);
        Some(Gone { rank: id(place.unwrap_or(rank)), cause: error_text(&self.error(end)) })
    }

    /// Calls the listeners, which end this rank's waits in agreements. Does not block: another thread calls them.
    fn end_waits(&self) {
        let calls = self.end_listeners.calls(self);
        if calls.is_empty() {
            return;
        }
        aside("end-waits", move || {
            for call in &calls {
                // A listener that panics must not keep the others from being called.
                let _ = catch_unwind(AssertUnwindSafe(|| call()));
            }
        });
    }

    /// Ends those child groups that are still being made and to which
    /// [`end_from`](super::health::PendingChild::end_from) passes `end` on.
    fn end_children(&self, end: &End) {
        let pending_children = self.pending_children.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for child in pending_children.iter().filter_map(Weak::upgrade) {
            if let Some(end) = child.end_from(self, end) {
                child.end(end);
            }
        }
    }

    /// Checks this group, which was just made and detached from its parent. Fails if a member left the parent group
    /// while this rank made the group. The other members may have made the group earlier without an error, so this rank
    /// notifies them that it has failed.
    pub(super) fn check_made(&self) -> KindResult<()> {
        let Some(End::Trouble(trouble @ Trouble::Left { rank, how, .. })) = self.end.get() else {
            return Ok(());
        };
        let Some(monitor) = self.monitor().filter(|_| !self.is_about(trouble)) else { return Ok(()) };
        let reason = format!("while it made the group, rank {rank} {how} the parent group");
        self.signal.tell(Trouble::Failed { group: monitor.id().to_owned(), rank: self.rank(), reason });
        self.check()
    }

    /// Notifies the other members that this rank has left the group. Does nothing if trouble has ended the group
    /// before, or if the group is not made yet or was destroyed by all members. Does not block.
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
            steps: monitor.steps(),
            members: Unsent(self.ranks.clone()),
        });
    }

    /// Publishes that this rank destroys the group. A member that has made more
    /// [steps](super::work_monitor::WorkMonitor::steps) then ends the group on all members, because this rank will not
    /// join. Does not block.
    pub(super) fn announce_destruction(&self) {
        self.is_being_destroyed.store(true, Ordering::Release);
        if let Some(monitor) = self.monitor().filter(|_| self.ranks.len() > 1) {
            self.signal.destroy(monitor.id(), monitor.steps());
        }
    }

    /// Called by the watchdog after another member has left. Aborts the group's communicators once this rank has made
    /// more [steps](super::work_monitor::WorkMonitor::steps) than that member, or after one heartbeat. Until then, work
    /// of both members may complete, and is valid.
    pub(super) fn settle(&self, now: Instant) {
        if !self.was_left() {
            return;
        }
        let Some(monitor) = self.monitor().filter(|_| self.settled.get().is_none()) else { return };
        let since = *self.left.get_or_init(|| now);
        let waits_in_vain = self.waits_in_vain();
        // `check_background` is called after `is_done`, because failed work looks done.
        let is_done = monitor.is_done() && !waits_in_vain && self.check_background().is_ok();
        if !waits_in_vain && now.saturating_duration_since(since) < self.heartbeat {
            return;
        }
        // `settled` is set before the abort. Otherwise a wait for work could return success, because aborted work
        // looks done.
        if self.settled.set(is_done).is_ok() {
            self.abort();
            let recorder = self.recorder.clone();
            if !is_done {
                aside("farewell", move || recorder.trouble());
            }
        }
    }

    /// Returns true if this rank has made more [steps](super::work_monitor::WorkMonitor::steps) than a member that has
    /// left. The additional steps will not complete.
    pub(super) fn waits_in_vain(&self) -> bool {
        let Some(End::Trouble(Trouble::Left { steps, .. })) = self.end.get() else { return false };
        self.monitor().is_some_and(|monitor| monitor.steps() > *steps)
    }

    /// Aborts communicators or a path that were added while the group was ending. The abort at the group's end may have
    /// missed them.
    pub(super) fn abort_late(&self) {
        if !self.is_over() {
            return;
        }
        if self.was_left() {
            // `settled` is set before the abort. Otherwise a wait for work could return success, because aborted work
            // looks done.
            let _ = self.settled.set(false);
        }
        self.abort();
    }

    /// Aborts the group's communicators and its path, in the background.
    pub(super) fn abort(&self) {
        // Path and communicators are aborted in parallel, because each may block a stream or a thread that the other
        // abort waits for.
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
            // Failures are reported, but the abort is not retried: a later call of `abort` skips these communicators,
            // because they count as ended even if this abort failed.
            let aborted = AbortHandle::abort_together(&held.what, Deadline::after(PATIENCE));
            let failed = aborted.iter().filter_map(|aborted| aborted.as_ref().err());
            // Only the owner of an adopted communicator may abort it, so this error is not reported.
            failed.filter(|error| !matches!(error, CommError::Adopted { .. })).for_each(comm::report);
        });
    }

    /// Called when a group with a path is dropped. If work is not done, ends the group, so that the work fails.
    pub(super) fn leave_path(self: &Arc<Self>) {
        let Some(monitor) = self.monitor() else { return };
        if !monitor.is_done() {
            self.end(End::Force(Force::Dropped));
        }
        // Another member may have given up work before completion, which looks done here. `given_up` stores that,
        // because the path cannot be queried after the drop.
        self.given_up();
    }
}

/// An object to abort on another thread. `comm::wait_for_dropped` does not return before `_beside` is dropped. Fields
/// drop in declaration order, so `what` is dropped before `comm::wait_for_dropped` returns.
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

/// Runs `job` on a new thread, or on the calling thread if no thread can be started. Delaying the watch is better than
/// leaving the group blocked.
fn aside(name: &str, job: impl FnOnce() + Clone + Send + 'static) {
    let here = job.clone();
    if runtime::spawn(name, job).is_err() {
        here();
    }
}

/// This rank's membership in a group, from [`begin`](Self::begin) to [`end`](Self::end). Dropping this value in between
/// notifies the other members that this rank has left.
pub(super) struct Membership(Arc<GroupHealth>);

impl Membership {
    pub(super) fn new(health: &Arc<GroupHealth>) -> Self {
        Self(health.clone())
    }

    /// Marks the group as made: from now on, leaving it notifies the other members. No notification is needed before,
    /// because the agreements that make the group report a rank that has failed.
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

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, time::Duration};

    use super::{super::HealthHandle, *};
    use crate::record::Recorder;

    fn health(ranks: &[usize], place: usize) -> Arc<GroupHealth> {
        let recorder = Recorder::new(ranks[place], "test".into(), String::new(), None);
        let (name, ranks, heartbeat) = ("test".into(), ranks.into(), Duration::from_millis(1));
        GroupHealth::begin(&name, &ranks, place, &recorder, heartbeat, recorder.signal())
    }

    fn left(rank: usize) -> End {
        let (group, how, members) = (String::new(), String::new(), Unsent::default());
        End::Trouble(Trouble::Left { group, rank, how, steps: 0, members })
    }

    #[test]
    fn the_parents_end_reaches_a_child_until_it_is_detached() {
        let (parent, child) = (health(&[0, 1], 0), health(&[0, 1], 0));
        let pending = parent.link_child(&child);
        parent.end(left(1));
        pending.detach();
        assert!(child.was_left());

        // A thread of the watch has found the child, and ends it after this rank has made it.
        let child = health(&[0, 1], 0);
        let found = health(&[0, 1], 0).link_child(&child);
        found.detach();
        found.end(left(1));
        assert!(!child.is_over());
    }

    #[test]
    fn the_end_calls_each_listener_that_is_left_once() {
        let health = health(&[0, 1], 0);
        let handle = HealthHandle::new(&health);
        let (sender, called) = mpsc::channel();
        let listen = |name| {
            let sender = sender.clone();
            handle.listen_for_end(move |error| sender.send((name, error.to_string())).unwrap())
        };
        let (removed, _kept) = (listen("removed"), listen("kept"));
        drop(removed);
        health.end(left(1));
        health.end(End::Force(Force::Aborted));
        assert_eq!(called.recv().unwrap(), ("kept", handle.check().unwrap_err().to_string()));
        drop((handle, health, sender));
        assert_eq!(called.try_iter().count(), 0);
    }

    #[test]
    fn a_grown_child_numbers_the_members_by_their_places() {
        let parent = health(&[4, 2], 0);
        let (grown, split) = (health(&[0, 1, 2], 0), health(&[4], 0));
        let _pending = (parent.link_grown(&grown), parent.link_child(&split));
        parent.end(left(2));
        assert_eq!(grown.gone(false).unwrap().rank, 1);
        assert!(!split.is_over());
    }
}
