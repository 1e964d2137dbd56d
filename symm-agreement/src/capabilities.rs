//! The capabilities of a rank's libraries. They are part of the rank's [record](super::CommitRecord), its message to
//! the other members of a group at the start of a commit. They must be equal on all members.
//!
//! To add a capability, add a field to [`Capabilities`], a variant to [`Capability`] and the comparison to
//! [`Capabilities::difference`]. Set the field in `symm-mem/src/membership/commit/offer.rs`. A new field changes the
//! encoding of the records, so also increment [`PROTOCOL_VERSION`](super::PROTOCOL_VERSION).

use std::fmt;

use super::{
    ValuesByRank,
    ranks::split,
    wire::{wire_enum, wire_struct},
};

/// The description of [`WindowSupport::NotRequested`].
pub(crate) const NOT_REQUESTED: &str = "CommitOptions::windows is false";

/// Whether a rank supports NCCL windows for a group, and wants them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WindowSupport {
    /// The communication library supports windows for this group, as far as the rank can determine before it registers
    /// a window.
    Available,
    /// The library does not support windows for this group.
    Unavailable {
        /// The reason. The text is the same on every rank with the same library and environment.
        reason: String,
    },
    /// The caller of the commit requested no windows (`CommitOptions::windows`).
    NotRequested,
}
wire_enum!(WindowSupport { 0 => Available {}, 1 => Unavailable { reason }, 2 => NotRequested {} });

/// The capabilities of a rank's libraries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capabilities {
    /// The version code of the communication library (`ncclGetVersion`).
    pub library: u32,
    /// The support of windows for the group that commits. The members' reasons are not compared, so the values count as
    /// equal if windows are unavailable on all members.
    pub windows: WindowSupport,
}
wire_struct!(Capabilities { library, windows });

impl Capabilities {
    /// Returns the first capability that differs between the ranks, and its value on each rank as text. Returns `None`
    /// if all capabilities are equal.
    pub(crate) fn difference(of_ranks: &[(u32, &Self)]) -> Option<(Capability, ValuesByRank<String>)> {
        let libraries = split(of_ranks, |it| it.library);
        if !libraries.is_unanimous() {
            return Some((Capability::Library, libraries.map(|code| code.to_string())));
        }
        // The reasons for missing windows are shown, but not compared: they may depend on a rank's environment.
        let windows = split(of_ranks, |it| match it.windows {
            WindowSupport::Available => 0,
            WindowSupport::Unavailable { .. } => 1,
            WindowSupport::NotRequested => 2,
        });
        (!windows.is_unanimous()).then(|| (Capability::Windows, split(of_ranks, |it| it.windows.to_string())))
    }
}

impl fmt::Display for WindowSupport {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Available => out.write_str("available"),
            Self::Unavailable { reason } => write!(out, "unavailable ({reason})"),
            Self::NotRequested => out.write_str(NOT_REQUESTED),
        }
    }
}

/// A capability that must be equal on all members.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Capability {
    /// The version of the communication library.
    Library,
    /// The support of windows for the group.
    Windows,
}
wire_enum!(Capability { 0 => Library {}, 1 => Windows {} });

impl fmt::Display for Capability {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Capability::Library => "the communication library's version",
            Capability::Windows => "support of windows",
        })
    }
}
