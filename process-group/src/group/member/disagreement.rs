//! The reasons why ranks cannot form a group.

use std::fmt::Write as _;

use nccl_sys::Version;

use super::Witnesses;

/// A reason why ranks cannot form a group.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Disagreement {
    /// A record that cannot be read.
    #[error(
        "the record of rank {rank} cannot be read ({problem}); does it run another version of this program?"
    )]
    Record {
        /// The rank of the record.
        rank: usize,
        /// The problem with it.
        problem: String,
    },
    /// Two ranks have different world sizes.
    #[error("rank {rank} was told that there are {size} ranks, but rank {other} that there are {other_size}")]
    WorldSize {
        /// One rank.
        rank: usize,
        /// Its world size.
        size: usize,
        /// The other.
        other: usize,
        /// The other's world size.
        other_size: usize,
    },
    /// Two ranks use different releases of NCCL, which cannot communicate with each other.
    #[error(
        "rank {rank} has NCCL {release}, but rank {other} has NCCL {other_release}; load the same file on all \
         (NCCL_SYS_LIBRARY)"
    )]
    Release {
        /// One rank.
        rank: usize,
        /// Its release.
        release: Version,
        /// The other.
        other: usize,
        /// The other's release.
        other_release: Version,
    },
    /// Checked mode is on for one rank and off for another.
    #[error(
        "rank {rank} was told that calls are checked before they are launched, but rank {other} that they are not; \
         tell all the same (PROCESS_GROUP_CHECKED)"
    )]
    Checked {
        /// A rank that checks.
        rank: usize,
        /// A rank that does not.
        other: usize,
    },
    /// Two ranks use different witnesses.
    #[error(
        "rank {rank} was told to watch by {witnesses:?}, but rank {other} by {other_witnesses:?}; tell all the same"
    )]
    Witnesses {
        /// One rank.
        rank: usize,
        /// Its witnesses.
        witnesses: Witnesses,
        /// The other.
        other: usize,
        /// The other's witnesses.
        other_witnesses: Witnesses,
    },
    /// Two ranks have different values of a setting that must be equal on all.
    #[error("rank {rank} was given {setting} {value}, but rank {other} {other_value}; give all the same")]
    Setting {
        /// The name of the setting.
        setting: String,
        /// One rank.
        rank: usize,
        /// Its value.
        value: String,
        /// The other.
        other: usize,
        /// The other's value.
        other_value: String,
    },
    /// Two ranks use one device, which NCCL refuses.
    #[error("ranks {rank} and {other} use the same device {}; give each its own (LOCAL_RANK)", hex(.device))]
    SameDevice {
        /// One rank.
        rank: usize,
        /// The other.
        other: usize,
        /// The device's UUID.
        device: [u8; 16],
    },
}

pub(super) fn hex(bytes: &[u8; 16]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
