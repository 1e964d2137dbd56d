//! One-sided transfers: put and get between ranks, by copy engines, without a collective and without a kernel.
//!
//! The members of a group [exchange](Exchange::exchange) a plan: each names its transfers, both ends of every transfer agree
//! before anything is opened, and all have the plan or none. Then a [`Plan`]'s [`put`](Plan::put), [`get`](Plan::get),
//! [`ready`](Plan::ready) and [`wait`](Plan::wait) are enqueued on streams, as often as one likes. What ranks do differently
//! is the same typed error on all of them, before the deadline.
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
//! let to = exchange.transfer((rank + 1) % world, Part::PutTo, &Memory::from(source))?;
//! let from = exchange.transfer((rank + world - 1) % world, Part::PutFrom, &Memory::from(target))?;
//! let plan = exchange.exchange("ring", &[to, from])?;
//! let soon = Duration::from_secs(10);
//! // SAFETY: nobody else uses the buffers.
//! unsafe {
//!     plan.ready(1, stream)?;
//!     plan.put(0, stream, soon)?;
//!     plan.wait(1, stream, soon)?;
//! }
//! stream.synchronize()?;
//! plan.check()?;
//! # Ok(())
//! # }
//! ```
//!
//! | module | subject |
//! |---|---|
//! | root, `options` | [`Exchange`]: a group's slots, plans and what is open |
//! | `meet` | one exchange |
//! | [`protocol`] | the agreement on a plan, without I/O; `crate::commit::meeting` runs it |
//! | `memory`, `transfer` | [`Memory`], and what is to be done with it |
//! | `plan`, `core`, `generation` | [`Plan`]: put and get on streams, by the last plan of a name |
//! | `share`, `handles` | peers' memory is opened: once, until the last plan lets go |
//! | `slots` | where peers signal to this rank |
//! | `watch` | the deadlines of waits |
//! | `close`, `lease` | the end of plans; what is lent stays until it is let go of |
//! | `quiet` | when memory is closed or freed in a process of several ranks |
//!
//! *Who holds what.* A plan holds this rank's buffers and what it has open of its peers'. An allocation of a peer is known
//! by a number that is never used again, is opened once for all plans of an exchange, and closed with the last of them. What
//! peers may reach into stays until they have said that they have closed it, or a time has passed: then it is
//! [quarantined](Exchange::quarantine), never freed under a peer.
//!
//! Plain memory (`cuMemAlloc`) is had by legacy handle, which gives a peer the whole allocation, and whose end under a peer
//! the driver does not define; virtual memory by file descriptor or fabric handle, where the driver keeps the pages.

mod close;
pub(crate) mod core;
mod error;
pub(crate) mod generation;
pub(crate) mod handles;
pub(crate) mod lease;
mod meet;
mod memory;
mod options;
mod plan;
pub mod protocol;
mod quiet;
mod share;
mod shared;
pub(crate) mod slots;
mod transfer;
mod watch;

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, PoisonError, Weak},
    thread::{self, JoinHandle},
};

use cuda_driver::{Context, graph::RelaxedCapture, vmm::HandleTypes};
use process_group::store::Deadline;

use self::{
    core::Core,
    generation::Generations,
    quiet::Present,
    shared::{Shared, Tools, rank_of},
    slots::SLOT_BYTES,
};
pub use self::{
    error::{Awaited, ExchangeError, Fault, TransferError},
    lease::Quarantined,
    memory::Memory,
    options::ExchangeOptions,
    plan::Plan,
    protocol::{ExchangeRefusal, Part},
    transfer::Transfer,
};
use crate::rendezvous::{GroupInfo, PeerMemory, Rendezvous, explained};

/// A group's exchanges. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Exchange {
    owner: Arc<Owner>,
}

/// An exchange, as long as anybody uses it or a plan of it.
struct Owner {
    shared: Arc<Shared>,
    rendezvous: Rendezvous,
    options: ExchangeOptions,
    prefix: String,
    /// The number of the next exchange, by who takes part; one of them is held at a time.
    numbers: Mutex<HashMap<Vec<u32>, Arc<Mutex<u64>>>>,
    plans: Mutex<HashMap<String, Named>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// What is known of the plans of one name.
#[derive(Debug, Default)]
struct Named {
    generations: Generations,
    last: Weak<Core>,
}

impl fmt::Debug for Owner {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Exchange({:?})", self.shared.info)
    }
}

impl Drop for Owner {
    /// The threads end by themselves, with what is outstanding.
    fn drop(&mut self) {
        self.shared.closer.stop();
    }
}

