//! A trace as the calls that its program makes.

use crate::trace::{Event, Trace};

/// One call of the program. Blocks are numbered in the order of their allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    /// Block number `block` is requested.
    Allocate { block: u32, bytes: u64, stream: u32 },
    /// The owner frees it, and no other stream has used it.
    Free { block: u32 },
    /// The owner frees a block that another stream still uses.
    FreeInUse { block: u32 },
    /// The other stream's use ends.
    EndUse { block: u32 },
}

/// The calls of a trace, ready to be replayed.
#[derive(Debug)]
pub(crate) struct Program {
    pub(super) name: String,
    pub(crate) calls: Vec<Call>,
    pub(crate) blocks: usize,
    /// Streams, numbered from 0.
    pub(super) streams: u32,
    /// Allocations and frees: the `a` and `r` events of the trace.
    pub(super) operations: u64,
    /// The most bytes in use at a time, each request rounded up to 512.
    pub(super) peak_active: u64,
}

impl Program {
    /// Converts a trace. If a free completes with the next event, no other stream has used the block.
    pub(crate) fn of(trace: &Trace) -> Self {
        let mut events = trace.events.iter().copied().peekable();
        let mut calls = Vec::with_capacity(trace.events.len());
        while let Some(event) = events.next() {
            calls.push(match event {
                Event::Allocate { block, bytes, stream } => Call::Allocate { block, bytes, stream },
                Event::RequestFree { block } => match events.next_if_eq(&Event::CompleteFree { block }) {
                    Some(_) => Call::Free { block },
                    None => Call::FreeInUse { block },
                },
                Event::CompleteFree { block } => Call::EndUse { block },
            });
        }
        let operations = calls.iter().filter(|call| !matches!(call, Call::EndUse { .. })).count();
        Self {
            name: trace.origin.name(),
            calls,
            blocks: trace.allocations as usize,
            streams: trace.streams,
            operations: operations as u64,
            peak_active: trace.peak_active,
        }
    }

    /// Returns the calls of the first `operations`.
    pub(super) fn first(&self, operations: u64) -> &[Call] {
        let mut left = operations;
        let end = self.calls.iter().position(|call| {
            let ends = left == 0;
            left -= u64::from(!ends && !matches!(call, Call::EndUse { .. }));
            ends
        });
        &self.calls[..end.unwrap_or(self.calls.len())]
    }
}

/// Tracks a program's active bytes, as its trace defines them: whole multiples of 512 bytes, from the allocation to
/// the end of the last use.
#[derive(Debug)]
pub(super) struct Active {
    sizes: Vec<u64>,
    pub(super) now: u64,
    pub(super) peak: u64,
}

impl Active {
    pub(super) fn new(blocks: usize) -> Self {
        Self { sizes: vec![0; blocks], now: 0, peak: 0 }
    }

    /// Applies a call; returns true if it raised the peak.
    pub(super) fn follow(&mut self, call: Call) -> bool {
        match call {
            Call::Allocate { block, bytes, .. } => {
                let bytes = bytes.next_multiple_of(512);
                self.sizes[block as usize] = bytes;
                self.now += bytes;
            }
            Call::Free { block } | Call::EndUse { block } => self.now -= self.sizes[block as usize],
            Call::FreeInUse { .. } => {}
        }
        let raised = self.now > self.peak;
        self.peak = self.peak.max(self.now);
        raised
    }
}
