//! Ports for tests that need to know a port before a process listens.

use std::{
    net::{Ipv4Addr, SocketAddrV4},
    os::fd::OwnedFd,
};

use rustix::net::{AddressFamily, SocketType};

/// Returns a descriptor that reserves a port of 127.0.0.1, and this port, which has no listener. While the descriptor
/// is open, the system does not choose this port for sockets that ask for any free port. A listener with `SO_REUSEADDR`
/// can still ask for it by number.
pub(crate) fn reserved_port() -> (OwnedFd, u16) {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    rustix::net::sockopt::set_socket_reuseaddr(&socket, true).unwrap();
    rustix::net::bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = SocketAddrV4::try_from(rustix::net::getsockname(&socket).unwrap()).unwrap();
    (socket, address.port())
}
