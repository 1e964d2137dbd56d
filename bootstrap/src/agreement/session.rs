//! Runs the state machine of an agreement over a store, on the caller's thread.

use std::{fmt, time::Duration};

use super::{
    failure::Failure,
    interface::{Awaited, Conclusion, Ending, Input, Member, OtherMembers, Output},
    machine::Agreement,
    messages::{asks_for_action, sealed_failure},
    place::{outcomes, records, result_key},
    protocol::Protocol,
    register::{self, Running},
    vote::{Answer, Gone, Request},
};
use crate::{
    random::random,
    runtime::{self, Instant},
    store::{Deadline, Store, StoreError, publish},
};

/// The first interval at which a wait for a result calls `goes_on`. Also the pause before a retry, and the interval of
/// [`Session::stay`].
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The longest interval at which a wait calls `goes_on`. The intervals double up to this one, because each interval
/// costs requests to the store.
const LONG_POLL_INTERVAL: Duration = Duration::from_millis(500);
/// A member in doubt repeats a failed request for at least this time after the first error.
const RETRY_FLOOR: Duration = Duration::from_secs(5);
/// The longest time that a member waits for the others to read that the agreement has failed or was refused.
const FAREWELL: Duration = Duration::from_secs(3);

/// An agreement that has no result on this member.
#[derive(Debug)]
pub struct Failed<P: Protocol> {
    /// The reason.
    pub ending: Ending<P>,
    /// The store's error, if the store failed. It may accompany any ending, because the store may also fail while
    /// this member acknowledges the ending. [`StoreError::Argument`] if the agreement could not begin.
    pub store: Option<StoreError>,
    /// True if `act` was called. The caller then has to undo the effects of `act`.
    pub has_acted: bool,
    /// See [`Conclusion::others`].
    pub others: Option<OtherMembers<P::Agreed>>,
}

impl<P: Protocol<Refusal: fmt::Display>> fmt::Display for Failed<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.ending {
            Ending::Refused(refusal) => refusal.fmt(f),
            Ending::Failed(failure) => failure.fmt(f),
            Ending::StoreFailed => f.write_str("the store failed before this rank had posted its record"),
            Ending::InDoubt => {
                f.write_str("the store failed, so it is unknown whether the others have agreed")
            }
            Ending::Unreadable(malformed) => {
                write!(f, "the decision in the store cannot be read: {malformed}")
            }
            Ending::OutOfStep => f.write_str("the agreement got an answer to no request"),
        }
    }
}

impl<P: Protocol<Refusal: fmt::Display>> std::error::Error for Failed<P> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match (&self.ending, &self.store) {
            (Ending::StoreFailed | Ending::InDoubt, Some(error)) => Some(error),
            _ => None,
        }
    }
}

