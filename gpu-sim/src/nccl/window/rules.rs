//! Differences of window registration between releases.
//!
//! | | 2.27 | 2.28 | 2.29 | 2.30.3 | 2.30.7 |
//! |---|---|---|---|---|---|
//! | the handle is written | at the call | at group end | as 2.28 | as 2.28 | as 2.28 |
//! | communicator without support | local handle | local handle | NULL | NULL | NULL |
//! | NULL or no bytes | NULL | unwritten | error | error | error |
//! | misaligned | NULL (2 MiB) | error (4096) | error | error | error |
//! | several physical segments | NULL | not checked | error | allowed | allowed |
//! | memory registered before | no call to peers | mapping shared | shared | shared | mapped anew |
//! | addresses after deregistration | never again | reused | reused | reused | reused |
//! | sizes that differ between ranks | fail | fail | fail | fail | allowed |
//! | during capture | fails | fails | fails | fails | allowed |

/// Releases that behave alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ReleaseBehavior {
    V2_27,
    V2_28,
    V2_29,
    V2_30_3,
    V2_30_7,
}

/// Result of an unusual argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EdgeCase {
    /// Success, and the handle is NULL.
    Null,
    /// Success, and the handle is left as it was.
    Unwritten,
    /// Success, and the handle is that of a local registration.
    Local,
    /// `ncclInvalidArgument`.
    Refused,
    /// Accepted as if it were valid.
    Ignored,
}

impl ReleaseBehavior {
    pub(crate) fn of(release: u32) -> Self {
        match release {
            ..22800 => Self::V2_27,
            22800..22900 => Self::V2_28,
            22900..23000 => Self::V2_29,
            23000..23007 => Self::V2_30_3,
            _ => Self::V2_30_7,
        }
    }

    pub(crate) fn writes_at_call(self) -> bool {
        self == Self::V2_27
    }

    pub(crate) fn without_support(self) -> EdgeCase {
        if self <= Self::V2_28 { EdgeCase::Local } else { EdgeCase::Null }
    }

    pub(crate) fn empty(self) -> EdgeCase {
        match self {
            Self::V2_27 => EdgeCase::Null,
            Self::V2_28 => EdgeCase::Unwritten,
            _ => EdgeCase::Refused,
        }
    }

    pub(crate) fn misaligned(self) -> EdgeCase {
        if self == Self::V2_27 { EdgeCase::Null } else { EdgeCase::Refused }
    }

    pub(crate) fn several_segments(self) -> EdgeCase {
        match self {
            Self::V2_27 => EdgeCase::Null,
            Self::V2_29 => EdgeCase::Refused,
            _ => EdgeCase::Ignored,
        }
    }

    /// True if memory that is mapped already keeps its mapping.
    pub(crate) fn shares(self) -> bool {
        self != Self::V2_30_7
    }

    pub(crate) fn reuses_addresses(self) -> bool {
        self != Self::V2_27
    }

    pub(crate) fn allows_unequal_sizes(self) -> bool {
        self == Self::V2_30_7
    }

    pub(crate) fn allows_capture(self) -> bool {
        self == Self::V2_30_7
    }
}
