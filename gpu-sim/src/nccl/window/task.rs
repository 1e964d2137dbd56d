//! The calls `ncclCommWindowRegister` and `ncclCommWindowDeregister`.

use std::os::fd::AsRawFd;
use std::sync::{Arc, MutexGuard, PoisonError};

use super::rules::{EdgeCase, ReleaseBehavior};
use super::{Slot, Space, Window, Windows};
use crate::memory::{Kind, Physical};
use crate::nccl::comm::Comm;
use crate::nccl::error::{Failure, Result};
use crate::nccl::host::{self, Call};
use crate::nccl::rma::Place;
use crate::nccl::shm::RankMessage;
use crate::nccl::transport::find_minority;
use crate::world::Machine;

/// Alignment of a window within its allocation, in bytes; 2.27 requires whole granules.
const ALIGNMENT: u64 = 4096;
const GRANULE: u64 = 2 << 20;

/// The arguments of a registration, and the facts known before the ranks meet.
#[derive(Clone, Debug)]
pub(crate) struct Registration {
    pub(crate) address: u64,
    pub(crate) size: u64,
    pub(crate) flags: i32,
    /// The handle that the window will have.
    pub(crate) handle: usize,
    /// The reason if the calling thread cannot register now because it captures.
    pub(crate) captured: Option<Failure>,
}

/// Value that a registration writes to the out parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Handle(usize),
    Null,
    Unwritten,
}

/// The memory under a window.
struct Memory {
    /// Base of the first allocation.
    base: u64,
    /// Bytes of all allocations.
    bytes: u64,
    physical: Vec<Arc<Physical>>,
    age: u64,
}

impl Memory {
    fn key(&self) -> Vec<usize> {
        self.physical.iter().map(|one| Arc::as_ptr(one).addr()).collect()
    }
}

