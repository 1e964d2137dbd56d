//! Streams: ordered queues of work on a device.

mod copy;
mod host_fn;
mod memory_op;
mod order;

use std::any::Any;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use bitflags::bitflags;
use cuda_driver_sys::{Api, CUstream};

pub use self::memory_op::{MemoryOp, WaitCondition};
use crate::call::{call, code, ready};
use crate::context::Current;
use crate::{Context, Result, teardown};

bitflags! {
    /// Flags for creating a stream.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct StreamFlags: u32 {
        /// The stream and the legacy default stream do not wait for each other.
        const NON_BLOCKING = 1;
        const _ = !0;
    }
}

/// A stream: work that is enqueued on it runs in order.
///
/// This is a handle, cheap to clone. Dropping the last clone destroys the stream if this crate created it. Work that is
/// already enqueued still runs.
///
/// # What asynchronous calls ask of the caller
/// Enqueued work runs later, and types cannot check the lifetime of the memory that it uses. A method that takes
/// addresses of such memory is therefore `unsafe`, always with this contract: *until the stream has completed the work,
/// the ranges must be valid and of the stated sizes; and neither other work nor host code may write a range that the
/// work uses, or read a range that the work writes*. The stream has completed the work when a synchronisation of the
/// stream that began after the work was enqueued has succeeded, or when an event that was recorded after the work is
/// complete.
///
/// If the stream captures, the work runs at each launch of a graph made from the capture. The contract must then hold
/// *for every such launch*, until the last of them has completed.
#[derive(Clone)]
pub struct Stream {
    inner: Arc<Inner>,
}

struct Inner {
    raw: CUstream,
    owner: Owner,
    context: Context,
    /// Counters of the calls that may make the stream part of a capture. The first counts calls that have begun, the
    /// second calls that have returned.
    capture_calls: [AtomicU64; 2],
}

/// The owner of a stream. Only [`Us`](Self::Us) makes this crate destroy the stream.
enum Owner {
    /// The handle. Dropping its last clone destroys the stream.
    Us,
    /// Another library or the driver.
    Others,
    /// The value in this box, which keeps the stream alive. It is dropped with the last clone of the handle.
    Kept(#[expect(dead_code, reason = "dropped with the handle")] Box<dyn Any + Send + Sync>),
}

// SAFETY: a stream's handle may be used on every thread.
unsafe impl Send for Inner {}
// SAFETY: as above; the driver synchronises calls from several threads.
unsafe impl Sync for Inner {}

/// Weak references to streams, and a threshold. If the list has at least that many references, the next insertion first
/// removes the references to streams without handles. The new threshold is twice the number of remaining references,
/// but at least 64.
static ALIVE: Mutex<(Vec<Weak<Inner>>, usize)> = Mutex::new((Vec::new(), 64));

/// Returns the streams of `context` with live handles, except its legacy default stream.
pub(crate) fn alive(context: &Context) -> Vec<Stream> {
    let all: Vec<Stream> = {
        let alive = ALIVE.lock().unwrap_or_else(PoisonError::into_inner);
        alive.0.iter().filter_map(Weak::upgrade).map(|inner| Stream { inner }).collect()
    };
    // Filtered after the lock is released: dropping a stream here may drop its last handle, which calls the driver.
    all.into_iter().filter(|stream| stream.context() == context).collect()
}

fn enter_alive(inner: &Arc<Inner>) {
    let mut alive = ALIVE.lock().unwrap_or_else(PoisonError::into_inner);
    let (streams, most) = &mut *alive;
    if streams.len() >= *most {
        streams.retain(|stream| stream.strong_count() > 0);
        *most = 64.max(2 * streams.len());
    }
    streams.push(Arc::downgrade(inner));
}

impl Stream {
    /// Creates a stream of normal priority.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuStreamCreate`.
    #[doc(alias = "cuStreamCreate")]
    pub fn new(context: &Context, flags: StreamFlags) -> Result<Self> {
        let _current = context.enter()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: writes one handle, to a local that outlives the call.
        unsafe { call!(context.api(), cuStreamCreate(&mut raw, flags.bits())) }?;
        Ok(Self::from_raw(context, raw, Owner::Us))
    }

