//! One-sided exchanges: agreements on plans, simulated transfers, and the closing of plans. The terms *plan*, *lend*,
//! *slot*, *close*, *lease* and *quarantine* are defined in [`exchanges`](crate::exchanges). The *copier* and the
//! *lender* are the two ranks of a transfer, see [`DrawnTransfer`]. The *culprit* is the rank that the run's
//! [`Trouble`] concerns.

use std::{
    collections::BTreeSet,
    mem,
    sync::{Arc, Weak},
    time::Duration,
};

use bootstrap::store::Store as _;
use memory_sharing::{Exports, OpeningOutcome, Party, Uuid};
use symm_agreement::{
    PoolId, exchange as protocol,
    exchange::{
        AllocationId, End, ExchangeEnding, ExchangeRecord, Held, MemoryPiece, Part, RemotePiece, Route,
        SharedAllocation, missing,
    },
    rendezvous::SharingReadiness,
};
use symm_mem::internals::{Lease, LeaseState, Open, closed_key};

use crate::{
    exchanges::{Allocation, BUFFERS, CHANNELS, DrawnTransfer, ExchangePlan, Exchanges, Exchanging, Import},
    random::Random,
    requests::{Goal, StoreRequest},
    results::{Kind, Meeting},
    scenario::{DEADLINE, LONG_LEASE},
    sharing::{export, site},
    trouble::Trouble,
    violation::{Violation, bail, ensure},
    work::Work,
    world::{Event, World},
};

/// Draws the transfers of an exchange from `seed`, which is the same on all members. A group of one member has no
/// transfers.
fn transfers(seed: u64, members: &[u32]) -> Vec<DrawnTransfer> {
    let mut random = Random(seed);
    let count = if members.len() > 1 { random.below(6) } else { 0 };
    let one = |at: u64| {
        let copier = *random.pick(members);
        let others: Vec<u32> = members.iter().copied().filter(|rank| *rank != copier).collect();
        DrawnTransfer {
            copier,
            lender: *random.pick(&others),
            puts: random.one_in(2),
            buffer: random.below(BUFFERS),
            fresh: random.one_in(4),
            bytes: 64 * (1 + random.below(4)),
            offset: 4096 * at,
        }
    };
    (0..count).map(one).collect()
}

/// Returns the transfers in which `rank` is the copier or the lender, each with its index in `transfers`.
fn of_rank(transfers: &[DrawnTransfer], rank: u32) -> impl Iterator<Item = (usize, &DrawnTransfer)> {
    transfers.iter().enumerate().filter(move |(_, it)| it.copier == rank || it.lender == rank)
}

/// Returns the id of the rank's lent allocation with this number. To test all kinds of ids, the number modulo 3 selects
/// the kind: an allocation outside pools, or a segment of one of the two `pools`.
fn identity(number: u64, pools: [PoolId; 2]) -> AllocationId {
    let ordinal = (number / 3) as u32;
    match number % 3 {
        0 => AllocationId::Own { number },
        1 => AllocationId::Segment { pool: pools[0], ordinal },
        _ => AllocationId::Segment { pool: pools[1], ordinal },
    }
}

/// Changes the culprit's [record](super) so that it does not fit the records of its peers. `how`, the number in
/// [`Trouble::ExchangesOtherwise`], selects the change. Some changes have no effect on a record without transfers.
fn differ(how: usize, record: &mut ExchangeRecord) {
    match how {
        0 => record.plan.push('x'),
        1 => record.readiness = SharingReadiness::Failed { cause: "no memory".into() },
        2 => record.ends.iter_mut().take(1).for_each(|end| end.bytes += 1),
        3 => drop(record.ends.pop()),
        4 => record.site.unreachable.extend((0..64).map(|low| Uuid { low, high: 0 })),
        5 => record.site.host += 1,
        6 => record.ends.iter_mut().take(1).for_each(|end| end.part = end.part.counterpart()),
        _ => record.ends.iter_mut().take(1).for_each(|end| end.slot = CHANNELS as u32),
    }
}

