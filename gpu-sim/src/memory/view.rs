//! Checked access from an address to bytes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use super::host::Pinned;
use super::space::{Kind, Mapped, Refused};
use super::{Access, Memory};
use crate::driver::Pools;
use crate::fault::Fault;
use crate::sched::{self, Signal, WaitError};
use crate::world::{self, Machine};

/// Bytes of device or pinned memory. The access was checked when the view was made, and the view keeps the bytes
/// alive.
///
/// Other executors, ranks and processes may change the bytes at any time, as on a device. The safe methods therefore
/// copy; slices need the caller's promise that nothing else writes.
pub struct View {
    pointer: *mut u8,
    len: usize,
    access: Access,
    /// References that keep the bytes alive.
    pins: Vec<Pin>,
}

/// A reference that keeps a part of a view alive.
#[derive(Clone)]
enum Pin {
    Mapped(Arc<Mapped>),
    Pinned(Arc<Pinned>),
}

impl Pin {
    /// Notified after writes to this memory.
    fn written(&self) -> &Signal {
        match self {
            Self::Mapped(mapped) => mapped.physical.written(),
            Self::Pinned(pinned) => &pinned.written,
        }
    }
}

// SAFETY: a view is an address and what keeps it valid; the bytes are shared memory whatever thread looks.
unsafe impl Send for View {}
// SAFETY: as above; no method gives out a reference without `unsafe`.
unsafe impl Sync for View {}

impl std::fmt::Debug for View {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("View").field("pointer", &self.pointer).field("len", &self.len).finish()
    }
}

impl View {
    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Pointer to the first byte.
    #[must_use]
    pub fn as_ptr(&self) -> *const u8 {
        self.pointer
    }

    /// Pointer to the first byte. Writing is allowed if the view was made with [`Access::WRITE`].
    #[must_use]
    pub fn as_mut_ptr(&self) -> *mut u8 {
        self.pointer
    }

    /// Blocks until `condition`, which reads these bytes, holds. Only writes through views wake it, those of other
    /// processes included; plain stores by the host into pinned memory are seen within a millisecond.
    ///
    /// # Errors
    /// The errors of [`sched::wait`].
    pub fn wait(
        &self,
        reason: impl FnOnce() -> String,
        condition: impl FnMut() -> bool,
    ) -> Result<(), Fault> {
        Ok(self.wait_until(None, reason, condition)?)
    }

    /// Like [`wait`](Self::wait), but only until `deadline` on the clock of [`sched::now`], for kernels that give up
    /// by themselves.
    ///
    /// # Errors
    /// The errors of [`sched::wait`].
    pub fn wait_until(
        &self,
        deadline: Option<Duration>,
        reason: impl FnOnce() -> String,
        mut condition: impl FnMut() -> bool,
    ) -> Result<(), WaitError> {
        let Some(pin) = self.pins.first() else {
            return sched::wait(&Signal::new(), reason, deadline, condition);
        };
        if matches!(pin, Pin::Mapped(_)) || sched::is_virtual() {
            return sched::wait(pin.written(), reason, deadline, condition);
        }
        let reason = reason();
        loop {
            let soon = sched::now() + Duration::from_millis(1);
            let soon = deadline.map_or(soon, |deadline| deadline.min(soon));
            match sched::wait(pin.written(), || reason.clone(), Some(soon), &mut condition) {
                Err(WaitError::TimedOut { .. }) if deadline != Some(soon) => {}
                other => return other,
            }
        }
    }

    /// Returns the word of 32 bits at `offset`, for kernels that race for it on purpose. Changing it needs a view
    /// made with [`Access::WRITE`]; dropping that view wakes the threads that wait for writes.
    ///
    /// # Errors
    /// [`Fault::Misaligned`].
    ///
    /// # Panics
    /// If the word is not inside.
    pub fn atomic_u32(&self, offset: usize) -> Result<&AtomicU32, Fault> {
        assert!(offset.checked_add(4).is_some_and(|end| end <= self.len), "a word past the end of a view");
        let word = self.pointer.wrapping_add(offset).cast::<AtomicU32>();
        if !word.is_aligned() {
            return Err(Fault::Misaligned { address: word.addr() as u64, alignment: 4 });
        }
        // SAFETY: in range (asserted), aligned, alive as long as the view (pins); whoever else looks at shared memory
        // uses atomics or accepts to race, as on a device.
        Ok(unsafe { &*word })
    }

    /// Copies its bytes from `offset` into `to`.
    ///
    /// # Panics
    /// If the range is not inside.
    pub fn read(&self, offset: usize, to: &mut [u8]) {
        assert!(
            offset.checked_add(to.len()).is_some_and(|end| end <= self.len),
            "read past the end of a view"
        );
        // SAFETY: in range (asserted), alive (pins); `to` is ours alone, so the two do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(self.pointer.add(offset), to.as_mut_ptr(), to.len()) }
    }

    /// Copies `from` to its bytes at `offset`. The view must have been made with [`Access::WRITE`].
    ///
    /// # Panics
    /// If the range is not inside.
    pub fn write(&self, offset: usize, from: &[u8]) {
        assert!(
            offset.checked_add(from.len()).is_some_and(|end| end <= self.len),
            "write past the end of a view"
        );
        // SAFETY: in range (asserted), alive (pins); pinned memory may be what `from` borrows, so `copy`.
        unsafe { std::ptr::copy(from.as_ptr(), self.pointer.add(offset), from.len()) }
    }

    /// Copies all bytes of `from`, which may overlap, to its beginning.
    ///
    /// # Panics
    /// If `from` is longer.
    pub fn copy_from(&self, from: &View) {
        assert!(from.len <= self.len, "copy past the end of a view");
        // SAFETY: both in range (asserted) and alive (pins).
        unsafe { std::ptr::copy(from.pointer, self.pointer, from.len) }
    }