    /// Creates a stream of the given priority, clamped to [`Context::stream_priority_range`].
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuStreamCreateWithPriority`.
    #[doc(alias = "cuStreamCreateWithPriority")]
    pub fn with_priority(context: &Context, flags: StreamFlags, priority: i32) -> Result<Self> {
        let _current = context.enter()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: writes one handle, to a local that outlives the call.
        unsafe { call!(context.api(), cuStreamCreateWithPriority(&mut raw, flags.bits(), priority)) }?;
        Ok(Self::from_raw(context, raw, Owner::Us))
    }

    /// Returns the context's legacy default stream. It and every blocking stream of the context (created without
    /// [`StreamFlags::NON_BLOCKING`]) wait for each other.
    #[must_use]
    pub fn legacy_default(context: &Context) -> Self {
        Self::from_raw(context, std::ptr::null_mut(), Owner::Others)
    }

    /// Wraps a stream of another owner. Dropping the handle does not destroy the stream.
    ///
    /// # Safety
    /// `raw` must be a stream of `context`; null and the driver's special handles are allowed. The stream must exist
    /// for as long as this handle, its clones and all objects made from them live.
    ///
    /// While a safe method of this crate enqueues work on this handle, no other thread may make the stream part of a
    /// capture, except by calls on this handle or its clones. The method that enqueues the work detects such calls. It
    /// cannot detect a capture that begins in another way, for example through another library or another handle of the
    /// stream.
    #[must_use]
    pub unsafe fn borrowed(context: &Context, raw: CUstream) -> Self {
        Self::from_raw(context, raw, Owner::Others)
    }

    /// Wraps a stream of another library together with an owner that keeps the stream alive. The owner is dropped with
    /// the last clone of the handle.
    ///
    /// # Safety
    /// `raw` must be a stream of `context`; null and the driver's special handles are allowed. The stream must exist
    /// until `owner` is dropped. The condition of [`borrowed`](Self::borrowed) on captures applies.
    #[must_use]
    pub unsafe fn kept_by(context: &Context, raw: CUstream, owner: impl Any + Send + Sync) -> Self {
        Self::from_raw(context, raw, Owner::Kept(Box::new(owner)))
    }

    fn from_raw(context: &Context, raw: CUstream, owner: Owner) -> Self {
        let inner =
            Arc::new(Inner { raw, owner, context: context.clone(), capture_calls: Default::default() });
        // The legacy default stream cannot capture, so `alive` does not return it.
        if raw.addr() > 1 {
            enter_alive(&inner);
        }
        Self { inner }
    }

    #[inline]
    pub(crate) fn api(&self) -> &Api {
        self.inner.context.api()
    }

    /// The driver's handle, valid while this stream lives.
    #[must_use]
    pub fn raw(&self) -> CUstream {
        self.inner.raw
    }

    /// The context of the stream.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.inner.context
    }

    /// Returns the flags that the stream was created with.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuStreamGetFlags`.
    #[doc(alias = "cuStreamGetFlags")]
    pub fn flags(&self) -> Result<StreamFlags> {
        let _current = self.enter_if_implicit()?;
        let mut flags = 0;
        // SAFETY: the stream is alive; writes one integer, to a local that outlives the call.
        unsafe { call!(self.api(), cuStreamGetFlags(self.raw(), &mut flags)) }?;
        Ok(StreamFlags::from_bits_retain(flags))
    }

    /// Returns the stream's priority, a number within [`Context::stream_priority_range`].
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuStreamGetPriority`.
    #[doc(alias = "cuStreamGetPriority")]
    pub fn priority(&self) -> Result<i32> {
        let _current = self.enter_if_implicit()?;
        let mut priority = 0;
        // SAFETY: the stream is alive; writes one integer, to a local that outlives the call.
        unsafe { call!(self.api(), cuStreamGetPriority(self.raw(), &mut priority)) }?;
        Ok(priority)
    }

    /// Returns true for the per-thread default stream (`CU_STREAM_PER_THREAD`): one handle that stands for a different
    /// stream on each thread.
    #[must_use]
    #[inline(always)]
    pub fn is_per_thread(&self) -> bool {
        self.inner.raw.addr() == 2
    }

    /// Returns true if both handles have the same raw value and context, so that they mean the same stream. Returns
    /// false for handles of the [per-thread](Self::is_per_thread) stream, because they may mean streams of different
    /// threads.
    #[must_use]
    #[inline(always)]
    pub fn is_same(&self, other: &Self) -> bool {
        self == other && !self.is_per_thread()
    }

    /// Returns the driver's number of the stream. Unlike a handle, it is never reused in the process.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuStreamGetId`; [`Error::Missing`](crate::Error::Missing) below
    /// CUDA 12.0.
    #[doc(alias = "cuStreamGetId")]
    pub fn id(&self) -> Result<u64> {
        let _current = self.enter_if_implicit()?;
        let mut id = 0;
        // SAFETY: the stream is alive; writes one number, to a local that outlives the call.
        unsafe { call!(self.api(), cuStreamGetId(self.raw(), &mut id)) }?;
        Ok(id)
    }

