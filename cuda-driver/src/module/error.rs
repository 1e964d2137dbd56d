//! Errors of loading a module and of launching a kernel.

use cuda_driver_sys::{CUresult, Version};

use crate::driver_error::DriverError;

/// Why a module, or an item of one, is not available.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModuleError {
    /// The PTX text is empty.
    #[error("the PTX text is empty: it starts with .version, .target and .address_size")]
    Empty,

    /// A text that the driver reads up to its NUL has one inside.
    #[error("the {what} has a NUL byte at {at}, where the driver would take it for ended")]
    Nul {
        /// The text.
        what: &'static str,
        /// The NUL's offset in bytes.
        at: usize,
    },

    /// The image is neither a cubin nor a fat binary.
    #[error(
        "the image ({bytes} bytes, which start with {start:02x?}) is neither a cubin (an ELF file) nor a fat binary; \
         PTX text is for `Module::load_ptx`"
    )]
    UnknownImage {
        /// Its size in bytes.
        bytes: usize,
        /// Its first bytes, up to four.
        start: Vec<u8>,
    },

    /// The image is shorter than its header says.
    #[error("the {kind} is cut off: its head says {expected} bytes, but it has {found}")]
    Truncated {
        /// The kind of image.
        kind: &'static str,
        /// The length that the header says.
        expected: u64,
        /// The actual length.
        found: usize,
    },

    /// The driver did not take the code.
    #[error("{module} could not be loaded{advice}{}", Log(log))]
    Refused {
        /// The module's source.
        module: String,
        /// The meaning of the driver's code and advice, as the end of a sentence; empty if none is known.
        advice: String,
        /// The driver's error log, which names the lines of PTX that it did not take; may be empty.
        log: String,
        /// The driver's answer.
        #[source]
        cause: Box<DriverError>,
    },

    /// The module has no kernel of this name.
    #[error("{module} has no kernel `{name}`{}", Known(known))]
    NoSuchFunction {
        /// The name asked for.
        name: String,
        /// The module's source.
        module: String,
        /// The names that it has; empty if the driver does not report them (below 12.4).
        known: Vec<String>,
    },

    /// The module has no variable of this name.
    #[error("{module} has no variable `{name}` of .global or .const space")]
    NoSuchGlobal {
        /// The name asked for.
        name: String,
        /// The module's source.
        module: String,
    },
}

impl ModuleError {
    pub(super) fn refused(module: String, log: String, driver: Version, cause: DriverError) -> Self {
        let advice = match cause.code {
            CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION => format!(
                ": its PTX version is newer than this driver (CUDA {driver}) takes; generate it with a toolkit of that \
                 release or before, or install a newer driver"
            ),
            CUresult::CUDA_ERROR_INVALID_IMAGE => {
                ": the driver does not know it for code; PTX starts with .version".to_owned()
            }
            CUresult::CUDA_ERROR_INVALID_PTX => {
                ": its PTX is wrong, or its .target is newer than the device".to_owned()
            }
            CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU => {
                ": it has no code for this device; build it for the device's architecture, or with PTX".to_owned()
            }
            CUresult::CUDA_ERROR_JIT_COMPILER_NOT_FOUND => {
                ": the driver's compiler, libnvidia-ptxjitcompiler.so.1, was not found; it comes with the driver, and \
                 into containers with the capability `compute`"
                    .to_owned()
            }
            CUresult::CUDA_ERROR_JIT_COMPILATION_DISABLED => {
                ": compilation is switched off; unset CUDA_DISABLE_PTX_JIT, or load a cubin".to_owned()
            }
            _ => String::new(),
        };
        Self::Refused { module, advice, log, cause: Box::new(cause) }
    }

    /// The driver's error log, if it was the driver that refused.
    #[must_use]
    pub fn log(&self) -> Option<&str> {
        match self {
            Self::Refused { log, .. } => Some(log),
            _ => None,
        }
    }
}

/// A log as the end of a message.
struct Log<'a>(&'a str);

impl std::fmt::Display for Log<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(f, "; the driver's log:\n{}", self.0) }
    }
}

/// A list of names as the end of a message.
struct Known<'a>(&'a [String]);

impl std::fmt::Display for Known<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(f, "; it has: {}", self.0.join(", ")) }
    }
}

/// Advice for a launch that exceeds a limit.
fn below(limit_name: &str) -> &'static str {
    match limit_name {
        "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES" => {
            "use less, or allow more by `Function::set_max_dynamic_shared_bytes` first"
        }
        grid if grid.contains("GRID_DIM") => "launch a smaller grid, whose threads each do more",
        _ => "launch smaller blocks",
    }
}

/// Why a kernel was not launched; the driver was not asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// The extent along one axis is zero.
    #[error("kernel `{kernel}` was to be launched with {what} of 0: skip a launch that has nothing to do")]
    Zero {
        /// The kernel.
        kernel: String,
        /// The axis, such as `grid.x`.
        what: &'static str,
    },

    /// An extent or size exceeds the limit of the device or the kernel.
    #[error(
        "kernel `{kernel}` was to be launched with {what} of {found}, but {limit_name} is {limit}: {instead}",
        instead = below(.limit_name)
    )]
    OverLimit {
        /// The kernel.
        kernel: String,
        /// The quantity, such as `grid.x` or `threads of a block`.
        what: &'static str,
        /// The requested value.
        found: u64,
        /// The limit.
        limit: u64,
        /// The attribute with the limit; for [`CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`] there is
        /// [`Function::set_max_dynamic_shared_bytes`](super::Function::set_max_dynamic_shared_bytes).
        ///
        /// [`CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`]: cuda_driver_sys::CUfunction_attribute
        limit_name: &'static str,
    },

    /// The grid is no whole number of clusters.
    #[error(
        "kernel `{kernel}` was to be launched with {what} of {grid} blocks in clusters of {cluster}: along every axis \
         the grid must be a multiple of the cluster, which is 1 or more (round the grid up, and let the blocks past \
         the end do nothing)"
    )]
    PartialCluster {
        /// The kernel.
        kernel: String,
        /// The axis.
        what: &'static str,
        /// The grid's blocks along it.
        grid: u32,
        /// A cluster's blocks along it.
        cluster: u32,
    },

    /// The device cannot do what the launch asks for.
    #[error("kernel `{kernel}` was to be launched {what}, but {limit_name} of device {device} is 0")]
    Unsupported {
        /// The kernel.
        kernel: String,
        /// The requested feature.
        what: &'static str,
        /// The device's ordinal.
        device: u32,
        /// The attribute that reports the feature.
        limit_name: &'static str,
    },

    /// The number of arguments is not the kernel's number of parameters.
    #[error("kernel `{kernel}` takes {expected} parameters, but was given {found}")]
    ParameterCount {
        /// The kernel.
        kernel: String,
        /// The number of parameters.
        expected: usize,
        /// The number of arguments.
        found: usize,
    },

    /// The size of an argument is not that of its parameter.
    #[error("kernel `{kernel}` takes {expected} bytes as parameter {index} (from 0), but was given {found}")]
    ParameterSize {
        /// The kernel.
        kernel: String,
        /// The parameter, from 0.
        index: usize,
        /// Its size in bytes.
        expected: usize,
        /// The argument's size in bytes.
        found: usize,
    },
}
