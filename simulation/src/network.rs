//! The simulated network between the ranks and the store, a server of keys and values. The server and the clients are
//! the production code of [`bootstrap::store`]; only the connections between them are simulated. The bytes of a
//! connection travel in *pieces*, and arrive in the order in which they were sent. [`crate::store`] decides when a
//! piece arrives. The first message of a client on a new connection is its *greeting*, which the server answers.
//!
//! A [*request*](crate::requests) of a rank, for example to post a value, is executed by one or several *calls*, one
//! after the other.

use std::{collections::VecDeque, mem, sync::Mutex, time::Duration};

use bootstrap::store::{
    Deadline, Store, StoreError,
    machine::{Call, Client, ClientId, Limits, Reply, Request, Server, ServerLimits, client, server},
};

use crate::{
    keys::Keys,
    lock::lock,
    requests::Asked,
    violation::{Violation, bail},
};

/// A time limit that never expires, because it is longer than any run. It is used for three limits: the client's limit
/// for its own greeting, the server's limit for the greeting of a client, and the client's limit for the answer to a
/// call that does not wait for a key. No shorter limit is needed: an open connection loses no bytes, so every answer
/// and every greeting arrives.
const UNLIMITED: Duration = Duration::from_secs(1 << 32);
/// The simulation's own connection, which belongs to no rank. See [`Network::at_once`].
const OBSERVER: ClientId = 0;

/// A connection of a rank.
pub(crate) struct Link {
    pub(crate) rank: u32,
    client: Client,
    is_greeted: bool,
    /// The pieces that travel to the store, in order.
    up: VecDeque<Vec<u8>>,
    /// The pieces that travel to the rank, in order. Those that have arrived and that the rank has not read yet come
    /// first.
    down: VecDeque<Vec<u8>>,
    /// The request that uses the connection, or `None` if the connection is idle. One of the request's calls is in
    /// progress. On a new connection, the greeting is in progress instead.
    asked: Option<Asked>,
    /// The number of calls begun on this connection. It identifies the current call.
    pub(crate) calls: u64,
    /// The number of pieces at the front of `down` that have arrived while the rank was
    /// [stopped](crate::trouble::Trouble::Stopped).
    held: usize,
    /// True if the simulation breaks the connection instead of delivering the answer to the current call.
    pub(crate) loses_answer: bool,
}

/// The end of a call, or of the greeting, on a connection. `asked` is the request that uses the connection.
pub(crate) struct Finished {
    pub(crate) asked: Asked,
    /// The outcome of the call, or the failure of the greeting. `None` if the greeting has succeeded: the call of the
    /// request has not begun yet. `Some(Ok(None))` if a call without a reply has succeeded.
    pub(crate) outcome: Option<Result<Option<Reply>, client::Failure>>,
}

/// A connection, and bytes to send on it.
pub(crate) type Sent = (ClientId, Vec<u8>);

pub(crate) struct Network {
    server: Server,
    /// The connections, by id. The entry of an ended connection is `None`. So is the entry of [`OBSERVER`], whose
    /// client is the field `observer`.
    links: Vec<Option<Link>>,
    /// For each rank, its idle connections: those that have been greeted and that no request uses.
    idle: Vec<Vec<ClientId>>,
    /// The client of the connection [`OBSERVER`].
    observer: Client,
    pub(crate) keys: Keys,
    /// The number of pieces that have arrived at the store.
    pub(crate) arrived: u64,
    pub(crate) is_dead: bool,
}

impl Network {
    pub(crate) fn new(ranks: usize) -> Self {
        let mut network = Self {
            server: Server::new(ServerLimits { greeting: UNLIMITED, ..ServerLimits::default() }),
            links: vec![None],
            idle: vec![Vec::new(); ranks],
            observer: Client::new(Limits::default(), UNLIMITED, 0),
            keys: Keys::default(),
            arrived: 0,
            is_dead: false,
        };
        network.server.step(server::Input::Accepted(OBSERVER), Duration::ZERO);
        let outputs = network.observer.step(client::Input::Connected(UNLIMITED), Duration::ZERO);
        let _ = network.observe(outputs);
        network
    }

    /// Returns the value of `key` in the store.
    pub(crate) fn value(&self, key: &str) -> Option<&[u8]> {
        self.server.table().value(key.as_bytes())
    }

    pub(crate) fn link(&mut self, id: ClientId) -> Option<&mut Link> {
        self.links.get_mut(id as usize)?.as_mut()
    }

    /// Returns the connections of a rank that are open.
    pub(crate) fn links_of(&self, rank: u32) -> Vec<ClientId> {
        let of_rank = |link: &Option<Link>| link.as_ref().is_some_and(|link| link.rank == rank);
        (0..).zip(&self.links).filter(|(_, link)| of_rank(link)).map(|(id, _)| id).collect()
    }

