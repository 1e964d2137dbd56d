//! Modules: device code that the driver loads, its kernels, and their launches.
//!
//! ```
//! # use gpu_sim::{World, fault::Fault, kernel::Launch, memory::Access};
//! # fn add(launch: &Launch<'_>) -> Result<(), Fault> {
//! #     let (to, by, n) = (launch.u64(0)?, launch.u32(1)?, launch.u32(2)?);
//! #     let view = launch.exec.view(to, u64::from(n) * 4, Access::all())?;
//! #     for at in (0..n as usize * 4).step_by(4) {
//! #         let mut word = [0; 4];
//! #         view.read(at, &mut word);
//! #         view.write(at, &(u32::from_ne_bytes(word) + by).to_ne_bytes());
//! #     }
//! #     Ok(())
//! # }
//! # let world = World::builder().start()?;
//! # world.register_kernel("add_to_all", &[8, 4, 4], add);
//! # // SAFETY: the embedded device keeps the C contracts.
//! # let driver = cuda_driver::Driver::new(unsafe { cuda_driver::sys::Api::from_parts(world.cuda()) }?)?;
//! use cuda_driver::module::{JitOptions, LaunchConfig, Module};
//! use cuda_driver::{Stream, StreamFlags, memory::DeviceMemory};
//!
//! let ptx = "
//! .version 7.0
//! .target sm_70
//! .address_size 64
//! .visible .entry add_to_all(.param .u64 to, .param .u32 by, .param .u32 n) {
//!     .reg .pred %p;
//!     .reg .b32 %r<7>;
//!     .reg .b64 %a<3>;
//!     mov.u32 %r1, %ctaid.x;
//!     mov.u32 %r2, %ntid.x;
//!     mov.u32 %r3, %tid.x;
//!     mad.lo.u32 %r4, %r1, %r2, %r3;
//!     ld.param.u32 %r5, [n];
//!     setp.ge.u32 %p, %r4, %r5;
//!     @%p ret;
//!     ld.param.u64 %a1, [to];
//!     cvta.to.global.u64 %a1, %a1;
//!     mad.wide.u32 %a2, %r4, 4, %a1;
//!     ld.param.u32 %r5, [by];
//!     ld.global.u32 %r6, [%a2];
//!     add.u32 %r6, %r6, %r5;
//!     st.global.u32 [%a2], %r6;
//!     ret;
//! }";
//! let context = driver.device(0)?.retain_primary()?;
//! let add = Module::load_ptx(&context, ptx, &JitOptions::new())?.function("add_to_all")?;
//!
//! let stream = Stream::new(&context, StreamFlags::NON_BLOCKING)?;
//! let memory = DeviceMemory::new(&context, 4000)?;
//! memory.copy_from_host(0, &[1u32; 1000])?;
//! let config = LaunchConfig::linear(1000, 256);
//! // SAFETY: the kernel accesses 1000 words of `memory`. `add` and `memory` live until `synchronize` has returned.
//! unsafe { stream.launch_kernel(&add, &config, (memory.ptr(), 41u32, 1000u32))? };
//! stream.synchronize()?;
//! let mut words = [0u32; 1000];
//! memory.copy_to_host(0, &mut words)?;
//! assert_eq!(words, [42; 1000]);
//!
//! // SAFETY: refused before anything is launched.
//! let refused = unsafe { stream.launch_kernel(&add, &config, (memory.ptr(), 41u64, 1000u32)) };
//! assert_eq!(
//!     refused.unwrap_err().to_string(),
//!     "kernel `add_to_all` takes 4 bytes as parameter 1 (from 0), but was given 8"
//! );
//! # drop((memory, stream, add, context, driver));
//! # world.finish()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What a launch asks of the caller
//! [`Stream::launch_kernel`](crate::Stream::launch_kernel) runs code that types cannot check. The caller
//! promises:
//! - **Arguments**: there is one for each parameter of the kernel, with the parameter's size and meaning. Count and
//!   sizes are checked if the driver reports them (CUDA 12.4 and newer). The meaning is never checked.
//! - **Memory**: the contract of [asynchronous calls](crate::Stream#what-asynchronous-calls-ask-of-the-caller) holds
//!   for everything that the kernel accesses. Slices that are arguments of [`LaunchArgs`] are kept alive and their uses
//!   ordered. The caller promises that the kernel stays inside them, and writes only those that were passed as
//!   exclusive borrows.
//! - **Code**: the [`Function`], another function of its module, or the [`Module`] lives until the kernel has ended. If
//!   the launch was captured, and [`Stream::begin_capture`](crate::Stream::begin_capture) began the capture, the graph
//!   and its executables keep the module loaded. An executable must then live until its last launch has ended.
//! - **Progress**: the kernel ends by itself. A kernel that waits for other work of the device can wait for ever,
//!   because the device may not have room for both. Blocks of one kernel may wait for each other only in a [cooperative
//!   launch](LaunchConfig::cooperative).
//!
//! [`Stream::launch_kernel`](crate::Stream::launch_kernel) finds some mistakes itself, before it calls the driver's
//! launch function, and returns a [`LaunchError`] for them.

