//! Runs a commit's machine in life: over a store, with the clock, on the caller's thread.

use std::{
    thread,
    time::{Duration, Instant},
};

use process_group::store::{Deadline, Store, StoreError};

use crate::agreement::{Commit, Conclusion, Input, Operation, Outcome, Output};

/// How often a wait for a member looks whether its group goes on, and how soon a store that has failed is asked again.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// What the machine asks of its own rank.
pub(super) trait Local {
    /// Whether the group goes on: nobody is waited for in one that does not.
    fn goes_on(&self) -> bool {
        true
    }

    /// The allocation log's hash at a length.
    fn hash_at(&self, length: u64) -> Option<u64>;

    /// An operation of the allocation log.
    fn operation(&self, sequence: u64) -> Option<Operation>;

    /// Registers the first `segments` of the segments that the commit is about, those of `joined` together with the one
    /// before them; gives up at the deadline, or once a
    /// verdict of death stands under `verdict_key`.
    fn register(&mut self, segments: u32, joined: &[u32], deadline: Deadline, verdict_key: String)
    -> Outcome;
}

/// Runs `machine` to its end; with what the store said, if it failed. While the member is in doubt, a store that has
/// failed is asked again, until `deadline` has passed.
pub(super) fn run(
    mut machine: Commit,
    store: &dyn Store,
    deadline: Duration,
    local: &mut impl Local,
) -> (Conclusion, Option<StoreError>) {
    let mut line = Line::new(store);
    let mut input = Input::Start;
    loop {
        input = match machine.step(input, line.elapsed()) {
            Output::Done(conclusion) => return (conclusion, line.failure),
            Output::Hashes { lengths } => {
                Input::Hashes(lengths.iter().map(|length| local.hash_at(*length)).collect())
            }
            Output::Recall { sequence } => Input::Operation(local.operation(sequence)),
            Output::Register { segments, joined, until, verdict_key } => {
                Input::Registered(local.register(segments, &joined, line.deadline(until), verdict_key))
            }
            ask => {
                let retry_until = machine.is_in_doubt().then_some(deadline);
                line.ask(&ask, retry_until, || local.goes_on())
            }
        };
    }
}

/// A machine's line to the store, with the time since it began.
pub(crate) struct Line<'a> {
    store: &'a dyn Store,
    begun: Instant,
    /// What the store said, if it failed.
    pub(crate) failure: Option<StoreError>,
}

impl<'a> Line<'a> {
    pub(crate) fn new(store: &'a dyn Store) -> Self {
        Self { store, begun: Instant::now(), failure: None }
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }

    /// The time `until`, which counts from the begin.
    pub(crate) fn deadline(&self, until: Duration) -> Deadline {
        Deadline::after(until.saturating_sub(self.begun.elapsed()))
    }

    /// Asks the store. A wait for other members stops when `goes_on` no longer holds. A store that fails is asked again
    /// until the time `retry_until`, if there is one, and while `goes_on` holds: every request may be repeated.
    pub(crate) fn ask(
        &mut self,
        output: &Output,
        retry_until: Option<Duration>,
        goes_on: impl Fn() -> bool,
    ) -> Input {
        loop {
            match self.attempt(output, &goes_on) {
                Ok(input) => return input,
                Err(_) if retry_until.is_some_and(|until| self.elapsed() < until) && goes_on() => {
                    thread::sleep(POLL_INTERVAL);
                }
                Err(error) => {
                    self.failure = Some(error);
                    return Input::StoreFailed;
                }
            }
        }
    }

    fn attempt(&self, output: &Output, goes_on: impl Fn() -> bool) -> Result<Input, StoreError> {
        let store = self.store;
        match output {
            Output::Set { key, value } => store.set(key, value).map(|()| Input::Stored),
            Output::Add { key } => store.add(key, 1).map(|count| Input::Count(count.unsigned_abs())),
            Output::Fetch { keys } => fetch(store, keys).map(Input::Values),
            Output::Propose { key, value } => store.compare_set(key, b"", value).map(Input::Stands),
            Output::Await { key, until } => loop {
                match store.get(key, self.deadline(*until).at_most(POLL_INTERVAL)) {
                    Err(StoreError::Timeout { .. }) if self.elapsed() >= *until => {
                        return Ok(Input::Expired);
                    }
                    Err(StoreError::Timeout { .. }) if goes_on() => {}
                    Err(StoreError::Timeout { .. }) => return Ok(Input::Over),
                    answer => return answer.map(Input::Stands),
                }
            },
            // Not for the store; the machine answers with the end.
            _ => Ok(Input::Stored),
        }
    }

    /// Removes keys that nobody reads any more. What is left behind costs a few bytes in the store, no more; but a
    /// store that has failed is asked once.
    pub(crate) fn remove(&self, keys: &[String]) {
        if self.failure.is_none() {
            let _ = keys.iter().try_for_each(|key| self.store.delete(key).map(drop));
        }
    }
}

/// What stands under `keys` now. Nothing is waited for: another member may remove a key that was there a moment ago. Where
/// that happens between a store's own look and its read it says that the value is empty, which no value here is.
fn fetch(store: &dyn Store, keys: &[String]) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
    let names: Vec<&str> = keys.iter().map(String::as_str).collect();
    let there = |value: Vec<u8>| Some(value).filter(|value| !value.is_empty());
    if store.check(&names)? {
        match store.multi_get(&names, Deadline::now()) {
            Err(StoreError::Timeout { .. }) => {}
            values => return Ok(values?.into_iter().map(there).collect()),
        }
    }
    let one = |key: &&str| match store.check(&[key])? {
        true => match store.get(key, Deadline::now()) {
            Err(StoreError::Timeout { .. }) => Ok(None),
            value => value.map(there),
        },
        false => Ok(None),
    };
    names.iter().map(one).collect()
}
