//! Runs the state machine of an agreement over a store, on the caller's thread.

use std::{fmt, time::Duration};

use super::{
    failure::Failure,
    interface::{Awaited, Conclusion, Ending, Input, Member, Object, OtherMembers, Output},
    left::remove_keys,
    machine::Agreement,
    messages::{asks_for_action, sealed_failure},
    place::{outcomes, records, result_key},
    protocol::Protocol,
    register::{self, Running},
    retry::Retry,
    vote::{Answer, Gone, Request},
};
use crate::{
    runtime::{self, Instant},
    store::{Deadline, Store, StoreError, publish},
};

/// While a member waits for a result, [`run`] checks the object at intervals. This is the first interval. It is also
/// the interval of the checks in [`Session::stay`].
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The longest interval between two checks of the object in a wait. The intervals double up to this one, because each
/// interval costs requests to the store.
const LONG_POLL_INTERVAL: Duration = Duration::from_millis(500);
/// The longest time that a member waits, after a failure or refusal, until the other members have read the result.
const STAY_LIMIT: Duration = Duration::from_secs(3);

/// The agreement has ended on this member without an agreed value.
#[derive(Debug)]
pub struct Failed<P: Protocol> {
    /// The reason.
    pub ending: Ending<P>,
    /// The store's error, if the store failed. It may accompany any `ending`, because the store may also fail while
    /// this member acknowledges the result. [`StoreError::Argument`] if the agreement could not begin.
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

/// Runs this member's part in an agreement, and returns the agreed value. See the [terms](super#terms).
///
/// `record` is this member's contribution. `act` executes the action with a plan until the deadline, and returns the
/// outcome. It is called once per action, and never if there is no action. Its third argument is a function that
/// returns true once the verdict is stored: from then on, the outcome of this member's `act` changes nothing. The
/// verdict is stored this early if the outcome of another member was final, another member's wait for outcomes has
/// timed out, or a rank has [left](leave). `act` can poll this function to stop early. The function returns false if
/// the store fails.
///
/// `object` is checked during waits and retries, but not during `act`. Once it has ended on this rank, a wait for the
/// others ends, and the agreement fails with [`Failure::Left`] on all members, unless its result is already stored.
/// Retries of a failed request also end, with [`Ending::InDoubt`].
///
/// This function blocks in these phases, which follow one another:
/// - It waits until all records are posted, the patience of a member has ended, or the agreement has failed for another
///   reason.
/// - If there is an action, it runs `act`, and waits until the verdict is stored.
/// - If the agreement has failed, or was refused before an action, it waits until the others have read the result, for
///   at most 3 s, and not past [`Member::deadline`].
///
/// It also blocks while it repeats failed requests. If the host of a [`TcpStore`](crate::store::TcpStore) does not
/// answer, each operation of the store may block for about twice the store's patience
/// ([`TcpOptions::patience`](crate::store::TcpOptions::patience)). Set that patience to the patience of the agreement
/// or less.
///
/// # Errors
/// [`Failed`]. If `member` is invalid, or the operating system returns no random number, its `ending` is
/// [`Ending::StoreFailed`] and its `store` is [`StoreError::Argument`].
pub fn run<P: Protocol>(
    store: &dyn Store,
    member: Member,
    record: P::Record,
    mut act: impl FnMut(&P::Plan, Deadline, &dyn Fn() -> bool) -> P::Outcome,
    object: impl Object,
) -> Result<P::Agreed, Box<Failed<P>>> {
    let (deadline, retry_until) = (member.deadline, member.deadline.unwrap_or(member.patience));
    let _running = Running::of(member.rank, &member.name);
    let mut session = Session { store, begun: Instant::now(), failure: None };
    let nonce = runtime::random().map_err(|error| format!("no random number for an agreement: {error}"));
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
                    session.stay(&awaited, deadline, &object);
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
                let retry_until = machine.is_in_doubt().then_some(retry_until);
                Input::Store(session.ask(&request, retry_until, &object))
            }
        };
        output = machine.step(input, session.begun.elapsed());
    }
}

/// Fails the agreement `name` with [`Failure::Left`], because `rank` will not take part in it, or will not complete its
/// action. `cause` is the reason that the other members see in the failure. The other members stop waiting for `rank`.
/// This function waits for no other member.
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

