//! Collectives, reduction operators that programs create, sends and receives.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::sync::{Arc, MutexGuard, PoisonError};

use nccl_sys::{cudaStream_t, ncclComm_t, ncclDataType_t, ncclRedOp_t, ncclResult_t, ncclScalarResidence_t};

use super::{Out, call, queued};
use crate::nccl::collective::{Factor, Kind, Shape};
use crate::nccl::comm::Comm;
use crate::nccl::error::{Failure, Result};
use crate::nccl::group::{self, Operation};
use crate::nccl::library::Library;
use crate::nccl::p2p::{Direction, Message};
use crate::nccl::reduce::{Element, Op};
use crate::world::Machine;

/// The arguments of a collective, as passed from C.
struct Arguments {
    kind: Kind,
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    element: ncclDataType_t,
    op: ncclRedOp_t,
    root: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
}

impl Arguments {
    fn enqueue(self, name: &'static str) -> ncclResult_t {
        queued(name, |machine, library| {
            let comm = usable(library, self.comm)?;
            let element = element(&comm, self.element)?;
            let (op, factor) = reduction(&comm, self.op, element)?;
            let shape = Shape {
                kind: self.kind,
                element,
                op,
                factor,
                root: rank(&comm, self.root, "root")?,
                count: self.count,
            };
            shape.check(&comm)?;
            self.check_buffers(machine, &comm)?;
            if shape.count == 0 {
                return Ok(());
            }
            let operation = Operation::Collective(shape, self.send as u64, self.recv as u64);
            add(machine, library, &comm, operation, self.stream)
        })
    }

    /// With `NCCL_CHECK_MODE=DEBUG_LOCAL` or `DEBUG_GLOBAL`, NCCL 2.30.7 refuses each buffer that lies in no allocation,
    /// also those of a gather or a scatter that the rank does not use, and those of calls without elements. So it
    /// refuses an empty buffer at the end of an allocation. Measured for null in a gather, and for the end of an
    /// allocation in a broadcast. The rest is from the source (`ArgsCheck`).
    fn check_buffers(&self, machine: &Machine, comm: &Comm) -> Result {
        if !comm.topology().checks_buffers {
            return Ok(());
        }
        let own = comm.rank == self.root as usize;
        let checked = [
            ("sendbuff", self.send as u64, self.kind != Kind::Broadcast || own),
            ("recvbuff", self.recv as u64, self.kind != Kind::Reduce || own),
        ];
        let is_allocated = |address| {
            machine.memory.space().at(address).is_some() || machine.memory.host().at(address).is_some()
        };
        match checked.into_iter().find(|(_, address, is_checked)| *is_checked && !is_allocated(*address)) {
            Some((buffer, address, _)) => {
                Err(Failure::argument(format!("{buffer} {address:#x} is not a valid pointer")))
            }
            None => Ok(()),
        }
    }
}

pub(super) fn usable(library: &Library, handle: ncclComm_t) -> Result<Arc<Comm>> {
    let comm = library.comm(handle)?;
    comm.active()?;
    Ok(comm)
}

pub(super) fn element(comm: &Comm, raw: ncclDataType_t) -> Result<Element> {
    Element::from_raw(raw.0, comm.release)
        .ok_or_else(|| Failure::argument(format!("{raw:?} is no data type of release {}", comm.release)))
}

/// Returns the operator of a number, with its factor if a program created it.
fn reduction(comm: &Comm, raw: ncclRedOp_t, element: Element) -> Result<(Op, Option<Factor>)> {
    if let Some(op) = Op::from_raw(raw.0) {
        return Ok((op, None));
    }
    match reductions(comm).get(&raw.0) {
        None => Err(Failure::argument(format!("{raw:?} is no reduction of {comm}"))),
        Some((of, _)) if *of != element => {
            Err(Failure::argument(format!("{raw:?} was made for {of:?}, but is used for {element:?}")))
        }
        Some((_, factor)) => Ok((Op::PreMulSum, Some(*factor))),
    }
}

