//! Enumerations. Written by `cargo xtask codegen` from `nccl.h` and `nccl_device.h` of nvidia-nccl-cu12 2.32.3; not edited by hand.

use dynload::enumeration;

enumeration! {
    ncclResult_t: u32 {
        ncclSuccess = 0,
        ncclUnhandledCudaError = 1,
        ncclSystemError = 2,
        ncclInternalError = 3,
        ncclInvalidArgument = 4,
        ncclInvalidUsage = 5,
        ncclRemoteError = 6,
        ncclInProgress = 7,
        ncclTimeout = 8,
        ncclNumResults = 9,
    }
}

enumeration! {
    ncclHostCftMode_t: i32 {
        ncclHostCftDefault = -2147483648,
        ncclHostCftEnable = 1,
        ncclHostCftDisable = 2,
        ncclHostCftFallback = 3,
    }
}

enumeration! {
    ncclNvlsHostMode_t: flags i32 {
        ncclNvlsHostModeDefault = -2147483648,
        ncclNvlsHostModeEnable = 0,
        ncclNvlsHostModeDisableTransport = 1,
        ncclNvlsHostModeDisableSymmetricMultimem = 2,
        ncclNvlsHostModeDisable = 2147483647,
    }
}

enumeration! {
    ncclCommMemStat_t: u32 {
        ncclStatGpuMemSuspend = 0,
        ncclStatGpuMemSuspended = 1,
        ncclStatGpuMemPersist = 2,
        ncclStatGpuMemTotal = 3,
    }
}

enumeration! {
    ncclRedOp_dummy_t: u32 {
        ncclNumOps_dummy = 5,
    }
}

enumeration! {
    ncclRedOp_t: u32 {
        ncclSum = 0,
        ncclProd = 1,
        ncclMax = 2,
        ncclMin = 3,
        ncclAvg = 4,
        ncclNumOps = 5,
        ncclMaxRedOp = 2147483647,
    }
}

enumeration! {
    ncclDataType_t: u32 {
        ncclInt8 = 0,
        ncclChar = 0,
        ncclUint8 = 1,
        ncclInt32 = 2,
        ncclInt = 2,
        ncclUint32 = 3,
        ncclInt64 = 4,
        ncclUint64 = 5,
        ncclFloat16 = 6,
        ncclHalf = 6,
        ncclFloat32 = 7,
        ncclFloat = 7,
        ncclFloat64 = 8,
        ncclDouble = 8,
        ncclBfloat16 = 9,
        ncclFloat8e4m3 = 10,
        ncclFloat8e5m2 = 11,
        ncclNumTypes = 12,
    }
}

enumeration! {
    ncclScalarResidence_t: u32 {
        ncclScalarDevice = 0,
        ncclScalarHostImmediate = 1,
    }
}

enumeration! {
    ncclEncryptionMode_t: u32 {
        NCCL_ENCRYPTION_MODE_NONE = 0,
        NCCL_ENCRYPTION_MODE_PSK = 1,
    }
}

enumeration! {
    ncclGinConnectionType_t: u32 {
        NCCL_GIN_CONNECTION_NONE = 0,
        NCCL_GIN_CONNECTION_FULL = 1,
        NCCL_GIN_CONNECTION_RAIL = 2,
        NCCL_GIN_CONNECTION_CUSTOM_STRIDE = 3,
    }
}

enumeration! {
    ncclGinType_t: u32 {
        NCCL_GIN_TYPE_NONE = 0,
        NCCL_GIN_TYPE_PROXY = 2,
        NCCL_GIN_TYPE_GDAKI = 3,
        NCCL_GIN_TYPE_GPI = 4,
        NCCL_GIN_TYPE_EFA_GDA = 5,
        NCCL_GIN_MAX_TYPES = 6,
    }
}

enumeration! {
    ncclCftTeamMode_t: u32 {
        NCCL_CFT_TEAM_FLAT = 0,
        NCCL_CFT_TEAM_HIER_MULTIMEM = 1,
        NCCL_CFT_TEAM_HIER_LSA = 2,
    }
}

enumeration! {
    ncclCftCap_t: u32 {
        NCCL_CFT_NONE = 0,
        NCCL_CFT = 1,
        NCCL_CFT_MULTIMEM = 2,
    }
}
