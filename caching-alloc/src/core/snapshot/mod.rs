//! The state of an allocator at one moment.

mod json;

use super::entry::Entry;
use super::segment::Segment;
use super::settings::Settings;

/// Everything that an allocator holds, at one moment.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// Number of the last structural entry that is in it: later ones have greater numbers.
    pub generation: u64,
    /// Nanoseconds since the allocator was made.
    pub time_ns: u64,
    /// Ordinal of the device.
    pub device: u32,
    /// Live segments, by address.
    pub segments: Vec<SegmentState>,
    /// Segments that should have gone back to their source but are held.
    pub quarantined: Vec<Segment>,
    /// The entries that the rings still have, oldest first. Empty in the snapshot that a tracker gets.
    pub trace: Vec<Entry>,
    /// The allocator's settings.
    pub settings: Settings,
}

/// A live segment and what it is used for.
#[derive(Debug, Clone)]
pub struct SegmentState {
    /// The segment.
    pub segment: Segment,
    /// Its blocks by address; they tile it.
    pub blocks: Vec<BlockState>,
}

/// A block of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockState {
    /// First byte, a device address.
    pub address: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// What its owner asked for, in bytes; 0 if it is free.
    pub requested: u64,
    /// What it is used for.
    pub usage: Usage,
}

/// What a block is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Usage {
    /// Handed out.
    Active,
    /// Its owner let go; other streams may still use it.
    PendingFree,
    /// Free.
    Inactive,
}

impl SegmentState {
    /// Bytes of its blocks that are not free.
    #[must_use]
    pub fn active_bytes(&self) -> u64 {
        self.blocks.iter().filter(|block| block.usage != Usage::Inactive).map(|block| block.bytes).sum()
    }

    /// Bytes of its blocks that are handed out.
    #[must_use]
    pub fn allocated_bytes(&self) -> u64 {
        self.blocks.iter().filter(|block| block.usage == Usage::Active).map(|block| block.bytes).sum()
    }

    /// Bytes that the owners of its blocks asked for.
    #[must_use]
    pub fn requested_bytes(&self) -> u64 {
        self.blocks.iter().map(|block| block.requested).sum()
    }
}
