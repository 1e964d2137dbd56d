//! One server and several clients, all of them state machines, on one thread. A seed chooses the operations of the
//! clients, the delivery and fragmentation of bytes, the passing of time, and the connections that break. Strangers
//! connect too: they are clients that send random bytes, and the server may close their connections.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

use bootstrap::store::machine::{
    Call, Client, ClientId, Failure, Limits, Reply, Request, Server, ServerLimits, client, server,
};

/// A small generator with a full period (splitmix64).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number from 0 to `bound - 1`.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    /// Returns true with a probability of 1/`n`.
    pub(crate) fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

/// The operations of ranks on the store. Deadlines are times of the world's clock. No two operations of a run have the
/// same `new` or `token`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Op {
    /// Adds 1 to the counter.
    Count,
    /// Sets the register to `new` if it contains `expected`, which is the last value that this rank saw there.
    Swap { expected: Vec<u8>, new: Vec<u8> },
    /// Sets one of [`KEYS`] keys. The value is always the name of the key.
    Set { key: Vec<u8> },
    /// Waits for some of the [`KEYS`] keys, possibly none, and reads them.
    Wait { keys: Vec<Vec<u8>>, deadline: Duration },
    /// Waits until the queue has an element, and leaves it there.
    Watch { deadline: Duration },
    /// Pushes `token` to the queue.
    Push { token: Vec<u8> },
    /// Waits until the queue has an element, and pops it.
    Pop { deadline: Duration },
}

pub(crate) const COUNTER: &[u8] = b"counter";
pub(crate) const REGISTER: &[u8] = b"register";
pub(crate) const QUEUE: &[u8] = b"queue";

impl Op {
    fn call(&self) -> Call {
        match self.clone() {
            Op::Count => Call::Now(Request::Add { key: COUNTER.into(), delta: 1 }),
            Op::Swap { expected, new } => {
                Call::Now(Request::CompareSet { key: REGISTER.into(), expected, new })
            }
            Op::Set { key } => Call::Now(Request::Set { value: key.clone(), key }),
            Op::Wait { keys, deadline } => {
                // The number of keys decides between the two kinds of wait.
                let then = Request::MultiGet { keys: keys.clone() };
                let peeks = keys.len() % 2 == 1;
                Call::WhenThere { keys, then: Some(then), peeks, deadline }
            }
            Op::Watch { deadline } => {
                Call::WhenThere { keys: vec![QUEUE.into()], then: None, peeks: false, deadline }
            }
            Op::Push { token } => Call::Now(Request::QueuePush { key: QUEUE.into(), value: token }),
            Op::Pop { deadline } => {
                let then = Some(Request::QueuePop { key: QUEUE.into() });
                Call::WhenThere { keys: vec![QUEUE.into()], then, peeks: false, deadline }
            }
        }
    }
}

/// A moment in a run. The step defines the order of moments. The time is that of the world's clock, with which
/// deadlines are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment {
    pub(crate) step: u64,
    pub(crate) time: Duration,
}

/// An operation from its call to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) rank: usize,
    pub(crate) op: Op,
    pub(crate) called: Moment,
    /// The time at which the operation completed, failed, or lost its connection. `None` while it is in progress.
    pub(crate) ended: Option<Moment>,
    /// `None` while the operation is in progress, and if its connection broke. In both cases it is unknown whether the
    /// operation has taken effect.
    pub(crate) outcome: Option<Result<Option<Reply>, Failure>>,
}

/// The bytes in transit on one connection.
#[derive(Default)]
struct Link {
    /// Bytes to the server.
    up: VecDeque<u8>,
    /// Bytes to the client.
    down: VecDeque<u8>,
}

struct Rank {
    machine: Client,
    connection: ClientId,
    /// The index in the history of the operation in progress; `None` while greeting and when idle.
    doing: Option<usize>,
    /// The last value of the register that the rank saw. Empty if it saw none.
    seen: Vec<u8>,
}

