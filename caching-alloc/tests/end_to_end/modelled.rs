//! A million operations of the allocator against its model.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::AtomicU64;

use super::model::search::Search;

const OPERATIONS: u64 = 1_000_000;

#[test]
fn memory_is_handed_out_once_and_in_order() {
    let seed = RandomState::new().build_hasher().finish();
    let search = Search { seed, operations: OPERATIONS, threads: 2, only: None };
    match search.run(&AtomicU64::new(0)) {
        Ok(operations) => assert!(operations >= OPERATIONS, "{operations} operations"),
        Err(failure) => panic!("{failure}"),
    }
}
