//! The store over TCP: waits, dead and missing hosts, other protocols, limits, the bytes of the protocol, and hosts
//! that wait for workers.

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    thread,
    time::Duration,
};

use super::ports::reserved_port;
use crate::soon;
use bootstrap::store::{
    Deadline, Store, StoreError, TcpStore,
    machine::{Limits, ServerLimits},
};

const LONG: Duration = Duration::from_secs(60);

fn pair() -> (TcpStore, TcpStore) {
    let host = TcpStore::host(0).unwrap();
    let client = TcpStore::connect(&host.address(), soon()).unwrap();
    (host, client)
}

/// Reads until the other end closes the connection, and returns the bytes read.
fn until_closed(stream: &mut TcpStream) -> Vec<u8> {
    stream.set_read_timeout(Some(LONG)).unwrap();
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Ok(_) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => bytes,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn threads_wait_on_one_client_at_the_same_time() {
    let (host, client) = pair();
    thread::scope(|scope| {
        // There are more waits than connections that a client keeps for later calls. At first only the last wait can
        // end. Each thread then sets the key for which the previous one waits.
        let waits: Vec<_> = (0..12)
            .map(|i| {
                let client = &client;
                scope.spawn(move || {
                    let value = client.get(&format!("k{i}"), soon()).unwrap();
                    if i > 0 {
                        client.set(&format!("k{}", i - 1), &value).unwrap();
                    }
                    value
                })
            })
            .collect();
        host.set("k11", b"last").unwrap();
        assert!(waits.into_iter().all(|wait| wait.join().unwrap() == b"last"));
    });
}

#[test]
fn the_hosts_death_ends_every_wait() {
    let (host, client) = pair();
    let waiting = {
        let client = client.clone();
        thread::spawn(move || client.get("never", soon()))
    };
    client.set("k", b"v").unwrap();
    drop(host);
    let error = waiting.join().unwrap().unwrap_err();
    assert!(
        matches!(&error, StoreError::HostDied { operation, .. } if operation.contains("never")),
        "{error}"
    );
    assert!(matches!(client.set("k", b"v"), Err(StoreError::HostDied { .. })));
}

#[test]
fn a_restarted_host_serves_its_old_clients() {
    let (_reserved, port) = reserved_port();
    let host = TcpStore::host(port).unwrap();
    let client = TcpStore::connect(&host.address(), soon()).unwrap();
    client.set("k", b"v").unwrap();
    drop(host);
    assert!(matches!(client.set("k", b"v"), Err(StoreError::HostDied { .. })));
    let _host = TcpStore::host(port).unwrap();
    client.set("k", b"v").unwrap();
}

#[test]
fn a_port_in_use_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    match TcpStore::host(address.port()) {
        Err(StoreError::PortInUse { address: named }) => assert_eq!(named, address.to_string()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn nobody_at_the_address_is_an_error_at_the_deadline() {
    let (_reserved, port) = reserved_port();
    let address = format!("127.0.0.1:{port}");
    let error = TcpStore::connect(&address, Deadline::after(Duration::from_millis(50))).unwrap_err();
    assert!(matches!(error, StoreError::Unreachable { .. }), "{error}");
    assert!(matches!(TcpStore::connect("127.0.0.1", soon()), Err(StoreError::Address { .. })));
}

#[test]
fn a_process_that_is_no_store_is_recognised() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let web = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
        listener
    });
    let error = TcpStore::connect(&address, soon()).unwrap_err();
    assert!(matches!(error, StoreError::NotAStore { .. }), "{error}");
    // The listener still accepts connections, but sends nothing.
    let _silent = web.join().unwrap();
    let error = TcpStore::connect(&address, Deadline::after(Duration::from_millis(50))).unwrap_err();
    assert!(matches!(error, StoreError::NotAStore { .. }), "{error}");
    assert!(error.to_string().contains("unless its host is overloaded"), "{error}");
}

/// The host answers the greeting and nothing else, like a process that was stopped after it.
#[test]
fn a_silent_host_and_a_missing_key_are_different_errors() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let host = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut greeting = [0; 10];
        stream.read_exact(&mut greeting).unwrap();
        stream.write_all(&greeting[6..]).unwrap();
        (stream, listener)
    });
    let options = TcpStore::options().patience(Duration::from_millis(50));
    let client = options.connect(&address, soon()).unwrap();
    let _silent = host.join().unwrap();
    let error = client.get("key", Deadline::after(Duration::from_millis(20))).unwrap_err();
    assert!(
        matches!(&error, StoreError::Unresponsive { operation, .. } if operation.contains("key")),
        "{error}"
    );
    assert!(matches!(client.set("key", b""), Err(StoreError::Unresponsive { .. })));
}

