//! Malicious clients. The work of each step of the server is bounded. A client with a small request is answered in the
//! step in which its request arrives, however much work is left for the others. Work is counted in units
//! ([`ServerLimits::tick`]). Time is not measured, except for a limit that only a server with quadratic work reaches.

use std::{
    collections::{BTreeMap, VecDeque},
    time::{Duration, Instant},
};

use crate::GREETING;
use bootstrap::store::machine::{
    ClientId, Rejection, Request, Server, ServerLimits,
    server::{Input, Output},
};
use proptest::{collection::vec, prelude::*};

const NOW: Duration = Duration::ZERO;
/// The most bytes of the pieces into which [`Siege::send`] divides requests.
const PIECE: usize = 64 << 10;
/// The most keys of a request.
const MANY: usize = 128 << 10;
/// The maximum work of one step, in units: a turn, as much again for its last indivisible piece of work, and the
/// removal of a client with two lists of [`MANY`] keys, where 8 keys are one unit.
const MOST: u64 = (8 << 10) + (8 << 10) + 2 * MANY as u64 / 8;
/// The time after which the server of a test counts as hanging.
const HANGS: Duration = Duration::from_secs(300);

/// The client that makes small requests, and must be answered at once.
const PROBE: ClientId = 0;

/// A server, and the data in transit to and from its clients.
struct Siege {
    server: Server,
    /// Bytes that the server has not read yet.
    up: BTreeMap<ClientId, VecDeque<Vec<u8>>>,
    /// Bytes sent to clients.
    down: BTreeMap<ClientId, Vec<u8>>,
    /// The connections that the server has closed, in the order in which it closed them.
    closed: Vec<(ClientId, Rejection)>,
    begun: Instant,
}

impl Siege {
    fn new(limits: ServerLimits) -> Self {
        let (up, down) = (BTreeMap::new(), BTreeMap::new());
        let mut siege =
            Self { server: Server::new(limits), up, down, closed: Vec::new(), begun: Instant::now() };
        siege.connect(PROBE);
        siege
    }

    /// Connects a client and sends its greeting.
    fn connect(&mut self, client: ClientId) {
        self.step(Input::Accepted(client), NOW);
        self.step(Input::Received(client, GREETING), NOW);
    }

    /// Runs one step, and checks that it is at most [`MOST`] units of work. Clients read the bytes that are sent to
    /// them.
    fn step(&mut self, input: Input<'_>, now: Duration) {
        let before = self.server.work();
        let mut outputs = VecDeque::from(self.server.step(input, now));
        while let Some(output) = outputs.pop_front() {
            match output {
                Output::Send(client) => {
                    let unsent = self.server.unsent(client);
                    let count = unsent.len();
                    self.down.entry(client).or_default().extend(unsent);
                    outputs.extend(self.server.step(Input::Sent(client, count), now));
                }
                Output::Read(client) => assert!(self.server.wants(client)),
                Output::Close(client, why) => self.closed.push((client, why)),
            }
        }
        let work = self.server.work() - before;
        assert!(work <= MOST, "{work} units in a step");
        assert!(self.begun.elapsed() < HANGS, "the server hangs");
    }

    /// Queues requests of a client. [`settle`](Self::settle) delivers them when the server wants them.
    fn send(&mut self, client: ClientId, requests: &[Request]) {
        let mut bytes = Vec::new();
        requests.iter().for_each(|request| request.encode(&mut bytes));
        self.up.entry(client).or_default().extend(bytes.chunks(PIECE).map(<[u8]>::to_vec));
    }

    /// Delivers the queued bytes that the server wants, and lets it complete its work. After every step, checks that
    /// the probe is answered in the step in which its request arrives. Returns the number of steps, without those of
    /// the probe.
    fn settle(&mut self) -> usize {
        for steps in 0.. {
            let ready = self.up.keys().copied().find(|client| self.server.wants(*client));
            if let Some((client, piece)) = ready.and_then(|client| self.next(client)) {
                self.step(Input::Received(client, &piece), NOW);
            } else if self.server.wake_at() == Some(NOW) {
                self.step(Input::Tick, NOW);
            } else {
                return steps;
            }
            self.probe();
        }
        unreachable!("steps are counted without end")
    }

    /// Takes the next queued bytes of a client, and returns them with the client's id. Returns `None` if none are left.
    fn next(&mut self, client: ClientId) -> Option<(ClientId, Vec<u8>)> {
        let pieces = self.up.get_mut(&client)?;
        let piece = pieces.pop_front();
        if pieces.is_empty() {
            self.up.remove(&client);
        }
        Some((client, piece?))
    }

