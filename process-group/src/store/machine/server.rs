//! The serving end of the protocol: bytes of many clients in, bytes and closed connections out.
//!
//! A connection that breaks the protocol is closed and touches no other; one that does not know the secret, where there is
//! one, is not served; one that speaks another protocol is
//! closed at its first wrong byte, and one that says nothing when its time for the greeting is over. All memory is
//! counted: the table, what has been received of requests, what waits, replies that are not sent. A client that does
//! not take its replies is not served any further. Where a request needs more than there is, the connections that hold
//! most are closed, its own if it is one of them.

use std::{collections::VecDeque, time::Duration};

use super::{
    clients::Clients,
    memory::{CLIENT, PART, is_sparse},
    request::{Limits, Refusal, Reply},
    secret::{self, Block, Secret},
    table::{ClientId, Table},
    wire::{Buffer, MAGIC, Malformed, RequestDecoder, kind},
};

/// What a [`Server`] allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServerLimits {
    /// Sizes of keys, values and requests, and the memory of the table, which is half of `memory` at most.
    pub sizes: Limits,
    /// Bytes of memory for everything: the table, requests that have arrived in part, waiting clients, replies that are
    /// not sent, and 4 KiB for every connection; each with what keeping it costs.
    pub memory: usize,
    /// Connections at a time.
    pub clients: usize,
    /// Time from the connection to the end of the greeting.
    pub greeting: Duration,
}

impl Default for ServerLimits {
    /// The default sizes, 2 GiB of memory, 65,536 connections, 10 s for the greeting.
    fn default() -> Self {
        Self {
            sizes: Limits::default(),
            memory: 2 << 30,
            clients: 1 << 16,
            greeting: Duration::from_secs(10),
        }
    }
}

/// What happens to a [`Server`].
#[derive(Debug, Clone, Copy)]
pub enum Input<'a> {
    /// A client has connected, under a number that was not used before.
    Accepted(ClientId),
    /// Bytes of a client have arrived, in any fragmentation.
    Received(ClientId, &'a [u8]),
    /// So many of the bytes that are [unsent](Server::unsent) to a client were sent.
    Sent(ClientId, usize),
    /// A client's connection has ended.
    Gone(ClientId),
    /// Time has passed.
    Tick,
}

/// What a [`Server`] wants done, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Send a client what is [unsent](Server::unsent).
    Send(ClientId),
    /// Close a client's connection; nothing of it may be handed in any more.
    Close(ClientId, Rejection),
}

/// Why a server closes a connection.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Rejection {
    /// The first bytes are not a store client's.
    #[error("foreign traffic: the first bytes are {first:02x?}")]
    Foreign {
        /// The bytes, at most five.
        first: Vec<u8>,
    },
    /// The greeting did not come in time.
    #[error("no greeting within {waited:?}")]
    Silent {
        /// How long was waited.
        waited: Duration,
    },
    /// As many clients are connected as are allowed.
    #[error(
        "{limit} clients are connected, and no more are allowed by the store's limit, or by the descriptors that its \
         process may have (`ulimit -n`)"
    )]
    Full {
        /// How many are allowed.
        limit: usize,
    },
    /// The process has no descriptor left for the connection.
    #[error(
        "with {clients} clients connected, the store's process has no descriptor left for another (`ulimit -n`)"
    )]
    Descriptors {
        /// How many clients are connected.
        clients: usize,
    },
    /// There is not enough memory, and no connection holds more of it.
    #[error(
        "the store's {limit} bytes of memory are used up, and none holds or needs more of them than this connection: \
         {held} bytes"
    )]
    Memory {
        /// Bytes that it holds or needs: of requests that have arrived in part, its wait, and replies.
        held: usize,
        /// Bytes that the server may use.
        limit: usize,
    },
    /// The client greeted as who has no secret does, PyTorch's among them, and the server has one.
    #[error("a greeting without the secret that this store wants; PyTorch's clients cannot give one")]
    NoSecret,
    /// The client has a secret and the server has none.
    #[error("a greeting with a secret, and this store has none")]
    NotKept,
    /// The client does not know the secret.
    #[error("a wrong secret")]
    WrongSecret,
    /// A type byte that is no request, or a second greeting.
    #[error("type byte {0} is no request")]
    UnknownRequest(u8),
    /// The request cannot be served.
    #[error(transparent)]
    Refused(#[from] Refusal),
}