impl World {
    /// Begins an exchange on the rank: the agreement on a plan with this name. `seed` determines the transfers of the
    /// plan.
    pub(crate) fn exchange(&mut self, rank: u32, group: u64, name: u64, seed: u64) -> Result<(), Violation> {
        let members = self.scenario.groups[&group].clone();
        let deadline = self.deadline(rank, DEADLINE);
        let state = &mut self.ranks[rank as usize];
        let device = state.lending.clone();
        let own = state.exchanges.entry(group).or_insert_with(|| Exchanges::new(device));
        let (number, transfers) = (own.next_number, transfers(seed, &members));
        own.next_number += 1;
        let (mut exports, mut ends, mut lent) = (Vec::<SharedAllocation>::new(), Vec::new(), Vec::new());
        let mut exported = Exports::new(self.registry.clone());
        let key = format!("exchange/{group}/{number}");
        let slots = own.slots.take(of_rank(&transfers, rank).count());
        let Some(slots) = slots else { bail!("rank {rank} has no slots left") };
        for ((at, transfer), slot) in of_rank(&transfers, rank).zip(slots.clone()) {
            let DrawnTransfer { copier, lender, puts, buffer, fresh, bytes, offset } = *transfer;
            let part = if puts { Part::PutInitiator } else { Part::GetFrom };
            let end = End { peer: lender, part, bytes, pieces: Vec::new(), slot: slot as u32 };
            if copier == rank {
                ends.push(end);
                continue;
            }
            let allocation = self.lent_buffer(rank, group, buffer, fresh)?;
            self.lent.insert((key.clone(), at), Arc::downgrade(&allocation));
            let id = allocation.id;
            let at = match exports.iter().position(|export| export.id == id) {
                Some(at) => at,
                None => {
                    let shared = export(&mut exported, &allocation.device, allocation.memory.address)?;
                    exports.push(SharedAllocation { id, shared });
                    exports.len() - 1
                }
            };
            lent.push(allocation);
            let part = part.counterpart();
            let pieces = vec![MemoryPiece { export: at as u32, offset, bytes }];
            ends.push(End { peer: copier, part, pieces, ..end });
        }
        let state = &mut self.ranks[rank as usize];
        let Some(own) = state.exchanges.get_mut(&group) else { bail!("rank {rank} has no exchange") };
        let held = own.handles.held();
        // The map has its keys in an order that differs between runs. They are sorted, because all runs of a seed must
        // be equal.
        let mut open: Vec<_> = held.keys().copied().collect();
        open.sort_unstable();
        let mut record = ExchangeRecord {
            rank,
            plan: name.to_string(),
            generation: own.plans.entry(name).or_default().generations.next(),
            readiness: SharingReadiness::Ready,
            site: site(rank),
            channels: CHANNELS as u32,
            exports,
            held: open.into_iter().map(|(peer, id)| Held { peer, id }).collect(),
            ends: ends.clone(),
            regions: None,
        };
        if let Trouble::ExchangesOtherwise(how) = self.scenario.trouble_of(rank)
            && !mem::replace(&mut state.has_deviated, true)
        {
            differ(how, &mut record);
        }
        self.exports.insert(rank, exported);
        let machine = self.agreement(rank, key.clone(), members, deadline, record)?;
        let opened = Open::new();
        let exchanging = Exchanging { group, name, key, slots, ends, lent, held, opened, transfers };
        let meeting = Meeting { kind: Kind::Exchange(group), epoch: 0, round: number };
        self.begin(rank, Work::Exchange { machine, exchanging: Box::new(exchanging) }, meeting, deadline)
    }

    /// Returns the current allocation of the buffer with index `buffer`, one of those that the rank lends in the
    /// exchanges of `group`. Makes a new allocation if there is none, or if `fresh` is true.
    fn lent_buffer(
        &mut self,
        rank: u32,
        group: u64,
        buffer: u64,
        fresh: bool,
    ) -> Result<Arc<Allocation>, Violation> {
        let state = &mut self.ranks[rank as usize];
        let Some(own) = state.exchanges.get_mut(&group) else { bail!("rank {rank} has no exchange") };
        if let Some(allocation) = own.buffers.get(&buffer).filter(|_| !fresh) {
            return Ok(allocation.clone());
        }
        state.allocations += 1;
        let id = identity(state.allocations, [state.pool.id(), state.twin]);
        let mark = u64::from(rank) << 32 | state.allocations;
        let allocation = Arc::new(Allocation::new(&own.device, id, mark)?);
        self.allocations.insert((rank, id), Arc::downgrade(&allocation));
        own.buffers.insert(buffer, allocation.clone());
        Ok(allocation)
    }

