//! Meetings of all ranks: everybody gets the same outcome.

use std::{sync::Arc, thread, time::Duration};

use process_group::store::{
    Deadline, HashStore, PrefixStore, Store, StoreError, TcpStore, barrier, rendezvous,
};

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

#[test]
fn ranks_exchange_their_cards_in_order() {
    let host = TcpStore::host(0).unwrap();
    let world = 9;
    thread::scope(|scope| {
        for rank in 0..world {
            let address = host.address();
            scope.spawn(move || {
                let store: Arc<dyn Store> = Arc::new(TcpStore::connect(&address, soon()).unwrap());
                let store = PrefixStore::new("job", store);
                let cards = rendezvous(&store, "start", rank, world, &[rank as u8], soon()).unwrap();
                assert_eq!(cards, (0..world as u8).map(|rank| vec![rank]).collect::<Vec<_>>());
                barrier(&store, "end", rank, world, soon()).unwrap();
            });
        }
    });
}

/// The ranks' deadlines differ; the first to pass decides for all, also for a rank that comes later.
fn absentees(store_of: impl Fn(usize) -> Arc<dyn Store> + Sync) {
    let world = 8;
    let absent = [2, 5, 6];
    let meet = |rank: usize| {
        let timeout = if rank == 3 { Duration::from_millis(100) } else { Duration::from_secs(60) };
        rendezvous(&*store_of(rank), "start", rank, world, b"", Deadline::after(timeout)).unwrap_err()
    };
    let errors: Vec<_> = thread::scope(|scope| {
        let present = (0..world).filter(|rank| !absent.contains(rank));
        let ranks: Vec<_> = present.map(|rank| scope.spawn(move || meet(rank))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    for error in errors.into_iter().chain([meet(6)]) {
        assert!(matches!(&error, StoreError::Absent { ranks, world: 8, .. } if ranks == &absent), "{error}");
        assert!(error.to_string().contains("2, 5-6"), "{error}");
    }
}

#[test]
fn every_rank_that_came_is_told_who_did_not() {
    let shared = HashStore::new();
    absentees(|_| Arc::new(shared.clone()));
    let host = TcpStore::host(0).unwrap();
    absentees(|_| Arc::new(TcpStore::connect(&host.address(), soon()).unwrap()));
}

/// Rank 0 hosts the store and leaves as soon as it knows; the others must still learn it.
#[test]
fn the_host_does_not_take_the_news_with_it() {
    let host = TcpStore::host(0).unwrap();
    let address = host.address();
    let others: Vec<_> = (1..4)
        .map(|rank| {
            let store = TcpStore::connect(&address, soon()).unwrap();
            thread::spawn(move || barrier(&store, "start", rank, 5, soon()))
        })
        .collect();
    let own = barrier(&host, "start", 0, 5, Deadline::after(Duration::from_millis(200)));
    drop(host);
    for outcome in others.into_iter().map(|other| other.join().unwrap()).chain([own]) {
        assert!(
            matches!(&outcome, Err(StoreError::Absent { ranks, .. }) if ranks.contains(&4)),
            "{outcome:?}"
        );
    }
}

#[test]
fn two_processes_with_one_rank_are_found() {
    let store = HashStore::new();
    barrier(&store, "start", 0, 1, soon()).unwrap();
    let error = barrier(&store, "start", 0, 1, soon()).unwrap_err();
    assert!(matches!(error, StoreError::RankTaken { rank: 0, .. }), "{error}");
    assert!(matches!(barrier(&store, "other", 3, 3, soon()), Err(StoreError::Argument(_))));
}
