//! What a group has seen of the memory that its operations are given: that it is memory of its device, whether it is
//! registered, and where in its windows it lies.
//!
//! Memory is looked up when it is seen for the first time, by its allocation: in the tables of the allocators that this
//! process follows, or by asking the driver. After that a buffer costs a comparison of what is in a cache line, no lock
//! and no call. What is seen is forgotten when a segment of an allocator that is followed comes or goes, and when
//! [windows](super::places) do. Other memory that was freed, and whose address is now something else, is not noticed.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use cuda_driver::{Context, DevicePtr, Stream, graph::CaptureStatus};
use nccl_sys::Version;

use super::{BufferError, GroupError, places::Places, registration::Registered, report::Lying};
use crate::{
    Slim,
    comm::{Communicator, Nccl, Operation, Task},
    memory::{self, CommonPlace, Place, PlanNames},
    rare,
    sync::atomic::{AtomicBool, AtomicU64, Ordering, fence},
};

/// What was found out about a range. A reader that finds the same stamp before and after has read one entry.
#[derive(Default)]
#[repr(align(64))]
struct Slot {
    /// Another number with each entry; odd while it is written.
    stamp: AtomicU64,
    /// The tables' generation that it was found in; 0: nothing is here.
    generation: AtomicU64,
    start: AtomicU64,
    end: AtomicU64,
    lying: AtomicU64,
    /// Where its start lies: the plan's digest, and the code.
    plan: AtomicU64,
    place: AtomicU64,
}

impl Slot {
    /// What was found of the range, if it is this one.
    #[inline]
    fn find(&self, generation: u64, start: u64, end: u64) -> Option<(Lying, CommonPlace)> {
        let stamp = self.stamp.load(Ordering::Acquire);
        let begin = self.start.load(Ordering::Relaxed);
        let found = self.generation.load(Ordering::Relaxed) == generation
            && begin <= start
            && end <= self.end.load(Ordering::Relaxed);
        let lying = self.lying.load(Ordering::Relaxed);
        let (plan, code) = (self.plan.load(Ordering::Relaxed), self.place.load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        let whole = stamp & 1 == 0 && self.stamp.load(Ordering::Relaxed) == stamp;
        if !found || !whole {
            return None;
        }
        Some((Lying::from_code(lying)?, CommonPlace::from_parts(plan, code).behind(start - begin)))
    }

    /// Takes an entry. One thread at a time does.
    fn set(&self, generation: u64, (start, end): (u64, u64), lying: Lying, place: CommonPlace) {
        let stamp = self.stamp.load(Ordering::Relaxed);
        self.stamp.store(stamp + 1, Ordering::Relaxed);
        fence(Ordering::Release);
        self.generation.store(generation, Ordering::Relaxed);
        self.start.store(start, Ordering::Relaxed);
        self.end.store(end, Ordering::Relaxed);
        self.lying.store(lying as u64, Ordering::Relaxed);
        self.plan.store(place.plan(), Ordering::Relaxed);
        self.place.store(place.code(), Ordering::Relaxed);
        self.stamp.store(stamp + 2, Ordering::Release);
    }
}

/// How many slots there are for allocations of a page or more, and as many again for smaller ones.
const SLOTS: usize = 64;
/// As a power of two: allocations of so many bytes are many pages.
const PAGE: u32 = 21;
/// As a power of two: what the driver aligns to.
const UNIT: u32 = 9;

const OPERATIONS: usize = Operation::ALL.len();
const LYINGS: usize = Lying::ALL.len();

/// What one group has seen.
pub(super) struct Sight {
    context: Context,
    /// Whether buffers are looked at.
    pub(super) looks: bool,
    /// Whether NCCL takes what a graph captures for one piece of memory, and registers it.
    captures_whole: bool,
    large: Box<[Slot; SLOTS]>,
    small: Box<[Slot; SLOTS]>,
    writing: Mutex<()>,
    /// The group's windows.
    pub(super) places: Places,
    /// Whose segments the first communicators know that memory was registered with.
    registrars: OnceLock<Vec<u64>>,
    /// Buffers that were seen, by operation and by how they lay.
    counts: [[AtomicU64; LYINGS]; OPERATIONS],
    /// Whether members have agreed, to whatever.
    has_agreed: AtomicBool,
    /// Those of the buffers counted as not agreed to that were seen before that, by operation and by the registrar of
    /// their segments: the call that makes the communicator of a lazy group is looked at before it does.
    early: Mutex<BTreeMap<(usize, u64), u64>>,
}

impl Sight {
    pub(super) fn new(context: &Context, nccl: &Nccl, looks: bool, plans: Arc<PlanNames>) -> Self {
        const PIECES: Version = Version::new(2, 29, 0);
        let registers = std::env::var("NCCL_GRAPH_REGISTER").map_or(true, |value| value.trim() != "0");
        let slots = || Box::new(std::array::from_fn(|_| Slot::default()));
        Self {
            context: context.clone(),
            looks,
            captures_whole: registers && nccl.release() < PIECES,
            large: slots(),
            small: slots(),
            writing: Mutex::default(),
            places: Places::new(plans),
            registrars: OnceLock::new(),
            counts: std::array::from_fn(|_| std::array::from_fn(|_| AtomicU64::new(0))),
            has_agreed: AtomicBool::new(false),
            early: Mutex::default(),
        }
    }

