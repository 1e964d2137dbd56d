//! Kernels: host functions that replace kernels, registered by the kernel's name.
//!
//! One call of the function is one launch of the whole grid. The function reads its parameters and accesses memory
//! through [`crate::memory::View`]s, so it gets the faults that the kernel would get.

mod modules;
pub(crate) mod ptx;

use std::sync::Arc;

pub(crate) use self::modules::{Function, Kernels, Module};
use crate::fault::Fault;
pub use crate::nccl::reduce::{Element, Op, reduce};
use crate::stream::{Exec, Launched, Work};

/// The host function that runs in place of a kernel.
pub type Body = dyn Fn(&Launch<'_>) -> Result<(), Fault> + Send + Sync;

/// One launch, as passed to its body.
#[derive(Debug)]
pub struct Launch<'a> {
    /// The device, the stream, and access to memory.
    pub exec: &'a Exec,
    /// Blocks in the grid: x, y, z.
    pub grid: [u32; 3],
    /// Threads in a block: x, y, z.
    pub block: [u32; 3],
    /// Dynamic shared memory of a block in bytes.
    pub shared: u32,
    parameters: &'a [Vec<u8>],
}

impl Launch<'_> {
    /// Returns a parameter's bytes, as they were when the kernel was launched.
    ///
    /// # Errors
    /// A trap, if the kernel was registered with fewer parameters.
    pub fn bytes(&self, index: usize) -> Result<&[u8], Fault> {
        let trap = || Fault::Trap(format!("parameter {index} of a kernel with {}", self.parameters.len()));
        self.parameters.get(index).map(Vec::as_slice).ok_or_else(trap)
    }

    /// A parameter of 4 bytes.
    ///
    /// # Errors
    /// A trap, if there is none of this size.
    pub fn u32(&self, index: usize) -> Result<u32, Fault> {
        self.array(index).map(u32::from_ne_bytes)
    }

    /// A parameter of 8 bytes, such as a device pointer.
    ///
    /// # Errors
    /// A trap, if there is none of this size.
    pub fn u64(&self, index: usize) -> Result<u64, Fault> {
        self.array(index).map(u64::from_ne_bytes)
    }

    fn array<const N: usize>(&self, index: usize) -> Result<[u8; N], Fault> {
        let bytes = self.bytes(index)?;
        let trap =
            |_| Fault::Trap(format!("parameter {index} has {} bytes, {N} were asked for", bytes.len()));
        bytes.try_into().map_err(trap)
    }
}

/// A registered kernel.
pub(crate) struct Kernel {
    pub(crate) name: String,
    /// Sizes of its parameters in bytes.
    pub(crate) parameters: Vec<usize>,
    body: Box<Body>,
}

impl Kernel {
    /// Returns the offset and size of a parameter in bytes. Each is aligned to its size, as C's scalars are.
    pub(crate) fn parameter(&self, index: usize) -> Option<(usize, usize)> {
        let mut end = 0_usize;
        let mut places = self.parameters.iter().map(|&size| {
            let start = end.next_multiple_of(size.next_power_of_two().min(8));
            end = start + size;
            (start, size)
        });
        places.nth(index)
    }
}

impl std::fmt::Debug for Kernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kernel").field("name", &self.name).field("parameters", &self.parameters).finish()
    }
}

/// A kernel with the parameters of a launch.
pub(crate) struct Invocation {
    pub(crate) function: Arc<Function>,
    pub(crate) kernel: Arc<Kernel>,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared: u32,
    pub(crate) parameters: Arc<Vec<Vec<u8>>>,
}

impl Work for Invocation {
    fn describe(&self) -> String {
        format!("kernel {} over {:?} blocks of {:?} threads", self.kernel.name, self.grid, self.block)
    }

    fn launch(&self) -> Launched {
        let (function, kernel) = (self.function.clone(), self.kernel.clone());
        let parameters = self.parameters.clone();
        let Self { grid, block, shared, .. } = *self;
        Box::new(move |exec| {
            if !function.is_loaded() {
                return Err(Fault::Unloaded { kernel: kernel.name.clone() });
            }
            (kernel.body)(&Launch { exec, grid, block, shared, parameters: &parameters })
        })
    }
}
