//! Runs the state machine of an agreement over a store, with the real clock, on the caller's thread.

use std::{
    fmt, thread,
    time::{Duration, Instant},
};

use super::{
    failure::{Failure, outcomes, records},
    machine::{Agreement, Conclusion, Ending, Input, Member, Output, sealed_failure},
    protocol::Protocol,
    vote::{Answer, Request, result_key},
};
use crate::store::{Deadline, Store, StoreError, publish};

/// The interval at which a wait asks whether it still makes sense, and the delay before a failed request is repeated.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// An agreement that has no result on this member.
#[derive(Debug)]
pub struct Failed<P: Protocol> {
    /// The reason.
    pub ending: Ending<P>,
    /// The store's error, if the store failed.
    pub store: Option<StoreError>,
}

impl<P: Protocol<Refusal: fmt::Display>> fmt::Display for Failed<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.ending {
            Ending::Refused(refusal) => refusal.fmt(f)?,
            Ending::Failed(failure) => failure.fmt(f)?,
            Ending::StoreFailed => f.write_str("the store failed before this rank had posted its record")?,
            Ending::InDoubt => {
                f.write_str("the store failed, so it is unknown whether the others have agreed")?
            }
            Ending::Unreadable(malformed) => {
                write!(f, "the decision in the store cannot be read: {malformed}")?
            }
            Ending::OutOfStep => f.write_str("the agreement got an answer to no request")?,
        }
        self.store.as_ref().map_or(Ok(()), |error| write!(f, ": {error}"))
    }
}

impl<P: Protocol<Refusal: fmt::Display>> std::error::Error for Failed<P> {}

/// Runs this member's part in an agreement, and returns the result. Blocks until all members have come, or the
/// patience of one has ended.
///
/// `act` executes a plan until the deadline. It should ask its last argument now and then: it returns true once another
/// member has failed, so that nothing is gained by going on. `goes_on` returns false once the object of the agreement
/// has ended; then this member stops waiting for others.
///
/// While this member is in doubt, failed requests to the store are repeated until `patience` has passed, and at least
/// once.
///
/// # Errors
/// [`Failed`].
pub fn run<P: Protocol>(
    store: &dyn Store,
    member: Member,
    record: P::Record,
    mut act: impl FnMut(&P::Plan, Deadline, &dyn Fn() -> bool) -> P::Outcome,
    goes_on: impl Fn() -> bool,
) -> Result<P::Agreed, Box<Failed<P>>> {
    let mut session = Session { store, begun: Instant::now(), failure: None };
    let patience = member.patience;
    let mut machine = Agreement::<P>::new(member, record);
    let mut output = machine.begin(Duration::ZERO);
    loop {
        let input = match output {
            Output::Done(Conclusion { result, read }) => {
                session.remove(&read);
                return result.map_err(|ending| Box::new(Failed { ending, store: session.failure }));
            }
            Output::Act { plan, until, verdict } => {
                let has_failed = || store.check(&[&verdict]).unwrap_or(false);
                Input::Acted(act(&plan, session.deadline(until), &has_failed))
            }
            Output::Store(request) => {
                let retry_until = machine.is_in_doubt().then_some(patience);
                Input::Store(session.ask(&request, retry_until, &goes_on))
            }
        };
        output = machine.step(input, session.begun.elapsed());
    }
}

/// Ends the waits of the other members of the agreement with this name: `rank` will not come, or will not go on. Does
/// nothing if the agreement has its result, at most `actions` actions long.
///
/// # Errors
/// Those of the store.
pub fn leave(store: &dyn Store, name: &str, rank: u32, cause: &str, actions: u32) -> Result<(), StoreError> {
    let sealed = sealed_failure(Failure::Left { rank, cause: cause.to_owned() });
    let votes = std::iter::once(records(name)).chain((0..actions).map(|action| outcomes(name, action)));
    for vote in votes {
        if store.compare_set(&result_key(&vote), b"", &sealed)? == sealed {
            return Ok(());
        }
    }
    Ok(())
}

/// The store as a state machine uses it.
struct Session<'a> {
    store: &'a dyn Store,
    begun: Instant,
    /// The store's error, if the store failed.
    failure: Option<StoreError>,
}

impl Session<'_> {
    /// Converts a time since the start to a deadline.
    fn deadline(&self, until: Duration) -> Deadline {
        Deadline::after(until.saturating_sub(self.begun.elapsed()))
    }

    /// Sends a request to the store. A failed request is repeated until the time `retry_until`, if that is given, and
    /// while `goes_on` returns true. Every request may be repeated.
    fn ask(
        &mut self,
        request: &Request,
        retry_until: Option<Duration>,
        goes_on: &dyn Fn() -> bool,
    ) -> Answer {
        loop {
            let error = match self.attempt(request, goes_on) {
                Ok(answer) => return answer,
                Err(error) => error,
            };
            // Another writer has set this key, and its value stays.
            let is_final = matches!(error, StoreError::Taken { .. });
            if is_final || retry_until.is_none_or(|until| self.begun.elapsed() >= until) || !goes_on() {
                self.failure = Some(error);
                return Answer::StoreFailed;
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    fn attempt(&self, request: &Request, goes_on: &dyn Fn() -> bool) -> Result<Answer, StoreError> {
        let store = self.store;
        match request {
            Request::Set { key, value } => store.set(key, value).map(|()| Answer::Stored),
            Request::Post { key, value } => publish(store, key, value).map(|()| Answer::Stored),
            Request::Add { key } => store.add(key, 1).map(|count| Answer::Count(count.unsigned_abs())),
            Request::Fetch { keys } => fetch(store, keys).map(Answer::Values),
            Request::Propose { key, value } => store.compare_set(key, b"", value).map(Answer::Result),
            Request::Await { key, until } => loop {
                match store.get(key, self.deadline(*until).at_most(POLL_INTERVAL)) {
                    Err(StoreError::Timeout { .. }) if self.begun.elapsed() >= *until => {
                        return Ok(Answer::Expired);
                    }
                    Err(StoreError::Timeout { .. }) if goes_on() => {}
                    Err(StoreError::Timeout { .. }) => return Ok(Answer::Over),
                    answer => return answer.map(Answer::Result),
                }
            },
        }
    }

    /// Removes keys that no member reads any more. Keys that remain cost only a few bytes in the store, so errors are
    /// ignored.
    fn remove(&self, keys: &[String]) {
        if self.failure.is_none() {
            let _ = keys.iter().try_for_each(|key| self.store.delete(key).map(drop));
        }
    }
}

/// Reads keys without waiting for those that have no value.
fn fetch(store: &dyn Store, keys: &[String]) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
    let names: Vec<&str> = keys.iter().map(String::as_str).collect();
    // Usually all keys have values. One may be removed after the check.
    if store.check(&names)? {
        match store.multi_get(&names, Deadline::now()) {
            Err(StoreError::Timeout { .. }) => {}
            values => return Ok(values?.into_iter().map(Some).collect()),
        }
    }
    let one = |key: &&str| match store.check(&[key])? {
        true => match store.get(key, Deadline::now()) {
            Err(StoreError::Timeout { .. }) => Ok(None),
            value => value.map(Some),
        },
        false => Ok(None),
    };
    names.iter().map(one).collect()
}
