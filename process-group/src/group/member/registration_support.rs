//! A rank's position on the registration of its memory.

use std::env;

use nccl_sys::Feature;

use crate::comm::Nccl;

/// A rank's position on registration when it joins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RegistrationSupport {
    /// It wants registration, and can register.
    Wanted,
    /// Registration was not requested.
    NotAsked,
    /// Requested, but the crate is built without the feature `registration`.
    NotBuilt,
    /// Requested, but its NCCL has no registration.
    Release,
    /// Requested, but its environment forbids NCCL to register.
    LocalRegister,
    /// Requested, but its environment makes NCCL copy with the driver, which registers nothing.
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
    /// Returns this rank's position.
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
