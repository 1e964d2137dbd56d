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

use std::fmt;

use cuda_driver_sys::{CUgraph, CUgraphExec};

pub use self::capture::{Capture, CaptureMode, CaptureStatus, RelaxedCapture};
use crate::call::call;
use crate::{Context, Result, Stream, teardown};

/// Recorded work: a template for [`GraphExec`]. Not `Sync`, since the driver does not lock graphs.
pub struct Graph {
    context: Context,
    raw: CUgraph,
}

// SAFETY: a graph belongs to no thread; the driver only forbids using it from two at once, and `Graph` is not
// `Sync`.
unsafe impl Send for Graph {}

impl Graph {
    /// Takes a graph that the driver gave.
    ///
    /// # Safety
    /// `raw` must be a graph that nobody else destroys; the work in it must keep the contract of
    /// [asynchronous calls](Stream#what-asynchronous-calls-ask-of-the-caller) for every launch.
    #[must_use]
    pub unsafe fn from_raw(context: &Context, raw: CUgraph) -> Self {
        Self { context: context.clone(), raw }
    }

    /// The driver's handle, valid while this graph lives.
    #[must_use]
    pub fn raw(&self) -> CUgraph {
        self.raw
    }

    /// How many nodes the graph has.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuGraphGetNodes`.
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
    /// [`Error::Driver`](crate::Error::Driver) from `cuGraphInstantiateWithFlags`; [`Error::Missing`](crate::Error::Missing)
    /// below CUDA 11.4.
    #[doc(alias = "cuGraphInstantiate")]
    pub fn instantiate(&self) -> Result<GraphExec> {
        let _current = self.context.enter()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the graph is alive; writes one handle, to a local that outlives the call.
        unsafe { call!(self.context.api(), cuGraphInstantiateWithFlags(&mut raw, self.raw, 0)) }?;
        Ok(GraphExec { context: self.context.clone(), raw })
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
pub struct GraphExec {
    context: Context,
    raw: CUgraphExec,
}

// SAFETY: as for `Graph`.
unsafe impl Send for GraphExec {}

impl GraphExec {
    /// The driver's handle, valid while this executable lives.
    #[must_use]
    pub fn raw(&self) -> CUgraphExec {
        self.raw
    }

    /// Sends the graph to the device ahead of its first launch, so that the launch does not have to.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuGraphUpload`.
    #[doc(alias = "cuGraphUpload")]
    pub fn upload(&self, stream: &Stream) -> Result<()> {
        let _current = stream.enter_if_implicit()?;
        // SAFETY: the executable and the stream are alive.
        unsafe { call!(self.context.api(), cuGraphUpload(self.raw, stream.raw())) }
    }
}

impl Stream {
    /// Enqueues the graph's work. Launches of one executable run one after the other, whatever their streams.
    ///
    /// It is safe because the capture was not: who captured a call promised its contract for every launch.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuGraphLaunch`.
    #[doc(alias = "cuGraphLaunch")]
    pub fn launch(&self, exec: &GraphExec) -> Result<()> {
        let _current = self.enter_if_implicit()?;
        // SAFETY: the executable and the stream are alive.
        unsafe { call!(self.api(), cuGraphLaunch(exec.raw, self.raw())) }
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
