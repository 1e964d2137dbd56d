//! Worker threads of one device. The pool grows beyond [`RUNNING`] threads only while workers are blocked.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;

use super::local;

/// Workers of one pool that may run at the same time.
const RUNNING: usize = 4;

/// A device's workers.
#[derive(Debug)]
pub(crate) struct Pool {
    name: String,
    state: Mutex<State>,
    work: Condvar,
    me: Weak<Pool>,
}

type Job = (Arc<str>, Box<dyn FnOnce() + Send>);

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    threads: Vec<JoinHandle<()>>,
    /// Threads with a job that are not blocked.
    running: usize,
    idle: usize,
    stopping: bool,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State")
            .field("jobs", &self.jobs.len())
            .field("threads", &self.threads.len())
            .field("running", &self.running)
            .field("idle", &self.idle)
            .finish()
    }
}

thread_local! {
    /// The pool of this worker thread.
    static EMPLOYER: RefCell<Option<Arc<Pool>>> = const { RefCell::new(None) };
}

impl Pool {
    pub(crate) fn new(name: String) -> Arc<Self> {
        Arc::new_cyclic(|me| Self { name, state: Mutex::default(), work: Condvar::new(), me: me.clone() })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn spawn(&self, name: Arc<str>, job: Box<dyn FnOnce() + Send>) {
        let mut state = self.lock();
        if state.stopping {
            // After the stop no worker would run it. Drop it without the lock: it may hold the last reference to the
            // world, and its end may call this pool again.
            drop(state);
            drop(job);
            return;
        }
        state.jobs.push_back((name, job));
        self.hire(&mut state);
        self.work.notify_one();
    }

    /// Starts a thread if there is a job, no idle worker, and room.
    fn hire(&self, state: &mut State) {
        if state.jobs.len() <= state.idle || state.running + state.idle >= RUNNING || state.stopping {
            return;
        }
        let Some(me) = self.me.upgrade() else { return };
        let name = format!("{} worker {}", self.name, state.threads.len());
        // If no thread can be created, the existing workers run the job.
        if let Ok(thread) = std::thread::Builder::new().name(name).spawn(move || me.work()) {
            state.threads.push(thread);
            state.idle += 1;
        }
    }

    fn work(self: Arc<Self>) {
        EMPLOYER.set(Some(self.clone()));
        let mut state = self.lock();
        loop {
            if let Some((name, job)) = state.jobs.pop_front() {
                state.idle -= 1;
                state.running += 1;
                drop(state);
                local::enter(0, Some(name));
                job();
                local::enter(0, None);
                state = self.lock();
                state.running -= 1;
                state.idle += 1;
            } else if state.stopping {
                return;
            } else {
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// Lets the workers end once the queue is empty, and waits for them.
    pub(super) fn stop(&self) {
        let threads = {
            let mut state = self.lock();
            state.stopping = true;
            self.work.notify_all();
            std::mem::take(&mut state.threads)
        };
        for thread in threads {
            if thread.thread().id() != std::thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}

/// Marks this worker as blocked until the guard is dropped. Does nothing on other threads.
pub(super) fn leave() -> Left {
    let pool = EMPLOYER.with_borrow(Clone::clone);
    if let Some(pool) = &pool {
        let mut state = pool.lock();
        state.running -= 1;
        pool.hire(&mut state);
    }
    Left(pool)
}

pub(super) struct Left(Option<Arc<Pool>>);

impl Drop for Left {
    fn drop(&mut self) {
        if let Some(pool) = &self.0 {
            pool.lock().running += 1;
        }
    }
}
