//! The origin of a communicator, and the time and memory that its creation took.

use std::{fmt, time::Duration};

use bootstrap::runtime::Instant;
use cuda_driver::Context;

/// How [`shrink`](super::Communicator::shrink) treats the work that is enqueued on the old communicator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ShrinkMode {
    /// The work of every rank is done before the call. The old communicator stays usable beside the new one.
    #[doc(alias = "NCCL_SHRINK_DEFAULT")]
    Orderly,
    /// NCCL first gives up the work, which may wait for a rank that has failed. The old communicator can only be
    /// aborted afterwards.
    #[doc(alias = "NCCL_SHRINK_ABORT")]
    AfterFailure,
}

/// How a communicator was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Origin {
    /// Made from a unique id.
    UniqueId,
    /// Split off from another communicator.
    Split,
    /// Made from another communicator by excluding ranks.
    Shrink(ShrinkMode),
    /// Made from another communicator by adding ranks.
    Grow,
    /// Made by another library ([`Communicator::adopt`](super::Communicator::adopt)). The cost of creation is not
    /// known.
    Adopted,
}

/// The origin of a communicator, and the cost of its creation on this rank.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Making {
    /// How the communicator was made.
    pub origin: Origin,
    /// Duration of the NCCL call that made the communicator, in µs. Includes the wait for the other ranks. 0 for an
    /// adopted communicator.
    pub nccl_us: f64,
    /// Decrease of the device's free memory during the call, in bytes. Negative if free memory increased. Includes
    /// memory that any process allocated or freed on the device during the call. `None` if the driver did not report
    /// free memory, and for an adopted communicator.
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

/// Time and free device memory at the start of a communicator's creation.
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
