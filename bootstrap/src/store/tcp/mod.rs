//! A store for the processes of a job, over TCP, compatible with PyTorch's `TCPStore` on the wire.
//!
//! - `host`: the server, which is one thread. `connection`: a client's connection, driven by the calling thread.
//!   `socket`: system calls that both use.
//! - [`TcpStore`] keeps a few idle connections. Each call has a connection to itself: an idle one or a new one. So a
//!   wait of one thread never blocks another thread. A successful call returns only after it has taken effect, so the
//!   next call may use any connection.

mod connection;
mod host;
mod socket;

use std::{
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

pub use self::host::HostReport;
use self::{
    connection::{Broken, Connection},
    host::Host,
};
use super::{
    Deadline, Result, Store, StoreError, check_kind,
    error::text,
    machine::{Call, Failure, GRACE, Reply, Request, Secret, ServerLimits},
};
use crate::runtime;

/// The byte that PyTorch's clients put before each key of a user. The store's own keys do not have it.
const USER: u8 = b'/';

/// The key whose value is the number of processes that have connected, if [`TcpOptions::workers`] is set.
const WORKERS: &[u8] = b"init/";

/// The most idle connections that are kept for later calls.
const KEPT: usize = 8;

/// The first pause between two attempts to connect. Each later pause is twice as long as the one before, up to
/// [`PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(5);
/// The longest pause between two attempts to connect.
const PAUSE: Duration = Duration::from_millis(250);

/// A store that one process hosts and others connect to. Clones are the same store. When the hosting process drops
/// its last clone, the store ends for all processes.
///
/// The store uses PyTorch's protocol. Ranks in Python may connect to it, or host it (`torch.distributed.TCPStore`
/// with either of its servers; queues need the libuv server). Without a [secret](TcpOptions::secret) there is no
/// authentication, so use it only on networks whose users you trust. A host listens on the loopback interface
/// unless [`TcpOptions::listen`] is set.
///
/// Limits of the protocol: if a key is deleted between the end of a wait and the read that follows, the read
/// returns an empty value. [`num_keys`](super::Store::num_keys) also counts the key of the
/// [`workers`](TcpOptions::workers). If the host does not answer, for example because its process is stopped, a
/// wait ends at most about 5 s after its deadline, or about 10 s if it needs a new connection.
///
/// ```
/// use bootstrap::store::{Deadline, Store, TcpStore};
/// use std::time::Duration;
///
/// # fn main() -> Result<(), bootstrap::store::StoreError> {
/// let deadline = Deadline::after(Duration::from_secs(30));
/// let host = TcpStore::host(0)?;
/// let client = TcpStore::connect(&host.address(), deadline)?;
/// client.set("leader", b"rank 0")?;
/// assert_eq!(host.get("leader", deadline)?, b"rank 0");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct TcpStore {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    options: TcpOptions,
    /// See [`TcpStore::address`].
    address: String,
    /// The addresses that `address` resolves to. There is at least one.
    sockets: Vec<SocketAddr>,
    /// The idle connections.
    kept: Mutex<Vec<Connection>>,
    /// True once a connection has broken during a `get`, and the host still served. The older of PyTorch's servers
    /// closes the connection if the key is absent. Every later `get` waits for its key before it reads the value.
    hangs_up: AtomicBool,
    /// The server, if this process hosts the store. Dropping it stops the server.
    host: Option<Host>,
}

/// Options to host a [`TcpStore`] and to connect to one.
#[derive(Debug, Clone)]
pub struct TcpOptions {
    listen: IpAddr,
    limits: ServerLimits,
    patience: Duration,
    workers: Option<i64>,
    secret: Option<Secret>,
}

impl Default for TcpOptions {
    fn default() -> Self {
        Self {
            listen: Ipv4Addr::LOCALHOST.into(),
            limits: ServerLimits::default(),
            patience: Duration::from_secs(30),
            workers: None,
            secret: None,
        }
    }
}

impl TcpOptions {
    /// Sets the address of the interface that a host listens on (default: `127.0.0.1`). `::` and `0.0.0.0` mean all
    /// interfaces.
    #[must_use]
    pub fn listen(self, interface: IpAddr) -> Self {
        Self { listen: interface, ..self }
    }

