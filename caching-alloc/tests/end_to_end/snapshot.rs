//! Snapshots: their JSON is readable by PyTorch's viewer, and agrees with the trace.

use super::common;

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{BufWriter, ErrorKind};
use std::sync::Arc;

use super::common::{MIB, bench, check_tiling, remapping_bench, s, tight, used};
use caching_alloc::core::{Action, Allocator, Block, PoolKind, PoolSettings, Snapshot};
use caching_alloc::host::{HostSource, HostStreams};
use serde_json::Value;

fn busy() -> (common::Bench, Vec<Block>, Snapshot) {
    let bench = bench(40 * MIB, tight());
    let mut live: Vec<Block> = Vec::new();
    for round in 0..120u64 {
        let bytes = [600, MIB - 1, 2 * MIB + 1][(round % 3) as usize];
        live.push(bench.allocator.allocate(bytes, s(round % 2)).unwrap());
        if live.len() > 8 {
            let block = live.remove((round * 5 % 8) as usize);
            if round % 10 == 0 {
                bench.streams.enqueue(s(9));
                block.record_stream(s(9)).unwrap();
            }
        }
        if round == 60 {
            bench.allocator.annotate("half way").unwrap();
            bench.allocator.trim_to(0).unwrap();
            assert!(bench.allocator.allocate(100 * MIB, s(0)).is_err());
        }
    }
    let snapshot = bench.allocator.snapshot().unwrap();
    (bench, live, snapshot)
}

#[test]
fn the_trace_leads_to_the_state() {
    let (_bench, live, snapshot) = busy();
    check_tiling(&snapshot);
    assert!(snapshot.trace.is_sorted_by_key(|entry| entry.time_ns));
    // Replayed from nothing: the rings are long enough for all entries.
    let mut blocks = BTreeMap::new();
    let mut segments = BTreeMap::new();
    for entry in &snapshot.trace {
        match &entry.action {
            Action::Alloc(span) => {
                let (_, (end, _)) =
                    segments.range(..=span.address).next_back().expect("a segment before its blocks");
                assert!(span.address + span.bytes <= *end);
                assert_eq!(blocks.insert(span.address, (span.bytes, false)), None);
            }
            Action::FreeRequested(span) => {
                assert_eq!(blocks.insert(span.address, (span.bytes, true)), Some((span.bytes, false)));
            }
            Action::FreeCompleted(span) => assert_eq!(blocks.remove(&span.address), Some((span.bytes, true))),
            Action::SegmentAlloc(segment) => {
                segments.insert(segment.address(), (segment.address() + segment.bytes(), segment.id()));
            }
            Action::SegmentFree(segment) => {
                let range = segment.address()..segment.address() + segment.bytes();
                assert_eq!(blocks.range(range).count(), 0, "no blocks in a segment that goes");
                assert!(segments.remove(&segment.address()).is_some());
            }
            _ => {}
        }
    }
    assert_eq!(blocks, used(&snapshot).into_iter().collect());
    assert!(live.iter().all(|block| blocks[&block.address()] == (block.bytes(), false)));
    let addresses: Vec<u64> = snapshot.segments.iter().map(|state| state.segment.address()).collect();
    assert_eq!(segments.into_keys().collect::<Vec<_>>(), addresses);
}

#[test]
fn the_trace_of_pages_that_move_leads_to_the_state() {
    let source = Arc::new(HostSource::new(48 * MIB));
    let allocator = Allocator::remapping(source, Arc::new(HostStreams::new()), tight()).unwrap();
    let mut live: VecDeque<Block> = VecDeque::new();
    for round in 0..600u64 {
        let bytes = (round % 7 + 1) * (round % 5 + 1) * 300_000;
        while live.len() > 8 {
            live.remove((round * 5 % 8) as usize);
        }
        match allocator.allocate(bytes, s(round % 3)) {
            Ok(block) => live.push_back(block),
            Err(_) => live.clear(),
        }
    }
    let snapshot = allocator.snapshot().unwrap();
    let mut pages = BTreeMap::new();
    let mut blocks = BTreeMap::new();
    let mut moved = 0;
    for entry in &snapshot.trace {
        match &entry.action {
            Action::SegmentMap(page) => assert_eq!(pages.insert(page.address(), page.bytes()), None),
            Action::SegmentUnmap(page) => {
                moved += 1;
                let end = page.address() + page.bytes();
                let below = blocks.range(..end).next_back();
                assert!(
                    below.is_none_or(|(at, bytes)| at + bytes <= page.address()),
                    "no block on a page that goes"
                );
                assert_eq!(pages.remove(&page.address()), Some(page.bytes()));
            }
            Action::Alloc(span) => {
                let mut at = span.address;
                while at < span.address + span.bytes {
                    let (page, bytes) = pages.range(..=at).next_back().expect("pages before their blocks");
                    assert!(at < page + bytes, "pages before their blocks");
                    at = page + bytes;
                }
                let below = blocks.range(..span.address + span.bytes).next_back();
                assert!(below.is_none_or(|(at, bytes)| at + bytes <= span.address), "no two blocks at once");
                blocks.insert(span.address, span.bytes);
            }
            Action::FreeCompleted(span) => assert_eq!(blocks.remove(&span.address), Some(span.bytes)),
            _ => {}
        }
    }
    assert!(moved > 10, "{moved} pages moved");
    let state =
        snapshot.mapped.iter().flat_map(|state| &state.blocks).filter(|block| block.active_bytes() > 0);
    assert_eq!(blocks, state.map(|block| (block.address, block.bytes)).collect());
    let state = snapshot.mapped.iter().flat_map(|state| &state.segments);
    assert_eq!(pages, state.map(|page| (page.address(), page.bytes())).collect());
    undo(&serde_json::from_str(&snapshot.to_json().unwrap()).unwrap());
}

