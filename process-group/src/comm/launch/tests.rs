//! The checks of buffers, ranks and types.

use nccl_sys::Version;

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
        let accepted = Rules { place: &place, call: "test" }.buffers(Span { address: send, shares: send_shares },
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
        match (Rules { place: &place, call: "test" }).buffer("send", Span { address, shares }, count, dtype).map_err(|error| *error) {
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
    let called = Rules { place: &place, call: "all_reduce" }.buffers(
        send,
        receive,
        1 << 60,
        DataType::F32,
        InPlace::Same,
    );
    assert!(matches!(*called.unwrap_err(), ArgumentError::Overlap { .. }));
}

#[test]
fn ranks_types_and_addresses_are_named() {
    let place = Place { rank: 1, size: 4, release: Version::new(2, 21, 5) };
    let error = Rules { place: &place, call: "broadcast" }.member("root", 4).unwrap_err();
    assert_eq!(error.to_string(), "broadcast: root 4 is not a rank of a communicator of 4 (0 to 3)");
    let error =
        Rules { place: &place, call: "all_reduce" }.reduction(ReduceOp::Sum, DataType::F8E4M3).unwrap_err();
    assert!(error.to_string().contains("need NCCL 2.24.3, but 2.21.5 is loaded"), "{error}");
    let error = Rules { place: &place, call: "send" }
        .buffer("send", Span { address: 0, shares: 1 }, 3, DataType::F32)
        .unwrap_err();
    assert!(error.to_string().contains("12 bytes"), "{error}");
}
