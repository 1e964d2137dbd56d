//! A group's cache of the memory ranges that its operations use. Each entry is a range that was checked to be
//! memory of the group's device, with its registration status and its position in the group's windows.
//!
//! A miss looks the address up in the tables of the followed allocators (those with a `SegmentRegistrar`), or
//! queries the driver, and normally caches the whole surrounding range. A hit reads at most two cache lines, without a
//! lock or a call. The cache is invalidated when a segment of a followed allocator, or a
//! [window](super::places), is added or removed, and when a symmetric pool frees memory. It is not
//! invalidated when other memory is freed: if this group used the memory before, the old entry still hits.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use cuda_driver::{Context, DevicePtr, Stream, graph::CaptureStatus};
use nccl_sys::Version;

use super::{
    BufferError, GroupErrorKind, places::Places, registered::Registered, report::RegistrationStatus,
};
use crate::{
    BoxedResult, cold_err,
    comm::{Communicator, Nccl, Op},
    memory::{self, Answers, Place, PlanNames, WindowOffset},
    operation::Primitive,
    sync::atomic::{AtomicBool, AtomicU64, Ordering, fence},
};

/// A cache entry: a range with its registration status and position, in a seqlock. If a reader finds the same
/// even `stamp` before and after it reads the other fields, these belong to one entry.
#[derive(Default)]
#[repr(align(64))]
struct Slot {
    /// The seqlock's sequence number. Odd during a write.
    stamp: AtomicU64,
    /// The value of `memory::generation()` when the entry was looked up. 0 if the slot is empty.
    generation: AtomicU64,
    start: AtomicU64,
    end: AtomicU64,
    status: AtomicU64,
    /// `plan` and `place`: the [`WindowOffset`] of the range's first byte, as its `plan()` and `code()`.
    plan: AtomicU64,
    place: AtomicU64,
}

impl Slot {
    /// Returns the status and position of the range from `start` to `end`, if the slot's entry contains the
    /// range and has this generation.
    #[inline]
    fn find(&self, generation: u64, start: u64, end: u64) -> Option<(RegistrationStatus, WindowOffset)> {
        let stamp = self.stamp.load(Ordering::Acquire);
        let begin = self.start.load(Ordering::Relaxed);
        let found = self.generation.load(Ordering::Relaxed) == generation
            && begin <= start
            && end <= self.end.load(Ordering::Relaxed);
        let status = self.status.load(Ordering::Relaxed);
        let (plan, code) = (self.plan.load(Ordering::Relaxed), self.place.load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        let whole = stamp & 1 == 0 && self.stamp.load(Ordering::Relaxed) == stamp;
        if !found || !whole {
            return None;
        }
        Some((
            RegistrationStatus::from_code(status)?,
            WindowOffset::from_parts(plan, code).behind(start - begin),
        ))
    }

    /// Stores an entry. Only one thread at a time may call this.
    fn set(
        &self,
        generation: u64,
        (start, end): (u64, u64),
        status: RegistrationStatus,
        place: WindowOffset,
    ) {
        let stamp = self.stamp.load(Ordering::Relaxed);
        self.stamp.store(stamp + 1, Ordering::Relaxed);
        fence(Ordering::Release);
        self.generation.store(generation, Ordering::Relaxed);
        self.start.store(start, Ordering::Relaxed);
        self.end.store(end, Ordering::Relaxed);
        self.status.store(status as u64, Ordering::Relaxed);
        self.plan.store(place.plan(), Ordering::Relaxed);
        self.place.store(place.code(), Ordering::Relaxed);
        self.stamp.store(stamp + 2, Ordering::Release);
    }
}

/// The number of slots for ranges of at least 2 MiB (`1 << PAGE`). Smaller ranges have as many slots of their
/// own.
const SLOTS: usize = 64;
/// The size from which a range uses the slots for large ranges, as a base-2 logarithm. A buffer's address, divided by
/// this size, selects the slot.
const PAGE: u32 = 21;
/// The driver's alignment of allocations, as a base-2 logarithm. Selects the slot of a small range in the same way.
const UNIT: u32 = 9;

const OPERATIONS: usize = Primitive::ALL.len();
const STATUSES: usize = RegistrationStatus::ALL.len();

/// A group's cache of checked memory ranges, and its counts of buffers by registration status.
pub(super) struct BufferCache {
    context: Context,
    /// True if the buffers of operations are checked.
    pub(super) checks_buffers: bool,
    /// True if NCCL registers the buffers of captured operations, and requires each to lie in one physical
    /// allocation.
    needs_one_allocation: bool,
    large: Box<[Slot; SLOTS]>,
    small: Box<[Slot; SLOTS]>,
    writing: Mutex<()>,
    /// The driver's earlier answers, which a miss searches before it queries the driver.
    answers: Answers,
    /// The memory layouts that are the same on all members, such as symmetric pools.
    pub(super) places: Places,
    /// The serial numbers of the registrars from the group's first successful agreement on registration.
    /// Unset before that.
    registrars: OnceLock<Vec<u64>>,
    /// The number of buffers checked, by operation and by registration status.
    counts: [[AtomicU64; STATUSES]; OPERATIONS],
    /// True once the members have agreed on registration, with either result.
    has_agreed: AtomicBool,
    /// The number of buffers that were counted as `NotAgreed` before the agreement, by operation and
    /// registrar. `agreed` moves them to their final status. Lazy groups need this: their first call is
    /// checked before it makes the communicator, hence before the agreement.
    early: Mutex<BTreeMap<(usize, u64), u64>>,
}

impl BufferCache {
    pub(super) fn new(context: &Context, nccl: &Nccl, checks_buffers: bool, plans: Arc<PlanNames>) -> Self {
        // From this release on, NCCL registers a captured buffer that spans physical allocations in parts.
        const REGISTERS_PARTS: Version = Version::new(2, 29, 0);
        let registers = std::env::var("NCCL_GRAPH_REGISTER").map_or(true, |value| value.trim() != "0");
        let slots = || Box::new(std::array::from_fn(|_| Slot::default()));
        Self {
            context: context.clone(),
            checks_buffers,
            needs_one_allocation: registers && nccl.release() < REGISTERS_PARTS,
            large: slots(),
            small: slots(),
            writing: Mutex::default(),
            answers: Answers::default(),
            places: Places::new(plans),
            registrars: OnceLock::new(),
            counts: std::array::from_fn(|_| std::array::from_fn(|_| AtomicU64::new(0))),
            has_agreed: AtomicBool::new(false),
            early: Mutex::default(),
        }
    }

