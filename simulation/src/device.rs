//! The simulated devices. Each rank has a device for its pools. One more device has the memory that ranks *lend* to
//! their peers in one-sided [exchanges](crate::exchanges): a peer maps lent memory, and reads or writes it. The devices
//! are those of gpu-sim, the crate that simulates the CUDA driver and NCCL. It checks all requests, and reports leaks
//! and misuse at the end of the run.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard},
};

use caching_alloc::{
    core::{MemoryInfo, SegmentMemory, SegmentSource, SourceError},
    driver::{Sharing, VirtualMemorySource},
    sources::LimitingSource,
};
use cuda_driver::{
    Context, DevicePtr, Driver, Stream, StreamFlags, WaitCondition, memory::DeviceMemory, sys::Api,
    vmm::PhysicalMemory,
};
use gpu_sim::{Action, Injection, World};
use symm_agreement::Release;

use crate::{
    communicator::{begin, settle},
    library::Library,
    lock::lock,
    violation::{Violation, ensure},
};

/// The memory of each simulated device in bytes, more than any run uses. To test failing allocations, a
/// `LimitingSource` limits the pools of each rank to fewer bytes. This limit does not apply to the memory that NCCL
/// allocates on the device.
///
/// A pool whose segments (its device memory) are adjacent reserves an address range as large as its device's memory. So
/// this value cannot be much larger: the reservations of up to 63 ranks must fit into the address space of gpu-sim.
const AMPLE: u64 = 1 << 36;

/// The devices of a run. Only the thread of the run can use them.
pub(crate) struct Devices {
    world: World,
    driver: Driver,
    nccl: nccl_sys::Api,
    ranks: usize,
}

impl Devices {
    /// Makes a device for each rank, and one for the memory that the ranks lend in exchanges. `release` is the release
    /// of NCCL.
    pub(crate) fn start(seed: u64, ranks: usize, release: u32) -> Result<Self, Violation> {
        let (driver, nccl) = functions(release)?;
        let world = World::builder().devices(ranks + 1).capacity(AMPLE).nccl_release(release as i32);
        let world = world.seeded(seed).on_this_thread().reuse_addresses();
        let world = world.start().map_err(Violation::of)?;
        let driver = Driver::new(driver).map_err(Violation::of)?;
        Ok(Self { world, driver, nccl, ranks })
    }

    /// Returns a source of up to `bytes` bytes of memory of a rank's device. If `in_a_row` is true, new segments have
    /// adjacent, ascending addresses, as in production. Else gpu-sim chooses their addresses at random, and may choose
    /// the address of a freed segment again.
    pub(crate) fn of_rank(&self, rank: u32, bytes: u64, in_a_row: bool) -> Result<Device, Violation> {
        self.device(rank, Sharing::by_descriptor(), bytes, in_a_row)
    }

    /// Returns a source of the memory that one rank lends in exchanges. The sources of all ranks use the same device.
    pub(crate) fn lending(&self) -> Result<Device, Violation> {
        self.device(self.ranks as u32, Sharing::none(), AMPLE, false)
    }

    fn device(
        &self,
        ordinal: u32,
        sharing: Sharing,
        bytes: u64,
        in_a_row: bool,
    ) -> Result<Device, Violation> {
        let context = self.driver.device(ordinal).and_then(|device| device.retain_primary());
        let context = context.map_err(Violation::of)?;
        let source = VirtualMemorySource::new(&context, sharing);
        let source = source.and_then(|source| if in_a_row { source.in_a_row() } else { Ok(source) });
        let source = LimitingSource::new(source.map_err(Violation::of)?, bytes);
        Ok(Device { context, source, releases: Mutex::default() })
    }

    pub(crate) fn library(&self) -> Library {
        Library::new(self.nccl.clone())
    }

    /// Makes the next call of `function`, a function of the driver or of NCCL, fail with `code`.
    /// [`fail_no_more`](Self::fail_no_more) cancels this.
    pub(crate) fn fail_next(&self, function: &str, code: u32) -> Result<(), Violation> {
        self.world.faults().inject(Injection::new(function, Action::Fail(code))).map_err(Violation::of)
    }

    pub(crate) fn fail_no_more(&self) {
        self.world.faults().clear();
    }

    /// Ends the devices. Fails if memory is still allocated, or if a call to the driver or to NCCL was invalid.
    pub(crate) fn finish(self) -> Result<(), Violation> {
        let Self { world, driver, .. } = self;
        drop(driver);
        world.finish().map(drop).map_err(Violation::of)
    }
}

/// Returns the functions of the driver and of this release of NCCL. They are the same in all worlds (simulated
/// machines) of gpu-sim. `from_parts` checks them, which takes long, so this function calls it once for each release in
/// a process.
///
/// The check draws random numbers from the thread's current world. So it gets a world of its own: in the world of a
/// run, it would make this run differ from later runs with the same seed, which need no check.
fn functions(release: u32) -> Result<(Api, nccl_sys::Api), Violation> {
    static FUNCTIONS: Mutex<BTreeMap<u32, (Api, nccl_sys::Api)>> = Mutex::new(BTreeMap::new());
    let mut known = lock(&FUNCTIONS);
    if let Some(functions) = known.get(&release) {
        return Ok(functions.clone());
    }
    let world = World::builder().nccl_release(release as i32).seeded(0).on_this_thread();
    let world = world.start().map_err(Violation::of)?;
    // SAFETY: gpu-sim's functions keep the contracts of their C names as long as the process runs. They act on the
    // world that the calling thread sees.
    let (driver, nccl) = unsafe { (Api::from_parts(world.cuda()), nccl_sys::Api::from_parts(world.nccl())) };
    let functions = (driver.map_err(Violation::of)?, nccl.map_err(Violation::of)?);
    known.insert(release, functions.clone());
    Ok(functions)
}

