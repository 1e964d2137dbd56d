//! The serving end of the protocol: bytes of many clients in, bytes and closed connections out.
//!
//! A connection that breaks the protocol is closed and touches no other; one that speaks another protocol is
//! closed at its first wrong byte, and one that says nothing when its time for the greeting is over.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use super::{
    request::{Limits, Refusal, Reply},
    table::{ClientId, Table},
    wire::{MAGIC, Malformed, RequestDecoder, kind},
};

/// What a [`Server`] allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServerLimits {
    /// Sizes of keys, values and requests.
    pub sizes: Limits,
    /// Connections at a time.
    pub clients: usize,
    /// Time from the connection to the end of the greeting.
    pub greeting: Duration,
}

impl Default for ServerLimits {
    /// The default sizes, 65,536 connections, 10 s for the greeting.
    fn default() -> Self {
        Self { sizes: Limits::default(), clients: 1 << 16, greeting: Duration::from_secs(10) }
    }
}

/// What happens to a [`Server`].
#[derive(Debug, Clone, Copy)]
pub enum Input<'a> {
    /// A client has connected, under a number that was not used before.
    Accepted(ClientId),
    /// Bytes of a client have arrived, in any fragmentation.
    Received(ClientId, &'a [u8]),
    /// A client's connection has ended.
    Gone(ClientId),
    /// Time has passed.
    Tick,
}

/// What a [`Server`] wants done, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Send bytes to a client.
    Send(ClientId, Vec<u8>),
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
    #[error("{limit} clients are connected, and no more are allowed")]
    Full {
        /// How many are allowed.
        limit: usize,
    },
    /// A type byte that is no request, or a second greeting.
    #[error("type byte {0} is no request")]
    UnknownRequest(u8),
    /// The request cannot be served.
    #[error(transparent)]
    Refused(#[from] Refusal),
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
    table: Table,
    clients: HashMap<ClientId, Client>,
    /// Clients in the order in which their greeting is due; those that have sent it are passed over.
    greetings: VecDeque<(Duration, ClientId)>,
}

#[derive(Debug, Default)]
struct Client {
    greeted: bool,
    decoder: RequestDecoder,
}

impl Server {
    /// A server with an empty table.
    pub fn new(limits: ServerLimits) -> Self {
        Self { limits, table: Table::new(limits.sizes), ..Self::default() }
    }

    /// How many clients are connected.
    pub fn clients(&self) -> usize {
        self.clients.len()
    }

    /// When [`Input::Tick`] is due, if nothing else happens before.
    pub fn wake_at(&self) -> Option<Duration> {
        self.greetings.front().map(|(due, _)| *due)
    }

    /// Takes one input. `now` never goes backwards.
    pub fn step(&mut self, input: Input<'_>, now: Duration) -> Vec<Output> {
        let mut outputs = Vec::new();
        match input {
            Input::Accepted(client) if self.clients.len() >= self.limits.clients => {
                outputs.push(Output::Close(client, Rejection::Full { limit: self.limits.clients }));
            }
            Input::Accepted(client) => {
                self.clients.insert(client, Client::default());
                self.greetings.push_back((now.saturating_add(self.limits.greeting), client));
            }
            Input::Received(client, bytes) => {
                if let Err(rejection) = self.receive(client, bytes, &mut outputs) {
                    self.close(client, rejection, &mut outputs);
                }
            }
            Input::Gone(client) => self.forget(client, &mut outputs),
            Input::Tick => {}
        }
        self.close_silent(now, &mut outputs);
        outputs
    }

    fn receive(&mut self, id: ClientId, bytes: &[u8], outputs: &mut Vec<Output>) -> Result<(), Rejection> {
        let Some(client) = self.clients.get_mut(&id) else { return Ok(()) };
        client.decoder.buffer.extend(bytes);
        if !client.greeted {
            client.greeted = take_greeting(&mut client.decoder)?;
            if !client.greeted {
                return Ok(());
            }
        }
        let mut replies = Vec::new();
        while let Some(request) = client.decoder.next(&self.limits.sizes)? {
            let served = self.table.apply(id, request, &mut replies);
            send(&mut replies, outputs);
            served?;
        }
        Ok(())
    }

    fn close(&mut self, client: ClientId, rejection: Rejection, outputs: &mut Vec<Output>) {
        outputs.push(Output::Close(client, rejection));
        self.forget(client, outputs);
    }

    fn forget(&mut self, client: ClientId, outputs: &mut Vec<Output>) {
        if self.clients.remove(&client).is_some() {
            let mut replies = Vec::new();
            self.table.leave(client, &mut replies);
            send(&mut replies, outputs);
        }
    }

    fn close_silent(&mut self, now: Duration, outputs: &mut Vec<Output>) {
        while let Some(&(due, id)) = self.greetings.front() {
            let silent = self.clients.get(&id).is_some_and(|client| !client.greeted);
            if silent && due > now {
                break;
            }
            self.greetings.pop_front();
            if silent {
                self.close(id, Rejection::Silent { waited: self.limits.greeting }, outputs);
            }
        }
    }
}

/// Takes the greeting, once it is whole; a wrong byte is seen when it comes.
fn take_greeting(decoder: &mut RequestDecoder) -> Result<bool, Rejection> {
    let [a, b, c, d] = MAGIC.to_le_bytes();
    let greeting = [kind::VALIDATE, a, b, c, d];
    let first = decoder.buffer.as_slice();
    let first = &first[..first.len().min(greeting.len())];
    if *first != greeting[..first.len()] {
        return Err(Rejection::Foreign { first: first.to_vec() });
    }
    Ok(decoder.buffer.array::<5>().is_some())
}

/// Turns replies into bytes, one [`Output::Send`] for what goes to one client in a row.
fn send(replies: &mut Vec<(ClientId, Reply)>, outputs: &mut Vec<Output>) {
    for (to, reply) in replies.drain(..) {
        match outputs.last_mut() {
            Some(Output::Send(client, bytes)) if *client == to => reply.encode(bytes),
            _ => {
                let mut bytes = Vec::new();
                reply.encode(&mut bytes);
                outputs.push(Output::Send(to, bytes));
            }
        }
    }
}