fn lock(comm: &Comm) -> MutexGuard<'_, Windows> {
    comm.windows.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Registration {
    /// Returns the result if it does not depend on the other ranks.
    pub(crate) fn locally(&self, comm: &Comm) -> Option<Result<Outcome>> {
        let era = ReleaseBehavior::of(comm.release);
        if self.address == 0 || self.size == 0 {
            let text = format!("a window of {} bytes at {:#x}", self.size, self.address);
            return self.unusual(comm, era.empty(), text);
        }
        if !comm.topology().symmetric {
            return self.unusual(comm, era.without_support(), String::new());
        }
        None
    }

    fn unusual(&self, comm: &Comm, unusual: EdgeCase, text: String) -> Option<Result<Outcome>> {
        Some(match unusual {
            EdgeCase::Ignored => return None,
            EdgeCase::Null => Ok(Outcome::Null),
            EdgeCase::Unwritten => Ok(Outcome::Unwritten),
            EdgeCase::Refused => Err(Failure::argument(text)),
            EdgeCase::Local => {
                let mut local = comm.registrations.lock().unwrap_or_else(PoisonError::into_inner);
                local.add(self.address, self.size, self.handle).map(Outcome::Handle)
            }
        })
    }

    /// Registers together with the other ranks.
    ///
    /// In a strict world, a rank that fails on its own still meets the others, so that all of them fail. In a
    /// faithful world it returns, and the others wait for it.
    pub(crate) fn run(&self, machine: &Machine, comm: &Comm) -> Result<Outcome> {
        let era = ReleaseBehavior::of(comm.release);
        let memory = match self.inspect(machine, comm, era) {
            Ok(Ok(memory)) => memory,
            Ok(Err(outcome)) => return Ok(outcome),
            Err(failure) if !comm.strict => return Err(failure),
            Err(failure) => {
                let _ = host::exchange(comm, &host::card(Call::WindowFailed));
                return Err(failure);
            }
        };
        let shared = if era.shares() { lock(comm).slot_of(&memory.key()) } else { None };
        if let (ReleaseBehavior::V2_27, Some(slot), false) = (era, shared, comm.strict) {
            // 2.27 does not even contact the other ranks.
            return Ok(Outcome::Handle(self.insert(comm, memory, slot, Vec::new())));
        }
        let cards = self.meet(comm, era, &memory, shared.is_some())?;
        let places = tell_places(comm, &memory, &cards)?;
        let slot = match shared {
            Some(slot) => Ok(slot),
            None => {
                let largest = cards.iter().map(|card| card[BYTES]).max().unwrap_or(memory.bytes);
                lock(comm).take_slot(comm, era, &memory, largest)
            }
        };
        let mut end = host::card(Call::WindowEnd);
        end[1] = u64::from(slot.is_ok());
        let ends = match (&slot, comm.strict) {
            (Err(failure), false) => return Err(failure.clone()),
            _ => host::exchange(comm, &end)?,
        };
        let slot = slot?;
        if let Some(rank) = ends.iter().position(|end| end[1] == 0) {
            lock(comm).release(slot, true);
            return Err(Failure::remote(format!("rank {rank} of {comm} could not map the window")));
        }
        Ok(Outcome::Handle(self.insert(comm, memory, slot, places)))
    }

    /// Checks the memory: returns it, an outcome that needs no other rank, or an error.
    fn inspect(
        &self,
        machine: &Machine,
        comm: &Comm,
        era: ReleaseBehavior,
    ) -> Result<std::result::Result<Memory, Outcome>> {
        let (address, size) = (self.address, self.size);
        if let Some(captured) = &self.captured {
            return Err(captured.clone());
        }
        let end =
            address.checked_add(size).ok_or_else(|| Failure::argument("a window beyond all addresses"))?;
        let space = machine.memory.space();
        let mut cover = Vec::new();
        let mut at = address;
        while at < end {
            let Some(mapped) = space.at(at) else {
                return Err(Failure::cuda(format!("nothing is mapped at {at:#x}{}", space.explain(at))));
            };
            at = mapped.base + mapped.len;
            cover.push(mapped.clone());
        }
        drop(space);
        let first = &cover[0];
        let unusual = |unusual, text: String| match self.unusual(comm, unusual, text) {
            None => Ok(None),
            Some(Ok(outcome)) => Ok(Some(outcome)),
            Some(Err(failure)) => Err(failure),
        };
        let misaligned = if era == ReleaseBehavior::V2_27 {
            !first.base.is_multiple_of(GRANULE) || !first.len.is_multiple_of(GRANULE)
        } else {
            !(address - first.base).is_multiple_of(ALIGNMENT)
        };
        if misaligned {
            let offset = address - first.base;
            let text = format!(
                "a window at {offset:#x} of its allocation: windows are aligned to {ALIGNMENT} bytes"
            );
            if let Some(outcome) = unusual(era.misaligned(), text)? {
                return Ok(Err(outcome));
            }
        }
        if cover.len() > 1 {
            let text = format!("a window over {} physical segments", cover.len());
            // 2.28 does not check and fails later; a strict world reports it now.
            let rule = match era.several_segments() {
                EdgeCase::Ignored if era == ReleaseBehavior::V2_28 && comm.strict => EdgeCase::Refused,
                rule => rule,
            };
            if let Some(outcome) = unusual(rule, text)? {
                return Ok(Err(outcome));
            }
        }
        let mut age = u64::MAX;
        for mapped in &cover {
            let Kind::Virtual { handle } = mapped.kind else {
                let text =
                    format!("the memory at {:#x} has no handle: it was not made by cuMemCreate", mapped.base);
                return Err(Failure::cuda(text));
            };
            if !mapped.physical.is_exportable() {
                let text = format!("the memory at {:#x} was made without an exportable handle", mapped.base);
                return Err(Failure::cuda(text));
            }
            age = age.min(handle);
        }
        let bytes = cover.iter().map(|mapped| mapped.physical.size()).sum();
        let physical = cover.iter().map(|mapped| mapped.physical.clone()).collect();
        Ok(Ok(Memory { base: first.base, bytes, physical, age }))
    }

    /// Meets the other ranks, and compares the cards.
    fn meet(
        &self,
        comm: &Comm,
        era: ReleaseBehavior,
        memory: &Memory,
        known: bool,
    ) -> Result<Vec<RankMessage>> {
        let mut card = host::card(if known { Call::WindowKnown } else { Call::WindowNew });
        let unequal = era.allows_unequal_sizes();
        {
            let windows = lock(comm);
            card[NUMBER] = windows.registered;
            card[ORDINAL] = windows.live.values().filter(|w| w.age < memory.age).count() as u64;
        }
        card[SIZE] = self.size;
        card[BYTES] = memory.bytes;
        card[OFFSET] = self.address - memory.base;
        card[FLAGS] = self.flags as u32 as u64;
        card[SEGMENTS] = memory.physical.len() as u64;
        set_place(&mut card, memory.physical.first());
        let cards = host::exchange(comm, &card)?;
        let comparable: Vec<RankMessage> = cards
            .iter()
            .map(|card| {
                let mut card = *card;
                card[PLACE].fill(0);
                if unequal {
                    (card[SIZE], card[BYTES], card[SEGMENTS]) = (0, 0, 0);
                }
                card
            })
            .collect();
        if comm.strict {
            if let Some((odd, usual)) = find_minority(&comparable) {
                return Err(Failure::usage(difference(comm, odd, &cards[odd], usual, &cards[usual])));
            }
        } else if !unequal && cards.iter().any(|other| other[BYTES] != card[BYTES]) {
            return Err(Failure::cuda("mapping a peer's memory of another size failed"));
        }
        Ok(cards)
    }

    fn insert(&self, comm: &Comm, memory: Memory, slot: u64, places: Vec<Vec<Place>>) -> usize {
        let mut windows = lock(comm);
        let number = windows.registered;
        windows.registered += 1;
        if let Some(slot) = windows.slots.get_mut(&slot) {
            slot.windows += 1;
        }
        windows.live.insert(
            self.handle,
            Window {
                number,
                base: self.address,
                size: self.size,
                flags: self.flags,
                places,
                peers: Default::default(),
                memory: memory.physical,
                age: memory.age,
                slot,
            },
        );
        self.handle
    }
}

