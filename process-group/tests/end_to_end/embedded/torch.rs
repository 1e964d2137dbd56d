//! Joining a `torch.distributed` job: the keys that PyTorch's ranks write and read in the store, emulated and
//! by PyTorch itself, which needs no GPU for this part. NCCL is the embedded device's.

use std::{
    io::{BufRead, BufReader},
    process::Stdio,
    sync::Arc,
    time::Duration,
};

use process_group::{
    ProcessGroup,
    comm::{Communicator, Config, DataType::F32, ReduceOp, UniqueId, WindowsUnsupported},
    group::{Buffer, GroupErrorKind, Request, TorchError},
    store::{Store, TcpStore},
};
use rusty_fork::rusty_fork_test;

use super::{
    super::python::{python, torch_is_there},
    common::{Rank, far, machine, values},
};

/// The keys of the unique id in PyTorch's releases, as its client sends them but for their first slash.
const KEYS: [&str; 2] = ["default_pg/0//cuda//0", "default_pg/0//cuda//0/nccl_storekey_0"];

/// A rank of PyTorch's, as NCCL sees it.
fn stranger(rank: &Rank, id: &UniqueId) {
    let communicator =
        Communicator::init(&rank.nccl, &rank.context, id, rank.rank, rank.size, &Config::new(), far())
            .unwrap();
    let (stream, memory) = (rank.stream(), rank.memory(&[rank.rank as f32; 64]));
    let all = (memory.ptr(), 64);
    unsafe { communicator.all_reduce(all.0, all.0, all.1, F32, ReduceOp::Sum, &stream) }.unwrap();
    stream.synchronize().unwrap();
    assert_eq!(values(&memory), [3.0; 64]);
    communicator.destroy(far()).unwrap();
}

/// A rank of this crate, in a job of three.
fn joined(rank: &Rank, world: ProcessGroup) {
    assert_eq!((world.rank(), world.size(), world.name()), (rank.rank, 3, "default_pg"));
    assert_eq!((world.global_ranks(), world.global_rank()), (vec![0, 1, 2], rank.rank));
    let (stream, memory) = (rank.stream(), rank.memory(&[rank.rank as f32; 64]));
    let buffer = Buffer::new(memory.ptr(), 64, F32);
    let work = unsafe { world.raw().all_reduce(buffer, buffer, ReduceOp::Sum, &stream) }.unwrap();
    world.wait(&work, far(), Duration::from_secs(1)).unwrap();
    assert_eq!(values(&memory), [3.0; 64]);
    // Operations that need an agreement are refused at once, and no rank has waited for another.
    assert_eq!(world.members().len(), 1);
    let refused = [
        world.barrier(far()).unwrap_err(),
        world.split("pairs", &Request::Color { color: Some(0), key: 0 }).map(drop).unwrap_err(),
    ];
    for (error, name) in refused.iter().zip(["barrier", "split"]) {
        assert!(matches!(error.kind(), GroupErrorKind::Joined), "{error}");
        assert_eq!((error.group(), error.operation()), (Some("default_pg"), Some(name)), "{error}");
    }
    assert_eq!(world.windows_supported(), Err(WindowsUnsupported::Strangers));
    world.destroy(far()).unwrap();
}

