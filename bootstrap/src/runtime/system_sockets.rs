//! The TCP sockets of the operating system.

use std::{
    collections::BTreeMap,
    io::{self, Read, Write},
    mem::MaybeUninit,
    net::{SocketAddr, TcpListener, TcpStream},
    os::fd::OwnedFd,
    sync::Arc,
    task::{Wake, Waker},
    time::Duration,
};

use rustix::{
    event::{EventfdFlags, Timespec, epoll, eventfd},
    io::Errno,
    net::{SocketFlags, accept_with, sockopt},
    process::{Resource, getrlimit},
};

use super::sockets::{Accepted, ClientSocket, Interest, LATE, Ready, ServerSockets};

/// The length that is requested for the listener's queue of connections. It is long because all ranks of a job may
/// connect at once.
const PENDING: i32 = 4096;

/// The number of the process's descriptors that a server does not use for connections.
const RESERVED: u64 = 64;

/// The shortest timeout of a system call, because 0 means no timeout.
const SHORTEST: Duration = Duration::from_millis(1);

/// Sets the options of a connection. Small messages are sent at once. If the other machine cannot be reached, the
/// connection breaks after about half a minute. (If only the other process ends, the connection ends at once, even
/// without these options.)
fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, Duration::from_secs(10))?;
    sockopt::set_tcp_keepintvl(stream, Duration::from_secs(5))?;
    sockopt::set_tcp_keepcnt(stream, 4)?;
    sockopt::set_tcp_user_timeout(stream, 30_000)?;
    Ok(())
}

/// Returns true if a system call has failed for lack of a local resource: descriptors, memory or ports.
pub(crate) fn is_local(error: &io::Error) -> bool {
    let lacking = [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::NOBUFS, Errno::ADDRNOTAVAIL];
    Errno::from_io_error(error).is_some_and(|errno| lacking.contains(&errno))
}

