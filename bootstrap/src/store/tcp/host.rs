//! The server side: one thread that runs the server's state machine over the sockets of the runtime.
//!
//! The thread sleeps until a socket is ready or a timer is due. It resolves no names, and never blocks on
//! a client.

use std::{
    collections::VecDeque,
    io,
    net::SocketAddr,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::Waker,
    time::Duration,
};

use crate::random::random;
use crate::runtime::{self, Accepted, Event, Instant, Interest, JoinHandle, Ready, ServerSockets};
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
    /// Stops the thread.
    stop: Waker,
    shared: Arc<Shared>,
    /// The server's thread. `None` once it was joined.
    thread: Option<JoinHandle<()>>,
}

/// The state of a [`TcpStore`](super::TcpStore)'s host, and the connections that it has rejected.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct HostReport {
    /// The number of open connections. Includes those of the hosting process, and those whose greeting (see
    /// [`store::machine::server`](crate::store::machine::server)) is not complete.
    pub clients: usize,
    /// The memory in use, in bytes; 0 after a failure. [`ServerLimits::memory`] limits it.
    pub memory: usize,
    /// The peak of the memory in use, in bytes. Includes memory that a request or a connection was about to take, but
    /// only after the server had checked that it is within [`ServerLimits::memory`]. So it never exceeds that limit.
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
#[derive(Debug)]
struct Shared {
    report: Mutex<HostReport>,
    /// Notified when `report.clients` has become smaller.
    left: Event,
}

impl Default for Shared {
    fn default() -> Self {
        Self { report: Mutex::default(), left: Event::new("the clients of a store's host to disconnect") }
    }
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
        let sockets = runtime::listen(address).map_err(bind)?;
        let (address, stop) = (sockets.address(), sockets.waker());
        let shared = Arc::new(Shared::default());
        let serving = Serving::new(sockets, (limits, secret), shared.clone()).map_err(bind)?;
        let name = format!("store-{}", address.port());
        let thread = runtime::spawn(&name, move || serving.run()).map_err(bind)?;
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
        let mut report = self.shared.report();
        while report.clients > 0 && !deadline.expired() {
            report = self.shared.left.wait_unlocked(&self.shared.report, report, deadline.remaining());
        }
        report.clients
    }

    pub(super) fn report(&self) -> HostReport {
        self.shared.report().clone()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.stop.wake_by_ref();
        if let Some(thread) = self.thread.take() {
            // If the thread has panicked, the report says so.
            let _ = thread.join();
        }
    }
}

/// The most bytes that are read from a client for one event, and that are sent to it for one [`Output::Send`].
const PIECE: usize = 64 << 10;

/// The most connections that are accepted at one wake-up. If too many connections are without a complete greeting (see
/// [`ServerLimits::clients`]), a new one replaces the oldest of them. At least 32 may be without one, which is more
/// than this number. So if a client sends its greeting at once, the server normally reads it before newer connections
/// can replace this one.
const ACCEPTED: usize = 16;

/// The time for which no connections are accepted after accepting one has failed. It also fails if the process cannot
/// open the descriptor that the runtime holds in reserve: when no other descriptor is left, the runtime closes the
/// reserve to accept and reject a client.
const PAUSE: Duration = Duration::from_millis(100);

/// The state of the server's thread.
struct Serving {
    server: Server,
    sockets: Box<dyn ServerSockets>,
    /// The origin of the state machine's clock.
    started: Instant,
    /// The time since `started` at the last wake-up. It is read once for all sockets that were ready then.
    now: Duration,
    /// The time since `started` until which no connections are accepted; `None` if they are accepted.
    paused_until: Option<Duration>,
    /// The id of the next client.
    next: ClientId,
    shared: Arc<Shared>,
    /// The buffer for reads from clients.
    received: Vec<u8>,
}

