//! Aborts dropped communicators in the background, and reports failures that no caller can receive.

use std::{
    io::Write as _,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, RwLock},
    thread,
};

use super::{CommError, abort, service::Force, shared::Shared};
use crate::store::Deadline;

type Hook = Arc<dyn Fn(&CommError) + Send + Sync>;

static HOOK: RwLock<Option<Hook>> = RwLock::new(None);

/// Sends every failure of this process that no caller can receive to `hook`: a dropped communicator that could not be
/// aborted, or a group that failed while it was dropped. The default hook writes one line to standard error.
///
/// The hook may run on any thread. A panic inside it is ignored.
pub fn set_drop_error_hook(hook: impl Fn(&CommError) + Send + Sync + 'static) {
    *HOOK.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(hook));
}

/// Reports a failure that no caller can receive.
pub(crate) fn report(error: &CommError) {
    let hook = HOOK.read().unwrap_or_else(PoisonError::into_inner).clone();
    let _ = catch_unwind(AssertUnwindSafe(|| match hook {
        Some(hook) => hook(error),
        None => {
            let _ = writeln!(std::io::stderr(), "process-group: while dropping: {error}");
        }
    }));
}

#[derive(Default)]
struct Queue {
    waiting: Vec<Arc<Shared>>,
    aborting: bool,
    /// Aborts that run on other threads.
    beside: usize,
    /// True once the reaper thread is started.
    started: bool,
}

struct Reaper {
    queue: Mutex<Queue>,
    changed: Condvar,
}

impl Reaper {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let mut queue = self.lock();
        loop {
            if queue.waiting.is_empty() {
                queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let batch = std::mem::take(&mut queue.waiting);
            queue.aborting = true;
            drop(queue);
            let results = abort::together(&batch, Force::Dropped, Deadline::after(abort::PATIENCE));
            results.iter().filter_map(|result| result.as_ref().err()).for_each(report);
            drop(batch);
            queue = self.lock();
            queue.aborting = false;
            self.changed.notify_all();
        }
    }
}

fn reaper() -> &'static Reaper {
    static REAPER: OnceLock<Reaper> = OnceLock::new();
    REAPER.get_or_init(|| Reaper { queue: Mutex::default(), changed: Condvar::new() })
}

/// Takes a communicator without an owner, and aborts it in the background. Does nothing for one that has ended.
pub(crate) fn take(shared: &Arc<Shared>) {
    if shared.gate.close_unmade("dropped")
        || matches!(shared.gate.check("drop"), Err(CommError::Closed { .. }))
    {
        return;
    }
    let reaper = reaper();
    let mut queue = reaper.lock();
    if !queue.started {
        let spawned = thread::Builder::new().name("nccl-reaper".into()).spawn(|| self::reaper().run());
        if let Err(source) = spawned {
            drop(queue);
            // Without the thread the communicator is never freed. Keep everything that NCCL may still write to.
            abort::keep(shared);
            return report(&CommError::Thread { communicator: shared.name().into(), source });
        }
        queue.started = true;
    }
    queue.waiting.push(shared.clone());
    reaper.changed.notify_all();
}

/// An abort on another thread. [`wait_for_dropped`] also waits until this is dropped.
pub(crate) struct Beside(());

impl Beside {
    pub(crate) fn begin() -> Self {
        reaper().lock().beside += 1;
        Self(())
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        let reaper = reaper();
        reaper.lock().beside -= 1;
        reaper.changed.notify_all();
    }
}

/// Waits until every communicator that was dropped without an end, or whose group has ended, is aborted, or reported
/// as leaked. Call it before the process exits, or when no background work may remain. Returns `false` if the
/// deadline passed first.
pub fn wait_for_dropped(deadline: Deadline) -> bool {
    let reaper = reaper();
    let mut queue = reaper.lock();
    while !queue.waiting.is_empty() || queue.aborting || queue.beside > 0 {
        if deadline.expired() {
            return false;
        }
        let waited = reaper.changed.wait_timeout(queue, deadline.remaining());
        queue = waited.unwrap_or_else(PoisonError::into_inner).0;
    }
    true
}
