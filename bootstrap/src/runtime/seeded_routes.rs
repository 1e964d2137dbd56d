//! The routes to the IP addresses of a seeded world, which a test can interrupt.

use std::{
    collections::BTreeMap,
    io,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use super::{
    current::{Instant, wait},
    interface::Event,
};

/// The state of the connections whose clients have connected to one IP address. See
/// [`Seeded::set_route`](super::Seeded::set_route).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Route {
    /// Bytes arrive.
    #[default]
    Open,
    /// Nothing arrives in either direction, not even the end of a connection, as when a machine or a cable on the way
    /// has failed. Attempts to connect block. When the route is open again, held bytes arrive: TCP repeats them.
    Silent,
    /// All connections are cut, and attempts to connect are refused, as when the process of the server has ended.
    Refused,
}

/// The routes of a world, and its connections.
pub(super) struct Routes<L> {
    state: Mutex<BTreeMap<IpAddr, State<L>>>,
    changed: Event,
}

/// The route to one address.
struct State<L> {
    route: Route,
    links: Vec<Weak<L>>,
}

impl<L> Default for Routes<L> {
    fn default() -> Self {
        Self { state: Mutex::default(), changed: Event::new("an answer on a silent route") }
    }
}

impl<L> Default for State<L> {
    fn default() -> Self {
        Self { route: Route::Open, links: Vec::new() }
    }
}

impl<L> Routes<L> {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<IpAddr, State<L>>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the route, and returns the connections that use it.
    pub(super) fn set(&self, address: IpAddr, route: Route) -> Vec<Arc<L>> {
        let mut state = self.lock();
        let state = state.entry(address).or_default();
        state.route = route;
        let links = state.links.iter().filter_map(Weak::upgrade).collect();
        self.changed.notify_all();
        links
    }

    /// Adds a connection to this address.
    pub(super) fn add(&self, address: IpAddr, link: &Arc<L>) {
        let mut state = self.lock();
        let links = &mut state.entry(address).or_default().links;
        links.retain(|link| link.strong_count() > 0);
        links.push(Arc::downgrade(link));
    }

    /// Waits until the route is not silent.
    ///
    /// # Errors
    /// `TimedOut` if it is silent for `limit`, `ConnectionRefused`.
    pub(super) fn pass(&self, address: IpAddr, limit: Duration) -> io::Result<()> {
        let begun = Instant::now();
        loop {
            let seen = self.changed.count();
            let route = self.lock().get(&address).map_or(Route::Open, |state| state.route);
            let left = match limit {
                Duration::MAX => limit,
                limit => limit.saturating_sub(begun.elapsed()),
            };
            match route {
                Route::Open => return Ok(()),
                Route::Refused => return Err(io::ErrorKind::ConnectionRefused.into()),
                Route::Silent if left.is_zero() => return Err(io::ErrorKind::TimedOut.into()),
                Route::Silent if wait(&self.changed, seen, left) => {}
                // The rank unwinds from a panic, and cannot wait.
                Route::Silent => return Err(io::ErrorKind::ConnectionAborted.into()),
            }
        }
    }
}
