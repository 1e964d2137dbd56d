//! The features of NCCL that depend on the release.

use dynload::features;

use crate::Table;

features! {
    /// Parts of NCCL's interface that depend on the release, one flag for each part. The documentation of a flag gives,
    /// in parentheses, the first release with the part. The word "wrong" in these parentheses marks releases that have
    /// the part with a known fault ([`Feature::known_bad`]). A library of such a release counts as lacking the part.
    /// Fields of `ncclConfig_t` have no flags: [`CONFIG_FIELDS`](crate::CONFIG_FIELDS) gives the first release of each
    /// field.
    pub struct Feature of Table;

    /// Creating a communicator with a configuration, and finalizing a communicator (2.14.3).
    CONFIG: ["ncclCommInitRankConfig", "ncclCommFinalize"];
    /// Splitting a communicator (2.18.1).
    SPLIT: ["ncclCommSplit"];
    /// Registration of a buffer with a communicator by one rank, not collectively (2.19.3).
    REGISTER: ["ncclCommRegister", "ncclCommDeregister"];
    /// Memory from NCCL's allocator (2.19.3).
    MEMORY: ["ncclMemAlloc", "ncclMemFree"];
    /// Estimating the time of a group of calls without running them; the communicators must be blocking (2.22.3).
    SIMULATE: ["ncclGroupSimulateEnd"];
    /// Initialisation from several unique ids (2.23.4).
    SCALABLE_INIT: ["ncclCommInitRankScalable"];
    /// Registration of symmetric windows, collectively (2.27.3; wrong in 2.28.3, mended in 2.28.7).
    WINDOWS: ["ncclCommWindowRegister", "ncclCommWindowDeregister"]
        // From the release notes of 2.28.7: potential data corruption with built-in symmetric kernels, for small
        // messages of a granularity under 8 bytes or when several operations were aggregated in a group.
        wrong (2, 28, 3) until (2, 28, 7)
            "collectives from windows corrupt small or aggregated messages in 2.28.3";
    /// A new communicator without some of the ranks, for example failed ones (2.27.3).
    SHRINK: ["ncclCommShrink"];
    /// All-to-all, gather and scatter as functions of their own (2.28.3).
    ALL_TO_ALL: ["ncclAlltoAll", "ncclGather", "ncclScatter"];
    /// Revoking a communicator (2.28.7).
    REVOKE: ["ncclCommRevoke"];
    /// A new communicator with additional ranks (2.29.2).
    GROW: ["ncclCommGrow", "ncclCommGetUniqueId"];
    /// One-sided transfers and signals from the host (2.29.2).
    ONE_SIDED: ["ncclPutSignal", "ncclSignal", "ncclWaitSignal"];
    /// Suspending a communicator's memory, and resuming it (2.29.7).
    SUSPEND: ["ncclCommSuspend", "ncclCommResume"];
    /// Collectives that take a configuration for each call (2.31.2).
    CALL_CONFIG: [
        "ncclAllReduceConfig", "ncclBroadcastConfig", "ncclReduceConfig", "ncclAllGatherConfig",
        "ncclReduceScatterConfig", "ncclAlltoAllConfig", "ncclGatherConfig", "ncclScatterConfig",
    ];
    /// Non-blocking communicators, whose calls may return before the operation is done (2.14.3).
    NON_BLOCKING: ["ncclCommInitRankConfig", "ncclCommFinalize", "ncclCommGetAsyncError"];
    /// Sums of values that NCCL multiplies by a factor first (2.13.4 or older).
    PRE_MUL_SUM: ["ncclRedOpCreatePreMulSum", "ncclRedOpDestroy"];
    /// Splitting a communicator so that the new one shares the old one's resources (2.18.1; wrong until 2.27.3).
    SPLIT_SHARE: ["ncclCommSplit"]
        // The release notes of 2.27.3 describe the fault, in the entry on `ncclCommSplit`.
        wrong (2, 18, 1) until (2, 27, 3)
            "memory is corrupted if the new communicator's NVLink domain is smaller than the old one's";
    /// Elements of 8-bit floats (2.24.3).
    FLOAT8: [] since (2, 24, 3);
    /// Collectives without thread blocks: the policy `NCCL_CTA_POLICY_ZERO` (2.28.3; wrong until 2.31.2).
    COPY_ENGINE: ["ncclCommInitRankConfig", "ncclCommWindowRegister"] since (2, 28, 3)
        // Commit 428f0f20, first released in 2.30.3, works around a race that can occur if the number of batches of
        // copies is odd.
        wrong (2, 28, 3) until (2, 30, 3)
            "all-to-all and all-gather by copy engines end before all data has come"
        // The release notes of 2.31.2 describe the fault (issue 2241 of NCCL), but do not name the first release with
        // it. 2.29.7 is the first release whose source sets up multicast only for more than two ranks, although the
        // collectives by copy engines still use multicast to synchronise two ranks.
        wrong (2, 29, 7) until (2, 31, 2)
            "the first collective by copy engines hangs on two ranks that have multicast";
    /// Registration of buffers that span several pieces of physical memory (2.29.2).
    MULTI_SEGMENT_REGISTER: ["ncclCommRegister", "ncclCommDeregister"] since (2, 29, 2);
    /// Windows that span several pieces of physical memory (2.30.3). Most older releases refuse such a window. Releases
    /// 2.28.3 to 2.28.9 do not check for it, and map only the first piece.
    MULTI_SEGMENT_WINDOWS: ["ncclCommWindowRegister", "ncclCommWindowDeregister"] since (2, 30, 3);
    /// The address of a window's memory (2.29.2).
    WINDOW_POINTER: ["ncclWinGetUserPtr"];
    /// Querying how many bytes of memory a communicator holds (2.29.7).
    MEMORY_STATISTICS: ["ncclCommMemStats"];
    /// Querying NCCL's parameters, with the values that NCCL uses (2.30.3).
    PARAMETERS: ["ncclParamBind", "ncclParamGetStr", "ncclParamGetParameter", "ncclParamGetAllParameterKeys"];
    /// One-sided transfers and signals in captured graphs (2.30.3).
    CAPTURED_ONE_SIDED: ["ncclPutSignal", "ncclSignal", "ncclWaitSignal"] since (2, 30, 3);
    /// Registering windows while a stream is being captured (2.30.7).
    CAPTURED_WINDOWS: ["ncclCommWindowRegister", "ncclCommWindowDeregister"] since (2, 30, 7);
    /// Windows whose sizes differ between ranks (2.30.7).
    UNEQUAL_WINDOWS: ["ncclCommWindowRegister", "ncclCommWindowDeregister"] since (2, 30, 7);
    /// TLS encryption of NCCL's own TCP connections, in libraries built with OpenSSL (2.32.3). Other transports, such
    /// as InfiniBand, are not encrypted.
    ENCRYPTION: ["ncclSetEncryption"];
    /// Querying a communicator's rank and device, and its support for the device interface and multicast (2.29.2).
    /// Since 2.29.7, NCCL also returns the support for one-sided transfers.
    PROPERTIES: ["ncclCommQueryProperties"];
    /// Device addresses of the other ranks' windows (2.29.2).
    PEER_POINTERS: ["ncclGetLsaDevicePointer", "ncclGetPeerDevicePointer"];
    /// Multicast device addresses, each of which reaches the windows of all ranks of a team at once (2.29.2).
    MULTICAST_POINTERS: ["ncclGetLsaMultimemDevicePointer", "ncclGetMultimemDevicePointer"];
    /// Device communicators, which kernels use (2.29.2). Those of 2.28 were experimental, and later releases refuse
    /// the structures of 2.28.
    DEVICE_COMMUNICATORS: [
        "ncclDevCommCreate", "ncclDevCommDestroy", "ncclCommQueryProperties",
    ] since (2, 29, 2);
    /// Teams of ranks, for example those that can access each other's memory, and rank numbers in teams (2.28.3).
    TEAMS: ["ncclTeamWorld", "ncclTeamLsa", "ncclTeamRail", "ncclTeamRankToWorld", "ncclTeamRankToLsa"];
    /// Teams of ranks and logical endpoints of windows for Compute Fabric Transport, CFT (2.31.2). With CFT, kernels
    /// move data through logical endpoints of the CUDA fabric.
    COMPUTE_FABRIC: [
        "ncclTeamCft", "ncclTeamCftMultimem", "ncclGetCftDeviceLeInfo", "ncclGetPeerDeviceLeInfo",
        "ncclGetMultimemDeviceLeInfo",
    ];
}
