//! Launches whose arguments are slices, views and values.

use super::{Argument, Dim, Function, LaunchConfig, Parameter};
use crate::graph::{BoundMemory, DuringCapture, enqueue};
use crate::slice::require_context;
use crate::{DevicePtr, DeviceSlice, DeviceView, DeviceViewMut, Element, Error, Result, Stream};

/// A launch in preparation. [`Stream::launch_builder`] returns one.
///
/// The launch has one block of one thread, unless [`grid`](Self::grid), [`block`](Self::block) or
/// [`config`](Self::config) sets another shape.
#[must_use = "nothing is launched before `launch`"]
pub struct LaunchArgs<'a> {
    stream: &'a Stream,
    function: &'a Function,
    config: LaunchConfig,
    arguments: Vec<Slot<'a>>,
    /// The memory of the slices and views among the arguments.
    memory: Vec<BoundMemory>,
    /// The error of the first slice or view of another context than the stream's. [`launch`](Self::launch) returns it.
    refused: Option<Error>,
}

/// The source of an argument's bytes.
enum Slot<'a> {
    Value(Argument<'a>),
    Address(DevicePtr),
}

impl Slot<'_> {
    fn argument(&self) -> Argument<'_> {
        match self {
            Self::Value(argument) => *argument,
            Self::Address(address) => Argument::of(address),
        }
    }
}

/// An argument of a launch: a reference to a [`Parameter`], a [`DeviceSlice`] by `&` or `&mut`, a [`DeviceView`] by
/// value, or a [`DeviceViewMut`] by `&mut`. A reference to a [`Parameter`] passes its value. A slice or view passes the
/// address of its first element ([`DeviceSlice::device_ptr`]). A kernel may write to a slice or view only if the
/// argument borrows it exclusively.
pub trait KernelArgument<'a>: sealed::Push<'a> {}

impl<'a, A: sealed::Push<'a>> KernelArgument<'a> for A {}

mod sealed {
    use super::LaunchArgs;

    pub trait Push<'a> {
        fn push(self, launch: &mut LaunchArgs<'a>);
    }
}

impl<'a, P: Parameter> sealed::Push<'a> for &'a P {
    fn push(self, launch: &mut LaunchArgs<'a>) {
        launch.arguments.push(Slot::Value(Argument::of(self)));
    }
}

impl<'a, T: Element> sealed::Push<'a> for DeviceView<'a, T> {
    fn push(self, launch: &mut LaunchArgs<'a>) {
        if let Err(error) = require_context(self.memory(), launch.stream) {
            launch.refused.get_or_insert(error);
        }
        launch.arguments.push(Slot::Address(self.device_ptr()));
        launch.memory.push(self.memory().clone());
    }
}

impl<'a, T: Element> sealed::Push<'a> for &'a DeviceSlice<T> {
    fn push(self, launch: &mut LaunchArgs<'a>) {
        self.as_view().push(launch);
    }
}

impl<'a, T: Element> sealed::Push<'a> for &'a mut DeviceSlice<T> {
    fn push(self, launch: &mut LaunchArgs<'a>) {
        self.as_view().push(launch);
    }
}

impl<'a, T: Element> sealed::Push<'a> for &'a mut DeviceViewMut<'_, T> {
    fn push(self, launch: &mut LaunchArgs<'a>) {
        self.as_view().push(launch);
    }
}

