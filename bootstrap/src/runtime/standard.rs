//! The runtime of the operating system.

use std::{
    io,
    sync::LazyLock,
    thread,
    time::{Duration, Instant},
};

use super::interface::{Event, Runtime};

/// The threads, the monotonic clock and the sockets of the operating system: the default runtime.
#[derive(Debug, Clone, Copy, Default)]
pub struct Standard;

/// The origin of the clock: the time of its first use in this process.
static ORIGIN: LazyLock<Instant> = LazyLock::new(Instant::now);

impl Runtime for Standard {
    fn now(&self) -> Duration {
        ORIGIN.elapsed()
    }

    fn sleep(&self, time: Duration) {
        thread::sleep(time);
    }

    fn wait(&self, event: &Event, seen: u64, limit: Duration) -> bool {
        event.park(seen, limit);
        true
    }

    fn spawn(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        if name.contains('\0') {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the name of a thread contains a zero byte",
            ));
        }
        // `Standard` is the default runtime of a thread, so the new thread needs no call of `enter`.
        thread::Builder::new().name(name.to_owned()).spawn(body).map(drop)
    }
}
