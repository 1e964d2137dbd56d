//! The runtime of a seeded world.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    panic::resume_unwind,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use gpu_sim::sched::{self, Signal, WaitError};

use super::{
    interface::{Event, Runtime},
    seeded_routes::Route,
    seeded_sockets::{Network, SocketFaults},
    sockets::{ClientSocket, ServerSockets},
    standard::Standard,
};
use crate::hash::fnv64;

/// Runs on the seeded scheduler of `gpu_sim::sched`: ranks and threads are coroutines on one thread, the seed chooses
/// the one that runs, and the clock is virtual. On a thread that runs no ranks of a seeded world it behaves as
/// [`Standard`].
///
/// Call [`enter`](super::enter) on the thread that starts the world, before the world is started, and drop the guard
/// after the end of the world. Make one runtime for each world.
///
/// ```
/// use bootstrap::{runtime::{self, Seeded}, store::{Deadline, HashStore, Store, StoreError}};
/// use gpu_sim::World;
/// use std::{sync::Arc, time::Duration};
///
/// let _runtime = runtime::enter(Arc::new(Seeded::new()));
/// let world = World::builder().seeded(7).start()?;
/// let store = HashStore::new();
/// let rank = |rank: usize| -> (String, Box<dyn FnOnce() -> Result<(), StoreError> + Send>) {
///     let store = store.clone();
///     let body = move || {
///         store.set(&format!("rank {rank}"), b"")?;
///         // An hour on the virtual clock.
///         store.wait(&["rank 0", "rank 1", "rank 2"], Deadline::after(Duration::from_secs(3600)))
///     };
///     (format!("rank {rank}"), Box::new(body))
/// };
/// for result in world.run_actors(vec![rank(0), rank(1)])? {
///     assert!(matches!(result, Err(StoreError::Timeout { keys, .. }) if keys == ["rank 2"]));
/// }
/// world.finish()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// TCP sockets connect ranks of the world, whatever the IP address: a connection is two queues of bytes. The seed
/// decides how long bytes are under way and into which parts they are split. It also decides when the
/// [faults](SocketFaults) happen. [`set_route`](Self::set_route) interrupts the connections of one rank.
///
/// If the world ends, or if nothing in the world can continue (a deadlock, which
/// [`run_actors`](gpu_sim::World::run_actors) reports), a wait unwinds like a panic, but without a call of the panic
/// hook.
///
/// The scheduler cannot suspend a rank that unwinds from a panic. So if a destructor calls [`sleep`](super::sleep)
/// during that time, or [`wait`](super::wait) for an [`Event`] whose count has not changed, no other rank
/// runs. The call returns at once, and the clock advances by the time of the sleep or the limit of the wait. A wait
/// without a limit returns false.
#[derive(Debug, Default)]
pub struct Seeded {
    /// The sum of the times by which waits and sleeps of unwinding ranks have advanced the clock, in nanoseconds. The
    /// clock of this runtime is the world's clock plus this sum.
    skipped: AtomicU64,
    /// The number of random numbers that were computed.
    computed: AtomicU64,
    network: Arc<Network>,
}

impl Seeded {
    /// Makes the runtime. In a seeded world, its clock starts at zero.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes a runtime whose sockets have these faults.
    #[must_use]
    pub fn with_faults(faults: SocketFaults) -> Self {
        Self { network: Arc::new(Network::new(faults)), ..Self::default() }
    }

    /// Lets the calling rank crash at the start of its `calls`-th socket call from now: the rank unwinds, without a
    /// call of the panic hook. Attempts to connect or listen, waits of a server, accepts, reads and writes are socket
    /// calls. Its connections close as it drops them. Calls of other threads of the rank are not counted.
    pub fn crash_after(&self, calls: u64) {
        self.network.crash_after(calls);
    }

    /// Sets the route of all connections, present and later, whose client has connected to this IP address, whatever
    /// the port. All addresses name the same machine. So ranks that connect to different addresses of one server, for
    /// example `127.0.0.2` and `127.0.0.3`, have different routes to it.
    pub fn set_route(&self, address: IpAddr, route: Route) {
        self.network.set_route(address, route);
    }

    /// Converts the error of a wait or sleep to the result of [`Runtime::wait`]:
    /// - If the limit has passed, returns true.
    /// - After any other error (the world has ended or is in a deadlock), if the rank does not unwind yet, makes it
    ///   unwind.
    /// - If the rank unwinds already, advances the clock by the limit and returns true. Without a limit, returns false.
    fn end(&self, error: &WaitError, limit: Duration) -> bool {
        if matches!(error, WaitError::TimedOut { .. }) {
            return true;
        }
        if !thread::panicking() {
            resume_unwind(Box::new(error.to_string()));
        }
        if limit != Duration::MAX {
            self.skipped.fetch_add(u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX / 2), Relaxed);
        }
        limit != Duration::MAX
    }
}

impl Runtime for Seeded {
    fn now(&self) -> Duration {
        if !sched::is_seeded() {
            return Standard.now();
        }
        sched::now() + Duration::from_nanos(self.skipped.load(Relaxed))
    }

    fn sleep(&self, time: Duration) {
        if !sched::is_seeded() {
            return Standard.sleep(time);
        }
        if let Err(error) = sched::sleep(time) {
            self.end(&error, time);
        }
    }

    fn wait(&self, event: &Event, seen: u64, limit: Duration) -> bool {
        if !sched::is_seeded() {
            return Standard.wait(event, seen, limit);
        }
        // The scheduler checks the conditions of all waits before each step, so this signal needs no notification.
        let signal = Signal::new();
        let until = (limit != Duration::MAX).then(|| sched::now().saturating_add(limit));
        let waited = sched::wait(&signal, || event.name().to_owned(), until, || event.count() != seen);
        match waited {
            Ok(()) => true,
            Err(error) => self.end(&error, limit),
        }
    }

    fn spawn(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        match sched::spawn(name, body) {
            Ok(()) => Ok(()),
            Err(body) => Standard.spawn(name, body),
        }
    }

    fn connect(&self, address: SocketAddr, limit: Duration) -> io::Result<Box<dyn ClientSocket>> {
        if !sched::is_seeded() {
            return Standard.connect(address, limit);
        }
        self.network.connect(address, limit)
    }

    fn listen(&self, address: SocketAddr) -> io::Result<Box<dyn ServerSockets>> {
        if !sched::is_seeded() {
            return Standard.listen(address);
        }
        self.network.listen(address)
    }

    fn process(&self) -> u32 {
        let task = if sched::is_seeded() { sched::current() } else { 0 };
        std::process::id().wrapping_add(u32::try_from(task).unwrap_or(u32::MAX))
    }

    /// The numbers depend on the time of the world, which depends on its seed. They are not drawn from the seed, so that
    /// the code that asks for one has the same schedule as before.
    fn fill_random(&self, bytes: &mut [u8]) -> io::Result<()> {
        if !sched::is_seeded() {
            return Standard.fill_random(bytes);
        }
        let time = u64::try_from(sched::now().as_nanos()).unwrap_or(u64::MAX);
        for part in bytes.chunks_mut(8) {
            let number = [time, self.computed.fetch_add(1, Relaxed)].map(u64::to_le_bytes);
            part.copy_from_slice(&fnv64(number.as_flattened()).to_le_bytes()[..part.len()]);
        }
        Ok(())
    }

    fn yield_point(&self, label: &'static str) {
        sched::point(label);
    }
}
