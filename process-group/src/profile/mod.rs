//! What profilers are told: a range around every call of a group, for as long as the host is in it.
//!
//! - `nvtx` (feature `nvtx`): ranges for Nsight Systems and whatever else is injected as it is. Without such a tool a
//!   range costs one load and one branch.
//! - feature `tracing`: spans of the target `process_group`, at the level debug; what went wrong is an event at the
//!   level warn.
//!
//! Without these features there is nothing here. NCCL marks its own functions by itself.

#[cfg(feature = "nvtx")]
mod nvtx;

/// A call's range, which ends with it.
#[must_use]
pub(crate) struct Range {
    #[cfg(feature = "nvtx")]
    _nvtx: nvtx::Range,
    #[cfg(feature = "tracing")]
    _span: tracing::span::EnteredSpan,
}

/// Begins a range on this thread, of a call of a group; `bytes` are those of its counts, as NCCL is given them, and 0
/// for what moves none.
#[inline]
#[cfg_attr(
    not(any(feature = "nvtx", feature = "tracing")),
    expect(unused_variables, reason = "nobody listens")
)]
pub(crate) fn range(operation: &'static str, group: &str, bytes: u64) -> Range {
    Range {
        #[cfg(feature = "nvtx")]
        _nvtx: nvtx::Range::begin(operation, group, bytes),
        #[cfg(feature = "tracing")]
        _span: tracing::debug_span!(target: "process_group", "call", operation, group, bytes).entered(),
    }
}

/// Says that something went wrong.
#[inline]
#[cfg_attr(not(feature = "tracing"), expect(unused_variables, reason = "nobody listens"))]
pub(crate) fn trouble(operation: &'static str, group: &str, problem: &dyn std::fmt::Display) {
    #[cfg(feature = "tracing")]
    tracing::warn!(target: "process_group", operation, group, %problem);
}
