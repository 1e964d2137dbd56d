//! A source and streams without a device. Addresses are plain numbers, and the program decides when the work of a
//! stream completes.
//!
//! The source and the streams are for tests, replays of traces and examples. No memory exists at the addresses.

mod failing;
mod streams;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use self::failing::Failures;
pub use self::failing::{Failing, SourceCall, StreamCall};
pub use self::streams::HostStreams;
use crate::core::{MemoryInfo, PageSource, SegmentMemory, SegmentSource, SourceError};

/// A source that hands out addresses without memory, and counts their bytes.
#[derive(Debug)]
pub struct HostSource {
    device: u32,
    state: Mutex<HostState>,
}

#[derive(Debug)]
struct HostState {
    next: u64,
    capacity: u64,
    live: BTreeMap<u64, u64>,
    /// The live pages, keyed by token: length in bytes, and number of mappings.
    pages: HashMap<u64, (u64, u32)>,
    /// The mappings of pages, keyed by address: length in bytes, token, and whether the device has access.
    mapped: BTreeMap<u64, (u64, u64, bool)>,
    /// The addresses of mappings that could not be removed.
    stuck: HashSet<u64>,
    /// The reserved ranges, keyed by address: length in bytes.
    ranges: HashMap<u64, u64>,
    live_bytes: u64,
    peak_bytes: u64,
    lost_bytes: u64,
    broken: u64,
    failures: Failures<SourceCall>,
}

/// The numbers of calls of a [`HostSource`], failed ones included, and the memory that it counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Calls {
    /// Calls of [`allocate`](SegmentSource::allocate).
    pub allocate: u64,
    /// Calls of [`release`](SegmentSource::release).
    pub release: u64,
    /// Calls of [`create`](PageSource::create).
    pub create: u64,
    /// Calls of [`discard`](PageSource::discard), including those that the release of a mapped page makes.
    pub discard: u64,
    /// Calls of [`map`](PageSource::map).
    pub map: u64,
    /// Calls of [`enable`](PageSource::enable).
    pub enable: u64,
    /// Calls of [`unmap`](PageSource::unmap), including those that the release of a mapped page makes.
    pub unmap: u64,
    /// Bytes of the live segments and pages.
    pub live_bytes: u64,
    /// The largest value of `live_bytes` so far.
    pub peak_bytes: u64,
    /// The part of `live_bytes` whose release failed.
    pub lost_bytes: u64,
    /// Number of reserved ranges of addresses.
    pub ranges: u64,
    /// Number of invalid calls, for example for memory that is not allocated, or over an existing mapping.
    pub broken: u64,
}

impl HostSource {
    /// Makes a source of `capacity` bytes of memory of device 0.
    #[must_use]
    pub fn new(capacity: u64) -> Self {
        Self::at(0x7f00_0000_0000, capacity)
    }

    /// Like [`new`](Self::new), with addresses that begin at `base`. `base` must be a multiple of 2 MiB, and not 0.
    #[must_use]
    pub fn at(base: u64, capacity: u64) -> Self {
        let state = HostState {
            next: base,
            capacity,
            live: BTreeMap::new(),
            pages: HashMap::new(),
            mapped: BTreeMap::new(),
            stuck: HashSet::new(),
            ranges: HashMap::new(),
            live_bytes: 0,
            peak_bytes: 0,
            lost_bytes: 0,
            broken: 0,
            failures: Failures::default(),
        };
        Self { device: 0, state: Mutex::new(state) }
    }

    /// Makes the source report `device` as its device.
    #[must_use]
    pub fn on_device(mut self, device: u32) -> Self {
        self.device = device;
        self
    }

    /// Makes later calls of this kind fail as `failing` says. Replaces an earlier setting for this kind.
    pub fn fail(&self, call: SourceCall, failing: Failing) {
        self.state().failures.arm(call, failing);
    }

    /// Removes all settings of [`fail`](Self::fail).
    pub fn heal(&self) {
        self.state().failures.disarm();
    }

    /// Returns the number of calls of this kind, including failed ones.
    #[must_use]
    pub fn made(&self, call: SourceCall) -> u64 {
        self.state().failures.made(call)
    }

