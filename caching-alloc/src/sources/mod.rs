//! Adapters: sources that pass calls on to another source, and add a limit or a log.
//!
//! | type | adds |
//! | --- | --- |
//! | [`LimitingSource`] | a limit on the bytes that are allocated from the source at the same time |
//! | [`LoggingSource`] | a record of each call, for a [`CallSink`] such as [`CsvSink`] |
//!
//! An adapter is itself a [`SegmentSource`], for an allocator or a pool. It is a [`PageSource`] if its source is one.
//! An adapter can be put over another one. An `Arc` of a source is a source too, so the program can keep a handle of
//! it:
//!
//! ```
//! use std::sync::Arc;
//! use caching_alloc::core::{Allocator, Settings, StreamId};
//! use caching_alloc::host::{HostSource, HostStreams};
//! use caching_alloc::sources::{CsvSink, LimitingSource, LoggingSource};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let limited = Arc::new(LimitingSource::new(HostSource::new(1 << 30), 64 << 20));
//! let logged = LoggingSource::new(limited.clone(), CsvSink::new(std::io::stderr())?);
//! let allocator = Allocator::new(Arc::new(logged), Arc::new(HostStreams::new()), Settings::default());
//!
//! let block = allocator.allocate(1000, StreamId(1))?;
//! assert_eq!(limited.allocated(), 2 << 20); // one segment
//! allocator.allocate(65 << 20, StreamId(1)).expect_err("more than the limit");
//! # drop(block);
//! # Ok(())
//! # }
//! ```
//!
//! The order of adapters matters: a request that the limit refuses is logged by a [`LoggingSource`] over the
//! [`LimitingSource`], but not by one under it.

mod call;
mod limiting;
mod logging;
mod shared;
mod sink;

use crate::core::{PageSource, SegmentSource, SourceError};

pub use self::call::{CallOutcome, LoggedCall, SourceMethod};
pub use self::limiting::LimitingSource;
pub use self::logging::LoggingSource;
pub use self::sink::{CallSink, CsvSink, SinkError};

/// Returns `source` as a source of pages. If it has no pages, returns an error that names `call`.
fn pages_of<'a>(
    source: &'a dyn SegmentSource,
    call: &'static str,
) -> Result<&'a dyn PageSource, SourceError> {
    source.as_pages().ok_or_else(|| SourceError::Failed { call, source: Box::new(NoPages) })
}

/// A method of `PageSource` was called on an adapter whose source has no pages.
#[derive(Debug, thiserror::Error)]
#[error("the source under the adapter has no pages: use `as_pages` of the adapter, which is `None` then")]
struct NoPages;
