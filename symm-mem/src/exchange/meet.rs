//! One agreement on a [plan](super::Plan) or on a set of [regions](super::Regions): this rank's
//! [record](ExchangeRecord) (its message to the other members), the run of the agreement, and the resulting plan,
//! regions or error.

use std::{
    ops::Range,
    sync::{Arc, Weak},
};

use bootstrap::agreement::{self, Failed, Failure, Member};
use cuda_driver::{DevicePtr, graph::RelaxedCapture};
use process_group::{error_text, store::Deadline};

use super::{
    Exchange, ExchangeState, Memory, NameState, Part, Plan, Transfer,
    contribution::Contribution,
    copy::{Direction, RangeCopy},
    core::{Core, CoreParts, TransferEndpoint},
    exports::{self, export},
    handles::Open,
    plan::TransferEnd,
    protocol::{
        Agreement, AllocationId, ExchangeEnding, ExchangeProtocol, ExchangeRecord, Held, RemotePiece, Route,
    },
    slots::words,
};
use crate::{
    agreement::hash::chain,
    error::Error,
    error_kind::ErrorKind,
    lock::lock,
    rendezvous::protocol::SharingReadiness,
    sharing::{Offer, OpeningOutcome},
};

/// The prepared [contribution](Contribution) of this rank to an agreement.
struct PreparedRecord {
    record: ExchangeRecord,
    /// This rank's memory that peers access. The other ranks can open it until this value is dropped.
    offer: Offer,
    slots: Range<usize>,
}

/// The input from which this rank makes its plan or regions after an agreement has succeeded.
pub(super) struct AgreedExchange<'a> {
    /// Prefix of the agreement's store keys.
    pub(super) key: &'a str,
    /// Name of the plan, or of the set of regions.
    pub(super) plan: &'a str,
    /// The [signal slots](super::slots) that this rank has allocated for the plan or regions.
    pub(super) slots: Range<usize>,
    pub(super) agreement: &'a Agreement,
    /// The peers' allocations that were open on this rank before the agreement.
    held: &'a Open,
    /// The peers' allocations that this rank has opened in the agreement.
    opened: &'a Open,
}

impl AgreedExchange<'_> {
    /// The prefix of the agreement's store keys, and the name and [generation](super::generation) of the plan or
    /// regions.
    pub(super) fn name(&self) -> (&str, &str, u64) {
        (self.key, self.plan, self.agreement.generation)
    }

    /// Returns the address on this rank of a peer's allocation, and adds the allocation to `imports`. Returns `None` if
    /// the allocation is not open.
    pub(super) fn import(&self, peer: u32, id: AllocationId, imports: &mut Open) -> Option<DevicePtr> {
        let key = (peer, id);
        let imported = self.opened.get(&key).or_else(|| self.held.get(&key))?;
        imports.insert(key, imported.clone());
        Some(imported.base())
    }
}

impl Exchange {
    /// Like [`exchange`](Self::exchange), but only `members` take part: ranks within the group, in any order.
    /// Collective over these ranks.
    ///
    /// If two ranks both belong to several sets of members, they must make the calls for these sets in the same order.
    /// Otherwise each of them waits for the other in a different call, until these calls fail (see
    /// [`ExchangeOptions::deadline`](super::ExchangeOptions::deadline)).
    ///
    /// # Errors
    /// As [`exchange`](Self::exchange). [`ErrorKind::NotAMember`] if `members` lacks this rank, or contains a rank that
    /// the group does not have.
    pub fn exchange_among(
        &self,
        members: &[usize],
        plan: &str,
        transfers: &[Transfer],
    ) -> Result<Plan, Error> {
        let contribution = Contribution::Transfers(transfers);
        self.meet(members, plan, &contribution, |agreed| self.build_plan(agreed, transfers))
    }

