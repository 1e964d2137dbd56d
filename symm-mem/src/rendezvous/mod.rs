//! Peers' memory, as in PyTorch's SymmetricMemory.
//!
//! The members of a group ([`GroupInfo`]) call [`Rendezvous::rendezvous`]. Each member posts a description of its
//! memory in the group's [store](process_group::store). Once all members have agreed, each of them maps the others'
//! memory. All members succeed, or none does, with the exceptions below. On success, every rank has a
//! [`SymmetricMemory`] with the addresses of all ranks' buffers. Kernels and copies on the rank's own device can access
//! the buffers. The `SymmetricMemory` also has the addresses of the ranks' signal pads: device memory over which the
//! ranks signal each other. If the descriptions do not match, all members get the same error before the
//! [deadline](RendezvousOptions::deadline).
//!
//! In these cases, it is possible that a member gets an error although the others succeed:
//! - The member cannot read the members' common result from the store, for example because the store fails.
//! - The cases that [`RendezvousRefusal`] names.
//!
//! ```no_run
//! # use process_group::{ProcessGroup, comm::DataType};
//! # use symm_mem::rendezvous::{CudaAllocator, Layout, PeerAllocator, Rendezvous, RendezvousOptions};
//! # fn rank(world: &ProcessGroup) -> Result<(), Box<dyn std::error::Error>> {
//! let rendezvous = Rendezvous::of(world, RendezvousOptions::default())?;
//! let memory = CudaAllocator::new(world.context())?.allocate(4096)?;
//! let symmetric = rendezvous.rendezvous(&memory)?;
//! let peer = (symmetric.rank() + 1) % symmetric.world_size();
//! let view = symmetric.buffer(peer, &Layout::contiguous([1024], DataType::F32), 0)?;
//! println!("rank {peer} has it at {:#x} from here", view.ptr.0);
//! # Ok(())
//! # }
//! ```
//!
//! | module | subject |
//! |---|---|
//! | root | [`Rendezvous`]: runs the rendezvous of one group |
//! | [`protocol`] | the agreement of one rendezvous: its messages and its decision, without I/O |
//! | `allocation` | [`PeerMemory`]: memory that belongs to no [pool](crate::SymmetricPool), and its allocators |
//! | `buffer` | [`Buffer`]: all or a part of a `PeerMemory` or of a block of a pool |
//! | `buffers`, `memory`, `layout` | [`PeerBuffers`], [`SymmetricMemory`], its views and their errors |
//! | `pads`, `signals` | barriers and signals between ranks over the signal pads, and the order in which they run |
//! | `group` | [`GroupInfo`]: the id, name, members and store of a group |
//! | `peer_group` | a group with its signal pads, which all [`SymmetricMemory`] values of the group share |
//!
//! A [`Rendezvous`] keeps one mapping of the peers' memory for each `PeerMemory` of this rank, and one for each segment
//! of a pool (a range of memory from which the pool allocates blocks). So all blocks of a segment share one mapping. A
//! mapping ends once no [`SymmetricMemory`] uses it any more and one of these has happened:
//! - This rank's `PeerMemory` is freed, or this rank's segment is freed or [retired](crate::SymmetricPool::retire).
//! - A later rendezvous has replaced the mapping.
//! - The `Rendezvous` was dropped, and since then another mapping was added to the same `PeerMemory` or pool.
//!
//! A mapping keeps the peers' pages allocated. So the pages stay valid even if the peers drop or retire their memory.

mod allocation;
mod buffer;
mod buffers;
mod group;
mod layout;
mod memory;
mod pads;
mod peer_group;
mod signals;

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use bootstrap::agreement::{self, Member};
use cuda_driver::{Context, DevicePtr, graph::RelaxedCapture, vmm::HandleTypes};
use process_group::{
    ProcessGroup, error_text,
    store::{Deadline, StoreError},
};

use self::protocol::{
    RendezvousEnding, RendezvousProtocol, RendezvousRecord, SharingReadiness, Subject, prefix,
};
pub(crate) use self::{
    allocation::fresh_number,
    buffers::PeerMapping,
    pads::{OwnPad, Pads},
    peer_group::PeerGroup,
};
pub use self::{
    allocation::{AllocationError, Allocators, CudaAllocator, DeviceKind, PeerAllocator, PeerMemory},
    buffer::{Buffer, ForeignSlice},
    buffers::{Origin, PeerBuffers, WindowPeersError},
    group::{GroupInfo, GroupInfoError, Groups},
    layout::Layout,
    memory::{PeerView, SymmetricMemory, ViewError},
    protocol::RendezvousRefusal,
};
pub use crate::agreement::rendezvous as protocol;
use crate::{
    agreement::hash::chain,
    error::{CallContext, Error},
    error_kind::ErrorKind,
    lock::lock,
    sharing::{self, Export, Handle, Offer, OpeningOutcome, Party, Site},
};

