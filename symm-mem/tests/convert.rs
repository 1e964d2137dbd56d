//! From what an arena says to what a record says.

use caching_alloc::core::symmetric::{self, LogState};
use symm_mem::agreement::{BlockPlace, LogPoint, Operation, OperationKind, Segment};

pub(crate) fn point(state: LogState) -> LogPoint {
    LogPoint { length: state.length, hash: state.hash }
}

pub(crate) fn segment(segment: &symmetric::SymmetricSegment) -> Segment {
    Segment { ordinal: segment.ordinal, bytes: segment.bytes, flags: 0, log: point(segment.log) }
}

pub(crate) fn operation(operation: symmetric::Operation) -> Operation {
    let kind = match operation.kind {
        symmetric::OperationKind::Allocate => OperationKind::Allocate,
        symmetric::OperationKind::Free => OperationKind::Free,
        symmetric::OperationKind::Refuse => OperationKind::Refuse,
        symmetric::OperationKind::Retire => OperationKind::Retire,
    };
    let place = operation.placement.map(|it| BlockPlace { ordinal: it.ordinal, offset: it.offset });
    let call_site = format!("{}:{}", operation.file, operation.line);
    Operation { kind, bytes: operation.bytes, place, tag: None, call_site }
}