    /// Sends the probe's requests, and checks that it is answered in the same step.
    fn probe(&mut self) {
        let mut bytes = Vec::new();
        let (key, value) = (b"probe".to_vec(), b"value".to_vec());
        Request::Set { key: key.clone(), value: value.clone() }.encode(&mut bytes);
        Request::Get { key }.encode(&mut bytes);
        self.step(Input::Received(PROBE, &bytes), NOW);
        assert_eq!(self.taken(PROBE), [&5u64.to_le_bytes()[..], &value].concat());
    }

    /// Returns the bytes that the server has sent to a client since the previous call.
    fn taken(&mut self, client: ClientId) -> Vec<u8> {
        self.down.remove(&client).unwrap_or_default()
    }

    /// Connects `count` clients, numbered from 1, and returns their numbers.
    fn several(&mut self, count: u64) -> std::ops::RangeInclusive<ClientId> {
        (1..=count).for_each(|client| self.connect(client));
        1..=count
    }
}

fn key(name: &str) -> Vec<u8> {
    name.as_bytes().to_vec()
}

fn keys(count: usize) -> Vec<Vec<u8>> {
    (0..count).map(|number| format!("{number:06x}").into_bytes()).collect()
}

fn set(name: &str) -> Request {
    Request::Set { key: key(name), value: Vec::new() }
}

fn set_all(keys: &[Vec<u8>]) -> Request {
    Request::MultiSet { entries: keys.iter().map(|key| (key.clone(), b"value".to_vec())).collect() }
}

/// Clients in a barrier wait for the number in a value. When bytes are appended to the value, the server does not read
/// the whole value again, neither for each client nor for each append.
#[test]
fn appending_to_a_value_that_many_wait_for() {
    let mut siege = Siege::new(ServerLimits::default());
    for client in siege.several(200) {
        siege.send(client, &[Request::Barrier { key: key("zeros"), world: 1000 + client as i64 }]);
    }
    siege.send(300, &[Request::Set { key: key("zeros"), value: vec![b'0'; (8 << 20) - 5000] }]);
    siege.connect(300);
    siege.settle();
    let before = siege.server.work();
    siege.send(300, &vec![Request::Append { key: key("zeros"), value: key("0") }; 4000]);
    siege.settle();
    let work = siege.server.work() - before;
    assert!(work < 40_000 + 2 * (8 << 10), "{work} units for 4,000 bytes");
    // The number is now 1100. The clients wait for 1001 to 1200, so half of the waits end.
    siege.send(300, &[Request::Append { key: key("zeros"), value: key("1100") }]);
    siege.settle();
    let over = (1..=200).filter(|client| siege.taken(*client) == [0]).count();
    assert_eq!(over, 100);
}

/// Clients wait for very many keys, of which the first is set and deleted often. The work is still at most about one
/// check per client and key. The waits end when the last key is set.
#[test]
fn waiting_for_many_keys_of_which_two_come_and_go() {
    let mut siege = Siege::new(ServerLimits::default());
    let mut all = keys(MANY - 2);
    siege.connect(100);
    siege.send(100, &[set_all(&all)]);
    siege.settle();
    all.insert(0, key("first"));
    all.push(key("last"));
    for client in siege.several(4) {
        siege.send(client, &[Request::Wait { keys: all.clone() }]);
    }
    siege.settle();
    let before = siege.server.work();
    let toggle = |name| [set(name), Request::Delete { key: key(name) }];
    siege.send(100, &vec![toggle("first"); 200].concat());
    siege.settle();
    let work = siege.server.work() - before;
    assert!(work < 4 * MANY as u64 + 200 * 32, "{work} units");
    assert!((1..=4).all(|client| siege.taken(client).is_empty()));
    siege.send(100, &[set("last")]);
    siege.settle();
    assert!((1..=4).all(|client| siege.taken(client) == [0]));
}

#[test]
fn listing_a_million_keys() {
    let mut siege = Siege::new(ServerLimits::default());
    let names = keys(1_000_000);
    siege.connect(10);
    names.chunks(MANY).for_each(|names| siege.send(10, &[set_all(names)]));
    siege.settle();
    for client in siege.several(2) {
        siege.send(client, &[Request::ListKeys]);
    }
    assert!(siege.settle() > 200);
    let mut expected = (names.len() as u64 + 1).to_le_bytes().to_vec();
    for name in names.iter().chain([&key("probe")]) {
        expected.extend((name.len() as u64).to_le_bytes());
        expected.extend(name);
    }
    assert!((1..=2).all(|client| siege.taken(client) == expected));
}

