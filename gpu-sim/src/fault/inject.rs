//! Counts every call, and makes chosen calls fail.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::sched;

/// The effect of an injection on a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Action {
    /// The call does nothing and returns this code (`CUresult` or `ncclResult_t`, by the function).
    Fail(u32),
    /// The call begins this much later, on the world's clock.
    Delay(Duration),
    /// The process stops there (`SIGSTOP`), until another process continues it.
    Stop,
    /// The process dies there (`SIGKILL`).
    Kill,
}

/// A function, the calls of it that are affected, and the action.
#[derive(Debug, Clone)]
pub struct Injection {
    function: String,
    nth: u64,
    forever: bool,
    action: Action,
}

impl Injection {
    /// Applies `action` to the next call of `function` (its symbol, such as `cuMemAlloc_v2`), once.
    #[must_use]
    pub fn new(function: impl Into<String>, action: Action) -> Self {
        Self { function: function.into(), nth: 1, forever: false, action }
    }

    /// Applies to the `n`-th call from now on, counted from 1.
    #[must_use]
    pub fn nth(mut self, n: u64) -> Self {
        self.nth = n.max(1);
        self
    }

    /// Applies to every later call too.
    #[must_use]
    pub fn forever(mut self) -> Self {
        self.forever = true;
        self
    }
}

/// An injection names a function that the world does not have, so it would never take effect.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown function {function:?}: expected a C symbol of the world's driver or NCCL release{}",
    similar.map(|name| format!(", such as {name:?}")).unwrap_or_default()
)]
#[non_exhaustive]
pub struct UnknownFunction {
    /// The name.
    pub function: String,
    /// A function whose symbol begins with that name.
    pub similar: Option<&'static str>,
}

/// Makes the list of a world's functions.
type List = Box<dyn FnOnce() -> BTreeSet<&'static str> + Send>;

/// The world's counters and injections. Shared by both ABIs.
#[derive(Debug)]
pub struct Faults {
    /// The symbols of both ABIs that the world has. Most worlds need no list.
    functions: LazyLock<BTreeSet<&'static str>, List>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    calls: BTreeMap<String, u64>,
    armed: Vec<Injection>,
    hits: u64,
}

impl Faults {
    pub(crate) fn new(functions: List) -> Self {
        Self { functions: LazyLock::new(functions), state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Arms an injection.
    ///
    /// # Errors
    /// [`UnknownFunction`] if the world has no such function; nothing is armed then.
    pub fn inject(&self, injection: Injection) -> Result<(), UnknownFunction> {
        let Injection { function, .. } = &injection;
        if !self.functions.contains(function.as_str()) {
            let similar = self.functions.iter().find(|known| known.starts_with(function.as_str())).copied();
            return Err(UnknownFunction { function: injection.function, similar });
        }
        self.lock().armed.push(injection);
        Ok(())
    }

    /// Disarms all injections.
    pub fn clear(&self) {
        self.lock().armed.clear();
    }

    /// Returns the number of calls that an injection affected.
    #[must_use]
    pub fn hits(&self) -> u64 {
        self.lock().hits
    }

    /// Returns the number of calls of `function`.
    #[must_use]
    pub fn calls(&self, function: &str) -> u64 {
        self.lock().calls.get(function).copied().unwrap_or(0)
    }

    /// Returns every function that was called, with the number of calls.
    #[must_use]
    pub fn all_calls(&self) -> BTreeMap<String, u64> {
        self.lock().calls.clone()
    }

    /// Counts a call of `function` and applies the injections armed for it. Returns the code if the call must fail.
    pub(crate) fn gate(&self, function: &'static str) -> Option<u32> {
        let actions = {
            let mut state = self.lock();
            match state.calls.get_mut(function) {
                Some(count) => *count += 1,
                None => drop(state.calls.insert(function.to_owned(), 1)),
            }
            let mut struck = Vec::new();
            state.armed.retain_mut(|injection| {
                if injection.function != function {
                    return true;
                }
                injection.nth = injection.nth.saturating_sub(1);
                if injection.nth > 0 {
                    return true;
                }
                struck.push(injection.action);
                injection.forever
            });
            state.hits += struck.len() as u64;
            struck
        };
        let mut code = None;
        for action in actions {
            match action {
                Action::Fail(with) => code = Some(with),
                // The end of the world ends the delay.
                Action::Delay(by) => drop(sched::sleep(by)),
                Action::Stop => signal_self(rustix::process::Signal::STOP),
                Action::Kill => signal_self(rustix::process::Signal::KILL),
            }
        }
        code
    }
}

fn signal_self(signal: rustix::process::Signal) {
    // A process may always signal itself.
    let _ = rustix::process::kill_process(rustix::process::getpid(), signal);
}
