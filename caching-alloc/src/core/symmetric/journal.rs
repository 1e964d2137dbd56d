//! The journal of a symmetric pool: its log, and its segments with the state of the log at the creation of each.

use std::borrow::Cow;
use std::panic::Location;

use super::log::{Log, LogState, OperationKind};
use super::{Geometry, Placement};
use crate::core::size::UNIT;
use crate::core::source::SegmentMemory;

/// The number of operations that a log keeps in full.
const LOG_OPERATIONS: usize = 1 << 12;

/// A segment of a symmetric pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SymmetricSegment {
    /// The segment's number: 0, 1, 2… in order of creation.
    pub ordinal: u32,
    /// The length in bytes, which is the same on every rank; a multiple of [`SEGMENT_STEP`](super::SEGMENT_STEP).
    pub bytes: u64,
    /// The state of the log after the request for which the segment was made.
    pub log: LogState,
    /// The memory on this rank. For a retired segment, its former memory.
    pub memory: SegmentMemory,
    /// True if the segment was [retired](super::SymmetricArena::retire).
    pub retired: bool,
}

#[derive(Debug)]
pub(in crate::core) struct Journal {
    geometry: Geometry,
    log: Log,
    segments: Vec<SymmetricSegment>,
    /// Bytes in all segments that are not retired.
    reserved: u64,
    /// Bytes in all blocks.
    in_use: u64,
    /// True if the last operation is a refused request.
    ends_refused: bool,
    /// For the last two refusals in the log, the log's length just after each, older first; 0 for none. A grant removes
    /// the newer one, and the older value then fills both places.
    refusals: [u64; 2],
}

impl Journal {
    pub(in crate::core) fn new(geometry: Geometry) -> Self {
        let log = Log::new(geometry, LOG_OPERATIONS);
        let (ends_refused, refusals) = (false, [0; 2]);
        Self { geometry, log, segments: Vec::new(), reserved: 0, in_use: 0, ends_refused, refusals }
    }

    pub(in crate::core) fn geometry(&self) -> Geometry {
        self.geometry
    }

    pub(in crate::core) fn log(&self) -> &Log {
        &self.log
    }

    pub(in crate::core) fn segments(&self) -> &[SymmetricSegment] {
        &self.segments
    }

    /// Returns the ordinal of the next segment, and its size in bytes if it must have room for `bytes`.
    pub(in crate::core) fn next_segment(&self, bytes: u64) -> (u32, u64) {
        let ordinal = u32::try_from(self.segments.len()).unwrap_or(u32::MAX);
        (ordinal, self.geometry.segment_bytes(self.reserved, self.in_use, bytes))
    }

    /// Logs an operation, and updates the bytes in use. If the operation logged last is a refused request for the same
    /// size, a further refusal is not logged, and an allocation replaces the refused request.
    #[inline(always)]
    pub(in crate::core) fn record(
        &mut self,
        kind: OperationKind,
        bytes: u64,
        placement: Option<Placement>,
        site: &'static Location<'static>,
    ) {
        match kind {
            OperationKind::Allocate => self.in_use += bytes.next_multiple_of(UNIT),
            OperationKind::Free => self.in_use = self.in_use.saturating_sub(bytes.next_multiple_of(UNIT)),
            OperationKind::Refuse | OperationKind::Retire => {}
        }
        if !self.ends_refused || !self.is_repeated(kind, bytes, placement, site) {
            self.log.push(kind, bytes, placement, site);
            self.ends_refused = kind == OperationKind::Refuse;
            if self.ends_refused {
                self.refusals = [self.refusals[1], self.log.state().length];
            }
        }
    }

    /// Returns true if the operation repeats the refused request that was logged last. An allocation then replaces that
    /// request in the log.
    #[cold]
    fn is_repeated(
        &mut self,
        kind: OperationKind,
        bytes: u64,
        placement: Option<Placement>,
        site: &'static Location<'static>,
    ) -> bool {
        match (kind, placement) {
            (OperationKind::Allocate, Some(placement)) => {
                let granted = self.log.grant(bytes, placement, site);
                if granted {
                    self.ends_refused = false;
                    // Only a refusal that is the last operation can be granted, so another refusal comes before the
                    // next grant. It is therefore enough to know one refusal before the granted one.
                    self.refusals = [self.refusals[0]; 2];
                }
                granted
            }
            (OperationKind::Refuse, _) => self.log.has_refused(bytes),
            _ => false,
        }
    }

    /// Returns true if the log has a refused request after its first `length` operations. Repeated refusals are not
    /// logged.
    pub(super) fn has_refused_since(&self, length: u64) -> bool {
        self.refusals[1] > length
    }

    /// Returns the bytes in all segments that are not retired, and in all blocks.
    pub(super) fn totals(&self) -> (u64, u64) {
        (self.reserved, self.in_use)
    }

    /// Sets the caller's tag of the last operation, replacing an earlier one. The log must not be empty.
    pub(super) fn tag(&mut self, tag: Cow<'static, str>) {
        self.log.tag(tag);
    }

    /// Adds a segment. Call this after the request that needs the segment is logged.
    pub(in crate::core) fn add_segment(&mut self, memory: SegmentMemory) {
        let ordinal = u32::try_from(self.segments.len()).unwrap_or(u32::MAX);
        let (bytes, log) = (memory.bytes, self.log.state());
        self.reserved += bytes;
        self.segments.push(SymmetricSegment { ordinal, bytes, log, memory, retired: false });
    }

    /// Marks a segment as retired. Call this after the `Retire` operation is logged.
    pub(super) fn retire(&mut self, ordinal: u32) {
        if let Some(segment) = self.segments.get_mut(ordinal as usize).filter(|segment| !segment.retired) {
            segment.retired = true;
            self.reserved = self.reserved.saturating_sub(segment.bytes);
        }
    }
}
