//! Regions: memory that the members of a group share. A transfer copies between the regions of two members. The members
//! do not agree on a transfer beforehand, as they do on the transfers of a [plan](super::Plan).

mod agree;
mod descriptor;
mod invalid;
mod pending;
mod prepared;
mod state;

use std::{
    fmt,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use cuda_driver::{Event, Stream, WaitCondition, graph::CaptureStatus, graph_memory};

pub use self::{
    descriptor::Descriptor,
    invalid::{DescriptorError, Side},
    pending::PendingTransfer,
    prepared::{PreparedRanges, RegionRange, SelectedRanges},
    state::RegionInfo,
};
use self::{
    descriptor::descriptor_copies,
    prepared::prepared_copies,
    state::{ONLY_ENDPOINT, Peer, RegionsState},
};
use super::{
    Awaited, Fault, TransferError,
    copy::{Direction, RangeCopy},
    quiet,
};
use crate::lock::lock;

/// A set of regions of memory that the members of a group share, as returned by
/// [`Exchange::share_regions`](super::Exchange::share_regions). Any member can [transfer](Self::transfer) ranges of
/// bytes between its own regions and those of any other member, at any time. A transfer needs no call of the peer.
/// Cheap to clone.
///
/// A transfer can [notify](Self::transfer_and_notify) its peer after the copies. On the peer, [`wait`](Self::wait)
/// makes a stream wait for the next notification from a member, and [`notifications`](Self::notifications) returns the
/// number of notifications from a member that have arrived so far. `wait` and the transfer functions enqueue work
/// on a stream, and may return before this work has completed. `notifications` and [`check`](Self::check) block until a
/// small copy from the device has completed.
///
/// *Order.* A transfer runs in the order of its stream. The copies of one transfer run in any order, so their
/// destinations must not overlap. Notifications to one peer are sent in the order of the calls, also from different
/// streams: a notification is sent only after the previous one to that peer. Copies do not wait for previous
/// notifications.
///
/// *Prepared ranges.* If transfers use the same ranges again and again, [`prepare`](Self::prepare) validates them once.
/// Then [`transfer_prepared`](Self::transfer_prepared) selects ranges by their indices.
///
/// *Failures.* The transfers with a peer can fail with a [`Fault`], for example because a deadline has passed on this
/// rank or on the peer. Later calls for that peer return the fault. Transfers with other peers continue. If the group
/// ends, the transfers with all peers fail. A fault also releases the streams that wait for a notification from the
/// peer, although the notification has not arrived. So call [`check`](Self::check) for a peer before you use the data
/// that the peer has transferred. A fault is permanent for this set of regions. To transfer with the peer again, the
/// members share the regions again, under the same name or another one, which makes a new set.
///
/// *Lifetime.* This rank's regions stay allocated until this rank and all peers have dropped the set. If a peer still
/// has the set at the end of the [lease](super::ExchangeOptions::lease), the regions are
/// [quarantined](super::Exchange::quarantine) instead of freed. Exception: a set whose only member is this rank does
/// not keep the memory allocated, because no peer can access it.
///
/// When a peer drops the set, transfers with this peer that are under way stay valid. Once [`check`](Self::check) or
/// [`notifications`](Self::notifications) has noticed the drop on this rank, further transfers with this peer return
/// [`Fault::Abandoned`]. If a stream waits for a notification that the peer did not send before the drop, the transfers
/// with this peer fail with [`Fault::Abandoned`], which ends the wait.
///
/// *Graphs.* A transfer without a notification can be captured. Notifications and waits cannot: each notification has
/// its own number, but every launch of the graph would use the captured number again. Enqueue notifications and waits
/// between launches instead.
///
/// A transfer or a wait may block the calling thread while the process closes or frees memory of dropped plans or
/// regions (see [`Plan`](super::Plan)).
#[derive(Clone)]
pub struct Regions {
    inner: Arc<RegionsState>,
}

impl Regions {
    fn new(inner: RegionsState) -> Self {
        Self { inner: Arc::new(inner) }
    }

    /// The name of the set.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// The generation: a number that identifies this set among the plans and sets of its name. It is the same on all
    /// members, and higher than the generations of all earlier plans and sets of this name on this rank. This does not
    /// apply between agreements that run at the same time, with different members.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.inner.generation
    }

    /// Returns the regions of rank `rank` of the group, in the order in which that rank shared them. `rank` may be this
    /// rank. A [`Descriptor`] identifies a region by its index in the returned slice.
    ///
    /// # Errors
    /// [`TransferError`]: `NoSuchRank`, `NotShared`.
    pub fn of(&self, rank: usize) -> Result<&[RegionInfo], TransferError> {
        if rank == self.inner.owner.shared.info.rank() {
            return Ok(&self.inner.own);
        }
        Ok(&self.peer(rank)?.regions)
    }

    /// Returns the index of the region called `name` of rank `rank` of the group, or `None` if that rank has no such
    /// region.
    ///
    /// # Errors
    /// As [`of`](Self::of).
    pub fn find(&self, rank: usize, name: &str) -> Result<Option<usize>, TransferError> {
        Ok(self.of(rank)?.iter().position(|region| region.name() == name))
    }

    /// Enqueues copies between this rank's regions and those of rank `peer` of the group. Ranges that are adjacent on
    /// both sides may become one copy. An empty list is valid. The copies must end within `deadline` from this call,
    /// and so must the earlier work of the stream. Otherwise the transfers with the peer fail ([`Fault::Late`]). A
    /// captured transfer has no deadline.
    ///
    /// If the driver fails, some of the copies may have been enqueued. These copies still run, and the call can be
    /// repeated. But if the driver also fails to record an event after them, the transfers with the peer fail
    /// ([`Fault::Broken`]).
    ///
    /// # Safety
    /// Until the copies have completed, no other code of any rank writes the ranges, and none reads the ranges that the
    /// copies write. The ranks must synchronize for this, for example by notifications, because neither end of a
    /// transfer waits for the other. If regions of this rank and of the peer contain the same memory, no range that the
    /// copies write overlaps a range that they read.
    ///
    /// A graph that captures this call is launched only while this rank holds a clone of this `Regions`. All launches
    /// of the graph have ended before the last clone is dropped. The peer may drop its regions earlier, because the
    /// peer's memory stays allocated until this rank has dropped its own.
    ///
    /// # Errors
    /// [`TransferError`]: `NoSuchRank`, `NotShared`, `ToSelf`, `Descriptor`, `StalePlan`, `Fault`, `Driver`. The call
    /// returns [`Fault::Abandoned`] once this rank has noticed that the peer has dropped its regions, for example in
    /// [`check`](Self::check).
    pub unsafe fn transfer(
        &self,
        direction: Direction,
        peer: usize,
        descriptors: &[Descriptor],
        stream: &Stream,
        deadline: Duration,
    ) -> Result<PendingTransfer, TransferError> {
        let find_copies =
            |peer: &Peer| descriptor_copies(direction, &self.inner.own, &peer.regions, descriptors);
        self.enqueue(direction, peer, find_copies, stream, deadline, None)
    }

    /// Like [`transfer`](Self::transfer), and notifies the peer after the copies.
    ///
    /// # Safety
    /// As for [`transfer`](Self::transfer).
    ///
    /// # Errors
    /// As [`transfer`](Self::transfer); [`TransferError::Captured`] on a stream that captures. If the driver fails to
    /// enqueue the notification or to record an event after it, the transfers with the peer fail ([`Fault::Broken`]).
    pub unsafe fn transfer_and_notify(
        &self,
        direction: Direction,
        peer: usize,
        descriptors: &[Descriptor],
        stream: &Stream,
        deadline: Duration,
    ) -> Result<PendingTransfer, TransferError> {
        let find_copies =
            |peer: &Peer| descriptor_copies(direction, &self.inner.own, &peer.regions, descriptors);
        self.enqueue(direction, peer, find_copies, stream, deadline, Some("transfer_and_notify"))
    }

    /// Validates ranges of the regions of rank `rank` of the group, which may be this rank, for transfers by
    /// [`transfer_prepared`](Self::transfer_prepared). Ranges of a list may overlap. Contacts no other rank.
    ///
    /// # Errors
    /// [`TransferError`]: `NoSuchRank`, `NotShared`; `Descriptor` with the index of the first range that is empty or
    /// not inside a region.
    ///
    /// ```no_run
    /// # use cuda_driver::Stream;
    /// # use std::time::Duration;
    /// # use symm_mem::exchange::{Direction, RegionRange, Regions, TransferError};
    /// // Region 0 of each rank is a cache with pages of 64 KiB. Puts pages of this rank's cache into pages of rank 1's
    /// // cache, and notifies rank 1.
    /// # fn send(regions: &Regions, own_rank: usize, stream: &Stream) -> Result<(), TransferError> {
    /// let page = |at: usize| RegionRange { region: 0, offset: at << 16, bytes: 1 << 16 };
    /// let pages: Vec<RegionRange> = (0..1000).map(page).collect();
    /// let (own, theirs) = (regions.prepare(own_rank, &pages)?, regions.prepare(1, &pages)?);
    /// for (from, to) in [([3, 999], [0, 7]), ([4, 5], [1, 2])] {
    ///     let (from, to) = (own.select(&from), theirs.select(&to));
    ///     let deadline = Duration::from_secs(10);
    ///     // SAFETY: nobody else uses these pages until rank 1 has the notification.
    ///     let _pending =
    ///         unsafe { regions.transfer_prepared_and_notify(Direction::Put, from, to, stream, deadline) }?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn prepare(&self, rank: usize, ranges: &[RegionRange]) -> Result<PreparedRanges, TransferError> {
        PreparedRanges::new(&self.inner, rank, self.of(rank)?, ranges)
    }

    /// Like [`transfer`](Self::transfer), between ranges that [`prepare`](Self::prepare) has validated. The n-th
    /// selected range in `local`, which is this rank's, is paired with the n-th selected range in `remote`, which is a
    /// peer's. This call checks only the selection: that the indices exist, that the lengths of each pair are equal,
    /// and that destinations do not overlap. Its time does not depend on the number of ranges that are not selected.
    ///
    /// # Safety
    /// As for [`transfer`](Self::transfer).
    ///
    /// # Errors
    /// As [`transfer`](Self::transfer). The index in [`TransferError::Descriptor`] is the position of the pair in the
    /// selections. [`TransferError::IndexCounts`] if one selection has more ranges than the other.
    /// [`TransferError::OtherRanges`] if another set has prepared `local` or `remote` (an earlier generation of the
    /// same name is another set too), or if `local` was prepared for another rank than this one.
    pub unsafe fn transfer_prepared(
        &self,
        direction: Direction,
        local: SelectedRanges<'_>,
        remote: SelectedRanges<'_>,
        stream: &Stream,
        deadline: Duration,
    ) -> Result<PendingTransfer, TransferError> {
        self.enqueue_prepared(direction, local, remote, stream, deadline, None)
    }

    /// Like [`transfer_prepared`](Self::transfer_prepared), and notifies the peer after the copies.
    ///
    /// # Safety
    /// As for [`transfer`](Self::transfer).
    ///
    /// # Errors
    /// As [`transfer_prepared`](Self::transfer_prepared) and [`transfer_and_notify`](Self::transfer_and_notify).
    pub unsafe fn transfer_prepared_and_notify(
        &self,
        direction: Direction,
        local: SelectedRanges<'_>,
        remote: SelectedRanges<'_>,
        stream: &Stream,
        deadline: Duration,
    ) -> Result<PendingTransfer, TransferError> {
        let notifier = Some("transfer_prepared_and_notify");
        self.enqueue_prepared(direction, local, remote, stream, deadline, notifier)
    }

    /// Makes the stream wait for the next notification from the peer: the n-th call waits for the n-th notification.
    ///
    /// The notification must come within `deadline` from this call. Otherwise the transfers with the peer fail
    /// ([`Fault::Late`]), and the stream continues without the notification: see [`check`](Self::check).
    ///
    /// # Errors
    /// As [`transfer`](Self::transfer), but never `Descriptor`; [`TransferError::Captured`] on a stream that captures.
    /// Unlike `transfer`, this call succeeds even if the peer has dropped its regions, because the peer may have sent
    /// the notification before. If it has not, this rank notices that later. The stream is then released, and later
    /// calls return [`Fault::Abandoned`].
    ///
    /// If the driver fails to record an event after the wait, the transfers with the peer fail ([`Fault::Broken`]).
    pub fn wait(&self, peer: usize, stream: &Stream, deadline: Duration) -> Result<(), TransferError> {
        let peer = self.admit(peer, stream)?;
        let endpoint = peer.endpoint();
        if stream.capture_status()? != CaptureStatus::None {
            return Err(TransferError::Captured { asked: "wait" });
        }
        let shared = &self.inner.owner.shared;
        let _gate = quiet::enqueueing();
        let mut waits = lock(&peer.waits);
        let number = waits.wrapping_add(1);
        let done = shared.watch.event(&shared.context)?;
        endpoint.awaited.store(number, Ordering::Release);
        // SAFETY: `own.count` lies in this rank's slots, which stay mapped while any operation is under way.
        let waited =
            unsafe { stream.wait_value32(endpoint.own.count, WaitCondition::GreaterOrEqual, number) };
        if let Err(error) = waited {
            endpoint.awaited.store(*waits, Ordering::Release);
            return Err(error.into());
        }
        *waits = number;
        let recorded = stream.record(&done);
        if let Err(error) = &recorded {
            self.fail_as_broken(peer, error);
        }
        if recorded.is_ok() || stream.record(&done).is_ok() {
            let awaited = Some((ONLY_ENDPOINT, Awaited::Notification));
            shared.watch.begin(&peer.core, stream, done, awaited, Some(deadline), None);
        }
        Ok(recorded?)
    }

    /// Returns the number of notifications received from a peer since the regions were shared. The count wraps. Blocks
    /// until a copy of a few bytes from the device has completed.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub fn notifications(&self, peer: usize) -> Result<u32, TransferError> {
        let peer = self.peer(peer)?;
        let slot = peer.core.slots.start;
        let count = self.inner.owner.shared.check(&peer.core, |mirror| mirror.count(slot))?;
        Ok(count.unwrap_or(0))
    }

    /// Returns an error if the transfers with the peer have failed. Call this after you have synchronized a stream that
    /// [waited](Self::wait) for the peer, and before you use the data that the peer has transferred. Blocks until a
    /// copy of a few bytes from the device has completed.
    ///
    /// # Errors
    /// [`TransferError::Fault`], with the first failure; [`TransferError`]: `NoSuchRank`, `NotShared`, `ToSelf`,
    /// `Driver`.
    pub fn check(&self, peer: usize) -> Result<(), TransferError> {
        self.inner.owner.shared.check(&self.peer(peer)?.core, |_| ()).map(drop)
    }

    /// Makes the transfers with all peers fail with [`Fault::Aborted`], and releases this rank's streams that wait for
    /// notifications. The peers notice this later: their waits for this rank are then released, and their calls for
    /// this rank return [`Fault::Abandoned`].
    pub fn abort(&self) {
        for peer in self.inner.peers.iter().flatten() {
            self.inner.owner.shared.fail(&peer.core, Fault::Aborted);
        }
    }

    /// Makes the transfers with a peer fail with [`Fault::Broken`].
    fn fail_as_broken(&self, peer: &Peer, cause: &cuda_driver::Error) {
        let fault = Fault::Broken { transfer: ONLY_ENDPOINT, cause: cause.to_string() };
        self.inner.owner.shared.fail(&peer.core, fault);
    }

    fn peer(&self, rank: usize) -> Result<&Peer, TransferError> {
        let info = &self.inner.owner.shared.info;
        let world = info.world_size();
        let peer = self.inner.peers.get(rank).ok_or(TransferError::NoSuchRank { rank, world })?;
        peer.as_ref().ok_or_else(|| {
            if rank == info.rank() {
                return TransferError::ToSelf { rank };
            }
            let is_member = |other: &usize| {
                *other == info.rank() || self.inner.peers.get(*other).is_some_and(Option::is_some)
            };
            TransferError::NotShared { rank, members: (0..world).filter(is_member).collect() }
        })
    }

    /// Returns the state of the transfers with rank `rank`, or an error if no operation with that rank can be enqueued
    /// on `stream`.
    fn admit(&self, rank: usize, stream: &Stream) -> Result<&Peer, TransferError> {
        let shared = &self.inner.owner.shared;
        let peer = self.peer(rank)?;
        shared.admit(&peer.core, stream)?;
        if let Err(error) = shared.info.standing() {
            shared.fail(&peer.core, Fault::GroupOver { cause: error.to_string() });
        }
        peer.core.fault()?;
        Ok(peer)
    }

    fn enqueue_prepared(
        &self,
        direction: Direction,
        local: SelectedRanges<'_>,
        remote: SelectedRanges<'_>,
        stream: &Stream,
        deadline: Duration,
        notifier: Option<&'static str>,
    ) -> Result<PendingTransfer, TransferError> {
        let peer = remote.list().rank();
        local.list().check(&self.inner, Side::Local, self.inner.owner.shared.info.rank())?;
        remote.list().check(&self.inner, Side::Remote, peer)?;
        let find_copies = |_: &Peer| prepared_copies(direction, &local, &remote);
        self.enqueue(direction, peer, find_copies, stream, deadline, notifier)
    }

    /// Enqueues the copies that `find_copies` returns, which lie in regions of this rank and of rank `rank`. If
    /// `notifier` is `Some`, also enqueues a notification to `rank`. `notifier` is the name of the public function that
    /// was called, for errors.
    fn enqueue(
        &self,
        direction: Direction,
        rank: usize,
        find_copies: impl FnOnce(&Peer) -> Result<Vec<RangeCopy>, TransferError>,
        stream: &Stream,
        deadline: Duration,
        notifier: Option<&'static str>,
    ) -> Result<PendingTransfer, TransferError> {
        let peer = self.admit(rank, stream)?;
        let (core, shared) = (&peer.core, &self.inner.owner.shared);
        if core.peer_has_dropped.load(Ordering::Acquire) {
            return Err(Fault::Abandoned { peer: peer.endpoint().peer }.into());
        }
        let copies = find_copies(peer)?;
        // SAFETY: the ranges lie in the regions of both ranks. The core holds this rank's memory and the mappings of
        // the peer's memory, so both stay mapped while the core lives. The thread that enforces deadlines (`watch`)
        // keeps the core until the copies have ended. For a captured transfer, the caller promises that the regions,
        // and so the core, live until the last launch has ended. The caller also promises the other conditions.
        let enqueue_copies = || copies.iter().try_for_each(|copy| unsafe { copy.enqueue(stream) });
        if stream.capture_status()? != CaptureStatus::None {
            if let Some(asked) = notifier {
                return Err(TransferError::Captured { asked });
            }
            let own = |copy: &RangeCopy| match direction {
                Direction::Get => (copy.to, copy.bytes as u64),
                Direction::Put => (copy.from, copy.bytes as u64),
            };
            graph_memory::note(stream, copies.iter().map(own))?;
            enqueue_copies()?;
            return Ok(PendingTransfer::new(None, core.fault_cell()));
        }
        let _gate = quiet::enqueueing();
        let done = shared.watch.event(&shared.context)?;
        let (enqueued, previous) = match notifier {
            None => (enqueue_copies().and_then(|()| stream.record(&done)), None),
            Some(_) => self.notify(peer, stream, &done, enqueue_copies),
        };
        // After an error, copies may be under way: they are watched until they have ended.
        if enqueued.is_ok() || stream.record(&done).is_ok() {
            let awaited = Some((ONLY_ENDPOINT, Awaited::Copies));
            shared.watch.begin(core, stream, done.clone(), awaited, Some(deadline), previous);
        } else if let Err(error) = &enqueued {
            self.fail_as_broken(peer, error);
        }
        enqueued?;
        Ok(PendingTransfer::new(Some(done), core.fault_cell()))
    }

    /// Enqueues the copies, then the notification to the peer, and then records `done`. Returns two values: the first
    /// error of these calls, or `Ok`; and, after a success, the event of this rank's previous notification to the peer,
    /// for reuse. The second value is `None` after an error, or if there is no previous notification.
    fn notify(
        &self,
        peer: &Peer,
        stream: &Stream,
        done: &Arc<Event>,
        enqueue_copies: impl FnOnce() -> Result<(), cuda_driver::Error>,
    ) -> (Result<(), cuda_driver::Error>, Option<Arc<Event>>) {
        // The lock is held until `done` is recorded, so that two threads send their counts in ascending order.
        let endpoint = peer.endpoint();
        let mut progress = endpoint.progress();
        let number = progress.count.wrapping_add(1);
        // Only the notification waits for the previous notification. The copies do not wait for other streams.
        let copied = enqueue_copies().and_then(|()| match &progress.last {
            Some((last, event)) if !last.is_same(stream) => stream.wait(event),
            _ => Ok(()),
        });
        if let Err(error) = copied {
            return (Err(error), None);
        }
        // SAFETY: `theirs.count` lies in the peer's slots, which stay mapped while any operation is under way.
        let sent = unsafe { stream.write_value32(endpoint.theirs.count, number) };
        let ended = sent.and_then(|()| stream.record(done));
        if let Err(error) = &ended {
            // The peer may have got this notification already. A repeated call would send the same count again, which
            // the peer cannot notice. So the transfers with the peer fail.
            self.fail_as_broken(peer, error);
            return (ended, None);
        }
        progress.count = number;
        (ended, progress.last.replace((stream.clone(), done.clone())).map(|(_, event)| event))
    }
}

impl fmt::Debug for Regions {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, generation, own) = (self.name(), self.generation(), self.inner.own.len());
        let peers = self.inner.peers.iter().flatten().count();
        write!(out, "Regions({name:?} of generation {generation}, {own} of this rank, {peers} peers)")
    }
}
