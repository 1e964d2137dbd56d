//! The mappings from device addresses to physical memory, with their rights.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;

use super::region::AddressRange;
use super::{Access, GRANULARITY, MemoryError, PAGE, Physical, Region, round_up};
use crate::world::Leak;

/// Number of freed ranges that are remembered, to explain accesses to them.
const REMEMBERED: usize = 4096;

/// The call that mapped the memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `cuMemAlloc`, by this context: readable and writable by its device and by peers that enabled access.
    Allocation { context: u64 },
    /// Stream-ordered allocation, by this context: readable and writable by its device and by devices that have
    /// rights on this pool.
    Pooled { context: u64, pool: u64 },
    /// `cuIpcOpenMemHandle`, by this context.
    Ipc { context: u64 },
    /// A variable of a module that this context loaded.
    Variable { context: u64 },
    /// `cuMemMap` of this handle, in a reservation: rights as set by `cuMemSetAccess`.
    Virtual { handle: u64 },
}

/// Names the call and the object that it was made in.
impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Allocation { context } => write!(f, "by cuMemAlloc in context {context:#x}"),
            Self::Pooled { context, pool } => {
                write!(f, "by cuMemAllocAsync in context {context:#x}, from pool {pool:#x}")
            }
            Self::Ipc { context } => write!(f, "by cuIpcOpenMemHandle in context {context:#x}"),
            Self::Variable { context } => write!(f, "a module's variable in context {context:#x}"),
            Self::Virtual { handle } => write!(f, "by cuMemMap of memory handle {handle:#x}"),
        }
    }
}

/// Mapped memory. It stays mapped in the shadow until the last reference is dropped.
#[derive(Debug)]
pub(crate) struct Mapped {
    range: Arc<AddressRange>,
    pub(crate) base: u64,
    /// Valid bytes from `base`.
    pub(crate) len: u64,
    pub(crate) physical: Arc<Physical>,
    pub(crate) kind: Kind,
    /// Owner number of its mapping in the shadow.
    owner: u64,
}

impl Drop for Mapped {
    fn drop(&mut self) {
        self.range.region().hide(self.base, self.owner);
    }
}

/// One mapping and the rights of devices on it (index: device).
#[derive(Debug)]
struct Entry {
    mapped: Arc<Mapped>,
    rights: BTreeMap<usize, Access>,
}

/// The table of reservations and mappings.
#[derive(Debug, Default)]
pub(crate) struct Space {
    reserved: BTreeMap<u64, Arc<AddressRange>>,
    mapped: BTreeMap<u64, Entry>,
    gone: VecDeque<(u64, u64, String)>,
}

/// Mappings that together show a range of addresses.
pub(crate) type Cover = Vec<Arc<Mapped>>;

impl Space {
    /// Reserves addresses and maps `len` bytes of `physical` (from its start) there.
    pub(crate) fn insert_whole(
        &mut self,
        region: &Arc<Region>,
        physical: Arc<Physical>,
        len: u64,
        kind: Kind,
    ) -> Result<u64, MemoryError> {
        let align = if len < GRANULARITY { PAGE } else { GRANULARITY };
        let room = round_up(len, PAGE).and_then(|room| region.take(room, align, None));
        let range = Arc::new(room.ok_or_else(no_addresses)?);
        let base = range.start();
        let mapped = show(range, base, len, physical, kind)?;
        self.mapped.insert(base, Entry { mapped, rights: BTreeMap::new() });
        Ok(base)
    }

    /// Removes an allocation (anything but a virtual mapping) by its base.
    pub(crate) fn remove_whole(
        &mut self,
        base: u64,
        wanted: impl FnOnce(&Kind) -> bool,
        by: &str,
    ) -> Result<Arc<Mapped>, MemoryError> {
        match self.mapped.get(&base) {
            Some(entry) if wanted(&entry.mapped.kind) => {}
            Some(entry) => {
                let kind = &entry.mapped.kind;
                return Err(MemoryError::Invalid(format!("{by} of {base:#x}, which is {kind:?}")));
            }
            None => {
                return Err(MemoryError::Invalid(format!("{by} of {base:#x}{}", self.explain(base))));
            }
        }
        let Some(entry) = self.mapped.remove(&base) else { unreachable!("looked up just above") };
        self.remember(base, entry.mapped.len, by);
        Ok(entry.mapped)
    }

