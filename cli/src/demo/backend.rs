//! The devices that the ranks of a job use: real GPUs with the real libraries, or embedded devices.

use anyhow::{Context as _, Result, bail};
use cuda_driver::Driver;
use gpu_sim::World;
use process_group::comm::Nccl;

/// Capacity of an embedded device, in bytes: that of a large GPU. Only touched pages use host memory.
const CAPACITY: u64 = 140 << 30;

/// Bytes of gradient buckets that all ranks together hold on the embedded device, where the host's memory stores them
/// and its cores reduce them.
const EMBEDDED_BUDGET: u64 = 256 << 20;

/// The text of an error if `--backend cuda` was asked for and the libraries or GPUs are missing.
pub const NO_CUDA: &str = "--backend cuda cannot run here (--backend sim takes the embedded device)";

/// The devices that the ranks of a job use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Backend {
    /// Real GPUs if there are at least 2, otherwise embedded devices
    Auto,
    /// Embedded devices in host memory
    Sim,
    /// Real GPUs with the CUDA driver and NCCL of this host
    Cuda,
}

impl Backend {
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Sim => "sim",
            Self::Cuda => "cuda",
        }
    }
}

/// The libraries and limits that one rank works with.
pub struct Devices {
    /// The CUDA driver.
    pub driver: Driver,
    /// NCCL.
    pub nccl: Nccl,
    /// Bytes of gradient buckets for one rank.
    pub budget: u64,
    /// The embedded devices, if the rank uses them. They must outlive `driver` and `nccl`.
    pub world: Option<World>,
}

/// The devices and the number of ranks of a job.
pub struct Plan {
    /// Never [`Backend::Auto`].
    pub backend: Backend,
    /// The number of ranks.
    pub ranks: u32,
}

const RANKS: u32 = 4;

/// Resolves [`Backend::Auto`] and the default number of ranks. Says on standard error why `Auto` does not use GPUs.
///
/// # Errors
/// As for [`choose`].
pub fn plan(wanted: Backend, ranks: Option<u32>) -> Result<Plan> {
    let (plan, without_gpus) = choose(wanted, ranks)?;
    if let Some(why) = without_gpus {
        eprintln!("{why}");
    }
    Ok(plan)
}

/// Like [`plan`], but returns the line on missing GPUs instead of printing it.
///
/// # Errors
/// `wanted` is [`Backend::Cuda`] and the libraries or enough GPUs are missing, or an environment variable names a library
/// that cannot be loaded.
pub fn choose(wanted: Backend, ranks: Option<u32>) -> Result<(Plan, Option<String>)> {
    // A path in the environment must work: a wrong path is an error with every backend.
    if let Some(path) = std::env::var_os("CUDA_DRIVER_SYS_LIBRARY") {
        cuda_driver_sys::Api::load()
            .with_context(|| format!("CUDA_DRIVER_SYS_LIBRARY is {}", path.display()))?;
    }
    if let Some(path) = std::env::var_os("NCCL_SYS_LIBRARY") {
        nccl_sys::Api::load().with_context(|| format!("NCCL_SYS_LIBRARY is {}", path.display()))?;
    }
    if wanted == Backend::Sim {
        return Ok((Plan { backend: Backend::Sim, ranks: ranks.unwrap_or(RANKS) }, None));
    }
    match (real(ranks), wanted) {
        (Ok(ranks), _) => Ok((Plan { backend: Backend::Cuda, ranks }, None)),
        (Err(error), Backend::Cuda) => Err(error.context(NO_CUDA)),
        (Err(error), _) => {
            let plan = Plan { backend: Backend::Sim, ranks: ranks.unwrap_or(RANKS) };
            Ok((plan, Some(without_gpus(&error))))
        }
    }
}

/// The line for a host on which `Backend::Auto` finds no GPUs, for this error, without its causes.
fn without_gpus(error: &anyhow::Error) -> String {
    let error = error.to_string();
    let short = error.split(" (").next().unwrap_or_default();
    format!("Using the embedded device: {short} (see `lockstep doctor`)")
}

/// The number of ranks for the GPUs of this host, or the reason why there can be none.
fn real(ranks: Option<u32>) -> Result<u32> {
    let gpus = Driver::load()?.device_count()?;
    let ranks = ranks.unwrap_or(if gpus < RANKS { 2 } else { RANKS });
    if gpus < ranks {
        bail!("{ranks} ranks need {ranks} GPUs, found {gpus}");
    }
    Nccl::load()?;
    Ok(ranks)
}

/// Loads the libraries, or starts so many embedded devices as there are `ranks`.
///
/// # Errors
/// A library cannot be loaded, or the embedded devices cannot be started.
pub fn open(backend: Backend, ranks: u32) -> Result<Devices> {
    match backend {
        Backend::Cuda => {
            Ok(Devices { driver: Driver::load()?, nccl: Nccl::load()?, budget: u64::MAX, world: None })
        }
        Backend::Sim | Backend::Auto => {
            let world = World::builder().devices(ranks as usize).capacity(CAPACITY).start()?;
            // SAFETY: the embedded device's functions keep the contracts of the C API that they stand for, and
            // the world that they speak for lives as long as the process works with them.
            let (driver, nccl) = unsafe {
                (cuda_driver_sys::Api::from_parts(world.cuda()), nccl_sys::Api::from_parts(world.nccl()))
            };
            Ok(Devices {
                driver: Driver::new(driver?)?,
                nccl: Nccl::new(nccl?),
                budget: EMBEDDED_BUDGET / u64::from(ranks),
                world: Some(world),
            })
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn causes_and_codes_are_left_to_the_doctor() {
        let error = anyhow::anyhow!("no X found; install it").context("X failed with E (100): no device");
        assert_eq!(
            super::without_gpus(&error),
            "Using the embedded device: X failed with E (see `lockstep doctor`)"
        );
    }
}
