//! A store for the processes of a job, over TCP, compatible with PyTorch's `TCPStore` on the wire.
//!
//! - `host`: the server, which is one thread. `connection`: a client's connection, driven by the calling thread. Their
//!   sockets are those of the [runtime].
//! - [`TcpStore`] keeps a few idle connections. Each call has a connection to itself: an idle one or a new one. So a
//!   wait of one thread never blocks another thread. A successful call returns only after it has taken effect, so the
//!   next call may use any connection.

mod connection;
mod host;
mod options;

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use self::{
    connection::{Broken, Connection},
    host::Host,
};
pub use self::{host::HostReport, options::TcpOptions};
use super::{
    Deadline, Result, Store, StoreError, check_kind,
    error::text,
    machine::{Call, Failure, GRACE, Reply, Request},
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
    /// False at first: `get` reads the value at once, and waits only if the key is absent. Becomes true when such a read
    /// loses its connection although the host still serves, as with the older of PyTorch's servers if the key is absent.
    /// From then on, `get` first waits for its key.
    hangs_up: AtomicBool,
    /// The server, if this process hosts the store. Dropping it stops the server.
    host: Option<Host>,
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
    /// already have the maximum number of clients. Then counts this process, if the number of workers is set.
    fn join(self, deadline: Deadline) -> Result<TcpStore> {
        let opened = self.open_repeatedly(deadline, |broken| !matches!(broken, Broken::Failed(_)));
        let mut connection = match opened {
            Ok(connection) => connection,
            Err((broken, attempts)) => {
                let (address, waited) = (self.address, deadline.waited());
                return Err(match broken {
                    Broken::Gone(source) => {
                        StoreError::Unreachable { address, attempts, waited, source: Arc::new(source) }
                    }
                    Broken::TurnedAway(source) => {
                        StoreError::TurnedAway { address, attempts, waited, source: Arc::new(source) }
                    }
                    Broken::Failed(Failure::Protocol(found)) => StoreError::NotAStore { address, found },
                    Broken::Failed(Failure::Distrust(source)) => StoreError::Distrusted { address, source },
                    Broken::Failed(_) => {
                        let found = format!(
                            "it accepts connections but has not greeted within {waited:.1?} (unless its host is overloaded)"
                        );
                        StoreError::NotAStore { address, found }
                    }
                });
            }
        };
        self.count_workers(&mut connection, deadline)?;
        self.keep(connection);
        Ok(TcpStore { inner: Arc::new(self) })
    }

    /// Opens a connection. While `repeats` is true for the failure, repeats the attempt until the deadline. If all
    /// attempts fail, returns the last failure, and the number of attempts. But if the deadline interrupts an attempt
    /// after the first one, returns the failure of the attempt before, which says more about the cause.
    fn open_repeatedly(
        &self,
        deadline: Deadline,
        repeats: impl Fn(&Broken) -> bool,
    ) -> Result<Connection, (Broken, u32)> {
        let (mut pause, mut last, mut attempts) = (FIRST_PAUSE, None, 0);
        loop {
            attempts += 1;
            let failed = match (self.open(deadline), last.take()) {
                (Ok(connection), _) => return Ok(connection),
                (Err(Broken::Failed(Failure::Unresponsive)), Some(last)) => last,
                (Err(broken), _) => broken,
            };
            if !repeats(&failed) || deadline.remaining() <= pause {
                return Err((failed, attempts));
            }
            last = Some(failed);
            runtime::sleep(pause);
            pause = (pause * 2).min(PAUSE);
        }
    }

    /// Counts this process as connected, if the number of workers is set. On the host, also waits until all workers are
    /// counted. Returns [`StoreError::Workers`] if the deadline passes before that.
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

    /// Opens a further connection, for `operation`. Repeats the attempt until the deadline while the host rejects this
    /// process: the host may already have the maximum number of clients, or may have received the greeting too late.
    /// Any other failure ends the attempts.
    fn open_again(&self, operation: &Operation, deadline: Deadline) -> Result<Connection> {
        let opened = self.open_repeatedly(deadline, |broken| matches!(broken, Broken::TurnedAway(_)));
        opened.map_err(|(broken, attempts)| match broken {
            Broken::TurnedAway(source) => {
                let (address, waited) = (self.address.clone(), deadline.waited());
                StoreError::TurnedAway { address, attempts, waited, source: Arc::new(source) }
            }
            broken => self.failed(operation, broken, deadline),
        })
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

    /// Makes a call on an idle connection, or on a new one if none is idle. Keeps the connection afterwards if it is
    /// still usable. The closure `call` builds the [`Call`] for the connection that was chosen, because the times in a
    /// [`Call`] are on that connection's clock. `deadline` is the deadline of the operation. It also determines how
    /// long opening a new connection may take.
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
    /// connection was lost, tries for at most 2 s to open another one, to find out whether the host still serves.
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
            Broken::Gone(source) if runtime::is_local(&source) => {
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
        loop {
            let hangs_up = self.inner.hangs_up.load(Ordering::Relaxed);
            let peeks = !hangs_up && matches!(then, Some(Request::Get { .. }));
            let (keys, then) = match peeks {
                true => (keys.clone(), then.clone()),
                false => (std::mem::take(&mut keys), then.take()),
            };
            let called = self.inner.run(&operation, deadline, |connection| Call::WhenThere {
                keys,
                then,
                peeks,
                deadline: connection.time_of(deadline),
            });
            match called {
                Err(StoreError::Refused { .. }) if peeks => {
                    self.inner.hangs_up.store(true, Ordering::Relaxed)
                }
                outcome => return outcome,
            }
        }
    }

    fn unexpected(&self, operation: &'static str, reply: Option<Reply>) -> StoreError {
        let (address, operation) = (self.inner.address.clone(), operation.to_owned());
        StoreError::Protocol { address, operation, detail: format!("the reply is {reply:?}") }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;
    use crate::store::machine::ServerLimits;

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
