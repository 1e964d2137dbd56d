//! Ranks as processes: each with its own machine, joined by a TCP store and by NCCL's bootstrap.

use std::{env, process::Child, time::Duration};

use gpu_sim::process::test_command;
use process_group::{
    ProcessGroup,
    comm::{CommError, DataType::F32, ReduceOp, ShrinkMode, WindowRequest, WindowsUnsupported},
    group::{Buffer, GroupError, GroupErrorKind, Request},
    store::{Store, TcpStore},
};

use super::common::{far, machine_with, values};

const RANKS: usize = 8;

/// Starts `test`, given by its path with the crate, as one of `ranks` ranks with their store at `address`.
/// `case` is a variable that selects the rank's behaviour. The other variables are those of a launcher.
pub(super) fn spawn(test: &str, case: (&str, &str), rank: usize, ranks: usize, address: &str) -> Child {
    spawn_with(test, &[case], rank, ranks, address)
}

/// Like [`spawn`], with several variables.
pub(crate) fn spawn_with(
    test: &str,
    variables: &[(&str, &str)],
    rank: usize,
    ranks: usize,
    address: &str,
) -> Child {
    let port = address.rsplit(':').next().unwrap();
    test_command(test)
        .unwrap()
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

/// Functions that the release lacks are refused on every rank alike, and the group stays usable.
fn every_gate(world: &ProcessGroup) {
    let communicator = world.communicator();
    for missing in [
        world.revoke(far()).err(),
        communicator.prepare_one_sided(far()).err().map(GroupError::from),
        communicator.memory_statistics(far()).err().map(GroupError::from),
        communicator.suspend(far()).err().map(GroupError::from),
        world.suspend(far()).err(),
        world.resume(far()).err(),
    ] {
        let missing = missing.unwrap();
        assert!(matches!(missing.kind(), GroupErrorKind::Comm(CommError::Missing(_))), "{missing}");
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
        // All that come have arrived before the deadline starts, because processes may start late.
        let port = env::var("MASTER_PORT").unwrap();
        let store = TcpStore::connect(&format!("127.0.0.1:{port}"), far()).unwrap();
        store.set(&format!("up/{me}"), b"").unwrap();
        let up: Vec<_> = (0..RANKS - 1).map(|rank| format!("up/{rank}")).collect();
        store.wait(&up.iter().map(String::as_str).collect::<Vec<_>>(), far()).unwrap();
        let error = builder.timeout(Duration::from_secs(4)).build().unwrap_err();
        assert!(
            matches!(error.kind(), GroupErrorKind::Absent { ranks, .. } if *ranks == [RANKS - 1]),
            "{error}"
        );
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
        let work = unsafe { group.raw().all_reduce(buffer, buffer, ReduceOp::Sum, &stream) }.unwrap();
        work.wait_until(far()).unwrap();
        let sum: usize = group.global_ranks().iter().sum();
        assert_eq!(values(&memory), [sum as f32; 1000]);
    }
    pair.destroy(far()).unwrap();
    world.destroy(far()).unwrap();
    drop((stream, segment, rank));
    machine.world.finish().unwrap();
}

pub(crate) fn all_succeed(ranks: Vec<Child>) {
    // Waits for every one, so that none outlives the test.
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
