//! One-sided transfers: put and get between ranks by copy engines, without a collective and without a kernel.
//!
//! A transfer copies a buffer of one rank to a buffer of another. It is *one-sided* because only one of the two ranks
//! makes the copy. Each of the two ranks has one end of the transfer: its buffer and its [role](Part). The members of a
//! group [agree](Exchange::exchange) on a [`Plan`], which is a list of transfers. For this, each member lists its ends,
//! and the two ends of every transfer are checked against each other before any rank opens (maps) memory of a peer. If
//! the lists of the ranks do not match, all ranks get the same typed error within the
//! [time limits](ExchangeOptions::deadline). Once the members have agreed, the transfers can run any number of times:
//! one end calls [`put`](Plan::put) or [`get`](Plan::get) to copy, and the other end calls [`ready`](Plan::ready)
//! before the copy and [`wait`](Plan::wait) after it. Each call enqueues work on a stream.
//!
//! ```no_run
//! # use cuda_driver::{Stream, memory::DeviceMemory};
//! # use symm_mem::{exchange::{Exchange, ExchangeOptions, Memory, Part}, rendezvous::Rendezvous};
//! # use std::time::Duration;
//! # fn rank(rendezvous: &Rendezvous, stream: &Stream) -> Result<(), Box<dyn std::error::Error>> {
//! // Each rank puts to the next one.
//! let exchange = Exchange::new(rendezvous, ExchangeOptions::default())?;
//! let (rank, world) = (exchange.group().rank(), exchange.group().world_size());
//! let [source, target] = [DeviceMemory::new(stream.context(), 1 << 20)?, DeviceMemory::new(stream.context(), 1 << 20)?];
//! let to = exchange.transfer((rank + 1) % world, Part::PutInitiator, &Memory::from(source))?;
//! let from = exchange.transfer((rank + world - 1) % world, Part::PutTarget, &Memory::from(target))?;
//! let plan = exchange.exchange("ring", &[to, from])?;
//! let deadline = Duration::from_secs(10);
//! // The index of `to` in the list is 0, and that of `from` is 1.
//! // SAFETY: nobody else uses the buffers.
//! unsafe {
//!     plan.ready(1, stream)?;
//!     plan.put(0, stream, deadline)?;
//!     plan.wait(1, stream, deadline)?;
//! }
//! stream.synchronize()?;
//! plan.check()?;
//! # Ok(())
//! # }
//! ```
//!
//! *Regions.* A plan fixes both ends of each transfer. If the peers change from call to call, as in the transfer of a
//! KV cache from ranks that prefill to ranks that decode, the members [share regions](Exchange::share_regions) once. A
//! region is memory of one rank, with a name. Then any member can [transfer](Regions::transfer) between its regions and
//! those of any other member. A list of [`Descriptor`]s gives the ranges to copy. A transfer needs no call of the peer
//! and no access to the group's store. If transfers use the same ranges again and again, [`prepare`](Regions::prepare)
//! validates the ranges once.
//!
//! ```no_run
//! # use caching_alloc::core::Block;
//! # use cuda_driver::Stream;
//! # use symm_mem::exchange::{Descriptor, Direction, Exchange, Memory};
//! # use std::time::Duration;
//! # fn serve(exchange: &Exchange, cache: Block, stream: &Stream) -> Result<(), Box<dyn std::error::Error>> {
//! const PAGE: usize = 2 << 20;
//! // The cache is a block of a caching allocator, with pages of 2 MiB. Every rank shares its own.
//! let cache = Memory::block(stream.context(), cache)?;
//! let regions = exchange.share_regions("kv", &[("cache", cache)])?;
//! let deadline = Duration::from_secs(10);
//! // A scheduler decides which pages of this rank are copied to which pages of rank 3.
//! let (decoder, pages) = (3, [(0, 17), (1, 4), (2, 5)]);
//! let remote_region = regions.find(decoder, "cache")?.ok_or("rank 3 has no cache")?;
//! let list = pages.map(|(from, to)| Descriptor {
//!     local_region: 0,
//!     local_offset: from * PAGE,
//!     remote_region,
//!     remote_offset: to * PAGE,
//!     bytes: PAGE,
//! });
//! // SAFETY: the decoder uses its pages only after the notification. This rank writes its own pages only after the
//! // stream has passed the copies.
//! let pending = unsafe { regions.transfer_and_notify(Direction::Put, decoder, &list, stream, deadline)? };
//! while !pending.is_done()? {
//!     // Other work.
//! }
//! // On the decoder, if rank 0 runs the code above: the stream waits for the notification from rank 0, so work that is
//! // enqueued after this call may use the pages.
//! regions.wait(0, stream, deadline)?;
//! # Ok(())
//! # }
//! ```
//!
//! | module | subject |
//! |---|---|
//! | root, `options` | [`Exchange`]: a rank's plans and regions, and the peers' memory that the rank has open |
//! | `meet` | one agreement on a plan or on regions |
//! | [`protocol`] | the protocol of that agreement, without I/O |
//! | `contribution` | the contribution of a rank to an agreement: ends of transfers, or regions |
//! | `memory`, `owned` | [`Memory`]: memory that transfers can use |
//! | `transfer` | [`Transfer`]: one end of a transfer |
//! | `plan` | [`Plan`]: put and get on streams |
//! | `copy` | copies between the memory of two ranks |
//! | `core` | the state of a plan, or of the transfers between the regions of two ranks |
//! | `generation` | numbers that distinguish the current plan or regions of a name from earlier ones |
//! | `regions` | [`Regions`]: memory that all members share, lists of descriptors, and prepared ranges |
//! | `exports` | in one agreement: exports this rank's allocations, and opens those of the peers |
//! | `handles` | the peers' allocations that this rank has open |
//! | `slots` | words of device memory by which peers signal to this rank |
//! | `watch` | the deadlines of operations on streams |
//! | `close`, `lease` | closing of dropped plans and regions, and how long this rank keeps its memory for its peers |
//! | `quiet` | the times at which the process may make driver calls that wait for the device |
//! | `shared` | state that an exchange, its plans and its threads share |
//! | `error` | errors of transfers |
//!
//! *Ownership.* A plan, or a set of regions, keeps this rank's buffers allocated and the peers' memory open. A peer's
//! allocation is identified by an id that is never reused. An exchange opens each allocation once for all of its plans
//! and regions. (If two concurrent agreements need an allocation that is not open yet, each opens it.) The allocation
//! is closed with the last plan or set of regions that uses it. Memory that peers may access is freed only after they
//! have reported that they closed it. If they do not report this within the [lease](ExchangeOptions::lease), the memory
//! is [quarantined](Exchange::quarantine) instead: it stays allocated.
//!
//! Ranks of one process use each other's memory without a handle. Between processes, the kind of memory decides how a
//! peer opens it, and what happens if the owner frees memory that the peer still has open:
//! - Memory of `cuMemAlloc` is opened by legacy IPC handle, which gives the peer the whole allocation. If the owner
//!   frees it too early, the behaviour is undefined.
//! - Virtual memory is opened by file descriptor or fabric handle. If the owner frees it too early, the driver keeps
//!   the pages until the peer closes them.

