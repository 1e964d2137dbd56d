//! Unique ids, init, split, shrink, finalize, destroy, abort, revoke, groups.

use std::ffi::{c_char, c_int};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nccl_sys::{ncclComm_t, ncclConfig_t, ncclResult_t, ncclUniqueId};

use super::{Out, call, queued};
use crate::nccl::bootstrap::{ID_BYTES, UniqueId};
use crate::nccl::comm::Comm;
use crate::nccl::config::{self, Config};
use crate::nccl::error::{Failure, Result};
use crate::nccl::library::Library;
use crate::nccl::shm::Plane;
use crate::nccl::{children, group, init};
use crate::world::Machine;

#[cfg_attr(feature = "exports", unsafe(no_mangle))]
pub(super) unsafe extern "C" fn ncclGetUniqueId(id: *mut ncclUniqueId) -> ncclResult_t {
    call("ncclGetUniqueId", |machine, library| {
        let out = Out::new(id, "uniqueId")?;
        let bytes = library.open_meeting(machine)?.to_bytes();
        out.set(ncclUniqueId { internal: bytes.map(|byte| byte as c_char) });
        Ok(())
    })
}

pub(super) fn read_id(id: &ncclUniqueId) -> Result<UniqueId> {
    let bytes: [u8; ID_BYTES] = id.internal.map(|byte| byte as u8);
    UniqueId::from_bytes(&bytes)
        .ok_or_else(|| Failure::argument("the unique id is none that ncclGetUniqueId made"))
}

/// Queues the init of one rank on a device.
#[allow(clippy::too_many_arguments, reason = "what a rank is")]
pub(super) fn add_init(
    machine: &Arc<Machine>,
    library: &Arc<Library>,
    out: Out<ncclComm_t>,
    size: c_int,
    id: UniqueId,
    rank: c_int,
    device: usize,
    config: Config,
) -> Result {
    out.set(std::ptr::null_mut());
    let place = || Failure::argument(format!("rank {rank} of {size} ranks"));
    let (rank, size) = match (usize::try_from(rank), usize::try_from(size)) {
        (Ok(rank), Ok(size)) if rank < size => (rank, size),
        _ => return Err(place()),
    };
    let comm = init::create(machine, library, rank, size, device, config);
    // Known at once, so that another thread can abort the init.
    out.set(comm.handle as ncclComm_t);
    let pending = Pending { library: library.clone(), comm: comm.clone(), out, done: false };
    let machine_ = machine.clone();
    let job = Box::new(move || {
        let mut pending = pending;
        init::meet(&machine_, &pending.library, &pending.comm, id)?;
        pending.done = true;
        Ok(())
    });
    group::add_job(machine, library, &comm, job)
}

/// A communicator whose init is queued. Dropping this removes the communicator, unless its init succeeded.
struct Pending {
    library: Arc<Library>,
    comm: Arc<Comm>,
    out: Out<ncclComm_t>,
    done: bool,
}

impl Drop for Pending {
    fn drop(&mut self) {
        if !self.done {
            self.library.remove(&self.comm);
            self.out.set(std::ptr::null_mut());
        }
    }
}

/// The device of the calling thread.
pub(super) fn current_device(machine: &Machine) -> Result<usize> {
    machine.current().map(|context| context.device).map_err(group::cuda)
}

#[cfg_attr(feature = "exports", unsafe(no_mangle))]
pub(super) unsafe extern "C" fn ncclCommInitRank(
    comm: *mut ncclComm_t,
    nranks: c_int,
    id: ncclUniqueId,
    rank: c_int,
) -> ncclResult_t {
    queued("ncclCommInitRank", |machine, library| {
        let out = Out::new(comm, "comm")?;
        let device = current_device(machine)?;
        add_init(machine, library, out, nranks, read_id(&id)?, rank, device, Config::default())
    })
}

#[cfg_attr(feature = "exports", unsafe(no_mangle))]
pub(super) unsafe extern "C" fn ncclCommInitRankConfig(
    comm: *mut ncclComm_t,
    nranks: c_int,
    id: ncclUniqueId,
    rank: c_int,
    config: *mut ncclConfig_t,
) -> ncclResult_t {
    queued("ncclCommInitRankConfig", |machine, library| {
        let out = Out::new(comm, "comm")?;
        // SAFETY: the caller's structure, by NCCL's contract.
        let config = unsafe { config::parse(config, machine.nccl_release as u32, None) }?;
        let device = current_device(machine)?;
        add_init(machine, library, out, nranks, read_id(&id)?, rank, device, config)
    })
}

