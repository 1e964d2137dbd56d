//! The decision about a plan (a list of transfers) or regions (memory that all members can access), as pure functions
//! of the members' [records](ExchangeRecord).

use super::{
    ExchangeDecision,
    record::{End, ExchangeRecord, Part},
    refusal::ExchangeRefusal,
};
use crate::{ValuesByRank, rendezvous::SharingReadiness, wire::wire_struct};

/// An agreed plan, or agreed regions: the same value on all members.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Agreement {
    /// The generation of the plan or of the regions: the highest proposal ([`ExchangeRecord::generation`]) of a member.
    pub generation: u64,
    /// The records of the members, in the order of the group.
    pub records: Vec<ExchangeRecord>,
}
wire_struct!(Agreement { generation, records });

/// Decides from `records`: one record of each member, in the order of the group. Checks in this order:
/// 1. Every record is consistent.
/// 2. All records name the same plan, or the same set of regions.
/// 3. All ranks are ready.
/// 4. Every transfer has two ends that match in role and size.
/// 5. Each rank can open the memory that it accesses and has not opened yet.
/// 6. Each rank's device can access the devices of all memory that the rank accesses. Devices that the rank's process
///    does not see pass this check.
///
/// Returns `ExchangeDecision::Refused` for the first check that fails. Otherwise returns `ExchangeDecision::Agreed` if
/// no memory has to be opened, and `ExchangeDecision::Act` if members must open memory.
pub fn decide(records: &[ExchangeRecord]) -> ExchangeDecision {
    let checks = [flawed, other_plan, unready, unmatched, out_of_reach, unreachable];
    if let Some(refusal) = checks.iter().find_map(|check| check(records)) {
        return ExchangeDecision::Refused { refusal };
    }
    let generation = records.iter().map(|record| record.generation).max().unwrap_or(0);
    let agreement = Agreement { generation, records: records.to_vec() };
    let complete = pairs(records).all(|(from, to)| missing(from, to).is_empty());
    if complete {
        return ExchangeDecision::Agreed { agreed: Some(agreement) };
    }
    ExchangeDecision::Act { plan: agreement }
}

/// Returns every ordered pair of two different members.
fn pairs(records: &[ExchangeRecord]) -> impl Iterator<Item = (&ExchangeRecord, &ExchangeRecord)> {
    records.iter().flat_map(move |a| records.iter().filter(|b| b.rank != a.rank).map(move |b| (a, b)))
}

/// Returns the [exports](ExchangeRecord::exports) of the rank `from` that the rank `to` accesses, for reads or for
/// writes. If the members share regions, these are all exports of `from`. Otherwise they are the exports that contain
/// the buffers of `from` in those transfers in which `to` copies. The result contains indices into `from.exports`,
/// ascending and without duplicates.
fn reached(from: &ExchangeRecord, to: &ExchangeRecord) -> Vec<usize> {
    if from.regions.is_some() {
        return (0..from.exports.len()).collect();
    }
    let pieces = from.with(to.rank).filter(|end| !end.part.copies()).flat_map(|end| &end.pieces);
    let mut exports: Vec<usize> = pieces.map(|piece| piece.export as usize).collect();
    exports.sort_unstable();
    exports.dedup();
    exports
}

/// Returns the [exports](ExchangeRecord::exports) of the rank `from` that the rank `to` accesses, for reads or for
/// writes, and has to open first. The result contains indices into `from.exports`, ascending. Both ranks compute it
/// from the records: `from` to send the file descriptors that `to` needs, and `to` to open the memory.
pub fn missing(from: &ExchangeRecord, to: &ExchangeRecord) -> Vec<usize> {
    let mut lacking = reached(from, to);
    lacking.retain(|at| {
        let id = from.exports.get(*at).map(|export| export.id);
        !to.held.iter().any(|held| held.peer == from.rank && Some(held.id) == id)
    });
    lacking
}

fn flawed(records: &[ExchangeRecord]) -> Option<ExchangeRefusal> {
    records.iter().find_map(|record| {
        let cause = record.flaw(records.len())?;
        Some(ExchangeRefusal::RecordUnreadable { rank: record.rank, cause })
    })
}

