//! Many operations of the allocator against its model.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::AtomicU64;

use super::model::search::Search;

/// The number of operations: 125,000 times the variable `TEST_EFFORT`.
fn operations() -> u64 {
    let effort: u64 =
        std::env::var("TEST_EFFORT").map_or(1, |times| times.parse().expect("TEST_EFFORT is a whole number"));
    125_000 * effort
}

#[test]
fn memory_is_handed_out_once_and_in_order() {
    let seed = RandomState::new().build_hasher().finish();
    let wanted = operations();
    let search = Search { seed, operations: wanted, threads: 2, only: None };
    match search.run(&AtomicU64::new(0)) {
        Ok(operations) => assert!(operations >= wanted, "{operations} operations"),
        Err(failure) => panic!("{failure}"),
    }
}
