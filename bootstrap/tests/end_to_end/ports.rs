//! Ports for tests that need to know a port before a process listens.

use std::{
    collections::hash_map::RandomState,
    fs,
    hash::BuildHasher,
    net::{Ipv4Addr, SocketAddrV4},
    os::fd::OwnedFd,
};

use rustix::net::{AddressFamily, SocketType};

/// The first port that programs use freely.
const FIRST: u16 = 1024;

/// Returns a descriptor that reserves a port of 127.0.0.1, and this port, which has no listener. A listener with
/// `SO_REUSEADDR` can ask for it by number while the descriptor is open.
///
/// The port lies below the range from which the system chooses ports. The system could give a port in that range, in
/// spite of the reservation, to a listener with `SO_REUSEADDR` that does not ask for a certain port.
pub(crate) fn reserved_port() -> (OwnedFd, u16) {
    let range = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap();
    let given = range.split_whitespace().next().unwrap().parse::<u16>().unwrap();
    assert!(given > FIRST, "no port below {given}, the first that the system gives");
    loop {
        let random = RandomState::new().hash_one(());
        let port = FIRST + u16::try_from(random % u64::from(given - FIRST)).unwrap();
        let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        // At first without `SO_REUSEADDR`, so that this fails if another socket has the port.
        if rustix::net::bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, port)).is_ok() {
            rustix::net::sockopt::set_socket_reuseaddr(&socket, true).unwrap();
            return (socket, port);
        }
    }
}
