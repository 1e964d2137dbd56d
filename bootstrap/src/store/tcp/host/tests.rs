//! Tests of the order in which a host serves clients, and of its failure.

use std::{
    io::Read as _,
    net::{Ipv4Addr, TcpStream},
};

use super::*;
use crate::store::machine::{Request, greeting};

fn serving(stop: &OwnedFd, shared: Arc<Shared>) -> (Serving, SocketAddr) {
    let listener = socket::listen((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let address = listener.local_addr().unwrap();
    (Serving::new(listener, stop, (ServerLimits::default(), None), shared).unwrap(), address)
}

#[test]
fn clients_that_cancel_waits_do_not_delay_others() {
    const CLIENTS: usize = 3 * WAITING_SERVED;
    let (mut serving, address) = serving(&spare().unwrap(), Arc::default());
    let (mut events, mut waiting) = (Vec::with_capacity(256), Vec::with_capacity(WAITING_SERVED));
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
    let is_waiting = |serving: &Serving| serving.clients.values().filter(|it| it.is_waiting).count();
    while is_waiting(&serving) < CLIENTS {
        serving.serve_ready(&mut events, &mut waiting).unwrap();
    }
    clients.iter_mut().for_each(|client| send(client, Request::CancelWait));
    send(&mut other, Request::Ping { nonce: 7 });
    serving.serve_ready(&mut events, &mut waiting).unwrap();
    assert_eq!(is_waiting(&serving), CLIENTS - WAITING_SERVED, "one share of them is served");
    other.set_nonblocking(true).unwrap();
    assert_eq!(other.read(&mut [0; 4]).unwrap(), 4, "and the other client's request");
    while is_waiting(&serving) > 0 {
        serving.serve_ready(&mut events, &mut waiting).unwrap();
    }
}

#[test]
fn a_host_that_fails_says_so_and_lets_go_of_its_clients() {
    let (stop, shared) = (Arc::new(spare().unwrap()), Arc::new(Shared::default()));
    let (mut serving, address) = serving(&stop, shared.clone());
    let mut client = TcpStream::connect(address).unwrap();
    serving.accept();
    serving.count();
    let mut host = Host { address, stop, shared, thread: None };
    assert_eq!((host.report().clients, host.report().failure), (1, None));
    // This descriptor is not an epoll, so waiting with it fails.
    serving.epoll = spare().unwrap();
    host.thread = Some(thread::spawn(move || serving.run()));
    assert_eq!(host.drain(Deadline::after(Duration::from_secs(60))), 0);
    let failure = host.report().failure.unwrap();
    assert!(failure.contains("waiting for its clients: Invalid argument"), "{failure}");
    // Either the end of the stream or a reset shows that the connection is closed.
    assert!(!matches!(client.read(&mut [0]), Ok(1..)));
}