    /// Opens (maps) the memory that peers lend for the plan `agreement`, except memory that is already open on the
    /// rank. Returns the rank's [outcome](super) in the exchange.
    pub(crate) fn open(
        &mut self,
        rank: u32,
        agreement: &protocol::Agreement,
    ) -> Result<OpeningOutcome, Violation> {
        let records = &agreement.records;
        let Some(own) = records.iter().position(|record| record.rank == rank) else {
            return Ok(OpeningOutcome::Failed { cause: "it is none of them".to_owned() });
        };
        let parties: Vec<Party<'_>> = records
            .iter()
            .map(|ExchangeRecord { rank, site, exports, .. }| Party {
                rank: *rank,
                site,
                exports: exports.iter().map(|export| &export.shared).collect(),
            })
            .collect();
        let wanted = |from: usize, to: usize| missing(&records[from], &records[to]);
        let opened =
            match self.open_exports(rank, &self.ranks[rank as usize].lending, own, &parties, wanted)? {
                Ok(opened) => opened,
                Err(outcome) => return Ok(outcome),
            };
        let mut imports = Open::new();
        for ((at, number), imported) in opened {
            let key = (records[at].rank, records[at].exports[number].id);
            let lent = self.allocations.get(&key).cloned().unwrap_or_default();
            imports.insert(key, Arc::new(Import(lent, imported)));
        }
        let work = self.rank(rank).task.as_mut().map(|task| &mut task.work);
        if let Some(Work::Exchange { exchanging, .. }) = work {
            exchanging.opened = imports;
        }
        Ok(OpeningOutcome::Mapped)
    }

    /// Ends an exchange on a rank. If the members have agreed on the plan, checks the opened memory and the agreed
    /// routes. The route of a transfer names the peer, and the peer's memory and slot for this transfer.
    pub(crate) fn end_exchange(
        &mut self,
        rank: u32,
        exchanging: Exchanging,
        result: Result<protocol::Agreement, ExchangeEnding>,
    ) -> Result<(), Violation> {
        let Exchanging { group, name, key, slots, ends, lent, held, opened, transfers } = exchanging;
        let state = &mut self.ranks[rank as usize];
        let Some(own) = state.exchanges.get_mut(&group) else { return Ok(()) };
        let peers: BTreeSet<u32> = ends.iter().map(|end| end.peer).collect();
        let mut plan = ExchangePlan {
            key,
            generation: 0,
            slots,
            peers: peers.into_iter().collect(),
            routes: Vec::new(),
            imports: Open::new(),
            _lent: lent,
        };
        match result {
            Ok(agreement) => {
                let routes = agreement.routes(rank);
                let Some(routes) = routes.filter(|it| *it == expected(rank, &agreement, &transfers)) else {
                    let routes = agreement.routes(rank);
                    bail!("rank {rank} takes other ways than were agreed: {routes:?}");
                };
                for ((at, _), route) in of_rank(&transfers, rank).zip(&routes) {
                    let Some(RemotePiece { id, .. }) = route.remote.first().copied() else { continue };
                    let (peer, remote) = (route.peer, (route.peer, id));
                    let Some(import) = opened.get(&remote).or_else(|| held.get(&remote)) else {
                        bail!("rank {rank} has agreed to reach {id} of rank {peer}, which is not open");
                    };
                    let lent = self.lent.get(&(plan.key.clone(), at));
                    ensure!(
                        lent.is_some_and(|lent| Weak::ptr_eq(lent, &import.0)),
                        "rank {rank} has other memory than rank {peer} lends for transfer {at}: {id}"
                    );
                    plan.imports.insert(remote, import.clone());
                }
                opened.iter().for_each(|(remote, import)| own.handles.note(*remote, import));
                let named = own.plans.entry(name).or_default();
                let (last, next) = (named.agreed, agreement.generation);
                ensure!(next > last, "rank {rank} is at generation {last} and agrees on {next}");
                named.generations.agreed(next);
                named.agreed = next;
                (plan.generation, plan.routes) = (next, routes);
                named.plans.push(plan);
            }
            Err(ExchangeEnding::Refused(_)) => own.slots.give_back(plan.slots),
            // This rank does not know the result. The other members may have agreed on the plan, and may access this
            // rank's memory and slots. So the rank keeps these under a lease.
            Err(_) => self.lend(rank, group, plan),
        }
        Ok(())
    }

