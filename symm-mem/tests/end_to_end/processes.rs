//! Ranks as processes, one of which is killed at a given step. Each process runs this test binary again; its
//! environment tells its role.

use std::{
    env, fs,
    io::Write,
    os::unix::{net::UnixStream, process::ExitStatusExt},
    path::Path,
    process::{Child, ExitStatus},
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use cuda_driver::{Context, Driver, sys::Api};
use gpu_sim::{Action, Injection, World, process::test_command};
use process_group::store::{Deadline, Result, Store, TcpStore, barrier};
use rustix::process::{Signal, getpid, kill_process};

use crate::common::intercept::{Intercept, Intercepted, MEETING_CALLS};

/// Longer than anything should take.
pub(crate) fn far() -> Deadline {
    Deadline::after(Duration::from_secs(120))
}

/// Returns a barrier of all `ranks` ranks, which may be used any number of times. Fails at a far deadline.
pub(crate) fn meets<'a>(store: &'a dyn Store, rank: usize, ranks: usize) -> impl Fn() + use<'a> {
    let round = AtomicU64::new(0);
    move || {
        let name = format!("met/{}", round.fetch_add(1, Ordering::Relaxed));
        barrier(store, &name, rank, ranks, far()).unwrap();
    }
}

/// Puts this process on one of a test's hosts, by NCCL's host id.
pub(crate) fn on_host(number: usize) {
    // SAFETY: nothing else of the process uses the environment now.
    unsafe { env::set_var("NCCL_HOSTID", format!("host {number}")) };
}

/// Kills this process at one call of a store. Counts only the calls that a meeting makes.
pub(crate) struct Trap {
    /// Remaining calls, including that at which the process is killed. Zero: never.
    left: AtomicU64,
    /// Ranks that must be counted in a decision round before this one. The rank that is counted last makes the most
    /// calls.
    before: AtomicU64,
}

impl Trap {
    fn count(&self) {
        if self.left.fetch_sub(1, Ordering::Relaxed) == 1 {
            kill_process(getpid(), Signal::KILL).unwrap();
        }
    }
}

impl Intercept<TcpStore> for Trap {
    fn before(&self, inner: &TcpStore, call: &'static str, key: &str) -> Result<()> {
        if call == "delete" || MEETING_CALLS.contains(&call) {
            self.count();
        }
        let before = self.before.load(Ordering::Relaxed) as i64;
        while call == "add" && key.ends_with("/count") && inner.add(key, 0)? < before {
            thread::yield_now();
        }
        Ok(())
    }
}

/// A store with a [`Trap`].
pub(crate) type Fatal = Intercepted<TcpStore, Trap>;

impl Fatal {
    pub(crate) fn new(inner: TcpStore) -> Self {
        Self { inner, intercept: Trap { left: AtomicU64::new(0), before: AtomicU64::new(0) } }
    }

    /// Kills the process at the `nth` call from now; the job has `ranks` ranks. `what` names the calls: those of the
    /// store, those of the store as the rank that is counted last (`last`), or those of one function of `machine`.
    pub(crate) fn doom(&self, what: &str, nth: u64, ranks: usize, machine: &World) {
        match what {
            "store" | LAST => {
                let before = if what == LAST { ranks as u64 - 1 } else { 0 };
                self.intercept.before.store(before, Ordering::Relaxed);
                self.intercept.left.store(nth, Ordering::Relaxed);
            }
            call => machine.faults().inject(Injection::new(call, Action::Kill).nth(nth)).unwrap(),
        }
    }

    /// Call this if the process was not killed in `case`; `well` tells whether the case succeeded. Only [`LAST`]
    /// allows that.
    #[track_caller]
    pub(crate) fn survived(&self, case: &str, well: bool) {
        self.intercept.left.store(0, Ordering::Relaxed);
        assert!(well && case.contains(LAST), "it was to be killed at {case}, which ended {well}");
    }
}

/// The word for the rank that is counted last, in [`Fatal::doom`].
const LAST: &str = "last";

/// Role of a process.
pub(crate) struct Told {
    pub(crate) case: String,
    pub(crate) rank: usize,
    store: String,
}

