//! Waits for the device, with a time limit.

use std::{sync::mpsc, thread, time::Duration};

use cuda_driver::{
    Context,
    graph::{RelaxedCapture, is_capturing},
};

/// Calls `then` once all work enqueued on the devices of `contexts` so far has completed, as [`after`] does. Before
/// that, waits until no stream captures, because the wait for the device would invalidate a capture that it meets.
pub(crate) fn when_idle(
    contexts: Vec<Context>,
    limit: Duration,
    then: impl FnOnce() + Send + 'static,
) -> Result<bool, String> {
    after(move || contexts.iter().try_for_each(synchronize), limit, then)
}

/// Calls `wait`, and then `then`, on another thread, because waits of the driver have no time limit. Returns true once
/// `then` has returned, and false after `limit`: then the thread goes on. Returns the cause if the thread could not be
/// started, or `wait` failed. Then drops `then` without a call.
pub(crate) fn after(
    wait: impl FnOnce() -> cuda_driver::Result<()> + Send + 'static,
    limit: Duration,
    then: impl FnOnce() + Send + 'static,
) -> Result<bool, String> {
    let (done, is_done) = mpsc::channel();
    let run = move || {
        let waited = wait();
        if waited.is_ok() {
            then();
        }
        let _ = done.send(waited.map_err(|error| error.to_string()));
    };
    let thread = thread::Builder::new().name("symm-mem-idle".to_owned()).spawn(run);
    thread.map_err(|error| error.to_string())?;
    is_done.recv_timeout(limit).map_or(Ok(false), |waited| waited.map(|()| true))
}

fn synchronize(context: &Context) -> cuda_driver::Result<()> {
    // While a stream of the context captures, the driver refuses the wait, and invalidates the capture.
    while is_capturing(context)? {
        thread::sleep(Duration::from_millis(1));
    }
    let _relaxed = RelaxedCapture::enter(context.driver())?;
    context.synchronize()
}
