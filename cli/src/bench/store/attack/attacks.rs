//! The attacks. Each one reports when it has begun, and continues until its process is killed.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;

use anyhow::{Context, Result};
use process_group::store::machine::Request;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

pub(super) struct Attack {
    pub(super) name: &'static str,
    pub(super) about: &'static str,
    pub(super) perform: fn(&str) -> Result<()>,
    /// The probe makes a new connection for each call.
    pub(super) probes_by_connecting: bool,
    /// The server runs with a low limit on descriptors.
    pub(super) has_few_descriptors: bool,
}

impl Attack {
    const fn new(name: &'static str, about: &'static str, perform: fn(&str) -> Result<()>) -> Self {
        Self { name, about, perform, probes_by_connecting: false, has_few_descriptors: false }
    }
}

pub(super) const ATTACKS: &[Attack] = &[
    Attack::new("none", "nobody attacks", |_| forever()),
    Attack::new(
        "append",
        "200 clients in barriers on a value of 8 MiB of zeros, to which is appended",
        append,
    ),
    Attack::new("toggle", "8 waits for 131,072 keys, of which two come and go", toggle),
    Attack::new("list", "4 clients that list 1,000,000 keys", list),
    Attack::new("wake", "5,000 waits for a key that comes and goes", |address| wake(address, false)),
    Attack::new("call", "5,000 waits for a queue that is pushed to", |address| wake(address, true)),
    Attack::new("cancel", "5,000 waits for a key, cancelled and begun again", cancel),
    Attack::new("values", "16 clients that read a value of 8 MiB", values),
    Attack::new("many", "3 clients that set, check and read 131,072 keys a request", many),
    Attack::new("flood", "64 clients that send small requests ahead", flood),
    Attack::new("crowd", "5,000 clients that send a request each, all at once", crowd),
    Attack::new("leave", "64 clients that wait for 131,072 keys leave at once, again and again", leave),
    Attack {
        probes_by_connecting: true,
        has_few_descriptors: true,
        ..Attack::new(
            "silent",
            "1,500 connections without a greeting, 1,024 descriptors; the probe connects",
            silent,
        )
    },
];

const GREETING: &[u8] = b"\0\xce\xf7\x85\x3c";
const MANY: usize = 128 << 10;
const CLIENTS: usize = 5000;

fn begun() {
    println!("ready");
}

fn forever() -> Result<()> {
    begun();
    loop {
        thread::park();
    }
}

/// A connection after the handshake.
struct Peer(TcpStream);

impl Peer {
    fn connect(address: &str) -> Result<Self> {
        let mut stream = TcpStream::connect(address).context("connecting")?;
        stream.set_nodelay(true)?;
        stream.write_all(GREETING)?;
        Ok(Self(stream))
    }

    fn several(address: &str, count: usize) -> Result<Vec<Self>> {
        let limit = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })?;
        (0..count).map(|_| Self::connect(address)).collect()
    }

    fn send(&mut self, requests: &[Request]) -> Result<()> {
        Ok(self.0.write_all(&encoded(requests))?)
    }

    fn receive(&mut self, bytes: usize) -> Result<()> {
        let mut buffer = vec![0; bytes.min(1 << 20)];
        let mut left = bytes;
        while left > 0 {
            let most = left.min(buffer.len());
            self.0.read_exact(&mut buffer[..most])?;
            left -= most;
        }
        Ok(())
    }

    /// Waits until the server has processed everything sent before; these requests have no answers.
    fn sync(&mut self) -> Result<()> {
        self.send(&[Request::Ping { nonce: 7 }])?;
        self.receive(4)
    }
}

fn encoded(requests: &[Request]) -> Vec<u8> {
    let mut bytes = Vec::new();
    requests.iter().for_each(|request| request.encode(&mut bytes));
    bytes
}

fn key(name: &str) -> Vec<u8> {
    name.as_bytes().to_vec()
}

fn keys(count: usize) -> Vec<Vec<u8>> {
    (0..count).map(|number| format!("{number:06x}").into_bytes()).collect()
}

/// Sets keys to a value.
fn set(peer: &mut Peer, keys: &[Vec<u8>], value: &str) -> Result<()> {
    for keys in keys.chunks(MANY) {
        let entries = keys.iter().map(|key| (key.clone(), value.as_bytes().to_vec())).collect();
        peer.send(&[Request::MultiSet { entries }])?;
    }
    peer.sync()
}

/// Lets each of several clients repeat an action for ever.
fn each_forever(
    address: &str,
    count: usize,
    act: impl Fn(&mut Peer, usize) -> Result<()> + Sync,
) -> Result<()> {
    let (peers, act) = (Peer::several(address, count)?, &act);
    thread::scope(|scope| {
        let act_forever = |(number, mut peer): (usize, Peer)| {
            scope.spawn(move || -> Result<()> {
                loop {
                    act(&mut peer, number)?;
                }
            })
        };
        let threads: Vec<_> = peers.into_iter().enumerate().map(act_forever).collect();
        threads.into_iter().try_for_each(|thread| thread.join().ok().context("an attacker panicked")?)
    })
}

fn append(address: &str) -> Result<()> {
    let mut waiting = Peer::several(address, 200)?;
    for peer in &mut waiting {
        peer.send(&[Request::Barrier { key: key("zeros"), world: i64::MAX }])?;
    }
    let mut writer = Peer::connect(address)?;
    let zeros = Request::Set { key: key("zeros"), value: vec![b'0'; (8 << 20) - 100] };
    writer.send(std::slice::from_ref(&zeros))?;
    begun();
    loop {
        writer.send(&vec![Request::Append { key: key("zeros"), value: key("0") }; 20])?;
        writer.sync()?;
        writer.send(std::slice::from_ref(&zeros))?;
    }
}

