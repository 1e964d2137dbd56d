//! The state of an allocator at one moment.

#[cfg(any(feature = "json", feature = "pickle"))]
mod document;

use std::time::SystemTime;

use super::entry::Entry;
use super::request::RequestInfo;
use super::segment::Segment;
use super::settings::Settings;

/// Everything that an allocator holds, at one moment.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// Number of the last structural entry in it: later ones have greater numbers.
    pub generation: u64,
    /// Creation time of the allocator.
    pub began: SystemTime,
    /// Nanoseconds since `began`.
    pub time_ns: u64,
    /// Ordinal of the device.
    pub device: u32,
    /// Live segments, by address, except those of re-mappable pools.
    pub segments: Vec<SegmentState>,
    /// Mapped memory of re-mappable pools.
    pub mapped: Vec<MappedState>,
    /// Segments that should have been released but are held.
    pub quarantined: Vec<Segment>,
    /// The entries that the rings still have, oldest first. Empty in the snapshot that a tracker gets.
    pub trace: Vec<Entry>,
    /// The allocator's settings.
    pub settings: Settings,
}

/// A live segment and its blocks.
#[derive(Debug, Clone)]
pub struct SegmentState {
    /// The segment.
    pub segment: Segment,
    /// Its blocks by address; they tile it.
    pub blocks: Vec<BlockState>,
}

/// Neighbouring pages of a re-mappable pool, and their blocks.
#[derive(Debug, Clone)]
pub struct MappedState {
    /// The pages, by address; at least one.
    pub segments: Vec<Segment>,
    /// The blocks by address; they tile all pages together.
    pub blocks: Vec<BlockState>,
}

/// A block of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockState {
    /// First byte, a device address.
    pub address: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// The size that its owner requested, in bytes; 0 if it is free.
    pub requested: u64,
    /// The state of the block.
    pub usage: Usage,
    /// The source location and the name of the owner's request; `None` for a free block.
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
    /// A free block.
    pub(super) fn free(address: u64, bytes: u64) -> Self {
        Self { address, bytes, requested: 0, usage: Usage::Inactive, request: None }
    }

    /// Its length, unless it is free.
    #[must_use]
    pub fn active_bytes(&self) -> u64 {
        if self.usage == Usage::Inactive { 0 } else { self.bytes }
    }

    /// Its length, if it is handed out.
    #[must_use]
    pub fn allocated_bytes(&self) -> u64 {
        if self.usage == Usage::Active { self.bytes } else { 0 }
    }
}

impl SegmentState {
    /// A segment shown as one block without an owner.
    pub(super) fn whole(segment: &Segment, usage: Usage) -> Self {
        let (address, bytes) = (segment.address(), segment.bytes());
        let whole = BlockState { address, bytes, requested: 0, usage, request: None };
        Self { segment: segment.clone(), blocks: vec![whole] }
    }

    /// Bytes of its blocks that are not free.
    #[must_use]
    pub fn active_bytes(&self) -> u64 {
        self.blocks.iter().map(BlockState::active_bytes).sum()
    }

    /// Bytes of its blocks that are handed out.
    #[must_use]
    pub fn allocated_bytes(&self) -> u64 {
        self.blocks.iter().map(BlockState::allocated_bytes).sum()
    }

    /// Bytes that the owners of its blocks requested.
    #[must_use]
    pub fn requested_bytes(&self) -> u64 {
        self.blocks.iter().map(|block| block.requested).sum()
    }
}
