//! What a group has seen of the memory that its operations are given: that it is memory of its device, and whether it is
//! registered.
//!
//! Memory is looked up when it is seen for the first time, by its allocation: in the tables of the allocators that this
//! process follows, or by asking the driver. After that a buffer costs a comparison of what is in a cache line, no lock
//! and no call. What is seen is forgotten when a segment of an allocator that is followed comes or goes. Other memory
//! that was freed, and whose address is now something else, is not noticed.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering, fence},
    },
};

use cuda_driver::Context;

use super::{BufferError, GroupError, registration::Registered, report::Lying};
use crate::{
    Slim,
    comm::{Communicator, Operation, Task},
    memory::{self, Place},
    rare,
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
}

impl Slot {
    /// What was found of the range, if it is this one.
    #[inline]
    fn find(&self, generation: u64, start: u64, end: u64) -> Option<Lying> {
        let stamp = self.stamp.load(Ordering::Acquire);
        let found = self.generation.load(Ordering::Relaxed) == generation
            && self.start.load(Ordering::Relaxed) <= start
            && end <= self.end.load(Ordering::Relaxed);
        let lying = self.lying.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        let whole = stamp & 1 == 0 && self.stamp.load(Ordering::Relaxed) == stamp;
        if found && whole { Lying::from_code(lying) } else { None }
    }

    /// Takes an entry. One thread at a time does.
    fn set(&self, generation: u64, place: &Place, lying: Lying) {
        let stamp = self.stamp.load(Ordering::Relaxed);
        self.stamp.store(stamp + 1, Ordering::Relaxed);
        fence(Ordering::Release);
        self.generation.store(generation, Ordering::Relaxed);
        self.start.store(place.start, Ordering::Relaxed);
        self.end.store(place.end, Ordering::Relaxed);
        self.lying.store(lying as u64, Ordering::Relaxed);
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
    large: Box<[Slot; SLOTS]>,
    small: Box<[Slot; SLOTS]>,
    writing: Mutex<()>,
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
    pub(super) fn new(context: &Context, looks: bool) -> Self {
        let slots = || Box::new(std::array::from_fn(|_| Slot::default()));
        Self {
            context: context.clone(),
            looks,
            large: slots(),
            small: slots(),
            writing: Mutex::default(),
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
        let place = memory::look(&self.context, cuda_driver::DevicePtr(address), bytes);
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

    /// Looks at the buffers of an operation, whose arguments were checked.
    #[inline(always)]
    pub(super) fn look(&self, group: &str, communicator: &Communicator, task: &Task) -> Slim<(), GroupError> {
        if !self.looks {
            return Ok(());
        }
        let [first, second] = task.buffers(communicator.place());
        if let Some(buffer) = first {
            self.look_at(group, task, buffer)?;
        }
        if let Some(buffer) = second {
            self.look_at(group, task, buffer)?;
        }
        Ok(())
    }

    /// Looks at one: what it is for, where, and its bytes.
    #[inline(always)]
    fn look_at(
        &self,
        group: &str,
        task: &Task,
        (side, address, bytes): (&'static str, u64, u64),
    ) -> Slim<(), GroupError> {
        if bytes == 0 {
            return Ok(());
        }
        let lying = match self.known(address, address.saturating_add(bytes)) {
            Some(lying) => lying,
            None => {
                let (operation, buffer) = (task.call, side);
                self.find(address, bytes).map_err(|source| {
                    rare(move || {
                        let group = group.to_owned();
                        GroupError::Buffer { operation, group, buffer, source: *source }
                    })
                })?
            }
        };
        if lying == Lying::NotAgreed && !self.has_agreed.load(Ordering::Acquire) {
            self.remember(task.operation, address, bytes);
        }
        let count = &self.counts[task.operation as usize][lying as usize];
        // Not one step: of what two threads count at once, one may be lost, which costs less than a locked addition.
        count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        Ok(())
    }

    /// What was seen of a range before.
    #[inline]
    fn known(&self, start: u64, end: u64) -> Option<Lying> {
        let generation = memory::generation();
        let large = &self.large[(start >> PAGE) as usize % SLOTS];
        large.find(generation, start, end).or_else(|| {
            let small = &self.small[(start >> UNIT) as usize % SLOTS];
            small.find(generation, start, end)
        })
    }

    #[cold]
    fn find(&self, address: u64, bytes: u64) -> Slim<Lying, BufferError> {
        // Before the look: what changes meanwhile is looked up again.
        let generation = memory::generation();
        let place = memory::look(&self.context, cuda_driver::DevicePtr(address), bytes)?;
        let lying = Lying::of(&place, self.registrars.get().map(Vec::as_slice));
        let (slots, shift) = match place.end - place.start >= 1 << PAGE {
            true => (&self.large, PAGE),
            false => (&self.small, UNIT),
        };
        let _one = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        slots[(address >> shift) as usize % SLOTS].set(generation, &place, lying);
        Ok(lying)
    }
}

impl fmt::Debug for Sight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sight").field("looks", &self.looks).finish_non_exhaustive()
    }
}
