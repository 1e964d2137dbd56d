//! The store of the ranks: one [`TcpStore`] over the sockets of the seeded world. Each rank reaches its host by a route
//! of its own, which a fault interrupts.

use std::{
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
    time::Duration,
};

use bootstrap::runtime::{Route, Seeded};
use process_group::store::{Deadline, TcpStore};

const PORT: u16 = 29500;

/// Hosts the store. The host is no rank.
pub(super) fn host() -> TcpStore {
    TcpStore::host(PORT).expect("nothing listens in a new world")
}

/// The route of a rank to the store's host.
#[derive(Clone)]
pub(super) struct RouteToStore {
    network: Arc<Seeded>,
    address: IpAddr,
}

impl RouteToStore {
    pub(super) fn new(network: &Arc<Seeded>, rank: usize) -> Self {
        let address = Ipv4Addr::new(127, 0, 1, rank as u8).into();
        Self { network: network.clone(), address }
    }

    pub(super) fn set(&self, route: Route) {
        self.network.set_route(self.address, route);
    }

    pub(super) fn connect(&self) -> TcpStore {
        let address = format!("{}:{PORT}", self.address);
        TcpStore::connect(&address, Deadline::after(Duration::from_secs(30))).expect("the host serves")
    }
}
