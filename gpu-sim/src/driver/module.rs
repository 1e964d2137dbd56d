//! Modules and launches. A module is a PTX text; its kernels are the host functions registered under their names.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::Arc;

use cuda_driver_sys::{
    CUfunction, CUfunction_attribute, CUfunctionLoadingState, CUgraphNodeType, CUjit_option, CUlaunchConfig,
    CUmodule, CUresult, CUstream,
};

use super::edge::text;
use crate::abi::{Answer, Refusal};
use crate::kernel::{Invocation, Kernel};
use crate::world::Machine;

/// Limits of the modelled device.
const MAX_THREADS: u64 = 1024;
const MAX_SHARED: c_uint = 227 << 10;

abi! {
    call fn cuModuleLoadData(machine, out: *mut CUmodule, image: *const c_void) {
        load(machine, out, image)?;
    }

    // Options steer a compilation that does not take place.
    call fn cuModuleLoadDataEx(
        machine, out: *mut CUmodule, image: *const c_void, count: c_uint, options: *mut CUjit_option,
        values: *mut *mut c_void,
    ) {
        load(machine, out, image)?;
    }

    call fn cuModuleUnload(machine, module: CUmodule) {
        if !machine.kernels.unload(module as u64) {
            return Err(no_module(module));
        }
    }

    call fn cuModuleGetFunction(machine, out: *mut CUfunction, module: CUmodule, name: *const c_char) {
        let name = text(name)?;
        let function = machine.kernels.function(module as u64, &name).map_err(|found| match found {
            (false, _) => no_module(module),
            (true, false) => Refusal::new(CUresult::CUDA_ERROR_NOT_FOUND, format!("the module has no kernel {name}")),
            (true, true) => Refusal::unsupported(format!("no host function is registered for kernel {name}")),
        })?;
        put!(out, function as CUfunction)?;
    }

    call fn cuFuncGetAttribute(machine, out: *mut c_int, attribute: CUfunction_attribute, function: CUfunction) {
        kernel(machine, function)?;
        put!(out, match attribute {
            CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK => MAX_THREADS as c_int,
            CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES => MAX_SHARED as c_int,
            CUfunction_attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES
            | CUfunction_attribute::CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES
            | CUfunction_attribute::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES => 0,
            CUfunction_attribute::CU_FUNC_ATTRIBUTE_NUM_REGS => 32,
            CUfunction_attribute::CU_FUNC_ATTRIBUTE_PTX_VERSION
            | CUfunction_attribute::CU_FUNC_ATTRIBUTE_BINARY_VERSION => 90,
            other => return Err(Refusal::unsupported(format!("{other:?} is not modelled"))),
        })?;
    }

    call fn cuFuncGetParamInfo(machine, function: CUfunction, index: usize, offset: *mut usize, size: *mut usize) {
        let kernel = kernel(machine, function)?;
        let (start, len) = kernel.parameter(index).ok_or_else(|| {
            Refusal::invalid(format!("parameter {index} of {} with {}", kernel.name, kernel.parameters.len()))
        })?;
        put!(offset, start)?;
        if !size.is_null() {
            put!(size, len)?;
        }
    }

    // Nothing is loaded late.
    call fn cuFuncLoad(machine, function: CUfunction) {
        kernel(machine, function)?;
    }

    call fn cuFuncIsLoaded(machine, state: *mut CUfunctionLoadingState, function: CUfunction) {
        kernel(machine, function)?;
        put!(state, CUfunctionLoadingState::CU_FUNCTION_LOADING_STATE_LOADED)?;
    }

    call fn cuFuncSetAttribute(machine, function: CUfunction, attribute: CUfunction_attribute, value: c_int) {
        kernel(machine, function)?;
        match attribute {
            // Every launch may have all of the device's shared memory.
            CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                if (0..=MAX_SHARED as c_int).contains(&value) => {}
            CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES => {
                return Err(Refusal::invalid(format!("{value} bytes of shared memory of {MAX_SHARED}")));
            }
            other => return Err(Refusal::unsupported(format!("{other:?} is not modelled"))),
        }
    }

    call fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
        machine, out: *mut c_int, function: CUfunction, threads: c_int, shared: usize,
    ) {
        kernel(machine, function)?;
        if !(1..=MAX_THREADS as c_int).contains(&threads) {
            return Err(Refusal::invalid(format!("blocks of {threads} threads")));
        }
        let by_shared = (MAX_SHARED as usize).checked_div(shared).unwrap_or(32);
        put!(out, (2048 / threads).min(by_shared as c_int).min(32))?;
    }

    call fn cuLaunchKernel(
        machine, function: CUfunction, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint,
        block_y: c_uint, block_z: c_uint, shared: c_uint, stream: CUstream, parameters: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) {
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        launch(machine, function, grid, block, shared, stream, parameters, extra)?;
    }

    call fn cuLaunchKernelEx(
        machine, config: *const CUlaunchConfig, function: CUfunction, parameters: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) {
        let c = get!(config)?;
        if c.numAttrs != 0 {
            return Err(Refusal::unsupported("attributes of launches are not modelled"));
        }
        let (grid, block) = ([c.gridDimX, c.gridDimY, c.gridDimZ], [c.blockDimX, c.blockDimY, c.blockDimZ]);
        launch(machine, function, grid, block, c.sharedMemBytes, c.hStream, parameters, extra)?;
    }
}