/// The name of the operation in the errors of a rendezvous.
const OPERATION: &str = "rendezvous";

/// Options of a [`Rendezvous`]. Give the same options on all members. If `shared_devices` differs, [`Rendezvous::new`]
/// is refused on all members.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RendezvousOptions {
    /// The time limit of one rendezvous. A member waits at most half of it for the others to call. Then the members map
    /// the memory, and wait for each other's reports of success or failure. Even if `deadline` is short, a member has
    /// at least 10 s to map the memory, and waits at least 5 s more for missing reports.
    pub deadline: Duration,
    /// True if several ranks may use one device. The kernels of these ranks must then be able to run at the same time,
    /// because a kernel of one rank can wait for a kernel of another.
    pub shared_devices: bool,
    /// The types of the handles by which other processes open the signal pads and the memory of [`Rendezvous::empty`].
    /// `None` stands for all types that the driver [grants](HandleTypes::granted). If the group spans several hosts,
    /// the memory of every rank needs a fabric handle.
    pub handles: Option<HandleTypes>,
}

impl Default for RendezvousOptions {
    /// 30 seconds, one device for each rank, file descriptors, and fabric handles if the driver grants them.
    fn default() -> Self {
        Self { deadline: Duration::from_secs(30), shared_devices: false, handles: None }
    }
}

impl RendezvousOptions {
    /// Sets the deadline.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Sets whether several ranks may use one device.
    #[must_use]
    pub fn shared_devices(mut self, shared: bool) -> Self {
        self.shared_devices = shared;
        self
    }

    /// Sets the handle types of the signal pads and of the memory of [`Rendezvous::empty`].
    #[must_use]
    pub fn handles(mut self, handles: HandleTypes) -> Self {
        self.handles = Some(handles);
        self
    }
}

/// Lets the members of a group map each other's memory: see [`rendezvous`](Self::rendezvous). Owns this rank's signal
/// pad (device memory in which this rank receives signals), and the mappings of the peers' pads. Cheap to clone. Clones
/// share the pads.
#[derive(Debug, Clone)]
pub struct Rendezvous {
    pub(crate) inner: Arc<RendezvousState>,
}

#[derive(Debug)]
pub(crate) struct RendezvousState {
    pub(crate) group: Arc<PeerGroup>,
    pub(crate) options: RendezvousOptions,
    /// How often this rank has created a `Rendezvous` for the group, including this one
    /// ([`RendezvousRecord::generation`]). Part of the store keys of this `Rendezvous`.
    generation: u64,
    /// The number of the next rendezvous ([`RendezvousRecord::number`]). A call holds the lock until its rendezvous has
    /// ended, so this rank takes part in only one at a time.
    next: Mutex<u64>,
}

impl Rendezvous {
    /// Creates the `Rendezvous` object of a process group. Collective over the group, like [`new`](Self::new).
    ///
    /// # Errors
    /// Those of [`new`](Self::new).
    pub fn of(group: &ProcessGroup, options: RendezvousOptions) -> Result<Self, Error> {
        Self::new(GroupInfo::from(group), group.context(), options)
    }

    /// Creates the `Rendezvous` object of a group. The device of this rank is that of `context`. Collective: all
    /// members must call it the same number of times. Each member maps the signal pads of the others.
    ///
    /// # Errors
    /// - [`RendezvousRefused`](ErrorKind::RendezvousRefused) if the members cannot map each other's memory. All of them
    ///   get the same [`RendezvousRefusal`], with the exceptions that are named there.
    /// - [`ErrorKind::Store`] if this member's store fails.
    /// - [`ErrorKind::GroupOver`] if the group has ended.
    /// - [`ErrorKind::Unreadable`] if this member cannot decode a value in the store, and so does not know the members'
    ///   decision.
    /// - [`ErrorKind::OutOfStep`] for a bug of this crate.
    pub fn new(info: GroupInfo, context: &Context, options: RendezvousOptions) -> Result<Self, Error> {
        let call = info.call(OPERATION);
        let (rendezvous, site) = Self::without_pads(info, context, options)?;
        // During an open capture, the driver could refuse the calls below, or they could invalidate the capture. The
        // relaxed mode prevents both.
        let _relaxed = RelaxedCapture::enter(context.driver());
        let own = site
            .map_err(Into::into)
            .and_then(|()| OwnPad::make(context, rendezvous.group().world_size(), options.handles));
        // Even if this rank could not make its pad, it takes part in the rendezvous: it posts the reason to the others.
        let buffer = own.as_ref().map(|own| Buffer::from(&own.memory));
        let pads = rendezvous.run(buffer.map_err(|error| error_text(&**error)))?;
        let own = own.map_err(|_| call.error(ErrorKind::OutOfStep))?;
        rendezvous.inner.group.set_pads(Pads::new(own, pads.buffers));
        Ok(rendezvous)
    }

