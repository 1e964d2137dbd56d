//! Modules. A module is a PTX text; its kernels are the host functions registered under their names.

use std::collections::BTreeMap;
use std::ffi::{c_char, c_uint, c_void};
use std::sync::Arc;

use cuda_driver_sys::{CUdeviceptr, CUfunction, CUjit_option, CUmodule, CUmoduleLoadingMode, CUresult};

use super::edge::{put_text, text};
use super::memory::allocate;
use crate::abi::{DriverError, DriverResult};
use crate::device::Context;
use crate::kernel::{Function, Module, ptx};
use crate::memory::Kind;
use crate::world::Machine;

abi! {
    call fn cuModuleLoadData(machine, out: *mut CUmodule, image: *const c_void) {
        put!(out, load(machine, image, &mut Logs::default())?)?;
    }

    call fn cuModuleLoadDataEx(
        machine, out: *mut CUmodule, image: *const c_void, count: c_uint, options: *mut CUjit_option,
        values: *mut *mut c_void,
    ) {
        let mut logs = Logs::of(&list!(options.cast_const(), count as usize)?, values)?;
        let loaded = load(machine, image, &mut logs);
        logs.write()?;
        put!(out, loaded?)?;
    }

    call fn cuModuleUnload(machine, module: CUmodule) {
        machine.streams.forbid_during_capture(machine, "cuModuleUnload")?;
        let gone = machine.kernels.unload(module as u64).ok_or_else(|| no_module(module))?;
        free(machine, gone.variables.values());
    }

    // The driver's default, although modules are loaded completely here.
    call fn cuModuleGetLoadingMode(machine, mode: *mut CUmoduleLoadingMode) {
        put!(mode, CUmoduleLoadingMode::CU_MODULE_LAZY_LOADING)?;
    }

    call fn cuModuleGetFunction(machine, out: *mut CUfunction, module: CUmodule, name: *const c_char) {
        let (module, name) = (self::module(machine, module)?, text(name)?);
        let function = module.function(&name).ok_or_else(|| {
            DriverError::new(CUresult::CUDA_ERROR_NOT_FOUND, format!("the module has no kernel {name}"))
        })?;
        if machine.kernels.kernel(function).is_none() {
            return Err(unregistered(function));
        }
        put!(out, function.handle as CUfunction)?;
    }

    call fn cuModuleGetFunctionCount(machine, count: *mut c_uint, module: CUmodule) {
        put!(count, self::module(machine, module)?.functions.len() as c_uint)?;
    }

    call fn cuModuleEnumerateFunctions(machine, functions: *mut CUfunction, count: c_uint, module: CUmodule) {
        let module = self::module(machine, module)?;
        for (i, function) in module.functions.iter().take(count as usize).enumerate() {
            put!(functions.wrapping_add(i), function.handle as CUfunction)?;
        }
    }

    call fn cuModuleGetGlobal_v2(
        machine, start: *mut CUdeviceptr, bytes: *mut usize, module: CUmodule, name: *const c_char,
    ) {
        let (module, name) = (self::module(machine, module)?, text(name)?);
        let (address, size) = *module.variables.get(&name).ok_or_else(|| {
            let code = match module.function(&name) {
                Some(_) => CUresult::CUDA_ERROR_INVALID_VALUE,
                None => CUresult::CUDA_ERROR_NOT_FOUND,
            };
            DriverError::new(code, format!("the module has no variable {name}"))
        })?;
        if !start.is_null() {
            put!(start, address)?;
        }
        if !bytes.is_null() {
            put!(bytes, size as usize)?;
        }
    }
}

fn load(machine: &Machine, image: *const c_void, logs: &mut Logs) -> DriverResult<CUmodule> {
    let context = machine.current()?;
    // An ELF file or a fat binary, by its first byte, does not end at its first zero byte.
    if let 0x7f | 0x50 = get!(image.cast::<u8>())? {
        return Err(DriverError::unsupported("modules other than PTX texts are not modelled"));
    }
    let image = text(image.cast())?;
    let image = ptx::read(&image).map_err(|broken| {
        let code = match broken.why {
            ptx::Why::Version(..) => CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
            ptx::Why::NoVersion => CUresult::CUDA_ERROR_INVALID_IMAGE,
            ptx::Why::Syntax(_) | ptx::Why::Target(_) => CUresult::CUDA_ERROR_INVALID_PTX,
        };
        // The log belongs to the compiler, which never sees a text that does not begin as PTX.
        if broken.why != ptx::Why::NoVersion {
            logs.error = broken.to_string();
        }
        DriverError::new(code, broken.to_string())
    })?;
    if logs.verbose {
        logs.info = image
            .entries
            .iter()
            .map(|name| format!("compiled {name} for sm_{}\n", ptx::ARCHITECTURE))
            .collect();
    }
    let mut variables = BTreeMap::new();
    for variable in image.variables {
        if let Err(refused) =
            place(machine, &context, &variable).map(|place| variables.insert(variable.name, place))
        {
            free(machine, variables.values());
            return Err(refused);
        }
    }
    Ok(machine.kernels.load(image.entries, image.target, variables) as CUmodule)
}

