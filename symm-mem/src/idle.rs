//! Waits for idle devices, with a time limit.

use std::{sync::mpsc, thread, time::Duration};

use cuda_driver::{
    Context,
    graph::{RelaxedCapture, is_capturing},
};

/// Calls `then` once all work enqueued on the devices of `contexts` so far has completed. `Context::synchronize` has no
/// time limit, so another thread waits and calls `then`. Returns true once `then` has returned, and false after `limit`:
/// then the thread goes on, also while a stream captures, which no wait for the device may disturb. Returns the cause if
/// the thread could not be started, or a wait failed. Then drops `then` without a call.
pub(crate) fn when_idle(
    contexts: Vec<Context>,
    limit: Duration,
    then: impl FnOnce() + Send + 'static,
) -> Result<bool, String> {
    let (done, wait) = mpsc::channel();
    let wait_all = move || {
        let waited = contexts.iter().try_for_each(synchronize);
        if waited.is_ok() {
            then();
        }
        let _ = done.send(waited.map_err(|error| error.to_string()));
    };
    thread::Builder::new()
        .name("symm-mem-idle".to_owned())
        .spawn(wait_all)
        .map_err(|error| error.to_string())?;
    wait.recv_timeout(limit).map_or(Ok(false), |waited| waited.map(|()| true))
}

fn synchronize(context: &Context) -> cuda_driver::Result<()> {
    // While a stream of the context captures, the driver refuses the wait, and invalidates the capture.
    while is_capturing(context)? {
        thread::sleep(Duration::from_millis(1));
    }
    let _relaxed = RelaxedCapture::enter(context.driver())?;
    context.synchronize()
}