impl Exchange {
    /// The exchanges of a group. Collective: all members make it, as often as each other, with the same options; they
    /// exchange their slots, which are this value's alone.
    ///
    /// # Errors
    /// [`ExchangeError`]; [`Rendezvous`](ExchangeError::Rendezvous) with a refusal is given to every member alike.
    pub fn new(rendezvous: &Rendezvous, options: ExchangeOptions) -> Result<Self, ExchangeError> {
        let (info, context) = (rendezvous.inner.info.clone(), &rendezvous.inner.context);
        // To make it is no part of a capture that happens to be open, and must not ruin it.
        let _relaxed = RelaxedCapture::enter(context.driver());
        let group = info.name().to_owned();
        let (slab, tools) = match prepared(&info, context, &options) {
            Ok(prepared) => prepared,
            Err(error) => {
                // Whoever has none says so to the others.
                rendezvous.decline(explained(&error));
                return Err(error);
            }
        };
        let slab = rendezvous.rendezvous(&slab)?;
        let prefix = rendezvous.prefix(&slab).ok_or(ExchangeError::OutOfStep { group })?;
        let shared = Arc::new(Shared::new(info, context, slab, tools, options));
        let owner = Owner {
            shared: shared.clone(),
            rendezvous: rendezvous.clone(),
            options,
            prefix,
            numbers: Mutex::default(),
            plans: Mutex::default(),
            threads: Mutex::default(),
        };
        for (name, work) in [("symm-close", close::run as fn(&Shared)), ("symm-watch", watch::run)] {
            let shared = shared.clone();
            let thread = thread::Builder::new().name(name.to_owned()).spawn(move || work(&shared));
            let thread = thread.map_err(ExchangeError::Thread)?;
            owner.threads.lock().unwrap_or_else(PoisonError::into_inner).push(thread);
        }
        Ok(Self { owner: Arc::new(owner) })
    }

    /// The group.
    #[must_use]
    pub fn group(&self) -> &GroupInfo {
        &self.owner.shared.info
    }

    /// One end of a transfer with the rank at place `peer` of the group. The peer names the other end, at the same place
    /// among those that it has with this rank.
    ///
    /// # Errors
    /// [`TransferError`]: `ToSelf`, `NoSuchRank`, `Empty`.
    pub fn transfer(
        &self,
        peer: usize,
        part: Part,
        memory: impl Into<Memory>,
    ) -> Result<Transfer, TransferError> {
        let info = &self.owner.shared.info;
        Transfer::new(peer, part, memory.into(), (info.rank(), info.world_size()))
    }

    /// Exchanges the plan called `plan`. Collective over the group: all members call it, with the transfers that they take
    /// part in, or none, in whatever order. Always agreed, also where all memory is open already: then nothing is opened.
    ///
    /// The plan of that name that was there before is stale from then on; what is under way of it ends before the others
    /// are told that this rank is there.
    ///
    /// # Errors
    /// [`ExchangeError`]; [`Refused`](ExchangeError::Refused) is given to every member alike, before its deadline.
    pub fn exchange(&self, plan: &str, transfers: &[Transfer]) -> Result<Plan, ExchangeError> {
        let all: Vec<usize> = (0..self.group().world_size()).collect();
        self.exchange_among(&all, plan, transfers)
    }

    /// How many allocations of peers are open.
    #[must_use]
    pub fn open_handles(&self) -> usize {
        self.owner.shared.handles.count()
    }

    /// How many further transfers this rank can have.
    #[must_use]
    pub fn free_channels(&self) -> usize {
        self.owner.shared.slots().free()
    }

    /// What peers have not let go of in time since this was asked last.
    #[must_use]
    pub fn quarantine(&self) -> Vec<Quarantined> {
        self.owner.shared.closer.quarantine()
    }

    /// Waits until the plans that were dropped are closed and their peers have let go, or until the deadline: what is under
    /// way then is given up, and what is lent is overdue, and comes back with what was before. Not collective, but peers must
    /// have dropped their plans too. If this is the last handle and no plan is left, the exchange has ended, with its
    /// threads.
    ///
    /// It returns at most 5 s after the deadline. What cannot be closed even then, since the device does not answer or, in a
    /// process of several ranks, some transfer of theirs is always under way, stays with the exchange's threads: they close
    /// it when they can, and end then; peers are told no sooner.
    pub fn close(self, deadline: Deadline) -> Vec<Quarantined> {
        let shared = self.owner.shared.clone();
        let end = Deadline::after(deadline.remaining().saturating_add(close::GRACE));
        shared.closer.settle(deadline, end);
        if let Some(owner) = Arc::into_inner(self.owner) {
            let threads = std::mem::take(&mut *owner.threads.lock().unwrap_or_else(PoisonError::into_inner));
            drop(owner);
            // A plan may have gone meanwhile; now none is left.
            let is_settled = shared.closer.settle(deadline, end);
            // They are at their end, if nothing is left to them. One that has panicked has ended too.
            for thread in threads.into_iter().filter(|_| is_settled) {
                let _ = thread.join();
            }
        }
        shared.closer.quarantine()
    }
}

/// This rank's slots, which nobody else knows yet, and what is needed to look at them.
fn prepared(
    info: &GroupInfo,
    context: &Context,
    options: &ExchangeOptions,
) -> Result<(PeerMemory, Tools), ExchangeError> {
    // So much later than the others it may come to the meeting.
    let deadline = Deadline::after(options.deadline / 2);
    let present = Present::new(rank_of(info), deadline);
    let present = present.ok_or_else(|| ExchangeError::Closing { waited: deadline.waited() })?;
    let bytes = options.channels.saturating_mul(SLOT_BYTES).max(1);
    let handles = options.handles.map_or_else(|| HandleTypes::granted(context), Ok)?;
    let slab = PeerMemory::new(context, bytes, handles)?;
    slab.clear(context)?;
    Ok((slab, Tools::new(context, options.channels, present)?))
}
