//! The decision of a rendezvous, as a pure function of the members' records.

use super::{
    RendezvousDecision,
    record::{RendezvousRecord, SharingReadiness},
    refusal::RendezvousRefusal,
};
use memory_sharing::Uuid;

use crate::ValuesByRank;

/// Makes the decision from the [records](RendezvousRecord) of all members (their messages to each other). The records
/// are in the group's order.
///
/// The checks, in this order:
/// 1. The fields `group`, `members`, `generation`, `number` and `shared_devices` are equal in all records.
/// 2. Every rank is [ready](SharingReadiness).
/// 3. Either no rank's memory is foreign ([`ForeignMemory`](memory_sharing::ForeignMemory)), or all of it is, with the
///    same kind of device.
/// 4. The ranks' memory has the same [`Subject`](super::Subject). Their buffers have the same size, their allocations
///    have the same size, and the offsets of the buffers in the allocations are equal.
/// 5. The ranks have different devices, unless `shared_devices` is true.
/// 6. Every rank can open the memory of all others, in one of these ways:
///    - All ranks are in one process.
///    - All ranks are on one host, and all memory has file descriptors.
///    - All memory has handles that work on every host.
/// 7. No device is known to be unable to access the device of another rank.
///
/// Returns one of these decisions:
/// - `Refused` if a check fails. The first check that fails determines the refusal.
/// - `Agreed` if all ranks have mapped this memory in the same earlier rendezvous. The agreed value is the number of
///   that rendezvous, and nothing is mapped again.
/// - `Act` otherwise. All ranks map the memory that the records describe.
pub fn decide(records: &[RendezvousRecord]) -> RendezvousDecision {
    let checks =
        [identity_mismatch, unready, other_kind, other_memory, same_device, unshareable, unreachable];
    if let Some(refusal) = checks.iter().find_map(|check| check(records)) {
        return RendezvousDecision::Refused { refusal };
    }
    let mapped = split(records, |record| record.mapped);
    if let [only] = mapped.entries.as_slice()
        && let Some(number) = only.value
    {
        return RendezvousDecision::Agreed { agreed: number };
    }
    RendezvousDecision::Act { plan: records.to_vec() }
}

fn split<V: PartialEq>(
    records: &[RendezvousRecord],
    value: impl Fn(&RendezvousRecord) -> V,
) -> ValuesByRank<V> {
    ValuesByRank::of(records.iter().map(|record| (record.rank, value(record))))
}

fn differs<V: PartialEq>(
    records: &[RendezvousRecord],
    value: impl Fn(&RendezvousRecord) -> V,
) -> Option<ValuesByRank<V>> {
    let split = split(records, value);
    (!split.is_unanimous()).then_some(split)
}

type Field = fn(&RendezvousRecord) -> u64;

fn identity_mismatch(records: &[RendezvousRecord]) -> Option<RendezvousRefusal> {
    let identities: [(&str, Field); 6] = [
        ("the group's number", |record| record.group.uid),
        ("the group's epoch", |record| record.group.epoch),
        ("the group's members", |record| record.members),
        ("how often they have made the group's rendezvous", |record| record.generation),
        ("the number of the rendezvous", |record| record.number),
        ("whether ranks may share a device", |record| record.shared_devices.into()),
    ];
    identities.into_iter().find_map(|(what, value)| {
        let values = differs(records, value)?;
        Some(RendezvousRefusal::IdentityMismatch { what: what.to_owned(), values })
    })
}

fn unready(records: &[RendezvousRecord]) -> Option<RendezvousRefusal> {
    let failed = records.iter().filter_map(|record| match &record.readiness {
        SharingReadiness::Failed { cause } => Some((record.rank, cause)),
        _ => None,
    });
    if let Some((rank, cause)) = failed.min_by_key(|(rank, _)| *rank) {
        return Some(RendezvousRefusal::PeerPrepareFailed { rank, cause: cause.clone() });
    }
    let capturing = records.iter().filter(|record| record.readiness == SharingReadiness::Capturing);
    let mut ranks: Vec<u32> = capturing.map(|record| record.rank).collect();
    ranks.sort_unstable();
    (!ranks.is_empty()).then_some(RendezvousRefusal::RendezvousDuringCapture { ranks })
}

fn other_kind(records: &[RendezvousRecord]) -> Option<RendezvousRefusal> {
    differs(records, |record| record.export.handle.foreign_kind().map(str::to_owned))?;
    Some(RendezvousRefusal::HandleKindMismatch { kinds: handle_names(records) })
}

fn other_memory(records: &[RendezvousRecord]) -> Option<RendezvousRefusal> {
    if let Some(subjects) = differs(records, |record| record.subject) {
        return Some(RendezvousRefusal::SubjectMismatch { subjects });
    }
    let sizes: [(&str, Field); 2] =
        [("buffer", |record| record.bytes), ("allocation", |record| record.export.bytes)];
    let sizes = sizes.into_iter().find_map(|(what, value)| {
        let sizes = differs(records, value)?;
        Some(RendezvousRefusal::SizeMismatch { what: what.to_owned(), sizes })
    });
    sizes.or_else(|| {
        let offsets = differs(records, |record| record.offset)?;
        Some(RendezvousRefusal::OffsetMismatch { offsets })
    })
}

fn same_device(records: &[RendezvousRecord]) -> Option<RendezvousRefusal> {
    if records.iter().any(|record| record.shared_devices) {
        return None;
    }
    let devices: ValuesByRank<(u64, Uuid)> = split(records, |record| (record.site.host, record.site.device));
    let shared = devices.entries.into_iter().find(|entry| entry.ranks.len() > 1)?;
    Some(RendezvousRefusal::SameDevice { ranks: shared.ranks, device: shared.value.1 })
}

fn unshareable(records: &[RendezvousRecord]) -> Option<RendezvousRefusal> {
    let one_process = differs(records, |record| (record.site.host, record.site.process)).is_none();
    if one_process {
        return None;
    }
    let hosts = differs(records, |record| record.site.host);
    let descriptors = records.iter().all(|record| record.export.handle.has_descriptor());
    let opens_anywhere = records.iter().filter(|record| record.export.handle.opens_on_any_host()).count();
    // A type of handle is enough only if the memory of all members has it.
    if opens_anywhere == records.len() || (descriptors && hosts.is_none()) {
        return None;
    }
    Some(match hosts {
        Some(hosts) if descriptors && opens_anywhere == 0 => RendezvousRefusal::HostsApart { hosts },
        _ => RendezvousRefusal::HandleKindMismatch { kinds: handle_names(records) },
    })
}

fn unreachable(records: &[RendezvousRecord]) -> Option<RendezvousRefusal> {
    records.iter().find_map(|record| {
        let peer = records.iter().find(|peer| !record.site.can_access(&peer.site))?;
        Some(RendezvousRefusal::NoPeerAccess { rank: record.rank, peer: peer.rank })
    })
}

fn handle_names(records: &[RendezvousRecord]) -> ValuesByRank<String> {
    split(records, |record| record.export.handle.name())
}