/// Thousands of clients wait for a key that is set, or for a queue that gets as many elements. The work is spread over
/// several steps.
#[test]
fn waking_thousands() {
    const WAITING: u64 = 20_000;
    for by_queue in [false, true] {
        let mut siege = Siege::new(ServerLimits::default());
        for client in siege.several(WAITING) {
            siege.send(client, &[Request::Wait { keys: vec![key("late")] }]);
        }
        siege.settle();
        siege.connect(WAITING + 1);
        match by_queue {
            false => siege.send(WAITING + 1, &[set("late"), Request::Delete { key: key("late") }]),
            true => {
                let push = Request::QueuePush { key: key("late"), value: Vec::new() };
                siege.send(WAITING + 1, &vec![push; WAITING as usize]);
            }
        }
        assert!(siege.settle() > 20);
        assert!((1..=WAITING).all(|client| siege.taken(client) == [0]), "{by_queue}");
    }
}

/// A client was woken for the only element of a queue, and its next request is refused. The next client that waits for
/// the queue is woken.
#[test]
fn a_refused_request_of_a_woken_client_wakes_the_next() {
    let mut siege = Siege::new(ServerLimits::default());
    for client in siege.several(2) {
        siege.send(client, &[Request::Wait { keys: vec![key("queue")] }]);
    }
    siege.connect(3);
    siege.settle();
    siege.send(3, &[Request::QueuePush { key: key("queue"), value: Vec::new() }]);
    siege.settle();
    assert_eq!((siege.taken(1), siege.taken(2)), (vec![0], vec![]));
    siege.send(1, &[Request::Add { key: key("probe"), delta: 1 }]);
    siege.settle();
    assert!(matches!(siege.closed[..], [(1, _)]), "{:?}", siege.closed);
    assert_eq!(siege.taken(2), [0]);
}

#[test]
fn thousands_that_cancel_and_leave() {
    const WAITING: u64 = 20_000;
    let mut siege = Siege::new(ServerLimits::default());
    let wait = Request::Wait { keys: vec![key("never")] };
    for client in siege.several(WAITING) {
        siege.send(client, &[wait.clone(), Request::CancelWait, wait.clone()]);
    }
    siege.settle();
    assert!((1..=WAITING).all(|client| siege.taken(client) == [1]));
    (1..=WAITING).for_each(|client| siege.step(Input::Gone(client), NOW));
    siege.settle();
    assert_eq!(siege.server.clients(), 1);
}

/// Clients that hold many keys disconnect. The server frees their memory in later steps.
#[test]
fn leaving_with_many_keys() {
    let mut siege = Siege::new(ServerLimits::default());
    for client in siege.several(8) {
        siege.send(client, &[Request::Wait { keys: keys(MANY) }]);
        // Then an incomplete request: its last piece is not sent.
        siege.send(client, &[Request::Check { keys: keys(MANY) }]);
        siege.up.get_mut(&client).unwrap().pop_back();
    }
    siege.settle();
    let memory = siege.server.memory();
    (1..=8).for_each(|client| siege.step(Input::Gone(client), NOW));
    assert!(siege.settle() > 0);
    assert_eq!(siege.server.clients(), 1);
    assert!(siege.server.memory() < memory / 100, "{} of {memory}", siege.server.memory());
}

#[test]
fn requests_for_very_many_keys() {
    let mut siege = Siege::new(ServerLimits::default());
    let names = keys(MANY);
    for client in siege.several(3) {
        let requests = [
            set_all(&names),
            Request::Check { keys: names.clone() },
            Request::MultiGet { keys: names.clone() },
            Request::Wait { keys: names.clone() },
        ];
        siege.send(client, &requests);
    }
    assert!(siege.settle() > 100);
    let values = [&5u64.to_le_bytes()[..], b"value"].concat().repeat(MANY);
    for client in 1..=3 {
        assert!(siege.taken(client) == [&[0][..], &values, &[0]].concat());
    }
}

#[test]
fn reading_large_values_all_the_time() {
    const VALUE: usize = 8 << 20;
    let mut siege = Siege::new(ServerLimits::default());
    siege.connect(100);
    siege.send(100, &[Request::Set { key: key("large"), value: vec![7; VALUE] }]);
    siege.settle();
    let get = Request::Get { key: key("large") };
    let swap = Request::CompareSet { key: key("large"), expected: key("x"), new: Vec::new() };
    for client in siege.several(8) {
        siege.send(client, &[get.clone(), swap.clone(), Request::MultiGet { keys: vec![key("large"); 4] }]);
    }
    siege.settle();
    assert!((1..=8).all(|client| siege.taken(client).len() == 6 * (8 + VALUE)));
}

