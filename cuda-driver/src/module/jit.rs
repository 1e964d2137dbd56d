//! What is asked of the driver's compiler, and what it says.

use std::ffi::{c_uint, c_void};

use cuda_driver_sys::{CUjit_cacheMode, CUjit_option, CUjit_target};

/// What a kernel's loads from global memory leave in the caches, where the code does not say it itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CacheMode {
    /// As the compiler thinks best (`CU_JIT_CACHE_OPTION_NONE`).
    Unspecified,
    /// The second-level cache only.
    Global,
    /// The first level too.
    All,
}

/// How PTX is compiled. Made by [`new`](Self::new), which leaves all to the driver.
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
    /// The driver's own choices, for the context's device.
    pub fn new() -> Self {
        Self::default()
    }

    /// At most so many registers for a thread; what does not fit goes to local memory.
    #[doc(alias = "CU_JIT_MAX_REGISTERS")]
    pub fn max_registers(mut self, registers: u32) -> Self {
        self.max_registers = Some(registers);
        self
    }

    /// From 0, none, to 4, all, which is the default. The driver does not refuse a larger number.
    #[doc(alias = "CU_JIT_OPTIMIZATION_LEVEL")]
    pub fn optimization_level(mut self, level: u32) -> Self {
        self.optimization_level = Some(level);
        self
    }

    /// The architecture to compile for, instead of the device's: `CU_TARGET_COMPUTE_90`. One that the device cannot
    /// run is refused.
    #[doc(alias = "CU_JIT_TARGET")]
    pub fn target(mut self, target: CUjit_target) -> Self {
        self.target = Some(target);
        self
    }

    /// What global loads leave in the caches.
    #[doc(alias = "CU_JIT_CACHE_MODE")]
    pub fn cache_mode(mut self, mode: CacheMode) -> Self {
        self.cache_mode = Some(mode);
        self
    }

    /// Keeps line numbers for profilers; the code stays the same.
    #[doc(alias = "CU_JIT_GENERATE_LINE_INFO")]
    pub fn line_info(mut self) -> Self {
        self.line_info = true;
        self
    }

    /// Keeps what a debugger needs; the code is not optimised.
    #[doc(alias = "CU_JIT_GENERATE_DEBUG_INFO")]
    pub fn debug_info(mut self) -> Self {
        self.debug_info = true;
        self
    }

    /// Lets [`Module::log`](super::Module::log) name each kernel's registers and memory.
    #[doc(alias = "CU_JIT_LOG_VERBOSE")]
    pub fn verbose(mut self) -> Self {
        self.verbose = true;
        self
    }
}

/// Bytes of a log; the driver cuts what is longer.
const LOG_BYTES: u16 = 16 << 10;

/// Options and log buffers of one call.
pub(super) struct Request {
    options: Vec<CUjit_option>,
    /// Each a number in a pointer's place, but for the buffers.
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

    /// Calls `load` with the number of options, the options and their values. The driver writes into both logs, and
    /// the bytes that it wrote over the values that say the logs' sizes.
    pub(super) fn call<R>(
        &mut self,
        load: impl FnOnce(c_uint, *mut CUjit_option, *mut *mut c_void) -> R,
    ) -> R {
        let mut options = self.options.clone();
        options.extend([CUjit_option::CU_JIT_INFO_LOG_BUFFER, CUjit_option::CU_JIT_ERROR_LOG_BUFFER]);
        let mut values: Vec<*mut c_void> =
            self.numbers.iter().map(|&number| std::ptr::without_provenance_mut(number)).collect();
        values.extend([self.info.as_mut_ptr().cast(), self.error.as_mut_ptr().cast()]);
        // At most eleven.
        load(options.len() as c_uint, options.as_mut_ptr(), values.as_mut_ptr())
    }

    pub(super) fn info_log(&self) -> String {
        text(&self.info)
    }

    pub(super) fn error_log(&self) -> String {
        text(&self.error)
    }
}

/// Up to the first NUL; of a log that fills its buffer, all.
fn text(log: &[u8]) -> String {
    let text = log.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).trim().to_owned()
}
