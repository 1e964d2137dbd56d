//! Ranks as processes, one of which is killed at a step: each is this test binary again, told by its environment what to
//! be.

use std::{
    env, fs,
    io::Write,
    os::unix::net::UnixStream,
    path::Path,
    process::{Child, Command},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::Duration,
};

use process_group::store::{Deadline, Result, Store, TcpStore};

/// Longer than anything takes.
pub(crate) fn far() -> Deadline {
    Deadline::after(Duration::from_secs(120))
}

/// Which of a test's hosts this process is on, if there are several.
pub(crate) static HOST: AtomicU64 = AtomicU64::new(0);

/// A store that something happens to before one of its calls: its process ends, if nothing else is said.
pub(crate) struct Fatal {
    pub(crate) inner: TcpStore,
    /// How many calls are left; none: it never does.
    pub(crate) left: AtomicU64,
    /// What happens.
    pub(crate) deed: fn(&TcpStore),
}

impl Fatal {
    pub(crate) fn new(inner: TcpStore) -> Self {
        // Nothing is dropped.
        Self { inner, left: AtomicU64::new(0), deed: |_| std::process::abort() }
    }

    fn count(&self) {
        if self.left.fetch_sub(1, Ordering::Relaxed) == 1 {
            (self.deed)(&self.inner);
        }
    }
}

/// The calls that a meeting makes are counted, all others passed on.
impl Store for Fatal {
    fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        self.count();
        self.inner.set(key, value)
    }
    fn get(&self, key: &str, deadline: Deadline) -> Result<Vec<u8>> {
        self.count();
        self.inner.get(key, deadline)
    }
    fn check(&self, keys: &[&str]) -> Result<bool> {
        self.count();
        self.inner.check(keys)
    }
    fn wait(&self, keys: &[&str], deadline: Deadline) -> Result<()> {
        self.inner.wait(keys, deadline)
    }
    fn add(&self, key: &str, delta: i64) -> Result<i64> {
        self.count();
        self.inner.add(key, delta)
    }
    fn compare_set(&self, key: &str, expected: &[u8], new: &[u8]) -> Result<Vec<u8>> {
        self.count();
        self.inner.compare_set(key, expected, new)
    }
    fn append(&self, key: &str, value: &[u8]) -> Result<()> {
        self.inner.append(key, value)
    }
    fn multi_get(&self, keys: &[&str], deadline: Deadline) -> Result<Vec<Vec<u8>>> {
        self.count();
        self.inner.multi_get(keys, deadline)
    }
    fn multi_set(&self, entries: &[(&str, &[u8])]) -> Result<()> {
        self.inner.multi_set(entries)
    }
    fn delete(&self, key: &str) -> Result<bool> {
        self.count();
        self.inner.delete(key)
    }
    fn num_keys(&self) -> Result<u64> {
        self.inner.num_keys()
    }
    fn list_keys(&self) -> Result<Vec<String>> {
        self.inner.list_keys()
    }
    fn queue_push(&self, key: &str, value: &[u8]) -> Result<()> {
        self.inner.queue_push(key, value)
    }
    fn queue_pop(&self, key: &str, deadline: Deadline) -> Result<Vec<u8>> {
        self.inner.queue_pop(key, deadline)
    }
    fn queue_try_pop(&self, key: &str) -> Result<Option<Vec<u8>>> {
        self.inner.queue_try_pop(key)
    }
    fn queue_len(&self, key: &str) -> Result<u64> {
        self.inner.queue_len(key)
    }
}

/// What a process is told to be.
pub(crate) struct Told {
    pub(crate) case: String,
    pub(crate) rank: usize,
    store: String,
}

impl Told {
    /// What this process is told, if it was started by [`start`].
    pub(crate) fn hear() -> Option<Self> {
        let rank = env::var("SYMM_MEM_TEST_RANK").ok()?.parse().ok()?;
        let (case, store) = (env::var("SYMM_MEM_TEST_CASE").ok()?, env::var("SYMM_MEM_TEST_STORE").ok()?);
        Some(Self { case, rank, store })
    }

