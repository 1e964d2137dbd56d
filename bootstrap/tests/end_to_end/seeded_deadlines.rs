//! [`Member::deadline`]: the retries of a member in doubt, and its wait after a failure. Times are virtual, see
//! [`seeded_ranks`](super::seeded_ranks).

use std::{sync::Arc, time::Duration};

use bootstrap::{
    agreement::{Ending, Failure, Member, run},
    runtime::{self, Instant, Seeded},
    store::{
        Deadline, HashStore, Result, Store, StoreError,
        machine::{Reply, Request},
    },
};

use super::seeded_ranks::{Outcome, Sum, run_on};

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A store that one rank does not reach from 55 s to 75 s after `begun`.
struct Outage {
    inner: HashStore,
    begun: Instant,
}

impl Outage {
    fn check(&self) -> Result<()> {
        match (seconds(55)..seconds(75)).contains(&self.begun.elapsed()) {
            true => Err(StoreError::Timeout { keys: Vec::new(), waited: Duration::ZERO }),
            false => Ok(()),
        }
    }
}

impl Store for Outage {
    fn call(&self, request: Request) -> Result<Option<Reply>> {
        self.check()?;
        self.inner.call(request)
    }

    fn call_when_there(
        &self,
        keys: Vec<Vec<u8>>,
        request: Option<Request>,
        deadline: Deadline,
    ) -> Result<Option<Reply>> {
        self.check()?;
        self.inner.call_when_there(keys, request, deadline)
    }
}

fn member(rank: u32, size: u32, patience: Duration, deadline: Option<Duration>) -> Member {
    Member { name: "sum".into(), rank, members: (0..size).collect(), generation: 1, patience, deadline }
}

/// Rank 0 waits from 0 s, with a patience of 60 s. Rank 1 arrives at 50 s. Their actions take 8 s, and rank 0 then does
/// not reach the store until 75 s. The others wait for outcomes until 95 s.
fn through_an_outage(seed: u64, deadline: Option<Duration>) -> Vec<Outcome> {
    let store = HashStore::new();
    let (results, _) = run_on(Arc::new(Seeded::new()), seed, 2, move |rank| {
        let (inner, begun) = (store.clone(), Instant::now());
        let store: Box<dyn Store> = match rank {
            0 => Box::new(Outage { inner, begun }),
            _ => Box::new(inner),
        };
        runtime::sleep(seconds(50 * u64::from(rank)));
        let act = |_: &u64, _: Deadline, _: &dyn Fn() -> bool| {
            runtime::sleep(seconds(8));
            true
        };
        let member = member(rank, 2, seconds(60), deadline);
        run::<Sum>(&*store, member, rank.into(), act, || Ok(())).map_err(|failed| failed.ending)
    });
    results.unwrap()
}

#[test]
fn a_member_in_doubt_repeats_requests_until_its_deadline() {
    for seed in 0..20 {
        assert_eq!(through_an_outage(seed, Some(seconds(160))), [Ok(1), Ok(1)], "seed {seed}");
        // Without a deadline, it gives up at the end of its patience.
        let results = through_an_outage(seed, None);
        assert_eq!(results[0], Err(Ending::InDoubt), "seed {seed}");
    }
}

/// Rank 1 has posted a record and never reads the result, and rank 2 is missing. Returns the time that rank 0 takes with
/// a patience of 15 s.
fn with_a_member_that_never_reads(deadline: Option<Duration>) -> Duration {
    let (mut times, _) = run_on(Arc::new(Seeded::new()), 1, 1, move |_| {
        let (store, begun) = (HashStore::new(), Instant::now());
        store.set("sum/records/1", b"a record").unwrap();
        let member = member(0, 3, seconds(15), deadline);
        let failed = run::<Sum>(&store, member, 0, |_, _, _| true, || Ok(())).unwrap_err();
        assert!(matches!(failed.ending, Ending::Failed(Failure::Absent { .. })), "{failed:?}");
        begun.elapsed()
    });
    times.as_mut().unwrap().remove(0)
}

#[test]
fn the_wait_after_a_failure_ends_by_the_deadline() {
    let limits = [(None, 18), (Some(seconds(16)), 16), (Some(seconds(30)), 18)];
    for (deadline, limit) in limits {
        let took = with_a_member_that_never_reads(deadline);
        let margin = Duration::from_millis(100);
        assert!(took + margin > seconds(limit) && took < seconds(limit) + margin, "{deadline:?}: {took:?}");
    }
}
