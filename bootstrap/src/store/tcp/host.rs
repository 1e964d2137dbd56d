//! The server side: one thread that runs the server's state machine over sockets.
//!
//! The thread sleeps in the kernel until a socket is ready or a timer is due. It resolves no names, and never blocks on
//! a client.

use std::{
    collections::{BTreeMap, VecDeque},
    io::{self, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    os::fd::OwnedFd,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use rustix::{
    buffer::spare_capacity,
    event::{EventfdFlags, Timespec, epoll, eventfd},
    io::Errno,
    net::{SocketFlags, accept_with},
    process::{Resource, getrlimit},
};

use super::socket;
use crate::random::random;
use crate::store::{
    Deadline, Result, StoreError,
    machine::{
        ClientId, Rejection, Secret, Server, ServerLimits,
        server::{Input, Output},
    },
};

/// A running server. Dropping it stops the thread, waits for its end, and closes every connection.
#[derive(Debug)]
pub(super) struct Host {
    address: SocketAddr,
    /// The eventfd of the stop signal. A write to it stops the thread.
    stop: Arc<OwnedFd>,
    shared: Arc<Shared>,
    /// The server's thread. `None` once it was joined.
    thread: Option<JoinHandle<()>>,
}

/// The state of a [`TcpStore`](super::TcpStore)'s host, and the connections that it has rejected.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct HostReport {
    /// The number of open connections. Counts those of the hosting process, and those without a complete greeting.
    pub clients: usize,
    /// The memory in use, in bytes; 0 after a failure. [`ServerLimits::memory`] limits it.
    pub memory: usize,
    /// The most memory, in bytes, that was in use or about to be used when the limit was checked.
    pub most_memory: usize,
    /// The number of connections that the host has rejected.
    pub rejected: u64,
    /// The last 16 rejected connections, the oldest first. Each has the client's address, or `None` if it is unknown,
    /// and the reason.
    pub rejections: VecDeque<(Option<SocketAddr>, Rejection)>,
    /// The reason why the host has failed and serves no longer; `None` if it has not failed. Its clients lose their
    /// connections.
    pub failure: Option<Arc<str>>,
}

impl HostReport {
    /// The most rejections that are kept.
    const KEPT: usize = 16;

    /// Counts a rejected connection, and keeps its address and the reason. Drops the oldest if [`KEPT`](Self::KEPT) are
    /// kept already.
    fn reject(&mut self, peer: Option<SocketAddr>, why: Rejection) {
        self.rejected += 1;
        if self.rejections.len() == Self::KEPT {
            self.rejections.pop_front();
        }
        self.rejections.push_back((peer, why));
    }
}

/// State that the server's thread shares with other threads.
#[derive(Debug, Default)]
struct Shared {
    report: Mutex<HostReport>,
    /// Notified when `report.clients` has become smaller.
    left: Condvar,
}

impl Shared {
    fn report(&self) -> MutexGuard<'_, HostReport> {
        self.report.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Host {
    /// Listens at `address`, and starts the server's thread. If `secret` is given, the server serves only clients that
    /// know it.
    ///
    /// # Errors
    /// [`StoreError::PortInUse`], or [`StoreError::Bind`] for every other error.
    pub(super) fn start(address: SocketAddr, limits: ServerLimits, secret: Option<Secret>) -> Result<Self> {
        let bind = |source: io::Error| match source.kind() {
            io::ErrorKind::AddrInUse => StoreError::PortInUse { address: address.to_string() },
            _ => StoreError::Bind { address: address.to_string(), source: Arc::new(source) },
        };
        let listener = socket::listen(address).map_err(bind)?;
        let address = listener.local_addr().map_err(bind)?;
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).map_err(|error| bind(error.into()))?);
        let shared = Arc::new(Shared::default());
        let serving = Serving::new(listener, &stop, (limits, secret), shared.clone()).map_err(bind)?;
        let thread = thread::Builder::new()
            .name(format!("store-{}", address.port()))
            .spawn(move || serving.run())
            .map_err(bind)?;
        Ok(Self { address, stop, shared, thread: Some(thread) })
    }

    /// Returns the address that the server listens at. It contains the port that the system chose if port 0 was asked
    /// for.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits until no client is connected, or until the deadline. Returns the number of clients that are still
    /// connected.
    pub(super) fn drain(&self, deadline: Deadline) -> usize {
        let report = self.shared.report();
        let left = self.shared.left.wait_timeout_while(report, deadline.remaining(), |now| now.clients > 0);
        left.unwrap_or_else(PoisonError::into_inner).0.clients
    }

    pub(super) fn report(&self) -> HostReport {
        self.shared.report().clone()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if rustix::io::write(&self.stop, &1u64.to_ne_bytes()).is_ok()
            && let Some(thread) = self.thread.take()
        {
            // The report already contains a panic of the thread.
            let _ = thread.join();
        }
    }
}

