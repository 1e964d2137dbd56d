//! A map of this process's memory by address: the segments of followed allocators (those with a `SegmentRegistrar`),
//! and each group's [`Answers`] of the driver about other memory.
//!
//! A lookup takes a lock. Groups therefore cache the results of lookups, and drop them when the [generation] changes.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError, RwLock},
};

use cuda_driver::{Context, DevicePtr, memory::MemoryKind};

use crate::sync::{
    atomic::{AtomicU64, Ordering},
    global,
};

/// The reason why a segment is not registered although its allocator is followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Unregistrable {
    /// The segment's pool remaps pages, so an address range may refer to other memory later.
    #[error("its pool is re-mappable: only memory that stays where it is can be registered")]
    Remappable,
    /// The segment's memory cannot be exported to other processes.
    #[error(
        "its pool's memory cannot be exported, as other ranks need it: take VirtualMemorySource with \
         Sharing::by_descriptor()"
    )]
    NotExportable,
}

/// The reason why an operation of a group refuses a buffer. Buffers must be memory of the group's device.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BufferError {
    /// The driver does not know the address.
    #[error(
        "nothing that the driver knows is at {address:#x}: pageable host memory (such as a `Vec`), or memory that was \
         freed"
    )]
    Unknown {
        /// The address.
        address: u64,
    },
    /// Host memory. NCCL could access page-locked host memory at the speed of the bus, but groups refuse it because
    /// it is usually a mistake. [`Communicator`](crate::comm::Communicator) does not check this.
    #[error("{address:#x} is memory of the host: copy it to the device first")]
    Host {
        /// The address.
        address: u64,
    },
    /// Memory of another device.
    #[error("{address:#x} is memory of device {found}, but the group is on device {wanted}")]
    OtherDevice {
        /// The address.
        address: u64,
        /// The ordinal of the memory's device.
        found: u32,
        /// The group's device.
        wanted: u32,
    },
    /// The memory ends before the buffer does.
    #[error("{bytes} bytes at {address:#x} were given, but the memory ends after {found} bytes")]
    Short {
        /// Start address of the buffer.
        address: u64,
        /// Length of the buffer in bytes.
        bytes: u64,
        /// Number of bytes from `address` to the end of the memory.
        found: u64,
    },
    /// The buffer spans several physical allocations, its stream is being captured, and NCCL is older than 2.29. Such
    /// releases register the buffers of a capture by themselves, each as one physical allocation.
    #[error(
        "SpansHandles: {bytes} bytes at {address:#x} are re-mappable memory of which one piece ends after {found} bytes, and \
         NCCL below 2.29 registers what a graph captures as one: give it memory in one piece, or set NCCL_GRAPH_REGISTER=0"
    )]
    SpansHandles {
        /// Start address of the buffer.
        address: u64,
        /// Length of the buffer in bytes.
        bytes: u64,
        /// Number of bytes of the buffer that lie in the first physical allocation.
        found: u64,
    },
    /// The buffer of a collective begins in a window of the group and ends behind it. NCCL would use memory of the other
    /// members that the window does not contain.
    #[error(
        "SpansWindow: {bytes} bytes at {address:#x} begin in a window of the group whose segment ends after {found} bytes: give \
         a buffer that lies in one block"
    )]
    SpansWindow {
        /// Start address of the buffer.
        address: u64,
        /// Length of the buffer in bytes.
        bytes: u64,
        /// Number of bytes from `address` to the end of the segment.
        found: u64,
    },
    /// The driver query failed.
    #[error("the driver was asked for the memory")]
    Driver(#[source] Box<cuda_driver::Error>),
}

impl From<cuda_driver::Error> for BufferError {
    fn from(error: cuda_driver::Error) -> Self {
        Self::Driver(Box::new(error))
    }
}

