//! Runs the state machine of a commit over a store, with the real clock, on the caller's thread.

use std::{
    thread,
    time::{Duration, Instant},
};

use process_group::store::{Deadline, Store, StoreError, publish};

use crate::agreement::{Commit, Conclusion, Input, Operation, Outcome, Output};

/// The interval at which a wait for a member checks that its group is still alive, and the delay before a failed
/// store request is repeated.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The services of this rank that the state machine calls.
pub(super) trait Local {
    /// Returns false once the group has ended; the driver then stops all waits for members.
    fn goes_on(&self) -> bool {
        true
    }

    /// The allocation log's hash at a length, or `None` if the log no longer has it.
    fn hash_at(&self, length: u64) -> Option<u64>;

    /// An operation of the allocation log.
    fn operation(&self, sequence: u64) -> Option<Operation>;

    /// Registers the first `segments` of the commit's segments. A segment whose ordinal is in `joined` shares the
    /// window of the segment before it. Gives up at the deadline, or once a
    /// [`Verdict::Poison`](crate::agreement::Verdict::Poison) is stored under `verdict_key`.
    fn register(&mut self, segments: u32, joined: &[u32], deadline: Deadline, verdict_key: String)
    -> Outcome;
}

/// Runs `machine` to its end. Also returns the store's error if the store failed. While this member is in doubt, a
/// failed store request is repeated until `deadline` has passed.
pub(super) fn run(
    mut machine: Commit,
    store: &dyn Store,
    deadline: Duration,
    local: &mut impl Local,
) -> (Conclusion, Option<StoreError>) {
    let mut line = StoreSession::new(store);
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

/// The store as a machine uses it, with the time since the start.
pub(crate) struct StoreSession<'a> {
    store: &'a dyn Store,
    begun: Instant,
    /// The store's error, if the store failed.
    pub(crate) failure: Option<StoreError>,
}

impl<'a> StoreSession<'a> {
    pub(crate) fn new(store: &'a dyn Store) -> Self {
        Self { store, begun: Instant::now(), failure: None }
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Converts `until`, a time since the start, to a deadline.
    pub(crate) fn deadline(&self, until: Duration) -> Deadline {
        Deadline::after(until.saturating_sub(self.begun.elapsed()))
    }

    /// Sends a request to the store. A wait for other members stops when `goes_on` returns false. A failed request is
    /// repeated until the time `retry_until`, if that is given, and while `goes_on` returns true. This is safe
    /// because every request may be repeated.
    pub(crate) fn ask(
        &mut self,
        output: &Output,
        retry_until: Option<Duration>,
        goes_on: impl Fn() -> bool,
    ) -> Input {
        loop {
            match self.attempt(output, &goes_on) {
                Ok(input) => return input,
                // Another writer has already set this key, and its value stays.
                Err(error @ StoreError::Taken { .. }) => {
                    self.failure = Some(error);
                    return Input::StoreFailed;
                }
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
            Output::Post { key, value } => publish(store, key, value).map(|()| Input::Stored),
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
            // Not a store request; the machine ends on this answer.
            _ => Ok(Input::Stored),
        }
    }

    /// Removes keys that no member reads any more. Keys that remain only cost a few bytes in the store, so errors are
    /// ignored. After a failure, the store is not asked again.
    pub(crate) fn remove(&self, keys: &[String]) {
        if self.failure.is_none() {
            let _ = keys.iter().try_for_each(|key| self.store.delete(key).map(drop));
        }
    }
}

/// Reads the values of `keys` without waiting for missing keys. Another member may remove a key between the check and
/// the read. A store may then return an empty value, which counts as missing because no value of this protocol is
/// empty.
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
