//! PyTorch's memory snapshots, and ours, which have the same layout: a pickle or JSON.
//!
//! Only the fields that the page and a replay need are read. No file is trusted: a field of another type or range is
//! an error that names its path.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, SeqAccess, Unexpected, Visitor};

use super::text::EVENT;
use super::types::{Format, Origin, TraceError};
use crate::trace::budget::Budget;
use crate::trace::pickle::{Pickle, TRANSIENT_RESULT};

/// The state of an allocator at one moment, and the events before it.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Snapshot {
    pub(crate) segments: Vec<Segment>,
    /// By device, oldest first.
    #[serde(default)]
    pub(crate) device_traces: Vec<Vec<Event>>,
    #[serde(skip)]
    pub(crate) format: Format,
}

/// Memory that the allocator has from the driver; `blocks` tile it, by address. Sizes in bytes.
#[derive(Debug, Deserialize)]
pub(crate) struct Segment {
    #[serde(default)]
    pub(crate) device: u32,
    #[serde(deserialize_with = "whole")]
    pub(crate) address: u64,
    #[serde(deserialize_with = "whole")]
    pub(crate) total_size: u64,
    #[serde(default, deserialize_with = "whole")]
    pub(crate) stream: u64,
    /// True if it is made of pages: the allocator treats neighbouring pages as one segment.
    #[serde(default)]
    pub(crate) is_expandable: bool,
    pub(crate) blocks: Vec<Block>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Block {
    #[serde(deserialize_with = "whole")]
    pub(crate) size: u64,
    /// The requested size.
    #[serde(default)]
    pub(crate) requested_size: Option<u64>,
    pub(crate) state: BlockState,
    #[serde(default, rename = "frames", deserialize_with = "call_site")]
    pub(crate) call_site: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum BlockState {
    ActiveAllocated,
    #[serde(alias = "active_awaiting_free")]
    ActivePendingFree,
    Inactive,
}

/// One entry of a device's trace. Sizes in bytes.
#[derive(Debug, Deserialize)]
pub(crate) struct Event {
    pub(crate) action: Action,
    #[serde(default, deserialize_with = "whole")]
    pub(crate) addr: u64,
    #[serde(default, deserialize_with = "whole")]
    pub(crate) size: u64,
    #[serde(default, deserialize_with = "whole")]
    pub(crate) stream: u64,
    #[serde(default, deserialize_with = "whole")]
    pub(crate) time_us: u64,
    #[serde(default, rename = "frames", deserialize_with = "call_site")]
    pub(crate) call_site: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Action {
    Alloc,
    FreeRequested,
    FreeCompleted,
    SegmentAlloc,
    SegmentFree,
    SegmentMap,
    SegmentUnmap,
    Oom,
    /// Snapshots, annotations, and actions of later releases.
    #[serde(other)]
    Other,
}

/// Upper limit of addresses and of sums of sizes: a double holds them exactly, and no device has more.
const LIMIT: u64 = 1 << 53;

/// A key that dumps of flight recorders have, and snapshots do not.
const PG_CONFIG: &[u8] = b"pg_config";

impl Snapshot {
    /// Reads and checks a snapshot, and sorts its segments by address.
    pub(crate) fn read(
        bytes: &[u8],
        format: Format,
        origin: &Origin,
        budget: &Budget,
    ) -> Result<Self, TraceError> {
        let spent = |source| TraceError::Spent { origin: origin.clone(), source };

        let (snapshot, end) = match format {
            Format::Json => {
                budget.charge_json(bytes).map_err(spent)?;
                let mut reader = serde_json::Deserializer::from_slice(bytes);
                let read = serde_path_to_error::deserialize(&mut reader);
                (read.map_err(|error| within(&error)), reader.end().map_err(|error| error.to_string()))
            }
            Format::Pickle => {
                let read = match Pickle::parse(bytes, budget) {
                    Ok(pickle) => {
                        serde_path_to_error::deserialize(pickle.value()).map_err(|error| within(&error))
                    }
                    Err(error) => Err(("the pickle itself".to_owned(), error.to_string())),
                };
                (read, Ok(()))
            }
        };
        let bad = |(place, problem)| TraceError::Snapshot { origin: origin.clone(), format, place, problem };
        let is_flight_dump = || bytes.windows(PG_CONFIG.len()).any(|part| part == PG_CONFIG);
        if snapshot.is_err() && is_flight_dump() {
            return Err(TraceError::FlightDump { origin: origin.clone() });
        }
        let mut snapshot: Self = snapshot.map_err(bad)?;
        end.map_err(|problem| bad(("after the snapshot".to_owned(), problem)))?;
        snapshot.check().map_err(bad)?;
        let events: usize = snapshot.device_traces.iter().map(Vec::len).sum();
        budget.charge(events as u64 * EVENT).map_err(spent)?;
        snapshot.format = format;
        snapshot.segments.sort_by_key(|segment| (segment.device, segment.address));
        Ok(snapshot)
    }

    fn check(&self) -> Result<(), (String, String)> {
        for (at, segment) in self.segments.iter().enumerate() {
            let place = || format!("segments[{at}]");
            if segment.address.saturating_add(segment.total_size) > LIMIT {
                let Segment { address, total_size, .. } = segment;
                let found = format!("expected an end below 2^53, found {address:#x} and {total_size} bytes");
                return Err((place(), found));
            }
            let tiled = segment.blocks.iter().fold(0u64, |sum, block| sum.saturating_add(block.size));
            if tiled != segment.total_size {
                let expected = segment.total_size;
                let found = format!("expected blocks of {expected} bytes together, found {tiled} bytes");
                return Err((place(), found));
            }
        }
        for (device, trace) in self.device_traces.iter().enumerate() {
            for (at, event) in trace.iter().enumerate() {
                let concerns = !matches!(event.action, Action::Oom | Action::Other);
                if concerns && event.addr.saturating_add(event.size) > LIMIT {
                    let Event { addr, size, .. } = event;
                    let found = format!("expected an end below 2^53, found {addr:#x} and {size} bytes");
                    return Err((format!("device_traces[{device}][{at}]"), found));
                }
            }
        }
        Ok(())
    }
}

/// Returns the path of an error, and its text.
fn within<E: fmt::Display>(error: &serde_path_to_error::Error<E>) -> (String, String) {
    let path = error.path().to_string();
    let place = if path == "." { "the outermost level".to_owned() } else { path };
    (place, error.inner().to_string())
}

/// Reads a whole number. The error of a text says how to write the number.
fn whole<'de, D: Deserializer<'de>>(number: D) -> Result<u64, D::Error> {
    struct Whole;

    impl Visitor<'_> for Whole {
        type Value = u64;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a whole number of at least 0")
        }

        fn visit_u64<E>(self, number: u64) -> Result<u64, E> {
            Ok(number)
        }

        fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<u64, E> {
            u64::try_from(number).map_err(|_| E::invalid_value(Unexpected::Signed(number), &self))
        }

        fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<u64, E> {
            let number = match text.strip_prefix("0x") {
                Some(digits) => u64::from_str_radix(digits, 16),
                None => text.parse(),
            };
            Err(match number {
                Ok(number) => {
                    let expected = format!("a whole number in decimal digits, without quotes: {number}");
                    E::invalid_type(Unexpected::Str(text), &&*expected)
                }
                Err(_) => E::invalid_type(Unexpected::Str(text), &self),
            })
        }
    }

    number.deserialize_any(Whole)
}

/// Returns the first frame outside of PyTorch itself, innermost first; if there is none, the first frame.
fn call_site<'de, D: Deserializer<'de>>(frames: D) -> Result<Option<String>, D::Error> {
    #[derive(Deserialize)]
    struct Frame {
        filename: String,
        line: i64,
        name: String,
    }

    impl Frame {
        fn is_library(&self) -> bool {
            let is_source = self.filename.ends_with(".py") || self.filename.ends_with(".rs");
            !is_source || self.filename.contains("/torch/")
        }

        fn label(&self) -> String {
            let Self { filename, line, name } = self;
            let mut label =
                if name == "??" { format!("{filename}:{line}") } else { format!("{filename}:{line} {name}") };
            let end = (0..=TRANSIENT_RESULT).rev().find(|end| label.is_char_boundary(*end));
            label.truncate(end.unwrap_or_default());
            label.shrink_to_fit();
            label
        }
    }

    /// Temporary: see [`TRANSIENT`](crate::trace::pickle::TRANSIENT).
    #[derive(Deserialize)]
    #[serde(rename = "$pickle::Transient")]
    struct Transient(#[serde(deserialize_with = "chosen")] Option<String>);

    struct Frames;

    impl<'de> Visitor<'de> for Frames {
        type Value = Option<String>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list of frames")
        }

        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok(None)
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut frames: A) -> Result<Self::Value, A::Error> {
            let Some(innermost) = frames.next_element::<Frame>()? else { return Ok(None) };
            let mut chosen = innermost.label();
            let mut library = innermost.is_library();
            while library {
                let Some(frame) = frames.next_element::<Frame>()? else { return Ok(Some(chosen)) };
                library = frame.is_library();
                if !library {
                    chosen = frame.label();
                }
            }
            while frames.next_element::<IgnoredAny>()?.is_some() {}
            Ok(Some(chosen))
        }
    }

