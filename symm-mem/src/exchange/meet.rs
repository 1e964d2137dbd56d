//! One exchange: the record of this rank, the agreement of all ranks, and the resulting plan or error.

use std::{
    ops::Range,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU32, AtomicUsize},
    },
};

use bootstrap::agreement::{self, Failure, Member};
use cuda_driver::graph::RelaxedCapture;
use process_group::{error_text, store::Deadline};

use super::{
    Exchange, Named, OPERATION, Owner, Plan, Transfer,
    close::Borrowed,
    core::{Core, Imports, Wire},
    handles::{Imported, Open},
    protocol::{Agreement, End, Ending, ExchangeProtocol, ExchangeRefusal, Held, Outcome, Record},
    quiet::Rounds,
    share::{self, Offer},
    slots::words,
};
use crate::{
    agreement::{ending::gone, hash::chain},
    error::Error,
    error_kind::ErrorKind,
    rendezvous::protocol::Readiness,
};

/// This rank's contribution to an exchange.
struct Candidate {
    record: Record,
    offer: Offer,
    slots: Range<usize>,
}

impl Exchange {
    /// Like [`exchange`](Self::exchange), but among the ranks at these places of the group only, and collective over
    /// them. If ranks call this for several sets, every rank calls it for these sets in the same order, as for any
    /// collective. A different order ends in an error at the deadline.
    ///
    /// # Errors
    /// As [`exchange`](Self::exchange); [`ErrorKind::NotAMember`].
    pub fn exchange_among(
        &self,
        members: &[usize],
        plan: &str,
        transfers: &[Transfer],
    ) -> Result<Plan, Error> {
        let Owner { shared, options, prefix, numbers, .. } = &*self.owner;
        let (info, context) = (&shared.info, &shared.context);
        let call = info.call(OPERATION).of_plan(plan);
        let mut places = members.to_vec();
        places.sort_unstable();
        places.dedup();
        let ranks: Option<Vec<u32>> =
            places.iter().map(|place| info.global_ranks().get(*place).copied()).collect();
        let (Some(ranks), true) = (ranks, places.contains(&info.rank())) else {
            let (rank, world) = (info.rank(), info.world_size());
            return Err(call.error(ErrorKind::NotAMember { members: members.to_vec(), rank, world }));
        };
        let number =
            numbers.lock().unwrap_or_else(PoisonError::into_inner).entry(ranks.clone()).or_default().clone();
        let mut number = number.lock().unwrap_or_else(PoisonError::into_inner);
        let who = chain(0, ranks.iter().map(|rank| u64::from(*rank)));
        let key = format!("{prefix}/exchange/{who:x}/{number}", number = *number);
        *number += 1;

        // If a capture is open, opening memory must neither join it nor invalidate it.
        let _relaxed = RelaxedCapture::enter(context.driver());
        shared.closer.catch_up();
        // Keeps open every allocation that the record reports as open.
        let held = Borrowed::new(shared.handles.held(), &shared.closer);
        let slots = self.take_slots(transfers.len());
        let prepared = match &slots {
            Ok(slots) => self.prepare(plan, transfers, &held.open, slots.clone()),
            Err(none) => Err(none.to_string()),
        };
        let (record, candidate) = match prepared {
            Ok(candidate) => (candidate.record.clone(), Some(candidate)),
            Err(cause) => (Record { readiness: Readiness::Failed { cause }, ..self.record(plan) }, None),
        };
        let mut opened = Borrowed::new(Open::new(), &shared.closer);
        let mut acted = None;
        let open = |agreement: &Agreement, deadline, _: &dyn Fn() -> bool| {
            acted = Some(agreement.clone());
            let place = agreement.records.iter().position(|record| record.rank == shared.rank());
            let (Some(candidate), Some(place)) = (&candidate, place) else {
                return Outcome::Failed { cause: "it has nothing to share".to_owned() };
            };
            match share::open(context, &candidate.offer, place, &agreement.records, deadline) {
                Ok(all) => {
                    opened.open = all;
                    Outcome::Mapped
                }
                Err(outcome) => outcome,
            }
        };
        let patience = options.deadline / 2;
        let member = Member {
            name: key.clone(),
            rank: shared.rank(),
            members: ranks,
            generation: 0,
            patience,
            deadline: Some(options.deadline),
        };
        let goes_on = || info.standing().map_err(|ended| gone(shared.rank(), &ended));
        let result = agreement::run::<ExchangeProtocol>(&*info.store, member, record, open, goes_on);
        drop(number);
        // After these failures, another member may have the plan.
        let is_refused_by_all = !matches!(
            &result,
            Err(failed) if matches!(
                failed.ending,
                agreement::Ending::Failed(Failure::Taken { .. } | Failure::Members { .. })
            )
        );
        let (ending, failure) = match (result, &candidate) {
            (Ok(agreement), Some(candidate)) => {
                let held = (&held.open, &opened.open);
                let agreement = agreement.or(acted);
                match agreement.and_then(|it| self.agreed(&key, candidate, transfers, &it, held)) {
                    Some(plan) => return Ok(plan),
                    None => (Ending::OutOfStep, None),
                }
            }
            (Ok(_), None) => (Ending::OutOfStep, None),
            (Err(failed), _) => (Ending::of(failed.ending, ExchangeRefusal::from), failed.store),
        };
        if let Some(candidate) = &candidate {
            let opened = opened.open.values().cloned().collect();
            let is_nobodys = is_refused_by_all && matches!(ending, Ending::Refused(_));
            self.let_go(&key, candidate, transfers, opened, is_nobodys);
        }
        let kind = ErrorKind::of_agreement(ending, ErrorKind::ExchangeRefused, failure);
        let error = info.failed(&call, kind);
        Err(match (slots, error.kind()) {
            // This rank's own error says more than the refusal that the others were given.
            (Err(none), ErrorKind::ExchangeRefused(_)) => call.error(none),
            _ => error,
        })
    }

