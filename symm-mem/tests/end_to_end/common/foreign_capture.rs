//! Captures that another library began.

use cuda_driver::{
    Context,
    graph::Graph,
    sys::{CUresult, CUstream, CUstreamCaptureMode},
};

/// A capture in progress that was begun by a raw call, as another library does.
pub(crate) struct ForeignCapture<'a> {
    context: &'a Context,
    stream: CUstream,
}

impl<'a> ForeignCapture<'a> {
    /// # Safety
    /// `stream` is a stream of `context`, and exists until [`end`](Self::end).
    pub(crate) unsafe fn begin(context: &'a Context, stream: CUstream, mode: CUstreamCaptureMode) -> Self {
        let begin = context.driver().api().cuStreamBeginCapture_v2().expect("the driver has it");
        // SAFETY: the stream exists.
        assert_eq!(unsafe { begin(stream, mode) }, CUresult::CUDA_SUCCESS);
        Self { context, stream }
    }

    /// Ends the capture. The graph owns nothing.
    ///
    /// # Errors
    /// The driver's code, if the capture is invalidated.
    ///
    /// # Safety
    /// At each launch of the graph, the memory that its work uses exists.
    pub(crate) unsafe fn end(self) -> Result<Graph, CUresult> {
        let end = self.context.driver().api().cuStreamEndCapture().expect("the driver has it");
        let mut graph = std::ptr::null_mut();
        // SAFETY: the stream exists; writes one handle, to a local that outlives the call.
        match unsafe { end(self.stream, &mut graph) } {
            // SAFETY: nobody else has the graph, and the caller promises the rest.
            CUresult::CUDA_SUCCESS => Ok(unsafe { Graph::from_raw(self.context, graph) }),
            code => Err(code),
        }
    }
}
