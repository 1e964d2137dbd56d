//! The TCP sockets of a seeded world: queues of bytes in memory, between the ranks of one host.
//!
//! The seed of the world decides how long bytes are in transit, into which parts they are split, how much each
//! connection holds, and which faults happen.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt, io, mem,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    panic::resume_unwind,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Wake, Waker},
    thread,
    time::Duration,
};

use gpu_sim::sched;

use super::{
    current::{Instant, process, sleep, wait, yield_point},
    interface::Event,
    seeded_pipe::{End, Pipe, delay, one_in},
    seeded_routes::{Route, Routes},
    sockets::{Accepted, ClientSocket, Interest, LATE, Ready, ServerSockets},
};

/// The faults of the sockets of a seeded world. Each field is a number `n`: the fault happens in one of `n` calls, at
/// random. With 0, it never happens. The default is 0 for all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SocketFaults {
    /// An attempt to connect is refused.
    pub refused: u64,
    /// A call that reads or writes cuts its connection. The bytes in transit are lost in both directions, in one, or in
    /// none.
    pub cut: u64,
}

/// The sockets of a world.
#[derive(Default)]
pub(super) struct Network {
    faults: SocketFaults,
    state: Mutex<State>,
    routes: Routes<Link>,
}

#[derive(Default)]
struct State {
    /// The listening sockets by their ports. All addresses are of one host.
    listeners: BTreeMap<u16, Arc<SeededListener>>,
    /// The next port that [`Network::choose_port`] tries, as an offset from [`FIRST_PORT`].
    chosen: u16,
    /// For each process that will crash, the number of socket calls until the crash.
    crashes: BTreeMap<u32, u64>,
}

/// The lowest port that is chosen for a socket without a given port.
const FIRST_PORT: u16 = 10_000;

struct SeededListener {
    /// The connections that were not accepted yet, each with the time from which it can be accepted.
    queue: Mutex<VecDeque<(Instant, Arc<Link>)>>,
    is_woken: AtomicBool,
    /// Notified if a socket of the server may have become ready.
    event: Event,
}

impl Wake for SeededListener {
    fn wake(self: Arc<Self>) {
        self.is_woken.store(true, Relaxed);
        self.event.notify_all();
    }
}

/// A connection.
struct Link {
    client: SocketAddr,
    pipes: Mutex<Pipes>,
    /// Notified if the socket of the client may have become ready.
    to_client: Event,
    server: Arc<SeededListener>,
}

/// The bytes in transit on a connection.
struct Pipes {
    to_server: Pipe,
    to_client: Pipe,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Link {
    /// Changes the pipes, and wakes both sides.
    fn change(&self, change: impl FnOnce(&mut Pipes)) {
        change(&mut lock(&self.pipes));
        self.to_client.notify_all();
        self.server.event.notify_all();
    }

    fn set_route(&self, route: Route) {
        self.change(|pipes| {
            pipes.to_server.hold(route == Route::Silent);
            pipes.to_client.hold(route == Route::Silent);
        });
        if route == Route::Refused {
            self.cut();
        }
    }

    /// Cuts the connection. Each direction loses the bytes in transit, or delivers them.
    fn cut(&self) {
        self.change(|pipes| {
            for pipe in [&mut pipes.to_server, &mut pipes.to_client] {
                if one_in(2) {
                    pipe.clear();
                }
                pipe.end(End::Reset);
            }
        });
    }

    /// Closes the server's side. The client can still read the bytes that were sent. But if the server has not read
    /// everything, the client may lose them, as with a real socket.
    fn close_by_server(&self) {
        self.change(|pipes| {
            if !pipes.to_server.is_empty() && one_in(2) {
                pipes.to_client.clear();
                pipes.to_client.end(End::Reset);
            }
            pipes.to_client.end(End::Closed);
            pipes.to_server.end(End::Reset);
        });
    }
}

impl Network {
    pub(super) fn new(faults: SocketFaults) -> Self {
        Self { faults, ..Self::default() }
    }

