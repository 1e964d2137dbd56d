//! The features of NCCL that depend on the release.

use crate::Version;
use crate::dynamic::requirement::{KnownBad, Requirement};

features! {
    /// A part of NCCL's interface that depends on the release: with the first that has it. Fields of the configuration
    /// are [`CONFIG_FIELDS`](crate::CONFIG_FIELDS).
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct Feature: u64 {
        /// Communicators with a configuration, and finalize (2.14.3).
        const CONFIG = 1 << 0;
        /// Splitting a communicator (2.18.1).
        const SPLIT = 1 << 1;
        /// Registration of a buffer with a communicator, on one rank's own (2.19.3).
        const REGISTER = 1 << 2;
        /// Memory from NCCL's allocator (2.19.3).
        const MEMORY = 1 << 3;
        /// Estimating a group without running it, of blocking communicators: with others it runs (2.22.3).
        const SIMULATE = 1 << 4;
        /// Initialisation from several unique ids (2.23.4).
        const SCALABLE_INIT = 1 << 5;
        /// Registration of symmetric windows, collectively (2.27.3; wrong in 2.28.3, mended in 2.28.7).
        const WINDOWS = 1 << 6;
        /// Communicators of the survivors (2.27.3).
        const SHRINK = 1 << 7;
        /// All-to-all, gather and scatter as functions of their own (2.28.3).
        const ALL_TO_ALL = 1 << 8;
        /// Revoking a communicator (2.28.7).
        const REVOKE = 1 << 9;
        /// Communicators with further ranks (2.29.2).
        const GROW = 1 << 10;
        /// One-sided transfers and signals from the host (2.29.2).
        const ONE_SIDED = 1 << 11;
        /// Suspending a communicator's memory, and taking it up again (2.29.7).
        const SUSPEND = 1 << 12;
        /// Collectives with a configuration of their own (2.31.2).
        const CALL_CONFIG = 1 << 13;
        /// Communicators whose calls return before they are done (2.14.3).
        const NON_BLOCKING = 1 << 14;
        /// Reductions that multiply by a factor first (2.13.4, and before).
        const PRE_MUL_SUM = 1 << 15;
        /// Splitting that shares the parent's resources (2.18.1; wrong until 2.27.3).
        const SPLIT_SHARE = 1 << 16;
        /// Elements of 8-bit floats (2.24.3).
        const FLOAT8 = 1 << 17;
        /// Collectives without thread blocks: the policy `NCCL_CTA_POLICY_ZERO` (2.28.3; wrong until 2.31.2).
        const COPY_ENGINE = 1 << 18;
        /// Registration of buffers that span several pieces of physical memory (2.29.2).
        const MULTI_SEGMENT_REGISTER = 1 << 19;
        /// Windows that span several pieces of physical memory; below, they fail or are not checked (2.30.3).
        const MULTI_SEGMENT_WINDOWS = 1 << 20;
        /// The address of a window's memory (2.29.2).
        const WINDOW_POINTER = 1 << 21;
        /// How many bytes a communicator holds (2.29.7).
        const MEMORY_STATISTICS = 1 << 22;
        /// NCCL's parameters, as it reads them (2.30.3).
        const PARAMETERS = 1 << 23;
        /// One-sided transfers and signals in captured graphs (2.30.3).
        const CAPTURED_ONE_SIDED = 1 << 24;
        /// Windows registered while a stream captures (2.30.7).
        const CAPTURED_WINDOWS = 1 << 25;
        /// Windows whose sizes differ between ranks (2.30.7).
        const UNEQUAL_WINDOWS = 1 << 26;
        /// Encryption between hosts (2.32.3).
        const ENCRYPTION = 1 << 27;
        /// What a communicator can do: windows, multicast, one-sided transfers (2.29.2).
        const PROPERTIES = 1 << 28;
        /// Device addresses of the other ranks' windows (2.29.2).
        const PEER_POINTERS = 1 << 29;
        /// Device addresses that reach all ranks' windows at once (2.29.2).
        const MULTICAST_POINTERS = 1 << 30;
        /// Communicators for kernels; those of 2.28 were an experiment, with structures that later releases refuse (2.29.2).
        const DEVICE_COMMUNICATORS = 1 << 31;
        /// Ranks that reach each other's memory, and their numbers (2.28.3).
        const TEAMS = 1 << 32;
        /// Counted transfers over the fabric: their teams, and the endpoints of windows (2.31.2).
        const COUNTED_TRANSFERS = 1 << 33;
    }
}

const fn needs(feature: Feature, functions: &'static [&'static str]) -> Requirement {
    Requirement { feature, functions, since: None, known_bad: &[] }
}

/// A requirement with a minimum release, for features whose functions alone do not tell.
const fn since(
    feature: Feature,
    (minor, patch): (u32, u32),
    functions: &'static [&'static str],
) -> Requirement {
    Requirement { feature, functions, since: Some(Version::new(2, minor, patch)), known_bad: &[] }
}

