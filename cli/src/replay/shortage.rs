//! The explanation of a replay that ran out of memory.

use std::fmt;

use caching_alloc::core::{AllocError, OutOfMemory};

use super::host::ReplayError;
use super::options::{Backend, Policy};

/// A replay that ran out of memory. Sizes in bytes.
#[derive(Debug)]
pub(super) struct Shortage {
    operation: u64,
    /// The size of the request that failed.
    bytes: u64,
    /// The trace's peak of active bytes, as the figures have it.
    peak: u64,
    /// The memory that the allocator could have.
    available: u64,
    /// True if `--capacity` set that limit, false if the device did.
    is_capacity: bool,
    backend: Backend,
    policy: Policy,
}

impl Shortage {
    /// Returns the explanation of an error; `None` if the error has another reason than lack of memory.
    pub(super) fn of(error: &ReplayError, backend: Backend, policy: Policy, peak: u64) -> Option<Self> {
        let ReplayError::Allocate { operation, bytes, source: AllocError::OutOfMemory(memory) } = error
        else {
            return None;
        };
        let (available, is_capacity) = available(memory, backend);
        Some(Self { operation: *operation, bytes: *bytes, peak, available, is_capacity, backend, policy })
    }
}

/// Returns the memory that the allocator could have, and true if `--capacity` was the limit.
fn available(memory: &OutOfMemory, backend: Backend) -> (u64, bool) {
    // The allocator's own segments are available to a replay too. Other processes may have the rest of a device.
    let device = memory.info.map(|info| info.free.saturating_add(memory.reserved));
    match (device, memory.limit) {
        // The capacity of counted memory is the option itself.
        (Some(device), _) if backend == Backend::Host => (device, true),
        (Some(device), Some(limit)) if device < limit => (device, false),
        (_, Some(limit)) => (limit, true),
        (device, None) => (device.unwrap_or(memory.reserved), backend == Backend::Host),
    }
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { operation, bytes, peak, available, is_capacity, backend, policy } = self;
        write!(f, "out of memory in operation {operation}, which asks for {bytes} bytes: ")?;
        let limit = if *is_capacity { "--capacity allows" } else { "the device has" };
        write!(f, "the trace's peak active is {peak} bytes, and {limit} {available}; ")?;
        f.write_str(match (is_capacity, backend) {
            (true, _) => "raise --capacity",
            (false, Backend::Sim) => "use --backend host, which has no limit without --capacity",
            (false, _) => "use a larger device, or --backend host, which only counts bytes",
        })?;
        if *policy == Policy::Fixed {
            f.write_str(", or use --policy remap, which may need less")?;
        }
        let options = if *backend == Backend::Host { "--capacity" } else { "--capacity and --backend" };
        write!(f, "; without {options}, `lockstep replay` prints the least capacity for the policy given")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shortage(peak: u64, is_capacity: bool, policy: Policy) -> String {
        let (operation, bytes, available, backend) = (7, 4096, 2_097_152, Backend::Cuda);
        Shortage { operation, bytes, peak, available, is_capacity, backend, policy }.to_string()
    }

    #[test]
    fn a_shortage_says_the_figures_and_the_option() {
        let start = "out of memory in operation 7, which asks for 4096 bytes: the trace's peak active is";
        let end = "without --capacity and --backend, `lockstep replay` prints the least capacity for the \
                   policy given";
        assert_eq!(
            shortage(4_194_304, true, Policy::Remap),
            format!("{start} 4194304 bytes, and --capacity allows 2097152; raise --capacity; {end}")
        );
        // Moving pages may help whether the peak or fragmentation exceeds the capacity.
        for peak in [4096, 4_194_304] {
            assert_eq!(
                shortage(peak, true, Policy::Fixed),
                format!(
                    "{start} {peak} bytes, and --capacity allows 2097152; raise --capacity, or use --policy \
                     remap, which may need less; {end}"
                )
            );
        }
        assert_eq!(
            shortage(4_194_304, false, Policy::Remap),
            format!(
                "{start} 4194304 bytes, and the device has 2097152; use a larger device, or --backend host, \
                 which only counts bytes; {end}"
            )
        );
    }
}
