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
//! | root | [`Exchange`]: a group's slots, plans and what is open |
//! | [`protocol`] | the agreement on a plan, without I/O |
//! | `memory`, `transfer` | [`Memory`], and what is to be done with it |
//! | `plan`, `core` | [`Plan`]: put and get on streams |
//! | `share`, `handles` | peers' memory is opened: once, until the last plan lets go |
//! | `slots` | where peers signal to this rank |
//! | `watch` | the deadlines of waits |
//! | `close`, `lease` | the end of plans; what is lent stays until it is let go of |
//!
//! *Who holds what.* A plan holds this rank's buffers and what it has open of its peers'. An allocation of a peer is known
//! by a number that is never used again, is opened once for all plans of an exchange, and closed with the last of them. What
//! peers may reach into stays until they have said that they have closed it, or a time has passed: then it is
//! [quarantined](Exchange::quarantine), never freed under a peer.
//!
//! Plain memory (`cuMemAlloc`) is had by legacy handle, which gives a peer the whole allocation, and whose end under a peer
//! the driver does not define; virtual memory by file descriptor or fabric handle, where the driver keeps the pages.

mod close;
mod core;
mod error;
mod handles;
mod lease;
mod memory;
mod plan;
pub mod protocol;
mod share;
mod shared;
mod slots;
mod transfer;
mod watch;

