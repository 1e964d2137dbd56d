//! A demo on a host where another user tries to access its store, its sockets' folders and its secret.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use std::{env, fs, io, thread};

use gpu_sim::process::test_command;
use process_group::store::{Deadline, Store, StoreError, TcpStore};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::geteuid;

use crate::demo::{demo, finish};

/// The system's user for nobody.
const NOBODY: u32 = 65534;

/// Tells the other user's process the folder of the demo.
const HOME: &str = "LOCKSTEP_TEST_HOSTILE_HOME";

/// Tells the other user's process the port of the demo's store. Other tests have stores on this host, some without a
/// secret, which it must not disturb.
const PORT: &str = "LOCKSTEP_TEST_HOSTILE_PORT";

/// The number of runs of the demo. The default is one.
const ROUNDS: &str = "LOCKSTEP_TEST_HOSTILE_ROUNDS";

/// The number of attempts of each kind.
type Tried = BTreeMap<&'static str, u32>;

/// The other user's process. When its standard input ends, it prints its successes and the number of attempts.
#[test]
#[ignore = "the body of a process that a test starts"]
fn hostile_user() {
    let home = PathBuf::from(env::var_os(HOME).expect("the test below starts this process"));
    let port = env::var(PORT).expect("the test below starts this process").parse().unwrap();
    let is_over = AtomicBool::new(false);
    let tried = thread::scope(|scope| {
        let paths = scope.spawn(|| {
            let mut tried = Tried::new();
            // Sockets exist only for the moment in which ranks meet.
            while !is_over.load(Ordering::Relaxed) {
                for entry in fs::read_dir(&home).unwrap().flatten() {
                    attack_path(&entry.path(), &mut tried);
                }
                thread::sleep(Duration::from_micros(200));
            }
            tried
        });
        let mut tried = Tried::new();
        let input = io::stdin();
        while poll(&mut [PollFd::new(&input.as_fd(), PollFlags::IN)], Some(&Default::default())) == Ok(0) {
            attack_store(port, &mut tried);
            thread::sleep(Duration::from_millis(5));
        }
        is_over.store(true, Ordering::Relaxed);
        tried.append(&mut paths.join().unwrap());
        tried
    });
    println!("tried {tried:?}");
}

fn attack_store(port: u16, tried: &mut Tried) {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    match TcpStore::connect(&address.to_string(), Deadline::after(Duration::from_millis(300))) {
        Ok(store) => {
            // The ranks publish their addresses under these keys.
            let keys = store.list_keys().unwrap_or_default();
            keys.iter().filter(|key| key.contains("peers/")).for_each(|key| {
                let _ = store.set(key, &[b'/'; 40]);
            });
            println!("succeeded: a store at {address} let another user in, with {} keys", keys.len());
        }
        Err(StoreError::Distrusted { .. }) => *tried.entry("a store without its secret").or_default() += 1,
        Err(_) => {}
    }
    // Also sends bytes that are no handshake.
    if let Ok(mut stream) = TcpStream::connect_timeout(&address, Duration::from_millis(100)) {
        let _ = stream.write_all(&[0x5a; 64]);
    }
}

fn attack_path(path: &Path, tried: &mut Tried) {
    let Some(name) = path.file_name().and_then(|name| name.to_str()) else { return };
    let is_theirs = path.symlink_metadata().is_ok_and(|about| about.uid() != NOBODY);
    if !is_theirs || !["lockstep-link-", "job-secret-"].iter().any(|prefix| name.starts_with(prefix)) {
        return;
    }
    let kind = if name.starts_with("job") { "the secret's file" } else { "a socket's folder" };
    *tried.entry(kind).or_default() += 1;
    if fs::read(path).is_ok() || fs::read_dir(path).is_ok() {
        println!("succeeded: another user has read {}", path.display());
    }
    if fs::rename(path, path.with_extension("taken")).is_ok() {
        println!("succeeded: another user has moved {}", path.display());
    }
}

fn start_other_user(home: &Path, port: &str) -> io::Result<Child> {
    test_command(concat!(module_path!(), "::hostile_user"))?
        .env(HOME, home)
        .env(PORT, port)
        .uid(NOBODY)
        .gid(NOBODY)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
}

#[test]
fn another_user_gets_nothing_of_a_demo_and_disturbs_no_rank() {
    if !geteuid().is_root() {
        return println!("skipped: who is not root cannot be another user");
    }
    // A folder with the mode of /tmp that contains only this demo's files.
    let home = tempfile::tempdir().unwrap();
    fs::set_permissions(home.path(), std::os::unix::fs::PermissionsExt::from_mode(0o1777)).unwrap();
    // Free now, and with luck until the demo's store listens there.
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = free.local_addr().unwrap().port().to_string();
    drop(free);
    let mut other = match start_other_user(home.path(), &port) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            return println!("skipped: another user cannot run {}", env::current_exe().unwrap().display());
        }
        started => started.unwrap(),
    };
    let rounds = env::var(ROUNDS).map_or(1, |rounds| rounds.parse().unwrap());
    for round in 0..rounds {
        let mut demo = demo(&["--backend", "sim", "--ranks", "4", "--port", &port]);
        demo.env("TMPDIR", home.path()).env_remove("XDG_RUNTIME_DIR");
        let output = finish(demo, |_| {});
        assert!(output.status.success(), "round {round}: {}", String::from_utf8_lossy(&output.stderr));
    }
    drop(other.stdin.take());
    let mut said = String::new();
    other.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(other.wait().unwrap().success(), "{said}");
    assert!(!said.contains("succeeded"), "{said}");
    for kind in ["a store without its secret", "the secret's file", "a socket's folder"] {
        assert!(said.contains(kind), "{kind} was never tried: {said}");
    }
}