    /// Simulates the transfers of one of the rank's plans with this name: the oldest one if `former` is true, else the
    /// newest. Copies no data.
    ///
    /// Before a transfer, production code asks `Generations::admit` whether the plan is the last agreed one of its
    /// name. Checks that `admit` succeeds in exactly this case. If it succeeds, checks each transfer whose peer is not
    /// dead:
    ///
    /// - The peer has lent the slot for this plan.
    /// - If the rank is the copier, the peer still lends the memory, and the number that the rank reads at the start of
    ///   the memory is the [`mark`](Allocation::mark) of the lent allocation.
    pub(crate) fn copy(&mut self, rank: u32, group: u64, name: u64, former: bool) -> Result<(), Violation> {
        let Some(own) = self.ranks[rank as usize].exchanges.get(&group) else { return Ok(()) };
        let Some(named) = own.plans.get(&name) else { return Ok(()) };
        let Some(plan) = (if former { named.plans.first() } else { named.plans.last() }) else {
            return Ok(());
        };
        let at = format_args!("rank {rank}, plan {name} of group {group}, generation {}", plan.generation);
        let admitted = named.generations.admit(plan.generation).is_ok();
        ensure!(
            admitted == (plan.generation == named.agreed),
            "{at}: admitted {admitted}, the last generation is {}",
            named.agreed
        );
        for route in plan.routes.iter().filter(|_| admitted) {
            let Route { peer: number, ref remote, slot } = *route;
            let peer = &self.ranks[number as usize];
            if peer.dead {
                continue;
            }
            let is_in_exchange = peer.task.as_ref().is_some_and(|task| match &task.work {
                Work::Exchange { exchanging: it, .. } => {
                    it.key == plan.key && it.slots.contains(&(slot as usize))
                }
                _ => false,
            });
            let theirs = peer.exchanges.get(&group);
            ensure!(
                is_in_exchange || theirs.is_some_and(|theirs| theirs.has_slot(&plan.key, slot as usize)),
                "{at}: slot {slot} of rank {number} is not its own"
            );
            let Some(RemotePiece { id, .. }) = remote.first().copied() else { continue };
            let import = plan.imports.get(&(number, id));
            let Some((Import(_, imported), lent)) = import.and_then(|it| Some((&**it, it.0.upgrade()?)))
            else {
                bail!("{at}: {id} of rank {number} was given back");
            };
            let found = self.ranks[rank as usize].lending.read(imported.base().0)?;
            ensure!(found == lent.mark, "{at}: {id} of rank {number} has {found:#x} in its memory");
        }
        Ok(())
    }

    /// Drops the rank's plans with this name: all of them if `all` is true, else all except the last. Closes each
    /// dropped plan, and reports this to the plan's peers through the store.
    pub(crate) fn drop_plans(
        &mut self,
        rank: u32,
        group: u64,
        name: u64,
        all: bool,
    ) -> Result<(), Violation> {
        let Some(own) = self.rank(rank).exchanges.get_mut(&group) else { return Ok(()) };
        let Some(named) = own.plans.get_mut(&name) else { return Ok(()) };
        let keep = usize::from(!all).min(named.plans.len());
        let dropped: Vec<ExchangePlan> = named.plans.drain(..named.plans.len() - keep).collect();
        for mut plan in dropped {
            // The rank must unmap the peers' memory before it reports that it has closed the plan.
            plan.imports.clear();
            for peer in plan.peers.clone() {
                let key = closed_key(&plan.key, rank, peer);
                self.ask(rank, Goal::Closed(peer), StoreRequest::Set { key, value: vec![1] })?;
            }
            self.lend(rank, group, plan);
        }
        Ok(())
    }

    /// Drops all plans and all buffers of the rank's exchanges. The lease of a plan keeps the lent memory until the
    /// peers have closed the plan.
    pub(crate) fn close_exchanges(&mut self, rank: u32) -> Result<(), Violation> {
        let all: Vec<(u64, u64)> = self.ranks[rank as usize]
            .exchanges
            .iter()
            .flat_map(|(group, own)| own.plans.keys().map(move |name| (*group, *name)))
            .collect();
        all.into_iter().try_for_each(|(group, name)| self.drop_plans(rank, group, name, true))?;
        self.rank(rank).exchanges.values_mut().for_each(|own| own.buffers.clear());
        Ok(())
    }

