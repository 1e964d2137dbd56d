//! Ranks as processes: the same calls, and the state after the death of one.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Stdio};
use std::time::Duration;

use super::rig::{Id, OK, Rig, run, world};
use gpu_sim::process::test_command;
use nccl_sys::*;
use rusty_fork::rusty_fork_test;

/// Set in the processes of ranks: their role, rank and rank count.
const ROLE: &str = "GPU_SIM_TEST_ROLE";

fn spawn(role: &str, rank: usize, size: usize) -> Child {
    test_command(concat!(module_path!(), "::a_rank"))
        .unwrap()
        .env(ROLE, format!("{role} {rank} {size}"))
        .env_remove("RUSTY_FORK_OCCURS")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Reads the next line of a child that contains `key`; returns the rest of it.
fn hear(child: &mut BufReader<impl std::io::Read>, key: &str) -> String {
    let mut line = String::new();
    loop {
        line.clear();
        assert_ne!(child.read_line(&mut line).unwrap(), 0, "the child ended before it said {key}");
        // The test harness prints on the same lines.
        if let Some(at) = line.find(key) {
            return line[at + key.len()..].trim().to_owned();
        }
    }
}

fn encode(id: Id) -> String {
    id.0.internal.iter().map(|byte| format!("{:02x}", *byte as u8)).collect()
}

fn decode(text: &str) -> Id {
    let mut id = ncclUniqueId { internal: [0; 128] };
    for (i, byte) in id.internal.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap() as _;
    }
    Id(id)
}

/// The body of the ranks' processes.
#[test]
#[ignore = "the body of a process that a test starts"]
fn a_rank() {
    let role = std::env::var(ROLE).expect("a test below starts this process");
    let words: Vec<&str> = role.split(' ').collect();
    let (role, rank, size): (_, usize, usize) =
        (words[0], words[1].parse().unwrap(), words[2].parse().unwrap());
    let world = world(size);
    let rig = Rig::new(&world);
    let id = if rank == 0 {
        let id = rig.unique_id();
        println!("id {}", encode(id));
        id
    } else {
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).unwrap();
        decode(line.trim())
    };
    let rank = rig.rank(rank);
    let comm = rank.init(id, size);
    match role {
        "work" => {
            const COUNT: usize = 3 << 20;
            let values: Vec<u8> =
                (0..COUNT as i32).flat_map(|i| (i % 1000 + rank.rank as i32).to_ne_bytes()).collect();
            let buffer = rank.upload(&values);
            assert_eq!(rank.all_reduce(comm, buffer, COUNT), OK);
            rank.synchronize();
            let ranks = (size * (size - 1) / 2) as i32;
            for (i, sum) in rank.read(buffer, COUNT * 4).chunks_exact(4).enumerate() {
                let sum = i32::from_ne_bytes(sum.try_into().unwrap());
                assert_eq!(sum, i as i32 % 1000 * size as i32 + ranks);
            }
            let child = rig.split(comm, (rank.rank % 2) as i32, 0);
            assert_eq!(rank.sum(child, 1) as usize, (size + 1 - rank.rank % 2) / 2);
            rig.destroy(child);
            let memory = rank.symmetric(4 << 20);
            let mut window = std::ptr::null_mut();
            ok!(rig, ncclCommWindowRegister(comm.0, memory as *mut _, 4 << 20, &mut window, 1));
            assert_eq!(rank.all_reduce(comm, memory, 1024), OK);
            rank.synchronize();
            assert_eq!(rig.async_error(comm), OK);
            ok!(rig, ncclCommWindowDeregister(comm.0, window));
            rank.free_symmetric(memory);
            rank.free(buffer);
            rig.destroy(comm);
            rank.leave();
            world.finish().unwrap();
        }
        // Waits for ever in a collective that the others do not join; a test kills it, or it aborts when told.
        "stay" => {
            let buffer = rank.alloc(64);
            assert_eq!(rank.sum(comm, 1) as usize, size);
            println!("ready");
            let mut line = String::new();
            std::io::stdin().read_line(&mut line).unwrap();
            assert_eq!(rank.all_reduce(comm, buffer, 16), OK);
            println!("launched");
            std::io::stdin().read_line(&mut line).unwrap();
            // SAFETY: no preconditions.
            let code = unsafe { rig.cuda.cuStreamQuery.unwrap()(rank.stream.0) };
            assert_eq!(code, cuda_driver_sys::CUresult::CUDA_ERROR_NOT_READY, "blocked, not failed");
            rig.abort(comm);
            rank.synchronize();
            rank.free(buffer);
            rank.leave();
            world.finish().unwrap();
        }
        other => panic!("no role {other}"),
    }
    println!("done");
}

