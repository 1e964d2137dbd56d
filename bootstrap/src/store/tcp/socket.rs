//! Sets up the store's sockets.

use std::{
    io,
    net::{SocketAddr, TcpListener, TcpStream},
    time::Duration,
};

use rustix::{
    io::Errno,
    net::sockopt,
    rand::{GetRandomFlags, getrandom},
};

/// The length of the accept queue: all ranks of a job may connect at once.
const PENDING: i32 = 4096;

/// Listens without blocking.
pub(super) fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(address)?;
    rustix::net::listen(&listener, PENDING)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Sends small messages at once, and detects within half a minute that the other end's machine is
/// unreachable. (The end of a process is detected at once anyway.)
pub(super) fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, Duration::from_secs(10))?;
    sockopt::set_tcp_keepintvl(stream, Duration::from_secs(5))?;
    sockopt::set_tcp_keepcnt(stream, 4)?;
    sockopt::set_tcp_user_timeout(stream, 30_000)?;
    Ok(())
}

/// Returns true if an attempt to connect has failed for lack of a local resource: descriptors, memory, ports.
pub(super) fn is_local(error: &io::Error) -> bool {
    let lacking = [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::NOBUFS, Errno::ADDRNOTAVAIL];
    Errno::from_io_error(error).is_some_and(|errno| lacking.contains(&errno))
}

/// Returns unpredictable bytes.
pub(super) fn random() -> io::Result<[u8; 32]> {
    let mut bytes = [0; 32];
    // A request of this size is filled completely once the system has entropy.
    match getrandom(&mut bytes[..], GetRandomFlags::empty())? {
        32 => Ok(bytes),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}