    /// Like [`new`](Self::new), but the members map no signal pads. So the [`SymmetricMemory`] values of this object
    /// must not be used for signals. Contacts no other member. The second value is an error if the driver cannot
    /// describe this rank's device. The caller must then [`decline`](Self::decline) the first rendezvous, in which the
    /// other members wait for this rank, and must not use the object after that.
    pub(crate) fn without_pads(
        info: GroupInfo,
        context: &Context,
        options: RendezvousOptions,
    ) -> Result<(Self, cuda_driver::Result<()>), Error> {
        let generation = generation(&info).map_err(|error| info.call(OPERATION).error(error))?;
        let (site, site_result) = match Site::of(context) {
            Ok(site) => (site, Ok(())),
            Err(error) => (Site::of_process(), Err(error)),
        };
        let group = Arc::new(PeerGroup::new(info, context, site));
        let inner = RendezvousState { group, options, generation, next: Mutex::new(0) };
        Ok((Self { inner: Arc::new(inner) }, site_result))
    }

    /// The group.
    #[must_use]
    pub fn group(&self) -> &GroupInfo {
        &self.inner.group.info
    }

    /// Maps the buffers that the other members pass to the same call. Collective: all members must make their calls in
    /// the same order. These conditions apply to the buffers of all members in one call:
    /// - Either all buffers are in the same segment of the same symmetric pool, or all are in allocations that belong
    ///   to no pool ([`PeerMemory`]).
    /// - Either none of these allocations is [persistent](PeerAllocator::persistent), or all are, with the same id.
    /// - All buffers have the same size, and the same offset in their allocations or segments.
    /// - The allocations have the same size, and are on the same [kind](DeviceKind) of device.
    ///
    /// If an earlier rendezvous has mapped the memory on all members, the call maps nothing. Even then, the members
    /// exchange messages and can wait for each other.
    ///
    /// # Errors
    /// Those of [`new`](Self::new). See [`RendezvousOptions::deadline`] for the time limits.
    pub fn rendezvous(&self, buffer: impl Into<Buffer>) -> Result<SymmetricMemory, Error> {
        let buffer: Buffer = buffer.into();
        let mapping = self.run(Ok(buffer.clone()))?;
        buffer.keep_mapping(&self.inner.group.mappings, mapping.clone());
        Ok(SymmetricMemory::new(self.inner.group.clone(), buffer, mapping.buffers))
    }

    /// Allocates memory for a tensor on every member, and maps it on all others: [`PeerMemory::new`] and
    /// [`rendezvous`](Self::rendezvous) in one call. The elements have unspecified values. Collective: all members must
    /// call it with the same layout.
    ///
    /// # Errors
    /// - [`ErrorKind::Allocation`] if this member cannot allocate. The others get
    ///   [`RendezvousRefused`](ErrorKind::RendezvousRefused) with the reason.
    /// - The errors of [`rendezvous`](Self::rendezvous).
    #[doc(alias = "empty_strided_p2p")]
    pub fn empty(&self, layout: &Layout) -> Result<SymmetricMemory, Error> {
        let (context, options) = (&self.inner.group.context, &self.inner.options);
        // During an open capture, the driver could refuse the allocation, or the allocation could invalidate the
        // capture. The relaxed mode prevents both.
        let _relaxed = RelaxedCapture::enter(context.driver());
        let allocated = || {
            let bytes = layout.bytes().ok_or(AllocationError::Size { bytes: None })?;
            let handles = options.handles.map_or_else(|| HandleTypes::granted(context), Ok)?;
            PeerMemory::new(context, bytes, handles)
        };
        match allocated() {
            Ok(memory) => self.rendezvous(&memory),
            Err(error) => {
                self.decline(error_text(&error));
                Err(self.call().error(error))
            }
        }
    }

