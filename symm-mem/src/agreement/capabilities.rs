//! What a rank's libraries can do: a part of its record that must be equal on all members.
//!
//! To add a capability, add a field to [`Capabilities`], a variant to [`Capability`] with its entry in `ALL` and its
//! values in `compared` and `shown`, and set the field in `commit/offer.rs`. A new field changes the form of the
//! records, so it needs another [`PROTOCOL_VERSION`](super::PROTOCOL_VERSION).

use std::fmt;

use super::{
    ValuesByRank,
    poison::NoWindows,
    wire::{wire_enum, wire_struct},
};

/// The support of windows by a rank's library for this group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WindowSupport {
    /// The library has windows for this group, as far as is known before a registration.
    Available,
    /// The library has no windows for this group.
    Unavailable {
        /// The reason; the same text on every rank with the same library and environment.
        reason: String,
    },
}
wire_enum!(WindowSupport { 0 => Available {}, 1 => Unavailable { reason } });

/// The capabilities of a rank's libraries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capabilities {
    /// The version code of the communication library (`ncclGetVersion`).
    pub library: u32,
    /// Support of windows for this group.
    pub windows: WindowSupport,
}
wire_struct!(Capabilities { library, windows });

impl Capabilities {
    /// Returns the first capability in which members differ, and its value on each. `None` if all are equal. `by_rank`
    /// applies a function to the capabilities of every member, and returns its results by rank.
    pub(super) fn difference(
        by_rank: impl Fn(&dyn Fn(&Self) -> String) -> ValuesByRank<String>,
    ) -> Option<(Capability, ValuesByRank<String>)> {
        Capability::ALL.into_iter().find_map(|what| {
            let is_equal = by_rank(&|own| what.compared(own)).is_unanimous();
            (!is_equal).then(|| (what, by_rank(&|own| what.shown(own))))
        })
    }
}

impl WindowSupport {
    /// Returns why there are no windows, or `None` if there are windows.
    pub(super) fn missing(&self) -> Option<NoWindows> {
        match self {
            Self::Available => None,
            Self::Unavailable { reason } => Some(NoWindows::Unsupported { reason: reason.clone() }),
        }
    }
}

/// A capability that must be equal on all members.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Capability {
    /// The version of the communication library.
    Library,
    /// Support of windows for this group.
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

impl Capability {
    const ALL: [Self; 2] = [Self::Library, Self::Windows];

    /// Returns the value to compare. The reason for missing windows is left out, because ranks with different
    /// environments may have different reasons.
    fn compared(self, own: &Capabilities) -> String {
        match self {
            Self::Library => own.library.to_string(),
            Self::Windows => (own.windows == WindowSupport::Available).to_string(),
        }
    }

    /// Returns the value to show in the error, with the reason for missing windows.
    fn shown(self, own: &Capabilities) -> String {
        match (self, &own.windows) {
            (Self::Windows, WindowSupport::Available) => "available".to_owned(),
            (Self::Windows, WindowSupport::Unavailable { reason }) => format!("unavailable ({reason})"),
            (Self::Library, _) => self.compared(own),
        }
    }
}
