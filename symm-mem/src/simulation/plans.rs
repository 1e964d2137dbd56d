//! One-sided exchanges. In an exchange, the members of a group agree on a *plan*, a list of transfers between them. For
//! the transfers, the ranks lend each other memory and *slots*. A slot is a few words of memory in which a peer
//! signals.

use std::{
    mem,
    sync::{Arc, Weak},
    time::Duration,
};

use bootstrap::{
    agreement::{Agreement, Member},
    store::Store as _,
};
use caching_alloc::core::SegmentSource;

use super::{
    exchanges::{Allocation, BUFFER_BYTES, BUFFERS, CHANNELS, Exchanges, Exchanging, Import, Plan, Transfer},
    random::Random,
    requests::{Goal, StoreRequest},
    trouble::Trouble,
    violation::Violation,
    work::{Ended, Work},
    world::{Event, World},
};
use crate::{
    agreement::PoolId,
    exchange::{
        core::closed_key,
        handles::Open,
        lease::{Lease, Standing},
        protocol::{self, AllocationId, End, Ending, Export, Held, Part, Record, Route, missing},
    },
    rendezvous::protocol::Readiness,
    sharing::{self, Handle, Outcome, Site, Uuid},
};

/// Draws the transfers of an exchange from `seed`, which is the same on all members. A group of one member has no
/// transfers.
fn transfers(seed: u64, members: &[u32]) -> Vec<Transfer> {
    let mut random = Random(seed);
    let count = if members.len() > 1 { random.below(6) } else { 0 };
    let one = |at: u64| {
        let copier = *random.pick(members);
        let others: Vec<u32> = members.iter().copied().filter(|rank| *rank != copier).collect();
        Transfer {
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
fn of_rank(transfers: &[Transfer], rank: u32) -> impl Iterator<Item = (usize, &Transfer)> {
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

/// Changes the culprit's record so that it does not fit the records of its peers. The number in
/// [`Trouble::ExchangesOtherwise`] is `how`, which selects the change. Some changes have no effect if the record has no
/// transfers.
fn differ(how: usize, record: &mut Record) {
    match how {
        0 => record.plan.push('x'),
        1 => record.readiness = Readiness::Failed { cause: "no memory".into() },
        2 => record.ends.iter_mut().take(1).for_each(|end| end.bytes += 1),
        3 => drop(record.ends.pop()),
        4 => record.site.unreachable.extend((0..64).map(|low| Uuid { low, high: 0 })),
        5 => record.site.host += 1,
        6 => record.ends.iter_mut().take(1).for_each(|end| end.part = end.part.counterpart()),
        _ => record.ends.iter_mut().take(1).for_each(|end| end.slot = CHANNELS as u32),
    }
}

impl World {
    /// Begins the exchange of a plan on the rank.
    pub(super) fn exchange(
        &mut self,
        rank: u32,
        group: u64,
        name: u64,
        seed: u64,
        deadline: Duration,
    ) -> Result<(), Violation> {
        let otherwise = match self.scenario.trouble {
            Trouble::ExchangesOtherwise(how) if self.scenario.is_culprit(rank) => Some(how),
            _ => None,
        };
        let members = self.scenario.groups[&group].clone();
        let deadline = self.deadline(rank, deadline);
        let state = &mut self.ranks[rank as usize];
        let device = state.lending.clone();
        let own = state.exchanges.entry(group).or_insert_with(|| Exchanges::new(device));
        let (number, transfers) = (own.numbers, transfers(seed, &members));
        own.numbers += 1;
        let (mut exports, mut ends, mut lent) = (Vec::<Export>::new(), Vec::new(), Vec::new());
        let key = format!("exchange/{group}/{number}");
        let slots = own.slots.take(of_rank(&transfers, rank).count());
        let Some(slots) = slots else { return Err(Violation(format!("rank {rank} has no slots left"))) };
        for ((at, transfer), slot) in of_rank(&transfers, rank).zip(slots.clone()) {
            let Transfer { copier, lender, puts, buffer, fresh, bytes, offset } = *transfer;
            let mut end = End {
                peer: lender,
                part: Part::PutInitiator,
                bytes,
                export: None,
                offset: 0,
                slot: slot as u32,
            };
            if copier == rank {
                end.part = if puts { Part::PutInitiator } else { Part::GetFrom };
                ends.push(end);
                continue;
            }
            if fresh || !own.buffers.contains_key(&buffer) {
                state.allocations += 1;
                let id = identity(state.allocations, [state.pool.id(), state.twin]);
                let device = own.device.clone();
                let memory = device.allocate(BUFFER_BYTES).map_err(Violation::of)?;
                let mark = u64::from(rank) << 32 | state.allocations;
                device.write(memory.address, mark)?;
                let allocation = Arc::new(Allocation { id, memory, mark, device });
                self.allocations.insert((rank, id), Arc::downgrade(&allocation));
                own.buffers.insert(buffer, allocation);
            }
            let allocation = &own.buffers[&buffer];
            self.lent.insert((key.clone(), at), Arc::downgrade(allocation));
            let id = allocation.id;
            let at = exports.iter().position(|export| export.id == id).unwrap_or_else(|| {
                let handle = Handle::DESCRIPTOR;
                let shared = sharing::Export { bytes: BUFFER_BYTES, handle, token: 0 };
                exports.push(Export { id, shared });
                exports.len() - 1
            });
            lent.push(allocation.clone());
            end.part = if puts { Part::PutTarget } else { Part::GetBy };
            (end.peer, end.export, end.offset) = (copier, Some(at as u32), offset);
            ends.push(end);
        }
        let held = own.handles.held();
        // All runs of a seed must be equal, but the order of the map's keys differs between runs. So they are sorted.
        let mut open: Vec<_> = held.keys().copied().collect();
        open.sort_unstable();
        let mut record = Record {
            rank,
            plan: name.to_string(),
            generation: own.plans.entry(name).or_default().generations.next(),
            readiness: Readiness::Ready,
            site: Site::simulated(rank),
            channels: CHANNELS as u32,
            exports,
            held: open.into_iter().map(|(peer, id)| Held { peer, id }).collect(),
            ends: ends.clone(),
            regions: None,
        };
        if let Some(how) = otherwise.filter(|_| !mem::replace(&mut state.odd, true)) {
            differ(how, &mut record);
        }
        let member = Member {
            name: key.clone(),
            rank,
            members,
            generation: 0,
            patience: deadline / 2,
            deadline: Some(deadline),
        };
        let machine = Agreement::new(member, record, self.random.next()).map_err(Violation)?;
        let opened = Open::new();
        let acted = None;
        let work =
            Exchanging { machine, acted, group, name, key, slots, ends, lent, held, opened, transfers };
        self.begin(rank, Work::Exchange(Box::new(work)), number, 0, deadline)
    }

    /// Opens the memory that peers lend for the agreed plan, as far as the rank has not opened it yet. Returns the
    /// outcome.
    pub(super) fn open(&mut self, rank: u32, agreement: &protocol::Agreement) -> Result<Outcome, Violation> {
        if self.scenario.trouble == Trouble::CannotMap && self.scenario.is_culprit(rank) {
            return Ok(Outcome::Failed { cause: "no addresses".to_owned() });
        }
        let Some(me) = agreement.records.iter().find(|record| record.rank == rank) else {
            return Ok(Outcome::Failed { cause: "it is none of them".to_owned() });
        };
        let (mut opened, mut gone) = (Open::new(), Vec::new());
        for peer in agreement.records.iter().filter(|peer| peer.rank != rank) {
            for export in missing(peer, me).into_iter().filter_map(|at| peer.exports.get(at)) {
                let key = (peer.rank, export.id);
                if self.ranks[peer.rank as usize].dead {
                    gone.push(peer.rank);
                } else if let Some(memory) = self.allocations.get(&key)
                    && let Some(lent) = memory.upgrade()
                    && let Some(physical) = lent.device.physical(lent.memory.address)
                {
                    let mapping = self.ranks[rank as usize].lending.map(&physical)?;
                    opened.insert(key, Arc::new(Import(memory.clone(), mapping)));
                }
            }
        }
        if !gone.is_empty() {
            return Ok(Outcome::Alone { gone });
        }
        let state = self.rank(rank);
        if let Some(Work::Exchange(work)) = state.task.as_mut().map(|task| &mut task.work) {
            work.opened = opened;
        }
        Ok(Outcome::Mapped)
    }

    /// Ends an exchange on a rank. Checks the opened memory and the agreed routes. A route is the peer's end of a
    /// transfer: its memory and its slot. Returns the keys of the exchange that the rank is to remove from the store.
    /// There are none if the rank has not seen that all members have acknowledged the result.
    pub(super) fn end_exchange(
        &mut self,
        rank: u32,
        work: Exchanging,
        end: Ended<protocol::Agreement, Ending>,
    ) -> Result<Vec<String>, Violation> {
        let Exchanging { group, name, key, slots, ends, lent, held, opened, transfers, .. } = work;
        let state = &mut self.ranks[rank as usize];
        let Some(own) = state.exchanges.get_mut(&group) else { return Ok(end.read) };
        let mut peers: Vec<u32> = ends.iter().map(|end| end.peer).collect();
        peers.sort_unstable();
        peers.dedup();
        let mut plan =
            Plan { key, generation: 0, slots, peers, routes: Vec::new(), imports: Open::new(), _lent: lent };
        match end.result {
            Ok(agreement) => {
                let routes = agreement.routes(rank);
                let Some(routes) = routes.filter(|routes| *routes == expected(rank, &agreement, &transfers))
                else {
                    let routes = agreement.routes(rank);
                    return Err(Violation(format!(
                        "rank {rank} takes other ways than were agreed: {routes:?}"
                    )));
                };
                for (peer, id) in routes.iter().filter_map(|it| Some((it.peer, it.remote?.0))) {
                    let import = opened.get(&(peer, id)).or_else(|| held.get(&(peer, id)));
                    let Some(import) = import else {
                        let what =
                            format!("rank {rank} has agreed to reach {id} of rank {peer}, which is not open");
                        return Err(Violation(what));
                    };
                    plan.imports.insert((peer, id), import.clone());
                }
                for ((at, _), route) in of_rank(&transfers, rank).zip(&routes) {
                    let Some(key) = route.remote.map(|(id, _)| (route.peer, id)) else { continue };
                    let lent = self.lent.get(&(plan.key.clone(), at));
                    if lent.is_none_or(|lent| !Weak::ptr_eq(lent, &plan.imports[&key].0)) {
                        let (peer, id) = key;
                        return Err(Violation(format!(
                            "rank {rank} has other memory than rank {peer} lends for transfer {at}: {id}"
                        )));
                    }
                }
                opened.iter().for_each(|(key, import)| own.handles.note(*key, import));
                let named = own.plans.entry(name).or_default();
                if agreement.generation <= named.agreed {
                    let (last, next) = (named.agreed, agreement.generation);
                    return Err(Violation(format!(
                        "rank {rank} is at generation {last} and agrees on {next}"
                    )));
                }
                named.generations.agreed(agreement.generation);
                named.agreed = agreement.generation;
                (plan.generation, plan.routes) = (agreement.generation, routes);
                named.plans.push(plan);
            }
            Err(Ending::Refused(_)) => own.slots.give_back(plan.slots),
            // The exchange has failed on this rank without a refusal by all members. The other members may have agreed
            // on the plan, and may access this rank's memory. So a lease keeps the memory and the slots of the plan.
            Err(_) => self.lend(rank, group, plan),
        }
        Ok(end.read)
    }

    /// Simulates the transfers of one of the rank's plans with this name: the oldest one if `former` is true, else the
    /// newest. For each transfer, reads the number at the start of the peer's memory, and copies no data.
    ///
    /// Checks that the rank admits the transfers exactly if the plan has the last agreed generation of its name. Checks
    /// that admitted transfers use slots that the peer has lent for this plan, and memory that the peer still lends.
    /// Skips transfers with dead peers.
    pub(super) fn copy(&mut self, rank: u32, group: u64, name: u64, former: bool) -> Result<(), Violation> {
        let wrong =
            |what: String| Err(Violation(format!("rank {rank}, plan {name} of group {group}: {what}")));
        let Some(own) = self.ranks[rank as usize].exchanges.get(&group) else { return Ok(()) };
        let Some(named) = own.plans.get(&name) else { return Ok(()) };
        let Some(plan) = (if former { named.plans.first() } else { named.plans.last() }) else {
            return Ok(());
        };
        let admitted = named.generations.admit(plan.generation).is_ok();
        if admitted != (plan.generation == named.agreed) {
            let what = if admitted { "goes" } else { "is refused" };
            return wrong(format!("generation {} {what}, the last is {}", plan.generation, named.agreed));
        }
        for route in plan.routes.iter().filter(|_| admitted) {
            let peer = &self.ranks[route.peer as usize];
            if peer.dead {
                continue;
            }
            let in_it = peer.task.as_ref().is_some_and(|task| match &task.work {
                Work::Exchange(work) => work.key == plan.key && work.slots.contains(&(route.slot as usize)),
                _ => false,
            });
            let theirs = peer.exchanges.get(&group);
            if !in_it && !theirs.is_some_and(|theirs| theirs.has_slot(&plan.key, route.slot as usize)) {
                return wrong(format!("slot {} of rank {} is not its own", route.slot, route.peer));
            }
            let Some((id, _)) = route.remote else { continue };
            let import = plan.imports.get(&(route.peer, id));
            let Some((Import(_, mapping), lent)) = import.and_then(|it| Some((&**it, it.0.upgrade()?)))
            else {
                return wrong(format!("{id} of rank {} was given back", route.peer));
            };
            let found = self.ranks[rank as usize].lending.read(mapping.ptr().0)?;
            if found != lent.mark {
                return wrong(format!("{id} of rank {} has {found:#x} in its memory", route.peer));
            }
        }
        Ok(())
    }

    /// Drops the rank's plans with this name: all of them if `all` is true, else all except the last. Tells the peers
    /// of each dropped plan, through the store, that the rank has closed it.
    pub(super) fn drop_plans(
        &mut self,
        rank: u32,
        group: u64,
        name: u64,
        all: bool,
    ) -> Result<(), Violation> {
        let Some(own) = self.rank(rank).exchanges.get_mut(&group) else { return Ok(()) };
        let Some(named) = own.plans.get_mut(&name) else { return Ok(()) };
        let keep = usize::from(!all).min(named.plans.len());
        let dropped: Vec<Plan> = named.plans.drain(..named.plans.len() - keep).collect();
        for mut plan in dropped {
            // The rank must close the imports before it reports them closed.
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
    pub(super) fn close_exchanges(&mut self, rank: u32) -> Result<(), Violation> {
        let all: Vec<(u64, u64)> = self.ranks[rank as usize]
            .exchanges
            .iter()
            .flat_map(|(group, own)| own.plans.keys().map(move |name| (*group, *name)))
            .collect();
        all.into_iter().try_for_each(|(group, name)| self.drop_plans(rank, group, name, true))?;
        self.rank(rank).exchanges.values_mut().for_each(|own| own.buffers.clear());
        Ok(())
    }

    /// Keeps the plan's memory and slots, which peers may access, in a lease until all peers have closed the plan. If
    /// the lease expires first, [`collect`](Self::collect) moves the plan to quarantine, where it stays until the end
    /// of the run.
    fn lend(&mut self, rank: u32, group: u64, plan: Plan) {
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
    pub(super) fn collect(&mut self, rank: u32) -> Result<(), Violation> {
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
                    Standing::Runs => own.leases.push((plan, lease)),
                    Standing::Over => own.slots.give_back(plan.slots),
                    Standing::Overdue => own.quarantine.push(plan),
                }
            }
        }
        Ok(())
    }

    /// Checks the state of the live ranks' exchanges at the end of the run: no handle is open, no lease runs, no lent
    /// memory is allocated, and all slots are free except those of plans in quarantine. Plans may be in quarantine only
    /// if the trouble delays ranks or the leases are short.
    pub(super) fn left_plans(&mut self) -> Result<(), Violation> {
        let slow = self.scenario.trouble.delays() || self.scenario.lease < super::scenario::LONG_LEASE;
        for state in self.ranks.iter_mut().filter(|state| !state.dead) {
            let rank = state.number;
            for (group, own) in mem::take(&mut state.exchanges) {
                let kept: usize = own.quarantine.iter().map(|plan| plan.slots.len()).sum();
                let (open, free, running) = (own.handles.count(), own.slots.free(), own.leases.len());
                if open > 0 || running > 0 || free + kept != CHANNELS || kept > 0 && !slow {
                    return Err(Violation(format!(
                        "rank {rank} leaves of group {group} {open} handles, {running} leases, {free} free slots and \
                         {kept} in quarantine"
                    )));
                }
            }
            let (live, wrong) = (state.lending.live(), state.lending.wrong());
            if live > 0 || wrong.is_some() {
                return Err(Violation(format!("rank {rank} leaves {live} bytes that it lent: {wrong:?}")));
            }
        }
        Ok(())
    }
}

/// Returns the expected routes of the transfers of `rank`, computed from the transfers that the members have drawn.
fn expected(rank: u32, agreement: &protocol::Agreement, transfers: &[Transfer]) -> Vec<Route> {
    let route = |(at, transfer): (usize, &Transfer)| {
        let copies = transfer.copier == rank;
        let peer = if copies { transfer.lender } else { transfer.copier };
        let record = agreement.records.iter().find(|record| record.rank == peer)?;
        let nth = of_rank(&transfers[..at], peer).count();
        let end = record.ends.get(nth)?;
        let remote = || Some((record.exports.get(end.export? as usize)?.id, transfer.offset));
        Some(Route { peer, remote: if copies { remote() } else { None }, slot: end.slot })
    };
    of_rank(transfers, rank).filter_map(route).collect()
}