    /// Agrees with the other `members` (ranks within the group) on a plan or on regions, and opens their memory. Then
    /// `build` makes this rank's plan or regions from the agreed result. `build` returns `None` if the result does not
    /// fit this rank's contribution, and the call then fails with [`ErrorKind::OutOfStep`].
    pub(super) fn meet<R>(
        &self,
        members: &[usize],
        plan: &str,
        contribution: &Contribution<'_>,
        build: impl FnOnce(&AgreedExchange<'_>) -> Option<R>,
    ) -> Result<R, Error> {
        let ExchangeState { shared, prefix, numbers, .. } = &*self.owner;
        let info = &shared.info;
        let call = info.call(contribution.operation()).of_plan(plan);
        let ranks = self.ranks_of(members).ok_or_else(|| {
            let (rank, world) = (info.rank(), info.world_size());
            call.error(ErrorKind::NotAMember { members: members.to_vec(), rank, world })
        })?;
        let number = lock(numbers).entry(ranks.clone()).or_default().clone();
        let mut number = lock(&number);
        let members_hash = chain(0, ranks.iter().map(|rank| u64::from(*rank)));
        let key = format!("{prefix}/exchange/{members_hash:x}/{number}", number = *number);
        *number += 1;

        // If a capture is open, opening memory must neither join it nor invalidate it.
        let _relaxed = RelaxedCapture::enter(shared.context.driver());
        shared.closer.catch_up();
        // Keeps open every allocation that the record reports as open, because the agreement does not open it again.
        let held = shared.handles.held();
        let slots = self.take_slots(contribution.slots(ranks.len()));
        let (record, prepared) = self.record_or_cause(plan, contribution, &held, &slots);
        let others: Vec<u32> = ranks.iter().copied().filter(|rank| *rank != shared.rank()).collect();
        let mut opened = Open::new();
        let result = self.run(&key, ranks, record, prepared.as_ref(), &mut opened);
        drop(number);
        let is_same_on_all = is_same_on_all(&result);
        let built = result.map(|agreement| {
            let (agreement, prepared) = agreement.as_ref().zip(prepared.as_ref())?;
            opened.iter().for_each(|(key, imported)| shared.handles.note(*key, imported));
            let slots = prepared.slots.clone();
            build(&AgreedExchange { key: &key, plan, slots, agreement, held: &held, opened: &opened })
        });
        let (ending, failure) = match built {
            Ok(Some(built)) => return Ok(built),
            Ok(None) => (ExchangeEnding::OutOfStep, None),
            Err(failed) => (ExchangeEnding::of_meeting(failed.ending), failed.store),
        };
        if let Some(prepared) = &prepared {
            // Without doubt, this rank has not posted its record, so the others cannot have agreed.
            let no_member_has_it = match ending {
                ExchangeEnding::Refused(_) => is_same_on_all,
                ExchangeEnding::StoreFailed { in_doubt } => !in_doubt,
                _ => false,
            };
            self.clean_up(&key, prepared, contribution, &others, opened, no_member_has_it);
        }
        let kind = ErrorKind::of_ending(ending, ErrorKind::ExchangeRefused, failure, Vec::new());
        let error = info.failed(&call, kind);
        Err(match (slots, error.kind()) {
            // This rank's own error is more specific than the refusal that all members get.
            (Err(none), ErrorKind::ExchangeRefused(_)) => call.error(none),
            _ => error,
        })
    }

    /// Returns the ranks of `members` in the job, in the order of their ranks within the group, without duplicates.
    /// Returns `None` if `members` lacks this rank, or contains a rank that the group does not have.
    fn ranks_of(&self, members: &[usize]) -> Option<Vec<u32>> {
        let info = &self.owner.shared.info;
        let mut sorted = members.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        if !sorted.contains(&info.rank()) {
            return None;
        }
        sorted.iter().map(|member| info.global_ranks().get(*member).copied()).collect()
    }

    /// Prepares this rank's contribution to the agreement. Returns two values: the record that this rank sends, and the
    /// [`PreparedRecord`]. If the preparation fails, frees the slots, and returns a record with the cause, and `None`.
    /// This rank sends that record too, so that the other members do not wait for this rank.
    fn record_or_cause(
        &self,
        plan: &str,
        contribution: &Contribution<'_>,
        held: &Open,
        slots: &Result<Range<usize>, ErrorKind>,
    ) -> (ExchangeRecord, Option<PreparedRecord>) {
        let prepared = match slots {
            Ok(slots) => {
                let prepared = self.prepare(plan, contribution, held, slots);
                prepared.inspect_err(|_| self.owner.shared.slots().give_back(slots.clone()))
            }
            Err(none) => Err(none.to_string()),
        };
        match prepared {
            Ok(prepared) => (prepared.record.clone(), Some(prepared)),
            Err(cause) => {
                let readiness = SharingReadiness::Failed { cause };
                let record =
                    ExchangeRecord { readiness, regions: contribution.empty_offer(), ..self.record(plan) };
                (record, None)
            }
        }
    }

    /// Runs the agreement of the members `ranks`. `key` is the prefix of its store keys. If the members must open
    /// memory, this rank opens the peers' memory that it accesses, and sets `opened`. On success, returns the
    /// [`Agreement`], or `None` if the members have succeeded but this rank has not received the `Agreement`.
    fn run(
        &self,
        key: &str,
        ranks: Vec<u32>,
        record: ExchangeRecord,
        prepared: Option<&PreparedRecord>,
        opened: &mut Open,
    ) -> Result<Option<Agreement>, Box<Failed<ExchangeProtocol>>> {
        let ExchangeState { shared, options, .. } = &*self.owner;
        let info = &shared.info;
        let mut acted = None;
        let open = |agreement: &Agreement, deadline, _: &dyn Fn() -> bool| {
            acted = Some(agreement.clone());
            let own = agreement.records.iter().position(|record| record.rank == shared.rank());
            let (Some(prepared), Some(own)) = (prepared, own) else {
                return OpeningOutcome::Failed { cause: "it has nothing to share".to_owned() };
            };
            match exports::open(&shared.context, &prepared.offer, own, &agreement.records, deadline) {
                Ok(all) => {
                    *opened = all;
                    OpeningOutcome::Mapped
                }
                Err(outcome) => outcome,
            }
        };
        let member = Member {
            name: key.to_owned(),
            rank: shared.rank(),
            members: ranks,
            generation: 0,
            patience: options.deadline / 2,
            deadline: Some(options.deadline),
        };
        let result = agreement::run::<ExchangeProtocol>(&*info.store, member, record, open, info.object());
        result.map(|agreement| agreement.or(acted))
    }

    fn take_slots(&self, wanted: usize) -> Result<Range<usize>, ErrorKind> {
        let ExchangeState { shared, options, .. } = &*self.owner;
        let (mut slots, channels) = (shared.slots(), options.channels);
        let free = slots.free();
        slots.take(wanted).ok_or(ErrorKind::NoChannels { wanted, free, channels })
    }

    /// Prepares this rank's [`PreparedRecord`]. First waits until the transfers of the last plan or regions of this
    /// name have ended, for at most an eighth of [`ExchangeOptions::deadline`](super::ExchangeOptions::deadline). Then
    /// zeroes the slots, exports the memory, and makes the record. If a step fails or the wait times out, returns the
    /// cause.
    fn prepare(
        &self,
        plan: &str,
        contribution: &Contribution<'_>,
        held: &Open,
        slots: &Range<usize>,
    ) -> Result<PreparedRecord, String> {
        let ExchangeState { shared, options, .. } = &*self.owner;
        let patience = Deadline::after(options.deadline / 8);
        let last = self.name_state(plan).last;
        let mut last = last.iter().filter_map(Weak::upgrade);
        if last.any(|last| !shared.watch.drain(&last, patience)) {
            return Err("transfers of the plan are under way still".to_owned());
        }
        shared.clear(slots).map_err(|error| error_text(&error))?;
        let pieces = contribution.exported()?;
        let (offer, exports) = export(&shared.context, pieces.iter().flatten())?;
        let mut record = self.record(plan);
        record.site.endpoint = offer.endpoint();
        record.exports = exports;
        record.held = held.keys().map(|(peer, id)| Held { peer: *peer, id: *id }).collect();
        let filled = contribution.fill(&mut record, &pieces, slots, shared.info.global_ranks());
        filled.ok_or_else(|| "the memory is not among that offered".to_owned())?;
        Ok(PreparedRecord { record, offer, slots: slots.clone() })
    }

    /// This rank's record, without transfers, regions, exports and open allocations. The caller adds them. It also sets
    /// `site.endpoint`, from which peers get file descriptors.
    fn record(&self, plan: &str) -> ExchangeRecord {
        let ExchangeState { shared, options, rendezvous, .. } = &*self.owner;
        ExchangeRecord {
            rank: shared.rank(),
            plan: plan.to_owned(),
            generation: self.name_state(plan).generations.next(),
            readiness: SharingReadiness::Ready,
            site: rendezvous.inner.group.site.clone(),
            channels: u32::try_from(options.channels).unwrap_or(u32::MAX),
            exports: Vec::new(),
            held: Vec::new(),
            ends: Vec::new(),
            regions: None,
        }
    }

    fn name_state(&self, plan: &str) -> NameState {
        let mut plans = lock(&self.owner.plans);
        let NameState { generations, last } = plans.entry(plan.to_owned()).or_default();
        NameState { generations: generations.clone(), last: last.clone() }
    }

    /// Builds the agreed plan. Returns `None` if the agreement does not fit this rank's transfers, or if an allocation
    /// that they access is not open.
    fn build_plan(&self, agreed: &AgreedExchange<'_>, transfers: &[Transfer]) -> Option<Plan> {
        let shared = &self.owner.shared;
        let routes =
            agreed.agreement.routes(shared.rank()).filter(|routes| routes.len() == transfers.len())?;
        let mut imports = Open::new();
        let (mut endpoints, mut ends) = (Vec::new(), Vec::new());
        for ((transfer, slot), route) in transfers.iter().zip(agreed.slots.clone()).zip(routes) {
            let copies = copies(agreed, transfer, &route, &mut imports)?;
            let theirs = shared.slab.buffer_ptr(transfer.peer).ok()?;
            let (own, theirs) = (words(shared.slab(), slot), words(theirs, route.slot as usize));
            endpoints.push(TransferEndpoint::new(route.peer, own, theirs));
            ends.push(TransferEnd { part: transfer.part, memory: transfer.memory.clone(), copies });
        }
        let memory = Contribution::Transfers(transfers).memory();
        let core = self.core(agreed.name(), agreed.slots.clone(), endpoints, memory, imports, false);
        self.make_current(agreed, [&core]);
        Some(Plan::new(self.owner.clone(), core, ends))
    }

    /// Records the agreed plan, or the agreed regions, as current for their name.
    pub(super) fn make_current<'a>(
        &self,
        agreed: &AgreedExchange<'_>,
        cores: impl IntoIterator<Item = &'a Arc<Core>>,
    ) {
        let mut plans = lock(&self.owner.plans);
        let named = plans.entry(agreed.plan.to_owned()).or_default();
        named.add(agreed.agreement.generation, cores.into_iter().map(Arc::downgrade));
    }

