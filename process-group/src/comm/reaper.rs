//! Ends dropped communicators in the background, and reports failures that no caller can receive.

use std::{
    io::Write as _,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock},
    time::Duration,
};

use bootstrap::runtime::{self, Event};
use cuda_driver::graph::{RelaxedCapture, is_capturing};

use super::{
    CommError, Result, abort,
    call::call,
    service::{Force, Service, Ticket},
    shared::Shared,
};
use crate::store::Deadline;

type Hook = Arc<dyn Fn(&CommError) + Send + Sync>;

static HOOK: RwLock<Option<Hook>> = RwLock::new(None);

/// Sets the hook of this process for failures that no caller can receive: for example, a dropped communicator could not
/// be aborted or released, the launch of a dropped [`Group`](super::Group) failed, or a dropped
/// [`Registration`](super::Registration) could not be deregistered. Replaces the previous hook. The default hook writes
/// one line to standard error.
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

struct Queue {
    waiting: Vec<Arc<Shared>>,
    aborting: bool,
    /// Number of aborts that run on threads other than the reaper thread.
    beside: usize,
    /// True once the reaper thread is started.
    started: bool,
}

impl Queue {
    const EMPTY: Self = Self { waiting: Vec::new(), aborting: false, beside: 0, started: false };
}

struct Reaper {
    queue: Mutex<Queue>,
    changed: Event,
}

impl Reaper {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let _ending = Ending;
        let mut queue = self.lock();
        loop {
            if queue.waiting.is_empty() {
                queue = self.changed.wait_unlocked(&self.queue, queue, Duration::MAX);
                continue;
            }
            let batch = std::mem::take(&mut queue.waiting);
            queue.aborting = true;
            drop(queue);
            let (adopted, own): (Vec<_>, Vec<_>) = batch.into_iter().partition(|shared| shared.is_adopted());
            let deadline = Deadline::after(abort::PATIENCE);
            let releasing: Vec<_> = adopted.iter().map(release).collect();
            adopted.iter().for_each(|shared| shared.guard.interrupt(Force::Dropped));
            let aborted = abort::together(&own, Force::Dropped, deadline);
            let released = releasing.into_iter().map(|releasing| releasing.finish(deadline));
            aborted.into_iter().chain(released).filter_map(Result::err).for_each(|error| report(&error));
            drop((adopted, own));
            queue = self.lock();
            queue.aborting = false;
            self.changed.notify_all();
        }
    }
}

fn reaper() -> &'static Reaper {
    static REAPER: Reaper =
        Reaper { queue: Mutex::new(Queue::EMPTY), changed: Event::new("a dropped communicator") };
    &REAPER
}

/// Resets the queue when the reaper thread ends. The thread ends only together with the seeded world (of
/// `bootstrap::runtime`) in which it was spawned. The next world starts a new reaper thread.
struct Ending;

impl Drop for Ending {
    fn drop(&mut self) {
        let reaper = reaper();
        let mut queue = reaper.lock();
        (queue.started, queue.aborting) = (false, false);
        drop(queue);
        reaper.changed.notify_all();
    }
}

/// Aborts a dropped communicator in the background, or releases it if it was adopted. Does nothing if the
/// communicator has ended, or was never made.
pub(crate) fn take(shared: &Arc<Shared>) {
    if shared.guard.close_unmade("dropped")
        || matches!(shared.guard.check("drop"), Err(CommError::Closed { .. }))
    {
        return;
    }
    let reaper = reaper();
    let mut queue = reaper.lock();
    if !queue.started {
        if let Err(source) = runtime::spawn("nccl-reaper", || self::reaper().run()) {
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

/// An adopted communicator that is being released on a thread of its own.
pub(super) struct Releasing {
    shared: Arc<Shared>,
    ticket: Result<Ticket<Result<()>>>,
}

/// Begins to release an adopted communicator to its owner. No further call is admitted.
pub(super) fn release(shared: &Arc<Shared>) -> Releasing {
    shared.guard.close("released", None);
    shared.registry.retire();
    let ticket = Service::start(shared.name()).map(|thread| {
        let shared = shared.clone();
        thread.submit(move || {
            withdraw(&shared).inspect_err(|_| abort::keep(&shared))?;
            // The owner may abort the communicator later. NCCL then writes to the abort flags of these children, so
            // their memory must stay valid.
            shared.take_children().iter().for_each(abort::keep);
            shared.let_go().iter().for_each(take);
            Ok(())
        })
    });
    Releasing { shared: shared.clone(), ticket: ticket.inspect_err(|_| abort::keep(shared)) }
}

impl Releasing {
    /// Waits for the release until the deadline. The release itself continues after the deadline.
    pub(super) fn finish(self, deadline: Deadline) -> Result<()> {
        self.ticket?.wait(deadline).unwrap_or_else(|_| {
            let why =
                "a call did not return from NCCL, or its device did not become idle, in time".to_owned();
            Err(CommError::Leaked { communicator: self.shared.name().into(), why })
        })
    }
}

/// Deregisters all ranges and windows that this crate registered with an adopted communicator. The communicator's
/// guard must be closed. Waits without a deadline, so this function runs on a thread of its own.
fn withdraw(shared: &Shared) -> Result<()> {
    const CALL: &str = "ncclCommWindowDeregister";
    const INTERVAL: Duration = Duration::from_millis(10);
    while shared.guard.wait_empty(Deadline::after(abort::PATIENCE)).is_err() {}
    let windows = shared.windows().take_handles();
    if windows.is_empty() && shared.registry.len() == 0 {
        return Ok(());
    }
    let _entry = shared.guard.enter_closed(CALL);
    // Enqueued work may still use the memory, so the device is synchronized below. That would invalidate a capture,
    // so wait first until no stream captures.
    while is_capturing(&shared.context)? {
        runtime::sleep(INTERVAL);
    }
    let _relaxed = RelaxedCapture::enter(shared.context.driver())?;
    shared.context.synchronize()?;
    shared.context.with_current(|| {
        let registrations = shared.deregister_all().and_then(|()| match shared.registry.len() {
            0 => Ok(()),
            left => {
                let why = format!("{left} registered ranges could not be deregistered");
                Err(CommError::Leaked { communicator: shared.name().into(), why })
            }
        });
        let deregister = |window| {
            // SAFETY: the closed guard admits no other thread, and `shared` keeps the communicator's owner alive.
            // NCCL returned the handle for this communicator, and `take_handles` returns each handle once.
            unsafe { call!(&shared.nccl, shared.name(), ncclCommWindowDeregister(shared.raw(), window)) }
        };
        let windows: Vec<_> = windows.into_iter().map(deregister).collect();
        windows.into_iter().fold(registrations, Result::and)
    })?
}

/// Marks an abort that runs on a thread other than the reaper thread. [`wait_for_dropped`] waits until this value is
/// dropped.
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

/// Waits for the communicators that are ended in the background: those that were dropped without being destroyed or
/// aborted, and those whose group has ended. Each is aborted (or released, if it was
/// [adopted](super::Communicator::adopt)), or reported as leaked. Call this function before the process exits, or
/// when no background work may remain. Returns `false` if the deadline passed first.
pub fn wait_for_dropped(deadline: Deadline) -> bool {
    let reaper = reaper();
    let mut queue = reaper.lock();
    while !queue.waiting.is_empty() || queue.aborting || queue.beside > 0 {
        if deadline.expired() {
            return false;
        }
        queue = reaper.changed.wait_unlocked(&reaper.queue, queue, deadline.remaining());
    }
    true
}
