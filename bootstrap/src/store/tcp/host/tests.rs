//! Tests of the order in which a host serves clients, and of its failure.

use std::{
    io::{Read as _, Write as _},
    net::{Ipv4Addr, TcpStream},
};

use super::*;
use crate::runtime::LATE;
use crate::store::machine::{Request, greeting};

const LOCAL: (Ipv4Addr, u16) = (Ipv4Addr::LOCALHOST, 0);

#[test]
fn clients_that_cancel_waits_do_not_delay_others() {
    const CLIENTS: usize = 3 * LATE;
    let sockets = runtime::listen(LOCAL.into()).unwrap();
    let address = sockets.address();
    let mut serving = Serving::new(sockets, (ServerLimits::default(), None), Arc::default()).unwrap();
    let mut ready = Vec::new();
    let send = |client: &mut TcpStream, request: Request| {
        let mut bytes = Vec::new();
        request.encode(&mut bytes);
        client.write_all(&bytes).unwrap();
    };
    let connect = |serving: &mut Serving| {
        let mut client = TcpStream::connect(address).unwrap();
        client.write_all(&greeting()).unwrap();
        serving.accept();
        client
    };
    let mut clients: Vec<TcpStream> = (0..CLIENTS).map(|_| connect(&mut serving)).collect();
    let mut other = connect(&mut serving);
    clients.iter_mut().for_each(|client| send(client, Request::Wait { keys: vec![b"never".to_vec()] }));
    let is_waiting =
        |serving: &Serving| (0..serving.next).filter(|id| serving.server.is_waiting(*id)).count();
    while is_waiting(&serving) < CLIENTS {
        serving.serve_ready(&mut ready).unwrap();
    }
    clients.iter_mut().for_each(|client| send(client, Request::CancelWait));
    send(&mut other, Request::Ping { nonce: 7 });
    serving.serve_ready(&mut ready).unwrap();
    assert_eq!(is_waiting(&serving), CLIENTS - LATE, "one share of them is served");
    other.set_nonblocking(true).unwrap();
    assert_eq!(other.read(&mut [0; 4]).unwrap(), 4, "and the other client's request");
    while is_waiting(&serving) > 0 {
        serving.serve_ready(&mut ready).unwrap();
    }
}

/// Sockets whose `wait` always fails.
#[derive(Debug)]
struct Failing(Box<dyn ServerSockets>);

#[rustfmt::skip]
impl ServerSockets for Failing {
    fn address(&self) -> SocketAddr { self.0.address() }
    fn capacity(&self) -> usize { self.0.capacity() }
    fn waker(&self) -> Waker { self.0.waker() }
    fn wait(&mut self, _: &mut Vec<Ready>, _: Option<Duration>) -> io::Result<()> {
        Err(io::ErrorKind::InvalidInput.into())
    }
    fn accept(&mut self, id: u64) -> io::Result<Accepted> { self.0.accept(id) }
    fn set_accepting(&mut self, accepts: bool) { self.0.set_accepting(accepts) }
    fn watch(&mut self, id: u64, interest: Interest) -> io::Result<()> { self.0.watch(id, interest) }
    fn read(&mut self, id: u64, buffer: &mut [u8]) -> io::Result<usize> { self.0.read(id, buffer) }
    fn write(&mut self, id: u64, bytes: &[u8]) -> io::Result<usize> { self.0.write(id, bytes) }
    fn peer(&self, id: u64) -> Option<SocketAddr> { self.0.peer(id) }
    fn close(&mut self, id: u64) -> bool { self.0.close(id) }
    fn is_open(&self, id: u64) -> bool { self.0.is_open(id) }
    fn connections(&self) -> usize { self.0.connections() }
}

#[test]
fn a_host_that_fails_reports_it_and_closes_its_connections() {
    let shared = Arc::new(Shared::default());
    let sockets = Box::new(Failing(runtime::listen(LOCAL.into()).unwrap()));
    let (address, stop) = (sockets.address(), sockets.waker());
    let mut serving = Serving::new(sockets, (ServerLimits::default(), None), shared.clone()).unwrap();
    let mut client = TcpStream::connect(address).unwrap();
    serving.accept();
    serving.count();
    let mut host = Host { address, stop, shared, thread: None };
    assert_eq!((host.report().clients, host.report().failure), (1, None));
    host.thread = Some(runtime::spawn("host", move || serving.run()).unwrap());
    assert_eq!(host.drain(Deadline::after(Duration::from_secs(60))), 0);
    let failure = host.report().failure.unwrap();
    assert!(failure.contains("waiting for its clients: invalid input"), "{failure}");
    // Either the end of the stream or a reset shows that the connection is closed.
    assert!(!matches!(client.read(&mut [0]), Ok(1..)));
}
