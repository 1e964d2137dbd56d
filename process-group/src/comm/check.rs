//! Checks of a collective's arguments that one rank can make alone, before launch.
//!
//! The checks see addresses, counts, types and ranks, and never memory. The caller guarantees that a buffer is as
//! long as stated and lives long enough. The overlap rules are those of NCCL's documentation of in-place operations.

use nccl_sys::Version;

use super::{DataType, ReduceOp};
use crate::{BoxedResult, cold_err};

/// Arguments that no communicator accepts.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ArgumentError {
    /// The buffer's size in bytes overflows.
    #[error(
        "{call}: {elements} elements of {dtype} for each of {ranks} ranks are more bytes than there are addresses"
    )]
    TooLarge {
        /// The operation.
        call: &'static str,
        /// Elements for one rank.
        elements: usize,
        /// Their type.
        dtype: DataType,
        /// Number of ranks whose elements lie in the buffer.
        ranks: usize,
    },
    /// [`PreMulSumAt`](super::ReduceOp::PreMulSumAt) in an operation on slices.
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
        /// Bytes that the operation uses in the buffer.
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
        /// The type of its elements.
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
        /// Its length in bytes.
        send_bytes: usize,
        /// Start address of the receive buffer.
        receive: u64,
        /// Its length in bytes.
        receive_bytes: usize,
        /// The placement that the operation allows.
        allowed: &'static str,
    },
    /// A rank that is not in the communicator.
    #[error("{call}: {role} {rank} is not a rank of a communicator of {size} (0 to {})", .size - 1)]
    NoSuchRank {
        /// The operation.
        call: &'static str,
        /// `root` or `peer`.
        role: &'static str,
        /// The rank given.
        rank: usize,
        /// Number of ranks in the communicator.
        size: usize,
    },
    /// A list of ranks that cannot be excluded.
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
        /// The reason why they cannot be excluded.
        problem: &'static str,
    },
    /// A message of a rank to itself. Unless the send and the receive are in one group, the first waits for the
    /// second for ever.
    #[error(
        "{call}: rank {rank} is this rank itself; a message to oneself needs its send and its receive in one group"
    )]
    ToOneself {
        /// The operation.
        call: &'static str,
        /// This rank.
        rank: usize,
    },
    /// The loaded library cannot reduce the type.
    #[error("{call}: reductions of {dtype} need NCCL {since}, but {release} is loaded")]
    TypeTooNew {
        /// The operation.
        call: &'static str,
        /// The type.
        dtype: DataType,
        /// The first release that reduces it.
        since: Version,
        /// The release that is loaded.
        release: Version,
    },
    /// A reduction that is not defined for the type.
    #[error(
        "{call}: elements of {dtype} cannot be reduced by {op}; average takes every type but bool, premultiplied sums \
         take f16, bf16, f32 and f64"
    )]
    Reduction {
        /// The operation.
        call: &'static str,
        /// The type.
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
        /// Which buffer, by its position in its list.
        first: String,
        /// Start address of the first buffer.
        first_address: u64,
        /// Its length in bytes.
        first_bytes: usize,
        /// The other buffer, by its position in its list.
        second: String,
        /// Start address of the second buffer.
        second_address: u64,
        /// Its length in bytes.
        second_bytes: usize,
    },
    /// A one-sided operation on a communicator that is not prepared for them.
    #[error("{call}: one-sided operations were not prepared; all ranks call prepare_one_sided first")]
    NotPrepared {
        /// The operation.
        call: &'static str,
    },
    /// A buffer of a one-sided operation that does not lie in one window.
    #[error(
        "{call}: the {buffer} buffer [{address:#x}, +{bytes}) does not lie in one symmetric window of this communicator"
    )]
    OutsideWindows {
        /// The operation.
        call: &'static str,
        /// `send`, or `receive` for this rank's own address of the written range in the window.
        buffer: &'static str,
        /// Start address of the buffer.
        address: u64,
        /// Its length in bytes.
        bytes: usize,
    },
    /// A number of signals that cannot be waited for.
    #[error("{call}: {count} signals cannot be waited for at once (1 to {})", i32::MAX)]
    Signals {
        /// The operation.
        call: &'static str,
        /// The number given.
        count: usize,
    },
    /// Memory to register that is registered already.
    #[error(
        "{call}: {bytes} bytes at {address:#x} overlap {known_bytes} bytes at {known:#x}, which are registered with the \
         communicator already"
    )]
    RegisteredTwice {
        /// The call.
        call: &'static str,
        /// Start address of the new range.
        address: u64,
        /// Its length in bytes.
        bytes: usize,
        /// Start address of the registered range.
        known: u64,
        /// Its length in bytes.
        known_bytes: usize,
    },
    /// Memory to deregister that is not registered.
    #[error("{call}: nothing that starts at {address:#x} is registered with the communicator")]
    NotRegistered {
        /// The call.
        call: &'static str,
        /// Start address of the memory.
        address: u64,
    },
    /// A stream of another device than the communicator's.
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

/// The facts of a communicator that argument checks need.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) rank: usize,
    pub(crate) size: usize,
    pub(crate) release: Version,
}

/// A buffer of a call: its address, and the number of ranks whose shares it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) address: u64,
    pub(crate) shares: usize,
}

/// The overlap that an operation allows between its two buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InPlace {
    /// Same address, or no overlap.
    Same,
    /// The send buffer is this rank's share of the receive buffer, or there is no overlap.
    ShareOfReceive,
    /// The receive buffer is this rank's share of the send buffer, or there is no overlap.
    ShareOfSend,
    /// No overlap.
    Never,
    /// Any overlap.
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
    /// Returns the ranks to exclude in ascending order, as NCCL takes them.
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
            // All ranks are below the size, which NCCL holds in an `i32`.
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

    /// Checks a reduction against the type and the loaded release.
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

    /// Checks a number of signals to wait for.
    pub(crate) fn signals(&self, call: &'static str, count: usize) -> BoxedResult<(), ArgumentError> {
        match i32::try_from(count) {
            Ok(1..) => Ok(()),
            _ => Err(cold_err(move || ArgumentError::Signals { call, count })),
        }
    }

    /// Checks one buffer and returns its length in bytes: 0 for a buffer without shares, which is not used.
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
        // Every element size is a power of two. A division would take longer than the rest of this function.
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

    /// Checks the two buffers of a collective.
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
        // Within the buffer that holds a share of every rank, whose length was checked above.
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
        /// Accepted buffers overlap only as the operation's in-place form allows.
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

        /// No count overflows the arithmetic.
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
