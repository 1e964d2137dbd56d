//! A host in its own process, malicious connections, and a well-behaved client that must be served at all times.

use crate::{GREETING, soon};
use bootstrap::store::{
    Store, TcpStore,
    machine::{Request, ServerLimits},
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::{
    env,
    io::{self, Read, Write},
    net::TcpStream,
    sync::mpsc,
    thread,
    time::Duration,
};

use gpu_sim::process::test_command;

use crate::other::Other;

/// The host's memory limit, in bytes.
const LIMIT: usize = 128 << 20;
/// The maximum growth of the host's process beyond [`LIMIT`], in bytes: its threads' stacks, and memory that the
/// allocator does not return to the system.
const SLACK: usize = 32 << 20;
/// The number of connections that [`idle`] opens.
const IDLE: usize = 10_000;
const LONG: Duration = Duration::from_secs(60);

/// Returns the value of a line of `/proc/self/status` in bytes. The line must be in kB.
fn status(name: &str) -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim_start_matches(':').trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}

/// Raises this process's limit on descriptors to the maximum, and returns the maximum.
fn raise_descriptors() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    limit.maximum.unwrap_or(u64::MAX)
}

/// The environment variable for the role of a process that a test starts: `host`, `host-of-few`, or the address of a
/// host to which [`idle`] connects.
const ROLE: &str = "PROCESS_GROUP_HOSTILE_ROLE";

/// The body of the processes that [`start`] starts.
#[test]
#[ignore = "the body of a process that a test starts"]
fn role() {
    match env::var(ROLE).expect("a test below starts this process").as_str() {
        "host" => host(),
        "host-of-few" => host_of_few(),
        address => idle(address),
    }
}

/// Hosts a store, and prints its address and the limit on descriptors. Answers every line of its input with the number
/// of clients, the peak of the counted memory in bytes, the number of rejected connections, and the peak growth of the
/// process in bytes.
fn host() {
    let descriptors = raise_descriptors();
    let limits = ServerLimits { memory: LIMIT, ..ServerLimits::default() };
    let before = status("VmRSS");
    let store = TcpStore::options().limits(limits).host(0, soon()).unwrap();
    println!("host: {} {descriptors}", store.address());
    for _ in io::stdin().lines().map_while(Result::ok) {
        let report = store.report().unwrap();
        let grown = status("VmHWM").saturating_sub(before);
        println!("host: {} {} {} {grown}", report.clients, report.most_memory, report.rejected);
    }
}

/// Opens [`IDLE`] connections. Nine in ten send a greeting, and the others send nothing. Prints their number, and keeps
/// them open until the input ends.
fn idle(address: &str) {
    raise_descriptors();
    let connections: Vec<_> = (0..IDLE)
        .map(|number| {
            let mut stream = TcpStream::connect(address).unwrap();
            if number % 10 != 0 {
                stream.write_all(GREETING).unwrap();
            }
            stream
        })
        .collect();
    println!("idle: {}", connections.len());
    io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

fn start(role: &str, mark: &'static str) -> Other {
    Other::start(test_command(concat!(module_path!(), "::role")).unwrap().env(ROLE, role), mark)
}

struct Host {
    process: Other,
    address: String,
    descriptors: usize,
    /// A well-behaved client.
    client: TcpStore,
    /// The number of checks so far.
    asked: i64,
}

struct Usage {
    clients: usize,
    /// The number of connections that the host has rejected since its start.
    rejected: usize,
}

impl Host {
    fn start() -> Self {
        let mut process = start("host", "host: ");
        let [address, descriptors] = &process.words()[..] else { panic!() };
        let (address, descriptors) = (address.clone(), descriptors.parse().unwrap());
        let client = TcpStore::connect(&address, soon()).unwrap();
        Self { process, address, descriptors, client, asked: 0 }
    }

    /// Checks that the client is served, and that the host is within its memory limit. Returns the host's report.
    fn check(&mut self) -> Usage {
        self.asked += 1;
        assert_eq!(self.client.add("asked", 1).unwrap(), self.asked);
        let value = format!("value {}", self.asked);
        self.client.set("key", value.as_bytes()).unwrap();
        assert_eq!(self.client.get("key", soon()).unwrap(), value.as_bytes());
        let numbers: Vec<usize> = self.process.ask("").split(' ').map(|word| word.parse().unwrap()).collect();
        let [clients, most_memory, rejected, grown] = numbers[..] else { panic!("{numbers:?}") };
        assert!(most_memory <= LIMIT, "{most_memory} bytes counted");
        assert!(grown <= LIMIT + SLACK, "{grown} bytes grown");
        Usage { clients, rejected }
    }

    fn connect(&self) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.write_all(GREETING).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        stream.set_write_timeout(Some(LONG)).unwrap();
        stream
    }
}

/// Sends bytes. Ignores errors, because the host may have closed the connection.
fn send(stream: &mut TcpStream, bytes: &[u8]) {
    let _ = stream.write_all(bytes);
}

