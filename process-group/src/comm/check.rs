//! Checks the arguments of an operation before its launch, as far as one rank can without the others.
//!
//! The checks see addresses, counts, types and ranks. They never read memory: the caller guarantees that a buffer is as
//! long as stated and stays valid during the operation. The overlap rules are those of NCCL's documentation of in-place
//! operations.

use nccl_sys::Version;

use super::{DataType, ReduceOp};
use crate::{BoxedResult, cold_err};

/// Why the arguments of a call were refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ArgumentError {
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
        /// `send`, `receive` or `factor`.
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
    /// A rank argument that is not a rank of the communicator.
    #[error("{call}: {role} {rank} is not a rank of a communicator of {size} (0 to {})", .size - 1)]
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
    /// The ranks cannot be excluded from a shrunk communicator.
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
    #[error(
        "{call}: {first} [{first_address:#x}, +{first_bytes}) and {second} [{second_address:#x}, +{second_bytes}) overlap"
    )]
    ListOverlap {
        /// The operation.
        call: &'static str,
        /// Name of the first buffer, with its position in its list.
        first: String,
        /// Start address of the first buffer.
        first_address: u64,
        /// Length of the first buffer in bytes.
        first_bytes: usize,
        /// Name of the second buffer, with its position in its list.
        second: String,
        /// Start address of the second buffer.
        second_address: u64,
        /// Length of the second buffer in bytes.
        second_bytes: usize,
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

/// Rank, size and NCCL release of a communicator, for argument checks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) rank: usize,
    pub(crate) size: usize,
    pub(crate) release: Version,
}

/// A buffer of a call: its address, and the number of ranks whose elements the buffer holds. With 0 shares, the call
/// does not use the buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) address: u64,
    pub(crate) shares: usize,
}

/// How the send and the receive buffer of an operation may overlap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InPlace {
    /// The buffers have the same address, or do not overlap.
    Same,
    /// The send buffer is this rank's share of the receive buffer, or the buffers do not overlap.
    ShareOfReceive,
    /// The receive buffer is this rank's share of the send buffer, or the buffers do not overlap.
    ShareOfSend,
    /// The buffers must not overlap.
    Never,
    /// The buffers may overlap in any way.
    Anywhere,
}

impl InPlace {
    const fn allowed(self) -> &'static str {
        match self {
            Self::Same => "in place they must be the same address",
            Self::ShareOfReceive => {
                "in place the send buffer must be this rank's share of the receive buffer (rank times its bytes)"
            }
            Self::ShareOfSend => {
                "in place the receive buffer must be this rank's share of the send buffer (rank times its bytes)"
            }
            Self::Never | Self::Anywhere => "this operation has no in-place form",
        }
    }
}

impl Place {
    /// Checks the list of ranks to exclude. Returns the ranks in ascending order, as NCCL requires.
    pub(crate) fn excluded(&self, call: &'static str, excluded: &[usize]) -> Result<Vec<i32>, ArgumentError> {
        let mut sorted = excluded.to_vec();
        sorted.sort_unstable();
        let problem = if excluded.is_empty() {
            "that is nobody"
        } else if sorted.windows(2).any(|pair| pair[0] == pair[1]) {
            "a rank is named twice"
        } else if sorted.last().is_some_and(|last| *last >= self.size) {
            "not all of them are its ranks"
        } else if excluded.contains(&self.rank) {
            "this rank is among them"
        } else {
            // Every rank is below the communicator's size, which NCCL holds in an `i32`.
            return Ok(sorted.into_iter().map(|rank| rank as i32).collect());
        };
        let (rank, size, excluded) = (self.rank, self.size, excluded.to_vec());
        Err(ArgumentError::Excluded { call, rank, size, excluded, problem })
    }

    /// Returns the size in bytes of `count` elements for each of `shares` ranks.
    #[inline(always)]
    fn bytes(
        &self,
        call: &'static str,
        count: usize,
        dtype: DataType,
        shares: usize,
    ) -> BoxedResult<usize, ArgumentError> {
        count
            .checked_mul(dtype.size())
            .and_then(|bytes| bytes.checked_mul(shares))
            .filter(|bytes| isize::try_from(*bytes).is_ok())
            .ok_or_else(|| {
                cold_err(move || ArgumentError::TooLarge { call, elements: count, dtype, ranks: shares })
            })
    }

