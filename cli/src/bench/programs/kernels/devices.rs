//! Devices and libraries of the benchmark.

use std::{process, thread};

use cuda_driver::{Context, Driver};
use gpu_sim::World;
use process_group::comm::Nccl;
use symm_mem::kernels::twins;

use crate::bench::programs::support::Result;

/// The devices of the ranks. Unlike the other benchmarks, this one also runs with several ranks on a GPU.
pub(super) struct Devices {
    pub(super) ranks: usize,
    pub(super) description: String,
    /// NCCL, or why it is left out.
    pub(super) nccl: Result<Nccl, String>,
    driver: Driver,
    count: usize,
    /// Keeps the functions above valid.
    world: Option<World>,
}

impl Devices {
    pub(super) fn open(ranks: usize) -> Result<Self> {
        let found = Driver::load().and_then(|driver| Ok((driver.device_count()? as usize, driver)));
        match found {
            Ok((count @ 1.., driver)) => Self::real(ranks, count.min(ranks), driver),
            _ => Self::embedded(ranks),
        }
    }

    fn real(ranks: usize, count: usize, driver: Driver) -> Result<Self> {
        let name = driver.device(0)?.name()?;
        let nccl = if count < ranks {
            Err("NCCL needs a GPU for each rank".to_owned())
        } else {
            Nccl::load().map_err(|why| why.to_string())
        };
        let release =
            nccl.as_ref().map_or_else(|_| String::new(), |nccl| format!(", NCCL {}", nccl.release()));
        let description = format!("{count} x {name}{release}");
        Ok(Self { ranks, description, nccl, driver, count, world: None })
    }

    fn embedded(ranks: usize) -> Result<Self> {
        let world = World::builder().devices(ranks).capacity(4 << 30).start()?;
        twins::register(&world);
        // SAFETY: the embedded device keeps the contracts of the C APIs, and lives as long as this value.
        let (driver, nccl) = unsafe {
            (cuda_driver::sys::Api::from_parts(world.cuda())?, nccl_sys::Api::from_parts(world.nccl())?)
        };
        let (nccl, driver) = (Ok(Nccl::new(nccl)), Driver::new(driver)?);
        let description = "embedded devices: their times are not a GPU's".to_owned();
        Ok(Self { ranks, description, nccl, driver, count: ranks, world: Some(world) })
    }

    /// Returns true for embedded devices. Their times are meaningless, so there are few calls.
    pub(super) fn is_embedded(&self) -> bool {
        self.world.is_some()
    }

    /// Returns true if each rank has a GPU of its own.
    pub(super) fn one_for_each(&self) -> bool {
        !self.is_embedded() && self.count == self.ranks
    }

    pub(super) fn context(&self, rank: usize) -> Result<Context> {
        Ok(self.driver.device((rank % self.count) as u32)?.retain_primary()?)
    }

    /// Runs `body` on a thread for each rank. A rank that fails ends the benchmark, since the others would wait for it.
    pub(super) fn run(&self, body: impl Fn(usize) -> Result<()> + Sync) -> Result<()> {
        let body = |rank: usize| {
            body(rank).unwrap_or_else(|error| {
                eprintln!("rank {rank}: {error}");
                process::exit(1)
            });
        };
        thread::scope(|scope| {
            (0..self.ranks).for_each(|rank| drop(scope.spawn(move || body(rank))));
        });
        Ok(())
    }
}
