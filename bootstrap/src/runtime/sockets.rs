//! The interface of a runtime's TCP sockets.

use std::{fmt, io, net::SocketAddr, task::Waker, time::Duration};

/// The client's end of a TCP connection. Dropping it closes the connection.
pub trait ClientSocket: fmt::Debug + Send {
    /// Reads the bytes that have arrived. Blocks until there is one, for at most `limit`. `None` means no limit.
    /// Returns the number of bytes, or 0 if the server has closed the connection.
    ///
    /// # Errors
    /// - [`TimedOut`](io::ErrorKind::TimedOut), [`WouldBlock`](io::ErrorKind::WouldBlock) or
    ///   [`Interrupted`](io::ErrorKind::Interrupted) if nothing has arrived. They may occur before the limit.
    /// - Other errors if the connection has failed.
    fn read(&mut self, buffer: &mut [u8], limit: Option<Duration>) -> io::Result<usize>;

    /// Sends all bytes. Blocks while the connection accepts none, each time for at most `limit`.
    ///
    /// # Errors
    /// - [`TimedOut`](io::ErrorKind::TimedOut) or [`WouldBlock`](io::ErrorKind::WouldBlock) at the limit.
    /// - Other errors if the connection has failed.
    fn write_all(&mut self, bytes: &[u8], limit: Duration) -> io::Result<()>;
}

/// A listening socket and its connections, which one thread serves without blocking on any of them. Dropping it closes
/// all of them.
///
/// Connections are named by ids that the caller chooses in [`accept`](ServerSockets::accept). An id must not be used
/// again, and must be less than `u64::MAX - 2`.
pub trait ServerSockets: fmt::Debug + Send {
    /// Returns the address at which the socket listens, with the port that was chosen.
    fn address(&self) -> SocketAddr;

    /// Returns the most connections that can be open at a time: as many as the process may have descriptors, less some
    /// for other purposes, but at least one.
    fn capacity(&self) -> usize;

    /// Returns the waker of [`wait`](ServerSockets::wait). Once the waker was called, [`Ready::Woken`] stays ready. If
    /// very many sockets are ready, a wait may return only some of them.
    fn waker(&self) -> Waker;

    /// Replaces the contents of `ready` with the sockets that are ready. Blocks until there is one, for at most
    /// `limit`. `None` means no limit. After the limit, and after a signal of the operating system, `ready` is empty.
    ///
    /// Connections whose [`Interest::late`] is set come after all others, and at most [`LATE`] of them.
    ///
    /// # Errors
    /// The operating system cannot wait for the sockets.
    fn wait(&mut self, ready: &mut Vec<Ready>, limit: Option<Duration>) -> io::Result<()>;

    /// Accepts a connection, names it `id`, and watches it for bytes to read.
    ///
    /// # Errors
    /// - [`WouldBlock`](io::ErrorKind::WouldBlock): no client waits for a connection.
    /// - [`Interrupted`](io::ErrorKind::Interrupted): the connection has failed, or a signal has arrived. Another
    ///   connection may wait.
    /// - Other errors: no connection can be accepted now.
    fn accept(&mut self, id: u64) -> io::Result<Accepted>;

    /// Sets whether [`wait`](ServerSockets::wait) returns [`Ready::Listener`]. Initially it does.
    fn set_accepting(&mut self, accepts: bool);

    /// Sets the events that a connection is watched for. Does nothing if it is closed.
    ///
    /// # Errors
    /// The operating system cannot watch the connection. No more events of this connection are reported.
    fn watch(&mut self, id: u64, interest: Interest) -> io::Result<()>;

    /// Reads bytes that have arrived. Returns their number, or 0 if the client has closed the connection.
    ///
    /// # Errors
    /// - [`WouldBlock`](io::ErrorKind::WouldBlock) or [`Interrupted`](io::ErrorKind::Interrupted): no byte was read.
    /// - Other errors: the connection has failed or is closed.
    fn read(&mut self, id: u64, buffer: &mut [u8]) -> io::Result<usize>;

    /// Sends the first of these bytes, as many as the connection accepts. Returns their number.
    ///
    /// # Errors
    /// Those of [`read`](ServerSockets::read).
    fn write(&mut self, id: u64, bytes: &[u8]) -> io::Result<usize>;

    /// Returns the address of the client, or `None` if it is unknown.
    fn peer(&self, id: u64) -> Option<SocketAddr>;

    /// Closes a connection. Returns false if it was closed before.
    fn close(&mut self, id: u64) -> bool;

    /// Returns true if the connection was accepted and not closed.
    fn is_open(&self, id: u64) -> bool;

    /// Returns the number of connections that were accepted and not closed.
    fn connections(&self) -> usize;
}

/// The maximum number of [late](Interest::late) connections for which one [`ServerSockets::wait`] returns events.
pub const LATE: usize = 64;

/// A socket of [`ServerSockets`] that is ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ready {
    /// The waker was called.
    Woken,
    /// A client waits for a connection.
    Listener,
    /// A connection is ready.
    Connection {
        /// The id of the connection.
        id: u64,
        /// Bytes have arrived, or the client has closed the connection.
        readable: bool,
        /// The connection accepts bytes.
        writable: bool,
        /// The connection has failed, or is shut down in both directions. Reported even if [`Interest`] asks for
        /// neither reading nor writing.
        has_ended: bool,
    },
}

/// The events that a connection is watched for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interest {
    /// Watch for bytes to read.
    pub read: bool,
    /// Watch for space for bytes to send.
    pub write: bool,
    /// Report this connection after those that are not late: it may be served last, such as the connection of a client
    /// that waits.
    pub late: bool,
}

impl Interest {
    /// The interest in a connection that was just accepted.
    pub(super) const FIRST: Self = Self { read: true, write: false, late: false };
}

/// The result of [`ServerSockets::accept`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accepted {
    /// A connection is open.
    Connection,
    /// The process has no descriptor for the connection of this client, so the connection was closed.
    NoDescriptor(SocketAddr),
}
