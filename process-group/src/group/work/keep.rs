//! Owners of memory that are kept until operations are done.
//!
//! One thread a process looks after all of them, and ends when there are none: what is dropped may free memory, which may
//! wait for a device, and nobody who watches over groups is to wait for that.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use super::Work;
use crate::group::{GroupError, Result};

/// How often it is asked what is done.
const LOOK: Duration = Duration::from_millis(1);
/// So many times in a row: a device that does not answer does nothing any more, but a call may fail.
const UNANSWERED: u32 = 100;

struct Kept {
    work: Work,
    owner: Box<dyn Any + Send>,
    unanswered: u32,
}

impl Kept {
    fn is_over(&mut self) -> bool {
        match self.work.is_done() {
            Ok(done) => {
                self.unanswered = 0;
                done
            }
            Err(_) => {
                self.unanswered += 1;
                self.unanswered >= UNANSWERED
            }
        }
    }
}

#[derive(Default)]
struct Keeper {
    kept: Vec<Kept>,
    is_running: bool,
}

static KEEPER: Mutex<Keeper> = Mutex::new(Keeper { kept: Vec::new(), is_running: false });

fn keeper() -> MutexGuard<'static, Keeper> {
    KEEPER.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Work {
    /// Keeps `owner` until the operation is done, whether or not anybody waits for that: what holds its buffers, such as a
    /// tensor of another library, which may be dropped here at once then. Also if the operation fails, or is given up: the
    /// device may use its buffers until nothing of it runs. It is dropped on a thread of its own, within a few ms; a panic of
    /// its destructor is swallowed there.
    ///
    /// Memory of an allocator that orders by streams needs no owner kept: tell the allocator of the stream instead, as
    /// `Block::record_stream` of caching-alloc does.
    ///
    /// # Errors
    /// [`GroupError::Captured`]: a graph keeps nothing, and may run whenever; the owner is dropped.
    pub fn keep(&self, owner: impl Send + 'static) -> Result<()> {
        if self.mark.captured {
            return Err(self.captured());
        }
        let mut keeper = keeper();
        keeper.kept.push(Kept { work: self.clone(), owner: Box::new(owner), unanswered: 0 });
        if !keeper.is_running {
            // Without a thread it is kept until there is one for another.
            keeper.is_running = thread::Builder::new().name("work-keeper".into()).spawn(look_after).is_ok();
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

/// Drops what is over, until nothing is kept.
fn look_after() {
    let mut all = Vec::new();
    loop {
        {
            let mut keeper = keeper();
            all.append(&mut keeper.kept);
            if all.is_empty() {
                keeper.is_running = false;
                return;
            }
        }
        for Kept { work, owner, .. } in all.extract_if(.., Kept::is_over) {
            drop(work);
            let _ = catch_unwind(AssertUnwindSafe(|| drop(owner)));
        }
        thread::sleep(LOOK);
    }
}