    /// See [`Seeded::crash_after`](super::Seeded::crash_after).
    pub(super) fn crash_after(&self, calls: u64) {
        let process = process();
        lock(&self.state).crashes.insert(process, calls);
    }

    /// See [`Seeded::set_route`](super::Seeded::set_route).
    pub(super) fn set_route(&self, address: IpAddr, route: Route) {
        self.routes.set(address, route).iter().for_each(|link| link.set_route(route));
    }

    /// Lets other ranks run, and crashes the calling rank if that is due.
    fn call(&self, label: &'static str) {
        yield_point(label);
        if thread::panicking() {
            return;
        }
        let process = process();
        let mut state = lock(&self.state);
        let Some(left) = state.crashes.get_mut(&process) else { return };
        *left = left.saturating_sub(1);
        if *left == 0 {
            state.crashes.remove(&process);
            drop(state);
            resume_unwind(Box::new("the rank has crashed"));
        }
    }

    /// Calls [`call`](Self::call), for a read or a write. Also cuts the connection if the seed decides so.
    fn transfer(&self, link: &Link, label: &'static str) {
        self.call(label);
        if one_in(self.faults.cut) {
            link.cut();
        }
    }

    /// Returns a free port.
    fn choose_port(&self) -> u16 {
        let mut state = lock(&self.state);
        loop {
            let port = FIRST_PORT + state.chosen;
            state.chosen = (state.chosen + 1) % (u16::MAX - FIRST_PORT);
            if !state.listeners.contains_key(&port) {
                return port;
            }
        }
    }

    pub(super) fn connect(
        self: &Arc<Self>,
        address: SocketAddr,
        limit: Duration,
    ) -> io::Result<Box<dyn ClientSocket>> {
        self.call("connect");
        let time = delay();
        sleep(time.min(limit));
        if time > limit {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.routes.pass(address.ip(), limit.saturating_sub(time))?;
        let listener = lock(&self.state).listeners.get(&address.port()).cloned();
        let Some(server) = listener.filter(|_| !one_in(self.faults.refused)) else {
            return Err(io::ErrorKind::ConnectionRefused.into());
        };
        let link = Arc::new(Link {
            client: (Ipv4Addr::LOCALHOST, self.choose_port()).into(),
            pipes: Mutex::new(Pipes { to_server: Pipe::new(), to_client: Pipe::new() }),
            to_client: Event::new("the server's bytes"),
            server,
        });
        self.routes.add(address.ip(), &link);
        let mut queue = lock(&link.server.queue);
        let at = Instant::now() + delay();
        let at = queue.back().map_or(at, |(before, _)| at.max(*before));
        queue.push_back((at, link.clone()));
        drop(queue);
        link.server.event.notify_all();
        Ok(Box::new(SeededClient { network: self.clone(), link }))
    }

    pub(super) fn listen(self: &Arc<Self>, address: SocketAddr) -> io::Result<Box<dyn ServerSockets>> {
        self.call("listen");
        let port = if address.port() == 0 { self.choose_port() } else { address.port() };
        let listener = Arc::new(SeededListener {
            queue: Mutex::default(),
            is_woken: AtomicBool::new(false),
            event: Event::new("a client"),
        });
        let mut state = lock(&self.state);
        if state.listeners.contains_key(&port) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        state.listeners.insert(port, listener.clone());
        drop(state);
        Ok(Box::new(SeededServer {
            network: self.clone(),
            address: SocketAddr::new(address.ip(), port),
            listener,
            accepts: true,
            connections: BTreeMap::new(),
        }))
    }
}

struct SeededClient {
    network: Arc<Network>,
    link: Arc<Link>,
}

impl SeededClient {
    /// Repeats `attempt` until it returns `Ok`, for at most `limit`. The error of `attempt` is the time at which bytes
    /// arrive, if any are in transit.
    fn until<T>(
        &self,
        limit: Duration,
        mut attempt: impl FnMut(&mut Pipes, Instant) -> Result<T, Option<Instant>>,
    ) -> io::Result<T> {
        let begun = Instant::now();
        loop {
            let (seen, now) = (self.link.to_client.count(), Instant::now());
            let attempted = attempt(&mut lock(&self.link.pipes), now);
            let arrival = match attempted {
                Ok(result) => return Ok(result),
                Err(arrival) => arrival.map(|at| at.saturating_duration_since(now)),
            };
            let left = match limit {
                Duration::MAX => limit,
                limit => limit.saturating_sub(now.saturating_duration_since(begun)),
            };
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            if !wait(&self.link.to_client, seen, arrival.map_or(left, |arrival| arrival.min(left))) {
                // The rank unwinds from a panic, and cannot wait.
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
        }
    }
}

impl ClientSocket for SeededClient {
    fn read(&mut self, buffer: &mut [u8], limit: Option<Duration>) -> io::Result<usize> {
        self.network.transfer(&self.link, "a read");
        let (result, was_full) = self.until(limit.unwrap_or(Duration::MAX), |pipes, now| {
            let was_full = pipes.to_client.is_full();
            pipes.to_client.read(buffer, now).map(|result| (result, was_full))
        })?;
        if was_full {
            self.link.server.event.notify_all();
        }
        result
    }