impl Serving {
    /// Prepares to serve the clients of `sockets` until their waker is called. Lowers the limit on clients to the
    /// number of connections that the process can have.
    fn new(
        sockets: Box<dyn ServerSockets>,
        (limits, secret): (ServerLimits, Option<Secret>),
        shared: Arc<Shared>,
    ) -> io::Result<Self> {
        let limits = ServerLimits { clients: limits.clients.min(sockets.capacity()), ..limits };
        Ok(Self {
            server: match secret {
                Some(secret) => Server::with_secret(limits, secret, random()?),
                None => Server::new(limits),
            },
            sockets,
            started: Instant::now(),
            now: Duration::ZERO,
            paused_until: None,
            next: 0,
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
        drop(report);
        self.shared.left.notify_all();
    }

    fn serve(&mut self) -> io::Result<()> {
        let mut ready = Vec::new();
        while self.serve_ready(&mut ready)? {
            self.count();
        }
        Ok(())
    }

    /// Waits until a socket is ready or a timer is due, and serves the ready sockets. `ready` is a buffer. Returns
    /// false after the stop signal, otherwise true.
    fn serve_ready(&mut self, ready: &mut Vec<Ready>) -> io::Result<bool> {
        let timeout = self.timeout();
        self.sockets.wait(ready, timeout)?;
        self.now = self.started.elapsed();
        for socket in ready.drain(..) {
            match socket {
                Ready::Listener => self.accept(),
                Ready::Woken => return Ok(false),
                Ready::Connection { id, readable, writable, has_ended } => {
                    if writable {
                        self.carry_out(VecDeque::from([Output::Send(id)]));
                    }
                    if readable || has_ended {
                        self.read(id, has_ended);
                    }
                }
            }
        }
        if self.paused_until.is_some_and(|until| until <= self.now) {
            self.paused_until = None;
            self.sockets.set_accepting(true);
        }
        self.step(Input::Tick);
        Ok(true)
    }

    /// Returns the time until the next timer is due: that of the state machine, or the end of a pause. Returns `None`
    /// if there is no timer.
    fn timeout(&self) -> Option<Duration> {
        let due = self.paused_until.into_iter().chain(self.server.wake_at()).min()?;
        if due <= self.now {
            return Some(Duration::ZERO);
        }
        // 1 ms more, so that the timer is due after the sleep even if the system's clock is coarse.
        Some(due.saturating_sub(self.started.elapsed()) + Duration::from_millis(1))
    }

    /// Updates the numbers in the report, and wakes [`Host::drain`] if fewer clients are connected than at the last
    /// call.
    fn count(&self) {
        let mut report = self.shared.report();
        let before = std::mem::replace(&mut report.clients, self.sockets.connections());
        report.memory = self.server.memory();
        report.most_memory = self.server.most_memory();
        let has_fewer = report.clients < before;
        drop(report);
        if has_fewer {
            self.shared.left.notify_all();
        }
    }

    /// Accepts up to [`ACCEPTED`] connections. If the process has no descriptor for a client, records a rejection. If
    /// accepting fails, [pauses](Self::pause).
    fn accept(&mut self) {
        for _ in 0..ACCEPTED {
            let id = self.next;
            match self.sockets.accept(id).map_err(|error| error.kind()) {
                Ok(Accepted::Connection) => {
                    self.next += 1;
                    self.step(Input::Accepted(id));
                }
                Ok(Accepted::NoDescriptor(peer)) => {
                    let clients = self.sockets.connections();
                    self.shared.report().reject(Some(peer), Rejection::Descriptors { clients });
                }
                Err(io::ErrorKind::WouldBlock) => return,
                Err(io::ErrorKind::Interrupted) => {}
                Err(_) => return self.pause(),
            }
        }
    }

    /// Stops accepting connections for [`PAUSE`].
    fn pause(&mut self) {
        self.paused_until = Some(self.now + PAUSE);
        self.sockets.set_accepting(false);
    }

    /// Reads from a client at most once, so that no client can delay the others. `has_ended` is true if the connection
    /// has ended.
    fn read(&mut self, id: ClientId, has_ended: bool) {
        if !self.server.wants(id) {
            match has_ended {
                // The connection has ended, so the client cannot receive replies.
                true => self.gone(id),
                false => self.watch(id),
            }
            return;
        }
        if !self.sockets.is_open(id) {
            return;
        }
        let mut received = std::mem::take(&mut self.received);
        match self.sockets.read(id, &mut received) {
            Ok(0) => self.gone(id),
            Ok(length) => {
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
        if self.sockets.close(id) {
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
                    if !self.sockets.is_open(id) {
                        continue;
                    }
                    let (words, peer) = (why.last_words(), self.sockets.peer(id));
                    // The rejection is recorded before the bytes are sent, because a program that has received them
                    // may call `report` next.
                    self.shared.report().reject(peer, why);
                    // Bytes that do not fit in the socket's buffer are dropped.
                    let _ = self.sockets.write(id, words);
                    self.sockets.close(id);
                }
            }
        }
    }

    /// Sends a client at most [`PIECE`] of its unsent bytes, as far as the socket accepts them. Closes the connection
    /// if it has failed. Returns the input that tells the state machine the result: the number of bytes sent, or that
    /// the client is gone. Returns `None` if the client was gone already.
    fn send(&mut self, id: ClientId) -> Option<Input<'static>> {
        if !self.sockets.is_open(id) {
            return None;
        }
        let unsent = self.server.unsent(id);
        let unsent = &unsent[..unsent.len().min(PIECE)];
        let mut sent = 0;
        while sent < unsent.len() {
            match self.sockets.write(id, &unsent[sent..]) {
                Ok(length @ 1..) => sent += length,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Ok(0) | Err(_) => {
                    self.sockets.close(id);
                    return Some(Input::Gone(id));
                }
            }
        }
        Some(Input::Sent(id, sent))
    }

    /// Updates the events that a client's socket is watched for: input if the server wants more bytes of the client,
    /// and output if bytes are unsent. Closes the connection if it cannot be watched. Sets [`Interest::late`] for a
    /// client that waits for keys, a queue or a barrier, so that the others are served first: while it waits, it
    /// normally sends only a cancellation or a ping.
    fn watch(&mut self, id: ClientId) {
        let (read, write) = (self.server.wants(id), !self.server.unsent(id).is_empty());
        let interest = Interest { read, write, late: self.server.is_waiting(id) };
        if self.sockets.watch(id, interest).is_err() {
            // No event of this client would arrive.
            self.gone(id);
        }
    }
}

#[cfg(test)]
mod tests;