mod close;
mod contribution;
mod copy;
pub(crate) mod core;
mod error;
mod exports;
pub(crate) mod generation;
pub(crate) mod handles;
pub(crate) mod lease;
mod meet;
mod memory;
mod options;
mod owned;
mod plan;
mod quiet;
mod regions;
mod shared;
pub(crate) mod slots;
mod transfer;
mod watch;

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, Weak},
    thread::{self, JoinHandle},
    time::Duration,
};

use cuda_driver::{Context, graph::RelaxedCapture, vmm::HandleTypes};
use process_group::{error_text, store::Deadline};

pub use self::{
    copy::Direction,
    error::{Awaited, Fault, TransferError},
    lease::Quarantined,
    memory::Memory,
    options::ExchangeOptions,
    plan::Plan,
    protocol::{ExchangeRefusal, Part},
    regions::{
        Descriptor, DescriptorError, PendingTransfer, PreparedRanges, RegionInfo, RegionRange, Regions,
        SelectedRanges, Side,
    },
    transfer::Transfer,
};
use self::{
    core::Core,
    generation::Generations,
    shared::{Shared, Tools},
    slots::SLOT_BYTES,
};
pub use crate::agreement::exchange as protocol;
use crate::{
    error::Error,
    error_kind::ErrorKind,
    lock::lock,
    rendezvous::{GroupInfo, PeerMemory, Rendezvous},
};

