//! A rank of Rust and one of PyTorch in one communicator, on two GPUs of this machine. Needs a Python whose
//! torch sees them (the variable `PYTHON` names it), and reports "skipped" without one.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "one promise for all: buffers are as long as said, and each is waited for before it is freed"
)]

use std::{
    env,
    process::{Child, Command},
    thread,
    time::{Duration, Instant},
};

use cuda_driver::{Stream, StreamFlags, memory::DeviceMemory};
use gpu_sim::process::test_command;
use process_group::{
    ProcessGroup,
    comm::{DataType::F32, ReduceOp},
    group::Buffer,
    store::{Deadline, Store, TcpStore},
};

use super::{ports::reserved_port, python::python};

const SCRIPT: &str = include_str!("hardware_torch.py");
/// The variable that selects the behaviour of a started rank: if messages are exchanged too.
const CASE: &str = "PROCESS_GROUP_TEST_TORCH";
/// The number of elements of every rank in each operation: a multiple of the number of ranks, as in the script.
const ELEMENTS: usize = 1 << 16;

/// Returns PyTorch's release and the file of its NCCL, if it sees two GPUs.
fn torch_on_gpus() -> Option<(String, String)> {
    let Ok(output) = python().args(["-c", SCRIPT, "where"]).output() else {
        println!("skipped: no Python");
        return None;
    };
    let text = String::from_utf8_lossy(&output.stdout);
    match text.trim().split_once(' ') {
        Some((version, nccl)) if output.status.success() => Some((version.into(), nccl.into())),
        _ => {
            let why = String::from_utf8_lossy(&output.stderr);
            println!("skipped: {}", why.lines().last().unwrap_or("Python does not say why"));
            None
        }
    }
}

/// The host of the ranks' store.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Host {
    /// This test's process, as with `torchrun`.
    Agent,
    /// Rank 0.
    First,
}

fn start(command: &mut Command, rank: usize, port: u16, host: Host) -> Child {
    command
        .env("RANK", rank.to_string())
        .env("WORLD_SIZE", "2")
        .env("LOCAL_RANK", rank.to_string())
        .env("MASTER_ADDR", "127.0.0.1")
        .env("MASTER_PORT", port.to_string());
    if host == Host::Agent {
        command.env("TORCHELASTIC_USE_AGENT_STORE", "True").env("TORCHELASTIC_RESTART_COUNT", "0");
    }
    command.spawn().unwrap()
}