rusty_fork_test! {
    /// Ranks of either language lead, and every release's key is read.
    #[test]
    fn a_unique_id_is_all_that_the_languages_share() {
        for lead in [0, 1] {
            for key in KEYS {
                let machine = machine(3);
                machine.ranks(3, |rank| {
                    // Ranks 1 and 2 use the other language than the leader, except for one of this crate's if
                    // this crate leads.
                    let ours = if lead == 0 { rank.rank != 0 } else { rank.rank != 1 };
                    if ours {
                        return joined(&rank, rank.builder().join_torch().unwrap());
                    }
                    if rank.rank == 0 {
                        rank.store.set(key, rank.id.as_bytes()).unwrap();
                        return stranger(&rank, &rank.id);
                    }
                    let id = UniqueId::try_from(&*rank.store.get(key, far()).unwrap()).unwrap();
                    stranger(&rank, &id);
                });
                machine.world.finish().unwrap();
            }
        }
    }

    /// A rank that counts arrivals under `TORCH_DIST_INIT_BARRIER` counts this crate's ranks, and learns of
    /// the last one.
    #[test]
    fn the_barrier_at_the_start_counts_us() {
        let machine = machine(3);
        machine.ranks(3, |rank| {
            if rank.rank != 0 {
                return joined(&rank, rank.builder().join_torch().unwrap());
            }
            let key = "default_pg/store_based_barrier_key:0";
            let last = format!("{key}:last_worker");
            if rank.store.add(key, 1).unwrap() == 3 {
                rank.store.set(&last, b"1").unwrap();
            }
            rank.store.wait(&[&last], far()).unwrap();
            rank.store.set(KEYS[0], rank.id.as_bytes()).unwrap();
            stranger(&rank, &rank.id);
        });
        machine.world.finish().unwrap();
    }

    #[test]
    fn a_job_that_cannot_be_joined_says_why() {
        let machine = machine(1);
        let context = machine.context(0);
        let builder = || {
            let builder = ProcessGroup::builder().store(machine.store.clone()).rank(1);
            builder.context(&context).nccl(&machine.nccl).timeout(Duration::from_millis(100))
        };
        machine.store.set("default_pg/0//cuda//elsewhere", b"").unwrap();
        let error = builder().world_size(2).join_torch().unwrap_err();
        let GroupErrorKind::Torch(TorchError::NoUniqueId { looked_for, found, .. }) = error.kind() else {
            panic!("{error}")
        };
        assert_eq!(looked_for, &KEYS);
        assert!(found.iter().any(|key| key.ends_with("//elsewhere")), "{found:?}");
        machine.store.set(KEYS[0], b"short").unwrap();
        let error = builder().world_size(2).join_torch().unwrap_err();
        assert!(matches!(error.kind(), GroupErrorKind::Comm(_)), "{error}");
        let error = builder().world_size(129).join_torch().unwrap_err();
        assert!(error.to_string().contains("TORCH_NCCL_RANKS_PER_ROOT=129"), "{error}");
    }

    /// Runs `init_process_group` of PyTorch itself, with a backend for CUDA that passes its store to this
    /// test.
    #[test]
    fn pytorch_finds_our_id_and_we_find_its() {
        if torch_is_there() {
            for lead in [0, 1] {
                with_pytorch(lead);
            }
        }
    }
}

/// Runs a job of two ranks. Rank `theirs` uses PyTorch without NCCL, and hosts the store if it is the first.
fn with_pytorch(theirs: usize) {
    let machine = machine(2);
    let port = {
        let (_reserved, port) = super::super::ports::reserved_port();
        port
    };
    machine.ranks(2, |rank| {
        if rank.rank != theirs {
            let options = TcpStore::options().workers(2);
            let store = match rank.rank {
                0 => options.host(port, far()),
                _ => options.connect(&format!("127.0.0.1:{port}"), far()),
            };
            let store = store.unwrap();
            let world = rank.builder().store(Arc::new(store.clone())).join_torch().unwrap();
            let (stream, memory) = (rank.stream(), rank.memory(&[rank.rank as f32; 64]));
            let buffer = Buffer::new(memory.ptr(), 64, F32);
            let work = unsafe { world.raw().all_reduce(buffer, buffer, ReduceOp::Sum, &stream) }.unwrap();
            work.wait_until(far()).unwrap();
            assert_eq!(values(&memory), [1.0; 64]);
            return world.destroy(far()).unwrap();
        }
        let id = rank.id.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let mut child = python()
            .args(["-c", include_str!("torch_rank.py"), &id])
            .env("RANK", rank.rank.to_string())
            .env("WORLD_SIZE", "2")
            .env("MASTER_ADDR", "127.0.0.1")
            .env("MASTER_PORT", port.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let bytes: Vec<u8> = (0..line.trim().len() / 2)
            .map(|at| u8::from_str_radix(&line[2 * at..2 * at + 2], 16).unwrap())
            .collect();
        let id = UniqueId::try_from(&*bytes).unwrap();
        let communicator =
            Communicator::init(&rank.nccl, &rank.context, &id, rank.rank, 2, &Config::new(), far()).unwrap();
        let (stream, memory) = (rank.stream(), rank.memory(&[rank.rank as f32; 64]));
        unsafe { communicator.all_reduce(memory.ptr(), memory.ptr(), 64, F32, ReduceOp::Sum, &stream) }
            .unwrap();
        stream.synchronize().unwrap();
        communicator.destroy(far()).unwrap();
        // The process may host the store.
        drop(child.stdin.take());
        assert!(child.wait().unwrap().success());
    });
    machine.world.finish().unwrap();
}
