//! Every blocking operation goes through this module; it has two schedulers.
//!
//! * **Free**: ranks and stream executors are threads. [`wait`] parks on a futex; nothing spins.
//! * **Seeded**: ranks ("actors") and executors are coroutines on one OS thread. The seed chooses the one that runs.
//!   The clock is virtual and jumps to the next deadline when no task can run; nothing waits in the operating system.
//!   The same seed gives the same run. When no task can run and no deadline is left, every wait ends with
//!   [`WaitError::Deadlock`], which lists all waits.
//!
//! Invariants: no lock is held across [`wait`], [`sleep`] or [`point`]. A condition neither blocks nor panics. Code
//! that changes the data of a condition notifies the condition's [`Signal`] afterwards. Code between two of these
//! calls is atomic in the seeded mode.

mod free;
mod local;
mod pool;
mod seeded;
mod signal;

use std::sync::Arc;
use std::time::Duration;

pub(crate) use free::Free;
pub(crate) use local::{forget_locals, with_local};
pub(crate) use pool::Pool;
pub(crate) use seeded::Seeded;
pub use seeded::Step;
pub use signal::Signal;

use crate::world::{self, Machine};

/// Why a wait ended without its condition.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum WaitError {
    /// The deadline passed.
    #[error("waited until {deadline:?} on the world's clock for {reason}")]
    TimedOut {
        /// The reason of the wait.
        reason: String,
        /// The deadline, on the clock of [`now`].
        deadline: Duration,
    },
    /// No task in the world can continue (seeded mode only).
    #[error(transparent)]
    Deadlock(#[from] Arc<Deadlock>),
    /// The world is being torn down.
    #[error("the world ended during a wait for {reason}")]
    Stopped {
        /// The reason of the wait.
        reason: String,
    },
    /// The caller is unwinding from a panic, where a seeded actor must not be switched away from.
    #[error("wait for {reason} refused: the actor is unwinding from a panic")]
    Unwinding {
        /// The reason of the wait.
        reason: String,
    },
}

/// A state of the world in which no task can continue.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("deadlock at {at:?}: {}", .waiting.iter().map(|w| format!("{} waits for {}", w.who, w.what)).collect::<Vec<_>>().join("; "))]
pub struct Deadlock {
    /// Time of the deadlock, on the virtual clock.
    pub at: Duration,
    /// All waits, in the order in which the tasks were created.
    pub waiting: Vec<Waiting>,
}

/// One wait that has not ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// The actor, thread or executor.
    pub who: String,
    /// The reason of the wait.
    pub what: String,
}

/// The scheduler of a world.
#[derive(Debug)]
pub(crate) enum Scheduler {
    Free(Free),
    Seeded(Seeded),
}

/// Blocks until `condition` holds: the only way to wait in this crate.
///
/// `reason` completes the sentence "… waits for" and is called only when the wait blocks; `deadline` is a time on the
/// clock of [`now`].
///
/// # Errors
/// See [`WaitError`]. The condition is checked once more before any error.
pub fn wait(
    signal: &Signal,
    reason: impl FnOnce() -> String,
    deadline: Option<Duration>,
    mut condition: impl FnMut() -> bool,
) -> Result<(), WaitError> {
    if condition() {
        return Ok(());
    }
    let reason = reason();
    let Some(machine) = world::machine() else { return Err(WaitError::Stopped { reason }) };
    match &machine.sched {
        Scheduler::Free(free) => free.wait(signal, reason, deadline, &mut condition),
        Scheduler::Seeded(seeded) => seeded.wait(reason, deadline, &mut condition),
    }
}

/// Blocks until `condition` holds, also after a deadlock or the end of the world. Use it for jobs of the world whose
/// own waits end in these cases, so that the condition always becomes true. Returns the first such error.
pub(crate) fn wait_uninterruptible(
    signal: &Signal,
    reason: impl Fn() -> String,
    mut condition: impl FnMut() -> bool,
) -> Result<(), WaitError> {
    let mut first = None;
    loop {
        let error = match wait(signal, &reason, None, &mut condition) {
            Ok(()) => return first.map_or(Ok(()), Err),
            Err(error) => error,
        };
        let again = match &error {
            WaitError::Deadlock(_) => true,
            WaitError::Stopped { .. } if !is_virtual() => {
                signal.park(|| None, &mut condition);
                false
            }
            _ => false,
        };
        let first = first.get_or_insert(error);
        if !again {
            return Err(first.clone());
        }
    }
}

/// Returns the time since the world began: real in the free mode, virtual in the seeded mode. Zero without a world.
#[must_use]
pub fn now() -> Duration {
    world::machine().map_or(Duration::ZERO, |m| m.sched.now())
}

/// True in the seeded mode, where time is virtual.
pub(crate) fn is_virtual() -> bool {
    world::machine().is_some_and(|m| matches!(m.sched, Scheduler::Seeded(_)))
}

/// True if the calling thread runs the actors of a seeded world.
#[must_use]
pub fn is_seeded() -> bool {
    let runs_here = |m: Arc<Machine>| matches!(&m.sched, Scheduler::Seeded(seeded) if seeded.is_owner());
    world::machine().is_some_and(runs_here)
}

