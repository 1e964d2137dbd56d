//! The store's state machines under the seeded scheduler: a server and its clients, joined by links. Every message
//! takes a random time, and some arrive in two pieces. Data on one link stays in order, as with TCP; different links
//! can overtake each other.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use gpu_sim::sched::{self, Signal, WaitError};
use process_group::store::machine::{
    Call, Client, ClientId, Failure, Limits, Reply, Request, Server, ServerLimits, client, server,
};

use crate::simulation::Random;

/// The longest time for the greeting, and for the answer to a request that does not wait for a key.
const PATIENCE: Duration = Duration::from_secs(600);

/// The pieces in flight in one direction of a link, each with its arrival time on the scheduler's clock.
type Way = VecDeque<(Duration, Vec<u8>)>;

#[derive(Debug, Default)]
struct Link {
    up: Way,
    down: Way,
}

struct State {
    random: Random,
    slowest: u64,
    server: Server,
    links: BTreeMap<ClientId, Link>,
    opened: u64,
    closed: u64,
    lost: Option<u32>,
}

/// A store and the links to it.
pub(super) struct Network {
    state: Mutex<State>,
    signal: Signal,
    clients: u64,
}

impl Network {
    /// Creates a store for `clients` clients. A piece of a message takes up to `slowest` µs.
    pub(super) fn new(random: Random, slowest: u64, clients: u64) -> Self {
        let server =
            Server::new(ServerLimits { greeting: Duration::from_secs(60), ..ServerLimits::default() });
        let state =
            State { random, slowest, server, links: BTreeMap::new(), opened: 0, closed: 0, lost: None };
        Self { state: Mutex::new(state), signal: Signal::new(), clients }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Marks a rank as lost. All ranks can see this at once.
    pub(super) fn lose(&self, rank: u32) {
        self.state().lost = Some(rank);
    }

    /// Returns the one of `members` that is lost, or `None`.
    pub(super) fn lost(&self, members: &[u32]) -> Option<u32> {
        self.state().lost.filter(|rank| members.contains(rank))
    }

    /// Returns whether one of `members` is lost.
    pub(super) fn has_lost(&self, members: &[u32]) -> bool {
        self.lost(members).is_some()
    }

    /// Runs the store's actor: serves requests until all clients have connected and closed.
    pub(super) fn serve(&self) {
        loop {
            let (due, over) = {
                let state = self.state();
                (state.next_request().map(|(due, _)| due), state.closed == self.clients)
            };
            match due {
                None if over => return,
                Some(due) if due <= sched::now() => self.state().serve_one(),
                // A message that is sent meanwhile may arrive before the expected one.
                due => wait(&self.signal, "a request to the store", due, || {
                    let state = self.state();
                    state.next_request().map(|(due, _)| due) != due
                        || (due.is_none() && state.closed == self.clients)
                }),
            }
            self.signal.notify();
        }
    }
}

impl State {
    fn next_request(&self) -> Option<(Duration, ClientId)> {
        self.links.iter().filter_map(|(id, link)| Some((link.up.front()?.0, *id))).min()
    }

    fn serve_one(&mut self) {
        let Some((_, id)) = self.next_request() else { return };
        let Some((_, bytes)) = self.links.get_mut(&id).and_then(|link| link.up.pop_front()) else { return };
        self.step(server::Input::Received(id, &bytes));
    }

    /// Passes an input to the server, and then ticks the server until it has no more work that is due now.
    fn step(&mut self, input: server::Input<'_>) {
        self.turn(input);
        while self.server.wake_at() == Some(Duration::ZERO) {
            self.turn(server::Input::Tick);
        }
    }

    fn turn(&mut self, input: server::Input<'_>) {
        let mut outputs = VecDeque::from(self.server.step(input, sched::now()));
        while let Some(output) = outputs.pop_front() {
            match output {
                server::Output::Send(id) => {
                    let bytes = self.server.unsent(id).to_vec();
                    outputs.extend(self.server.step(server::Input::Sent(id, bytes.len()), sched::now()));
                    self.send(id, bytes, |link| &mut link.down);
                }
                // Requests are passed in as they arrive.
                server::Output::Read(_) => {}
                server::Output::Close(id, why) => {
                    panic!("the store closes the connection of client {id}: {why}")
                }
            }
        }
    }