/// Waits for both ranks, each of which has its own deadlines. Ends the other when one has failed. Returns
/// true if both succeeded.
fn end(ranks: &mut [Child]) -> bool {
    let limit = Instant::now() + Duration::from_secs(150);
    loop {
        let ended: Vec<_> = ranks.iter_mut().map(|rank| rank.try_wait().unwrap()).collect();
        if ended.iter().all(|status| status.is_some_and(|status| status.success())) {
            return true;
        }
        let failed = ended.iter().flatten().any(|status| !status.success());
        if failed || Instant::now() > limit {
            for rank in ranks {
                let _ = rank.kill();
                let _ = rank.wait();
            }
            return false;
        }
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn ranks_of_rust_and_python_work_together() {
    let Some((version, nccl)) = torch_on_gpus() else { return };
    println!("torch {version}, NCCL at {nccl}");
    let mut failed = Vec::new();
    for host in [Host::Agent, Host::First] {
        for eager in [true, false] {
            for theirs in [0, 1] {
                let case = format!("store {host:?}, eager {eager}, Python is rank {theirs}");
                let (_reserved, port) = reserved_port();
                let agent = (host == Host::Agent).then(|| TcpStore::host(0).unwrap());
                let port = agent.as_ref().map_or(port, |store| {
                    store.address().rsplit(':').next().and_then(|port| port.parse().ok()).unwrap()
                });
                let how = if eager { "eager" } else { "lazy" };
                let began = Instant::now();
                let mut ranks = [
                    start(python().args(["-c", SCRIPT, how]), theirs, port, host),
                    start(
                        test_command(concat!(module_path!(), "::one_rank"))
                            .unwrap()
                            .env(CASE, how)
                            .env("NCCL_SYS_LIBRARY", &nccl),
                        1 - theirs,
                        port,
                        host,
                    ),
                ];
                let well = end(&mut ranks);
                println!("{case}: {} in {:.1?}", if well { "right" } else { "WRONG" }, began.elapsed());
                for key in agent.iter().flat_map(|store| store.list_keys().unwrap()) {
                    let value = agent.as_ref().unwrap().get(&key, Deadline::now()).unwrap();
                    println!("  {key}: {} bytes", value.len());
                }
                if !well {
                    failed.push(case);
                }
            }
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

/// The rank of Rust, when it is started by the test above. It makes the same calls as the script.
#[test]
#[ignore = "the body of a process that a test starts"]
fn one_rank() {
    let how = env::var(CASE).expect("the test above starts this process");
    let far = || Deadline::after(Duration::from_secs(60));
    let world = ProcessGroup::builder().timeout(Duration::from_secs(60)).join_torch().unwrap();
    let (rank, ranks) = (world.rank(), world.size());
    let context = world.context().clone();
    let stream = Stream::new(&context, StreamFlags::NON_BLOCKING).unwrap();
    let memory = |value: f32, shares: usize| {
        let memory = DeviceMemory::new(&context, ELEMENTS * shares * 4).unwrap();
        memory.copy_from_host(0, &vec![value; ELEMENTS * shares]).unwrap();
        memory
    };
    let all = |memory: &DeviceMemory| Buffer::new(memory.ptr(), memory.bytes() / 4, F32);
    let shares = |memory: &DeviceMemory| {
        let mut values = vec![0f32; memory.bytes() / 4];
        memory.copy_to_host(0, &mut values).unwrap();
        let of = |share: &[f32]| share.iter().all(|value| *value == share[0]).then_some(share[0]);
        values.chunks(ELEMENTS).map(of).map(Option::unwrap).collect::<Vec<_>>()
    };
    let me = rank as f32;
    let (one, each) = (memory(me, 1), memory(me, ranks));

    let work = unsafe { world.raw().all_reduce(all(&one), all(&one), ReduceOp::Sum, &stream) }.unwrap();
    work.wait_until(far()).unwrap();
    let sum = (0..ranks).sum::<usize>() as f32;
    assert_eq!(shares(&one), [sum]);

    one.copy_from_host(0, &vec![me; ELEMENTS]).unwrap();
    unsafe { world.raw().all_gather(all(&one), all(&each), &stream) }.unwrap().wait_until(far()).unwrap();
    assert_eq!(shares(&each), (0..ranks).map(|rank| rank as f32).collect::<Vec<_>>());

    let reduced = unsafe { world.raw().reduce_scatter(all(&each), all(&one), ReduceOp::Sum, &stream) };
    reduced.unwrap().wait_until(far()).unwrap();
    assert_eq!(shares(&one), [me * ranks as f32]);

    for root in 0..ranks {
        one.copy_from_host(0, &vec![me; ELEMENTS]).unwrap();
        unsafe { world.raw().broadcast(all(&one), root, &stream) }.unwrap().wait_until(far()).unwrap();
        assert_eq!(shares(&one), [root as f32]);
    }

    let other = memory(-1.0, 1);
    one.copy_from_host(0, &vec![me; ELEMENTS]).unwrap();
    let exchanged = world.batch(&stream, |batch| unsafe {
        batch.send(all(&one), 1 - rank)?;
        batch.recv(all(&other), 1 - rank)
    });
    exchanged.unwrap().wait_until(far()).unwrap();
    assert_eq!(shares(&other), [1.0 - me]);

    println!("rank {rank}, of Rust ({how}): all is right; {:?}", world.communicator());
    world.destroy(far()).unwrap();
}
