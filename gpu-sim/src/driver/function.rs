//! Kernel functions: attributes, launch limits and occupancy.

use std::ffi::{c_char, c_int, c_uint};
use std::sync::Arc;

use cuda_driver_sys::{
    CUfunction, CUfunction_attribute, CUfunctionLoadingState, CUoccupancyB2DSize, CUresult,
};

use super::module::unregistered;
use crate::abi::{DriverError, DriverResult};
use crate::kernel::ptx::ARCHITECTURE;
use crate::kernel::{Function, Kernel};
use crate::world::Machine;

/// Limits of the modelled device.
pub(super) const MAX_THREADS: u64 = 1024;
const MAX_SHARED: c_uint = 227 << 10;
/// Limits of one multiprocessor.
const THREADS: c_int = 2048;
const BLOCKS: c_int = 32;
const WARP: c_int = 32;
pub(super) const MULTIPROCESSORS: c_int = 132;

abi! {
    call fn cuFuncGetName(machine, out: *mut *const c_char, function: CUfunction) {
        // The name lives as long as the module.
        put!(out, self::function(machine, function)?.name.as_ptr())?;
    }

    call fn cuFuncGetAttribute(machine, out: *mut c_int, attribute: CUfunction_attribute, function: CUfunction) {
        use CUfunction_attribute as A;
        let (function, _) = kernel(machine, function)?;
        put!(out, match attribute {
            A::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK => MAX_THREADS as c_int,
            A::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES => function.max_shared() as c_int,
            A::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES
            | A::CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES
            | A::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES => 0,
            A::CU_FUNC_ATTRIBUTE_NUM_REGS => 32,
            A::CU_FUNC_ATTRIBUTE_PTX_VERSION => function.target as c_int,
            A::CU_FUNC_ATTRIBUTE_BINARY_VERSION => ARCHITECTURE as c_int,
            other => return Err(DriverError::unsupported(format!("{other:?} is not modelled"))),
        })?;
    }

    call fn cuFuncSetAttribute(machine, function: CUfunction, attribute: CUfunction_attribute, value: c_int) {
        use CUfunction_attribute as A;
        let (function, _) = kernel(machine, function)?;
        match (attribute, u32::try_from(value)) {
            (A::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, Ok(bytes)) if bytes <= MAX_SHARED => {
                function.set_max_shared(bytes);
            }
            (A::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, _) => {
                return Err(DriverError::invalid(format!("{value} bytes of shared memory of {MAX_SHARED}")));
            }
            // A preference that changes no outcome.
            (A::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, _) if (-1..=100).contains(&value) => {}
            (A::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, _) => {
                return Err(DriverError::invalid(format!("{value} percent of shared memory")));
            }
            (other, _) => return Err(DriverError::unsupported(format!("{other:?} is not modelled"))),
        }
    }

    call fn cuFuncGetParamInfo(machine, function: CUfunction, index: usize, offset: *mut usize, size: *mut usize) {
        let (_, kernel) = kernel(machine, function)?;
        let (start, len) = kernel.parameter(index).ok_or_else(|| {
            DriverError::invalid(format!("parameter {index} of {} with {}", kernel.name, kernel.parameters.len()))
        })?;
        put!(offset, start)?;
        if !size.is_null() {
            put!(size, len)?;
        }
    }

    // Modules are loaded completely, so there is nothing to do.
    call fn cuFuncLoad(machine, function: CUfunction) {
        self::function(machine, function)?;
    }

    call fn cuFuncIsLoaded(machine, state: *mut CUfunctionLoadingState, function: CUfunction) {
        self::function(machine, function)?;
        put!(state, CUfunctionLoadingState::CU_FUNCTION_LOADING_STATE_LOADED)?;
    }

    call fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
        machine, out: *mut c_int, function: CUfunction, threads: c_int, shared: usize,
    ) {
        kernel(machine, function)?;
        put!(out, active_blocks(threads, shared)?)?;
    }

    call fn cuOccupancyMaxPotentialBlockSize(
        machine, grid: *mut c_int, block: *mut c_int, function: CUfunction, shared_of: CUoccupancyB2DSize,
        shared: usize, limit: c_int,
    ) {
        kernel(machine, function)?;
        let most = MAX_THREADS as c_int;
        let limit = if limit <= 0 { most } else { limit.min(most) };
        let mut best = (0, 0, 0);
        // Try whole warps, or the limit itself if it is smaller than a warp; the largest block wins a tie.
        for threads in std::iter::once(limit).chain((1..=limit / WARP).rev().map(|warps| warps * WARP)) {
            // SAFETY: the program gave the function to be called with sizes of blocks.
            let shared = shared_of.map_or(shared, |shared_of| unsafe { shared_of(threads) });
            let blocks = active_blocks(threads, shared)?;
            if blocks * threads > best.0 {
                best = (blocks * threads, blocks, threads);
            }
        }
        put!(grid, best.1 * MULTIPROCESSORS)?;
        put!(block, best.2)?;
    }
}

fn function(machine: &Machine, handle: CUfunction) -> DriverResult<Arc<Function>> {
    machine.kernels.function(handle as u64).ok_or_else(|| {
        DriverError::new(CUresult::CUDA_ERROR_INVALID_HANDLE, format!("{handle:p} is no live function"))
    })
}

/// A function and the host function registered under its name.
pub(super) fn kernel(machine: &Machine, handle: CUfunction) -> DriverResult<(Arc<Function>, Arc<Kernel>)> {
    let function = function(machine, handle)?;
    let kernel = machine.kernels.kernel(&function).ok_or_else(|| unregistered(&function))?;
    Ok((function, kernel))
}

/// Returns the number of blocks that one multiprocessor runs at a time.
pub(super) fn active_blocks(threads: c_int, shared: usize) -> DriverResult<c_int> {
    if !(1..=MAX_THREADS as c_int).contains(&threads) {
        return Err(DriverError::invalid(format!("blocks of {threads} threads")));
    }
    let by_shared = (MAX_SHARED as usize).checked_div(shared).unwrap_or(BLOCKS as usize);
    Ok((THREADS / threads).min(BLOCKS).min(c_int::try_from(by_shared).unwrap_or(BLOCKS)))
}