mod arguments;
mod error;
mod function;
mod image;
mod jit;
mod launch;
mod launch_args;

use std::ffi::{CStr, CString, c_uint, c_void};
use std::fmt;
use std::sync::Arc;

use cuda_driver_sys::{Api, CUmodule, CUmoduleLoadingMode, CUresult};

pub use self::arguments::{Argument, Arguments, Parameter};
pub use self::error::{LaunchError, ModuleError};
pub use self::function::{Function, FunctionAttributes, SuggestedLaunch};
pub use self::jit::{CacheMode, JitOptions};
pub use self::launch::{Dim, LaunchConfig};
pub use self::launch_args::{KernelArgument, LaunchArgs};
use crate::call::{call, check, code};
use crate::graph::{Owner, RelaxedCapture};
use crate::memory::AddressRange;
use crate::{Context, DevicePtr, Driver, Error, Result, teardown};

/// Device code that is loaded into a context. A handle, cheap to clone. The code is unloaded when the last clone, the
/// last [`Function`] of the module, and the last graph and executable that hold the module are dropped.
#[derive(Clone)]
pub struct Module {
    inner: Arc<Inner>,
}

struct Inner {
    context: Context,
    raw: CUmodule,
    /// A description of the code's source, for errors.
    origin: String,
    log: String,
    limits: launch::Limits,
}

// SAFETY: a module's handle may be used from every thread.
unsafe impl Send for Inner {}
// SAFETY: as above; the driver synchronises calls from several threads.
unsafe impl Sync for Inner {}

impl Module {
    /// Compiles a PTX text for the context's device and loads it. Compilation takes milliseconds to seconds; the driver
    /// caches the result on disk.
    ///
    /// A driver takes PTX up to the version of its own release: text from a newer toolkit is refused, whatever the
    /// device. PTX for an older `.target` than the device is compiled for the device.
    ///
    /// # Errors
    /// [`ModuleError`] if the text is empty or has a NUL inside, or if the driver refuses it (the error then has the
    /// driver's log); [`Error::Driver`] from `cuDeviceGetAttribute`.
    #[doc(alias = "cuModuleLoadDataEx")]
    pub fn load_ptx(context: &Context, ptx: &str, options: &JitOptions) -> Result<Self> {
        // Compilers such as NVRTC count the trailing NUL as part of the text.
        let text = ptx.strip_suffix('\0').unwrap_or(ptx);
        if text.trim().is_empty() {
            return Err(ModuleError::Empty.into());
        }
        let image =
            CString::new(text).map_err(|nul| ModuleError::Nul { what: "PTX", at: nul.nul_position() })?;
        // SAFETY: `image` is a text that ends with a NUL, the form in which the driver takes PTX. It outlives the call.
        unsafe { Self::load(context, image.as_ptr().cast(), image::describe_ptx(text), options) }
    }

    /// Loads a cubin (an ELF file for one architecture) or a fat binary (several cubins, and possibly PTX).
    ///
    /// Checks that the image has the header of its kind and is at least as long as its headers say. The options only
    /// matter for PTX in a fat binary.
    ///
    /// # Safety
    /// `image` must have been written by NVIDIA's tools: the driver trusts the offsets inside.
    ///
    /// # Errors
    /// [`ModuleError`] if the image is of neither kind or is cut off, or if the driver refuses it (the error then has
    /// the driver's log; `CUDA_ERROR_NO_BINARY_FOR_GPU` means that the image has no code for this device);
    /// [`Error::Driver`] from `cuDeviceGetAttribute`.
    #[doc(alias = "cuModuleLoadDataEx")]
    pub unsafe fn load_image(context: &Context, image: &[u8], options: &JitOptions) -> Result<Self> {
        let origin = image::check(image)?;
        // SAFETY: the image is whole, and of a kind that the driver takes; the rest is the caller's promise.
        unsafe { Self::load(context, image.as_ptr().cast(), origin, options) }
    }