    /// Opens a connection for a request of a rank. Returns the greeting of the client, which the caller must send. The
    /// call of the request begins after the answer to the greeting.
    pub(crate) fn open(&mut self, asked: Asked, now: Duration) -> Result<Sent, Violation> {
        let id = self.links.len() as ClientId;
        let mut client = Client::new(Limits::default(), UNLIMITED, id as u32);
        let outputs = client.step(client::Input::Connected(UNLIMITED), now);
        self.links.push(Some(Link {
            rank: asked.rank,
            client,
            is_greeted: false,
            up: VecDeque::new(),
            down: VecDeque::new(),
            asked: Some(asked),
            calls: 0,
            held: 0,
            loses_answer: false,
        }));
        self.server.step(server::Input::Accepted(id), now);
        let [client::Output::Send(bytes)] = &*outputs else {
            bail!("a client of the store sends no greeting");
        };
        Ok((id, bytes.clone()))
    }

    /// Takes an idle connection of a rank.
    pub(crate) fn take_idle(&mut self, rank: u32) -> Option<ClientId> {
        self.idle[rank as usize].pop()
    }

    /// Begins a call on a connection that [`take_idle`](Self::take_idle) has returned.
    pub(crate) fn begin(
        &mut self,
        id: ClientId,
        asked: Asked,
        call: Call,
        now: Duration,
    ) -> Vec<client::Output> {
        let Some(link) = self.link(id) else { return Vec::new() };
        link.asked = Some(asked);
        link.calls += 1;
        link.client.step(client::Input::Call(call), now)
    }

    /// Records that a piece arrives while the rank is stopped. The rank cannot read it, so it remains in the link's
    /// `down`. Returns true if this is the first such piece since the rank last read from this connection. The caller
    /// then schedules one read, which gets all these pieces.
    pub(crate) fn hold(&mut self, id: ClientId) -> bool {
        self.link(id).is_some_and(|link| {
            link.held += 1;
            link.held == 1
        })
    }

    /// Passes pieces from the store to the client: all those that [`hold`](Self::hold) has counted, or the next piece
    /// if it has counted none.
    pub(crate) fn receive(&mut self, id: ClientId, now: Duration) -> Vec<client::Output> {
        let Some(link) = self.link(id) else { return Vec::new() };
        let count = mem::take(&mut link.held).max(1).min(link.down.len());
        let mut bytes = link.down.pop_front().unwrap_or_default();
        link.down.drain(..count.saturating_sub(1)).for_each(|piece| bytes.extend(piece));
        link.client.step(client::Input::Received(&bytes), now)
    }

    /// Tells the client that the deadline of call number `call` has passed. Does nothing if this call has ended.
    pub(crate) fn tick(&mut self, id: ClientId, call: u64, now: Duration) -> Vec<client::Output> {
        let link = self.link(id).filter(|link| link.calls == call && link.asked.is_some());
        link.map_or_else(Vec::new, |link| link.client.step(client::Input::Tick, now))
    }

    /// Ends the call or the greeting of a connection with this outcome. The connection becomes idle, unless the outcome
    /// is a failure other than a timeout. Returns the request that used the connection, with the outcome. Returns
    /// `None` if no request used the connection, or if the connection has ended.
    pub(crate) fn finish(
        &mut self,
        id: ClientId,
        outcome: Result<Option<Reply>, client::Failure>,
    ) -> Option<Finished> {
        let link = self.link(id)?;
        let (rank, asked) = (link.rank, link.asked.take()?);
        if matches!(outcome, Ok(_) | Err(client::Failure::TimedOut { .. })) {
            self.idle[rank as usize].push(id);
        }
        let link = self.link(id)?;
        let was_greeted = mem::replace(&mut link.is_greeted, true);
        let outcome = (was_greeted || outcome.is_err()).then_some(outcome);
        Some(Finished { asked, outcome })
    }

    /// Appends a piece to those that travel to the store (`up`) or to the rank.
    pub(crate) fn push(&mut self, id: ClientId, up: bool, piece: Vec<u8>) {
        if let Some(link) = self.link(id) {
            if up { &mut link.up } else { &mut link.down }.push_back(piece);
        }
    }

    /// Passes the next piece of a connection to the server. Returns the bytes that the server sends.
    pub(crate) fn serve(&mut self, id: ClientId, now: Duration) -> Result<Vec<Sent>, Violation> {
        let piece = self.link(id).and_then(|link| link.up.pop_front());
        piece.map_or_else(|| Ok(Vec::new()), |piece| self.step(server::Input::Received(id, &piece), now))
    }