    /// Records the result of the agreement on registration, and moves the buffers in `early` to their final
    /// status.
    pub(super) fn agreed(&self, registered: &Registered) {
        if registered.outcome.is_ok() && self.registrars.set(registered.registrars.clone()).is_ok() {
            // Entries that were cached before the agreement are stale now.
            memory::renew();
        }
        let mut early = self.early.lock().unwrap_or_else(PoisonError::into_inner);
        self.has_agreed.store(true, Ordering::Release);
        let registrars = self.registrars.get().map(Vec::as_slice);
        for ((operation, registrar), buffers) in std::mem::take(&mut *early) {
            let [from, to] =
                [RegistrationStatus::NotAgreed, RegistrationStatus::of_registrar(registrar, registrars)]
                    .map(|status| &self.counts[operation][status as usize]);
            let moved = from.load(Ordering::Relaxed).min(buffers);
            from.fetch_sub(moved, Ordering::Relaxed);
            to.fetch_add(moved, Ordering::Relaxed);
        }
    }

    /// Adds a buffer that was counted as `NotAgreed` to `early`, unless the members have agreed meanwhile.
    #[cold]
    fn remember(&self, primitive: Primitive, address: u64, bytes: u64) {
        let place = self.look_up(DevicePtr(address), bytes);
        if let Ok(Place { segment: Some((registrar, None)), .. }) = place {
            let mut early = self.early.lock().unwrap_or_else(PoisonError::into_inner);
            if !self.has_agreed.load(Ordering::Acquire) {
                *early.entry((primitive as usize, registrar)).or_default() += 1;
            }
        }
    }

    /// Returns the number of an operation's buffers that were counted with this registration status.
    pub(super) fn seen(&self, primitive: Primitive, status: RegistrationStatus) -> u64 {
        self.counts[primitive as usize][status as usize].load(Ordering::Relaxed)
    }

