//! Hosts and clients with a secret. Clients that do not know the secret are rejected, and hosts that do not know it are
//! not trusted. Debug output does not show secrets.

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    thread,
    time::Duration,
};

use crate::soon;
use bootstrap::store::{
    Deadline, Distrust, FileStore, HashStore, Secret, Store, StoreError, TcpOptions, TcpStore,
    machine::{Client, Failure, Limits, Rejection, Server, ServerLimits, client, server},
};
use proptest::{collection::vec, prelude::*};

use super::python::{python, torch_is_there};

fn with(secret: &str) -> TcpOptions {
    TcpStore::options().secret(Secret::new(secret).unwrap())
}

const OURS: &str = "correct horse battery staple";

fn distrust(store: Result<TcpStore, StoreError>) -> Distrust {
    match store {
        Err(StoreError::Distrusted { source, .. }) => source,
        other => panic!("{other:?}"),
    }
}

#[test]
fn only_clients_with_the_secret_are_served() {
    let host = with(OURS).host(0, soon()).unwrap();
    let client = with(OURS).connect(&host.address(), soon()).unwrap();
    client.set("key", b"value").unwrap();
    assert_eq!(host.get("key", soon()).unwrap(), b"value");
    assert_eq!(distrust(TcpStore::connect(&host.address(), soon())), Distrust::Wanted);
    let other = with("correct horse battery stable");
    assert_eq!(distrust(other.connect(&host.address(), soon())), Distrust::Refused);
    let why: Vec<_> = host.report().unwrap().rejections.into_iter().map(|(_, why)| why).collect();
    assert_eq!(why, [Rejection::NoSecret, Rejection::WrongSecret]);
    // Further connections of the client are served too.
    thread::scope(|scope| {
        let waits: Vec<_> = (0..3).map(|_| scope.spawn(|| client.get("late", soon()).unwrap())).collect();
        client.set("late", b"").unwrap();
        waits.into_iter().for_each(|wait| assert_eq!(wait.join().unwrap(), b""));
    });
}

#[test]
fn a_host_without_the_secret_is_not_trusted() {
    let host = TcpStore::host(0).unwrap();
    assert_eq!(distrust(with(OURS).connect(&host.address(), soon())), Distrust::NotKept);
    // A false host sends a wrong proof over the first connection, and nothing over the second.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let pretending = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.read_exact(&mut [0; 37]).unwrap();
        stream.write_all(&[1; 33]).unwrap();
        stream.read_exact(&mut [0; 32]).unwrap();
        stream.write_all(&[1; 33]).unwrap();
        listener
    });
    assert_eq!(distrust(with(OURS).connect(&address, soon())), Distrust::Unproven);
    let _silent = pretending.join().unwrap();
    let brief = Deadline::after(Duration::from_millis(50));
    assert_eq!(distrust(with(OURS).connect(&address, brief)), Distrust::Unanswered);
}

#[test]
fn a_secret_is_long_and_not_shown() {
    assert!(matches!(Secret::new("short"), Err(StoreError::Argument(_))));
    assert_eq!(format!("{:?}", with(OURS)).find("horse"), None);
}

/// Debug output omits the random bytes that server and client get for their challenges. It also omits the contents of
/// stores, because ranks publish tokens there.
#[test]
fn nothing_secret_is_shown_for_debugging() {
    let secret = Secret::new(OURS).unwrap();
    let shown = |secret: &[u8], shown: String| {
        let list = format!("{secret:?}");
        let text = String::from_utf8_lossy(secret);
        assert!(!shown.contains(list.trim_matches(['[', ']'])) && !shown.contains(&*text), "{shown}");
    };
    let seed = [171; 32];
    shown(&seed, format!("{:?}", Server::with_secret(ServerLimits::default(), secret.clone(), seed)));
    let machine = Client::new(Limits::default(), Duration::from_secs(1), 7);
    shown(&seed, format!("{:?}", machine.with_secret(secret, seed)));
    let token = b"a token of a rank";
    let folder = tempfile::tempdir().unwrap();
    let file = FileStore::open(folder.path().join("store")).unwrap();
    let (hash, host) = (HashStore::new(), with(OURS).host(0, soon()).unwrap());
    let client = with(OURS).connect(&host.address(), soon()).unwrap();
    for store in [&file as &dyn Store, &hash, &host, &client] {
        store.set("key", token).unwrap();
        assert_eq!(store.get("key", soon()).unwrap(), token);
    }
    [format!("{file:?}"), format!("{hash:?}"), format!("{host:?}"), format!("{client:?}")]
        .into_iter()
        .for_each(|text| shown(token, text));
}

/// An attacker repeats the bytes that a client sent in an earlier greeting. The host refuses the old proof like any
/// wrong proof.
#[test]
fn a_replayed_proof_is_refused() {
    let host = with(OURS).host(0, soon()).unwrap();
    let mut machine = client();
    let mut stream = TcpStream::connect(host.address()).unwrap();
    let mut sent = Vec::new();
    let mut outputs = machine.step(client::Input::Connected(Duration::MAX), Duration::ZERO);
    while let Some(output) = outputs.pop() {
        match output {
            client::Output::Send(bytes) => {
                stream.write_all(&bytes).unwrap();
                sent.extend(bytes);
            }
            client::Output::Done(outcome) => assert_eq!(outcome, Ok(None)),
        }
        while outputs.is_empty() && !machine.is_idle() {
            let mut bytes = [0; 64];
            let length = stream.read(&mut bytes).unwrap();
            outputs = machine.step(client::Input::Received(&bytes[..length]), Duration::ZERO);
        }
    }
    let (greeting, proof) = (&sent[..37], &sent[37..69]);
    for replayed in [proof.to_vec(), vec![0; 32]] {
        let mut stream = TcpStream::connect(host.address()).unwrap();
        stream.write_all(greeting).unwrap();
        stream.read_exact(&mut [0; 33]).unwrap();
        stream.write_all(&replayed).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        assert_eq!(answer, [0]);
    }
}