    /// # Safety
    /// `image` must point to an image that `cuModuleLoadDataEx` accepts.
    unsafe fn load(
        context: &Context,
        image: *const c_void,
        origin: String,
        options: &JitOptions,
    ) -> Result<Self> {
        let _current = context.enter()?;
        let limits = launch::Limits::of(context.device())?;
        let mut request = jit::Request::new(options);
        let mut raw = std::ptr::null_mut();
        let loaded = request.call(|count, options, values| {
            // SAFETY: the caller promises that the image is valid. There are `count` options and `count` values. They
            // and the log buffers outlive the call. Writes one handle, to a local that outlives the call.
            unsafe { call!(context.api(), cuModuleLoadDataEx(&mut raw, image, count, options, values)) }
        });
        match loaded {
            Ok(()) => {
                let log = request.info_log();
                let inner = Inner { context: context.clone(), raw, origin, log, limits };
                Ok(Self { inner: Arc::new(inner) })
            }
            Err(Error::Driver(cause)) => {
                Err(ModuleError::refused(origin, request.error_log(), context.driver().version(), cause)
                    .into())
            }
            Err(other) => Err(other),
        }
    }

    fn api(&self) -> &Api {
        self.inner.context.api()
    }

    /// The driver's handle, valid while this module lives.
    #[must_use]
    pub fn raw(&self) -> CUmodule {
        self.inner.raw
    }

    /// Returns a reference that keeps the module loaded, for graphs to hold.
    fn owner(&self) -> Owner {
        self.inner.clone()
    }

    fn limits(&self) -> &launch::Limits {
        &self.inner.limits
    }

    /// The context that the module is loaded into.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.inner.context
    }

    /// The compiler's messages about the code. There are more with [`JitOptions::verbose`]. There are none if the
    /// driver compiled nothing, because it loaded a cubin or had the result in its cache.
    #[must_use]
    pub fn log(&self) -> &str {
        &self.inner.log
    }

    /// Returns the kernel of this name: the name after `.entry` in PTX, C++-mangled unless it is `extern
    /// "C"`.
    ///
    /// From CUDA 12.4 on the function is fully loaded here, even if the driver [loads
    /// lazily](Driver::module_loading_mode). With an older driver that loads lazily, the first launch loads the code.
    /// This launch waits for the device, so it hangs if a running kernel waits for the launched one.
    ///
    /// # Errors
    /// [`ModuleError::NoSuchFunction`]; [`ModuleError::Nul`] if `name` contains a NUL byte; [`Error::Driver`] from
    /// `cuModuleGetFunction`, `cuFuncLoad`, `cuFuncGetAttribute` or `cuFuncGetParamInfo`.
    #[doc(alias = "cuModuleGetFunction")]
    #[doc(alias = "cuFuncLoad")]
    pub fn function(&self, name: &str) -> Result<Function> {
        let c_name = symbol("kernel's name", name)?;
        let _current = self.context().enter()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the module is alive, the name ends with NUL; writes one handle, to a local that outlives the call.
        let code = unsafe { code!(self.api(), cuModuleGetFunction(&mut raw, self.raw(), c_name.as_ptr())) }?;
        if code == CUresult::CUDA_ERROR_NOT_FOUND {
            // If the names cannot be listed, the error only lacks them.
            let known = self.function_names().unwrap_or_default();
            let (name, module) = (name.to_owned(), self.inner.origin.clone());
            return Err(ModuleError::NoSuchFunction { name, module, known }.into());
        }
        check(self.api(), "cuModuleGetFunction", code)?;
        Function::new(self.clone(), name, raw)
    }

    /// The names of the module's kernels.
    ///
    /// # Errors
    /// [`Error::Missing`] below CUDA 12.4; [`Error::Driver`] from `cuModuleGetFunctionCount`,
    /// `cuModuleEnumerateFunctions` or `cuFuncGetName`.
    #[doc(alias = "cuModuleEnumerateFunctions")]
    #[doc(alias = "cuFuncGetName")]
    pub fn function_names(&self) -> Result<Vec<String>> {
        let _current = self.context().enter()?;
        let mut count: c_uint = 0;
        // SAFETY: the module is alive; writes one integer, to a local that outlives the call.
        unsafe { call!(self.api(), cuModuleGetFunctionCount(&mut count, self.raw())) }?;
        // The driver's count may be too large, so the array starts small and grows only while the driver fills it.
        let mut room = count.min(1024);
        let functions = loop {
            let mut functions = vec![std::ptr::null_mut(); room as usize];
            // SAFETY: the module is alive; the array has room for as many handles as are asked for.
            unsafe {
                call!(self.api(), cuModuleEnumerateFunctions(functions.as_mut_ptr(), room, self.raw()))
            }?;
            let full = functions.last().is_some_and(|last| !last.is_null());
            if !full || room == count {
                functions.retain(|function| !function.is_null());
                break functions;
            }
            room = room.saturating_mul(2).min(count);
        };
        let name = |function| {
            let mut name = std::ptr::null();
            // SAFETY: the function is of this module; writes one pointer, to a local that outlives the call.
            unsafe { call!(self.api(), cuFuncGetName(&mut name, function)) }?;
            if name.is_null() {
                return Ok(String::new());
            }
            // SAFETY: the driver's string, which lives as long as the module.
            Ok(unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned())
        };
        functions.into_iter().map(name).collect()
    }

    /// The memory of a variable that the module defines (`.global` or `.const` in PTX). It lives as long as the module.
    ///
    /// # Errors
    /// [`ModuleError::NoSuchGlobal`], also if `name` is a kernel; [`ModuleError::Nul`] if `name` contains a NUL byte;
    /// [`Error::Driver`] from `cuModuleGetGlobal_v2`.
    #[doc(alias = "cuModuleGetGlobal")]
    pub fn global(&self, name: &str) -> Result<AddressRange> {
        let c_name = symbol("variable's name", name)?;
        let _current = self.context().enter()?;
        let (mut start, mut bytes) = (0, 0);
        // SAFETY: the module is alive, the name ends with NUL; writes an address and a size, to locals that outlive
        // the call.
        let code = unsafe {
            code!(self.api(), cuModuleGetGlobal_v2(&mut start, &mut bytes, self.raw(), c_name.as_ptr()))
        }?;
        // The driver returns `CUDA_ERROR_INVALID_VALUE` for the name of a kernel. This code has no other cause here,
        // because the name and the pointers are valid.
        if matches!(code, CUresult::CUDA_ERROR_NOT_FOUND | CUresult::CUDA_ERROR_INVALID_VALUE) {
            let (name, module) = (name.to_owned(), self.inner.origin.clone());
            return Err(ModuleError::NoSuchGlobal { name, module }.into());
        }
        check(self.api(), "cuModuleGetGlobal_v2", code)?;
        Ok(AddressRange { start: DevicePtr(start), bytes })
    }
}