/// Work on a device, see [`Device::begin_work`]: a stream that waits until `word` is 1.
pub(crate) struct DeviceWork {
    stream: Stream,
    word: DeviceMemory,
}

impl DeviceWork {
    /// Ends the work. This also ends the waits of [`Device::rest`] for it.
    pub(crate) fn end(self) -> Result<(), Violation> {
        let Self { stream, word } = self;
        word.copy_from_host(0, &[1_u64]).map_err(Violation::of)?;
        settle()?;
        stream.synchronize().map_err(Violation::of)
    }
}

/// A source of memory of one device. For the checks of the simulation, it records the freed segments, and the first
/// error of freeing one.
#[derive(Debug)]
pub(crate) struct Device {
    context: Context,
    source: LimitingSource<VirtualMemorySource>,
    releases: Mutex<Releases>,
}

#[derive(Debug, Default)]
struct Releases {
    /// The segments freed since the last call of [`Device::take_freed`].
    freed: Vec<SegmentMemory>,
    /// The first error of freeing a segment, see [`Device::free_error`].
    first_error: Option<String>,
}

impl Device {
    /// Returns the segments freed since the last call of this function.
    pub(crate) fn take_freed(&self) -> Vec<SegmentMemory> {
        std::mem::take(&mut self.releases().freed)
    }

    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    pub(crate) fn write(&self, address: u64, number: u64) -> Result<(), Violation> {
        // SAFETY: gpu-sim checks the address. The run has one thread, so nothing accesses the memory during the copy.
        unsafe { self.context.copy_from_host(DevicePtr(address), &[number]) }.map_err(Violation::of)
    }

    /// Reads a number from memory that this device can access.
    pub(crate) fn read(&self, address: u64) -> Result<u64, Violation> {
        let mut number = [0];
        // SAFETY: gpu-sim checks the address. The run has one thread, so nothing accesses the memory during the copy.
        unsafe { self.context.copy_to_host(&mut number, DevicePtr(address)) }.map_err(Violation::of)?;
        Ok(number[0])
    }

    /// Returns the physical memory of the allocation that begins at `address`, or `None` if there is none.
    pub(crate) fn physical(&self, address: u64) -> Option<PhysicalMemory> {
        self.source.upstream().physical(address)
    }

    /// Enqueues work that does not end before [`DeviceWork::end`].
    pub(crate) fn begin_work(&self) -> Result<DeviceWork, Violation> {
        let make = || {
            let stream = Stream::new(&self.context, StreamFlags::NON_BLOCKING)?;
            let word = DeviceMemory::new(&self.context, size_of::<u64>())?;
            word.copy_from_host(0, &[0_u64])?;
            // SAFETY: the word is freed after `DeviceWork::end` has waited for the stream, or with the world.
            unsafe { stream.wait_value64(word.ptr(), WaitCondition::Equal, 1) }?;
            Ok(DeviceWork { stream, word })
        };
        make().map_err(|error: cuda_driver::Error| Violation::of(error))
    }

    /// Waits in a coroutine until the device is idle. Returns the outcome of the wait, or `None` if the device has work
    /// that ends only by [`DeviceWork::end`]. In that case, the coroutine goes on waiting for this work.
    pub(crate) fn rest(&self) -> Result<Option<Release>, Violation> {
        let rested = Arc::new(Mutex::new(None));
        let (context, end) = (self.context.clone(), rested.clone());
        begin("a wait for an idle device", move || *lock(&end) = Some(context.synchronize()))?;
        settle()?;
        let rested = lock(&rested).take();
        Ok(rested.map(|rested| match rested {
            Ok(()) => Release::Done {},
            Err(error) => Release::Failed { cause: error.to_string() },
        }))
    }

    /// Fails if memory of this source is still allocated, or if freeing a segment has failed. The error names `rank`,
    /// the owner of the source.
    pub(crate) fn check_released(&self, rank: u32) -> Result<(), Violation> {
        let (live, error) = (self.source.allocated(), self.free_error());
        ensure!(live == 0 && error.is_none(), "rank {rank} leaves {live} bytes of device memory: {error:?}");
        Ok(())
    }

    /// Returns the first error of freeing a segment, or `None` if there was none.
    pub(crate) fn free_error(&self) -> Option<String> {
        self.releases().first_error.clone()
    }

    fn releases(&self) -> MutexGuard<'_, Releases> {
        lock(&self.releases)
    }
}

impl SegmentSource for Device {
    fn device(&self) -> u32 {
        self.source.device()
    }

    fn granularity(&self) -> u64 {
        self.source.granularity()
    }

    fn allocate(&self, bytes: u64) -> Result<SegmentMemory, SourceError> {
        self.source.allocate(bytes)
    }

    fn release(&self, memory: &SegmentMemory) -> Result<(), SourceError> {
        let released = self.source.release(memory);
        let mut releases = self.releases();
        match &released {
            Ok(()) => releases.freed.push(*memory),
            Err(error) => _ = releases.first_error.get_or_insert(error.to_string()),
        }
        released
    }

    fn is_exportable(&self) -> bool {
        self.source.is_exportable()
    }

    fn memory_info(&self) -> Result<MemoryInfo, SourceError> {
        self.source.memory_info()
    }
}
