//! The NCCL library: its release and its features.

use std::fmt;

use nccl_sys::{Api, Feature, Version, ncclUniqueId};

use super::{
    Result, UniqueId,
    call::{call, unwritten},
};

/// A loaded NCCL library. Clones share the function table, so cloning is cheap.
#[derive(Clone)]
pub struct Nccl {
    api: Api,
}

impl Nccl {
    /// Loads NCCL as `nccl_sys::Api::load` does. Uses the file that `NCCL_SYS_LIBRARY` names, else a copy that the
    /// process has loaded already, else the copy that the system's loader finds. To use the copy of a Python
    /// environment, pass the result of `nccl_sys::Api::load_with_python` to [`Nccl::new`].
    ///
    /// # Errors
    /// [`CommError::Load`](super::CommError::Load), which lists every path that was tried.
    pub fn load() -> Result<Self> {
        Ok(Self::new(Api::load()?))
    }

    /// Wraps a function table that the caller has loaded.
    #[must_use]
    pub fn new(api: Api) -> Self {
        Self { api }
    }

    /// Returns the function table.
    #[must_use]
    pub fn api(&self) -> &Api {
        &self.api
    }

    /// Returns the release of the loaded library.
    #[must_use]
    #[doc(alias = "ncclGetVersion")]
    pub fn release(&self) -> Version {
        self.api.version()
    }

    /// Returns the release as the integer that `ncclGetVersion` reports, for example 22807 for 2.28.7.
    #[must_use]
    pub fn release_code(&self) -> u32 {
        nccl_sys::version_code(self.release()).unsigned_abs()
    }

    /// Returns true if the loaded library has `feature`.
    #[must_use]
    pub fn has(&self, feature: Feature) -> bool {
        self.api.has(feature)
    }

    /// Makes a unique id, by which the ranks of one new communicator find each other. One rank makes the id and passes
    /// it to all ranks. The process of that rank must stay alive until all ranks have joined.
    ///
    /// # Errors
    /// [`CommError::Nccl`](super::CommError::Nccl), usually because no network interface can be used
    /// (`NCCL_SOCKET_IFNAME`).
    #[doc(alias = "ncclGetUniqueId")]
    pub fn unique_id(&self) -> Result<UniqueId> {
        const OWNER: &str = "a new communicator";
        let mut raw = ncclUniqueId::default();
        // SAFETY: NCCL writes one id to `raw`, a local that outlives the call.
        unsafe { call!(self, OWNER, ncclGetUniqueId(&mut raw)) }?;
        if raw.internal.iter().all(|byte| *byte == 0) {
            return Err(unwritten(&self.api, "ncclGetUniqueId", OWNER, "unique id"));
        }
        Ok(UniqueId::from_raw(raw))
    }

    /// Returns true if an abort can be split in two steps: first set the abort flags, then free the memory once no
    /// thread is inside NCCL with the communicator. From 2.22 on, `ncclCommAbort` inside a group sets the flags at
    /// once, and the end of the group frees the memory.
    pub(crate) fn aborts_in_groups(&self) -> bool {
        self.release() >= Version::new(2, 22, 0)
    }
}

impl fmt::Debug for Nccl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Nccl({})", self.release())
    }
}
