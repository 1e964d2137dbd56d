//! The server's memory stays within its limit whatever clients request, and clients that hold little memory are served.

use std::{collections::VecDeque, time::Duration};

use crate::GREETING;
use bootstrap::store::machine::{
    ClientId, Limits, Rejection, Request, Server, ServerLimits,
    server::{Input, Output},
};
use proptest::{collection::vec, prelude::*};

const NOW: Duration = Duration::ZERO;
/// The server's memory limit, in bytes.
const LIMIT: usize = 512 << 10;

/// A server with little memory, and its clients, which have sent their greeting.
struct Host {
    server: Server,
    closed: Vec<(ClientId, Rejection)>,
}

impl Host {
    fn new(limit: usize, clients: u64) -> Self {
        let sizes = Limits { value_bytes: 64 << 10, request_bytes: 128 << 10, ..Limits::default() };
        let server = Server::new(ServerLimits { sizes, memory: limit, ..ServerLimits::default() });
        let mut host = Self { server, closed: Vec::new() };
        for client in 0..clients {
            host.step(Input::Accepted(client));
            host.step(Input::Received(client, GREETING));
        }
        host
    }

    /// Handles one input, and ticks until the server has no work left. Checks the memory after each of these steps.
    fn step(&mut self, input: Input<'_>) {
        let mut outputs = self.server.step(input, NOW);
        loop {
            for output in outputs {
                if let Output::Close(client, why) = output {
                    self.closed.push((client, why));
                }
            }
            let memory = self.server.memory();
            assert!(memory <= LIMIT && self.server.most_memory() <= LIMIT, "{memory} bytes");
            if self.server.wake_at() != Some(NOW) {
                break;
            }
            outputs = self.server.step(Input::Tick, NOW);
        }
    }

    fn ask(&mut self, client: ClientId, request: &Request) {
        let mut bytes = Vec::new();
        request.encode(&mut bytes);
        self.step(Input::Received(client, &bytes));
    }

    /// Lets a client read up to `most` bytes. Returns the number of bytes read.
    fn take(&mut self, client: ClientId, most: usize) -> usize {
        let count = self.server.unsent(client).len().min(most);
        self.step(Input::Sent(client, count));
        count
    }
}

/// An action of a client.
#[derive(Debug, Clone)]
enum Act {
    /// Sends this fraction of the bytes of a request, from 0 to 1.
    Send(Request, f64),
    /// Reads up to this many bytes.
    Take(usize),
    /// Disconnects and reconnects.
    Leave,
}

fn act() -> impl Strategy<Value = Act> {
    // A long key repeats 20 random bytes. Making every byte at random would take most of the test's time.
    let long_key = || {
        (vec(any::<u8>(), 20), 5000..8000usize)
            .prop_map(|(part, length)| part.into_iter().cycle().take(length).collect())
    };
    let key = || prop_oneof![Just(b"k".to_vec()), vec(any::<u8>(), 1..20), long_key()];
    let value = || prop_oneof![Just(Vec::new()), (0..60_000usize).prop_map(|length| vec![1; length])];
    let request = prop_oneof![
        (key(), value()).prop_map(|(key, value)| Request::Set { key, value }),
        (key(), value()).prop_map(|(key, value)| Request::Append { key, value }),
        (key(), value()).prop_map(|(key, value)| Request::QueuePush { key, value }),
        key().prop_map(|key| Request::QueuePop { key }),
        key().prop_map(|key| Request::Get { key }),
        vec(key(), 0..12).prop_map(|keys| Request::MultiGet { keys }),
        vec(key(), 0..12).prop_map(|keys| Request::Wait { keys }),
        Just(Request::CancelWait),
        Just(Request::ListKeys),
    ];
    prop_oneof![
        8 => (request, prop_oneof![Just(1.0), 0.0..1.0]).prop_map(|(request, part)| Act::Send(request, part)),
        2 => (0..100_000usize).prop_map(Act::Take),
        1 => Just(Act::Leave),
    ]
}

