//! The store in a file: PyTorch's format, limits and permissions. Files that other programs change, damage, lock or
//! remove.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::PathBuf,
    thread,
    time::Duration,
};

use crate::soon;
use bootstrap::store::{Deadline, FileStore, Store, StoreError, machine::Limits};
use proptest::{collection::vec, prelude::*};
use rustix::fs::{FlockOperation, flock};
use tempfile::TempDir;

/// Returns a temporary folder, and a path in it for a store's file.
fn place() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    (folder, path)
}

/// Returns a record in the file's format.
fn record(key: &str, value: &str) -> Vec<u8> {
    let part = |part: &str| [&(part.len() as u32).to_le_bytes(), part.as_bytes()].concat();
    [part(key), part(value)].concat()
}

/// The expected contents are those of PyTorch's store after the same calls. One difference is known: PyTorch's store
/// also writes a record when a removed key is removed again.
#[test]
fn the_file_is_pytorchs() {
    let (_folder, path) = place();
    let store = FileStore::options().workers(2).open(&path).unwrap();
    let mut expected = record("refcount/", "1");
    let mut writes = |records: &[(&str, &str)]| {
        expected.extend(records.iter().flat_map(|(key, value)| record(key, value)));
        assert_eq!(fs::read(&path).unwrap(), expected, "{records:?}");
    };
    store.set("k", b"abc").unwrap();
    writes(&[("/k", "abc")]);
    assert_eq!(store.add("n", 5).unwrap() + store.add("n", -7).unwrap(), 3);
    writes(&[("/n", "5"), ("/n", "-2")]);
    assert_eq!([store.delete("k").unwrap(), store.delete("k").unwrap()], [true, false]);
    writes(&[("-/k", "")]);
    for (key, expects, new) in [("c", "", "x"), ("c", "x", "y"), ("c", "q", "z"), ("no", "e", "e")] {
        store.compare_set(key, expects.as_bytes(), new.as_bytes()).unwrap();
    }
    writes(&[("/c", "x"), ("/c", "y")]);
    store.append("a", b"1").unwrap();
    store.append("a", b"2").unwrap();
    store.multi_set(&[("m1", b"1"), ("m2", b"2")]).unwrap();
    store.set("", b"empty").unwrap();
    writes(&[("/a", "1"), ("/a", "12"), ("/m1", "1"), ("/m2", "2"), ("/", "empty")]);
    let other = FileStore::options().workers(2).open(&path).unwrap();
    writes(&[("refcount/", "2")]);
    drop(other);
    writes(&[("cleanup/", "1"), ("refcount/", "1")]);
    drop(store);
    assert!(!path.exists());
}

#[test]
fn without_a_number_of_workers_the_file_stays() {
    let (_folder, path) = place();
    drop([(); 2].map(|()| FileStore::open(&path).unwrap()));
    assert!(path.exists());
}

/// A killed writer has left only the first bytes of its last record. The test tries every number of bytes.
#[test]
fn an_incomplete_record_is_ignored_and_removed() {
    let torn = record("/later", "a value");
    for cut in 1..torn.len() {
        let (_folder, path) = place();
        let reader = FileStore::open(&path).unwrap();
        let writer = FileStore::open(&path).unwrap();
        writer.set("k", b"v").unwrap();
        let whole = fs::read(&path).unwrap();
        fs::write(&path, [&whole, &torn[..cut]].concat()).unwrap();
        assert_eq!(reader.get("k", Deadline::now()).unwrap(), b"v");
        assert!(!reader.check(&["later"]).unwrap());
        writer.set("k", b"w").unwrap();
        assert_eq!(fs::read(&path).unwrap(), [whole, record("/k", "w")].concat(), "cut at {cut}");
        assert_eq!(reader.get("k", Deadline::now()).unwrap(), b"w");
    }
}

#[test]
fn a_lock_that_is_not_released_is_an_error() {
    let (_folder, path) = place();
    let store = FileStore::options().patience(Duration::from_millis(30)).open(&path).unwrap();
    let other = fs::File::open(&path).unwrap();
    flock(&other, FlockOperation::LockShared).unwrap();
    // The store reads under a shared lock too.
    assert_eq!(store.num_keys().unwrap(), 0);
    let error = store.set("k", b"v").unwrap_err();
    assert!(matches!(&error, StoreError::FileLocked { operation, .. } if operation == "set"), "{error}");
    flock(&other, FlockOperation::LockExclusive).unwrap();
    assert!(matches!(store.get("k", soon()), Err(StoreError::FileLocked { .. })));
    drop(other);
    store.set("k", b"v").unwrap();
}

#[test]
fn a_file_that_is_removed_ends_every_wait() {
    let (_folder, path) = place();
    let store = FileStore::options().workers(1).open(&path).unwrap();
    let waiting = thread::spawn({
        let store = store.clone();
        move || store.get("never", soon())
    });
    fs::remove_file(&path).unwrap();
    let error = waiting.join().unwrap().unwrap_err();
    assert!(matches!(error, StoreError::FileGone { .. }), "{error}");
    assert!(matches!(store.set("k", b"v"), Err(StoreError::FileGone { .. })));
    // Closing the store must not remove the file that the next job has at this path.
    let next = FileStore::open(&path).unwrap();
    drop(store);
    next.set("k", b"v").unwrap();
    assert!(path.exists());
}