fn toggle(address: &str) -> Result<()> {
    let mut writer = Peer::connect(address)?;
    let mut all = keys(MANY - 2);
    set(&mut writer, &all, "")?;
    all.insert(0, key("first"));
    all.push(key("last"));
    let toggles = ["first", "last"]
        .map(|name| [Request::Set { key: key(name), value: Vec::new() }, Request::Delete { key: key(name) }]);
    let toggles = encoded(&toggles.concat());
    thread::spawn(move || -> Result<()> {
        loop {
            writer.0.write_all(&toggles)?;
            writer.receive(16)?;
        }
    });
    let wait = encoded(&[Request::Wait { keys: all }]);
    begun();
    each_forever(address, 8, |peer, _| {
        peer.0.write_all(&wait)?;
        peer.receive(1)
    })
}

fn list(address: &str) -> Result<()> {
    set(&mut Peer::connect(address)?, &keys(1_000_000), "")?;
    begun();
    each_forever(address, 4, |peer, _| {
        peer.send(&[Request::ListKeys])?;
        let mut count = [0; 8];
        peer.0.read_exact(&mut count)?;
        // All keys are six bytes long, except one of the probe's.
        let others = 2 * 8 + "/key".len() + "/count".len();
        peer.receive((u64::from_le_bytes(count) as usize - 2) * 14 + others)
    })
}

fn wake(address: &str, by_queue: bool) -> Result<()> {
    let wait = Request::Wait { keys: vec![key("late")] };
    let mut waiting = Peer::several(address, CLIENTS)?;
    let mut writer = Peer::connect(address)?;
    let wake = match by_queue {
        true => vec![Request::QueuePush { key: key("late"), value: Vec::new() }; CLIENTS],
        false => vec![Request::Set { key: key("late"), value: Vec::new() }],
    };
    begun();
    loop {
        for peer in &mut waiting {
            peer.send(std::slice::from_ref(&wait))?;
        }
        writer.send(&wake)?;
        for peer in &mut waiting {
            peer.receive(1)?;
            if by_queue {
                peer.send(&[Request::QueuePop { key: key("late") }])?;
                peer.receive(16)?;
            }
        }
        writer.send(&[Request::Delete { key: key("late") }])?;
        writer.receive(8)?;
    }
}

fn cancel(address: &str) -> Result<()> {
    let wait = Request::Wait { keys: vec![key("never")] };
    let mut waiting = Peer::several(address, CLIENTS)?;
    for peer in &mut waiting {
        peer.send(std::slice::from_ref(&wait))?;
    }
    begun();
    loop {
        for peer in &mut waiting {
            peer.send(&[Request::CancelWait, wait.clone()])?;
        }
        waiting.iter_mut().try_for_each(|peer| peer.receive(1))?;
    }
}

fn values(address: &str) -> Result<()> {
    const VALUE: usize = 8 << 20;
    let mut writer = Peer::connect(address)?;
    writer.send(&[Request::Set { key: key("large"), value: vec![1; VALUE] }])?;
    writer.sync()?;
    begun();
    each_forever(address, 16, |peer, _| {
        peer.send(&vec![Request::Get { key: key("large") }; 4])?;
        peer.receive(4 * (8 + VALUE))
    })
}

fn many(address: &str) -> Result<()> {
    let names = keys(MANY);
    set(&mut Peer::connect(address)?, &names, "value")?;
    let entries = names.iter().map(|name| (name.clone(), key("value"))).collect();
    let requests = [
        (encoded(&[Request::MultiSet { entries }, Request::Ping { nonce: 7 }]), 4),
        (encoded(&[Request::Check { keys: names.clone() }]), 1),
        (encoded(&[Request::MultiGet { keys: names }]), MANY * (8 + "value".len())),
    ];
    begun();
    each_forever(address, requests.len(), |peer, number| {
        let (request, reply) = &requests[number];
        peer.0.write_all(request)?;
        peer.receive(*reply)
    })
}

fn flood(address: &str) -> Result<()> {
    begun();
    each_forever(address, 64, |peer, number| {
        let add = Request::Add { key: format!("count {number}").into_bytes(), delta: 1 };
        peer.send(&vec![add; 4000])?;
        peer.receive(8 * 4000)
    })
}

fn crowd(address: &str) -> Result<()> {
    let mut peers = Peer::several(address, CLIENTS)?;
    let add = encoded(&[Request::Add { key: key("crowd"), delta: 1 }]);
    begun();
    loop {
        peers.iter_mut().try_for_each(|peer| peer.0.write_all(&add))?;
        peers.iter_mut().try_for_each(|peer| peer.receive(8))?;
    }
}

fn leave(address: &str) -> Result<()> {
    let wait = encoded(&[Request::Wait { keys: keys(MANY) }, Request::Ping { nonce: 7 }]);
    let arrive = || -> Result<Vec<Peer>> {
        let mut peers = Peer::several(address, 64)?;
        peers.iter_mut().try_for_each(|peer| peer.0.write_all(&wait))?;
        peers.iter_mut().try_for_each(|peer| peer.receive(4))?;
        Ok(peers)
    };
    let mut peers = arrive()?;
    begun();
    loop {
        drop(peers);
        peers = arrive()?;
    }
}

fn silent(address: &str) -> Result<()> {
    const SILENT: usize = 1500;
    let mut streams = VecDeque::with_capacity(SILENT);
    let mut connected = 0;
    loop {
        streams.extend(TcpStream::connect(address));
        connected += 1;
        if connected == SILENT {
            begun();
        }
        if streams.len() == SILENT {
            streams.pop_front();
        }
    }
}