    /// Returns the [`SymmetricMemory`] of `buffer`, if an earlier rendezvous has mapped its allocation or pool segment.
    /// That rendezvous may have been for another buffer in the same allocation or segment. Contacts no other rank.
    ///
    /// # Errors
    /// [`ErrorKind::RendezvousMissing`] if there was no such rendezvous.
    pub fn get(&self, buffer: impl Into<Buffer>) -> Result<SymmetricMemory, Error> {
        let buffer: Buffer = buffer.into();
        match self.mapping(&buffer) {
            Some(mapping) => Ok(SymmetricMemory::new(self.inner.group.clone(), buffer, mapping.buffers)),
            None => Err(self.call().error(ErrorKind::RendezvousMissing { address: buffer.ptr().0 })),
        }
    }

    /// Returns the mapping that an earlier rendezvous made for the allocation or pool segment of `buffer`. `None` if
    /// there was no such rendezvous. Contacts no other rank.
    pub(crate) fn mapping(&self, buffer: &Buffer) -> Option<PeerMapping> {
        buffer.mapping(&self.inner.group.mappings)
    }

    /// Takes part, without memory, in a rendezvous for which the other members call [`rendezvous`](Self::rendezvous).
    /// So they do not wait for this rank until a timeout: their calls are refused, with `cause` as the reason.
    pub(crate) fn decline(&self, cause: String) {
        // The refusal is the intended result, and this rank knows the reason.
        let _ = self.run(Err(cause));
    }

    /// The prefix of the store keys of the rendezvous that mapped `memory`. The store keys of an
    /// [exchange](crate::exchange) or a [direct path](crate::direct) that uses this memory begin with the same prefix.
    /// `None` if this rank keeps no mapping for it.
    pub(crate) fn prefix(&self, memory: &SymmetricMemory) -> Option<String> {
        let number = self.mapping(&memory.buffer)?.number;
        Some(prefix(self.group().id(), self.inner.generation, number))
    }

    /// Runs one rendezvous. `buffer` is the memory of this rank, or the reason why this rank has none. Returns the
    /// mapping of the peers' allocations. If all members still have it from an earlier rendezvous, no new one is made.
    fn run(&self, buffer: Result<Buffer, String>) -> Result<PeerMapping, Error> {
        let RendezvousState { group, options, .. } = &*self.inner;
        let PeerGroup { info, context, .. } = &**group;
        // During an open capture, the driver could refuse to map memory, or the mapping could invalidate the capture.
        // The relaxed mode prevents both.
        let _relaxed = RelaxedCapture::enter(context.driver());
        let mut next = lock(&self.inner.next);
        let number = *next;
        *next += 1;
        let prepared = buffer.and_then(|buffer| {
            let (record, offer, base) = self.prepare(&buffer, number)?;
            Ok((record, (buffer, offer, base)))
        });
        let (record, shared) = match prepared {
            Ok((record, shared)) => (record, Some(shared)),
            Err(cause) => (self.record(number, SharingReadiness::Failed { cause }), None),
        };
        let member = Member {
            name: record.prefix(),
            rank: record.rank,
            members: info.global_ranks().to_vec(),
            generation: 0,
            patience: options.deadline / 2,
            deadline: Some(options.deadline),
        };
        let mut peers = None;
        let share = |records: &Vec<RendezvousRecord>, deadline, _: &dyn Fn() -> bool| {
            let Some((_, offer, base)) = &shared else {
                return OpeningOutcome::Failed { cause: "it has nothing to share".to_owned() };
            };
            match open(context, offer, info.rank(), *base, records, deadline) {
                Ok(mapped) => {
                    peers = Some(Arc::new(mapped));
                    OpeningOutcome::Mapped
                }
                Err(outcome) => outcome,
            }
        };
        let result = agreement::run::<RendezvousProtocol>(&*info.store, member, record, share, info.object());
        // Drops the `Offer`, so that peers cannot open this rank's memory any more. After the agreement, none needs to.
        let buffer = shared.map(|(buffer, ..)| buffer);
        drop(next);
        let (ending, failure) = match result {
            Ok(mapped_by) => {
                let mapping = match mapped_by == number {
                    true => peers.map(|buffers| PeerMapping { number, buffers }),
                    false => buffer.and_then(|buffer| self.mapping(&buffer)),
                };
                match mapping {
                    Some(mapping) => return Ok(mapping),
                    None => (RendezvousEnding::OutOfStep, None),
                }
            }
            Err(failed) => (RendezvousEnding::of_meeting(failed.ending), failed.store),
        };
        let kind = ErrorKind::of_ending(ending, ErrorKind::RendezvousRefused, failure, Vec::new());
        Err(info.failed(&self.call(), kind))
    }

