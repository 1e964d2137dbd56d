//! Ranks that die, are stopped or do not come while communicators are made, used and ended. The others know
//! at once which rank it is, and go on without it.

use std::{env, process::Child, time::Duration};

use cuda_driver::{Stream, StreamFlags, memory::DeviceMemory};
use gpu_sim::{Action, Injection};
use process_group::{
    ProcessGroup,
    comm::{CommError, DataType::F32, ReduceOp, WindowRequest, wait_for_dropped},
    group::{Buffer, GroupError, GroupErrorKind, Request},
    peers::Loss,
    store::TcpStore,
};
use rustix::process::{Pid, Signal, kill_process};
use rusty_fork::rusty_fork_test;

use super::common::{Machine, Rank, faithful, far, values};
use super::processes::{all_succeed, spawn};

const RANKS: usize = 3;

/// The victim's end: in which function of NCCL, on which rank and release, and if it dies or is stopped.
#[derive(Clone, Copy)]
struct Fate {
    function: &'static str,
    victim: usize,
    release: i32,
    dies: bool,
}

const fn dies(function: &'static str, victim: usize) -> Fate {
    Fate { function, victim, release: 22809, dies: true }
}

const FATES: [Fate; 11] = [
    dies("ncclGetUniqueId", 0),
    dies("ncclCommInitRankConfig", 1),
    dies("ncclCommInitRankConfig", 0),
    dies("ncclCommSplit", 1),
    dies("ncclCommWindowRegister", 2),
    dies("ncclAllReduce", 1),
    dies("ncclCommFinalize", 1),
    Fate { dies: false, ..dies("ncclCommInitRankConfig", 2) },
    Fate { dies: false, ..dies("ncclCommSplit", 2) },
    // No mechanism ends those calls. No rank waits for them, and the communicator is leaked.
    Fate { release: 21805, ..dies("ncclCommInitRankConfig", 1) },
    Fate { release: 21602, ..dies("ncclCommInitRankConfig", 2) },
];

fn start(rank: usize, address: &str, fate: usize) -> Child {
    let fate = fate.to_string();
    spawn(concat!(module_path!(), "::one_rank"), ("PROCESS_GROUP_TEST_MAKING", &fate), rank, RANKS, address)
}

/// All steps of a job. Ends with the first error.
fn whole_life(machine: &Machine, rank: &Rank, world: ProcessGroup) -> Result<(), GroupError> {
    let stream = rank.stream();
    let pair = world.split("all", &Request::Color { color: Some(0), key: 0 })?;
    if nccl_sys::version_code(machine.nccl.release()) >= 22700 {
        let segment = super::window::segment(rank);
        let requests = [WindowRequest::symmetric(segment.ptr(), segment.bytes())];
        let made = unsafe { world.communicator().register_windows(&requests, far()) };
        if let Err(error) = made {
            // The error comes from the layer below; the group knows its cause.
            world.check()?;
            return Err(error.into());
        }
    }
    let memory = rank.memory(&[1.0; 1000]);
    let buffer = Buffer::new(memory.ptr(), 1000, F32);
    unsafe { world.raw().all_reduce(buffer, buffer, ReduceOp::Sum, &stream) }?.wait_until(far())?;
    world.barrier(far())?;
    if let Some(pair) = pair {
        pair.destroy(far())?;
    }
    // A rank's end does not wait for the others'.
    world.barrier(far())?;
    world.destroy(far())
}

