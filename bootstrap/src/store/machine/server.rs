//! The server side of the protocol. Takes the bytes of many clients, and returns the bytes to send and the connections
//! to close.
//!
//! A client first sends its *greeting*: a fixed number and, if there is a secret, a proof that it knows the secret.
//! Its requests follow. A connection is closed if its greeting is wrong or not complete in time, if it breaks the
//! protocol, or if it exceeds a limit. [`Rejection`] lists all reasons.
//!
//! All memory is counted: the table, requests that are incomplete or being served, waits, unsent replies, and an
//! overhead for each connection. A client with more than 1 MiB of unsent replies (`Client::BACKLOG`) is not served
//! until at most 1 MiB is unsent. If a client needs more memory than is left, the server closes the connections that
//! hold the most. One of them may be the connection of that client.
//!
//! The work of one [`Input::Received`] or [`Input::Tick`] is limited too. A small request is usually served as soon as
//! it arrives. If a request needs more work, its client joins a queue. In each tick, the first clients of the queue
//! have a *turn*, in which they are served. A request for many keys is served in pieces, in several turns. Between two
//! ticks, the small requests of clients that are not in the queue are served.
//!
//! - `client`: one connection and its greeting
//! - `task`: a request that is being served
//! - `pieces`: the work on a request
//! - `turns`: the order of turns

mod client;
mod limits;
mod pieces;
mod task;
mod turns;

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    time::Duration,
};

pub use self::limits::ServerLimits;
use self::{
    client::{Client, Greeted},
    pieces::{Progress, send},
    task::Task,
    turns::Turns,
};
use super::{
    budget::{Budget, WAKE, dropping},
    buffer::Buffer,
    memory::CLIENT,
    rejection::Rejection,
    request::ClientId,
    request::{Limits, Reply},
    secret::{Block, Secret},
    table::Table,
    waits::Resumed,
    wire::Decoded,
};

/// An event for a [`Server`].
#[derive(Debug, Clone, Copy)]
pub enum Input<'a> {
    /// A client has connected. Its id must not have been used before.
    Accepted(ClientId),
    /// Bytes of a client have arrived, in any fragmentation.
    Received(ClientId, &'a [u8]),
    /// This many of a client's [unsent](Server::unsent) bytes were sent, from the first on.
    Sent(ClientId, usize),
    /// A client has disconnected, or its connection has failed.
    Gone(ClientId),
    /// Time has passed, or work is left. The server gives turns to clients with work left. See [`Server::wake_at`].
    Tick,
}

/// An action that a [`Server`] requests. The caller executes the actions of a step in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Send a client its [unsent](Server::unsent) bytes, and report how many were sent with [`Input::Sent`].
    Send(ClientId),
    /// Read from a client again: the server did not want its bytes, and now [wants](Server::wants) them.
    Read(ClientId),
    /// Close a client's connection. No further input of this client may follow.
    Close(ClientId, Rejection),
}

/// The most keys and values (of a connection's requests and its wait) that are freed at once when the connection is
/// closed. If there are more, the next turn of its client frees all of them, and that work counts towards the budget of
/// that step. Exception: a connection that is closed to free memory for another one is always freed at once.
const MANY: usize = 4 << 10;

/// The server of a store.
pub struct Server {
    limits: ServerLimits,
    /// The secret that clients must prove to know, and the seed of the server's challenges. `None` if there is no
    /// secret.
    secret: Option<(Secret, Block)>,
    table: Table,
    clients: BTreeMap<ClientId, Client>,
    /// Clients with the times at which their greetings are due, in the order of these times. The entries of clients
    /// that have greeted or disconnected are ignored.
    greetings: VecDeque<(Duration, ClientId)>,
    /// The number of clients without a complete greeting.
    ungreeted: usize,
    /// The queue of clients with work left.
    turns: Turns,
    /// The clients that were woken since the list was last cleared. `receive` and `tick` clear it before they serve
    /// clients. `receive` then serves the clients in the list in the same step, without waiting for the next tick.
    woken: Vec<ClientId>,
    /// The number of steps so far. Each input is one step.
    step: u64,
    /// The work done, in units of a [`Budget`].
    work: u64,
    /// The sum of [`Client::memory`] over all clients, in bytes.
    held: usize,
    /// See [`most_memory`](Server::most_memory).
    most: usize,
}

impl Default for Server {
    fn default() -> Self {
        Self::new(ServerLimits::default())
    }
}

/// Omits keys, values, the secret, and the seed of the challenges.
impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("limits", &self.limits)
            .field("has_secret", &self.secret.is_some())
            .field("table", &self.table)
            .field("clients", &self.clients.len())
            .field("memory", &self.memory())
            .finish_non_exhaustive()
    }
}