#[test]
fn the_viewer_undoes_what_a_pool_left_behind() {
    let kinds = [PoolKind::Cached, PoolKind::NoSplit, PoolKind::Remappable];
    // While its stream captures, a dropped pool releases nothing.
    for (kind, captures) in kinds.into_iter().flat_map(|kind| [(kind, false), (kind, true)]) {
        let bench = remapping_bench(400 * MIB, tight());
        let pool = bench.allocator.pool(PoolSettings { kind, ..PoolSettings::default() }).unwrap();
        for bytes in [3 * MIB, 700, 5 * MIB] {
            let block = pool.allocate(bytes, s(1)).unwrap();
            if bytes != 700 {
                bench.streams.enqueue(s(9));
                block.record_stream(s(9)).unwrap();
            }
        }
        let kept = bench.allocator.allocate(MIB, s(1)).unwrap();
        bench.streams.set_capturing(s(1), captures);
        drop(pool);
        let snapshot = bench.allocator.snapshot().unwrap();
        let json: Value = serde_json::from_str(&snapshot.to_json().unwrap()).unwrap();
        undo(&json);
        let traces = json["device_traces"][0].as_array().unwrap();
        let count = |of: &str| traces.iter().filter(|entry| entry["action"] == of).count();
        if !captures {
            assert_eq!(count("segment_free"), count("segment_alloc"), "{kind:?}");
            assert_eq!(
                count("segment_unmap") + 1,
                count("segment_map"),
                "but for the page of the block that is kept"
            );
        }
        bench.streams.set_capturing(s(1), false);
        drop(kept);
    }
}

/// Undoes a trace from its end, as the viewer does.
fn undo(json: &Value) {
    let number = |value: &Value, key: &str| value[key].as_u64().unwrap_or_else(|| panic!("{key} in {value}"));
    let mut segments = BTreeMap::new();
    let mut blocks = BTreeMap::new();
    for segment in json["segments"].as_array().unwrap() {
        let mut at = number(segment, "address");
        segments.insert(at, (at + number(segment, "total_size"), number(segment, "stream")));
        for block in segment["blocks"].as_array().unwrap() {
            if block["state"] != "inactive" {
                blocks.insert(at, at + number(block, "requested_size"));
            }
            at += number(block, "size");
        }
    }
    fit(&blocks, &segments);
    for entry in json["device_traces"][0].as_array().unwrap().iter().rev() {
        let action = entry["action"].as_str().unwrap();
        if matches!(action, "oom" | "snapshot") {
            continue;
        }
        let (mut at, bytes, stream) = (number(entry, "addr"), number(entry, "size"), number(entry, "stream"));
        let mut end = at + bytes;
        match action {
            "alloc" => assert_eq!(blocks.remove(&at), Some(end), "{entry}"),
            "free_requested" => assert_eq!(blocks.get(&at), Some(&end), "{entry}"),
            "free_completed" => assert_eq!(blocks.insert(at, end), None, "{entry}"),
            // The segment may have moved to another stream since then.
            "segment_alloc" => {
                assert_eq!(segments.remove(&at).map(|(end, _)| end), Some(end), "{entry}");
            }
            "segment_free" => assert_eq!(segments.insert(at, (end, stream)), None, "{entry}"),
            "segment_map" => {
                let (first, (last, stream)) =
                    segments.range(..=at).next_back().map(|(at, of)| (*at, *of)).unwrap();
                assert!(end <= last, "{entry}");
                segments.remove(&first);
                for (at, end) in [(first, at), (end, last)].into_iter().filter(|(at, end)| at < end) {
                    segments.insert(at, (end, stream));
                }
            }
            "segment_unmap" => {
                let below = segments.range(..at).next_back().map(|(at, of)| (*at, *of));
                if let Some((first, _)) = below.filter(|(_, of)| *of == (at, stream)) {
                    segments.remove(&first);
                    at = first;
                }
                if let Some((last, _)) = segments.get(&end).copied().filter(|(_, of)| *of == stream) {
                    segments.remove(&end);
                    end = last;
                }
                assert_eq!(segments.insert(at, (end, stream)), None, "{entry}");
            }
            other => panic!("{other}"),
        }
        fit(&blocks, &segments);
    }
}

