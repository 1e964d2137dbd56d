//! The state of a group's health. Ends the group when a member is in trouble, or when the group is aborted.

use std::{
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use bootstrap::runtime::Instant;

use super::{
    GroupErrorKind, KindResult, Path, end_listener::EndListeners, path::PathError, settings::EndCallback,
    work_monitor::WorkMonitor,
};
use crate::{
    comm::{self, AbortHandle, CommError, Force},
    peers,
    record::Recorder,
    store::Deadline,
    watch::{Trouble, WatchSignal},
};

/// The health of a group. Exists before the group has a communicator. The first trouble of a member, or an abort, ends
/// the group: the communicators are aborted, and waits in the store fail.
pub(crate) struct GroupHealth {
    pub(super) name: Arc<str>,
    /// The members' job ranks, in the order of their ranks in the group.
    pub(super) ranks: Arc<[usize]>,
    /// This rank's rank in the group, which is its index in `ranks`.
    pub(super) place: usize,
    communicators: Mutex<Vec<AbortHandle>>,
    /// The transport that carries messages in place of the communicators, if one is installed.
    path: OnceLock<Weak<dyn Path>>,
    /// Set when another member has given up work on the path before completion: the time at which this rank noticed,
    /// and that member's rank in the group.
    given_up: OnceLock<(Instant, usize)>,
    pub(super) recorder: Arc<Recorder>,
    /// Notifies the other members.
    pub(super) signal: Arc<WatchSignal>,
    /// The heartbeat interval of the job. Within one interval this rank learns of another member's notification.
    pub(super) heartbeat: Duration,
    /// The watchdog's state, set when the group is made. Contains the group's id.
    pub(super) monitor: OnceLock<WorkMonitor>,
    pub(super) end: OnceLock<End>,
    /// Called when the group ends without an abort or drop on this rank. `None` before the group is made, and after the
    /// callback was called or dropped.
    pub(super) on_end: Mutex<Option<EndCallback>>,
    /// The time at which the watchdog first saw that another member had left the group.
    pub(super) left: OnceLock<Instant>,
    /// Set just before the communicators are aborted, if another member has left first. True if all of this rank's work
    /// was done by then. False otherwise, and if the watchdog did not start the abort: this rank has aborted or dropped
    /// the group, or a communicator or path was added after the end.
    pub(super) settled: OnceLock<bool>,
    /// True if the other members must be notified when this rank leaves the group.
    pub(super) is_member: AtomicBool,
    /// True once the other members were notified that this rank has left the group.
    pub(super) has_told: AtomicBool,
    /// True once this rank has called [`ProcessGroup::destroy`](super::ProcessGroup::destroy).
    pub(super) is_being_destroyed: AtomicBool,
    /// An error of a communicator whose cause is not known yet.
    pub(super) doubt: OnceLock<Doubt>,
    /// True if enqueued work was revoked, so that waits for it fail. Revoking does not end the group.
    revoked: AtomicBool,
    /// The number of this rank's waits for other members that are in progress.
    pub(super) waits: AtomicUsize,
    /// Functions that the end of the group calls, to end this rank's waits in agreements.
    pub(super) end_listeners: EndListeners,
    /// Child groups that are still being made from this group's members.
    pub(super) pending_children: Mutex<Vec<Weak<PendingChild>>>,
    /// The listeners for lost ranks and for aborted communicators. Others hold weak references, so the listeners end
    /// with this value.
    listeners: OnceLock<(Arc<peers::Listener>, Arc<comm::Listener>)>,
}

/// An error of a communicator whose cause is not known yet.
pub(super) struct Doubt {
    pub(super) since: Instant,
    pub(super) reason: String,
}

/// Why a group is over.
#[derive(Debug, Clone)]
pub(super) enum End {
    Trouble(Trouble),
    Force(Force),
}

/// A child group that is still being made from the members of a parent group. An abort of the parent ends the child.
/// The child also ends if one of its members leaves the parent.
pub(super) struct PendingChild {
    health: Arc<GroupHealth>,
    /// True for a grown group. Such a group has a job of its own, in which the job rank of a parent's member is its
    /// index in the parent's `ranks`. If false, parent and child share one job and its ranks.
    is_grown: bool,
    /// Unset while pending. `Some(end)` if the parent ended first, `None` if the child was made first. The first writer
    /// wins: a thread that is about to end the child, but comes after `detach`, does nothing.
    outcome: OnceLock<Option<End>>,
}

impl PendingChild {
    /// Translates the parent's `end` to this child. Returns `None` if the child goes on. `Force` ends every child.
    /// `Left` ends a child that has the departed member. No other trouble is passed on here.
    pub(super) fn end_from(&self, parent: &GroupHealth, end: &End) -> Option<End> {
        let mut end = end.clone();
        match &mut end {
            End::Force(_) => {}
            End::Trouble(Trouble::Left { rank, .. }) => {
                if self.is_grown {
                    *rank = parent.place_of(*rank)?;
                }
                self.health.ranks.contains(rank).then_some(())?;
            }
            End::Trouble(_) => return None,
        }
        Some(end)
    }

    /// Ends the child with its parent's `end`, unless it was detached.
    pub(super) fn end(&self, end: End) {
        if self.outcome.set(Some(end.clone())).is_ok() {
            self.health.end(end);
        }
    }

    /// Detaches the child from its parent, once the child is made. If the parent ended first, ends the child before
    /// this returns.
    pub(super) fn detach(&self) {
        if self.outcome.set(None).is_err()
            && let Some(Some(end)) = self.outcome.get()
        {
            self.health.end(end.clone());
        }
    }
}

impl GroupHealth {
    /// Makes the health of a group. The caller then adds it to the [watch](crate::watch::Watch). `place` is this rank's
    /// index in `ranks`.
    pub(super) fn begin(
        name: &Arc<str>,
        ranks: &Arc<[usize]>,
        place: usize,
        recorder: &Arc<Recorder>,
        heartbeat: Duration,
        signal: &Arc<WatchSignal>,
    ) -> Arc<Self> {
        let health = Arc::new(Self {
            name: name.clone(),
            ranks: ranks.clone(),
            place,
            communicators: Mutex::default(),
            path: OnceLock::new(),
            given_up: OnceLock::new(),
            recorder: recorder.clone(),
            signal: signal.clone(),
            heartbeat,
            monitor: OnceLock::new(),
            end: OnceLock::new(),
            on_end: Mutex::default(),
            left: OnceLock::new(),
            settled: OnceLock::new(),
            is_member: AtomicBool::new(false),
            has_told: AtomicBool::new(false),
            is_being_destroyed: AtomicBool::new(false),
            doubt: OnceLock::new(),
            revoked: AtomicBool::new(false),
            waits: AtomicUsize::new(0),
            end_listeners: EndListeners::default(),
            pending_children: Mutex::default(),
            listeners: OnceLock::new(),
        });
        let weak: Weak<Self> = Arc::downgrade(&health);
        let lost: Arc<peers::Listener> = {
            let weak = weak.clone();
            Arc::new(move |rank, loss| {
                if let Some(health) = weak.upgrade().filter(|health| health.ranks.contains(&rank)) {
                    health.trouble(Trouble::Lost { rank, loss });
                }
            })
        };
        let forced: Arc<comm::Listener> = Arc::new(move |force| {
            if let Some(health) = weak.upgrade() {
                health.end(End::Force(force));
            }
        });
        let _ = health.listeners.set((lost, forced));
        health
    }

    /// Returns the listener for losses of ranks of this host.
    pub(crate) fn loss_listener(&self) -> Option<&Arc<peers::Listener>> {
        self.listeners.get().map(|(lost, _)| lost)
    }

    /// Returns the members' job ranks, in the order of their ranks in the group.
    pub(crate) fn ranks(&self) -> &[usize] {
        &self.ranks
    }

    /// Returns the text for this group in the `communicator` of a [`CommError`] that is about the whole group. The
    /// group's name and the operation are not known here. [`GroupError`](super::GroupError) adds them.
    pub(super) fn label(&self) -> String {
        format!("the group (rank {} of {})", self.place, self.ranks.len())
    }

    /// Returns this rank's job rank.
    pub(super) fn rank(&self) -> usize {
        self.ranks[self.place]
    }

    /// Converts a job rank to an index in `ranks`. A group that grows from this one has its own job, and there this
    /// index is the member's job rank.
    pub(super) fn place_of(&self, rank: usize) -> Option<usize> {
        self.ranks.iter().position(|other| *other == rank)
    }

    /// Returns the watchdog's state, once the group is made.
    pub(crate) fn monitor(&self) -> Option<&WorkMonitor> {
        self.monitor.get()
    }

    /// Returns true if `trouble` concerns this group.
    pub(crate) fn is_about(&self, trouble: &Trouble) -> bool {
        match (trouble, self.monitor()) {
            (Trouble::Lost { rank, .. }, _) => self.ranks.contains(rank),
            (other, monitor) => monitor.is_some_and(|monitor| other.group() == Some(monitor.id())),
        }
    }

    /// Returns true if the group is over.
    pub(super) fn is_over(&self) -> bool {
        self.end.get().is_some()
    }

    /// Returns true if the group is over because a member was in trouble.
    pub(super) fn is_in_trouble(&self) -> bool {
        matches!(self.end.get(), Some(End::Trouble(_)))
    }

    /// Returns true if the group is over because another member has left it.
    pub(super) fn was_left(&self) -> bool {
        matches!(self.end.get(), Some(End::Trouble(Trouble::Left { .. })))
    }

    /// Returns true if this rank has called [`ProcessGroup::destroy`](super::ProcessGroup::destroy). The heartbeat
    /// thread then reports no other member that destroys the group after fewer steps, because `destroy` compares the
    /// members' calls itself.
    pub(crate) fn is_being_destroyed(&self) -> bool {
        self.is_being_destroyed.load(Ordering::Acquire)
    }

    /// Returns true if this rank has left the group and has notified the other members.
    pub(super) fn has_left(&self) -> bool {
        self.has_told.load(Ordering::Acquire)
    }

    /// Returns the communicators that are aborted when the group ends.
    pub(super) fn communicators(&self) -> Vec<AbortHandle> {
        self.guarded().clone()
    }

    /// Links a communicator to this group: the end of the group aborts the communicator, and an abort of the
    /// communicator ends the group.
    pub(super) fn guard(&self, communicator: &AbortHandle) {
        {
            let mut communicators = self.guarded();
            communicators.retain(|other| !other.has_ended() && !other.is(communicator));
            communicators.push(communicator.clone());
        }
        if let Some((_, forced)) = self.listeners.get() {
            communicator.tell(forced);
        }
        self.abort_late();
    }

    /// Unlinks a communicator that could not be made.
    pub(super) fn release(&self, communicator: &AbortHandle) {
        self.guarded().retain(|other| !other.is(communicator));
        if let Some((_, forced)) = self.listeners.get() {
            communicator.tell_no_more(forced);
        }
    }

    /// Links the path to this group: the end of the group aborts the path. The group owns the path, so only a weak
    /// reference is kept.
    pub(super) fn guard_path(&self, path: &Arc<dyn Path>) {
        let _ = self.path.set(Arc::downgrade(path));
        self.abort_late();
    }

    pub(super) fn path(&self) -> Option<Arc<dyn Path>> {
        self.path.get()?.upgrade()
    }

    fn guarded(&self) -> MutexGuard<'_, Vec<AbortHandle>> {
        self.communicators.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Aborts all of the group's communicators, and its path. Returns the first failure.
    pub(super) fn abort_all(&self, deadline: Deadline) -> comm::Result<()> {
        // Refuse before aborting anything. Inside an open NCCL group the abort of the communicators fails, and aborting
        // only the path would break a process group that has not ended.
        comm::refuse_inside_group("ncclCommAbort")?;
        let aborted = AbortHandle::abort_together(&self.communicators(), deadline).into_iter().collect();
        if let Some(path) = self.path() {
            path.abort(deadline);
        }
        aborted
    }

    /// Returns the first asynchronous error found on the group's communicators.
    pub(super) fn async_error(&self) -> comm::Result<()> {
        self.communicators().iter().try_for_each(AbortHandle::async_error)
    }

    /// Returns `Ok` unless a member is in trouble, or the group was aborted on this rank.
    ///
    /// # Errors
    /// The error of the trouble that ended the group; [`CommError::Closed`] after an abort or drop.
    #[inline]
    pub(super) fn check(&self) -> KindResult<()> {
        match self.end.get() {
            None => Ok(()),
            Some(end) => Err(self.error(end)),
        }
    }

    /// Revokes enqueued work: from now on, checks of work fail. Also aborts the work on the path.
    pub(super) fn revoke(&self, deadline: Deadline) {
        self.revoked.store(true, Ordering::Release);
        if let Some(path) = self.path() {
            path.abort(deadline);
        }
    }

    /// Returns true if enqueued work was revoked.
    pub(crate) fn is_revoked(&self) -> bool {
        self.revoked.load(Ordering::Acquire)
    }

    /// Returns `Ok` if enqueued work was neither revoked nor aborted.
    ///
    /// # Errors
    /// Those of [`check`](Self::check); [`CommError::Revoked`].
    pub(super) fn check_work(&self) -> KindResult<()> {
        let was_left = self.was_left();
        if !was_left {
            self.check()?;
        }
        if self.is_revoked() {
            return Err(CommError::Revoked { call: "", communicator: self.label() }.into());
        }
        // After a member has left, the communicators are aborted a moment later. This rank's work is valid if all of it
        // was done before that abort. Work that waits in vain looks done once any member has aborted its communicator,
        // which may be before this rank does.
        if was_left && !self.settled.get().copied().unwrap_or_else(|| !self.waits_in_vain()) {
            self.check()?;
        }
        Ok(())
    }

    /// Returns true if another member has given up work on the path before completion. From then on, work that looks
    /// done may be incomplete. That member's reason for giving up, for example the loss of a third member, should reach
    /// this rank soon. [`check`](Self::check) then returns it.
    ///
    /// # Errors
    /// [`PathError::GivenUp`] if the reason has not arrived within the time in which members report it.
    pub(super) fn is_given_up(&self) -> KindResult<bool> {
        match self.given_up() {
            Some((seen, peer)) if seen.elapsed() >= self.patience() => Err(self.gave_up(peer)),
            seen => Ok(seen.is_some()),
        }
    }

    /// Returns the time at which this rank first noticed that a member has given up work on the path before completion,
    /// and that member's rank in the group. The result is cached, so it is still returned after the path is dropped.
    pub(super) fn given_up(&self) -> Option<(Instant, usize)> {
        let known = self.given_up.get().copied();
        known.or_else(|| {
            let peer = self.path()?.given_up()?;
            Some(*self.given_up.get_or_init(|| (Instant::now(), peer)))
        })
    }

    /// Returns the error for a member that has given up work on the path before completion, without reporting a reason
    /// in time. `peer` is its rank in the group.
    #[cold]
    pub(super) fn gave_up(&self, peer: usize) -> GroupErrorKind {
        let peer = self.ranks.get(peer).copied().unwrap_or(peer);
        GroupErrorKind::Path { source: Box::new(PathError::GivenUp { peer }) }
    }

    /// Returns true if this rank is waiting for other members.
    pub(super) fn is_waiting(&self) -> bool {
        self.waits.load(Ordering::Acquire) > 0
    }

    /// Links `child`, which is being made from this group's members. Until the returned value is
    /// [detached](PendingChild::detach) or dropped, an end of this group may also end `child`: see
    /// [`PendingChild::end_from`].
    pub(super) fn link_child(&self, child: &Arc<Self>) -> Arc<PendingChild> {
        self.link(child, false)
    }

    /// Like [`link_child`](Self::link_child), for a group that grows from this one and has a job of its own.
    pub(super) fn link_grown(&self, child: &Arc<Self>) -> Arc<PendingChild> {
        self.link(child, true)
    }

    fn link(&self, child: &Arc<Self>, is_grown: bool) -> Arc<PendingChild> {
        let pending_child = PendingChild { health: child.clone(), is_grown, outcome: OnceLock::new() };
        let pending_child = Arc::new(pending_child);
        let mut all = self.pending_children.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|other| other.strong_count() > 0);
        all.push(Arc::downgrade(&pending_child));
        pending_child
    }
}

impl fmt::Debug for GroupHealth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GroupHealth")
            .field("group", &self.name)
            .field("end", &self.end.get())
            .finish_non_exhaustive()
    }
}