    /// Reserves addresses, at `wish` if that is free.
    pub(crate) fn reserve(
        &mut self,
        region: &Arc<Region>,
        len: u64,
        align: u64,
        wish: u64,
    ) -> Result<u64, MemoryError> {
        let granules = len != 0 && len.is_multiple_of(GRANULARITY);
        if !granules || !(align == 0 || align.is_power_of_two()) {
            return Err(MemoryError::Invalid(format!(
                "reserving {len} bytes aligned to {align}: the size must be a multiple of {GRANULARITY}, the alignment a power of two"
            )));
        }
        let range =
            region.take(len, align.max(GRANULARITY), (wish != 0).then_some(wish)).ok_or_else(no_addresses)?;
        let start = range.start();
        self.reserved.insert(start, Arc::new(range));
        Ok(start)
    }

    /// Frees a whole reservation.
    pub(crate) fn unreserve(&mut self, start: u64, len: u64) -> Result<(), MemoryError> {
        let found = self.reserved.get(&start).map(|r| r.len());
        if found != Some(len) {
            return Err(MemoryError::Invalid(format!(
                "freeing the reservation of {len} bytes at {start:#x}: {}",
                found.map_or("there is none".to_owned(), |l| format!("it has {l} bytes"))
            )));
        }
        if let Some((base, _)) = self.mapped.range(start..start + len).next() {
            return Err(MemoryError::Invalid(format!(
                "freeing the reservation at {start:#x} while memory is mapped at {base:#x}"
            )));
        }
        self.reserved.remove(&start);
        self.remember(start, len, "cuMemAddressFree");
        Ok(())
    }

    /// Maps all of `physical` at `base`, inside a reservation. No device has rights yet. The driver does not support
    /// mapping a part of a handle.
    pub(crate) fn map(
        &mut self,
        base: u64,
        len: u64,
        offset: u64,
        handle: u64,
        physical: &Arc<Physical>,
    ) -> Result<(), MemoryError> {
        if len == 0 || [base, len, offset].iter().any(|v| !v.is_multiple_of(GRANULARITY)) {
            return Err(MemoryError::Invalid(format!(
                "mapping {len} bytes from {offset} at {base:#x}: all must be multiples of {GRANULARITY}"
            )));
        }
        if offset != 0 || len != physical.size() {
            let size = physical.size();
            return Err(MemoryError::Unsupported(format!(
                "mapping {len} bytes from {offset} of a handle of {size}: handles are mapped whole"
            )));
        }
        let Some(range) = self.reservation_of(base, len) else {
            return Err(MemoryError::Invalid(format!(
                "{len} bytes at {base:#x} lie in no single reservation"
            )));
        };
        if let Some(entry) = self.overlapping(base, len).next() {
            let (at, l) = (entry.mapped.base, entry.mapped.len);
            return Err(MemoryError::Invalid(format!("{base:#x}: {l} bytes are mapped at {at:#x}")));
        }
        let mapped = show(range, base, len, physical.clone(), Kind::Virtual { handle })?;
        self.mapped.insert(base, Entry { mapped, rights: BTreeMap::new() });
        Ok(())
    }

    /// Undoes the mappings in `[base, base + len)`, which lies in one reservation and cuts none of them.
    pub(crate) fn unmap(&mut self, base: u64, len: u64) -> Result<Cover, MemoryError> {
        let refuse =
            |why: &str| Err(MemoryError::Invalid(format!("unmapping {len} bytes at {base:#x}: {why}")));
        if len == 0 || !base.is_multiple_of(GRANULARITY) || !len.is_multiple_of(GRANULARITY) {
            return refuse("both must be multiples of the granularity");
        }
        if self.reservation_of(base, len).is_none() {
            return refuse("they lie in no single reservation");
        }
        let inside = |m: &Mapped| m.base >= base && m.base + m.len <= base + len;
        if !self.overlapping(base, len).all(|e| inside(&e.mapped)) {
            return refuse("a mapping would be cut");
        }
        let bases: Vec<u64> = self.overlapping(base, len).map(|e| e.mapped.base).collect();
        let gone: Cover = bases.iter().filter_map(|b| self.mapped.remove(b)).map(|e| e.mapped).collect();
        for mapped in &gone {
            self.remember(mapped.base, mapped.len, "cuMemUnmap");
        }
        Ok(gone)
    }

