//! Options of the driver's PTX compiler, and its logs.

use std::ffi::{c_uint, c_void};

use cuda_driver_sys::{CUjit_cacheMode, CUjit_option, CUjit_target};

/// The caches that a kernel's loads from global memory use by default. A load instruction with its own cache operator
/// overrides this choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CacheMode {
    /// The choice of the compiler (`CU_JIT_CACHE_OPTION_NONE`).
    Unspecified,
    /// The L2 cache only.
    Global,
    /// The L1 and the L2 cache.
    All,
}

/// Options for compiling PTX. [`new`](Self::new) leaves every choice to the driver; each method sets one option.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct JitOptions {
    max_registers: Option<u32>,
    optimization_level: Option<u32>,
    target: Option<CUjit_target>,
    cache_mode: Option<CacheMode>,
    line_info: bool,
    debug_info: bool,
    verbose: bool,
}

impl JitOptions {
    /// Returns options that leave every choice to the driver, which then compiles for the context's device.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the maximum number of registers per thread. Values that do not fit are spilled to local memory.
    #[doc(alias = "CU_JIT_MAX_REGISTERS")]
    pub fn max_registers(mut self, registers: u32) -> Self {
        self.max_registers = Some(registers);
        self
    }

    /// Sets the optimisation level, from 0 (none) to 4 (all, the default). The driver accepts larger numbers too.
    #[doc(alias = "CU_JIT_OPTIMIZATION_LEVEL")]
    pub fn optimization_level(mut self, level: u32) -> Self {
        self.optimization_level = Some(level);
        self
    }

    /// Sets the architecture to compile for, such as `CU_TARGET_COMPUTE_90`, instead of the device's own. The driver
    /// refuses an architecture that the device cannot run.
    #[doc(alias = "CU_JIT_TARGET")]
    pub fn target(mut self, target: CUjit_target) -> Self {
        self.target = Some(target);
        self
    }

    /// Sets the default caches for loads from global memory.
    #[doc(alias = "CU_JIT_CACHE_MODE")]
    pub fn cache_mode(mut self, mode: CacheMode) -> Self {
        self.cache_mode = Some(mode);
        self
    }

    /// Adds line numbers for profilers. The generated code stays the same.
    #[doc(alias = "CU_JIT_GENERATE_LINE_INFO")]
    pub fn line_info(mut self) -> Self {
        self.line_info = true;
        self
    }

    /// Adds debug information. The generated code is not optimised.
    #[doc(alias = "CU_JIT_GENERATE_DEBUG_INFO")]
    pub fn debug_info(mut self) -> Self {
        self.debug_info = true;
        self
    }

    /// Makes the compiler write each kernel's use of registers and memory to [`Module::log`](super::Module::log).
    #[doc(alias = "CU_JIT_LOG_VERBOSE")]
    pub fn verbose(mut self) -> Self {
        self.verbose = true;
        self
    }
}

/// The size of a log buffer in bytes. The driver truncates longer logs.
const LOG_BYTES: u16 = 16 << 10;

/// The options and log buffers of one call that loads a module.
pub(super) struct Request {
    options: Vec<CUjit_option>,
    /// A value for each of `options`. [`call`](Self::call) converts each to the pointer that the driver takes, and adds
    /// the options whose values are the addresses of the log buffers.
    numbers: Vec<usize>,
    info: Vec<u8>,
    error: Vec<u8>,
}

impl Request {
    pub(super) fn new(wanted: &JitOptions) -> Self {
        let mut request = Self {
            options: Vec::new(),
            numbers: Vec::new(),
            info: vec![0; LOG_BYTES.into()],
            error: vec![0; LOG_BYTES.into()],
        };
        let number = |value: Option<u32>| value.map(|value| value as usize);
        let flag = |wanted: bool| wanted.then_some(1);
        let cache_mode = wanted.cache_mode.map(|mode| match mode {
            CacheMode::Unspecified => CUjit_cacheMode::CU_JIT_CACHE_OPTION_NONE.0,
            CacheMode::Global => CUjit_cacheMode::CU_JIT_CACHE_OPTION_CG.0,
            CacheMode::All => CUjit_cacheMode::CU_JIT_CACHE_OPTION_CA.0,
        });
        for (option, value) in [
            (CUjit_option::CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES, Some(LOG_BYTES.into())),
            (CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, Some(LOG_BYTES.into())),
            (CUjit_option::CU_JIT_MAX_REGISTERS, number(wanted.max_registers)),
            (CUjit_option::CU_JIT_OPTIMIZATION_LEVEL, number(wanted.optimization_level)),
            (CUjit_option::CU_JIT_TARGET, number(wanted.target.map(|target| target.0))),
            (CUjit_option::CU_JIT_CACHE_MODE, number(cache_mode)),
            (CUjit_option::CU_JIT_GENERATE_LINE_INFO, flag(wanted.line_info)),
            (CUjit_option::CU_JIT_GENERATE_DEBUG_INFO, flag(wanted.debug_info)),
            (CUjit_option::CU_JIT_LOG_VERBOSE, flag(wanted.verbose)),
        ] {
            if let Some(value) = value {
                request.options.push(option);
                request.numbers.push(value);
            }
        }
        request
    }

    /// Calls `load` with the number of options, the options and their values. The driver fills both log buffers. In the
    /// array of values, it replaces the size of each buffer by the number of bytes written.
    pub(super) fn call<R>(
        &mut self,
        load: impl FnOnce(c_uint, *mut CUjit_option, *mut *mut c_void) -> R,
    ) -> R {
        let mut options = self.options.clone();
        options.extend([CUjit_option::CU_JIT_INFO_LOG_BUFFER, CUjit_option::CU_JIT_ERROR_LOG_BUFFER]);
        let mut values: Vec<*mut c_void> =
            self.numbers.iter().map(|&number| std::ptr::without_provenance_mut(number)).collect();
        values.extend([self.info.as_mut_ptr().cast(), self.error.as_mut_ptr().cast()]);
        // There are at most eleven options.
        load(options.len() as c_uint, options.as_mut_ptr(), values.as_mut_ptr())
    }

    pub(super) fn info_log(&self) -> String {
        text(&self.info)
    }

    pub(super) fn error_log(&self) -> String {
        text(&self.error)
    }
}

/// Returns the trimmed text up to the first NUL, or all of it if there is no NUL.
fn text(log: &[u8]) -> String {
    let text = log.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).trim().to_owned()
}