/// Name of the operation in errors of [`Exchange::new`], [`Exchange::exchange`] and [`Exchange::exchange_among`].
const OPERATION: &str = "exchange";

/// One member's handle for the one-sided transfers of a group. Clones share the state.
#[derive(Debug, Clone)]
pub struct Exchange {
    owner: Arc<ExchangeState>,
}

/// The state of an [`Exchange`]. Shared by the clones of the exchange, and by its plans and regions.
struct ExchangeState {
    shared: Arc<Shared>,
    rendezvous: Rendezvous,
    options: ExchangeOptions,
    /// Prefix of the store keys of this exchange's agreements.
    prefix: String,
    /// For each set of ranks, the number of the set's next agreement. The lock of the number is held during the
    /// agreement, so the agreements of one set run one at a time.
    numbers: Mutex<HashMap<Vec<u32>, Arc<Mutex<u64>>>>,
    /// By the name of the plan or regions.
    plans: Mutex<HashMap<String, NameState>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// The plans and regions of one name. A plan has one [`Core`]; regions have one [`Core`] for each peer.
#[derive(Debug, Default)]
struct NameState {
    /// The current generation of the name.
    generations: Generations,
    /// The states of the first plan or regions with the current generation, and of all plans and regions of this name
    /// that were added later. The later ones have the same generation or a lower one. They exist only if threads of
    /// this rank have agreed on the name at the same time, with different members.
    last: Vec<Weak<Core>>,
}

impl NameState {
    /// Adds the states of a plan or of regions with this agreed generation.
    fn add(&mut self, generation: u64, cores: impl IntoIterator<Item = Weak<Core>>) {
        if generation >= self.generations.next() {
            self.last.clear();
        }
        self.last.extend(cores);
        self.generations.agreed(generation);
    }
}

impl fmt::Debug for ExchangeState {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Exchange({:?})", self.shared.info)
    }
}

impl Drop for ExchangeState {
    /// Lets the exchange's threads end, once the transfers under way have ended and the dropped plans and regions are
    /// [closed](Exchange::close).
    fn drop(&mut self) {
        self.shared.closer.stop();
    }
}

impl Exchange {
    /// Creates an exchange for a group. Collective: all members call this function, the same number of times and with
    /// the same options. Each `Exchange` has its own slots: words in device memory by which members signal each other.
    /// The members map each other's slots in this call.
    ///
    /// # Errors
    /// - [`Allocation`](ErrorKind::Allocation), [`Driver`](ErrorKind::Driver): this rank cannot create its slots. The
    ///   other members get [`RendezvousRefused`](ErrorKind::RendezvousRefused).
    /// - [`ErrorKind::RendezvousRefused`]: the members refuse to share their slots, for example because one of them
    ///   could not create its own. All members that have created their slots get the same refusal.
    /// - [`ErrorKind::Thread`]: a thread of the exchange cannot be started. The call may succeed on the other members.
    /// - The other errors of [`Rendezvous::rendezvous`].
    pub fn new(rendezvous: &Rendezvous, options: ExchangeOptions) -> Result<Self, Error> {
        let (info, context) = (rendezvous.group().clone(), &rendezvous.inner.group.context);
        // If a capture is open, the calls below must neither join it nor invalidate it.
        let _relaxed = RelaxedCapture::enter(context.driver());
        let call = info.call(OPERATION);
        let (slab, tools) = match prepare(context, &options) {
            Ok(prepared) => prepared,
            Err(kind) => {
                // Post the error, so that the other members get a refusal that names this rank.
                rendezvous.decline(error_text(&kind));
                return Err(call.error(kind));
            }
        };
        let slab = rendezvous.rendezvous(&slab).map_err(|error| call.error(error.into_kind()))?;
        let prefix = rendezvous.prefix(&slab).ok_or_else(|| call.error(ErrorKind::OutOfStep))?;
        let shared = Arc::new(Shared::new(info, context, slab, tools, options));
        let owner = ExchangeState {
            shared: shared.clone(),
            rendezvous: rendezvous.clone(),
            options,
            prefix,
            numbers: Mutex::default(),
            plans: Mutex::default(),
            threads: Mutex::default(),
        };
        let threads = [
            ("symm-close", close::run as fn(&Shared)),
            ("symm-copy", watch::run_copies),
            ("symm-watch", watch::run),
        ];
        for (name, work) in threads {
            let of_thread = shared.clone();
            let thread = thread::Builder::new().name(name.to_owned()).spawn(move || work(&of_thread));
            let thread = thread.map_err(|error| {
                shared.watch.end_copies();
                call.error(ErrorKind::Thread(error))
            })?;
            lock(&owner.threads).push(thread);
        }
        Ok(Self { owner: Arc::new(owner) })
    }

