//! The in-process store: waits and changes of several threads, timeouts, limits, and additions to text.

use std::{thread, time::Duration};

use bootstrap::store::{Deadline, HashStore, Store, StoreError, machine::Limits};

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

#[test]
fn a_wait_ends_when_the_last_key_appears() {
    let store = HashStore::new();
    let waiting = {
        let store = store.clone();
        thread::spawn(move || store.multi_get(&["a", "b", "c"], soon()))
    };
    for key in ["c", "a", "b"] {
        store.set(key, key.as_bytes()).unwrap();
    }
    assert_eq!(waiting.join().unwrap().unwrap(), [b"a", b"b", b"c"]);
}

#[test]
fn a_timeout_names_the_keys_that_are_missing() {
    let store = HashStore::new();
    store.set("there", b"").unwrap();
    match store.wait(&["there", "late"], Deadline::now()) {
        Err(StoreError::Timeout { keys, .. }) => assert_eq!(keys, ["late"]),
        other => panic!("{other:?}"),
    }
    store.set("late", b"1").unwrap();
    store.wait(&["there", "late"], Deadline::now()).unwrap();
}

#[test]
fn every_element_of_a_queue_goes_to_one_thread() {
    let store = HashStore::new();
    let takers: Vec<_> = (0..8)
        .map(|_| {
            let store = store.clone();
            thread::spawn(move || (0..25).map(|_| store.queue_pop("q", soon()).unwrap()).collect::<Vec<_>>())
        })
        .collect();
    for i in 0..200u8 {
        store.queue_push("q", &[i]).unwrap();
    }
    let mut taken: Vec<_> = takers.into_iter().flat_map(|taker| taker.join().unwrap()).collect();
    taken.sort();
    assert_eq!(taken, (0..200u8).map(|i| vec![i]).collect::<Vec<_>>());
    assert_eq!(store.queue_len("q").unwrap(), 0);
}

#[test]
fn additions_of_many_threads_are_all_counted() {
    let store = HashStore::new();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..1000).for_each(|_| assert!(store.add("n", 1).unwrap() > 0)));
        }
    });
    assert_eq!(store.get("n", Deadline::now()).unwrap(), b"4000");
}

#[test]
fn what_exceeds_a_limit_changes_nothing() {
    let store = HashStore::with_limits(Limits { key_bytes: 3, value_bytes: 4, ..Limits::default() });
    assert!(matches!(store.set("long", b""), Err(StoreError::TooLarge { limit: 3, .. })));
    store.set("key", b"1234").unwrap();
    assert!(matches!(store.append("key", b"5"), Err(StoreError::TooLarge { size: 5, .. })));
    assert!(matches!(store.wait(&["key", "long"], soon()), Err(StoreError::TooLarge { .. })));
    assert_eq!(store.get("key", soon()).unwrap(), b"1234");
    assert_eq!(store.list_keys().unwrap(), ["key"]);
}

#[test]
fn adding_to_a_text_is_an_error_that_shows_it() {
    let store = HashStore::new();
    store.set("name", b"rank").unwrap();
    let error = store.add("name", 1).unwrap_err();
    assert!(matches!(error, StoreError::NotANumber { .. }));
    assert!(error.to_string().contains("\"rank\""), "{error}");
    store.set("name", b" 12x").unwrap();
    assert_eq!(store.add("name", 1).unwrap(), 13);
    store.set("name", i64::MAX.to_string().as_bytes()).unwrap();
    assert!(matches!(store.add("name", 1), Err(StoreError::NotANumber { .. })));
}
