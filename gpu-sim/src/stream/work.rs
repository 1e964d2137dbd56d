//! What streams run.

use std::sync::Arc;

use crate::fault::Fault;
use crate::memory::{Access, Accessor, View, view_as};
use crate::world::Machine;

use super::Stream;

/// One launch's share of the work, run by the stream's executor.
///
/// It blocks only through [`crate::sched::wait`] and [`crate::sched::blocking`].
pub type Launched = Box<dyn FnOnce(&Exec) -> Result<(), Fault> + Send>;

/// Something that can be put into a stream, at once or again and again as the node of a graph.
pub trait Work: Send + Sync {
    /// What it is, for reports: "memset of 64 bytes at 0x…".
    fn describe(&self) -> String;

    /// Called on the launching thread, in the order of launches: when the call is made, or once for every launch of
    /// a graph it is captured in. It must not block.
    fn launch(&self) -> Launched;
}

/// Where work runs: a device, a stream.
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

    /// The bytes at `[address, address + len)`, as a kernel on this device may reach them.
    ///
    /// # Errors
    /// As [`crate::memory::view()`].
    pub fn view(&self, address: u64, len: u64, access: Access) -> Result<View, Fault> {
        view_as(&self.machine, Accessor::Kernel(self.device()), address, len, access)
    }

    /// The bytes as this device's copy engine may reach them.
    pub(crate) fn copy_view(&self, address: u64, len: u64, access: Access) -> Result<View, Fault> {
        view_as(&self.machine, Accessor::Copy(self.device()), address, len, access)
    }

    pub(crate) fn machine(&self) -> &Arc<Machine> {
        &self.machine
    }
}

/// [`Work`] whose every launch does the same.
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
