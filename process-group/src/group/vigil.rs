//! What becomes of a group when one of its members is in trouble, or when it is aborted.

use std::{
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use nccl_sys::ncclResult_t;

use super::{GroupError, Path, Result, doubt::Doubt, duty::Duty, path::PathError};
use crate::{
    comm::{self, AbortHandle, CommError, Force},
    peers,
    record::Recorder,
    store::{Deadline, PrefixStore, Store, StoreError},
    watch::{Bell, Trouble, Watch},
};

/// What asks whether work is what it seems.
const WAIT: &str = "a wait for work";

/// Waits for trouble among a group's members, from before the group has a communicator. With the first, or an abort,
/// everything that waits in the group ends: its communicators are aborted, and waits at the store that are open have
/// failed.
pub(crate) struct Vigil {
    pub(super) name: Arc<str>,
    /// The ranks of the job that are members.
    pub(super) ranks: Arc<[usize]>,
    /// This rank's place among them.
    pub(super) place: usize,
    pub(super) store: PrefixStore,
    communicators: Mutex<Vec<AbortHandle>>,
    /// What messages have beside them.
    path: OnceLock<Weak<dyn Path>>,
    /// When another member was first seen to have ended what was under way there, and its place.
    given_up: OnceLock<(Instant, usize)>,
    pub(super) recorder: Arc<Recorder>,
    /// Tells the other members.
    pub(super) bell: Arc<Bell>,
    /// How soon what another member has told is known here.
    pub(super) heartbeat: Duration,
    /// What is watched from when the group is made.
    pub(super) duty: OnceLock<Duty>,
    pub(super) end: OnceLock<End>,
    /// When the watchdog first saw that another member had left.
    pub(super) left: OnceLock<Instant>,
    /// When the communicators are aborted because of that: whether this rank's work was done.
    pub(super) settled: OnceLock<bool>,
    /// Whether the others are to be told when this rank leaves.
    pub(super) is_member: AtomicBool,
    /// Whether they were.
    pub(super) has_told: AtomicBool,
    /// An error of a communicator, until it is known what it comes of.
    pub(super) doubt: OnceLock<Doubt>,
    /// Whether the group's work was given up, and nothing else.
    revoked: AtomicBool,
    /// Where this rank waits for the others.
    waits: Mutex<Vec<Wait>>,
    /// Groups that are being made of this one's members.
    pub(super) unborn: Mutex<Vec<Weak<Unborn>>>,
    /// Told of losses, and of aborts, as long as the vigil lasts.
    listeners: OnceLock<(Arc<peers::Listener>, Arc<comm::Listener>)>,
}

/// Why a group is over.
#[derive(Debug, Clone)]
pub(super) enum End {
    Trouble(Trouble),
    Force(Force),
}

/// A place in the store where this rank waits for others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Wait {
    Meeting(String),
    /// What one of the others is to say there.
    Word(String),
}

/// A group that is being made of another's members: an abort of that one ends it.
pub(super) struct Unborn(pub(super) Arc<Vigil>);

/// How what is said at a [`Wait::Word`] begins when it will not be said: no number begins so.
pub(super) const NO: &str = "given up by rank ";

/// What was said at `key`, unless that is that it will not be said.
pub(super) fn heard(key: &str, word: Vec<u8>) -> Result<Vec<u8>> {
    let text = String::from_utf8_lossy(&word);
    match text.strip_prefix(NO).and_then(|text| text.split_once(':')?.0.parse().ok()) {
        Some(rank) => Err(StoreError::GivenUp { rank, at: key.to_owned() }.into()),
        None => Ok(word),
    }
}