impl Server {
    /// Makes a server with an empty table.
    pub fn new(limits: ServerLimits) -> Self {
        let store_bytes = limits.sizes.store_bytes.min(limits.memory / 2);
        let table = Table::new(Limits { store_bytes, ..limits.sizes });
        Self {
            limits,
            secret: None,
            table,
            clients: BTreeMap::new(),
            greetings: VecDeque::new(),
            ungreeted: 0,
            turns: Turns::default(),
            woken: Vec::new(),
            step: 0,
            work: 0,
            held: 0,
            most: 0,
        }
    }

    /// Like [`new`](Self::new), but serves only clients that know the secret. `seed` is 32 random bytes that no other
    /// process knows. The server derives its challenges from it.
    pub fn with_secret(limits: ServerLimits, secret: Secret, seed: [u8; 32]) -> Self {
        Self { secret: Some((secret, seed)), ..Self::new(limits) }
    }

    /// Returns the number of connected clients, plus the number of disconnected clients whose memory is not freed yet.
    pub fn clients(&self) -> usize {
        self.clients.len()
    }

    /// Returns the memory in use, in bytes. It may exceed [`ServerLimits::memory`] for a short time, if bytes arrive
    /// while their client is in the queue of turns, or if the memory of a closed connection is not freed yet.
    pub fn memory(&self) -> usize {
        self.table.memory() + self.held
    }

    /// Returns the peak of the memory in use, in bytes. The peak includes memory that a request or a new connection was
    /// about to take. It is updated only when the server has checked that the memory is within
    /// [`ServerLimits::memory`], so it never exceeds that limit.
    pub fn most_memory(&self) -> usize {
        self.most
    }

    /// Returns the work done so far, in the units of [`ServerLimits::tick`].
    pub fn work(&self) -> u64 {
        self.work
    }

    /// Returns the store's contents.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// Returns the bytes to send to a client, which stay until [`Input::Sent`] confirms them. Empty for an unknown
    /// client.
    pub fn unsent(&self, client: ClientId) -> &[u8] {
        self.clients.get(&client).map_or(&[], |client| client.unsent.as_slice())
    }

    /// Returns true if the caller should read from a client. Returns false while more than 1 MiB of the client's
    /// replies is unsent, while work on the client's earlier requests is left, and for an unknown client.
    pub fn wants(&self, client: ClientId) -> bool {
        self.clients.get(&client).is_some_and(Client::is_wanted)
    }

    /// Returns true if the client waits for keys, a queue or a barrier. While it waits, a client normally sends only
    /// [`CancelWait`](super::Request::CancelWait) or [`Ping`](super::Request::Ping).
    pub fn is_waiting(&self, client: ClientId) -> bool {
        self.table.is_waiting(client)
    }

    /// Returns the time at which the caller must pass [`Input::Tick`]: zero (at once) while work is left, otherwise the
    /// time at which the next greeting is due. `None` if no work is left and all clients have greeted. Every
    /// step may change it.
    pub fn wake_at(&self) -> Option<Duration> {
        match self.turns.is_empty() {
            true => self.greetings.front().map(|(due, _)| *due),
            false => Some(Duration::ZERO),
        }
    }

    /// Handles one input at the time `now`, and returns the actions for the caller.
    pub fn step(&mut self, input: Input<'_>, now: Duration) -> Vec<Output> {
        let mut outputs = Vec::new();
        self.step += 1;
        match input {
            Input::Accepted(client) => self.accept(client, now, &mut outputs),
            Input::Received(id, bytes) => self.receive(id, bytes, &mut outputs),
            Input::Sent(id, count) => self.sent(id, count),
            Input::Gone(client) => self.part_with(client),
            Input::Tick => self.tick(&mut outputs),
        }
        self.close_silent(now, &mut outputs);
        outputs
    }

