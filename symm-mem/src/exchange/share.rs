//! Exports this rank's memory to its peers. Once all members have agreed on a plan or on regions, opens the memory of
//! the peers that is not open yet.

use std::{
    collections::HashMap,
    fs::File,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};

use cuda_driver::{
    Context,
    memory::{ImportedMemory, IpcHandle},
    vmm::{FabricHandle, PhysicalMemory},
};
use process_group::{
    error_text,
    link::{Listener, Tag, exchange},
    store::Deadline,
};

use super::{
    handles::{Imported, Open},
    memory::{Allocation, Piece},
    protocol::{Export, Record, Way, missing},
};
use crate::{
    local_registry::{LocalRegistry, LocalToken},
    rendezvous::{
        mapped,
        protocol::Outcome,
        share::{MEMORY, outcome_of},
    },
};

/// Tag of the first message on a connection of two processes. The message carries a file descriptor of `/dev/null`.
const HELLO: Tag = Tag(*b"plan");

/// Exported allocations, which other ranks of this process find by token.
static SHARED: LocalRegistry<Allocation> = LocalRegistry::new();

/// Exports of this rank. The other ranks can open them until the offer is dropped.
pub(super) struct Offer {
    listener: Listener,
    exports: Vec<(Export, Allocation)>,
    _tokens: Vec<LocalToken<Allocation>>,
}

impl Offer {
    /// Opens an endpoint, and exports the allocations that contain these pieces, each once.
    pub(super) fn make<'a>(
        context: &Context,
        pieces: impl IntoIterator<Item = &'a Piece>,
    ) -> Result<Self, String> {
        let listener = Listener::open().map_err(|error| error_text(&error))?;
        let mut exports: Vec<(Export, Allocation)> = Vec::new();
        let mut tokens = Vec::new();
        for Piece { id, whole, allocation, .. } in pieces {
            if exports.iter().any(|(export, _)| export.id == *id) {
                continue;
            }
            let local = SHARED.register(allocation.clone());
            let (way, token) = (allocation.way(context)?, local.token);
            let export = Export { id: *id, bytes: *whole as u64, way, token };
            tokens.push(local);
            exports.push((export, allocation.clone()));
        }
        Ok(Self { listener, exports, _tokens: tokens })
    }

    pub(super) fn endpoint(&self) -> Vec<u8> {
        self.listener.endpoint()
    }

    pub(super) fn exports(&self) -> Vec<Export> {
        self.exports.iter().map(|(export, _)| export.clone()).collect()
    }

    /// Returns the index of the export that contains a piece, and the offset of the piece in it in bytes. Returns
    /// `None` if no export contains the piece.
    pub(super) fn place(&self, piece: &Piece) -> Option<(u32, u64)> {
        let at = self.exports.iter().position(|(export, _)| export.id == piece.id)?;
        Some((u32::try_from(at).ok()?, piece.offset as u64))
    }
}

/// Returns the exports of `from` that `to` must receive as file descriptors, as indices into `from.exports`. Empty if
/// the two ranks are on different hosts or in one process.
fn handed(from: &Record, to: &Record) -> Vec<usize> {
    let here = from.host == to.host && from.process != to.process;
    let is_descriptor = |at: &usize| {
        from.exports
            .get(*at)
            .is_some_and(|export| matches!(export.way, Way::Virtual { descriptor: true, .. }))
    };
    if here { missing(from, to).into_iter().filter(is_descriptor).collect() } else { Vec::new() }
}

/// Sends the other ranks the file descriptors that they need. Opens and returns the peers' memory that this rank
/// accesses and has not open yet. `place` is the index of this rank in `records`.
pub(super) fn open(
    context: &Context,
    offer: &Offer,
    place: usize,
    records: &[Record],
    deadline: Deadline,
) -> Result<Open, Outcome> {
    let Some(me) = records.get(place) else {
        let cause = format!("the decision speaks of {} members, this is {place}", records.len());
        return Err(Outcome::Failed { cause });
    };
    let descriptors = hand_over(context, offer, place, records, deadline)?;
    let mut opened = Open::new();
    for (at, peer) in records.iter().enumerate().filter(|(at, _)| *at != place) {
        for number in missing(peer, me) {
            let Some(export) = peer.exports.get(number) else { continue };
            let descriptor = descriptors.get(&(at, number));
            let imported = import(context, me, peer, export, descriptor).map_err(|problem| {
                let cause = format!("{} of rank {}: {problem}", export.id, peer.rank);
                Outcome::Failed { cause }
            })?;
            opened.insert((peer.rank, export.id), Arc::new(imported));
        }
    }
    Ok(opened)
}

