//! Keeps the owners of buffers alive until the operations that use these buffers are complete.
//!
//! One thread per process keeps all owners, and ends when there are none left. This is not the watchdog's thread,
//! because dropping an owner may free memory, which may block until a device is idle.

use std::{
    any::Any,
    collections::{HashMap, VecDeque},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use bootstrap::runtime;

use super::{Work, events::StreamKey};
use crate::group::{GroupErrorKind, KindResult, Result};

/// Minimum and maximum pause between two checks. The minimum is used after an owner was dropped. The pause then doubles
/// with each check.
const PAUSES: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(8)];
/// Number of consecutive failed queries after which all owners of a stream are dropped. If queries keep failing, the
/// device no longer runs anything. Fewer failures may be temporary.
const UNANSWERED: u32 = 100;

struct Kept {
    work: Work,
    owner: Box<dyn Any + Send>,
}

impl Kept {
    fn drop_owner(self) {
        let Self { work, owner } = self;
        drop(work);
        let _ = catch_unwind(AssertUnwindSafe(|| drop(owner)));
    }
}

/// The owners kept for the work of one group on one stream, in the order in which the work was added to
/// [`Outstanding`](super::Outstanding).
#[derive(Default)]
struct Line {
    kept: VecDeque<Kept>,
    /// The number of consecutive queries that failed.
    unanswered: u32,
}

/// Identifies a group, by the address of its `Counter`, and one of the group's streams.
type LineKey = (usize, StreamKey);

impl Line {
    fn add(&mut self, kept: Kept) {
        let key = kept.work.key();
        let at = self.kept.partition_point(|other| other.work.key() <= key);
        self.kept.insert(at, kept);
    }

    /// Drops the owners whose work is complete, the oldest first. Makes one query for each complete work, and one for
    /// the first that is not. Returns true if an owner was dropped.
    fn drop_done(&mut self) -> bool {
        let before = self.kept.len();
        while let Some(oldest) = self.kept.front() {
            match oldest.work.is_done() {
                Ok(false) => {
                    self.unanswered = 0;
                    break;
                }
                Ok(true) => {
                    self.unanswered = 0;
                    self.kept.pop_front().into_iter().for_each(Kept::drop_owner);
                }
                Err(_) => {
                    self.unanswered += 1;
                    if self.unanswered >= UNANSWERED {
                        self.kept.drain(..).for_each(Kept::drop_owner);
                    }
                    break;
                }
            }
        }
        self.kept.len() < before
    }
}

#[derive(Default)]
struct Keeper {
    /// New owners that are dropped once no part of their work runs. The thread moves them to its [`Line`]s.
    kept: Vec<Kept>,
    /// New owners that are dropped once their work is complete or their group has ended.
    waiting: Vec<Kept>,
    is_running: bool,
}

static KEEPER: Mutex<Keeper> =
    Mutex::new(Keeper { kept: Vec::new(), waiting: Vec::new(), is_running: false });

fn keeper() -> MutexGuard<'static, Keeper> {
    KEEPER.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Work {
    /// Keeps `owner` alive until the operation is complete, whether or not a thread waits for the operation. `owner` is
    /// a value that holds the operation's buffers, for example a tensor of another library. If the operation fails or
    /// is given up, the owner is kept until no part of the operation runs on the device, because the device may use the
    /// buffers until then. The owner is dropped on a separate thread, within about 10 ms. A panic in the owner's
    /// destructor is ignored.
    ///
    /// Memory of a stream-ordered allocator need not be kept: record the stream with the allocator instead, for example
    /// by `Block::record_stream` of caching-alloc.
    ///
    /// # Errors
    /// [`GroupErrorKind::Captured`] if a graph captured the operation: the owner is dropped, because a graph does not
    /// keep owners and may be launched at any time. [`GroupErrorKind::Thread`] if the separate thread could not be
    /// started: the owner is kept, at least until a later call has started the thread.
    pub fn keep(&self, owner: impl Send + 'static) -> Result<()> {
        self.in_call(self.keep_in(owner, |keeper| &mut keeper.kept))
    }

    /// Like [`keep`](Self::keep), but `owner` is dropped as soon as [`is_completed`](Self::is_completed) returns true
    /// or an error, for example because the group has ended. The operation may still run then.
    pub(super) fn keep_until_ended(&self, owner: impl Send + 'static) -> KindResult<()> {
        self.keep_in(owner, |keeper| &mut keeper.waiting)
    }

    fn keep_in(
        &self,
        owner: impl Send + 'static,
        list: impl FnOnce(&mut Keeper) -> &mut Vec<Kept>,
    ) -> KindResult<()> {
        if self.mark.captured {
            return Err(GroupErrorKind::Captured);
        }
        let mut keeper = keeper();
        list(&mut keeper).push(Kept { work: self.clone(), owner: Box::new(owner) });
        if !keeper.is_running {
            let spawned = runtime::spawn("work-keeper", look_after);
            spawned.map_err(|source| GroupErrorKind::Thread { thread: "work-keeper", source })?;
            keeper.is_running = true;
        }
        Ok(())
    }
}

/// Allows a later call to start the thread again after the thread has unwound. In a seeded world (a simulation of the
/// runtime), the thread unwinds at the end of the world.
struct Ending;

impl Drop for Ending {
    fn drop(&mut self) {
        // A thread that returns normally has cleared `is_running` under the lock, and another thread may have been
        // started since.
        if thread::panicking() {
            keeper().is_running = false;
        }
    }
}

/// Drops owners whose work is complete. Returns when no owners are left.
fn look_after() {
    let _ending = Ending;
    let [shortest, longest] = PAUSES;
    let (mut lines, mut waiting, mut pause) = (HashMap::<LineKey, Line>::new(), Vec::new(), shortest);
    loop {
        let new = {
            let mut keeper = keeper();
            waiting.append(&mut keeper.waiting);
            if keeper.kept.is_empty() && lines.is_empty() && waiting.is_empty() {
                keeper.is_running = false;
                return;
            }
            std::mem::take(&mut keeper.kept)
        };
        for kept in new {
            let mark = &kept.work.mark;
            let key = (Arc::as_ptr(&mark.counter).addr(), mark.stream);
            lines.entry(key).or_default().add(kept);
        }
        let is_ended = |kept: &Kept| !matches!(kept.work.completion(), Ok(false));
        let (ended, open): (Vec<_>, Vec<_>) = waiting.into_iter().partition(is_ended);
        let mut any = !ended.is_empty();
        waiting = open;
        ended.into_iter().for_each(Kept::drop_owner);
        lines.retain(|_, line| {
            any |= line.drop_done();
            !line.kept.is_empty()
        });
        pause = if any { shortest } else { longest.min(pause * 2) };
        runtime::sleep(pause);
    }
}
