//! [`rendezvous`] and [`barrier`]: complete meetings, missing ranks, and two processes with one rank.

use std::{sync::Arc, thread};

use crate::soon;
use bootstrap::store::{Deadline, HashStore, PrefixStore, Store, StoreError, TcpStore, barrier, rendezvous};

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

/// Waits until these ranks have published their cards for a meeting. After that, they cannot count as absent.
fn wait_for(store: &dyn Store, name: &str, ranks: &[usize]) {
    let cards: Vec<_> = ranks.iter().map(|rank| format!("{name}/card/{rank}")).collect();
    store.wait(&cards.iter().map(String::as_str).collect::<Vec<_>>(), soon()).unwrap();
}

/// Tests that the first deadline to pass decides the outcome for all ranks: for those that wait, and for one that
/// arrives later. Each call of `store_of` returns a handle to the same store.
fn absentees(store_of: impl Fn() -> Arc<dyn Store> + Sync) {
    let absent = [2, 5, 6];
    let meet = |rank: usize, deadline: Deadline| {
        rendezvous(&*store_of(), "start", rank, 8, b"", deadline).unwrap_err()
    };
    let mut errors: Vec<_> = thread::scope(|scope| {
        let others = [0, 1, 4, 7].map(|rank| scope.spawn(move || meet(rank, soon())));
        wait_for(&*store_of(), "start", &[0, 1, 4, 7]);
        let mut errors = vec![meet(3, Deadline::now())];
        errors.extend(others.into_iter().map(|rank| rank.join().unwrap()));
        errors
    });
    errors.push(meet(6, soon()));
    for error in errors {
        assert!(matches!(&error, StoreError::Absent { ranks, world: 8, .. } if ranks == &absent), "{error}");
        assert!(error.to_string().contains("2, 5, 6"), "{error}");
    }
}

#[test]
fn every_rank_that_arrived_gets_the_missing_ranks() {
    let shared = HashStore::new();
    absentees(|| Arc::new(shared.clone()));
    let host = TcpStore::host(0).unwrap();
    absentees(|| Arc::new(TcpStore::connect(&host.address(), soon()).unwrap()));
}

/// Rank 0 hosts the store, and drops it as soon as its meeting has failed. The other ranks must still get the outcome.
#[test]
fn a_host_waits_until_the_others_have_read_the_outcome() {
    let host = TcpStore::host(0).unwrap();
    let address = host.address();
    let others: Vec<_> = (1..4)
        .map(|rank| {
            let store = TcpStore::connect(&address, soon()).unwrap();
            thread::spawn(move || barrier(&store, "start", rank, 5, soon()))
        })
        .collect();
    wait_for(&host, "start", &[1, 2, 3]);
    let own = barrier(&host, "start", 0, 5, Deadline::now());
    drop(host);
    for outcome in others.into_iter().map(|other| other.join().unwrap()).chain([own]) {
        assert!(matches!(&outcome, Err(StoreError::Absent { ranks, .. }) if *ranks == [4]), "{outcome:?}");
    }
}

/// Two processes have the same rank. All ranks get the error, including those that arrived before and those that arrive
/// later.
#[test]
fn every_rank_fails_if_two_processes_arrive_as_one_rank() {
    let store = HashStore::new();
    let meet = |rank| barrier(&store, "start", rank, 4, soon()).unwrap_err();
    let errors = thread::scope(|scope| {
        let before = [0, 1].map(|rank| scope.spawn(move || meet(rank)));
        wait_for(&store, "start", &[0, 1]);
        let mut errors = vec![meet(1), meet(3)];
        errors.extend(before.map(|rank| rank.join().unwrap()));
        errors
    });
    for error in errors {
        assert!(matches!(error, StoreError::RankTaken { rank: 1, .. }), "{error}");
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