    /// The group.
    #[must_use]
    pub fn group(&self) -> &GroupInfo {
        &self.owner.shared.info
    }

    /// Returns this rank's end of a transfer with `peer`, a rank within the group. `part` is this rank's role, and
    /// `memory` is its buffer. In [`exchange`](Self::exchange), the peer must list the other end. If a plan has several
    /// transfers between the two ranks, the n-th of them in the list of one rank matches the n-th of them in the list
    /// of the other.
    ///
    /// # Errors
    /// [`TransferError`]: `ToSelf` if `peer` is this rank, `NoSuchRank` if the group has no such rank, `Empty` if the
    /// memory has 0 bytes, `OtherDevice` if the memory does not belong to a CUDA device.
    pub fn transfer(
        &self,
        peer: usize,
        part: Part,
        memory: impl Into<Memory>,
    ) -> Result<Transfer, TransferError> {
        let (memory, own, world) = (memory.into(), self.group().rank(), self.group().world_size());
        if peer >= world {
            return Err(TransferError::NoSuchRank { rank: peer, world });
        }
        if peer == own {
            return Err(TransferError::ToSelf { rank: own });
        }
        if memory.bytes() == 0 {
            return Err(TransferError::Empty);
        }
        memory.check_kind()?;
        Ok(Transfer { peer, part, memory })
    }

    /// Agrees on the plan called `plan` with the other members. Collective over the group: every member calls it with
    /// its own ends of transfers, or with an empty list. Two ranks must list the transfers between them in the same
    /// order. Transfers with different peers may be listed in any order. If the lists of all members match, each member
    /// opens the peers' memory that it accesses and does not have open yet.
    ///
    /// This rank first waits until the transfers of the previous plan of that name have ended. If they take longer than
    /// an eighth of [`ExchangeOptions::deadline`], the call fails on all members. After the call has succeeded, the
    /// previous plan is stale: its `ready`, `put`, `get` and `wait` return [`TransferError::StalePlan`]. A previous set
    /// of regions of that name becomes stale in the same way, after this rank has waited for its transfers.
    ///
    /// # Errors
    /// - [`ErrorKind::NoChannels`]: too few adjacent [channels](ExchangeOptions::channels) of this rank are free. The
    ///   other members get [`ExchangeRefused`](ErrorKind::ExchangeRefused).
    /// - [`ErrorKind::Store`]: the store fails for this rank.
    /// - [`ErrorKind::GroupOver`]: the group has ended.
    /// - [`ErrorKind::Unreadable`]: this rank cannot decode the result of the agreement.
    /// - [`ErrorKind::OutOfStep`]: the agreement does not fit this rank's transfers, which is a bug of this crate.
    /// - [`ErrorKind::ExchangeRefused`]: the members refuse the plan. All get the same refusal, within the limits of
    ///   [`ExchangeOptions::deadline`]. In two cases, it is possible that only this process is refused, and that the
    ///   other members have the plan:
    ///   - Another process takes part as this rank.
    ///   - This rank's list of members differs from that of the others.
    pub fn exchange(&self, plan: &str, transfers: &[Transfer]) -> Result<Plan, Error> {
        let all: Vec<usize> = (0..self.group().world_size()).collect();
        self.exchange_among(&all, plan, transfers)
    }