/// The epoll data of the listener, of the stop signal, and of the epoll of waiting clients. The epoll data of a client
/// is its id. The ids of clients begin at `CLIENTS`.
const LISTENER: u64 = 0;
const STOP: u64 = 1;
const WAITING: u64 = 2;
const CLIENTS: ClientId = 3;

/// The most bytes that are read from a client for one event, and that are sent to it for one [`Output::Send`].
const PIECE: usize = 64 << 10;

/// The most connections that are accepted before clients are served. It is less than the number of connections that
/// may be without a complete greeting, which is at least 32. So if a client sends its greeting at once, the server
/// normally reads it before newer connections can replace this client.
const ACCEPTED: usize = 16;

/// The most waiting clients that are served after one wake-up of the thread. The rest is served after later wake-ups.
const WAITING_SERVED: usize = 64;

/// How long no connections are accepted after the system has failed to accept one, or to open the reserve descriptor.
const PAUSE: Duration = Duration::from_millis(100);

/// The number of the process's descriptors that the server does not use for clients.
const RESERVED: u64 = 64;

/// The state of the server's thread.
struct Serving {
    server: Server,
    /// The origin of the state machine's clock.
    started: Instant,
    /// The time since `started` at the last wake-up. The clock is read once for all sockets that were ready then.
    now: Duration,
    epoll: OwnedFd,
    /// The epoll of the clients that wait for keys, a queue or a barrier. It is itself in `epoll`. A waiting client
    /// normally sends only a cancellation, after its deadline, so the other clients are served first.
    waiting: OwnedFd,
    listener: TcpListener,
    /// A descriptor in reserve. If the process may open no other, this one is closed briefly, to accept a client,
    /// reject it, and report that.
    spare: Option<OwnedFd>,
    /// The time since `started` until which no connections are accepted; `None` if they are accepted.
    paused_until: Option<Duration>,
    clients: BTreeMap<ClientId, Client>,
    /// The id of the next client.
    next: ClientId,
    shared: Arc<Shared>,
    /// The buffer for reads from clients.
    received: Vec<u8>,
}

/// A client's socket, and how it is watched.
struct Client {
    stream: TcpStream,
    /// The events that the socket is watched for.
    interest: epoll::EventFlags,
    /// True once the options of the socket are set. This is done when the client sends its first bytes, so that silent
    /// connections cost less.
    is_tuned: bool,
    /// True if the client is in the epoll of waiting clients.
    is_waiting: bool,
}

/// Opens a descriptor to hold in reserve. Returns `None` if the process cannot open one.
fn spare() -> Option<OwnedFd> {
    eventfd(0, EventfdFlags::CLOEXEC).ok()
}