impl Told {
    /// Reads the role of this process, which [`start`] has put into the environment.
    pub(crate) fn hear() -> Self {
        let told = |name| env::var(name).expect("a test starts this process");
        let rank = told("SYMM_MEM_TEST_RANK").parse().unwrap();
        Self { case: told("SYMM_MEM_TEST_CASE"), rank, store: told("SYMM_MEM_TEST_STORE") }
    }

    /// The job's store.
    pub(crate) fn store(&self) -> TcpStore {
        TcpStore::connect(&self.store, far()).unwrap()
    }

    /// The context of this rank's device on an embedded machine.
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

/// Starts the test `body` of this binary as a rank; sockets lie in `folder`.
pub(crate) fn start(body: &str, case: &str, rank: usize, store: &TcpStore, folder: &Path) -> Child {
    test_command(body)
        .unwrap()
        .env("SYMM_MEM_TEST_CASE", case)
        .env("SYMM_MEM_TEST_RANK", rank.to_string())
        .env("SYMM_MEM_TEST_STORE", store.address())
        .env("XDG_RUNTIME_DIR", folder)
        .spawn()
        .unwrap()
}

/// End of a rank's process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Well,
    /// It ended by itself with an error: one of its checks failed.
    Failed,
    /// At the call at which it was to be killed.
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

/// Runs a case on `ranks` processes, and then one more whose case is "next". Returns how each rank ended. Checks that
/// no file is left.
pub(crate) fn run(body: &str, case: &str, ranks: usize) -> Vec<End> {
    let folder = tempfile::tempdir().unwrap();
    let store = TcpStore::host(0).unwrap();
    let mut ranks: Vec<Child> =
        (0..ranks).map(|rank| start(body, case, rank, &store, folder.path())).collect();
    let ended = ranks.iter_mut().map(|rank| rank.wait().unwrap().into()).collect();
    // Survivors that noticed the death have removed the dead rank's files; else the next process does.
    assert!(start(body, "next", 0, &store, folder.path()).wait().unwrap().success());
    let left: Vec<_> = fs::read_dir(folder.path()).unwrap().flatten().map(|entry| entry.path()).collect();
    assert!(left.is_empty(), "{case}: {left:?} is left");
    ended
}

/// The number of cases that run at a time.
const AT_A_TIME: usize = 8;

/// Runs the cases, several at a time since they mostly wait, until none is left or `check` returns false. `check`
/// gets the ends of the ranks.
pub(crate) fn run_all(
    body: &str,
    cases: impl Iterator<Item = String> + Send,
    ranks: usize,
    check: impl Fn(&str, Vec<End>) -> bool + Sync,
) {
    let cases = Mutex::new(cases.fuse());
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..AT_A_TIME {
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

/// Runs each of the cases, and checks that the victim is killed, and no other rank.
pub(crate) fn kill_each(body: &str, cases: &[String], ranks: usize, victim: usize) {
    run_all(body, cases.iter().cloned(), ranks, |case, ended| {
        for (rank, end) in ended.into_iter().enumerate() {
            let expected = if rank == victim { End::Killed } else { End::Well };
            assert_eq!(end, expected, "rank {rank} of {case}");
        }
        true
    });
}

/// Kills the victim at each store call of `deed`, with the victim counted last in every decision round, until it
/// survives: then there are no more calls.
pub(crate) fn kill_until_it_survives(body: &str, deed: &str, ranks: usize, victim: usize) {
    // Two decision rounds with five calls each: post, count, two reads, and a proposal.
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

/// Runs a case on `ranks` processes, next to a stranger process of the same user; another user could not connect. It
/// connects to every socket, and sends invalid messages. All ranks must succeed.
pub(crate) fn run_disturbed(body: &str, case: &str, ranks: usize) {
    let folder = tempfile::tempdir().unwrap();
    let store = TcpStore::host(0).unwrap();
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                for door in fs::read_dir(folder.path()).unwrap().flatten() {
                    let socket = door.path().join("door");
                    // An invalid message; and files in the sockets' folder must be ignored.
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

/// Number of open file descriptors of this process.
pub(crate) fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}