/// Exchanges file descriptors with the ranks of other processes of this host. Returns the received descriptors. The key
/// is the index of the peer's record, and the index of the export in that record.
fn hand_over(
    context: &Context,
    offer: &Offer,
    place: usize,
    records: &[Record],
    deadline: Deadline,
) -> Result<HashMap<(usize, usize), OwnedFd>, Outcome> {
    let failed = |cause: String| Outcome::Failed { cause };
    let me = &records[place];
    let visited = |peer: &Record| !handed(me, peer).is_empty() || !handed(peer, me).is_empty();
    let others: Vec<u64> = (0..).zip(records).filter(|(_, peer)| visited(peer)).map(|(at, _)| at).collect();
    let mut received = HashMap::new();
    if others.is_empty() {
        return Ok(received);
    }
    let rank = |at: &u64| records.get(*at as usize).map_or(u32::MAX, |record| record.rank);
    let hello = File::open("/dev/null").map_err(|error| failed(format!("/dev/null: {error}")))?;
    let endpoint_of = |at: u64| Ok(records[at as usize].card.clone());
    let met =
        exchange(&offer.listener, place as u64, &others, endpoint_of, &[(HELLO, hello.as_fd())], deadline);
    let mut met = met.map_err(|error| outcome_of(&error, rank))?;
    // Each rank visits its peers in ascending order of their indices in `records`. In each pair, the rank with the
    // lower index sends first. This avoids a deadlock.
    met.sort_by_key(|met| met.link.place());
    for peer in &met {
        let at = peer.link.place() as usize;
        let send = || {
            handed(me, &records[at]).into_iter().try_for_each(|number| {
                let allocation =
                    offer.exports.get(number).map(|(_, allocation)| allocation.physical(context));
                let descriptor = match allocation.transpose().map(Option::flatten) {
                    Ok(Some(physical)) => physical.export_fd().map_err(|error| failed(error_text(&error)))?,
                    Ok(None) => return Err(failed(format!("there is no memory behind export {number}"))),
                    Err(error) => return Err(failed(error_text(&error))),
                };
                let sent = peer.link.send(MEMORY, descriptor.as_fd(), deadline);
                sent.map_err(|error| outcome_of(&error, rank))
            })
        };
        if place < at {
            send()?;
        }
        for number in handed(&records[at], me) {
            let descriptor = peer.link.receive(MEMORY, deadline).map_err(|error| outcome_of(&error, rank))?;
            received.insert((at, number), descriptor);
        }
        if place > at {
            send()?;
        }
    }
    Ok(received)
}

/// Opens an allocation of a peer.
fn import(
    context: &Context,
    me: &Record,
    peer: &Record,
    export: &Export,
    descriptor: Option<&OwnedFd>,
) -> Result<Imported, String> {
    let said = |error: cuda_driver::Error| error_text(&error);
    let bytes = usize::try_from(export.bytes).map_err(|_| "more than there are addresses".to_owned())?;
    if (peer.host, peer.process) == (me.host, me.process) {
        let allocation = SHARED.find(export.token).ok_or("it is no longer registered in this process")?;
        if let Some((base, owner)) = allocation.plain() {
            if owner.device() != context.device() {
                context.enable_peer_access(owner).map_err(said)?;
            }
            return Ok(Imported::Here { base, _allocation: allocation.clone() });
        }
        let physical = allocation.physical(context).map_err(said)?.ok_or("the memory has no pages")?;
        return mapped(context, &physical, bytes).map(Imported::Mapped).map_err(said);
    }
    let physical = match (&export.way, descriptor) {
        (Way::Legacy { handle }, _) => return legacy(context, handle, bytes),
        (Way::Virtual { .. }, Some(descriptor)) => {
            PhysicalMemory::import_fd(context, descriptor.as_fd(), bytes).map_err(said)?
        }
        (Way::Virtual { fabric: Some(fabric), .. }, None) => {
            let handle = <[u8; 64]>::try_from(&fabric[..])
                .map_err(|_| format!("a fabric handle of {} bytes, expected 64", fabric.len()))?;
            PhysicalMemory::import_fabric(context, &FabricHandle(handle), bytes).map_err(said)?
        }
        (Way::Virtual { .. }, None) => return Err("it can be had in no way from here".to_owned()),
    };
    mapped(context, &physical, bytes).map(Imported::Mapped).map_err(said)
}