fn symbol(what: &'static str, name: &str) -> Result<CString> {
    Ok(CString::new(name).map_err(|nul| ModuleError::Nul { what, at: nul.nul_position() })?)
}

impl Drop for Inner {
    #[doc(alias = "cuModuleUnload")]
    fn drop(&mut self) {
        // Unloading is not part of an open capture, and must not invalidate it.
        let _relaxed = RelaxedCapture::enter(self.context.driver());
        teardown::report(self.context.enter().and_then(|_current| {
            // SAFETY: `Module::load` loaded the module, and nothing uses it after this. Every function holds its
            // module, and the caller of each launch promised that a function or the module outlives the kernel.
            unsafe { call!(self.context.api(), cuModuleUnload(self.raw)) }
        }));
    }
}

impl PartialEq for Module {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

impl Eq for Module {}

impl fmt::Debug for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Module({:p}, {})", self.inner.raw, self.inner.origin)
    }
}

/// The time at which the driver loads a module's kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LoadingMode {
    /// Together with the module.
    Eager,
    /// Each kernel on first use: the default from CUDA 12.2 on.
    Lazy,
    /// A mode that this crate does not know, with the driver's number for it.
    Other(u32),
}

impl Driver {
    /// Returns the loading mode. The environment variable `CUDA_MODULE_LOADING` (`EAGER` or `LAZY`) sets it when the
    /// driver is initialised; otherwise it is the driver's default.
    ///
    /// # Errors
    /// [`Error::Driver`] from `cuModuleGetLoadingMode`; [`Error::Missing`] below CUDA 11.7.
    #[doc(alias = "cuModuleGetLoadingMode")]
    pub fn module_loading_mode(&self) -> Result<LoadingMode> {
        let mut mode = CUmoduleLoadingMode::CU_MODULE_EAGER_LOADING;
        // SAFETY: writes one enum, to a local that outlives the call.
        unsafe { call!(self.api(), cuModuleGetLoadingMode(&mut mode)) }?;
        Ok(match mode {
            CUmoduleLoadingMode::CU_MODULE_EAGER_LOADING => LoadingMode::Eager,
            CUmoduleLoadingMode::CU_MODULE_LAZY_LOADING => LoadingMode::Lazy,
            CUmoduleLoadingMode(other) => LoadingMode::Other(other),
        })
    }
}
