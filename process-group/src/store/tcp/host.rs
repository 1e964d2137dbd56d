//! The serving end: one thread that runs the server's machine over sockets.
//!
//! The thread sleeps in the kernel until a socket is ready or the machine's timer is due; it looks up no names,
//! writes nothing to the console and never blocks on a client.

use std::{
    collections::{HashMap, VecDeque},
    io::{self, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    os::fd::OwnedFd,
    sync::{Arc, Condvar, Mutex, PoisonError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use rustix::{
    buffer::spare_capacity,
    event::{EventfdFlags, Timespec, epoll, eventfd},
    io::Errno,
};

use super::socket;
use crate::store::{
    Deadline, Result, StoreError,
    machine::{
        ClientId, Server, ServerLimits,
        server::{Input, Output},
    },
};

/// A running server. Dropping it closes every connection.
#[derive(Debug)]
pub(super) struct Host {
    address: SocketAddr,
    stop: Arc<OwnedFd>,
    connected: Arc<Connected>,
    thread: Option<JoinHandle<()>>,
}

/// How many clients are connected, for who waits for their going.
#[derive(Debug, Default)]
struct Connected {
    clients: Mutex<usize>,
    changed: Condvar,
}

impl Host {
    /// Listens at `address` and serves.
    pub(super) fn start(address: SocketAddr, limits: ServerLimits) -> Result<Self> {
        let bind = |source: io::Error| match source.kind() {
            io::ErrorKind::AddrInUse => StoreError::PortInUse { address: address.to_string() },
            _ => StoreError::Bind { address: address.to_string(), source: Arc::new(source) },
        };
        let listener = socket::listen(address).map_err(bind)?;
        let address = listener.local_addr().map_err(bind)?;
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).map_err(|error| bind(error.into()))?);
        let connected = Arc::new(Connected::default());
        let serving = Serving::new(listener, &stop, limits, connected.clone()).map_err(bind)?;
        let thread = thread::Builder::new()
            .name(format!("store-{}", address.port()))
            .spawn(move || serving.run())
            .map_err(bind)?;
        Ok(Self { address, stop, connected, thread: Some(thread) })
    }

    /// Where it listens, with the port that was chosen.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits until nobody is connected; returns how many still are at the deadline.
    pub(super) fn drain(&self, deadline: Deadline) -> usize {
        let clients = self.connected.clients.lock().unwrap_or_else(PoisonError::into_inner);
        let left = self.connected.changed.wait_timeout_while(clients, deadline.remaining(), |n| *n > 0);
        *left.unwrap_or_else(PoisonError::into_inner).0
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if rustix::io::write(&self.stop, &1u64.to_ne_bytes()).is_ok()
            && let Some(thread) = self.thread.take()
        {
            // A panic of the thread has closed its sockets: the clients know.
            let _ = thread.join();
        }
    }
}

/// What the events of the listener and of the stop signal are marked with; clients are numbered from `CLIENTS`.
const LISTENER: u64 = 0;
const STOP: u64 = 1;
const CLIENTS: ClientId = 2;

/// Unsent bytes of a client above which nothing more is read from it.
const BACKLOG: usize = 1 << 20;

/// How long nobody is accepted after the process has run out of descriptors or memory.
const PAUSE: Duration = Duration::from_millis(100);

struct Serving {
    server: Server,
    started: Instant,
    epoll: OwnedFd,
    listener: TcpListener,
    paused_until: Option<Instant>,
    clients: HashMap<ClientId, Client>,
    next: ClientId,
    connected: Arc<Connected>,
    received: Vec<u8>,
}

struct Client {
    stream: TcpStream,
    unsent: Vec<u8>,
    interest: epoll::EventFlags,
}

impl Serving {
    fn new(
        listener: TcpListener,
        stop: &OwnedFd,
        limits: ServerLimits,
        connected: Arc<Connected>,
    ) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &listener, epoll::EventData::new_u64(LISTENER), epoll::EventFlags::IN)?;
        epoll::add(&epoll, stop, epoll::EventData::new_u64(STOP), epoll::EventFlags::IN)?;
        Ok(Self {
            server: Server::new(limits),
            started: Instant::now(),
            epoll,
            listener,
            paused_until: None,
            clients: HashMap::new(),
            next: CLIENTS,
            connected,
            received: vec![0; 64 << 10],
        })
    }

    fn run(mut self) {
        let mut events = Vec::with_capacity(256);
        loop {
            events.clear();
            match epoll::wait(&self.epoll, spare_capacity(&mut events), self.timeout().as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => return,
            }
            for event in &events {
                match event.data.u64() {
                    LISTENER => self.accept(),
                    STOP => return,
                    client => self.ready(client, event.flags),
                }
            }
            if self.paused_until.is_some_and(|until| until <= Instant::now()) {
                self.paused_until = None;
                self.listen(epoll::EventFlags::IN);
            }
            self.step(Input::Tick);
            self.count();
        }
    }

    fn timeout(&self) -> Option<Timespec> {
        let now = Instant::now();
        let pause = self.paused_until.map(|until| until.saturating_duration_since(now));
        let timer = self.server.wake_at().map(|due| due.saturating_sub(now - self.started));
        let next = pause.into_iter().chain(timer).min()?;
        // Not rounded down: the timer would not be due yet.
        Timespec::try_from(next + Duration::from_millis(1)).ok()
    }

    fn count(&self) {
        let mut clients = self.connected.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if *clients != self.clients.len() {
            *clients = self.clients.len();
            self.connected.changed.notify_all();
        }
    }

    fn listen(&self, interest: epoll::EventFlags) {
        let data = epoll::EventData::new_u64(LISTENER);
        // Fails only for a descriptor that is not there; this one is ours.
        let _ = epoll::modify(&self.epoll, &self.listener, data, interest);
    }

    fn accept(&mut self) {
        loop {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return,
                    io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => continue,
                    _ => {
                        self.paused_until = Some(Instant::now() + PAUSE);
                        self.listen(epoll::EventFlags::empty());
                        return;
                    }
                },
            };
            let id = self.next;
            self.next += 1;
            let interest = epoll::EventFlags::IN;
            let watched = stream.set_nonblocking(true).and_then(|()| socket::tune(&stream)).and_then(|()| {
                Ok(epoll::add(&self.epoll, &stream, epoll::EventData::new_u64(id), interest)?)
            });
            if watched.is_ok() {
                self.clients.insert(id, Client { stream, unsent: Vec::new(), interest });
                self.step(Input::Accepted(id));
            }
        }
    }

    /// One read for each time that a client is ready: none can keep the others waiting.
    fn ready(&mut self, id: ClientId, flags: epoll::EventFlags) {
        if flags.contains(epoll::EventFlags::OUT) {
            self.flush(id);
        }
        if !flags.intersects(epoll::EventFlags::IN | epoll::EventFlags::HUP | epoll::EventFlags::ERR) {
            return;
        }
        let Some(client) = self.clients.get_mut(&id) else { return };
        let mut received = std::mem::take(&mut self.received);
        match client.stream.read(&mut received) {
            Ok(0) => self.gone(id),
            Ok(length) => self.step(Input::Received(id, &received[..length])),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(_) => self.gone(id),
        }
        self.received = received;
    }

    fn gone(&mut self, id: ClientId) {
        if self.clients.remove(&id).is_some() {
            self.step(Input::Gone(id));
        }
    }

    fn step(&mut self, input: Input<'_>) {
        let mut outputs = VecDeque::from(self.server.step(input, self.started.elapsed()));
        while let Some(output) = outputs.pop_front() {
            match output {
                Output::Send(id, bytes) => {
                    let Some(client) = self.clients.get_mut(&id) else { continue };
                    client.unsent.extend_from_slice(&bytes);
                    if !self.flush_to(id) {
                        self.clients.remove(&id);
                        outputs.extend(self.server.step(Input::Gone(id), self.started.elapsed()));
                    }
                }
                Output::Close(id, _) => drop(self.clients.remove(&id)),
            }
        }
    }

    fn flush(&mut self, id: ClientId) {
        if !self.flush_to(id) {
            self.gone(id);
        }
    }

    /// Sends what a client takes now; `false` when its connection is broken.
    fn flush_to(&mut self, id: ClientId) -> bool {
        let Some(client) = self.clients.get_mut(&id) else { return true };
        let mut sent = 0;
        while sent < client.unsent.len() {
            match client.stream.write(&client.unsent[sent..]) {
                Ok(0) => return false,
                Ok(length) => sent += length,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => return false,
            }
        }
        client.unsent.drain(..sent);
        if client.unsent.is_empty() {
            client.unsent.shrink_to(BACKLOG);
        }
        let interest = match client.unsent.len() {
            0 => epoll::EventFlags::IN,
            unsent if unsent <= BACKLOG => epoll::EventFlags::IN | epoll::EventFlags::OUT,
            _ => epoll::EventFlags::OUT,
        };
        if interest != client.interest {
            client.interest = interest;
            let data = epoll::EventData::new_u64(id);
            return epoll::modify(&self.epoll, &client.stream, data, interest).is_ok();
        }
        true
    }
}
