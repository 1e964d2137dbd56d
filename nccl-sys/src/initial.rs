//! The values of macros of the header that the code generator cannot evaluate. Most are initial values of structures
//! that declare their own size and release.

use std::ffi::c_int;
use std::ptr;

use crate::{
    NCCL_API_MAGIC, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_PTR, NCCL_SIM_INFO_MAGIC, NCCL_VERSION_CODE,
    Structure, Version, ncclCollConfig_t, ncclComm_t, ncclCommProperties, ncclDevCommRequirements,
    ncclEncryptionConfig_t, ncclEncryptionMode_t, ncclGinConnectionType_t, ncclGinType_t, ncclSimInfo_t,
};

/// The null handle, which stands for no communicator.
pub const NCCL_COMM_NULL: ncclComm_t = ptr::null_mut();

impl Default for ncclCollConfig_t {
    /// The values of `NCCL_COLLCONFIG_INITIALIZER`, which leave every choice to NCCL. `forceAlgSelection` is 1: if a
    /// caller sets `algSelection`, and no algorithm that it selects can be used, the call fails.
    fn default() -> Self {
        Self {
            size: size_of::<Self>(),
            magic: NCCL_API_MAGIC,
            version: NCCL_VERSION_CODE,
            ext: ptr::null_mut(),
            minCTAs: NCCL_CONFIG_UNDEF_INT,
            maxCTAs: NCCL_CONFIG_UNDEF_INT,
            nvlsCTAs: NCCL_CONFIG_UNDEF_INT,
            cgaClusterSize: NCCL_CONFIG_UNDEF_INT,
            algSelection: NCCL_CONFIG_UNDEF_PTR,
            forceAlgSelection: 1,
            CTAPolicy: NCCL_CONFIG_UNDEF_INT,
            userProfilerTag: 0,
            launchCompletionEvent: ptr::null_mut(),
        }
    }
}

impl Default for ncclSimInfo_t {
    /// The values of `NCCL_SIM_INFO_INITIALIZER`.
    fn default() -> Self {
        Self {
            size: size_of::<Self>(),
            magic: NCCL_SIM_INFO_MAGIC,
            version: NCCL_VERSION_CODE,
            estimatedTime: crate::NCCL_UNDEF_FLOAT as f32,
        }
    }
}

impl Default for ncclEncryptionConfig_t {
    /// The values of `NCCL_ENCRYPTION_CONFIG_INITIALIZER`: no encryption.
    fn default() -> Self {
        Self {
            size: size_of::<Self>(),
            magic: NCCL_API_MAGIC,
            version: NCCL_VERSION_CODE,
            mode: ncclEncryptionMode_t::NCCL_ENCRYPTION_MODE_NONE.0 as c_int,
            psk: ptr::null(),
        }
    }
}

impl Default for ncclDevCommRequirements {
    /// The values of `NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER`, with the newest size and version. An older library
    /// refuses the newest version: for such a library use [`for_release`](Self::for_release).
    fn default() -> Self {
        Self {
            size: size_of::<Self>(),
            magic: NCCL_API_MAGIC,
            version: NCCL_VERSION_CODE,
            resourceRequirementsList: ptr::null_mut(),
            teamRequirementsList: ptr::null_mut(),
            lsaMultimem: false,
            barrierCount: 0,
            lsaBarrierCount: 0,
            railGinBarrierCount: 0,
            lsaLLA2ABlockCount: 0,
            lsaLLA2ASlotCount: 0,
            ginForceEnable: false,
            ginContextCount: 4,
            ginSignalCount: 0,
            ginCounterCount: 0,
            ginConnectionType: ncclGinConnectionType_t::NCCL_GIN_CONNECTION_NONE,
            ginExclusiveContexts: false,
            ginQueueDepth: 0,
            ginTrafficClass: NCCL_CONFIG_UNDEF_INT,
            worldGinBarrierCount: 0,
            ginStrongSignalsRequired: true,
            ginVaSignalsRequired: true,
            ginCustomStride: 1,
            ginType: ncclGinType_t::NCCL_GIN_TYPE_NONE,
            useRuntimeVersion: false,
            cftCaps: 0,
            cftBarrierCount: 0,
        }
    }
}

impl Default for ncclCommProperties {
    /// The values of `NCCL_COMM_PROPERTIES_INITIALIZER`, with the newest size and version. `ncclCommQueryProperties`
    /// sets the other fields. An older library refuses the newest version: for such a library use
    /// [`for_release`](Self::for_release).
    fn default() -> Self {
        Self {
            size: size_of::<Self>(),
            magic: NCCL_API_MAGIC,
            version: NCCL_VERSION_CODE,
            rank: 0,
            nRanks: 0,
            cudaDev: 0,
            nvmlDev: 0,
            deviceApiSupport: false,
            multimemSupport: false,
            ginType: ncclGinType_t::default(),
            nLsaTeams: 0,
            hostRmaSupport: false,
            railedGinType: ncclGinType_t::default(),
            commHash: 0,
            ginMinStride: 0,
            ginConnectionType: ncclGinConnectionType_t::default(),
            ginSupport: [false; 64],
            devCommRuntimeVersionSize: 0,
            cftSupport: false,
            cftMulticastSupport: false,
            cftCountedSupport: false,
        }
    }
}

/// Defines `for_release` for structures that a library refuses if they declare a newer release than its own.
macro_rules! for_release {
    ($($name:ident)*) => {$(
        impl $name {
            /// Returns the default values with the size and the version that the structure has in `release`, so
            /// that the library accepts them and reads no fields of later releases. If `release` is newer than this
            /// crate, the size and the version are the newest that this crate knows. `None` before 2.29.2, where
            /// the structure does not exist or has another layout.
            pub fn for_release(release: Version) -> Option<Self> {
                let structure = Structure::named(stringify!($name))?;
                let version = structure.fields.iter().find(|field| field.name == "version")?;
                if release < version.since {
                    return None;
                }
                // A release newer than this crate: declare the release of the headers that the crate is generated from.
                let code = (crate::version_code(release) as u32).min(NCCL_VERSION_CODE);
                Some(Self { size: structure.size_in(release)?, version: code, ..Self::default() })
            }
        }
    )*};
}

for_release! { ncclDevCommRequirements ncclCommProperties }

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_structure_is_declared_as_large_as_its_release_has_it() {
        let requirements = |minor, patch| {
            let found = ncclDevCommRequirements::for_release(Version::new(2, minor, patch))?;
            Some((found.size, found.version))
        };
        assert_eq!(requirements(28, 9), None);
        assert_eq!(requirements(29, 3), Some((72, 22903)));
        assert_eq!(requirements(30, 7), Some((96, 23007)));
        assert_eq!(requirements(99, 0), Some((size_of::<ncclDevCommRequirements>(), NCCL_VERSION_CODE)));
        assert_eq!(ncclCommProperties::for_release(Version::new(2, 29, 7)).unwrap().size, 56);
    }
}
