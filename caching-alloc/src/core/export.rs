//! Memory that other processes can map.

use std::os::fd::OwnedFd;

use super::block::Block;
use super::segment::{Hold, SegmentReleased};
use super::source::SourceError;

/// How a handle gets to another process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ShareKind {
    /// A file descriptor, passed over a Unix socket of the host.
    PosixFd,
    /// Bytes that another process of the fabric can import.
    Fabric,
}

/// What another process imports to map a segment's memory, all of it.
#[derive(Debug)]
#[non_exhaustive]
pub enum ShareHandle {
    /// A file descriptor.
    PosixFd(OwnedFd),
    /// Bytes for the fabric.
    Fabric([u8; 64]),
}

/// A part of a block that lies in one segment, as another process needs it: import the handle, map it whole
/// ([`Segment::bytes`](super::Segment::bytes)), and the part is `bytes` from `offset` on.
///
/// It holds the segment: the memory stays what it is until this is dropped. It does not keep the block; as long as
/// others use it, its owner does.
#[derive(Debug)]
pub struct ExportedPart {
    /// What the other process imports.
    pub handle: ShareHandle,
    /// Bytes from the segment's begin.
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
        /// What the source said.
        #[source]
        source: SourceError,
    },
    /// The segment could not be held.
    #[error(transparent)]
    Released(#[from] SegmentReleased),
}

impl Block {
    /// What another process needs to map the block: one part, but in a re-mappable pool, where a block may lie in
    /// several pages, which then stay where they are. `holder` names the hold in reports.
    ///
    /// # Errors
    /// [`ExportError`]; nothing is held then. [`SourceError::NotExportable`] if the pool's source has no handles of that
    /// kind.
    pub fn export(&self, kind: ShareKind, holder: &str) -> Result<Vec<ExportedPart>, ExportError> {
        let (begin, end) = (self.address(), self.address() + self.bytes());
        let part = |segment: super::Segment| {
            // The hold first: what is exported must not go meanwhile.
            let hold = segment.hold(holder)?;
            let handle = segment.source().export(&segment.memory(), kind);
            let handle = handle.map_err(|source| ExportError::Source { address: begin, source })?;
            let (from, to) = (begin.max(segment.address()), end.min(segment.memory().end()));
            Ok(ExportedPart { handle, offset: from - segment.address(), bytes: to - from, hold })
        };
        self.segments().into_iter().map(part).collect()
    }
}
