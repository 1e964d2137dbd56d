//! Stream capture and graphs: work that is recorded once and launched many times.
//!
//! ```no_run
//! # fn main() -> cuda_driver::Result<()> {
//! # let context = cuda_driver::Driver::load()?.device(0)?.retain_primary()?;
//! # let memory = cuda_driver::memory::DeviceMemory::new(&context, 4096)?;
//! use cuda_driver::{Stream, StreamFlags, graph::CaptureMode};
//!
//! let stream = Stream::new(&context, StreamFlags::NON_BLOCKING)?;
//! let capture = stream.begin_capture(CaptureMode::ThreadLocal)?;
//! // SAFETY: `memory` outlives every launch of the graph.
//! unsafe { stream.fill_u8(memory.ptr(), 1, memory.bytes())? };
//! let exec = capture.end()?.instantiate()?;
//! for _ in 0..10 {
//!     stream.launch(&exec)?;
//! }
//! stream.synchronize()?;
//! # Ok(())
//! # }
//! ```

mod capture;
mod kept;
mod uses;
mod watch;

use std::ffi::CString;
use std::fmt;
use std::mem::ManuallyDrop;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use bitflags::bitflags;
use cuda_driver_sys::{CUgraph, CUgraphExec, CUgraphExecUpdateResultInfo, CUresult};

pub use self::capture::{Capture, CaptureInfo, CaptureMode, CaptureStatus, RelaxedCapture, is_capturing};
use self::kept::Kept;
pub use self::kept::{BoundMemory, StreamBound};
pub(crate) use self::kept::{Owner, keep};
pub use self::kept::{captures_of_this_thread, is_capture_open};
pub(crate) use self::uses::{
    DuringCapture, enqueue, keep_in_capture, order_after, record_uncaptured, refuse_capture, synchronize,
};
pub(crate) use self::watch::{Uncaptured, Watch};
use crate::call::{call, check, code};
use crate::{Context, Error, Result, Stream, teardown};

bitflags! {
    /// Flags for instantiating a graph.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct InstantiateFlags: u64 {
        /// Each launch first frees the memory that the graph has allocated and not freed in earlier launches.
        const AUTO_FREE_ON_LAUNCH = 1;
        /// Nodes run with the priorities of the streams that they were captured from, not with that of the launching
        /// stream. Needs CUDA 11.7 or newer.
        const USE_NODE_PRIORITY = 8;
        const _ = !0;
    }
}

/// A graph of recorded work, from which [`GraphExec`]s are made. It is not `Sync`, since the driver does not lock
/// graphs.
///
/// It keeps alive the modules of the kernels that [`Stream::launch_kernel`] recorded in it, the
/// [`DeviceSlice`](crate::DeviceSlice)s that recorded work uses or that were dropped while their stream was in the
/// capture, the objects passed to [`Stream::keep_in_graph`], and the objects held by executables whose launches were
/// recorded. Executables made from the graph keep all these alive too.
pub struct Graph {
    context: Context,
    raw: CUgraph,
    kept: Kept,
}

// SAFETY: a graph is not bound to a thread. The driver only forbids concurrent use, which is impossible since `Graph`
// is not `Sync`.
unsafe impl Send for Graph {}

impl Graph {
    /// Takes ownership of a graph of the driver.
    ///
    /// # Safety
    /// - `raw` must be a graph that nobody else destroys.
    /// - Its work must keep the contract of [asynchronous calls](Stream#what-asynchronous-calls-ask-of-the-caller) at
    ///   every launch.
    /// - The modules of its kernels must stay loaded until the last launch has completed.
    #[must_use]
    pub unsafe fn from_raw(context: &Context, raw: CUgraph) -> Self {
        Self { context: context.clone(), raw, kept: Kept::default() }
    }

    /// Returns the driver's handle, which is valid while this graph lives.
    #[must_use]
    pub fn raw(&self) -> CUgraph {
        self.raw
    }