/// The body of a rank, when it is started by one of the tests below.
#[test]
#[ignore = "the body of a process that a test starts"]
fn one_rank() {
    let fate = env::var("PROCESS_GROUP_TEST_MAKING").expect("a test below starts this process");
    let Fate { function, victim, release, dies } = FATES[fate.parse::<usize>().unwrap()];
    process_group::comm::set_drop_error_hook(|_| ());
    let machine = faithful(RANKS, release);
    let rank = machine.this_rank();
    let me = rank.rank;
    if me == victim {
        let action = if dies { Action::Kill } else { Action::Stop };
        machine.world.faults().inject(Injection::new(function, action)).unwrap();
    }
    let builder = || {
        let builder = ProcessGroup::builder().context(&rank.context).nccl(&machine.nccl);
        builder.timeout(Duration::from_secs(60)).heartbeat(Duration::from_millis(500))
    };
    let error = builder().build().and_then(|world| whole_life(&machine, &rank, world)).unwrap_err();
    let is_right = match error.kind() {
        GroupErrorKind::Lost { rank, loss: Loss::Died, .. } => dies && *rank == victim,
        GroupErrorKind::Lost { rank, loss: Loss::Silent(_), .. } => !dies && *rank == victim,
        _ => false,
    };
    assert!(is_right, "rank {me}, {function}: {error}");
    let place = if me > victim { me - 1 } else { me };
    let rest = builder().epoch(1).rank(place).world_size(RANKS - 1).build().unwrap();
    let stream = Stream::new(&rank.context, StreamFlags::NON_BLOCKING).unwrap();
    let memory = DeviceMemory::new(&rank.context, 4000).unwrap();
    memory.copy_from_host(0, &[me as f32; 1000]).unwrap();
    let buffer = Buffer::new(memory.ptr(), 1000, F32);
    let work = unsafe { rest.raw().all_reduce(buffer, buffer, ReduceOp::Sum, &stream) }.unwrap();
    work.wait_until(far()).unwrap();
    assert_eq!(values(&memory), [(3 - victim) as f32; 1000]);
    rest.destroy(far()).unwrap();
    if release >= 22200 {
        assert!(wait_for_dropped(far()));
    }
}

/// Runs the ranks. The survivors succeed, and the victim is then killed if it still runs.
fn run(fate: usize) {
    let store = TcpStore::host(0).unwrap();
    let mut ranks: Vec<_> = (0..RANKS).map(|rank| start(rank, &store.address(), fate)).collect();
    let mut victim = ranks.remove(FATES[fate].victim);
    all_succeed(ranks);
    // Fails when it has died already.
    let _ = kill_process(Pid::from_child(&victim), Signal::KILL);
    assert!(!victim.wait().unwrap().success());
}

#[test]
fn a_rank_that_dies_in_any_phase_is_named_at_once() {
    (0..FATES.len()).filter(|fate| FATES[*fate].dies && FATES[*fate].release > 22200).for_each(run);
}

#[test]
fn a_rank_that_is_stopped_in_the_making_is_named() {
    (0..FATES.len()).filter(|fate| !FATES[*fate].dies).for_each(run);
}

#[test]
fn releases_that_do_not_let_go_of_a_call_keep_nobody_waiting() {
    (0..FATES.len()).filter(|fate| FATES[*fate].release < 22200).for_each(run);
}

rusty_fork_test! {
    #[test]
    fn who_fails_in_the_making_is_named_at_once() {
        let machine = super::common::machine(2);
        process_group::comm::set_drop_error_hook(|_| ());
        machine.world.faults().inject(Injection::new("ncclCommInitRankConfig", Action::Fail(2))).unwrap();
        let errors = machine.ranks(2, |rank| {
            rank.builder().build().unwrap_err()
        });
        let failed = errors.iter().position(|error| matches!(error.kind(), GroupErrorKind::Comm(CommError::Nccl { .. })));
        let failed = failed.unwrap_or_else(|| panic!("{errors:?}"));
        assert!(
            matches!(errors[1 - failed].kind(), GroupErrorKind::Unmade { rank, .. } if *rank == failed),
            "{}", errors[1 - failed]
        );
        assert!(wait_for_dropped(far()));
        let Machine { world, driver, nccl, store } = machine;
        drop((driver, nccl, store));
        world.finish().unwrap();
    }
}
