//! Waits, timeouts and changes of several threads, over every store. Limits of, and additions to a text in, the
//! in-process store.

use std::{sync::Arc, thread, time::Duration};

use crate::soon;
use bootstrap::store::{Deadline, FileStore, HashStore, Store, StoreError, TcpStore, machine::Limits};
use tempfile::TempDir;

/// Returns two handles to one store of each kind, and the folder of the file.
fn stores() -> (TempDir, [[Arc<dyn Store>; 2]; 3]) {
    let folder = tempfile::tempdir().unwrap();
    let (hash, host) = (HashStore::new(), TcpStore::host(0).unwrap());
    let client = TcpStore::connect(&host.address(), soon()).unwrap();
    let files = [(); 2].map(|()| Arc::new(FileStore::open(folder.path().join("store")).unwrap()) as _);
    (folder, [[Arc::new(hash.clone()), Arc::new(hash)], [Arc::new(client), Arc::new(host)], files])
}

#[test]
fn a_wait_ends_when_the_last_key_appears() {
    let (_folder, stores) = stores();
    for [store, other] in stores {
        let waiting = thread::spawn(move || store.multi_get(&["a", "b", "c"], soon()));
        for key in ["c", "a", "b"] {
            other.set(key, key.as_bytes()).unwrap();
        }
        assert_eq!(waiting.join().unwrap().unwrap(), [b"a", b"b", b"c"]);
    }
}

#[test]
fn a_timeout_names_the_missing_keys_and_the_store_goes_on() {
    let (_folder, stores) = stores();
    for [store, other] in stores {
        other.set("there", b"").unwrap();
        for deadline in [Deadline::now(), Deadline::after(Duration::from_millis(20))] {
            match store.wait(&["late", "there", "never"], deadline) {
                Err(StoreError::Timeout { keys, .. }) => assert_eq!(keys, ["late", "never"]),
                other => panic!("{other:?}"),
            }
        }
        other.multi_set(&[("late", b"1"), ("never", b"2")]).unwrap();
        let values = store.multi_get(&["late", "there", "never"], Deadline::now()).unwrap();
        assert_eq!(values, [&b"1"[..], b"", b"2"]);
    }
}

/// The number of additions of each thread of the next test.
const ADDED: usize = 500;

#[test]
fn changes_of_many_threads_are_all_counted_and_each_element_goes_to_one() {
    let (_folder, stores) = stores();
    for handles in stores {
        let taken = thread::scope(|scope| {
            let takers: Vec<_> = (0..8)
                .map(|taker| {
                    let store = &handles[taker % 2];
                    scope.spawn(move || {
                        (0..ADDED).for_each(|_| assert!(store.add("n", 1).unwrap() > 0));
                        (0..25).map(|_| store.queue_pop("q", soon()).unwrap()).collect::<Vec<_>>()
                    })
                })
                .collect();
            (0..200u8).for_each(|i| handles[usize::from(i) % 2].queue_push("q", &[i]).unwrap());
            let mut taken: Vec<_> = takers.into_iter().flat_map(|taker| taker.join().unwrap()).collect();
            taken.sort();
            taken
        });
        assert_eq!(taken, (0..200u8).map(|i| vec![i]).collect::<Vec<_>>());
        assert_eq!(handles[0].queue_len("q").unwrap(), 0);
        assert_eq!(handles[1].get("n", Deadline::now()).unwrap(), (8 * ADDED).to_string().as_bytes());
    }
}

/// A key and a queue have the same name, so the wait for the queue's name ends although the queue is empty. A pop must
/// then wait again, until its deadline or until an element arrives.
#[test]
fn a_queue_is_waited_for_even_if_a_key_has_its_name() {
    let (_folder, stores) = stores();
    for [store, other] in stores {
        store.set("name", b"value").unwrap();
        let late = store.queue_pop("name", Deadline::after(Duration::from_millis(30))).unwrap_err();
        assert!(matches!(&late, StoreError::Timeout { keys, .. } if *keys == ["name"]), "{late}");
        thread::scope(|scope| {
            let popped = scope.spawn(|| store.queue_pop("name", soon()));
            other.queue_push("name", b"element").unwrap();
            assert_eq!(popped.join().unwrap().unwrap(), b"element");
        });
        assert_eq!(store.get("name", soon()).unwrap(), b"value");
    }
}

/// `Store::call` serves no request that waits, and no ping.
#[test]
fn a_request_that_waits_is_refused() {
    use bootstrap::store::machine::Request;
    let (_folder, stores) = stores();
    for [store, _] in stores {
        for request in [
            Request::Wait { keys: Vec::new() },
            Request::Barrier { key: b"k".to_vec(), world: 1 },
            Request::CancelWait,
            Request::Ping { nonce: 7 },
        ] {
            let refused = store.call(request).unwrap_err();
            assert!(matches!(refused, StoreError::Argument(_)), "{refused}");
        }
        assert_eq!(store.num_keys().unwrap(), 0);
    }
}

#[test]
fn a_request_above_a_limit_changes_nothing() {
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
