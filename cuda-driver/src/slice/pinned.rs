//! Pinned host slices. Host access and `drop` wait for the copies that use them.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::graph::RelaxedCapture;
use crate::memory::{PinnedFlags, PinnedMemory};
use crate::{Context, Element, Error, Event, Result, teardown};

/// Elements in pinned host memory. The device copies from and to this memory without a staging buffer.
///
/// [`Stream::memcpy_htod_async`](crate::Stream::memcpy_htod_async) and
/// [`Stream::memcpy_dtoh_async`](crate::Stream::memcpy_dtoh_async) return while their copies may still run. The slice
/// holds events that complete after these copies. Access from the host waits for the events, and so does `drop`.
pub struct PinnedSlice<T: Element> {
    context: Context,
    /// `None` if there are no elements.
    memory: Option<PinnedMemory>,
    len: usize,
    /// Events, each recorded after a copy that may still run. A copy that a later copy waits for needs no event of its
    /// own.
    uses: Mutex<Vec<Arc<Event>>>,
    /// True if a copy may still use the memory and no event marks the end of that copy. The memory is then never
    /// accessed or freed.
    is_lost: AtomicBool,
    elements: std::marker::PhantomData<T>,
}

impl Context {
    /// Allocates `len` zeroed elements of pinned host memory, which streams of any device can use. Allocating takes
    /// milliseconds per gigabyte and may wait for the device: reuse pinned slices.
    ///
    /// The driver refuses this call during a capture whose [mode](crate::graph::CaptureMode) forbids it on this
    /// thread, and invalidates that capture. It accepts the call while the thread holds a [`RelaxedCapture`].
    ///
    /// # Errors
    /// [`Error::Driver`] from `cuMemHostAlloc`: `CUDA_ERROR_OUT_OF_MEMORY` if the host has no memory left, or the limit
    /// of locked memory is reached.
    #[doc(alias = "cuMemHostAlloc")]
    pub fn alloc_pinned<T: Element>(&self, len: usize) -> Result<PinnedSlice<T>> {
        // A size that overflows saturates. The driver refuses to allocate it, because no host has as much memory.
        let memory = match len.saturating_mul(size_of::<T>()) {
            0 => None,
            bytes => Some(PinnedMemory::new(self, bytes, PinnedFlags::PORTABLE)?),
        };
        Ok(PinnedSlice {
            context: self.clone(),
            memory,
            len,
            uses: Mutex::default(),
            is_lost: AtomicBool::new(false),
            elements: std::marker::PhantomData,
        })
    }
}

impl<T: Element> PinnedSlice<T> {
    length_methods!();

    /// Blocks until no copy uses the slice, and returns the elements.
    ///
    /// # Errors
    /// [`Error::Driver`] from `cuEventSynchronize`, also for errors of earlier asynchronous work, or from
    /// `cuThreadExchangeStreamCaptureMode`; [`Error::UnknownEnd`] if a copy may still use the slice but cannot be
    /// waited for, because an earlier call failed or raced with a capture.
    pub fn as_slice(&self) -> Result<&[T]> {
        self.wait()?;
        // SAFETY: the memory is initialised, since it was zeroed and any bits are values of `T`. Nothing writes it: a
        // copy to the slice needs `&mut`, and earlier copies have ended.
        Ok(unsafe { std::slice::from_raw_parts(self.start(), self.len) })
    }

    /// Blocks until no copy uses the slice, and returns the elements for writing.
    ///
    /// # Errors
    /// As [`as_slice`](Self::as_slice).
    pub fn as_mut_slice(&mut self) -> Result<&mut [T]> {
        self.wait()?;
        // SAFETY: as in `as_slice`. Nothing reads it either: earlier copies have ended, and `self` is borrowed
        // exclusively.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.start(), self.len) })
    }

    /// Returns the address of the first element; dangling if there is none.
    pub(super) fn start(&self) -> *mut T {
        // The memory is aligned to pages, so it is aligned for `T`.
        self.memory.as_ref().map_or(std::ptr::NonNull::dangling().as_ptr(), |memory| memory.as_ptr().cast())
    }

    pub(super) fn context(&self) -> &Context {
        &self.context
    }

    fn uses(&self) -> MutexGuard<'_, Vec<Arc<Event>>> {
        self.uses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check(&self) -> Result<()> {
        if self.is_lost.load(Ordering::SeqCst) {
            return Err(Error::UnknownEnd { cause: "a call failed, or raced with a capture" });
        }
        Ok(())
    }

    fn wait(&self) -> Result<()> {
        self.check()?;
        let uses = self.uses().clone();
        if !uses.is_empty() {
            let relaxed = RelaxedCapture::enter(self.context.driver());
            let waited = uses.iter().try_for_each(|event| event.synchronize());
            waited.map_err(|error| relaxed.err().unwrap_or(error))?;
            self.forget_uses(&uses);
        }
        Ok(())
    }

    /// Removes the events in `ended` from the list. The caller ensures that each of them has completed, or completes
    /// before an event that stays in the list.
    fn forget_uses(&self, ended: &[Arc<Event>]) {
        // Dropped after the lock is released, because dropping an event calls the driver.
        let _gone: Vec<_> =
            self.uses().extract_if(.., |event| ended.iter().any(|other| Arc::ptr_eq(event, other))).collect();
    }

    /// Returns the events of the copies that a new copy must wait for.
    pub(super) fn earlier_uses(&self) -> Result<Vec<Arc<Event>>> {
        self.check()?;
        Ok(self.uses().clone())
    }

    /// Adds the event of a new copy and removes the `earlier` events. The new copy waits for those, so `event`
    /// completes after them.
    pub(super) fn add_use(&self, event: Event, earlier: &[Arc<Event>]) {
        self.uses().push(Arc::new(event));
        self.forget_uses(earlier);
    }

    /// Makes later access an error, and `drop` leak the memory. Called when a copy may still use the memory and cannot
    /// be waited for.
    pub(super) fn lose(&self) {
        self.is_lost.store(true, Ordering::SeqCst);
    }
}

impl<T: Element> Drop for PinnedSlice<T> {
    fn drop(&mut self) {
        if let Err(error) = self.wait() {
            std::mem::forget(self.memory.take());
            teardown::report(Err(error));
        }
    }
}

impl<T: Element> fmt::Debug for PinnedSlice<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PinnedSlice<{}>({} elements)", std::any::type_name::<T>(), self.len)
    }
}
