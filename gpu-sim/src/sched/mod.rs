//! The one door of everything that blocks, and the two schedulers behind it.
//!
//! * **Free**: ranks and stream executors are threads. [`wait`] parks on a futex; nothing spins.
//! * **Seeded**: ranks ("actors") and executors are coroutines on one OS thread. One runs at a time, chosen by the
//!   seed; the clock is virtual and jumps to the next deadline when nobody can run; nothing waits in the
//!   operating system. The same seed gives the same run. When nobody can run and no deadline is left, every wait
//!   ends with [`WaitError::Deadlock`], which names who waits for what.
//!
//! Invariants: no lock is held across [`wait`], [`sleep`] or [`point`]; a condition neither blocks nor panics; who
//! changes what a condition reads notifies the condition's [`Signal`]. Code between two of these calls is atomic
//! in the seeded mode.

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
        /// What was waited for.
        reason: String,
        /// The deadline, on the clock of [`now`].
        deadline: Duration,
    },
    /// Nobody in the world can go on (seeded mode only).
    #[error(transparent)]
    Deadlock(#[from] Arc<Deadlock>),
    /// The world is being torn down.
    #[error("the world ended during a wait for {reason}")]
    Stopped {
        /// What was waited for.
        reason: String,
    },
    /// The caller is unwinding from a panic, where a seeded actor must not be switched away from.
    #[error("wait for {reason} refused: the actor is unwinding from a panic")]
    Unwinding {
        /// What was waited for.
        reason: String,
    },
}

/// A state of the world in which nobody can go on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("deadlock at {at:?}: {}", .waiting.iter().map(|w| format!("{} waits for {}", w.who, w.what)).collect::<Vec<_>>().join("; "))]
pub struct Deadlock {
    /// When, on the virtual clock.
    pub at: Duration,
    /// Who waits for what, in order of creation.
    pub waiting: Vec<Waiting>,
}

/// One wait that has not ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// The actor, thread or executor.
    pub who: String,
    /// The reason it gave.
    pub what: String,
}

/// How a world runs its actors and executors.
#[derive(Debug)]
pub(crate) enum Scheduler {
    Free(Free),
    Seeded(Seeded),
}

/// Blocks until `condition` holds: the only way to wait in this crate.
///
/// `reason` completes the sentence "… waits for" and is asked only when the wait blocks; `deadline` is a time on
/// the clock of [`now`].
///
/// # Errors
/// See [`WaitError`]. The condition is looked at once more before any error.
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

/// Blocks until `condition` holds, for what other jobs of the world bring about that end whenever their own waits
/// do: a deadlock ends those, and so does the end of the world, so both are waited out. `Err`: the first of them.
pub(crate) fn wait_out(
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

/// Time since the world began: real in the free mode, virtual in the seeded mode. Zero without a world.
#[must_use]
pub fn now() -> Duration {
    world::machine().map_or(Duration::ZERO, |m| m.sched.now())
}

/// Whether time is virtual: in the seeded mode.
pub(crate) fn is_virtual() -> bool {
    world::machine().is_some_and(|m| matches!(m.sched, Scheduler::Seeded(_)))
}

/// Lets `duration` pass on the world's clock.
///
/// # Errors
/// As [`wait`], but for the deadline, which is the wish here.
pub fn sleep(duration: Duration) -> Result<(), WaitError> {
    let signal = Signal::new();
    let until = now().saturating_add(duration);
    match wait(&signal, || format!("{duration:?} to pass"), Some(until), || false) {
        Err(WaitError::TimedOut { .. }) => Ok(()),
        other => other,
    }
}

/// A place where the seeded scheduler may run somebody else first; `label` enters the recorded run. Does nothing in
/// the free mode.
pub fn point(label: &'static str) {
    if let Some(machine) = world::machine()
        && let Scheduler::Seeded(seeded) = &machine.sched
    {
        seeded.point(label);
    }
}

/// Runs code that may block in the operating system (a user's host function, socket I/O) without holding up the
/// other executors of its worker pool.
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

    /// Starts `job`, by the name that waits and reports give to it: on a worker of `pool`, or as a coroutine.
    pub(crate) fn spawn(&self, pool: &Arc<Pool>, name: Arc<str>, job: Box<dyn FnOnce() + Send>) {
        match self {
            Self::Free(_) => pool.spawn(name, job),
            Self::Seeded(seeded) => seeded.spawn(name, job),
        }
    }

    /// Whether the calling thread may enter this world at all.
    pub(crate) fn admits_this_thread(&self) -> bool {
        match self {
            Self::Free(_) => true,
            Self::Seeded(seeded) => seeded.is_owner(),
        }
    }

    /// Runs the actors to their ends. `Err` carries the first deadlock beside what the actors returned.
    pub(crate) fn run<T: Send + 'static>(&self, actors: Vec<Actor<T>>) -> Run<T> {
        match self {
            Self::Free(free) => free.run(actors),
            Self::Seeded(seeded) => seeded.run(actors),
        }
    }

    /// Who waits for what right now.
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

/// One rank of [`crate::World::run_actors`]: its name and what it does.
pub type Actor<T> = (String, Box<dyn FnOnce() -> T + Send>);

/// What became of the actors: each one's result or the text of its panic, and the first deadlock.
#[derive(Debug)]
pub(crate) struct Run<T> {
    pub(crate) results: Vec<Result<T, String>>,
    pub(crate) deadlock: Option<Arc<Deadlock>>,
}

/// The name of the running actor or executor, else of the thread.
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
