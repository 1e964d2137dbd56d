//! A group whose members map each other's memory, in a [rendezvous](super::Rendezvous::rendezvous) or in a
//! [commit](crate::SymmetricPool::commit) of a pool.

use std::{fmt, sync::OnceLock};

use cuda_driver::Context;

use super::{GroupInfo, pads::Pads};
use crate::{pool::Owner, sharing::Site};

/// A group whose members map each other's memory, as this rank sees it. Owns this rank's signal pad (device memory in
/// which this rank receives signals) and the mappings of the others' pads.
pub(crate) struct PeerGroup {
    pub(crate) info: GroupInfo,
    pub(crate) context: Context,
    /// This rank's host, process and device. [`Site::endpoint`] is empty here: each rendezvous and each commit has its
    /// own endpoint, from which the peers get file descriptors of this rank's memory.
    pub(crate) site: Site,
    /// Identifies this group as the owner of mappings. An allocation keeps one mapping for each group, in its
    /// [`Attachments`](crate::pool::Attachments), and finds it by this value.
    pub(crate) mappings: Owner,
    /// Empty until the members have mapped each other's pads.
    pads: OnceLock<Pads>,
}

impl PeerGroup {
    /// Creates a group whose pads are not set yet.
    pub(crate) fn new(info: GroupInfo, context: &Context, site: Site) -> Self {
        let (mappings, pads) = (Owner::default(), OnceLock::new());
        Self { info, context: context.clone(), site, mappings, pads }
    }

    /// Sets the pads. Does nothing if they are set already.
    pub(crate) fn set_pads(&self, pads: Pads) {
        let _ = self.pads.set(pads);
    }

    /// Returns whether the members have mapped each other's pads.
    pub(crate) fn has_pads(&self) -> bool {
        self.pads.get().is_some()
    }

    pub(super) fn pads(&self) -> &Pads {
        // The members map the pads before other memory or together with it. Only the groups of
        // `Rendezvous::without_pads` never get pads, and this function is not called for them.
        self.pads.get().expect("a group maps its pads first")
    }
}

impl fmt::Debug for PeerGroup {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.info.fmt(out)
    }
}
