//! The process's device address space and its shadow.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

use super::PAGE;

/// Bytes of device address space. It is only reserved, which costs no memory.
const LENGTH: u64 = 8 << 40;
/// Preferred address of the region, far from the addresses that Linux uses for programs, stacks and mappings.
const HINT: u64 = 0x1000_0000_0000;

/// Two reservations of [`LENGTH`] bytes: the device addresses, never accessible, and the shadow.
#[derive(Debug)]
pub(crate) struct Region {
    base: u64,
    shadow: u64,
    /// True if the shadow keeps memory that is no longer mapped, until its addresses show other memory. In a world of
    /// one thread only: unmapping takes much of the time of a short run.
    keeps: bool,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Free address ranges: start → length.
    free: BTreeMap<u64, u64>,
    /// Start of the search for the next range. It moves forward, so freed addresses are reused as late as possible.
    cursor: u64,
    /// If freed addresses are reused soon: the state of the random numbers that place the next range.
    random: Option<u64>,
    /// Ranges shown in the shadow: start → (length, owner).
    shown: BTreeMap<u64, (u64, u64)>,
    next_owner: u64,
}

impl Region {
    /// `seed` (otherwise the process id) moves the base, so that ranks do not have equal addresses by chance.
    /// `reuses` is [`Builder::reuse_addresses`](crate::world::Builder::reuse_addresses). `is_private` is true if the
    /// world belongs to one thread.
    pub(crate) fn new(seed: Option<u64>, reuses: bool, is_private: bool) -> Result<Self, Errno> {
        let salt = seed.unwrap_or_else(|| rustix::process::getpid().as_raw_nonzero().get() as u64);
        let hint = HINT + (salt.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 52) * (1 << 30);
        let base = reserve(hint)?;
        let shadow = match reserve(0) {
            Ok(shadow) => shadow,
            Err(error) => {
                // SAFETY: reserved just above and not handed out.
                let _ = unsafe { munmap(base as *mut _, LENGTH as usize) };
                return Err(error);
            }
        };
        // The first granule stays free, so that addresses just below an allocation belong to no allocation.
        let first = base.next_multiple_of(super::GRANULARITY) + super::GRANULARITY;
        let state = State {
            free: BTreeMap::from([(first, base + LENGTH - first)]),
            cursor: first,
            random: reuses.then_some(salt),
            shown: BTreeMap::new(),
            next_owner: 1,
        };
        Ok(Self { base, shadow, keeps: is_private, state: Mutex::new(state) })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if `address` lies in the device address space.
    pub(crate) fn contains(&self, address: u64) -> bool {
        (self.base..self.base + LENGTH).contains(&address)
    }

    /// Returns the shadow address at which executors access a device address.
    pub(crate) fn shadow_of(&self, address: u64) -> *mut u8 {
        (address - self.base + self.shadow) as *mut u8
    }

    /// Takes `len` addresses (a multiple of the page), aligned, at `wish` if that is free. Returns `None` if there is
    /// no room.
    pub(crate) fn take(self: &Arc<Self>, len: u64, align: u64, wish: Option<u64>) -> Option<AddressRange> {
        let mut state = self.lock();
        let start = wish.filter(|&w| w.is_multiple_of(align) && state.fits(w, len)).or_else(|| {
            // One unmapped page between neighbours, so that an access past the end faults.
            let room = len.checked_add(PAGE)?;
            match state.draw() {
                Some(0) => state.find(room, align, self.base),
                Some(1) => state.find_highest(room, align),
                _ => state.find(room, align, state.cursor).or_else(|| state.find(room, align, self.base)),
            }
        })?;
        state.carve(start, len);
        state.cursor = start + len + PAGE;
        Some(AddressRange { region: self.clone(), start, len })
    }

    /// Maps `len` bytes of `fd` from `offset` at the shadow of `address`. Returns the owner number of this mapping.
    pub(super) fn show(&self, address: u64, len: u64, fd: BorrowedFd<'_>, offset: u64) -> Result<u64, Errno> {
        let mut state = self.lock();
        let flags = MapFlags::SHARED | MapFlags::FIXED | MapFlags::NORESERVE;
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the target lies in our own shadow reservation, at addresses that the caller holds by an
        // `AddressRange`; what was shown there before has no mapping any more.
        unsafe { mmap(self.shadow_of(address).cast(), len as usize, prot, flags, fd, offset)? };
        let covered: Vec<u64> = state.overlapping(address, len).collect();
        for start in covered {
            state.shown.remove(&start);
        }
        let owner = state.next_owner;
        state.next_owner += 1;
        state.shown.insert(address, (len, owner));
        Ok(owner)
    }

    /// Undoes [`Region::show`], unless other memory was shown there since.
    pub(super) fn hide(&self, address: u64, owner: u64) {
        let mut state = self.lock();
        if let Some(&(len, shown)) = state.shown.get(&address)
            && shown == owner
            && !self.keeps
        {
            state.shown.remove(&address);
            // SAFETY: the range is in our shadow reservation and its last user is gone (`Mapped` drops).
            let _ = unsafe { reserve_at(self.shadow_of(address).cast(), len, MapFlags::FIXED) };
        }
    }
}

impl State {
    fn overlapping(&self, start: u64, len: u64) -> impl Iterator<Item = u64> + '_ {
        self.shown.range(..start + len).rev().take_while(move |(s, v)| **s + v.0 > start).map(|(s, _)| *s)
    }

