//! A model of a rank's device memory, from which the rank allocates the segments of its pools and the memory that it
//! lends. The model reuses addresses, has a capacity, and records freed memory.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use caching_alloc::core::{MemoryInfo, SegmentMemory, SegmentSource, SourceError};

/// Device memory without contents. An allocation gets the first gap that is large enough. So addresses are reused, and
/// an address does not identify an allocation.
#[derive(Debug)]
pub(super) struct Device {
    rank: u32,
    base: u64,
    /// True if addresses are allocated downwards from `base`, not upwards.
    falls: bool,
    capacity: u64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    live: BTreeMap<u64, u64>,
    returned: Vec<SegmentMemory>,
    wrong: Option<String>,
}

impl Device {
    pub(super) fn new(rank: u32, base: u64, capacity: u64) -> Self {
        Self { rank, base, falls: false, capacity, state: Mutex::default() }
    }

    /// Sets whether addresses are allocated downwards. The segments then have another order by address than on other
    /// ranks.
    pub(super) fn falling(self, falls: bool) -> Self {
        Self { falls, ..self }
    }

    /// Returns the memory freed since the last call.
    pub(super) fn returned(&self) -> Vec<SegmentMemory> {
        std::mem::take(&mut self.state().returned)
    }

    /// The number of allocated bytes.
    pub(super) fn live(&self) -> u64 {
        self.state().live.values().sum()
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
        self.rank
    }

    fn allocate(&self, bytes: u64) -> Result<SegmentMemory, SourceError> {
        let mut state = self.state();
        if state.live.values().sum::<u64>() + bytes > self.capacity {
            return Err(SourceError::OutOfMemory { wanted: bytes });
        }
        let mut address = self.base;
        if self.falls {
            for (begin, length) in state.live.iter().rev() {
                if address - (begin + length) >= bytes {
                    break;
                }
                address = *begin;
            }
            address -= bytes;
        } else {
            for (begin, length) in &state.live {
                if *begin - address >= bytes {
                    break;
                }
                address = begin + length;
            }
        }
        state.live.insert(address, bytes);
        Ok(SegmentMemory { address, bytes, token: 0 })
    }

    fn is_exportable(&self) -> bool {
        true
    }

    fn release(&self, memory: &SegmentMemory) -> Result<(), SourceError> {
        let mut state = self.state();
        if state.live.remove(&memory.address) != Some(memory.bytes) {
            let what = format!("{} bytes at {:#x} came back that were not out", memory.bytes, memory.address);
            state.wrong.get_or_insert(what.clone());
            return Err(SourceError::Failed { call: "release", source: what.into() });
        }
        state.returned.push(*memory);
        Ok(())
    }

    fn memory_info(&self) -> Result<MemoryInfo, SourceError> {
        Ok(MemoryInfo { free: self.capacity - self.live(), total: self.capacity })
    }
}
