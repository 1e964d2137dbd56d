//! Ranks whose patience ends at the same time: several search for their circle at once, and each sees the refusals
//! that the others have written so far.

use std::collections::BTreeMap;

use super::{
    A_POOL_EACH, DEADLINE, ONE_POOL, PoolOf, RANKS, all_orders, block, check, first, precedences, run,
};
use crate::common::test_effort;
use crate::random::Random;

#[test]
fn all_are_told_of_the_circle_whatever_step_one_of_them_pauses_at() {
    let mut tally = BTreeMap::new();
    let crossing = |orders: &Vec<Vec<u64>>| !block(orders).1.is_empty();
    let stride = 4_usize.div_ceil(test_effort() as usize);
    for orders in all_orders(false).into_iter().filter(crossing) {
        for slow in 0..RANKS {
            let others: Vec<u64> = (0..RANKS as u64).filter(|rank| *rank != slow as u64).collect();
            for precedence in precedences(&others) {
                // Up to more steps than a rank has, so that in the last run it does not pause.
                for steps in (0..64).rev().step_by(stride) {
                    let mut left = steps;
                    let results = run(&orders, A_POOL_EACH, DEADLINE, |able| {
                        let others_wait = able == [slow];
                        if others_wait || left > 0 && able.contains(&slow) {
                            left -= u32::from(!others_wait);
                            return slow;
                        }
                        first(&precedence, able)
                    });
                    let at = format!("rank {slow} pauses after {steps} steps, then {precedence:?}");
                    check(&orders, &results, &at, &mut tally);
                }
            }
        }
    }
    assert_eq!(tally["crossing"], 2 * 4 * 6 * 64 / stride as u64);
}

/// Random schedules, one for each of `seeds` seeds, times the effort; the chosen rank runs for some steps.
fn explore_drawn(with_world: bool, pool_of: PoolOf, seeds: u64) {
    let (mut tally, seeds) = (BTreeMap::new(), seeds * test_effort());
    for orders in all_orders(with_world) {
        for seed in 0..seeds {
            let (mut random, mut last) = (Random(seed), 0);
            let results = run(&orders, pool_of, DEADLINE, |able| {
                if !able.contains(&last) || random.below(4) == 0 {
                    last = *random.pick(able);
                }
                last
            });
            check(&orders, &results, &format!("seed {seed}"), &mut tally);
        }
    }
    println!("{tally:?}");
}

#[test]
fn all_are_told_of_the_circle_of_two_calls_of_one_pool_under_drawn_schedules() {
    explore_drawn(false, ONE_POOL, 40);
}

#[test]
fn all_are_told_of_the_circle_of_two_calls_of_a_pool_each_under_drawn_schedules() {
    explore_drawn(false, A_POOL_EACH, 40);
}

#[test]
fn all_are_told_of_the_circle_of_three_calls_of_one_pool_under_drawn_schedules() {
    explore_drawn(true, ONE_POOL, 1);
}

#[test]
fn all_are_told_of_the_circle_of_three_calls_of_a_pool_each_under_drawn_schedules() {
    explore_drawn(true, A_POOL_EACH, 1);
}
