//! The parts of the [record](crate::agreement::CommitRecord) that this rank posts in a
//! [commit](crate::SymmetricPool::commit) as its message to the other members: the state of the group on this rank, and
//! the pool's segments. This file also converts entries of the pool's [log](crate::SymmetricPool::log) of requests to
//! their form in later messages. A reservation has two entries in the log: an allocation and a free.

use std::{borrow::Cow, fmt};

use caching_alloc::core::symmetric::{self, SymmetricSegment};
use cuda_driver::{DevicePtr, graph::is_capturing};
use process_group::comm::{Communicator, WindowRequest, WindowRequestError};

use super::CommitOptions;

use crate::{
    agreement::{
        BlockPlace, Capabilities, Enqueued, Operation, OperationKind, Readiness, Segment, WindowSupport,
        ending::gone,
    },
    membership::group::{SymmetricGroup, check, readiness},
};

/// The first NCCL release that supports windows over several segments: 2.30.3.
pub(super) const JOINED_SINCE: u32 = 23003;

/// The state of the group and of the calling thread at the start of a commit, for this rank's record. A problem, for
/// example a failed communicator, becomes part of this state instead of an error, so that all members learn it.
pub struct LocalState {
    /// Whether the group and the calling thread are able to commit.
    pub readiness: Readiness,
    /// What NCCL and the options of this rank support.
    pub capabilities: Capabilities,
    /// The numbers of collectives and messages that this rank has enqueued in the group.
    pub enqueued: Vec<Enqueued>,
    /// The address space that the communicator has left for windows, in bytes. `None` if it is unknown.
    pub address_space_left: Option<u64>,
}

impl LocalState {
    /// Collects the state.
    /// - `inside_group` is true if the thread that requested the commit has an NCCL group open (`ncclGroupStart`).
    /// - `conflict` describes a call of another thread that excludes this commit: a commit, or a
    ///   [retirement](crate::SymmetricPool::retire) of a pool's segments. With a conflict, this rank reports that it is
    ///   not ready.
    pub(super) fn of(
        group: &dyn SymmetricGroup,
        options: CommitOptions,
        inside_group: bool,
        conflict: Option<&str>,
    ) -> Self {
        let communicator = group.communicator();
        let trouble = match conflict {
            Some(cause) => Some(cause.to_owned()),
            None => check(communicator, options.windows).err().map(|error| cause(group, error)),
        };
        let is_capturing = is_capturing(communicator.context()).map_err(|error| error.to_string());
        let windows = match group.windows_supported() {
            _ if !options.windows => WindowSupport::NotRequested,
            Ok(()) => WindowSupport::Available,
            Err(reason) => WindowSupport::Unavailable { reason: reason.to_string() },
        };
        let library = communicator.nccl().release_code();
        Self {
            readiness: readiness(inside_group, trouble, is_capturing),
            capabilities: Capabilities { library, windows },
            enqueued: group.enqueued(),
            address_space_left: address_space_left(communicator),
        }
    }
}

/// Converts an error to text. If the group has ended, returns the text of the error that ended the group instead. That
/// error explains more than `error`, which may be its consequence.
pub(super) fn cause(group: &dyn SymmetricGroup, error: impl fmt::Display) -> String {
    group.standing().err().map_or_else(|| error.to_string(), |ended| ended.to_string())
}

/// If the group has ended and its error names another member as the cause, returns that member. `own` is this rank.
pub(super) fn ended_by_another(group: &dyn SymmetricGroup, own: u32) -> Option<u32> {
    group.standing().err().map(|ended| gone(own, &ended).rank).filter(|rank| *rank != own)
}

/// Returns this rank's estimate of the symmetric address space that is left for windows of the communicator, in bytes.
/// Returns `None` if the driver fails.
///
/// On every member, NCCL reserves as much address space as the largest device of all members has memory, rounded up to
/// a multiple of 4 GiB. A rank knows only its own device, and estimates as if no member had a larger one. The windows
/// occupy equally many bytes on all members. So the greatest estimate, that of the rank with the largest device, is
/// correct for all members, and the members use it.
fn address_space_left(communicator: &Communicator) -> Option<u64> {
    const STEP: u64 = 4 << 30;
    let total = communicator.context().device().total_memory().ok()? as u64;
    Some(total.next_multiple_of(STEP).saturating_sub(communicator.window_bytes()))
}

/// Converts the pool's segments that are not retired to their form in a record.
/// [`GroupLog::begin`](crate::agreement::GroupLog::begin) later removes the segments that are not new to the group. If
/// `joins` is true, a segment that begins at the end of the previous one is marked as [`Segment::FOLLOWS`].
pub(super) fn live_segments(segments: &[SymmetricSegment], joins: bool) -> Vec<Segment> {
    let mut end = None;
    let live = segments.iter().filter(|it| !it.retired);
    let offer = live.map(|it| {
        let follows = joins && end == Some(it.memory.address);
        end = Some(it.memory.address + it.bytes);
        Segment { flags: if follows { Segment::FOLLOWS } else { 0 }, ..segment(it) }
    });
    offer.collect()
}

/// Checks, without contact to other ranks, whether this rank could register the segments `new` as windows.
/// `is_exportable` is true if other ranks can open the pool's memory. All members get the result before any of them
/// registers a segment, so a failure of this check leaves the group usable. A failure of the registration itself would
/// [poison](crate::Poison) the group.
pub(super) fn can_register(
    new: &[SymmetricSegment],
    is_exportable: bool,
    check: impl FnOnce(&[WindowRequest]) -> Result<(), WindowRequestError>,
) -> Readiness {
    if let (Some(first), false) = (new.first(), is_exportable) {
        let cause = "the pool's memory cannot be shared with other ranks: make the pool over exportable virtual memory";
        return Readiness::Failed { ordinal: Some(first.ordinal), cause: cause.to_owned() };
    }
    let request =
        |it: &SymmetricSegment| WindowRequest::symmetric(DevicePtr(it.memory.address), it.bytes as usize);
    match check(&new.iter().map(request).collect::<Vec<_>>()) {
        Ok(()) => Readiness::Ready,
        Err(WindowRequestError { index, address, bytes, problem, .. }) => {
            let cause = format!("{bytes} bytes at {address:#x}: {problem}");
            Readiness::Failed { ordinal: new.get(index).map(|it| it.ordinal), cause }
        }
    }
}

/// Converts a segment to its form in a record.
pub(crate) fn segment(segment: &SymmetricSegment) -> Segment {
    let SymmetricSegment { ordinal, bytes, log, .. } = *segment;
    Segment { ordinal, bytes, flags: 0, log: log.into() }
}

/// Converts an entry of the pool's [log](crate::SymmetricPool::log) of requests to its form in a message.
pub fn operation(operation: symmetric::Operation) -> Operation {
    let kind = match operation.kind {
        symmetric::OperationKind::Allocate => OperationKind::Allocate,
        symmetric::OperationKind::Free => OperationKind::Free,
        symmetric::OperationKind::Refuse => OperationKind::Refuse,
        symmetric::OperationKind::Retire => OperationKind::Retire,
    };
    let call_site = match kind {
        OperationKind::Free => String::new(),
        _ => format!("{}:{}", operation.file, operation.line),
    };
    Operation {
        kind,
        bytes: operation.bytes,
        place: operation
            .placement
            .map(|placement| BlockPlace { ordinal: placement.ordinal, offset: placement.offset }),
        tag: operation.tag.map(Cow::into_owned),
        call_site,
    }
}
