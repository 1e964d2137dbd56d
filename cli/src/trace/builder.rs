//! Builds a checked [`Trace`] from recorded events of any form.

use std::collections::HashMap;

use super::types::{Event, Origin, Trace, TraceError};

/// The recorder counted memory in this unit, and so does "peak active".
const ROUNDING: u64 = 512;
/// Upper limit of a trace's streams; a larger number means that the file is damaged.
const STREAMS: u32 = 1024;

/// The expected address of a completed free, if the free was not requested before.
pub(super) const REQUESTED: &str = "an address whose free was requested";

/// A block between its allocation and the end of its last use.
struct Live {
    block: u32,
    rounded: u64,
    free_requested: bool,
}

/// Takes events in the program's order. An event that is invalid there returns the text of the expected one.
#[derive(Default)]
pub(super) struct Builder {
    events: Vec<Event>,
    live: HashMap<u64, Live>,
    allocations: u32,
    streams: u32,
    active: u64,
    peak_active: u64,
}

impl Builder {
    pub(super) fn allocate(&mut self, address: u64, bytes: u64, stream: u32) -> Result<(), &'static str> {
        if stream >= STREAMS {
            return Err("a stream number below 1024");
        }
        let rounded = bytes.checked_next_multiple_of(ROUNDING).ok_or("a size below 2^64 - 512")?;
        let block = self.allocations;
        if self.live.contains_key(&address) {
            return Err("an address that is not allocated already");
        }
        self.allocations = block.checked_add(1).ok_or("fewer than 2^32 allocations")?;
        self.active = self.active.checked_add(rounded).ok_or("fewer than 2^64 live bytes")?;
        self.live.insert(address, Live { block, rounded, free_requested: false });
        self.streams = self.streams.max(stream + 1);
        self.peak_active = self.peak_active.max(self.active);
        self.events.push(Event::Allocate { block, bytes, stream });
        Ok(())
    }

    pub(super) fn request_free(&mut self, address: u64) -> Result<(), &'static str> {
        let live = self.live.get_mut(&address).ok_or("an address that is allocated")?;
        if std::mem::replace(&mut live.free_requested, true) {
            return Err("an address whose free was not requested already");
        }
        self.events.push(Event::RequestFree { block: live.block });
        Ok(())
    }

    pub(super) fn complete_free(&mut self, address: u64) -> Result<(), &'static str> {
        let live = self.live.get(&address).ok_or("an address that is allocated")?;
        if !live.free_requested {
            return Err(REQUESTED);
        }
        self.active -= live.rounded;
        self.events.push(Event::CompleteFree { block: live.block });
        self.live.remove(&address);
        Ok(())
    }

    pub(super) fn finish(self, origin: Origin) -> Result<Trace, TraceError> {
        let Self { events, allocations, streams, peak_active, .. } = self;
        if allocations == 0 {
            return Err(TraceError::Empty { origin });
        }
        Ok(Trace { origin, events, allocations, streams, peak_active })
    }
}
