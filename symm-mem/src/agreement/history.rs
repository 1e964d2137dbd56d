//! Operations on pools, and divergence of the ranks' histories.

use std::fmt;

use super::{
    ValuesByRank,
    wire::{wire_enum, wire_struct},
};

/// The kind of an operation on a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OperationKind {
    /// A block was allocated.
    Allocate,
    /// A block was freed.
    Free,
    /// A request was refused, because memory was exhausted or the pool was frozen.
    Refuse,
    /// A segment was retired.
    Retire,
}
wire_enum!(OperationKind { 0 => Allocate {}, 1 => Free {}, 2 => Refuse {}, 3 => Retire {} });

/// One operation of an allocation log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operation {
    /// The kind of the operation.
    pub kind: OperationKind,
    /// The requested size in bytes.
    pub bytes: u64,
    /// The block's place, if it got one.
    pub place: Option<BlockPlace>,
    /// The tag that the program gave the request.
    pub tag: Option<String>,
    /// The program's source line of the request.
    pub call_site: String,
}
wire_struct!(Operation { kind, bytes, place, tag, call_site });

/// The place of a block in its pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockPlace {
    /// The ordinal of the block's segment.
    pub ordinal: u32,
    /// The block's offset in the segment, in bytes.
    pub offset: u64,
}
wire_struct!(BlockPlace { ordinal, offset });

impl fmt::Display for Operation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.kind {
            OperationKind::Allocate => "allocated",
            OperationKind::Free => "freed",
            OperationKind::Refuse => "was refused",
            OperationKind::Retire => "retired",
        };
        write!(out, "{what} {} bytes", self.bytes)?;
        if let Some(tag) = &self.tag {
            write!(out, " ({tag})")?;
        }
        write!(out, " at {}", self.call_site)?;
        match self.place {
            Some(BlockPlace { ordinal, offset }) => write!(out, ", segment {ordinal}, offset {offset}"),
            None => Ok(()),
        }
    }
}

/// The point at which the allocation histories of ranks diverge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Divergence {
    /// All histories are equal before this operation.
    At {
        /// Its number, from 0.
        sequence: u64,
        /// Each rank's operation with this number; `None` if its log ends before.
        operations: ValuesByRank<Option<Operation>>,
    },
    /// The histories diverge before the oldest operation that all ranks still remember.
    Forgotten {
        /// The earliest operation that all ranks remember.
        before: u64,
    },
    /// A rank stopped answering during the search.
    NotFound {},
}
wire_enum!(Divergence {
    0 => At { sequence, operations },
    1 => Forgotten { before },
    2 => NotFound {},
});

impl fmt::Display for Divergence {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Divergence::At { sequence, operations } => {
                let what = operations.describe(|operation| match operation {
                    None => "none".to_owned(),
                    Some(operation) => operation.to_string(),
                });
                write!(out, "the first allocation that differs is number {sequence} ({what})")
            }
            Divergence::Forgotten { before } => {
                write!(out, "the first allocation that differs lies before number {before}")
            }
            Divergence::NotFound {} => {
                out.write_str("a rank fell silent while the first allocation that differs was searched")
            }
        }
    }
}
