//! Stream capture and graphs: work recorded once and launched many times.
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
pub use self::kept::captures_of_this_thread;
pub(crate) use self::kept::{BoundMemory, Owner, StreamBound, keep};
pub(crate) use self::uses::{DuringCapture, enqueue, keep_in_capture, refuse_capture, synchronize};
pub(crate) use self::watch::Watch;
use crate::call::{call, check, code};
use crate::{Context, Error, Result, Stream, teardown};

bitflags! {
    /// Flags for instantiating a graph.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct InstantiateFlags: u64 {
        /// Memory that the graph allocates and does not free is freed before the next launch.
        const AUTO_FREE_ON_LAUNCH = 1;
        /// Nodes run with the priority of the streams they were captured from, not of the launch's (11.7).
        const USE_NODE_PRIORITY = 8;
        const _ = !0;
    }
}

/// Recorded work: a template for [`GraphExec`]. Not `Sync`, since the driver does not lock graphs.
///
/// It holds the modules of the kernels that [`Stream::launch_kernel`] recorded in it, the
/// [`DeviceSlice`](crate::DeviceSlice)s that recorded work uses, and the owners passed to
/// [`Stream::keep_in_graph`]. Its executables hold them too.
pub struct Graph {
    context: Context,
    raw: CUgraph,
    kept: Kept,
}

// SAFETY: a graph belongs to no thread; the driver only forbids using it from two at once, and `Graph` is not
// `Sync`.
unsafe impl Send for Graph {}

impl Graph {
    /// Takes a graph that the driver gave.
    ///
    /// # Safety
    /// `raw` must be a graph that nobody else destroys; the work in it must keep the contract of
    /// [asynchronous calls](Stream#what-asynchronous-calls-ask-of-the-caller) for every launch, and the code of its
    /// kernels must stay loaded until the last.
    #[must_use]
    pub unsafe fn from_raw(context: &Context, raw: CUgraph) -> Self {
        Self { context: context.clone(), raw, kept: Kept::default() }
    }

    /// The driver's handle, valid while this graph lives.
    #[must_use]
    pub fn raw(&self) -> CUgraph {
        self.raw
    }

    /// Returns the handle and gives up ownership. The caller destroys the graph, and keeps alive the modules and
    /// slices that it uses, which the graph no longer holds.
    #[must_use]
    pub fn into_raw(self) -> CUgraph {
        let this = ManuallyDrop::new(self);
        // SAFETY: each read once, out of a graph that is never dropped.
        drop(unsafe { (std::ptr::read(&this.kept), std::ptr::read(&this.context)) });
        this.raw
    }

    /// The number of nodes in the graph.
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

    /// Makes a copy of the graph that can be launched. Costly: do it once.
    ///
    /// # Errors
    /// [`Error::Driver`] from `cuGraphInstantiateWithFlags`; [`Error::Missing`]
    /// below CUDA 11.4.
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

    /// Writes the graph to a file in the DOT language; with all details of its nodes if `verbose`.
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
        // SAFETY: owned by `self` and used by nobody after this; executables are copies.
        teardown::report(unsafe { call!(self.context.api(), cuGraphDestroy(self.raw)) });
    }
}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Graph({:p})", self.raw)
    }
}

/// A graph ready to be launched. Not `Sync`, since the driver does not lock graphs.
///
/// It keeps the modules of its kernels loaded. Drop it after its last launch has completed.
pub struct GraphExec {
    context: Context,
    raw: CUgraphExec,
    kept: Kept,
}

// SAFETY: as for `Graph`.
unsafe impl Send for GraphExec {}

impl GraphExec {
    /// The driver's handle, valid while this executable lives.
    #[must_use]
    pub fn raw(&self) -> CUgraphExec {
        self.raw
    }

    /// Makes the executable do what `graph` does, which must have the same nodes and dependencies as the one it was
    /// made from, with other parameters. Cheaper than instantiating; launches in flight are not changed.
    ///
    /// # Errors
    /// [`Error::GraphUpdate`] if the graphs differ in more; the executable is as it was. [`Error::Driver`] from
    /// `cuGraphExecUpdate_v2`; [`Error::Missing`] below CUDA 12.0.
    #[doc(alias = "cuGraphExecUpdate")]
    pub fn update(&mut self, graph: &Graph) -> Result<()> {
        let ours = self.context.driver();
        ours.require_same("the graph", graph.context.driver(), "the executable")?;
        // Added to the owners held already: launches of the former graph may be in flight.
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

    /// Uploads the graph to the device ahead of its first launch, which is then faster.
    ///
    /// # Errors
    /// [`Error::Driver`] from `cuGraphUpload`.
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

    /// Enqueues the graph's work. Launches of one executable run one after the other, whatever their streams.
    ///
    /// A launch is a use of every [`DeviceSlice`](crate::DeviceSlice) in the graph, and is ordered with other
    /// uses of them. For other memory, the caller of the `unsafe` call that was captured promised its contract for
    /// every launch.
    ///
    /// # Errors
    /// [`Error::DifferentDrivers`]; [`Error::WhileCapturing`] if the stream of a slice captures;
    /// [`Error::CaptureRace`]; [`Error::Driver`] from `cuGraphLaunch`, or from the calls on events that order the
    /// launch.
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
        // SAFETY: owned by `self` and used by nobody after this; launches in flight complete.
        teardown::report(unsafe { call!(self.context.api(), cuGraphExecDestroy(self.raw)) });
    }
}

impl fmt::Debug for GraphExec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GraphExec({:p})", self.raw)
    }
}
