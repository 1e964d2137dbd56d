//! Growing: a communicator of another's ranks and of new ones.

use std::ffi::{c_char, c_int};
use std::sync::PoisonError;

use nccl_sys::{ncclComm_t, ncclConfig_t, ncclResult_t, ncclUniqueId};

use super::lifecycle::{add_init, current_device, read_id, ready_parent};
use super::{Out, call, queued};
use crate::nccl::error::Failure;
use crate::nccl::{children, config, group};

#[cfg_attr(feature = "exports", unsafe(no_mangle))]
pub(super) unsafe extern "C" fn ncclCommGetUniqueId(comm: ncclComm_t, id: *mut ncclUniqueId) -> ncclResult_t {
    call("ncclCommGetUniqueId", |machine, library| {
        let parent = ready_parent(library, comm)?;
        let out = Out::new(id, "uniqueId")?;
        let mut growth = parent.growth.lock().unwrap_or_else(PoisonError::into_inner);
        if growth.is_some() {
            return Err(Failure::usage(format!("{parent} has a unique id that was not used yet")));
        }
        let id = library.open_meeting(machine)?;
        *growth = Some(id);
        out.set(ncclUniqueId { internal: id.to_bytes().map(|byte| byte as c_char) });
        Ok(())
    })
}

#[cfg_attr(feature = "exports", unsafe(no_mangle))]
pub(super) unsafe extern "C" fn ncclCommGrow(
    comm: ncclComm_t,
    size: c_int,
    id: *const ncclUniqueId,
    rank: c_int,
    child: *mut ncclComm_t,
    config: *mut ncclConfig_t,
) -> ncclResult_t {
    queued("ncclCommGrow", |machine, library| {
        let out = Out::new(child, "newcomm")?;
        out.set(std::ptr::null_mut());
        let parent = if comm.is_null() { None } else { Some(ready_parent(library, comm)?) };
        let inherited = parent.as_ref().map(|parent| &parent.config);
        // SAFETY: the caller's structure, by NCCL's contract.
        let config = unsafe { config::parse(config, machine.nccl_release as u32, inherited) }?;
        let Some(parent) = parent else {
            // SAFETY: null, or an id of the caller.
            let id = unsafe { id.as_ref() };
            let id = id.ok_or_else(|| Failure::argument("a new rank needs the unique id"))?;
            return add_init(
                machine,
                library,
                out,
                size,
                read_id(id)?,
                rank,
                current_device(machine)?,
                config,
            );
        };
        let size = usize::try_from(size).ok().filter(|size| *size > parent.size && rank == -1);
        let size =
            size.ok_or_else(|| Failure::argument(format!("{parent} grows to more ranks, with rank -1")))?;
        let has_made = parent.growth.lock().unwrap_or_else(PoisonError::into_inner).is_some();
        if has_made == id.is_null() {
            return Err(Failure::argument(
                "the rank that has made the unique id gives it, and no other rank",
            ));
        }
        let (machine_, library_, parent_) = (machine.clone(), library.clone(), parent.clone());
        let job = Box::new(move || {
            let made = |handle: usize| out.set(handle as ncclComm_t);
            children::grow(&machine_, &library_, &parent_, size, config, made)
        });
        group::add_job(machine, library, &parent, job)
    })
}