/// A segment of a followed allocator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) start: u64,
    /// One past the last byte.
    pub(crate) end: u64,
    /// The device's ordinal.
    pub(crate) device: u32,
    /// Serial number of the registrar that follows the allocator.
    pub(crate) registrar: u64,
    pub(crate) refusal: Option<Unregistrable>,
}

/// A range of memory around an address. All bytes have the same device and the same registration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// For memory of a followed allocator: the serial number of the registrar, and the reason if the memory is not
    /// registered. `None` for other memory.
    pub(crate) segment: Option<(u64, Option<Unregistrable>)>,
}

/// The driver's answers to one group's lookups of memory that no followed allocator has. Not shared between groups: an
/// earlier group may have used other memory at the same address.
///
/// Answers are dropped when the [generation] changes. Until then an answer is stale if its memory was freed without a
/// call of [`renew`], or freed and allocated anew. A stale answer never refuses a buffer, because the driver is asked
/// again before a refusal. At worst it accepts the address of freed memory that the same group used before, and callers
/// of raw operations promise that their addresses are valid.
#[derive(Debug, Default)]
pub(crate) struct Answers(Mutex<AnswersOfGeneration>);

#[derive(Debug, Default)]
struct AnswersOfGeneration {
    generation: u64,
    /// The end address and the device of each range, by start address.
    ranges: BTreeMap<u64, (u64, u32)>,
}

impl Answers {
    fn find(&self, generation: u64, address: u64) -> Option<(Place, u32)> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.generation != generation {
            return None;
        }
        let (start, (end, device)) = known.ranges.range(..=address).next_back()?;
        (*end > address).then_some((Place { start: *start, end: *end, segment: None }, *device))
    }

    /// Stores an answer to a question that was asked after `generation` was read.
    fn store(&self, generation: u64, (start, end): (u64, u64), device: u32) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.generation != generation || known.ranges.len() >= ANSWERS {
            *known = AnswersOfGeneration { generation, ranges: BTreeMap::new() };
        }
        known.ranges.retain(|other, (other_end, _)| *other_end <= start || end <= *other);
        known.ranges.insert(start, (end, device));
    }
}

/// Identifies, within a group of this process, a window plan: a layout of memory in windows that is the same on all
/// ranks, for example that of a symmetric pool (see [`SymmetricPlan`](crate::group::SymmetricPlan)).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct PlanKey {
    /// Hash of the plan's whole identity. The same on all ranks.
    pub(crate) digest: u64,
    /// The plan's number in the group's [`PlanNames`]. Other ranks may number it differently.
    pub(crate) number: usize,
}

/// The position of a buffer in a shared window plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct WindowOffset {
    /// The plan's digest.
    plan: u64,
    /// Bit fields, from the highest bit: 1 bit that is always set; 7 bits: the plan's number in the group plus one (0
    /// if the sum exceeds 127); 16 bits: the segment's number; 40 bits: the byte offset in the segment. The whole
    /// code is 0 for a buffer that lies in no plan, or whose segment or offset does not fit.
    code: u64,
}

impl WindowOffset {
    const OFFSET: u32 = 40;
    const SEGMENT: u32 = 16;
    const PLAN: u64 = 0x7f;
    const PLAN_SHIFT: u32 = Self::OFFSET + Self::SEGMENT;

    pub(crate) const fn new(plan: PlanKey, segment: u32, offset: u64) -> Self {
        if segment >> Self::SEGMENT != 0 || offset >> Self::OFFSET != 0 {
            return Self::from_code(0);
        }
        let number = plan.number as u64 + 1;
        let number = if number <= Self::PLAN { number } else { 0 } << Self::PLAN_SHIFT;
        Self::from_parts(plan.digest, 1 << 63 | number | (segment as u64) << Self::OFFSET | offset)
    }

    /// Makes an offset from a code in the flight recorder, with 0 as the plan's digest. Such an offset can be
    /// described, but not compared.
    pub(crate) const fn from_code(code: u64) -> Self {
        Self::from_parts(0, code)
    }