/// The server, the ranks, the strangers, and everything in transit between them.
pub(crate) struct World {
    random: Random,
    seed: u64,
    now: Moment,
    server: Server,
    ranks: Vec<Rank>,
    /// The open connections to the server.
    links: BTreeMap<ClientId, Link>,
    strangers: BTreeSet<ClientId>,
    /// The number of the last connection.
    next: ClientId,
    /// The number of tokens made so far.
    tokens: u64,
    /// The weights with which ranks choose operations. The seed decides them.
    weights: [usize; 7],
    pub(crate) history: Vec<Event>,
}

/// Returns the default limits, except that a greeting may take a minute, so that slow ranks are not rejected.
fn limits() -> ServerLimits {
    ServerLimits { greeting: Duration::from_secs(60), ..ServerLimits::default() }
}

/// The number of keys that are set and waited for.
const KEYS: u64 = 12;

impl World {
    pub(crate) fn new(seed: u64, ranks: usize) -> Self {
        let mut world = Self {
            random: Random::new(seed),
            seed,
            now: Moment { step: 0, time: Duration::ZERO },
            server: Server::new(limits()),
            ranks: Vec::new(),
            links: BTreeMap::new(),
            strangers: BTreeSet::new(),
            next: 0,
            tokens: 0,
            weights: [0; 7],
            history: Vec::new(),
        };
        if world.random.one_in(2) {
            // In half of the runs, the server does little work per tick, so that it serves requests in pieces.
            let [tick, at_once] = [(); 2].map(|()| 1 + world.random.below(24));
            world.server = Server::new(ServerLimits { tick, at_once, ..limits() });
        }
        world.weights = std::array::from_fn(|_| [0, 1, 1, 4][world.random.below(4)]);
        for rank in 0..ranks {
            let (machine, connection) = (world.client(), world.accept());
            world.ranks.push(Rank { machine, connection, doing: None, seen: Vec::new() });
            let due = world.now.time + Duration::from_secs(60);
            world.drive(rank, client::Input::Connected(due));
        }
        world
    }

    fn client(&mut self) -> Client {
        Client::new(Limits::default(), Duration::from_secs(60), self.random.next() as u32)
    }

    fn accept(&mut self) -> ClientId {
        self.next += 1;
        self.links.insert(self.next, Link::default());
        self.serve(server::Input::Accepted(self.next));
        self.next
    }

    /// Runs one random step: delivers bytes, gives the server a tick, begins an operation, lets time pass, breaks a
    /// connection, or connects a stranger. Some steps do nothing.
    pub(crate) fn step(&mut self) {
        self.now.step += 1;
        match self.random.below(32) {
            0..18 => self.deliver_some(),
            18..28 => self.begin(),
            28 | 29 => {
                self.now.time += Duration::from_millis(self.random.below(40) as u64);
                self.tick();
            }
            30 if self.random.one_in(2) => self.break_connection(),
            30 => {}
            _ => self.stranger(),
        }
    }

    /// Delivers all bytes in transit and lets the server complete its work. No time passes.
    pub(crate) fn settle(&mut self) {
        loop {
            self.now.step += 1;
            if self.is_busy() {
                self.serve(server::Input::Tick);
                continue;
            }
            let under_way = |link: &Link| !link.up.is_empty() || !link.down.is_empty();
            let Some((&id, link)) = self.links.iter().find(|(_, link)| under_way(link)) else { break };
            let (up, down) = (link.up.len(), link.down.len());
            self.deliver_up(id, up);
            self.deliver_down(id, down);
        }
    }

    /// Lets time pass until every operation has ended. Panics if one cannot end.
    pub(crate) fn finish(&mut self) {
        self.settle();
        while let Some(due) = self.ranks.iter().filter_map(|rank| rank.machine.wake_at()).min() {
            self.now.time = self.now.time.max(due);
            self.tick();
            self.settle();
        }
        assert!(self.ranks.iter().all(|rank| rank.machine.is_idle()), "seed {}: a rank hangs", self.seed);
        assert!(
            self.history.iter().all(|event| event.ended.is_some()),
            "seed {}: a reply is lost",
            self.seed
        );
    }

    /// Returns the operations of ranks that are in progress.
    pub(crate) fn under_way(&self) -> impl Iterator<Item = &Op> {
        self.ranks.iter().filter_map(|rank| Some(&self.history[rank.doing?].op))
    }