    fn call(&self) -> CallContext {
        self.group().call(OPERATION)
    }

    /// Exports the allocation that contains `buffer` for the other ranks. Returns three values: this rank's
    /// [record](RendezvousRecord) (its message to the others), the [`Offer`] (the others can open the memory until it
    /// is dropped), and the address of the allocation. On failure, returns the reason that this rank posts to the
    /// others.
    fn prepare(&self, buffer: &Buffer, number: u64) -> Result<(RendezvousRecord, Offer, DevicePtr), String> {
        let allocation = buffer.allocation().ok_or("the block is of no segment of its pool")?;
        let memory = buffer.shareable(&self.inner.group.context, &allocation);
        let memory = memory.map_err(|error| error_text(&error))?;
        let memory = memory.ok_or(
            "another thread has retired the segment; call retire and this function one after the other",
        )?;
        let mut offer = Offer::new()?;
        let export = offer.export(memory)?;
        let readiness = if allocation.frozen { SharingReadiness::Capturing } else { SharingReadiness::Ready };
        let record = self.record(number, readiness);
        let record = RendezvousRecord {
            site: Site { endpoint: offer.endpoint(), ..record.site },
            subject: allocation.subject,
            offset: buffer.offset() as u64,
            bytes: buffer.bytes() as u64,
            mapped: self.mapping(buffer).map(|mapping| mapping.number),
            export,
            ..record
        };
        Ok((record, offer, allocation.base))
    }

    /// Creates a record (this rank's message to the others) that describes no memory.
    fn record(&self, number: u64, readiness: SharingReadiness) -> RendezvousRecord {
        let RendezvousState { group, options, generation, .. } = &*self.inner;
        let info = &group.info;
        RendezvousRecord {
            group: info.id(),
            generation: *generation,
            number,
            rank: info.global_rank(),
            members: chain(0, info.global_ranks().iter().map(|rank| u64::from(*rank))),
            readiness,
            shared_devices: options.shared_devices,
            subject: Subject::Allocation,
            offset: 0,
            bytes: 0,
            mapped: None,
            site: group.site.clone(),
            export: Export { bytes: 0, handle: Handle::NONE, token: u64::MAX },
        }
    }
}

/// Adds 1 to the number of times that this rank has created a [`Rendezvous`] for the group, and returns the new number.
/// The store keeps it. All later store keys of a `Rendezvous` contain its number, so it does not read the keys of an
/// earlier `Rendezvous` of the group. [`Rendezvous::new`] calls this function first, so that the numbers of all ranks
/// stay equal even if the rest of `new` fails on some of them.
fn generation(info: &GroupInfo) -> Result<u64, StoreError> {
    let key = format!("symm/meeting/{:x}.{}/life/{}", info.id().uid, info.id().epoch, info.rank());
    info.store.add(&key, 1).map(i64::unsigned_abs)
}

/// Opens the allocations of the other ranks, and returns the addresses of all ranks' allocations. `own` is the index of
/// this rank in `records`. `own_base` is the address of this rank's allocation. `deadline` limits the exchange of file
/// descriptors. On failure, the error is the [`OpeningOutcome`] that this rank posts to the others.
fn open(
    context: &Context,
    offer: &Offer,
    own: usize,
    own_base: DevicePtr,
    records: &[RendezvousRecord],
    deadline: Deadline,
) -> Result<PeerBuffers, OpeningOutcome> {
    let parties: Vec<Party<'_>> =
        records.iter().map(|it| Party { rank: it.rank, site: &it.site, exports: vec![&it.export] }).collect();
    let name = |_, _| "memory".to_owned();
    let mut opened = sharing::open(context, offer, own, &parties, |_, _| vec![0], name, deadline)?;
    let opened = (0..records.len()).map(|at| opened.remove(&(at, 0))).collect();
    let bytes = records.first().map_or(0, |record| record.export.bytes) as usize;
    PeerBuffers::mapped(context, own_base, bytes, opened)
        .map_err(|error| OpeningOutcome::Failed { cause: error_text(&error) })
}