impl Rejection {
    /// What the client is to be sent before its connection is closed: a client of ours then knows why.
    pub fn last_words(&self) -> &'static [u8] {
        const WANTED: [u8; 4] = secret::MAGIC.to_le_bytes();
        match self {
            Self::NoSecret => &WANTED,
            Self::NotKept | Self::WrongSecret => &[0],
            _ => &[],
        }
    }
}

impl From<Malformed> for Rejection {
    fn from(malformed: Malformed) -> Self {
        match malformed {
            Malformed::Unknown(kind) => Self::UnknownRequest(kind),
            Malformed::Refused(refusal) => Self::Refused(refusal),
        }
    }
}

/// A store's server.
#[derive(Debug, Default)]
pub struct Server {
    limits: ServerLimits,
    /// The secret, and what the server's part of greetings is made of.
    secret: Option<(Secret, Block)>,
    table: Table,
    clients: Clients<Client>,
    /// Clients in the order in which their greeting is due; those that have sent it are passed over.
    greetings: VecDeque<(Duration, ClientId)>,
    /// What all clients hold, in bytes of memory.
    held: usize,
    most: usize,
}

#[derive(Debug, Default)]
struct Client {
    greeting: Greeting,
    decoder: RequestDecoder,
    unsent: Buffer,
    /// As it was counted last, in bytes.
    memory: usize,
}

/// How far the greeting is.
#[derive(Debug, Default, PartialEq, Eq)]
enum Greeting {
    /// Its beginning has not come whole.
    #[default]
    Due,
    /// A proof must come, for what the client has chosen.
    Proof(Block),
    Done,
}

/// Bytes that are enough for any reply without strings.
const SMALL: usize = 16;

impl Client {
    fn is_greeted(&self) -> bool {
        self.greeting == Greeting::Done
    }

    /// Whether it has to take replies before more of its requests are served.
    fn is_behind(&self) -> bool {
        self.unsent.as_slice().len() > Server::BACKLOG
    }
}

impl Server {
    /// Unsent bytes of a client above which it is not served.
    const BACKLOG: usize = 1 << 20;

    /// A server with an empty table.
    pub fn new(limits: ServerLimits) -> Self {
        let store_bytes = limits.sizes.store_bytes.min(limits.memory / 2);
        let table = Table::new(Limits { store_bytes, ..limits.sizes });
        Self { limits, table, ..Self::default() }
    }

    /// The same, for clients that know the secret. `seed` is 32 random bytes that nobody else knows.
    pub fn with_secret(limits: ServerLimits, secret: Secret, seed: [u8; 32]) -> Self {
        Self { secret: Some((secret, seed)), ..Self::new(limits) }
    }

    /// How many clients are connected.
    pub fn clients(&self) -> usize {
        self.clients.len()
    }

    /// The memory that is used, in bytes; never more than [`ServerLimits::memory`].
    pub fn memory(&self) -> usize {
        self.table.memory() + self.held
    }

    /// The most memory that was ever used, in bytes.
    pub fn most_memory(&self) -> usize {
        self.most
    }

    /// Bytes for a client. They stay until [`Input::Sent`] says that they were sent.
    pub fn unsent(&self, client: ClientId) -> &[u8] {
        self.clients.get(&client).map_or(&[], |client| client.unsent.as_slice())
    }

    /// Whether more bytes of a client are wanted: not while it does not take its replies.
    pub fn wants(&self, client: ClientId) -> bool {
        self.clients.get(&client).is_some_and(|client| !client.is_behind())
    }

    /// When [`Input::Tick`] is due, if nothing else happens before.
    pub fn wake_at(&self) -> Option<Duration> {
        self.greetings.front().map(|(due, _)| *due)
    }