    /// Sets the limits of the host. On every process, [`ServerLimits::sizes`] also limits the requests that it sends
    /// and the replies that it accepts.
    #[must_use]
    pub fn limits(self, limits: ServerLimits) -> Self {
        Self { limits, ..self }
    }

    /// Sets how long the host may take to answer a request that does not wait for keys or queues (default 30 s), and
    /// to accept its bytes. After that, an operation fails with [`StoreError::Unresponsive`]. An operation that needs a
    /// new connection also tries to open it for at most this time.
    #[must_use]
    pub fn patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// Sets the number of processes of the job, including the host. The store counts the processes that connect, as
    /// PyTorch's does with a world size. [`host`](Self::host) waits until all have connected.
    /// [`connect`](Self::connect) does not wait for the other processes. Set this on all processes of a job or on none.
    #[must_use]
    pub fn workers(self, workers: i64) -> Self {
        Self { workers: Some(workers), ..self }
    }

    /// Sets a secret. Host and clients prove to each other that they know it, before any request. PyTorch's stores
    /// support no secret: a process with a secret cannot connect to them, and a host with a secret rejects their
    /// clients. The traffic is not encrypted.
    #[must_use]
    pub fn secret(self, secret: Secret) -> Self {
        Self { secret: Some(secret), ..self }
    }

    /// Hosts a store at `port`. Port 0 chooses a free one, which [`TcpStore::address`] contains. Waits for the
    /// [`workers`](Self::workers) until `deadline`, if their number is set.
    ///
    /// # Errors
    /// - [`StoreError::PortInUse`], [`StoreError::Bind`].
    /// - [`StoreError::Workers`] if not all workers have connected at the deadline.
    /// - The errors of [`connect`](Self::connect) if this process cannot connect to its own host.
    pub fn host(self, port: u16, deadline: Deadline) -> Result<TcpStore> {
        let host = Host::start(SocketAddr::new(self.listen, port), self.limits, self.secret.clone())?;
        let mut socket = host.address();
        if socket.ip().is_unspecified() {
            socket.set_ip(match socket {
                SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
                SocketAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
            });
        }
        let inner = Inner {
            options: self,
            address: socket.to_string(),
            sockets: vec![socket],
            kept: Mutex::default(),
            hangs_up: AtomicBool::new(false),
            host: Some(host),
        };
        inner.join(deadline)
    }

    /// Connects to the store at `address` (`host:port`). Repeats the attempt until the deadline while no process
    /// listens there, or while the connection ends before the greeting is complete, for example because the host has
    /// its largest number of clients. The look-up of the host's name, before the first attempt, has no time limit.
    ///
    /// # Errors
    /// - [`StoreError::Unreachable`], [`StoreError::TurnedAway`], [`StoreError::NotAStore`],
    ///   [`StoreError::Distrusted`], [`StoreError::Address`].
    /// - If the number of [`workers`](Self::workers) is set: the errors of [`Store::add`](super::Store::add).
    pub fn connect(self, address: &str, deadline: Deadline) -> Result<TcpStore> {
        let wrong = |source| StoreError::Address { address: address.into(), source: Arc::new(source) };
        let sockets: Vec<_> = address.to_socket_addrs().map_err(wrong)?.collect();
        if sockets.is_empty() {
            return Err(wrong(io::ErrorKind::NotFound.into()));
        }
        let address = address.to_owned();
        let (kept, hangs_up) = (Mutex::default(), AtomicBool::new(false));
        Inner { options: self, address, sockets, kept, hangs_up, host: None }.join(deadline)
    }
}

impl TcpStore {
    /// Hosts a store at `port` of the loopback interface, with the default options; see [`TcpOptions::host`].
    ///
    /// # Errors
    /// Those of [`TcpOptions::host`], except [`StoreError::Workers`].
    pub fn host(port: u16) -> Result<Self> {
        TcpOptions::default().host(port, Deadline::after(Duration::from_secs(30)))
    }

    /// Connects to a store with the default options; see [`TcpOptions::connect`].
    ///
    /// # Errors
    /// As for [`TcpOptions::connect`]: [`StoreError::Unreachable`], [`StoreError::TurnedAway`],
    /// [`StoreError::NotAStore`], [`StoreError::Address`], and [`StoreError::Distrusted`] if the store has a secret.
    pub fn connect(address: &str, deadline: Deadline) -> Result<Self> {
        TcpOptions::default().connect(address, deadline)
    }

