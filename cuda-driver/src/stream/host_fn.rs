//! Host functions that run in stream order.

use std::collections::HashMap;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex, PoisonError};

use super::Stream;
use crate::call::call;
use crate::graph::CaptureStatus;
use crate::{Error, Result};

type HostFn = Box<dyn FnOnce() + Send>;

/// Host functions that are enqueued and have not run. The driver is given a key and not a pointer. A function
/// that it runs twice (a graph, made while another thread started a capture) or never (a destroyed context)
/// is therefore neither freed twice nor read after it was freed.
static ENQUEUED: LazyLock<Mutex<HashMap<usize, HostFn>>> = LazyLock::new(Mutex::default);
static NEXT_KEY: AtomicUsize = AtomicUsize::new(1);

fn take(key: usize) -> Option<HostFn> {
    ENQUEUED.lock().unwrap_or_else(PoisonError::into_inner).remove(&key)
}

unsafe extern "C" fn run(key: *mut c_void) {
    let Some(function) = take(key.addr()) else { return };
    // The panic hook has printed the message. This thread belongs to the driver, so the panic must not unwind
    // further.
    let Err(payload) = catch_unwind(AssertUnwindSafe(function)) else { return };
    // Dropping the payload may panic again, with a payload whose drop may panic too: the second one is
    // leaked.
    if let Err(payload) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        std::mem::forget(payload);
    }
}

impl Stream {
    /// Runs `function` once, on a thread of the driver, when the stream reaches it; the stream waits for it.
    ///
    /// The function must not call the driver, nor wait for work of a stream. A panic in it is caught. If the
    /// context is destroyed before the stream reaches it, it never runs and is leaked.
    ///
    /// # Errors
    /// [`Error::WhileCapturing`]: a graph could run it many times (see
    /// [`launch_raw_host_fn`](Self::launch_raw_host_fn)); [`Error::Driver`] from `cuLaunchHostFunc`.
    #[doc(alias = "cuLaunchHostFunc")]
    pub fn launch_host_fn(&self, function: impl FnOnce() + Send + 'static) -> Result<()> {
        if self.capture_status()? != CaptureStatus::None {
            return Err(Error::WhileCapturing {
                what: "a host function that runs once",
                instead: "a graph may run it often; use launch_raw_host_fn",
            });
        }
        let _current = self.enter_if_implicit()?;
        let key = NEXT_KEY.fetch_add(1, Ordering::Relaxed);
        ENQUEUED.lock().unwrap_or_else(PoisonError::into_inner).insert(key, Box::new(function));
        // SAFETY: `run` takes its argument for a key and never reads through it.
        let enqueued = unsafe {
            call!(self.api(), cuLaunchHostFunc(self.raw(), Some(run), std::ptr::without_provenance_mut(key)))
        };
        if enqueued.is_err() {
            take(key);
        }
        enqueued
    }

    /// Runs `function(data)` on a thread of the driver when the stream reaches it, and, if the stream
    /// captures, on each launch of the graph.
    ///
    /// # Safety
    /// `function` must not unwind, call the driver or wait for work of a stream; `data` must be what it expects,
    /// usable from any thread, until the stream has passed the call, or the last graph with it is gone.
    ///
    /// # Errors
    /// [`Error::Driver`] from `cuLaunchHostFunc`.
    #[doc(alias = "cuLaunchHostFunc")]
    pub unsafe fn launch_raw_host_fn(
        &self,
        function: unsafe extern "C" fn(data: *mut c_void),
        data: *mut c_void,
    ) -> Result<()> {
        let _current = self.enter_if_implicit()?;
        // SAFETY: the caller vouches for the function and its data; the stream is alive.
        unsafe { call!(self.api(), cuLaunchHostFunc(self.raw(), Some(function), data)) }
    }
}