impl Vigil {
    /// Begins to wait; `place` is this rank's among `ranks`.
    pub(super) fn begin(
        name: &Arc<str>,
        ranks: &Arc<[usize]>,
        place: usize,
        store: &PrefixStore,
        recorder: &Arc<Recorder>,
        heartbeat: Duration,
        watch: &Watch,
    ) -> Arc<Self> {
        let vigil = Arc::new(Self {
            name: name.clone(),
            ranks: ranks.clone(),
            place,
            store: store.clone(),
            communicators: Mutex::default(),
            path: OnceLock::new(),
            given_up: OnceLock::new(),
            recorder: recorder.clone(),
            bell: watch.bell().clone(),
            heartbeat,
            duty: OnceLock::new(),
            end: OnceLock::new(),
            left: OnceLock::new(),
            settled: OnceLock::new(),
            is_member: AtomicBool::new(false),
            has_told: AtomicBool::new(false),
            doubt: OnceLock::new(),
            revoked: AtomicBool::new(false),
            waits: Mutex::default(),
            unborn: Mutex::default(),
            listeners: OnceLock::new(),
        });
        let weak: Weak<Self> = Arc::downgrade(&vigil);
        let lost: Arc<peers::Listener> = {
            let weak = weak.clone();
            Arc::new(move |rank, loss| {
                if let Some(vigil) = weak.upgrade().filter(|vigil| vigil.ranks.contains(&rank)) {
                    vigil.trouble(Trouble::Lost { rank, loss });
                }
            })
        };
        let forced: Arc<comm::Listener> = Arc::new(move |force| {
            if let Some(vigil) = weak.upgrade() {
                vigil.end(End::Force(force));
            }
        });
        let (lost, _) = vigil.listeners.get_or_init(|| (lost, forced));
        watch.peers().tell(lost);
        watch.add(&vigil);
        vigil
    }

    /// The ranks of the job that are members.
    pub(crate) fn ranks(&self) -> &[usize] {
        &self.ranks
    }

    /// This rank of the job.
    pub(super) fn rank(&self) -> usize {
        self.ranks[self.place]
    }

    /// What is watched, once the group is made.
    pub(crate) fn duty(&self) -> Option<&Duty> {
        self.duty.get()
    }

    /// Whether a trouble ends this group.
    pub(crate) fn is_about(&self, trouble: &Trouble) -> bool {
        match (trouble, self.duty()) {
            (Trouble::Lost { rank, .. }, _) => self.ranks.contains(rank),
            (other, duty) => duty.is_some_and(|duty| other.group() == Some(duty.id())),
        }
    }

    /// Whether the group is over.
    pub(super) fn is_over(&self) -> bool {
        self.end.get().is_some()
    }

    /// Whether it is over because a member was in trouble.
    pub(super) fn is_in_trouble(&self) -> bool {
        matches!(self.end.get(), Some(End::Trouble(_)))
    }

    /// Whether it is over because another member has left it.
    pub(super) fn was_left(&self) -> bool {
        matches!(self.end.get(), Some(End::Trouble(Trouble::Left { .. })))
    }

    /// Whether this rank has left it, and has told the others.
    pub(super) fn has_left(&self) -> bool {
        self.has_told.load(Ordering::Acquire)
    }

    /// The communicators that end with the group.
    pub(super) fn communicators(&self) -> Vec<AbortHandle> {
        self.guarded().clone()
    }

    /// Has a communicator of the group end with it, and the group with the communicator.
    pub(super) fn guard(&self, communicator: &AbortHandle) {
        {
            let mut communicators = self.guarded();
            communicators.retain(|other| !other.has_ended());
            communicators.push(communicator.clone());
        }
        if let Some((_, forced)) = self.listeners.get() {
            communicator.tell(forced);
        }
        self.abort_late();
    }

    /// Has a communicator that could not be made end by itself.
    pub(super) fn release(&self, communicator: &AbortHandle) {
        self.guarded().retain(|other| !other.is(communicator));
        if let Some((_, forced)) = self.listeners.get() {
            communicator.tell_no_more(forced);
        }
    }

    /// Has the group's path end with it, which is held by the group itself.
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

    /// Aborts all of the group's communicators, and its path: the first failure.
    pub(super) fn abort_all(&self, deadline: Deadline) -> comm::Result<()> {
        // Of the communicators none would be aborted there, and the group would not know that its path was.
        comm::refuse_inside_group("ncclCommAbort")?;
        let aborted = AbortHandle::abort_together(&self.communicators(), deadline).into_iter().collect();
        if let Some(path) = self.path() {
            path.abort(deadline);
        }
        aborted
    }

    /// What went wrong in the background, in any of the communicators.
    pub(super) fn async_error(&self) -> comm::Result<()> {
        self.communicators().iter().try_for_each(AbortHandle::async_error)
    }

