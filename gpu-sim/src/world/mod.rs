//! The world: the machine behind the ABIs, made by a builder. A thread sees at most one at a time: the one of the
//! process, or its own ([`Builder::on_this_thread`]).

mod builder;
mod machine;
mod report;

pub use builder::Builder;
pub(crate) use machine::{Machine, Mode, machine};
pub use report::{Leak, Report, WorldError};

use std::sync::Arc;
use std::thread;

use crate::fault::{Fault, Faults};
use crate::kernel::Launch;
use crate::sched::{Actor, Deadlock, Scheduler, Step, Waiting};

/// State that another part of the crate keeps in the world ([`Machine::part`]).
pub(crate) trait WorldState: std::any::Any + Send + Sync {
    /// Returns the objects that were created and not destroyed.
    fn leaks(&self) -> Vec<Leak>;
    /// Called at the world's end: stops threads, and ends waits outside of `sched`.
    fn stop(&self);
}

/// Why [`World::run_actors`] failed.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// No task could continue. The waiting calls returned errors, then the actors ran to their ends.
    #[error(transparent)]
    Deadlock(#[from] Arc<Deadlock>),
    /// An actor panicked.
    #[error("actor {actor} panicked: {message}")]
    Panicked {
        /// Its name.
        actor: String,
        /// The panic's text.
        message: String,
    },
}

/// An embedded machine with GPUs. Dropping it ends it without a check for leaks;
/// [`World::finish`] checks. A panic that drops it waits up to two seconds for the threads that still use it, and then
/// prints the notes to standard error.
///
/// ```
/// let world = gpu_sim::World::builder().devices(2).capacity(1 << 30).start()?;
/// let table = world.cuda();
/// // SAFETY: the function has no preconditions.
/// let code = unsafe { (table.cuInit.ok_or("absent")?)(0) };
/// assert_eq!(code, cuda_driver_sys::CUresult::CUDA_SUCCESS);
/// world.finish()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct World {
    machine: Option<Arc<Machine>>,
}

impl World {
    /// Returns the default settings of a world.
    pub fn builder() -> Builder {
        Builder::default()
    }

    fn alive(&self) -> &Arc<Machine> {
        // Only `finish` and `drop` take `machine`; both own the world or use it last.
        self.machine.as_ref().unwrap_or_else(|| unreachable!("the world is used after its end"))
    }

    /// Returns the CUDA driver's functions, for `cuda_driver_sys::Api::from_parts`. They use the process's current
    /// world.
    #[must_use]
    pub fn cuda(&self) -> cuda_driver_sys::Table {
        crate::driver::table()
    }

    /// Returns NCCL's functions, for `nccl_sys::Api::from_parts`.
    #[must_use]
    pub fn nccl(&self) -> nccl_sys::Table {
        crate::nccl::table(self.alive().nccl_release)
    }

    /// Runs `body` in place of every kernel called `name` (as the PTX spells it), whose parameters have these sizes
    /// in bytes. A later registration replaces an earlier one for later launches.
    pub fn register_kernel(
        &self,
        name: &str,
        parameters: &[usize],
        body: impl Fn(&Launch<'_>) -> Result<(), Fault> + Send + Sync + 'static,
    ) {
        self.alive().kernels.register(name, parameters, Box::new(body));
    }

    /// The counters and injections of both ABIs.
    #[must_use]
    pub fn faults(&self) -> &Faults {
        &self.alive().faults
    }

    /// Returns the number of calls of the ABI function `name`.
    #[must_use]
    pub fn calls(&self, name: &str) -> u64 {
        self.faults().calls(name)
    }

    /// Returns the notes so far, which the ABI cannot return: explanations of faults, misuse that hardware would
    /// ignore, and panics.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        self.alive().notes()
    }

    /// Returns the current waits of ranks and stream executors.
    #[must_use]
    pub fn waiting(&self) -> Vec<Waiting> {
        self.alive().sched.waiting()
    }

    /// Returns every scheduling decision so far in the seeded mode; empty in the free mode.
    #[must_use]
    pub fn history(&self) -> Vec<Step> {
        match &self.alive().sched {
            Scheduler::Seeded(seeded) => seeded.history(),
            Scheduler::Free(_) => Vec::new(),
        }
    }

    /// Runs ranks to their ends and returns their results in order. In the free mode each is a thread. In the seeded
    /// mode the seed interleaves them on the calling thread, which must be the one that started the world.
    ///
    /// # Errors
    /// The first deadlock, otherwise the first panic.
    pub fn run_actors<T: Send + 'static>(&self, actors: Vec<Actor<T>>) -> Result<Vec<T>, RunError> {
        let names: Vec<String> = actors.iter().map(|a| a.0.clone()).collect();
        let run = self.alive().sched.run(actors);
        if let Some(deadlock) = run.deadlock {
            return Err(RunError::Deadlock(deadlock));
        }
        names
            .into_iter()
            .zip(run.results)
            .map(|(actor, r)| r.map_err(|message| RunError::Panicked { actor, message }))
            .collect()
    }

    /// Ends the world and reports the remaining objects. It waits up to two seconds for them: a thread that the program
    /// does not wait for may hold the last reference for a moment. A seeded world does not wait.
    ///
    /// # Errors
    /// In strict mode, [`WorldError::Unclean`] if something leaked or was misused, or if a fault poisoned a device and
    /// no call has returned its error.
    pub fn finish(mut self) -> Result<Report, WorldError> {
        let Some(machine) = self.machine.take() else { return Err(WorldError::NoWorld) };
        machine.settle();
        let report = machine.end();
        if machine.mode == Mode::Strict && !report.is_clean() {
            return Err(WorldError::Unclean(Box::new(report)));
        }
        Ok(report)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if let Some(machine) = self.machine.take() {
            // Threads that the program does not wait for may still use the world. Their calls would otherwise reach the
            // next world of the process.
            let is_panic = thread::panicking();
            if is_panic {
                machine.settle();
            }
            let report = machine.end();
            if is_panic {
                report.print_notes();
            }
        }
    }
}
