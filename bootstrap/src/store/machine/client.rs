//! The client side of the protocol: one connection, one call at a time.

use std::{collections::VecDeque, fmt, time::Duration};

use super::{
    request::{Limits, Reply, Request},
    secret::{self, Block, Distrust, Secret},
    wire::{Expect, ReplyDecoder, greeting, kind},
};

/// The time that a server has, after the deadline of a wait, to answer the cancellation and to report the missing keys.
///
/// `GRACE` also applies before an operation that waits, while a `TcpStore` opens a connection or a `FileStore` locks
/// the file. The time limit of this step is the time left until the operation's deadline, but at least `GRACE`, and
/// never more than the store's patience.
pub(in super::super) const GRACE: Duration = Duration::from_secs(5);

/// The interval at which an empty queue is polled if a key of the same name has a value. The protocol's `Wait` cannot
/// be used then: it ends at once, because the key exists.
pub(in super::super) const PAUSE: Duration = Duration::from_millis(10);

/// A call of a client. Deadlines are times of the caller's clock (see the [module](super)).
///
/// A successful call returns the reply to its request, or `None` if it has no request or the request has no reply.
/// A call that waits checks its keys at least once, even if its deadline has passed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Call {
    /// Send one request other than `Wait`, `Barrier` and `Ping`. The call ends when the request has taken effect.
    Now(Request),
    /// Wait until all keys exist, then send the request, if there is one. If the request pops a queue that another
    /// client has emptied in the meantime, the client waits again, until the same deadline.
    WhenThere {
        /// The keys to wait for.
        keys: Vec<Vec<u8>>,
        /// The request to send after the wait.
        then: Option<Request>,
        /// If true, a `Get`, `MultiGet` or `QueuePop` is also sent at once, together with a check of the keys. If the
        /// keys exist and the popped queue is not empty, the call then takes one round trip. For any other request,
        /// this changes nothing. Use false with PyTorch's older server (the one without libuv), which closes the
        /// connection when a request reads an absent key.
        peeks: bool,
        /// The time at which the wait fails with [`Failure::TimedOut`].
        deadline: Duration,
    },
    /// Add 1 to the number under a key, and wait until it is at least `world`. After a timeout, the number stays
    /// increased.
    Barrier {
        /// The key.
        key: Vec<u8>,
        /// The number to wait for.
        world: i64,
        /// The time at which the wait fails with [`Failure::TimedOut`].
        deadline: Duration,
    },
}

/// An event for a [`Client`].
#[derive(Debug, Clone)]
pub enum Input<'a> {
    /// The connection is established. This is the first input. The greeting must be complete before the given time.
    Connected(Duration),
    /// Start a call. It fails with [`Failure::Busy`] unless the client [is idle](Client::is_idle).
    Call(Call),
    /// Bytes have arrived, in any fragmentation.
    Received(&'a [u8]),
    /// Only time has passed. See [`Client::wake_at`].
    Tick,
}

/// An action that a [`Client`] requests. The caller executes the actions of a step in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Send bytes to the server.
    Send(Vec<u8>),
    /// The greeting or the call has ended, or the input was refused with [`Failure::Busy`]. A successful greeting gives
    /// `None`. For the result of a call, see [`Call`]. After a [`Failure`] other than `TimedOut` and `Busy`, the
    /// connection is unusable.
    Done(Result<Option<Reply>, Failure>),
}

/// The reason why the greeting or a call has failed, or why an input was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failure {
    /// Some keys did not exist at the deadline, the queue was empty, or the number of a barrier was too small.
    TimedOut {
        /// The keys that did not exist. If a pop found an empty queue, or the call has more than 1,024 keys: all
        /// keys of the call. For a barrier: its key.
        missing: Vec<Vec<u8>>,
    },
    /// The server has not answered in time:
    /// - The greeting must be complete before its deadline.
    /// - Each request that does not wait must be answered within the client's patience.
    /// - The last answer to a call that waits must arrive within 5 s of the call's deadline or start, whichever is
    ///   later. If this client has sent `CancelWait`, the 5 s count from then instead.
    Unresponsive,
    /// The greeting has failed: the two sides do not have the same secret, only one side has a secret, or the server
    /// has not answered a greeting with a secret.
    Distrust(Distrust),
    /// The server has sent bytes that are not a valid answer, or an answer that exceeds the client's limits. Contains a
    /// description of the bytes or of the answer.
    Protocol(String),
    /// The input was refused, because the greeting is not complete, another call is in progress, or the connection is
    /// unusable. A call in progress continues.
    Busy,
}