    /// The job's store.
    pub(crate) fn store(&self) -> TcpStore {
        TcpStore::connect(&self.store, far()).unwrap()
    }

    /// The case's first word, and the number behind it.
    pub(crate) fn what(&self) -> (&str, u64) {
        let (what, nth) = self.case.split_once(' ').unwrap_or((&self.case, "0"));
        (what, nth.parse().unwrap())
    }
}

/// Starts the test `body` of this binary as a rank; doors lie in `folder`.
pub(crate) fn start(body: &str, case: &str, rank: usize, store: &TcpStore, folder: &Path) -> Child {
    let (_, body) = body.split_once("::").unwrap();
    Command::new(env::current_exe().unwrap())
        .args(["--exact", body, "--nocapture"])
        .env("SYMM_MEM_TEST_CASE", case)
        .env("SYMM_MEM_TEST_RANK", rank.to_string())
        .env("SYMM_MEM_TEST_STORE", store.address())
        .env("XDG_RUNTIME_DIR", folder)
        .spawn()
        .unwrap()
}

/// Runs a case on `ranks` processes, and one more that is told "next"; whether each rank ended well. No file is left.
pub(crate) fn run(body: &str, case: &str, ranks: usize) -> Vec<bool> {
    let folder = tempfile::tempdir().unwrap();
    let store = TcpStore::host(0).unwrap();
    let mut ranks: Vec<Child> =
        (0..ranks).map(|rank| start(body, case, rank, &store, folder.path())).collect();
    let ended = ranks.iter_mut().map(|rank| rank.wait().unwrap().success()).collect();
    // Survivors that have noticed have removed what the dead has left; else whoever comes next does.
    assert!(start(body, "next", 0, &store, folder.path()).wait().unwrap().success());
    let left: Vec<_> = fs::read_dir(folder.path()).unwrap().flatten().map(|entry| entry.path()).collect();
    assert!(left.is_empty(), "{case}: {left:?} is left");
    ended
}

/// Runs each of the cases, some at a time: they wait more than they work. `check` is told whether each rank ended well.
pub(crate) fn run_all(body: &str, cases: &[String], ranks: usize, check: impl Fn(&str, Vec<bool>) + Sync) {
    let next = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed) as usize) {
                    check(case, run(body, case, ranks));
                }
            });
        }
    });
}

/// Runs each of the cases: the victim, and only it, does not come to its end.
pub(crate) fn kill_each(body: &str, cases: &[String], ranks: usize, victim: usize) {
    run_all(body, cases, ranks, |case, ended| {
        for (rank, well) in ended.into_iter().enumerate() {
            assert_eq!(well, rank != victim, "rank {rank} of {case}");
        }
    });
}

/// Runs a case on `ranks` processes beside a stranger: of the same user, else it would not come so far. It knocks at every
/// door, and says what it should not. All ranks do well.
pub(crate) fn run_disturbed(body: &str, case: &str, ranks: usize) {
    let folder = tempfile::tempdir().unwrap();
    let store = TcpStore::host(0).unwrap();
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                for door in fs::read_dir(folder.path()).unwrap().flatten() {
                    let socket = door.path().join("door");
                    // Not of the kind that is listened for; and files in the doors' folder are nobody's business.
                    if let Ok(mut stranger) = UnixStream::connect(&socket) {
                        let _ = stranger.write_all(&[7; 28]);
                    }
                    let _ = fs::write(door.path().join("garbage"), b"garbage");
                }
                thread::yield_now();
            }
        });
        let ranks: Vec<Child> =
            (0..ranks).map(|rank| start(body, case, rank, &store, folder.path())).collect();
        let ended: Vec<bool> = ranks.into_iter().map(|mut rank| rank.wait().unwrap().success()).collect();
        over.store(true, Ordering::Relaxed);
        assert!(ended.iter().all(|well| *well), "{ended:?}");
    });
}

/// How many descriptors this process has.
pub(crate) fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}