    fn chosen<'de, D: Deserializer<'de>>(frames: D) -> Result<Option<String>, D::Error> {
        frames.deserialize_any(Frames)
    }

    Transient::deserialize(frames).map(|Transient(chosen)| chosen)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::budget::ReadLimit;
    use proptest::prelude::*;

    const JSON: &str = r#"{"segments": [{"device": 0, "address": 4096, "total_size": 3072, "stream": 7,
        "segment_pool_id": [0, 0], "blocks": [
            {"size": 1024, "requested_size": 1000, "state": "active_allocated", "frames": [
                {"filename": "/x/torch/nn/linear.py", "line": 1, "name": "forward"},
                {"filename": "/home/me/train.py", "line": 12, "name": "step"}]},
            {"size": 2048, "requested_size": 0, "state": "inactive", "frames": []}]}],
        "device_traces": [[
            {"action": "segment_alloc", "addr": 4096, "size": 3072, "stream": 7, "time_us": 1, "frames": null},
            {"action": "alloc", "addr": 4096, "size": 1024, "stream": 7, "time_us": 2, "compile_context": "N/A"},
            {"action": "oom", "device_free": 5, "size": 99, "stream": 7, "time_us": 3},
            {"action": "of the future", "what": [1, {"x": 2}]}]],
        "allocator_settings": {"expandable_segments": false}, "external_annotations": []}"#;

    fn pickle() -> Vec<u8> {
        let value: serde_json::Value = serde_json::from_str(JSON).unwrap();
        serde_pickle::to_vec(&value, serde_pickle::SerOptions::new()).unwrap()
    }

    fn read(bytes: &[u8], format: Format) -> Result<Snapshot, TraceError> {
        Snapshot::read(bytes, format, &Origin::BuiltIn, &ReadLimit::default().budget(0))
    }

    #[test]
    fn both_forms_say_the_same() {
        assert_eq!(Format::of(JSON.as_bytes()), Some(Format::Json));
        assert_eq!(Format::of(&pickle()), Some(Format::Pickle));
        assert_eq!(Format::of(b"a 10 1000 0"), None);
        for (bytes, format) in [(JSON.as_bytes().to_vec(), Format::Json), (pickle(), Format::Pickle)] {
            let snapshot = read(&bytes, format).unwrap();
            let [segment] = &snapshot.segments[..] else { panic!("{snapshot:?}") };
            assert_eq!((segment.address, segment.total_size, segment.stream), (4096, 3072, 7));
            assert_eq!(segment.blocks[0].call_site.as_deref(), Some("/home/me/train.py:12 step"));
            assert_eq!(segment.blocks[1].state, BlockState::Inactive);
            let actions: Vec<_> = snapshot.device_traces[0].iter().map(|event| event.action).collect();
            assert_eq!(actions, [Action::SegmentAlloc, Action::Alloc, Action::Oom, Action::Other]);
        }
    }

    #[test]
    fn frames_that_many_share_are_read_for_each() {
        // [[e, e]] as device_traces, with e of frames [f, f], as Python writes shared values.
        let pickle = b"\x80\x02}(X\x08\x00\x00\x00segments]X\x0d\x00\x00\x00device_traces](](}q\x00\
            (X\x06\x00\x00\x00actionX\x05\x00\x00\x00allocX\x06\x00\x00\x00frames](}q\x01\
            (X\x08\x00\x00\x00filenameX\x04\x00\x00\x00a.pyX\x04\x00\x00\x00lineK\x03X\x04\x00\x00\x00name\
            X\x01\x00\x00\x00fuh\x01euh\x00eeu.";
        let snapshot = read(pickle, Format::Pickle).unwrap();
        let sites: Vec<_> =
            snapshot.device_traces[0].iter().map(|event| event.call_site.as_deref()).collect();
        assert_eq!(sites, [Some("a.py:3 f"); 2]);
    }

    #[test]
    fn what_does_not_fit_is_named_with_its_place() {
        for (from, to, at, why) in [
            ("1024, \"requested_size\"", "1000, \"requested_size\"", "segments[0]", "found 3048 bytes"),
            ("\"inactive\"", "\"lazy\"", "segments[0].blocks[1].state", "unknown variant"),
            ("\"size\": 2048", "\"size\": -1", "segments[0].blocks[1].size", "-1"),
            ("\"address\": 4096,", "", "segments[0]", "missing field `address`"),
            (
                "\"address\": 4096",
                "\"address\": \"0x1000\"",
                "segments[0].address",
                "\"0x1000\", expected a whole number in decimal digits, without quotes: 4096",
            ),
            (
                "\"addr\": 4096",
                "\"addr\": \"7fa80c\"",
                "device_traces[0][0].addr",
                "\"7fa80c\", expected a whole number of at least 0",
            ),
            (
                "\"addr\": 4096, \"size\": 1024",
                "\"addr\": 9007199254740992, \"size\": 1",
                "device_traces[0][1]",
                "2^53",
            ),
        ] {
            let text = JSON.replacen(from, to, 1);
            assert_ne!(text, JSON);
            let value: serde_json::Value = serde_json::from_str(&text).unwrap();
            let pickle = serde_pickle::to_vec(&value, serde_pickle::SerOptions::new()).unwrap();
            for (bytes, format) in [(text.as_bytes(), Format::Json), (&pickle[..], Format::Pickle)] {
                match read(bytes, format) {
                    Err(TraceError::Snapshot { place, problem, .. }) => {
                        assert!(place.starts_with(at) && problem.contains(why), "{place}: {problem}");
                    }
                    other => panic!("{to}: {other:?}"),
                }
            }
        }
    }

    #[test]
    fn a_dump_of_a_flight_recorder_is_named() {
        let dump = br#"{"version": "2.10", "pg_config": {}, "entries": []}"#;
        let error = read(dump, Format::Json).unwrap_err();
        assert!(matches!(error, TraceError::FlightDump { .. }), "{error}");
        assert!(error.to_string().contains("lockstep fr analyze"), "{error}");
    }

    proptest! {
        #[test]
        fn what_is_cut_short_is_an_error(keep in 0.0..1.0f64) {
            for (bytes, format) in [(JSON.as_bytes().to_vec(), Format::Json), (pickle(), Format::Pickle)] {
                let cut = &bytes[..(bytes.len() as f64 * keep) as usize];
                prop_assert!(read(cut, format).is_err());
            }
        }

        #[test]
        fn garbage_is_an_error_and_never_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            prop_assert!(read(&bytes, Format::Json).is_err());
            prop_assert!(read(&bytes, Format::Pickle).is_err());
        }

        #[test]
        fn a_damaged_byte_panics_nobody(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
            for (mut bytes, format) in [(JSON.as_bytes().to_vec(), Format::Json), (pickle(), Format::Pickle)] {
                let at = at.index(bytes.len());
                bytes[at] = byte;
                let _ = read(&bytes, format);
            }
        }
    }
}
