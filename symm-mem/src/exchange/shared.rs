//! What an exchange, its plans and its threads have in common.

use std::{
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use cuda_driver::{
    Context, DevicePtr, Stream, StreamFlags,
    graph::RelaxedCapture,
    memory::{PinnedFlags, PinnedMemory},
};

use super::{
    close::Closer,
    core::Core,
    handles::Handles,
    slots::{SLOT_BYTES, Slots},
    watch::Watch,
};
use crate::rendezvous::{GroupInfo, SymmetricMemory};

/// An exchange without its user.
pub(super) struct Shared {
    pub(super) info: GroupInfo,
    pub(super) context: Context,
    /// Where words are written and read beside the callers' streams.
    pub(super) control: Stream,
    /// The ranks' slots.
    pub(super) slab: SymmetricMemory,
    pub(super) slots: Mutex<Slots>,
    pub(super) handles: Handles,
    pub(super) watch: Watch,
    pub(super) closer: Closer,
    /// This rank's slots as the host reads them, by who holds it.
    mirror: Mutex<PinnedMemory>,
}

impl Shared {
    pub(super) fn new(
        info: GroupInfo,
        context: &Context,
        slab: SymmetricMemory,
        channels: usize,
        lease: Duration,
    ) -> Result<Self, cuda_driver::Error> {
        // Streams of one priority may share a queue of the hardware, where one that waits holds up the others.
        let (_, highest) = context.stream_priority_range()?;
        let control = Stream::with_priority(context, StreamFlags::NON_BLOCKING, highest)?;
        let mirror = PinnedMemory::new(context, (channels * SLOT_BYTES).max(1), PinnedFlags::PORTABLE)?;
        Ok(Self {
            info,
            context: context.clone(),
            control,
            slab,
            slots: Mutex::new(Slots::new(channels)),
            handles: Handles::default(),
            watch: Watch::default(),
            closer: Closer::new(lease),
            mirror: Mutex::new(mirror),
        })
    }

    pub(super) fn slots(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This rank, of the job.
    pub(super) fn rank(&self) -> u32 {
        self.info.global_ranks().get(self.info.rank()).copied().unwrap_or(u32::MAX)
    }

    /// Where this rank's slots lie.
    pub(super) fn slab(&self) -> DevicePtr {
        self.slab.own().ptr()
    }

    /// Makes slots zero that nobody knows of yet.
    pub(super) fn clear(&self, slots: &std::ops::Range<usize>) -> Result<(), cuda_driver::Error> {
        if slots.is_empty() {
            return Ok(());
        }
        let words = slots.len() * SLOT_BYTES / 4;
        // SAFETY: they lie in the slab, and are free: no peer writes there.
        unsafe { self.control.fill_u32(self.slab() + slots.start * SLOT_BYTES, 0, words) }?;
        self.control.synchronize()
    }

    /// A peer that has given the plan up, if one has.
    pub(super) fn abandoned(&self, core: &Core) -> Result<Option<u32>, cuda_driver::Error> {
        if core.slots.is_empty() {
            return Ok(None);
        }
        let _relaxed = RelaxedCapture::enter(self.context.driver());
        let mirror = self.mirror.lock().unwrap_or_else(PoisonError::into_inner);
        let (begin, bytes) = (core.slots.start * SLOT_BYTES, core.slots.len() * SLOT_BYTES);
        let to = mirror.as_ptr().wrapping_add(begin);
        // SAFETY: as many bytes as there are slots lie there on either side, which the lock keeps to this call until the
        // stream is done.
        unsafe { self.control.copy_to_host(to.cast(), self.slab() + begin, bytes) }?;
        self.control.synchronize()?;
        let abandoned = core.wires.iter().enumerate().find(|(at, _)| {
            let word = to.wrapping_add(at * SLOT_BYTES + 8).cast::<AtomicU32>();
            // SAFETY: inside the mirror, aligned as the slots are to 16 bytes, and written by nobody else under the lock.
            unsafe { &*word }.load(Ordering::Relaxed) != 0
        });
        Ok(abandoned.map(|(_, wire)| wire.peer))
    }
}
