//! An adapter that logs the calls to a source.

use std::fmt;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Instant, SystemTime};

use super::call::{CallOutcome, LoggedCall, SourceMethod};
use super::pages_of;
use super::sink::CallSink;
use crate::core::{
    MemoryInfo, PageSource, SegmentMemory, SegmentSource, ShareHandle, ShareKind, SourceError, SourceLimit,
};

/// A source that passes calls on to another source, and gives a sink a [record](LoggedCall) of each logged call.
///
/// Calls of [`export`](SegmentSource::export), and of all methods that change the state of the source, are logged. A
/// record has the method, address, bytes, token, outcome and duration, among other things. The adapter calls the
/// sink after the source, and holds no lock meanwhile. If the sink fails or panics, the record is lost and
/// [counted](Self::lost), and the call still returns the result of the source.
///
/// ```
/// use std::sync::Mutex;
/// use caching_alloc::core::{SegmentSource, SourceError};
/// use caching_alloc::host::HostSource;
/// use caching_alloc::sources::{LoggedCall, LoggingSource, SourceMethod};
///
/// # fn main() -> Result<(), SourceError> {
/// let calls = Mutex::new(Vec::new());
/// let log = |call: &LoggedCall| calls.lock().unwrap().push(call.clone());
/// let source = LoggingSource::new(HostSource::new(8 << 20), log);
/// let segment = source.allocate(2 << 20)?;
/// source.release(&segment)?;
/// let calls = calls.lock().unwrap();
/// assert_eq!(calls[1].method, SourceMethod::Release);
/// assert_eq!((calls[1].address, calls[1].bytes), (Some(segment.address), 2 << 20));
/// assert!(calls[1].outcome.is_success());
/// # Ok(())
/// # }
/// ```
#[doc(alias = "logging_resource_adaptor")]
pub struct LoggingSource<S, L> {
    upstream: S,
    sink: L,
    lost: AtomicU64,
}

/// The address, size in bytes and token of the memory or range of a call, as far as they are known.
#[derive(Clone, Copy, Default)]
struct Subject {
    address: Option<u64>,
    bytes: u64,
    token: Option<u64>,
}

impl Subject {
    fn size(bytes: u64) -> Self {
        Self { bytes, ..Self::default() }
    }

    fn range(address: u64, bytes: u64) -> Self {
        Self { address: Some(address), bytes, token: None }
    }

    fn memory(memory: &SegmentMemory) -> Self {
        Self { address: Some(memory.address), bytes: memory.bytes, token: Some(memory.token) }
    }

    fn page(token: u64, bytes: u64) -> Self {
        Self { address: None, bytes, token: Some(token) }
    }
}

impl<S: SegmentSource, L: CallSink> LoggingSource<S, L> {
    /// Makes a source that passes calls on to `upstream`, and logs them to `sink`.
    #[must_use]
    pub fn new(upstream: S, sink: L) -> Self {
        Self { upstream, sink, lost: AtomicU64::new(0) }
    }

    /// Returns the source whose calls are logged. Calls made on it directly are not logged.
    #[must_use]
    pub fn upstream(&self) -> &S {
        &self.upstream
    }

    /// Returns the sink.
    #[must_use]
    pub fn sink(&self) -> &L {
        &self.sink
    }

    /// Returns the source and the sink.
    #[must_use]
    pub fn into_parts(self) -> (S, L) {
        (self.upstream, self.sink)
    }

    /// Returns the number of records that the sink lost because it failed or panicked.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Makes a call, logs it, and returns its result. If the call returns `Ok(value)`, the record has the address,
    /// bytes and token of `returned(&value)`, otherwise those of `passed`.
    fn logged<T>(
        &self,
        method: SourceMethod,
        passed: Subject,
        call: impl FnOnce() -> Result<T, SourceError>,
        returned: impl FnOnce(&T) -> Subject,
    ) -> Result<T, SourceError> {
        let (start, clock) = (SystemTime::now(), Instant::now());
        let result = call();
        let duration = clock.elapsed();
        let Subject { address, bytes, token } = result.as_ref().map_or(passed, returned);
        self.record(&LoggedCall {
            method,
            device: self.upstream.device(),
            thread: thread::current().id(),
            start,
            duration,
            address,
            bytes,
            token,
            outcome: CallOutcome::of(&result),
        });
        result
    }

