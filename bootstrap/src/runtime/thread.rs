//! Threads of the current runtime.

use std::{
    fmt, io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use super::{
    current::{wait, with},
    interface::Event,
};

/// Starts a thread of the current runtime. In a seeded world, this is a coroutine beside the ranks. See
/// [`enter`](super::enter) for the runtime that is current in the new thread.
///
/// # Errors
/// Those of [`Runtime::spawn`](super::Runtime::spawn).
pub fn spawn<T: Send + 'static>(
    name: &str,
    body: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    let ended = Arc::new(Ended { result: Mutex::new(None), event: Event::new("the end of a thread") });
    let of_thread = ended.clone();
    let body = move || {
        let result = catch_unwind(AssertUnwindSafe(body));
        *of_thread.lock() = Some(result);
        of_thread.event.notify_all();
    };
    with(|runtime| runtime.spawn(name, Box::new(body)))?;
    Ok(JoinHandle { ended })
}

/// A handle to a thread that [`spawn`] has started. Dropping it detaches the thread.
pub struct JoinHandle<T> {
    ended: Arc<Ended<T>>,
}

struct Ended<T> {
    /// The result of the body. `None` until the body has ended.
    result: Mutex<Option<thread::Result<T>>>,
    /// Notified after `result` is set.
    event: Event,
}

impl<T> Ended<T> {
    fn lock(&self) -> MutexGuard<'_, Option<thread::Result<T>>> {
        self.result.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> JoinHandle<T> {
    /// Returns true if the body of the thread has ended.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.ended.lock().is_some()
    }

    /// Waits until the body of the thread has ended, and returns its result. The destructors of the thread's
    /// thread-local variables may run after that.
    ///
    /// # Errors
    /// The payload of the panic that ended the body. A rank of a seeded world that unwinds from a panic cannot wait: if
    /// such a rank calls this function before the body has ended, the error is a `&'static str` with that reason.
    pub fn join(self) -> thread::Result<T> {
        loop {
            let seen = self.ended.event.count();
            if let Some(result) = self.ended.lock().take() {
                return result;
            }
            if !wait(&self.ended.event, seen, Duration::MAX) {
                return Err(Box::new("not joined: the caller unwinds from a panic and cannot wait"));
            }
        }
    }
}

impl<T> fmt::Debug for JoinHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinHandle").field("is_finished", &self.is_finished()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::panic::resume_unwind;

    use super::*;

    #[test]
    fn join_returns_the_result_or_the_panic() {
        let sum = spawn("sum", || 1 + 1).unwrap();
        assert_eq!(sum.join().unwrap(), 2);
        let name = spawn("named", || thread::current().name().map(str::to_owned)).unwrap();
        assert_eq!(name.join().unwrap().as_deref(), Some("named"));
        let panics = spawn("panics", || resume_unwind(Box::new("broken"))).unwrap();
        let payload = panics.join().unwrap_err();
        assert_eq!(payload.downcast_ref(), Some(&"broken"));
        assert!(spawn("a\0b", || ()).is_err());
    }
}