#[test]
fn strangers_are_rejected_at_once() {
    let (host, client) = pair();
    for greeting in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"S", b"\0\xce\xf7\x85\xff", b"\0\xce\xf8"] {
        let mut stranger = TcpStream::connect(host.address()).unwrap();
        stranger.write_all(greeting).unwrap();
        assert_eq!(until_closed(&mut stranger), b"");
    }
    let limits = ServerLimits { greeting: Duration::from_millis(20), ..ServerLimits::default() };
    let impatient = TcpStore::options().limits(limits).host(0, soon()).unwrap();
    let mut silent = TcpStream::connect(impatient.address()).unwrap();
    silent.write_all(b"\0\xce").unwrap();
    assert_eq!(until_closed(&mut silent), b"");
    impatient.set("k", b"v").unwrap();
    assert_eq!(client.add("n", 1).unwrap(), 1);
}

/// Parses a readable form of bytes: two hexadecimal digits are a byte, a signed decimal is an `i64`, `#` and
/// a decimal are a `u32`, and text in quotes is a string, which follows its length as a `u64`.
fn bytes(text: &str) -> Vec<u8> {
    let token = |token: &str| match token.as_bytes()[0] {
        b'"' => {
            let string = token.trim_matches('"').as_bytes();
            [&(string.len() as u64).to_le_bytes(), string].concat()
        }
        b'#' => token[1..].parse::<u32>().unwrap().to_le_bytes().to_vec(),
        b'+' | b'-' => token.parse::<i64>().unwrap().to_le_bytes().to_vec(),
        _ => vec![u8::from_str_radix(token, 16).unwrap()],
    };
    text.split_whitespace().flat_map(token).collect()
}

