//! A kernel: its attributes, parameters and occupancy.

use std::ffi::c_int;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use cuda_driver_sys::{Api, CUfunction, CUfunction_attribute, CUresult};

use super::{LaunchError, Module};
use crate::call::{call, check, code};
use crate::{Context, Result};

/// A kernel of a [`Module`]. The value is a handle, cheap to clone, and keeps the module loaded.
#[derive(Clone)]
pub struct Function {
    inner: Arc<Inner>,
}

struct Inner {
    module: Module,
    name: String,
    raw: CUfunction,
    max_threads: u32,
    /// The limit of a block's dynamic shared memory in bytes, as the driver last reported it or
    /// [`Function::set_max_dynamic_shared_bytes`] last set it. [`Function::set_attribute`] or another handle of the
    /// kernel may have changed the limit since.
    max_dynamic_shared: AtomicU32,
    /// The sizes of the parameters in bytes; `None` if the driver does not report them.
    parameters: Option<Vec<usize>>,
}

// SAFETY: a function's handle may be used from every thread.
unsafe impl Send for Inner {}
// SAFETY: as above; the driver synchronises calls from several threads.
unsafe impl Sync for Inner {}

/// The resources and the target of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FunctionAttributes {
    /// The most threads in a block, given the registers that each thread needs.
    pub max_threads_per_block: u32,
    /// Shared memory of a block that the code itself declares, in bytes.
    pub static_shared_bytes: u32,
    /// The most shared memory of a block that a launch can add, in bytes.
    pub max_dynamic_shared_bytes: u32,
    /// Constant memory that the code itself declares, in bytes.
    pub constant_bytes: u32,
    /// Local memory of a thread in bytes.
    pub local_bytes: u32,
    /// Registers of a thread.
    pub registers: u32,
    /// The PTX's target, ten times major plus minor: 70 for `compute_70`.
    pub ptx_version: u32,
    /// The architecture of the machine code, counted like `ptx_version`.
    pub binary_version: u32,
}

/// The shape of a launch that fills the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SuggestedLaunch {
    /// Threads of a block.
    pub block_threads: u32,
    /// The number of such blocks that fill the device.
    pub grid_blocks: u32,
}