    pub(crate) const fn from_parts(plan: u64, code: u64) -> Self {
        Self { plan, code }
    }

    pub(crate) const fn code(self) -> u64 {
        self.code
    }

    pub(crate) const fn plan(self) -> u64 {
        self.plan
    }

    /// Returns the code without the plan's number, which may differ between ranks. The result is the same on all
    /// ranks, and 0 for a buffer that lies in no plan.
    #[inline(always)]
    pub(crate) const fn in_plan(self) -> u64 {
        self.code & !(Self::PLAN << Self::PLAN_SHIFT)
    }

    /// Returns `self` if `wanted`, otherwise an empty value.
    #[inline(always)]
    pub(crate) const fn only(self, wanted: bool) -> Self {
        if wanted { self } else { Self::from_code(0) }
    }

    /// Returns the position `bytes` bytes further in the same segment.
    pub(crate) const fn behind(self, bytes: u64) -> Self {
        if self.code == 0 { self } else { Self::from_parts(self.plan, self.code + bytes) }
    }

    /// Describes the position in words. `names` are the names of the group's plans. `None` for a buffer that lies in
    /// no plan.
    pub(crate) fn describe(self, names: &PlanNames) -> Option<NamedPlace> {
        if self.code == 0 {
            return None;
        }
        let segment = self.code >> Self::OFFSET & ((1 << Self::SEGMENT) - 1);
        let offset = self.code & ((1 << Self::OFFSET) - 1);
        let number = (self.code >> Self::PLAN_SHIFT & Self::PLAN) as usize;
        let plan = number.checked_sub(1).and_then(|number| names.get(number));
        let plan = plan.map_or_else(String::new, |plan| format!(" of {plan}"));
        Some(NamedPlace { segment: format!("segment {segment}{plan}"), offset })
    }
}

/// A [`WindowOffset`] in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NamedPlace {
    /// The segment and its plan.
    pub(crate) segment: String,
    pub(crate) offset: u64,
}

/// The names of a group's plans, by number.
#[derive(Debug, Default)]
pub(crate) struct PlanNames(RwLock<Vec<Arc<str>>>);

impl PlanNames {
    /// Adds a name and returns its number.
    pub(crate) fn add(&self, name: &str) -> usize {
        let mut names = self.0.write().unwrap_or_else(PoisonError::into_inner);
        names.push(name.into());
        names.len() - 1
    }

    fn get(&self, number: usize) -> Option<Arc<str>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(number).cloned()
    }
}

/// Maximum number of answers that a group remembers.
const ANSWERS: usize = 4096;

/// The segments of followed allocators, by start address.
static SEGMENTS: RwLock<BTreeMap<u64, Extent>> = RwLock::new(BTreeMap::new());

global! {
    /// Changes whenever cached lookups become stale, for example because a segment or a window was added or removed.
    /// Never 0.
    static GENERATION: AtomicU64 = AtomicU64::new(1);
}

/// Returns the number of the map's current generation. Results of lookups under another number are stale. A lookup
/// after this call sees all changes up to the returned generation.
#[inline]
pub(crate) fn generation() -> u64 {
    GENERATION.load(Ordering::Acquire)
}

/// Makes all earlier lookups stale.
pub(crate) fn renew() {
    GENERATION.fetch_add(1, Ordering::Release);
}

/// Adds a segment.
#[cfg(feature = "registration")]
pub(crate) fn come(extent: Extent) {
    SEGMENTS.write().unwrap_or_else(PoisonError::into_inner).insert(extent.start, extent);
    renew();
}

/// Removes the segment at an address.
#[cfg(feature = "registration")]
pub(crate) fn go(start: u64) {
    SEGMENTS.write().unwrap_or_else(PoisonError::into_inner).remove(&start);
    renew();
}

