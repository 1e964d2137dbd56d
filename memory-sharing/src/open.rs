//! Opens (maps) the memory that the other members of an [agreement](bootstrap::agreement) share.

use std::{
    collections::HashMap,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};

use bootstrap::{error_text, store::Deadline};
use cuda_driver::{
    Context,
    memory::{ImportedMemory, IpcHandle},
    vmm::{FabricHandle, PhysicalMemory},
};

use crate::{
    Export, Handle, HostMemory, Imported, Offer, OpeningOutcome, Party, PeerHandle, Shareable, map,
    offer::{Exports, member},
};

/// Exchanges file descriptors with the other members, and opens those [exports](Export) of the others that `wanted`
/// selects for this rank.
///
/// - `own` is the index of this rank in `parties`. The arguments `from`, `to` and `party` below are such indices too.
/// - `wanted(from, to)` returns the exports of member `from` that member `to` opens, as indices into the exports of
///   `from`. It must return the same on all members.
/// - `name(party, export)` describes an export for error messages. `export` is an index into the exports of `party`.
/// - `deadline` limits the exchange of file descriptors.
///
/// Returns the opened memory. The key of each is a pair: the index of the party, and the index of the export among its
/// exports.
///
/// # Errors
/// On failure, returns the outcome that this rank posts for the others.
pub fn open(
    context: &Context,
    offer: &Offer,
    own: usize,
    parties: &[Party<'_>],
    wanted: impl Fn(usize, usize) -> Vec<usize>,
    name: impl Fn(usize, usize) -> String,
    deadline: Deadline,
) -> Result<HashMap<(usize, usize), Imported>, OpeningOutcome> {
    let descriptors = offer.exchange_descriptors(own, parties, &wanted, deadline)?;
    open_exports(context, offer.exports(), own, parties, wanted, name, descriptors)
}

/// Opens the exports that `wanted` selects for this rank, like [`open`], but does not exchange file descriptors and
/// does not wait for other ranks. `descriptors` contains the file descriptors that this rank has received. For memory
/// of ranks of this process, none are needed.
#[doc(hidden)]
pub fn open_exports(
    context: &Context,
    exports: &Exports,
    own: usize,
    parties: &[Party<'_>],
    wanted: impl Fn(usize, usize) -> Vec<usize>,
    name: impl Fn(usize, usize) -> String,
    mut descriptors: HashMap<(usize, usize), OwnedFd>,
) -> Result<HashMap<(usize, usize), Imported>, OpeningOutcome> {
    let mut opened = HashMap::new();
    let this = member(own, parties)?;
    for (owner, peer) in parties.iter().enumerate().filter(|(owner, _)| *owner != own) {
        for index in wanted(owner, own) {
            let Some(export) = peer.exports.get(index) else { continue };
            let imported = match peer.site.shares_process(this.site) {
                true => {
                    // A rank exports its memory until it leaves the agreement.
                    let memory = exports.find(export.token);
                    let memory = memory.ok_or_else(|| OpeningOutcome::Alone { gone: vec![peer.rank] })?;
                    open_local(context, memory, export)
                }
                false => open_remote(context, exports, export, descriptors.remove(&(owner, index))),
            };
            let imported = imported.map_err(|problem| OpeningOutcome::Failed {
                cause: format!("{} of rank {}: {problem}", name(owner, index), peer.rank),
            })?;
            opened.insert((owner, index), imported);
        }
    }
    Ok(opened)
}

/// Opens an allocation of another rank of this process.
fn open_local(context: &Context, memory: Shareable, export: &Export) -> Result<Imported, String> {
    Ok(match memory {
        Shareable::Virtual(physical) => return mapped(context, &physical, export),
        Shareable::Plain(memory) => {
            if memory.context.device() != context.device() {
                context.enable_peer_access(&memory.context).map_err(|error| error_text(&error))?;
            }
            Imported::Local(memory)
        }
        Shareable::Host(memory) => Imported::Host(memory),
        Shareable::Foreign(memory) => Imported::Foreign(Box::new(memory)),
    })
}

/// Opens an allocation of a rank in another process, by the file descriptor that the rank has sent, or by its handle.
fn open_remote(
    context: &Context,
    exports: &Exports,
    export: &Export,
    descriptor: Option<OwnedFd>,
) -> Result<Imported, String> {
    let bytes = bytes_of(export)?;
    let physical = match (&descriptor, &export.handle) {
        (_, Handle::Foreign { kind, handle, .. }) if descriptor.is_some() || handle.is_some() => {
            return foreign(exports, kind, descriptor.as_ref(), handle.as_deref(), bytes);
        }
        (Some(descriptor), Handle::Host) => {
            let memory = HostMemory::open(context, descriptor.as_fd(), bytes)?;
            return Ok(Imported::Host(Arc::new(memory)));
        }
        (Some(descriptor), _) => PhysicalMemory::import_fd(context, descriptor.as_fd(), bytes),
        (None, Handle::Legacy { handle }) => return legacy(context, handle, bytes),
        (None, Handle::Virtual { fabric: Some(fabric), .. }) => {
            let handle = <[u8; 64]>::try_from(&fabric[..])
                .map_err(|_| format!("a fabric handle of {} bytes, expected 64", fabric.len()))?;
            PhysicalMemory::import_fabric(context, &FabricHandle(handle), bytes)
        }
        (None, _) => return Err("it has no handle that this rank can open".to_owned()),
    };
    mapped(context, &physical.map_err(|error| error_text(&error))?, export)
}

fn bytes_of(export: &Export) -> Result<usize, String> {
    usize::try_from(export.bytes).map_err(|_| "more than there are addresses".to_owned())
}

fn mapped(context: &Context, physical: &PhysicalMemory, export: &Export) -> Result<Imported, String> {
    map(context, physical, bytes_of(export)?).map(Imported::Mapped).map_err(|error| error_text(&error))
}

/// Opens a peer's memory on a device that CUDA does not manage. Calls
/// [`ForeignMemory::open`](crate::ForeignMemory::open) on the first memory of the same kind that this rank shares
/// itself.
fn foreign(
    exports: &Exports,
    kind: &str,
    descriptor: Option<&OwnedFd>,
    handle: Option<&[u8]>,
    bytes: usize,
) -> Result<Imported, String> {
    let of_kind = |own: &&Shareable| matches!(own, Shareable::Foreign(memory) if memory.kind() == kind);
    let Some(Shareable::Foreign(own)) = exports.memory().find(of_kind) else {
        return Err(format!("this rank shares no {kind:?} memory, expected some to open it with"));
    };
    let peer = PeerHandle { bytes, descriptor: descriptor.map(OwnedFd::as_fd), handle };
    own.open(&peer).map(Imported::Foreign).map_err(|error| error_text(&*error))
}

fn legacy(context: &Context, handle: &[u8], bytes: usize) -> Result<Imported, String> {
    let text = |error: cuda_driver::Error| error_text(&error);
    let handle = <[u8; 64]>::try_from(handle)
        .map_err(|_| format!("a legacy handle of {} bytes, expected 64", handle.len()))?;
    let imported = ImportedMemory::open(context, IpcHandle(handle)).map_err(text)?;
    let range = context.address_range(imported.ptr()).map_err(text)?;
    let before = imported.ptr().offset_from(range.start).unwrap_or(u64::MAX);
    let available = (range.bytes as u64).saturating_sub(before);
    if available < bytes as u64 {
        return Err(format!("its handle leads to {available} bytes, expected {bytes}"));
    }
    Ok(Imported::Legacy(imported))
}

#[cfg(test)]
mod tests {
    use std::{
        fs::File,
        sync::{Mutex, MutexGuard, PoisonError},
        thread,
        time::Duration,
    };

    use bootstrap::link::{Listener, Tag, exchange};
    use cuda_driver::{Driver, sys::Api, vmm::HandleTypes};
    use gpu_sim::World;

    use super::*;
    use crate::{
        Site,
        offer::{HELLO, MEMORY},
    };

    /// Lock held by the owner of an embedded machine: a process has only one at a time.
    fn turn() -> MutexGuard<'static, ()> {
        static TURN: Mutex<()> = Mutex::new(());
        TURN.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the error that rank 0 gets when rank 1 exports `handle`, but then sends a file descriptor of `/dev/null`
    /// with `tag`.
    fn error_of(tag: Tag, handle: Handle) -> String {
        let _turn = turn();
        let world = World::builder().devices(1).start().unwrap();
        // SAFETY: the functions belong to `world`, which outlives the driver and all of its objects.
        let driver = Driver::new(unsafe { Api::from_parts(world.cuda()) }.unwrap()).unwrap();
        let context = driver.device(0).unwrap().retain_primary().unwrap();
        let offer = Offer::new().unwrap();
        let listener = Listener::open().unwrap();
        let sites = [(0, offer.endpoint()), (1, listener.endpoint())]
            .map(|(rank, endpoint)| Site { endpoint, ..Site::simulated(rank) });
        let export = Export { bytes: 2 << 20, handle, token: u64::MAX };
        let parties = [
            Party { rank: 0, site: &sites[0], exports: Vec::new() },
            Party { rank: 1, site: &sites[1], exports: vec![&export] },
        ];
        let deadline = Deadline::after(Duration::from_secs(60));
        let outcome = thread::scope(|scope| {
            scope.spawn(|| {
                let nothing = File::open("/dev/null").unwrap();
                let endpoint_of = |at: u64| Ok(sites[at as usize].endpoint.clone());
                let met =
                    exchange(&listener, 1, &[0], endpoint_of, &[(HELLO, nothing.as_fd())], deadline).unwrap();
                met[0].link.send(tag, nothing.as_fd(), deadline).unwrap();
            });
            let wanted = |from, _| if from == 1 { vec![0] } else { Vec::new() };
            let name = |_, number| format!("allocation {number}");
            open(&context, &offer, 0, &parties, wanted, name, deadline).map(|opened| opened.len())
        });
        drop((context, driver));
        world.finish().expect("nothing is left behind");
        match outcome {
            Err(OpeningOutcome::Failed { cause }) => cause,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn memory_of_a_rank_of_this_process_is_open_until_the_rank_leaves() {
        let _turn = turn();
        let world = World::builder().devices(1).start().unwrap();
        // SAFETY: the functions belong to `world`, which outlives the driver and all of its objects.
        let driver = Driver::new(unsafe { Api::from_parts(world.cuda()) }.unwrap()).unwrap();
        let context = driver.device(0).unwrap().retain_primary().unwrap();
        let bytes = 2 << 20;
        let memory = PhysicalMemory::create(&context, bytes, HandleTypes::empty()).unwrap();
        let (own, mut peer) = (Offer::new().unwrap(), Offer::new().unwrap());
        let export = peer.export(Shareable::Virtual(memory)).unwrap();
        let site = Site::simulated(0);
        let parties = [
            Party { rank: 0, site: &site, exports: Vec::new() },
            Party { rank: 1, site: &site, exports: vec![&export] },
        ];
        let wanted = |from, _| if from == 1 { vec![0] } else { Vec::new() };
        let name = |_, number| format!("allocation {number}");
        let open = || open(&context, &own, 0, &parties, wanted, name, Deadline::now()).map(|it| it.len());
        assert_eq!(open(), Ok(1));
        drop(peer);
        assert_eq!(open(), Err(OpeningOutcome::Alone { gone: vec![1] }));
        drop((context, driver));
        world.finish().expect("nothing is left behind");
    }

    #[test]
    fn what_is_no_memory_is_not_opened() {
        let cause = error_of(MEMORY, Handle::DESCRIPTOR);
        assert!(cause.contains("allocation 0 of rank 1") && cause.contains("cuMemImport"), "{cause}");
        let cause = error_of(Tag(*b"else"), Handle::DESCRIPTOR);
        assert!(cause.contains("rank 1") && cause.contains("expected"), "{cause}");
        let foreign = Handle::Foreign { kind: "host".to_owned(), descriptor: true, handle: None };
        let cause = error_of(MEMORY, foreign);
        assert!(cause.contains("allocation 0 of rank 1: this rank shares no \"host\" memory"), "{cause}");
    }
}
