//! Shared parts of the examples: a rank of a job, on a GPU or on an embedded device.

use std::{error::Error, process::ExitCode, time::Duration};

use cuda_driver::Driver;
use gpu_sim::{World, WorldError};
use process_group::{ProcessGroup, comm::Nccl, error_text, group::Builder, store::Deadline};

pub(crate) type Result<T, E = Box<dyn Error>> = std::result::Result<T, E>;

/// The argument that selects an embedded device in place of the GPU.
pub(crate) const EMBEDDED: &str = "--embedded";

/// Returns whether that is this program's only argument. No argument is valid too.
#[allow(dead_code, reason = "an example may have more arguments")]
pub(crate) fn embedded() -> Result<bool> {
    match std::env::args().nth(1).as_deref() {
        None => Ok(false),
        Some(EMBEDDED) => Ok(true),
        Some(other) => Err(format!("unknown argument {other:?}; there is {EMBEDDED}").into()),
    }
}

/// Limit of every wait for another rank.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A deadline [`PATIENCE`] from now.
pub(crate) fn soon() -> Deadline {
    Deadline::after(PATIENCE)
}

/// Runs `job` as the rank that the environment names. With `embedded` no GPU is needed: `start` makes a machine for
/// this process, with a device for each rank. The ranks' processes still share memory.
pub(crate) fn as_rank(
    embedded: bool,
    start: impl FnOnce(gpu_sim::Builder) -> Result<World, WorldError>,
    job: impl FnOnce(Builder) -> Result<()>,
) -> Result<()> {
    let builder = ProcessGroup::builder().timeout(PATIENCE);
    if !embedded {
        return job(builder);
    }
    let ranks: usize = std::env::var("WORLD_SIZE")?.parse()?;
    let rank: u32 = std::env::var("RANK")?.parse()?;
    let machine = start(World::builder().devices(ranks).capacity(1 << 30))?;
    // SAFETY: the machine's functions keep the C contracts, and it outlives what is made of them.
    let (cuda, nccl) = unsafe {
        (cuda_driver::sys::Api::from_parts(machine.cuda())?, nccl_sys::Api::from_parts(machine.nccl())?)
    };
    let (driver, nccl) = (Driver::new(cuda)?, Nccl::new(nccl));
    let context = driver.device(rank)?.retain_primary()?;
    job(builder.context(&context).nccl(&nccl))?;
    drop((context, driver, nccl));
    // Reports leaks.
    machine.finish()?;
    Ok(())
}

/// The exit code for a result; an error is printed with its causes.
pub(crate) fn exit_code(ran: Result<()>) -> ExitCode {
    let Err(error) = ran else { return ExitCode::SUCCESS };
    eprintln!("error: {}", error_text(&*error));
    ExitCode::FAILURE
}