    /// Sends bytes, sometimes in two pieces.
    fn send(&mut self, id: ClientId, mut bytes: Vec<u8>, way: fn(&mut Link) -> &mut Way) {
        let cut = match self.random.one_in(4) {
            true => self.random.below(bytes.len() as u64) as usize,
            false => 0,
        };
        let rest = bytes.split_off(cut);
        for piece in [bytes, rest] {
            let delay = Duration::from_micros(1 + self.random.below(self.slowest));
            let Some(way) = self.links.get_mut(&id).map(way) else { return };
            let after = way.back().map_or(Duration::ZERO, |(due, _)| *due);
            if !piece.is_empty() {
                way.push_back((after.max(sched::now() + delay), piece));
            }
        }
    }
}

/// Waits for `condition`, or until the time `due` of the scheduler's clock.
fn wait(signal: &Signal, what: &str, due: Option<Duration>, condition: impl FnMut() -> bool) {
    match sched::wait(signal, || what.to_owned(), due, condition) {
        Ok(()) | Err(WaitError::TimedOut { .. }) => {}
        Err(error) => panic!("{error}"),
    }
}

/// A client and its link.
pub(super) struct Connection {
    network: Arc<Network>,
    id: ClientId,
    machine: Client,
}

impl Connection {
    /// Connects, and sends the greeting.
    pub(super) fn open(network: Arc<Network>) -> Self {
        let id = {
            let mut state = network.state();
            state.opened += 1;
            let id = state.opened;
            state.links.insert(id, Link::default());
            state.step(server::Input::Accepted(id));
            id
        };
        let machine = Client::new(Limits::default(), PATIENCE, id as u32);
        let mut connection = Self { network, id, machine };
        let greeted = connection.drive(client::Input::Connected(sched::now() + PATIENCE));
        assert_eq!(greeted, Ok(None), "the store greets");
        connection
    }

    /// Makes a request that does not wait for a key, and returns the reply.
    pub(super) fn ask(&mut self, request: Request) -> Option<Reply> {
        let name = request.name();
        self.drive(client::Input::Call(Call::Now(request)))
            .unwrap_or_else(|failure| panic!("the store does not serve {name}: {failure:?}"))
    }

    /// Waits until `key` exists, and returns its value. Returns `None` if the key does not exist by `deadline`, a time
    /// of the scheduler's clock.
    pub(super) fn get(&mut self, key: String, deadline: Duration) -> Option<Vec<u8>> {
        let key = key.into_bytes();
        let then = Some(Request::Get { key: key.clone() });
        match self.drive(client::Input::Call(Call::WhenThere {
            keys: vec![key],
            then,
            peeks: false,
            deadline,
        })) {
            Ok(Some(Reply::Bytes(value))) => Some(value),
            Err(Failure::TimedOut { .. }) => None,
            other => panic!("the store answers {other:?} to a get"),
        }
    }

    fn drive(&mut self, input: client::Input<'_>) -> Result<Option<Reply>, Failure> {
        let mut outputs = self.machine.step(input, sched::now());
        loop {
            for output in outputs {
                match output {
                    client::Output::Send(bytes) => {
                        self.network.state().send(self.id, bytes, |link| &mut link.up);
                        self.network.signal.notify();
                    }
                    client::Output::Done(outcome) => return outcome,
                }
            }
            outputs = match self.receive() {
                Some(bytes) => self.machine.step(client::Input::Received(&bytes), sched::now()),
                None => self.machine.step(client::Input::Tick, sched::now()),
            };
        }
    }

    /// Returns the next bytes, or `None` when the machine's timer is due.
    fn receive(&mut self) -> Option<Vec<u8>> {
        let timer = self.machine.wake_at();
        loop {
            let due = self.due();
            if due.is_some_and(|due| due <= sched::now()) {
                let mut state = self.network.state();
                return state.links.get_mut(&self.id)?.down.pop_front().map(|(_, bytes)| bytes);
            }
            if timer.is_some_and(|timer| timer <= sched::now()) {
                return None;
            }
            let until = [due, timer].into_iter().flatten().min();
            wait(&self.network.signal, "an answer of the store", until, || self.due() != due);
        }
    }

    /// Time of arrival of the next bytes, or `None` if none are in flight.
    fn due(&self) -> Option<Duration> {
        self.network.state().links.get(&self.id)?.down.front().map(|(due, _)| *due)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let mut state = self.network.state();
        state.links.remove(&self.id);
        state.step(server::Input::Gone(self.id));
        state.closed += 1;
        drop(state);
        self.network.signal.notify();
    }
}