    /// Checks that the loaded release supports the reduction `op` for elements of `dtype`.
    #[inline(always)]
    pub(crate) fn reduction(
        &self,
        call: &'static str,
        op: ReduceOp,
        dtype: DataType,
    ) -> BoxedResult<(), ArgumentError> {
        if !op.allows(dtype) {
            return Err(cold_err(move || ArgumentError::Reduction { call, dtype, op }));
        }
        let (since, release) = (dtype.since(), self.release);
        if release < since {
            return Err(cold_err(move || ArgumentError::TypeTooNew { call, dtype, since, release }));
        }
        if let ReduceOp::PreMulSumAt(factor) = op {
            self.buffer(call, "factor", Span { address: factor.0, shares: 1 }, 1, dtype)?;
        }
        Ok(())
    }

    /// Checks that `rank` is a rank of the communicator.
    #[inline(always)]
    pub(crate) fn member(
        &self,
        call: &'static str,
        role: &'static str,
        rank: usize,
    ) -> BoxedResult<(), ArgumentError> {
        if rank < self.size {
            return Ok(());
        }
        let size = self.size;
        Err(cold_err(move || ArgumentError::NoSuchRank { call, role, rank, size }))
    }

    /// Checks that the number of signals to wait for is in NCCL's range.
    pub(crate) fn signals(&self, call: &'static str, count: usize) -> BoxedResult<(), ArgumentError> {
        match i32::try_from(count) {
            Ok(1..) => Ok(()),
            _ => Err(cold_err(move || ArgumentError::Signals { call, count })),
        }
    }

    /// Checks one buffer and returns the buffer's length in bytes. Returns 0 if the call does not use the buffer.
    #[inline(always)]
    pub(crate) fn buffer(
        &self,
        call: &'static str,
        buffer: &'static str,
        span: Span,
        count: usize,
        dtype: DataType,
    ) -> BoxedResult<usize, ArgumentError> {
        let bytes = if span.shares > 0 { self.bytes(call, count, dtype, span.shares)? } else { 0 };
        if bytes == 0 {
            return Ok(0);
        }
        if span.address == 0 {
            return Err(cold_err(move || ArgumentError::Null { call, buffer, bytes }));
        }
        // Every element size is a power of two, so a mask replaces a division, which would cost more than the rest of
        // this function.
        let Span { address, shares } = span;
        if address & (dtype.size() as u64 - 1) != 0 {
            return Err(cold_err(move || ArgumentError::Misaligned { call, buffer, address, dtype }));
        }
        if address.checked_add(bytes as u64).is_none() {
            return Err(cold_err(move || ArgumentError::TooLarge {
                call,
                elements: count,
                dtype,
                ranks: shares,
            }));
        }
        Ok(bytes)
    }