    /// Returns the number of injected failures so far.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.state().failures.failed()
    }

    /// Sets the capacity in bytes. Live memory may exceed it.
    pub fn set_capacity(&self, bytes: u64) {
        self.state().capacity = bytes;
    }

    /// Returns true if, at every byte of the range, a page is mapped that the device may access.
    #[must_use]
    pub fn is_usable(&self, address: u64, bytes: u64) -> bool {
        let state = self.state();
        let mut at = address;
        while at < address + bytes {
            match state.mapped.range(..=at).next_back() {
                Some((base, (length, _, true))) if at < base + length => at = base + length,
                _ => return false,
            }
        }
        true
    }

    /// Returns the token of the segment or page that contains `address`, and the offset of `address` in it, in bytes;
    /// `None` if `address` is in no live segment and no mapped page.
    #[must_use]
    pub fn physical(&self, address: u64) -> Option<(u64, u64)> {
        let state = self.state();
        let page = state.mapped.range(..=address).next_back();
        let page = page.filter(|(base, (length, ..))| address < *base + length);
        let segment = || {
            let (base, bytes) = state.live.range(..=address).next_back()?;
            (address < base + bytes).then_some(*base)
        };
        match page {
            Some((base, (_, token, _))) => Some((*token, address - base)),
            None => segment().map(|base| (base, address - base)),
        }
    }

    /// Returns the numbers of calls, and the memory that is counted.
    #[must_use]
    pub fn calls(&self) -> Calls {
        let state = self.state();
        let made = |call| state.failures.made(call);
        Calls {
            allocate: made(SourceCall::Allocate),
            release: made(SourceCall::Release),
            create: made(SourceCall::Create),
            discard: made(SourceCall::Discard),
            map: made(SourceCall::Map),
            enable: made(SourceCall::Enable),
            unmap: made(SourceCall::Unmap),
            live_bytes: state.live_bytes,
            peak_bytes: state.peak_bytes,
            lost_bytes: state.lost_bytes,
            ranges: state.ranges.len() as u64,
            broken: state.broken,
        }
    }

    /// Returns the number of mapped bytes, not counting mappings whose removal failed.
    #[must_use]
    pub fn mapped_bytes(&self) -> u64 {
        let state = self.state();
        let usual = state.mapped.iter().filter(|(base, _)| !state.stuck.contains(base));
        usual.map(|(_, (length, ..))| length).sum()
    }

    fn state(&self) -> MutexGuard<'_, HostState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HostState {
    /// Counts a call. Returns an error if the call is to fail.
    fn call(&mut self, call: SourceCall, name: &'static str, wanted: u64) -> Result<(), SourceError> {
        self.failures.due(call).map_or(Ok(()), |failing| Err(failing.source_error(name, wanted)))
    }

    /// Adds `bytes` to the live bytes. Returns an error if they would exceed the capacity.
    fn take(&mut self, bytes: u64) -> Result<(), SourceError> {
        let live = self.live_bytes.saturating_add(bytes);
        if live > self.capacity {
            return Err(SourceError::out_of_memory(bytes));
        }
        self.live_bytes = live;
        self.peak_bytes = self.peak_bytes.max(live);
        Ok(())
    }

    fn page(&mut self, call: &'static str, token: u64) -> Result<&mut (u64, u32), SourceError> {
        if !self.pages.contains_key(&token) {
            return Err(self.wrong(call, format!("there is no page {token:#x}")));
        }
        Ok(self.pages.entry(token).or_default())
    }

    /// Counts an invalid call, and returns its error.
    fn wrong(&mut self, call: &'static str, what: String) -> SourceError {
        self.broken += 1;
        SourceError::Failed { call, source: what.into() }
    }
}

impl PageSource for HostSource {
    fn reserve(&self, bytes: u64) -> Result<u64, SourceError> {
        let mut state = self.state();
        state.call(SourceCall::Reserve, "reserve", bytes)?;
        let address = state.next;
        state.next += bytes + (2 << 20);
        state.ranges.insert(address, bytes);
        Ok(address)
    }

    fn unreserve(&self, address: u64, bytes: u64) {
        let mut state = self.state();
        if state.ranges.get(&address) == Some(&bytes) {
            state.ranges.remove(&address);
        }
    }

    fn create(&self, bytes: u64) -> Result<u64, SourceError> {
        let mut state = self.state();
        state.call(SourceCall::Create, "create", bytes)?;
        state.take(bytes)?;
        let token = state.failures.made(SourceCall::Create);
        state.pages.insert(token, (bytes, 0));
        Ok(token)
    }

