//! Owners of the objects that recorded work needs. They are held by the open capture, then by its graph and
//! the graph's executables.

use std::any::Any;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

use crate::{Result, Stream};

pub(crate) type Owner = Arc<dyn Any + Send + Sync>;

/// Memory that belongs to a stream: what the stream does later comes after every use of it.
pub(crate) trait StreamBound: Send + Sync {
    fn stream(&self) -> &Stream;

    /// Never frees the memory, because the end of a use is unknown.
    fn keep_for_ever(&self);
}

pub(crate) type BoundMemory = Arc<dyn StreamBound>;

/// Owners and memory, each once.
#[derive(Clone, Default)]
pub(super) struct Kept {
    owners: Vec<Owner>,
    memory: Vec<BoundMemory>,
}

impl Kept {
    pub(super) fn add(&mut self, owners: &[Owner], memory: &[BoundMemory]) {
        add_missing(&mut self.owners, owners);
        add_missing(&mut self.memory, memory);
    }

    pub(super) fn owners(&self) -> &[Owner] {
        &self.owners
    }

    pub(super) fn memory(&self) -> &[BoundMemory] {
        &self.memory
    }
}

fn add_missing<T: ?Sized>(known: &mut Vec<Arc<T>>, new: &[Arc<T>]) {
    for one in new {
        if !known.iter().any(|other| Arc::as_ptr(other).addr() == Arc::as_ptr(one).addr()) {
            known.push(one.clone());
        }
    }
}

/// Key of a capture: its driver and its number there.
type Key = (usize, u64);

/// The state of an open capture.
struct Open {
    kept: Kept,
    /// The stream and the thread on which it was begun.
    stream: Stream,
    thread: ThreadId,
}

/// The captures that [`Stream::begin_capture`] began and that have not ended.
static OPEN: LazyLock<Mutex<HashMap<Key, Open>>> = LazyLock::new(Mutex::default);

/// The number of entries in [`OPEN`], so that launches query the stream's capture only if one can be open.
static COUNT: AtomicUsize = AtomicUsize::new(0);

fn open() -> MutexGuard<'static, HashMap<Key, Open>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An entry of [`OPEN`], until it is taken or dropped.
pub(super) struct OpenCapture(Key);

impl OpenCapture {
    /// Starts to collect owners for the capture that `stream` has just begun; `None` if it is invalidated
    /// already, since it will give no graph.
    pub(super) fn begin(stream: &Stream) -> Result<Option<Self>> {
        let Some(id) = stream.capture_info()?.id else { return Ok(None) };
        let key = (stream.context().driver().identity(), id);
        COUNT.fetch_add(1, Ordering::SeqCst);
        let (stream, thread) = (stream.clone(), thread::current().id());
        open().insert(key, Open { kept: Kept::default(), stream, thread });
        Ok(Some(Self(key)))
    }

    /// Takes the owners that were collected. The capture has ended.
    pub(super) fn take(self) -> Kept {
        open().get_mut(&self.0).map(|open| std::mem::take(&mut open.kept)).unwrap_or_default()
    }
}

impl Drop for OpenCapture {
    fn drop(&mut self) {
        // Dropped after the lock is released: an owner's drop may call the driver.
        let _open = open().remove(&self.0);
        COUNT.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Holds `owners` for the graph of the capture that `stream` is part of. Does nothing if the stream does not
/// capture, or another library began the capture.
#[inline]
pub(crate) fn keep<O: AsRef<[Owner]>>(stream: &Stream, owners: impl FnOnce() -> O) -> Result<()> {
    if COUNT.load(Ordering::SeqCst) == 0 {
        return Ok(());
    }
    keep_in_open(stream, owners().as_ref(), &[]).map(drop)
}

/// Holds owners and memory for the graph of the capture that `stream` is part of. Returns false if the stream does
/// not capture, or another library began the capture.
#[cold]
pub(super) fn keep_in_open(stream: &Stream, owners: &[Owner], memory: &[BoundMemory]) -> Result<bool> {
    let Some(id) = stream.capture_info()?.id else { return Ok(false) };
    let mut captures = open();
    let Some(open) = captures.get_mut(&(stream.context().driver().identity(), id)) else {
        return Ok(false);
    };
    open.kept.add(owners, memory);
    Ok(true)
}

impl Stream {
    /// Makes the graph that the stream is being captured into hold `owner`, and the executables made from it.
    /// It is dropped with the last of them, by the thread that drops that; if the capture gives no graph,
    /// with the capture.
    ///
    /// Returns whether it is kept: it is not if the stream does not capture, or if another library began the capture.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuStreamGetCaptureInfo_v2`.
    pub fn keep_in_graph(&self, owner: Arc<dyn Any + Send + Sync>) -> Result<bool> {
        if COUNT.load(Ordering::SeqCst) == 0 { Ok(false) } else { keep_in_open(self, &[owner], &[]) }
    }
}

/// The streams on which the calling thread has begun captures by [`Stream::begin_capture`] that have not
/// ended. Costs one atomic load if no thread has any.
#[must_use]
pub fn captures_of_this_thread() -> Vec<Stream> {
    if COUNT.load(Ordering::SeqCst) == 0 {
        return Vec::new();
    }
    let own = thread::current().id();
    open().values().filter(|open| open.thread == own).map(|open| open.stream.clone()).collect()
}
