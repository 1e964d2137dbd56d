//! Kernel launches: their shape, their attributes, and checks of both.

use std::ffi::{c_int, c_void};

use cuda_driver_sys::{
    CUdevice_attribute, CUlaunchAttribute, CUlaunchAttributeID, CUlaunchAttributeValue, CUlaunchConfig,
    Feature,
};

use super::{Arguments, Function, LaunchError};
use crate::call::call;
use crate::graph::keep;
use crate::{Device, Error, Result, Stream, device};

/// The size of a grid, a block or a cluster along three axes. Conversions from fewer than three numbers set the other
/// axes to 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Dim {
    /// The size along the first axis, along which the index of a thread varies fastest.
    pub x: u32,
    /// The size along the second axis.
    pub y: u32,
    /// The size along the third axis.
    pub z: u32,
}

impl From<u32> for Dim {
    fn from(x: u32) -> Self {
        Self { x, y: 1, z: 1 }
    }
}

impl From<(u32, u32)> for Dim {
    fn from((x, y): (u32, u32)) -> Self {
        Self { x, y, z: 1 }
    }
}

impl From<(u32, u32, u32)> for Dim {
    fn from((x, y, z): (u32, u32, u32)) -> Self {
        Self { x, y, z }
    }
}

impl From<[u32; 3]> for Dim {
    fn from([x, y, z]: [u32; 3]) -> Self {
        Self { x, y, z }
    }
}

/// The shape and the attributes of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[must_use]
pub struct LaunchConfig {
    /// The number of blocks in the grid.
    pub grid: Dim,
    /// The number of threads in a block.
    pub block: Dim,
    /// Dynamic shared memory of a block in bytes, in addition to the memory that the code declares.
    pub shared_bytes: u32,
    /// True if all blocks run at once; see [`cooperative`](Self::cooperative).
    pub cooperative: bool,
    /// The number of blocks in a cluster; `None` if the launch sets no cluster size. See [`cluster`](Self::cluster).
    pub cluster: Option<Dim>,
    /// True if the kernel may start before the previous one has ended; see
    /// [`programmatic_serialization`](Self::programmatic_serialization).
    pub programmatic_serialization: bool,
}

impl LaunchConfig {
    /// Returns the configuration of a launch of `grid` blocks of `block` threads. Each of the two is a number, a pair
    /// or a triple.
    pub fn new(grid: impl Into<Dim>, block: impl Into<Dim>) -> Self {
        Self {
            grid: grid.into(),
            block: block.into(),
            shared_bytes: 0,
            cooperative: false,
            cluster: None,
            programmatic_serialization: false,
        }
    }

    /// Returns the configuration of a launch in one dimension with one thread for each of `elements` elements, in
    /// blocks of `block` threads. If `elements` is not a multiple of `block`, the last threads of the last block have
    /// no element. The kernel must make these threads do nothing. For 0 elements the grid has no blocks, and a launch
    /// returns [`LaunchError::Zero`].
    ///
    /// ```
    /// # use cuda_driver::module::LaunchConfig;
    /// assert_eq!(LaunchConfig::linear(1000, 256), LaunchConfig::new(4, 256));
    /// ```
    pub fn linear(elements: u64, block: u32) -> Self {
        let blocks = elements.div_ceil(u64::from(block.max(1)));
        // A number that does not fit saturates: the result still exceeds every device's limit.
        Self::new(u32::try_from(blocks).unwrap_or(u32::MAX), block)
    }

    /// Sets the dynamic shared memory of each block to `bytes` bytes, in addition to the memory that the code declares.
    /// If dynamic and declared shared memory together exceed 48 KiB per block, call
    /// [`Function::set_max_dynamic_shared_bytes`] before the launch.
    pub fn shared_bytes(mut self, bytes: u32) -> Self {
        self.shared_bytes = bytes;
        self
    }

    /// Makes all blocks run at the same time, so that they may wait for each other. The launch of a grid that does not
    /// fit on the device ([`Function::max_active_blocks`]) fails with `CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE`.
    #[doc(alias = "cuLaunchCooperativeKernel")]
    pub fn cooperative(mut self) -> Self {
        self.cooperative = true;
        self
    }

    /// Groups the blocks of the grid into clusters of `blocks` blocks (a number, a pair or a triple). The blocks of a
    /// cluster run at the same time and can access each other's shared memory. Clusters need compute capability 9.0 and
    /// CUDA 11.8. Every device that has them supports 8 blocks in a cluster.
    #[doc(alias = "CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION")]
    pub fn cluster(mut self, blocks: impl Into<Dim>) -> Self {
        self.cluster = Some(blocks.into());
        self
    }

