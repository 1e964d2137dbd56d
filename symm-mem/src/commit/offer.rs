//! What this rank brings to a commit: what it finds of its group, its segments, and its past.

use std::{borrow::Cow, fmt};

use caching_alloc::core::symmetric::{self, SymmetricArena, SymmetricSegment};
use cuda_driver::{DevicePtr, graph::is_capturing};
use process_group::comm::{Communicator, WindowRequest, WindowRequestError};

use super::SymmetricGroup;
use crate::agreement::{
    BlockPlace, Capabilities, Enqueued, Operation, OperationKind, Readiness, Segment, WindowSupport,
};

/// The first release with windows over several segments.
pub(super) const JOINED_SINCE: u32 = 23003;

/// What a commit finds of its group and of the thread that makes it. Nothing here fails: what is wrong goes into the
/// record, so that all hear.
pub(crate) struct Found {
    pub(crate) readiness: Readiness,
    pub(crate) capabilities: Capabilities,
    pub(crate) enqueued: Vec<Enqueued>,
    pub(crate) address_space_left: Option<u64>,
}

/// What a rank finds before it looks at its segments, when it comes to a commit or a retirement.
pub(crate) struct Circumstances {
    /// Whether the calling thread has opened an NCCL group.
    pub(crate) inside_group: bool,
    /// What is wrong with its groups.
    pub(crate) trouble: Option<String>,
    /// Whether a stream of their devices captures, as the driver says. Registering and deregistering are no part of a
    /// capture, and may ruin it.
    pub(crate) is_capturing: Result<bool, String>,
}

impl Circumstances {
    /// Whether the rank can take part.
    pub(crate) fn readiness(self) -> Readiness {
        match self {
            Self { inside_group: true, .. } => Readiness::GroupOpen,
            Self { trouble: Some(cause), .. } | Self { is_capturing: Err(cause), .. } => {
                Readiness::Failed { ordinal: None, cause }
            }
            Self { is_capturing: Ok(true), .. } => Readiness::Capturing,
            Self { .. } => Readiness::Ready,
        }
    }
}

impl Found {
    pub(super) fn of(group: &dyn SymmetricGroup, inside: bool, alone: bool) -> Self {
        let communicator = group.communicator();
        let trouble = match alone {
            true => communicator.check().err().map(|error| cause(group, error)),
            false => {
                let cause = "another thread commits another pool for this group; the same one must come first on every rank";
                Some(cause.to_owned())
            }
        };
        let is_capturing = is_capturing(communicator.context()).map_err(|error| error.to_string());
        let readiness = Circumstances { inside_group: inside, trouble, is_capturing }.readiness();
        let windows = match group.windows_supported() {
            Ok(()) => WindowSupport::Available,
            Err(reason) => WindowSupport::Unavailable { reason: reason.to_string() },
        };
        let library = communicator.nccl().release().code().unsigned_abs();
        Self {
            readiness,
            capabilities: Capabilities { library, windows },
            enqueued: group.enqueued(),
            address_space_left: address_space_left(communicator),
        }
    }
}

/// What an error is told as: where the group is over, what has ended it says more than what failed for that.
pub(super) fn cause(group: &dyn SymmetricGroup, error: impl fmt::Display) -> String {
    group.standing().err().map_or_else(|| error.to_string(), |ended| ended.to_string())
}

/// What windows may still take of the communicator's symmetric address space, in bytes, as far as this rank knows:
/// NCCL reserves the largest device memory among the members, rounded up to 4 GiB.
fn address_space_left(communicator: &Communicator) -> Option<u64> {
    const STEP: u64 = 4 << 30;
    let total = communicator.context().device().total_memory().ok()? as u64;
    Some(total.next_multiple_of(STEP).saturating_sub(communicator.window_bytes()))
}

/// What a commit is about: the segments that are not retired. Where windows over several segments can be had, with who
/// follows whom.
pub(super) fn offered(segments: &[SymmetricSegment], joins: bool) -> Vec<Segment> {
    let mut end = None;
    let live = segments.iter().filter(|it| !it.retired);
    let offer = live.map(|it| {
        let follows = joins && end == Some(it.memory.address);
        end = Some(it.memory.address + it.bytes);
        Segment { flags: if follows { Segment::FOLLOWS } else { 0 }, ..segment(it) }
    });
    offer.collect()
}

/// The segments of which windows are to be made, as far as this rank can look at them alone.
pub(super) struct Candidates {
    ordinals: Vec<u32>,
    requests: Vec<WindowRequest>,
    /// Whether peers can be given the memory.
    is_exportable: bool,
}

impl Candidates {
    /// Of the segments that are not retired, those that `is_new` accepts.
    pub(super) fn of(arena: &SymmetricArena, is_new: impl Fn(&SymmetricSegment) -> bool) -> Self {
        let new = || arena.segments().iter().filter(|it| !it.retired && is_new(it));
        let request =
            |it: &SymmetricSegment| WindowRequest::symmetric(DevicePtr(it.memory.address), it.bytes as usize);
        Self {
            ordinals: new().map(|it| it.ordinal).collect(),
            requests: new().map(request).collect(),
            is_exportable: arena.source().is_exportable(),
        }
    }

    /// Whether this rank could register them. What it finds now is told to all members while nothing has begun;
    /// what is found when they register costs them the group.
    pub(super) fn check(
        &self,
        check: impl FnOnce(&[WindowRequest]) -> Result<(), WindowRequestError>,
    ) -> Readiness {
        if let (Some(ordinal), false) = (self.ordinals.first(), self.is_exportable) {
            let cause = "the pool's memory cannot be shared with other ranks: make the pool over exportable virtual memory";
            return Readiness::Failed { ordinal: Some(*ordinal), cause: cause.to_owned() };
        }
        match check(&self.requests) {
            Ok(()) => Readiness::Ready,
            Err(WindowRequestError { index, address, bytes, problem, .. }) => {
                let cause = format!("{bytes} bytes at {address:#x}: {problem}");
                Readiness::Failed { ordinal: self.ordinals.get(index).copied(), cause }
            }
        }
    }
}

/// A segment, as the others are told of it.
pub(crate) fn segment(segment: &SymmetricSegment) -> Segment {
    let SymmetricSegment { ordinal, bytes, log, .. } = *segment;
    Segment { ordinal, bytes, flags: 0, log: log.into() }
}

/// An operation of the allocation log, as the others are told of it.
pub(crate) fn operation(operation: symmetric::Operation) -> Operation {
    let kind = match operation.kind {
        symmetric::OperationKind::Allocate => OperationKind::Allocate,
        symmetric::OperationKind::Free => OperationKind::Free,
        symmetric::OperationKind::Refuse => OperationKind::Refuse,
        symmetric::OperationKind::Retire => OperationKind::Retire,
    };
    Operation {
        kind,
        bytes: operation.bytes,
        place: operation
            .placement
            .map(|placement| BlockPlace { ordinal: placement.ordinal, offset: placement.offset }),
        tag: operation.tag.map(Cow::into_owned),
        call_site: format!("{}:{}", operation.file, operation.line),
    }
}