/// Waits until descriptors are ready, and replaces `events` with their events, up to the capacity of `events`. After
/// `timeout`, or after a signal, `events` is empty. `None` means no timeout.
fn wait(epoll: &OwnedFd, events: &mut Vec<epoll::Event>, timeout: Option<&Timespec>) -> io::Result<()> {
    events.clear();
    match epoll::wait(epoll, spare_capacity(events), timeout) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

impl Serving {
    /// Prepares to serve the clients of `listener` until `stop` becomes readable. Lowers the limit on clients if it
    /// exceeds the number of descriptors that the process may open, less [`RESERVED`].
    fn new(
        listener: TcpListener,
        stop: &OwnedFd,
        (limits, secret): (ServerLimits, Option<Secret>),
        shared: Arc<Shared>,
    ) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &listener, epoll::EventData::new_u64(LISTENER), epoll::EventFlags::IN)?;
        epoll::add(&epoll, stop, epoll::EventData::new_u64(STOP), epoll::EventFlags::IN)?;
        let waiting = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &waiting, epoll::EventData::new_u64(WAITING), epoll::EventFlags::IN)?;
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let most = usize::try_from(descriptors.saturating_sub(RESERVED).max(1)).unwrap_or(usize::MAX);
        let limits = ServerLimits { clients: limits.clients.min(most), ..limits };
        Ok(Self {
            server: match secret {
                Some(secret) => Server::with_secret(limits, secret, random()?),
                None => Server::new(limits),
            },
            started: Instant::now(),
            now: Duration::ZERO,
            epoll,
            waiting,
            listener,
            spare: spare(),
            paused_until: None,
            clients: BTreeMap::new(),
            next: CLIENTS,
            shared,
            received: vec![0; PIECE],
        })
    }

    /// Serves until the stop signal, or until a failure or a panic, which the report then contains. Sets the report
    /// before the clients lose their connections.
    fn run(mut self) {
        let failure: Option<Arc<str>> = match catch_unwind(AssertUnwindSafe(|| self.serve())) {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(format!("waiting for its clients: {error}").into()),
            Err(_) => Some("its thread has panicked".into()),
        };
        let mut report = self.shared.report();
        (report.clients, report.memory, report.failure) = (0, 0, failure);
        self.shared.left.notify_all();
        drop(report);
    }

    fn serve(&mut self) -> io::Result<()> {
        let mut events = Vec::with_capacity(256);
        let mut waiting = Vec::with_capacity(WAITING_SERVED);
        while self.serve_ready(&mut events, &mut waiting)? {
            self.count();
        }
        Ok(())
    }

    /// Waits until a descriptor is ready or a timer is due, and serves the ready descriptors. `events` and `waiting`
    /// are buffers. Their capacities limit how many descriptors, and how many waiting clients, one call serves. Returns
    /// false after the stop signal, otherwise true.
    fn serve_ready(
        &mut self,
        events: &mut Vec<epoll::Event>,
        waiting: &mut Vec<epoll::Event>,
    ) -> io::Result<bool> {
        wait(&self.epoll, events, self.timeout().as_ref())?;
        self.now = self.started.elapsed();
        waiting.clear();
        for event in events.iter() {
            match event.data.u64() {
                LISTENER => self.accept(),
                STOP => return Ok(false),
                WAITING => wait(&self.waiting, waiting, Some(&Timespec::default()))?,
                client => self.ready(client, event.flags),
            }
        }
        for event in waiting.iter() {
            self.ready(event.data.u64(), event.flags);
        }
        if self.paused_until.is_some_and(|until| until <= self.now) {
            self.paused_until = None;
            self.listen(epoll::EventFlags::IN);
        }
        self.step(Input::Tick);
        Ok(true)
    }

    /// Returns the time until the next timer is due: that of the state machine, or the end of a pause. Returns `None`
    /// if there is no timer.
    fn timeout(&self) -> Option<Timespec> {
        let due = self.paused_until.into_iter().chain(self.server.wake_at()).min()?;
        if due <= self.now {
            return Some(Timespec::default());
        }
        let left = due.saturating_sub(self.started.elapsed());
        // 1 ms more, so that the timer is due after the sleep even if the system's clock is coarse.
        Timespec::try_from(left + Duration::from_millis(1)).ok()
    }

    /// Updates the numbers in the report, and wakes [`Host::drain`] if fewer clients are connected than at the last
    /// call.
    fn count(&self) {
        let mut report = self.shared.report();
        let clients = self.clients.len();
        if clients < report.clients {
            self.shared.left.notify_all();
        }
        report.clients = clients;
        report.memory = self.server.memory();
        report.most_memory = self.server.most_memory();
    }

    /// Sets the events that the listener is watched for.
    fn listen(&self, interest: epoll::EventFlags) {
        let data = epoll::EventData::new_u64(LISTENER);
        // This fails only for an invalid descriptor, and the listener is valid.
        let _ = epoll::modify(&self.epoll, &self.listener, data, interest);
    }

    /// Accepts up to [`ACCEPTED`] connections. If the process has no descriptor left for a client, rejects the client.
    /// If that fails too, or accepting fails for another reason, [pauses](Self::pause).
    fn accept(&mut self) {
        for _ in 0..ACCEPTED {
            // Reopen the reserve before a client takes the last descriptor. Without a reserve, no client can be
            // rejected.
            self.spare = self.spare.take().or_else(spare);
            if self.spare.is_none() {
                return self.pause();
            }
            // One system call accepts the client and makes its socket non-blocking: while many clients connect,
            // each further call would delay all of them.
            let stream = match accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(stream) => TcpStream::from(stream),
                Err(error) => match io::Error::from(error).kind() {
                    io::ErrorKind::WouldBlock => return,
                    io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => continue,
                    _ if socket::is_local(&error.into()) && self.spare.take().is_some() => {
                        let turned_away = self.listener.accept().map(|(_, peer)| peer);
                        self.spare = spare();
                        // Perhaps no client was waiting: the system checks for a free descriptor before it looks for
                        // a client.
                        let Ok(peer) = turned_away else { return };
                        let clients = self.clients.len();
                        self.shared.report().reject(Some(peer), Rejection::Descriptors { clients });
                        continue;
                    }
                    _ => return self.pause(),
                },
            };
            let id = self.next;
            self.next += 1;
            let interest = epoll::EventFlags::IN;
            if epoll::add(&self.epoll, &stream, epoll::EventData::new_u64(id), interest).is_ok() {
                self.clients.insert(id, Client { stream, interest, is_tuned: false, is_waiting: false });
                self.step(Input::Accepted(id));
            }
        }
    }

    /// Stops accepting connections for [`PAUSE`].
    fn pause(&mut self) {
        self.paused_until = Some(self.now + PAUSE);
        self.listen(epoll::EventFlags::empty());
    }

    /// Serves a client whose socket has the events `flags`. Reads at most once, so that no client can delay the others.
    fn ready(&mut self, id: ClientId, flags: epoll::EventFlags) {
        if flags.contains(epoll::EventFlags::OUT) {
            self.carry_out(VecDeque::from([Output::Send(id)]));
        }
        if !flags.intersects(epoll::EventFlags::IN | epoll::EventFlags::HUP | epoll::EventFlags::ERR) {
            return;
        }
        if !self.server.wants(id) {
            match flags.intersects(epoll::EventFlags::HUP | epoll::EventFlags::ERR) {
                // The connection has ended, so nobody receives the replies.
                true => self.gone(id),
                false => self.watch(id),
            }
            return;
        }
        let Some(client) = self.clients.get_mut(&id) else { return };
        let mut received = std::mem::take(&mut self.received);
        match client.stream.read(&mut received) {
            Ok(0) => self.gone(id),
            Ok(_) if !client.is_tuned && socket::tune(&client.stream).is_err() => self.gone(id),
            Ok(length) => {
                client.is_tuned = true;
                self.step(Input::Received(id, &received[..length]));
                self.watch(id);
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(_) => self.gone(id),
        }
        self.received = received;
    }

    /// Closes a client's connection, and tells the state machine that the client is gone.
    fn gone(&mut self, id: ClientId) {
        if self.clients.remove(&id).is_some() {
            self.step(Input::Gone(id));
        }
    }

    /// Passes an input to the state machine, and carries out the outputs.
    fn step(&mut self, input: Input<'_>) {
        let outputs = self.server.step(input, self.now);
        self.carry_out(outputs.into());
    }

    /// Carries out `outputs` in order, and then the outputs of the state machine that this causes.
    fn carry_out(&mut self, mut outputs: VecDeque<Output>) {
        while let Some(output) = outputs.pop_front() {
            match output {
                Output::Send(id) => {
                    let Some(sent) = self.send(id) else { continue };
                    outputs.extend(self.server.step(sent, self.now));
                    self.watch(id);
                }
                Output::Read(id) => self.watch(id),
                Output::Close(id, why) => {
                    let Some(client) = self.clients.remove(&id) else { continue };
                    let words = why.last_words();
                    // The rejection is recorded before the bytes are sent, because a program that has received them
                    // may call `report` next.
                    self.shared.report().reject(client.stream.peer_addr().ok(), why);
                    // Bytes that do not fit in the socket's buffer are dropped.
                    let _ = (&client.stream).write(words);
                }
            }
        }
    }

    /// Sends a client at most [`PIECE`] of its unsent bytes, as far as the socket accepts them. Closes the connection
    /// if it has failed. Returns the input that tells the state machine the result: the number of bytes sent, or that
    /// the client is gone. Returns `None` if the client was gone already.
    fn send(&mut self, id: ClientId) -> Option<Input<'static>> {
        let mut stream = &self.clients.get(&id)?.stream;
        let unsent = self.server.unsent(id);
        let unsent = &unsent[..unsent.len().min(PIECE)];
        let mut sent = 0;
        while sent < unsent.len() {
            match stream.write(&unsent[sent..]) {
                Ok(length @ 1..) => sent += length,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Ok(0) | Err(_) => {
                    self.clients.remove(&id);
                    return Some(Input::Gone(id));
                }
            }
        }
        Some(Input::Sent(id, sent))
    }

    /// Updates the events that a client's socket is watched for: input if the server wants more bytes of the client,
    /// and output if bytes are unsent. Moves the socket to the epoll of waiting clients, or back, if necessary.
    fn watch(&mut self, id: ClientId) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        let mut interest = epoll::EventFlags::empty();
        interest.set(epoll::EventFlags::IN, self.server.wants(id));
        interest.set(epoll::EventFlags::OUT, !self.server.unsent(id).is_empty());
        let is_waiting = self.server.is_waiting(id);
        let is_same = is_waiting == client.is_waiting;
        if interest == client.interest && is_same {
            return;
        }
        let of = |is_waiting| if is_waiting { &self.waiting } else { &self.epoll };
        let data = epoll::EventData::new_u64(id);
        // `add` can fail for lack of memory. `modify` and `delete` fail only for an invalid descriptor, and this one is
        // valid.
        let changed = match is_same {
            true => epoll::modify(of(is_waiting), &client.stream, data, interest),
            false => epoll::delete(of(client.is_waiting), &client.stream)
                .and_then(|()| epoll::add(of(is_waiting), &client.stream, data, interest)),
        };
        (client.interest, client.is_waiting) = (interest, is_waiting);
        if changed.is_err() {
            // The socket is in no epoll now, so no event of this client would arrive.
            self.gone(id);
        }
    }
}

#[cfg(test)]
mod tests;
