//! Our store and PyTorch's, each as host of the other. Needs a Python that can import torch: `python3`, or what
//! the variable `PYTHON` names.

use std::{
    env,
    io::{BufRead, BufReader, Lines},
    process::{Child, ChildStdout, Command, Stdio},
    time::Duration,
};

use super::store_support::ports::reserved_port;
use process_group::store::{Deadline, FileStore, Store, StoreError, TcpStore};

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

fn python() -> Command {
    Command::new(env::var_os("PYTHON").unwrap_or_else(|| "python3".into()))
}

fn torch_is_there() -> bool {
    let tried = python()
        .args(["-c", "import torch.distributed"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    let there = tried.is_ok_and(|status| status.success());
    if !there {
        println!("skipped: python3 (or $PYTHON) cannot import torch.distributed");
    }
    there
}

/// A Python process that runs `torch_peer.py`.
struct Peer {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Peer {
    fn start(args: &[&str]) -> Self {
        // Not by its path: the test's binary also runs where the source tree is not.
        let script = include_str!("store_support/torch_peer.py");
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

/// The mirror image of `converse` in `torch_peer.py`.
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
    // PyTorch's passes over what is ours alone.
    store.queue_push("queue", b"element").unwrap();
    assert_eq!(store.queue_pop("queue", soon()).unwrap(), b"element");
    let peer = Peer::start(&["file", path.to_str().unwrap()]);
    converse(&store, false).unwrap();
    drop(store);
    assert!(path.exists());
    peer.finish();
    // The last to leave, PyTorch's, has counted us.
    assert!(!path.exists());
}