/// Ends the wait of this rank for the value of `key`, an argument of [`Object::begin_wait`], because the object of the
/// agreement has ended: fails the agreement with [`Failure::Left`], unless its result is already stored. `store` is the
/// store of the agreement.
///
/// # Errors
/// Those of the store.
pub fn end_wait(store: &dyn Store, key: &str, gone: Gone) -> Result<(), StoreError> {
    let Gone { rank, cause } = gone;
    store.compare_set(key, b"", &sealed_failure(Failure::Left { rank, cause })).map(drop)
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

    /// Sends a request to the store, and returns the answer. After an error, there are three cases:
    /// - [`StoreError::Taken`]: returns [`Answer::Taken`].
    /// - The error is temporary, and `retry_until` is given: repeats the request while the object goes on, as
    ///   long as [`Retry`] says. `retry_until` is a time on the clock of the state machine.
    /// - Otherwise, or after the last repetition: stores the error in `failure`, and returns [`Answer::StoreFailed`],
    ///   or [`Answer::Unsent`] if the store rejected the value of a post.
    fn ask(&mut self, request: &Request, retry_until: Option<Duration>, object: &dyn Object) -> Answer {
        let mut retry = Retry::default();
        loop {
            let error = match self.attempt(request, object) {
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
            let is_due = retry.is_due(self.begun.elapsed(), retry_until);
            if !is_due || !may_pass(&error) || object.check().is_err() {
                self.failure = Some(error);
                return Answer::StoreFailed;
            }
            runtime::sleep(Retry::PAUSE);
        }
    }

    /// Executes a request without retries, and returns the answer. During a [`Request::Await`], checks the
    /// object at intervals.
    fn attempt(&self, request: &Request, object: &dyn Object) -> Result<Answer, StoreError> {
        let Request::Await { key, until } = request else { return execute(self.store, request) };
        let _wait = object.begin_wait(key);
        let mut interval = POLL_INTERVAL;
        loop {
            match self.store.get(key, self.deadline(*until).at_most(interval)) {
                Err(StoreError::Timeout { .. }) if self.begun.elapsed() >= *until => {
                    return Ok(Answer::Expired);
                }
                Err(StoreError::Timeout { .. }) => {
                    if let Err(gone) = object.check() {
                        return Ok(Answer::Over(gone));
                    }
                }
                answer => return answer.map(Answer::Result),
            }
            interval = (interval * 2).min(LONG_POLL_INTERVAL);
        }
    }

    /// Waits until the other members that posted a record have read the result, because this process may host the
    /// store. Waits for at most [`STAY_LIMIT`], until the time `deadline` on the clock of the state machine if that is
    /// given, and not at all if the store has failed. Stops if the object has ended or a request
    /// fails.
    fn stay(&self, awaited: &[Awaited], deadline: Option<Duration>, object: &dyn Object) {
        if self.failure.is_some() || awaited.is_empty() {
            return;
        }
        let left = |until: Duration| until.saturating_sub(self.begun.elapsed());
        let deadline = Deadline::after(deadline.map_or(STAY_LIMIT, |until| left(until).min(STAY_LIMIT)));
        let exists = |key: &str| self.store.check(&[key]).unwrap_or(false);
        let came: Vec<&Awaited> = awaited.iter().filter(|member| exists(&member.record)).collect();
        let Some(first) = came.first() else { return };
        let keys: Vec<&str> = came.iter().map(|member| &*member.read).collect();
        // When all members have read the result, the last one removes the records and then the acknowledgements. So
        // a record that is gone also ends the wait.
        while !deadline.expired()
            && object.check().is_ok()
            && matches!(
                self.store.wait(&keys, deadline.at_most(POLL_INTERVAL)),
                Err(StoreError::Timeout { .. })
            )
            && exists(&first.record)
        {}
    }

    /// Removes the keys of an agreement whose result all members have acknowledged. If the first key is gone, another
    /// member removes the keys, and this does nothing. It also does nothing if the store has failed. Errors are
    /// ignored, because keys that remain cost only memory of the store.
    fn remove(&self, keys: &[String]) {
        if self.failure.is_none() {
            remove_keys(self.store, keys);
        }
    }
}

/// Executes a request without retries, and returns the answer. For a [`Request::Await`], reads the key without waiting.
///
/// [`run`] executes all other requests by this function. Simulations that drive [`Agreement`] themselves use it for all
/// requests.
///
/// # Errors
/// Those of the store. [`StoreError::Taken`] means [`Answer::Taken`].
pub fn execute(store: &dyn Store, request: &Request) -> Result<Answer, StoreError> {
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
        Request::Await { key, .. } => match store.get(key, Deadline::now()) {
            Err(StoreError::Timeout { .. }) => Ok(Answer::Expired),
            answer => answer.map(Answer::Result),
        },
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
pub(super) fn fetch(store: &dyn Store, keys: &[String]) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
    let mut present: Vec<&str> = keys.iter().map(String::as_str).collect();
    // Usually all keys have values, and a check and a read suffice.
    if !store.check(&present)? {
        present = existing(store, &present)?;
    }
    let mut removals = 0..keys.len();
    let values = loop {
        let read = match &*present {
            [] => Ok(Vec::new()),
            [key] => store.get(key, Deadline::now()).map(|value| vec![value]),
            present => store.multi_get(present, Deadline::now()),
        };
        match read {
            // A key was removed after the check.
            Err(StoreError::Timeout { .. }) if removals.next().is_some() => {
                present = existing(store, &present)?
            }
            read => break read?,
        }
    };
    let mut read = present.into_iter().zip(values).peekable();
    Ok(keys.iter().map(|key| read.next_if(|(name, _)| name == key).map(|(_, value)| value)).collect())
}

/// Returns those of the keys that exist.
fn existing<'a>(store: &dyn Store, keys: &[&'a str]) -> Result<Vec<&'a str>, StoreError> {
    let mut existing = Vec::new();
    for key in keys {
        if store.check(&[key])? {
            existing.push(*key);
        }
    }
    Ok(existing)
}