    /// Sets devices' rights on whole mappings.
    pub(crate) fn set_access(
        &mut self,
        base: u64,
        len: u64,
        rights: &[(usize, Access)],
    ) -> Result<(), MemoryError> {
        for mapping in self.virtual_mappings(base, len, "setting access to")? {
            if let Some(entry) = self.mapped.get_mut(&mapping) {
                entry.rights.extend(rights.iter().copied());
            }
        }
        Ok(())
    }

    /// The rights of `device` on the virtual mapping at `address`.
    pub(crate) fn access_of(&self, device: usize, address: u64) -> Option<Access> {
        let entry = self.entry_at(address)?;
        Some(entry.rights.get(&device).copied().unwrap_or(Access::empty()))
    }

    /// Returns the mapping at `address`.
    pub(crate) fn at(&self, address: u64) -> Option<&Arc<Mapped>> {
        self.entry_at(address).map(|e| &e.mapped)
    }

    /// The reservation or allocation around `address`: its base and length in bytes.
    pub(crate) fn range_around(&self, address: u64) -> Option<(u64, u64)> {
        let reserved = self.reserved.range(..=address).next_back().map(|(&s, r)| (s, r.len()));
        let reserved = reserved.filter(|&(s, l)| address < s + l);
        reserved.or_else(|| self.at(address).map(|m| (m.base, m.len)))
    }

    /// Returns the base and length of the mapping at `address`; for a virtual mapping only if `device` has rights on
    /// it.
    pub(crate) fn mapping_around(&self, address: u64, device: usize) -> Option<(u64, u64)> {
        let entry = self.entry_at(address)?;
        let visible = match entry.mapped.kind {
            Kind::Virtual { .. } => entry.rights.get(&device).is_some_and(|r| !r.is_empty()),
            _ => true,
        };
        visible.then_some((entry.mapped.base, entry.mapped.len))
    }

    /// Looks up `[address, address + len)`. `grants` returns the requester's rights on a mapping. Fails with the
    /// first unmapped address, or with the mapping that refuses and the rights that it grants.
    pub(crate) fn cover(
        &self,
        address: u64,
        len: u64,
        wanted: Access,
        grants: impl Fn(&Mapped, &BTreeMap<usize, Access>) -> Access,
    ) -> Result<Cover, Refused> {
        let mut cover = Vec::with_capacity(1);
        let end = address.checked_add(len).ok_or(Refused::Unmapped { at: address })?;
        let mut at = address;
        while at < end {
            let entry = self.entry_at(at).ok_or(Refused::Unmapped { at })?;
            let granted = grants(&entry.mapped, &entry.rights);
            if !granted.contains(wanted) {
                return Err(Refused::Denied { mapping: entry.mapped.base, granted });
            }
            at = entry.mapped.base + entry.mapped.len;
            cover.push(entry.mapped.clone());
        }
        Ok(cover)
    }

    /// Explains why an address is unmapped, as the end of a sentence.
    pub(crate) fn explain(&self, address: u64) -> String {
        if let Some((s, l, how)) = self.gone.iter().rev().find(|(s, l, _)| (*s..s + l).contains(&address)) {
            return format!(" (inside the {l} bytes at {s:#x} that {how} took away)");
        }
        if let Some((&s, r)) = self.reserved.range(..=address).next_back()
            && address < s + r.len()
        {
            return format!(" (reserved at {s:#x}, but not mapped)");
        }
        match self.mapped.range(..=address).next_back() {
            Some((&s, e)) if address < s + e.mapped.len => {
                format!(" (inside the {} bytes at {s:#x})", e.mapped.len)
            }
            Some((&s, e)) if address < s + e.mapped.len + GRANULARITY => {
                let past = address - s - e.mapped.len;
                format!(" ({past} bytes past the end of the {} bytes at {s:#x})", e.mapped.len)
            }
            _ => String::new(),
        }
    }

