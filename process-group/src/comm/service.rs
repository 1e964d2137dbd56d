//! The service thread of a communicator. It runs calls that may block for ever, so that their callers do not block.

use std::{
    collections::VecDeque,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bootstrap::runtime::{self, Event, Instant};

use super::{CommError, Result};
use crate::store::Deadline;

type Job = Box<dyn FnOnce() + Send>;

/// A callback that is called when a communicator is aborted or dropped. It must not block.
pub(crate) type Listener = dyn Fn(Force) + Send + Sync;

/// Reason for an abort.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Force {
    Aborted,
    /// The owner dropped the communicator.
    Dropped,
}

impl Force {
    /// Returns the word that the errors of later calls contain.
    pub(crate) const fn how(self) -> &'static str {
        match self {
            Self::Aborted => "aborted",
            Self::Dropped => "dropped",
        }
    }
}

/// Handle of a thread that runs jobs in the order of submission. The thread ends when this handle is dropped and all
/// submitted jobs are done. Dropping the handle does not wait. A job that never returns keeps the thread alive.
pub(crate) struct Service {
    queue: Arc<Queue>,
}

/// The jobs of a service thread.
struct Queue {
    jobs: Mutex<Jobs>,
    changed: Event,
}

#[derive(Default)]
struct Jobs {
    waiting: VecDeque<Job>,
    /// True once the [`Service`] is dropped, or the thread has ended. No job is added afterwards.
    is_closed: bool,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the next job. Returns `None` once the queue is closed and empty.
    fn next(&self) -> Option<Job> {
        let mut jobs = self.lock();
        loop {
            if let Some(job) = jobs.waiting.pop_front() {
                return Some(job);
            }
            if jobs.is_closed {
                return None;
            }
            jobs = self.changed.wait_unlocked(&self.jobs, jobs, Duration::MAX);
        }
    }
}

impl Service {
    /// Starts the thread. `communicator` is the communicator's name in errors.
    pub(crate) fn start(communicator: &str) -> Result<Self> {
        let queue = Arc::new(Queue { jobs: Mutex::default(), changed: Event::new("a call of NCCL to run") });
        let of_thread = queue.clone();
        let work = move || {
            // If a job panics, this guard closes the queue and drops the later jobs, which breaks their promises.
            let queue = Closing(&of_thread);
            while let Some(job) = queue.0.next() {
                job();
            }
        };
        runtime::spawn("nccl-service", work)
            .map_err(|source| CommError::Thread { communicator: communicator.into(), source })?;
        Ok(Self { queue })
    }

    /// Submits `job` to the thread.
    pub(crate) fn submit<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> Ticket<T> {
        let (promise, ticket) = promise();
        self.keep(promise, job);
        ticket
    }

    /// Submits `job`, whose result fulfils `promise`.
    pub(crate) fn keep<T: Send + 'static>(
        &self,
        promise: Promise<T>,
        job: impl FnOnce() -> T + Send + 'static,
    ) {
        let job = Box::new(move || promise.keep(job()));
        let mut jobs = self.queue.lock();
        if jobs.is_closed {
            // A job has panicked and ended the thread. Dropping the promise in `job` breaks its ticket.
            drop(jobs);
            return drop(job);
        }
        jobs.waiting.push_back(job);
        drop(jobs);
        self.queue.changed.notify_all();
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.queue.lock().is_closed = true;
        self.queue.changed.notify_all();
    }
}

/// Closes the queue when the service thread ends, and drops the jobs that have not run.
struct Closing<'a>(&'a Queue);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        let mut jobs = self.0.lock();
        jobs.is_closed = true;
        let left = std::mem::take(&mut jobs.waiting);
        // The jobs are dropped without the lock, because dropping the objects that they own may take other locks.
        drop(jobs);
        drop(left);
    }
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Service")
    }
}

enum Outcome<T> {
    /// No value yet. After an interruption: the time at which a wait ends.
    Pending(Option<Instant>),
    Kept(T),
    /// The job ended without a value: it panicked.
    Broken,
    /// The ticket was dropped, or the value was taken out.
    Abandoned,
}

struct Slot<T> {
    outcome: Mutex<Outcome<T>>,
    changed: Event,
}

impl<T> Slot<T> {
    /// Stores `outcome`. Drops it instead if an outcome is stored already, or the ticket was dropped.
    fn fill(&self, outcome: Outcome<T>) {
        let mut held = self.outcome.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*held, Outcome::Pending(_)) {
            *held = outcome;
            self.changed.notify_all();
        }
    }
}

/// The sending half of a [`Ticket`]. Dropping the promise without a value breaks the ticket.
pub(crate) struct Promise<T> {
    slot: Arc<Slot<T>>,
}

/// Makes a promise and its ticket, for a job that is submitted later.
pub(crate) fn promise<T>() -> (Promise<T>, Ticket<T>) {
    let slot = Arc::new(Slot {
        outcome: Mutex::new(Outcome::Pending(None)),
        changed: Event::new("a call of NCCL to return"),
    });
    (Promise { slot: slot.clone() }, Ticket { slot })
}

impl<T> Promise<T> {
    fn keep(self, value: T) {
        self.slot.fill(Outcome::Kept(value));
    }
}

impl<T> Drop for Promise<T> {
    fn drop(&mut self) {
        self.slot.fill(Outcome::Broken);
    }
}