fn legacy(context: &Context, handle: &[u8], bytes: usize) -> Result<Imported, String> {
    let said = |error: cuda_driver::Error| error_text(&error);
    let handle = <[u8; 64]>::try_from(handle)
        .map_err(|_| format!("a legacy handle of {} bytes, expected 64", handle.len()))?;
    let imported = ImportedMemory::open(context, IpcHandle(handle)).map_err(said)?;
    let range = context.address_range(imported.ptr()).map_err(said)?;
    let before = imported.ptr().offset_from(range.start).unwrap_or(u64::MAX);
    let found = (range.bytes as u64).saturating_sub(before);
    if found < bytes as u64 {
        return Err(format!("its handle leads to {found} bytes, expected {bytes}"));
    }
    Ok(Imported::Legacy(imported))
}

#[cfg(test)]
mod tests {
    use std::{thread, time::Duration};

    use cuda_driver::{Driver, sys::Api};
    use gpu_sim::World;

    use super::*;
    use crate::{
        common::turn,
        exchange::protocol::{AllocationId, End, Part},
        rendezvous::protocol::{Readiness, Uuid},
    };

    fn record(rank: u32, card: Vec<u8>) -> Record {
        let part = [Part::GetFrom, Part::GetBy][rank as usize];
        let export = Export {
            id: AllocationId::Own { number: 5 },
            bytes: 2 << 20,
            way: Way::Virtual { descriptor: true, fabric: None },
            token: u64::MAX,
        };
        let export_of = (!part.copies()).then_some(0);
        Record {
            rank,
            plan: "plan".into(),
            generation: 1,
            readiness: Readiness::Ready,
            host: 1,
            process: rank.into(),
            device: Uuid { low: rank.into(), high: 0 },
            unreachable: Vec::new(),
            card,
            channels: 1,
            exports: if part.copies() { Vec::new() } else { vec![export] },
            held: Vec::new(),
            regions: None,
            ends: vec![End { peer: 1 - rank, part, bytes: 64, export: export_of, offset: 0, slot: 0 }],
        }
    }

    /// Returns the error of rank 0 if rank 1 sends a file descriptor of `/dev/null` with this tag.
    fn told_of(tag: Tag) -> String {
        let _turn = turn();
        let world = World::builder().devices(1).start().unwrap();
        // SAFETY: the functions are those of the living world, and nothing of it outlives the world.
        let driver = Driver::new(unsafe { Api::from_parts(world.cuda()) }.unwrap()).unwrap();
        let context = driver.device(0).unwrap().retain_primary().unwrap();
        let offer = Offer::make(&context, []).unwrap();
        let listener = Listener::open().unwrap();
        let records = [record(0, offer.endpoint()), record(1, listener.endpoint())];
        let deadline = Deadline::after(Duration::from_secs(60));
        let outcome = thread::scope(|scope| {
            scope.spawn(|| {
                let nothing = File::open("/dev/null").unwrap();
                let endpoint_of = |at: u64| Ok(records[at as usize].card.clone());
                let met =
                    exchange(&listener, 1, &[0], endpoint_of, &[(HELLO, nothing.as_fd())], deadline).unwrap();
                met[0].link.send(tag, nothing.as_fd(), deadline).unwrap();
            });
            open(&context, &offer, 0, &records, deadline).map(|opened| opened.len())
        });
        drop((context, driver));
        world.finish().expect("nothing is left behind");
        match outcome {
            Err(Outcome::Failed { cause }) => cause,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_is_no_memory_is_not_opened() {
        let cause = told_of(MEMORY);
        assert!(cause.contains("allocation 5 of rank 1") && cause.contains("cuMemImport"), "{cause}");
        let cause = told_of(Tag(*b"else"));
        assert!(cause.contains("rank 1") && cause.contains("expected"), "{cause}");
    }
}