fn other_plan(records: &[ExchangeRecord]) -> Option<ExchangeRefusal> {
    let what = |record: &ExchangeRecord| (record.regions.is_some(), record.plan.clone());
    let first = what(records.first()?);
    if records.iter().all(|record| what(record) == first) {
        return None;
    }
    let plans = ValuesByRank::of(records.iter().map(|record| (record.rank, record.title())));
    Some(ExchangeRefusal::PlanMismatch { plans })
}

fn unready(records: &[ExchangeRecord]) -> Option<ExchangeRefusal> {
    let failed = records.iter().filter_map(|record| match &record.readiness {
        SharingReadiness::Ready => None,
        SharingReadiness::Capturing => Some((record.rank, "a stream of its device captures".to_owned())),
        SharingReadiness::Failed { cause } => Some((record.rank, cause.clone())),
    });
    let (rank, cause) = failed.min_by_key(|(rank, _)| *rank)?;
    Some(ExchangeRefusal::PeerPrepareFailed { rank, cause })
}

fn unmatched(records: &[ExchangeRecord]) -> Option<ExchangeRefusal> {
    let stray = records.iter().find_map(|record| {
        let is_member = |end: &&End| records.iter().any(|other| other.rank == end.peer);
        let peer = record.ends.iter().find(|end| end.peer == record.rank || !is_member(end))?.peer;
        let transfers = record.with(peer).count() as u64;
        Some(ExchangeRefusal::CounterpartMissing { rank: record.rank, transfers, peer, found: 0 })
    });
    stray.or_else(|| {
        let mut pairs: Vec<_> = pairs(records).filter(|(a, b)| a.rank < b.rank).collect();
        pairs.sort_by_key(|(a, b)| (a.rank, b.rank));
        pairs.into_iter().find_map(|(a, b)| mismatch(a, b))
    })
}

/// Returns a refusal if the transfers that two ranks list with each other differ in number. Otherwise returns a refusal
/// for the first transfer whose ends do not match in role or size, or `None` if there is none.
fn mismatch(a: &ExchangeRecord, b: &ExchangeRecord) -> Option<ExchangeRefusal> {
    let (rank, peer) = (a.rank, b.rank);
    let differs = (0..).zip(a.with(peer).zip(b.with(rank))).find_map(|(at, (own, other))| {
        if own.part != other.part.counterpart() {
            let (part, found): (Part, Part) = (own.part, other.part);
            return Some(ExchangeRefusal::PartMismatch { at, rank, part, peer, found });
        }
        let (bytes, found) = (own.bytes, other.bytes);
        (bytes != found).then_some(ExchangeRefusal::SizeMismatch { at, rank, bytes, peer, found })
    });
    let (own, other) = (a.with(peer).count() as u64, b.with(rank).count() as u64);
    // A missing transfer shifts those after it, so the count difference explains more than the first mismatch.
    if own != other {
        let (rank, transfers, peer, found) =
            if own > other { (rank, own, peer, other) } else { (peer, other, rank, own) };
        return Some(ExchangeRefusal::CounterpartMissing { rank, transfers, peer, found });
    }
    differs
}

fn out_of_reach(records: &[ExchangeRecord]) -> Option<ExchangeRefusal> {
    pairs(records).find_map(|(from, to)| {
        let lacking = missing(from, to).into_iter().filter_map(|at| from.exports.get(at));
        let mut handles = lacking.map(|export| &export.shared.handle);
        let refused = handles.find(|handle| !handle.can_be_opened(&from.site, &to.site))?;
        Some(ExchangeRefusal::OutOfReach {
            rank: from.rank,
            way: refused.name(),
            peer: to.rank,
            other_host: from.site.host != to.site.host,
        })
    })
}

fn unreachable(records: &[ExchangeRecord]) -> Option<ExchangeRefusal> {
    pairs(records).find_map(|(from, to)| {
        let blocked = !reached(from, to).is_empty() && !to.site.can_access(&from.site);
        blocked.then_some(ExchangeRefusal::NoPeerAccess { rank: to.rank, peer: from.rank })
    })
}