    fn write_all(&mut self, mut bytes: &[u8], limit: Duration) -> io::Result<()> {
        while !bytes.is_empty() {
            self.network.transfer(&self.link, "a write");
            let accepted = self.until(limit, |pipes, now| pipes.to_server.write(bytes, now).ok_or(None))?;
            bytes = &bytes[accepted?..];
            self.link.server.event.notify_all();
        }
        Ok(())
    }
}

impl Drop for SeededClient {
    fn drop(&mut self) {
        self.link.change(|pipes| {
            pipes.to_server.end(End::Closed);
            pipes.to_client.end(End::Reset);
        });
    }
}

impl fmt::Debug for SeededClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SeededClient").field("address", &self.link.client).finish_non_exhaustive()
    }
}

struct SeededServer {
    network: Arc<Network>,
    address: SocketAddr,
    listener: Arc<SeededListener>,
    accepts: bool,
    connections: BTreeMap<u64, (Arc<Link>, Interest)>,
}

impl SeededServer {
    fn link(&self, id: u64) -> io::Result<Arc<Link>> {
        self.connections
            .get(&id)
            .map(|(link, _)| link.clone())
            .ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// Adds the sockets that are ready to `ready`, in an order that the seed decides. [Late](Interest::late)
    /// connections come last, and at most [`LATE`] of them are added. Returns the earliest time at which another socket
    /// may become ready without a notification, if there is one.
    fn look(&self, ready: &mut Vec<Ready>, now: Instant) -> Option<Instant> {
        if self.listener.is_woken.load(Relaxed) {
            ready.push(Ready::Woken);
        }
        let mut next = None;
        let mut wait_until = |at: Instant| next = Some(next.map_or(at, |next: Instant| next.min(at)));
        match lock(&self.listener.queue).front() {
            Some((at, _)) if self.accepts && *at <= now => ready.push(Ready::Listener),
            Some((at, _)) if self.accepts => wait_until(*at),
            _ => {}
        }
        for (&id, (link, interest)) in &self.connections {
            let pipes = lock(&link.pipes);
            let readable = interest.read && pipes.to_server.is_readable(now);
            let writable = interest.write && !pipes.to_client.is_full();
            let has_ended = pipes.to_server.is_reset();
            if readable || writable || has_ended {
                ready.push(Ready::Connection { id, readable, writable, has_ended });
            } else if interest.read {
                pipes.to_server.arrival().into_iter().for_each(&mut wait_until);
            }
        }
        for i in 1..ready.len() {
            ready.swap(i, sched::draw(i as u64 + 1) as usize);
        }
        let is_late = |socket: &Ready| match socket {
            Ready::Connection { id, .. } => self.connections.get(id).is_some_and(|(_, it)| it.late),
            _ => false,
        };
        ready.sort_by_key(is_late);
        let others = ready.iter().filter(|socket| !is_late(socket)).count();
        ready.truncate(others + LATE);
        next
    }
}

impl ServerSockets for SeededServer {
    fn address(&self) -> SocketAddr {
        self.address
    }