/// The client side of one connection.
pub struct Client {
    limits: Limits,
    /// The most time for an answer to a request that does not wait.
    patience: Duration,
    /// The number of the last ping, or of the first one if none was sent. The server must answer a ping with its
    /// number.
    nonce: u32,
    /// The secret, and the challenge that the client sends in its greeting.
    secret: Option<(Secret, Block)>,
    decoder: ReplyDecoder,
    phase: Phase,
}

/// Omits the secret and the data sent and received.
impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("limits", &self.limits)
            .field("patience", &self.patience)
            .field("has_secret", &self.secret.is_some())
            .field("is_idle", &self.is_idle())
            .finish_non_exhaustive()
    }
}

/// The state of a connection. In each phase, `due` is the time by which all answers that the phase waits for must have
/// arrived.
enum Phase {
    /// Nothing was sent.
    New,
    /// The first part of a greeting with a secret was sent. While `server` is `None`, the client waits for the server's
    /// challenge. Afterwards `server` is that challenge, and the client waits for the server's proof.
    Trusting { server: Option<Block>, due: Duration },
    /// The ping of the greeting, or the request of a call, was sent. `expect` is the kind of the answer. `retry` is the
    /// call if it waits: if its request finds an empty queue before the deadline, the call starts again.
    Answer { expect: Expect, due: Duration, retry: Option<Pending> },
    /// The greeting is complete, and no call is in progress.
    Idle,
    /// A check of a call's keys was sent together with the call's request. `there` is `None` until the check is
    /// answered, then true if all keys exist. The answer to the request follows.
    Peeking { pending: Pending, there: Option<bool>, due: Duration },
    /// The queue that a call pops is empty, although all keys of the call exist: usually a key of the same name has a
    /// value. The client pops again at the time `until`, if the call's deadline is later.
    Pausing { pending: Pending, until: Duration },
    /// A `Wait` or a `Barrier` was sent.
    Waiting(Pending),
    /// The wait has timed out, and a `CancelWait` was sent. `woken` is true if the wait has ended successfully before
    /// the answer to `CancelWait` has arrived.
    Cancelling { pending: Pending, woken: bool, due: Duration },
    /// One check for each key was sent, to find the missing keys. `asked` are the keys whose answers have not arrived.
    Surveying { pending: Pending, asked: VecDeque<Vec<u8>>, missing: Vec<Vec<u8>>, due: Duration },
    /// The connection is unusable.
    Broken,
}

/// A call that waits. The first three fields are fields of [`Call::WhenThere`]. A `Barrier` has one key and no request.
#[derive(Clone)]
struct Pending {
    keys: Vec<Vec<u8>>,
    then: Option<Request>,
    deadline: Duration,
    /// The time by which the server must have given the last answer: [`GRACE`] after the deadline or the start of the
    /// call, whichever is later. If a `CancelWait` is sent, it becomes [`GRACE`] after that.
    limit: Duration,
}

impl Pending {
    fn new(keys: Vec<Vec<u8>>, then: Option<Request>, deadline: Duration, now: Duration) -> Self {
        Self { keys, then, deadline, limit: deadline.max(now).saturating_add(GRACE) }
    }
}

impl Client {
    /// The most keys of a timed-out wait for which the client asks which are missing. If there are more keys, all are
    /// reported as missing.
    const SURVEYED: usize = 1024;

    /// Makes a client that accepts no replies above `limits`. It does not check the sizes of requests: the caller does,
    /// with [`Limits::check`]. `patience` is the most time for an answer to a request that does not wait (see
    /// [`Failure::Unresponsive`]). `nonce` is the number in the first ping, for example the process id.
    pub fn new(limits: Limits, patience: Duration, nonce: u32) -> Self {
        Self { limits, patience, nonce, secret: None, decoder: ReplyDecoder::default(), phase: Phase::New }
    }

