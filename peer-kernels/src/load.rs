//! Loads the kernels of a context, once.

use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use cuda_driver::Context;
use cuda_driver::graph::RelaxedCapture;
use cuda_driver::module::{Function, JitOptions, Module};

use super::code::{LEAST_CAPABILITY, SIGNALS, UNITS};
use super::{Kernel, KernelError, MOST_RANKS, Ranks};

/// The kernels of a context. A handle, cheap to clone; the kernels are unloaded when the last handle is dropped.
///
/// # What a launch asks of the caller
/// Every launch is `unsafe`, because no type can check the work of the device. The caller promises that the following
/// is true until the kernel has completed. If a graph captures the kernel, it must be true in every run of the graph:
/// - **Ranks**: [`Ranks`] is correct. It has two arrays of `world` addresses, one of buffers and one of pads. Each pad
///   has the length of [`PadLayout::bytes`](super::PadLayout::bytes), is aligned to 128 bytes, and is zero before the
///   first kernel. The fault record is the rank's own [`FaultRecord`](super::FaultRecord). The stream's device may read
///   and write all of this memory.
/// - **Order**: launches that use the same [channels](super::PadLayout) of the same pads are ordered on each rank: on
///   one stream, or by events. All collectives use the same channels, so on each rank only one collective may run at a
///   time.
/// - **Life**: this handle, or a clone of it, stays alive. A captured launch keeps this rank's buffer for the graph
///   only if the array of buffers is registered ([`OwnBuffer`](super::OwnBuffer)).
/// - **Progress**: the ranks' kernels can run at the same time. If ranks share a device, it must have room for the
///   thread blocks of all their kernels at once.
#[derive(Debug, Clone)]
pub struct Kernels {
    inner: Arc<LoadedKernels>,
}

#[derive(Debug)]
struct LoadedKernels {
    context: Context,
    units: [OnceLock<Vec<Function>>; UNITS.len()],
    loading: Mutex<()>,
}

/// The loaded kernels of every context, so that [`Kernels::load`] does not load them again while a handle exists.
static LOADED: Mutex<Vec<Weak<LoadedKernels>>> = Mutex::new(Vec::new());

impl Kernels {
    /// Returns the kernels of a context. If no handle to them exists, this call loads those of barrier, put and wait,
    /// which takes milliseconds. Each other unit (PTX module) is loaded by the first launch of one of its kernels, or
    /// by [`prepare`](Self::prepare).
    ///
    /// # Errors
    /// [`KernelError::DeviceTooOld`] if the device is older than [`LEAST_CAPABILITY`]. [`KernelError::Driver`] if a
    /// device query or the loading fails.
    pub fn load(context: &Context) -> Result<Self, KernelError> {
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        loaded.retain(|weak| weak.strong_count() > 0);
        if let Some(inner) = loaded.iter().filter_map(Weak::upgrade).find(|inner| inner.context == *context) {
            return Ok(Self { inner });
        }
        let device = context.device();
        let found = device.compute_capability()?;
        if found < LEAST_CAPABILITY {
            return Err(KernelError::DeviceTooOld { device: device.ordinal(), found });
        }
        let (units, loading) = (std::array::from_fn(|_| OnceLock::new()), Mutex::new(()));
        let kernels = Self { inner: Arc::new(LoadedKernels { context: context.clone(), units, loading }) };
        kernels.unit(SIGNALS)?;
        loaded.push(Arc::downgrade(&kernels.inner));
        Ok(kernels)
    }

    /// The context into which the kernels are loaded.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.inner.context
    }

    /// Returns the functions of a unit, in the order of its entries. The first call for a unit loads it.
    fn unit(&self, unit: usize) -> Result<&[Function], KernelError> {
        let cell = &self.inner.units[unit];
        if let Some(functions) = cell.get() {
            return Ok(functions);
        }
        let _loading = self.inner.loading.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(functions) = cell.get() {
            return Ok(functions);
        }
        // During an open capture, the driver could refuse to load the module, or the load could invalidate the capture.
        // The relaxed mode prevents both.
        let context = &self.inner.context;
        let _relaxed = RelaxedCapture::enter(context.driver())?;
        let unit = &UNITS[unit];
        let module = Module::load_ptx(context, unit.ptx(), &JitOptions::new())?;
        let functions = unit.entries.iter().map(|name| module.function(name));
        let functions = functions.collect::<Result<Vec<_>, _>>()?;
        Ok(cell.get_or_init(|| functions))
    }

    pub(crate) fn function(&self, unit: usize, entry: usize) -> Result<&Function, KernelError> {
        self.unit(unit).map(|functions| &functions[entry])
    }
}

impl Ranks {
    /// Rejects values that no kernel supports.
    pub(crate) fn check(&self, kernel: Kernel) -> Result<(), KernelError> {
        let Self { rank, world, .. } = *self;
        if self.deadline_ns == 0 {
            return Err(KernelError::NoDeadline { kernel });
        }
        if !(1..=MOST_RANKS).contains(&world) {
            return Err(KernelError::WorldSize { kernel, world });
        }
        self.check_rank(kernel, "as", rank)
    }

    /// Rejects `rank` if it is not below the number of ranks. `role` is the rank's role in the call, for the error.
    pub(crate) fn check_rank(
        &self,
        kernel: Kernel,
        role: &'static str,
        rank: u32,
    ) -> Result<(), KernelError> {
        let world = self.world;
        if rank < world { Ok(()) } else { Err(KernelError::NoSuchRank { kernel, what: role, rank, world }) }
    }
}
