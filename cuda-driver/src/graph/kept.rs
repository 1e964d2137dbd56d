//! References to the objects that captured work needs. The capture holds them while it is open. Afterwards the graph
//! and its executables hold them.

use std::any::Any;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

use crate::{Result, Stream};

/// A reference to an object that captured work needs. It keeps the object alive.
pub(crate) type Owner = Arc<dyn Any + Send + Sync>;

/// Memory that belongs to a stream. A call of this crate that uses the memory on another stream makes the owning stream
/// wait for that use. Work that is enqueued on the owning stream afterwards, such as a free of the memory, therefore
/// runs after all uses.
///
/// An allocator implements this trait for its memory, so that [slices](crate::DeviceSlice::from_owner) of that memory
/// can be used in safe calls. [`Any`] is a supertrait, so that an allocator can recognize its own memory in the
/// [memory](crate::DeviceView::memory) of a view.
///
/// # Safety
/// - [`stream`](Self::stream) always returns the same stream, and never the per-thread default stream, which is a
///   different stream on each thread. The device of that stream's context can access the memory.
/// - The memory stays valid until the value is dropped. After the drop it is freed, or given to another owner, in the
///   order of that stream: later uses run after all work that was enqueued on the stream before the drop.
/// - After [`keep_for_ever`](Self::keep_for_ever), the memory is never freed and never given to another owner.
pub unsafe trait StreamBound: Any + Send + Sync {
    /// The stream that the memory belongs to.
    fn stream(&self) -> &Stream;

    /// Prevents the memory from ever being freed. Called when it is unknown whether or when a use of the memory ends.
    fn keep_for_ever(&self);
}

/// A reference to memory that belongs to a stream. It keeps the memory alive.
pub type BoundMemory = Arc<dyn StreamBound>;

/// The owners and the memory that a capture, a graph or an executable holds, without duplicates.
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

/// Key of a capture: the identity of its driver, and the id that the driver gave the capture.
type Key = (usize, u64);

/// The state of an open capture.
struct Open {
    kept: Kept,
    /// The stream on which the capture was begun.
    stream: Stream,
    /// The thread that began it.
    thread: ThreadId,
}

/// The captures that [`Stream::begin_capture`] began and that have not ended.
static OPEN: LazyLock<Mutex<HashMap<Key, Open>>> = LazyLock::new(Mutex::default);

/// At least the number of entries in [`OPEN`]. While this is 0, there are no entries, and calls need not query whether
/// their stream captures.
static COUNT: AtomicUsize = AtomicUsize::new(0);

fn open() -> MutexGuard<'static, HashMap<Key, Open>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An entry of [`OPEN`]. Dropping the value removes the entry.
pub(super) struct OpenCapture(Key);

impl OpenCapture {
    /// Starts to collect owners and memory for the capture that was just begun on `stream`. Returns `None` if the
    /// capture is already invalidated, since it will give no graph.
    pub(super) fn begin(stream: &Stream) -> Result<Option<Self>> {
        let Some(id) = stream.capture_info()?.id else { return Ok(None) };
        let key = (stream.context().driver().identity(), id);
        COUNT.fetch_add(1, Ordering::SeqCst);
        let (stream, thread) = (stream.clone(), thread::current().id());
        // A former entry with this key exists only if the driver reuses the id of a capture that this crate could not
        // end: such a capture stays in the map. The former entry is dropped after the lock is released, because
        // dropping an owner may call the driver.
        let _former = open().insert(key, Open { kept: Kept::default(), stream, thread });
        Ok(Some(Self(key)))
    }

    /// Returns the collected owners and memory. Called after the capture has ended.
    pub(super) fn take(self) -> Kept {
        open().get_mut(&self.0).map(|open| std::mem::take(&mut open.kept)).unwrap_or_default()
    }
}

impl Drop for OpenCapture {
    fn drop(&mut self) {
        // The entry is dropped after the lock is released, as in `begin`.
        let _open = open().remove(&self.0);
        COUNT.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Adds `owners` to the objects that the graph of the stream's capture will hold. Does nothing if the stream does not
/// capture, another library began the capture, or the capture is invalidated.
#[inline]
pub(crate) fn keep<O: AsRef<[Owner]>>(stream: &Stream, owners: impl FnOnce() -> O) -> Result<()> {
    if !is_capture_open() {
        return Ok(());
    }
    keep_in_open(stream, owners().as_ref(), &[]).map(drop)
}

/// Adds `owners` and `memory` to the objects that the graph of the stream's capture will hold. Returns true if it has
/// added them. Returns false, and does nothing, if the stream does not capture, another library began the capture, or
/// the capture is invalidated.
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
    /// Makes the graph of the stream's current capture hold `owner`. Executables made from the graph hold it too.
    ///
    /// `owner` is dropped together with the last graph or executable that holds it, on the thread that drops this
    /// graph or executable. If the capture gives no graph, `owner` is dropped with the capture. If the capture cannot
    /// be ended (see [`Capture::end`](super::Capture::end)), `owner` is never dropped.
    ///
    /// Returns true if the graph will hold `owner`. Returns false, and drops `owner`, if the stream does not capture,
    /// another library began the capture, or the capture is invalidated.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuStreamGetCaptureInfo_v2`.
    pub fn keep_in_graph(&self, owner: Arc<dyn Any + Send + Sync>) -> Result<bool> {
        if is_capture_open() { keep_in_open(self, &[owner], &[]) } else { Ok(false) }
    }
}

/// Returns true if a thread of this process has a capture that [`Stream::begin_capture`] began. One atomic load.
#[must_use]
#[inline]
pub fn is_capture_open() -> bool {
    COUNT.load(Ordering::SeqCst) > 0
}

/// Returns the streams of the open captures that the calling thread began by [`Stream::begin_capture`]. If no thread
/// has such a capture, the cost is one atomic load.
#[must_use]
pub fn captures_of_this_thread() -> Vec<Stream> {
    if !is_capture_open() {
        return Vec::new();
    }
    let own = thread::current().id();
    open().values().filter(|open| open.thread == own).map(|open| open.stream.clone()).collect()
}
