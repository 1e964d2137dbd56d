//! Export of blocks to other processes.

use super::block::Block;
use super::segment::{Hold, SegmentReleased};
use super::source::{ShareHandle, ShareKind, SourceError};

/// The part of an exported block that lies in one segment. To use it, another process imports the handle and maps the
/// whole segment, which has [`Segment::bytes`](super::Segment::bytes) bytes. The part begins `offset` bytes after the
/// start of that mapping, and has `bytes` bytes.
///
/// The hold keeps the segment's memory, but it does not keep the block allocated. So the owner must not drop the block
/// while other processes use it.
#[derive(Debug)]
pub struct ExportedPart {
    /// The handle to import.
    pub handle: ShareHandle,
    /// Offset in the segment, in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// The hold on the segment.
    pub hold: Hold,
}

/// The error of [`Block::export`].
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
    /// The segment could not be held: its memory was released or is about to be, or it is a page that moved or is about
    /// to move.
    #[error(transparent)]
    Released(#[from] SegmentReleased),
}

impl Block {
    /// Exports the block to another process. Returns one part for each segment that contains the block: one part, or
    /// several in a re-mappable pool, where the segments are pages. The pages do not move while the parts exist.
    /// `holder` is the name of the holds in reports.
    ///
    /// # Errors
    /// [`ExportError`]. No hold is left then. If the pool's source has no handles of this kind, the error is
    /// [`ExportError::Source`] with [`SourceError::NotExportable`].
    pub fn export(&self, kind: ShareKind, holder: &str) -> Result<Vec<ExportedPart>, ExportError> {
        let (begin, end) = (self.address(), self.address() + self.bytes());
        let part = |segment: super::Segment| {
            // The hold is taken first, because the segment must not be released during the export.
            let hold = segment.hold(holder)?;
            let handle = segment.source().export(&segment.memory(), kind);
            let handle = handle.map_err(|source| ExportError::Source { address: begin, source })?;
            let (from, to) = (begin.max(segment.address()), end.min(segment.memory().end()));
            Ok(ExportedPart { handle, offset: from - segment.address(), bytes: to - from, hold })
        };
        self.segments().into_iter().map(part).collect()
    }
}
