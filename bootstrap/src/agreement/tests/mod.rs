//! Tests of agreements. The module docs of `agreement` define the [terms](super#terms).
//!
//! - [`model`]: small agreements, run in all orders of their members' steps. [`seeds`]: several ranks in several
//!   agreements, in random orders.
//! - [`scripted`]: single cases. [`limits`]: time limits. [`circles`]: circular waits and lists of places.
//! - This file: the encoding, the text and the culprits of failures, the functions of [`sum::Sum`], and one agreement
//!   over a `HashStore`. [`sum`]: the protocol of all tests.

mod circles;
mod keys;
mod limits;
mod model;
mod scripted;
mod seeds;
mod sum;

use std::time::Duration;

use proptest::{collection::vec, prelude::*};

use self::sum::{Sum, member_of};
use super::{Absentee, Decision, Failure, Place, Protocol, Report, Spoken, ValuesByRank, Waiting};
use crate::wire::Message;

fn place() -> impl Strategy<Value = Place> {
    ("[a-z/]{1,8}", vec(any::<u32>(), 0..4)).prop_map(|(name, members)| Place { name, members })
}

fn spoken(version: u16) -> Spoken {
    Spoken { magic: *b"SU", version, agreement: 1 }
}

fn failure() -> impl Strategy<Value = Failure> {
    let absentee = (any::<u32>(), vec(place(), 0..3));
    let absentee = absentee.prop_map(|(rank, elsewhere)| Absentee { rank, elsewhere });
    let waiting = (any::<u32>(), place()).prop_map(|(rank, place)| Waiting { rank, place });
    let holders = || vec(any::<(u32, u16)>(), 0..4);
    prop_oneof![
        (vec(absentee, 0..3), any::<u32>(), any::<u64>(), vec(waiting, 0..3))
            .prop_map(|(missing, by, waited_ms, circle)| Failure::Absent { missing, by, waited_ms, circle }),
        holders().prop_map(|all| Failure::Protocols {
            protocols: ValuesByRank::of(all.into_iter().map(|(rank, version)| (rank, spoken(version))))
        }),
        any::<u32>().prop_map(|rank| Failure::Taken { rank }),
        holders().prop_map(|all| Failure::Members {
            lists: ValuesByRank::of(all.into_iter().map(|(rank, other)| (rank, vec![rank, other.into()])))
        }),
        holders().prop_map(|all| Failure::Generations {
            generations: ValuesByRank::of(
                all.into_iter().map(|(rank, generation)| (rank, generation.into()))
            )
        }),
        (any::<u32>(), any::<String>()).prop_map(|(rank, cause)| Failure::Unreadable { rank, cause }),
        (any::<u32>(), any::<String>()).prop_map(|(rank, cause)| Failure::Left { rank, cause }),
    ]
}

proptest! {
    #[test]
    fn failures_are_decoded_as_encoded(failure in failure()) {
        prop_assert_eq!(Failure::from_bytes(&failure.to_bytes()), Ok(failure));
    }

    #[test]
    fn a_decision_does_not_depend_on_the_order(mut records in vec(any::<(u32, u64)>(), 0..6), seed in any::<u64>()) {
        let decided = Sum::decide(&records);
        let length = records.len().max(1) as u64;
        records.rotate_left((seed % length) as usize);
        prop_assert_eq!(decided, Sum::decide(&records));
    }
}

#[test]
fn failures_name_ranks_and_values() {
    let at = |name: &str, members: &[u32]| Place { name: name.into(), members: members.into() };
    let missing = vec![
        Absentee { rank: 1, elsewhere: vec![at("tp/3", &[1, 2]), at("pp", &[1])] },
        Absentee { rank: 4, elsewhere: Vec::new() },
    ];
    let absent = Failure::Absent { missing, by: 0, waited_ms: 250, circle: Vec::new() };
    let text = "ranks 1, 4 did not come within the 250 ms that rank 0 waited; rank 1 waits at tp/3 and \
                pp; rank 4 waits in no agreement";
    assert_eq!((absent.to_string(), absent.culprits()), (text.to_owned(), vec![1, 4]));
    let circle =
        vec![Waiting { rank: 0, place: at("a", &[0, 1]) }, Waiting { rank: 1, place: at("b", &[0, 1]) }];
    let circle = Failure::Absent { missing: Vec::new(), by: 0, waited_ms: 0, circle }.to_string();
    assert!(circle.contains("circle: rank 0 at a with ranks 0, 1, rank 1 at b with ranks 0, 1"), "{circle}");
    let protocols =
        Failure::Protocols { protocols: ValuesByRank::of([(0, spoken(1)), (1, spoken(1)), (2, spoken(2))]) };
    assert_eq!(protocols.culprits(), [2]);
    assert!(protocols.to_string().contains("ranks 0, 1: SU 1.1; rank 2: SU 2.1"), "{protocols}");
    let generations = Failure::Generations { generations: ValuesByRank::of([(0, 1), (1, 2), (2, 2)]) };
    assert_eq!(generations.culprits(), [0]);
    let lists = Failure::Members { lists: ValuesByRank::of([(0, vec![0, 1]), (2, vec![0, 1, 2])]) };
    assert!(lists.to_string().contains("rank 0: with ranks 0, 1; rank 2: with ranks 0-2"), "{lists}");
}

#[test]
fn members_sum_over_a_store() {
    use crate::store::HashStore;
    let store = HashStore::new();
    let run = |rank: u32| {
        let act = |_: &u64, _, _: &dyn Fn() -> bool| rank != 7;
        super::run::<Sum>(
            &store,
            member_of(rank, 3, Duration::from_secs(60)),
            u64::from(rank) + 1,
            act,
            || Ok(()),
        )
    };
    let all = std::thread::scope(|scope| {
        [0, 1, 2].map(|rank| scope.spawn(move || run(rank))).map(|thread| thread.join().unwrap())
    });
    assert!(all.iter().all(|sum| matches!(sum, Ok(6))), "{all:?}");
    use crate::store::Store;
    let left = store.list_keys().unwrap();
    assert!(left.iter().all(|key| key.starts_with("places/")), "{left:?}");
}

#[test]
fn sum_acts_again_on_a_multiple_of_8_and_refuses_0() {
    assert_eq!(
        Sum::judge(&8, &[(0, Report::Outcome(true)), (1, Report::Outcome(true))]),
        Decision::Act { plan: 4 }
    );
    assert_eq!(Sum::decide(&[(0, 0)]), Decision::Refused { refusal: "nothing to add".into() });
}