    /// Creates and registers the state of a plan, or of the transfers between this rank's regions and those of one
    /// peer. `key` is the prefix of the agreement's store keys. `slots` are this rank's slots for that plan or peer.
    pub(super) fn core(
        &self,
        (key, plan, generation): (&str, &str, u64),
        slots: Range<usize>,
        endpoints: Vec<TransferEndpoint>,
        memory: Vec<Memory>,
        imports: Open,
        is_regions: bool,
    ) -> Arc<Core> {
        let parts = CoreParts {
            plan: plan.to_owned(),
            generation,
            current: self.name_state(plan).generations,
            key: key.to_owned(),
            slots,
            endpoints,
            memory,
            is_regions,
        };
        let core = Arc::new(Core::new(parts, imports.into_values().collect()));
        self.owner.shared.add_plan(&core);
        core
    }

    /// Cleans up after an agreement from which this rank got no plan or regions. `others` are the other members.
    /// `opened` is the peers' memory that this rank has opened in the agreement.
    ///
    /// If `no_member_has_it`, no other rank got the plan or the regions either, so no peer writes to this rank's
    /// slots. This call then frees the slots, and hands only the memory in `opened` to the [closing
    /// thread](super::close), which closes it.
    ///
    /// If it is false, another rank may have the plan or the regions. So the closing thread handles the slots, the
    /// memory of `contribution` and the memory in `opened` as those of a dropped plan. It closes the peers' memory, and
    /// tells the peers that this rank has closed the plan. It frees the slots and this rank's memory once the peers
    /// have closed the plan too.
    fn clean_up(
        &self,
        key: &str,
        prepared: &PreparedRecord,
        contribution: &Contribution<'_>,
        others: &[u32],
        opened: Open,
        no_member_has_it: bool,
    ) {
        let shared = &self.owner.shared;
        let (mut slots, mut peers, mut memory) = (prepared.slots.clone(), Vec::new(), Vec::new());
        if no_member_has_it {
            shared.slots().give_back(std::mem::take(&mut slots));
            if opened.is_empty() {
                return;
            }
        } else {
            peers = contribution.peers(others, shared.info.global_ranks());
            memory = contribution.memory();
        }
        let endpoints = slots.clone().zip(peers).map(|(slot, peer)| {
            let own = words(shared.slab(), slot);
            TransferEndpoint::new(peer, own, own)
        });
        let ExchangeRecord { plan, generation, .. } = &prepared.record;
        let core = self.core((key, plan, *generation), slots, endpoints.collect(), memory, opened, false);
        shared.closer.close(core);
    }
}