    /// Returns the driver's handle and gives up ownership. The caller must destroy the graph. The caller must also keep
    /// alive the modules, slices and other objects that the graph kept alive.
    #[must_use]
    pub fn into_raw(self) -> CUgraph {
        let this = ManuallyDrop::new(self);
        // SAFETY: each field is read once, from a graph that is never dropped.
        drop(unsafe { (std::ptr::read(&this.kept), std::ptr::read(&this.context)) });
        this.raw
    }

    /// Returns the number of nodes in the graph.
    ///
    /// # Errors
    /// [`Error::Driver`] from `cuGraphGetNodes`.
    #[doc(alias = "cuGraphGetNodes")]
    pub fn node_count(&self) -> Result<usize> {
        let mut count = 0;
        // SAFETY: the graph is alive; with a null array only the count is written, to a local.
        unsafe { call!(self.context.api(), cuGraphGetNodes(self.raw, std::ptr::null_mut(), &mut count)) }?;
        Ok(count)
    }

    /// Makes an executable copy of the graph, for launches. This is slow, so do it once for many launches.
    ///
    /// # Errors
    /// [`Error::Driver`] from `cuGraphInstantiateWithFlags`; [`Error::Missing`] below CUDA 11.4.
    #[doc(alias = "cuGraphInstantiate")]
    pub fn instantiate(&self) -> Result<GraphExec> {
        self.instantiate_with(InstantiateFlags::empty())
    }

    /// Like [`instantiate`](Self::instantiate), with flags.
    ///
    /// # Errors
    /// As [`instantiate`](Self::instantiate).
    #[doc(alias = "cuGraphInstantiateWithFlags")]
    pub fn instantiate_with(&self, flags: InstantiateFlags) -> Result<GraphExec> {
        let _current = self.context.enter()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the graph is alive; writes one handle, to a local that outlives the call.
        unsafe { call!(self.context.api(), cuGraphInstantiateWithFlags(&mut raw, self.raw, flags.bits())) }?;
        Ok(GraphExec { context: self.context.clone(), raw, kept: self.kept.clone() })
    }

    /// Writes the graph to a file in the DOT language, with all details of the nodes if `verbose` is true.
    ///
    /// # Errors
    /// [`Error::Driver`] from `cuGraphDebugDotPrint`, for example `CUDA_ERROR_OPERATING_SYSTEM`
    /// for a file that cannot be written; [`Error::Path`] for a path with a NUL byte.
    #[doc(alias = "cuGraphDebugDotPrint")]
    pub fn write_dot(&self, path: &Path, verbose: bool) -> Result<()> {
        let name = CString::new(path.as_os_str().as_bytes());
        let name = name.map_err(|_| Error::Path { path: path.to_owned() })?;
        let flags = u32::from(verbose); // CU_GRAPH_DEBUG_DOT_FLAGS_VERBOSE
        // SAFETY: the graph is alive; reads a C string that outlives the call.
        unsafe { call!(self.context.api(), cuGraphDebugDotPrint(self.raw, name.as_ptr(), flags)) }
    }
}

impl Drop for Graph {
    #[doc(alias = "cuGraphDestroy")]
    fn drop(&mut self) {
        // SAFETY: `self` owns the graph, and nobody uses it after this. Executables are copies of it.
        teardown::report(unsafe { call!(self.context.api(), cuGraphDestroy(self.raw)) });
    }
}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Graph({:p})", self.raw)
    }
}

/// An executable graph, launched by [`Stream::launch`]. It is not `Sync`, since the driver does not lock graphs.
///
/// It holds the same objects as the [`Graph`] from which it was made. Drop it only after its last launch has completed,
/// because dropping it may unload the modules of its kernels.
pub struct GraphExec {
    context: Context,
    raw: CUgraphExec,
    kept: Kept,
}

// SAFETY: as for `Graph`.
unsafe impl Send for GraphExec {}

impl GraphExec {
    /// Returns the driver's handle, which is valid while this executable lives.
    #[must_use]
    pub fn raw(&self) -> CUgraphExec {
        self.raw
    }

