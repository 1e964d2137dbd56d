//! The library: what it is and what it can do.

use std::fmt;

use nccl_sys::{Api, Feature, Version, ncclUniqueId};

use super::{
    Result, UniqueId,
    call::{call, unwritten},
};

/// NCCL as it was loaded. Cloning is cheap: clones share the table.
#[derive(Clone)]
pub struct Nccl {
    api: Api,
}

impl Nccl {
    /// Loads NCCL as `nccl_sys::Api::load` does: the file in `NCCL_SYS_LIBRARY`, a copy that the process holds
    /// already, or what the system's loader finds. For what a Python environment has, [`Nccl::new`] takes
    /// `nccl_sys::Api::load_with_python`.
    ///
    /// # Errors
    /// [`CommError::Load`](super::CommError::Load) with every place that was looked at.
    pub fn load() -> Result<Self> {
        Ok(Self::new(Api::load()?))
    }

    /// NCCL over a table that is there already.
    #[must_use]
    pub fn new(api: Api) -> Self {
        Self { api }
    }

    /// The table.
    #[must_use]
    pub fn api(&self) -> &Api {
        &self.api
    }

    /// The release.
    #[must_use]
    #[doc(alias = "ncclGetVersion")]
    pub fn release(&self) -> Version {
        self.api.version()
    }

    /// Whether the loaded library has `feature`.
    #[must_use]
    pub fn has(&self, feature: Feature) -> bool {
        self.api.has(feature)
    }

    /// Makes a token by which the ranks of one new communicator find each other. One rank makes it and gives it to
    /// all, and stays alive until all have joined.
    ///
    /// # Errors
    /// [`CommError::Nccl`](super::CommError::Nccl), usually because no network interface can be used
    /// (`NCCL_SOCKET_IFNAME`).
    #[doc(alias = "ncclGetUniqueId")]
    pub fn unique_id(&self) -> Result<UniqueId> {
        const OWNER: &str = "a new communicator";
        let mut raw = ncclUniqueId::default();
        // SAFETY: writes one id, to a local that outlives the call.
        unsafe { call!(self, OWNER, ncclGetUniqueId(&mut raw)) }?;
        if raw.internal.iter().all(|byte| *byte == 0) {
            return Err(unwritten(&self.api, "ncclGetUniqueId", OWNER, "unique id"));
        }
        Ok(UniqueId::from_raw(raw))
    }

    /// Whether an abort may be split in two: flags first, memory once nobody is inside any more. From 2.22 on,
    /// `ncclCommAbort` in a group raises the flags at once and frees at the group's end.
    pub(crate) fn aborts_in_groups(&self) -> bool {
        self.release() >= Version::new(2, 22, 0)
    }
}

impl fmt::Debug for Nccl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Nccl({})", self.release())
    }
}
