//! Injection of failures into calls.

use std::collections::HashMap;
use std::hash::Hash;

use crate::core::{EventError, SourceError};

/// A kind of call of a [`HostSource`](super::HostSource).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the methods' names")]
pub enum SourceCall {
    Allocate,
    Release,
    Reserve,
    Create,
    Discard,
    Map,
    Enable,
    Unmap,
    MemoryInfo,
}

impl SourceCall {
    /// All kinds of calls. `unreserve` is not among them, because it cannot fail.
    pub const ALL: [Self; 9] = [
        Self::Allocate,
        Self::Release,
        Self::Reserve,
        Self::Create,
        Self::Discard,
        Self::Map,
        Self::Enable,
        Self::Unmap,
        Self::MemoryInfo,
    ];
}

/// A kind of call of [`HostStreams`](super::HostStreams).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the methods' names")]
pub enum StreamCall {
    Record,
    Query,
    Wait,
    Synchronize,
    SynchronizeDevice,
    IsCapturing,
}

impl StreamCall {
    /// All kinds of calls.
    pub const ALL: [Self; 6] = [
        Self::Record,
        Self::Query,
        Self::Wait,
        Self::Synchronize,
        Self::SynchronizeDevice,
        Self::IsCapturing,
    ];
}

/// Selects the calls of a kind that fail, and their error.
#[derive(Debug, Clone, Copy)]
pub struct Failing {
    after: u64,
    for_ever: bool,
    scarce: bool,
}

impl Failing {
    /// Lets `calls` further calls pass, and makes the next one fail.
    #[must_use]
    pub fn once(calls: u64) -> Self {
        Self { after: calls, for_ever: false, scarce: false }
    }

    /// Lets `calls` further calls pass, and makes all later ones fail.
    #[must_use]
    pub fn for_ever(calls: u64) -> Self {
        Self { for_ever: true, ..Self::once(calls) }
    }

    /// Makes the failure an out-of-memory error. Use it for calls that can return such an error: those that allocate a
    /// segment, create a page or map a page. It has no effect on calls of [`HostStreams`](super::HostStreams).
    #[must_use]
    pub fn for_want_of_memory(self) -> Self {
        Self { scarce: true, ..self }
    }

    /// Returns true for an out-of-memory failure.
    #[must_use]
    pub fn is_scarce(self) -> bool {
        self.scarce
    }

    pub(super) fn source_error(self, call: &'static str, wanted: u64) -> SourceError {
        match self.scarce {
            true => SourceError::out_of_memory(wanted),
            false => SourceError::Failed { call, source: "injected failure".into() },
        }
    }

    pub(super) fn event_error(self, call: &'static str) -> EventError {
        EventError { call, source: "injected failure".into() }
    }
}

/// Counts the calls of each kind, and decides which of them fail.
#[derive(Debug)]
pub(super) struct Failures<C> {
    made: HashMap<C, u64>,
    armed: HashMap<C, Failing>,
    failed: u64,
}

impl<C> Default for Failures<C> {
    fn default() -> Self {
        Self { made: HashMap::new(), armed: HashMap::new(), failed: 0 }
    }
}

impl<C: Copy + Eq + Hash> Failures<C> {
    pub(super) fn arm(&mut self, call: C, failing: Failing) {
        self.armed.insert(call, failing);
    }

    pub(super) fn disarm(&mut self) {
        self.armed.clear();
    }

    pub(super) fn made(&self, call: C) -> u64 {
        self.made.get(&call).copied().unwrap_or(0)
    }

    pub(super) fn failed(&self) -> u64 {
        self.failed
    }

    /// Counts a call. Returns the failure to inject, if the call is to fail.
    pub(super) fn due(&mut self, call: C) -> Option<Failing> {
        *self.made.entry(call).or_default() += 1;
        let failing = self.armed.get_mut(&call)?;
        if failing.after > 0 {
            failing.after -= 1;
            return None;
        }
        let failing = *failing;
        self.failed += 1;
        if !failing.for_ever {
            self.armed.remove(&call);
        }
        Some(failing)
    }
}
