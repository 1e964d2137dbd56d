//! Keeps owners of memory until operations are done.
//!
//! One thread per process serves all of them, and ends when there are none. It is not the watchdog, because
//! dropping an owner may free memory, which may wait for a device.

use std::{
    any::Any,
    collections::{HashMap, VecDeque},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use bootstrap::runtime;

use super::{Work, mark::StreamKey};
use crate::group::{GroupError, Result};

/// The shortest pause between two checks, used after an owner was dropped, and the longest.
const PAUSES: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(8)];
/// The number of consecutive failed queries after which the owners of a stream are dropped. A device that
/// stops answering runs nothing any more, but a single call may fail.
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

/// The owners kept for one group's work on one stream, in the order in which they were added.
#[derive(Default)]
struct Line {
    kept: VecDeque<Kept>,
    /// The number of consecutive queries that failed.
    unanswered: u32,
}

/// A group, by its counter, and a stream of it.
type LineKey = (usize, StreamKey);

impl Line {
    fn add(&mut self, kept: Kept) {
        let key = kept.work.key();
        let at = self.kept.partition_point(|other| other.work.key() <= key);
        self.kept.insert(at, kept);
    }

    /// Drops the owners whose work is done, the oldest first. Costs one query, and one for each that is done.
    /// Returns true if there was any.
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
    kept: Vec<Kept>,
    /// Owners that are dropped once their work is done or their group has ended.
    waiting: Vec<Kept>,
    is_running: bool,
}

static KEEPER: Mutex<Keeper> =
    Mutex::new(Keeper { kept: Vec::new(), waiting: Vec::new(), is_running: false });

fn keeper() -> MutexGuard<'static, Keeper> {
    KEEPER.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Work {
    /// Keeps `owner` until the operation is done, whether or not a thread waits for it. The owner holds the
    /// operation's buffers, for example a tensor of another library, and the caller need not keep it. If the
    /// operation fails or is given up, the owner is also kept, because the device may use its buffers until
    /// no part of the operation runs. The owner is dropped on a separate thread, within about 10 ms. A panic
    /// of its destructor is ignored there.
    ///
    /// Memory of a stream-ordered allocator needs no owner: tell the allocator of the stream instead, as
    /// `Block::record_stream` of caching-alloc does.
    ///
    /// # Errors
    /// [`GroupError::Captured`]: a graph keeps nothing, and may run at any time; the owner is
    /// dropped. [`GroupError::Thread`]: the thread could not be started; the owner is kept until a later call
    /// has started it.
    pub fn keep(&self, owner: impl Send + 'static) -> Result<()> {
        self.keep_in(owner, |keeper| &mut keeper.kept)
    }

    /// Like [`keep`](Self::keep), but drops `owner` also when the group has ended, although the operation may still
    /// run.
    pub(super) fn keep_until_ended(&self, owner: impl Send + 'static) -> Result<()> {
        self.keep_in(owner, |keeper| &mut keeper.waiting)
    }

    fn keep_in(
        &self,
        owner: impl Send + 'static,
        list: impl FnOnce(&mut Keeper) -> &mut Vec<Kept>,
    ) -> Result<()> {
        if self.mark.captured {
            return Err(self.captured());
        }
        let mut keeper = keeper();
        list(&mut keeper).push(Kept { work: self.clone(), owner: Box::new(owner) });
        if !keeper.is_running {
            let spawned = runtime::spawn("work-keeper", look_after);
            let group = || self.mark.counter.name.to_string();
            spawned.map_err(|source| GroupError::Thread { group: group(), thread: "work-keeper", source })?;
            keeper.is_running = true;
        }
        Ok(())
    }

    pub(super) fn captured(&self) -> GroupError {
        GroupError::Captured {
            operation: self.mark.operation,
            sequence: self.mark.sequence,
            group: self.mark.counter.name.to_string(),
        }
    }
}

/// Lets a later call start the thread again if it unwinds. In a seeded world it does so at the end of the world.
struct Ending;

impl Drop for Ending {
    fn drop(&mut self) {
        // A thread that returns has cleared it under the lock, and another one may run by now.
        if thread::panicking() {
            keeper().is_running = false;
        }
    }
}

/// Drops owners whose work is done, until nothing is kept.
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
        let is_ended = |kept: &Kept| !matches!(kept.work.is_completed(), Ok(false));
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