proptest! {
    #[test]
    fn memory_stays_under_the_limit(acts in vec((1..8u64, act()), 1..300)) {
        let mut host = Host::new(LIMIT, 8);
        let mut next = 8;
        let mut ids: Vec<ClientId> = (0..8).collect();
        for (who, act) in acts {
            let id = &mut ids[who as usize];
            match act {
                Act::Send(request, part) => {
                    let mut bytes = Vec::new();
                    request.encode(&mut bytes);
                    bytes.truncate((bytes.len() as f64 * part) as usize);
                    bytes.chunks(64 << 10).for_each(|piece| host.step(Input::Received(*id, piece)));
                }
                Act::Take(most) => drop(host.take(*id, most)),
                Act::Leave => {
                    host.step(Input::Gone(*id));
                    *id = next;
                    next += 1;
                    host.step(Input::Accepted(*id));
                    host.step(Input::Received(*id, GREETING));
                }
            }
            // Client 0 makes small requests and reads its replies, so it must always be served.
            host.ask(0, &Request::Ping { nonce: 7 });
            prop_assert_eq!(host.server.unsent(0), 7u32.to_le_bytes());
            host.take(0, usize::MAX);
        }
        for (client, why) in &host.closed {
            prop_assert_ne!(*client, 0, "{}", why);
        }
        // The memory of clients is freed when they disconnect. The table's values remain.
        (0..next).for_each(|client| host.step(Input::Gone(client)));
        prop_assert_eq!(host.server.clients(), 0);
        prop_assert!(host.server.memory() <= LIMIT / 2);
    }
}

/// A client sends many requests at once. The server serves them only as fast as the client reads the replies.
#[test]
fn a_client_that_reads_no_replies_is_not_served() {
    const VALUE: usize = 60_000;
    let mut server = Server::new(ServerLimits { memory: 8 << 20, ..ServerLimits::default() });
    server.step(Input::Accepted(1), NOW);
    let mut bytes = GREETING.to_vec();
    Request::Set { key: b"k".to_vec(), value: vec![1; VALUE] }.encode(&mut bytes);
    (0..5000).for_each(|_| Request::Get { key: b"k".to_vec() }.encode(&mut bytes));
    let mut outputs: VecDeque<_> = server.step(Input::Received(1, &bytes), NOW).into();
    let mut received = 0;
    loop {
        match outputs.pop_front() {
            Some(Output::Send(1)) => {
                let unsent = server.unsent(1).len();
                assert!(unsent <= (1 << 20) + VALUE + 8 && server.memory() < 8 << 20, "{unsent}");
                assert!(unsent <= 1 << 20 || !server.wants(1));
                received += unsent;
                outputs.extend(server.step(Input::Sent(1, unsent), NOW));
            }
            Some(Output::Read(1)) => assert!(server.wants(1)),
            Some(other) => panic!("{other:?}"),
            None if server.wake_at() == Some(NOW) => outputs.extend(server.step(Input::Tick, NOW)),
            None => break,
        }
    }
    assert_eq!(received, 5000 * (VALUE + 8));
    assert!(server.wants(1));
}

/// If there is no memory for a request, the server closes the connection that holds the most. That may be the
/// connection of the request.
#[test]
fn the_connection_that_holds_most_is_closed() {
    let mut host = Host::new(LIMIT, 9);
    let begun = |length: u64| [&[1][..], &1u64.to_le_bytes(), b"k", &length.to_le_bytes()].concat();
    for client in 1..8 {
        host.step(Input::Received(client, &begun(63_000)));
    }
    assert_eq!(host.closed, []);
    host.step(Input::Received(8, &begun(64_000)));
    let [(8, Rejection::Memory { held, limit: LIMIT })] = host.closed[..] else {
        panic!("{:?}", host.closed)
    };
    assert!(held > 64_000, "{held}");
    // Client 0 holds less. Its request is served, because the server closes a connection that holds more.
    host.ask(0, &Request::Wait { keys: vec![vec![b'w'; 8000]; 6] });
    let closed: Vec<_> = host.closed.iter().map(|(client, _)| *client).collect();
    assert!(matches!(closed[..], [8, 1..8]), "{closed:?}");
}

/// A reply that would be too large is refused before it is made.
#[test]
fn a_reply_beyond_the_limits_is_not_made() {
    let mut host = Host::new(LIMIT, 2);
    host.ask(0, &Request::Set { key: b"k".to_vec(), value: vec![1; 60_000] });
    host.ask(1, &Request::MultiGet { keys: vec![b"k".to_vec(); 3] });
    let [(1, Rejection::Refused(_))] = &host.closed[..] else { panic!("{:?}", host.closed) };
    assert_eq!(host.server.clients(), 1);
}