    /// Passes an input to the server, and then ticks (inputs that only tell the time) until it has nothing more to do
    /// at this time. Returns the bytes that the server sends.
    fn step(&mut self, input: server::Input<'_>, now: Duration) -> Result<Vec<Sent>, Violation> {
        let mut sent = Vec::new();
        let mut outputs = self.server.step(input, now);
        loop {
            for output in outputs {
                match output {
                    server::Output::Send(id) => {
                        let bytes = self.server.unsent(id).to_vec();
                        self.server.step(server::Input::Sent(id, bytes.len()), now);
                        sent.push((id, bytes));
                    }
                    // `serve` passes each piece to the server when it arrives, so there is nothing to read here.
                    server::Output::Read(_) => {}
                    server::Output::Close(id, why) => {
                        bail!("the store closes connection {id}: {why}");
                    }
                }
            }
            if self.server.wake_at() != Some(Duration::ZERO) {
                return Ok(sent);
            }
            outputs = self.server.step(server::Input::Tick, now);
        }
    }

    /// Ends a connection. If `delivers` is true, the pieces that travel to the store still arrive. Returns two values:
    /// the request that was using the connection, if any (it gets no answer), and the bytes that the server then sends
    /// on other connections.
    pub(crate) fn close(
        &mut self,
        id: ClientId,
        delivers: bool,
        now: Duration,
    ) -> Result<(Option<Asked>, Vec<Sent>), Violation> {
        let mut sent = Vec::new();
        let Some(link) = self.links.get_mut(id as usize).and_then(Option::take) else {
            return Ok((None, sent));
        };
        self.idle[link.rank as usize].retain(|idle| *idle != id);
        for piece in link.up.iter().filter(|_| delivers) {
            sent.extend(self.step(server::Input::Received(id, piece), now)?);
        }
        sent.extend(self.step(server::Input::Gone(id), now)?);
        sent.retain(|(to, _)| *to != id);
        Ok((link.asked, sent))
    }

    /// Returns a store for the simulation itself. Calls to this store take no simulated time. The simulation uses it
    /// for its checks, and for some work that in production the ranks do, such as the removal of keys. A call fails if
    /// it would end the wait of a rank: the server would then send bytes to that rank, and this store cannot deliver
    /// them with a delay.
    pub(crate) fn at_once(&mut self) -> AtOnce<'_> {
        AtOnce(Mutex::new(self))
    }

    /// Exchanges bytes between the client of the connection [`OBSERVER`] and the server until the client's greeting or
    /// call ends. `outputs` are the outputs with which the greeting or call has begun.
    fn observe(&mut self, mut outputs: Vec<client::Output>) -> Result<Option<Reply>, StoreError> {
        loop {
            let mut received = Vec::new();
            for output in outputs {
                match output {
                    client::Output::Send(bytes) => {
                        let sent = self.step(server::Input::Received(OBSERVER, &bytes), Duration::ZERO);
                        for (to, bytes) in sent.map_err(|Violation(what)| StoreError::Argument(what))? {
                            if to != OBSERVER {
                                let what =
                                    format!("a request that takes no time ends a wait on connection {to}");
                                return Err(StoreError::Argument(what));
                            }
                            received.extend(bytes);
                        }
                    }
                    client::Output::Done(outcome) => {
                        return outcome.map_err(|failure| StoreError::Argument(format!("{failure:?}")));
                    }
                }
            }
            if received.is_empty() {
                return Err(StoreError::Argument("the store does not answer".into()));
            }
            outputs = self.observer.step(client::Input::Received(&received), Duration::ZERO);
        }
    }
}

/// See [`Network::at_once`].
pub(crate) struct AtOnce<'a>(Mutex<&'a mut Network>);

impl Store for AtOnce<'_> {
    fn call(&self, request: Request) -> Result<Option<Reply>, StoreError> {
        let mut network = lock(&self.0);
        let removed = match &request {
            Request::Delete { key } => Some(String::from_utf8_lossy(key).into_owned()),
            _ => None,
        };
        let outputs = network.observer.step(client::Input::Call(Call::Now(request)), Duration::ZERO);
        let reply = network.observe(outputs)?;
        if reply == Some(Reply::Integer(1)) {
            network.keys.removed.extend(removed);
        }
        Ok(reply)
    }

    fn call_when_there(
        &self,
        _: Vec<Vec<u8>>,
        _: Option<Request>,
        _: Deadline,
    ) -> Result<Option<Reply>, StoreError> {
        Err(StoreError::Argument("a request that takes no time cannot wait".into()))
    }
}
