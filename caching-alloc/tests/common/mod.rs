//! What the tests share.

#![allow(dead_code)] // Not every test uses everything.

use std::collections::HashMap;
use std::sync::Arc;

use caching_alloc::core::{Allocator, Settings, Snapshot, StreamId, Usage};
use caching_alloc::host::{HostSource, HostStreams};

pub(crate) const MIB: u64 = 1 << 20;

pub(crate) struct Bench {
    pub(crate) source: Arc<HostSource>,
    pub(crate) streams: Arc<HostStreams>,
    pub(crate) allocator: Allocator,
}

pub(crate) fn bench(capacity: u64, settings: Settings) -> Bench {
    let source = Arc::new(HostSource::new(capacity));
    let streams = Arc::new(HostStreams::new());
    let allocator = Allocator::new(source.clone(), streams.clone(), settings);
    Bench { source, streams, allocator }
}

/// Settings whose segments are small enough for a test to need several.
pub(crate) fn tight() -> Settings {
    Settings { large_segment: 4 * MIB, front_bytes: MIB, ring_entries: 1 << 12, ..Settings::default() }
}

pub(crate) fn s(number: u64) -> StreamId {
    StreamId(number)
}

/// Checks what holds for every snapshot: blocks tile their segments, segments do not overlap.
pub(crate) fn check_tiling(snapshot: &Snapshot) {
    let mut end = 0;
    for state in &snapshot.segments {
        assert!(state.segment.address() >= end, "segments do not overlap");
        let mut at = state.segment.address();
        for block in &state.blocks {
            assert_eq!(block.address, at, "blocks tile their segment");
            assert!(block.bytes > 0 && block.bytes.is_multiple_of(512));
            assert!(block.requested <= block.bytes);
            at += block.bytes;
        }
        end = state.segment.address() + state.segment.bytes();
        assert_eq!(at, end, "up to its end");
    }
}

/// Blocks of a snapshot that are not free: address to (bytes, pending).
pub(crate) fn used(snapshot: &Snapshot) -> HashMap<u64, (u64, bool)> {
    let blocks = snapshot.segments.iter().flat_map(|state| &state.blocks);
    blocks
        .filter(|block| block.usage != Usage::Inactive)
        .map(|block| (block.address, (block.bytes, block.usage == Usage::PendingFree)))
        .collect()
}
