//! Report of the buffers that were in registered memory, by operation, and of the reasons why other buffers
//! were not.

use std::fmt;

use super::NotRegistered;
use crate::memory::{Place, Unregistrable};

/// The registration of a buffer at the time when it was passed to an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u8)]
pub enum RegistrationStatus {
    /// The buffer is in a segment that is registered with the group's communicator.
    Registered,
    /// The buffer is in a segment that can be registered, but the members did not agree to register.
    /// [`RegistrationReport::policy`] has the reason.
    NotAgreed,
    /// The buffer is neither in a segment of an allocator with an attached `SegmentRegistrar`, nor in a
    /// registered [pool](super::ProcessGroup::register_pool).
    Foreign,
    /// The buffer is in a segment of a re-mappable pool.
    Remappable,
    /// The buffer is in a segment of a pool whose memory cannot be exported.
    NotExportable,
    /// The buffer is in a segment of an allocator that was attached after the group's communicator was made.
    Late,
}

impl RegistrationStatus {
    pub(super) const ALL: [Self; 6] =
        [Self::Registered, Self::NotAgreed, Self::Foreign, Self::Remappable, Self::NotExportable, Self::Late];

    pub(super) fn from_code(code: u64) -> Option<Self> {
        Self::ALL.get(code as usize).copied()
    }

    /// Returns the status of memory at `place`, for a communicator with which the segments of `registrars`
    /// are registered. `registrars` is `None` if the members have not agreed to register.
    pub(super) fn of(place: &Place, registrars: Option<&[u64]>) -> Self {
        match (place.segment, registrars) {
            (None, _) => Self::Foreign,
            (Some((_, Some(Unregistrable::Remappable))), _) => Self::Remappable,
            (Some((_, Some(Unregistrable::NotExportable))), _) => Self::NotExportable,
            (Some((registrar, None)), _) => Self::of_registrar(registrar, registrars),
        }
    }

    /// Returns the status of memory in a registrable segment whose allocator has the registrar `registrar`.
    pub(super) fn of_registrar(registrar: u64, registrars: Option<&[u64]>) -> Self {
        match registrars {
            None => Self::NotAgreed,
            Some(known) if known.contains(&registrar) => Self::Registered,
            Some(_) => Self::Late,
        }
    }

    /// Returns the reason why memory with this status is not registered. `None` for
    /// [`Registered`](Self::Registered).
    #[must_use]
    pub const fn reason(self) -> Option<&'static str> {
        match self {
            Self::Registered => None,
            Self::NotAgreed => Some("in a segment that the members did not agree to register"),
            Self::Foreign => Some("in no segment of an allocator that is followed"),
            Self::Remappable => Some("in a re-mappable pool"),
            Self::NotExportable => Some("in a pool whose memory cannot be exported"),
            Self::Late => Some("in an allocator that was attached after the communicator was made"),
        }
    }
}

/// Numbers of buffers by registration status, for one group's calls on this rank.
///
/// The buffers of every valid operation of the group are counted, also those of operations that a graph
/// captures. The buffers of `_list` operations and of batches are counted under the NCCL operations that the
/// call consists of.
///
/// Not counted are buffers without elements, buffers of one-sided operations (which are in windows), launches
/// of graphs, and calls on [`ProcessGroup::communicator`](super::ProcessGroup::communicator) itself. When
/// several threads call at the same moment, a few calls may be missed. Buffers passed to a lazy group before
/// its members have agreed on registration are first counted as [`RegistrationStatus::NotAgreed`]. The
/// agreement moves them to their actual status. Messages are counted as if the communicators of all pairs had
/// registered memory; [`P2pReport::not_registered`](super::P2pReport::not_registered) lists the pairs'
/// communicators that have none. Nothing is counted in a group whose
/// [`Builder::check_buffers`](super::Builder::check_buffers) is off.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RegistrationReport {
    /// `Ok` if the members register memory. Otherwise the reason why none does.
    pub policy: Result<(), NotRegistered>,
    /// One entry for each operation with counted buffers.
    pub operations: Vec<OperationBuffers>,
}

/// The numbers of registered and other buffers of one operation.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct OperationBuffers {
    /// The name of the operation's method.
    pub operation: &'static str,
    /// The number of registered buffers.
    pub registered: u64,
    /// The numbers of buffers that are not registered, by status.
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