/// Allocates a variable's memory and fills it with zeros.
fn place(machine: &Machine, context: &Context, variable: &ptx::Variable) -> DriverResult<(u64, u64)> {
    let ptx::Variable { name, bytes, initialised } = variable;
    if *initialised {
        return Err(DriverError::unsupported(format!("first values, as {name} has, are not modelled")));
    }
    let start = allocate(machine, context.device, *bytes, Kind::Variable { context: context.id })?;
    Ok((start, *bytes))
}

fn free<'a>(machine: &Machine, variables: impl Iterator<Item = &'a (u64, u64)>) {
    for (start, _) in variables {
        let wanted = |kind: &Kind| matches!(kind, Kind::Variable { .. });
        // The context's destruction may have removed it already.
        let gone = machine.memory.space().remove_whole(*start, wanted, "cuModuleUnload");
        drop(gone);
    }
}

fn module(machine: &Machine, module: CUmodule) -> DriverResult<Arc<Module>> {
    machine.kernels.module(module as u64).ok_or_else(|| no_module(module))
}

fn no_module(module: CUmodule) -> DriverError {
    DriverError::new(CUresult::CUDA_ERROR_INVALID_HANDLE, format!("{module:p} is no live module"))
}

pub(super) fn unregistered(function: &Function) -> DriverError {
    DriverError::unsupported(format!("no host function is registered for kernel {:?}", function.name))
}

/// The compilation logs that a program requests, and their buffers.
#[derive(Default)]
struct Logs {
    verbose: bool,
    info: String,
    error: String,
    into: [Buffer; 2],
}

/// A caller's buffer for a log.
#[derive(Clone, Copy)]
struct Buffer {
    start: *mut c_char,
    bytes: i32,
    /// Receives the number of written bytes.
    told: *mut *mut c_void,
}

impl Default for Buffer {
    fn default() -> Self {
        Self { start: std::ptr::null_mut(), bytes: 0, told: std::ptr::null_mut() }
    }
}

impl Logs {
    /// Reads the options; options that control the compilation have no effect.
    fn of(options: &[CUjit_option], values: *mut *mut c_void) -> DriverResult<Self> {
        let mut logs = Self::default();
        for (i, &option) in options.iter().enumerate() {
            let place = values.wrapping_add(i);
            let value = get!(place.cast_const())?;
            let number = value.addr();
            let size = || {
                i32::try_from(number).map_err(|_| DriverError::invalid(format!("a log of {number} bytes")))
            };
            match option {
                CUjit_option::CU_JIT_INFO_LOG_BUFFER => logs.into[0].start = value.cast(),
                CUjit_option::CU_JIT_ERROR_LOG_BUFFER => logs.into[1].start = value.cast(),
                CUjit_option::CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES => {
                    (logs.into[0].bytes, logs.into[0].told) = (size()?, place);
                }
                CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES => {
                    (logs.into[1].bytes, logs.into[1].told) = (size()?, place);
                }
                CUjit_option::CU_JIT_LOG_VERBOSE => logs.verbose = number != 0,
                CUjit_option::CU_JIT_TARGET if number != ptx::ARCHITECTURE as usize => {
                    return Err(DriverError::unsupported(format!("compiling for {number} is not modelled")));
                }
                CUjit_option::CU_JIT_OPTIMIZATION_LEVEL
                | CUjit_option::CU_JIT_TARGET
                | CUjit_option::CU_JIT_TARGET_FROM_CUCONTEXT
                | CUjit_option::CU_JIT_MAX_REGISTERS
                | CUjit_option::CU_JIT_CACHE_MODE
                | CUjit_option::CU_JIT_GENERATE_LINE_INFO
                | CUjit_option::CU_JIT_GENERATE_DEBUG_INFO => {}
                other => return Err(DriverError::unsupported(format!("{other:?} is not modelled"))),
            }
        }
        Ok(logs)
    }

    fn write(&self) -> DriverResult {
        for (log, Buffer { start, bytes, told }) in [&self.info, &self.error].into_iter().zip(self.into) {
            if !start.is_null() && bytes > 0 {
                put_text(start, bytes, log)?;
                let written = log.len().min(bytes as usize - 1);
                if !told.is_null() {
                    put!(told, std::ptr::without_provenance_mut(written))?;
                }
            }
        }
        Ok(())
    }
}
