//! How a communicator came to be, and what that took.

use std::{
    fmt,
    time::{Duration, Instant},
};

use cuda_driver::Context;

use super::ShrinkMode;

/// What a communicator was made from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Origin {
    /// A unique id.
    UniqueId,
    /// Another, by splitting.
    Split,
    /// Another, by leaving ranks out.
    Shrink(ShrinkMode),
}

/// How a communicator came to be, and what that took on this rank.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Making {
    /// What it was made from.
    pub origin: Origin,
    /// How long NCCL's call took, in µs, with the wait for the other ranks.
    pub nccl_us: f64,
    /// How many bytes less of the device were free after it than before; negative for more. Whatever else used the
    /// device meanwhile, in any process, is in it. `None` where the driver did not tell.
    pub free_memory_difference: Option<i64>,
}

impl fmt::Display for Making {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = match self.origin {
            Origin::UniqueId => "made from a unique id",
            Origin::Split => "split off",
            Origin::Shrink(ShrinkMode::Orderly) => "shrunk",
            Origin::Shrink(ShrinkMode::AfterFailure) => "shrunk after a failure",
        };
        write!(f, "{how} by NCCL in {:.0} µs", self.nccl_us)?;
        match self.free_memory_difference {
            Some(bytes) => write!(f, " ({bytes} bytes less free on the device)"),
            None => Ok(()),
        }
    }
}

/// A communicator's making, as it begins.
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
