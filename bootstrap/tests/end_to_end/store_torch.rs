//! This crate's stores together with PyTorch's. Clients of each connect to hosts of the other, and both use one file.
//! The bytes of both servers are compared. The tests are skipped without a Python that can import `torch.distributed`.

use std::{
    io::{BufRead, BufReader, Lines, Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    process::{Child, ChildStdout, Stdio},
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Duration,
};

use super::{
    ports::reserved_port,
    python::{python, torch_is_there},
    store_tcp::converse_in_bytes,
};
use crate::soon;
use bootstrap::store::{Deadline, FileStore, Store, StoreError, TcpStore, machine::Request};

/// Returns true if PyTorch is installed and its TCPStore has the request for barriers. Otherwise prints "skipped".
/// PyTorch 2.11 has no such request.
fn torchs_store_has_barriers() -> bool {
    if !torch_is_there() {
        return false;
    }
    let program = "from torch.distributed import TCPStore; TCPStore.barrier";
    let has =
        python().args(["-c", program]).stderr(Stdio::null()).status().is_ok_and(|status| status.success());
    if !has {
        println!(
            "skipped: this PyTorch's TCPStore has no barrier; `cargo xtask torch-env` installs one that has"
        );
    }
    has
}

/// A Python process that runs `store_torch_peer.py`.
struct Peer {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Peer {
    fn start(args: &[&str]) -> Self {
        // The script is embedded, because the test's binary also runs without the source tree.
        let script = include_str!("store_torch_peer.py");
        let mut child = python()
            .args(["-c", script])
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    fn line(&mut self) -> String {
        self.lines.next().expect("the peer has failed").unwrap()
    }

    fn finish(mut self) {
        assert_eq!(self.line(), "agreed");
        drop(self.child.stdin.take());
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The counterpart of `converse` in `store_torch_peer.py`. `queues` says whether the peer's store has queues.
fn converse(store: &dyn Store, queues: bool) -> Result<(), StoreError> {
    store.set("rs/hello", b"from rust")?;
    assert_eq!(store.get("py/hello", soon())?, b"from python");

    store.add("count", 37)?;
    store.set("rs/counted", b"")?;
    store.wait(&["py/counted"], soon())?;
    assert_eq!(store.add("count", 0)?, 42);

    let vote = store.compare_set("vote", b"", b"rust")?;
    store.set("rs/vote", &vote)?;
    assert_eq!(store.get("py/vote", soon())?, vote);
    assert_eq!(store.compare_set("vote", b"neither", b"x")?, vote);
    assert_eq!(store.compare_set("absent", b"something", b"x")?, b"something");

    store.multi_set(&[("rs/a", b"1"), ("rs/b", b"2")])?;
    assert_eq!(store.multi_get(&["py/a", "py/b"], soon())?, [b"1", b"2"]);
    assert_eq!(store.get("py/log", soon())?, b"first second");

    assert!(!store.check(&["vote", "never"])?);
    for deadline in [Deadline::now(), Deadline::after(Duration::from_millis(50))] {
        let late = store.wait(&["vote", "never", "nor this"], deadline).unwrap_err();
        assert!(
            matches!(&late, StoreError::Timeout { keys, .. } if *keys == ["never", "nor this"]),
            "{late}"
        );
    }

    store.set("rs/gone", b"")?;
    assert!(store.delete("rs/gone")?);
    assert!(!store.delete("rs/gone")?);
    let large = vec![0; 8 << 20];
    store.set("rs/large", &large)?;
    assert!(store.get("py/large", soon())? == large);

    if queues {
        assert_eq!(store.queue_pop("to rust", soon())?, b"ping");
        assert_eq!(store.queue_try_pop("to rust")?, None);
        store.queue_push("to python", b"pong")?;
        let keys = store.list_keys()?;
        assert!(keys.contains(&"py/hello".into()) && keys.contains(&"rs/hello".into()), "{keys:?}");
        assert!(store.num_keys()? >= keys.len() as u64);
    }

    store.set("rs/done", b"")?;
    store.wait(&["py/done"], soon())
}

#[test]
fn torch_connects_to_our_host() {
    if !torch_is_there() {
        return;
    }
    let (_reserved, port) = reserved_port();
    let peer = Peer::start(&["client", &port.to_string()]);
    let host = TcpStore::options().workers(2).host(port, soon()).unwrap();
    converse(&host, true).unwrap();
    peer.finish();
    assert_eq!(host.drain(soon()), 0);
}

#[test]
fn we_connect_to_torchs_hosts() {
    if !torch_is_there() {
        return;
    }
    for (role, queues) in [("libuv", true), ("legacy", false)] {
        let mut peer = Peer::start(&[role]);
        let address = format!("127.0.0.1:{}", peer.line());
        let store = TcpStore::options().workers(2).connect(&address, soon()).unwrap();
        converse(&store, queues).unwrap();
        // Several threads wait for an absent key at the same time. None may get a value before the key is set.
        thread::scope(|scope| {
            let late: Vec<_> = (0..4).map(|_| scope.spawn(|| store.get("late", soon()).unwrap())).collect();
            thread::sleep(Duration::from_millis(100));
            store.set("late", b"value").unwrap();
            late.into_iter().for_each(|late| assert_eq!(late.join().unwrap(), b"value"));
        });
        peer.finish();
        let error = store.set("k", b"v").unwrap_err();
        assert!(matches!(error, StoreError::HostDied { .. }), "{error}");
    }
}

#[test]
fn one_file_serves_torch_and_us() {
    if !torch_is_there() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let store = FileStore::options().workers(2).open(&path).unwrap();
    // PyTorch's FileStore has no queues, and must ignore their records.
    store.queue_push("queue", b"element").unwrap();
    assert_eq!(store.queue_pop("queue", soon()).unwrap(), b"element");
    let peer = Peer::start(&["file", path.to_str().unwrap()]);
    converse(&store, false).unwrap();
    drop(store);
    assert!(path.exists());
    peer.finish();
    // Both stores count how often the file is closed. PyTorch's store was the last, and has removed the file.
    assert!(!path.exists());
}

/// The bytes that the client has sent over one connection, and the bytes that it has received.
type Wire = (Vec<u8>, Vec<u8>);

/// Forwards connections to the address `upstream`, and records their bytes. Returns the port that accepts connections,
/// and the records of all connections.
fn recorder(upstream: String) -> (u16, Arc<Mutex<Vec<Wire>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let wires = Arc::new(Mutex::new(Vec::new()));
    let recorded = wires.clone();
    thread::spawn(move || {
        for (number, client) in listener.incoming().enumerate() {
            let (client, server) = (client.unwrap(), TcpStream::connect(&upstream).unwrap());
            recorded.lock().unwrap().push(Wire::default());
            let both = [(&client, &server, true), (&server, &client, false)];
            for (from, to, up) in
                both.map(|(from, to, up)| (from.try_clone().unwrap(), to.try_clone().unwrap(), up))
            {
                let recorded = recorded.clone();
                thread::spawn(move || {
                    pass_on(from, to, |bytes| {
                        let (sent, answered) =
                            &mut recorded.lock().unwrap_or_else(PoisonError::into_inner)[number];
                        if up { sent } else { answered }.extend_from_slice(bytes);
                    })
                });
            }
        }
    });
    (port, wires)
}

/// Copies bytes from one connection to the other until either ends, and then ends the sending side of the other. Calls
/// `record` for the bytes before it sends them.
fn pass_on(mut from: TcpStream, mut to: TcpStream, mut record: impl FnMut(&[u8])) {
    let mut bytes = vec![0; 64 << 10];
    while let Ok(length @ 1..) = from.read(&mut bytes) {
        record(&bytes[..length]);
        if to.write_all(&bytes[..length]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

/// The requests of PyTorch's client for the calls of `every_request` in `store_torch_peer.py`, after its greeting.
fn every_request() -> Vec<Request> {
    let key = |key: &str| [b"/", key.as_bytes()].concat();
    let keys = |keys: &[&str]| keys.iter().map(|name| key(name)).collect::<Vec<_>>();
    let bytes = |text: &str| text.as_bytes().to_vec();
    vec![
        Request::Set { key: key("k"), value: bytes("abc") },
        Request::ListKeys,
        Request::Wait { keys: keys(&["k"]) },
        Request::Get { key: key("k") },
        Request::Add { key: key("n"), delta: -5 },
        Request::CompareSet { key: key("c"), expected: bytes(""), new: bytes("x") },
        Request::CompareSet { key: key("c"), expected: bytes("q"), new: bytes("y") },
        Request::Check { keys: keys(&["k", "no"]) },
        Request::Wait { keys: keys(&["k", "n"]) },
        Request::NumKeys,
        Request::Delete { key: key("c") },
        Request::Append { key: key("k"), value: bytes("d") },
        Request::MultiSet { entries: vec![(key("m"), bytes("1")), (key("l"), bytes("22"))] },
        Request::Wait { keys: keys(&["k", "m"]) },
        Request::MultiGet { keys: keys(&["k", "m"]) },
        Request::QueuePush { key: key("q"), value: bytes("v") },
        Request::QueueLen { key: key("q") },
        Request::Wait { keys: keys(&["q"]) },
        Request::QueuePop { key: key("q") },
        Request::Barrier { key: key("b"), world: 1 },
        Request::Wait { keys: keys(&["never"]) },
        Request::CancelWait,
        Request::Delete { key: key("k") },
    ]
}

/// PyTorch's client makes each of the 19 types of requests (its greeting is two of them) to its own server and to this
/// crate's server. Both must receive and send the same bytes.
#[test]
fn torchs_client_finds_the_same_bytes_at_our_host() {
    if !torchs_store_has_barriers() {
        return;
    }
    let mut torch = Peer::start(&["serve"]);
    let ours = TcpStore::host(0).unwrap();
    let servers = [format!("127.0.0.1:{}", torch.line()), ours.address()];
    let [(to_torch, at_torch), (to_us, at_us)] = servers.map(recorder);
    let client = Peer::start(&["wire", &to_torch.to_string(), &to_us.to_string()]);
    let mut expected = crate::GREETING.to_vec();
    let greeting = Request::Ping { nonce: client.child.id() };
    [vec![greeting], every_request()].concat().iter().for_each(|request| request.encode(&mut expected));
    client.finish();
    torch.finish();
    let (at_torch, at_us) = (at_torch.lock().unwrap(), at_us.lock().unwrap());
    assert_eq!((at_torch.len(), at_us.len()), (1, 1));
    assert_eq!(at_torch[0].0, expected, "what PyTorch's client sends to its own server");
    assert_eq!(*at_us, *at_torch);
}

/// PyTorch's server gives the answers that the tests of this crate's server expect, to all 19 types of requests.
#[test]
fn torchs_server_answers_as_ours() {
    if !torchs_store_has_barriers() {
        return;
    }
    let mut torch = Peer::start(&["serve"]);
    // PyTorch's server accepts the greeting only in one piece.
    let stream = converse_in_bytes(&format!("127.0.0.1:{}", torch.line()), 1 << 10);
    drop(stream);
    torch.finish();
}