/// Returns the range that contains the `bytes` bytes at `ptr`. All of them must be memory of the context's device. For
/// memory outside the followed allocators, the driver is queried unless `answers` has its answer.
pub(crate) fn look(
    context: &Context,
    answers: &Answers,
    ptr: DevicePtr,
    bytes: u64,
) -> Result<Place, BufferError> {
    // Read before the driver is asked, so that a change during the query makes the answer stale.
    let generation = generation();
    let known = |at| segment(at).or_else(|| answers.find(generation, at));
    let ask = |at| ask(context, answers, generation, at);
    let wanted = context.device().ordinal();
    let end = ptr.0.saturating_add(bytes);
    let mut place: Option<Place> = None;
    let mut at = ptr.0;
    loop {
        let (mut piece, mut device) = known(at).map_or_else(|| ask(at), Ok)?;
        if device != wanted && piece.segment.is_none() {
            // The remembered answer may concern memory that was freed since.
            (piece, device) = ask(at)?;
        }
        if device != wanted {
            return Err(BufferError::OtherDevice { address: at, found: device, wanted });
        }
        let joined = match place {
            None => piece,
            // Adjacent ranges of different kinds count as memory of no followed allocator.
            Some(before) => Place {
                start: before.start,
                end: piece.end,
                segment: before.segment.filter(|_| before.segment == piece.segment),
            },
        };
        if joined.end >= end {
            return Ok(joined);
        }
        at = joined.end;
        place = Some(joined);
        if known(at).is_none() && ask(at).is_err() {
            return Err(BufferError::Short { address: ptr.0, bytes, found: at - ptr.0 });
        }
    }
}

/// Returns the segment that contains an address, and its device.
fn segment(address: u64) -> Option<(Place, u32)> {
    let segments = SEGMENTS.read().unwrap_or_else(PoisonError::into_inner);
    let (_, extent) = segments.range(..=address).next_back().filter(|(_, extent)| extent.end > address)?;
    let Extent { start, end, device, registrar, refusal } = *extent;
    Some((Place { start, end, segment: Some((registrar, refusal)) }, device))
}

/// Queries the driver about an address, and stores the answer. `generation` was read before.
fn ask(
    context: &Context,
    answers: &Answers,
    generation: u64,
    address: u64,
) -> Result<(Place, u32), BufferError> {
    let ptr = DevicePtr(address);
    let unknown = BufferError::Unknown { address };
    let Some(details) = context.driver().pointer_details(ptr)? else { return Err(unknown) };
    match details.info.kind {
        // Managed memory migrates between host and device, and every device can access it.
        _ if details.is_managed => {}
        MemoryKind::Device => {}
        MemoryKind::Host => return Err(BufferError::Host { address }),
        _ => return Err(unknown),
    }
    // In an address reservation, this is the mapped part around the address, not the whole reservation.
    let range = context.address_range(ptr).unwrap_or(details.range);
    let own = context.device().ordinal();
    let device = if details.is_managed { own } else { details.info.device.unwrap_or(own) };
    let (start, end) = (range.start.0, range.start.0.saturating_add(range.bytes as u64));
    if !(start..end).contains(&address) {
        return Err(unknown);
    }
    // Managed memory belongs to every device, so it is not remembered.
    if !details.is_managed {
        answers.store(generation, (start, end), device);
    }
    Ok((Place { start, end, segment: None }, device))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_buffer_is_described_with_units_and_in_common_terms() {
        let short = BufferError::Short { address: 0x1000, bytes: 1 << 30, found: 64 << 20 };
        assert_eq!(
            short.to_string(),
            "1073741824 bytes at 0x1000 were given, but the memory ends after 67108864 bytes"
        );
        let spans = BufferError::SpansHandles { address: 0x1000, bytes: 1 << 30, found: 64 << 20 };
        assert!(spans.to_string().contains("one piece ends after 67108864 bytes, and NCCL"), "{spans}");
        assert_eq!(
            BufferError::Unknown { address: 0x1000 }.to_string(),
            "nothing that the driver knows is at 0x1000: pageable host memory (such as a `Vec`), or memory that was freed"
        );
    }
}
