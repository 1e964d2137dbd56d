//! What a kernel says when it gives up: a record in the host's memory that the device writes.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use cuda_driver::memory::{PinnedFlags, PinnedMemory};
use cuda_driver::{Context, DevicePtr};

use super::{Kernel, KernelError, Late};

/// What a kernel waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
#[non_exhaustive]
pub enum Waiting {
    /// For the peer to take the signal before this one: its word was still 1.
    Room = 1,
    /// For the peer's signal.
    Signal = 2,
}

impl Waiting {
    pub(super) const ALL: [(Self, &'static str); 2] =
        [(Self::Room, "WAITS_FOR_ROOM"), (Self::Signal, "WAITS_FOR_SIGNAL")];
}

/// The record's layout, which is the device's. All zero: nothing is written.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct Layout {
    /// 0: nothing; 1: all of it.
    pub(super) written: AtomicU32,
    pub(super) kernel: AtomicU32,
    pub(super) waits: AtomicU32,
    pub(super) peer: AtomicU32,
    pub(super) channel: AtomicU32,
    _reserved: AtomicU32,
    pub(super) waited_ns: AtomicU64,
}

/// Where the kernels of one rank write what went wrong first: pinned host memory, which the host may read at any time.
///
/// It lives as long as kernels that were told of it may run. What is written stays: the signals of whoever gave up are
/// not to be trusted any more. Only when all ranks' kernels are done, and their pads are zero again
/// ([`PadLayout::bytes`](super::PadLayout::bytes) of them), may a rank [`clear`](Self::clear) its record and go on.
#[derive(Debug)]
pub struct FaultRecord {
    memory: PinnedMemory,
    ptr: DevicePtr,
}

impl FaultRecord {
    /// An empty record for kernels in `context`.
    ///
    /// # Errors
    /// [`KernelError::Driver`] from `cuMemHostAlloc` or `cuMemHostGetDevicePointer_v2`.
    pub fn new(context: &Context) -> Result<Self, KernelError> {
        let flags = PinnedFlags::PORTABLE | PinnedFlags::DEVICE_MAPPED;
        let memory = PinnedMemory::new(context, size_of::<Layout>(), flags)?;
        let ptr = memory.device_ptr()?;
        if memory.bytes() < size_of::<Layout>() || ptr.is_null() {
            return Err(KernelError::NoRecord);
        }
        Ok(Self { memory, ptr })
    }

    /// For [`Ranks::fault`](super::Ranks::fault).
    #[must_use]
    pub fn ptr(&self) -> DevicePtr {
        self.ptr
    }

    /// What is written, if anything is. Free of calls to the driver.
    #[must_use]
    pub fn read(&self) -> Option<Late> {
        let layout = self.layout();
        // Once this says "written", the rest was written before.
        (layout.written.load(Ordering::Acquire) == 1).then(|| {
            let number = |word: &AtomicU32| word.load(Ordering::Relaxed);
            let named = |wanted: u32| {
                Kernel::ALL.into_iter().map(|(kernel, _)| kernel).find(|kernel| *kernel as u32 == wanted)
            };
            let room = number(&layout.waits) == Waiting::Room as u32;
            Late {
                kernel: named(number(&layout.kernel)),
                waiting: if room { Waiting::Room } else { Waiting::Signal },
                peer: number(&layout.peer),
                channel: number(&layout.channel),
                waited: Duration::from_nanos(layout.waited_ns.load(Ordering::Relaxed)),
            }
        })
    }

    /// Asked after work has been waited for: whether it was done.
    ///
    /// # Errors
    /// [`KernelError::Late`], if a kernel has given up.
    pub fn check(&self) -> Result<(), KernelError> {
        self.read().map_or(Ok(()), |late| Err(KernelError::Late(late)))
    }

    /// Empties the record, when no kernel runs that was told of it.
    pub fn clear(&self) {
        self.layout().written.store(0, Ordering::Release);
    }

    fn layout(&self) -> &Layout {
        // SAFETY: the memory is this long (`new` looked), aligned to a page, lives as long as `self`, and holds
        // atomics, for which any bytes are valid; the device writes it as atomics too.
        unsafe { &*self.memory.as_ptr().cast::<Layout>() }
    }
}