    /// Checks the buffers of `op`, whose other arguments were checked before. Records in `op.places` the
    /// positions of the buffers that NCCL requires at the same position on all ranks.
    #[inline(always)]
    pub(super) fn look(
        &self,
        communicator: &Communicator,
        op: &mut Op,
        stream: &Stream,
    ) -> BoxedResult<(), GroupErrorKind> {
        if !self.checks_buffers {
            self.places.note(communicator, op);
            return Ok(());
        }
        let [first, second] = op.buffers(communicator.place());
        let mut places = [WindowOffset::default(); 2];
        if let Some(buffer) = first {
            // For an in-place operation, one look-up serves both buffers.
            places = [self.look_at(communicator, op, buffer, stream)?; 2];
        }
        if let Some(buffer) = second {
            places[1] = self.look_at(communicator, op, buffer, stream)?;
        }
        let [sends, receives] = op.primitive.symmetric();
        op.places = [places[0].only(sends), places[1].only(receives)];
        Ok(())
    }

    /// Checks one buffer, given as argument name, address and length in bytes. Returns the buffer's position.
    #[inline(always)]
    fn look_at(
        &self,
        communicator: &Communicator,
        op: &Op,
        (side, address, bytes): (&'static str, u64, u64),
        stream: &Stream,
    ) -> BoxedResult<WindowOffset, GroupErrorKind> {
        if bytes == 0 {
            return Ok(WindowOffset::default());
        }
        let (status, place) = match self.known(address, address.saturating_add(bytes)) {
            Some(known) => known,
            None => {
                self.find(communicator, op.primitive, address, bytes).map_err(|source| wrong(side, source))?
            }
        };
        if status == RegistrationStatus::Remappable && self.needs_one_allocation {
            self.check_one_allocation(address, bytes, stream).map_err(|source| wrong(side, source))?;
        }
        if status == RegistrationStatus::NotAgreed && !self.has_agreed.load(Ordering::Acquire) {
            self.remember(op.primitive, address, bytes);
        }
        let count = &self.counts[op.primitive as usize][status as usize];
        // A load and a store are cheaper than `fetch_add`. If two threads count at once, one count may be
        // lost.
        count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        Ok(place)
    }

    /// If `stream` is capturing, checks that this range of re-mappable memory lies in one physical
    /// allocation.
    #[cold]
    fn check_one_allocation(
        &self,
        address: u64,
        bytes: u64,
        stream: &Stream,
    ) -> BoxedResult<(), BufferError> {
        if stream.capture_status().map_err(BufferError::from)? == CaptureStatus::None {
            return Ok(());
        }
        let piece = self.context.address_range(DevicePtr(address)).map_err(BufferError::from)?;
        let found = (piece.start.0 + piece.bytes as u64).saturating_sub(address);
        if found < bytes {
            Err(Box::new(BufferError::SpansHandles { address, bytes, found }))
        } else {
            Ok(())
        }
    }

    /// Returns the cached status and position of a range, if a current entry contains the range.
    #[inline]
    fn known(&self, start: u64, end: u64) -> Option<(RegistrationStatus, WindowOffset)> {
        let generation = memory::generation();
        let large = &self.large[(start >> PAGE) as usize % SLOTS];
        large.find(generation, start, end).or_else(|| {
            let small = &self.small[(start >> UNIT) as usize % SLOTS];
            small.find(generation, start, end)
        })
    }

    #[cold]
    fn look_up(&self, ptr: DevicePtr, bytes: u64) -> Result<Place, BufferError> {
        memory::look(&self.context, &self.answers, ptr, bytes)
    }

    #[cold]
    fn find(
        &self,
        communicator: &Communicator,
        primitive: Primitive,
        address: u64,
        bytes: u64,
    ) -> BoxedResult<(RegistrationStatus, WindowOffset), BufferError> {
        // The generation is read before the look-up, so that a change during the look-up invalidates the
        // entry.
        let generation = memory::generation();
        let Place { mut start, mut end, segment } = self.look_up(DevicePtr(address), bytes)?;
        let mut status =
            RegistrationStatus::of(&Place { start, end, segment }, self.registrars.get().map(Vec::as_slice));
        // A pool may be registered without the rest of its allocator.
        if status != RegistrationStatus::Registered && communicator.is_registered(DevicePtr(address), bytes) {
            status = RegistrationStatus::Registered;
        }
        let (mut place, last) = (WindowOffset::default(), address.saturating_add(bytes));
        match self.places.window(address) {
            Some(window) if last <= window.segment.end => {
                (start, end) = (start.max(window.segment.start), end.min(window.segment.end));
                place = window.place(start);
            }
            None if self.places.are_none() => {}
            Some(window) if primitive.symmetric().contains(&true) => {
                let found = window.segment.end - address;
                return Err(Box::new(BufferError::SpansWindow { address, bytes, found }));
            }
            // The buffer crosses the end or the start of a window. The range is not cached, because another
            // buffer in it may lie in the window.
            Some(_) => return Ok((status, place)),
            None if self.places.window(last - 1).is_some() => return Ok((status, place)),
            // The buffer spans several allocations. A whole window may lie between its first and last byte,
            // so the range is not cached.
            None if self.look_up(DevicePtr(address), 1)?.end < last => {
                return Ok((status, place));
            }
            // Only the buffer itself is cached, because windows may lie in the rest of the looked-up range.
            None => (start, end) = (address, last),
        }
        let (slots, shift) = match end - start >= 1 << PAGE {
            true => (&self.large, PAGE),
            false => (&self.small, UNIT),
        };
        let _one = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        slots[(address >> shift) as usize % SLOTS].set(generation, (start, end), status, place);
        Ok((status, place.behind(address - start)))
    }
}

/// Returns the error for a buffer that cannot be used.
#[cold]
fn wrong(buffer: &'static str, source: Box<BufferError>) -> Box<GroupErrorKind> {
    cold_err(move || GroupErrorKind::Buffer { buffer, source: *source })
}

impl fmt::Debug for BufferCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BufferCache").field("checks_buffers", &self.checks_buffers).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod interleavings {
    use std::sync::Arc;