/// Returns the number of the running actor or coroutine of a seeded world; 0 outside of them.
#[must_use]
pub fn current() -> u64 {
    local::task()
}

/// Returns a number below `bound` that the seed of the world decides. `bound` is at least 1. Returns 0 if the calling
/// thread runs no actors of a seeded world.
#[must_use]
pub fn draw(bound: u64) -> u64 {
    let machine = world::machine();
    match machine.as_ref().map(|machine| &machine.sched) {
        Some(Scheduler::Seeded(seeded)) => seeded.draw(bound),
        _ => 0,
    }
}

/// Starts a coroutine beside the actors of a seeded world. Waits and reports show `name`. `job` must not panic.
/// [`crate::World::run_actors`] does not wait for it. When the world ends, its waits end with
/// [`WaitError::Stopped`], and `job` must return soon.
///
/// # Errors
/// Returns `job` if the calling thread runs no actors of a seeded world ([`is_seeded`]).
pub fn spawn(name: &str, job: Box<dyn FnOnce() + Send>) -> Result<(), Box<dyn FnOnce() + Send>> {
    let Some(machine) = world::machine() else { return Err(job) };
    match &machine.sched {
        Scheduler::Seeded(seeded) if seeded.is_owner() => {
            seeded.spawn(name.into(), job);
            Ok(())
        }
        _ => Err(job),
    }
}

/// Blocks until `duration` has passed on the world's clock.
///
/// # Errors
/// The errors of [`wait`], except for the deadline.
pub fn sleep(duration: Duration) -> Result<(), WaitError> {
    let signal = Signal::new();
    let until = now().saturating_add(duration);
    match wait(&signal, || format!("{duration:?} to pass"), Some(until), || false) {
        Err(WaitError::TimedOut { .. }) => Ok(()),
        other => other,
    }
}

/// A point where the seeded scheduler may run another task first; `label` is recorded. Does nothing in the free mode.
pub fn point(label: &'static str) {
    if let Some(machine) = world::machine()
        && let Scheduler::Seeded(seeded) = &machine.sched
    {
        seeded.point(label);
    }
}

/// Runs code that may block in the operating system (a user's host function, socket I/O) without blocking the other
/// executors of its worker pool.
pub fn blocking<R>(f: impl FnOnce() -> R) -> R {
    let _left = pool::leave();
    f()
}

impl Scheduler {
    pub(crate) fn now(&self) -> Duration {
        match self {
            Self::Free(free) => free.now(),
            Self::Seeded(seeded) => seeded.now(),
        }
    }

    /// Starts `job` on a worker of `pool`, or as a coroutine. Waits and reports show `name`.
    pub(crate) fn spawn(&self, pool: &Arc<Pool>, name: Arc<str>, job: Box<dyn FnOnce() + Send>) {
        match self {
            Self::Free(_) => pool.spawn(name, job),
            Self::Seeded(seeded) => seeded.spawn(name, job),
        }
    }

    /// True if the calling thread may enter this world.
    pub(crate) fn admits_this_thread(&self) -> bool {
        match self {
            Self::Free(_) => true,
            Self::Seeded(seeded) => seeded.is_owner(),
        }
    }

    /// Runs the actors to their ends. The result holds the actors' results and the first deadlock.
    pub(crate) fn run<T: Send + 'static>(&self, actors: Vec<Actor<T>>) -> Run<T> {
        match self {
            Self::Free(free) => free.run(actors),
            Self::Seeded(seeded) => seeded.run(actors),
        }
    }

    /// Returns all current waits.
    pub(crate) fn waiting(&self) -> Vec<Waiting> {
        match self {
            Self::Free(free) => free.waiting(),
            Self::Seeded(seeded) => seeded.waiting(),
        }
    }

    /// Ends every wait with [`WaitError::Stopped`], from now on.
    pub(crate) fn stop(&self, machine: &Machine) {
        match self {
            Self::Free(free) => {
                free.stop();
                for device in &machine.devices {
                    device.pool.stop();
                }
            }
            Self::Seeded(seeded) => seeded.stop(),
        }
    }
}

/// One rank of [`crate::World::run_actors`]: its name and its body.
pub type Actor<T> = (String, Box<dyn FnOnce() -> T + Send>);

/// Results of the actors: the value or the panic's text of each, and the first deadlock.
#[derive(Debug)]
pub(crate) struct Run<T> {
    pub(crate) results: Vec<Result<T, String>>,
    pub(crate) deadlock: Option<Arc<Deadlock>>,
}

/// The name of the running actor or executor, otherwise of the thread.
pub(crate) fn whoami() -> String {
    let name = local::name();
    if let Some(name) = name {
        return name.to_string();
    }
    std::thread::current().name().unwrap_or("a thread").to_owned()
}

/// The text of a caught panic.
pub(crate) fn panic_text(payload: &(dyn std::any::Any + Send)) -> String {
    payload
        .downcast_ref::<&str>()
        .map(|s| (*s).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a text".to_owned())
}
