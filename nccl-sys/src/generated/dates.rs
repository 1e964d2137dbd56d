//! Since when structures, fields and constants are as they are. Written by `cargo xtask codegen` from the headers of every release; not edited by hand.

structures! {
    known {
        ncclUniqueId: [(2, 13, 4) = 128] {
            internal (2, 13, 4),
        }
        ncclConfig_t: [(2, 14, 3) = 24, (2, 17, 1) = 40, (2, 18, 1) = 48, (2, 27, 3) = 72, (2, 28, 3) = 80, (2, 29, 2) = 88, (2, 30, 3) = 96, (2, 31, 2) = 112, (2, 32, 3) = 120] {
            size (2, 14, 3),
            magic (2, 14, 3),
            version (2, 14, 3),
            blocking (2, 14, 3),
            cgaClusterSize (2, 17, 1),
            minCTAs (2, 17, 1),
            maxCTAs (2, 17, 1),
            netName (2, 17, 1),
            splitShare (2, 18, 1),
            trafficClass (2, 26, 2),
            commName (2, 27, 3),
            collnetEnable (2, 27, 3),
            CTAPolicy (2, 27, 3),
            shrinkShare (2, 27, 3),
            nvlsCTAs (2, 27, 3),
            nChannelsPerNetPeer (2, 28, 3),
            nvlinkCentricSched (2, 28, 3),
            graphUsageMode (2, 29, 2),
            numRmaCtx (2, 29, 2),
            maxP2pPeers (2, 30, 3),
            graphStreamOrdering (2, 30, 7),
            launchOrderImplicit (2, 31, 2),
            numRmaSig (2, 31, 2),
            rmaEagerInit (2, 31, 2),
            hostCftMode (2, 31, 2),
            nvlsHostMode (2, 32, 3),
        }
        ncclConfigExt: [(2, 31, 2) = 24] {
            next (2, 31, 2),
            key (2, 31, 2),
            key.vendorId (2, 31, 2),
            key.optionId (2, 31, 2),
            val (2, 31, 2),
            val.i (2, 31, 2),
            val.raw (2, 31, 2),
            val.s (2, 31, 2),
        }
        ncclCollConfig_t: [(2, 31, 2) = 64, (2, 32, 3) = 72] {
            size (2, 31, 2),
            magic (2, 31, 2),
            version (2, 31, 2),
            ext (2, 31, 2),
            minCTAs (2, 31, 2),
            maxCTAs (2, 31, 2),
            nvlsCTAs (2, 31, 2),
            cgaClusterSize (2, 31, 2),
            algSelection (2, 31, 2),
            forceAlgSelection (2, 31, 2),
            CTAPolicy (2, 31, 2),
            userProfilerTag (2, 31, 2),
            launchCompletionEvent (2, 32, 3),
        }
        ncclSimInfo_t: [(2, 22, 3) = 24] {
            size (2, 22, 3),
            magic (2, 22, 3),
            version (2, 22, 3),
            estimatedTime (2, 22, 3),
        }
        ncclWaitSignalDesc_t: [(2, 29, 2) = 16] {
            opCnt (2, 29, 2),
            peer (2, 29, 2),
            sigIdx (2, 29, 2),
            ctx (2, 29, 2),
        }
        ncclEncryptionConfig_t: [(2, 32, 3) = 32] {
            size (2, 32, 3),
            magic (2, 32, 3),
            version (2, 32, 3),
            mode (2, 32, 3),
            psk (2, 32, 3),
        }
        ncclGinRequest_t: [(2, 30, 3) = 16] {
            opaque (2, 30, 3),
        }
        ncclTeam: [(2, 28, 3) = 12] {
            nRanks (2, 28, 3),
            rank (2, 28, 3),
            stride (2, 28, 3),
        }
        ncclMultimemHandle: [(2, 28, 3) = 8] {
            mcBasePtr (2, 28, 3),
        }
        ncclLLA2AHandle: [(2, 28, 3) = 8] {
            bufHandle (2, 28, 3),
            nSlots (2, 28, 3),
        }
        ncclLsaBarrierHandle: [(2, 28, 3) = 8] {
            bufHandle (2, 28, 3),
            nBarriers (2, 28, 3),
        }
        ncclGinBarrierHandle: [(2, 28, 7) = 8] {
            signal0 (2, 28, 7),
            unused (2, 29, 7),
        }
        ncclCftBarrierHandle: [(2, 31, 2) = 8] {
            bufHandle (2, 31, 2),
            nBarriers (2, 31, 2),
        }
        ncclDevResourceRequirements: [(2, 28, 3) = 32, (2, 28, 7) = 56] {
            next (2, 28, 3),
            bufferSize (2, 28, 3),
            bufferAlign (2, 28, 3),
            outBufferHandle (2, 28, 3),
            ginSignalCount (2, 28, 7),
            ginCounterCount (2, 28, 7),
            outGinSignalStart (2, 28, 7),
            outGinCounterStart (2, 28, 7),
        }
        ncclTeamRequirements: [(2, 28, 3) = 32] {
            next (2, 28, 3),
            team (2, 28, 3),
            multimem (2, 28, 3),
            outMultimemHandle (2, 28, 3),
        }
        ncclDevCommRequirements: [(2, 28, 3) = 24, (2, 28, 7) = 56, (2, 29, 2) = 72, (2, 29, 7) = 88, (2, 30, 3) = 96, (2, 31, 2) = 120] {
            size (2, 29, 2),
            magic (2, 29, 2),
            version (2, 29, 2),
            resourceRequirementsList (2, 29, 2),
            teamRequirementsList (2, 29, 2),
            lsaMultimem (2, 29, 2),
            barrierCount (2, 29, 2),
            lsaBarrierCount (2, 29, 2),
            railGinBarrierCount (2, 29, 2),
            lsaLLA2ABlockCount (2, 29, 2),
            lsaLLA2ASlotCount (2, 29, 2),
            ginForceEnable (2, 29, 2),
            ginContextCount (2, 29, 2),
            ginSignalCount (2, 29, 2),
            ginCounterCount (2, 29, 2),
            ginConnectionType (2, 29, 7),
            ginExclusiveContexts (2, 29, 7),
            ginQueueDepth (2, 29, 7),
            ginTrafficClass (2, 30, 3),
            worldGinBarrierCount (2, 30, 3),
            ginStrongSignalsRequired (2, 30, 7),
            ginVaSignalsRequired (2, 30, 7),
            ginCustomStride (2, 31, 2),
            ginType (2, 31, 2),
            useRuntimeVersion (2, 31, 2),
            cftCaps (2, 31, 2),
            cftBarrierCount (2, 31, 2),
        }
        ncclCommProperties: [(2, 29, 2) = 40, (2, 29, 7) = 56, (2, 31, 2) = 144, (2, 32, 3) = 152] {
            size (2, 29, 2),
            magic (2, 29, 2),
            version (2, 29, 2),
            rank (2, 29, 2),
            nRanks (2, 29, 2),
            cudaDev (2, 29, 2),
            nvmlDev (2, 29, 2),
            deviceApiSupport (2, 29, 2),
            multimemSupport (2, 29, 2),
            ginType (2, 29, 7),
            nLsaTeams (2, 29, 7),
            hostRmaSupport (2, 29, 7),
            railedGinType (2, 29, 7),
            commHash (2, 31, 2),
            ginMinStride (2, 31, 2),
            ginConnectionType (2, 31, 2),
            ginSupport (2, 31, 2),
            devCommRuntimeVersionSize (2, 31, 2),
            cftSupport (2, 32, 3),
            cftMulticastSupport (2, 32, 3),
            cftCountedSupport (2, 32, 3),
        }
    }
    opaque {
        ncclDevComm: [(2, 28, 3) = 88, (2, 28, 7) = 200, (2, 29, 7) = 224, (2, 30, 3) = 240, (2, 31, 2) = 248]
        ncclWindow_vidmem: [(2, 28, 3) = 32, (2, 28, 7) = 72, (2, 30, 4) = 88, (2, 32, 3) = 96]
    }
}

