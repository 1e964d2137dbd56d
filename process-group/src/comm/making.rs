//! The origin of a communicator, and the time and memory that its creation took.

use std::{fmt, time::Duration};

use bootstrap::runtime::Instant;
use cuda_driver::Context;

/// Treatment of the communicator's work when it is [shrunk](super::Communicator::shrink).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ShrinkMode {
    /// Every rank's work is done. The communicator stays usable beside the new one.
    #[doc(alias = "NCCL_SHRINK_DEFAULT")]
    Orderly,
    /// The work is given up first, because it waits for a rank that is gone. The communicator can only be aborted
    /// afterwards.
    #[doc(alias = "NCCL_SHRINK_ABORT")]
    AfterFailure,
}

/// The origin of a communicator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Origin {
    /// A unique id.
    UniqueId,
    /// Another communicator, by splitting.
    Split,
    /// Another communicator, by leaving ranks out.
    Shrink(ShrinkMode),
    /// Another communicator, with additional ranks.
    Grow,
    /// Somebody else made it ([`Communicator::adopt`](super::Communicator::adopt)); the cost is not known.
    Adopted,
}

/// The origin of a communicator, and the cost of its creation on this rank.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Making {
    /// The origin.
    pub origin: Origin,
    /// Duration of NCCL's call in µs, with the wait for the other ranks.
    pub nccl_us: f64,
    /// Decrease of the device's free memory across the call, in bytes; negative for an increase. It includes the
    /// memory that any process allocated or freed on the device meanwhile. `None` if the driver did not report free
    /// memory.
    pub free_memory_difference: Option<i64>,
}

impl Making {
    pub(super) const ADOPTED: Self =
        Self { origin: Origin::Adopted, nccl_us: 0.0, free_memory_difference: None };
}

impl fmt::Display for Making {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = match self.origin {
            Origin::UniqueId => "made from a unique id",
            Origin::Split => "split off",
            Origin::Shrink(ShrinkMode::Orderly) => "shrunk",
            Origin::Shrink(ShrinkMode::AfterFailure) => "shrunk after a failure",
            Origin::Grow => "grown",
            Origin::Adopted => return f.write_str("adopted"),
        };
        write!(f, "{how} by NCCL in {:.0} µs", self.nccl_us)?;
        match self.free_memory_difference {
            Some(bytes) => write!(f, " ({bytes} bytes less free on the device)"),
            None => Ok(()),
        }
    }
}

/// The start of a communicator's creation.
pub(crate) struct Begun {
    began: Instant,
    free: Option<usize>,
}

impl Begun {
    pub(crate) fn now(context: &Context) -> Self {
        let free = context.memory_info().ok().map(|(free, _)| free);
        Self { began: Instant::now(), free }
    }

    pub(crate) fn done(&self, context: &Context, origin: Origin) -> Making {
        let took: Duration = self.began.elapsed();
        let free = context.memory_info().ok().map(|(free, _)| free);
        let free_memory_difference = self
            .free
            .zip(free)
            .and_then(|(before, after)| i64::try_from(before as i128 - after as i128).ok());
        Making { origin, nccl_us: took.as_secs_f64() * 1e6, free_memory_difference }
    }
}