/// Runs this member's part in an agreement, and returns the result.
///
/// Blocks until all members have posted their records, the patience of one has ended, or one has left. After that it
/// blocks for the action and for the outcomes of the others. Retries after errors of the store also block. If the
/// agreement fails or is refused before an action, it also waits up to 3 s for the others to read the reason.
///
/// If the host of a [`TcpStore`](crate::store::TcpStore) does not answer, each operation of the store may block for
/// about twice the store's patience ([`TcpOptions::patience`](crate::store::TcpOptions::patience)). Set that patience
/// to the patience of the agreement or less.
///
/// `record` is this member's contribution to the decision. `act` executes a plan until the deadline, and returns the
/// outcome. It is called once per action, so never for an agreement without one. Its third argument is a function that
/// returns true once the verdict is stored, and so no longer depends on this member's outcome: another member has
/// failed, timed out or left. It returns false if the store fails. `act` can poll it to stop early.
///
/// `goes_on` is polled during waits and retries, but not during `act`. It returns an error once the object that the
/// agreement is about has ended on this rank. A wait for the others then ends: the agreement fails with
/// [`Failure::Left`] on all members, unless its result is already stored. Retries of a failed request also end, with
/// [`Ending::InDoubt`].
///
/// # Errors
/// [`Failed`]. If `member` is invalid, or the operating system returns no random number, its `ending` is
/// [`Ending::StoreFailed`] and its `store` is [`StoreError::Argument`].
pub fn run<P: Protocol>(
    store: &dyn Store,
    member: Member,
    record: P::Record,
    mut act: impl FnMut(&P::Plan, Deadline, &dyn Fn() -> bool) -> P::Outcome,
    goes_on: impl Fn() -> Result<(), Gone>,
) -> Result<P::Agreed, Box<Failed<P>>> {
    let patience = member.patience;
    let _running = Running::of(member.rank, &member.name);
    let mut session = Session { store, begun: Instant::now(), failure: None };
    let nonce = random().map_err(|error| format!("no random number for an agreement: {error}"));
    let begun = nonce.and_then(|nonce| Agreement::<P>::new(member, record, u64::from_le_bytes(nonce)));
    let mut machine = begun.map_err(|problem| {
        let (ending, store) = (Ending::StoreFailed, Some(StoreError::Argument(problem)));
        Box::new(Failed { ending, store, has_acted: false, others: None })
    })?;
    let mut output = machine.begin(Duration::ZERO);
    loop {
        let input = match output {
            Output::Done(Conclusion { result, read, awaited, has_acted, others }) => {
                if read.is_empty() {
                    session.stay(&awaited, &goes_on);
                }
                session.remove(&read);
                let store = session.failure;
                return result.map_err(|ending| Box::new(Failed { ending, store, has_acted, others }));
            }
            Output::Act { plan, until, verdict } => {
                let has_failed = || store.check(&[&verdict]).unwrap_or(false);
                Input::Acted(act(&plan, session.deadline(until), &has_failed))
            }
            Output::Store(request) => {
                let retries = machine.is_in_doubt().then_some(patience);
                Input::Store(session.ask(&request, retries, &goes_on))
            }
        };
        output = machine.step(input, session.begun.elapsed());
    }
}

/// Fails the agreement `name` with [`Failure::Left`] of `rank` and `cause`, because `rank` will not take part in it, or
/// will not complete its action. So the other members stop waiting for `rank`. Waits for no other member.
///
/// If the agreement already has its result, the members keep that result. If the keys of the agreement were already
/// removed, the key with this failure stays in the store.
///
/// # Errors
/// Those of the store.
pub fn leave<P: Protocol>(store: &dyn Store, name: &str, rank: u32, cause: &str) -> Result<(), StoreError> {
    let sealed = sealed_failure(Failure::Left { rank, cause: cause.to_owned() });
    let mut vote = records(name);
    for action in 0.. {
        let stands = store.compare_set(&result_key(&vote), b"", &sealed)?;
        if !asks_for_action::<P>(&stands, action == 0) {
            break;
        }
        vote = outcomes(name, action);
    }
    Ok(())
}

/// Sends the requests of a state machine to the store.
struct Session<'a> {
    store: &'a dyn Store,
    /// The time 0 of the state machine's clock.
    begun: Instant,
    /// The store's error, if the store failed.
    failure: Option<StoreError>,
}

