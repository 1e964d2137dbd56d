//! Copies and fills.
//!
//! Pageable host memory behaves as in the driver. A copy from it reads the bytes before the call returns (in a graph:
//! at each launch), and writes them in the order of its stream, perhaps after the call has returned: this holds for
//! calls without a stream too, whose stream is the legacy one. A copy to it returns when it is done (in a graph: it
//! writes when it runs).

use std::ffi::{c_uchar, c_uint, c_ushort, c_void};
use std::sync::Arc;

use cuda_driver_sys::{CUcontext, CUdeviceptr, CUgraphNodeType, CUstream};

use crate::abi::{DriverError, DriverResult};
use crate::fault::Fault;
use crate::memory::{Access, Accessor, Place, classify, view_as};
use crate::stream::{Exec, Launched, Repeat, Stream, Work};
use crate::world::Machine;

abi! {
    call fn cuMemcpy(machine, to: CUdeviceptr, from: CUdeviceptr, bytes: usize) {
        copy_now(machine, to, from, bytes)?;
    }

    call fn cuMemcpyHtoD_v2(machine, to: CUdeviceptr, from: *const c_void, bytes: usize) {
        device_address(machine, to)?;
        copy_now(machine, to, from as u64, bytes)?;
    }

    call fn cuMemcpyDtoH_v2(machine, to: *mut c_void, from: CUdeviceptr, bytes: usize) {
        device_address(machine, from)?;
        copy_now(machine, to as u64, from, bytes)?;
    }

    call fn cuMemcpyDtoD_v2(machine, to: CUdeviceptr, from: CUdeviceptr, bytes: usize) {
        copy_now(machine, to, from, bytes)?;
    }

    call fn cuMemcpyPeer(
        machine, to: CUdeviceptr, to_context: CUcontext, from: CUdeviceptr, from_context: CUcontext, bytes: usize,
    ) {
        machine.contexts.get(to_context as u64)?;
        machine.contexts.get(from_context as u64)?;
        copy_now(machine, to, from, bytes)?;
    }

    call fn cuMemcpyAsync(machine, to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream) {
        copy(machine, to, from, bytes, stream)?;
    }

    call fn cuMemcpyHtoDAsync_v2(machine, to: CUdeviceptr, from: *const c_void, bytes: usize, stream: CUstream) {
        device_address(machine, to)?;
        copy(machine, to, from as u64, bytes, stream)?;
    }

    call fn cuMemcpyDtoHAsync_v2(machine, to: *mut c_void, from: CUdeviceptr, bytes: usize, stream: CUstream) {
        device_address(machine, from)?;
        copy(machine, to as u64, from, bytes, stream)?;
    }

    call fn cuMemcpyDtoDAsync_v2(machine, to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream) {
        copy(machine, to, from, bytes, stream)?;
    }

    call fn cuMemcpyPeerAsync(
        machine, to: CUdeviceptr, to_context: CUcontext, from: CUdeviceptr, from_context: CUcontext, bytes: usize,
        stream: CUstream,
    ) {
        machine.contexts.get(to_context as u64)?;
        machine.contexts.get(from_context as u64)?;
        copy(machine, to, from, bytes, stream)?;
    }

    call fn cuMemsetD8_v2(machine, to: CUdeviceptr, value: c_uchar, count: usize) {
        fill_now(machine, to, &value.to_ne_bytes(), count)?;
    }

    call fn cuMemsetD16_v2(machine, to: CUdeviceptr, value: c_ushort, count: usize) {
        fill_now(machine, to, &value.to_ne_bytes(), count)?;
    }

    call fn cuMemsetD32_v2(machine, to: CUdeviceptr, value: c_uint, count: usize) {
        fill_now(machine, to, &value.to_ne_bytes(), count)?;
    }

    call fn cuMemsetD8Async(machine, to: CUdeviceptr, value: c_uchar, count: usize, stream: CUstream) {
        fill(machine, to, &value.to_ne_bytes(), count, stream)?;
    }

    call fn cuMemsetD16Async(machine, to: CUdeviceptr, value: c_ushort, count: usize, stream: CUstream) {
        fill(machine, to, &value.to_ne_bytes(), count, stream)?;
    }

    call fn cuMemsetD32Async(machine, to: CUdeviceptr, value: c_uint, count: usize, stream: CUstream) {
        fill(machine, to, &value.to_ne_bytes(), count, stream)?;
    }
}

/// One end of a copy.
#[derive(Debug, Clone, Copy)]
enum End {
    /// Device-visible memory, checked when the copy runs.
    Visible(u64),
    /// Memory that only the host can access; the program guarantees that it is valid.
    Pageable(u64),
}

impl End {
    fn of(machine: &Machine, address: u64) -> DriverResult<Self> {
        if address == 0 {
            return Err(DriverError::invalid("a null pointer"));
        }
        Ok(match classify(&machine.memory, address) {
            Place::Device | Place::Pinned => Self::Visible(address),
            Place::Pageable => Self::Pageable(address),
        })
    }
}

/// A copy of `bytes` bytes.
struct Copy {
    to: End,
    from: End,
    bytes: usize,
}

impl Work for Copy {
    fn describe(&self) -> String {
        format!("a copy of {} bytes from {:x?} to {:x?}", self.bytes, self.from, self.to)
    }

    fn launch(&self) -> Launched {
        let Self { to, from, bytes } = *self;
        let staged = match from {
            End::Visible(_) => None,
            End::Pageable(address) => {
                let mut staged = vec![0u8; bytes];
                // SAFETY: the program passed `bytes` readable bytes, valid until the call (or launch) returns.
                unsafe { std::ptr::copy_nonoverlapping(address as *const u8, staged.as_mut_ptr(), bytes) };
                Some(staged)
            }
        };
        Box::new(move |exec| run(exec, to, from, staged, bytes))
    }
}

