//! What the ranks run on: real GPUs with the real libraries, or the embedded device.

use anyhow::{Context as _, Result, bail};
use cuda_driver::Driver;
use gpu_sim::World;
use process_group::comm::Nccl;

use super::options::Backend;
use crate::shell::explain;

/// Capacity of an embedded device, in bytes: that of a large GPU; the host pays for what is touched only.
const CAPACITY: u64 = 140 << 30;

/// Bytes of gradient buckets that all ranks together hold on the embedded device, where every byte is the
/// host's and is reduced by its cores.
const EMBEDDED_BUDGET: u64 = 256 << 20;

/// What a rank works with.
pub(crate) struct Devices {
    pub(crate) driver: Driver,
    pub(crate) nccl: Nccl,
    /// Bytes of gradient buckets a rank.
    pub(crate) budget: u64,
    /// The embedded devices, if these are they; kept to the end.
    pub(crate) world: Option<World>,
}

/// How the job is laid out, before any rank is started.
pub(crate) struct Plan {
    /// Never `auto`.
    pub(crate) backend: Backend,
    pub(crate) ranks: u32,
}

const RANKS: u32 = 4;

/// Settles `auto` and the number of ranks, and finds out whether the libraries and GPUs are there.
pub(crate) fn plan(wanted: Backend, ranks: Option<u32>) -> Result<Plan> {
    // An explicit path is a demand: a wrong one is an error on every backend, never passed over in silence.
    if let Some(path) = std::env::var_os("CUDA_DRIVER_SYS_LIBRARY") {
        cuda_driver_sys::Api::load()
            .with_context(|| format!("CUDA_DRIVER_SYS_LIBRARY is {}", path.display()))?;
    }
    if let Some(path) = std::env::var_os("NCCL_SYS_LIBRARY") {
        nccl_sys::Api::load().with_context(|| format!("NCCL_SYS_LIBRARY is {}", path.display()))?;
    }
    if wanted == Backend::Sim {
        return Ok(Plan { backend: Backend::Sim, ranks: ranks.unwrap_or(RANKS) });
    }
    match (real(ranks), wanted) {
        (Ok(ranks), _) => Ok(Plan { backend: Backend::Cuda, ranks }),
        (Err(error), Backend::Cuda) => {
            Err(error.context("--backend cuda cannot run here (--backend sim takes the embedded device)"))
        }
        (Err(error), _) => {
            let why = explain(&error);
            let why = why.lines().next().unwrap_or_default();
            let short = why.split(" (").next().unwrap_or_default().trim_end_matches(':');
            eprintln!(
                "No GPUs to run on: {short}. Running on the embedded device; --backend cuda says more."
            );
            Ok(Plan { backend: Backend::Sim, ranks: ranks.unwrap_or(RANKS) })
        }
    }
}

/// How many ranks real GPUs take, or why they take none.
fn real(ranks: Option<u32>) -> Result<u32> {
    let gpus = Driver::load()?.device_count()?;
    let ranks = ranks.unwrap_or(if gpus < RANKS { 2 } else { RANKS });
    if gpus < ranks {
        bail!("{ranks} ranks need {ranks} GPUs, found {gpus}");
    }
    Nccl::load()?;
    Ok(ranks)
}

/// Opens what a rank works with.
pub(crate) fn open(backend: Backend, ranks: u32) -> Result<Devices> {
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
