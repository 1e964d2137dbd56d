//! System calls that set up the store's sockets.

use std::{
    io,
    net::{SocketAddr, TcpListener, TcpStream},
    time::Duration,
};

use rustix::{io::Errno, net::sockopt};

/// The length that is requested for the listener's queue of connections. It is long because all ranks of a job may
/// connect at once.
const PENDING: i32 = 4096;

/// Returns a non-blocking socket that listens at `address`.
pub(super) fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(address)?;
    rustix::net::listen(&listener, PENDING)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Sets the options of a connection. Small messages are sent at once. If the other machine cannot be reached, the
/// connection breaks after about half a minute. (If only the other process ends, the connection ends at once, without
/// these options too.)
pub(super) fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, Duration::from_secs(10))?;
    sockopt::set_tcp_keepintvl(stream, Duration::from_secs(5))?;
    sockopt::set_tcp_keepcnt(stream, 4)?;
    sockopt::set_tcp_user_timeout(stream, 30_000)?;
    Ok(())
}

/// Returns true if a system call has failed for lack of a local resource: descriptors, memory or ports.
pub(super) fn is_local(error: &io::Error) -> bool {
    let lacking = [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::NOBUFS, Errno::ADDRNOTAVAIL];
    Errno::from_io_error(error).is_some_and(|errno| lacking.contains(&errno))
}
