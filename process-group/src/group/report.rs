//! Reports which operations' buffers were in registered memory, and the reasons for those that were not.

use std::fmt;

use super::NotRegistered;
use crate::memory::{Place, Unregistrable};

/// The registration of a buffer when it was given to an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u8)]
pub enum RegistrationStatus {
    /// In a segment that is registered with the group's communicator.
    Registered,
    /// In a segment that could be registered, but the members did not agree to it.
    /// [`RegistrationReport::policy`] has the reason.
    NotAgreed,
    /// In no segment of an allocator that is followed, nor of a [pool](super::ProcessGroup::register_pool) that is
    /// registered.
    Foreign,
    /// In a segment of a pool that is re-mappable.
    Remappable,
    /// In a segment of a pool whose memory cannot be exported.
    NotExportable,
    /// In a segment of an allocator that was attached after the group was made.
    Late,
}

impl RegistrationStatus {
    pub(super) const ALL: [Self; 6] =
        [Self::Registered, Self::NotAgreed, Self::Foreign, Self::Remappable, Self::NotExportable, Self::Late];

    pub(super) fn from_code(code: u64) -> Option<Self> {
        Self::ALL.get(code as usize).copied()
    }

    /// Returns the state of memory for a communicator that knows these registrars' segments, if any.
    pub(super) fn of(place: &Place, registrars: Option<&[u64]>) -> Self {
        match (place.segment, registrars) {
            (None, _) => Self::Foreign,
            (Some((_, Some(Unregistrable::Remappable))), _) => Self::Remappable,
            (Some((_, Some(Unregistrable::NotExportable))), _) => Self::NotExportable,
            (Some((registrar, None)), _) => Self::of_registrar(registrar, registrars),
        }
    }

    /// Returns the state of memory in a registrable segment, by the registrar of its allocator.
    pub(super) fn of_registrar(registrar: u64, registrars: Option<&[u64]>) -> Self {
        match registrars {
            None => Self::NotAgreed,
            Some(known) if known.contains(&registrar) => Self::Registered,
            Some(_) => Self::Late,
        }
    }

    /// Returns the reason why such memory is not registered; `None` if it is.
    #[must_use]
    pub const fn reason(self) -> Option<&'static str> {
        match self {
            Self::Registered => None,
            Self::NotAgreed => Some("in a segment that the members did not agree to register"),
            Self::Foreign => Some("in no segment of an allocator that is followed"),
            Self::Remappable => Some("in a re-mappable pool"),
            Self::NotExportable => Some("in a pool whose memory cannot be exported"),
            Self::Late => Some("in an allocator that was attached after the group was made"),
        }
    }
}

/// Counts of buffers by their registration, for one group's calls on this rank.
///
/// The buffers of every valid operation of the group are counted, also while a graph captures them. The
/// buffers of `_list` operations and of batches are counted under the NCCL operations that they consist of.
///
/// Not counted are buffers without elements, one-sided operations (their buffers are in windows), launches of
/// graphs, and calls on [`ProcessGroup::communicator`](super::ProcessGroup::communicator) itself. When several threads call at the same moment,
/// a few calls may be missed. Buffers given to a lazy group before its members have agreed are counted as
/// [`RegistrationStatus::NotAgreed`] until they do, and then under their actual state. Messages are counted as if all
/// communicators of pairs had registered memory;
/// [`P2pReport::not_registered`](super::P2pReport::not_registered) lists those that have none. Nothing is
/// counted in a group whose [`Builder::check_buffers`](super::Builder::check_buffers) is off.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RegistrationReport {
    /// The outcome of registration, with the reason if nothing is registered.
    pub policy: Result<(), NotRegistered>,
    /// The operations that had buffers.
    pub operations: Vec<OperationBuffers>,
}

/// The registration of one operation's buffers.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct OperationBuffers {
    /// The operation, by its method's name.
    pub operation: &'static str,
    /// The number of registered buffers.
    pub registered: u64,
    /// The numbers of other buffers, by their state.
    pub unregistered: Vec<(RegistrationStatus, u64)>,
}

impl fmt::Display for RegistrationReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.policy {
            Ok(()) => writeln!(f, "memory of allocators is registered on all members")?,
            Err(reason) => writeln!(f, "no member registers memory: {reason}")?,
        }
        for OperationBuffers { operation, registered, unregistered } in &self.operations {
            write!(f, "{operation}: {registered} buffers registered")?;
            for (status, count) in unregistered {
                write!(f, "; {count} {}", status.reason().unwrap_or_default())?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}
