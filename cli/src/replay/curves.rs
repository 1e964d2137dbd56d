//! Curves of reserved memory, least capacity and driver calls, over the program's progress.

use serde::Serialize;

use super::figures::{Figures, fastest, least_capacity, nanoseconds};
use super::host::{self, ReplayError, driver_calls};
use super::options::Policy;
use super::program::{Call, Program};

/// Points of the reserved curve.
const SAMPLES: u64 = 256;
/// Points of the curves that need one replay or several each.
const STEPS: u64 = 16;

/// The curves of one trace. Sizes in bytes.
#[derive(Debug, Serialize)]
pub(super) struct Curves {
    trace: String,
    policy: Policy,
    reserved: Vec<Reserved>,
    least_capacity: Vec<LeastCapacity>,
    driver_calls: Vec<DriverCalls>,
}

/// Bytes in use and reserved after a number of operations, with ample memory.
#[derive(Debug, Serialize)]
struct Reserved {
    operation: u64,
    active: u64,
    peak_active: u64,
    reserved: u64,
    driver_calls: u64,
}

/// The least memory that the first operations need.
#[derive(Debug, Serialize)]
struct LeastCapacity {
    operations: u64,
    peak_active: u64,
    min_capacity: u64,
}

/// Driver calls of a replay with this capacity.
#[derive(Debug, Serialize)]
struct DriverCalls {
    capacity: u64,
    peak_reserved: u64,
    driver_calls: u64,
    driver_calls_steady: u64,
    ns_per_op: f64,
}

pub(super) fn of(program: &Program, policy: Policy, figures: &Figures) -> Result<Curves, ReplayError> {
    let blocks = program.blocks;
    let every = program.operations.div_ceil(SAMPLES).max(1);
    let mut reserved = Vec::new();
    let mut operation = 0;
    host::watched(&program.calls, blocks, policy, u64::MAX, |call, active, calls| {
        if matches!(call, Call::EndUse { .. }) {
            return;
        }
        operation += 1;
        if operation % every == 0 || operation == program.operations {
            reserved.push(Reserved {
                operation,
                active: active.now,
                peak_active: active.peak,
                reserved: calls.live_bytes,
                driver_calls: driver_calls(&calls),
            });
        }
    })?;

    let mut least = Vec::new();
    for step in 1..=STEPS {
        let operations = program.operations * step / STEPS;
        let calls = program.first(operations);
        let mut peak_active = 0;
        let ample = host::watched(calls, blocks, policy, u64::MAX, |_, active, _| peak_active = active.peak)?;
        let min_capacity =
            least_capacity(ample.calls.peak_bytes, |capacity| host::fits(calls, blocks, policy, capacity))?;
        least.push(LeastCapacity { operations, peak_active, min_capacity });
    }

    // The range goes from the least capacity to a quarter above the ample one, and at least a twentieth above the
    // least.
    let (least_of_all, ample) = (figures.min_capacity, figures.peak_reserved.max(figures.min_capacity));
    let end = (ample + (ample - least_of_all) / 4).max(least_of_all + least_of_all.div_ceil(20));
    let mut capacities: Vec<u64> =
        (0..=STEPS).map(|step| least_of_all + (end - least_of_all) * step / STEPS).collect();
    capacities.dedup();
    let mut against = Vec::new();
    for capacity in capacities {
        let outcome = match host::watched(&program.calls, blocks, policy, capacity, |_, _, _| ()) {
            // More memory can make a program run out of memory that succeeded with less, because its blocks are
            // placed differently.
            Err(error) if error.is_out_of_memory() => continue,
            outcome => outcome?,
        };
        let time = fastest(&program.calls, blocks, policy, capacity)?;
        against.push(DriverCalls {
            capacity,
            peak_reserved: outcome.calls.peak_bytes,
            driver_calls: driver_calls(&outcome.calls),
            driver_calls_steady: outcome.steady,
            ns_per_op: nanoseconds(time, program.operations),
        });
    }
    let trace = program.name.clone();
    Ok(Curves { trace, policy, reserved, least_capacity: least, driver_calls: against })
}
