//! The simulated devices: one for each rank, and one for the memory that ranks lend. They are those of gpu-sim, which
//! checks all requests, and reports leaks and misuse at the end.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use caching_alloc::{
    core::{MemoryInfo, SegmentMemory, SegmentSource, SourceError},
    driver::{Sharing, VirtualMemorySource},
    sources::LimitingSource,
};
use cuda_driver::{
    Context, DevicePtr, Driver,
    sys::Api,
    vmm::{Mapping, PhysicalMemory},
};
use gpu_sim::{Action, Injection, World};
use nccl_sys::ncclResult_t;

use super::{library::Library, violation::Violation};
use crate::sharing;

/// The memory of each device in bytes, which is more than a run needs. A pool with adjacent segments reserves as many
/// bytes of addresses as its device has memory. The reservations of 64 devices of this size fit into the addresses of
/// gpu-sim. A `LimitingSource` limits each rank's pool to a part of the device's memory and counts only the pool's own
/// allocations. NCCL allocates memory of the same device, but enough is left for the pool to reach its limit.
const AMPLE: u64 = 1 << 36;

/// The devices of a run. Only the thread of the run can use them.
pub(super) struct Devices {
    world: World,
    driver: Driver,
    nccl: nccl_sys::Api,
    ranks: usize,
}

impl Devices {
    /// Makes a device for each rank, and one for the memory that ranks lend.
    pub(super) fn start(seed: u64, ranks: usize, release: u32) -> Result<Self, Violation> {
        let (driver, nccl) = functions(release)?;
        let world = World::builder().devices(ranks + 1).capacity(AMPLE).nccl_release(release as i32);
        let world = world.seeded(seed).on_this_thread().reuse_addresses();
        let world = world.start().map_err(Violation::of)?;
        let driver = Driver::new(driver).map_err(Violation::of)?;
        Ok(Self { world, driver, nccl, ranks })
    }

    /// Returns a source of up to `bytes` bytes of a rank's device. If `in_a_row` is true, segments have adjacent,
    /// ascending addresses, as in production. Else their order is random, and the addresses of freed segments are used
    /// again.
    pub(super) fn of_rank(&self, rank: u32, bytes: u64, in_a_row: bool) -> Result<Device, Violation> {
        self.device(rank, Sharing::by_descriptor(), bytes, in_a_row)
    }

    /// Returns a source of memory for one rank to lend. All ranks lend memory of the same device.
    pub(super) fn lending(&self) -> Result<Device, Violation> {
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
        Ok(Device { context, source, state: Mutex::default() })
    }

    /// Returns NCCL for these devices.
    pub(super) fn library(&self) -> Library {
        Library::new(self.nccl.clone())
    }

    /// Makes the next call of an NCCL function fail, unless [`fail_no_more`](Self::fail_no_more) is called before it.
    pub(super) fn fail_next(&self, function: &str) -> Result<(), Violation> {
        let code = ncclResult_t::ncclUnhandledCudaError.0;
        self.world.faults().inject(Injection::new(function, Action::Fail(code))).map_err(Violation::of)
    }

    pub(super) fn fail_no_more(&self) {
        self.world.faults().clear();
    }

    /// Ends the devices. Fails if memory is still allocated, or a request was invalid.
    pub(super) fn finish(self) -> Result<(), Violation> {
        let Self { world, driver, .. } = self;
        drop(driver);
        world.finish().map(drop).map_err(Violation::of)
    }
}

/// Returns the functions of the driver and of this release of NCCL, which are the same in all worlds. Checking them
/// takes long, so this function checks them once per release and process. The check draws random numbers of its world.
/// It has a separate world, so that the first run with a release draws the same numbers as later runs.
fn functions(release: u32) -> Result<(Api, nccl_sys::Api), Violation> {
    static FUNCTIONS: Mutex<BTreeMap<u32, (Api, nccl_sys::Api)>> = Mutex::new(BTreeMap::new());
    let mut known = FUNCTIONS.lock().unwrap_or_else(PoisonError::into_inner);
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

/// Memory of a device, with a record of the freed memory.
#[derive(Debug)]
pub(super) struct Device {
    context: Context,
    source: LimitingSource<VirtualMemorySource>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    returned: Vec<SegmentMemory>,
    wrong: Option<String>,
}

impl Device {
    /// Returns the memory freed since the last call.
    pub(super) fn returned(&self) -> Vec<SegmentMemory> {
        std::mem::take(&mut self.state().returned)
    }

    pub(super) fn context(&self) -> &Context {
        &self.context
    }

    /// Writes a number into memory of this device.
    pub(super) fn write(&self, address: u64, number: u64) -> Result<(), Violation> {
        // SAFETY: gpu-sim checks the address. The run has one thread, so nothing accesses the memory during the copy.
        unsafe { self.context.copy_from_host(DevicePtr(address), &[number]) }.map_err(Violation::of)
    }

    /// Reads a number from memory that this device can access.
    pub(super) fn read(&self, address: u64) -> Result<u64, Violation> {
        let mut number = [0];
        // SAFETY: gpu-sim checks the address. The run has one thread, so nothing accesses the memory during the copy.
        unsafe { self.context.copy_to_host(&mut number, DevicePtr(address)) }.map_err(Violation::of)?;
        Ok(number[0])
    }

    /// Returns the physical memory of an allocation.
    pub(super) fn physical(&self, address: u64) -> Option<PhysicalMemory> {
        self.source.upstream().physical(address)
    }

    /// Maps memory of any device for this device.
    pub(super) fn map(&self, memory: &PhysicalMemory) -> Result<Mapping, Violation> {
        sharing::map(&self.context, memory, memory.bytes()).map_err(Violation::of)
    }

    /// The number of allocated bytes.
    pub(super) fn live(&self) -> u64 {
        self.source.allocated()
    }

    /// A description of the first invalid request, if there was one.
    pub(super) fn wrong(&self) -> Option<String> {
        self.state().wrong.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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
        let mut state = self.state();
        match &released {
            Ok(()) => state.returned.push(*memory),
            Err(error) => _ = state.wrong.get_or_insert(error.to_string()),
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