    /// Allows the kernel to start before the previous kernel on the stream has ended. This needs compute capability 9.0
    /// and CUDA 11.8.
    ///
    /// The kernel must execute `griddepcontrol.wait` before it accesses memory that the previous kernel reads or
    /// writes. This is part of the [caller's promise](super#what-a-launch-asks-of-the-caller).
    #[doc(alias = "CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION")]
    pub fn programmatic_serialization(mut self) -> Self {
        self.programmatic_serialization = true;
        self
    }

    /// Returns an error in these cases:
    /// - A size of the grid or the block is 0 or exceeds the device's limit.
    /// - The number of threads in a block, or the dynamic shared memory of a block, exceeds the kernel's limit.
    /// - The grid does not consist of whole clusters, or a size of the cluster is 0.
    /// - The query of the kernel's limit of dynamic shared memory fails.
    ///
    /// [`Stream::launch_checked`] checks that the driver supports clusters and programmatic serialisation, and that the
    /// device supports clusters. The driver checks the rest, such as the size of a cluster.
    fn check(&self, function: &Function, limits: &Limits) -> Result<()> {
        let kernel = || function.name().to_owned();
        for (what, found, (limit_name, limit)) in [
            ("grid.x", self.grid.x, limits.grid[0]),
            ("grid.y", self.grid.y, limits.grid[1]),
            ("grid.z", self.grid.z, limits.grid[2]),
            ("block.x", self.block.x, limits.block[0]),
            ("block.y", self.block.y, limits.block[1]),
            ("block.z", self.block.z, limits.block[2]),
        ] {
            if found == 0 {
                return Err(LaunchError::Zero { kernel: kernel(), what }.into());
            }
            check_limit(function, what, found.into(), limit.into(), limit_name)?;
        }
        let threads = [self.block.x, self.block.y, self.block.z].into_iter().map(u64::from);
        let threads = threads.fold(1, u64::saturating_mul);
        let most = function.max_threads().into();
        check_limit(
            function,
            "threads of a block",
            threads,
            most,
            "CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK",
        )?;
        check_limit(
            function,
            "dynamic shared bytes of a block",
            self.shared_bytes.into(),
            function.max_dynamic_shared(self.shared_bytes)?.into(),
            "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES",
        )?;
        let Some(cluster) = self.cluster else { return Ok(()) };
        for (what, grid, cluster) in [
            ("grid.x", self.grid.x, cluster.x),
            ("grid.y", self.grid.y, cluster.y),
            ("grid.z", self.grid.z, cluster.z),
        ] {
            if cluster == 0 || grid % cluster != 0 {
                return Err(LaunchError::PartialCluster { kernel: kernel(), what, grid, cluster }.into());
            }
        }
        Ok(())
    }
}

fn check_limit(
    function: &Function,
    what: &'static str,
    found: u64,
    limit: u64,
    limit_name: &'static str,
) -> Result<(), LaunchError> {
    if found <= limit {
        return Ok(());
    }
    Err(LaunchError::OverLimit { kernel: function.name().to_owned(), what, found, limit, limit_name })
}