    fn capacity(&self) -> usize {
        usize::MAX
    }

    fn waker(&self) -> Waker {
        self.listener.clone().into()
    }

    fn wait(&mut self, ready: &mut Vec<Ready>, limit: Option<Duration>) -> io::Result<()> {
        self.network.call("a wait for clients");
        let (begun, limit) = (Instant::now(), limit.unwrap_or(Duration::MAX));
        ready.clear();
        loop {
            let (seen, now) = (self.listener.event.count(), Instant::now());
            let next = self.look(ready, now);
            let left = match limit {
                Duration::MAX => limit,
                limit => limit.saturating_sub(now.saturating_duration_since(begun)),
            };
            if !ready.is_empty() || left.is_zero() {
                return Ok(());
            }
            let arrival = next.map_or(left, |at| at.saturating_duration_since(now).min(left));
            if !wait(&self.listener.event, seen, arrival) {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
        }
    }

    fn accept(&mut self, id: u64) -> io::Result<Accepted> {
        self.network.call("accept");
        let mut queue = lock(&self.listener.queue);
        let has_arrived = queue.front().is_some_and(|(at, _)| *at <= Instant::now());
        let accepted = if has_arrived { queue.pop_front() } else { None };
        drop(queue);
        let (_, link) = accepted.ok_or(io::ErrorKind::WouldBlock)?;
        self.connections.insert(id, (link, Interest::FIRST));
        Ok(Accepted::Connection)
    }

    fn set_accepting(&mut self, accepts: bool) {
        self.accepts = accepts;
    }

    fn watch(&mut self, id: u64, interest: Interest) -> io::Result<()> {
        if let Some((_, before)) = self.connections.get_mut(&id) {
            *before = interest;
        }
        Ok(())
    }

    fn read(&mut self, id: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let link = self.link(id)?;
        self.network.transfer(&link, "a read of the server");
        let mut pipes = lock(&link.pipes);
        let was_full = pipes.to_server.is_full();
        let result = pipes.to_server.read(buffer, Instant::now());
        drop(pipes);
        if was_full {
            link.to_client.notify_all();
        }
        result.unwrap_or_else(|_| Err(io::ErrorKind::WouldBlock.into()))
    }

    fn write(&mut self, id: u64, bytes: &[u8]) -> io::Result<usize> {
        let link = self.link(id)?;
        self.network.transfer(&link, "a write of the server");
        let accepted = lock(&link.pipes).to_client.write(bytes, Instant::now());
        link.to_client.notify_all();
        accepted.unwrap_or_else(|| Err(io::ErrorKind::WouldBlock.into()))
    }

    fn peer(&self, id: u64) -> Option<SocketAddr> {
        self.link(id).ok().map(|link| link.client)
    }

    fn close(&mut self, id: u64) -> bool {
        let closed = self.connections.remove(&id);
        closed.as_ref().inspect(|(link, _)| link.close_by_server()).is_some()
    }

    fn is_open(&self, id: u64) -> bool {
        self.connections.contains_key(&id)
    }

    fn connections(&self) -> usize {
        self.connections.len()
    }
}

impl Drop for SeededServer {
    fn drop(&mut self) {
        lock(&self.network.state).listeners.remove(&self.address.port());
        // The queue owns links, and each link owns the listener with the queue. Emptying the queue breaks this cycle.
        let waiting = mem::take(&mut *lock(&self.listener.queue));
        let links = waiting.iter().map(|(_, link)| link).chain(self.connections.values().map(|it| &it.0));
        links.for_each(|link| link.close_by_server());
    }
}

impl fmt::Debug for SeededServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SeededServer").field("address", &self.address).finish_non_exhaustive()
    }
}

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Network").field("faults", &self.faults).finish_non_exhaustive()
    }
}