    /// Like [`logged`](Self::logged), for a call that returns no memory.
    fn logged_as<T>(
        &self,
        method: SourceMethod,
        subject: Subject,
        call: impl FnOnce() -> Result<T, SourceError>,
    ) -> Result<T, SourceError> {
        self.logged(method, subject, call, |_| subject)
    }

    fn record(&self, call: &LoggedCall) {
        let recorded = catch_unwind(AssertUnwindSafe(|| self.sink.record(call).is_ok()));
        let recorded = recorded.unwrap_or_else(|payload| {
            // The payload is leaked, since its drop might panic too.
            mem::forget(payload);
            false
        });
        if !recorded {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl<S: SegmentSource, L: CallSink> SegmentSource for LoggingSource<S, L> {
    fn device(&self) -> u32 {
        self.upstream.device()
    }

    fn granularity(&self) -> u64 {
        self.upstream.granularity()
    }

    fn allocate(&self, bytes: u64) -> Result<SegmentMemory, SourceError> {
        let allocate = || self.upstream.allocate(bytes);
        self.logged(SourceMethod::Allocate, Subject::size(bytes), allocate, |given| Subject {
            bytes,
            ..Subject::memory(given)
        })
    }

    fn release(&self, memory: &SegmentMemory) -> Result<(), SourceError> {
        self.logged_as(SourceMethod::Release, Subject::memory(memory), || self.upstream.release(memory))
    }

    fn as_pages(&self) -> Option<&dyn PageSource> {
        self.upstream.as_pages().map(|_| self as &dyn PageSource)
    }

    fn is_exportable(&self) -> bool {
        self.upstream.is_exportable()
    }

    fn export(&self, memory: &SegmentMemory, kind: ShareKind) -> Result<ShareHandle, SourceError> {
        let export = || self.upstream.export(memory, kind);
        self.logged_as(SourceMethod::Export, Subject::memory(memory), export)
    }

    fn memory_info(&self) -> Result<MemoryInfo, SourceError> {
        self.upstream.memory_info()
    }

    fn source_limit(&self) -> Option<SourceLimit> {
        self.upstream.source_limit()
    }
}

impl<S: SegmentSource, L: CallSink> PageSource for LoggingSource<S, L> {
    fn reserve(&self, bytes: u64) -> Result<u64, SourceError> {
        let reserve = || pages_of(&self.upstream, "reserve")?.reserve(bytes);
        let returned = |address: &u64| Subject::range(*address, bytes);
        self.logged(SourceMethod::Reserve, Subject::size(bytes), reserve, returned)
    }

    fn unreserve(&self, address: u64, bytes: u64) {
        let Some(pages) = self.upstream.as_pages() else { return };
        let unreserve = || {
            pages.unreserve(address, bytes);
            Ok(())
        };
        // `unreserve` cannot fail.
        let _ = self.logged_as(SourceMethod::Unreserve, Subject::range(address, bytes), unreserve);
    }

    fn create(&self, bytes: u64) -> Result<u64, SourceError> {
        let create = || pages_of(&self.upstream, "create")?.create(bytes);
        let returned = |token: &u64| Subject::page(*token, bytes);
        self.logged(SourceMethod::Create, Subject::size(bytes), create, returned)
    }

    fn discard(&self, token: u64, bytes: u64) -> Result<(), SourceError> {
        let discard = || pages_of(&self.upstream, "discard")?.discard(token, bytes);
        self.logged_as(SourceMethod::Discard, Subject::page(token, bytes), discard)
    }

    fn map(&self, memory: &SegmentMemory) -> Result<(), SourceError> {
        let map = || pages_of(&self.upstream, "map")?.map(memory);
        self.logged_as(SourceMethod::Map, Subject::memory(memory), map)
    }

    fn enable(&self, address: u64, bytes: u64) -> Result<(), SourceError> {
        let enable = || pages_of(&self.upstream, "enable")?.enable(address, bytes);
        self.logged_as(SourceMethod::Enable, Subject::range(address, bytes), enable)
    }

    fn unmap(&self, address: u64, bytes: u64) -> Result<(), SourceError> {
        let unmap = || pages_of(&self.upstream, "unmap")?.unmap(address, bytes);
        self.logged_as(SourceMethod::Unmap, Subject::range(address, bytes), unmap)
    }
}

impl<S: fmt::Debug, L> fmt::Debug for LoggingSource<S, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoggingSource").field("upstream", &self.upstream).finish_non_exhaustive()
    }
}
