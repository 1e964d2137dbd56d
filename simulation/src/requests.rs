//! Requests of ranks to the store. Production code executes each request by one or several calls to the store.

use std::{
    mem,
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use bootstrap::{
    agreement::{self, Answer, Retry, execute},
    store::{
        Deadline, Store, StoreError,
        machine::{Call, Reply, Request},
    },
};

use crate::{lock::lock, violation::Violation};

/// A request of a rank to the store. `Agreement` is a request of the state machine of the rank's [meeting](super).
#[derive(Debug, Clone)]
pub(crate) enum StoreRequest {
    /// Sets a key that only this rank writes.
    Set {
        key: String,
        value: Vec<u8>,
    },
    Agreement(agreement::Request),
}

impl StoreRequest {
    /// If this request waits for a key, returns the end of the wait on the rank's own clock. Else returns `None`.
    pub(crate) fn waits_until(&self) -> Option<Duration> {
        match self {
            Self::Agreement(agreement::Request::Await { until, .. }) => Some(*until),
            _ => None,
        }
    }
}

/// How the simulation continues after the answer to a rank's request to the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Goal {
    /// The answer goes to the state machine of the rank's [meeting](super) (an agreement among ranks). The number is
    /// the token of the request, see [`Rank::token`](crate::rank::Rank::token).
    Meeting(u64),
    /// The rank continues its program, whatever the answer is.
    Resume,
    /// The request reports to another rank, the lender, that the requesting rank has closed a plan of an
    /// [exchange](crate::exchanges): it no longer accesses the memory that the lender has lent for the plan. After the
    /// answer, the lender checks which lent memory it can free. The number is the lender's rank.
    Closed(u32),
}

/// A request in progress.
///
/// The production code that executes a request makes blocking calls to the store. The simulation cannot block, so it
/// runs this code again after each reply, with all replies so far, until the code needs no further reply.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) rank: u32,
    pub(crate) goal: Goal,
    pub(crate) request: StoreRequest,
    /// If the request waits for a key of the store, the end of this wait on the simulation's clock. Else `None`.
    pub(crate) until: Option<Duration>,
    /// One entry for each ended call of the request. `None`: the deadline of the call has passed. `Some(None)`: the
    /// store has served the call, and calls of this kind return nothing. `Some(Some(reply))`: the store's reply.
    pub(crate) replies: Vec<Option<Option<Reply>>>,
    /// Decides whether the rank repeats the request after a failure.
    pub(crate) retry: Retry,
}

/// The result of [`Asked::progress`].
pub(crate) enum Progress {
    /// The production code needs the reply to this call.
    Call(Call),
    Done(Answer),
}

impl Asked {
    /// Runs the production code of the request at the time `now`, with the replies so far.
    pub(crate) fn progress(&self, now: Duration) -> Result<Progress, Violation> {
        let deadline = self.until.unwrap_or(now);
        let replay = Replay { replies: &self.replies, deadline, state: Mutex::default() };
        let outcome = match &self.request {
            StoreRequest::Set { key, value } => replay.set(key, value).map(|()| Answer::Stored),
            StoreRequest::Agreement(request) => execute(&replay, request),
        };
        let wanted = mem::take(&mut replay.state().wanted);
        match (wanted, outcome) {
            (Some(call), _) => Ok(Progress::Call(call)),
            (None, Ok(answer)) => Ok(Progress::Done(answer)),
            (None, Err(StoreError::Taken { .. })) => Ok(Progress::Done(Answer::Taken)),
            (None, Err(error)) => Err(Violation(format!("{:?} fails: {error}", self.request))),
        }
    }
}

/// A store that answers call number `n` with reply number `n` of `replies`. A call without a reply fails, and
/// [`Replayed::wanted`] keeps the first such call.
struct Replay<'a> {
    replies: &'a [Option<Option<Reply>>],
    /// The deadline of calls that wait for a key.
    deadline: Duration,
    state: Mutex<Replayed>,
}

#[derive(Default)]
struct Replayed {
    /// The number of calls made to this store.
    calls: usize,
    /// The first call without a reply.
    wanted: Option<Call>,
}

impl Replay<'_> {
    fn state(&self) -> MutexGuard<'_, Replayed> {
        lock(&self.state)
    }

    fn reply(&self, call: Call) -> Result<Option<Reply>, StoreError> {
        let mut state = self.state();
        state.calls += 1;
        match self.replies.get(state.calls - 1) {
            Some(Some(reply)) => Ok(reply.clone()),
            Some(None) => Err(StoreError::Timeout { keys: Vec::new(), waited: Duration::ZERO }),
            None => {
                state.wanted.get_or_insert(call);
                Err(StoreError::Argument("there is no reply yet".into()))
            }
        }
    }
}

impl Store for Replay<'_> {
    fn call(&self, request: Request) -> Result<Option<Reply>, StoreError> {
        self.reply(Call::Now(request))
    }

    fn call_when_there(
        &self,
        keys: Vec<Vec<u8>>,
        then: Option<Request>,
        _: Deadline,
    ) -> Result<Option<Reply>, StoreError> {
        // If the call reads a key, `peeks` makes the client send the read together with the check that the key exists.
        // `TcpStore` does the same.
        let peeks = matches!(then, Some(Request::Get { .. }));
        self.reply(Call::WhenThere { keys, then, peeks, deadline: self.deadline })
    }
}
