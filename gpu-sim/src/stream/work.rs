//! Work items of streams.

use std::sync::Arc;

use crate::fault::Fault;
use crate::memory::{Access, Accessor, View, view_as};
use crate::world::Machine;

use super::Stream;

/// The work of one launch, run by the stream's executor.
///
/// It blocks only through [`crate::sched::wait`] and [`crate::sched::blocking`].
pub type Launched = Box<dyn FnOnce(&Exec) -> Result<(), Fault> + Send>;

/// Work that can be enqueued on a stream, once or repeatedly as the node of a graph.
pub trait Work: Send + Sync {
    /// Returns a description for reports: "memset of 64 bytes at 0x…".
    fn describe(&self) -> String;

    /// Called on the launching thread, in launch order: when the call is made, or once for every launch of a graph
    /// that captured it. It must not block.
    fn launch(&self) -> Launched;
}

/// Environment of running work: its device and its stream.
#[derive(Debug)]
pub struct Exec {
    pub(super) machine: Arc<Machine>,
    pub(super) stream: Arc<Stream>,
}

impl Exec {
    /// The device's ordinal.
    #[must_use]
    pub fn device(&self) -> usize {
        self.stream.context.device
    }

    /// The stream, for reports.
    #[must_use]
    pub fn stream_name(&self) -> &str {
        &self.stream.name
    }

    /// Returns the bytes at `[address, address + len)` with the rights of a kernel on this device.
    ///
    /// # Errors
    /// The errors of [`crate::memory::view()`].
    pub fn view(&self, address: u64, len: u64, access: Access) -> Result<View, Fault> {
        view_as(&self.machine, Accessor::Kernel(self.device()), address, len, access)
    }

    /// Returns the bytes with the rights of this device's copy engine.
    pub(crate) fn copy_view(&self, address: u64, len: u64, access: Access) -> Result<View, Fault> {
        view_as(&self.machine, Accessor::Copy(self.device()), address, len, access)
    }

    pub(crate) fn machine(&self) -> &Arc<Machine> {
        &self.machine
    }
}

/// [`Work`] that does the same in every launch.
pub(crate) struct Repeat<F> {
    pub(crate) what: String,
    pub(crate) body: Arc<F>,
}

impl<F: Fn(&Exec) -> Result<(), Fault> + Send + Sync + 'static> Repeat<F> {
    pub(crate) fn new(what: impl Into<String>, body: F) -> Arc<Self> {
        Arc::new(Self { what: what.into(), body: Arc::new(body) })
    }
}

impl<F: Fn(&Exec) -> Result<(), Fault> + Send + Sync + 'static> Work for Repeat<F> {
    fn describe(&self) -> String {
        self.what.clone()
    }

    fn launch(&self) -> Launched {
        let body = self.body.clone();
        Box::new(move |exec| body(exec))
    }
}
