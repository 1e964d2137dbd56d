//! A program's handle on a direct path.

use std::sync::{Arc, Weak};

use super::core::{DirectCore, DirectReport};
use crate::{
    error::{CallContext, Error},
    error_kind::ErrorKind,
};

/// A handle on a group's [direct path](super): the transport that copies the group's point-to-point messages through
/// symmetric memory. Cheap to clone. The group owns the path, and a handle does not keep the path alive.
#[derive(Debug, Clone)]
pub struct Direct {
    /// The beginning of the text of the handle's errors: `direct path of group …`.
    call: CallContext,
    core: Weak<DirectCore>,
}

impl Direct {
    pub(super) fn new(call: CallContext, core: &Arc<DirectCore>) -> Self {
        Self { call, core: Arc::downgrade(core) }
    }

    /// Returns how many messages this rank has sent and received through the path so far.
    ///
    /// # Errors
    /// [`ErrorKind::PathEnded`] once the group is gone.
    pub fn report(&self) -> Result<DirectReport, Error> {
        let core = self.core.upgrade().ok_or_else(|| self.call.error(ErrorKind::PathEnded))?;
        Ok(core.report())
    }
}
