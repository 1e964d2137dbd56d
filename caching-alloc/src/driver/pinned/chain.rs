//! The sources that a `PinnedAllocator` accepts.

use std::sync::Arc;

use super::source::PinnedHostSource;
use crate::core::SegmentSource;
use crate::sources::{CallSink, LimitingSource, LoggingSource};

/// A source that returns only segments of one [`PinnedHostSource`], and never returns a live segment twice: a
/// `PinnedHostSource`, an adapter over one, or an `Arc` of these.
///
/// The trait is sealed, since [`PinnedAllocator`](super::PinnedAllocator) relies on this property when it lets the
/// host access a block.
pub trait PinnedSource: SegmentSource + sealed::Sealed {
    /// Returns the source from which the segments come.
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