config_fields! {
    blocking (2, 14, 3),
    cgaClusterSize (2, 17, 1),
    minCTAs (2, 17, 1),
    maxCTAs (2, 17, 1),
    netName (2, 17, 1),
    splitShare (2, 18, 1),
    trafficClass (2, 26, 2),
    commName (2, 27, 3),
    collnetEnable (2, 27, 3),
    CTAPolicy (2, 27, 3),
    shrinkShare (2, 27, 3),
    nvlsCTAs (2, 27, 3),
    nChannelsPerNetPeer (2, 28, 3),
    nvlinkCentricSched (2, 28, 3),
    graphUsageMode (2, 29, 2),
    numRmaCtx (2, 29, 2),
    maxP2pPeers (2, 30, 3),
    graphStreamOrdering (2, 30, 7),
    launchOrderImplicit (2, 31, 2),
    numRmaSig (2, 31, 2),
    rmaEagerInit (2, 31, 2),
    hostCftMode (2, 31, 2),
    nvlsHostMode (2, 32, 3),
}

constants! {
    enumerations {
        ncclResult_t {
            ncclSuccess (2, 13, 4),
            ncclUnhandledCudaError (2, 13, 4),
            ncclSystemError (2, 13, 4),
            ncclInternalError (2, 13, 4),
            ncclInvalidArgument (2, 13, 4),
            ncclInvalidUsage (2, 13, 4),
            ncclRemoteError (2, 13, 4),
            ncclInProgress (2, 14, 3),
            ncclTimeout (2, 30, 3),
            ncclNumResults (2, 30, 3),
        }
        ncclHostCftMode_t {
            ncclHostCftDefault (2, 31, 2),
            ncclHostCftEnable (2, 31, 2),
            ncclHostCftDisable (2, 31, 2),
            ncclHostCftFallback (2, 31, 2),
        }
        ncclNvlsHostMode_t {
            ncclNvlsHostModeDefault (2, 32, 3),
            ncclNvlsHostModeEnable (2, 32, 3),
            ncclNvlsHostModeDisableTransport (2, 32, 3),
            ncclNvlsHostModeDisableSymmetricMultimem (2, 32, 3),
            ncclNvlsHostModeDisable (2, 32, 3),
        }
        ncclCommMemStat_t {
            ncclStatGpuMemSuspend (2, 29, 7),
            ncclStatGpuMemSuspended (2, 29, 7),
            ncclStatGpuMemPersist (2, 29, 7),
            ncclStatGpuMemTotal (2, 29, 7),
        }
        ncclRedOp_dummy_t {
            ncclNumOps_dummy (2, 13, 4),
        }
        ncclRedOp_t {
            ncclSum (2, 13, 4),
            ncclProd (2, 13, 4),
            ncclMax (2, 13, 4),
            ncclMin (2, 13, 4),
            ncclAvg (2, 13, 4),
            ncclNumOps (2, 13, 4),
            ncclMaxRedOp (2, 13, 4),
        }
        ncclDataType_t {
            ncclInt8 (2, 13, 4),
            ncclChar (2, 13, 4),
            ncclUint8 (2, 13, 4),
            ncclInt32 (2, 13, 4),
            ncclInt (2, 13, 4),
            ncclUint32 (2, 13, 4),
            ncclInt64 (2, 13, 4),
            ncclUint64 (2, 13, 4),
            ncclFloat16 (2, 13, 4),
            ncclHalf (2, 13, 4),
            ncclFloat32 (2, 13, 4),
            ncclFloat (2, 13, 4),
            ncclFloat64 (2, 13, 4),
            ncclDouble (2, 13, 4),
            ncclBfloat16 (2, 13, 4),
            ncclFloat8e4m3 (2, 24, 3),
            ncclFloat8e5m2 (2, 24, 3),
            ncclNumTypes (2, 24, 3),
        }
        ncclScalarResidence_t {
            ncclScalarDevice (2, 13, 4),
            ncclScalarHostImmediate (2, 13, 4),
        }
        ncclEncryptionMode_t {
            NCCL_ENCRYPTION_MODE_NONE (2, 32, 3),
            NCCL_ENCRYPTION_MODE_PSK (2, 32, 3),
        }
        ncclGinConnectionType_t {
            NCCL_GIN_CONNECTION_NONE (2, 29, 7),
            NCCL_GIN_CONNECTION_FULL (2, 29, 7),
            NCCL_GIN_CONNECTION_RAIL (2, 29, 7),
            NCCL_GIN_CONNECTION_CUSTOM_STRIDE (2, 31, 2),
        }
        ncclGinType_t {
            NCCL_GIN_TYPE_NONE (2, 29, 2),
            NCCL_GIN_TYPE_PROXY (2, 29, 2),
            NCCL_GIN_TYPE_GDAKI (2, 29, 2),
            NCCL_GIN_TYPE_GPI (2, 30, 7),
            NCCL_GIN_TYPE_EFA_GDA (2, 31, 2),
            NCCL_GIN_MAX_TYPES (2, 31, 2),
        }
        ncclCftTeamMode_t {
            NCCL_CFT_TEAM_FLAT (2, 31, 2),
            NCCL_CFT_TEAM_HIER_MULTIMEM (2, 31, 2),
            NCCL_CFT_TEAM_HIER_LSA (2, 31, 2),
        }
        ncclCftCap_t {
            NCCL_CFT_NONE (2, 31, 2),
            NCCL_CFT (2, 31, 2),
            NCCL_CFT_MULTIMEM (2, 31, 2),
        }
    }
    macros {
        NCCL_MAJOR (2, 13, 4),
        NCCL_MINOR (2, 32, 3),
        NCCL_PATCH (2, 32, 3),
        NCCL_VERSION_CODE (2, 32, 3),
        NCCL_UNIQUE_ID_BYTES (2, 13, 4),
        NCCL_SPLIT_NOCOLOR (2, 18, 1),
        NCCL_UNDEF_FLOAT (2, 22, 3),
        NCCL_API_MAGIC (2, 29, 2),
        NCCL_WIN_DEFAULT (2, 27, 3),
        NCCL_WIN_COLL_SYMMETRIC (2, 27, 3),
        NCCL_WIN_STRICT_ORDERING (2, 29, 7),
        NCCL_WIN_GIN_ONLY (2, 32, 3),
        NCCL_WIN_CFT_COUNTED (2, 32, 3),
        NCCL_WIN_REQUIRED_ALIGNMENT (2, 28, 3),
        NCCL_CTA_POLICY_DEFAULT (2, 27, 3),
        NCCL_CTA_POLICY_EFFICIENCY (2, 27, 3),
        NCCL_CTA_POLICY_ZERO (2, 28, 3),
        NCCL_SHRINK_DEFAULT (2, 27, 3),
        NCCL_SHRINK_ABORT (2, 27, 3),
        NCCL_REVOKE_DEFAULT (2, 28, 7),
        NCCL_SUSPEND_MEM (2, 29, 7),
        NCCL_GIN_MAX_ACTIVE_BACKENDS (2, 31, 2),
    }
}
