//! Ranks as processes, one of which is killed at a step: each is this test binary again, told by its environment what to
//! be.

use std::{
    collections::BTreeSet,
    env, fs,
    io::Write,
    os::unix::{net::UnixStream, process::ExitStatusExt},
    path::Path,
    process::{Child, Command, ExitStatus},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use cuda_driver::{Context, Driver, sys::Api};
use gpu_sim::{Action, Injection, World};
use process_group::store::{Deadline, Result, Store, TcpStore};
use rustix::process::{Signal, getpid, kill_process};

/// Longer than anything takes.
pub(crate) fn far() -> Deadline {
    Deadline::after(Duration::from_secs(120))
}

/// Puts this process on one of a test's hosts.
pub(crate) fn on_host(number: usize) {
    // SAFETY: nothing else of the process uses the environment now.
    unsafe { env::set_var("NCCL_HOSTID", format!("host {number}")) };
}

/// A store that something happens to before one of its calls: its process is killed, if nothing else is said.
pub(crate) struct Fatal {
    pub(crate) inner: TcpStore,
    /// How many calls are left; none: it never does.
    left: AtomicU64,
    /// What happens.
    deed: fn(&TcpStore),
    /// How many others are waited for before this rank counts itself in a vote: the last one makes the most calls.
    before: AtomicU64,
}

impl Fatal {
    pub(crate) fn new(inner: TcpStore) -> Self {
        let kill = |_: &TcpStore| kill_process(getpid(), Signal::KILL).unwrap();
        Self::with(inner, 0, kill)
    }

    /// With a deed before the `nth` call.
    pub(crate) fn with(inner: TcpStore, nth: u64, deed: fn(&TcpStore)) -> Self {
        Self { inner, left: nth.into(), deed, before: AtomicU64::new(0) }
    }

    /// Has the process killed at the `nth` call of `what` from now, by one of `ranks`: of the store, of the store as the
    /// last to count itself (`last`), or of a function of `machine`.
    pub(crate) fn doom(&self, what: &str, nth: u64, ranks: usize, machine: &World) {
        match what {
            "store" | LAST => {
                self.before.store(if what == LAST { ranks as u64 - 1 } else { 0 }, Ordering::Relaxed);
                self.left.store(nth, Ordering::Relaxed);
            }
            call => machine.faults().inject(Injection::new(call, Action::Kill).nth(nth)).unwrap(),
        }
    }

    /// The process has come through what it was to die in, which went well or not. That may be with [`LAST`] alone.
    #[track_caller]
    pub(crate) fn survived(&self, case: &str, well: bool) {
        self.left.store(0, Ordering::Relaxed);
        assert!(well && case.contains(LAST), "it was to be killed at {case}, which ended {well}");
    }

    fn count(&self) {
        if self.left.fetch_sub(1, Ordering::Relaxed) == 1 {
            (self.deed)(&self.inner);
        }
    }
}

/// As [`Fatal::doom`] knows it.
const LAST: &str = "last";

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
        let before = self.before.load(Ordering::Relaxed) as i64;
        while key.ends_with("/count") && self.inner.add(key, 0)? < before {
            thread::yield_now();
        }
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
    /// What this process is told, which was started by [`start`].
    pub(crate) fn hear() -> Self {
        let told = |name| env::var(name).expect("a test starts this process");
        let rank = told("SYMM_MEM_TEST_RANK").parse().unwrap();
        Self { case: told("SYMM_MEM_TEST_CASE"), rank, store: told("SYMM_MEM_TEST_STORE") }
    }

    /// The job's store.
    pub(crate) fn store(&self) -> TcpStore {
        TcpStore::connect(&self.store, far()).unwrap()
    }

    /// This rank's device of an embedded machine, whose context it retains.
    pub(crate) fn context(&self, machine: &World) -> Context {
        // SAFETY: the functions are those of the living machine, and nothing of it outlives the machine.
        let driver = Driver::new(unsafe { Api::from_parts(machine.cuda()) }.unwrap()).unwrap();
        driver.device(self.rank as u32).unwrap().retain_primary().unwrap()
    }

    /// The case's first word, and the number behind it.
    pub(crate) fn what(&self) -> (&str, u64) {
        let (what, nth) = self.case.split_once(' ').unwrap_or((&self.case, "0"));
        (what, nth.parse().unwrap())
    }
}