    /// Keeps the plan's memory and slots, which peers may access, under a lease until all peers have closed the plan.
    /// If the lease expires first, [`collect`](Self::collect) moves the plan to quarantine, where it stays until the
    /// end of the run.
    fn lend(&mut self, rank: u32, group: u64, plan: ExchangePlan) {
        let until = self.now + self.scenario.lease;
        let lease = Lease::new(plan.peers.clone(), Duration::from_micros(until));
        if let Some(own) = self.rank(rank).exchanges.get_mut(&group) {
            own.leases.push((plan, lease));
        }
        self.soon(Event::Collect(rank));
        self.at(until, Event::Collect(rank));
    }

    /// For each plan under a lease, reads from the store which peers have closed it. If all peers have, frees the
    /// plan's slots and drops the plan. If the lease has expired before that, moves the plan to quarantine.
    pub(crate) fn collect(&mut self, rank: u32) -> Result<(), Violation> {
        let now = Duration::from_micros(self.now);
        let reaches_store = self.reaches_store(rank);
        for own in self.ranks[rank as usize].exchanges.values_mut() {
            for (plan, mut lease) in mem::take(&mut own.leases) {
                let said = |peer: &u32| closed_key(&plan.key, *peer, rank);
                let has_closed = |peer: &u32| reaches_store && self.network.value(&said(peer)).is_some();
                let closed: Vec<u32> = lease.waiting().iter().copied().filter(has_closed).collect();
                for peer in &closed {
                    self.network.at_once().delete(&said(peer)).map_err(Violation::of)?;
                }
                match lease.step(&closed, now) {
                    LeaseState::Runs => own.leases.push((plan, lease)),
                    LeaseState::Over => own.slots.give_back(plan.slots),
                    LeaseState::Overdue => own.quarantine.push(plan),
                }
            }
        }
        Ok(())
    }

    /// Checks the exchanges of the ranks that are not dead, at the end of the run: no memory of a peer is open, no
    /// lease runs, and all slots are free except those of plans in quarantine. Plans may be in quarantine only if the
    /// run's [`Trouble`] delays ranks or the leases are short. Then drops the exchanges, and checks that all lent
    /// memory has been freed.
    pub(crate) fn left_plans(&mut self) -> Result<(), Violation> {
        let slow = self.scenario.trouble.delays() || self.scenario.lease < LONG_LEASE;
        for state in self.ranks.iter_mut().filter(|state| !state.dead) {
            let rank = state.number;
            state.persistent.clear();
            for (group, own) in mem::take(&mut state.exchanges) {
                let kept: usize = own.quarantine.iter().map(|plan| plan.slots.len()).sum();
                let (open, free, running) = (own.handles.count(), own.slots.free(), own.leases.len());
                ensure!(
                    open == 0 && running == 0 && free + kept == CHANNELS && (kept == 0 || slow),
                    "rank {rank} leaves of group {group} {open} handles, {running} leases, {free} free slots and \
                     {kept} in quarantine"
                );
            }
            state.lending.check_released(rank)?;
        }
        Ok(())
    }
}

/// Returns the expected routes of the transfers of `rank`, computed from the transfers that the members have drawn.
fn expected(rank: u32, agreement: &protocol::Agreement, transfers: &[DrawnTransfer]) -> Vec<Route> {
    let route = |(at, transfer): (usize, &DrawnTransfer)| {
        let copies = transfer.copier == rank;
        let peer = if copies { transfer.lender } else { transfer.copier };
        let record = agreement.records.iter().find(|record| record.rank == peer)?;
        let nth = of_rank(&transfers[..at], peer).count();
        let end = record.ends.get(nth)?;
        let piece = |piece: &MemoryPiece| {
            let id = record.exports.get(piece.export as usize)?.id;
            Some(RemotePiece { id, offset: transfer.offset, bytes: transfer.bytes })
        };
        let remote = end.pieces.iter().filter(|_| copies).map(piece).collect::<Option<_>>()?;
        Some(Route { peer, remote, slot: end.slot })
    };
    of_rank(transfers, rank).filter_map(route).collect()
}