    /// Returns the number of peers' allocations that this rank has open.
    #[must_use]
    pub fn open_handles(&self) -> usize {
        self.owner.shared.handles.count()
    }

    /// Returns the number of free channels of this rank, out of [`ExchangeOptions::channels`]. A plan or a set of
    /// regions needs adjacent channels. So an agreement can fail although enough channels are free, if they are not
    /// adjacent.
    #[must_use]
    pub fn free_channels(&self) -> usize {
        self.owner.shared.slots().free()
    }

    /// Returns the [quarantined](Quarantined) memory, and removes it from the exchange. Memory is quarantined if it is
    /// this rank's memory of a dropped plan or set of regions, and a peer has not closed it within the
    /// [lease](ExchangeOptions::lease).
    #[must_use]
    pub fn quarantine(&self) -> Vec<Quarantined> {
        self.owner.shared.closer.quarantine()
    }

    /// Waits until this rank and its peers have closed the plans and regions that this rank has dropped, or until the
    /// deadline. A rank *closes* a plan or regions after it has dropped them: it closes (unmaps) the peers' memory that
    /// they use.
    ///
    /// At the deadline, transfers of these plans and regions that are under way fail with [`Fault::Aborted`]. The
    /// running [leases](ExchangeOptions::lease) end then, so memory that peers have not closed is quarantined. Returns
    /// the quarantined memory, as [`quarantine`](Self::quarantine) does.
    ///
    /// Not collective. But a peer closes a plan only after the peer has dropped it too, so this call may wait for that.
    /// If this is the last clone of the exchange, and all plans and regions are dropped, the call also ends the
    /// exchange's threads.
    ///
    /// Returns at most 5 s after the deadline. Some plans may still be open then. The exchange's threads close them
    /// later, and report that to the peers. Reasons for open plans:
    /// - The device does not answer.
    /// - A rank of this process has a transfer under way. During transfers, a process neither frees memory of
    ///   `cuMemAlloc` nor closes memory that was opened by legacy IPC handle.
    pub fn close(self, deadline: Deadline) -> Vec<Quarantined> {
        let shared = self.owner.shared.clone();
        let end = Deadline::after(deadline.remaining().saturating_add(close::GRACE));
        shared.closer.settle(deadline, end);
        if let Some(owner) = Arc::into_inner(self.owner) {
            let threads = std::mem::take(&mut *lock(&owner.threads));
            drop(owner);
            // This was the last reference to the owner. Plans and regions hold references too, so all of them have been
            // dropped, some perhaps after the first `settle`.
            let is_settled = shared.closer.settle(deadline, end);
            // The threads end only when they have no work left. One of them may be blocked in a call of the driver. So
            // a thread is joined only once it has ended. The error of `join` is ignored: a thread that has panicked has
            // ended too.
            for thread in threads.into_iter().filter(|_| is_settled) {
                while !thread.is_finished() && !end.expired() {
                    thread::sleep(Duration::from_micros(100));
                }
                if thread.is_finished() {
                    let _ = thread.join();
                }
            }
        }
        shared.closer.quarantine()
    }
}

/// Allocates the slab (this rank's array of slots), and creates the exchange's [`Tools`]. Does not share the slots with
/// peers yet.
fn prepare(context: &Context, options: &ExchangeOptions) -> Result<(PeerMemory, Tools), ErrorKind> {
    let bytes = options.channels.saturating_mul(SLOT_BYTES).max(1);
    let handles = options.handles.map_or_else(|| HandleTypes::granted(context), Ok)?;
    let slab = PeerMemory::new(context, bytes, handles)?;
    slab.clear(context)?;
    Ok((slab, Tools::new(context, options.channels)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two threads of a rank have agreed on a name with different members at the same time. The next agreement on the
    /// name has to wait for the transfers of both plans.
    #[test]
    fn all_plans_of_the_current_generation_are_kept() {
        let mut name = NameState::default();
        for (generation, kept) in [(1, 1), (1, 2), (3, 1), (2, 2), (4, 1)] {
            name.add(generation, [Weak::new()]);
            assert_eq!(name.last.len(), kept, "generation {generation}");
        }
        assert_eq!(name.generations.next(), 5);
    }
}