    /// Adds a new client, or rejects it if the limits do not allow one more. May close other connections to make room.
    fn accept(&mut self, client: ClientId, now: Duration, outputs: &mut Vec<Output>) {
        if self.ungreeted >= self.limits.ungreeted() || self.clients.len() >= self.limits.clients {
            self.close_oldest_ungreeted(outputs);
        }
        if self.clients.len() >= self.limits.clients {
            outputs.push(Output::Close(client, Rejection::Full { limit: self.limits.clients }));
            return;
        }
        self.clients.insert(client, Client::default());
        self.ungreeted += 1;
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

    /// Closes the connection that has been without a complete greeting for longest, if there is one.
    fn close_oldest_ungreeted(&mut self, outputs: &mut Vec<Output>) {
        while let Some((_, id)) = self.greetings.pop_front() {
            if self.clients.get(&id).is_some_and(|client| !client.is_greeted()) {
                return self.close(id, Rejection::Crowded { limit: self.limits.ungreeted() }, outputs);
            }
        }
    }

    /// Stores received bytes. Unless the client is in the queue of turns, serves it, and then the clients that this has
    /// woken, within the budget of [`ServerLimits::at_once`].
    fn receive(&mut self, id: ClientId, bytes: &[u8], outputs: &mut Vec<Output>) {
        let Some(client) = self.clients.get_mut(&id).filter(|client| !client.is_gone) else { return };
        client.decoder.buffer.extend(bytes);
        let waits_for_its_turn = client.place.is_queued();
        self.count(id);
        if waits_for_its_turn {
            return;
        }
        let mut budget = Budget::at_once(self.limits.at_once);
        self.woken.clear();
        if self.turn_of(id, &mut budget, outputs) {
            self.add_turn(id);
        }
        let mut next = 0;
        while !budget.is_spent()
            && let Some(woken) = self.woken.get(next).copied()
        {
            next += 1;
            self.take_turn(woken, &mut budget, outputs);
        }
        self.work += budget.spent() as u64;
    }

    /// Gives turns to clients with work left, until no work is left, or the budget of one tick is spent or too small
    /// for the next piece of work.
    fn tick(&mut self, outputs: &mut Vec<Output>) {
        let mut budget = Budget::tick(self.limits.tick.max(1));
        self.woken.clear();
        while !budget.is_spent()
            && let Some(id) = self.turns.first()
            && self.take_turn(id, &mut budget, outputs)
        {}
        self.work += budget.spent() as u64;
    }

    /// Gives a client its turn. Does nothing if the client is not in the queue. Returns false if the client has work
    /// left and the budget allowed none of it.
    fn take_turn(&mut self, id: ClientId, budget: &mut Budget, outputs: &mut Vec<Output>) -> bool {
        let Some(client) = self.clients.get_mut(&id).filter(|client| client.place.is_queued()) else {
            return true;
        };
        let since = self.turns.begin(id, &mut client.place);
        let spent = budget.spent();
        let is_left = self.turn_of(id, budget, outputs);
        let work = budget.spent() - spent;
        let Some(client) = self.clients.get_mut(&id) else { return true };
        self.turns.end(id, &mut client.place, work, is_left, since);
        if client.is_wanted() && since < Some(self.step) {
            outputs.push(Output::Read(id));
        }
        work > 0 || !is_left
    }

    /// Removes bytes that were sent. If so few are left that the client can be served again, adds it to the queue of
    /// turns.
    fn sent(&mut self, id: ClientId, count: usize) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        let was_behind = client.is_behind();
        client.unsent.skip(count);
        if was_behind && !client.is_behind() {
            self.add_turn(id);
        }
        self.count(id);
    }

    /// Serves a client as far as the budget allows. Closes the client's connection if [`serve`](Self::serve) or
    /// [`make_room`](Self::make_room) returns an error. Returns true if the budget did not allow all work.
    fn turn_of(&mut self, id: ClientId, budget: &mut Budget, outputs: &mut Vec<Output>) -> bool {
        let outcome = self.serve(id, budget, outputs);
        self.count(id);
        let outcome = outcome.and_then(|is_left| self.make_room(id, 0, outputs).map(|()| is_left));
        outcome.unwrap_or_else(|rejection| {
            self.close(id, rejection, outputs);
            false
        })
    }