/// Checks that every block lies in a segment, and that no two blocks overlap.
fn fit(blocks: &BTreeMap<u64, u64>, segments: &BTreeMap<u64, (u64, u64)>) {
    let mut end = 0;
    for (at, until) in blocks {
        let segment = segments.range(..=at).next_back();
        assert!(segment.is_some_and(|(_, (end, _))| until <= end), "{at:#x} is in no segment");
        assert!(*at >= end, "{at:#x} overlaps what is below it");
        end = *until;
    }
}

#[test]
fn a_full_disk_is_an_error() {
    let (_bench, _live, snapshot) = busy();
    // The buffer holds all that is written, so the error comes when it is flushed.
    let full = || BufWriter::with_capacity(16 << 20, File::options().write(true).open("/dev/full").unwrap());
    assert_eq!(snapshot.write_json(full()).unwrap_err().kind(), ErrorKind::StorageFull);
    #[cfg(feature = "pickle")]
    assert_eq!(snapshot.write_pickle(full()).unwrap_err().kind(), ErrorKind::StorageFull);
}

#[test]
fn the_viewer_finds_what_it_reads() {
    let (_bench, live, snapshot) = busy();
    let json: Value = serde_json::from_str(&snapshot.to_json().unwrap()).unwrap();
    undo(&json);
    let mut written = Vec::new();
    snapshot.write_json(&mut written).unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&written).unwrap(), json);

    let number = |value: &Value, key: &str| value[key].as_u64().unwrap_or_else(|| panic!("{key} in {value}"));
    let mut active = 0;
    for segment in json["segments"].as_array().unwrap() {
        for key in
            ["device", "address", "total_size", "allocated_size", "active_size", "requested_size", "stream"]
        {
            number(segment, key);
        }
        assert!(matches!(segment["segment_type"].as_str(), Some("small" | "large")));
        assert_eq!(segment["segment_pool_id"].as_array().unwrap().len(), 2);
        assert!(segment["frames"].is_array() && segment["is_expandable"] == false);
        let mut at = number(segment, "address");
        let mut sums = (0, 0);
        for block in segment["blocks"].as_array().unwrap() {
            assert_eq!(number(block, "address"), at, "the viewer adds sizes up");
            at += number(block, "size");
            assert!(block["frames"].is_array());
            match block["state"].as_str().unwrap() {
                "active_allocated" => {
                    active += 1;
                    sums.0 += number(block, "size");
                    sums.1 += number(block, "size");
                }
                "active_pending_free" => sums.1 += number(block, "size"),
                "inactive" => assert_eq!(number(block, "requested_size"), 0),
                other => panic!("{other}"),
            }
        }
        assert_eq!(at, number(segment, "address") + number(segment, "total_size"));
        assert_eq!(sums, (number(segment, "allocated_size"), number(segment, "active_size")));
    }
    assert_eq!(active, live.len());

    let traces = json["device_traces"].as_array().unwrap();
    assert_eq!(traces.len(), 1, "a list for each device up to this one");
    let mut seen = BTreeMap::new();
    for entry in traces[0].as_array().unwrap() {
        let action = entry["action"].as_str().unwrap();
        *seen.entry(action.to_owned()).or_insert(0) += 1;
        for key in ["size", "stream", "time_us"] {
            number(entry, key);
        }
        number(entry, if action == "oom" { "device_free" } else { "addr" });
        assert!(entry["frames"].is_array() && entry.get("category").is_none());
    }
    for action in
        ["alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "oom", "snapshot"]
    {
        assert!(seen.contains_key(action), "{action} in {seen:?}");
    }
    assert_eq!(seen["alloc"], seen["free_requested"] + active);
    assert_eq!(json["external_annotations"][0]["name"], "half way");
    assert_eq!(json["generation"], snapshot.generation);
}

#[test]
fn a_short_ring_keeps_the_last_entries() {
    let settings = caching_alloc::core::Settings { ring_entries: 8, ..tight() };
    let bench = bench(u64::MAX, settings);
    for bytes in 1..50u64 {
        bench.allocator.allocate(bytes * 1000, s(1)).unwrap();
    }
    let snapshot = bench.allocator.snapshot().unwrap();
    let blocks: Vec<_> = snapshot.trace.iter().filter(|entry| entry.action.kind().is_block()).collect();
    // The ring has four hand-outs and four frees. A free is shown as two entries.
    assert_eq!(blocks.len(), 12);
    assert_eq!(blocks.last().unwrap().number, 49 * 3);
    assert!(blocks.windows(2).all(|pair| pair[1].number == pair[0].number + 1));
    assert!(matches!(&blocks[0].action, Action::Alloc(span) if span.requested == 46_000));

    // The viewer undoes the trace from its end, so its trace begins at a point from which every ring is
    // complete.
    let whole = bench.allocator.allocate(512, s(2)).unwrap();
    for bytes in 1..50u64 {
        bench.allocator.allocate(bytes * 1000, s(1)).unwrap();
    }
    let json: Value = serde_json::from_str(&bench.allocator.snapshot().unwrap().to_json().unwrap()).unwrap();
    let trace = json["device_traces"][0].as_array().unwrap();
    assert!(trace.iter().all(|entry| entry["addr"] != whole.address()), "older than what another ring has");
    assert_eq!(trace.iter().filter(|entry| entry["stream"] == 1 && entry["action"] == "alloc").count(), 4);
}
