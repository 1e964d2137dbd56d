//! Hazards caused by ranks that are processes: pools that are committed in another order, a registration that blocks
//! inside the library, and a rank with another environment or another release.

use std::{
    collections::BTreeMap,
    env,
    error::Error,
    fs,
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use cuda_driver::Driver;
use gpu_sim::{Action, Injection, World};
use process_group::{
    ProcessGroup,
    comm::{Communicator, Config, Nccl, UniqueId, WindowFacts},
    link,
    store::{Store, barrier},
};
use rustix::process::{Pid, Signal, kill_process};
use symm_mem::{
    CommitReport, CommunicatorGroup, GroupId, NoWindows, Refusal, RegistrationState, SymmetricPool,
};

use super::NCCL;
use crate::{
    embedded::job::{self, Rank, commit_key, options, soon},
    processes::{End, Told, far, run, run_all},
};

const RANKS: usize = 4;

/// Name of the test that runs one rank.
const BODY: &str = concat!(module_path!(), "::one_rank");

/// The rank that differs.
const ODD: usize = 1;

const MIB: u64 = 1 << 20;

/// An NCCL that returns success without a window if it cannot map the members' memory.
const ANSWERS_NULL: i32 = 22907;

fn machine(release: i32) -> World {
    World::builder().devices(RANKS).capacity(256 << 20).nccl_release(release).start().unwrap()
}

fn libraries(machine: &World) -> (Driver, Nccl) {
    // SAFETY: the functions are those of the living world, and nothing of it outlives the world.
    let (cuda, nccl) = unsafe {
        (cuda_driver::sys::Api::from_parts(machine.cuda()), nccl_sys::Api::from_parts(machine.nccl()))
    };
    (Driver::new(cuda.unwrap()).unwrap(), Nccl::new(nccl.unwrap()))
}

/// Runs `job` on this process's rank, which has joined the others.
fn joined(told: &Told, release: i32, job: impl FnOnce(&World, Rank)) {
    let machine = machine(release);
    let (driver, nccl) = libraries(&machine);
    let rank = job::join(&driver, &nccl, Arc::new(told.store()), told.rank as u32, RANKS as u32);
    drop((driver, nccl));
    job(&machine, rank);
    process_group::comm::wait_for_dropped(soon());
    machine.finish().unwrap();
}

/// Disables windows in the environment of this process.
fn disable_windows() {
    // SAFETY: nothing else of the process uses the environment now.
    unsafe { env::set_var("NCCL_WIN_ENABLE", "0") };
}

/// The body of a rank; the tests below start it.
#[test]
#[ignore = "the body of a process that a test starts"]
fn one_rank() {
    let told = Told::hear();
    let (what, which) = told.case.split_once(' ').unwrap_or((&told.case, ""));
    match what {
        "pools" => joined(&told, NCCL, |_, rank| cross(rank, &told, which, at_once)),
        "in-turn" => joined(&told, NCCL, |_, rank| cross(rank, &told, which, in_turn)),
        "blocked" => joined(&told, NCCL, |machine, rank| block_a_registration(machine, rank, &told)),
        "shared" => {
            if told.rank == ODD {
                disable_windows();
            }
            joined(&told, NCCL, fall_back);
        }
        "release" => join_with_another_release(&told),
        "alone" | "believed" => commit_with_facts(&told, what, which),
        _ => link::sweep(),
    }
}

/// Checks that all ranks say the same about `what`.
fn all_say(told: &Told, what: &str, said: &str) {
    let store = told.store();
    store.set(&format!("said/{what}/{}", told.rank), said.as_bytes()).unwrap();
    for rank in 0..RANKS {
        let other = store.get(&format!("said/{what}/{rank}"), far()).unwrap();
        assert_eq!(String::from_utf8_lossy(&other), said, "rank {rank} beside rank {}", told.rank);
    }
}

fn outcome(result: &Result<CommitReport, symm_mem::Error>) -> String {
    match result {
        Ok(report) => format!("{} windows", report.new_windows),
        Err(error) => format!("{}: {:?}", error.name(), error.refusal()),
    }
}

/// The results of the commits of two pools, by pool.
type Results = BTreeMap<usize, Result<CommitReport, symm_mem::Error>>;

/// Commits two pools: each rank begins with the pool that its digit of `firsts` gives.
fn cross(rank: Rank, told: &Told, firsts: &str, commits: fn(&Rank, &[SymmetricPool; 2], usize) -> Results) {
    let pools = [rank.pool(), rank.pool()];
    let blocks = pools.each_ref().map(|pool| pool.allocate(MIB).unwrap());
    let first = usize::from(firsts.as_bytes()[told.rank] == b'1');
    let mut results = commits(&rank, &pools, first);
    for (at, result) in &results {
        all_say(told, &format!("pool {at}"), &outcome(result));
    }
    assert!(
        results.values().any(Result::is_err),
        "both pools were registered, in another order on each rank"
    );
    for (at, result) in &mut results {
        if result.is_err() {
            *result = pools[*at].commit(&rank.world, options());
        }
        assert_eq!(outcome(result), "1 windows", "pool {at}");
    }
    // The library compares the ranks' windows.
    blocks.iter().for_each(|block| rank.sum(block, &rank.world));
    drop((blocks, pools));
    rank.leave();
}

/// Two threads commit a pool each. The commit of pool `first` begins first.
fn at_once(rank: &Rank, pools: &[SymmetricPool; 2], first: usize) -> Results {
    let commit = |at: usize| pools[at].commit(&rank.world, options());
    let store = rank.world.job_store();
    let results = thread::scope(|scope| {
        let begun = scope.spawn(|| (first, commit(first)));
        let record = commit_key(&pools[first], rank.world.id(), &format!("records/{}", rank.rank));
        store.wait(&[&record], far()).unwrap();
        // Every pool has a rank that has not come to it, so no commit ends before.
        barrier(&store, "all have begun", rank.rank as usize, RANKS, far()).unwrap();
        BTreeMap::from([(1 - first, commit(1 - first)), begun.join().unwrap()])
    });
    for error in results.values().filter_map(|result| result.as_ref().err()) {
        assert!(error.to_string().contains("another thread commits another pool"), "{error}");
    }
    results
}

/// One thread commits pool `first`, then the other one.
fn in_turn(rank: &Rank, pools: &[SymmetricPool; 2], first: usize) -> Results {
    // The ranks wait for each other for 3/8 of it.
    let options = options().deadline(Duration::from_secs(4));
    let commit = |at: usize| (at, pools[at].commit(&rank.world, options));
    let results = Results::from([first, 1 - first].map(commit));
    for error in results.values().filter_map(|result| result.as_ref().err()) {
        assert!(matches!(error.refusal(), Some(Refusal::SyncTimeout { .. })), "{error}");
    }
    results
}

#[test]
fn pools_that_are_committed_in_another_order_at_once_are_never_mixed_up() {
    let cases = ["0101", "0011", "0110", "1000"].map(|firsts| format!("pools {firsts}"));
    run_all(BODY, cases.into_iter(), RANKS, |case, ended| {
        assert_eq!(ended, [End::Well; RANKS], "{case}");
        true
    });
}

#[test]
fn pools_that_are_committed_in_another_order_one_after_the_other_are_never_mixed_up() {
    let cases = ["0101", "0011", "1000"].map(|firsts| format!("in-turn {firsts}"));
    run_all(BODY, cases.into_iter(), RANKS, |case, ended| {
        assert_eq!(ended, [End::Well; RANKS], "{case}");
        true
    });
}

/// Continues a stopped process when it is dropped.
struct Stopped(Pid);

impl Stopped {
    /// Waits until the process with this id has stopped.
    fn wait(process: &str) -> Self {
        let late = far();
        let state = || {
            let status = fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
            status.rsplit_once(") ").and_then(|(_, state)| state.chars().next())
        };
        while state() != Some('T') {
            assert!(!late.expired(), "rank {ODD} does not come to its registration");
            thread::sleep(Duration::from_millis(5));
        }
        Self(Pid::from_raw(process.parse().unwrap()).unwrap())
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        kill_process(self.0, Signal::CONT).unwrap();
    }
}

/// Rank 0 is blocked inside the library in a commit of one pool, because its peer has stopped there. Meanwhile another
/// thread uses both pools, and commits the other one for another group.
fn block_a_registration(machine: &World, rank: Rank, told: &Told) {
    let pools = [rank.pool(), rank.pool()];
    let blocks = pools.each_ref().map(|pool| pool.allocate(MIB).unwrap());
    let store = told.store();
    let commit = |at: usize, group: &ProcessGroup| pools[at].commit(group, options()).unwrap().new_windows;
    let go_on = || {
        for (pool, block) in pools.iter().zip(&blocks) {
            // A new segment, and a place in the old one.
            drop((pool.allocate(4 * MIB).unwrap(), pool.allocate(4096).unwrap()));
            assert!(pool.lookup(block.ptr(), 4, rank.tp.id()).unwrap().is_some());
        }
        commit(1, &rank.dp)
    };
    if told.rank == ODD {
        machine.faults().inject(Injection::new("ncclCommWindowRegister", Action::Stop)).unwrap();
        store.set("process", std::process::id().to_string().as_bytes()).unwrap();
    }
    if told.rank == 0 {
        let process = String::from_utf8(store.get("process", far()).unwrap()).unwrap();
        thread::scope(|scope| {
            let blocked = scope.spawn(|| commit(0, &rank.tp));
            let stopped = Stopped::wait(&process);
            let late = far();
            while machine.calls("ncclCommWindowRegister") == 0 {
                assert!(!late.expired(), "rank 0 does not come to its registration");
                thread::sleep(Duration::from_millis(5));
            }
            let (done, through) = mpsc::channel();
            scope.spawn(move || done.send(go_on()).unwrap());
            let through = through.recv_timeout(Duration::from_secs(60));
            let is_blocked = !blocked.is_finished();
            drop(stopped);
            assert_eq!((through, is_blocked), (Ok(2), true), "the pools are locked during a registration");
            assert_eq!(blocked.join().unwrap(), 1);
        });
    } else {
        assert_eq!(commit(0, &rank.tp), 1);
        assert_eq!(go_on(), 2);
    }
    // The other thread has allocated a segment meanwhile. It is new for the pair, on both of its ranks.
    assert_eq!(commit(0, &rank.tp), 1);
    rank.sum(&blocks[0], &rank.tp);
    rank.sum(&blocks[1], &rank.dp);
    drop((blocks, pools));
    rank.leave();
}

#[test]
fn a_registration_that_blocks_inside_the_library_locks_no_pool() {
    assert_eq!(run(BODY, "blocked", RANKS), [End::Well; RANKS]);
}

fn reason(report: &CommitReport) -> String {
    match &report.without {
        Some(NoWindows::Unsupported { reason }) => reason.clone(),
        other => panic!("{other:?}"),
    }
}

/// The environment of one rank disables windows: no member of its groups calls the library, and all use plain memory.
fn fall_back(machine: &World, rank: Rank) {
    let (pool, block) = rank.pool_with_bucket();
    let mut windows = 0;
    for group in rank.groups() {
        let report = pool.commit(group, options()).unwrap();
        if group.global_ranks().contains(&ODD) {
            assert_eq!((report.new_segments, report.windows), (1, 0));
            assert_eq!(reason(&report), "NCCL_WIN_ENABLE is 0 on a member");
        } else {
            assert_eq!((report.windows, report.without), (1, None));
            windows += 1;
        }
        rank.sum(&block, group);
        assert_eq!(machine.calls("ncclCommWindowRegister"), windows, "{}", group.name());
    }
    drop((block, pool));
    rank.leave();
}

#[test]
fn windows_that_one_environment_disables_are_used_by_no_member() {
    assert_eq!(run(BODY, "shared", RANKS), [End::Well; RANKS]);
}

/// One rank has loaded another release: no rank joins.
fn join_with_another_release(told: &Told) {
    let machine = machine(if told.rank == ODD { ANSWERS_NULL } else { NCCL });
    let (driver, nccl) = libraries(&machine);
    let context = driver.device(told.rank as u32).unwrap().retain_primary().unwrap();
    let joining = ProcessGroup::builder()
        .rank(told.rank)
        .world_size(RANKS)
        .store(Arc::new(told.store()))
        .context(&context)
        .nccl(&nccl)
        .timeout(Duration::from_secs(60));
    let error = joining.build().unwrap_err();
    let error = error.source().unwrap().to_string();
    assert!(error.contains("rank 1 has NCCL 2.29.7, but rank 0 has NCCL 2.28.9"), "{error}");
    all_say(told, "release", &error);
    assert_eq!(machine.calls("ncclCommInitRankConfig"), 0);
    drop((context, driver, nccl));
    process_group::comm::wait_for_dropped(soon());
    machine.finish().unwrap();
}

#[test]
fn another_release_on_one_rank_is_told_to_all_before_they_join() {
    assert_eq!(run(BODY, "release", RANKS), [End::Well; RANKS]);
}

/// Commits for a communicator that the program has made, with facts that it has given. In the case `alone` each rank
/// takes its own environment. In the case `believed` the facts say that no environment disables windows. That is wrong
/// on rank [`ODD`], or on all ranks.
fn commit_with_facts(told: &Told, what: &str, which: &str) {
    if told.rank == ODD || which == "all" {
        disable_windows();
    }
    let machine = machine(ANSWERS_NULL);
    let (driver, nccl) = libraries(&machine);
    let context = driver.device(told.rank as u32).unwrap().retain_primary().unwrap();
    let store = Arc::new(told.store());
    if told.rank == 0 {
        store.set("id", nccl.unique_id().unwrap().as_bytes()).unwrap();
    }
    let id = UniqueId::from_bytes(store.get("id", far()).unwrap().try_into().unwrap());
    let mut config = Config::new();
    config.window_facts = WindowFacts {
        one_host: Some(true),
        peer_access: Some(true),
        window_enable: (what == "believed").then_some(true),
        ..WindowFacts::default()
    };
    let communicator = Communicator::init(&nccl, &context, &id, told.rank, RANKS, &config, soon()).unwrap();
    let domain = symm_mem::Domain::new(store, 7, told.rank as u32, 0..RANKS as u32).unwrap();
    let pool = SymmetricPool::new(&domain, &context, symm_mem::Geometry::default()).unwrap();
    let block = pool.allocate(MIB).unwrap();
    let id = GroupId { uid: 3, epoch: 0 };
    let group = CommunicatorGroup { id, ranks: (0..RANKS as u32).collect(), communicator: &communicator };
    let result = pool.commit(&group, options().deadline(Duration::from_secs(24)));
    let calls = machine.calls("ncclCommWindowRegister");
    match (what, which) {
        ("alone", _) => {
            let error = result.unwrap_err();
            assert_eq!((error.name(), calls), ("CapabilityMismatch", 0), "{error}");
            assert!(error.to_string().contains("NCCL_WIN_ENABLE is 0 on a member"), "{error}");
            all_say(told, "error", &error.to_string());
        }
        (_, "all") => {
            let report = result.unwrap();
            assert_eq!((report.windows, calls), (0, 1));
            all_say(told, "reason", &reason(&report));
            let found = pool.lookup(block.ptr(), 4, id).unwrap().unwrap();
            assert_eq!(found.state, RegistrationState::Registered);
        }
        _ => {
            // The library of one rank has returned at once, and the others wait for it.
            let error = result.unwrap_err();
            all_say(told, "error", &error.to_string());
            assert_eq!(error.name(), "WindowsUnsupported", "{error}");
            for part in
                ["rank 1 got no windows: NCCL 2.29.7 answered success without a window", "ranks 0, 2, 3"]
            {
                assert!(error.to_string().contains(part), "{part:?} is not in {error}");
            }
            assert_eq!((pool.poison(id).is_some(), calls), (true, 1), "{error}");
            let found = pool.lookup(block.ptr(), 4, id).unwrap().unwrap();
            assert!(!matches!(found.state, RegistrationState::Window { .. }), "{found:?}");
        }
    }
    drop(block);
    drop((pool, domain, communicator, context, driver, nccl));
    process_group::comm::wait_for_dropped(soon());
    machine.finish().unwrap();
}

#[test]
fn an_environment_that_differs_is_told_to_all_before_a_registration() {
    assert_eq!(run(BODY, "alone", RANKS), [End::Well; RANKS]);
}

#[test]
fn success_without_a_window_on_one_rank_leaves_no_rank_with_a_window() {
    assert_eq!(run(BODY, "believed one", RANKS), [End::Well; RANKS]);
}

#[test]
fn success_without_a_window_on_all_ranks_is_a_uniform_fallback() {
    assert_eq!(run(BODY, "believed all", RANKS), [End::Well; RANKS]);
}