#[test]
fn only_a_file_of_its_owners_is_used() {
    let (folder, path) = place();
    let _store = FileStore::open(&path).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let link = folder.path().join("link");
    symlink(&path, &link).unwrap();
    for wrong in [link, folder.path().to_owned(), folder.path().join("no/such/folder"), "/dev/null".into()] {
        let error = FileStore::open(&wrong).unwrap_err();
        assert!(matches!(&error, StoreError::File { path, .. } if *path == wrong), "{error}");
    }
}

#[test]
fn a_file_that_others_may_write_is_refused() {
    let (_folder, path) = place();
    drop(FileStore::open(&path).unwrap());
    let refused = |expected_owner: Option<u32>, expected_mode: u32| match FileStore::open(&path) {
        Err(StoreError::FileUntrusted { path: named, owner, mode, user }) => {
            assert_eq!((named, mode), (path.clone(), expected_mode));
            assert_eq!(owner, expected_owner.unwrap_or(user));
        }
        other => panic!("{other:?}"),
    };
    let allow = |mode| fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    for mode in [0o602, 0o666] {
        allow(mode);
        refused(None, mode);
    }
    // PyTorch's store makes files with this mode.
    allow(0o644);
    FileStore::open(&path).unwrap().set("k", b"v").unwrap();
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can give a file to another user");
        return;
    }
    // The file's group may have write permission only if the group id equals the owner's user id. The group is then
    // taken to be the owner's private group.
    const NOBODY: u32 = 65534;
    allow(0o664);
    FileStore::open(&path).unwrap();
    std::os::unix::fs::chown(&path, None, Some(NOBODY)).unwrap();
    refused(None, 0o664);
    allow(0o644);
    std::os::unix::fs::chown(&path, Some(NOBODY), None).unwrap();
    let before = fs::read(&path).unwrap();
    refused(Some(NOBODY), 0o644);
    assert_eq!(fs::read(&path).unwrap(), before);
}

/// The file's counts, of how often the store is open and how often it was closed, have extreme values.
#[test]
fn counts_at_the_integers_limits_are_no_panic() {
    for count in [i64::MAX, i64::MIN] {
        let (_folder, path) = place();
        let counts = ["refcount/", "cleanup/"].map(|key| record(key, &count.to_string()));
        fs::write(&path, counts.concat()).unwrap();
        let stores = [(); 3].map(|()| FileStore::options().workers(2).open(&path).unwrap());
        stores[0].set("k", b"v").unwrap();
        assert_eq!(stores[1].get("k", soon()).unwrap(), b"v");
    }
}

#[test]
fn a_request_above_the_limits_changes_nothing() {
    let (_folder, path) = place();
    let limits = Limits { key_bytes: 3, value_bytes: 16, store_bytes: 60, ..Limits::default() };
    let store = FileStore::options().limits(limits).open(&path).unwrap();
    store.set("k", b"value").unwrap();
    let before = fs::read(&path).unwrap();
    for refused in [
        store.set("long", b""),
        store.set("k", &[0; 17]),
        store.append("k", &[0; 12]),
        store.multi_set(&[("k", &[1; 16]), ("l", &[1; 16])]),
    ] {
        assert!(matches!(refused, Err(StoreError::TooLarge { .. })), "{refused:?}");
        assert_eq!(store.get("k", soon()).unwrap(), b"value");
        assert_eq!(fs::read(&path).unwrap(), before);
    }
    // A second store with larger limits has written a larger value. For the first store, the file is corrupt.
    let large = FileStore::open(&path).unwrap();
    large.set("k", &[0; 17]).unwrap();
    let error = store.get("k", soon()).unwrap_err();
    let offset = before.len() as u64 + record("refcount/", "2").len() as u64;
    assert!(matches!(error, StoreError::FileCorrupt { offset: at, .. } if at == offset), "{error}");
}

fn garbage() -> impl Strategy<Value = Vec<u8>> {
    let whole = (
        prop_oneof!["/[a-c]", "-/[a-c]", "push/[a-c]", "pop/[a-c]", "refcount/", "cleanup/", "[a-z]{0,3}"],
        "[0-9]{0,2}",
    );
    let bytes = vec(prop_oneof![4 => Just(0u8), 3 => 0..20u8, 1 => any::<u8>()], 0..12);
    prop_oneof![4 => whole.prop_map(|(key, value)| record(&key, &value)), 1 => bytes]
}

proptest! {
    /// A file with any contents is either used as a store or reported as corrupt. A corrupt file is not changed.
    #[test]
    fn a_foreign_file_is_an_error_or_a_store(pieces in vec(garbage(), 0..8)) {
        let (_folder, path) = place();
        let bytes = pieces.concat();
        fs::write(&path, &bytes).unwrap();
        match FileStore::open(&path) {
            Ok(store) => {
                store.set("k", b"v").unwrap();
                prop_assert_eq!(store.get("k", Deadline::now()).unwrap(), b"v");
                prop_assert!(store.list_keys().unwrap().len() as u64 == store.num_keys().unwrap());
            }
            Err(StoreError::FileCorrupt { offset, .. }) => {
                prop_assert!(offset < bytes.len() as u64);
                prop_assert_eq!(fs::read(&path).unwrap(), bytes);
            }
            Err(other) => prop_assert!(false, "{}", other),
        }
    }
}