    fn take_slots(&self, wanted: usize) -> Result<Range<usize>, ErrorKind> {
        let Owner { shared, options, .. } = &*self.owner;
        let (mut slots, channels) = (shared.slots(), options.channels);
        let free = slots.free();
        slots.take(wanted).ok_or(ErrorKind::NoChannels { wanted, free, channels })
    }

    /// Exports this rank's memory for the others. Gives the slots back if that fails.
    fn prepare(
        &self,
        plan: &str,
        transfers: &[Transfer],
        held: &Open,
        slots: Range<usize>,
    ) -> Result<Candidate, String> {
        match self.offered(plan, transfers, held, &slots) {
            Ok((record, offer)) => Ok(Candidate { record, offer, slots }),
            Err(cause) => {
                self.owner.shared.slots().give_back(slots);
                Err(cause)
            }
        }
    }

    fn offered(
        &self,
        plan: &str,
        transfers: &[Transfer],
        held: &Open,
        slots: &Range<usize>,
    ) -> Result<(Record, Offer), String> {
        let Owner { shared, options, .. } = &*self.owner;
        let last = self.named(plan).last.upgrade();
        let patience = Deadline::after(options.deadline / 8);
        if last.is_some_and(|last| !shared.watch.drain(&last, patience)) {
            return Err("transfers of the plan are under way still".to_owned());
        }
        shared.clear(slots).map_err(|error| error_text(&error))?;
        let offer = Offer::make(&shared.context, transfers)?;
        let ends = transfers.iter().zip(slots.clone()).map(|(transfer, slot)| {
            let place = (!transfer.part.copies()).then(|| offer.place(&transfer.memory)).flatten();
            End {
                peer: self.peer_rank(transfer),
                part: transfer.part,
                bytes: transfer.memory.bytes() as u64,
                export: place.map(|(export, _)| export),
                offset: place.map_or(0, |(_, offset)| offset),
                slot: slot as u32,
            }
        });
        let record = Record {
            card: offer.endpoint(),
            exports: offer.exports(),
            held: held.keys().map(|(peer, id)| Held { peer: *peer, id: *id }).collect(),
            ends: ends.collect(),
            ..self.record(plan)
        };
        Ok((record, offer))
    }