    /// Returns the default options, to host or connect with other settings.
    pub fn options() -> TcpOptions {
        TcpOptions::default()
    }

    /// Returns the store's address, `host:port`. On a client, it is the one given to `connect`. On the host, it
    /// contains the chosen port, and the loopback address if the store listens on all interfaces.
    pub fn address(&self) -> String {
        self.inner.address.clone()
    }

    /// Returns true if this process hosts the store.
    pub fn is_host(&self) -> bool {
        self.inner.host.is_some()
    }

    /// Returns the host's state and the connections that it has rejected. Returns `None` if this process is not the
    /// host.
    pub fn report(&self) -> Option<HostReport> {
        self.inner.host.as_ref().map(Host::report)
    }

    /// Closes this process's idle connections, and waits until all clients have disconnected. The host can then end
    /// without interrupting their calls. Returns 0, or the number of clients that are still connected at the deadline.
    /// If this process is not the host, returns 0 at once.
    pub fn drain(&self, deadline: Deadline) -> usize {
        self.inner.kept().clear();
        self.inner.host.as_ref().map_or(0, |host| host.drain(deadline))
    }
}

impl Inner {
    /// Opens the first connection. Repeats the attempt until the deadline, because the host may not listen yet, or may
    /// have its largest number of clients. Then counts this process, if the number of workers is set.
    fn join(self, deadline: Deadline) -> Result<TcpStore> {
        let mut pause = FIRST_PAUSE;
        let mut attempts = 0;
        let mut last = None;
        let mut connection = loop {
            attempts += 1;
            match self.open(deadline) {
                Ok(connection) => break connection,
                Err(Broken::Gone(error)) => last = Some((error, false)),
                Err(Broken::TurnedAway(error)) => last = Some((error, true)),
                // The deadline passed during this attempt. The error of an earlier attempt tells the user more.
                Err(Broken::Failed(Failure::Unresponsive)) if last.is_some() => {}
                Err(Broken::Failed(Failure::Protocol(found))) => {
                    return Err(StoreError::NotAStore { address: self.address, found });
                }
                Err(Broken::Failed(Failure::Distrust(source))) => {
                    return Err(StoreError::Distrusted { address: self.address, source });
                }
                Err(Broken::Failed(_)) => {
                    let waited = deadline.waited();
                    let found = format!("it accepts connections but has not greeted within {waited:.1?}");
                    return Err(StoreError::NotAStore { address: self.address, found });
                }
            }
            if deadline.remaining() <= pause {
                let (address, waited) = (self.address, deadline.waited());
                let (source, turned_away) = last.unwrap_or_else(|| (io::ErrorKind::TimedOut.into(), false));
                let source = Arc::new(source);
                return Err(match turned_away {
                    true => StoreError::TurnedAway { address, attempts, waited, source },
                    false => StoreError::Unreachable { address, attempts, waited, source },
                });
            }
            runtime::sleep(pause);
            pause = (pause * 2).min(PAUSE);
        };
        self.count_workers(&mut connection, deadline)?;
        self.keep(connection);
        Ok(TcpStore { inner: Arc::new(self) })
    }

    /// Counts this process as connected, if the number of workers is set. On the host, also waits until all workers are
    /// counted, and returns [`StoreError::Workers`] if they are not at the deadline.
    fn count_workers(&self, connection: &mut Connection, deadline: Deadline) -> Result<()> {
        let Some(expected) = self.options.workers else { return Ok(()) };
        let key = WORKERS.to_vec();
        let call = match &self.host {
            // A barrier adds 1, as the clients do, and waits for the others.
            Some(_) => Call::Barrier { key, world: expected, deadline: connection.time_of(deadline) },
            None => Call::Now(Request::Add { key, delta: 1 }),
        };
        match connection.call(call) {
            Ok(_) => Ok(()),
            Err(Broken::Failed(Failure::TimedOut { .. })) => {
                let arrived =
                    match connection.call(Call::Now(Request::Add { key: WORKERS.to_vec(), delta: 0 })) {
                        Ok(Some(Reply::Integer(arrived))) => arrived,
                        _ => 0,
                    };
                let (address, waited) = (self.address.clone(), deadline.waited());
                Err(StoreError::Workers { address, arrived, expected, waited })
            }
            Err(broken) => Err({
                let operation = Operation { name: "counting the workers", key: None };
                self.failed(&operation, broken, deadline)
            }),
        }
    }

