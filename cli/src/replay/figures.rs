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

/// The time that a replay spent in each kind of driver call.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(super) struct DriverTimes {
    #[serde(serialize_with = "as_ns")]
    pub(super) allocate: Duration,
    #[serde(serialize_with = "as_ns")]
    pub(super) release: Duration,
    #[serde(serialize_with = "as_ns")]
    pub(super) create: Duration,
    #[serde(serialize_with = "as_ns")]
    pub(super) discard: Duration,
    #[serde(serialize_with = "as_ns")]
    pub(super) map: Duration,
    #[serde(serialize_with = "as_ns")]
    pub(super) enable: Duration,
    #[serde(serialize_with = "as_ns")]
    pub(super) unmap: Duration,
}

fn as_ns<S: serde::Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u128(time.as_nanos())
}

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
    /// Peak of reserved divided by peak of active bytes. `None` if no bytes were ever active.
    pub(super) ratio: Option<f64>,
    pub(super) driver_calls: u64,
    pub(super) driver_calls_steady: u64,
    /// The least memory with which no request failed, in bytes.
    pub(super) min_capacity: u64,
    /// Bytes of blocks whose content was verified.
    #[serde(skip_serializing_if = "Option::is_none")]
    checked_bytes: Option<u64>,
    /// Of a replay on a device.
    #[serde(skip_serializing_if = "Option::is_none")]
    driver_time_ns: Option<DriverTimes>,
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
            driver_time_ns: None,
            by_kind: outcome.calls,
        }
    }

    /// Adds what only a replay on a device has: the times of driver calls, and the number of verified bytes.
    pub(super) fn on_device(self, times: DriverTimes, checked_bytes: Option<u64>) -> Self {
        Self { checked_bytes, driver_time_ns: Some(times), ..self }
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

/// Returns `None` if `whole` is 0.
fn share(part: u64, whole: u64) -> Option<f64> {
    let share = part as f64 / whole as f64;
    (whole > 0).then(|| (share * 1e5).round() / 1e5)
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
        let of_peak = |bytes: u64| match share(bytes, self.peak_active) {
            Some(share) => format!("{bytes:>16} bytes  {share:.4} of peak active"),
            None => format!("{bytes:>16} bytes"),
        };
        let (calls, times) = (&self.by_kind, self.driver_time_ns.unwrap_or_default());
        let kinds = [
            ("segments allocated", calls.allocate, times.allocate),
            ("released", calls.release, times.release),
            ("pages created", calls.create, times.create),
            ("discarded", calls.discard, times.discard),
            ("mapped", calls.map, times.map),
            ("access set", calls.enable, times.enable),
            ("unmapped", calls.unmap, times.unmap),
        ];
        let made = kinds.iter().filter(|(_, count, _)| *count > 0);
        let counts: Vec<_> = made.clone().map(|(kind, count, _)| format!("{kind} {count}")).collect();
        let each = |(kind, count, time): &(_, u64, Duration)| {
            format!("{kind} {:.1} µs", nanoseconds(*time, *count) / 1e3)
        };
        let each: Vec<_> = made.map(each).collect();
        let driver_time = kinds.iter().map(|(_, _, time)| *time).sum();
        writeln!(f, "{} ({})", self.trace, self.policy)?;
        writeln!(f, "  operations      {:>16}", self.operations)?;
        writeln!(f, "  time            {:>16} ns per operation", self.ns_per_op)?;
        writeln!(f, "  peak active     {:>16} bytes", self.peak_active)?;
        writeln!(f, "  peak reserved   {}", of_peak(self.peak_reserved))?;
        writeln!(f, "  least capacity  {}", of_peak(self.min_capacity))?;
        writeln!(f, "  driver calls    {:>16} ({})", self.driver_calls, counts.join(", "))?;
        if self.driver_time_ns.is_some() {
            let time = nanoseconds(driver_time, self.operations);
            writeln!(f, "  driver time     {time:>16} ns per operation (each: {})", each.join(", "))?;
        }
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
