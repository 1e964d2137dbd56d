//! Notices captures that begin on other threads while work is enqueued.
//!
//! Between the query whether a stream captures and the call that enqueues work, another thread may begin a capture. The
//! work is then part of a graph without its owner knowing. Work that must not be part of one checks afterwards.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::Stream;

/// Captures that [`Stream::begin_capture`] began, and those that ended since, for the whole process.
static BEGUN: AtomicU64 = AtomicU64::new(0);
static ENDED: AtomicU64 = AtomicU64::new(0);

/// A capture, counted from before its begin until after its end.
pub(super) struct CountedCapture;

impl CountedCapture {
    pub(super) fn begin() -> Self {
        BEGUN.fetch_add(1, Ordering::SeqCst);
        Self
    }
}

impl Drop for CountedCapture {
    fn drop(&mut self) {
        ENDED.fetch_add(1, Ordering::SeqCst);
    }
}

/// Notices if another thread may have made one of several streams part of a capture since [`Watch::new`].
pub(crate) struct Watch<'a> {
    calls: Vec<(&'a Stream, Option<u64>)>,
    begun: u64,
    none_open: bool,
}

impl<'a> Watch<'a> {
    pub(crate) fn new(streams: impl IntoIterator<Item = &'a Stream>) -> Self {
        let calls = streams.into_iter().map(|stream| (stream, stream.capture_calls())).collect();
        let ended = ENDED.load(Ordering::SeqCst);
        let begun = BEGUN.load(Ordering::SeqCst);
        Self { calls, begun, none_open: begun == ended }
    }

    /// Returns true if no stream can have become part of a capture: none was open meanwhile, or no thread was in a call
    /// that begins one on these streams or makes them wait for an event. Once false, it stays false.
    pub(crate) fn is_certain(&self) -> bool {
        let none_open = self.none_open && BEGUN.load(Ordering::SeqCst) == self.begun;
        none_open
            || self.calls.iter().all(|(stream, calls)| calls.is_some() && stream.capture_calls() == *calls)
    }
}
