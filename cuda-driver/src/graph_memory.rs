//! Memory that captured graphs keep in place.
//!
//! A graph uses the captured addresses at each launch, long after the calls. An owner of memory (such as an allocator)
//! that could reuse the memory between capture and launch implements [`MemoryOwner`] and [registers](register) itself.
//! Crates that enqueue work on memory given by address report the ranges of captured work to all owners with [`note`].
//! Safe calls of this crate need no report: the graph holds the [`DeviceSlice`](crate::DeviceSlice)s that they use.
//!
//! If no stream captures, or no owner is registered, no owner is called and no lock is taken.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock, Weak};

use crate::graph::CaptureStatus;
use crate::{DevicePtr, Result, Stream};

/// An owner of memory that may have to stay in place for a captured graph.
pub trait MemoryOwner: Send + Sync {
    /// Called when `stream` captures work that uses `bytes` bytes at `address`. This owner must keep its part of the
    /// range in place as long as the graph exists. It ignores memory of other owners. The caller keeps the memory
    /// allocated until this method returns.
    ///
    /// # Errors
    /// The driver's error if a query about the capture fails. The memory is not kept in place then.
    fn used_by_graph(&self, address: DevicePtr, bytes: u64, stream: &Stream) -> Result<()>;
}

static OWNERS: RwLock<Vec<Weak<dyn MemoryOwner>>> = RwLock::new(Vec::new());
/// False until the first owner is registered. Lets [`note`] return early.
static ANY: AtomicBool = AtomicBool::new(false);

/// Registers `owner`. Its [`used_by_graph`](MemoryOwner::used_by_graph) is called for captured work until the owner
/// is dropped.
pub fn register(owner: Weak<dyn MemoryOwner>) {
    let mut owners = OWNERS.write().unwrap_or_else(PoisonError::into_inner);
    owners.retain(|owner| owner.strong_count() > 0);
    owners.push(owner);
    ANY.store(true, Ordering::Release);
}

/// If `stream` is being captured, notifies all owners that the stream's next work uses `ranges` (start address and
/// length in bytes). Call this function before the work is enqueued.
///
/// # Errors
/// As for [`Stream::capture_status`], and those of an owner.
pub fn note(stream: &Stream, ranges: impl IntoIterator<Item = (DevicePtr, u64)>) -> Result<()> {
    match ANY.load(Ordering::Acquire) && stream.capture_status()? != CaptureStatus::None {
        true => note_captured(stream, ranges),
        false => Ok(()),
    }
}

/// Like [`note`], for a stream that is known to be captured.
///
/// # Errors
/// Those of an owner.
#[cold]
pub fn note_captured(stream: &Stream, ranges: impl IntoIterator<Item = (DevicePtr, u64)>) -> Result<()> {
    let owners: Vec<Arc<dyn MemoryOwner>> = {
        let owners = OWNERS.read().unwrap_or_else(PoisonError::into_inner);
        owners.iter().filter_map(Weak::upgrade).collect()
    };
    for (address, bytes) in ranges.into_iter().filter(|(_, bytes)| *bytes > 0) {
        owners.iter().try_for_each(|owner| owner.used_by_graph(address, bytes, stream))?;
    }
    Ok(())
}
