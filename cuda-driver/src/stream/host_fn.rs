//! Host functions that a stream runs in its order.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex, PoisonError};

use super::Stream;
use crate::call::call;
use crate::graph::CaptureStatus;
use crate::unwind::ignore_panic;
use crate::{Error, Result};

type HostFn = Box<dyn FnOnce() + Send>;

/// The host functions that are enqueued and have not run, by key. The driver gets the key, not a pointer.
///
/// The driver may call [`run`] several times with the same key: if another thread begins a capture just before the
/// call is enqueued, the call becomes part of a graph, which can be launched more than once. The driver may also
/// never call [`run`], if that graph is never launched, or if the stream's context is destroyed first or has an error.
/// With a key, the function is still freed at most once, and never read after it was freed.
static ENQUEUED: LazyLock<Mutex<HashMap<usize, HostFn>>> = LazyLock::new(Mutex::default);
static NEXT_KEY: AtomicUsize = AtomicUsize::new(1);

fn take(key: usize) -> Option<HostFn> {
    ENQUEUED.lock().unwrap_or_else(PoisonError::into_inner).remove(&key)
}

unsafe extern "C" fn run(key: *mut c_void) {
    // A panic must not unwind further, because this thread belongs to the driver.
    if let Some(function) = take(key.addr()) {
        ignore_panic(function);
    }
}

impl Stream {
    /// Enqueues `function`, which then runs once, on a thread of the driver. Later work of the stream waits until it
    /// has returned.
    ///
    /// The function must not call the driver or wait for work of a stream. A panic in the function is caught. If the
    /// context is destroyed before the stream reaches the function, or has an error of earlier work then, the function
    /// never runs and is leaked.
    ///
    /// If another thread begins a capture of the stream during this call, the graph may contain the function. The
    /// function then runs only at the first launch of the graph. If the graph is never launched, the function is
    /// leaked.
    ///
    /// # Errors
    /// [`Error::WhileCapturing`] if the stream captures, because each launch of the graph would run the function again
    /// (use [`launch_raw_host_fn`](Self::launch_raw_host_fn) instead); [`Error::Driver`] from `cuStreamIsCapturing` or
    /// `cuLaunchHostFunc`.
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
        // SAFETY: `run` treats its argument as a key and never reads through it.
        let enqueued = unsafe {
            call!(self.api(), cuLaunchHostFunc(self.raw(), Some(run), std::ptr::without_provenance_mut(key)))
        };
        if enqueued.is_err() {
            take(key);
        }
        enqueued
    }

    /// Enqueues the call `function(data)`, which a thread of the driver makes when the stream reaches it. Later work of
    /// the stream waits until `function` has returned. If the stream captures, the call becomes part of the graph, and
    /// every launch of the graph makes the call. The driver makes no call once the context has an error.
    ///
    /// # Safety
    /// `function` must not unwind, call the driver or wait for work of a stream. Until the stream has completed the
    /// call, it must be sound to call `function` with `data` on any thread. If the call was captured, this must hold
    /// until all graphs and executables that contain the call have been dropped, and their launches have completed.
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
        // SAFETY: the caller promises that the function and its data are valid; the stream is alive.
        unsafe { call!(self.api(), cuLaunchHostFunc(self.raw(), Some(function), data)) }
    }
}
