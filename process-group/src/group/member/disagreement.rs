//! The reasons why ranks cannot form a group.

use cuda_driver::uuid_text;
use nccl_sys::Version;

use super::Witnesses;

/// A reason why ranks cannot form a group.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Disagreement {
    /// The record of a rank cannot be decoded.
    #[error(
        "the record of rank {rank} cannot be read ({problem}); does it run another version of this program?"
    )]
    Record {
        /// The rank that published the record.
        rank: usize,
        /// The decoding error.
        problem: String,
    },
    /// Two ranks have different world sizes.
    #[error("rank {rank} was told that there are {size} ranks, but rank {other} that there are {other_size}")]
    WorldSize {
        /// A rank.
        rank: usize,
        /// World size of `rank`.
        size: usize,
        /// Another rank.
        other: usize,
        /// World size of `other`.
        other_size: usize,
    },
    /// Two ranks use different releases of NCCL, which cannot communicate with each other.
    #[error(
        "rank {rank} has NCCL {release}, but rank {other} has NCCL {other_release}; load the same file on all \
         (NCCL_SYS_LIBRARY)"
    )]
    Release {
        /// A rank.
        rank: usize,
        /// NCCL release of `rank`.
        release: Version,
        /// Another rank.
        other: usize,
        /// NCCL release of `other`.
        other_release: Version,
    },
    /// [Checked mode](crate::group::Builder::checked) is on for one rank and off for another.
    #[error(
        "rank {rank} was told that calls are checked before they are launched, but rank {other} that they are not; \
         tell all the same (PROCESS_GROUP_CHECKED)"
    )]
    Checked {
        /// A rank on which checked mode is on.
        rank: usize,
        /// A rank on which checked mode is off.
        other: usize,
    },
    /// Two ranks use different [mechanisms](Witnesses) to notice the end of other processes.
    #[error(
        "rank {rank} was told to watch by {witnesses:?}, but rank {other} by {other_witnesses:?}; tell all the same"
    )]
    Witnesses {
        /// A rank.
        rank: usize,
        /// Mechanism of `rank`.
        witnesses: Witnesses,
        /// Another rank.
        other: usize,
        /// Mechanism of `other`.
        other_witnesses: Witnesses,
    },
    /// Two ranks have different values of a setting that must be equal on all ranks.
    #[error("rank {rank} was given {setting} {value}, but rank {other} {other_value}; give all the same")]
    Setting {
        /// The name of the setting.
        setting: String,
        /// A rank.
        rank: usize,
        /// The setting's value on `rank`.
        value: String,
        /// Another rank.
        other: usize,
        /// The setting's value on `other`.
        other_value: String,
    },
    /// Two ranks use one device, which NCCL refuses.
    #[error("ranks {rank} and {other} use the same device, with the UUID {} (nvidia-smi -L); give each its own (LOCAL_RANK)", uuid_text(.device))]
    SameDevice {
        /// A rank.
        rank: usize,
        /// Another rank.
        other: usize,
        /// The device's UUID.
        device: [u8; 16],
    },
}
