//! Fragmented and invalid bytes. Fragments change no reply. If bytes are invalid, neither the server nor the client
//! panics, and the server closes only their connection. Lists and lengths above the limits are refused.

use std::{collections::VecDeque, time::Duration};

use crate::GREETING;
use bootstrap::store::machine::{
    Call, Client, ClientId, Failure, Limits, Request, Server, ServerLimits, client, server,
};
use proptest::{collection::vec, prelude::*, sample::Index};

const NOW: Duration = Duration::ZERO;

/// Returns the configuration of the properties: as many cases each as the environment variable `STORE_FUZZ_CASES` says,
/// or 2,500.
fn cases() -> ProptestConfig {
    let cases = std::env::var("STORE_FUZZ_CASES").ok().and_then(|cases| cases.parse().ok());
    ProptestConfig { cases: cases.unwrap_or(2500), ..ProptestConfig::default() }
}

/// Random bytes, most of them small like those of lengths and kinds, or valid requests with up to three changed bytes.
fn garbage() -> impl Strategy<Value = Vec<u8>> {
    let random = vec(prop_oneof![4 => Just(0u8), 3 => 0..20u8, 1 => any::<u8>()], 0..200);
    let changes = vec((any::<Index>(), any::<u8>()), 0..4);
    let changed = (vec(any_request(), 1..5), changes).prop_map(|(requests, changes)| {
        let mut bytes = Vec::new();
        requests.iter().for_each(|request| request.encode(&mut bytes));
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        bytes
    });
    prop_oneof![random, changed]
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 0..40)
}

/// A key, sometimes one of a few, so that requests use the same keys.
fn key() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![vec(0..2u8, 0..2), bytes()]
}

/// A key that holds a number, unless another request has overwritten it.
fn counter() -> impl Strategy<Value = Vec<u8>> {
    key().prop_map(|key| [b"+".as_slice(), &key].concat())
}

/// Any request, including waits.
fn any_request() -> impl Strategy<Value = Request> {
    prop_oneof![
        8 => request(),
        1 => vec(key(), 0..3).prop_map(|keys| Request::Wait { keys }),
        1 => (counter(), -1..3i64).prop_map(|(key, world)| Request::Barrier { key, world }),
    ]
}

/// A request that does not wait.
fn request() -> impl Strategy<Value = Request> {
    let keys = || vec(key(), 0..5);
    prop_oneof![
        (key(), bytes()).prop_map(|(key, value)| Request::Set { key, value }),
        (key(), bytes(), bytes()).prop_map(|(key, expected, new)| Request::CompareSet { key, expected, new }),
        key().prop_map(|key| Request::Get { key }),
        (counter(), any::<i32>()).prop_map(|(key, delta)| Request::Add { key, delta: delta.into() }),
        keys().prop_map(|keys| Request::Check { keys }),
        Just(Request::NumKeys),
        key().prop_map(|key| Request::Delete { key }),
        (key(), bytes()).prop_map(|(key, value)| Request::Append { key, value }),
        keys().prop_map(|keys| Request::MultiGet { keys }),
        vec((key(), bytes()), 0..5).prop_map(|entries| Request::MultiSet { entries }),
        Just(Request::CancelWait),
        any::<u32>().prop_map(|nonce| Request::Ping { nonce }),
        (key(), bytes()).prop_map(|(key, value)| Request::QueuePush { key, value }),
        key().prop_map(|key| Request::QueuePop { key }),
        key().prop_map(|key| Request::QueueLen { key }),
        Just(Request::ListKeys),
    ]
}

/// Returns all bytes that a new server sends to a client that sends `pieces`. Returns `None` if the server closes the
/// connection.
fn answers<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Option<Vec<u8>> {
    let mut server = Server::new(ServerLimits::default());
    server.step(server::Input::Accepted(1), NOW);
    let mut sent = Vec::new();
    for piece in pieces {
        let mut outputs = VecDeque::from(server.step(server::Input::Received(1, piece), NOW));
        loop {
            match outputs.pop_front() {
                Some(server::Output::Send(1)) => outputs.extend(send(&mut server, 1, &mut sent)),
                Some(server::Output::Read(1)) => {}
                Some(server::Output::Close(1, _)) => return None,
                Some(other) => panic!("{other:?}"),
                None if server.wake_at() == Some(NOW) => {
                    outputs.extend(server.step(server::Input::Tick, NOW));
                }
                None => break,
            }
        }
    }
    Some(sent)
}

