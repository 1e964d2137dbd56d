//! Pinned memory behind adapters.

use std::sync::Arc;

use super::source::PinnedHostSource;
use crate::core::SegmentSource;
use crate::sources::{CallSink, LimitingSource, LoggingSource};

/// Sources whose segments all come from one [`PinnedHostSource`], each segment once: the source itself, adapters over
/// it, and shared handles. It is sealed, since [`PinnedAllocator`](super::PinnedAllocator) relies on that when it lends memory to the host.
pub trait PinnedSource: SegmentSource + sealed::Sealed {
    /// Returns the source of the pinned memory.
    fn pinned(&self) -> &PinnedHostSource;
}

impl PinnedSource for PinnedHostSource {
    fn pinned(&self) -> &PinnedHostSource {
        self
    }
}

impl<S: PinnedSource> PinnedSource for LimitingSource<S> {
    fn pinned(&self) -> &PinnedHostSource {
        self.upstream().pinned()
    }
}

impl<S: PinnedSource, L: CallSink> PinnedSource for LoggingSource<S, L> {
    fn pinned(&self) -> &PinnedHostSource {
        self.upstream().pinned()
    }
}

impl<S: PinnedSource + ?Sized> PinnedSource for Arc<S> {
    fn pinned(&self) -> &PinnedHostSource {
        (**self).pinned()
    }
}

mod sealed {
    use super::{Arc, CallSink, LimitingSource, LoggingSource, PinnedHostSource};

    pub trait Sealed {}

    impl Sealed for PinnedHostSource {}
    impl<S: Sealed> Sealed for LimitingSource<S> {}
    impl<S: Sealed, L: CallSink> Sealed for LoggingSource<S, L> {}
    impl<S: Sealed + ?Sized> Sealed for Arc<S> {}
}
