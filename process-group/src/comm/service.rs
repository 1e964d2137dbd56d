//! The service thread of a communicator: runs the calls that may block for ever, so that their callers need not.

use std::{
    fmt,
    sync::{Arc, Condvar, Mutex, PoisonError, mpsc},
    thread,
};

use super::{CommError, Result};
use crate::store::Deadline;

type Job = Box<dyn FnOnce() + Send>;

/// A thread that runs jobs in the order in which they were given. It ends when the handle is dropped and its
/// jobs are done; a job that never returns keeps the thread, and nobody waits for it.
pub(crate) struct Service {
    jobs: Mutex<mpsc::Sender<Job>>,
}

impl Service {
    /// Starts a thread for the communicator that errors call `communicator`.
    pub(crate) fn start(communicator: &str) -> Result<Self> {
        let (jobs, queue) = mpsc::channel::<Job>();
        thread::Builder::new()
            .name("nccl-service".into())
            .spawn(move || queue.into_iter().for_each(|job| job()))
            .map_err(|source| CommError::Thread { communicator: communicator.into(), source })?;
        Ok(Self { jobs: Mutex::new(jobs) })
    }

    /// Hands `job` to the thread.
    pub(crate) fn submit<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> Ticket<T> {
        let slot = Arc::new(Slot { outcome: Mutex::new(Outcome::Pending), changed: Condvar::new() });
        let promise = Promise { slot: slot.clone() };
        let job = Box::new(move || promise.keep(job()));
        // The thread lives as long as the handle; were it gone, the dropped promise would tell the ticket.
        let _ = self.jobs.lock().unwrap_or_else(PoisonError::into_inner).send(job);
        Ticket { slot }
    }
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Service")
    }
}

enum Outcome<T> {
    Pending,
    Kept(T),
    /// The job ended without a value: it panicked.
    Broken,
    /// Nobody waits any more.
    Abandoned,
}

struct Slot<T> {
    outcome: Mutex<Outcome<T>>,
    changed: Condvar,
}

impl<T> Slot<T> {
    /// Puts `outcome` there unless the ticket is gone; then the value is dropped here.
    fn fill(&self, outcome: Outcome<T>) {
        let mut held = self.outcome.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*held, Outcome::Pending) {
            *held = outcome;
            self.changed.notify_all();
        }
    }
}

struct Promise<T> {
    slot: Arc<Slot<T>>,
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

/// A job's outcome, to be waited for.
pub(crate) struct Ticket<T> {
    slot: Arc<Slot<T>>,
}

/// Why a ticket gave no value.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Unkept {
    /// The deadline passed. The job goes on; its value will be dropped.
    Late,
    /// The job panicked.
    Broken,
}

impl<T> Ticket<T> {
    /// The job's value, once it is there.
    pub(crate) fn wait(self, deadline: Deadline) -> Result<T, Unkept> {
        let mut held = self.slot.outcome.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match std::mem::replace(&mut *held, Outcome::Abandoned) {
                Outcome::Kept(value) => return Ok(value),
                Outcome::Broken | Outcome::Abandoned => return Err(Unkept::Broken),
                Outcome::Pending if deadline.expired() => return Err(Unkept::Late),
                Outcome::Pending => *held = Outcome::Pending,
            }
            let waited = self.slot.changed.wait_timeout(held, deadline.remaining());
            held = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

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
    fn a_job_that_panics_breaks_its_ticket_only_once_it_is_known() {
        let service = Service::start("a").unwrap();
        let ticket = service.submit(|| {
            if thread::current().name() == Some("nccl-service") {
                panic!("expected by the test")
            }
        });
        assert_eq!(ticket.wait(far()).err(), Some(Unkept::Broken));
    }
}