fn client() -> Client {
    Client::new(Limits::default(), Duration::from_secs(1), 7).with_secret(Secret::new(OURS).unwrap(), [3; 32])
}

/// Runs a greeting between a client with the secret [`OURS`] and a server with `secret`. All bytes arrive in pieces.
/// `lengths` contains the maximum sizes of the pieces, and is used repeatedly. If `changed` is given, the server's byte
/// at this index is changed in transit. Returns the client's result.
fn greet(secret: &str, lengths: &[usize], changed: Option<usize>) -> Result<(), Failure> {
    const NOW: Duration = Duration::ZERO;
    let mut host = Server::with_secret(ServerLimits::default(), Secret::new(secret).unwrap(), [5; 32]);
    host.step(server::Input::Accepted(1), NOW);
    let mut machine = client();
    let mut lengths = lengths.iter().cycle().copied();
    let mut outputs = machine.step(client::Input::Connected(Duration::from_secs(1)), NOW);
    let mut answered = 0;
    loop {
        let mut down = Vec::new();
        for output in std::mem::take(&mut outputs) {
            let bytes = match output {
                client::Output::Send(bytes) => bytes,
                client::Output::Done(outcome) => return outcome.map(drop),
            };
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                let (piece, after) = rest.split_at(lengths.next().unwrap_or(1).min(rest.len()));
                rest = after;
                for output in host.step(server::Input::Received(1, piece), NOW) {
                    match output {
                        server::Output::Send(_) => {
                            down.extend(host.unsent(1));
                            host.step(server::Input::Sent(1, host.unsent(1).len()), NOW);
                        }
                        server::Output::Close(_, why) => down.extend(why.last_words()),
                        server::Output::Read(_) => {}
                    }
                }
            }
        }
        assert!(!down.is_empty(), "both wait");
        if let Some(byte) = changed.and_then(|at| down.get_mut(at.checked_sub(answered)?)) {
            *byte ^= 2;
        }
        answered += down.len();
        let mut rest = &down[..];
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(lengths.next().unwrap_or(1).min(rest.len()));
            rest = after;
            outputs.extend(machine.step(client::Input::Received(piece), NOW));
        }
    }
}

proptest! {
    #[test]
    fn a_greeting_may_come_in_pieces(lengths in vec(1..40usize, 1..20)) {
        prop_assert_eq!(greet(OURS, &lengths, None), Ok(()));
        prop_assert_eq!(greet("another secret of theirs", &lengths, None), Err(Failure::Distrust(Distrust::Refused)));
    }

    /// The host's part of a greeting: a status in byte 0, a challenge in bytes 1 to 32, a status in byte 33, a proof in
    /// bytes 34 to 65, and a nonce in bytes 66 to 69.
    #[test]
    fn a_changed_byte_is_found(at in 0..70usize) {
        let outcome = greet(OURS, &[100], Some(at));
        match at {
            1..=32 => prop_assert_eq!(outcome, Err(Failure::Distrust(Distrust::Refused))),
            34..=65 => prop_assert_eq!(outcome, Err(Failure::Distrust(Distrust::Unproven))),
            _ => prop_assert!(matches!(outcome, Err(Failure::Protocol(_))), "{:?}", outcome),
        }
    }
}

/// PyTorch's stores have no secrets: a host with a secret rejects its clients, and a client with a secret does not
/// trust its servers.
#[test]
fn torch_knows_no_secret() {
    if !torch_is_there() {
        return;
    }
    let host = with(OURS).host(0, soon()).unwrap();
    let port = host.address().rsplit(':').next().unwrap().to_owned();
    let script = "
import sys, datetime
from torch.distributed import TCPStore
if sys.argv[1] == 'client':
    try:
        TCPStore('127.0.0.1', int(sys.argv[2]), is_master=False, timeout=datetime.timedelta(seconds=30))
    except Exception as error:
        print('refused', error)
else:
    store = TCPStore('127.0.0.1', 0, is_master=True, use_libuv=True)
    print(store.port, flush=True)
    sys.stdin.read()
";
    let client = python().args(["-c", script, "client", &port]).output().unwrap();
    let said = String::from_utf8_lossy(&client.stdout).into_owned();
    assert!(said.starts_with("refused"), "{said}");
    let (_, why) = host.report().unwrap().rejections.pop_back().unwrap();
    assert_eq!(why, Rejection::NoSecret);

    let mut torch = python();
    torch
        .args(["-c", script, "host"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped());
    let mut torch = torch.spawn().unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(torch.stdout.take().unwrap()), &mut line)
        .unwrap();
    let address = format!("127.0.0.1:{}", line.trim());
    let store = with(OURS).connect(&address, Deadline::after(Duration::from_secs(2)));
    let _ = torch.kill();
    torch.wait().unwrap();
    assert_eq!(distrust(store), Distrust::Unanswered);
}