impl Session<'_> {
    /// Converts a time on the clock of the state machine to a deadline.
    fn deadline(&self, until: Duration) -> Deadline {
        Deadline::after(until.saturating_sub(self.begun.elapsed()))
    }

    /// Sends a request to the store, and returns the answer. With `retries`, sends the request again after a temporary
    /// error while `goes_on` succeeds: until the time `retries` after the start of the agreement, and for at least
    /// [`RETRY_FLOOR`] after the request's first error. [`StoreError::Taken`] becomes [`Answer::Taken`]. After other
    /// errors and after the last retry, stores the error in `failure`, and returns [`Answer::StoreFailed`], or
    /// [`Answer::Unsent`] if the store rejected a post.
    fn ask(
        &mut self,
        request: &Request,
        retries: Option<Duration>,
        goes_on: &dyn Fn() -> Result<(), Gone>,
    ) -> Answer {
        let mut first_failed = None;
        loop {
            let error = match self.attempt(request, goes_on) {
                Ok(answer) => return answer,
                Err(StoreError::Taken { .. }) => return Answer::Taken,
                Err(error @ (StoreError::TooLarge { .. } | StoreError::Argument(_)))
                    if matches!(request, Request::Post { .. }) =>
                {
                    self.failure = Some(error);
                    return Answer::Unsent;
                }
                Err(error) => error,
            };
            let now = self.begun.elapsed();
            let until = *first_failed.get_or_insert(now) + RETRY_FLOOR;
            let is_late = retries.is_none_or(|patience| now >= until.max(patience));
            if is_late || !may_pass(&error) || goes_on().is_err() {
                self.failure = Some(error);
                return Answer::StoreFailed;
            }
            runtime::sleep(POLL_INTERVAL);
        }
    }

    /// Executes a request without retries, and returns the answer. During a [`Request::Await`], calls `goes_on` at
    /// intervals.
    fn attempt(
        &self,
        request: &Request,
        goes_on: &dyn Fn() -> Result<(), Gone>,
    ) -> Result<Answer, StoreError> {
        let store = self.store;
        match request {
            Request::Enter { key, place } => register::enter(store, key, place).map(|()| Answer::Stored),
            Request::Leave { key, place } => register::leave(store, key, place).map(|()| Answer::Stored),
            Request::Post { key, value } => publish(store, key, value).map(|()| Answer::Stored),
            Request::Add { key } => store.add(key, 1).map(|count| Answer::Count(count.unsigned_abs())),
            Request::Fetch { keys } => fetch(store, keys).map(Answer::Values),
            Request::Check { keys } => {
                let names: Vec<&str> = keys.iter().map(String::as_str).collect();
                store.check(&names).map(Answer::All)
            }
            Request::Propose { key, value } => store.compare_set(key, b"", value).map(Answer::Result),
            Request::Await { key, until } => {
                let mut interval = POLL_INTERVAL;
                loop {
                    match store.get(key, self.deadline(*until).at_most(interval)) {
                        Err(StoreError::Timeout { .. }) if self.begun.elapsed() >= *until => {
                            return Ok(Answer::Expired);
                        }
                        Err(StoreError::Timeout { .. }) => {
                            if let Err(gone) = goes_on() {
                                return Ok(Answer::Over(gone));
                            }
                        }
                        answer => return answer.map(Answer::Result),
                    }
                    interval = (interval * 2).min(LONG_POLL_INTERVAL);
                }
            }
        }
    }

    /// Waits until the other members that posted a record have read the result, because this process may host the
    /// store. Waits for at most [`FAREWELL`], and not at all after an error of the store. Stops if `goes_on` or a
    /// request fails.
    fn stay(&self, awaited: &[Awaited], goes_on: &dyn Fn() -> Result<(), Gone>) {
        if self.failure.is_some() || awaited.is_empty() {
            return;
        }
        let deadline = Deadline::after(FAREWELL);
        let exists = |key: &str| self.store.check(&[key]).unwrap_or(false);
        let came: Vec<&Awaited> = awaited.iter().filter(|member| exists(&member.record)).collect();
        let Some(first) = came.first() else { return };
        let keys: Vec<&str> = came.iter().map(|member| &*member.read).collect();
        // When all members have read the result, the last one removes the records and then the acknowledgements. So
        // a record that is gone also ends the wait.
        while !deadline.expired()
            && goes_on().is_ok()
            && matches!(
                self.store.wait(&keys, deadline.at_most(POLL_INTERVAL)),
                Err(StoreError::Timeout { .. })
            )
            && exists(&first.record)
        {}
    }

    /// Removes the keys of an agreement whose result all members have acknowledged. If the first key is gone, another
    /// member removes the keys, and this does nothing. It also does nothing after an error of the store. Errors are
    /// ignored, because keys that remain cost only memory of the store.
    fn remove(&self, keys: &[String]) {
        if self.failure.is_none()
            && let Some((first, rest)) = keys.split_first()
            && matches!(self.store.delete(first), Ok(true))
        {
            let _ = rest.iter().try_for_each(|key| self.store.delete(key).map(drop));
        }
    }
}

/// Returns true for a temporary error: the same request may succeed later.
fn may_pass(error: &StoreError) -> bool {
    matches!(
        error,
        StoreError::Timeout { .. }
            | StoreError::Unresponsive { .. }
            | StoreError::Unreachable { .. }
            | StoreError::TurnedAway { .. }
            | StoreError::Refused { .. }
            | StoreError::Local { .. }
            | StoreError::File { .. }
            | StoreError::FileLocked { .. }
    )
}

/// Reads keys without waiting. Returns their values in order, and `None` for a key without a value.
fn fetch(store: &dyn Store, keys: &[String]) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
    let names: Vec<&str> = keys.iter().map(String::as_str).collect();
    // Usually all keys have values, and two requests suffice. Otherwise, or if a key is removed after the check, each
    // key is read by itself.
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