fn reductions(comm: &Comm) -> MutexGuard<'_, BTreeMap<u32, (Element, Factor)>> {
    comm.reductions.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A factor in host memory is copied at once; one in device memory is read when a call that uses it runs.
#[cfg_attr(feature = "exports", unsafe(no_mangle))]
pub(super) unsafe extern "C" fn ncclRedOpCreatePreMulSum(
    op: *mut ncclRedOp_t,
    scalar: *mut c_void,
    datatype: ncclDataType_t,
    residence: ncclScalarResidence_t,
    comm: ncclComm_t,
) -> ncclResult_t {
    call("ncclRedOpCreatePreMulSum", |_, library| {
        let comm = usable(library, comm)?;
        let element = element(&comm, datatype)?;
        let op = Out::new(op, "the reduction")?;
        if scalar.is_null() {
            return Err(Failure::argument("the factor is NULL"));
        }
        let factor = match residence {
            ncclScalarResidence_t::ncclScalarDevice => Factor::At(scalar as u64),
            ncclScalarResidence_t::ncclScalarHostImmediate => {
                let mut factor = [0u8; 8];
                // SAFETY: not null (checked); holds one element by NCCL's contract, and none is larger than 8 bytes.
                unsafe { std::ptr::copy_nonoverlapping(scalar.cast(), factor.as_mut_ptr(), element.size()) };
                Factor::Value(u64::from_ne_bytes(factor))
            }
            other => return Err(Failure::argument(format!("a factor that resides in {other:?}"))),
        };
        let mut reductions = reductions(&comm);
        let free = (Op::ALL.len() as u32..).find(|number| !reductions.contains_key(number));
        let number = free.unwrap_or_else(|| unreachable!("fewer reductions than numbers fit in memory"));
        reductions.insert(number, (element, factor));
        op.set(ncclRedOp_t(number));
        Ok(())
    })
}

#[cfg_attr(feature = "exports", unsafe(no_mangle))]
pub(super) unsafe extern "C" fn ncclRedOpDestroy(op: ncclRedOp_t, comm: ncclComm_t) -> ncclResult_t {
    call("ncclRedOpDestroy", |_, library| {
        let comm = library.comm(comm)?;
        let gone = reductions(&comm).remove(&op.0);
        gone.map(drop)
            .ok_or_else(|| Failure::argument(format!("{op:?} is no reduction that was made for {comm}")))
    })
}

pub(super) fn rank(comm: &Comm, raw: c_int, what: &str) -> Result<usize> {
    match usize::try_from(raw) {
        Ok(rank) if rank < comm.size => Ok(rank),
        _ => Err(Failure::argument(format!("{what} {raw} is not in {comm}"))),
    }
}

pub(super) fn add(
    machine: &Arc<Machine>,
    library: &Library,
    comm: &Arc<Comm>,
    operation: Operation,
    stream: cudaStream_t,
) -> Result {
    group::add_operation(machine, library, comm, operation, stream as usize)
}

#[cfg_attr(feature = "exports", unsafe(no_mangle))]
pub(super) unsafe extern "C" fn ncclAllReduce(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    element: ncclDataType_t,
    op: ncclRedOp_t,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    Arguments { kind: Kind::AllReduce, send, recv, count, element, op, root: 0, comm, stream }
        .enqueue("ncclAllReduce")
}

#[cfg_attr(feature = "exports", unsafe(no_mangle))]
pub(super) unsafe extern "C" fn ncclReduce(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    element: ncclDataType_t,
    op: ncclRedOp_t,
    root: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    Arguments { kind: Kind::Reduce, send, recv, count, element, op, root, comm, stream }.enqueue("ncclReduce")
}

#[cfg_attr(feature = "exports", unsafe(no_mangle))]
pub(super) unsafe extern "C" fn ncclReduceScatter(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    element: ncclDataType_t,
    op: ncclRedOp_t,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    Arguments { kind: Kind::ReduceScatter, send, recv, count, element, op, root: 0, comm, stream }
        .enqueue("ncclReduceScatter")
}

