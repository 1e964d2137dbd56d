//! Whether a rank wants and is able to register its allocators' memory with NCCL.

use std::env;

use nccl_sys::Feature;

use crate::comm::Nccl;

/// Whether a rank wants and is able to register its allocators' memory with NCCL, when it joins a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RegistrationSupport {
    /// The rank requested registration, and can register.
    Wanted,
    /// The rank did not request registration.
    NotAsked,
    /// The rank requested registration, but the crate is built without the feature `registration`.
    NotBuilt,
    /// The rank requested registration, but its NCCL release does not support registration.
    Release,
    /// The rank requested registration, but `NCCL_LOCAL_REGISTER=0` disables it.
    LocalRegister,
    /// The rank requested registration, but `NCCL_P2P_USE_CUDA_MEMCPY` makes NCCL copy by `cudaMemcpy`, which
    /// does not use registered buffers.
    CudaMemcpy,
}

bootstrap::wire_enum!(RegistrationSupport {
    0 => Wanted {},
    1 => NotAsked {},
    2 => NotBuilt {},
    3 => Release {},
    4 => LocalRegister {},
    5 => CudaMemcpy {},
});

impl RegistrationSupport {
    /// Returns this rank's value. `wanted` is true if registration was requested.
    pub(in crate::group) fn here(wanted: bool, nccl: &Nccl) -> Self {
        let set = |name: &str| env::var(name).ok().and_then(|value| value.trim().parse::<i64>().ok());
        if !wanted {
            Self::NotAsked
        } else if !cfg!(feature = "registration") {
            Self::NotBuilt
        } else if !nccl.has(Feature::REGISTER) {
            Self::Release
        } else if set("NCCL_LOCAL_REGISTER") == Some(0) {
            Self::LocalRegister
        } else if set("NCCL_P2P_USE_CUDA_MEMCPY").is_some_and(|value| value != 0) {
            Self::CudaMemcpy
        } else {
            Self::Wanted
        }
    }
}
