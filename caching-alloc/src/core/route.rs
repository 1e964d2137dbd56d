//! Selection of the pool for a request to the allocator.
//!
//! Two guards route requests away from the default pool: a [`ThreadRoute`] those of one thread, a capture
//! those of its streams on every thread. They nest: among those that apply to a request, the newest wins. The
//! allocator counts the active guards, so without guards a hit costs one load of that count, and no
//! thread-local access.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, PoisonError};

use super::device::Device;
use super::pool::Pool;
use super::stream::StreamId;
use super::sync::atomic::{AtomicUsize, Ordering};
use super::sync::{RwLock, per_thread};

/// Creation numbers of guards, over all allocators. They also identify guards, and order nothing else.
static MADE: AtomicU64 = AtomicU64::new(0);

per_thread! {
    static HERE: RefCell<Vec<Route>> = const { RefCell::new(Vec::new()) };
}

/// The pool that a guard selects, and for which requests.
#[derive(Debug)]
struct Route {
    made: u64,
    pool: Pool,
    /// The streams concerned; for a thread's guard, empty: all requests of the thread.
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
    /// Returns true if any guard is active.
    #[inline]
    pub(super) fn any(&self) -> bool {
        // A thread sees its own guards. Another thread's guards are only expected to be seen after
        // synchronisation with that thread, which orders this load.
        self.count.load(Ordering::Relaxed) != 0
    }

    /// Returns true if a capture of the stream has been announced.
    pub(super) fn has_stream(&self, stream: StreamId) -> bool {
        let routes = self.by_stream.read().unwrap_or_else(PoisonError::into_inner);
        routes.iter().any(|route| route.streams.contains(&stream))
    }

    /// The pool for a request of this thread on `stream`, if it is not the default pool.
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

    /// Routes the requests of streams, on every thread, to a pool; returns the route's id.
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

    /// Removes a route of streams.
    pub(super) fn restore(&self, made: u64) {
        let mut routes = self.by_stream.write().unwrap_or_else(PoisonError::into_inner);
        let at = routes.iter().position(|route| route.made == made);
        let gone = at.map(|at| routes.remove(at));
        drop(routes);
        self.count.fetch_sub(1, Ordering::Relaxed);
        // Dropping the last handle of a pool releases its memory, which calls trackers, so no lock is held
        // here.
        drop(gone);
    }
}

/// While it lives, [`Allocator::allocate`](super::Allocator::allocate) on this thread uses its pool; see
/// [`Pool::use_on_this_thread`].
#[derive(Debug)]
#[must_use = "the thread uses the pool until this is dropped"]
pub struct ThreadRoute {
    made: u64,
    device: Arc<Device>,
    /// It ends on the thread on which it began.
    _thread: PhantomData<*const ()>,
}

impl Pool {
    /// Makes [`Allocator::allocate`](super::Allocator::allocate) on this thread use this pool, until the
    /// guard is dropped. Guards nest: the newest one applies. Other threads and other allocators are not
    /// affected.
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
        // Without thread-locals the thread is exiting, so there is nothing to route.
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
        // Like in `restore`: dropping the pool may call trackers, so nothing is borrowed here.
        drop(gone);
    }
}
