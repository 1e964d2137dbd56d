//! Selection of the pool for a request to the allocator.
//!
//! Guards route requests away from the default pool. The guard of a thread routes the requests of that thread. The
//! guard of a capture routes the requests for the capture's streams, on every thread. Guards nest: among the guards
//! that apply to a request, the newest wins. The allocator counts the active guards. While there are none, the
//! selection of the pool costs one load of that count, and no thread-local access.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, PoisonError};

use super::pool_core::PoolHandle;
use super::registry::Registry;
use super::stream::StreamId;
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{RwLock, per_thread};

/// The creation number of the next guard, over all allocators. The numbers order guards by age, and identify them.
static MADE: AtomicU64 = AtomicU64::new(0);

per_thread! {
    /// The guards of this thread, oldest first, for all allocators.
    static HERE: RefCell<Vec<Rc<ThreadPool>>> = const { RefCell::new(Vec::new()) };
}
per_thread! {
    /// True while this thread calls a predicate. Guards with predicates do not apply meanwhile. Otherwise a predicate
    /// that requests memory would be called for its own request, without end.
    static ASKING: Cell<bool> = const { Cell::new(false) };
}

/// A request, as the predicate of [`Pool::use_on_this_thread_if`](super::Pool::use_on_this_thread_if) gets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RoutedRequest {
    /// The size asked for, in bytes.
    pub bytes: u64,
    /// The stream for which the block is requested.
    pub stream: StreamId,
}

/// Returns true for the requests that a guard routes.
pub(super) type Selects = Rc<dyn Fn(RoutedRequest) -> bool>;

/// The pool that a thread's guard selects.
struct ThreadPool {
    made: u64,
    pool: Arc<PoolHandle>,
    /// Selects the requests that the guard routes. `None` means all.
    selects: Option<Selects>,
}

/// The pool that a capture selects for its streams.
#[derive(Debug)]
struct CapturePool {
    made: u64,
    pool: Arc<PoolHandle>,
}

/// The guards of one allocator.
#[derive(Debug, Default)]
pub(super) struct Routes {
    count: AtomicUsize,
    captures: RwLock<Vec<CapturePool>>,
}

impl fmt::Debug for ThreadPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ThreadPool").field("pool", &self.pool.core.info.id).finish_non_exhaustive()
    }
}

/// Calls a predicate.
fn ask(selects: &Selects, request: RoutedRequest) -> bool {
    /// Ends the call even if the predicate panics.
    struct End;
    impl Drop for End {
        fn drop(&mut self) {
            ASKING.with(|asking| asking.set(false));
        }
    }
    ASKING.with(|asking| asking.set(true));
    let _end = End;
    selects(request)
}

impl Routes {
    /// Returns true if any guard is active.
    #[inline]
    pub(super) fn any(&self) -> bool {
        // A thread sees its own guards. Another thread's guards are only expected to be seen after
        // synchronisation with that thread, which orders this load.
        self.count.load(Ordering::Relaxed) != 0
    }

    /// Returns the pool for a request of this thread, or `None` for the default pool. `registry` is that of the
    /// allocator.
    pub(super) fn find(&self, registry: &Arc<Registry>, request: RoutedRequest) -> Option<Arc<PoolHandle>> {
        let of_thread = Self::of_thread(registry, request);
        let announced = registry.announced(request.stream);
        let captures = self.captures.read().unwrap_or_else(PoisonError::into_inner);
        let of_stream = captures.iter().find(|route| Some(route.made) == announced);
        let of_stream = of_stream.map(|route| (route.made, route.pool.clone()));
        // A predicate may have dropped the guard of `of_thread`, which then is the last handle of its pool. Dropping
        // that handle may call trackers, so it happens with no lock held.
        drop(captures);
        let routes = of_thread.into_iter().chain(of_stream);
        routes.max_by_key(|(made, _)| *made).map(|(_, pool)| pool)
    }

    /// Returns the pool that the guards of this thread select for a request, with the number of the route.
    fn of_thread(registry: &Arc<Registry>, request: RoutedRequest) -> Option<(u64, Arc<PoolHandle>)> {
        let asking = ASKING.with(Cell::get);
        let mut newer = u64::MAX;
        loop {
            let is_next = |route: &&Rc<ThreadPool>| {
                route.made < newer
                    && Arc::ptr_eq(route.pool.core.registry(), registry)
                    && !(asking && route.selects.is_some())
            };
            let next = HERE.try_with(|routes| routes.borrow().iter().rev().find(is_next).cloned());
            let route = next.ok().flatten()?;
            // The predicate is called while `HERE` is not borrowed, so it may create and drop guards.
            if route.selects.as_ref().is_none_or(|selects| ask(selects, request)) {
                return Some((route.made, route.pool.clone()));
            }
            newer = route.made;
        }
    }

    /// Routes requests of this thread to a pool: all, or those that `selects` returns true for. Returns the route's
    /// number.
    pub(super) fn begin_here(&self, pool: Arc<PoolHandle>, selects: Option<Selects>) -> u64 {
        let made = MADE.fetch_add(1, Ordering::Relaxed);
        let route = Rc::new(ThreadPool { made, pool, selects });
        // This fails only while the thread exits. There is nothing to route then.
        let _ = HERE.try_with(|routes| routes.borrow_mut().push(route));
        self.count.fetch_add(1, Ordering::Relaxed);
        made
    }

    /// Ends a route of this thread.
    pub(super) fn end_here(&self, made: u64) {
        let gone = HERE.try_with(|routes| {
            let mut routes = routes.borrow_mut();
            let at = routes.iter().rposition(|route| route.made == made);
            at.map(|at| routes.remove(at))
        });
        self.count.fetch_sub(1, Ordering::Relaxed);
        // This may drop the last handle of a pool, which releases the pool's memory and so calls trackers. A tracker
        // may allocate, which borrows `HERE`. So the borrow above has ended.
        drop(gone);
    }

    /// Routes the requests for these streams, on every thread, to a pool. Returns the route's number.
    pub(super) fn begin_capture(&self, pool: Arc<PoolHandle>, streams: &[StreamId]) -> u64 {
        let made = MADE.fetch_add(1, Ordering::Relaxed);
        let registry = pool.core.registry().clone();
        self.captures.write().unwrap_or_else(PoisonError::into_inner).push(CapturePool { made, pool });
        registry.announce_capture(made, streams);
        self.count.fetch_add(1, Ordering::Relaxed);
        made
    }

    /// Ends the route of a capture. `made` is the number that [`begin_capture`](Self::begin_capture) returned.
    pub(super) fn end_capture(&self, made: u64) {
        let mut captures = self.captures.write().unwrap_or_else(PoisonError::into_inner);
        let at = captures.iter().position(|route| route.made == made);
        let gone = at.map(|at| captures.remove(at));
        drop(captures);
        self.count.fetch_sub(1, Ordering::Relaxed);
        if let Some(route) = &gone {
            route.pool.core.registry().end_announcement(made);
        }
        // With no lock held, for the reason given in `end_here`.
        drop(gone);
    }
}