/// Returns true if the host closes the connection before it sends anything. Otherwise returns false: when a byte
/// arrives, after the read timeout of the socket, or at once if the socket is non-blocking and nothing has arrived.
fn is_closed(mut stream: TcpStream) -> bool {
    match stream.read(&mut [0; 1]) {
        Ok(0) => true,
        Ok(_) => false,
        Err(error) => error.kind() == io::ErrorKind::ConnectionReset,
    }
}

#[test]
fn ten_thousand_idle_connections_do_not_delay_a_client() {
    let mut host = Host::start();
    if host.descriptors < IDLE + 200 {
        println!(
            "skipped: a process may have {} descriptors, {IDLE} connections need more",
            host.descriptors
        );
        return;
    }
    let mut idle = start(&host.address.clone(), "idle: ");
    assert_eq!(idle.words(), [IDLE.to_string()]);
    // The host accepts connections in their order. When this one is served, all earlier ones are accepted.
    drop(TcpStore::connect(&host.address, soon()).unwrap());
    let usage = host.check();
    assert!(usage.clients + usage.rejected >= IDLE, "{}", usage.clients);
    for _ in 0..200 {
        host.check();
    }
    // All of them disconnect at once.
    drop(idle);
    while host.check().clients > 10 {
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn half_received_requests_end_the_connections_that_hold_most() {
    let mut host = Host::start();
    let begun =
        [&[1][..], &1u64.to_le_bytes(), b"k", &(8u64 << 20).to_le_bytes(), &vec![1; 7 << 20]].concat();
    let streams: Vec<_> = (0..40)
        .map(|_| {
            let mut stream = host.connect();
            send(&mut stream, &begun);
            stream
        })
        .collect();
    let usage = host.check();
    assert!(usage.rejected >= 40 - LIMIT / (8 << 20), "{}", usage.rejected);
    // Only the rejected connections are closed.
    let closed = streams.into_iter().filter(|stream| {
        stream.set_nonblocking(true).unwrap();
        is_closed(stream.try_clone().unwrap())
    });
    assert_eq!(closed.count(), usage.rejected);
    host.check();
}

#[test]
fn replies_that_nobody_reads_are_not_made() {
    let mut host = Host::start();
    host.client.set("large", &vec![1; 8 << 20]).unwrap();
    let mut requests = Vec::new();
    (0..1000).for_each(|_| Request::Get { key: b"/large".to_vec() }.encode(&mut requests));
    let mut all = Vec::new();
    Request::MultiGet { keys: vec![b"/large".to_vec(); 100_000] }.encode(&mut all);
    let streams: Vec<_> = (0..40)
        .map(|number| {
            let mut stream = host.connect();
            send(&mut stream, if number % 8 == 7 { &all } else { &requests });
            stream
        })
        .collect();
    while host.check().rejected < 5 {
        thread::sleep(Duration::from_millis(5));
    }
    drop(streams);
    host.check();
}

#[test]
fn garbage_ends_its_connection_at_once() {
    let mut host = Host::start();
    let huge = (1u64 << 63).to_le_bytes();
    let kinds = (1..19u8).filter(|kind| !matches!(kind, 7 | 12 | 13 | 17));
    let mut harmful: Vec<Vec<u8>> = kinds.map(|kind| [GREETING, &[kind], &huge].concat()).collect();
    harmful.push([GREETING, &[1], &1u64.to_le_bytes(), b"k", &huge].concat());
    harmful.push([GREETING, &[10], &2u64.to_le_bytes(), &1u64.to_le_bytes(), b"k", &huge].concat());
    harmful.push([GREETING, &[255]].concat());
    harmful.push([GREETING, GREETING].concat());
    // The first bytes of an HTTP client, of TLS, of SSH, and of another binary protocol.
    harmful.push(b"POST / HTTP/1.1\r\nHost: store\r\n\r\n".to_vec());
    harmful.push(b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03".to_vec());
    harmful.push(b"SSH-2.0-OpenSSH_9.6\r\n".to_vec());
    harmful.push(b"\0\0\0\x08\x04\xd2\x16\x2f".to_vec());
    for bytes in &harmful {
        for fragment in [1, bytes.len()] {
            let mut stream = TcpStream::connect(&host.address).unwrap();
            stream.set_nodelay(true).unwrap();
            stream.set_read_timeout(Some(LONG)).unwrap();
            bytes.chunks(fragment).for_each(|piece| send(&mut stream, piece));
            assert!(is_closed(stream), "{bytes:02x?}");
        }
    }
    assert_eq!(host.check().rejected, 2 * harmful.len());
}

/// Some clients close their sending side, before their first request or in the middle of it. Others disconnect while
/// they wait.
#[test]
fn half_open_connections_are_closed_without_harm() {
    let mut host = Host::start();
    let half: Vec<_> = (0..100)
        .map(|number| {
            let mut stream = host.connect();
            send(&mut stream, &[1, 5, 0, 0][..number % 5]);
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            stream
        })
        .collect();
    assert!(half.into_iter().all(is_closed));
    let (sender, receiver) = mpsc::channel();
    // The queue's element must go to the client that still waits, not to those that have disconnected.
    for _ in 0..20 {
        let mut stream = host.connect();
        let mut wait = Vec::new();
        Request::Wait { keys: vec![b"/queue".to_vec()] }.encode(&mut wait);
        send(&mut stream, &wait);
    }
    let waiting = host.client.clone();
    let popping = thread::spawn(move || sender.send(waiting.queue_pop("queue", soon())));
    host.client.queue_push("queue", b"element").unwrap();
    assert_eq!(receiver.recv_timeout(LONG).unwrap().unwrap(), b"element");
    popping.join().unwrap().unwrap();
    let usage = host.check();
    assert_eq!(usage.rejected, 0);
}

/// When a host starts, it limits its clients to the descriptors of its process, less 64, and rejects further clients.
/// If the limit on descriptors becomes lower later, and no descriptor is free, it also rejects clients. In both cases
/// it reports the reason, and does not let the clients wait.
#[test]
fn a_lack_of_descriptors_is_reported() {
    let mut process = start("host-of-few", "host: ");
    let address = process.words()[0].clone();
    let first = TcpStore::connect(&address, soon()).unwrap();
    too_many(&address, &mut process, "no more are allowed");
    // The host has read the limit on descriptors at its start. Now the limit becomes lower.
    process.ask("40");
    too_many(&address, &mut process, "no descriptor left");
    first.set("key", b"value").unwrap();
}

/// Silent connections take all places for connections without a complete greeting (32 for this host). Each newer
/// connection, silent or not, replaces the oldest of them. So clients that send a greeting at once are served.
#[test]
fn newer_connections_replace_silent_ones() {
    let mut process = start("host-of-few", "host: ");
    let address = process.words()[0].clone();
    let _silent: Vec<_> = (0..200).map(|_| TcpStream::connect(&address).unwrap()).collect();
    let clients: Vec<_> = (0..20).map(|_| TcpStore::connect(&address, soon()).unwrap()).collect();
    clients.iter().for_each(|client| assert!(client.add("count", 1).is_ok()));
    let told = process.ask("");
    assert!(told.starts_with("no greeting yet"), "{told}");
}

/// The host keeps a reserve descriptor. When no other descriptor is free, it closes the reserve to accept and reject a
/// client, and then opens it again. In this test, it cannot open the reserve again for a while. Later it must reject
/// clients again.
#[test]
fn a_lack_of_descriptors_is_reported_again() {
    let mut process = start("host-of-few", "host: ");
    let address = process.words()[0].clone();
    process.ask("3");
    let _waiting = TcpStream::connect(&address).unwrap();
    // Meanwhile the host closes its reserve descriptor to reject that client. With a limit of 3 descriptors, it can
    // neither accept the client nor open the reserve again.
    thread::sleep(Duration::from_millis(300));
    process.ask("40");
    let first = TcpStore::connect(&address, soon()).unwrap();
    too_many(&address, &mut process, "no descriptor left");
    first.set("key", b"value").unwrap();
}

/// Opens more connections than the host admits. Checks that the last one gets no answer. Also checks that the last
/// rejection in the host's report contains `why` and `ulimit -n`.
fn too_many(address: &str, host: &mut Other, why: &str) {
    let is_answered = |mut stream: &TcpStream| {
        let mut greeting = GREETING.to_vec();
        Request::Ping { nonce: 7 }.encode(&mut greeting);
        stream.set_read_timeout(Some(LONG)).unwrap();
        stream.write_all(&greeting).is_ok() && stream.read_exact(&mut [0; 4]).is_ok()
    };
    let mut streams = std::iter::repeat_with(|| TcpStream::connect(address).unwrap())
        .map(|stream| (is_answered(&stream), stream));
    // The host may reject the first ones, until it notices that the connections of an earlier call have ended.
    let first = streams.find(|(is_answered, _)| *is_answered).unwrap();
    let others: Vec<_> = streams.take(100).collect();
    assert!(!others[99].0);
    drop(first);
    let told = host.ask("");
    assert!(told.contains(why) && told.contains("ulimit -n"), "{told}");
}

/// Hosts a store in a process with a limit of 120 descriptors, and prints its address. A line of input with a number
/// sets a new limit, and is answered with the number. Any other line is answered with the reason of the last rejection.
fn host_of_few() {
    let allow = |descriptors| {
        let limit = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: Some(descriptors), ..limit }).unwrap();
    };
    allow(120);
    let store = TcpStore::host(0).unwrap();
    println!("host: {}", store.address());
    for line in io::stdin().lines().map_while(Result::ok) {
        match line.parse() {
            Ok(descriptors) => {
                allow(descriptors);
                println!("host: {descriptors}");
            }
            Err(_) => {
                let (_, why) = store.report().unwrap().rejections.pop_back().unwrap();
                println!("host: {why}");
            }
        }
    }
}