    /// Replaces the parameters of the nodes with those of `graph`. `graph` must have the same nodes and dependencies as
    /// the graph from which the executable was made. This is faster than instantiating `graph`. Launches in flight do
    /// not change. From this call on, the executable also holds the objects that `graph` holds, even if the driver
    /// refuses the update.
    ///
    /// # Errors
    /// [`Error::GraphUpdate`] if the nodes or dependencies differ, or if a parameter differs that the driver cannot
    /// replace. The executable then still does the work of the former graph. [`Error::Driver`] from
    /// `cuGraphExecUpdate_v2`; [`Error::Missing`] below CUDA 12.0; [`Error::DifferentDrivers`].
    #[doc(alias = "cuGraphExecUpdate")]
    pub fn update(&mut self, graph: &Graph) -> Result<()> {
        let ours = self.context.driver();
        ours.require_same("the graph", graph.context.driver(), "the executable")?;
        // This only adds objects. Those of the former graph are still needed, because launches of it may be in flight.
        self.kept.add(graph.kept.owners(), graph.kept.memory());
        let _current = self.context.enter()?;
        let mut info = CUgraphExecUpdateResultInfo::default();
        let api = self.context.api();
        // SAFETY: both graphs are alive; writes a structure, to a local that outlives the call.
        match unsafe { code!(api, cuGraphExecUpdate_v2(self.raw, graph.raw, &mut info)) }? {
            CUresult::CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE => Err(Error::GraphUpdate { reason: info.result }),
            code => check(api, "cuGraphExecUpdate_v2", code),
        }
    }

    /// Enqueues on `stream` the upload of the graph to the device. The first launch is then faster.
    ///
    /// # Errors
    /// [`Error::Driver`] from `cuGraphUpload`; [`Error::DifferentDrivers`].
    #[doc(alias = "cuGraphUpload")]
    pub fn upload(&self, stream: &Stream) -> Result<()> {
        stream.require_driver_of(self)?;
        let _current = stream.enter_if_implicit()?;
        // SAFETY: the executable and the stream are alive.
        unsafe { call!(self.context.api(), cuGraphUpload(self.raw, stream.raw())) }
    }
}

impl Stream {
    fn require_driver_of(&self, exec: &GraphExec) -> Result<()> {
        self.context().driver().require_same("the graph", exec.context.driver(), "the stream")
    }

    /// Launches a graph: enqueues its work on the stream. Launches of one executable run one after the other, even on
    /// different streams.
    ///
    /// A launch counts as a use of each [`DeviceSlice`](crate::DeviceSlice) that the graph's work uses, and is ordered
    /// with other uses of these slices. For other memory, the callers of the captured `unsafe` calls promised that
    /// the contract of [asynchronous calls](Stream#what-asynchronous-calls-ask-of-the-caller) holds at every launch.
    ///
    /// # Errors
    /// [`Error::DifferentDrivers`]; [`Error::Driver`] from `cuGraphLaunch`, or from the calls on streams and events
    /// that order the launch. If the graph uses slices, also:
    /// - [`Error::WhileCapturing`] if a slice's stream is in a capture that this stream is not in, if this stream is in
    ///   a capture that another library began, or if the capture of one of these streams is invalidated.
    /// - [`Error::CaptureRace`] if another thread may have begun or ended a capture of this stream or of a slice's
    ///   stream during the call.
    #[doc(alias = "cuGraphLaunch")]
    pub fn launch(&self, exec: &GraphExec) -> Result<()> {
        self.require_driver_of(exec)?;
        keep(self, || exec.kept.owners())?;
        enqueue(self, exec.kept.memory(), DuringCapture::Keep, || {
            let _current = self.enter_if_implicit()?;
            // SAFETY: the executable and the stream are alive.
            unsafe { call!(self.api(), cuGraphLaunch(exec.raw, self.raw())) }
        })
    }
}

impl Drop for GraphExec {
    #[doc(alias = "cuGraphExecDestroy")]
    fn drop(&mut self) {
        // SAFETY: `self` owns the executable, and nobody uses it after this. The driver completes launches in flight.
        teardown::report(unsafe { call!(self.context.api(), cuGraphExecDestroy(self.raw)) });
    }
}

impl fmt::Debug for GraphExec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GraphExec({:p})", self.raw)
    }
}
