//! Which pool a request to the allocator goes to.
//!
//! Two guards divert requests from the default pool: a [`ThreadRoute`] those of one thread, a capture those of its
//! streams on every thread. They nest: the one made last that takes the request wins. The allocator counts the guards
//! in force, so that a hit pays one load of that count as long as there are none, and no thread-local at all.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, PoisonError};

use super::device::Device;
use super::pool::Pool;
use super::stream::StreamId;
use super::sync::atomic::{AtomicUsize, Ordering};
use super::sync::{RwLock, per_thread};

/// The order in which guards were made, over all allocators; it names them too, and orders nothing else.
static MADE: AtomicU64 = AtomicU64::new(0);

per_thread! {
    static HERE: RefCell<Vec<Route>> = const { RefCell::new(Vec::new()) };
}

/// Where a guard diverts requests to.
#[derive(Debug)]
struct Route {
    made: u64,
    pool: Pool,
    /// Whose requests: these streams', or, on a thread, all.
    streams: Vec<StreamId>,
}

impl Route {
    fn new(pool: &Pool, streams: &[StreamId]) -> Self {
        Self { made: MADE.fetch_add(1, Ordering::Relaxed), pool: pool.clone(), streams: streams.to_vec() }
    }
}

/// The guards of one allocator.
#[derive(Debug, Default)]
pub(super) struct Routes {
    count: AtomicUsize,
    by_stream: RwLock<Vec<Route>>,
}

impl Routes {
    /// Whether any guard is in force.
    #[inline]
    pub(super) fn any(&self) -> bool {
        // A thread sees its own guards; whoever is to see another's has been told of it, which orders this load.
        self.count.load(Ordering::Relaxed) != 0
    }

    /// Whether a capture of the stream has been announced.
    pub(super) fn has_stream(&self, stream: StreamId) -> bool {
        let routes = self.by_stream.read().unwrap_or_else(PoisonError::into_inner);
        routes.iter().any(|route| route.streams.contains(&stream))
    }

    /// The pool that takes a request of this thread on `stream`, if it is not the default pool.
    pub(super) fn find(&self, device: &Arc<Device>, stream: StreamId) -> Option<Pool> {
        let here = |route: &&Route| Arc::ptr_eq(route.pool.device(), device);
        let of_thread = HERE.try_with(|routes| {
            routes.borrow().iter().rev().find(here).map(|route| (route.made, route.pool.clone()))
        });
        let by_stream = self.by_stream.read().unwrap_or_else(PoisonError::into_inner);
        let of_stream = by_stream.iter().rev().find(|route| route.streams.contains(&stream));
        let of_stream = of_stream.map(|route| (route.made, route.pool.clone()));
        let routes = of_thread.ok().flatten().into_iter().chain(of_stream);
        routes.max_by_key(|(made, _)| *made).map(|(_, pool)| pool)
    }

    /// Diverts the requests of streams, on every thread; returns the route's name.
    pub(super) fn divert(&self, pool: &Pool, streams: &[StreamId]) -> u64 {
        let route = Route::new(pool, streams);
        let made = route.made;
        self.by_stream.write().unwrap_or_else(PoisonError::into_inner).push(route);
        self.count.fetch_add(1, Ordering::Relaxed);
        made
    }

    /// Adds a stream to a route.
    pub(super) fn extend(&self, made: u64, stream: StreamId) {
        let mut routes = self.by_stream.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(route) = routes.iter_mut().find(|route| route.made == made)
            && !route.streams.contains(&stream)
        {
            route.streams.push(stream);
        }
    }

    /// Ends a route of streams.
    pub(super) fn restore(&self, made: u64) {
        let mut routes = self.by_stream.write().unwrap_or_else(PoisonError::into_inner);
        let at = routes.iter().position(|route| route.made == made);
        let gone = at.map(|at| routes.remove(at));
        drop(routes);
        self.count.fetch_sub(1, Ordering::Relaxed);
        // The last handle of a pool gives its memory back, which calls trackers: under no lock.
        drop(gone);
    }
}

/// While it lives, [`Allocator::allocate`](super::Allocator::allocate) takes from its pool on this thread; see
/// [`Pool::use_on_this_thread`].
#[derive(Debug)]
#[must_use = "the thread uses the pool until this is dropped"]
pub struct ThreadRoute {
    made: u64,
    device: Arc<Device>,
    /// It ends on the thread that it began on.
    _thread: PhantomData<*const ()>,
}

impl Pool {
    /// Makes this the pool that [`Allocator::allocate`](super::Allocator::allocate) uses on this thread, until the
    /// guard is dropped. Guards nest: the last one made counts. Other threads and other allocators are not concerned.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use caching_alloc::core::{Allocator, PoolSettings, Settings, StreamId};
    /// # use caching_alloc::host::{HostSource, HostStreams};
    /// # fn main() -> Result<(), caching_alloc::core::AllocError> {
    /// # let (source, streams) = (Arc::new(HostSource::new(1 << 30)), Arc::new(HostStreams::new()));
    /// let allocator = Allocator::new(source, streams, Settings::default());
    /// let pool = allocator.pool(PoolSettings { name: "weights".into(), ..PoolSettings::default() })?;
    /// let weights = {
    ///     let _weights = pool.use_on_this_thread();
    ///     allocator.allocate(1 << 20, StreamId(1))?
    /// };
    /// assert_eq!(weights.pool(), pool.id());
    /// assert_ne!(allocator.allocate(1 << 20, StreamId(1))?.pool(), pool.id());
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "use_mem_pool")]
    pub fn use_on_this_thread(&self) -> ThreadRoute {
        let route = Route::new(self, &[]);
        let (made, device) = (route.made, self.device().clone());
        // Without thread-locals the thread ends, and there is nothing to divert.
        let _ = HERE.try_with(|routes| routes.borrow_mut().push(route));
        device.routes.count.fetch_add(1, Ordering::Relaxed);
        ThreadRoute { made, device, _thread: PhantomData }
    }
}

impl Drop for ThreadRoute {
    fn drop(&mut self) {
        self.device.routes.count.fetch_sub(1, Ordering::Relaxed);
        let gone = HERE.try_with(|routes| {
            let mut routes = routes.borrow_mut();
            let at = routes.iter().rposition(|route| route.made == self.made);
            at.map(|at| routes.remove(at))
        });
        // As above: nothing is borrowed any more when the pool goes.
        drop(gone);
    }
}
