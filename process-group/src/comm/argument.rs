//! Errors of arguments that are checked before NCCL is called.

use std::{ffi::c_int, fmt};

use nccl_sys::Version;

use super::{DataType, ReduceOp};

/// Why the arguments of a call were refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ArgumentError {
    /// The lengths or types of an operation's send and receive buffers do not match.
    #[error(
        "{call} of {size} ranks: send has {send} elements of {send_type}, receive {receive} of {receive_type}; {rule}"
    )]
    Lengths {
        /// The operation.
        call: &'static str,
        /// The number of ranks.
        size: usize,
        /// The number of elements to send.
        send: usize,
        /// The type of the elements to send.
        send_type: DataType,
        /// The number of elements to receive.
        receive: usize,
        /// The type of the elements to receive.
        receive_type: DataType,
        /// The rule that the lengths must satisfy.
        rule: &'static str,
    },
    /// The length of a list of buffers is not the number of ranks.
    #[error("{call}: {found} {list} buffers were given; {size} are needed, one for every rank")]
    ListLength {
        /// The operation.
        call: &'static str,
        /// `send` or `receive`.
        list: &'static str,
        /// The number of buffers given.
        found: usize,
        /// The number of ranks.
        size: usize,
    },
    /// The root gave no buffer for an argument that only the root needs.
    #[error("{call}: rank {root} is the root and needs a {buffer} buffer, but gave none")]
    RootBuffer {
        /// The operation.
        call: &'static str,
        /// `send` or `receive`.
        buffer: &'static str,
        /// The root's rank.
        root: usize,
    },
    /// A buffer's size exceeds `isize::MAX` bytes, or the buffer's end exceeds the address space.
    #[error(
        "{call}: {elements} elements of {dtype} for each of {ranks} ranks are more bytes than there are addresses"
    )]
    TooLarge {
        /// The operation.
        call: &'static str,
        /// Number of elements for one rank.
        elements: usize,
        /// Type of the elements.
        dtype: DataType,
        /// Number of ranks whose elements the buffer holds.
        ranks: usize,
    },
    /// [`PreMulSumAt`](super::ReduceOp::PreMulSumAt) was passed to an operation on slices, which cannot check the
    /// factor's address.
    #[error(
        "PreMulSumAt reads its factor at an address that nothing checks; call the operation through `raw()`"
    )]
    RawFactor,
    /// A buffer that the operation uses is null.
    #[error("{call}: the {buffer} buffer is null, but {bytes} bytes are to be used there")]
    Null {
        /// The operation.
        call: &'static str,
        /// `send`, `receive`, `factor` or `registered`.
        buffer: &'static str,
        /// Number of bytes that the operation uses in the buffer.
        bytes: usize,
    },
    /// A buffer is not aligned to its element type.
    #[error("{call}: the {buffer} buffer at {address:#x} is not aligned to the {} bytes of {dtype}", .dtype.size())]
    Misaligned {
        /// The operation.
        call: &'static str,
        /// `send`, `receive` or `factor`.
        buffer: &'static str,
        /// Start address of the buffer.
        address: u64,
        /// Type of the buffer's elements.
        dtype: DataType,
    },
    /// The buffers overlap in a way that the operation does not allow.
    #[error(
        "{call}: send [{send:#x}, +{send_bytes}) and receive [{receive:#x}, +{receive_bytes}) overlap; {allowed}"
    )]
    Overlap {
        /// The operation.
        call: &'static str,
        /// Start address of the send buffer.
        send: u64,
        /// Length of the send buffer in bytes.
        send_bytes: usize,
        /// Start address of the receive buffer.
        receive: u64,
        /// Length of the receive buffer in bytes.
        receive_bytes: usize,
        /// The placement that the operation allows.
        allowed: &'static str,
    },
    /// A communicator of no ranks, or of more ranks than NCCL can number.
    #[error("{call}: a communicator cannot have {size} ranks: expected 1 to {}", c_int::MAX)]
    Size {
        /// The call.
        call: &'static str,
        /// The refused number of ranks.
        size: usize,
    },
    /// A rank argument that is not a rank of the communicator.
    #[error("{call}: {role} {rank} is not a rank of a communicator of {size}{}", range(*.size))]
    NoSuchRank {
        /// The operation.
        call: &'static str,
        /// Role of the rank in the call: `rank`, `root` or `peer`.
        role: &'static str,
        /// The refused rank.
        rank: usize,
        /// Number of ranks in the communicator.
        size: usize,
    },
    /// The list of ranks to exclude by a [shrink](super::Communicator::shrink) is empty or invalid.
    #[error(
        "{call}: a communicator of {size} cannot go on on rank {rank} without the ranks {excluded:?}: {problem}"
    )]
    Excluded {
        /// The operation.
        call: &'static str,
        /// This rank.
        rank: usize,
        /// Number of ranks in the communicator.
        size: usize,
        /// The ranks to exclude.
        excluded: Vec<usize>,
        /// The reason why these ranks cannot be excluded.
        problem: &'static str,
    },
    /// A rank called `send` or `recv` with itself as the peer, outside a group. The send would wait for ever for the
    /// receive, or the receive for the send.
    #[error(
        "{call}: rank {rank} is this rank itself; a message to oneself needs its send and its receive in one group"
    )]
    ToOneself {
        /// The operation.
        call: &'static str,
        /// This rank.
        rank: usize,
    },
    /// The loaded NCCL release cannot reduce elements of this type.
    #[error("{call}: reductions of {dtype} need NCCL {since}, but {release} is loaded")]
    TypeTooNew {
        /// The operation.
        call: &'static str,
        /// The element type.
        dtype: DataType,
        /// The first NCCL release that reduces the type.
        since: Version,
        /// The loaded NCCL release.
        release: Version,
    },
    /// The reduction is not defined for the element type.
    #[error(
        "{call}: elements of {dtype} cannot be reduced by {op}; average takes every type but bool, premultiplied sums \
         take f16, bf16, f32 and f64"
    )]
    Reduction {
        /// The operation.
        call: &'static str,
        /// The element type.
        dtype: DataType,
        /// The reduction.
        op: ReduceOp,
    },
    /// Two buffers of a list overlap, and at least one of them is written.
    #[error("{call}: {first} and {second} overlap")]
    ListOverlap {
        /// The operation.
        call: &'static str,
        /// The buffer that starts first.
        first: Box<ListBuffer>,
        /// The other buffer.
        second: Box<ListBuffer>,
    },
    /// A one-sided operation was called before [`prepare_one_sided`](super::Communicator::prepare_one_sided).
    #[error("{call}: one-sided operations were not prepared; all ranks call prepare_one_sided first")]
    NotPrepared {
        /// The operation.
        call: &'static str,
    },
    /// A buffer of a one-sided operation does not lie in one window.
    #[error(
        "{call}: the {buffer} buffer [{address:#x}, +{bytes}) does not lie in one symmetric window of this communicator"
    )]
    OutsideWindows {
        /// The operation.
        call: &'static str,
        /// `send` is the local source of a put, `receive` its destination. `address` is always a local address: for
        /// `receive`, the place in this rank's window that corresponds to the place that the put writes in the peer's
        /// window.
        buffer: &'static str,
        /// Start address of the buffer.
        address: u64,
        /// Length of the buffer in bytes.
        bytes: usize,
    },
    /// The number of signals to wait for is 0 or above `i32::MAX`.
    #[error("{call}: {count} signals cannot be waited for at once (1 to {})", i32::MAX)]
    Signals {
        /// The operation.
        call: &'static str,
        /// The refused number of signals.
        count: usize,
    },
    /// The memory to register has no bytes.
    #[error("{call}: the memory at {address:#x} has 0 bytes: expected at least 1")]
    Empty {
        /// The call.
        call: &'static str,
        /// Start address of the memory.
        address: u64,
    },
    /// The memory to register overlaps memory that is registered already.
    #[error(
        "{call}: {bytes} bytes at {address:#x} overlap {known_bytes} bytes at {known:#x}, which are registered with the \
         communicator already"
    )]
    RegisteredTwice {
        /// The call.
        call: &'static str,
        /// Start address of the new range.
        address: u64,
        /// Length of the new range in bytes.
        bytes: usize,
        /// Start address of the registered range.
        known: u64,
        /// Length of the registered range in bytes.
        known_bytes: usize,
    },
    /// The memory to deregister is not registered.
    #[error("{call}: nothing that starts at {address:#x} is registered with the communicator")]
    NotRegistered {
        /// The call.
        call: &'static str,
        /// Start address of the memory.
        address: u64,
    },
    /// The stream belongs to another device than the communicator.
    #[error(
        "{call}: the stream is of device {stream}, but the communicator's memory is on device {communicator}"
    )]
    ForeignStream {
        /// The operation.
        call: &'static str,
        /// The stream's device.
        stream: u32,
        /// The communicator's device.
        communicator: u32,
    },
}