    /// The group goes on only if none of its members is in trouble, and nobody has aborted it here.
    ///
    /// # Errors
    /// What the trouble is; [`CommError::Closed`].
    #[inline]
    pub(super) fn check(&self) -> Result<()> {
        match self.end.get() {
            None => Ok(()),
            Some(end) => Err(self.error(end)),
        }
    }

    /// What was enqueued may have been given up from now on, and is on the path.
    pub(super) fn revoke(&self, deadline: Deadline) {
        self.revoked.store(true, Ordering::Release);
        if let Some(path) = self.path() {
            path.abort(deadline);
        }
    }

    /// What was enqueued has not been given up.
    ///
    /// # Errors
    /// Those of [`check`](Self::check); [`CommError::Revoked`].
    pub(super) fn check_work(&self) -> Result<()> {
        let was_left = self.was_left();
        if !was_left {
            self.check()?;
        }
        if self.revoked.load(Ordering::Acquire) {
            let communicator = format!("{} (rank {} of {})", self.name, self.place, self.ranks.len());
            return Err(CommError::Revoked { call: WAIT, communicator }.into());
        }
        // After a member has left, work is given up later, unless all of it was done.
        if was_left && self.settled.get() == Some(&false) {
            self.check()?;
        }
        Ok(())
    }

    /// Whether another member has ended what was under way on the path, so that what looks done may not be. Why it did is
    /// known here soon, and then [`check`](Self::check) says so: it may be for a third member.
    ///
    /// # Errors
    /// [`PathError::GivenUp`] if nothing has been heard of the reason for longer than members take to tell it.
    pub(super) fn is_given_up(&self) -> Result<bool> {
        match self.given_up() {
            Some((seen, peer)) if seen.elapsed() >= self.patience() => Err(self.gave_up(peer)),
            seen => Ok(seen.is_some()),
        }
    }

    /// Which member has ended what was under way on the path, by its place, and when that was first seen: also once the
    /// path is gone.
    pub(super) fn given_up(&self) -> Option<(Instant, usize)> {
        let known = self.given_up.get().copied();
        known.or_else(|| {
            let peer = self.path()?.given_up()?;
            Some(*self.given_up.get_or_init(|| (Instant::now(), peer)))
        })
    }

    /// What is said of a member that has, and has not said why.
    #[cold]
    pub(super) fn gave_up(&self, peer: usize) -> GroupError {
        let peer = self.ranks.get(peer).copied().unwrap_or(peer);
        let (group, source) = (self.name.to_string(), Box::new(PathError::GivenUp { peer }));
        GroupError::Path { operation: WAIT, group, source }
    }

    /// What an error means: after a trouble, or an abort, whatever else failed did so for that. A communicator is dropped
    /// for another reason, which is the error.
    pub(super) fn explain<T>(&self, result: Result<T>) -> Result<T> {
        match result {
            Ok(value) => Ok(value),
            Err(error) => Err(self.reason(error)),
        }
    }

    /// What an error means.
    #[cold]
    pub(super) fn reason(&self, error: GroupError) -> GroupError {
        use GroupError::{Comm, Driver, Path, Store, WorkTimeout};
        match self.end.get() {
            None | Some(End::Force(Force::Dropped)) => error,
            // What this rank itself has met.
            Some(End::Trouble(Trouble::Failed { rank, .. }))
                if *rank == self.rank() && matches!(error, Driver(_)) =>
            {
                error
            }
            // What the members had agreed on, or this rank had given up, came before another left.
            Some(End::Trouble(Trouble::Left { .. }))
                if matches!(error, Comm(CommError::Revoked { .. }))
                    || !matches!(
                        error,
                        Comm(_) | Driver(_) | Path { .. } | Store(_) | WorkTimeout { .. }
                    ) =>
            {
                error
            }
            Some(end) => self.error(end),
        }
    }

    #[cold]
    pub(super) fn error(&self, end: &End) -> GroupError {
        match end {
            End::Trouble(trouble) => trouble.error(&self.name),
            End::Force(force) => {
                let communicator = format!("{} (rank {} of {})", self.name, self.place, self.ranks.len());
                CommError::Closed { call: "a group's call", communicator, how: force.how().into() }.into()
            }
        }
    }