/// A request that is too large to be served at once must wait for its turn. Its client gets this turn before clients
/// for which the server has done more work.
#[test]
fn a_client_with_less_work_has_its_turn_earlier() {
    const BUSY: u64 = 50;
    let mut siege = Siege::new(ServerLimits::default());
    siege.connect(100);
    siege.send(100, &[Request::Set { key: key("large"), value: vec![7; 8 << 20] }]);
    siege.settle();
    let mut bytes = Vec::new();
    Request::MultiGet { keys: vec![key("large"); 30] }.encode(&mut bytes);
    for client in siege.several(BUSY) {
        siege.step(Input::Received(client, &bytes), NOW);
    }
    for _ in 0..2 * BUSY {
        siege.step(Input::Tick, NOW);
        siege.down.clear();
    }
    assert!((1..=BUSY).all(|client| !siege.server.wants(client)));
    bytes.clear();
    Request::Check { keys: keys(1000) }.encode(&mut bytes);
    siege.step(Input::Received(100, &bytes), NOW);
    assert!(siege.taken(100).is_empty());
    siege.step(Input::Tick, NOW);
    assert_eq!(siege.taken(100), [1]);
}

/// If there are too many connections without a greeting, newer ones replace the oldest. The rest are closed after one
/// second.
#[test]
fn silent_connections_keep_nobody_out() {
    let mut siege = Siege::new(ServerLimits { clients: 960, ..ServerLimits::default() });
    for client in 1..=1500 {
        siege.step(Input::Accepted(client), NOW);
    }
    let closed = |siege: &mut Siege| std::mem::take(&mut siege.closed);
    let crowded = closed(&mut siege);
    assert_eq!(crowded.len(), 1500 - 240);
    for ((client, why), expected) in crowded.into_iter().zip(1..) {
        assert_eq!((client, why), (expected, Rejection::Crowded { limit: 240 }));
    }
    siege.connect(2000);
    siege.send(2000, &[Request::Ping { nonce: 7 }]);
    siege.settle();
    assert_eq!(siege.taken(2000), 7u32.to_le_bytes());
    // Clients that have sent a greeting fill the remaining places, and none of them is closed.
    (3000..3720).for_each(|client| siege.connect(client));
    let rejections = closed(&mut siege);
    assert!(rejections.iter().all(|(client, _)| *client <= 1500), "{rejections:?}");
    siege.step(Input::Tick, Duration::from_millis(1001));
    let silent = closed(&mut siege);
    assert_eq!(rejections.len() + silent.len(), 240);
    let waited = Duration::from_secs(1);
    assert!(silent.iter().all(|(_, why)| *why == Rejection::Silent { waited }), "{silent:?}");
    assert_eq!(siege.server.clients(), 722);
}

fn any_list() -> impl Strategy<Value = Request> {
    let name = || (0..30u8).prop_map(|number| vec![b'k', number]);
    prop_oneof![
        vec((name(), vec(any::<u8>(), 0..3000)), 0..40).prop_map(|entries| Request::MultiSet { entries }),
        vec(name(), 0..40).prop_map(|keys| Request::Check { keys }),
        vec(name(), 0..40).prop_map(|keys| Request::MultiGet { keys }),
        Just(Request::ListKeys),
        vec(name(), 0..40).prop_map(|keys| Request::Wait { keys }),
        Just(Request::CancelWait),
        (name(), vec(any::<u8>(), 0..3000)).prop_map(|(key, value)| Request::QueuePush { key, value }),
        name().prop_map(|key| Request::QueuePop { key }),
        name().prop_map(|key| Request::Delete { key }),
    ]
}

proptest! {
    /// The limits on the work of a step change neither a client's replies nor the reason why its connection is closed.
    #[test]
    fn turns_change_no_answer(
        requests in vec(any_list(), 1..20), tick in 0..60usize, at_once in 0..60usize,
    ) {
        let answers = |server: Server| {
            let mut siege = Siege { server, ..Siege::new(ServerLimits::default()) };
            siege.connect(PROBE);
            siege.connect(1);
            siege.send(1, &requests);
            loop {
                match siege.server.wants(1).then(|| siege.next(1)).flatten() {
                    Some((client, piece)) => siege.step(Input::Received(client, &piece), NOW),
                    None if siege.server.wake_at() == Some(NOW) => siege.step(Input::Tick, NOW),
                    None => break,
                }
            }
            // If a connection is closed, its unsent bytes are lost. So the replies are compared only if the connection
            // stays open.
            (siege.taken(1).into_iter().filter(|_| siege.closed.is_empty()).collect::<Vec<_>>(), siege.closed)
        };
        let small = ServerLimits { tick, at_once, ..ServerLimits::default() };
        prop_assert_eq!(answers(Server::new(small)), answers(Server::default()));
    }
}