    /// What became of registration.
    pub(super) fn agreed(&self, registered: &Registered) {
        if registered.outcome.is_ok() && self.registrars.set(registered.registrars.clone()).is_ok() {
            // What a lazy group has seen before lies otherwise now.
            memory::renew();
        }
        let mut early = self.early.lock().unwrap_or_else(PoisonError::into_inner);
        self.has_agreed.store(true, Ordering::Release);
        let registrars = self.registrars.get().map(Vec::as_slice);
        for ((operation, registrar), buffers) in std::mem::take(&mut *early) {
            let [from, to] = [Lying::NotAgreed, Lying::of_registrar(registrar, registrars)]
                .map(|lying| &self.counts[operation][lying as usize]);
            let moved = from.load(Ordering::Relaxed).min(buffers);
            from.fetch_sub(moved, Ordering::Relaxed);
            to.fetch_add(moved, Ordering::Relaxed);
        }
    }

    /// Remembers a buffer that is counted as not agreed to, while nothing has been agreed.
    #[cold]
    fn remember(&self, operation: Operation, address: u64, bytes: u64) {
        let place = memory::look(&self.context, DevicePtr(address), bytes);
        if let Ok(Place { segment: Some((registrar, None)), .. }) = place {
            let mut early = self.early.lock().unwrap_or_else(PoisonError::into_inner);
            if !self.has_agreed.load(Ordering::Acquire) {
                *early.entry((operation as usize, registrar)).or_default() += 1;
            }
        }
    }

    /// How many buffers of an operation lay so.
    pub(super) fn seen(&self, operation: Operation, lying: Lying) -> u64 {
        self.counts[operation as usize][lying as usize].load(Ordering::Relaxed)
    }

    /// Looks at the buffers of an operation, whose arguments were checked, and notes where those lie that have to lie alike.
    #[inline(always)]
    pub(super) fn look(
        &self,
        group: &str,
        communicator: &Communicator,
        task: &mut Task,
        stream: &Stream,
    ) -> Slim<(), GroupError> {
        if !self.looks {
            self.places.note(communicator, task);
            return Ok(());
        }
        let [first, second] = task.buffers(communicator.place());
        let mut places = [CommonPlace::default(); 2];
        if let Some(buffer) = first {
            // In place, one stands for both.
            places = [self.look_at(group, task, buffer, stream)?; 2];
        }
        if let Some(buffer) = second {
            places[1] = self.look_at(group, task, buffer, stream)?;
        }
        let [sends, receives] = task.operation.symmetric();
        task.places = [places[0].only(sends), places[1].only(receives)];
        Ok(())
    }

