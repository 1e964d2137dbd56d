//! How the store's sockets are set up.

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

/// Connections that may wait to be accepted: all ranks of a job come at once.
const PENDING: i32 = 4096;

/// Listens without blocking.
pub(super) fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(address)?;
    rustix::net::listen(&listener, PENDING)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Sends small messages at once, and notices within half a minute that the other end's machine is cut off. (The
/// end of a process is noticed at once without that.)
pub(super) fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, Duration::from_secs(10))?;
    sockopt::set_tcp_keepintvl(stream, Duration::from_secs(5))?;
    sockopt::set_tcp_keepcnt(stream, 4)?;
    sockopt::set_tcp_user_timeout(stream, 30_000)?;
    Ok(())
}

/// Whether an attempt to connect has failed on this end: descriptors, memory, ports.
pub(super) fn is_local(error: &io::Error) -> bool {
    let lacking = [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::NOBUFS, Errno::ADDRNOTAVAIL];
    Errno::from_io_error(error).is_some_and(|errno| lacking.contains(&errno))
}

/// Bytes that nobody can foretell.
pub(super) fn random() -> io::Result<[u8; 32]> {
    let mut bytes = [0; 32];
    // So few come whole, once the system has any.
    match getrandom(&mut bytes[..], GetRandomFlags::empty())? {
        32 => Ok(bytes),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}
