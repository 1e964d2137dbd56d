//! Keys that an agreement leaves in the store, and keys that are removed while a member reads them.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use super::{
    super::{Ending, Failure, Place, remove_left, run, session::fetch},
    sum::{Sum, member_of},
};
use crate::store::{
    Deadline, HashStore, Result, Store,
    machine::{Reply, Request},
};

#[test]
fn what_an_agreement_with_a_missing_member_leaves_can_be_removed() {
    let store = HashStore::new();
    let member = member_of(0, 2, Duration::from_millis(30));
    let failed = run::<Sum>(&store, member.clone(), 3, |_, _, _| true, || Ok(())).unwrap_err();
    assert!(matches!(failed.ending, Ending::Failed(Failure::Absent { .. })), "{failed:?}");
    let left = || {
        let mut keys = store.list_keys().unwrap();
        keys.retain(|key| !key.starts_with("places/"));
        keys
    };
    assert!(!left().is_empty());
    let place = Place { name: member.name, members: member.members };
    remove_left(&store, &place);
    assert_eq!(left(), Vec::<String>::new());
    // Another member finds nothing to remove, and leaves keys that others create meanwhile.
    store.set("sum/records/1", b"1").unwrap();
    remove_left(&store, &place);
    assert_eq!(left(), ["sum/records/1"]);
}

/// A store that counts its requests, and removes the key `gone` after every request that checks keys.
#[derive(Default)]
struct Counting(HashStore, AtomicUsize);

impl Store for Counting {
    fn call(&self, request: Request) -> Result<Option<Reply>> {
        self.1.fetch_add(1, Ordering::Relaxed);
        let checks = matches!(request, Request::Check { .. });
        let reply = self.0.call(request);
        if checks {
            self.0.delete("gone")?;
        }
        reply
    }

    fn call_when_there(
        &self,
        keys: Vec<Vec<u8>>,
        request: Option<Request>,
        deadline: Deadline,
    ) -> Result<Option<Reply>> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.call_when_there(keys, request, deadline)
    }
}

#[test]
fn a_fetch_checks_each_key_only_if_one_is_missing_and_reads_once() {
    for (present, requests) in [("", 5), ("c", 6), ("abd", 6), ("abcd", 2)] {
        let store = Counting::default();
        present.chars().for_each(|key| store.0.set(&key.to_string(), key.to_string().as_bytes()).unwrap());
        let names = ["a", "b", "c", "d"].map(str::to_owned);
        let expected = names.each_ref().map(|key| present.contains(&**key).then(|| key.clone().into_bytes()));
        assert_eq!(fetch(&store, &names).unwrap(), expected);
        assert_eq!(store.1.into_inner(), requests, "{present}");
    }
}

#[test]
fn a_key_that_is_removed_while_it_is_read_has_no_value() {
    for keys in [vec!["stays", "gone"], vec!["gone"], vec!["never", "gone", "stays"]] {
        let store = Counting::default();
        store.0.set("stays", b"1").unwrap();
        store.0.set("gone", b"2").unwrap();
        let names: Vec<String> = keys.iter().map(|key| (*key).to_owned()).collect();
        let expected: Vec<_> = keys.iter().map(|key| (*key == "stays").then(|| b"1".to_vec())).collect();
        assert_eq!(fetch(&store, &names).unwrap(), expected, "{keys:?}");
    }
}
