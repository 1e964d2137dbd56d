//! State that an [exchange](super::Exchange), its plans and its threads share. In this file, "plan" stands for a
//! [`Plan`](super::Plan), or for the transfers between the [regions](super::Regions) of two ranks.

use std::{
    ops::Range,
    sync::{
        Arc, Mutex, MutexGuard, Weak,
        atomic::{AtomicU32, Ordering},
    },
};

use cuda_driver::{
    Context, DevicePtr, Event, EventFlags, Stream, StreamFlags,
    graph::RelaxedCapture,
    memory::{PinnedFlags, PinnedMemory},
};

use super::{
    ExchangeOptions, Fault, TransferError,
    close::Closer,
    core::Core,
    handles::Handles,
    slots::{SLOT_BYTES, Slots},
    watch::Watch,
};
use crate::{
    lock::lock,
    rendezvous::{GroupInfo, SymmetricMemory},
};

/// Resources that a rank creates for an exchange before the members share their [slots](super::slots). [`Shared::new`]
/// takes them over.
pub(super) struct Tools {
    /// Becomes [`Shared::control`].
    control: Stream,
    /// Becomes [`Shared::mirror`].
    mirror: Mirror,
    /// The host buffer to which the [copy thread](super::watch) copies this rank's slots for the watch thread.
    watch_mirror: Mirror,
    /// The stream of the copies to `watch_mirror`.
    watch_copies: Stream,
    /// Recorded after each copy to `watch_mirror`.
    watch_mirrored: Event,
}

impl Tools {
    pub(super) fn new(context: &Context, channels: usize) -> Result<Self, cuda_driver::Error> {
        // Streams of one priority may share a hardware queue, in which a stream that waits blocks the others. So the
        // control stream gets the highest priority.
        let (_, highest) = context.stream_priority_range()?;
        Ok(Self {
            control: Stream::with_priority(context, StreamFlags::NON_BLOCKING, highest)?,
            mirror: Mirror::new(context, channels)?,
            watch_mirror: Mirror::new(context, channels)?,
            watch_copies: Stream::with_priority(context, StreamFlags::NON_BLOCKING, highest)?,
            watch_mirrored: Event::new(context, EventFlags::DISABLE_TIMING)?,
        })
    }
}

/// State that the clones of an [`Exchange`](super::Exchange), its plans, regions and threads share.
pub(super) struct Shared {
    pub(super) info: GroupInfo,
    pub(super) context: Context,
    /// Stream on which the exchange itself accesses slots: it zeroes slots, copies them to the host in
    /// [`check`](Self::check), and writes signals after a failure or a close. The copies of the
    /// [copy thread](super::watch) use a stream of their own, and the signals of transfers use the callers' streams.
    pub(super) control: Stream,
    /// The arrays of [slots](super::slots) of all ranks, mapped on this rank. Into each slot, one peer writes its
    /// signals to the rank that owns the slot.
    pub(super) slab: SymmetricMemory,
    pub(super) slots: Mutex<Slots>,
    pub(super) handles: Handles,
    plans: Mutex<Vec<Weak<Core>>>,
    pub(super) watch: Watch,
    pub(super) closer: Closer,
    /// Host copy of this rank's slots, used by [`check`](Self::check). The watch thread has its own copy.
    mirror: Mutex<Mirror>,
}

impl Shared {
    pub(super) fn new(
        info: GroupInfo,
        context: &Context,
        slab: SymmetricMemory,
        tools: Tools,
        options: ExchangeOptions,
    ) -> Self {
        let Tools { control, mirror, watch_mirror, watch_copies, watch_mirrored } = tools;
        Self {
            info,
            context: context.clone(),
            control,
            slab,
            slots: Mutex::new(Slots::new(options.channels)),
            handles: Handles::default(),
            plans: Mutex::default(),
            watch: Watch::new(watch_mirror, watch_copies, watch_mirrored),
            closer: Closer::new(options.lease),
            mirror: Mutex::new(mirror),
        }
    }

