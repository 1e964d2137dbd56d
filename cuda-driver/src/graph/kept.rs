//! Owners of what recorded work needs: kept by the open capture, then by its graph and the graph's executables.

use std::any::Any;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use crate::{Result, Stream};

pub(crate) type Owner = Arc<dyn Any + Send + Sync>;

/// Owners, each once.
#[derive(Clone, Default)]
pub(super) struct Kept(Vec<Owner>);

impl Kept {
    pub(super) fn add(&mut self, owners: &[Owner]) {
        for owner in owners {
            if !self.0.iter().any(|known| Arc::ptr_eq(known, owner)) {
                self.0.push(owner.clone());
            }
        }
    }

    pub(super) fn owners(&self) -> &[Owner] {
        &self.0
    }
}

/// A capture: its driver and its number there.
type Key = (usize, u64);

/// The captures that [`Stream::begin_capture`] began and nobody has ended.
static OPEN: LazyLock<Mutex<HashMap<Key, Kept>>> = LazyLock::new(Mutex::default);

/// How many there are, so that launches ask for the stream's capture only if there can be one.
static COUNT: AtomicUsize = AtomicUsize::new(0);

fn open() -> MutexGuard<'static, HashMap<Key, Kept>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An entry of [`OPEN`], until it is taken or dropped.
pub(super) struct OpenCapture(Key);

impl OpenCapture {
    /// Begins to keep owners for the capture that `stream` has just begun; `None` if it is ruined already, since no
    /// graph comes of it.
    pub(super) fn begin(stream: &Stream) -> Result<Option<Self>> {
        let Some(id) = stream.capture_info()?.id else { return Ok(None) };
        let key = (stream.context().driver().identity(), id);
        COUNT.fetch_add(1, Ordering::SeqCst);
        open().insert(key, Kept::default());
        Ok(Some(Self(key)))
    }

    /// What was kept; the capture has ended.
    pub(super) fn take(self) -> Kept {
        open().get_mut(&self.0).map(std::mem::take).unwrap_or_default()
    }
}

impl Drop for OpenCapture {
    fn drop(&mut self) {
        // Dropped after the lock: an owner's drop may call the driver.
        let _kept = open().remove(&self.0);
        COUNT.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Keeps `owners` for the graph of the capture that `stream` is part of. Nothing if it does not capture, or another
/// library began the capture.
#[inline]
pub(crate) fn keep<O: AsRef<[Owner]>>(stream: &Stream, owners: impl FnOnce() -> O) -> Result<()> {
    if COUNT.load(Ordering::SeqCst) == 0 { Ok(()) } else { keep_in_open(stream, owners().as_ref()) }
}

#[cold]
fn keep_in_open(stream: &Stream, owners: &[Owner]) -> Result<()> {
    if let Some(id) = stream.capture_info()?.id
        && let Some(kept) = open().get_mut(&(stream.context().driver().identity(), id))
    {
        kept.add(owners);
    }
    Ok(())
}
