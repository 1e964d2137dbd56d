//! Detection of captures that begin on other threads while work is enqueued.
//!
//! Another thread may begin a capture after a query has shown that a stream does not capture, and before the work is
//! enqueued. The work is then part of a graph, although its caller expects it to run. So the caller creates a
//! [`Watch`], then queries the streams, then enqueues the work, and then asks [`Watch::is_certain`]. [`Uncaptured`]
//! does the same for one call on one stream, and includes the query.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::Stream;

/// The number of captures of this process that [`Stream::begin_capture`] has begun or tried to begin.
static BEGUN: AtomicU64 = AtomicU64::new(0);
/// The number of these captures that have ended or could not begin.
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

/// A time from [`begin`](Self::begin) on. Tells later whether any capture of [`Stream::begin_capture`] was open since
/// then.
#[derive(Clone, Copy)]
struct Period {
    /// The value of [`BEGUN`] at the start of the period.
    begun: u64,
    /// True if no capture of `Stream::begin_capture` was open at the start.
    none_open: bool,
}

impl Period {
    #[inline]
    fn begin() -> Self {
        // `ENDED` is loaded first. A capture that ends between the two loads then counts as open.
        let ended = ENDED.load(Ordering::SeqCst);
        let begun = BEGUN.load(Ordering::SeqCst);
        Self { begun, none_open: begun == ended }
    }

    /// Returns true if no capture of `Stream::begin_capture` was open at any time since `begin`.
    #[inline]
    fn is_without_captures(&self) -> bool {
        self.none_open && BEGUN.load(Ordering::SeqCst) == self.begun
    }
}

/// Detects whether a call on a stream may be part of a capture.
pub(crate) struct Uncaptured {
    /// [`Stream::capture_calls`] before the watched call. `None` if a `begin_capture` or `wait` on the stream was
    /// running at that time.
    calls: Option<u64>,
    period: Period,
    /// True if the stream was in no capture before the call.
    was_uncaptured: bool,
}

impl Uncaptured {
    /// Called before the call on `stream`.
    #[inline]
    pub(crate) fn before(stream: &Stream) -> Self {
        // Load `capture_calls` first, then look for open captures. If none is open, the stream is in none, so its
        // status need not be queried. A capture that the stream joins after the first load changes `capture_calls`,
        // which `holds` compares.
        let calls = stream.capture_calls();
        let period = Period::begin();
        let was_uncaptured =
            period.none_open || matches!(stream.capture_status(), Ok(super::CaptureStatus::None));
        Self { calls, period, was_uncaptured }
    }

    /// Returns true if the call is certainly part of no capture. Called after it, for the same stream. Captures that
    /// another library began may go undetected.
    #[inline]
    pub(crate) fn holds(&self, stream: &Stream) -> bool {
        self.was_uncaptured
            && (self.period.is_without_captures()
                || self.calls.is_some() && stream.capture_calls() == self.calls)
    }
}

/// Detects whether another thread may have made one of the given streams part of a capture since [`Watch::new`].
pub(crate) struct Watch<'a> {
    calls: Vec<(&'a Stream, Option<u64>)>,
    period: Period,
}

impl<'a> Watch<'a> {
    pub(crate) fn new(streams: impl IntoIterator<Item = &'a Stream>) -> Self {
        let calls = streams.into_iter().map(|stream| (stream, stream.capture_calls())).collect();
        Self { calls, period: Period::begin() }
    }

    /// Returns true if none of the streams can have become part of a capture since [`Watch::new`]. That is certain in
    /// two cases:
    /// - No capture of [`Stream::begin_capture`] was open or began in this time.
    /// - No call began a capture on one of the streams or tried to, no call made one of them wait for an event that may
    ///   be part of a capture, and no [`Stream::wait`] on one of them failed.
    ///
    /// Captures that another library began may go undetected. The second case is also excluded while a
    /// [`begin_capture`](Stream::begin_capture) or [`wait`](Stream::wait) on one of the streams is running. If one was
    /// running at [`Watch::new`], the second case is excluded for the whole life of this `Watch`.
    pub(crate) fn is_certain(&self) -> bool {
        self.period.is_without_captures()
            || self.calls.iter().all(|(stream, calls)| calls.is_some() && stream.capture_calls() == *calls)
    }
}