    /// Takes one input. `now` never goes backwards.
    pub fn step(&mut self, input: Input<'_>, now: Duration) -> Vec<Output> {
        let mut outputs = Vec::new();
        match input {
            Input::Accepted(client) => self.accept(client, now, &mut outputs),
            Input::Received(id, bytes) => {
                if let Some(client) = self.clients.get_mut(&id) {
                    client.decoder.buffer.extend(bytes);
                    self.count(id);
                    self.go_on(id, &mut outputs);
                }
            }
            Input::Sent(id, count) => {
                if let Some(client) = self.clients.get_mut(&id) {
                    let was_behind = client.is_behind();
                    client.unsent.skip(count);
                    if was_behind {
                        self.go_on(id, &mut outputs);
                    } else {
                        self.count(id);
                    }
                }
            }
            Input::Gone(client) => self.forget(client, &mut outputs),
            Input::Tick => {}
        }
        self.close_silent(now, &mut outputs);
        outputs
    }

    fn accept(&mut self, client: ClientId, now: Duration, outputs: &mut Vec<Output>) {
        if self.clients.len() >= self.limits.clients {
            outputs.push(Output::Close(client, Rejection::Full { limit: self.limits.clients }));
            return;
        }
        self.clients.insert(client, Client::default());
        if self.greetings.len() > 2 * self.clients.len() + 64 {
            let clients = &self.clients;
            self.greetings.retain(|(_, id)| clients.get(id).is_some_and(|client| !client.is_greeted()));
        }
        self.greetings.push_back((now.saturating_add(self.limits.greeting), client));
        if let Err(rejection) = self.make_room(client, CLIENT, outputs) {
            self.close(client, rejection, outputs);
        }
        self.count(client);
    }

    /// Serves what has arrived of a client.
    fn go_on(&mut self, id: ClientId, outputs: &mut Vec<Output>) {
        let outcome = self.serve(id, outputs);
        self.count(id);
        if let Err(rejection) = outcome.and_then(|()| self.make_room(id, 0, outputs)) {
            self.close(id, rejection, outputs);
        }
    }

    fn serve(&mut self, id: ClientId, outputs: &mut Vec<Output>) -> Result<(), Rejection> {
        let mut replies = Vec::new();
        while let Some(client) = self.clients.get_mut(&id)
            && !client.is_behind()
        {
            if !client.is_greeted() {
                match client.greet(id, self.secret.as_ref())? {
                    Greeted::Not => break,
                    Greeted::Answered => outputs.push(Output::Send(id)),
                    Greeted::Silently => {}
                }
                continue;
            }
            let Some(request) = client.decoder.next(&self.limits.sizes)? else { break };
            // What a reply has in all places: its strings, and its bytes in a buffer that may have to grow.
            let (strings, bytes) = self.table.reply_size(&request);
            let reply = strings * PART + bytes + client.unsent.growth(bytes.max(SMALL));
            self.make_room(id, self.table.growth(&request) + reply, outputs)?;
            let served = self.table.apply(id, request, &mut replies);
            self.send(&mut replies, outputs);
            served?;
        }
        Ok(())
    }

    /// Makes room for `more` bytes of a client by closing the connections that hold most.
    ///
    /// # Errors
    /// No other holds more than this one.
    fn make_room(&mut self, id: ClientId, more: usize, outputs: &mut Vec<Output>) -> Result<(), Rejection> {
        while self.memory().saturating_add(more) > self.limits.memory {
            let limit = self.limits.memory;
            let held = self.clients.get(&id).map_or(0, |client| client.memory).saturating_add(more);
            let others = self.clients.iter().filter(|(other, _)| **other != id);
            match others.map(|(other, client)| (client.memory, *other)).max() {
                Some((most, other)) if most > held => {
                    self.close(other, Rejection::Memory { held: most, limit }, outputs);
                }
                _ => return Err(Rejection::Memory { held, limit }),
            }
        }
        self.most = self.most.max(self.memory() + more);
        Ok(())
    }

