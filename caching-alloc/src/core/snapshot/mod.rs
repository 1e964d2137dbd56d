//! Snapshots: the state of an allocator.

#[cfg(any(feature = "json", feature = "pickle"))]
mod document;

use std::time::SystemTime;

use super::entry::Entry;
use super::request::RequestInfo;
use super::segment::Segment;
use super::settings::Settings;

/// The segments and blocks of an allocator, with its recent trace entries and its settings.
///
/// The blocks and block entries of one stream in one pool are all read at the same moment. Those of other streams and
/// pools may be read slightly earlier or later.
///
/// A snapshot does not keep memory from being released. It keeps the sources of its segments alive until it is
/// dropped. A source of device memory keeps its context alive.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// Number of the last [structural trace entry](Entry) that the snapshot includes.
    pub generation: u64,
    /// Creation time of the allocator.
    pub began: SystemTime,
    /// Time of the snapshot, in nanoseconds since `began`.
    pub time_ns: u64,
    /// Ordinal of the device.
    pub device: u32,
    /// Live segments in order of address. The pages of a re-mappable pool are in `mapped` instead. After that pool is
    /// dropped, its pages are listed here until they are released.
    pub segments: Vec<SegmentState>,
    /// Mapped memory of re-mappable pools, in order of address.
    pub mapped: Vec<MappedState>,
    /// Segments that should have been released but are held.
    pub quarantined: Vec<Segment>,
    /// The most recent entries that the allocator still has, oldest first. Empty in the snapshots that a tracker and a
    /// caller of [`Allocator::since`](super::Allocator::since) get.
    pub trace: Vec<Entry>,
    /// The allocator's settings.
    pub settings: Settings,
}

/// A live segment and its blocks.
#[derive(Debug, Clone)]
pub struct SegmentState {
    /// The segment.
    pub segment: Segment,
    /// The segment's blocks in order of address. They cover the segment without gaps.
    pub blocks: Vec<BlockState>,
}

/// Neighbouring pages of a re-mappable pool, and their blocks.
#[derive(Debug, Clone)]
pub struct MappedState {
    /// The pages in order of address; at least one.
    pub segments: Vec<Segment>,
    /// The blocks in order of address. They cover all pages together without gaps.
    pub blocks: Vec<BlockState>,
}

/// A block of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockState {
    /// First byte, a device address.
    pub address: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// The size that the owner requested, in bytes. 0 for a free block, and for a segment that is shown as one block
    /// because its cache or pool was dropped.
    pub requested: u64,
    /// The state of the block.
    pub usage: Usage,
    /// The source location and the name of the owner's request. `None` for a free block, and for a segment that is
    /// shown as one block because its cache or pool was dropped.
    pub request: Option<RequestInfo>,
}

/// The segment and the block that contain an address; see [`Allocator::find`](super::Allocator::find).
#[derive(Debug, Clone)]
pub struct AddressInfo {
    /// The segment.
    pub segment: Segment,
    /// The block.
    pub block: BlockState,
}

/// The state of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Usage {
    /// Handed out.
    Active,
    /// Freed by its owner; other streams may still use it.
    PendingFree,
    /// Free.
    Inactive,
}

impl BlockState {
    /// Returns the state of a free block.
    pub(super) fn free(address: u64, bytes: u64) -> Self {
        Self { address, bytes, requested: 0, usage: Usage::Inactive, request: None }
    }

    /// Returns the block's length in bytes, or 0 if it is free.
    #[must_use]
    pub fn active_bytes(&self) -> u64 {
        if self.usage == Usage::Inactive { 0 } else { self.bytes }
    }

    /// Returns the block's length in bytes if it is handed out, or 0.
    #[must_use]
    pub fn allocated_bytes(&self) -> u64 {
        if self.usage == Usage::Active { self.bytes } else { 0 }
    }
}

impl SegmentState {
    /// Returns the state of a segment that is shown as a single block. The block has this `usage` and no request.
    pub(super) fn whole(segment: &Segment, usage: Usage) -> Self {
        let (address, bytes) = (segment.address(), segment.bytes());
        let whole = BlockState { address, bytes, requested: 0, usage, request: None };
        Self { segment: segment.clone(), blocks: vec![whole] }
    }

    /// Returns the bytes in blocks that are not free.
    #[must_use]
    pub fn active_bytes(&self) -> u64 {
        self.blocks.iter().map(BlockState::active_bytes).sum()
    }

    /// Returns the bytes in blocks that are handed out.
    #[must_use]
    pub fn allocated_bytes(&self) -> u64 {
        self.blocks.iter().map(BlockState::allocated_bytes).sum()
    }
}