    /// Makes this client prove to the server that it knows the secret, and require the same proof from the server.
    /// `block` is the client's challenge: 32 random bytes, new for each connection.
    #[must_use]
    pub fn with_secret(self, secret: Secret, block: [u8; 32]) -> Self {
        Self { secret: Some((secret, block)), ..self }
    }

    /// Returns the time at which the caller must pass [`Input::Tick`], unless another input comes first. `None` if
    /// there is no such time.
    pub fn wake_at(&self) -> Option<Duration> {
        match &self.phase {
            Phase::New | Phase::Idle | Phase::Broken => None,
            Phase::Waiting(pending) => Some(pending.deadline),
            Phase::Pausing { pending, until } => Some(pending.deadline.min(*until)),
            Phase::Trusting { due, .. }
            | Phase::Answer { due, .. }
            | Phase::Peeking { due, .. }
            | Phase::Cancelling { due, .. }
            | Phase::Surveying { due, .. } => Some(*due),
        }
    }

    /// Returns true if the greeting has succeeded, no call is in progress, and the connection is usable.
    pub fn is_idle(&self) -> bool {
        matches!(self.phase, Phase::Idle)
    }

    /// Handles one input at the time `now`, and returns the actions for the caller.
    pub fn step(&mut self, input: Input<'_>, now: Duration) -> Vec<Output> {
        let mut outputs = Vec::new();
        match (input, &self.phase) {
            (Input::Connected(due), Phase::New) => self.greet(due, &mut outputs),
            (Input::Call(call), Phase::Idle) => self.call(call, now, &mut outputs),
            (Input::Connected(_) | Input::Call(_), _) => outputs.push(Output::Done(Err(Failure::Busy))),
            (Input::Received(bytes), _) => self.decoder.buffer.extend(bytes),
            (Input::Tick, _) => {}
        }
        // This runs after every input, because the reply to a `MultiGet` of no keys has no bytes.
        self.receive(now, &mut outputs);
        if self.wake_at().is_some_and(|due| due <= now) {
            self.late(now, &mut outputs);
        }
        outputs
    }

    /// Sends the greeting, or only its first part if the client has a secret. The greeting must be complete at the time
    /// `due`.
    fn greet(&mut self, due: Duration, outputs: &mut Vec<Output>) {
        if let Some((_, block)) = &self.secret {
            let mut bytes = vec![kind::VALIDATE];
            bytes.extend_from_slice(&secret::MAGIC.to_le_bytes());
            bytes.extend_from_slice(block);
            outputs.push(Output::Send(bytes));
            self.phase = Phase::Trusting { server: None, due };
            return;
        }
        let mut bytes = greeting();
        // The greeting and the ping are sent in one write, because PyTorch's server does not accept the greeting in
        // fragments.
        Request::Ping { nonce: self.nonce }.encode(&mut bytes);
        outputs.push(Output::Send(bytes));
        self.phase = Phase::Answer { expect: Expect::Nonce, due, retry: None };
    }

