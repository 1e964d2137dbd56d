//! The simulated devices: one for each rank, and one for the memory that ranks lend. They are those of gpu-sim, which
//! checks all requests, and reports leaks and misuse at the end.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use caching_alloc::{
    core::{MemoryInfo, SegmentMemory, SegmentSource, SourceError},
    driver::{Sharing, VirtualMemorySource},
};
use cuda_driver::{
    Context, DevicePtr, Driver,
    sys::Api,
    vmm::{Mapping, PhysicalMemory},
};
use gpu_sim::World;

use super::violation::Violation;
use crate::sharing;

/// The memory of the device for lent memory. It is more than a run lends.
const AMPLE: u64 = 1 << 38;

/// The devices of a run. Only the thread of the run can use them.
pub(super) struct Devices {
    world: World,
    driver: Driver,
    ranks: usize,
}

impl Devices {
    /// Makes devices whose memory has these numbers of bytes, and another one.
    pub(super) fn start(seed: u64, capacities: &[u64]) -> Result<Self, Violation> {
        let world = World::builder().devices(capacities.len() + 1).capacity(AMPLE).seeded(seed);
        let world = world.on_this_thread().reuse_addresses();
        let capacities = (0..).zip(capacities);
        let world = capacities.clone().fold(world, |world, (rank, bytes)| world.capacity_of(rank, *bytes));
        let world = world.start().map_err(Violation::of)?;
        let driver = Driver::new(functions(&world)?).map_err(Violation::of)?;
        Ok(Self { world, driver, ranks: capacities.count() })
    }

    /// Returns the memory of a rank's device. If `in_a_row` is true, segments have adjacent, ascending addresses, as in
    /// production. Else their order is random, and their addresses are used again.
    pub(super) fn of_rank(&self, rank: u32, in_a_row: bool) -> Result<Device, Violation> {
        self.device(rank, in_a_row)
    }

    /// Returns the device of the memory that ranks lend, for one rank.
    pub(super) fn lending(&self) -> Result<Device, Violation> {
        self.device(self.ranks as u32, false)
    }

    fn device(&self, ordinal: u32, in_a_row: bool) -> Result<Device, Violation> {
        let context = self.driver.device(ordinal).and_then(|device| device.retain_primary());
        let context = context.map_err(Violation::of)?;
        let source = VirtualMemorySource::new(&context, Sharing::none());
        let source = source.and_then(|source| if in_a_row { source.in_a_row() } else { Ok(source) });
        Ok(Device { context, source: source.map_err(Violation::of)?, state: Mutex::default() })
    }

    /// Ends the devices. Fails if memory is still allocated, or a request was invalid.
    pub(super) fn finish(self) -> Result<(), Violation> {
        let Self { world, driver, .. } = self;
        drop(driver);
        world.finish().map(drop).map_err(Violation::of)
    }
}

/// Returns the functions of the driver, which are the same in all worlds. It takes long to check them, so they are kept.
fn functions(world: &World) -> Result<Api, Violation> {
    static FUNCTIONS: OnceLock<Api> = OnceLock::new();
    if let Some(functions) = FUNCTIONS.get() {
        return Ok(functions.clone());
    }
    // SAFETY: the functions are those of gpu-sim. They use the current world of the thread, and fail if there is none.
    let functions = unsafe { Api::from_parts(world.cuda()) }.map_err(Violation::of)?;
    Ok(FUNCTIONS.get_or_init(|| functions).clone())
}

/// Memory of a device, with a record of the freed memory.
#[derive(Debug)]
pub(super) struct Device {
    context: Context,
    source: VirtualMemorySource,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    returned: Vec<SegmentMemory>,
    live: u64,
    wrong: Option<String>,
}

impl Device {
    /// Returns the memory freed since the last call.
    pub(super) fn returned(&self) -> Vec<SegmentMemory> {
        std::mem::take(&mut self.state().returned)
    }

    /// Writes a number into memory of this device.
    pub(super) fn write(&self, address: u64, number: u64) -> Result<(), Violation> {
        // SAFETY: gpu-sim checks the address. Nothing else runs.
        unsafe { self.context.copy_from_host(DevicePtr(address), &[number]) }.map_err(Violation::of)
    }

    /// Reads a number from memory that this device can access.
    pub(super) fn read(&self, address: u64) -> Result<u64, Violation> {
        let mut number = [0];
        // SAFETY: gpu-sim checks the address. Nothing else runs.
        unsafe { self.context.copy_to_host(&mut number, DevicePtr(address)) }.map_err(Violation::of)?;
        Ok(number[0])
    }

    /// Returns the physical memory of an allocation.
    pub(super) fn physical(&self, address: u64) -> Option<PhysicalMemory> {
        self.source.physical(address)
    }

    /// Maps memory of another device for this one.
    pub(super) fn map(&self, memory: &PhysicalMemory) -> Result<Mapping, Violation> {
        sharing::map(&self.context, memory, memory.bytes()).map_err(Violation::of)
    }

    /// The number of allocated bytes.
    pub(super) fn live(&self) -> u64 {
        self.state().live
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
        let made = self.source.allocate(bytes)?;
        self.state().live += made.bytes;
        Ok(made)
    }

    fn release(&self, memory: &SegmentMemory) -> Result<(), SourceError> {
        let released = self.source.release(memory);
        let mut state = self.state();
        match &released {
            Ok(()) => {
                state.live -= memory.bytes;
                state.returned.push(*memory);
            }
            Err(error) => _ = state.wrong.get_or_insert(error.to_string()),
        }
        released
    }

    /// Ranks are in one process, so they map each other's memory without an export.
    fn is_exportable(&self) -> bool {
        true
    }

    fn memory_info(&self) -> Result<MemoryInfo, SourceError> {
        self.source.memory_info()
    }
}