/// Returns the copies of this rank in a transfer: one for each allocation of the peer that contains a part of the
/// peer's buffer, because a copy must not span two allocations of a peer. A copy may span several allocations of this
/// rank. Empty if the peer copies. Returns `None` if an allocation of the peer is not open.
fn copies(
    agreed: &AgreedExchange<'_>,
    transfer: &Transfer,
    route: &Route,
    imports: &mut Open,
) -> Option<Vec<RangeCopy>> {
    let direction = match transfer.part {
        Part::PutInitiator => Direction::Put,
        _ => Direction::Get,
    };
    let mut own = transfer.memory.ptr();
    let mut copy = |piece: &RemotePiece| {
        let remote = agreed.import(route.peer, piece.id, imports)? + piece.offset;
        let bytes = usize::try_from(piece.bytes).ok()?;
        let copy = RangeCopy::new(direction, own, remote, bytes);
        own = own + bytes;
        Some(copy)
    };
    route.remote.iter().map(&mut copy).collect()
}

/// Returns whether a refusal in `result` is the same on all members. Returns false for two failures, because it is
/// possible that only this rank gets them, and that other members have the plan:
/// - `Taken`: another process takes part as this rank.
/// - `Members`: the members' lists of members differ.
fn is_same_on_all<T>(result: &Result<T, Box<Failed<ExchangeProtocol>>>) -> bool {
    !matches!(
        result,
        Err(failed) if matches!(
            failed.ending,
            agreement::Ending::Failed(Failure::Taken { .. } | Failure::Members { .. })
        )
    )
}