    /// Serves a client until the budget allows no more, more bytes must arrive, the client must first receive
    /// replies, or the client is removed. Returns true if the budget was the reason.
    ///
    /// # Errors
    /// The reason to close the connection.
    fn serve(
        &mut self,
        id: ClientId,
        budget: &mut Budget,
        outputs: &mut Vec<Output>,
    ) -> Result<bool, Rejection> {
        while let Some(client) = self.clients.get_mut(&id)
            && !client.is_behind()
        {
            if client.is_gone {
                budget.spend(self.forget(id));
                break;
            }
            if !client.is_greeted() {
                match client.greet(id, self.secret.as_ref())? {
                    Greeted::Not => break,
                    Greeted::Answered => send(id, outputs),
                    Greeted::Silently => {}
                }
                budget.spend(WAKE);
                self.ungreeted -= usize::from(client.is_greeted());
                continue;
            }
            if self.table.is_woken(id) && !self.resume(id, budget, outputs) {
                return Ok(true);
            }
            let Some(client) = self.clients.get_mut(&id) else { break };
            let task = match client.task.take() {
                Some(task) => task,
                None => match client.decoder.next(&self.limits.sizes, budget)? {
                    Decoded::Request(request, memory) => Task::of(request, memory),
                    Decoded::Entries(strings, memory) => Task::of_entries(strings, memory),
                    Decoded::Incomplete => break,
                    Decoded::Unfinished => return Ok(true),
                },
            };
            client.task_memory = task.memory();
            let request = task.request;
            let progress = self.work_on(id, task.work, budget, outputs)?;
            let Some(client) = self.clients.get_mut(&id) else { break };
            let (work, is_unfinished) = match progress {
                Progress::Done => {
                    client.task_memory = 0;
                    continue;
                }
                Progress::Piece(work) => (work, false),
                Progress::Unfinished(work) => (work, true),
            };
            let task = Task { work, request };
            client.task_memory = task.memory();
            client.task = Some(task);
            self.count(id);
            if is_unfinished {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Continues the wait of a client that was woken. If the wait has ended, sends the reply. Returns false if the
    /// budget did not allow this work.
    fn resume(&mut self, id: ClientId, budget: &mut Budget, outputs: &mut Vec<Output>) -> bool {
        let mut woken = Vec::new();
        let resumed = self.table.resume(id, budget, &mut woken);
        self.wake(id, &woken);
        if resumed == Resumed::Over {
            self.reply(id, &Reply::Status(0), outputs);
        }
        resumed != Resumed::Unfinished
    }

    /// Adds the clients `woken`, whose waits may have ended, to the queue of turns and to the field `woken`. `current`
    /// is the client that is being served or removed, and is skipped: while it is served, [`serve`](Self::serve) itself
    /// continues its wait.
    fn wake(&mut self, current: ClientId, woken: &[ClientId]) {
        for id in woken.iter().filter(|id| **id != current) {
            self.add_turn(*id);
            self.woken.push(*id);
        }
    }

    /// Adds a client to the queue of turns, unless it is already there.
    fn add_turn(&mut self, id: ClientId) {
        if let Some(client) = self.clients.get_mut(&id) {
            self.turns.add(id, &mut client.place, self.step);
        }
    }

    /// Checks that a client may take `more` bytes of memory. While these bytes would exceed the limit on all memory,
    /// closes the other connection that holds the most, if it holds more than this client would hold with these bytes.
    ///
    /// # Errors
    /// [`Rejection::Memory`] if this does not free enough memory. The caller must then close this client's connection.
    fn make_room(&mut self, id: ClientId, more: usize, outputs: &mut Vec<Output>) -> Result<(), Rejection> {
        while self.memory().saturating_add(more) > self.limits.memory {
            let limit = self.limits.memory;
            let held = self.clients.get(&id).map_or(0, |client| client.memory).saturating_add(more);
            let others = self.clients.iter().filter(|(other, _)| **other != id);
            match others.map(|(other, client)| (client.memory, *other)).max() {
                Some((most, other)) if most > held => {
                    let is_gone = self.clients.get(&other).is_some_and(|client| client.is_gone);
                    if !is_gone {
                        outputs.push(Output::Close(other, Rejection::Memory { held: most, limit }));
                    }
                    self.forget(other);
                }
                _ => return Err(Rejection::Memory { held, limit }),
            }
        }
        self.most = self.most.max(self.memory() + more);
        Ok(())
    }

    /// Updates [`Client::memory`] of a client, and the sum over all clients. Call this after the client's buffers, its
    /// request or its wait have changed. If a client is woken for an element of a
    /// queue, the memory of its claim to the element (an entry in the table's `waits`) is counted in the client's next
    /// turn.
    fn count(&mut self, id: ClientId) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        let memory = CLIENT + client.buffers() + self.table.wait_memory(id);
        self.held = self.held - client.memory + memory;
        client.memory = memory;
    }

    /// Closes a connection, and removes its client.
    fn close(&mut self, client: ClientId, rejection: Rejection, outputs: &mut Vec<Output>) {
        outputs.push(Output::Close(client, rejection));
        self.part_with(client);
    }

    /// Removes a client whose connection has ended. If the client holds more than [`MANY`] strings, only marks it as
    /// gone and adds it to the queue of turns. The client's next turn then removes it. If its memory is needed earlier,
    /// [`make_room`](Self::make_room) removes it.
    fn part_with(&mut self, id: ClientId) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        if client.strings() + self.table.wait_strings(id) > MANY {
            client.is_gone = true;
            client.unsent = Buffer::default();
            self.add_turn(id);
            self.count(id);
        } else {
            self.forget(id);
        }
    }

    /// Removes a client, ends its wait, and frees its memory. Returns the units of work that this has taken; 0 for an
    /// unknown client.
    fn forget(&mut self, id: ClientId) -> usize {
        let wait = self.table.wait_strings(id);
        let Some(mut client) = self.clients.remove(&id) else { return 0 };
        self.turns.remove(id, &mut client.place);
        self.held -= client.memory;
        self.ungreeted -= usize::from(!client.is_greeted());
        let mut woken = Vec::new();
        self.table.remove(id, &mut woken);
        self.wake(id, &woken);
        1 + dropping(client.strings() + wait)
    }

    /// Closes the connections whose greetings were not complete in time.
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
}