use std::{
    collections::HashMap,
    fmt,
    ops::Range,
    sync::{
        Arc, Mutex, OnceLock, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use cuda_driver::{graph::RelaxedCapture, vmm::HandleTypes};
use process_group::{
    local,
    store::{Deadline, StoreError},
};

use self::{
    core::{Core, Wire},
    handles::{Imported, Key},
    protocol::{Agreement, Conclusion, End, Ending, Held, Input, Meeting, Output, Record},
    share::Offer,
    shared::Shared,
    slots::{SLOT_BYTES, words},
};
pub use self::{
    error::{Awaited, ExchangeError, Fault, TransferError},
    lease::Quarantined,
    memory::Memory,
    plan::Plan,
    protocol::{ExchangeRefusal, Part},
    transfer::Transfer,
};
use crate::{
    agreement::{self, hash::chain},
    commit::driver::Line,
    rendezvous::{
        GroupInfo, PeerMemory, Rendezvous, explained,
        protocol::{Outcome, Readiness},
    },
};

/// How a group's exchanges are held. All members give the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExchangeOptions {
    /// The time after which every member has an answer. A member may come up to half of it later than the first.
    pub deadline: Duration,
    /// How many transfers a rank can have at one time, in all of its plans.
    pub channels: usize,
    /// How long peers may hold what they were lent after this rank has dropped the plan.
    pub lease: Duration,
    /// How the slots can be had by others.
    pub handles: HandleTypes,
}

impl Default for ExchangeOptions {
    /// Within 30 seconds; 4096 transfers; 60 seconds to let go; by file descriptor.
    fn default() -> Self {
        Self {
            deadline: Duration::from_secs(30),
            channels: 4096,
            lease: Duration::from_secs(60),
            handles: HandleTypes::POSIX_FD,
        }
    }
}

impl ExchangeOptions {
    /// With this deadline.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// With room for so many transfers.
    #[must_use]
    pub fn channels(mut self, channels: usize) -> Self {
        self.channels = channels;
        self
    }

    /// With so much time to let go.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// With slots that can be had in these ways.
    #[must_use]
    pub fn handles(mut self, handles: HandleTypes) -> Self {
        self.handles = handles;
        self
    }
}

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
    generation: Arc<AtomicU64>,
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

/// What this rank comes with.
struct Candidate {
    record: Record,
    offer: Offer,
    slots: Range<usize>,
}

impl Exchange {
    /// The exchanges of a group. Collective: all members make it, as often as each other, with the same options; they
    /// exchange their slots, which are this value's alone.
    ///
    /// # Errors
    /// [`ExchangeError`]; [`Rendezvous`](ExchangeError::Rendezvous) with a refusal is given to every member alike.
    pub fn new(rendezvous: &Rendezvous, options: ExchangeOptions) -> Result<Self, ExchangeError> {
        let (info, context) = (rendezvous.inner.info.clone(), &rendezvous.inner.context);
        let group = info.name().to_owned();
        let bytes = options.channels.saturating_mul(SLOT_BYTES).max(1);
        let slab = PeerMemory::new(context, bytes, options.handles)?;
        // SAFETY: nobody else has the memory.
        unsafe { context.fill_u8(slab.ptr(), 0, slab.bytes()) }?;
        context.synchronize()?;
        let slab = rendezvous.rendezvous(&slab)?;
        let prefix = rendezvous.prefix(&slab).ok_or(ExchangeError::OutOfStep { group })?;
        let shared = Arc::new(Shared::new(info, context, slab, options.channels, options.lease)?);
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

    /// As [`exchange`](Self::exchange), among the ranks at these places of the group alone: collective over them. Ranks
    /// that exchange with one set after another do so in one order everywhere, as with any collective; who does otherwise
    /// is told by the deadline.
    ///
    /// # Errors
    /// As [`exchange`](Self::exchange); [`ExchangeError::NotAMember`].
    pub fn exchange_among(
        &self,
        members: &[usize],
        plan: &str,
        transfers: &[Transfer],
    ) -> Result<Plan, ExchangeError> {
        let Owner { shared, prefix, numbers, .. } = &*self.owner;
        let (info, context) = (&shared.info, &shared.context);
        let mut places = members.to_vec();
        places.sort_unstable();
        places.dedup();
        let ranks: Option<Vec<u32>> =
            places.iter().map(|place| info.global_ranks().get(*place).copied()).collect();
        let (Some(ranks), true) = (ranks, places.contains(&info.rank())) else {
            let (rank, world) = (info.rank(), info.world_size());
            return Err(ExchangeError::NotAMember { members: members.to_vec(), rank, world });
        };
        let number =
            numbers.lock().unwrap_or_else(PoisonError::into_inner).entry(ranks.clone()).or_default().clone();
        let mut number = number.lock().unwrap_or_else(PoisonError::into_inner);
        let who = chain(0, ranks.iter().map(|rank| u64::from(*rank)));
        let key = format!("{prefix}/exchange/{who:x}/{number}", number = *number);
        *number += 1;

        // Opening memory is no part of a capture that happens to be open, and must not ruin it.
        let _relaxed = RelaxedCapture::enter(context.driver());
        // While this lives, nothing is closed that the others are told to be open.
        let held = shared.handles.held();
        let (record, candidate, refused) = match self.prepare(plan, transfers, &held) {
            Ok(candidate) => (candidate.record.clone(), Some(candidate), None),
            Err(refused) => {
                let cause = explained(&refused);
                let record = Record { readiness: Readiness::Failed { cause }, ..self.record(plan) };
                (record, None, Some(refused))
            }
        };
        let mut opened = HashMap::new();
        let open = |agreement: &Agreement, deadline| {
            let place = agreement.records.iter().position(|record| record.rank == shared.rank());
            let (Some(candidate), Some(place)) = (&candidate, place) else {
                return Outcome::Failed { cause: "it has nothing to share".to_owned() };
            };
            match share::open(context, &candidate.offer, place, &agreement.records, deadline) {
                Ok(all) => {
                    opened = all;
                    Outcome::Mapped
                }
                Err(outcome) => outcome,
            }
        };
        let machine = Meeting::new(record, key.clone(), ranks);
        let (conclusion, failure) = self.run(machine, open);
        drop(number);
        let ending = match (conclusion.result, candidate) {
            (Ok(agreement), Some(candidate)) => {
                match self.agreed(&key, candidate, transfers, &agreement, &held, &opened) {
                    Some(plan) => return Ok(plan),
                    None => Ending::OutOfStep,
                }
            }
            (Ok(_), None) => Ending::OutOfStep,
            (Err(ending), candidate) => {
                if let Some(candidate) = candidate {
                    self.let_go(&key, candidate, transfers, &ending);
                }
                ending
            }
        };
        Err(self.failed(plan, refused, ending, failure))
    }

    /// Runs the machine to its end; nobody is waited for once the group is over.
    fn run(
        &self,
        mut machine: Meeting,
        mut open: impl FnMut(&Agreement, Deadline) -> Outcome,
    ) -> (Conclusion, Option<StoreError>) {
        let info = &self.owner.shared.info;
        let mut line = Line::new(&*info.store);
        let mut input = Input::Start;
        loop {
            input = match machine.step(input, line.elapsed()) {
                Output::Done(conclusion) => {
                    line.remove(&conclusion.read);
                    return (conclusion, line.failure);
                }
                Output::Open { agreement, until } => Input::Opened(open(&agreement, line.deadline(until))),
                Output::Store(request) => match line.ask(request, || info.standing().is_ok()) {
                    agreement::Input::StoreFailed => Input::StoreFailed,
                    answer => Input::Store(answer),
                },
            };
        }
    }

    /// Takes slots, and makes what the others can have of this rank's memory.
    fn prepare(
        &self,
        plan: &str,
        transfers: &[Transfer],
        held: &HashMap<Key, Arc<Imported>>,
    ) -> Result<Candidate, ExchangeError> {
        let Owner { shared, options, .. } = &*self.owner;
        let (wanted, channels) = (transfers.len(), options.channels);
        let slots = {
            let mut slots = shared.slots();
            let free = slots.free();
            slots.take(wanted).ok_or(ExchangeError::NoChannels { wanted, free, channels })?
        };
        let made = self.offered(plan, transfers, held, &slots);
        match made {
            Ok((record, offer)) => Ok(Candidate { record, offer, slots }),
            Err(error) => {
                shared.slots().give_back(slots);
                Err(error)
            }
        }
    }

    fn offered(
        &self,
        plan: &str,
        transfers: &[Transfer],
        held: &HashMap<Key, Arc<Imported>>,
        slots: &Range<usize>,
    ) -> Result<(Record, Offer), ExchangeError> {
        let Owner { shared, options, .. } = &*self.owner;
        let unprepared = |cause: String| ExchangeError::Unprepared { plan: plan.to_owned(), cause };
        let last = self.named(plan).last.upgrade();
        let patience = Deadline::after(options.deadline / 8);
        if last.is_some_and(|last| !shared.watch.drain(&last, patience)) {
            return Err(unprepared("transfers of the plan are under way still".to_owned()));
        }
        shared.clear(slots)?;
        let offer = Offer::make(&shared.context, transfers).map_err(unprepared)?;
        let ends = transfers.iter().zip(slots.clone()).map(|(transfer, slot)| {
            let place = (!transfer.part.copies()).then(|| offer.place(&transfer.memory)).flatten();
            End {
                peer: shared.info.global_ranks()[transfer.peer],
                part: transfer.part,
                bytes: transfer.memory.bytes() as u64,
                export: place.map(|(export, _)| export),
                offset: place.map_or(0, |(_, offset)| offset),
                slot: slot as u32,
            }
        });
        let record = Record {
            card: offer.card(),
            exports: offer.exports(),
            held: held.keys().map(|(peer, id)| Held { peer: *peer, id: *id }).collect(),
            ends: ends.collect(),
            ..self.record(plan)
        };
        Ok((record, offer))
    }

    /// What this rank says of itself, with nothing to transfer.
    fn record(&self, plan: &str) -> Record {
        let Owner { shared, options, rendezvous, .. } = &*self.owner;
        let identity = rendezvous.inner.identity.clone();
        Record {
            rank: shared.rank(),
            plan: plan.to_owned(),
            generation: self.named(plan).generation.load(Ordering::Acquire) + 1,
            deadline_ms: u64::try_from(options.deadline.as_millis()).unwrap_or(u64::MAX),
            readiness: Readiness::Ready,
            host: identity.host,
            process: identity.process,
            device: identity.device,
            unreachable: identity.unreachable,
            card: Vec::new(),
            channels: u32::try_from(options.channels).unwrap_or(u32::MAX),
            exports: Vec::new(),
            held: Vec::new(),
            ends: Vec::new(),
        }
    }

    fn named(&self, plan: &str) -> Named {
        let mut plans = self.owner.plans.lock().unwrap_or_else(PoisonError::into_inner);
        let Named { generation, last } = plans.entry(plan.to_owned()).or_default();
        Named { generation: generation.clone(), last: last.clone() }
    }

    /// The plan that all have agreed on; `None` if what was agreed does not fit what this rank came with.
    fn agreed(
        &self,
        key: &str,
        candidate: Candidate,
        transfers: &[Transfer],
        agreement: &Agreement,
        held: &HashMap<Key, Arc<Imported>>,
        opened: &HashMap<Key, Arc<Imported>>,
    ) -> Option<Plan> {
        let shared = &self.owner.shared;
        let mut imports: HashMap<Key, Arc<Imported>> = HashMap::new();
        let mut met: HashMap<usize, usize> = HashMap::new();
        let mut wires = Vec::new();
        for (transfer, slot) in transfers.iter().zip(candidate.slots.clone()) {
            let rank = *shared.info.global_ranks().get(transfer.peer)?;
            let record = agreement.records.iter().find(|record| record.rank == rank)?;
            let nth = met.entry(transfer.peer).or_default();
            let end = record.with(shared.rank()).nth(*nth)?;
            *nth += 1;
            let remote = match transfer.part.copies() {
                false => None,
                true => {
                    let id = (rank, record.export_of(end)?.id);
                    let imported = opened.get(&id).or_else(|| held.get(&id))?;
                    imports.insert(id, imported.clone());
                    Some(imported.base() + end.offset)
                }
            };
            let theirs = shared.slab.buffer_ptr(transfer.peer).ok()?;
            wires.push(Wire {
                peer: rank,
                part: transfer.part,
                memory: transfer.memory.clone(),
                remote,
                own: words(shared.slab(), slot),
                theirs: words(theirs, end.slot as usize),
                awaited: AtomicU32::new(0),
                turn: Mutex::default(),
            });
        }
        for (key, imported) in opened {
            shared.handles.note(*key, imported);
        }
        let plan = &candidate.record.plan;
        let current = self.named(plan).generation;
        let core = self.core(key, &candidate, agreement.generation, wires);
        *core.imports.lock().unwrap_or_else(PoisonError::into_inner) = imports.into_values().collect();
        current.store(agreement.generation, Ordering::Release);
        let mut plans = self.owner.plans.lock().unwrap_or_else(PoisonError::into_inner);
        plans.entry(plan.clone()).or_default().last = Arc::downgrade(&core);
        drop(plans);
        Some(Plan::new(self.owner.clone(), core))
    }

    fn core(&self, key: &str, candidate: &Candidate, generation: u64, wires: Vec<Wire>) -> Arc<Core> {
        Arc::new(Core {
            plan: candidate.record.plan.clone(),
            generation,
            current: self.named(&candidate.record.plan).generation,
            key: key.to_owned(),
            slots: candidate.slots.clone(),
            wires,
            imports: Mutex::default(),
            fault: OnceLock::new(),
            told: AtomicBool::new(false),
            captured: AtomicBool::new(false),
            pending: AtomicUsize::new(0),
        })
    }

    /// Takes back what was offered for a plan that did not come to be here.
    fn let_go(&self, key: &str, candidate: Candidate, transfers: &[Transfer], ending: &Ending) {
        let shared = &self.owner.shared;
        if let Ending::Refused(_) = ending {
            return shared.slots().give_back(candidate.slots);
        }
        // The others may have the plan all the same.
        let wires = transfers.iter().zip(candidate.slots.clone()).map(|(transfer, slot)| {
            let own = words(shared.slab(), slot);
            Wire {
                peer: shared.info.global_ranks()[transfer.peer],
                part: transfer.part,
                memory: transfer.memory.clone(),
                remote: None,
                own,
                theirs: own,
                awaited: AtomicU32::new(0),
                turn: Mutex::default(),
            }
        });
        shared.closer.hold(self.core(key, &candidate, candidate.record.generation, wires.collect()));
    }

    fn failed(
        &self,
        plan: &str,
        refused: Option<ExchangeError>,
        ending: Ending,
        failure: Option<StoreError>,
    ) -> ExchangeError {
        let info = &self.owner.shared.info;
        // Who was killed has left a door.
        if matches!(
            &ending,
            Ending::Refused(ExchangeRefusal::MembersLost { .. } | ExchangeRefusal::ExchangeTimeout { .. })
        ) {
            local::sweep();
        }
        let (group, plan) = (info.name().to_owned(), plan.to_owned());
        // Where the group is over, whatever else failed did so for that.
        if let Err(source) = info.standing() {
            return ExchangeError::GroupOver { group, plan, source: Arc::new(source) };
        }
        match (refused, ending, failure) {
            // What this rank was refused before says more than what the others were told of it.
            (Some(refused @ ExchangeError::NoChannels { .. }), Ending::Refused(_), _) => refused,
            (_, Ending::Refused(refusal), _) => ExchangeError::Refused { group, plan, refusal },
            (_, Ending::StoreFailed, Some(source)) => ExchangeError::Store { group, source },
            (_, Ending::Unreadable(source), _) => ExchangeError::Unreadable { group, source },
            (_, Ending::OutOfStep | Ending::StoreFailed, _) => ExchangeError::OutOfStep { group },
        }
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

    /// Waits until the plans that were dropped are closed and their peers have let go, or until the deadline: what is lent
    /// then is overdue, and comes back with what was before. Not collective, but peers must have dropped their plans too.
    /// If this is the last handle and no plan is left, the exchange has ended, with its threads.
    pub fn close(self, deadline: Deadline) -> Vec<Quarantined> {
        let shared = self.owner.shared.clone();
        shared.closer.settle(deadline);
        if let Some(owner) = Arc::into_inner(self.owner) {
            let threads = std::mem::take(&mut *owner.threads.lock().unwrap_or_else(PoisonError::into_inner));
            drop(owner);
            for thread in threads {
                // Nothing is outstanding: they are at their end. One that has panicked has ended too.
                let _ = thread.join();
            }
        }
        shared.closer.quarantine()
    }
}
