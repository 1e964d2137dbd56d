//! The group of all ranks together with a stream, for programs that need one group and one stream.

use std::fmt;

use cuda_driver::{Context, Stream, StreamFlags};

use super::{ProcessGroup, Result, error::CallContext};
use crate::store::Deadline;

/// A rank of a job: the group of all ranks (the world) and a stream on the rank's device.
///
/// ```no_run
/// use process_group::{Job, comm::ReduceOp};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let job = Job::from_env()?; // started by `lockstep launch`, `torchrun`, `mpirun` or `srun`
/// let mut values = job.stream().clone_htod(&[job.world().rank() as f32; 1024])?;
/// job.world().all_reduce(&mut values, ReduceOp::Sum)?;
/// println!("{}", job.stream().clone_dtoh(&values)?[0]);
/// job.finish()?;
/// # Ok(()) }
/// ```
pub struct Job {
    world: ProcessGroup,
    stream: Stream,
}

impl Job {
    /// Joins the job that a launcher describes in the [environment](super::Environment): loads the driver and NCCL,
    /// connects to the store, retains the primary context of the rank's device, and builds the world. Blocks until all
    /// ranks have joined, at most for the builder's default timeout. To change a setting, use [`ProcessGroup::builder`]
    /// and [`Job::new`].
    ///
    /// # Errors
    /// Those of [`Builder::build`](super::Builder::build) and of [`Job::new`].
    pub fn from_env() -> Result<Self> {
        Self::new(ProcessGroup::builder().build()?)
    }

    /// Makes a job from a world that was built with a builder. Makes a stream on the world's device.
    ///
    /// # Errors
    /// [`GroupErrorKind::Driver`](super::GroupErrorKind::Driver) if no stream can be made.
    pub fn new(world: ProcessGroup) -> Result<Self> {
        let stream = Stream::new(world.context(), StreamFlags::NON_BLOCKING)
            .map_err(|error| CallContext::of_group(&world.name).error(error))?;
        Ok(Self { world, stream })
    }

    /// The group of all ranks.
    #[must_use]
    pub fn world(&self) -> &ProcessGroup {
        &self.world
    }

    /// A stream on this rank's device, for work and memory of the job.
    #[must_use]
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// The context of this rank's device.
    #[must_use]
    pub fn context(&self) -> &Context {
        self.world.context()
    }

    /// Destroys the world when its work is done. Blocks for at most the world's
    /// [default timeout](ProcessGroup::timeout). Collective: all ranks call `finish`. Destroy groups that were split
    /// from the world first, because its end may close the store that they use.
    ///
    /// # Errors
    /// Those of [`ProcessGroup::destroy`].
    pub fn finish(self) -> Result<()> {
        let deadline: Deadline = self.world.timeout();
        self.world.destroy(deadline)
    }
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job").field("world", &self.world).finish_non_exhaustive()
    }
}