    /// Sends a request over a new connection that delivers bytes at once, and returns the reply.
    pub(crate) fn ask(&mut self, request: Request) -> Reply {
        let id = self.accept();
        let mut machine = self.client();
        let mut outputs = machine.step(client::Input::Connected(Duration::MAX), self.now.time);
        let mut request = Some(request);
        loop {
            let mut done = Vec::new();
            for output in outputs {
                match output {
                    client::Output::Send(bytes) => self.serve(server::Input::Received(id, &bytes)),
                    client::Output::Done(outcome) => done.push(outcome.unwrap()),
                }
            }
            outputs = match (done.pop(), request.take()) {
                (Some(_), Some(request)) => {
                    machine.step(client::Input::Call(Call::Now(request)), self.now.time)
                }
                (Some(reply), None) => {
                    self.serve(server::Input::Gone(id));
                    self.links.remove(&id);
                    return reply.unwrap();
                }
                (None, rest) => {
                    request = rest;
                    while self.is_busy() {
                        self.serve(server::Input::Tick);
                    }
                    let down: Vec<_> = self.links.get_mut(&id).unwrap().down.drain(..).collect();
                    machine.step(client::Input::Received(&down), self.now.time)
                }
            };
        }
    }

    /// Delivers some bytes on a random connection, or gives the server a tick. Does nothing if there is neither.
    fn deliver_some(&mut self) {
        if self.is_busy() && self.random.one_in(2) {
            return self.serve(server::Input::Tick);
        }
        let under_way = |link: &Link| [(true, !link.up.is_empty()), (false, !link.down.is_empty())];
        let ways = self.links.iter().flat_map(|(&id, link)| under_way(link).map(|(up, any)| (id, up, any)));
        let ways: Vec<_> = ways.filter(|(_, _, any)| *any).collect();
        if ways.is_empty() {
            return;
        }
        let (id, up, _) = ways[self.random.below(ways.len())];
        let most = if self.random.one_in(2) { 40 } else { 1000 };
        let length = 1 + self.random.below(most);
        if up { self.deliver_up(id, length) } else { self.deliver_down(id, length) }
    }

    fn deliver_up(&mut self, id: ClientId, length: usize) {
        let Some(link) = self.links.get_mut(&id) else { return };
        let bytes: Vec<_> = link.up.drain(..length.min(link.up.len())).collect();
        if !bytes.is_empty() {
            self.serve(server::Input::Received(id, &bytes));
        }
    }

    fn deliver_down(&mut self, id: ClientId, length: usize) {
        let Some(link) = self.links.get_mut(&id) else { return };
        let bytes: Vec<_> = link.down.drain(..length.min(link.down.len())).collect();
        let rank = self.ranks.iter().position(|rank| rank.connection == id);
        if let (false, Some(rank)) = (bytes.is_empty(), rank) {
            self.drive(rank, client::Input::Received(&bytes));
        }
    }

    fn tick(&mut self) {
        self.serve(server::Input::Tick);
        for rank in 0..self.ranks.len() {
            if self.ranks[rank].machine.wake_at().is_some_and(|due| due <= self.now.time) {
                self.drive(rank, client::Input::Tick);
            }
        }
    }

    /// Begins a random operation on a random rank. Does nothing if that rank is not idle.
    fn begin(&mut self) {
        let rank = self.random.below(self.ranks.len());
        if !self.ranks[rank].machine.is_idle() {
            return;
        }
        let deadline = self.now.time + Duration::from_millis(self.random.below(200) as u64);
        let mut choice = self.random.below(self.weights.iter().sum::<usize>().max(1));
        let chosen = self.weights.iter().position(|weight| match choice.checked_sub(*weight) {
            Some(rest) => {
                choice = rest;
                false
            }
            None => true,
        });
        let op = match chosen {
            Some(0) => Op::Swap { expected: self.ranks[rank].seen.clone(), new: self.token() },
            Some(1) => Op::Set { key: self.key() },
            Some(2) => Op::Wait { keys: (0..self.random.below(4)).map(|_| self.key()).collect(), deadline },
            Some(3) => Op::Watch { deadline },
            Some(4) => Op::Push { token: self.token() },
            Some(5) => Op::Pop { deadline },
            _ => Op::Count,
        };
        let call = op.call();
        self.ranks[rank].doing = Some(self.history.len());
        self.history.push(Event { rank, op, called: self.now, ended: None, outcome: None });
        self.drive(rank, client::Input::Call(call));
    }

