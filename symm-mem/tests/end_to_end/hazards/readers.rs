//! Keys of the store that a member reads after all others have what they need.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use process_group::store::{PrefixStore, Result, Store};
use symm_mem::{Domain, Geometry, SymmetricPool};

use super::NCCL;
use crate::{
    common::intercept::{Intercept, Intercepted, MEETING_CALLS},
    embedded::job::{Rank, options, run, soon},
};

const RANKS: u32 = 3;

/// Makes one request of a meeting wait until the other ranks have ended their commits, or for some time if they need
/// this rank.
struct Pause {
    /// Requests until the one that waits, this one included. 0 if none waits.
    left: AtomicU64,
    /// Number of commits that ranks have ended.
    ended: Arc<AtomicU64>,
    /// The value of `ended` for which the request waits.
    awaited: AtomicU64,
}

impl<S: Store> Intercept<S> for Pause {
    fn before(&self, _: &S, call: &'static str, _: &str) -> Result<()> {
        if !MEETING_CALLS.contains(&call) || self.left.load(Ordering::SeqCst) == 0 {
            return Ok(());
        }
        if self.left.fetch_sub(1, Ordering::SeqCst) == 1 {
            let begun = Instant::now();
            while self.ended.load(Ordering::SeqCst) < self.awaited.load(Ordering::SeqCst)
                && begun.elapsed() < Duration::from_millis(200)
            {
                thread::sleep(Duration::from_millis(1));
            }
        }
        Ok(())
    }
}

/// Commits twice on three ranks. The last rank makes its `nth` request of each commit after the others have ended, if
/// they do not need it. Returns whether it has made so many requests.
fn commit(nth: u64) -> bool {
    let ended = Arc::new(AtomicU64::new(0));
    let job = |rank: Rank| {
        let intercept = Pause { left: 0.into(), ended: ended.clone(), awaited: 0.into() };
        let inner: PrefixStore = rank.world.store();
        let store = Arc::new(Intercepted { inner, intercept });
        let domain = Domain::new(store.clone(), 901, rank.rank, 0..RANKS).expect("the store answers");
        let geometry = Geometry { first_segment: 2 << 20, largest_segment: 2 << 20 };
        let pool = SymmetricPool::new(&domain, &rank.context, geometry).expect("virtual memory");
        let blocks = [0, 1].map(|number| {
            let block = pool.allocate(2 << 20).expect("there is room");
            let (ranks, is_last) = (u64::from(RANKS), rank.rank == RANKS - 1);
            store.intercept.awaited.store((number + 1) * ranks - 1, Ordering::SeqCst);
            store.intercept.left.store(if is_last { nth } else { 0 }, Ordering::SeqCst);
            let report = pool.commit(&rank.world, options()).expect("all agree, however late one reads it");
            assert_eq!((report.new_segments, report.new_windows, report.unmapped), (1, 1, None));
            ended.fetch_add(1, Ordering::SeqCst);
            block
        });
        let was_made = store.intercept.left.load(Ordering::SeqCst) == 0;
        rank.sum(&blocks[1], &rank.world);
        rank.world.barrier(soon()).expect("all come");
        drop((blocks, pool));
        rank.leave();
        was_made
    };
    run(RANKS, NCCL, |_| {}, job)[RANKS as usize - 1]
}

/// The last reader of each key finds it, although all other members are through and may have begun the next meeting.
#[test]
fn a_member_that_reads_after_all_others_have_ended_finds_what_was_agreed() {
    let requests = (1..).take_while(|nth| commit(*nth)).count();
    assert!(requests > 4, "a commit makes more requests than {requests}");
}
