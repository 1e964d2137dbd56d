//! Ranks that die or are stopped. The others notice that within moments on any host, and go on without them.

use std::{env, process::Child, sync::mpsc, time::Duration};

use process_group::{
    ProcessGroup,
    comm::{DataType::F32, ReduceOp},
    group::{Buffer, GroupError, GroupErrorKind, Request, Witnesses},
    peers::Loss,
    store::TcpStore,
};
use rustix::process::{Pid, Signal, getpid, kill_process};

use super::common::{faithful, far, values};
use super::processes::{all_succeed, spawn};

const RANKS: usize = 4;
const VICTIM: usize = 3;

fn start(rank: usize, address: &str, fate: &str) -> Child {
    spawn(concat!(module_path!(), "::one_rank"), ("PROCESS_GROUP_TEST_LOST", fate), rank, RANKS, address)
}

/// The body of a rank, when it is started by one of the tests below.
#[test]
#[ignore = "the body of a process that a test starts"]
fn one_rank() {
    let fate = env::var("PROCESS_GROUP_TEST_LOST").expect("a test below starts this process");
    let machine = faithful(RANKS, 22809);
    let device: usize = env::var("LOCAL_RANK").unwrap().parse().unwrap();
    let context = machine.context(device);
    let builder = || {
        let builder = ProcessGroup::builder().context(&context).nccl(&machine.nccl);
        let (witnesses, heartbeat) =
            if fate.ends_with("apart") { (Witnesses::Store, 1000) } else { (Witnesses::Kernel, 500) };
        let builder = builder.timeout(Duration::from_secs(60)).witnesses(witnesses);
        builder.heartbeat(Duration::from_millis(heartbeat))
    };
    let (told, ends) = mpsc::channel();
    let world = builder().on_end(move |error| told.send(error).unwrap()).build().unwrap();
    let me = world.rank();
    let pair = world.split("pair", &Request::Color { color: Some(me as u32 / 2), key: 0 }).unwrap().unwrap();
    let stream = cuda_driver::Stream::new(&context, cuda_driver::StreamFlags::NON_BLOCKING).unwrap();
    let memory = cuda_driver::memory::DeviceMemory::new(&context, 4000).unwrap();
    let buffer = Buffer::new(memory.ptr(), 1000, F32);
    let all_reduce = |group: &ProcessGroup| {
        memory.copy_from_host(0, &[me as f32; 1000]).unwrap();
        // SAFETY: the memory holds 1000 elements and outlives the work.
        unsafe { group.raw().all_reduce(buffer, buffer, ReduceOp::Sum, &stream) }
            .and_then(|work| work.wait_until(far()))
    };
    all_reduce(&world).unwrap();
    world.barrier(far()).unwrap();
    if me == VICTIM {
        let signal = if fate.starts_with("dies") { Signal::KILL } else { Signal::STOP };
        kill_process(getpid(), signal).unwrap();
        // Another thread of the process may be stopped first.
        std::thread::sleep(Duration::from_secs(600));
    }
    let error = match me {
        // In a collective, in a meeting, and in neither.
        0 => all_reduce(&world).unwrap_err(),
        1 => world.barrier(far()).unwrap_err(),
        _ => loop {
            std::thread::sleep(Duration::from_millis(5));
            let begun = unsafe { world.raw().all_reduce(buffer, buffer, ReduceOp::Sum, &stream) };
            if let Err(error) = begun {
                break error;
            }
        },
    };
    let is_right = |error: &GroupError| match error.kind() {
        GroupErrorKind::Lost { rank: VICTIM, loss: Loss::Died, .. } => fate == "dies",
        // The store does not report deaths.
        GroupErrorKind::Lost { rank: VICTIM, loss: Loss::Silent(_), .. } => fate != "dies",
        _ => false,
    };
    assert!(is_right(&error), "rank {me}: {error}");
    let again = world.split("again", &Request::Color { color: Some(0), key: 0 }).unwrap_err();
    assert!(is_right(&again), "rank {me}: {again}");
    // A group without the lost rank is unaffected, and its members can make a new one.
    if me < 2 {
        all_reduce(&pair).unwrap();
        assert_eq!(values(&memory), [1.0; 1000]);
        pair.destroy(far()).unwrap();
    } else {
        let error = all_reduce(&pair).unwrap_err();
        assert!(is_right(&error), "rank {me}: {error}");
        drop(pair);
    }
    world.abort(far()).unwrap();
    // The world has ended, and so has the pair with the lost rank.
    let ends: Vec<_> = ends.into_iter().collect();
    assert_eq!(ends.len(), if me < 2 { 1 } else { 2 }, "rank {me}: {ends:?}");
    assert!(ends.iter().all(is_right), "rank {me}: {ends:?}");
    let rest = builder().epoch(1).world_size(RANKS - 1).build().unwrap();
    all_reduce(&rest).unwrap();
    assert_eq!(values(&memory), [3.0; 1000]);
    rest.destroy(far()).unwrap();
}

/// Runs the ranks. The survivors succeed, and the victim is then killed if it still runs.
fn run(fate: &str) {
    let store = TcpStore::host(0).unwrap();
    let mut ranks: Vec<_> = (0..RANKS).map(|rank| start(rank, &store.address(), fate)).collect();
    let mut victim = ranks.pop().unwrap();
    all_succeed(ranks);
    let pid = Pid::from_child(&victim);
    // Fails when it has died already.
    let _ = kill_process(pid, Signal::KILL);
    assert!(!victim.wait().unwrap().success());
}

#[test]
fn a_rank_that_dies_is_named_wherever_the_others_are() {
    run("dies");
}

#[test]
fn a_rank_that_is_stopped_is_named_too() {
    run("stops");
}

#[test]
fn a_rank_of_another_host_that_dies_is_named() {
    run("dies apart");
}

#[test]
fn a_rank_of_another_host_that_is_stopped_is_named() {
    run("stops apart");
}