    /// Tries every address once, until a connection is open and greeted. Each attempt gets an equal share of the time
    /// that is left. If all fail, returns the error of the last one.
    fn open(&self, deadline: Deadline) -> Result<Connection, Broken> {
        let sizes = self.options.limits.sizes;
        let mut last = Broken::Gone(io::ErrorKind::NotFound.into());
        for (left, socket) in (1..=self.sockets.len()).rev().zip(&self.sockets) {
            let secret = self.options.secret.as_ref();
            let share = deadline.remaining() / u32::try_from(left).unwrap_or(u32::MAX);
            let deadline = deadline.at_most(share);
            match Connection::open(*socket, sizes, self.options.patience, secret, deadline) {
                Ok(connection) => return Ok(connection),
                Err(broken) => last = broken,
            }
        }
        Err(last)
    }

    /// Opens a connection after the first one. Repeats the attempt until the deadline while the host rejects this
    /// process: the host may have its largest number of clients, or may have received the greeting too late. Any other
    /// failure ends the attempts.
    fn open_again(&self, operation: &Operation, deadline: Deadline) -> Result<Connection> {
        let mut pause = FIRST_PAUSE;
        let mut attempts = 0;
        loop {
            attempts += 1;
            let source = match self.open(deadline) {
                Ok(connection) => return Ok(connection),
                Err(Broken::TurnedAway(source)) => Arc::new(source),
                Err(broken) => return Err(self.failed(operation, broken, deadline)),
            };
            if deadline.remaining() <= pause {
                let (address, waited) = (self.address.clone(), deadline.waited());
                return Err(StoreError::TurnedAway { address, attempts, waited, source });
            }
            runtime::sleep(pause);
            pause = (pause * 2).min(PAUSE);
        }
    }

    fn kept(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps an idle connection for later calls. Closes it if [`KEPT`] are kept already.
    fn keep(&self, connection: Connection) {
        let mut kept = self.kept();
        if kept.len() < KEPT {
            kept.push(connection);
        }
    }

    /// Makes the call that `call` returns, on an idle connection or a new one. `call` gets the connection because the
    /// times in a [`Call`] are on that connection's clock. `deadline` is that of the operation. Keeps the connection
    /// afterwards if it is still usable.
    fn run(
        &self,
        operation: &Operation,
        deadline: Deadline,
        call: impl FnOnce(&Connection) -> Call,
    ) -> Result<Option<Reply>> {
        let kept = self.kept().pop();
        let time = deadline.remaining().max(GRACE).min(self.options.patience);
        let opened = kept.map_or_else(|| self.open_again(operation, Deadline::after(time)), Ok);
        let mut connection = opened?;
        let call = call(&connection);
        let outcome = connection.call(call);
        match outcome {
            Ok(reply) => {
                self.keep(connection);
                Ok(reply)
            }
            Err(broken) => {
                if matches!(broken, Broken::Failed(Failure::TimedOut { .. })) {
                    self.keep(connection);
                }
                Err(self.failed(operation, broken, deadline))
            }
        }
    }

    /// Returns the error for a failed call, or a failed attempt to connect, to a host that has answered before. If the
    /// connection was lost, opens another one, for at most 2 s, to find out whether the host still serves.
    fn failed(&self, operation: &Operation, broken: Broken, deadline: Deadline) -> StoreError {
        let (address, operation) = (self.address.clone(), operation.to_string());
        let source = match broken {
            Broken::Failed(Failure::TimedOut { missing }) => {
                let keys = missing.iter().map(|key| user(key)).collect();
                return StoreError::Timeout { keys, waited: deadline.waited() };
            }
            Broken::Failed(Failure::Protocol(detail)) => {
                return StoreError::Protocol { address, operation, detail };
            }
            Broken::Failed(Failure::Distrust(source)) => return StoreError::Distrusted { address, source },
            Broken::Failed(_) => {
                return StoreError::Unresponsive { address, operation, waited: deadline.waited() };
            }
            Broken::Gone(source) if socket::is_local(&source) => {
                return StoreError::Local { address, operation, source: Arc::new(source) };
            }
            Broken::Gone(source) | Broken::TurnedAway(source) => source,
        };
        // The idle connections have probably failed too.
        self.kept().clear();
        match self.open(Deadline::after(self.options.patience.min(Duration::from_secs(2)))) {
            Ok(connection) => {
                self.keep(connection);
                let limits = "it closes a connection that exceeds its limits (sizes, or the memory that it may use), or \
                              adds to what is no number; its report says which";
                StoreError::Refused { address, operation, limits }
            }
            Err(_) => StoreError::HostDied { address, operation, source: Arc::new(source) },
        }
    }
}

/// Describes a call, for errors.
struct Operation {
    name: &'static str,
    /// Its first key, with PyTorch's prefix; `None` if the error names no key.
    key: Option<Vec<u8>>,
}

impl std::fmt::Display for Operation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.key {
            Some(key) => write!(f, "{} of {:?}", self.name, user(key)),
            None => f.write_str(self.name),
        }
    }
}