    /// Reads the server's challenge or, if the challenge `server` has arrived, the server's proof. Returns false if
    /// more bytes must arrive. Returns true if the greeting has advanced to its next phase or has failed.
    fn trust(&mut self, server: Option<Block>, due: Duration, outputs: &mut Vec<Output>) -> bool {
        let Some((secret, own)) = &self.secret else { return false };
        let buffer = &mut self.decoder.buffer;
        let outcome = match (buffer.as_slice(), server) {
            ([], _) => return false,
            ([0, ..], None) => Err(Failure::Distrust(Distrust::NotKept)),
            ([0, ..], Some(_)) => Err(Failure::Distrust(Distrust::Refused)),
            ([1, rest @ ..], _) => match (rest.first_chunk(), server) {
                (None, _) => return false,
                (Some(block), None) => Ok(Some(*block)),
                (Some(proof), Some(server)) if secret.is_server_proof(proof, own, &server) => Ok(None),
                (Some(_), Some(_)) => Err(Failure::Distrust(Distrust::Unproven)),
            },
            ([other, ..], _) => {
                Err(Failure::Protocol(format!("{other:#04x} in answer to a greeting with a secret")))
            }
        };
        match outcome {
            Err(failure) => self.finish(Err(failure), outputs),
            Ok(Some(server)) => {
                buffer.skip(1 + server.len());
                outputs.push(Output::Send(secret.client_proof(own, &server).to_vec()));
                self.phase = Phase::Trusting { server: Some(server), due };
            }
            Ok(None) => {
                buffer.skip(1 + own.len());
                outputs.push(send(&[Request::Ping { nonce: self.nonce }]));
                self.phase = Phase::Answer { expect: Expect::Nonce, due, retry: None };
            }
        }
        true
    }

    /// Sends the first request of a call.
    fn call(&mut self, call: Call, now: Duration, outputs: &mut Vec<Output>) {
        match call {
            Call::Now(request) => self.ask(&request, None, now, outputs),
            Call::WhenThere { keys, then, peeks, deadline } => {
                let reads = matches!(
                    then,
                    Some(Request::Get { .. } | Request::MultiGet { .. } | Request::QueuePop { .. })
                );
                let pending = Pending::new(keys, then, deadline, now);
                if peeks && reads { self.peek(pending, now, outputs) } else { self.wait(pending, outputs) }
            }
            Call::Barrier { key, world, deadline } => {
                outputs.push(send(&[Request::Barrier { key: key.clone(), world }]));
                self.phase = Phase::Waiting(Pending::new(vec![key], None, deadline, now));
            }
        }
    }

    /// Sends the request of a call. If the request has no reply, also sends a ping, whose answer shows that the request
    /// has taken effect. `retry` is the call if it waits; see [`Phase::Answer`].
    fn ask(&mut self, request: &Request, retry: Option<Pending>, now: Duration, outputs: &mut Vec<Output>) {
        let mut bytes = Vec::new();
        request.encode(&mut bytes);
        let expect = Expect::of(request).unwrap_or_else(|| {
            self.nonce = self.nonce.wrapping_add(1);
            Request::Ping { nonce: self.nonce }.encode(&mut bytes);
            Expect::Nonce
        });
        outputs.push(Output::Send(bytes));
        let due = self.due(retry.as_ref(), now);
        self.phase = Phase::Answer { expect, due, retry };
    }

    /// Returns the time by which the next answer must arrive: the client's patience from now. If `pending` is given, it
    /// is at most the limit of that call.
    fn due(&self, pending: Option<&Pending>, now: Duration) -> Duration {
        let patient = now.saturating_add(self.patience);
        pending.map_or(patient, |pending| patient.min(pending.limit))
    }

    /// Sends a check that all keys exist, together with the request that reads them.
    ///
    /// A `CompareSet` whose expected value never matches changes nothing and returns the current value. So it could
    /// read one key in one round trip, too. It is not used, because for an absent key one of PyTorch's servers wakes
    /// the clients that wait for that key.
    fn peek(&mut self, pending: Pending, now: Duration, outputs: &mut Vec<Output>) {
        let check = Request::Check { keys: pending.keys.clone() };
        outputs.push(send(std::iter::once(&check).chain(&pending.then)));
        let due = self.due(Some(&pending), now);
        self.phase = Phase::Peeking { pending, there: None, due };
    }

    /// Sends a `Wait` for the keys of a call.
    fn wait(&mut self, pending: Pending, outputs: &mut Vec<Output>) {
        outputs.push(send(&[Request::Wait { keys: pending.keys.clone() }]));
        self.phase = Phase::Waiting(pending);
    }