/// Moves all unsent bytes for a client to `to`, and confirms them. Returns the outputs of the server.
fn send(server: &mut Server, client: ClientId, to: &mut Vec<u8>) -> Vec<server::Output> {
    to.extend(server.unsent(client));
    server.step(server::Input::Sent(client, server.unsent(client).len()), NOW)
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn fragmentation_changes_nothing(requests in vec(any_request(), 0..20), cuts in vec(any::<Index>(), 0..40)) {
        let mut whole = GREETING.to_vec();
        requests.iter().for_each(|request| request.encode(&mut whole));
        let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(whole.len())).collect();
        cuts.extend([0, whole.len()]);
        cuts.sort_unstable();
        let pieces = cuts.windows(2).map(|ends| &whole[ends[0]..ends[1]]);
        let expected = answers([&whole[..]].into_iter());
        prop_assert_eq!(answers(pieces), expected.clone());
        prop_assert_eq!(answers(whole.chunks(1)), expected);
    }

    #[test]
    fn a_server_closes_only_the_connection_that_sends_garbage(
        greets in any::<bool>(),
        pieces in vec(garbage(), 1..5),
        memory in prop_oneof![Just(2 << 30), 100_000..1_000_000usize],
    ) {
        let mut server = Server::new(ServerLimits { memory, ..ServerLimits::default() });
        for client in [1, 2] {
            prop_assert_eq!(server.step(server::Input::Accepted(client), NOW), []);
        }
        // Client 1 waits for a key that the garbage is unlikely to set.
        let mut wait = GREETING.to_vec();
        Request::Wait { keys: vec![b"a key".to_vec()] }.encode(&mut wait);
        prop_assert_eq!(server.step(server::Input::Received(1, &wait), NOW), []);
        if greets {
            prop_assert_eq!(server.step(server::Input::Received(2, GREETING), NOW), []);
        }
        for piece in &pieces {
            for output in server.step(server::Input::Received(2, piece), NOW) {
                prop_assert!(matches!(output, server::Output::Send(2) | server::Output::Close(2, _)), "{:?}", output);
            }
        }
        let mut set = Vec::new();
        Request::Set { key: b"a key".to_vec(), value: Vec::new() }.encode(&mut set);
        // If client 2 holds much memory, the server closes it to make room for client 3.
        let mut others = |input: server::Input<'_>| {
            let mut outputs = server.step(input, NOW);
            outputs.retain(|output| !matches!(output, server::Output::Close(2, _)));
            outputs
        };
        prop_assert_eq!(others(server::Input::Accepted(3)), []);
        let set = [GREETING, &set].concat();
        prop_assert_eq!(others(server::Input::Received(3, &set)), [server::Output::Send(1)]);
        prop_assert_eq!(server.unsent(1), [0]);
    }

    /// A length or a count beyond the limits is refused before the data that it announces arrives. Four kinds of
    /// requests have neither.
    #[test]
    fn a_length_alone_is_enough_to_refuse(kind in 1..19u8, length in (1u64 << 33)..) {
        let bytes = [GREETING, &[kind], &length.to_le_bytes()].concat();
        let strings = !matches!(kind, 7 | 12 | 13 | 17);
        prop_assert!(answers([&bytes[..]].into_iter()).is_none() || !strings);
    }

    #[test]
    fn a_client_ends_every_call_whatever_bytes_arrive(
        greets in any::<bool>(),
        request in request(),
        waits in any::<bool>(),
        peeks in any::<bool>(),
        pieces in vec(garbage(), 0..6),
    ) {
        let mut machine = Client::new(Limits::default(), Duration::from_secs(1), 7);
        let mut ended = 0;
        let mut take = |outputs: Vec<client::Output>| {
            ended += outputs.iter().filter(|output| matches!(output, client::Output::Done(_))).count();
        };
        take(machine.step(client::Input::Connected(Duration::from_secs(1)), NOW));
        let mut calls = 1;
        if greets {
            take(machine.step(client::Input::Received(&7u32.to_le_bytes()), NOW));
            let (keys, deadline) = (vec![b"k".to_vec()], Duration::from_millis(1));
            let call = match waits || peeks {
                true => Call::WhenThere { keys, then: Some(request), peeks, deadline },
                false => Call::Now(request),
            };
            take(machine.step(client::Input::Call(call), NOW));
            calls += 1;
        }
        for piece in &pieces {
            take(machine.step(client::Input::Received(piece), NOW));
        }
        let mut now = NOW;
        while let Some(due) = machine.wake_at() {
            now = now.max(due);
            take(machine.step(client::Input::Tick, now));
        }
        prop_assert_eq!(ended, calls);
        // After all calls have ended, the client refuses a further call unless it is idle.
        if !machine.is_idle() {
            let outputs = machine.step(client::Input::Call(Call::Now(Request::NumKeys)), now);
            prop_assert_eq!(outputs, [client::Output::Done(Err(Failure::Busy))]);
        }
    }
}

/// The host alone decides how long the reply to `ListKeys` is. So the client checks its memory limit before it stores
/// each part of the list.
#[test]
fn a_list_that_takes_more_memory_than_allowed_is_refused() {
    let limits = Limits { request_bytes: 1 << 20, ..Limits::default() };
    let refused = |answer: &[u8]| {
        let mut machine = Client::new(limits, Duration::from_secs(1), 7);
        machine.step(client::Input::Connected(Duration::from_secs(1)), NOW);
        machine.step(client::Input::Received(&7u32.to_le_bytes()), NOW);
        machine.step(client::Input::Call(Call::Now(Request::ListKeys)), NOW);
        match &machine.step(client::Input::Received(answer), NOW)[..] {
            [] => None,
            [client::Output::Done(Err(Failure::Protocol(why)))] => Some(why.clone()),
            other => panic!("{other:?}"),
        }
    };
    for count in [20_000, 1 << 40, u64::MAX] {
        let why = refused(&count.to_le_bytes()).unwrap();
        assert!(why.contains("1048576 are allowed") && why.contains("request_bytes"), "{why}");
    }
    // 8,000 empty keys take most of the memory that is allowed.
    assert_eq!(refused(&8000u64.to_le_bytes()), None);
    let longer = [8000u64, 0, 300_000].map(u64::to_le_bytes).concat();
    assert!(refused(&longer).unwrap().contains("request_bytes"));
}