    fn discard(&self, token: u64, bytes: u64) -> Result<(), SourceError> {
        let mut state = self.state();
        if let Err(error) = state.call(SourceCall::Discard, "discard", bytes) {
            state.lost_bytes += bytes;
            return Err(error);
        }
        let stuck = state.stuck.iter().filter(|base| state.mapped.get(base).is_some_and(|at| at.1 == token));
        let stuck = stuck.count();
        match *state.page("discard", token)? {
            (length, 0) if length == bytes => {}
            (length, mappings) if length == bytes && mappings as usize == stuck => {
                state.pages.remove(&token);
                state.lost_bytes += bytes;
                let source = format!("page {token:#x} could not be unmapped").into();
                return Err(SourceError::Failed { call: "discard", source });
            }
            (length, mappings) => {
                let what =
                    format!("page {token:#x} has {length} bytes, not {bytes}, and {mappings} mappings");
                return Err(state.wrong("discard", what));
            }
        }
        state.pages.remove(&token);
        state.live_bytes -= bytes;
        Ok(())
    }

    fn map(&self, memory: &SegmentMemory) -> Result<(), SourceError> {
        let mut state = self.state();
        let SegmentMemory { address, bytes, token } = *memory;
        state.call(SourceCall::Map, "map", bytes)?;
        let last =
            state.mapped.range(..address + bytes).next_back().map(|(base, (length, ..))| (*base, *length));
        if let Some((base, length)) = last.filter(|(base, length)| base + length > address) {
            let what = format!("{bytes} bytes at {address:#x} overlap {length} at {base:#x}");
            return Err(state.wrong("map", what));
        }
        let (length, mappings) = state.page("map", token)?;
        if *length != bytes {
            let what = format!("page {token:#x} has {length} bytes, not {bytes}");
            return Err(state.wrong("map", what));
        }
        *mappings += 1;
        state.mapped.insert(address, (bytes, token, false));
        Ok(())
    }

    fn enable(&self, address: u64, bytes: u64) -> Result<(), SourceError> {
        let mut state = self.state();
        state.call(SourceCall::Enable, "enable", bytes)?;
        let mut covered = 0;
        for (length, _, usable) in state.mapped.range_mut(address..address + bytes).map(|(_, page)| page) {
            *usable = true;
            covered += *length;
        }
        if covered == bytes {
            Ok(())
        } else {
            Err(state.wrong("enable", format!("{covered} of {bytes} bytes are mapped")))
        }
    }

    fn unmap(&self, address: u64, bytes: u64) -> Result<(), SourceError> {
        let mut state = self.state();
        let gone: Vec<u64> = state.mapped.range(address..address + bytes).map(|(base, _)| *base).collect();
        if let Err(error) = state.call(SourceCall::Unmap, "unmap", bytes) {
            state.stuck.extend(gone);
            return Err(error);
        }
        let mut covered = 0;
        for base in gone {
            let Some((length, token, _)) = state.mapped.remove(&base) else { continue };
            covered += length;
            state.page("unmap", token)?.1 -= 1;
        }
        if covered == bytes {
            Ok(())
        } else {
            Err(state.wrong("unmap", format!("{covered} of {bytes} bytes were mapped")))
        }
    }
}

impl SegmentSource for HostSource {
    fn as_pages(&self) -> Option<&dyn PageSource> {
        Some(self)
    }

    fn device(&self) -> u32 {
        self.device
    }

    fn allocate(&self, bytes: u64) -> Result<SegmentMemory, SourceError> {
        let mut state = self.state();
        state.call(SourceCall::Allocate, "allocate", bytes)?;
        state.take(bytes)?;
        let address = state.next;
        // A gap follows each segment, so blocks of two segments are never adjacent.
        state.next += bytes.next_multiple_of(2 << 20) + (2 << 20);
        state.live.insert(address, bytes);
        Ok(SegmentMemory { address, bytes, token: address })
    }

    fn release(&self, memory: &SegmentMemory) -> Result<(), SourceError> {
        let mut state = self.state();
        if let Err(error) = state.call(SourceCall::Release, "release", memory.bytes) {
            state.lost_bytes += memory.bytes;
            return Err(error);
        }
        if state.mapped.get(&memory.address).is_some_and(|(_, token, _)| *token == memory.token) {
            drop(state);
            // Discarded even if it cannot be unmapped, so that the memory is counted as lost.
            let unmapped = self.unmap(memory.address, memory.bytes);
            return unmapped.and(self.discard(memory.token, memory.bytes));
        }
        if state.live.remove(&memory.address) != Some(memory.bytes) {
            let what = format!("no segment of {} bytes at {:#x}", memory.bytes, memory.address);
            return Err(state.wrong("release", what));
        }
        state.live_bytes -= memory.bytes;
        Ok(())
    }

    fn memory_info(&self) -> Result<MemoryInfo, SourceError> {
        let mut state = self.state();
        state.call(SourceCall::MemoryInfo, "memory_info", 0)?;
        Ok(MemoryInfo { free: state.capacity.saturating_sub(state.live_bytes), total: state.capacity })
    }
}