/// Requests in PyTorch's protocol, each group with the answers of PyTorch's server, in the form that [`bytes`] parses.
const DIALOGUE: &[(&str, &str)] = &[
    ("00 ce f7 85 3c 0d #1337", "#1337"),
    (r#"01 "/k" "abc" 03 "/k""#, r#""abc""#),
    (r#"04 "/n" +5"#, "+5"),
    (r#"04 "/n" -2"#, "+3"),
    (r#"05 +2 "/k" "/n""#, "00"),
    (r#"05 +1 "/x""#, "01"),
    // A wait, a ping that is answered during the wait, and the cancellation of the wait. Then a wait for no keys, which
    // ends at once, and a cancellation.
    (r#"06 +1 "/x" 0d #1 0c"#, "#1 01"),
    ("06 +0 0c", "00 01"),
    // Compare and set, four cases: a value is expected but the key is absent, no value is expected and the key is
    // absent, another value is expected, and the present value is expected.
    (r#"02 "c" "e" "n""#, r#""e""#),
    (r#"02 "c" "" "n""#, r#""n""#),
    (r#"02 "c" "x" "m""#, r#""n""#),
    (r#"02 "c" "n" "m""#, r#""m""#),
    ("07", "+3"),
    (r#"08 "c" 08 "c""#, "+1 +0"),
    (r#"09 "/k" "d" 0a +1 "/k""#, r#""abcd""#),
    ("0a +0 0d #7", "#7"),
    (r#"0b +1 "m" "1" 03 "m""#, r#""1""#),
    // A check counts a queue with elements as a key. But reading it gives no bytes, and there is nothing to delete.
    (r#"0e "q" "a" 10 "q" 05 +1 "q""#, "+1 00"),
    (r#"03 "q" 08 "q""#, r#""" +0"#),
    (r#"0f "q" 0f "q""#, r#"+1 "a" +0"#),
    (r#"08 "/k" 08 "/n" 11"#, r#"+1 +1 +1 "m""#),
    // The arrival at a barrier counts even if its wait is cancelled.
    (r#"12 "b" +2 0c"#, "01"),
    (r#"12 "b" +2 03 "b""#, r#"00 "2""#),
];

/// Runs [`DIALOGUE`] with the server at `address`, in pieces of at most `fragment` bytes. Returns the open connection.
pub(crate) fn converse_in_bytes(address: &str, fragment: usize) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    for (sent, expected) in DIALOGUE {
        for piece in bytes(sent).chunks(fragment) {
            stream.write_all(piece).unwrap();
        }
        let expected = bytes(expected);
        let mut reply = vec![0; expected.len()];
        stream.read_exact(&mut reply).unwrap();
        assert_eq!(reply, expected, "in answer to {sent}");
    }
    stream
}

#[test]
fn the_wire_is_pytorchs() {
    for fragment in [1, 3, 1 << 10] {
        let host = TcpStore::host(0).unwrap();
        let mut stream = converse_in_bytes(&host.address(), fragment);
        // An unknown request, and a second greeting.
        stream.write_all(&bytes("13")).unwrap();
        assert_eq!(until_closed(&mut stream), b"");
        let mut twice = TcpStream::connect(host.address()).unwrap();
        twice.write_all(&bytes("00 ce f7 85 3c 00 ce f7 85 3c")).unwrap();
        assert_eq!(until_closed(&mut twice), b"");
    }
}

#[test]
fn large_values_pass_and_larger_ones_are_refused() {
    let (_host, client) = pair();
    let values: Vec<_> = (0..3u8).map(|i| vec![i; 8 << 20]).collect();
    for (i, value) in values.iter().enumerate() {
        client.set(&i.to_string(), value).unwrap();
    }
    assert!(client.multi_get(&["0", "1", "2"], soon()).unwrap() == values);
    let error = client.set("3", &vec![0; (8 << 20) + 1]).unwrap_err();
    assert!(matches!(error, StoreError::TooLarge { .. }), "{error}");
    assert!(matches!(client.append("2", b"x"), Err(StoreError::Refused { .. })));
    assert_eq!(client.num_keys().unwrap(), 3);
}

#[test]
fn a_hosts_refusal_is_not_its_death() {
    let sizes = Limits { value_bytes: 16, ..Limits::default() };
    let limits = ServerLimits { sizes, ..ServerLimits::default() };
    let host = TcpStore::options().limits(limits).host(0, soon()).unwrap();
    let client = TcpStore::connect(&host.address(), soon()).unwrap();
    let error = client.set("key", &[0; 17]).unwrap_err();
    assert!(
        matches!(&error, StoreError::Refused { operation, .. } if operation.contains("\"key\"")),
        "{error}"
    );
    client.set("key", b"text").unwrap();
    assert!(matches!(client.add("key", 1), Err(StoreError::Refused { .. })));
    assert_eq!(client.get("key", soon()).unwrap(), b"text");
}

#[test]
fn more_clients_than_allowed_are_turned_away() {
    let limits = ServerLimits { clients: 2, ..ServerLimits::default() };
    let host = TcpStore::options().limits(limits).host(0, soon()).unwrap();
    let second = TcpStore::connect(&host.address(), soon()).unwrap();
    let mut third = TcpStream::connect(host.address()).unwrap();
    assert_eq!(until_closed(&mut third), b"");
    drop(second);
    TcpStore::connect(&host.address(), soon()).unwrap();
}

/// A connected client needs a further connection, which the host rejects at first because it has too many clients.
#[test]
fn a_rejected_client_connects_again() {
    let limits = ServerLimits { clients: 3, ..ServerLimits::default() };
    let host = TcpStore::options().limits(limits).host(0, soon()).unwrap();
    let client = TcpStore::connect(&host.address(), soon()).unwrap();
    let full = TcpStore::connect(&host.address(), soon()).unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| client.get("late", soon()));
        // While `get` uses the client's first connection, each of these calls needs a second one. They are repeated
        // until the host has rejected one.
        while host.report().unwrap().rejected == 0 {
            if let Err(error) = client.wait(&["never"], Deadline::after(Duration::from_millis(1))) {
                let expected = matches!(error, StoreError::Timeout { .. } | StoreError::TurnedAway { .. });
                assert!(expected, "{error}");
            }
        }
        let setting = scope.spawn(|| client.set("late", b"value"));
        drop(full);
        setting.join().unwrap().unwrap();
        assert_eq!(waiting.join().unwrap().unwrap(), b"value");
    });
}

#[test]
fn a_host_with_workers_waits_for_them() {
    let (_reserved, port) = reserved_port();
    let address = format!("127.0.0.1:{port}");
    let workers: Vec<_> = (0..3)
        .map(|_| {
            let address = address.clone();
            thread::spawn(move || TcpStore::options().workers(4).connect(&address, soon()))
        })
        .collect();
    let host = TcpStore::options().workers(4).host(port, soon()).unwrap();
    for worker in workers {
        worker.join().unwrap().unwrap();
    }
    assert_eq!(host.drain(soon()), 0);
    let alone = TcpStore::options().workers(2).host(0, Deadline::after(Duration::from_secs(2)));
    assert!(matches!(alone, Err(StoreError::Workers { arrived: 1, expected: 2, .. })), "{alone:?}");
}