/// A rank's process, and its output.
type Started = (Child, BufReader<std::process::ChildStdout>);

/// Starts all ranks of a role, and gives them the id of rank 0. Returns that id too.
fn start(role: &str, size: usize) -> (Vec<Started>, String) {
    let mut ranks: Vec<_> = (0..size)
        .map(|rank| {
            let mut child = spawn(role, rank, size);
            let output = BufReader::new(child.stdout.take().unwrap());
            (child, output)
        })
        .collect();
    let id = hear(&mut ranks[0].1, "id ");
    for (child, _) in &mut ranks[1..] {
        writeln!(child.stdin.as_mut().unwrap(), "{id}").unwrap();
    }
    (ranks, id)
}

/// Number of sockets under an id; other tests have other ids.
fn sockets(id: &str) -> usize {
    let name = format!("@gpu-sim-nccl-{}", &id[16..48]);
    std::fs::read_to_string("/proc/net/unix").unwrap().matches(&name).count()
}

rusty_fork_test! {
    #![rusty_fork(timeout_ms = 300000)]

    #[test]
    fn processes_reduce_split_and_register() {
        for (mut child, mut output) in start("work", 4).0 {
            hear(&mut output, "done");
            assert!(child.wait().unwrap().success());
        }
    }

    #[test]
    fn a_killed_peer_leaves_the_others_waiting_until_they_abort() {
        let (mut ranks, _) = start("stay", 3);
        for (_, output) in &mut ranks {
            hear(output, "ready");
        }
        let (mut victim, _) = ranks.pop().unwrap();
        victim.kill().unwrap();
        victim.wait().unwrap();
        for (child, output) in &mut ranks {
            writeln!(child.stdin.as_mut().unwrap(), "go").unwrap();
            hear(output, "launched");
        }
        std::thread::sleep(Duration::from_millis(100));
        for (mut child, mut output) in ranks {
            writeln!(child.stdin.as_mut().unwrap(), "abort").unwrap();
            hear(&mut output, "done");
            assert!(child.wait().unwrap().success());
        }
    }

    #[test]
    fn a_root_that_is_killed_lets_go_of_those_who_wait_for_it() {
        let mut root = spawn("work", 0, 2);
        let mut output = BufReader::new(root.stdout.take().unwrap());
        let id = hear(&mut output, "id ");
        let waiter = std::thread::spawn(move || {
            let world = world(2);
            run(&world, 2, move |rank| {
                if rank.rank == 1 {
                    let mut comm = std::ptr::null_mut();
                    let code = nccl!(rank.rig, ncclCommInitRank(&mut comm, 3, decode(&id).0, 1));
                    // Refused for the rank count, or because the root is gone, or because no root listens.
                    assert!(code != OK && comm.is_null());
                }
            });
        });
        std::thread::sleep(Duration::from_millis(50));
        root.kill().unwrap();
        root.wait().unwrap();
        waiter.join().unwrap();
    }

    #[test]
    fn nothing_stays_behind() {
        let (mut ranks, first) = start("stay", 2);
        for (_, output) in &mut ranks {
            hear(output, "ready");
        }
        for (mut child, _) in ranks {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        let mut waiting = spawn("work", 0, 2);
        let mut output = BufReader::new(waiting.stdout.take().unwrap());
        let second = hear(&mut output, "id ");
        assert_ne!(sockets(&second), 0, "its root waits for the others");
        waiting.kill().unwrap();
        waiting.wait().unwrap();
        assert_eq!((sockets(&first), sockets(&second)), (0, 0));
    }
}