    fn fits(&self, start: u64, len: u64) -> bool {
        let end = start.checked_add(len);
        self.free
            .range(..=start)
            .next_back()
            .is_some_and(|(&s, &l)| end.is_some_and(|end| start >= s && end <= s + l))
    }

    fn find(&self, len: u64, align: u64, from: u64) -> Option<u64> {
        let before = self.free.range(..from).next_back().into_iter();
        before.chain(self.free.range(from..)).find_map(|(&s, &l)| {
            let start = s.max(from).checked_next_multiple_of(align)?;
            (start.checked_add(len)? <= s + l).then_some(start)
        })
    }

    fn find_highest(&self, len: u64, align: u64) -> Option<u64> {
        self.free.iter().rev().find_map(|(&s, &l)| {
            let start = (s + l).checked_sub(len)? / align * align;
            (start >= s).then_some(start)
        })
    }

    /// Draws a number below 3 if freed addresses are reused soon.
    fn draw(&mut self) -> Option<u64> {
        let random = self.random.as_mut()?;
        *random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        Some((*random >> 33) % 3)
    }

    /// Removes a range from the free ones.
    fn carve(&mut self, start: u64, len: u64) {
        let Some((&s, &l)) = self.free.range(..=start).next_back() else { return };
        self.free.remove(&s);
        if start > s {
            self.free.insert(s, start - s);
        }
        if s + l > start + len {
            self.free.insert(start + len, s + l - start - len);
        }
    }

    fn give_back(&mut self, mut start: u64, mut len: u64) {
        if let Some((&s, &l)) = self.free.range(..start).next_back()
            && s + l == start
        {
            self.free.remove(&s);
            (start, len) = (s, l + len);
        }
        if let Some(after) = self.free.remove(&(start + len)) {
            len += after;
        }
        self.free.insert(start, len);
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        for start in [self.base, self.shadow] {
            // SAFETY: both reservations are ours; views, mappings and address ranges hold the region, so none is
            // left.
            let _ = unsafe { munmap(start as *mut _, LENGTH as usize) };
        }
    }
}

/// Addresses of one owner; dropping it frees them.
#[derive(Debug)]
pub(crate) struct AddressRange {
    region: Arc<Region>,
    start: u64,
    len: u64,
}

impl AddressRange {
    pub(crate) fn start(&self) -> u64 {
        self.start
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    pub(crate) fn region(&self) -> &Arc<Region> {
        &self.region
    }
}

impl Drop for AddressRange {
    fn drop(&mut self) {
        self.region.lock().give_back(self.start, self.len);
    }
}

/// Makes an inaccessible reservation of [`LENGTH`] bytes, at `hint` if the system allows it.
fn reserve(hint: u64) -> Result<u64, Errno> {
    // SAFETY: without `FIXED`, nothing that is mapped is touched.
    unsafe { reserve_at(hint as *mut _, LENGTH, MapFlags::empty()) }.map(|p| p as u64)
}

/// # Safety
/// With `MapFlags::FIXED`, the range must be ours to replace.
unsafe fn reserve_at(
    at: *mut std::ffi::c_void,
    len: u64,
    flags: MapFlags,
) -> Result<*mut std::ffi::c_void, Errno> {
    let flags = flags | MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: the caller's promise.
    unsafe { mmap_anonymous(at, len as usize, ProtFlags::empty(), flags) }
}