/// The launch limits of a device, each with the name of its attribute.
#[derive(Debug)]
pub(super) struct Limits {
    grid: [(&'static str, u32); 3],
    block: [(&'static str, u32); 3],
}

impl Limits {
    pub(super) fn of(device: &Device) -> Result<Self> {
        let ask = |name: &'static str, attribute| {
            Ok::<_, Error>((name, u32::try_from(device.attribute(attribute)?).unwrap_or(0)))
        };
        macro_rules! limits {
            ($($attribute:ident),*) => {
                [$(ask(stringify!($attribute), CUdevice_attribute::$attribute)?),*]
            };
        }
        Ok(Self {
            grid: limits!(
                CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X,
                CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y,
                CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z
            ),
            block: limits!(
                CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X,
                CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y,
                CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z
            ),
        })
    }
}

impl Stream {
    /// Enqueues a launch of a kernel on the stream. If the stream captures, the launch becomes part of the graph.
    ///
    /// # Safety
    /// The caller keeps the [promises of a launch](crate::module#what-a-launch-asks-of-the-caller).
    ///
    /// # Errors
    /// - [`Error::Launch`] for mistakes that are found before the driver's launch function is called.
    /// - [`Error::DifferentDevices`] or [`Error::DifferentDrivers`] for a function of another context than the
    ///   stream's.
    /// - [`Error::Missing`] for clusters and programmatic serialisation below CUDA 11.8.
    /// - [`Error::Driver`] from `cuLaunchKernel`, `cuLaunchCooperativeKernel` or `cuLaunchKernelEx`, also for errors of
    ///   earlier asynchronous work.
    /// - [`Error::Driver`] from the queries before the launch: `cuFuncGetAttribute`, `cuDeviceGetAttribute` and
    ///   `cuStreamGetCaptureInfo_v2`.
    #[doc(alias = "cuLaunchKernel")]
    #[doc(alias = "cuLaunchCooperativeKernel")]
    #[doc(alias = "cuLaunchKernelEx")]
    pub unsafe fn launch_kernel(
        &self,
        function: &Function,
        config: &LaunchConfig,
        arguments: impl Arguments,
    ) -> Result<()> {
        if function.context() != self.context() {
            return Err(device::mismatch(
                ("the kernel's module", function.context().device()),
                ("the stream that should launch it", self.context().device()),
            ));
        }
        config.check(function, function.module().limits())?;
        arguments.pack(|values, sizes| {
            function.check_arguments(sizes)?;
            keep(self, || [function.module().owner()])?;
            let _current = self.enter_if_implicit()?;
            // SAFETY: the function and the stream are alive. `values` point to arguments that the driver copies during
            // the call. The caller promises that the arguments and the actions of the kernel are right.
            unsafe { self.launch_checked(function, config, values.as_mut_ptr()) }
        })
    }

    /// # Safety
    /// The contract of [`launch_kernel`](Self::launch_kernel). `values` must hold the addresses of the kernel's
    /// arguments.
    unsafe fn launch_checked(
        &self,
        function: &Function,
        config: &LaunchConfig,
        values: *mut *mut c_void,
    ) -> Result<()> {
        let LaunchConfig { grid, block, shared_bytes, .. } = *config;
        let (raw, stream, none) = (function.raw(), self.raw(), std::ptr::null_mut());
        let extended = config.cluster.is_some() || config.programmatic_serialization;
        match (extended, config.cooperative) {
            // SAFETY: the caller's promise.
            (false, false) => unsafe {
                call!(
                    self.api(),
                    cuLaunchKernel(
                        raw,
                        grid.x,
                        grid.y,
                        grid.z,
                        block.x,
                        block.y,
                        block.z,
                        shared_bytes,
                        stream,
                        values,
                        none
                    )
                )
            },
            // SAFETY: the caller's promise.
            (false, true) => unsafe {
                call!(
                    self.api(),
                    cuLaunchCooperativeKernel(
                        raw,
                        grid.x,
                        grid.y,
                        grid.z,
                        block.x,
                        block.y,
                        block.z,
                        shared_bytes,
                        stream,
                        values
                    )
                )
            },
            (true, _) => {
                self.api().require(Feature::LAUNCH_ATTRIBUTES)?;
                if config.cluster.is_some() {
                    require_clusters(function)?;
                }
                let mut attributes = attributes(config);
                let config = CUlaunchConfig {
                    gridDimX: grid.x,
                    gridDimY: grid.y,
                    gridDimZ: grid.z,
                    blockDimX: block.x,
                    blockDimY: block.y,
                    blockDimZ: block.z,
                    sharedMemBytes: shared_bytes,
                    hStream: stream,
                    attrs: attributes.as_mut_ptr(),
                    // There are at most three attributes.
                    numAttrs: attributes.len() as u32,
                };
                // SAFETY: the caller's promise; the configuration and its attributes outlive the call.
                unsafe { call!(self.api(), cuLaunchKernelEx(&config, raw, values, none)) }
            }
        }
    }
}

fn require_clusters(function: &Function) -> Result<()> {
    let device = function.context().device();
    if device.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH)? != 0 {
        return Ok(());
    }
    Err(LaunchError::Unsupported {
        kernel: function.name().to_owned(),
        what: "in clusters",
        device: device.ordinal(),
        limit_name: "CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH",
    }
    .into())
}

fn attributes(config: &LaunchConfig) -> Vec<CUlaunchAttribute> {
    let mut attributes = Vec::new();
    let mut add = |id, set: &dyn Fn(&mut CUlaunchAttributeValue)| {
        let mut value = CUlaunchAttributeValue { pad: [0; 64] };
        set(&mut value);
        attributes.push(CUlaunchAttribute { id, pad: [0; 4], value });
    };
    if config.cooperative {
        add(CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE, &|value| {
            value.cooperative = c_int::from(true)
        });
    }
    if let Some(Dim { x, y, z }) = config.cluster {
        add(CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, &|value| {
            value.clusterDim = cuda_driver_sys::CUlaunchAttributeValue_union__bindgen_ty_1 { x, y, z };
        });
    }
    if config.programmatic_serialization {
        add(CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, &|value| {
            value.programmaticStreamSerializationAllowed = c_int::from(true);
        });
    }
    attributes
}
