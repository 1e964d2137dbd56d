//! The figures of a replay, and their output.

use std::fmt;
use std::time::Duration;

use caching_alloc::host::Calls;
use serde::Serialize;

use super::host::{self, Outcome, ReplayError, driver_calls};
use super::options::Policy;
use super::program::{Call, Program};

/// Number of timed replays. The fastest gives the time per operation, because slower ones were delayed by the
/// machine.
const ROUNDS: u32 = 7;
/// Step of the search for the least capacity, in bytes.
const STEP: u64 = 2 << 20;

/// The figures of one trace. Sizes in bytes.
#[derive(Debug, Serialize)]
pub(super) struct Figures {
    pub(super) trace: String,
    pub(super) policy: Policy,
    /// Allocations and frees.
    pub(super) operations: u64,
    pub(super) ns_per_op: f64,
    /// The most bytes that the program had in use, as its trace defines it.
    pub(super) peak_active: u64,
    /// The most bytes that the allocator had from the driver.
    pub(super) peak_reserved: u64,
    /// Peak of reserved divided by peak of active bytes.
    pub(super) ratio: f64,
    pub(super) driver_calls: u64,
    pub(super) driver_calls_steady: u64,
    /// The least memory with which no request failed, in bytes.
    pub(super) min_capacity: u64,
    /// Bytes of blocks whose content was verified.
    #[serde(skip_serializing_if = "Option::is_none")]
    checked_bytes: Option<u64>,
    #[serde(skip)]
    by_kind: Calls,
}

impl Figures {
    /// Replays a program several times with this capacity, and with smaller ones.
    pub(super) fn measure(program: &Program, policy: Policy, capacity: u64) -> Result<Self, ReplayError> {
        let (calls, blocks) = (&program.calls[..], program.blocks);
        let outcome = host::watched(calls, blocks, policy, capacity, |_, _, _| ())?;
        let time = fastest(calls, blocks, policy, capacity)?;
        let fits = |capacity| host::fits(calls, blocks, policy, capacity);
        let min_capacity = least_capacity(outcome.calls.peak_bytes, fits)?;
        Ok(Self::of(program, policy, outcome, time, min_capacity))
    }

    /// Computes the figures of a replay that took `time`.
    pub(super) fn of(
        program: &Program,
        policy: Policy,
        outcome: Outcome,
        time: Duration,
        min_capacity: u64,
    ) -> Self {
        let peak_reserved = outcome.calls.peak_bytes;
        Self {
            trace: program.name.clone(),
            policy,
            operations: program.operations,
            ns_per_op: nanoseconds(time, program.operations),
            peak_active: program.peak_active,
            peak_reserved,
            ratio: share(peak_reserved, program.peak_active),
            driver_calls: driver_calls(&outcome.calls),
            driver_calls_steady: outcome.steady,
            min_capacity,
            checked_bytes: None,
            by_kind: outcome.calls,
        }
    }

    /// Adds the number of verified bytes.
    pub(super) fn checked(self, checked_bytes: Option<u64>) -> Self {
        Self { checked_bytes, ..self }
    }
}

pub(super) fn fastest(
    calls: &[Call],
    blocks: usize,
    policy: Policy,
    capacity: u64,
) -> Result<Duration, ReplayError> {
    let mut best = Duration::MAX;
    for _ in 0..ROUNDS {
        best = best.min(host::timed(calls, blocks, policy, capacity)?);
    }
    Ok(best)
}

pub(super) fn nanoseconds(time: Duration, operations: u64) -> f64 {
    let nanoseconds = time.as_nanos() as f64 / operations.max(1) as f64;
    (nanoseconds * 10.0).round() / 10.0
}

fn share(part: u64, whole: u64) -> f64 {
    let share = part as f64 / whole.max(1) as f64;
    (share * 1e5).round() / 1e5
}

/// Returns the least capacity, in steps of 2 MiB, that `fits` accepts, given one that is `enough`.
pub(super) fn least_capacity(
    enough: u64,
    fits: impl Fn(u64) -> Result<bool, ReplayError>,
) -> Result<u64, ReplayError> {
    let (mut too_little, mut enough) = (0, enough.div_ceil(STEP));
    while enough > too_little + 1 {
        let middle = too_little + (enough - too_little) / 2;
        if fits(middle * STEP)? {
            enough = middle;
        } else {
            too_little = middle;
        }
    }
    Ok(enough * STEP)
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of_peak =
            |bytes: u64| format!("{bytes:>16} bytes  {:.4} of peak active", share(bytes, self.peak_active));
        let Calls { allocate, release, create, discard, map, enable, unmap, .. } = self.by_kind;
        let kinds = [
            ("segments allocated", allocate),
            ("released", release),
            ("pages created", create),
            ("discarded", discard),
            ("mapped", map),
            ("access set", enable),
            ("unmapped", unmap),
        ];
        let kinds: Vec<_> =
            kinds.into_iter().filter(|(_, n)| *n > 0).map(|(kind, n)| format!("{kind} {n}")).collect();
        writeln!(f, "{} ({})", self.trace, self.policy)?;
        writeln!(f, "  operations      {:>16}", self.operations)?;
        writeln!(f, "  time            {:>16} ns per operation", self.ns_per_op)?;
        writeln!(f, "  peak active     {:>16} bytes", self.peak_active)?;
        writeln!(f, "  peak reserved   {}", of_peak(self.peak_reserved))?;
        writeln!(f, "  least capacity  {}", of_peak(self.min_capacity))?;
        writeln!(f, "  driver calls    {:>16} ({})", self.driver_calls, kinds.join(", "))?;
        if let Some(bytes) = self.checked_bytes {
            writeln!(f, "  checked         {bytes:>16} bytes, all as they were written")?;
        }
        write!(f, "  steady          {:>16} ", self.driver_calls_steady)?;
        match self.driver_calls_steady {
            0 => write!(f, "(after the first tenth, peaks left out)"),
            calls => write!(
                f,
                "(one in {} operations; after the first tenth, peaks left out)",
                self.operations / calls
            ),
        }
    }
}