    /// Checks the two buffers of a collective, and that they overlap only as `in_place` allows.
    #[inline(always)]
    pub(crate) fn buffers(
        &self,
        call: &'static str,
        send: Span,
        receive: Span,
        count: usize,
        dtype: DataType,
        in_place: InPlace,
    ) -> BoxedResult<(), ArgumentError> {
        let send_bytes = self.buffer(call, "send", send, count, dtype)?;
        if in_place == InPlace::Same && send == receive {
            return Ok(());
        }
        let receive_bytes = self.buffer(call, "receive", receive, count, dtype)?;
        if send_bytes == 0 || receive_bytes == 0 {
            return Ok(());
        }
        let (from, to) = (send.address, receive.address);
        let apart = from + send_bytes as u64 <= to || to + receive_bytes as u64 <= from;
        // A closure, because the product may overflow in the other cases. For `ShareOfReceive` and `ShareOfSend`, one
        // buffer holds a share of every rank. Its length was checked above and exceeds this offset.
        let offset = || (self.rank * count * dtype.size()) as u64;
        let fits = match in_place {
            InPlace::Same => from == to,
            InPlace::ShareOfReceive => Some(from) == to.checked_add(offset()),
            InPlace::ShareOfSend => Some(to) == from.checked_add(offset()),
            InPlace::Never => false,
            InPlace::Anywhere => true,
        };
        if apart || fits {
            return Ok(());
        }
        Err(cold_err(move || {
            let allowed = in_place.allowed();
            ArgumentError::Overlap { call, send: from, send_bytes, receive: to, receive_bytes, allowed }
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn dtype() -> impl Strategy<Value = DataType> {
        prop::sample::select(&DataType::ALL[..])
    }

    proptest! {
        /// Buffers are accepted if they do not overlap, or overlap as the operation's in-place form allows.
        #[test]
        fn accepted_buffers_are_apart_or_in_place(
            size in 1usize..5, rank in 0usize..5, count in 0usize..9, from in 1u64..40, to in 1u64..40,
            dtype in dtype(), which in 0usize..5,
        ) {
            let rank = rank % size;
            let place = Place { rank, size, release: Version::new(2, 30, 7) };
            let in_place = [InPlace::Same, InPlace::ShareOfReceive, InPlace::ShareOfSend, InPlace::Never, InPlace::Anywhere][which];
            let (send_shares, receive_shares) = match in_place {
                InPlace::Same | InPlace::Anywhere => (1, 1),
                InPlace::ShareOfReceive => (1, size),
                InPlace::ShareOfSend => (size, 1),
                InPlace::Never => (size, size),
            };
            let width = dtype.size() as u64;
            let (send, receive) = (from * width, to * width);
            let bytes = |shares: usize| (count * dtype.size() * shares) as u64;
            let touched = |start: u64, shares| (start..start + bytes(shares)).collect::<std::collections::HashSet<_>>();
            let overlap = !touched(send, send_shares).is_disjoint(&touched(receive, receive_shares));
            let share = rank as u64 * bytes(1);
            let meant = match in_place {
                InPlace::Same => send == receive,
                InPlace::ShareOfReceive => send == receive + share,
                InPlace::ShareOfSend => receive == send + share,
                InPlace::Never => false,
                InPlace::Anywhere => true,
            };
            let accepted = place.buffers(
                "test",
                Span { address: send, shares: send_shares },
                Span { address: receive, shares: receive_shares },
                count, dtype, in_place,
            ).is_ok();
            prop_assert_eq!(accepted, !overlap || meant);
        }

        /// Sizes that overflow are refused, and accepted sizes are computed exactly.
        #[test]
        fn huge_counts_are_refused_and_not_wrapped(
            count in any::<usize>(), shares in 1usize..10_000, address in any::<u64>(), dtype in dtype(),
        ) {
            let place = Place { rank: 0, size: shares, release: Version::new(2, 30, 7) };
            let wide = count as u128 * dtype.size() as u128 * shares as u128;
            match place.buffer("test", "send", Span { address, shares }, count, dtype).map_err(|error| *error) {
                Ok(bytes) => {
                    prop_assert_eq!(bytes as u128, wide);
                    prop_assert!(wide == 0 || address as u128 + wide <= u64::MAX as u128);
                }
                Err(ArgumentError::TooLarge { .. }) => prop_assert!(
                    wide > isize::MAX as u128 || address as u128 + wide > u64::MAX as u128
                ),
                Err(ArgumentError::Null { .. }) => prop_assert_eq!(address, 0),
                Err(ArgumentError::Misaligned { .. }) => prop_assert_ne!(address % dtype.size() as u64, 0),
                Err(other) => return Err(TestCaseError::fail(other.to_string())),
            }
        }
    }

    #[test]
    fn the_last_rank_of_many_may_use_long_buffers() {
        let place = Place { rank: 1 << 20, size: 1 << 21, release: Version::new(2, 30, 7) };
        let (send, receive) = (Span { address: 16, shares: 1 }, Span { address: 32, shares: 1 });
        let called = place.buffers("all_reduce", send, receive, 1 << 60, DataType::F32, InPlace::Same);
        assert!(matches!(*called.unwrap_err(), ArgumentError::Overlap { .. }));
    }

    #[test]
    fn ranks_types_and_addresses_are_named() {
        let place = Place { rank: 1, size: 4, release: Version::new(2, 21, 5) };
        let error = place.member("broadcast", "root", 4).unwrap_err();
        assert_eq!(error.to_string(), "broadcast: root 4 is not a rank of a communicator of 4 (0 to 3)");
        let error = place.reduction("all_reduce", ReduceOp::Sum, DataType::F8E4M3).unwrap_err();
        assert!(error.to_string().contains("need NCCL 2.24.3, but 2.21.5 is loaded"), "{error}");
        let error =
            place.buffer("send", "send", Span { address: 0, shares: 1 }, 3, DataType::F32).unwrap_err();
        assert!(error.to_string().contains("12 bytes"), "{error}");
    }
}
