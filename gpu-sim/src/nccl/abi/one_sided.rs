//! One-sided operations.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::{Arc, PoisonError};

use nccl_sys::{cudaStream_t, ncclComm_t, ncclDataType_t, ncclResult_t, ncclWaitSignalDesc_t, ncclWindow_t};

use super::operations::{add, element, rank, usable};
use super::queued;
use crate::nccl::comm::Comm;
use crate::nccl::error::{Failure, Result};
use crate::nccl::group::{self, Operation};
use crate::nccl::library::Library;
use crate::nccl::rma::{self, OneSided};
use crate::world::Machine;

/// Refuses values other than 0 of a parameter that has only the value 0 in all modelled releases.
fn only_zero(what: &str, value: i64) -> Result {
    if value == 0 { Ok(()) } else { Err(Failure::argument(format!("{what} {value}: it must be 0"))) }
}

/// Only context 0 and signal 0 exist.
fn only_first(context: c_int, signal: c_int) -> Result {
    only_zero("context", context.into())?;
    only_zero("signal index", signal.into())
}

/// Enqueues the operations of one call. A rank's first call also queues the hidden meeting of all ranks
/// ([`rma::begin`]).
fn enqueue(
    machine: &Arc<Machine>,
    library: &Library,
    comm: &Arc<Comm>,
    operations: impl IntoIterator<Item = OneSided>,
    stream: cudaStream_t,
) -> Result {
    group::start(machine);
    let queued = rma::begin(machine, library, comm).and_then(|()| {
        operations
            .into_iter()
            .try_for_each(|operation| add(machine, library, comm, Operation::OneSided(operation), stream))
    });
    if let Err(failure) = &queued {
        group::remember(machine, failure);
    }
    queued.and(group::end(machine, library))
}

#[cfg_attr(feature = "exports", unsafe(no_mangle))]
pub(super) unsafe extern "C" fn ncclPutSignal(
    local: *const c_void,
    count: usize,
    datatype: ncclDataType_t,
    peer: c_int,
    window: ncclWindow_t,
    offset: usize,
    signal: c_int,
    context: c_int,
    flags: c_uint,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    queued("ncclPutSignal", |machine, library| {
        let comm = usable(library, comm)?;
        let element = element(&comm, datatype)?;
        let peer = rank(&comm, peer, "peer")?;
        only_first(context, signal)?;
        only_zero("flags", flags.into())?;
        let bytes = count
            .checked_mul(element.size())
            .ok_or_else(|| Failure::argument(format!("{count} elements are more than memory has")))?;
        let windows = comm.windows.lock().unwrap_or_else(PoisonError::into_inner);
        let place = windows.place(window as usize, peer, offset as u64, bytes as u64, comm.strict)?;
        if windows.find(local as u64).0 == 0 {
            return Err(Failure::argument(format!("{local:p} lies in no symmetric window of {comm}")));
        }
        drop(windows);
        let put = OneSided::Put { local: local as u64, bytes, peer, place, offset: offset as u64 };
        enqueue(machine, library, &comm, [put], stream)
    })
}

#[cfg_attr(feature = "exports", unsafe(no_mangle))]
pub(super) unsafe extern "C" fn ncclSignal(
    peer: c_int,
    signal: c_int,
    context: c_int,
    flags: c_uint,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    queued("ncclSignal", |machine, library| {
        let comm = usable(library, comm)?;
        let peer = rank(&comm, peer, "peer")?;
        only_first(context, signal)?;
        only_zero("flags", flags.into())?;
        enqueue(machine, library, &comm, [OneSided::Signal { peer }], stream)
    })
}

#[cfg_attr(feature = "exports", unsafe(no_mangle))]
pub(super) unsafe extern "C" fn ncclWaitSignal(
    count: c_int,
    descriptions: *mut ncclWaitSignalDesc_t,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    queued("ncclWaitSignal", |machine, library| {
        let comm = usable(library, comm)?;
        let count = usize::try_from(count).unwrap_or(0);
        if descriptions.is_null() || count == 0 {
            return Err(Failure::argument("a wait for no signals"));
        }
        // SAFETY: not null (checked); holds `count` descriptions by NCCL's contract, and they are only read here.
        let descriptions = unsafe { std::slice::from_raw_parts(descriptions, count) };
        let wait = |description: &ncclWaitSignalDesc_t| {
            only_first(description.ctx, description.sigIdx)?;
            let signals = u64::try_from(description.opCnt).ok().filter(|signals| *signals > 0);
            let signals = signals
                .ok_or_else(|| Failure::argument(format!("a wait for {} signals", description.opCnt)))?;
            // The real library reads past its memory where this device refuses.
            Ok(OneSided::Wait { peer: rank(&comm, description.peer, "peer")?, signals })
        };
        let waits = descriptions.iter().map(wait).collect::<Result<Vec<_>>>()?;
        enqueue(machine, library, &comm, waits, stream)
    })
}