    /// Counts what a client holds.
    fn count(&mut self, id: ClientId) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        let buffers = client.decoder.memory() + client.unsent.memory();
        let memory = CLIENT + buffers + self.table.wait_memory(id);
        self.held = self.held - client.memory + memory;
        client.memory = memory;
    }

    fn close(&mut self, client: ClientId, rejection: Rejection, outputs: &mut Vec<Output>) {
        outputs.push(Output::Close(client, rejection));
        self.forget(client, outputs);
    }

    fn forget(&mut self, id: ClientId, outputs: &mut Vec<Output>) {
        let Some(client) = self.clients.remove(&id) else { return };
        self.held -= client.memory;
        if is_sparse(self.clients.capacity(), self.clients.len()) {
            self.clients.shrink_to(self.clients.len() * 2);
        }
        let mut replies = Vec::new();
        self.table.leave(id, &mut replies);
        self.send(&mut replies, outputs);
    }

    fn close_silent(&mut self, now: Duration, outputs: &mut Vec<Output>) {
        while let Some(&(due, id)) = self.greetings.front() {
            let silent = self.clients.get(&id).is_some_and(|client| !client.is_greeted());
            if silent && due > now {
                break;
            }
            self.greetings.pop_front();
            if silent {
                self.close(id, Rejection::Silent { waited: self.limits.greeting }, outputs);
            }
        }
    }

    /// Turns replies into bytes, and asks once for each client in a row that they be sent.
    fn send(&mut self, replies: &mut Vec<(ClientId, Reply)>, outputs: &mut Vec<Output>) {
        for (to, reply) in replies.drain(..) {
            let Some(client) = self.clients.get_mut(&to) else { continue };
            reply.encode(client.unsent.end());
            self.count(to);
            if outputs.last() != Some(&Output::Send(to)) {
                outputs.push(Output::Send(to));
            }
        }
    }
}

/// What has come of a part of the greeting.
enum Greeted {
    /// It is not whole.
    Not,
    /// There is an answer to send.
    Answered,
    Silently,
}

impl Client {
    /// Takes the next part of the greeting, once it is whole; a wrong byte is seen when it comes.
    fn greet(&mut self, id: ClientId, secret: Option<&(Secret, Block)>) -> Result<Greeted, Rejection> {
        let buffer = &mut self.decoder.buffer;
        if let (Greeting::Proof(client), Some((secret, seed))) = (&self.greeting, secret) {
            let Some(proof) = buffer.array::<32>() else { return Ok(Greeted::Not) };
            let own = secret::block(seed, id);
            if !secret.is_client_proof(&proof, client, &own) {
                return Err(Rejection::WrongSecret);
            }
            self.unsent.extend(&[1]);
            self.unsent.extend(&secret.server_proof(client, &own));
            self.greeting = Greeting::Done;
            return Ok(Greeted::Answered);
        }
        let first = buffer.as_slice();
        let is = |magic: u32| {
            let [a, b, c, d] = magic.to_le_bytes();
            first.iter().zip([kind::VALIDATE, a, b, c, d]).all(|(byte, expected)| *byte == expected)
        };
        let whole = first.len() >= 5;
        match (secret, is(MAGIC), is(secret::MAGIC)) {
            (_, false, false) => Err(Rejection::Foreign { first: first[..first.len().min(5)].to_vec() }),
            _ if !whole => Ok(Greeted::Not),
            (Some(_), true, _) => Err(Rejection::NoSecret),
            (None, _, true) => Err(Rejection::NotKept),
            (None, true, _) => {
                buffer.skip(5);
                self.greeting = Greeting::Done;
                Ok(Greeted::Silently)
            }
            (Some((_, seed)), ..) => {
                let Some(client) = first[5..].first_chunk().copied() else { return Ok(Greeted::Not) };
                buffer.skip(5 + client.len());
                self.unsent.extend(&[1]);
                self.unsent.extend(&secret::block(seed, id));
                self.greeting = Greeting::Proof(client);
                Ok(Greeted::Answered)
            }
        }
    }
}
