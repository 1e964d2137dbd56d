//! The test of the allocator hook: ranks as processes, switched on by the environment or by the builder,
//! below and above the release from which NCCL registers exportable memory alone.

use std::{env, process::Child, time::Duration};

use gpu_sim::{Action, Injection};
use process_group::{
    ProcessGroup,
    group::{GroupError, GroupErrorKind, NotRegistered, Request},
    peers::Loss,
    registration::SegmentRegistrar,
    store::TcpStore,
};
use rustix::process::Signal;

use super::{
    super::{
        common::{far, machine_with},
        processes::{all_succeed, spawn_with},
    },
    LARGE, Memory, allocator_of, gather, numbers,
};

const RANKS: usize = 4;
const VICTIM: usize = 2;
const CASE: &str = "PROCESS_GROUP_TEST_HOOK";

fn start(rank: usize, address: &str, release: &str, variables: &[(&str, &str)]) -> Child {
    let test = concat!(module_path!(), "::one_rank");
    let variables = [&[(CASE, release)], variables].concat();
    spawn_with(test, &variables, rank, RANKS, address)
}

/// The body of a rank, when it is started by one of the tests below.
#[test]
#[ignore = "the body of a process that a test starts"]
fn one_rank() {
    let release = env::var(CASE).expect("a test below starts this process");
    let fate = env::var("PROCESS_GROUP_TEST_FATE").unwrap_or_default();
    let machine = machine_with(RANKS, release.parse().unwrap());
    let rank = machine.this_rank();
    let device = rank.rank;
    let is_victim = device == VICTIM;
    let (allocator, id, stream) = allocator_of(&rank, Memory::Exportable);
    let registrar = SegmentRegistrar::attach(&allocator).unwrap();
    let early = allocator.allocate(LARGE, id).unwrap();
    let die = || machine.world.faults().inject(Injection::new("ncclCommRegister", Action::Kill)).unwrap();
    if is_victim && fate == "dies making" {
        die();
    }
    let builder = ProcessGroup::builder().context(&rank.context).nccl(&machine.nccl);
    let builder = if fate == "told" { builder.registration(true) } else { builder };
    let built = builder.timeout(Duration::from_secs(60)).build();
    let is_lost = |error: &GroupError| {
        matches!(error.kind(), GroupErrorKind::Lost { rank: VICTIM, loss: Loss::Died, .. })
    };
    if fate == "dies making" {
        let error = built.unwrap_err();
        assert!(is_lost(&error), "{error}");
        return;
    }
    let world = built.unwrap();
    if fate == "dies growing" {
        assert_eq!(gather(&world, &allocator, id, &stream), numbers(RANKS));
        world.barrier(far()).unwrap();
        if is_victim {
            die();
            let _grown = allocator.allocate(4 * LARGE, id);
            unreachable!("it dies in the registration of what comes");
        }
        let error = world.barrier(far()).unwrap_err();
        assert!(is_lost(&error), "{error}");
        return;
    }
    let halves = Request::Color { color: Some(device as u32 / 2), key: 0 };
    let half = world.split("half", &halves).unwrap().unwrap();
    assert_eq!(gather(&world, &allocator, id, &stream), numbers(RANKS));
    assert_eq!(gather(&half, &allocator, id, &stream), numbers(2));
    let grown = allocator.allocate(4 * LARGE, id).unwrap();
    let counts = registrar.counts();
    if fate == "forbidden" {
        let setting = "NCCL_LOCAL_REGISTER=0";
        assert_eq!(world.registration(), Err(NotRegistered::Environment { rank: VICTIM, setting }));
        // The other half is unaffected: it agrees separately.
        assert_eq!(half.registration().is_ok(), device / 2 != VICTIM / 2);
        assert_eq!(counts.registrations > 0, half.registration().is_ok(), "{counts:?}");
    } else {
        world.registration().unwrap();
        half.registration().unwrap();
        for (group, report) in [(&world, world.registration_report()), (&half, half.registration_report())] {
            let [gathered] = &report.operations[..] else { panic!("{report}") };
            assert_eq!(
                (gathered.operation, gathered.registered),
                ("all_gather", 2),
                "{}: {report}",
                group.name()
            );
            assert!(gathered.unregistered.is_empty(), "{report}");
        }
        // The same counts as NCCL's: every segment with both communicators. A release below 2.24 takes the
        // same memory.
        assert_eq!(counts.registrations, 2 * counts.segments, "{counts:?}");
        assert_eq!(machine.world.calls("ncclCommRegister"), counts.registered);
        assert!(counts.segments >= 3, "{counts:?}");
    }
    drop(grown);
    half.destroy(far()).unwrap();
    world.destroy(far()).unwrap();
    assert_eq!(machine.world.calls("ncclCommDeregister"), registrar.counts().deregistered);
    assert_eq!(registrar.counts().registrations, 0);
    drop(early);
    registrar.detach().unwrap();
    drop((allocator, stream, rank));
    machine.world.finish().unwrap();
}

fn run(release: &str, variables: &[(&str, &str)]) {
    let store = TcpStore::host(0).unwrap();
    all_succeed((0..RANKS).map(|rank| start(rank, &store.address(), release, variables)).collect());
}

#[test]
fn pytorchs_switch_registers_what_is_gathered() {
    for release in ["22003", "22809"] {
        run(release, &[("NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK", "1")]);
    }
    run("23007", &[("TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK", "true")]);
}

#[test]
fn the_builders_option_registers_what_is_gathered() {
    for release in ["22304", "22907"] {
        run(release, &[("PROCESS_GROUP_TEST_FATE", "told")]);
    }
}

#[test]
fn an_environment_that_forbids_it_on_one_rank_keeps_all_from_it() {
    let store = TcpStore::host(0).unwrap();
    let on = ("NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK", "1");
    let fate = ("PROCESS_GROUP_TEST_FATE", "forbidden");
    let variables = |rank: usize| match rank {
        VICTIM => vec![on, fate, ("NCCL_LOCAL_REGISTER", "0")],
        _ => vec![on, fate],
    };
    let start = |rank| start(rank, &store.address(), "22809", &variables(rank));
    all_succeed((0..RANKS).map(start).collect());
}

#[test]
fn a_rank_that_dies_while_it_registers_is_named_to_the_others() {
    use std::os::unix::process::ExitStatusExt as _;
    for fate in ["dies making", "dies growing"] {
        let store = TcpStore::host(0).unwrap();
        let variables = [("NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK", "1"), ("PROCESS_GROUP_TEST_FATE", fate)];
        let ranks = (0..RANKS).map(|rank| start(rank, &store.address(), "22809", &variables));
        let ended: Vec<_> =
            ranks.collect::<Vec<_>>().into_iter().map(|mut rank| rank.wait().unwrap()).collect();
        for (rank, status) in ended.iter().enumerate() {
            if rank == VICTIM {
                assert_eq!(status.signal(), Some(Signal::KILL.as_raw()), "{fate}: {ended:?}");
            } else {
                assert!(status.success(), "{fate}: {ended:?}");
            }
        }
    }
}