fn run(exec: &Exec, to: End, from: End, staged: Option<Vec<u8>>, bytes: usize) -> Result<(), Fault> {
    let source = match (&staged, from) {
        (None, End::Visible(address)) => Some(exec.copy_view(address, bytes as u64, Access::READ)?),
        _ => None,
    };
    match (to, &source, &staged) {
        (End::Visible(address), Some(source), _) => {
            exec.copy_view(address, bytes as u64, Access::WRITE)?.copy_from(source);
        }
        (End::Visible(address), None, Some(staged)) => {
            exec.copy_view(address, bytes as u64, Access::WRITE)?.write(0, staged);
        }
        (End::Pageable(address), source, staged) => {
            let from = source.as_ref().map(|s| s.as_ptr()).or(staged.as_ref().map(|s| s.as_ptr()));
            if let Some(from) = from {
                // SAFETY: the program passed `bytes` writable bytes, valid until the copy is done; the source is a
                // checked view or our own bytes.
                unsafe { std::ptr::copy(from, address as *mut u8, bytes) };
            }
        }
        (End::Visible(_), None, None) => {}
    }
    Ok(())
}

/// Enqueues a copy; returns once it is done if it writes to pageable memory.
fn copy(machine: &Arc<Machine>, to: u64, from: u64, bytes: usize, stream: CUstream) -> DriverResult {
    let stream = machine.stream(stream)?;
    if bytes == 0 {
        return Ok(());
    }
    let work = Copy { to: End::of(machine, to)?, from: End::of(machine, from)?, bytes };
    for (end, access) in [(work.to, Access::WRITE), (work.from, Access::READ)] {
        if let End::Visible(address) = end {
            check(machine, &stream, address, bytes as u64, access)?;
        }
    }
    let lies_in_several =
        |end| matches!(end, End::Visible(address) if is_in_several(machine, address, bytes as u64));
    if machine.current_handle().is_none() && [work.to, work.from].into_iter().any(lies_in_several) {
        return Err(DriverError::invalid("a range in several allocations, while no context is current"));
    }
    let to_pageable = matches!(work.to, End::Pageable(_));
    let launched =
        stream.launch_or_record(machine, CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEMCPY, Arc::new(work))?;
    if launched && to_pageable {
        stream.wait_all()?;
        stream.context.check()?;
    }
    Ok(())
}

/// Returns true if a range does not lie in one allocation.
fn is_in_several(machine: &Machine, address: u64, bytes: u64) -> bool {
    let space = machine.memory.space();
    space.at(address).is_some_and(|mapped| address + bytes > mapped.base + mapped.len)
}

/// A copy without a stream. Returns once it is done, or once it has read pageable memory.
fn copy_now(machine: &Arc<Machine>, to: u64, from: u64, bytes: usize) -> DriverResult {
    let context = machine.current()?;
    copy(machine, to, from, bytes, std::ptr::null_mut())?;
    match classify(&machine.memory, from) {
        Place::Pageable => context.check(),
        Place::Device | Place::Pinned => finish_legacy(machine),
    }
}

/// Checks at once that the memory is accessible, as the driver does, unless the stream captures. Memory that becomes
/// inaccessible later is a fault.
pub(super) fn check(
    machine: &Machine,
    stream: &Stream,
    address: u64,
    bytes: u64,
    access: Access,
) -> DriverResult {
    if stream.capturing().is_none() {
        let accessor = Accessor::Copy(stream.context.device);
        view_as(machine, accessor, address, bytes, access)
            .map_err(|f| DriverError::invalid(f.to_string()))?;
    }
    Ok(())
}

/// Writes `count` times `pattern` at `to`.
fn fill(machine: &Arc<Machine>, to: u64, pattern: &[u8], count: usize, stream: CUstream) -> DriverResult {
    let stream = machine.stream(stream)?;
    let bytes = (count as u64).checked_mul(pattern.len() as u64);
    let bytes =
        bytes.ok_or_else(|| DriverError::invalid(format!("{count} elements of {} bytes", pattern.len())))?;
    if !to.is_multiple_of(pattern.len() as u64) {
        return Err(DriverError::invalid(format!(
            "{to:#x} is not aligned to the {} bytes of an element",
            pattern.len()
        )));
    }
    if bytes == 0 {
        return Ok(());
    }
    check(machine, &stream, to, bytes, Access::WRITE)?;
    let chunk = pattern.repeat((4096 / pattern.len()).min(count));
    let work = Repeat::new(format!("a fill of {bytes} bytes at {to:#x}"), move |exec: &Exec| {
        let view = exec.copy_view(to, bytes, Access::WRITE)?;
        for at in (0..view.len()).step_by(chunk.len()) {
            view.write(at, &chunk[..chunk.len().min(view.len() - at)]);
        }
        Ok(())
    });
    stream.enqueue(machine, CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEMSET, work)
}

/// A fill without a stream. As in the driver, it may be done after the call has returned.
fn fill_now(machine: &Arc<Machine>, to: u64, pattern: &[u8], count: usize) -> DriverResult {
    let context = machine.current()?;
    fill(machine, to, pattern, count, std::ptr::null_mut())?;
    context.check()
}

/// Waits for the legacy stream, as synchronous calls do.
fn finish_legacy(machine: &Arc<Machine>) -> DriverResult {
    let legacy = machine.stream(std::ptr::null_mut())?;
    legacy.wait_all()?;
    legacy.context.check()
}

fn device_address(machine: &Machine, address: u64) -> DriverResult {
    match classify(&machine.memory, address) {
        Place::Pageable => Err(DriverError::invalid(format!("{address:#x} is no device address"))),
        Place::Device | Place::Pinned => Ok(()),
    }
}
