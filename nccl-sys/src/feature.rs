//! What a release of NCCL may or may not have.

use crate::Version;
use crate::dynamic::requirement::{KnownBad, Requirement};

bitflags::bitflags! {
    /// A part of NCCL's interface that depends on the release.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct Feature: u32 {
        /// Communicators with a configuration, finalize, non-blocking calls (2.14).
        const CONFIG = 1 << 0;
        /// Splitting a communicator (2.18).
        const SPLIT = 1 << 1;
        /// Registration of a buffer with a communicator, on one rank's own (2.19).
        const REGISTER = 1 << 2;
        /// Memory from NCCL's allocator (2.19).
        const MEMORY = 1 << 3;
        /// Estimating a group without running it (2.22).
        const SIMULATE = 1 << 4;
        /// Initialisation from several unique ids (2.23).
        const SCALABLE_INIT = 1 << 5;
        /// Registration of symmetric windows, collectively (2.27; wrong in 2.28.3, mended in 2.28.7).
        const WINDOWS = 1 << 6;
        /// Communicators of the survivors (2.27).
        const SHRINK = 1 << 7;
        /// All-to-all, gather and scatter as functions of their own (2.28).
        const ALL_TO_ALL = 1 << 8;
        /// Revoking a communicator (2.28.7).
        const REVOKE = 1 << 9;
        /// Communicators with further ranks (2.29).
        const GROW = 1 << 10;
        /// One-sided transfers and signals from the host (2.29).
        const ONE_SIDED = 1 << 11;
        /// Suspending a communicator's memory, and its statistics (2.29.7).
        const SUSPEND = 1 << 12;
        /// Collectives with a configuration of their own (2.31).
        const CALL_CONFIG = 1 << 13;
    }
}

impl Feature {
    /// Whether NCCL, as the release `version`, does it wrong; the reason if so.
    pub fn fault_in(self, version: Version) -> Option<&'static str> {
        REQUIREMENTS
            .iter()
            .filter(|needs| self.contains(needs.feature))
            .flat_map(|needs| needs.known_bad)
            .find(|bad| bad.first <= version && version < bad.mended)
            .map(|bad| bad.fault)
    }
}

const fn needs(feature: Feature, functions: &'static [&'static str]) -> Requirement {
    Requirement { feature, functions, since: None, known_bad: &[] }
}

/// What each feature takes.
pub(crate) static REQUIREMENTS: &[Requirement] = &[
    needs(Feature::CONFIG, &["ncclCommInitRankConfig", "ncclCommFinalize"]),
    needs(Feature::SPLIT, &["ncclCommSplit"]),
    needs(Feature::REGISTER, &["ncclCommRegister", "ncclCommDeregister"]),
    needs(Feature::MEMORY, &["ncclMemAlloc", "ncclMemFree"]),
    needs(Feature::SIMULATE, &["ncclGroupSimulateEnd"]),
    needs(Feature::SCALABLE_INIT, &["ncclCommInitRankScalable"]),
    Requirement {
        feature: Feature::WINDOWS,
        functions: &["ncclCommWindowRegister", "ncclCommWindowDeregister"],
        since: None,
        // The release notes of 2.28.7: symmetric kernels wrote wrong data for messages that are small, not a
        // multiple of 8 bytes, or aggregated.
        known_bad: &[KnownBad {
            first: Version::new(2, 28, 3),
            mended: Version::new(2, 28, 7),
            fault: "collectives from windows corrupt small or aggregated messages in 2.28.3",
        }],
    },
    needs(Feature::SHRINK, &["ncclCommShrink"]),
    needs(Feature::ALL_TO_ALL, &["ncclAlltoAll", "ncclGather", "ncclScatter"]),
    needs(Feature::REVOKE, &["ncclCommRevoke"]),
    needs(Feature::GROW, &["ncclCommGrow", "ncclCommGetUniqueId"]),
    needs(Feature::ONE_SIDED, &["ncclPutSignal", "ncclSignal", "ncclWaitSignal"]),
    needs(Feature::SUSPEND, &["ncclCommSuspend", "ncclCommResume", "ncclCommMemStats"]),
    needs(Feature::CALL_CONFIG, &["ncclAllReduceConfig", "ncclAllGatherConfig", "ncclReduceScatterConfig"]),
];
