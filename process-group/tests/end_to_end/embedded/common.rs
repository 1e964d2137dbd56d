//! A machine, its ranks, and memory that tests can read.

use std::{
    env,
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use cuda_driver::{Context, Driver, Stream, StreamFlags, memory::DeviceMemory};
use gpu_sim::World;
use process_group::{
    ProcessGroup,
    comm::{Communicator, Config, Nccl, UniqueId, WindowFacts},
    store::{Deadline, HashStore, Store},
};

/// A deadline longer than any test.
pub(crate) fn far() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

/// A short deadline, for events that must not happen.
pub(crate) fn soon() -> Deadline {
    Deadline::after(Duration::from_millis(200))
}

/// An embedded machine, with the drivers as the crates see them.
pub(crate) struct Machine {
    pub(crate) world: World,
    pub(crate) driver: Driver,
    pub(crate) nccl: Nccl,
    pub(crate) store: Arc<HashStore>,
}

/// A machine with `devices` devices and the newest NCCL release that the tests cover.
pub(crate) fn machine(devices: usize) -> Machine {
    machine_with(devices, 22809)
}

/// A machine with an NCCL release.
pub(crate) fn machine_with(devices: usize, release: i32) -> Machine {
    start(World::builder().devices(devices).capacity(1 << 30).nccl_release(release))
}

/// A machine that hangs in the same cases as hardware.
pub(crate) fn faithful(devices: usize, release: i32) -> Machine {
    start(World::builder().devices(devices).capacity(1 << 30).nccl_release(release).faithful())
}

fn start(builder: gpu_sim::Builder) -> Machine {
    let world = builder.start().unwrap();
    // SAFETY: the world's functions behave as the driver's and NCCL's, and it outlives what is made of them.
    let (driver, nccl) = unsafe {
        (
            cuda_driver::sys::Api::from_parts(world.cuda()).unwrap(),
            nccl_sys::Api::from_parts(world.nccl()).unwrap(),
        )
    };
    Machine {
        world,
        driver: Driver::new(driver).unwrap(),
        nccl: Nccl::new(nccl),
        store: Arc::new(HashStore::new()),
    }
}

/// One rank's place and libraries.
pub(crate) struct Rank {
    pub(crate) rank: usize,
    pub(crate) size: usize,
    pub(crate) context: Context,
    pub(crate) nccl: Nccl,
    pub(crate) store: Arc<HashStore>,
    pub(crate) id: UniqueId,
}

impl Machine {
    pub(crate) fn context(&self, device: usize) -> Context {
        self.driver.device(device as u32).unwrap().retain_primary().unwrap()
    }

    /// A rank on the device of its number, without an id for a communicator.
    fn rank(&self, rank: usize, size: usize) -> Rank {
        Rank {
            rank,
            size,
            context: self.context(rank),
            nccl: self.nccl.clone(),
            store: self.store.clone(),
            id: UniqueId::from_bytes([0; 128]),
        }
    }

    /// The rank of this process, as the environment says. Its store is separate from the others'.
    pub(crate) fn this_rank(&self) -> Rank {
        let told = |name| env::var(name).unwrap().parse().unwrap();
        self.rank(told("RANK"), told("WORLD_SIZE"))
    }

    /// Runs `body` on `size` ranks, with a thread and a device each. Returns their results in order.
    pub(crate) fn ranks<T: Send>(&self, size: usize, body: impl Fn(Rank) -> T + Sync) -> Vec<T> {
        let all: Vec<_> = (0..size).collect();
        self.these_ranks(size, &all, body)
    }

    /// Like [`ranks`](Self::ranks), with only some of the ranks.
    pub(crate) fn these_ranks<T: Send>(
        &self,
        size: usize,
        present: &[usize],
        body: impl Fn(Rank) -> T + Sync,
    ) -> Vec<T> {
        let id = self.nccl.unique_id().unwrap();
        thread::scope(|scope| {
            let body = &body;
            let threads: Vec<_> = present
                .iter()
                .map(|number| {
                    let rank = Rank { id, ..self.rank(*number, size) };
                    scope.spawn(move || body(rank))
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }
}

/// The facts that all ranks of one machine have.
pub(crate) fn facts() -> WindowFacts {
    WindowFacts { one_host: Some(true), peer_access: Some(true), ..WindowFacts::default() }
}

impl Rank {
    pub(crate) fn config(&self) -> Config {
        let mut config = Config::new().name("test");
        config.window_facts = facts();
        config
    }

    pub(crate) fn communicator(&self) -> Communicator {
        Communicator::init(&self.nccl, &self.context, &self.id, self.rank, self.size, &self.config(), far())
            .unwrap()
    }

    /// A further communicator, whose ranks meet over the store.
    pub(crate) fn communicator_named(&self, name: &str) -> Communicator {
        let key = format!("communicator/{name}");
        if self.rank == 0 {
            self.store.set(&key, self.nccl.unique_id().unwrap().as_bytes()).unwrap();
        }
        let id = UniqueId::try_from(&self.store.get(&key, far()).unwrap()[..]).unwrap();
        let mut config = self.config();
        config.name = Some(name.into());
        Communicator::init(&self.nccl, &self.context, &id, self.rank, self.size, &config, far()).unwrap()
    }

    pub(crate) fn world(&self) -> ProcessGroup {
        self.builder().build().unwrap()
    }

    pub(crate) fn builder(&self) -> process_group::group::Builder {
        ProcessGroup::builder()
            .store(self.store.clone())
            .rank(self.rank)
            .world_size(self.size)
            .context(&self.context)
            .nccl(&self.nccl)
            .timeout(Duration::from_secs(60))
    }

    pub(crate) fn stream(&self) -> Stream {
        Stream::new(&self.context, StreamFlags::NON_BLOCKING).unwrap()
    }

    /// Memory with these values.
    pub(crate) fn memory(&self, values: &[f32]) -> DeviceMemory {
        let memory = DeviceMemory::new(&self.context, values.len().max(1) * 4).unwrap();
        memory.copy_from_host(0, values).unwrap();
        memory
    }
}

/// The values in memory.
pub(crate) fn values(memory: &DeviceMemory) -> Vec<f32> {
    let mut values = vec![0f32; memory.bytes() / 4];
    memory.copy_to_host(0, &mut values).unwrap();
    values
}

/// Blocks work that is enqueued on a stream until the sender is dropped.
pub(crate) fn hold(stream: &Stream) -> mpsc::Sender<()> {
    let (open, gate) = mpsc::channel();
    stream.launch_host_fn(move || gate.recv().unwrap_or_default()).unwrap();
    open
}