impl Function {
    /// Makes the function from its handle. Requires that the module's context is current.
    pub(super) fn new(module: Module, name: &str, raw: CUfunction) -> Result<Self> {
        let api = module.api();
        if api.table().cuFuncLoad.is_some() {
            // SAFETY: the function is of a live module.
            unsafe { call!(api, cuFuncLoad(raw)) }?;
        }
        let ask = |attribute| attribute_of(api, raw, attribute).map(unsigned);
        let max_threads = ask(CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?;
        let max_dynamic_shared =
            ask(CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)?.into();
        let parameters = parameters_of(api, raw)?;
        let name = name.to_owned();
        let inner = Inner { module, name, raw, max_threads, max_dynamic_shared, parameters };
        Ok(Self { inner: Arc::new(inner) })
    }

    fn api(&self) -> &Api {
        self.inner.module.api()
    }

    /// The name by which the function was looked up.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// The module that contains the function.
    #[must_use]
    pub fn module(&self) -> &Module {
        &self.inner.module
    }

    pub(super) fn context(&self) -> &Context {
        self.inner.module.context()
    }

    /// The driver's handle, valid while this function, or its module, lives.
    #[must_use]
    pub fn raw(&self) -> CUfunction {
        self.inner.raw
    }

    /// The sizes of the kernel's parameters in bytes; `None` below CUDA 12.4, where the driver does not report them.
    #[doc(alias = "cuFuncGetParamInfo")]
    #[must_use]
    pub fn parameter_sizes(&self) -> Option<&[usize]> {
        self.inner.parameters.as_deref()
    }

    /// An attribute of the kernel, as the driver reports it.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuFuncGetAttribute`: `CUDA_ERROR_INVALID_VALUE` for an attribute
    /// that is newer than the driver.
    #[doc(alias = "cuFuncGetAttribute")]
    pub fn attribute(&self, attribute: CUfunction_attribute) -> Result<i32> {
        let _current = self.context().enter()?;
        attribute_of(self.api(), self.raw(), attribute)
    }

    /// The resources and the target of the kernel.
    ///
    /// # Errors
    /// As [`attribute`](Self::attribute).
    pub fn attributes(&self) -> Result<FunctionAttributes> {
        use CUfunction_attribute as A;
        let _current = self.context().enter()?;
        let ask = |attribute| attribute_of(self.api(), self.raw(), attribute).map(unsigned);
        Ok(FunctionAttributes {
            max_threads_per_block: ask(A::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
            static_shared_bytes: ask(A::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?,
            max_dynamic_shared_bytes: ask(A::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)?,
            constant_bytes: ask(A::CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES)?,
            local_bytes: ask(A::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)?,
            registers: ask(A::CU_FUNC_ATTRIBUTE_NUM_REGS)?,
            ptx_version: ask(A::CU_FUNC_ATTRIBUTE_PTX_VERSION)?,
            binary_version: ask(A::CU_FUNC_ATTRIBUTE_BINARY_VERSION)?,
        })
    }

    /// Sets an attribute of the kernel, for every handle of it.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuFuncSetAttribute`: `CUDA_ERROR_INVALID_VALUE` for a value that
    /// the device cannot give, or an attribute that cannot be set.
    #[doc(alias = "cuFuncSetAttribute")]
    pub fn set_attribute(&self, attribute: CUfunction_attribute, value: i32) -> Result<()> {
        let _current = self.context().enter()?;
        // SAFETY: the function is alive; the driver checks both numbers.
        unsafe { call!(self.api(), cuFuncSetAttribute(self.raw(), attribute, value)) }
    }

    /// Allows launches of the kernel to give each block up to `bytes` bytes of dynamic shared memory. By default,
    /// dynamic shared memory and the shared memory that the code declares are together at most 48 KiB per block. This
    /// call can raise the sum of both to the device's `CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN`.
    ///
    /// # Errors
    /// As [`set_attribute`](Self::set_attribute).
    pub fn set_max_dynamic_shared_bytes(&self, bytes: u32) -> Result<()> {
        // A number that does not fit a `c_int` exceeds the memory of every device.
        let value = c_int::try_from(bytes).unwrap_or(c_int::MAX);
        self.set_attribute(CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, value)?;
        self.inner.max_dynamic_shared.store(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Sets the preferred size of a multiprocessor's shared memory while the kernel runs, in percent of
    /// `CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR`; `None` is the driver's choice. The rest of the
    /// on-chip memory is first-level cache. This is a hint that the driver may round or ignore.
    ///
    /// # Errors
    /// As [`set_attribute`](Self::set_attribute), for more than 100.
    pub fn set_shared_carveout(&self, percent: Option<u32>) -> Result<()> {
        let value = percent.map_or(-1, |percent| c_int::try_from(percent).unwrap_or(c_int::MAX));
        self.set_attribute(CUfunction_attribute::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, value)
    }

    /// Returns the number of blocks that can run on one multiprocessor at a time, if each block has `block_threads`
    /// threads and `dynamic_shared_bytes` bytes of dynamic shared memory. In a [cooperative
    /// launch](super::LaunchConfig::cooperative) a grid has at most this number of blocks times the device's
    /// `CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT`.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuOccupancyMaxActiveBlocksPerMultiprocessor`.
    #[doc(alias = "cuOccupancyMaxActiveBlocksPerMultiprocessor")]
    pub fn max_active_blocks(&self, block_threads: u32, dynamic_shared_bytes: usize) -> Result<u32> {
        let _current = self.context().enter()?;
        let threads = c_int::try_from(block_threads).unwrap_or(c_int::MAX);
        let mut blocks: c_int = 0;
        // SAFETY: the function is alive; writes one integer, to a local that outlives the call.
        unsafe {
            call!(
                self.api(),
                cuOccupancyMaxActiveBlocksPerMultiprocessor(
                    &mut blocks,
                    self.raw(),
                    threads,
                    dynamic_shared_bytes
                )
            )
        }?;
        Ok(unsigned(blocks))
    }

    /// Returns the block size that keeps the most threads running, and the number of such blocks that fills the
    /// device. The block size is at most `max_block_threads` threads (0: no limit). Each block has
    /// `dynamic_shared_bytes` bytes of dynamic shared memory.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuOccupancyMaxPotentialBlockSize`.
    #[doc(alias = "cuOccupancyMaxPotentialBlockSize")]
    pub fn suggest_launch(
        &self,
        dynamic_shared_bytes: usize,
        max_block_threads: u32,
    ) -> Result<SuggestedLaunch> {
        let _current = self.context().enter()?;
        let limit = c_int::try_from(max_block_threads).unwrap_or(c_int::MAX);
        let (mut grid, mut block): (c_int, c_int) = (0, 0);
        // SAFETY: the function is alive; no callback is given; writes two integers, to locals that outlive the call.
        unsafe {
            call!(
                self.api(),
                cuOccupancyMaxPotentialBlockSize(
                    &mut grid,
                    &mut block,
                    self.raw(),
                    None,
                    dynamic_shared_bytes,
                    limit
                )
            )
        }?;
        Ok(SuggestedLaunch { block_threads: unsigned(block), grid_blocks: unsigned(grid) })
    }

    pub(super) fn max_threads(&self) -> u32 {
        self.inner.max_threads
    }

    /// Returns the most dynamic shared memory that a block can have, in bytes. Asks the driver again only if `wanted`
    /// exceeds the stored limit.
    pub(super) fn max_dynamic_shared(&self, wanted: u32) -> Result<u32> {
        let known = self.inner.max_dynamic_shared.load(Ordering::Relaxed);
        if wanted <= known {
            return Ok(known);
        }
        let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        let now = unsigned(self.attribute(attribute)?);
        self.inner.max_dynamic_shared.store(now, Ordering::Relaxed);
        Ok(now)
    }

    /// Returns an error if the arguments' sizes differ from those of the parameters. Checks nothing if the driver does
    /// not report the parameters.
    pub(super) fn check_arguments(&self, sizes: &[usize]) -> Result<(), LaunchError> {
        let Some(parameters) = &self.inner.parameters else { return Ok(()) };
        let kernel = || self.inner.name.clone();
        if parameters.len() != sizes.len() {
            let (expected, found) = (parameters.len(), sizes.len());
            return Err(LaunchError::ParameterCount { kernel: kernel(), expected, found });
        }
        match parameters.iter().zip(sizes).position(|(parameter, size)| parameter != size) {
            None => Ok(()),
            Some(index) => {
                let (expected, found) = (parameters[index], sizes[index]);
                Err(LaunchError::ParameterSize { kernel: kernel(), index, expected, found })
            }
        }
    }
}

fn unsigned(value: c_int) -> u32 {
    u32::try_from(value).unwrap_or(0)
}

/// Requires that the function belongs to a live module of the current context.
fn attribute_of(api: &Api, function: CUfunction, attribute: CUfunction_attribute) -> Result<c_int> {
    let mut value: c_int = 0;
    // SAFETY: the function is of a live module; writes one integer, to a local that outlives the call; an unknown
    // attribute is refused.
    unsafe { call!(api, cuFuncGetAttribute(&mut value, attribute, function)) }?;
    Ok(value)
}

/// Returns the sizes of a function's parameters in bytes; `None` if the driver does not report them. The number of
/// parameters is the first index that the driver refuses: drivers below CUDA 13.2 have no query for the number.
fn parameters_of(api: &Api, function: CUfunction) -> Result<Option<Vec<usize>>> {
    if api.table().cuFuncGetParamInfo.is_none() {
        return Ok(None);
    }
    /// The most bytes that all parameters together can have, so also a bound on their number.
    const MOST: usize = 32764;
    let mut sizes = Vec::new();
    while sizes.len() < MOST {
        let (mut offset, mut size) = (0, 0);
        // SAFETY: the function is of a live module; writes two sizes, to locals that outlive the call.
        match unsafe { code!(api, cuFuncGetParamInfo(function, sizes.len(), &mut offset, &mut size)) }? {
            CUresult::CUDA_ERROR_INVALID_VALUE => break,
            code => check(api, "cuFuncGetParamInfo", code)?,
        }
        sizes.push(size);
    }
    Ok(Some(sizes))
}

impl PartialEq for Function {
    fn eq(&self, other: &Self) -> bool {
        self.raw() == other.raw() && self.module() == other.module()
    }
}

impl Eq for Function {}

impl fmt::Debug for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Function({} of {:?})", self.inner.name, self.inner.module)
    }
}