/// Describes the ranks of a communicator of `size` ranks.
fn range(size: usize) -> String {
    size.checked_sub(1).map_or_else(String::new, |last| format!(" (0 to {last})"))
}

/// Returns the rank and the size of a new communicator as NCCL takes them.
///
/// # Errors
/// [`ArgumentError::Size`]; [`ArgumentError::NoSuchRank`] if the rank is not below the size.
pub(super) fn rank_and_size(
    call: &'static str,
    rank: usize,
    size: usize,
) -> Result<(c_int, c_int), ArgumentError> {
    let of_size = c_int::try_from(size).ok().filter(|size| *size > 0);
    let of_size = of_size.ok_or(ArgumentError::Size { call, size })?;
    match c_int::try_from(rank) {
        Ok(of_rank) if of_rank < of_size => Ok((of_rank, of_size)),
        _ => Err(ArgumentError::NoSuchRank { call, role: "rank", rank, size }),
    }
}

/// A buffer of a list, in [`ArgumentError::ListOverlap`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListBuffer {
    /// `send` or `receive`.
    pub list: &'static str,
    /// The buffer's index in the list.
    pub index: usize,
    /// Start address of the buffer.
    pub address: u64,
    /// Length of the buffer in bytes.
    pub bytes: usize,
}

impl fmt::Display for ListBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { list, index, address, bytes } = self;
        write!(f, "{list} buffer {index} [{address:#x}, +{bytes})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_that_nccl_cannot_have_is_told_from_a_rank_that_is_not_below_it() {
        let refused = |rank, size| rank_and_size("init", rank, size).unwrap_err().to_string();
        assert_eq!(rank_and_size("init", 1, 2), Ok((1, 2)));
        assert_eq!(refused(2, 2), "init: rank 2 is not a rank of a communicator of 2 (0 to 1)");
        assert_eq!(refused(0, 0), "init: a communicator cannot have 0 ranks: expected 1 to 2147483647");
        for (rank, size) in [(0, 1 << 31), (usize::MAX - 1, usize::MAX)] {
            let expected = format!("init: a communicator cannot have {size} ranks: expected 1 to 2147483647");
            assert_eq!(refused(rank, size), expected);
        }
    }
}
