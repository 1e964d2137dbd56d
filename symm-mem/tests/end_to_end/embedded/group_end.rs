//! Waits for a member whose group ends.

use std::{cell::Cell, sync::Arc, thread, time::Duration};

use process_group::{
    ProcessGroup,
    group::P2pPolicy,
    store::{Deadline, PrefixStore, Result, Store, StoreError},
};
use symm_mem::{
    Domain, Error, Geometry, SymmetricBlock, SymmetricGroup, SymmetricPool,
    direct::{self, DirectOptions},
    exchange::{Exchange, ExchangeOptions},
    rendezvous::{Rendezvous, RendezvousOptions},
};

use super::{
    job::{Rank, options, soon},
    on_ranks,
};
use crate::common::intercept::{Intercept, Intercepted};

thread_local! {
    /// This thread waits for a key until the key has a value, for longer than the caller has asked for.
    static IS_PATIENT: Cell<bool> = const { Cell::new(false) };
}

/// Makes the waits of patient threads long, and announces them under the key `waits`.
struct Patience;

impl<S: Store> Intercept<S> for Patience {
    fn before(&self, inner: &S, call: &'static str, key: &str) -> Result<()> {
        if call != "get" || !IS_PATIENT.get() || inner.check(&[key])? {
            return Ok(());
        }
        inner.set("waits", b"1")?;
        let unended = |error| StoreError::Argument(format!("the wait for {key:?} did not end: {error}"));
        inner.wait(&[key], Deadline::after(Duration::from_secs(20))).map_err(unended)
    }
}

/// What the members have made before one of them goes.
struct Made {
    group: ProcessGroup,
    pool: SymmetricPool,
    block: SymmetricBlock,
    rendezvous: Rendezvous,
    exchange: Exchange,
}

type Operation = fn(&Made) -> std::result::Result<(), Error>;

/// The operations in which a member waits for the others.
const OPERATIONS: [(&str, Operation); 5] = [
    ("commit", |made| made.pool.commit(&made.group, options()).map(drop)),
    ("retire", |made| {
        let groups: [&dyn SymmetricGroup; 1] = [&made.group];
        made.pool.retire(&[0], &groups, Duration::from_secs(60)).map(drop)
    }),
    ("rendezvous", |made| made.rendezvous.rendezvous(&made.block).map(drop)),
    ("exchange", |made| made.exchange.exchange("plan", &[]).map(drop)),
    ("direct", |made| direct::install(&made.group, DirectOptions::default()).map(drop)),
];

/// Makes a group whose waits are patient, for an operation of this name. Also returns the group's store.
fn make(rank: &Rank, name: &str) -> (Made, PrefixStore) {
    let store = PrefixStore::new(name, Arc::new(rank.world.store()));
    let patient = Arc::new(Intercepted { inner: store.clone(), intercept: Patience });
    let group = rank.builder().store(patient).p2p(P2pPolicy::Direct).build().expect("all ranks join");
    let domain = Domain::of(&group).expect("the store answers");
    let pool = SymmetricPool::new(&domain, &rank.context, Geometry::default()).expect("memory");
    let block = pool.allocate(4096).expect("there is room");
    let rendezvous = Rendezvous::of(&group, RendezvousOptions::default()).expect("all ranks map their pads");
    let exchange = Exchange::new(&rendezvous, ExchangeOptions::default()).expect("all ranks agree");
    rank.world.barrier(soon()).expect("all ranks have come");
    (Made { group, pool, block, rendezvous, exchange }, store)
}

/// Returns the error of an operation whose waits end only through the store.
fn patiently(operation: Operation, made: &Made) -> Error {
    IS_PATIENT.set(true);
    let error = operation(made).expect_err("the group ends");
    IS_PATIENT.set(false);
    error
}

/// Without the request by which the end of a group ends a wait, the wait would go on until its next check of the group.
/// Here there is no next check.
#[test]
fn the_end_of_a_group_ends_its_waits() {
    on_ranks(2, |rank| {
        for (name, operation) in OPERATIONS {
            let (made, store) = make(&rank, name);
            if rank.rank == 0 {
                let error = patiently(operation, &made);
                let wanted = if name == "retire" { "MemberLost" } else { "GroupOver" };
                assert_eq!(error.name(), wanted, "{name}: {error}");
            } else {
                store.wait(&["waits"], soon()).expect("rank 0 waits");
            }
            made.group.abort(soon()).expect("the group ends");
        }
        rank.leave();
    });
}

/// Commits and retirements are left out: they report their own reason if this rank aborts the communicator.
#[test]
fn an_abort_by_another_thread_ends_the_waits() {
    on_ranks(2, |rank| {
        for (name, operation) in &OPERATIONS[2..] {
            let (made, store) = make(&rank, name);
            if rank.rank == 0 {
                let handle = made.group.communicator().abort_handle();
                thread::scope(|scope| {
                    scope.spawn(|| {
                        store.wait(&["waits"], soon()).expect("the other thread waits");
                        handle.abort(soon()).expect("the group ends");
                    });
                    let error = patiently(*operation, &made);
                    assert_eq!(error.name(), "GroupOver", "{name}: {error}");
                });
                store.set("ended", b"1").expect("the store answers");
            } else {
                store.wait(&["ended"], soon()).expect("rank 0 has its error");
            }
            made.group.abort(soon()).expect("the group ends");
        }
        rank.leave();
    });
}