/// See [`Runtime::connect`](super::Runtime::connect).
pub(super) fn connect(address: SocketAddr, limit: Duration) -> io::Result<Box<dyn ClientSocket>> {
    let stream = TcpStream::connect_timeout(&address, limit.max(SHORTEST))?;
    if stream.local_addr().ok() == stream.peer_addr().ok() {
        // Nothing listened, and the kernel chose the destination port as the local port: the socket is connected to
        // itself.
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    tune(&stream)?;
    Ok(Box::new(SystemClient { stream, read_limit: None, write_limit: None }))
}

/// See [`Runtime::listen`](super::Runtime::listen).
pub(super) fn listen(address: SocketAddr) -> io::Result<Box<dyn ServerSockets>> {
    Ok(Box::new(SystemServer::new(address)?))
}

/// A blocking socket.
#[derive(Debug)]
struct SystemClient {
    stream: TcpStream,
    /// The read timeout that was last set on the socket. `None`: reads block without limit.
    read_limit: Option<Duration>,
    /// The write timeout that was last set on the socket. `None`: writes block without limit.
    write_limit: Option<Duration>,
}

impl ClientSocket for SystemClient {
    fn read(&mut self, buffer: &mut [u8], limit: Option<Duration>) -> io::Result<usize> {
        let limit = limit.map(at_most);
        if self.read_limit != limit {
            self.stream.set_read_timeout(limit)?;
            self.read_limit = limit;
        }
        self.stream.read(buffer)
    }

    fn write_all(&mut self, bytes: &[u8], limit: Duration) -> io::Result<()> {
        let limit = Some(limit.max(SHORTEST));
        if self.write_limit != limit {
            self.stream.set_write_timeout(limit)?;
            self.write_limit = limit;
        }
        self.stream.write_all(bytes)
    }
}

/// Returns the read timeout for the limit `left`: the largest power of two, in milliseconds, that is at most `left`. So
/// calls with similar limits use the same timeout, and the option of the socket is rarely set again. A long wait wakes
/// up several times before it ends. The timeout is at least 1 ms, because 0 means no timeout, and at most 2^22 ms,
/// because the system does not accept every duration.
fn at_most(left: Duration) -> Duration {
    const MOST: u64 = 1 << 22;
    let ms = u64::try_from(left.as_millis()).unwrap_or(MOST).clamp(1, MOST);
    Duration::from_millis(1 << ms.ilog2())
}

/// The epoll data of the listener, of the wake-up, and of the epoll of the [late](Interest::late) connections. The
/// epoll data of a connection is its id.
const LISTENER: u64 = u64::MAX;
const WOKEN: u64 = u64::MAX - 1;
const LATER: u64 = u64::MAX - 2;

/// Sockets that are watched with epoll.
#[derive(Debug)]
struct SystemServer {
    epoll: OwnedFd,
    /// The epoll of the [late](Interest::late) connections. It is itself in `epoll`.
    later: OwnedFd,
    wake_up: Arc<WakeUp>,
    listener: TcpListener,
    address: SocketAddr,
    /// A descriptor in reserve. If the process cannot open another one, it closes this one, accepts a client, closes
    /// the client's connection, and opens the reserve again.
    spare: Option<OwnedFd>,
    connections: BTreeMap<u64, WatchedStream>,
}

/// A connection, and how it is watched.
#[derive(Debug)]
struct WatchedStream {
    stream: TcpStream,
    interest: Interest,
    /// True once the options of the socket are set. They are set when the client's first bytes are read, so that silent
    /// connections cost less.
    is_tuned: bool,
}

/// An eventfd. It is never read, so it stays readable once it was written to.
#[derive(Debug)]
struct WakeUp(OwnedFd);

impl Wake for WakeUp {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // This fails only for an invalid descriptor, and the eventfd is valid.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
}

/// Opens a descriptor to hold in reserve. Returns `None` if the process cannot open one.
fn spare() -> Option<OwnedFd> {
    eventfd(0, EventfdFlags::CLOEXEC).ok()
}

/// Waits until descriptors are ready, and adds at most `MOST` of them to `ready`. Adds none after `timeout` or a
/// signal. `None` means no timeout. Returns true if the epoll of the late connections is ready.
fn wait<const MOST: usize>(
    epoll: &OwnedFd,
    ready: &mut Vec<Ready>,
    timeout: Option<&Timespec>,
) -> io::Result<bool> {
    let mut events = [const { MaybeUninit::uninit() }; MOST];
    let events = match epoll::wait(epoll, &mut events, timeout) {
        Ok((events, _)) => events,
        Err(Errno::INTR) => return Ok(false),
        Err(error) => return Err(error.into()),
    };
    let mut is_late = false;
    for event in events {
        // Copied, because the struct is packed.
        let flags = event.flags;
        match event.data.u64() {
            LISTENER => ready.push(Ready::Listener),
            WOKEN => ready.push(Ready::Woken),
            LATER => is_late = true,
            id => ready.push(Ready::Connection {
                id,
                readable: flags.contains(epoll::EventFlags::IN),
                writable: flags.contains(epoll::EventFlags::OUT),
                has_ended: flags.intersects(epoll::EventFlags::HUP | epoll::EventFlags::ERR),
            }),
        }
    }
    Ok(is_late)
}

impl Interest {
    fn flags(self) -> epoll::EventFlags {
        let mut flags = epoll::EventFlags::empty();
        flags.set(epoll::EventFlags::IN, self.read);
        flags.set(epoll::EventFlags::OUT, self.write);
        flags
    }
}

impl SystemServer {
    fn new(address: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        rustix::net::listen(&listener, PENDING)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let wake_up = Arc::new(WakeUp(eventfd(0, EventfdFlags::CLOEXEC)?));
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &listener, epoll::EventData::new_u64(LISTENER), epoll::EventFlags::IN)?;
        epoll::add(&epoll, &wake_up.0, epoll::EventData::new_u64(WOKEN), epoll::EventFlags::IN)?;
        let later = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &later, epoll::EventData::new_u64(LATER), epoll::EventFlags::IN)?;
        Ok(Self { epoll, later, wake_up, listener, address, spare: spare(), connections: BTreeMap::new() })
    }

    fn stream(&self, id: u64) -> io::Result<&TcpStream> {
        self.connections.get(&id).map(|it| &it.stream).ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

impl ServerSockets for SystemServer {
    fn address(&self) -> SocketAddr {
        self.address
    }

    fn capacity(&self) -> usize {
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        usize::try_from(descriptors.saturating_sub(RESERVED).max(1)).unwrap_or(usize::MAX)
    }

    fn waker(&self) -> Waker {
        self.wake_up.clone().into()
    }

    fn wait(&mut self, ready: &mut Vec<Ready>, limit: Option<Duration>) -> io::Result<()> {
        ready.clear();
        let timeout = limit.and_then(|limit| Timespec::try_from(limit).ok());
        if wait::<256>(&self.epoll, ready, timeout.as_ref())? {
            wait::<LATE>(&self.later, ready, Some(&Timespec::default()))?;
        }
        Ok(())
    }

    fn accept(&mut self, id: u64) -> io::Result<Accepted> {
        // Reopen the reserve before a client takes the last descriptor. Without a reserve, no client can be rejected.
        self.spare = self.spare.take().or_else(spare);
        if self.spare.is_none() {
            return Err(Errno::MFILE.into());
        }
        // One system call accepts the client and makes its socket non-blocking: while many clients connect, each
        // further call would delay all of them.
        let stream = match accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(stream) => TcpStream::from(stream),
            Err(Errno::CONNABORTED) => return Err(io::ErrorKind::Interrupted.into()),
            Err(error) if is_local(&error.into()) && self.spare.take().is_some() => {
                let turned_away = self.listener.accept().map(|(_, peer)| peer);
                self.spare = spare();
                // Perhaps no client was waiting: the system checks for a free descriptor before it looks for a client.
                let peer = turned_away.map_err(|_| io::ErrorKind::WouldBlock)?;
                return Ok(Accepted::NoDescriptor(peer));
            }
            Err(error) => return Err(error.into()),
        };
        let interest = Interest::FIRST;
        epoll::add(&self.epoll, &stream, epoll::EventData::new_u64(id), interest.flags())
            .map_err(|_| io::ErrorKind::Interrupted)?;
        self.connections.insert(id, WatchedStream { stream, interest, is_tuned: false });
        Ok(Accepted::Connection)
    }

    fn set_accepting(&mut self, accepts: bool) {
        let mut interest = epoll::EventFlags::empty();
        interest.set(epoll::EventFlags::IN, accepts);
        // This fails only for an invalid descriptor, and the listener is valid.
        let _ = epoll::modify(&self.epoll, &self.listener, epoll::EventData::new_u64(LISTENER), interest);
    }

    fn watch(&mut self, id: u64, interest: Interest) -> io::Result<()> {
        let Some(connection) = self.connections.get_mut(&id) else { return Ok(()) };
        let before = std::mem::replace(&mut connection.interest, interest);
        if interest == before {
            return Ok(());
        }
        let of = |late| if late { &self.later } else { &self.epoll };
        let data = epoll::EventData::new_u64(id);
        // `add` can fail for lack of memory. `modify` and `delete` fail only for an invalid descriptor, and this one is
        // valid.
        match interest.late == before.late {
            true => epoll::modify(of(interest.late), &connection.stream, data, interest.flags())?,
            false => epoll::delete(of(before.late), &connection.stream)
                .and_then(|()| epoll::add(of(interest.late), &connection.stream, data, interest.flags()))?,
        }
        Ok(())
    }

    fn read(&mut self, id: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let Some(connection) = self.connections.get_mut(&id) else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        let length = connection.stream.read(buffer)?;
        if length > 0 && !connection.is_tuned {
            tune(&connection.stream)?;
            connection.is_tuned = true;
        }
        Ok(length)
    }

    fn write(&mut self, id: u64, bytes: &[u8]) -> io::Result<usize> {
        self.stream(id)?.write(bytes)
    }

    fn peer(&self, id: u64) -> Option<SocketAddr> {
        self.stream(id).and_then(TcpStream::peer_addr).ok()
    }

    fn close(&mut self, id: u64) -> bool {
        self.connections.remove(&id).is_some()
    }

    fn is_open(&self, id: u64) -> bool {
        self.connections.contains_key(&id)
    }

    fn connections(&self) -> usize {
        self.connections.len()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// If at least 1 ms is left, the timeout does not exceed the time left. So that a wait rarely wakes up, the
        /// timeout is also more than `left / 2 - 1 ms`, or more than an hour.
        #[test]
        fn a_read_timeout_is_at_most_the_limit_and_at_least_about_half_of_it(micros in 1000..u64::MAX) {
            let left = Duration::from_micros(micros);
            let most = at_most(left);
            prop_assert!(most <= left);
            prop_assert!(most + Duration::from_millis(1) > left / 2 || most > Duration::from_secs(3600), "{most:?}");
        }
    }

    #[test]
    fn a_limit_of_zero_gives_the_shortest_timeout() {
        assert_eq!(at_most(Duration::ZERO), SHORTEST);
    }
}