    use super::*;
    use crate::{
        memory::PlanKey,
        sync::model::{check, thread},
    };

    const PLAN: PlanKey = PlanKey { digest: 1, number: 1 };

    /// A look-up runs concurrently with a change of the looked-up status, such as an agreement on
    /// registration.
    #[test]
    fn a_cached_status_was_found_in_its_generation() {
        check(|| {
            let (fact, slot) = (Arc::new(AtomicU64::new(0)), Arc::new(Slot::default()));
            let changing = {
                let fact = fact.clone();
                thread::spawn(move || {
                    fact.store(1, Ordering::Release);
                    memory::renew();
                })
            };
            let looking = {
                let (fact, slot) = (fact.clone(), slot.clone());
                thread::spawn(move || {
                    // Like `BufferCache::find`.
                    let generation = memory::generation();
                    let status = RegistrationStatus::ALL[fact.load(Ordering::Acquire) as usize];
                    slot.set(generation, (0, 16), status, WindowOffset::default());
                })
            };
            // Like `BufferCache::known`.
            let seen = slot.find(memory::generation(), 0, 16);
            assert!(seen.is_none_or(|(status, _)| RegistrationStatus::ALL[..2].contains(&status)));
            changing.join().unwrap();
            looking.join().unwrap();
            let remembered = slot.find(memory::generation(), 0, 16);
            assert!(
                remembered.is_none_or(|(status, _)| status == RegistrationStatus::ALL[1]),
                "found before the change"
            );
        });
    }

    /// A thread replaces a slot's first entry by a second, while another thread looks up both.
    #[test]
    fn an_entry_is_read_whole() {
        check(|| {
            let slot = Arc::new(Slot::default());
            let set = |slot: &Slot, at: usize| {
                let start = 16 * at as u64;
                slot.set(
                    1,
                    (start, start + 16),
                    RegistrationStatus::ALL[at],
                    WindowOffset::new(PLAN, at as u32, 0),
                );
            };
            set(&slot, 0);
            let writing = {
                let slot = slot.clone();
                thread::spawn(move || set(&slot, 1))
            };
            for at in [0, 1] {
                let found = slot.find(1, 16 * at as u64, 16 * at as u64 + 16);
                let whole = (RegistrationStatus::ALL[at], WindowOffset::new(PLAN, at as u32, 0));
                assert!(found.is_none_or(|found| found == whole), "{found:?} at {at}");
            }
            writing.join().unwrap();
        });
    }
}
