//! Ranges for profilers. Each range covers one call of a group on the host. It ends when the call returns, which may be
//! before the work on the device is done.
//!
//! - `nvtx` (feature `nvtx`): ranges for Nsight Systems and other injected tools. Without such a tool a range costs
//!   one load and one branch.
//! - feature `tracing`: spans of the target `process_group`, at level debug. Failures are events at level warn.
//!
//! Without these features this module does nothing. NCCL marks its own functions.

#[cfg(feature = "nvtx")]
mod nvtx;

/// The range of a call. It ends when this value is dropped.
#[must_use]
pub(crate) struct Range {
    #[cfg(feature = "nvtx")]
    _nvtx: nvtx::Range,
    #[cfg(feature = "tracing")]
    _span: tracing::span::EnteredSpan,
}

/// Begins a range on this thread for the call `operation` of the group with the name `group`. `bytes` is the sum
/// of the element counts of the call's operations, in bytes. It is 0 for a call without operations, such as a split.
#[inline]
#[cfg_attr(
    not(any(feature = "nvtx", feature = "tracing")),
    expect(unused_variables, reason = "without both features no range is emitted")
)]
pub(crate) fn range(operation: &'static str, group: &str, bytes: u64) -> Range {
    Range {
        #[cfg(feature = "nvtx")]
        _nvtx: nvtx::Range::begin(operation, group, bytes),
        #[cfg(feature = "tracing")]
        _span: tracing::debug_span!(target: "process_group", "call", operation, group, bytes).entered(),
    }
}

/// Emits an event at level warn for a failed operation.
#[inline]
#[cfg_attr(
    not(feature = "tracing"),
    expect(unused_variables, reason = "without the feature no event is emitted")
)]
pub(crate) fn trouble(operation: &'static str, group: &str, problem: &dyn std::fmt::Display) {
    #[cfg(feature = "tracing")]
    tracing::warn!(target: "process_group", operation, group, %problem);
}
