//! Explains how a group's collectives access a buffer, and why. A [commit](SymmetricPool::commit) of the pool for the
//! group registers the pool's segments as NCCL windows or with `ncclCommRegister`, where the group supports it.

use std::fmt;

use caching_alloc::core::symmetric::Placement;
use cuda_driver::DevicePtr;

use super::SymmetricPool;
use crate::{
    agreement::{GroupId, NoWindows, Poison, Refusal},
    membership::{BufferLocation, Index, LookupError, RegistrationState, SymmetricGroup},
};

/// The means by which a group's collectives access a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccessPath {
    /// Through an NCCL window: the members' kernels read and write each other's memory.
    Window {
        /// Number of windows that the group's communicator registered before this window. It is equal on all members.
        serial: u64,
        /// Offset of the buffer in the window, in bytes.
        offset: u64,
    },
    /// Through a plain registration: the buffer is registered with this rank's communicator (`ncclCommRegister`). So
    /// NCCL's transports can access it without copies through NCCL's internal buffers.
    Registered,
    /// Through NCCL's internal buffers.
    Plain,
}

/// Reason why collectives access a buffer by an [`AccessPath`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum PathReason {
    /// The buffer's segment is in a window, on which all members have agreed.
    Agreed,
    /// The buffer's segment was [committed](SymmetricPool::commit), but the segment is in no window. Contains the
    /// reason.
    NoWindow(NoWindows),
    /// The buffer's segment was committed, but it is in no window. It is not registered with `ncclCommRegister` on any
    /// member, because one member cannot register it.
    NotRegistered {
        /// Reason why the segment has no window.
        window: NoWindows,
        /// The rank that cannot register the segment, and the reason.
        registration: String,
    },
    /// The buffer does not begin in this pool.
    Elsewhere,
    /// The buffer extends beyond the segment in which it begins.
    SpansSegments(LookupError),
    /// The buffer's segment has not been committed for the group. Contains one of these:
    /// - the refusal, if the group's last commit was refused
    /// - [`CommitReport::pending`](crate::CommitReport::pending), if the group's last commit succeeded, but left out
    ///   the segment because the members' requests or segments differ
    /// - `None` in all other cases
    NotCommitted(Option<Refusal>),
    /// The group is poisoned: its members may have different windows.
    Poisoned(Poison),
    /// These ranks are members of the group, but outside the pool's [domain](crate::Domain).
    OutsideDomain(Vec<u32>),
}

/// The [`AccessPath`] of a group's collectives to a buffer, and the reason for this path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// The group.
    pub group: GroupId,
    /// Segment and offset of the buffer, equal on all ranks whose pools got the same requests. `None` for
    /// [`PathReason::Elsewhere`], [`PathReason::SpansSegments`] and [`PathReason::OutsideDomain`].
    pub placement: Option<Placement>,
    /// True if a block of this rank's pool contains at least one byte of the buffer. Always false if `placement` is
    /// `None`. If it is false although there is a placement, the buffer's block was freed or never allocated.
    /// Collectives still access such a buffer without an error, until its segment is freed.
    pub is_allocated: bool,
    /// The path.
    pub path: AccessPath,
    /// The reason for the path.
    pub why: PathReason,
}

impl fmt::Display for Explanation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(Placement { ordinal, offset }) = self.placement {
            let absent = if self.is_allocated { "" } else { " (no block is there; it may have been freed)" };
            write!(out, "segment {ordinal}, offset {offset}{absent}: ")?;
        }
        match self.path {
            AccessPath::Window { serial, offset } => write!(out, "window {serial} at {offset}")?,
            AccessPath::Registered => out.write_str("plain registration")?,
            AccessPath::Plain => out.write_str("no registration")?,
        }
        let group = self.group;
        match &self.why {
            PathReason::Agreed => write!(out, ", as the members of group {group} agreed"),
            PathReason::NoWindow(reason) => write!(out, "; agreed without a window: {reason}"),
            PathReason::NotRegistered { window, registration } => {
                write!(
                    out,
                    "; agreed without a window: {window}; nor registered plainly, because of {registration}"
                )
            }
            PathReason::Elsewhere => out.write_str("; it is not in this pool"),
            PathReason::SpansSegments(error) => write!(out, "; {error}"),
            PathReason::NotCommitted(None) => write!(out, "; not committed for group {group} yet"),
            PathReason::NotCommitted(Some(refusal)) => {
                write!(out, "; not committed for group {group}: {refusal}")
            }
            PathReason::Poisoned(poison) => write!(out, "; group {group} is poisoned: {poison}"),
            PathReason::OutsideDomain(ranks) => {
                write!(out, "; ranks {ranks:?} of group {group} are outside the domain")
            }
        }
    }
}

impl SymmetricPool {
    /// Explains how `group`'s collectives access the `bytes` bytes at `ptr`, and why. Also reports whether a block of
    /// this rank's pool contains any of these bytes.
    ///
    /// Not collective. For a buffer in a window, the path is [`AccessPath::Window`]. For any other buffer, it shows
    /// whether this rank's communicator has registered the buffer ([`AccessPath::Registered`]) or not
    /// ([`AccessPath::Plain`]). A commit makes windows, or registers a segment, on all members or on none. So members
    /// get different paths only in these cases:
    /// - The program itself has registered the buffer on some members.
    /// - The group is poisoned.
    /// - A commit or [retirement](SymmetricPool::retire) is in progress.
    ///
    /// Does not wait for a commit in progress: windows and reasons are those of the last commit that has ended.
    pub fn explain(&self, ptr: DevicePtr, bytes: u64, group: &dyn SymmetricGroup) -> Explanation {
        let id = group.id();
        let plain = if group.is_registered(ptr, bytes) { AccessPath::Registered } else { AccessPath::Plain };
        let explanation = |placement: Option<Placement>, path, why| {
            let blocks = placement.map(|placement| self.memory().arena().blocks_over(placement, bytes));
            let is_allocated = blocks.is_some_and(|blocks| !blocks.is_empty());
            Explanation { group: id, placement, is_allocated, path, why }
        };
        let otherwise = |placement, why| explanation(placement, plain, why);
        let outside = self.domain().outside(&group.ranks());
        let table = self.memberships().table();
        let BufferLocation { placement, state } = match Index::of(&table, 0).lookup(ptr.0, bytes, id) {
            Err(error) => return otherwise(None, PathReason::SpansSegments(error)),
            Ok(None) => return otherwise(None, PathReason::Elsewhere),
            Ok(Some(_)) if !outside.is_empty() => return otherwise(None, PathReason::OutsideDomain(outside)),
            Ok(Some(found)) => found,
        };
        if let RegistrationState::Window { serial } = state {
            let begin = table.window(placement.ordinal, id).map_or(0, |(_, begin)| *begin);
            let path = AccessPath::Window { serial, offset: begin + placement.offset };
            return explanation(Some(placement), path, PathReason::Agreed);
        }
        if let Some(poison) = table.poison(id) {
            return otherwise(Some(placement), PathReason::Poisoned(poison.clone()));
        }
        let is_committed = matches!(state, RegistrationState::Agreed | RegistrationState::Registered);
        let states = table.states(id).filter(|_| is_committed);
        let why =
            match states.and_then(|states| Some((states, states.why_without(placement.ordinal)?.clone()))) {
                Some((states, window)) => match states.why_unregistered(placement.ordinal) {
                    Some(cause) => PathReason::NotRegistered { window, registration: cause.to_owned() },
                    None => PathReason::NoWindow(window),
                },
                None => PathReason::NotCommitted(table.pending(id).cloned()),
            };
        otherwise(Some(placement), why)
    }
}
