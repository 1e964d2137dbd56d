//! Transfer of physical memory between ranks. Ranks of one process clone the handle. Processes of one host send a file
//! descriptor, or use the fabric handle if there is no descriptor. Ranks of different hosts use the fabric handle.

use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
    os::fd::{AsFd, OwnedFd},
    sync::OnceLock,
};

use cuda_driver::{
    Context, DevicePtr,
    vmm::{FabricHandle, HandleTypes, PhysicalMemory},
};
use process_group::{
    link::{LinkError, Listener, Tag, exchange},
    store::Deadline,
};

use super::{
    allocation::mapped,
    buffers::PeerBuffers,
    protocol::{Handles, Outcome, Record},
};
use crate::local_registry::{LocalRegistry, LocalToken};

/// Tag of a message with a file descriptor of physical memory.
pub(crate) const MEMORY: Tag = Tag(*b"memo");

/// Memory that ranks offer to the other ranks of this process, by token.
static SHARED: LocalRegistry<PhysicalMemory> = LocalRegistry::new();

/// A random number that identifies this process. A process id is not unique, because a process in another container may
/// have the same id.
pub(crate) fn process() -> u64 {
    static PROCESS: OnceLock<u64> = OnceLock::new();
    *PROCESS.get_or_init(|| RandomState::new().hash_one(std::process::id()))
}

/// Offers memory of this rank to the other ranks. Dropping this value ends the offer.
pub(super) struct Offer {
    listener: Listener,
    descriptor: Option<OwnedFd>,
    _local: LocalToken<PhysicalMemory>,
}

impl Offer {
    /// Opens a listener, exports `memory`, and registers it for the other ranks of this process.
    pub(super) fn make(memory: &PhysicalMemory) -> Result<(Self, Handles), String> {
        let listener = Listener::open().map_err(|error| error.to_string())?;
        let kinds = memory.handle_types();
        let said = |error: cuda_driver::Error| error.to_string();
        let descriptor = match kinds.contains(HandleTypes::POSIX_FD) {
            true => Some(memory.export_fd().map_err(said)?),
            false => None,
        };
        let fabric = match kinds.contains(HandleTypes::FABRIC) {
            true => Some(memory.export_fabric().map_err(said)?.0.to_vec()),
            false => None,
        };
        let local = SHARED.register(memory.clone());
        let handles = Handles {
            descriptor: descriptor.is_some(),
            fabric,
            card: listener.endpoint(),
            token: local.token,
        };
        Ok((Self { listener, descriptor, _local: local }, handles))
    }
}

/// Maps the memory offered by the other ranks. `place` is the index of this rank in `records`, and `own` the address
/// of its memory. `deadline` limits the exchange of file descriptors. On failure, returns the outcome that this rank
/// posts.
pub(super) fn share(
    context: &Context,
    offer: &Offer,
    place: usize,
    own: DevicePtr,
    records: &[Record],
    deadline: Deadline,
) -> Result<PeerBuffers, Outcome> {
    let failed = |error: cuda_driver::Error| Outcome::Failed { cause: error.to_string() };
    let memory = fetch(context, offer, place, records, deadline)?;
    let bytes = records.first().map_or(0, |record| record.segment) as usize;
    let mut mappings = Vec::new();
    let mut addresses = Vec::new();
    for memory in memory {
        let Some(memory) = memory else {
            addresses.push(own);
            continue;
        };
        let mapping = mapped(context, &memory, bytes).map_err(failed)?;
        addresses.push(mapping.ptr());
        mappings.push(mapping);
    }
    PeerBuffers::mapped(context, (place, addresses), bytes, mappings).map_err(failed)
}

/// Returns every rank's memory, in the group's order. The entry of this rank is `None`. On failure, returns the outcome
/// that this rank posts.
fn fetch(
    context: &Context,
    offer: &Offer,
    place: usize,
    records: &[Record],
    deadline: Deadline,
) -> Result<Vec<Option<PhysicalMemory>>, Outcome> {
    let failed = |cause: String| Outcome::Failed { cause };
    let Some(me) = records.get(place) else {
        return Err(failed(format!("the decision speaks of {} members, this is {place}", records.len())));
    };
    let visits =
        |record: &Record| record.host == me.host && record.process != me.process && record.handles.descriptor;
    let others: Vec<u64> =
        (0..).zip(records).filter(|(_, record)| visits(record)).map(|(at, _)| at).collect();
    let mut met = HashMap::new();
    if let (false, Some(own)) = (others.is_empty(), &offer.descriptor) {
        let endpoint_of = |place: u64| Ok(records[place as usize].handles.card.clone());
        let own = [(MEMORY, own.as_fd())];
        let rank = |place: &u64| records.get(*place as usize).map_or(u32::MAX, |record| record.rank);
        let found = exchange(&offer.listener, place as u64, &others, endpoint_of, &own, deadline);
        for peer in found.map_err(|error| outcome_of(&error, rank))? {
            met.extend(peer.descriptors.into_iter().map(|descriptor| (peer.link.place(), descriptor)));
        }
    }
    let of_rank = |(at, record): (usize, &Record)| {
        if at == place {
            return Ok(None);
        }
        let fail = |problem: String| failed(format!("memory of rank {}: {problem}", record.rank));
        if (record.host, record.process) == (me.host, me.process) {
            let memory = SHARED.find(record.handles.token);
            return memory.map(Some).ok_or_else(|| fail("it is no longer registered in this process".into()));
        }
        let bytes = record.segment as usize;
        let memory = match (met.get(&(at as u64)), &record.handles.fabric) {
            (Some(descriptor), _) => PhysicalMemory::import_fd(context, descriptor.as_fd(), bytes),
            (None, Some(fabric)) => {
                let handle = <[u8; 64]>::try_from(&fabric[..])
                    .map_err(|_| fail(format!("a fabric handle of {} bytes, expected 64", fabric.len())))?;
                PhysicalMemory::import_fabric(context, &FabricHandle(handle), bytes)
            }
            (None, None) => return Err(fail("it can be had in no way from here".into())),
        };
        memory.map(Some).map_err(|error| fail(error.to_string()))
    };
    records.iter().enumerate().map(of_rank).collect()
}

/// Converts an error of a [link exchange](process_group::link::exchange) to the outcome that this rank posts. `rank`
/// converts a place (index in the group) to a rank of the job.
pub(crate) fn outcome_of(error: &LinkError, rank: impl Fn(&u64) -> u32) -> Outcome {
    match error {
        LinkError::Gone { place, .. } => Outcome::Alone { gone: vec![rank(place)] },
        LinkError::Absent { places, .. } => Outcome::Alone { gone: places.iter().map(rank).collect() },
        LinkError::Unexpected { place, problem } => {
            Outcome::Failed { cause: format!("rank {}: {problem}", rank(place)) }
        }
        other => Outcome::Failed { cause: other.to_string() },
    }
}