fn load(machine: &Machine, out: *mut CUmodule, image: *const c_void) -> Answer {
    machine.current()?;
    let start: Vec<u8> = list!(image.cast::<u8>(), 1)?;
    // A text, not an ELF file (0x7f) or a fat binary (0x50), whose length a text's end would not tell.
    if !start.iter().all(|b| b.is_ascii_whitespace() || b"/.".contains(b)) {
        return Err(Refusal::unsupported("modules other than PTX texts are not modelled"));
    }
    let image = text(image.cast())?;
    if !image.contains(".version") || !image.contains(".target") {
        return Err(Refusal::new(
            CUresult::CUDA_ERROR_INVALID_PTX,
            "a PTX text says its .version and .target",
        ));
    }
    put!(out, machine.kernels.load(&image) as CUmodule)
}

fn kernel(machine: &Machine, function: CUfunction) -> Answer<Arc<Kernel>> {
    let kernel = machine.kernels.kernel(function as u64);
    kernel.ok_or_else(|| {
        Refusal::new(CUresult::CUDA_ERROR_INVALID_HANDLE, format!("{function:p} is no live function"))
    })
}

fn no_module(module: CUmodule) -> Refusal {
    Refusal::new(CUresult::CUDA_ERROR_INVALID_HANDLE, format!("{module:p} is no live module"))
}

#[expect(clippy::too_many_arguments, reason = "the C functions' own arguments")]
fn launch(
    machine: &Arc<Machine>,
    function: CUfunction,
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    stream: CUstream,
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Answer {
    let (kernel, stream) = (kernel(machine, function)?, machine.stream(stream)?);
    let threads = block.iter().map(|&n| u64::from(n)).product::<u64>();
    if grid.contains(&0) || threads == 0 || threads > MAX_THREADS || block[2] > 64 || shared > MAX_SHARED {
        return Err(Refusal::invalid(format!("{grid:?} blocks of {block:?} threads with {shared} bytes")));
    }
    if !extra.is_null() {
        return Err(Refusal::unsupported("parameters in one buffer are not modelled"));
    }
    let cells = list!(parameters.cast_const(), kernel.parameters.len())?;
    let parameters = cells
        .into_iter()
        .zip(&kernel.parameters)
        .map(|(cell, &size)| list!(cell.cast::<u8>().cast_const(), size))
        .collect::<Answer<Vec<_>>>()?;
    let work = Invocation { kernel, grid, block, shared, parameters: Arc::new(parameters) };
    stream.enqueue(machine, CUgraphNodeType::CU_GRAPH_NODE_TYPE_KERNEL, Arc::new(work))
}
