//! Shared parts of the communication benchmarks: devices, ranks as threads, medians.

use std::{
    error::Error,
    process, thread,
    time::{Duration, Instant},
};

use cuda_driver::{Context, Driver};
use gpu_sim::World;
use process_group::{comm::Nccl, store::Deadline};

pub(super) type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

/// Returns a deadline later than the end of any benchmark.
pub(super) fn far() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

/// Devices and libraries of a benchmark.
pub(super) struct Machine {
    pub(super) ranks: usize,
    pub(super) nccl: Nccl,
    /// A description for the report.
    pub(super) description: String,
    driver: Driver,
    /// Keeps the functions above valid.
    world: Option<World>,
}

impl Machine {
    /// Opens real GPUs if each rank has one and NCCL is installed, otherwise the embedded device. The first argument
    /// that is a number is the number of ranks: 2 to 64, by default 2.
    pub(super) fn open() -> Result<Self> {
        let ranks = std::env::args().skip(1).find_map(|argument| argument.parse().ok()).unwrap_or(2);
        if !(2..=64).contains(&ranks) {
            return Err(format!("{ranks} ranks: expected 2 to 64").into());
        }
        Self::real(ranks).or_else(|why| Self::embedded(ranks, &why.to_string()))
    }

    fn real(ranks: usize) -> Result<Self> {
        let driver = Driver::load()?;
        let count = driver.device_count()?;
        if (count as usize) < ranks {
            return Err(format!("{count} GPUs for {ranks} ranks").into());
        }
        let nccl = Nccl::load()?;
        let description = format!("{ranks} x {}, NCCL {}", driver.device(0)?.name()?, nccl.release());
        Ok(Self { ranks, nccl, description, driver, world: None })
    }

    /// Opens the embedded device. `why` says why there are no real GPUs.
    fn embedded(ranks: usize, why: &str) -> Result<Self> {
        let why = why.split(';').next().unwrap_or_default();
        let description = format!("embedded device, {ranks} ranks: its times are not a GPU's ({why})");
        let world = World::builder().devices(ranks).capacity(16 << 30).start()?;
        // SAFETY: the embedded device keeps the contracts of the C APIs, and lives as long as the machine.
        let (driver, nccl) = unsafe {
            (cuda_driver::sys::Api::from_parts(world.cuda())?, nccl_sys::Api::from_parts(world.nccl())?)
        };
        let (nccl, driver) = (Nccl::new(nccl), Driver::new(driver)?);
        Ok(Self { ranks, nccl, description, driver, world: Some(world) })
    }

    /// Returns the embedded device, if the benchmark runs on it.
    pub(super) fn world(&self) -> Option<&World> {
        self.world.as_ref()
    }

    /// Runs `body` on a thread for each rank and returns rank 0's result. A rank that fails ends the benchmark, since
    /// the others would wait for it.
    pub(super) fn run<T: Send>(&self, body: impl Fn(usize, &Context) -> Result<T> + Sync) -> Result<T> {
        let rank = |rank: usize| {
            let context = self.driver.device(rank as u32).and_then(|device| device.retain_primary());
            let result = context.map_err(Into::into).and_then(|context| body(rank, &context));
            result.unwrap_or_else(|error| {
                eprintln!("rank {rank}: {error}");
                process::exit(1)
            })
        };
        thread::scope(|scope| {
            let others: Vec<_> =
                (1..self.ranks).map(|other| scope.spawn(move || drop(rank(other)))).collect();
            let result = rank(0);
            others.into_iter().for_each(|other| drop(other.join()));
            Ok(result)
        })
    }
}

/// Returns the time of `work` in µs, and its result.
pub(super) fn timed<T>(work: impl FnOnce() -> Result<T>) -> Result<(f64, T)> {
    let begun = Instant::now();
    let value = work()?;
    Ok((begun.elapsed().as_secs_f64() * 1e6, value))
}

/// Returns the median; 0 for no samples.
pub(super) fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples.get(samples.len() / 2).copied().unwrap_or_default()
}
