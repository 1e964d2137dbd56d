//! Routes of a seeded world that a test interrupts, and the world's random numbers.

use std::{net::IpAddr, sync::Arc, time::Duration};

use bootstrap::{
    runtime::{self, Event, Instant, Route, Seeded},
    store::{Deadline, Store, StoreError, TcpStore},
};

use super::seeded_ranks::run_on;

const PORT: u16 = 29500;
const PATIENCE: Duration = Duration::from_secs(2);
/// The maximum virtual time of a call that nothing holds up.
const PROMPT: Duration = Duration::from_millis(500);

fn address(last: u8) -> IpAddr {
    [127, 0, 0, last].into()
}

fn connect(last: u8) -> Result<TcpStore, StoreError> {
    let options = TcpStore::options().patience(PATIENCE);
    options.connect(&format!("{}:{PORT}", address(last)), Deadline::after(PATIENCE))
}

/// Runs `body` beside the host of a store.
fn beside_host(seed: u64, body: impl Fn(&Seeded) + Clone + Send + 'static) {
    let runtime = Arc::new(Seeded::new());
    let ended = Arc::new(Event::new("the end of the test"));
    let network = runtime.clone();
    let (results, _) = run_on(runtime, seed, 2, move |rank| {
        if rank == 0 {
            let seen = ended.count();
            let _store = TcpStore::host(PORT).unwrap();
            runtime::wait(&ended, seen, Duration::MAX);
        } else {
            body(&network);
            ended.notify_all();
        }
    });
    results.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
}

#[test]
fn a_silent_route_holds_up_its_clients_alone() {
    for seed in 0..20 {
        beside_host(seed, move |network| {
            let (one, other) = (connect(2).unwrap(), connect(3).unwrap());
            network.set_route(address(2), Route::Silent);
            let begun = Instant::now();
            let error = one.set("key", b"value").unwrap_err();
            assert!(matches!(error, StoreError::Unresponsive { .. }), "seed {seed}: {error}");
            assert!(begun.elapsed() >= PATIENCE, "seed {seed}: {:?}", begun.elapsed());
            let begun = Instant::now();
            assert!(!other.check(&["key"]).unwrap(), "seed {seed}: the held bytes have arrived");
            other.set("other", b"value").unwrap();
            assert!(begun.elapsed() < PROMPT, "seed {seed}: {:?}", begun.elapsed());
            let begun = Instant::now();
            assert!(matches!(connect(2), Err(StoreError::Unreachable { .. })), "seed {seed}");
            assert!(begun.elapsed() >= PATIENCE, "seed {seed}: {:?}", begun.elapsed());

            network.set_route(address(2), Route::Open);
            assert_eq!(one.get("other", Deadline::now()).unwrap(), b"value");
            // The held request arrives, although its client has given up.
            assert_eq!(other.get("key", Deadline::after(PATIENCE)).unwrap(), b"value");
        });
    }
}

#[test]
fn a_wait_goes_on_when_its_route_is_open_again() {
    for seed in 0..20 {
        beside_host(seed, move |network| {
            let (one, other) = (connect(2).unwrap(), connect(3).unwrap());
            let waits = move || one.get("key", Deadline::after(Duration::from_secs(60)));
            let waiting = runtime::spawn("waits", waits).unwrap();
            runtime::sleep(Duration::from_secs(1));
            network.set_route(address(2), Route::Silent);
            other.set("key", b"value").unwrap();
            runtime::sleep(Duration::from_secs(1));
            assert!(!waiting.is_finished(), "seed {seed}");
            network.set_route(address(2), Route::Open);
            assert_eq!(waiting.join().unwrap().unwrap(), b"value");
        });
    }
}

#[test]
fn a_refused_route_cuts_its_connections_and_refuses_new_ones() {
    for seed in 0..20 {
        beside_host(seed, move |network| {
            let (one, other) = (connect(2).unwrap(), connect(3).unwrap());
            // Also after silence.
            if seed % 2 == 0 {
                network.set_route(address(2), Route::Silent);
            }
            network.set_route(address(2), Route::Refused);
            let begun = Instant::now();
            let error = one.add("count", 1).unwrap_err();
            assert!(matches!(error, StoreError::HostDied { .. }), "seed {seed}: {error}");
            assert!(begun.elapsed() < PROMPT, "seed {seed}: {:?}", begun.elapsed());
            assert!(matches!(connect(2), Err(StoreError::Unreachable { .. })), "seed {seed}");
            assert_eq!(other.add("count", 1).unwrap(), 1, "seed {seed}");
            network.set_route(address(2), Route::Open);
            assert_eq!(one.add("count", 1).unwrap(), 2, "seed {seed}");
        });
    }
}

#[test]
fn equal_runs_have_equal_random_numbers() {
    let numbers = || {
        let number = |_| [runtime::random::<8>().unwrap(), runtime::random::<8>().unwrap()];
        run_on(Arc::new(Seeded::new()), 7, 3, number).0.unwrap().concat()
    };
    let mut all = numbers();
    assert_eq!(all, numbers());
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 6, "{all:?}");
}