/// Placeholder for operations that only move data.
const NO_OP: ncclRedOp_t = ncclRedOp_t::ncclSum;

#[cfg_attr(feature = "exports", unsafe(no_mangle))]
pub(super) unsafe extern "C" fn ncclBroadcast(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    element: ncclDataType_t,
    root: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    Arguments { kind: Kind::Broadcast, send, recv, count, element, op: NO_OP, root, comm, stream }
        .enqueue("ncclBroadcast")
}

#[cfg_attr(feature = "exports", unsafe(no_mangle))]
pub(super) unsafe extern "C" fn ncclBcast(
    buffer: *mut c_void,
    count: usize,
    element: ncclDataType_t,
    root: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    let kind = Kind::Broadcast;
    Arguments { kind, send: buffer, recv: buffer, count, element, op: NO_OP, root, comm, stream }
        .enqueue("ncclBcast")
}

#[cfg_attr(feature = "exports", unsafe(no_mangle))]
pub(super) unsafe extern "C" fn ncclAllGather(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    element: ncclDataType_t,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    Arguments { kind: Kind::AllGather, send, recv, count, element, op: NO_OP, root: 0, comm, stream }
        .enqueue("ncclAllGather")
}

#[cfg_attr(feature = "exports", unsafe(no_mangle))]
pub(super) unsafe extern "C" fn ncclAlltoAll(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    element: ncclDataType_t,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    Arguments { kind: Kind::AllToAll, send, recv, count, element, op: NO_OP, root: 0, comm, stream }
        .enqueue("ncclAlltoAll")
}

#[cfg_attr(feature = "exports", unsafe(no_mangle))]
pub(super) unsafe extern "C" fn ncclGather(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    element: ncclDataType_t,
    root: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    Arguments { kind: Kind::Gather, send, recv, count, element, op: NO_OP, root, comm, stream }
        .enqueue("ncclGather")
}

#[cfg_attr(feature = "exports", unsafe(no_mangle))]
pub(super) unsafe extern "C" fn ncclScatter(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    element: ncclDataType_t,
    root: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    Arguments { kind: Kind::Scatter, send, recv, count, element, op: NO_OP, root, comm, stream }
        .enqueue("ncclScatter")
}

/// The arguments of a send or a receive, as passed from C.
struct MessageArguments {
    direction: Direction,
    buffer: u64,
    count: usize,
    element: ncclDataType_t,
    peer: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
}

impl MessageArguments {
    fn enqueue(self, name: &'static str) -> ncclResult_t {
        queued(name, |machine, library| {
            let comm = usable(library, self.comm)?;
            let message = Message {
                direction: self.direction,
                peer: rank(&comm, self.peer, "peer")?,
                element: element(&comm, self.element)?,
                count: self.count,
                buffer: self.buffer,
            };
            if message.count.checked_mul(message.element.size()).is_none() {
                return Err(Failure::argument(format!(
                    "{} elements are more than memory has",
                    message.count
                )));
            }
            if message.count == 0 {
                return Ok(());
            }
            add(machine, library, &comm, Operation::Message(message), self.stream)
        })
    }
}

#[cfg_attr(feature = "exports", unsafe(no_mangle))]
pub(super) unsafe extern "C" fn ncclSend(
    buffer: *const c_void,
    count: usize,
    element: ncclDataType_t,
    peer: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    let (direction, buffer) = (Direction::Send, buffer as u64);
    MessageArguments { direction, buffer, count, element, peer, comm, stream }.enqueue("ncclSend")
}

#[cfg_attr(feature = "exports", unsafe(no_mangle))]
pub(super) unsafe extern "C" fn ncclRecv(
    buffer: *mut c_void,
    count: usize,
    element: ncclDataType_t,
    peer: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    let (direction, buffer) = (Direction::Recv, buffer as u64);
    MessageArguments { direction, buffer, count, element, peer, comm, stream }.enqueue("ncclRecv")
}
