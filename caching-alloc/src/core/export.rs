//! Sharing memory with other processes.

use super::block::Block;
use super::segment::{Hold, SegmentReleased};
use super::source::{ShareHandle, ShareKind, SourceError};

/// A part of a block that lies in one segment. To use it in another process, import the handle and map it
/// whole ([`Segment::bytes`](super::Segment::bytes)); the part is `bytes` from `offset` on.
///
/// It holds the segment: the memory stays until this is dropped. It does not keep the block allocated, so the
/// block's owner must keep it while others use it.
#[derive(Debug)]
pub struct ExportedPart {
    /// The handle to import.
    pub handle: ShareHandle,
    /// Offset in the segment, in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// Keeps the segment.
    pub hold: Hold,
}

/// Why a block could not be exported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExportError {
    /// The source cannot export the segment.
    #[error("the block at {address:#x} cannot be exported")]
    Source {
        /// The block's first byte.
        address: u64,
        /// The source's error.
        #[source]
        source: SourceError,
    },
    /// The segment could not be held.
    #[error(transparent)]
    Released(#[from] SegmentReleased),
}

impl Block {
    /// Exports the block for another process: one part, except in a re-mappable pool. There a block may span
    /// several pages, and these stay in place while they are held. `holder` names the hold in reports.
    ///
    /// # Errors
    /// [`ExportError`]; nothing is held then. [`SourceError::NotExportable`] if the pool's source has no handles of that
    /// kind.
    pub fn export(&self, kind: ShareKind, holder: &str) -> Result<Vec<ExportedPart>, ExportError> {
        let (begin, end) = (self.address(), self.address() + self.bytes());
        let part = |segment: super::Segment| {
            // The hold is taken first: the segment must not be released during the export.
            let hold = segment.hold(holder)?;
            let handle = segment.source().export(&segment.memory(), kind);
            let handle = handle.map_err(|source| ExportError::Source { address: begin, source })?;
            let (from, to) = (begin.max(segment.address()), end.min(segment.memory().end()));
            Ok(ExportedPart { handle, offset: from - segment.address(), bytes: to - from, hold })
        };
        self.segments().into_iter().map(part).collect()
    }
}