#[cfg_attr(feature = "exports", unsafe(no_mangle))]
pub(super) unsafe extern "C" fn ncclCommInitRankScalable(
    comm: *mut ncclComm_t,
    nranks: c_int,
    rank: c_int,
    id_count: c_int,
    ids: *mut ncclUniqueId,
    config: *mut ncclConfig_t,
) -> ncclResult_t {
    queued("ncclCommInitRankScalable", |machine, library| {
        let out = Out::new(comm, "comm")?;
        if id_count < 1 || id_count > nranks || ids.is_null() {
            return Err(Failure::argument(format!("{id_count} unique ids for {nranks} ranks")));
        }
        // SAFETY: the caller gives as many ids as it says.
        let ids = unsafe { std::slice::from_raw_parts(ids, id_count as usize) };
        let ids: Vec<UniqueId> = ids.iter().map(read_id).collect::<Result<_>>()?;
        // SAFETY: the caller's structure, by NCCL's contract.
        let config = unsafe { config::parse(config, machine.nccl_release as u32, None) }?;
        // One host needs one root: the first id's.
        add_init(machine, library, out, nranks, ids[0], rank, current_device(machine)?, config)
    })
}

#[cfg_attr(feature = "exports", unsafe(no_mangle))]
pub(super) unsafe extern "C" fn ncclCommInitAll(
    comms: *mut ncclComm_t,
    count: c_int,
    devices: *const c_int,
) -> ncclResult_t {
    queued("ncclCommInitAll", |machine, library| {
        Out::new(comms, "comm")?;
        if count < 1 {
            return Err(Failure::argument(format!("{count} devices")));
        }
        let id = library.open_meeting(machine)?;
        group::start(machine);
        let added = (0..count).try_for_each(|rank| {
            let ordinal = if devices.is_null() {
                rank
            } else {
                // SAFETY: the caller's list has `count` entries.
                unsafe { *devices.add(rank as usize) }
            };
            let device = machine.device(ordinal).map_err(group::cuda)?.ordinal;
            // SAFETY: the caller's array has `count` entries.
            let out = Out::new(unsafe { comms.add(rank as usize) }, "comm")?;
            add_init(machine, library, out, count, id, rank, device, Config::default())
        });
        if let Err(failure) = &added {
            group::remember(machine, failure);
        }
        group::end(machine, library)
    })
}

#[cfg_attr(feature = "exports", unsafe(no_mangle))]
pub(super) unsafe extern "C" fn ncclCommSplit(
    comm: ncclComm_t,
    color: c_int,
    key: c_int,
    child: *mut ncclComm_t,
    config: *mut ncclConfig_t,
) -> ncclResult_t {
    queued("ncclCommSplit", |machine, library| {
        let parent = ready_parent(library, comm)?;
        let out = Out::new(child, "newcomm")?;
        out.set(std::ptr::null_mut());
        if color < children::NO_COLOR {
            return Err(Failure::argument(format!("colour {color} is negative")));
        }
        // SAFETY: the caller's structure, by NCCL's contract.
        let config = unsafe { config::parse(config, machine.nccl_release as u32, Some(&parent.config)) }?;
        let (machine_, library_, parent_) = (machine.clone(), library.clone(), parent.clone());
        let job = Box::new(move || {
            let made = |handle: usize| out.set(handle as ncclComm_t);
            children::split(&machine_, &library_, &parent_, (color, key), config, made)
        });
        group::add_job(machine, library, &parent, job)
    })
}

#[cfg_attr(feature = "exports", unsafe(no_mangle))]
pub(super) unsafe extern "C" fn ncclCommShrink(
    comm: ncclComm_t,
    excluded: *mut c_int,
    excluded_count: c_int,
    child: *mut ncclComm_t,
    config: *mut ncclConfig_t,
    flags: c_int,
) -> ncclResult_t {
    queued("ncclCommShrink", |machine, library| {
        let parent = ready_parent(library, comm)?;
        let out = Out::new(child, "newcomm")?;
        out.set(std::ptr::null_mut());
        if excluded_count < 1 || excluded.is_null() || !matches!(flags, 0 | 1) {
            return Err(Failure::argument(format!("{excluded_count} excluded ranks, flags {flags:#x}")));
        }
        // SAFETY: the caller's list has that many entries, and NCCL may reorder it.
        let list = unsafe { std::slice::from_raw_parts_mut(excluded, excluded_count as usize) };
        list.sort_unstable();
        let outside = |rank: &&c_int| **rank < 0 || **rank as usize >= parent.size;
        if let Some(rank) = list.iter().find(outside) {
            return Err(Failure::argument(format!("rank {rank} is not in {parent}")));
        }
        let list: Vec<usize> = list.iter().map(|&rank| rank as usize).collect();
        // SAFETY: the caller's structure, by NCCL's contract.
        let config = unsafe { config::parse(config, machine.nccl_release as u32, Some(&parent.config)) }?;
        if flags == 1 {
            check_linked(machine, library, &parent);
            // Stops the work in progress on the parent.
            parent.revoke();
        }
        let (machine_, library_, parent_) = (machine.clone(), library.clone(), parent.clone());
        let job = Box::new(move || {
            let made = |handle: usize| out.set(handle as ncclComm_t);
            children::shrink(&machine_, &library_, &parent_, &list, config, made)
        });
        group::add_job(machine, library, &parent, job)
    })
}

