//! Reconstructs a program's calls from a snapshot.

use std::collections::{BTreeMap, HashMap};

use super::builder::Builder;
use super::snapshot::{Action, BlockState, Event, Snapshot};
use super::types::{Origin, Trace, TraceError};

impl Snapshot {
    /// Returns the program of each device that has a trace. Blocks that existed before a trace begins are allocated
    /// first.
    pub(crate) fn traces(&self, origin: &Origin) -> Result<Vec<Trace>, TraceError> {
        let several = self.device_traces.iter().filter(|events| !events.is_empty()).count() > 1;
        let mut traces = Vec::new();
        for (device, events) in self.device_traces.iter().enumerate() {
            let broken = |at: usize, expected: &str| TraceError::Snapshot {
                origin: origin.clone(),
                format: self.format,
                place: format!("device_traces[{device}][{at}]"),
                problem: format!("expected {expected}, found {}", describe(&events[at])),
            };
            let mut program = Builder::default();
            let mut streams = HashMap::new();
            let mut number = |stream: u64| {
                let next = streams.len() as u32;
                *streams.entry(stream).or_insert(next)
            };
            for (address, before) in self.before(device, events) {
                let allocated = program.allocate(address, before.bytes, number(before.stream));
                allocated.map_err(|expected| broken(0, expected))?;
                if before.let_go {
                    program.request_free(address).map_err(|expected| broken(0, expected))?;
                }
            }
            for (at, event) in events.iter().enumerate() {
                let taken = match event.action {
                    Action::Alloc => program.allocate(event.addr, event.size, number(event.stream)),
                    Action::FreeRequested => program.request_free(event.addr),
                    Action::FreeCompleted => program.complete_free(event.addr),
                    _ => Ok(()),
                };
                taken.map_err(|expected| broken(at, expected))?;
            }
            if !events.is_empty() {
                traces.push(program.finish(origin.of_device(device, several)).map_err(
                    |error| match error {
                        TraceError::Empty { origin } => TraceError::Unrecorded { origin },
                        error => error,
                    },
                )?);
            }
        }
        if traces.is_empty() {
            return Err(TraceError::Unrecorded { origin: origin.clone() });
        }
        Ok(traces)
    }

    /// Returns the blocks that existed before a device's trace begins, by address: the final blocks, with the trace
    /// undone.
    fn before(&self, device: usize, events: &[Event]) -> BTreeMap<u64, Before> {
        let mut live = BTreeMap::new();
        for segment in self.segments.iter().filter(|segment| segment.device as usize == device) {
            let mut address = segment.address;
            for block in &segment.blocks {
                if block.state != BlockState::Inactive {
                    let let_go = block.state == BlockState::ActivePendingFree;
                    live.insert(
                        address,
                        Before {
                            bytes: block.requested_size.unwrap_or(block.size),
                            stream: segment.stream,
                            let_go,
                        },
                    );
                }
                address += block.size;
            }
        }
        for event in events.iter().rev() {
            let Event { addr, size: bytes, stream, .. } = *event;
            match event.action {
                Action::FreeCompleted => {
                    live.insert(addr, Before { bytes, stream, let_go: true });
                }
                Action::FreeRequested => {
                    live.entry(addr).or_insert(Before { bytes, stream, let_go: false }).let_go = false;
                }
                Action::Alloc => {
                    live.remove(&addr);
                }
                _ => {}
            }
        }
        live
    }
}

/// A block that is older than the trace.
struct Before {
    bytes: u64,
    stream: u64,
    /// True if its owner had freed it.
    let_go: bool,
}

fn describe(event: &Event) -> String {
    let Event { action, addr, size, stream, .. } = event;
    format!("{action:?} of {size} bytes at {addr:#x} on stream {stream}")
}

#[cfg(test)]
mod tests {
    use super::super::Event as Call;
    use super::super::types::Format;
    use super::*;
    use crate::trace::budget::ReadLimit;

    fn snapshot(blocks: &str, events: &str) -> Snapshot {
        let text = format!(
            r#"{{"segments": [{{"address": 4096, "total_size": 2048, "stream": 9, "blocks": [{blocks}]}}],
                "device_traces": [[], [{events}]]}}"#
        );
        Snapshot::read(
            text.replace("\"address\"", "\"device\": 1, \"address\"").as_bytes(),
            Format::Json,
            &Origin::BuiltIn,
            &ReadLimit::default().budget(0),
        )
        .unwrap()
    }

    const BLOCKS: &str = r#"{"size": 512, "state": "active_allocated"}, {"size": 1536, "state": "inactive"}"#;

    #[test]
    fn what_was_there_before_comes_first() {
        let events = r#"{"action": "free_completed", "addr": 4608, "size": 512, "stream": 9},
            {"action": "alloc", "addr": 5120, "size": 700, "stream": 8},
            {"action": "free_requested", "addr": 5120, "size": 700, "stream": 8},
            {"action": "free_completed", "addr": 5120, "size": 700, "stream": 8}"#;
        let [trace] = &snapshot(BLOCKS, events).traces(&Origin::BuiltIn).unwrap()[..] else { panic!() };
        assert_eq!(
            trace.events,
            [
                Call::Allocate { block: 0, bytes: 512, stream: 0 },
                Call::Allocate { block: 1, bytes: 512, stream: 0 },
                Call::RequestFree { block: 1 },
                Call::CompleteFree { block: 1 },
                Call::Allocate { block: 2, bytes: 700, stream: 1 },
                Call::RequestFree { block: 2 },
                Call::CompleteFree { block: 2 },
            ]
        );
        assert_eq!(trace.peak_active, 512 + 1024);
    }

    #[test]
    fn a_snapshot_without_allocations_is_told_from_an_empty_text() {
        for events in ["", r#"{"action": "snapshot"}"#] {
            let found = snapshot(r#"{"size": 2048, "state": "inactive"}"#, events).traces(&Origin::BuiltIn);
            assert!(matches!(found, Err(TraceError::Unrecorded { .. })), "{found:?}");
        }
    }

    #[test]
    fn what_contradicts_itself_is_named() {
        let events = r#"{"action": "alloc", "addr": 5120, "size": 700, "stream": 8},
            {"action": "alloc", "addr": 5120, "size": 700, "stream": 8}"#;
        match snapshot(BLOCKS, events).traces(&Origin::BuiltIn) {
            Err(TraceError::Snapshot { place, problem, .. }) => {
                assert_eq!(place, "device_traces[1][1]");
                assert!(problem.contains("Alloc of 700 bytes at 0x1400 on stream 8"), "{problem}");
            }
            other => panic!("{other:?}"),
        }
    }
}