    /// Returns the number of completed calls that may have made the stream part of a capture. Returns `None` while such
    /// a call is running.
    pub(crate) fn capture_calls(&self) -> Option<u64> {
        let [begun, returned] = &self.inner.capture_calls;
        // `returned` is loaded first: a call that begins between the two loads then makes the numbers differ.
        let returned = returned.load(Ordering::SeqCst);
        (begun.load(Ordering::SeqCst) == returned).then_some(returned)
    }

    /// Counts a call that may make the stream part of a capture. The call ends when the guard is dropped.
    pub(crate) fn count_capture_call(&self) -> CaptureCall<'_> {
        self.inner.capture_calls[0].fetch_add(1, Ordering::SeqCst);
        CaptureCall(self)
    }

    /// Makes the context current if the handle does not determine it: null, `CU_STREAM_LEGACY` (1) and
    /// `CU_STREAM_PER_THREAD` (2) mean a stream of the current context.
    #[inline(always)]
    pub(crate) fn enter_if_implicit(&self) -> Result<Option<Current<'_>>> {
        if self.inner.raw.addr() <= 2 { self.enter_implicit() } else { Ok(None) }
    }

    #[cold]
    fn enter_implicit(&self) -> Result<Option<Current<'_>>> {
        self.inner.context.enter().map(Some)
    }

    /// Blocks the calling thread until the stream has completed all its work.
    ///
    /// The driver refuses this call while the stream captures. It also refuses this call during each capture during
    /// which it refuses [`Event::query`](crate::Event::query). A refused call invalidates the capture.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuStreamSynchronize`, also for errors of earlier asynchronous
    /// work.
    #[doc(alias = "cuStreamSynchronize")]
    pub fn synchronize(&self) -> Result<()> {
        let _current = self.enter_if_implicit()?;
        // SAFETY: the stream is alive.
        unsafe { call!(self.api(), cuStreamSynchronize(self.raw())) }
    }

    /// Returns true if the stream has completed all its work. Does not block. The driver refuses this call during the
    /// same captures as [`synchronize`](Self::synchronize), and invalidates them.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuStreamQuery`, also for errors of earlier asynchronous work.
    #[doc(alias = "cuStreamQuery")]
    pub fn query(&self) -> Result<bool> {
        let _current = self.enter_if_implicit()?;
        // SAFETY: the stream is alive.
        let code = unsafe { code!(self.api(), cuStreamQuery(self.raw())) }?;
        ready(self.api(), "cuStreamQuery", code)
    }
}

/// A running call that may make the stream part of a capture. Dropping the value counts the call as returned.
#[must_use = "the call lasts as long as the guard"]
pub(crate) struct CaptureCall<'a>(&'a Stream);

impl CaptureCall<'_> {
    /// Takes back the count, because the call has not made the stream part of a capture.
    fn take_back(self) {
        self.0.inner.capture_calls[0].fetch_sub(1, Ordering::SeqCst);
        std::mem::forget(self);
    }
}

impl Drop for CaptureCall<'_> {
    fn drop(&mut self) {
        self.0.inner.capture_calls[1].fetch_add(1, Ordering::SeqCst);
    }
}

impl Drop for Inner {
    #[doc(alias = "cuStreamDestroy")]
    fn drop(&mut self) {
        if matches!(self.owner, Owner::Us) {
            // SAFETY: `new` or `with_priority` created the stream, and this was its last handle. The driver still
            // completes enqueued work.
            teardown::report(unsafe { call!(self.context.api(), cuStreamDestroy_v2(self.raw)) });
        }
    }
}

impl PartialEq for Stream {
    fn eq(&self, other: &Self) -> bool {
        self.raw() == other.raw() && self.context() == other.context()
    }
}

impl Eq for Stream {}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({:p} of {:?})", self.inner.raw, self.inner.context.device())
    }
}