    /// Looks at one: what it is for, where, and its bytes.
    #[inline(always)]
    fn look_at(
        &self,
        group: &str,
        task: &Task,
        (side, address, bytes): (&'static str, u64, u64),
        stream: &Stream,
    ) -> Slim<CommonPlace, GroupError> {
        if bytes == 0 {
            return Ok(CommonPlace::default());
        }
        let (lying, place) = match self.known(address, address.saturating_add(bytes)) {
            Some(known) => known,
            None => self.find(address, bytes).map_err(|source| wrong(group, task, side, source))?,
        };
        if lying == Lying::Remappable && self.captures_whole {
            self.in_one(address, bytes, stream).map_err(|source| wrong(group, task, side, source))?;
        }
        if lying == Lying::NotAgreed && !self.has_agreed.load(Ordering::Acquire) {
            self.remember(task.operation, address, bytes);
        }
        let count = &self.counts[task.operation as usize][lying as usize];
        // Not one step: of what two threads count at once, one may be lost, which costs less than a locked addition.
        count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        Ok(place)
    }

    /// Memory whose pieces come and go is one where a graph captures it.
    #[cold]
    fn in_one(&self, address: u64, bytes: u64, stream: &Stream) -> Slim<(), BufferError> {
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

    /// What was seen of a range before.
    #[inline]
    fn known(&self, start: u64, end: u64) -> Option<(Lying, CommonPlace)> {
        let generation = memory::generation();
        let large = &self.large[(start >> PAGE) as usize % SLOTS];
        large.find(generation, start, end).or_else(|| {
            let small = &self.small[(start >> UNIT) as usize % SLOTS];
            small.find(generation, start, end)
        })
    }

    #[cold]
    fn find(&self, address: u64, bytes: u64) -> Slim<(Lying, CommonPlace), BufferError> {
        // Before the look: what changes meanwhile is looked up again.
        let generation = memory::generation();
        let Place { mut start, mut end, segment } = memory::look(&self.context, DevicePtr(address), bytes)?;
        let lying = Lying::of(&Place { start, end, segment }, self.registrars.get().map(Vec::as_slice));
        let (mut place, last) = (CommonPlace::default(), address.saturating_add(bytes));
        match self.places.window(address) {
            Some(window) if last <= window.segment.end => {
                (start, end) = (start.max(window.segment.start), end.min(window.segment.end));
                place = window.place(start);
            }
            None if self.places.are_none() => {}
            // Of what runs into a window, or out of one, nothing is remembered.
            _ if self.places.window(last - 1).is_some() => return Ok((lying, place)),
            // There may be windows around it.
            _ => (start, end) = (address, last),
        }
        let (slots, shift) = match end - start >= 1 << PAGE {
            true => (&self.large, PAGE),
            false => (&self.small, UNIT),
        };
        let _one = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        slots[(address >> shift) as usize % SLOTS].set(generation, (start, end), lying, place);
        Ok((lying, place.behind(address - start)))
    }
}

/// The error of a buffer that cannot be used.
#[cold]
fn wrong(group: &str, task: &Task, buffer: &'static str, source: Box<BufferError>) -> Box<GroupError> {
    let (operation, group) = (task.call, group.to_owned());
    rare(move || GroupError::Buffer { operation, group, buffer, source: *source })
}

impl fmt::Debug for Sight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sight").field("looks", &self.looks).finish_non_exhaustive()
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

    /// A look beside a change, such as of what the members have agreed to register.
    #[test]
    fn what_is_remembered_under_a_generation_was_found_in_it() {
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
                    // As `Sight::find`.
                    let generation = memory::generation();
                    let lying = Lying::ALL[fact.load(Ordering::Acquire) as usize];
                    slot.set(generation, (0, 16), lying, CommonPlace::default());
                })
            };
            // As `Sight::known`.
            let seen = slot.find(memory::generation(), 0, 16);
            assert!(seen.is_none_or(|(lying, _)| Lying::ALL[..2].contains(&lying)));
            changing.join().unwrap();
            looking.join().unwrap();
            let remembered = slot.find(memory::generation(), 0, 16);
            assert!(remembered.is_none_or(|(lying, _)| lying == Lying::ALL[1]), "found before the change");
        });
    }

    /// Two entries of one slot, and who looks for either.
    #[test]
    fn an_entry_is_read_whole() {
        check(|| {
            let slot = Arc::new(Slot::default());
            let set = |slot: &Slot, at: usize| {
                let start = 16 * at as u64;
                slot.set(1, (start, start + 16), Lying::ALL[at], CommonPlace::new(PLAN, at as u32, 0));
            };
            set(&slot, 0);
            let writing = {
                let slot = slot.clone();
                thread::spawn(move || set(&slot, 1))
            };
            for at in [0, 1] {
                let found = slot.find(1, 16 * at as u64, 16 * at as u64 + 16);
                let whole = (Lying::ALL[at], CommonPlace::new(PLAN, at as u32, 0));
                assert!(found.is_none_or(|found| found == whole), "{found:?} at {at}");
            }
            writing.join().unwrap();
        });
    }
}
