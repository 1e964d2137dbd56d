//! Helpers shared by the tests.

#![allow(dead_code)] // Not every test uses everything.

pub(crate) mod hooked;
pub(crate) mod pause;

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

/// Like [`bench`], but the default pool is re-mappable, with pages of at least 2 MiB.
pub(crate) fn remapping_bench(capacity: u64, settings: Settings) -> Bench {
    let source = Arc::new(HostSource::new(capacity));
    let streams = Arc::new(HostStreams::new());
    let allocator = Allocator::remapping(source.clone(), streams.clone(), settings).unwrap();
    Bench { source, streams, allocator }
}

/// Settings whose segments are small enough for a test to need several.
pub(crate) fn tight() -> Settings {
    Settings { large_segment: 4 * MIB, quick_list_bytes: MIB, ring_entries: 1 << 12, ..Settings::default() }
}

pub(crate) fn s(number: u64) -> StreamId {
    StreamId(number)
}

/// Checks the invariants of every snapshot: blocks cover their segments without gaps, and segments do not overlap.
pub(crate) fn check_tiling(snapshot: &Snapshot) {
    let mut end = 0;
    let fixed = snapshot.segments.iter().map(|state| (std::slice::from_ref(&state.segment), &state.blocks));
    let mapped = snapshot.mapped.iter().map(|state| (&state.segments[..], &state.blocks));
    let mut all: Vec<_> = fixed.chain(mapped).collect();
    all.sort_by_key(|(segments, _)| segments[0].address());
    for (segments, blocks) in all {
        assert!(segments[0].address() >= end, "segments do not overlap");
        let mut at = segments[0].address();
        for segment in segments {
            assert_eq!(segment.address(), at, "pages are neighbours");
            at += segment.bytes();
        }
        end = at;
        at = segments[0].address();
        for block in blocks {
            assert_eq!(block.address, at, "blocks view their segments");
            assert!(block.bytes > 0 && block.bytes.is_multiple_of(512));
            assert!(block.requested <= block.bytes);
            at += block.bytes;
        }
        assert_eq!(at, end, "up to their end");
    }
}

/// Returns the blocks of a snapshot that are not free, as a map from address to (bytes, true if pending).
pub(crate) fn used(snapshot: &Snapshot) -> HashMap<u64, (u64, bool)> {
    let fixed = snapshot.segments.iter().flat_map(|state| &state.blocks);
    let mapped = snapshot.mapped.iter().flat_map(|state| &state.blocks);
    fixed
        .chain(mapped)
        .filter(|block| block.usage != Usage::Inactive)
        .map(|block| (block.address, (block.bytes, block.usage == Usage::PendingFree)))
        .collect()
}