/// Reports a failed child whose handle was freed. The communicator's abort flags are about to be set, and real NCCL
/// also sets the flags of such a child, even after it was freed.
fn check_linked(machine: &Machine, library: &Library, comm: &Comm) {
    let child = comm.linked();
    if child != 0 && library.comm(child as ncclComm_t).is_err() {
        machine.misuse(format!(
            "{comm} is given up after a child whose making failed was freed: it still writes to that one's abort flag"
        ));
    }
}

/// Returns a communicator from which children can be made; it may be revoked.
pub(super) fn ready_parent(library: &Library, handle: ncclComm_t) -> Result<Arc<Comm>> {
    let parent = library.comm(handle)?;
    if !parent.is_ready() {
        return Err(Failure::argument(format!("{parent} is not initialised yet")));
    }
    match parent.interruption(Plane::Host) {
        Some(interrupted) => Err(interrupted.into()),
        None if parent.is_suspended() => Err(Failure::usage(format!("{parent} is suspended"))),
        None => Ok(parent),
    }
}

#[cfg_attr(feature = "exports", unsafe(no_mangle))]
pub(super) unsafe extern "C" fn ncclCommFinalize(comm: ncclComm_t) -> ncclResult_t {
    call("ncclCommFinalize", |_, library| {
        let comm = library.comm(comm)?;
        if comm.is_revoked() {
            return Err(Failure::argument(format!("{comm} was revoked: destroy it")));
        }
        if comm.is_finalized() {
            return Err(Failure::argument(format!("{comm} was finalized before")));
        }
        finalize(&comm)
    })
}

/// Refuses to destroy a captured communicator before its graphs: real NCCL would wait for them for ever.
fn check_graphs(comm: &Comm) -> Result {
    match comm.graphs.load(Ordering::SeqCst) {
        0 => Ok(()),
        _ if !comm.strict => Ok(()),
        graphs => Err(Failure::usage(format!(
            "{graphs} live graphs hold work of {comm}: destroy them first (a real communicator waits for them for ever)"
        ))),
    }
}

/// Waits for the rank's own work and graphs, and refuses new work.
fn finalize(comm: &Comm) -> Result {
    check_graphs(comm)?;
    comm.finalize();
    comm.wait(
        Plane::Stream,
        || format!("the work and the graphs of {comm}"),
        || comm.graphs.load(Ordering::SeqCst) == 0 && comm.queue.is_idle(),
    )?;
    Ok(())
}

#[cfg_attr(feature = "exports", unsafe(no_mangle))]
pub(super) unsafe extern "C" fn ncclCommDestroy(comm: ncclComm_t) -> ncclResult_t {
    call("ncclCommDestroy", |_, library| {
        if comm.is_null() {
            return Ok(());
        }
        let comm = library.comm(comm)?;
        if comm.is_ready() && !comm.is_aborted() && !comm.is_revoked() && !comm.is_finalized() {
            check_graphs(&comm)?;
            // Work that was aborted, or whose peers are gone, ends too.
            let _ = finalize(&comm);
        }
        comm.depart();
        library.remove(&comm);
        Ok(())
    })
}

#[cfg_attr(feature = "exports", unsafe(no_mangle))]
pub(super) unsafe extern "C" fn ncclCommAbort(comm: ncclComm_t) -> ncclResult_t {
    call("ncclCommAbort", |machine, library| {
        if comm.is_null() {
            return Ok(());
        }
        let comm = library.comm(comm)?;
        if comm.release < 22200 && comm.calls.load(Ordering::SeqCst) > 0 {
            machine.misuse(format!(
                "ncclCommAbort of {comm} while another thread is inside it: releases below 2.22 free it at once"
            ));
        }
        check_linked(machine, library, &comm);
        comm.abort();
        // From 2.22 on, the flag is set at once, and the communicator is freed at the end of the group.
        if comm.release >= 22200 && group::forget_at_end(machine, &comm) {
            return Ok(());
        }
        library.remove(&comm);
        Ok(())
    })
}

#[cfg_attr(feature = "exports", unsafe(no_mangle))]
pub(super) unsafe extern "C" fn ncclCommRevoke(comm: ncclComm_t, flags: c_int) -> ncclResult_t {
    call("ncclCommRevoke", |machine, library| {
        let comm = library.comm(comm)?;
        if flags != 0 {
            return Err(Failure::argument(format!("flags {flags:#x} of a revocation")));
        }
        if comm.is_revoked() || comm.is_finalized() {
            return Err(Failure::argument(format!("{comm} was revoked or finalized before")));
        }
        comm.usable()?;
        check_linked(machine, library, &comm);
        comm.revoke();
        Ok(())
    })
}

#[cfg_attr(feature = "exports", unsafe(no_mangle))]
pub(super) unsafe extern "C" fn ncclGroupStart() -> ncclResult_t {
    call("ncclGroupStart", |machine, _| {
        group::start(machine);
        Ok(())
    })
}

#[cfg_attr(feature = "exports", unsafe(no_mangle))]
pub(super) unsafe extern "C" fn ncclGroupEnd() -> ncclResult_t {
    call("ncclGroupEnd", |machine, library| group::end(machine, library))
}