/// Adds PyTorch's prefix to the keys of a request. Returns a description of the request.
fn to_wire(request: &mut Request) -> Result<Operation> {
    check_kind(request)?;
    let mut first = None;
    request.for_each_key(|key| {
        key.insert(0, USER);
        if first.is_none() {
            first = Some(key.clone());
        }
    });
    Ok(Operation { name: request.name(), key: first })
}

/// Formats a key for an error, without PyTorch's prefix.
fn user(key: &[u8]) -> String {
    text(key.strip_prefix(&[USER]).unwrap_or(key))
}

impl Store for TcpStore {
    fn call(&self, mut request: Request) -> Result<Option<Reply>> {
        let operation = to_wire(&mut request)?;
        self.inner.options.limits.sizes.check(&request)?;
        let deadline = Deadline::after(self.inner.options.patience);
        Ok(match self.inner.run(&operation, deadline, |_| Call::Now(request))? {
            Some(Reply::Keys(mut keys)) => {
                keys.retain(|key| key.first() == Some(&USER));
                keys.iter_mut().for_each(|key| *key = key.split_off(1));
                Some(Reply::Keys(keys))
            }
            reply => reply,
        })
    }

    fn call_when_there(
        &self,
        mut keys: Vec<Vec<u8>>,
        mut then: Option<Request>,
        deadline: Deadline,
    ) -> Result<Option<Reply>> {
        keys.iter_mut().for_each(|key| key.insert(0, USER));
        self.inner.options.limits.sizes.check(&Request::Wait { keys: keys.clone() })?;
        let waiting = Operation { name: "wait", key: keys.first().cloned() };
        let operation = then.as_mut().map_or(Ok(waiting), to_wire)?;
        if let Some(get @ Request::Get { .. }) = &then
            && !self.inner.hangs_up.load(Ordering::Relaxed)
        {
            let (keys, then) = (keys.clone(), get.clone());
            let peeked = self.inner.run(&operation, deadline, |connection| Call::Peek {
                keys,
                then,
                deadline: connection.time_of(deadline),
            });
            match peeked {
                Err(StoreError::Refused { .. }) => self.inner.hangs_up.store(true, Ordering::Relaxed),
                outcome => return outcome,
            }
        }
        self.inner.run(&operation, deadline, |connection| Call::WhenThere {
            keys,
            then,
            deadline: connection.time_of(deadline),
        })
    }

    fn unexpected(&self, operation: &'static str, reply: Option<Reply>) -> StoreError {
        let (address, operation) = (self.inner.address.clone(), operation.to_owned());
        StoreError::Protocol { address, operation, detail: format!("the reply is {reply:?}") }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn an_address_that_does_not_answer_leaves_time_for_the_next() {
        let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let host = Host::start((Ipv4Addr::LOCALHOST, 0).into(), ServerLimits::default(), None).unwrap();
        let client = Inner {
            options: TcpOptions::default(),
            address: "host".into(),
            sockets: vec![silent.local_addr().unwrap(), host.address()],
            kept: Mutex::default(),
            hangs_up: AtomicBool::new(false),
            host: None,
        };
        client.open(Deadline::after(Duration::from_secs(4))).unwrap();
    }
}