/// The requirements of each feature. The sources of `known_bad` are the release notes, or the commit with the
/// fix. Faults that a caller can avoid are not listed: several symmetric windows in one allocation (wrong
/// until 2.31.2, with one-sided transfers over the network).
pub(crate) static REQUIREMENTS: &[Requirement] = &[
    needs(Feature::CONFIG, &["ncclCommInitRankConfig", "ncclCommFinalize"]),
    needs(Feature::SPLIT, &["ncclCommSplit"]),
    needs(Feature::REGISTER, &["ncclCommRegister", "ncclCommDeregister"]),
    needs(Feature::MEMORY, &["ncclMemAlloc", "ncclMemFree"]),
    needs(Feature::SIMULATE, &["ncclGroupSimulateEnd"]),
    needs(Feature::SCALABLE_INIT, &["ncclCommInitRankScalable"]),
    Requirement {
        known_bad: &[KnownBad {
            // Release notes of 2.28.7: potential data corruption with built-in symmetric kernels, for small messages
            // of a granularity under 8 bytes or when several operations were aggregated in a group.
            first: Version::new(2, 28, 3),
            mended: Version::new(2, 28, 7),
            fault: "collectives from windows corrupt small or aggregated messages in 2.28.3",
        }],
        ..needs(Feature::WINDOWS, &["ncclCommWindowRegister", "ncclCommWindowDeregister"])
    },
    needs(Feature::SHRINK, &["ncclCommShrink"]),
    needs(Feature::ALL_TO_ALL, &["ncclAlltoAll", "ncclGather", "ncclScatter"]),
    needs(Feature::REVOKE, &["ncclCommRevoke"]),
    needs(Feature::GROW, &["ncclCommGrow", "ncclCommGetUniqueId"]),
    needs(Feature::ONE_SIDED, &["ncclPutSignal", "ncclSignal", "ncclWaitSignal"]),
    needs(Feature::SUSPEND, &["ncclCommSuspend", "ncclCommResume"]),
    needs(
        Feature::CALL_CONFIG,
        &[
            "ncclAllReduceConfig",
            "ncclBroadcastConfig",
            "ncclReduceConfig",
            "ncclAllGatherConfig",
            "ncclReduceScatterConfig",
            "ncclAlltoAllConfig",
            "ncclGatherConfig",
            "ncclScatterConfig",
        ],
    ),
    needs(Feature::NON_BLOCKING, &["ncclCommInitRankConfig", "ncclCommFinalize", "ncclCommGetAsyncError"]),
    needs(Feature::PRE_MUL_SUM, &["ncclRedOpCreatePreMulSum", "ncclRedOpDestroy"]),
    Requirement {
        known_bad: &[KnownBad {
            // Release notes of 2.27.3, on `ncclCommSplit`.
            first: Version::new(2, 18, 1),
            mended: Version::new(2, 27, 3),
            fault: "memory is corrupted if the new communicator's NVLink domain is smaller than the old one's",
        }],
        ..needs(Feature::SPLIT_SHARE, &["ncclCommSplit"])
    },
    since(Feature::FLOAT8, (24, 3), &[]),
    Requirement {
        known_bad: &[
            KnownBad {
                // Commit 428f0f20, first in 2.30.3: a race with an odd number of batches.
                first: Version::new(2, 28, 3),
                mended: Version::new(2, 30, 3),
                fault: "all-to-all and all-gather by copy engines end before all data has come",
            },
            KnownBad {
                // Release notes of 2.31.2 (issue 2241 of NCCL). They do not say since when; 2.29.7 is the first whose
                // source leaves multicast to more than two ranks, while copy engines go on to synchronise by it.
                first: Version::new(2, 29, 7),
                mended: Version::new(2, 31, 2),
                fault: "the first collective by copy engines hangs on two ranks that have multicast",
            },
        ],
        ..since(Feature::COPY_ENGINE, (28, 3), &["ncclCommInitRankConfig", "ncclCommWindowRegister"])
    },
    since(Feature::MULTI_SEGMENT_REGISTER, (29, 2), &["ncclCommRegister", "ncclCommDeregister"]),
    since(Feature::MULTI_SEGMENT_WINDOWS, (30, 3), &["ncclCommWindowRegister", "ncclCommWindowDeregister"]),
    needs(Feature::WINDOW_POINTER, &["ncclWinGetUserPtr"]),
    needs(Feature::MEMORY_STATISTICS, &["ncclCommMemStats"]),
    needs(
        Feature::PARAMETERS,
        &["ncclParamBind", "ncclParamGetStr", "ncclParamGetParameter", "ncclParamGetAllParameterKeys"],
    ),
    since(Feature::CAPTURED_ONE_SIDED, (30, 3), &["ncclPutSignal", "ncclSignal", "ncclWaitSignal"]),
    since(Feature::CAPTURED_WINDOWS, (30, 7), &["ncclCommWindowRegister", "ncclCommWindowDeregister"]),
    since(Feature::UNEQUAL_WINDOWS, (30, 7), &["ncclCommWindowRegister", "ncclCommWindowDeregister"]),
    needs(Feature::ENCRYPTION, &["ncclSetEncryption"]),
    needs(Feature::PROPERTIES, &["ncclCommQueryProperties"]),
    needs(Feature::PEER_POINTERS, &["ncclGetLsaDevicePointer", "ncclGetPeerDevicePointer"]),
    needs(Feature::MULTICAST_POINTERS, &["ncclGetLsaMultimemDevicePointer", "ncclGetMultimemDevicePointer"]),
    since(
        Feature::DEVICE_COMMUNICATORS,
        (29, 2),
        &["ncclDevCommCreate", "ncclDevCommDestroy", "ncclCommQueryProperties"],
    ),
    needs(
        Feature::TEAMS,
        &["ncclTeamWorld", "ncclTeamLsa", "ncclTeamRail", "ncclTeamRankToWorld", "ncclTeamRankToLsa"],
    ),
    needs(
        Feature::COUNTED_TRANSFERS,
        &[
            "ncclTeamCft",
            "ncclTeamCftMultimem",
            "ncclGetCftDeviceLeInfo",
            "ncclGetPeerDeviceLeInfo",
            "ncclGetMultimemDeviceLeInfo",
        ],
    ),
];
