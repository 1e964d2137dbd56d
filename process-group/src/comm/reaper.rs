//! Where communicators go that were dropped without an end, and where it is told what became of them.

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

/// Sends every failure that has nobody to return to (a dropped communicator that could not be aborted, a group
/// that failed while being dropped), in this process, to `hook` instead of the default, which writes one line to
/// standard error.
///
/// The hook may run on any thread; a panic inside it is swallowed.
pub fn set_drop_error_hook(hook: impl Fn(&CommError) + Send + Sync + 'static) {
    *HOOK.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(hook));
}

/// Reports a failure that has nobody to return to.
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
    /// Aborts that run on threads of their own.
    beside: usize,
    /// Whether the thread runs.
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

/// Takes a communicator whose owner is gone, and aborts it in the background. Nothing for one that has ended.
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
            // Without the thread nobody frees it: keep what NCCL may still write to.
            abort::keep(shared);
            return report(&CommError::Thread { communicator: shared.name().into(), source });
        }
        queue.started = true;
    }
    queue.waiting.push(shared.clone());
    reaper.changed.notify_all();
}

/// An abort on a thread of its own, which [`wait_for_dropped`] waits for too, until this is dropped.
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

/// Waits until every communicator that was dropped without an end, or whose group is over, is aborted, or given up and
/// reported: before a process exits, or a library is to be quiet. `false` if the deadline passed first.
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