    pub(super) fn slots(&self) -> MutexGuard<'_, Slots> {
        lock(&self.slots)
    }

    pub(super) fn add_plan(&self, core: &Arc<Core>) {
        let mut plans = lock(&self.plans);
        plans.retain(|plan| plan.strong_count() > 0);
        plans.push(Arc::downgrade(core));
    }

    pub(super) fn plans(&self) -> Vec<Arc<Core>> {
        let plans = lock(&self.plans);
        plans.iter().filter_map(Weak::upgrade).collect()
    }

    /// Records the fault of a plan, and makes the watch thread report it to the peers and release the plan's waits.
    pub(super) fn fail(&self, core: &Arc<Core>, fault: Fault) {
        core.fail(fault);
        self.watch.add_failed(core);
    }

    /// This rank, as a rank of the job.
    pub(super) fn rank(&self) -> u32 {
        self.info.global_rank()
    }

    /// Address of this rank's slots.
    pub(super) fn slab(&self) -> DevicePtr {
        self.slab.own().ptr()
    }

    /// Sets slots of this rank to zero, and blocks until they are zero. The caller must not have sent the numbers of
    /// these slots to peers yet, because a peer that has the number of its slot may write to it.
    pub(super) fn clear(&self, slots: &Range<usize>) -> Result<(), cuda_driver::Error> {
        if slots.is_empty() {
            return Ok(());
        }
        let words = slots.len() * SLOT_BYTES / 4;
        // SAFETY: the slots lie in the slab. No peer has their numbers yet, so none writes to them.
        unsafe { self.control.fill_u32(self.slab() + slots.start * SLOT_BYTES, 0, words) }?;
        self.control.synchronize()
    }

    /// Returns an error if no work of the plan can be enqueued on the stream: the plan is stale (a later plan of the
    /// same name has replaced it) or has failed, or the stream belongs to another context.
    pub(super) fn admit(&self, core: &Core, stream: &Stream) -> Result<(), TransferError> {
        core.current.admit(core.generation).map_err(|expected| {
            let (plan, found) = (core.plan.clone(), core.generation);
            TransferError::StalePlan { plan, expected, found }
        })?;
        core.fault()?;
        if stream.context() != &self.context {
            let (found, wanted) = (stream.context().device().ordinal(), self.context.device().ordinal());
            let (what, user) = ("the stream", "the exchange");
            return Err(cuda_driver::Error::DifferentDevices { what, found, user, wanted }.into());
        }
        Ok(())
    }

    /// Copies the slots of a plan to the host, waits for the copy, and returns the result of `read` on it. Also records
    /// whether a peer has dropped its regions. If the copy shows that the plan has failed on a peer, the plan fails on
    /// this rank too. Returns `None` if the plan has no slots, and an error if the copy fails or the plan has failed.
    pub(super) fn check<R>(
        &self,
        core: &Arc<Core>,
        read: impl FnOnce(&Mirror) -> R,
    ) -> Result<Option<R>, TransferError> {
        core.fault()?;
        if core.slots.is_empty() {
            return Ok(None);
        }
        let _relaxed = RelaxedCapture::enter(self.context.driver());
        let mirror = lock(&self.mirror);
        mirror.read(self, &self.control, core.slots.clone())?;
        self.control.synchronize()?;
        let (abandoned, found) = (mirror.abandoned(core), read(&mirror));
        if core.slots.clone().any(|slot| mirror.has_dropped(slot)) {
            core.peer_has_dropped.store(true, Ordering::Release);
        }
        drop(mirror);
        if let Some(peer) = abandoned {
            self.fail(core, Fault::Abandoned { peer });
        }
        core.fault()?;
        Ok(Some(found))
    }
}

/// A copy of a rank's slots in pinned host memory.
pub(super) struct Mirror(PinnedMemory);

impl Mirror {
    pub(super) fn new(context: &Context, channels: usize) -> Result<Self, cuda_driver::Error> {
        let bytes = (channels * SLOT_BYTES).max(1);
        PinnedMemory::new(context, bytes, PinnedFlags::PORTABLE).map(Self)
    }

    /// On `stream`, enqueues a copy of these slots of this rank to the mirror.
    pub(super) fn read(
        &self,
        shared: &Shared,
        stream: &Stream,
        slots: Range<usize>,
    ) -> Result<(), cuda_driver::Error> {
        let (begin, bytes) = (slots.start * SLOT_BYTES, slots.len() * SLOT_BYTES);
        let to = self.0.as_ptr().wrapping_add(begin);
        // SAFETY: the mirror and the slab both contain these slots and live as long as `shared`. Host code reads the
        // mirror only by atomic loads, even while the copy runs.
        unsafe { stream.copy_to_host(to.cast(), shared.slab() + begin, bytes) }
    }

    /// On `stream`, enqueues a copy of all slots of this rank to the mirror.
    pub(super) fn read_all(&self, shared: &Shared, stream: &Stream) -> Result<(), cuda_driver::Error> {
        self.read(shared, stream, 0..self.0.bytes() / SLOT_BYTES)
    }

    /// Returns the first peer, as a rank of the job, on which the plan had failed when the slots were last copied. A
    /// peer that has dropped its regions also counts, if this rank waits for a
    /// [notification](super::Regions::transfer_and_notify) that the peer has not sent.
    pub(super) fn abandoned(&self, core: &Core) -> Option<u32> {
        let mut slots = core.slots.clone().zip(&core.endpoints);
        let abandoned = slots.find(|(slot, endpoint)| {
            let awaited = endpoint.awaited.load(Ordering::Acquire);
            let waits_in_vain =
                || self.has_dropped(*slot) && (self.count(*slot).wrapping_sub(awaited) as i32) < 0;
            self.word(*slot, 2) != 0 || waits_in_vain()
        });
        abandoned.map(|(_, endpoint)| endpoint.peer)
    }

    /// Returns the count word of a slot (see [`SLOT_BYTES`]).
    pub(super) fn count(&self, slot: usize) -> u32 {
        self.word(slot, 0)
    }

    /// Returns whether the peer of a slot has dropped its regions.
    fn has_dropped(&self, slot: usize) -> bool {
        self.word(slot, 3) != 0
    }

    fn word(&self, slot: usize, at: usize) -> u32 {
        let word = self.0.as_ptr().wrapping_add(slot * SLOT_BYTES + 4 * at).cast::<AtomicU32>();
        // SAFETY: inside the mirror, whose slots are aligned to 16 bytes; the host's accesses are atomic.
        unsafe { &*word }.load(Ordering::Relaxed)
    }
}