    /// Continues a call whose wait has succeeded: sends its request, or ends the call if it has none.
    fn go_on(&mut self, pending: Pending, now: Duration, outputs: &mut Vec<Output>) {
        match pending.then.clone() {
            Some(request) => self.ask(&request, Some(pending), now, outputs),
            None => {
                // An empty `MultiSet` changes no key and has no reply. The server may have woken this client for an
                // element of a queue. This request tells the server that the client does not take the element, so the
                // server wakes the next client.
                outputs.push(send(&[Request::MultiSet { entries: Vec::new() }]));
                self.finish(Ok(None), outputs);
            }
        }
    }

    /// Ends the greeting or the call. After a failure other than `TimedOut`, the connection is unusable.
    fn finish(&mut self, outcome: Result<Option<Reply>, Failure>, outputs: &mut Vec<Output>) {
        self.phase = match outcome {
            Ok(_) | Err(Failure::TimedOut { .. }) => Phase::Idle,
            Err(_) => Phase::Broken,
        };
        outputs.push(Output::Done(outcome));
    }

    /// Decodes and handles the received replies until more bytes must arrive.
    fn receive(&mut self, now: Duration, outputs: &mut Vec<Output>) {
        loop {
            let expect = match &self.phase {
                Phase::Trusting { server, due } => {
                    let (server, due) = (*server, *due);
                    if self.trust(server, due, outputs) {
                        continue;
                    }
                    return;
                }
                Phase::Answer { expect, .. } => *expect,
                Phase::Peeking { pending: Pending { then: Some(request), .. }, there: Some(_), .. } => {
                    Expect::of(request).unwrap_or(Expect::Status)
                }
                Phase::Peeking { .. } => Expect::Status,
                Phase::Waiting(_) | Phase::Cancelling { .. } | Phase::Surveying { .. } => Expect::Status,
                Phase::Broken => return,
                Phase::New | Phase::Idle | Phase::Pausing { .. } if self.decoder.buffer.is_empty() => return,
                Phase::Pausing { .. } => {
                    self.finish(Err(Failure::Protocol("bytes that nobody asked for".into())), outputs);
                    return;
                }
                Phase::New | Phase::Idle => {
                    // The server has sent bytes that answer no request. There is no call that could fail now, so the
                    // next one fails with `Busy`.
                    self.phase = Phase::Broken;
                    return;
                }
            };
            match self.decoder.next(expect, &self.limits) {
                Ok(Some(reply)) => self.reply(reply, now, outputs),
                Ok(None) => return,
                Err(found) => self.finish(Err(Failure::Protocol(found)), outputs),
            }
        }
    }

    /// Handles the reply that the current phase expects.
    fn reply(&mut self, reply: Reply, now: Duration, outputs: &mut Vec<Output>) {
        match (std::mem::replace(&mut self.phase, Phase::Broken), reply) {
            (Phase::Answer { expect: Expect::Nonce, .. }, Reply::Nonce(nonce)) if nonce == self.nonce => {
                self.finish(Ok(None), outputs);
            }
            (Phase::Answer { expect: Expect::Nonce, .. }, Reply::Nonce(secret::MAGIC)) => {
                self.finish(Err(Failure::Distrust(Distrust::Wanted)), outputs);
            }
            (Phase::Answer { expect: Expect::Nonce, .. }, Reply::Nonce(nonce)) => {
                let found = format!("{nonce:#x} in answer to a ping of {:#x}", self.nonce);
                self.finish(Err(Failure::Protocol(found)), outputs);
            }
            (Phase::Answer { retry: Some(pending), .. }, Reply::Popped(None)) if pending.deadline > now => {
                // Another client has taken the element, or the wait ended because a key of the queue's name has a
                // value.
                self.peek(pending, now, outputs);
            }
            (Phase::Answer { retry: Some(pending), .. }, Reply::Popped(None)) => {
                self.finish(Err(Failure::TimedOut { missing: pending.keys }), outputs);
            }
            (Phase::Answer { .. }, reply) => self.finish(Ok(Some(reply)), outputs),
            (Phase::Peeking { pending, there: None, due }, Reply::Status(status @ (0 | 1))) => {
                self.phase = Phase::Peeking { pending, there: Some(status == 0), due };
            }
            (Phase::Peeking { there: Some(_), .. }, popped @ Reply::Popped(Some(_))) => {
                self.finish(Ok(Some(popped)), outputs);
            }
            (Phase::Peeking { pending, there: Some(true), .. }, Reply::Popped(None)) => {
                self.phase = Phase::Pausing { pending, until: now.saturating_add(PAUSE) };
            }
            (Phase::Peeking { there: Some(true), .. }, held) => self.finish(Ok(Some(held)), outputs),
            (Phase::Peeking { pending, there: Some(false), .. }, _) => self.wait(pending, outputs),
            (Phase::Waiting(pending), Reply::Status(0)) => self.go_on(pending, now, outputs),
            (Phase::Cancelling { pending, woken: false, due }, Reply::Status(0)) => {
                self.phase = Phase::Cancelling { pending, woken: true, due };
            }
            (Phase::Cancelling { pending, woken: true, .. }, Reply::Status(1)) => {
                self.go_on(pending, now, outputs);
            }
            (Phase::Cancelling { pending, woken: false, .. }, Reply::Status(1)) => {
                self.survey(pending, now, outputs);
            }
            (Phase::Surveying { pending, mut asked, mut missing, due }, Reply::Status(status @ (0 | 1))) => {
                let key = asked.pop_front();
                missing.extend(key.filter(|_| status == 1));
                if !asked.is_empty() {
                    self.phase = Phase::Surveying { pending, asked, missing, due };
                } else if missing.is_empty() {
                    self.go_on(pending, now, outputs);
                } else {
                    self.finish(Err(Failure::TimedOut { missing }), outputs);
                }
            }
            (_, reply) => {
                self.finish(Err(Failure::Protocol(format!("{reply:?} in answer to a wait"))), outputs);
            }
        }
    }