    fn token(&mut self) -> Vec<u8> {
        self.tokens += 1;
        // Different lengths, some longer than many fragments.
        format!("{}{}", self.tokens, "-".repeat(self.random.below(3) * 30)).into_bytes()
    }

    fn key(&mut self) -> Vec<u8> {
        format!("key {}", self.random.next() % KEYS).into_bytes()
    }

    /// Breaks the connection of a random rank. The bytes in transit are lost, or in half of the cases only those to the
    /// rank. Then the rank connects again.
    fn break_connection(&mut self) {
        let rank = self.random.below(self.ranks.len());
        let old = self.ranks[rank].connection;
        if self.random.one_in(2) {
            self.deliver_up(old, usize::MAX);
        }
        self.links.remove(&old);
        self.serve(server::Input::Gone(old));
        if let Some(event) = self.ranks[rank].doing.take() {
            self.history[event].ended = Some(self.now);
        }
        self.ranks[rank].machine = self.client();
        self.ranks[rank].connection = self.accept();
        let due = self.now.time + Duration::from_secs(60);
        self.drive(rank, client::Input::Connected(due));
    }

    /// Connects a stranger that sends random bytes, sometimes after a valid greeting.
    fn stranger(&mut self) {
        let id = self.accept();
        self.strangers.insert(id);
        let mut bytes = if self.random.one_in(2) { crate::GREETING.to_vec() } else { Vec::new() };
        for _ in 0..self.random.below(40) {
            bytes.push(
                if self.random.one_in(2) { self.random.below(20) } else { self.random.below(256) } as u8
            );
        }
        // A request with these random bytes practically never contains the name of a key that ranks use.
        self.links.get_mut(&id).unwrap().up.extend(bytes);
    }

    /// Gives a rank's client an input, and handles its outputs. Panics if a greeting or an operation fails, except an
    /// operation at its deadline.
    fn drive(&mut self, rank: usize, input: client::Input<'_>) {
        let seed = self.seed;
        for output in self.ranks[rank].machine.step(input, self.now.time) {
            match output {
                client::Output::Send(bytes) => {
                    self.links.get_mut(&self.ranks[rank].connection).unwrap().up.extend(bytes);
                }
                client::Output::Done(outcome) => {
                    let fine = matches!(outcome, Ok(_) | Err(Failure::TimedOut { .. }));
                    assert!(fine, "seed {seed}: rank {rank}: {outcome:?}");
                    let Some(event) = self.ranks[rank].doing.take() else { continue };
                    let event = &mut self.history[event];
                    assert!(event.ended.is_none(), "seed {seed}: two ends of {event:?}");
                    if let (Op::Swap { .. }, Ok(Some(Reply::Bytes(held)))) = (&event.op, &outcome) {
                        self.ranks[rank].seen.clone_from(held);
                    }
                    event.ended = Some(self.now);
                    event.outcome = Some(outcome);
                }
            }
        }
    }

    /// Returns true if the server has work that it can do now.
    fn is_busy(&self) -> bool {
        self.server.wake_at() == Some(Duration::ZERO)
    }

    /// Gives the server an input, and handles its outputs. Panics if the server closes a rank's connection.
    fn serve(&mut self, input: server::Input<'_>) {
        let mut outputs = VecDeque::from(self.server.step(input, self.now.time));
        while let Some(output) = outputs.pop_front() {
            match output {
                server::Output::Send(id) => {
                    let bytes = self.server.unsent(id);
                    let (link, count) = (self.links.get_mut(&id), bytes.len());
                    link.unwrap_or_else(|| panic!("seed {}: bytes for {id}, who is gone", self.seed))
                        .down
                        .extend(bytes);
                    outputs.extend(self.server.step(server::Input::Sent(id, count), self.now.time));
                }
                server::Output::Read(_) => {}
                server::Output::Close(id, why) => {
                    assert!(self.strangers.remove(&id), "seed {}: {id} is closed: {why}", self.seed);
                    self.links.remove(&id);
                }
            }
        }
    }
}
