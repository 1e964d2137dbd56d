//! Options of a [`TcpStore`].

use std::{
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs},
    sync::{Arc, Mutex, atomic::AtomicBool},
    time::Duration,
};

use super::{Host, Inner, TcpStore};
use crate::store::{
    Deadline, Result, StoreError,
    machine::{Secret, ServerLimits},
};

/// Options to host a [`TcpStore`] and to connect to one.
#[derive(Debug, Clone)]
pub struct TcpOptions {
    listen: IpAddr,
    pub(super) limits: ServerLimits,
    pub(super) patience: Duration,
    pub(super) workers: Option<i64>,
    pub(super) secret: Option<Secret>,
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

    /// Sets the limits of the host. On every process, host or client, [`ServerLimits::sizes`] also limits the requests
    /// that the process sends and the replies that it accepts.
    #[must_use]
    pub fn limits(self, limits: ServerLimits) -> Self {
        Self { limits, ..self }
    }

    /// Sets the patience (default 30 s): how long the host may take to answer a request that does not wait for keys or
    /// queues, and how long it may accept no bytes of a request. After that, an operation fails with
    /// [`StoreError::Unresponsive`]. The patience is also the longest time for which an operation tries to open a new
    /// connection.
    #[must_use]
    pub fn patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// Sets the number of processes of the job, including the host. The store counts the processes that connect, as
    /// PyTorch's `TCPStore` does if it is given a `world_size`. [`host`](Self::host) waits until all have connected.
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