const NUMBER: usize = 1;
const SIZE: usize = 2;
const BYTES: usize = 3;
const OFFSET: usize = 4;
const ORDINAL: usize = 5;
const FLAGS: usize = 6;
/// Process, file, offset and size of the first segment; these differ between ranks.
const PLACE: std::ops::Range<usize> = 7..11;

/// Number of physical segments.
const SEGMENTS: usize = 11;

fn set_place(card: &mut RankMessage, physical: Option<&Arc<Physical>>) {
    if let Some(physical) = physical {
        card[PLACE].copy_from_slice(&[
            u64::from(std::process::id()),
            physical.file().as_raw_fd() as u64,
            physical.offset(),
            physical.size(),
        ]);
    }
}

/// Reads the location of a window's segment from a rank's card; `None` if the rank has no such segment.
fn place_of(card: &RankMessage) -> Option<Place> {
    let [process, file, offset, size] = [7, 8, 9, 10].map(|word| card[word]);
    (size > 0).then_some(Place { process, file, offset, size, start: card[OFFSET] })
}

/// Returns the location of every rank's segments. The first ones are on `cards`; the others are exchanged here.
fn tell_places(comm: &Comm, memory: &Memory, cards: &[RankMessage]) -> Result<Vec<Vec<Place>>> {
    let mut places: Vec<Vec<Place>> = cards.iter().map(|card| place_of(card).into_iter().collect()).collect();
    let most = cards.iter().map(|card| card[SEGMENTS]).max().unwrap_or(0);
    for segment in 1..most as usize {
        let mut card = host::card(Call::WindowMore);
        set_place(&mut card, memory.physical.get(segment));
        for (places, card) in places.iter_mut().zip(host::exchange(comm, &card)?) {
            places.extend(place_of(&card));
        }
    }
    Ok(places)
}

