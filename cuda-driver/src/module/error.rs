//! Errors of loading a module, of finding an item in it, and of launching a kernel.

use cuda_driver_sys::{CUresult, Version};

use crate::driver_error::DriverError;

/// An error of loading a module or of finding an item in it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModuleError {
    /// The PTX text is empty, or has only white space.
    #[error("the PTX text is empty: it starts with .version, .target and .address_size")]
    Empty,

    /// A text contains a NUL byte. The driver would read the text only up to it. One NUL at the end of PTX is allowed.
    #[error("the {what} has a NUL byte at {at}, where the driver would take it for ended")]
    Nul {
        /// A name for the text, such as `PTX`.
        what: &'static str,
        /// The offset of the NUL in bytes.
        at: usize,
    },

    /// The image is neither a cubin nor a fat binary.
    #[error(
        "the image ({bytes} bytes, which start with {start:02x?}) is neither a cubin (an ELF file) nor a fat binary; \
         PTX text is for `Module::load_ptx`"
    )]
    UnknownImage {
        /// The size of the image in bytes.
        bytes: usize,
        /// The first bytes of the image, at most four.
        start: Vec<u8>,
    },

    /// The image is shorter than its headers say.
    #[error("the {kind} is cut off: its head says {expected} bytes, but it has {found}")]
    Truncated {
        /// The kind of image.
        kind: &'static str,
        /// The length in bytes that the headers say.
        expected: u64,
        /// The actual length in bytes.
        found: usize,
    },

    /// The driver refused to load the code.
    #[error("{module} could not be loaded{advice}{}", Log(log))]
    Refused {
        /// A description of the module's source.
        module: String,
        /// An explanation of the driver's error code, with advice, worded as the end of a sentence. Empty for an error
        /// code without an explanation.
        advice: String,
        /// The driver's error log, which names the lines of PTX with errors; may be empty.
        log: String,
        /// The driver's error.
        #[source]
        cause: Box<DriverError>,
    },

    /// The module has no kernel of this name.
    #[error("{module} has no kernel `{name}`{}", Known(known))]
    NoSuchFunction {
        /// The name that was looked up.
        name: String,
        /// A description of the module's source.
        module: String,
        /// The names of the module's kernels. Empty if the driver cannot list them, as before CUDA 12.4.
        known: Vec<String>,
    },

    /// The module has no variable of this name.
    #[error("{module} has no variable `{name}` of .global or .const space")]
    NoSuchGlobal {
        /// The name that was looked up.
        name: String,
        /// A description of the module's source.
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

    /// The driver's error log; `None` unless the error is [`Refused`](Self::Refused).
    #[must_use]
    pub fn log(&self) -> Option<&str> {
        match self {
            Self::Refused { log, .. } => Some(log),
            _ => None,
        }
    }
}

/// Displays a log as the end of a message; nothing if the log is empty.
struct Log<'a>(&'a str);

impl std::fmt::Display for Log<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(f, "; the driver's log:\n{}", self.0) }
    }
}

/// Displays a list of names as the end of a message; nothing if the list is empty.
struct Known<'a>(&'a [String]);

impl std::fmt::Display for Known<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(f, "; it has: {}", self.0.join(", ")) }
    }
}

/// Returns advice for a launch that exceeds the limit `limit_name`.
fn below(limit_name: &str) -> &'static str {
    match limit_name {
        "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES" => {
            "use less, or allow more by `Function::set_max_dynamic_shared_bytes` first"
        }
        grid if grid.contains("GRID_DIM") => "launch a smaller grid, whose threads each do more",
        _ => "launch smaller blocks",
    }
}

/// A mistake in a launch. This crate found the mistake before the call of the driver's launch function, so nothing was
/// launched.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// The size of the grid or the block along one axis is zero.
    #[error("kernel `{kernel}` was to be launched with {what} of 0: skip a launch that has nothing to do")]
    Zero {
        /// The kernel's name.
        kernel: String,
        /// The name of the size, such as `grid.x`.
        what: &'static str,
    },

    /// A size exceeds the limit of the device or of the kernel.
    #[error(
        "kernel `{kernel}` was to be launched with {what} of {found}, but {limit_name} is {limit}: {instead}",
        instead = below(.limit_name)
    )]
    OverLimit {
        /// The kernel's name.
        kernel: String,
        /// The name of the size, such as `grid.x` or `threads of a block`.
        what: &'static str,
        /// The requested value.
        found: u64,
        /// The limit.
        limit: u64,
        /// The name of the attribute that holds the limit.
        /// [`Function::set_max_dynamic_shared_bytes`](super::Function::set_max_dynamic_shared_bytes) can raise the
        /// limit [`CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`].
        ///
        /// [`CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`]: cuda_driver_sys::CUfunction_attribute
        limit_name: &'static str,
    },

    /// The grid is not a whole number of clusters along one axis, or the size of a cluster along that axis is 0.
    #[error(
        "kernel `{kernel}` was to be launched with {what} of {grid} blocks in clusters of {cluster}: along every axis \
         the grid must be a multiple of the cluster, which is 1 or more (round the grid up, and let the blocks past \
         the end do nothing)"
    )]
    PartialCluster {
        /// The kernel's name.
        kernel: String,
        /// The name of the grid's size along the axis, such as `grid.x`.
        what: &'static str,
        /// The number of blocks of the grid along the axis.
        grid: u32,
        /// The number of blocks of a cluster along the axis.
        cluster: u32,
    },

    /// The device does not support a feature that the launch requests.
    #[error("kernel `{kernel}` was to be launched {what}, but {limit_name} of device {device} is 0")]
    Unsupported {
        /// The kernel's name.
        kernel: String,
        /// The requested feature.
        what: &'static str,
        /// The device's ordinal.
        device: u32,
        /// The name of the attribute that reports the feature.
        limit_name: &'static str,
    },

    /// The number of arguments differs from the kernel's number of parameters.
    #[error("kernel `{kernel}` takes {expected} parameters, but was given {found}")]
    ParameterCount {
        /// The kernel's name.
        kernel: String,
        /// The number of parameters.
        expected: usize,
        /// The number of arguments.
        found: usize,
    },

    /// The size of an argument differs from the size of its parameter.
    #[error("kernel `{kernel}` takes {expected} bytes as parameter {index} (from 0), but was given {found}")]
    ParameterSize {
        /// The kernel's name.
        kernel: String,
        /// The index of the parameter, from 0.
        index: usize,
        /// The size of the parameter in bytes.
        expected: usize,
        /// The size of the argument in bytes.
        found: usize,
    },
}