    /// Removes everything that `context` allocated.
    pub(crate) fn remove_context(&mut self, gone: u64) -> Cover {
        let bases: Vec<u64> = self
            .mapped
            .iter()
            .filter(|(_, e)| {
                matches!(e.mapped.kind, Kind::Allocation { context } | Kind::Pooled { context, .. } | Kind::Ipc { context } | Kind::Variable { context } if context == gone)
            })
            .map(|(&base, _)| base)
            .collect();
        bases
            .into_iter()
            .filter_map(|base| {
                let entry = self.mapped.remove(&base)?;
                self.remember(base, entry.mapped.len, "the end of its context");
                Some(entry.mapped)
            })
            .collect()
    }

    pub(super) fn leaks(&self) -> Vec<Leak> {
        let mapped = self.mapped.values().map(|e| {
            let m = &e.mapped;
            let kind = if matches!(m.kind, Kind::Virtual { .. }) { "mapping" } else { "allocation" };
            let what =
                format!("{} bytes at {:#x} on device {}, {}", m.len, m.base, m.physical.device(), m.kind);
            Leak { kind, what }
        });
        let reserved = self
            .reserved
            .iter()
            .map(|(s, r)| Leak { kind: "reservation", what: format!("{} bytes at {s:#x}", r.len()) });
        mapped.chain(reserved).collect()
    }

    fn entry_at(&self, address: u64) -> Option<&Entry> {
        let (&base, entry) = self.mapped.range(..=address).next_back()?;
        (address < base + entry.mapped.len).then_some(entry)
    }

    fn overlapping(&self, base: u64, len: u64) -> impl Iterator<Item = &Entry> {
        let end = base.saturating_add(len);
        self.mapped.range(..end).rev().take_while(move |(b, e)| **b + e.mapped.len > base).map(|(_, e)| e)
    }

    fn reservation_of(&self, base: u64, len: u64) -> Option<Arc<AddressRange>> {
        let (&start, range) = self.reserved.range(..=base).next_back()?;
        (base.checked_add(len)? <= start + range.len()).then(|| range.clone())
    }

    /// The bases of the virtual mappings that tile `[base, base + len)` exactly.
    fn virtual_mappings(&self, base: u64, len: u64, what: &str) -> Result<Vec<u64>, MemoryError> {
        let refuse = |why: String| MemoryError::Invalid(format!("{what} {len} bytes at {base:#x}: {why}"));
        let end = base.checked_add(len).filter(|_| len > 0).ok_or_else(|| refuse("no such range".into()))?;
        let mut bases = Vec::new();
        let mut at = base;
        while at < end {
            match self.mapped.get(&at) {
                Some(e) if matches!(e.mapped.kind, Kind::Virtual { .. }) => {
                    bases.push(at);
                    at += e.mapped.len;
                }
                Some(_) => return Err(refuse(format!("{at:#x} is an allocation"))),
                None => return Err(refuse(format!("no mapping begins at {at:#x}{}", self.explain(at)))),
            }
        }
        if at != end {
            return Err(refuse(format!("the last mapping ends at {at:#x}")));
        }
        Ok(bases)
    }

    fn remember(&mut self, base: u64, len: u64, how: &str) {
        if self.gone.len() == REMEMBERED {
            self.gone.pop_front();
        }
        self.gone.push_back((base, len, how.to_owned()));
    }
}

/// Why [`Space::cover`] failed.
#[derive(Debug)]
pub(crate) enum Refused {
    Unmapped { at: u64 },
    Denied { mapping: u64, granted: Access },
}

fn no_addresses() -> MemoryError {
    MemoryError::Invalid("the device address space has no such range left".into())
}

fn show(
    range: Arc<AddressRange>,
    base: u64,
    len: u64,
    physical: Arc<Physical>,
    kind: Kind,
) -> Result<Arc<Mapped>, MemoryError> {
    let bytes = len.next_multiple_of(PAGE);
    let owner = range
        .region()
        .show(base, bytes, physical.file(), physical.offset())
        .map_err(|source| MemoryError::Host { what: "mapping device memory", source })?;
    Ok(Arc::new(Mapped { range, base, len, physical, kind, owner }))
}