fn difference(comm: &Comm, odd: usize, a: &RankMessage, usual: usize, b: &RankMessage) -> String {
    let says = |rank: usize, card: &RankMessage| {
        format!(
            "rank {rank} registers {} bytes at offset {:#x} of an allocation of {} bytes, the {}. oldest of its windows \
             (flags {:#x}), as its registration {}",
            card[SIZE],
            card[OFFSET],
            card[BYTES],
            card[ORDINAL] + 1,
            card[FLAGS],
            card[NUMBER],
        )
    };
    format!("window registration differs between ranks of {comm}: {}, while {}", says(odd, a), says(usual, b))
}

impl Windows {
    fn slot_of(&self, key: &[usize]) -> Option<u64> {
        self.slots.iter().find(|(_, slot)| slot.memory == key).map(|(&number, _)| number)
    }

    fn take_slot(&mut self, comm: &Comm, era: ReleaseBehavior, memory: &Memory, bytes: u64) -> Result<u64> {
        let stride = comm.topology().stride;
        let space = self.space.get_or_insert_with(|| Space::new(stride, era.reuses_addresses()));
        let offset = space.take(bytes).ok_or_else(|| {
            Failure::internal(format!(
                "no symmetric address space for {bytes} bytes on {comm}: {} are left in one piece of {}",
                space.largest(),
                space.bytes()
            ))
        })?;
        self.next_slot += 1;
        self.slots.insert(self.next_slot, Slot { offset, bytes, windows: 0, memory: memory.key() });
        Ok(self.next_slot)
    }

    /// Removes one window from a slot (`empty`: the slot never had one). Removing the last frees the slot's
    /// addresses.
    fn release(&mut self, number: u64, empty: bool) {
        let Some(slot) = self.slots.get_mut(&number) else { return };
        slot.windows = slot.windows.saturating_sub(usize::from(!empty));
        if slot.windows == 0
            && let Some(slot) = self.slots.remove(&number)
            && let Some(space) = &mut self.space
        {
            space.give(slot.offset, slot.bytes);
        }
    }
}

/// Deregisters a window. The call is local.
pub(crate) fn deregister(machine: &Machine, comm: &Comm, handle: usize) -> Result {
    if handle == 0 {
        return Ok(());
    }
    let mut windows = lock(comm);
    let Some(window) = windows.live.remove(&handle) else {
        drop(windows);
        // Without window support, 2.27 and 2.28 returned the handle of a local registration.
        let local = !comm.topology().symmetric
            && ReleaseBehavior::of(comm.release).without_support() == EdgeCase::Local;
        if local {
            let mut registrations = comm.registrations.lock().unwrap_or_else(PoisonError::into_inner);
            return registrations.remove(handle);
        }
        return Err(Failure::usage(format!("{handle:#x} is no window of {comm}")));
    };
    if ReleaseBehavior::of(comm.release) == ReleaseBehavior::V2_27 {
        // The first deregistration unmaps the memory for all windows over it.
        windows.live.retain(|_, other| other.slot != window.slot);
        if let Some(slot) = windows.slots.get_mut(&window.slot) {
            slot.windows = 1;
        }
    }
    windows.release(window.slot, false);
    drop(windows);
    let gone = |physical: &Arc<Physical>, at: u64| {
        let space = machine.memory.space();
        !space.at(at).is_some_and(|mapped| Arc::ptr_eq(&mapped.physical, physical))
    };
    if window.memory.first().is_some_and(|first| gone(first, window.base)) {
        machine.misuse(format!(
            "the memory at {:#x} was unmapped before its window {} on {comm} was deregistered",
            window.base, window.number
        ));
    }
    Ok(())
}
