//! Fault records: a kernel that [gives up](super) writes a record of its failed wait into host memory.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use cuda_driver::memory::{PinnedFlags, PinnedMemory};
use cuda_driver::{Context, DevicePtr};

use super::{Kernel, KernelError, Late};

/// The condition that a kernel waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
#[non_exhaustive]
pub enum WaitKind {
    /// The peer has consumed this rank's previous signal: a kernel of the peer has reset the signal's word in the
    /// peer's [signal pad](super::PadLayout) from 1 to 0.
    Room = 1,
    /// The peer has sent its signal.
    Signal = 2,
}

impl WaitKind {
    pub(crate) const ALL: [(Self, &'static str); 2] =
        [(Self::Room, "WAITS_FOR_ROOM"), (Self::Signal, "WAITS_FOR_SIGNAL")];
}

/// The layout of a fault record, the same as that of the structure `Fault` in `kernels/ranks.cuh`.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct FaultLayout {
    /// 0: empty; 1: completely written.
    pub(crate) written: AtomicU32,
    pub(crate) kernel: AtomicU32,
    /// A [`WaitKind`].
    pub(crate) waits: AtomicU32,
    pub(crate) peer: AtomicU32,
    pub(crate) channel: AtomicU32,
    _reserved: AtomicU32,
    pub(crate) waited_ns: AtomicU64,
}

/// A rank's fault record: the first kernel of the rank to [give up](crate) writes its failed wait into this
/// record. It is pinned host memory, which the host may read at any time.
///
/// Keep the record until all kernels that got its address have ended. A failed wait stays in the record until
/// [`clear`](Self::clear). Before a rank clears its record:
/// - The kernels of all ranks must have ended.
/// - All [`PadLayout::bytes`](super::PadLayout::bytes) of each rank's pad must be zeroed. Once a kernel has given up,
///   the pads may contain signals that no kernel will consume.
#[derive(Debug)]
pub struct FaultRecord {
    memory: PinnedMemory,
    ptr: DevicePtr,
}

impl FaultRecord {
    /// Creates an empty record for kernels in `context`.
    ///
    /// # Errors
    /// [`KernelError::Driver`] from `cuMemHostAlloc` or `cuMemHostGetDevicePointer_v2`. [`KernelError::NoRecord`] if
    /// they succeed without usable memory.
    pub fn new(context: &Context) -> Result<Self, KernelError> {
        let flags = PinnedFlags::PORTABLE | PinnedFlags::DEVICE_MAPPED;
        let memory = PinnedMemory::new(context, size_of::<FaultLayout>(), flags)?;
        let ptr = memory.device_ptr()?;
        if memory.bytes() < size_of::<FaultLayout>() || ptr.is_null() {
            return Err(KernelError::NoRecord);
        }
        Ok(Self { memory, ptr })
    }

    /// Device address, for [`Ranks::fault`](super::Ranks::fault).
    #[must_use]
    pub fn ptr(&self) -> DevicePtr {
        self.ptr
    }

    /// Returns the failed wait, or `None` if the record is empty. Makes no driver call.
    #[must_use]
    pub fn read(&self) -> Option<Late> {
        let layout = self.layout();
        // The device writes this word last, so the other words are complete if it is 1.
        (layout.written.load(Ordering::Acquire) == 1).then(|| {
            let number = |word: &AtomicU32| word.load(Ordering::Relaxed);
            let room = number(&layout.waits) == WaitKind::Room as u32;
            Late {
                kernel: Kernel::of_number(number(&layout.kernel)),
                waiting: if room { WaitKind::Room } else { WaitKind::Signal },
                peer: number(&layout.peer),
                channel: number(&layout.channel),
                waited: Duration::from_nanos(layout.waited_ns.load(Ordering::Relaxed)),
            }
        })
    }

    /// Checks that no kernel has given up. Call this function after waiting for the stream.
    ///
    /// # Errors
    /// [`KernelError::Late`], with the failed wait.
    pub fn check(&self) -> Result<(), KernelError> {
        self.read().map_or(Ok(()), |late| Err(KernelError::Late(late)))
    }

    /// Empties the record. [`FaultRecord`] describes the conditions.
    pub fn clear(&self) {
        self.layout().written.store(0, Ordering::Release);
    }

    fn layout(&self) -> &FaultLayout {
        // SAFETY: `new` checked that the memory is long enough. It is aligned to a page and lives as long as `self`.
        // All fields are atomics, for which any bytes are valid. The device also writes them as atomics.
        unsafe { &*self.memory.as_ptr().cast::<FaultLayout>() }
    }
}