impl Stream {
    /// Prepares a launch of `function` on this stream. [`LaunchArgs::launch`] launches it.
    ///
    /// ```
    /// # use gpu_sim::{World, kernel::Launch};
    /// # let world = World::builder().start()?;
    /// # world.register_kernel("scale", &[8, 8, 4, 4], |_: &Launch<'_>| Ok(()));
    /// # // SAFETY: the embedded device keeps the C contracts.
    /// # let driver = cuda_driver::Driver::new(unsafe { cuda_driver::sys::Api::from_parts(world.cuda()) }?)?;
    /// # const PTX: &str = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry scale(.param .u64 to, \
    /// #     .param .u64 from, .param .f32 by, .param .u32 n) { ret; }";
    /// use cuda_driver::module::{JitOptions, LaunchConfig, Module};
    /// # use cuda_driver::{Stream, StreamFlags};
    ///
    /// let context = driver.device(0)?.retain_primary()?;
    /// let stream = Stream::new(&context, StreamFlags::NON_BLOCKING)?;
    /// let scale = Module::load_ptx(&context, PTX, &JitOptions::new())?.function("scale")?;
    /// let from = stream.clone_htod(&[1f32; 1000])?;
    /// let mut to = stream.alloc::<f32>(1000)?;
    /// let launch = stream.launch_builder(&scale).config(LaunchConfig::linear(1000, 256));
    /// // SAFETY: the kernel writes 1000 elements of its first argument and reads 1000 of its second.
    /// unsafe { launch.arg(&mut to).arg(&from).arg(&2f32).arg(&1000u32).launch()? };
    /// # stream.synchronize()?;
    /// # drop((from, to, scale, stream, context, driver));
    /// # world.finish()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "cuLaunchKernel")]
    pub fn launch_builder<'a>(&'a self, function: &'a Function) -> LaunchArgs<'a> {
        LaunchArgs {
            stream: self,
            function,
            config: LaunchConfig::new(1, 1),
            arguments: Vec::new(),
            memory: Vec::new(),
            refused: None,
        }
    }
}

impl<'a> LaunchArgs<'a> {
    /// Sets the number of blocks along each axis: a number, a pair or a triple.
    pub fn grid(mut self, blocks: impl Into<Dim>) -> Self {
        self.config.grid = blocks.into();
        self
    }

    /// Sets the number of threads of a block along each axis: a number, a pair or a triple.
    pub fn block(mut self, threads: impl Into<Dim>) -> Self {
        self.config.block = threads.into();
        self
    }

    /// Sets the dynamic shared memory of each block to `bytes` bytes; see [`LaunchConfig::shared_bytes`].
    pub fn shared_memory(mut self, bytes: u32) -> Self {
        self.config.shared_bytes = bytes;
        self
    }

    /// Replaces the whole configuration, for example by [`LaunchConfig::linear`].
    pub fn config(mut self, config: LaunchConfig) -> Self {
        self.config = config;
        self
    }

    /// Adds the next argument.
    pub fn arg(mut self, argument: impl KernelArgument<'a>) -> Self {
        argument.push(&mut self);
        self
    }

    /// Enqueues the launch on the stream, and orders it with other [uses](crate::slice#order) of the slices. In a
    /// capture that [`Stream::begin_capture`] began, the graph keeps the slices and the kernel's module alive.
    ///
    /// # Safety
    /// The caller keeps the [promises of a launch](crate::module#what-a-launch-asks-of-the-caller). For arguments that
    /// are slices or views, this crate keeps the memory alive and orders the uses. The caller promises that the kernel
    /// stays inside these slices and views, and writes only those that were passed exclusively.
    ///
    /// # Errors
    /// The errors of [`Stream::launch_kernel`]; [`Error::DifferentDevices`] or [`Error::DifferentDrivers`] for a slice
    /// of another context than the stream's; the errors of ordering, as for [`Stream::memset_zeros`].
    ///
    /// After [`Error::CaptureRace`], or an error of a call on a stream or an event, the kernel may have been launched.
    pub unsafe fn launch(self) -> Result<()> {
        let Self { stream, function, config, arguments, memory, refused } = self;
        if let Some(error) = refused {
            return Err(error);
        }
        let arguments: Vec<Argument<'_>> = arguments.iter().map(Slot::argument).collect();
        enqueue(stream, &memory, DuringCapture::Keep, || {
            // SAFETY: the caller's promise; `enqueue` keeps the slices alive and in order.
            unsafe { stream.launch_kernel(function, &config, &arguments[..]) }
        })
    }
}