/// The command that runs the test `role` of this binary, by its path with the crate, in a process of its own. Such a test
/// is ignored unless it is started so. That it is there is checked once: a harness that finds no test reports success.
pub(crate) fn role_command(role: &str) -> Command {
    static FOUND: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    // The harness names tests without the crate.
    let (_, role) = role.split_once("::").unwrap();
    let this = env::current_exe().unwrap();
    if !FOUND.lock().unwrap_or_else(PoisonError::into_inner).contains(role) {
        let list = Command::new(&this).args(["--list", "--ignored", "--exact", role]).output().unwrap();
        let list = String::from_utf8_lossy(&list.stdout);
        assert!(list.lines().any(|line| line == format!("{role}: test")), "no ignored test {role}:\n{list}");
        FOUND.lock().unwrap_or_else(PoisonError::into_inner).insert(role.to_owned());
    }
    let mut command = Command::new(this);
    command.args(["--ignored", "--exact", role, "--nocapture"]);
    command
}

/// Starts the test `body` of this binary as a rank; doors lie in `folder`.
pub(crate) fn start(body: &str, case: &str, rank: usize, store: &TcpStore, folder: &Path) -> Child {
    role_command(body)
        .env("SYMM_MEM_TEST_CASE", case)
        .env("SYMM_MEM_TEST_RANK", rank.to_string())
        .env("SYMM_MEM_TEST_STORE", store.address())
        .env("XDG_RUNTIME_DIR", folder)
        .spawn()
        .unwrap()
}

/// How a rank ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Well,
    /// By itself, and not well: a check of its own failed.
    Failed,
    /// At the call that it was to be killed at.
    Killed,
}

impl From<ExitStatus> for End {
    fn from(status: ExitStatus) -> Self {
        match status.signal() {
            _ if status.success() => Self::Well,
            Some(signal) if signal == Signal::KILL.as_raw() => Self::Killed,
            _ => Self::Failed,
        }
    }
}

/// Runs a case on `ranks` processes, and one more that is told "next"; how each rank ended. No file is left.
pub(crate) fn run(body: &str, case: &str, ranks: usize) -> Vec<End> {
    let folder = tempfile::tempdir().unwrap();
    let store = TcpStore::host(0).unwrap();
    let mut ranks: Vec<Child> =
        (0..ranks).map(|rank| start(body, case, rank, &store, folder.path())).collect();
    let ended = ranks.iter_mut().map(|rank| rank.wait().unwrap().into()).collect();
    // Survivors that have noticed have removed what the dead has left; else whoever comes next does.
    assert!(start(body, "next", 0, &store, folder.path()).wait().unwrap().success());
    let left: Vec<_> = fs::read_dir(folder.path()).unwrap().flatten().map(|entry| entry.path()).collect();
    assert!(left.is_empty(), "{case}: {left:?} is left");
    ended
}

/// Runs each of the cases, some at a time, since they wait more than they work, until there are none or `check` says no
/// more. It is told how the ranks ended.
pub(crate) fn run_all(
    body: &str,
    cases: impl Iterator<Item = String> + Send,
    ranks: usize,
    check: impl Fn(&str, Vec<End>) -> bool + Sync,
) {
    let cases = Mutex::new(cases.fuse());
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let Some(case) = cases.lock().unwrap().next() else { break };
                    if !check(&case, run(body, &case, ranks)) {
                        over.store(true, Ordering::Relaxed);
                    }
                }
            });
        }
    });
}

/// Runs each of the cases: the victim, and only it, is killed.
pub(crate) fn kill_each(body: &str, cases: &[String], ranks: usize, victim: usize) {
    run_all(body, cases.iter().cloned(), ranks, |case, ended| {
        for (rank, end) in ended.into_iter().enumerate() {
            let expected = if rank == victim { End::Killed } else { End::Well };
            assert_eq!(end, expected, "rank {rank} of {case}");
        }
        true
    });
}

/// Kills the victim at each store call of what follows `deed`, where it counts itself last in every vote: until it comes
/// through, which is when there are no more calls.
pub(crate) fn kill_until_it_survives(body: &str, deed: &str, ranks: usize, victim: usize) {
    // Two votes, in each of which it posts, counts, looks what there is (which are two calls) and proposes.
    const LEAST: u64 = 10;
    let survived = AtomicU64::new(u64::MAX);
    let cases = (1..).map(|nth| format!("{deed}{LAST} {nth}"));
    run_all(body, cases, ranks, |case, ended| {
        for (rank, end) in ended.iter().enumerate() {
            assert!(
                *end == End::Well || (rank, *end) == (victim, End::Killed),
                "rank {rank} of {case}: {end:?}"
            );
        }
        let is_well = ended[victim] == End::Well;
        if is_well {
            let nth = case.rsplit(' ').next().unwrap().parse().unwrap();
            survived.fetch_min(nth, Ordering::Relaxed);
        }
        !is_well
    });
    let survived = survived.into_inner();
    println!("{deed}{LAST}: {} calls", survived - 1);
    assert!(survived > LEAST, "it comes through when it is to be killed at call {survived}");
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