    /// Runs `meet`, a wait for the members at the meeting `name`, which ends with the group.
    pub(super) fn attend<T>(&self, name: &str, meet: impl FnOnce() -> Result<T>) -> Result<T> {
        self.wait(Wait::Meeting(name.to_owned()), meet)
    }

    /// Runs `hear`, a wait for what another member says at `key`, which is not [`heard`] when the group has ended first.
    pub(super) fn attend_word<T>(&self, key: &str, hear: impl FnOnce() -> Result<T>) -> Result<T> {
        self.wait(Wait::Word(key.to_owned()), hear)
    }

    /// Waits for what `speaker`, a rank of the job, says at `key` in this `meeting`.
    pub(super) fn hear(
        &self,
        key: &str,
        speaker: usize,
        meeting: &'static str,
        deadline: Deadline,
    ) -> Result<Vec<u8>> {
        self.attend_word(key, || {
            let word = self.store.get(key, deadline).map_err(|error| match error {
                StoreError::Timeout { waited, .. } => {
                    let (group, size) = (self.name.to_string(), self.ranks.len());
                    GroupError::Absent { group, ranks: vec![speaker], size, meeting, waited }
                }
                other => other.into(),
            })?;
            heard(key, word)
        })
    }

    /// Says `word` at `key`, unless somebody has said that there will be none.
    pub(super) fn say(&self, key: &str, word: &[u8]) -> Result<Vec<u8>> {
        self.attend_word(key, || heard(key, self.store.compare_set(key, b"", word)?))
    }

    /// Has an abort of this group end `child`, which is being made of its members, as long as what it returns is held.
    pub(super) fn bear(&self, child: &Arc<Self>) -> Arc<Unborn> {
        let unborn = Arc::new(Unborn(child.clone()));
        let mut all = self.unborn.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|other| other.strong_count() > 0);
        all.push(Arc::downgrade(&unborn));
        unborn
    }

    fn wait<T>(&self, wait: Wait, waiting: impl FnOnce() -> Result<T>) -> Result<T> {
        let _open = Open::new(self, wait);
        // Between the two: an end that came before finds no wait to end.
        self.check()?;
        let mut waited = waiting();
        if let Err(GroupError::Store(StoreError::GivenUp { rank, .. })) = &mut waited {
            // It was said by the place in the group, also at a meeting of some members.
            *rank = self.ranks.get(*rank).copied().unwrap_or(*rank);
            self.hear_why(self.heartbeat * 2);
        }
        // Who hosted it may be a member, whose death the kernel tells of in a moment.
        if let Err(GroupError::Store(StoreError::HostDied { .. })) = &waited {
            self.hear_why(self.heartbeat / 2);
        }
        self.explain(waited)
    }

    /// Another member knows why the group ends, and has told, or is about to.
    fn hear_why(&self, patience: Duration) {
        self.bell.hurry();
        let patience = Deadline::after(patience);
        while !self.is_over() && !patience.expired() {
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// What an error of NCCL's means where all members make something together: who notices a loss first aborts, and
    /// the others may see that before they notice themselves.
    pub(super) fn explain_making<T>(&self, made: Result<T, CommError>) -> Result<T> {
        if let Err(CommError::Nccl { code: ncclResult_t::ncclRemoteError, .. }) = &made {
            self.hear_why(self.heartbeat * 2);
        }
        self.explain(made.map_err(GroupError::from))
    }

    pub(super) fn waits(&self) -> MutexGuard<'_, Vec<Wait>> {
        self.waits.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Vigil {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vigil")
            .field("group", &self.name)
            .field("end", &self.end.get())
            .finish_non_exhaustive()
    }
}

/// A wait that an end of the group finds.
struct Open<'a> {
    vigil: &'a Vigil,
    wait: Wait,
}

impl<'a> Open<'a> {
    fn new(vigil: &'a Vigil, wait: Wait) -> Self {
        vigil.waits().push(wait.clone());
        Self { vigil, wait }
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        let mut waits = self.vigil.waits();
        if let Some(at) = waits.iter().position(|wait| *wait == self.wait) {
            waits.swap_remove(at);
        }
    }
}