    /// Its bytes as elements.
    ///
    /// # Safety
    /// Any bytes are a valid `T`; the address is aligned for `T`; nobody writes while the slice lives.
    #[must_use]
    pub unsafe fn as_slice<T>(&self) -> &[T] {
        // SAFETY: the caller's promises; in range and alive by construction.
        unsafe { std::slice::from_raw_parts(self.pointer.cast(), self.len / size_of::<T>()) }
    }

    /// Its bytes as elements to write. The view must have been made with [`Access::WRITE`].
    ///
    /// # Safety
    /// As [`View::as_slice`]; in addition nothing else reads or writes the bytes, not even through another slice of
    /// this view.
    #[must_use]
    #[expect(
        clippy::mut_from_ref,
        reason = "the bytes are shared memory; exclusiveness is the caller's promise"
    )]
    pub unsafe fn as_mut_slice<T>(&self) -> &mut [T] {
        // SAFETY: the caller's promises; in range and alive by construction.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.cast(), self.len / size_of::<T>()) }
    }
}

impl Drop for View {
    /// Wakes threads that wait for writes: dropping the view ends the write.
    fn drop(&mut self) {
        if self.access.contains(Access::WRITE) {
            self.pins.iter().for_each(|pin| pin.written().notify());
        }
    }
}

/// The engine that accesses memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Accessor {
    /// A kernel on this device, limited by mapping rights and enabled peers.
    Kernel(usize),
    /// A copy engine of this device: it accesses any device's plain allocations, but virtual mappings only by their
    /// rights.
    Copy(usize),
}

/// Kind of memory at an address.
#[derive(Debug, Clone)]
pub(crate) enum Place {
    /// A device address, whether or not something is mapped there.
    Device,
    /// Pinned host memory.
    Pinned,
    /// Any other host address.
    Pageable,
}

/// Returns the kind of memory that `address` names.
pub(crate) fn classify(memory: &Memory, address: u64) -> Place {
    if memory.region().contains(address) {
        Place::Device
    } else if memory.host().at(address).is_some() {
        Place::Pinned
    } else {
        Place::Pageable
    }
}

/// Returns the bytes at `[address, address + len)` with the rights of a kernel of `device`, for `access`. It accepts
/// device addresses and pinned host memory; a range may span neighbouring mappings.
///
/// # Errors
/// [`Fault::Unmapped`] where nothing is mapped (use after free, out of range, pageable host memory),
/// [`Fault::AccessDenied`] where the device lacks the right.
pub fn view(device: usize, address: u64, len: u64, access: Access) -> Result<View, Fault> {
    let machine = world::machine().ok_or_else(|| WaitError::Stopped { reason: "device memory".into() })?;
    view_as(&machine, Accessor::Kernel(device), address, len, access)
}

pub(crate) fn view_as(
    machine: &Machine,
    accessor: Accessor,
    address: u64,
    len: u64,
    access: Access,
) -> Result<View, Fault> {
    let (Accessor::Kernel(device) | Accessor::Copy(device)) = accessor;
    let memory = &machine.memory;
    if len == 0 {
        return Ok(View {
            pointer: std::ptr::NonNull::dangling().as_ptr(),
            len: 0,
            access,
            pins: Vec::new(),
        });
    }
    let unmapped = |at, history| Fault::Unmapped { device, access, address, len, at, history };
    if memory.region().contains(address) {
        let space = memory.space();
        let grants =
            |mapped: &Mapped, rights: &BTreeMap<usize, Access>| grants(machine, accessor, mapped, rights);
        let cover = space.cover(address, len, access, grants).map_err(|refused| match refused {
            Refused::Unmapped { at } => unmapped(at, space.explain(at)),
            Refused::Denied { mapping, granted } => {
                Fault::AccessDenied { device, access, address, len, mapping, granted }
            }
        })?;
        let pins = cover.into_iter().map(Pin::Mapped).collect();
        return Ok(View { pointer: memory.region().shadow_of(address), len: len as usize, access, pins });
    }
    match memory.host().at(address) {
        Some(p) if address.checked_add(len).is_some_and(|end| end <= p.base + p.len) => {
            let pins = vec![Pin::Pinned(p.clone())];
            Ok(View { pointer: address as *mut u8, len: len as usize, access, pins })
        }
        Some(p) => Err(unmapped(p.base + p.len, " (the end of pinned host memory)".into())),
        None => Err(unmapped(address, " (neither device nor pinned host memory)".into())),
    }
}

/// The rights of `accessor` on a mapping.
fn grants(
    machine: &Machine,
    accessor: Accessor,
    mapped: &Mapped,
    rights: &BTreeMap<usize, Access>,
) -> Access {
    let home = mapped.physical.device();
    match (&mapped.kind, accessor) {
        (Kind::Virtual { .. }, Accessor::Kernel(device) | Accessor::Copy(device)) => {
            rights.get(&device).copied().unwrap_or(Access::empty())
        }
        (_, Accessor::Copy(_)) => Access::all(),
        (_, Accessor::Kernel(device)) if device == home => Access::all(),
        // A mapping of another process's memory includes peer access.
        (Kind::Ipc { .. }, Accessor::Kernel(_)) => Access::all(),
        // Enabled peers may access plain allocations; pools have rights of their own.
        (Kind::Pooled { pool, .. }, Accessor::Kernel(device)) => {
            machine.part::<Pools>().access(*pool, device)
        }
        (_, Accessor::Kernel(device)) => {
            let enabled = machine.devices.get(device).is_some_and(|d| d.peers.is_enabled(home));
            if enabled { Access::all() } else { Access::empty() }
        }
    }
}