/// The receiving half of a [`Promise`], through which the submitter gets a job's value.
pub(crate) struct Ticket<T> {
    slot: Arc<Slot<T>>,
}

/// The reason why a ticket gave no value.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Unkept {
    /// The deadline passed. The job continues, and its value will be dropped.
    Late,
    /// The job panicked.
    Broken,
    /// The wait was interrupted. The job continues, and its value will be dropped.
    Interrupted,
}

impl<T: Send + 'static> Ticket<T> {
    /// Returns a listener. A wait for this ticket ends when the time `grace` has passed since the listener was
    /// called.
    pub(crate) fn interruption(&self, grace: Duration) -> Arc<Listener> {
        let slot = self.slot.clone();
        Arc::new(move |_| {
            let mut held = slot.outcome.lock().unwrap_or_else(PoisonError::into_inner);
            if let Outcome::Pending(until @ None) = &mut *held {
                *until = Some(Instant::now() + grace);
                slot.changed.notify_all();
            }
        })
    }
}

impl<T> Ticket<T> {
    /// Waits for the job's value.
    pub(crate) fn wait(self, deadline: Deadline) -> Result<T, Unkept> {
        self.look(deadline).unwrap_or(Err(Unkept::Late))
    }

    /// Waits for the job's value, at most until `until`. Returns `None` if the job is not done by then. Returns the
    /// value once, and [`Unkept::Broken`] afterwards.
    pub(crate) fn look(&self, until: Deadline) -> Option<Result<T, Unkept>> {
        let mut held = self.slot.outcome.lock().unwrap_or_else(PoisonError::into_inner);
        let mut patience = Duration::MAX;
        loop {
            match std::mem::replace(&mut *held, Outcome::Abandoned) {
                Outcome::Kept(value) => return Some(Ok(value)),
                Outcome::Broken | Outcome::Abandoned => return Some(Err(Unkept::Broken)),
                Outcome::Pending(Some(end)) if end <= Instant::now() => {
                    return Some(Err(Unkept::Interrupted));
                }
                Outcome::Pending(end) => {
                    *held = Outcome::Pending(end);
                    if let Some(end) = end {
                        patience = end.saturating_duration_since(Instant::now());
                    }
                }
            }
            if until.expired() {
                return None;
            }
            let limit = patience.min(until.remaining());
            held = self.slot.changed.wait_unlocked(&self.slot.outcome, held, limit);
        }
    }
}

impl<T> Drop for Ticket<T> {
    fn drop(&mut self) {
        let mut held = self.slot.outcome.lock().unwrap_or_else(PoisonError::into_inner);
        let unseen = std::mem::replace(&mut *held, Outcome::Abandoned);
        drop(held);
        drop(unseen);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{sync::mpsc, thread, time::Duration};

    fn far() -> Deadline {
        Deadline::after(Duration::from_secs(60))
    }

    #[test]
    fn jobs_run_in_order_and_give_their_values() {
        let service = Service::start("a").unwrap();
        let log = Arc::new(Mutex::new(Vec::new()));
        let tickets: Vec<_> = (0..50)
            .map(|i| {
                let log = log.clone();
                service.submit(move || {
                    log.lock().unwrap().push(i);
                    i
                })
            })
            .collect();
        let values: Vec<_> = tickets.into_iter().map(|ticket| ticket.wait(far()).unwrap()).collect();
        assert_eq!(values, *log.lock().unwrap());
    }

    #[test]
    fn a_late_value_is_dropped_and_the_next_job_runs() {
        struct Loud(mpsc::Sender<()>);
        impl Drop for Loud {
            fn drop(&mut self) {
                self.0.send(()).unwrap();
            }
        }
        let service = Service::start("a").unwrap();
        let (go, wait) = mpsc::channel::<()>();
        let (dropped, drops) = mpsc::channel();
        let ticket = service.submit(move || {
            wait.recv().unwrap();
            Loud(dropped)
        });
        assert_eq!(ticket.wait(Deadline::now()).err(), Some(Unkept::Late));
        go.send(()).unwrap();
        drops.recv().unwrap();
        assert_eq!(service.submit(|| 7).wait(far()).unwrap(), 7);
    }

    #[test]
    fn a_wait_that_is_interrupted_ends_and_a_value_that_is_there_stays() {
        let service = Service::start("a").unwrap();
        let (go, wait) = mpsc::channel::<()>();
        let late = service.submit(move || wait.recv().unwrap());
        let interrupt = late.interruption(Duration::ZERO);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| late.wait(far()));
            interrupt(Force::Aborted);
            assert_eq!(waiting.join().unwrap().err(), Some(Unkept::Interrupted));
        });
        go.send(()).unwrap();
        let ticket = service.submit(|| 7);
        let interrupt = ticket.interruption(Duration::ZERO);
        assert_eq!(service.submit(|| 8).wait(far()).unwrap(), 8);
        interrupt(Force::Aborted);
        assert_eq!(ticket.wait(far()).unwrap(), 7);
    }

    #[test]
    fn a_job_that_panics_breaks_its_ticket() {
        let service = Service::start("a").unwrap();
        let ticket = service.submit(|| {
            if thread::current().name() == Some("nccl-service") {
                panic!("expected by the test")
            }
        });
        assert_eq!(ticket.wait(far()).err(), Some(Unkept::Broken));
    }
}