    /// This rank's record without any transfers.
    fn record(&self, plan: &str) -> Record {
        let Owner { shared, options, rendezvous, .. } = &*self.owner;
        let identity = rendezvous.inner.identity.clone();
        Record {
            rank: shared.rank(),
            plan: plan.to_owned(),
            generation: self.named(plan).generations.next(),
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
        let Named { generations, last } = plans.entry(plan.to_owned()).or_default();
        Named { generations: generations.clone(), last: last.clone() }
    }

    /// Builds the agreed plan; `None` if the agreement does not fit this rank's candidate.
    fn agreed(
        &self,
        key: &str,
        candidate: &Candidate,
        transfers: &[Transfer],
        agreement: &Agreement,
        (held, opened): (&Open, &Open),
    ) -> Option<Plan> {
        let shared = &self.owner.shared;
        let routes = agreement.routes(shared.rank()).filter(|routes| routes.len() == transfers.len())?;
        let mut imports = Open::new();
        let mut wires = Vec::new();
        for ((transfer, slot), route) in transfers.iter().zip(candidate.slots.clone()).zip(routes) {
            let remote = match route.remote {
                None => None,
                Some((id, offset)) => {
                    let key = (route.peer, id);
                    let imported = opened.get(&key).or_else(|| held.get(&key))?;
                    imports.insert(key, imported.clone());
                    Some(imported.base() + offset)
                }
            };
            let theirs = shared.slab.buffer_ptr(transfer.peer).ok()?;
            let (own, theirs) = (words(shared.slab(), slot), words(theirs, route.slot as usize));
            let mut ends = [(shared.rank(), slot), (route.peer, route.slot as usize)];
            ends.sort_unstable();
            let rounds = Rounds::of(format!("{key}/{ends:?}"));
            wires.push(Wire { rounds, ..Wire::new(route.peer, transfer, remote, own, theirs) });
        }
        for (key, imported) in opened {
            shared.handles.note(*key, imported);
        }
        let plan = &candidate.record.plan;
        let generations = self.named(plan).generations;
        let imports = imports.into_values().collect();
        let core = self.core(key, candidate, agreement.generation, wires, imports);
        generations.agreed(agreement.generation);
        let mut plans = self.owner.plans.lock().unwrap_or_else(PoisonError::into_inner);
        plans.entry(plan.clone()).or_default().last = Arc::downgrade(&core);
        drop(plans);
        Some(Plan::new(self.owner.clone(), core))
    }

    fn core(
        &self,
        key: &str,
        candidate: &Candidate,
        generation: u64,
        wires: Vec<Wire>,
        imports: Vec<Arc<Imported>>,
    ) -> Arc<Core> {
        let core = Arc::new(Core {
            plan: candidate.record.plan.clone(),
            generation,
            current: self.named(&candidate.record.plan).generations,
            key: key.to_owned(),
            slots: candidate.slots.clone(),
            wires,
            imports: Mutex::new(Imports::Open(imports)),
            fault: OnceLock::new(),
            told: AtomicBool::new(false),
            captured: AtomicBool::new(false),
            pending: AtomicUsize::new(0),
            launched: AtomicU32::new(0),
            launches: Rounds::of(key.to_owned()),
        });
        self.owner.shared.add_plan(&core);
        core
    }

    /// Takes back the offer for a plan that was not made on this rank. `is_nobodys` says whether no other rank can have
    /// the plan.
    fn let_go(
        &self,
        key: &str,
        candidate: &Candidate,
        transfers: &[Transfer],
        opened: Vec<Arc<Imported>>,
        is_nobodys: bool,
    ) {
        let shared = &self.owner.shared;
        if is_nobodys {
            return shared.slots().give_back(candidate.slots.clone());
        }
        // The others may still have the plan. The closing thread closes the memory that was opened from them, and then
        // tells them that this rank has closed the plan.
        let wires = transfers.iter().zip(candidate.slots.clone()).map(|(transfer, slot)| {
            let own = words(shared.slab(), slot);
            Wire::new(self.peer_rank(transfer), transfer, None, own, own)
        });
        let generation = candidate.record.generation;
        shared.closer.close(self.core(key, candidate, generation, wires.collect(), opened));
    }

    /// The peer as a rank of the job; `u32::MAX` if the transfer was made for another group.
    fn peer_rank(&self, transfer: &Transfer) -> u32 {
        self.group().global_ranks().get(transfer.peer).copied().unwrap_or(u32::MAX)
    }
}
