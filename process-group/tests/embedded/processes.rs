//! Ranks as processes: each with a machine of its own, joined by a TCP store and by NCCL's bootstrap.

use std::{
    collections::BTreeSet,
    env,
    process::{Child, Command},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use process_group::{
    ProcessGroup,
    comm::{CommError, DataType::F32, ReduceOp, ShrinkMode, WindowRequest, WindowsUnsupported},
    group::{Buffer, GroupError, Request},
    store::{Store, TcpStore},
};

use super::common::{far, machine_with, values};

const RANKS: usize = 8;

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

/// Starts `test`, by its path with the crate, as one of `ranks` ranks that find their store at `address`, with a
/// variable that tells it what to do; the other variables are a launcher's.
pub(super) fn spawn(test: &str, case: (&str, &str), rank: usize, ranks: usize, address: &str) -> Child {
    spawn_with(test, &[case], rank, ranks, address)
}

/// The same, with several variables.
pub(crate) fn spawn_with(
    test: &str,
    variables: &[(&str, &str)],
    rank: usize,
    ranks: usize,
    address: &str,
) -> Child {
    let port = address.rsplit(':').next().unwrap();
    role_command(test)
        .env("RANK", rank.to_string())
        .env("WORLD_SIZE", ranks.to_string())
        .env("LOCAL_RANK", rank.to_string())
        .env("MASTER_ADDR", "127.0.0.1")
        .env("MASTER_PORT", port)
        .env("TORCHELASTIC_USE_AGENT_STORE", "True")
        .envs(variables.iter().copied())
        .spawn()
        .unwrap()
}

/// Starts a rank of the tests below.
fn start(rank: usize, address: &str, case: &str) -> Child {
    spawn(concat!(module_path!(), "::one_rank"), ("PROCESS_GROUP_TEST_RANK", case), rank, RANKS, address)
}

/// What the release has not is refused, on every rank alike, and the group goes on without.
fn every_gate(world: &ProcessGroup) {
    let communicator = world.communicator();
    for missing in [
        world.revoke(far()).err(),
        communicator.prepare_one_sided(far()).err().map(GroupError::from),
        communicator.memory_statistics(far()).err().map(GroupError::from),
    ] {
        let missing = missing.unwrap();
        assert!(matches!(missing, GroupError::Comm(CommError::Missing(_))), "{missing}");
    }
    assert!(matches!(world.windows_supported(), Err(WindowsUnsupported::Release(_))));
    // By other means: over the store.
    let rest = (world.rank() != 0).then(|| world.shrink(&[0], ShrinkMode::Orderly).unwrap());
    world.barrier(far()).unwrap();
    if let Some(rest) = rest {
        assert_eq!(rest.size(), RANKS - 1);
        rest.destroy(far()).unwrap();
    }
}

/// The body of a rank, when it is started by one of the tests below.
#[test]
#[ignore = "the body of a process that a test starts"]
fn one_rank() {
    let case = env::var("PROCESS_GROUP_TEST_RANK").expect("a test below starts this process");
    let machine = machine_with(RANKS, if case == "old" { 21602 } else { 22809 });
    let rank = machine.this_rank();
    let me = rank.rank;
    let builder = ProcessGroup::builder().context(&rank.context).nccl(&machine.nccl);
    if case == "absent" {
        // Those who come are there before the deadline runs: processes start when they may.
        let port = env::var("MASTER_PORT").unwrap();
        let store = TcpStore::connect(&format!("127.0.0.1:{port}"), far()).unwrap();
        store.set(&format!("up/{me}"), b"").unwrap();
        let up: Vec<_> = (0..RANKS - 1).map(|rank| format!("up/{rank}")).collect();
        store.wait(&up.iter().map(String::as_str).collect::<Vec<_>>(), far()).unwrap();
        let error = builder.timeout(Duration::from_secs(4)).build().unwrap_err();
        assert!(matches!(&error, GroupError::Absent { ranks, .. } if *ranks == [RANKS - 1]), "{error}");
        return;
    }
    let world = builder.timeout(Duration::from_secs(60)).build().unwrap();
    assert_eq!(world.rank(), me);
    let processes: std::collections::HashSet<_> =
        world.members().iter().map(|member| member.process).collect();
    assert_eq!(processes.len(), RANKS);
    if case == "old" {
        every_gate(&world);
    }
    let pair = world.split("tp", &Request::Color { color: Some(me as u32 / 2), key: 0 }).unwrap().unwrap();
    let segment = super::window::segment(&rank);
    let stream = rank.stream();
    for group in [&world, &pair] {
        let windows = unsafe {
            group
                .communicator()
                .register_windows(&[WindowRequest::symmetric(segment.ptr(), segment.bytes())], far())
        };
        assert_eq!(windows.unwrap()[0].window().is_some(), case == "all");
        let memory = rank.memory(&[me as f32; 1000]);
        let buffer = Buffer::new(memory.ptr(), 1000, F32);
        let work = unsafe { group.all_reduce(buffer, buffer, ReduceOp::Sum, &stream) }.unwrap();
        work.wait_timeout(far()).unwrap();
        let sum: usize = group.global_ranks().iter().sum();
        assert_eq!(values(&memory), [sum as f32; 1000]);
    }
    pair.destroy(far()).unwrap();
    world.destroy(far()).unwrap();
    drop((stream, segment, rank));
    machine.world.finish().unwrap();
}

pub(crate) fn all_succeed(ranks: Vec<Child>) {
    // Every one is waited for, so that none outlives the test.
    let ended: Vec<_> = ranks.into_iter().map(|mut rank| rank.wait().unwrap()).collect();
    assert!(ended.iter().all(|status| status.success()), "{ended:?}");
}

#[test]
fn ranks_are_processes() {
    let store = TcpStore::host(0).unwrap();
    all_succeed((0..RANKS).map(|rank| start(rank, &store.address(), "all")).collect());
}

#[test]
fn processes_with_an_old_release_go_on_without_what_it_lacks() {
    let store = TcpStore::host(0).unwrap();
    all_succeed((0..RANKS).map(|rank| start(rank, &store.address(), "old")).collect());
}

#[test]
fn an_absent_process_is_named() {
    let store = TcpStore::host(0).unwrap();
    all_succeed((0..RANKS - 1).map(|rank| start(rank, &store.address(), "absent")).collect());
}