    /// Asks the server which keys of a timed-out wait are missing. Sends nothing and ends the call if there is only one
    /// key (the missing one, or that of a barrier), or if there are more than [`SURVEYED`](Self::SURVEYED) keys.
    fn survey(&mut self, pending: Pending, now: Duration, outputs: &mut Vec<Output>) {
        if pending.keys.len() == 1 || pending.keys.len() > Self::SURVEYED {
            self.finish(Err(Failure::TimedOut { missing: pending.keys }), outputs);
            return;
        }
        let checks: Vec<_> =
            pending.keys.iter().map(|key| Request::Check { keys: vec![key.clone()] }).collect();
        outputs.push(send(&checks));
        let asked = pending.keys.iter().cloned().collect();
        let due = self.due(Some(&pending), now);
        self.phase = Phase::Surveying { pending, asked, missing: Vec::new(), due };
    }

    /// Handles a timer of [`wake_at`](Self::wake_at) that is due. Cancels a wait. After a pause, pops the queue again,
    /// or times out if the deadline has passed. In all other phases, fails because the server has not answered.
    fn late(&mut self, now: Duration, outputs: &mut Vec<Output>) {
        match std::mem::replace(&mut self.phase, Phase::Broken) {
            Phase::Waiting(mut pending) => {
                // This may run long after the deadline, for example because this process was suspended. So the limit is
                // counted from now.
                pending.limit = now.saturating_add(GRACE);
                outputs.push(send(&[Request::CancelWait]));
                let due = self.due(Some(&pending), now);
                self.phase = Phase::Cancelling { pending, woken: false, due };
            }
            Phase::Pausing { pending, .. } => match pending.then.clone() {
                Some(request) if pending.deadline > now => self.ask(&request, Some(pending), now, outputs),
                _ => self.finish(Err(Failure::TimedOut { missing: pending.keys }), outputs),
            },
            Phase::Trusting { server: None, .. } => {
                self.finish(Err(Failure::Distrust(Distrust::Unanswered)), outputs);
            }
            _ => self.finish(Err(Failure::Unresponsive), outputs),
        }
    }
}

/// Returns the output that sends these requests.
fn send<'a>(requests: impl IntoIterator<Item = &'a Request>) -> Output {
    let mut bytes = Vec::new();
    requests.into_iter().for_each(|request| request.encode(&mut bytes));
    Output::Send(bytes)
}

#[cfg(test)]
mod tests;
