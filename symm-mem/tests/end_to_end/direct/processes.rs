//! Ranks as processes: messages through each other's memory, and the effect on the others when one is killed.

use std::{
    env,
    path::Path,
    process::Child,
    sync::{Arc, Barrier},
};

use cuda_driver::{Driver, sys::CUresult};
use gpu_sim::{Action, Injection, World, process::test_command};
use process_group::{
    comm::{DataType, Nccl, wait_for_dropped},
    group::{Buffer, GroupErrorKind},
    peers::Loss,
    store::{Store, TcpStore, barrier},
};
use symm_mem::{ErrorKind, direct};

use super::{
    job::commit,
    rig::{Rank, far, pattern, small},
};

const RANKS: usize = 3;

/// The rank that dies in some cases.
const VICTIM: usize = 1;

/// Starts a rank of `one_rank`; sockets lie in `folder`.
fn start(case: &str, rank: usize, store: &TcpStore, folder: &Path) -> Child {
    test_command(concat!(module_path!(), "::one_rank"))
        .unwrap()
        .env("DIRECT_TEST_CASE", case)
        .env("DIRECT_TEST_RANK", rank.to_string())
        .env("DIRECT_TEST_STORE", store.address())
        .env("XDG_RUNTIME_DIR", folder)
        .spawn()
        .unwrap()
}

fn run(case: &str) -> Vec<bool> {
    let folder = tempfile::tempdir().unwrap();
    let store = TcpStore::host(0).unwrap();
    let ranks: Vec<Child> = (0..RANKS).map(|rank| start(case, rank, &store, folder.path())).collect();
    ranks.into_iter().map(|mut rank| rank.wait().unwrap().success()).collect()
}

#[test]
fn processes_send_each_other_what_is_larger_than_a_ring() {
    assert_eq!(run("well"), [true; RANKS]);
}

#[test]
fn processes_send_each_other_shared_blocks() {
    assert_eq!(run("well, shared"), [true; RANKS]);
}

#[test]
fn the_death_of_a_rank_ends_the_waits_of_the_others() {
    for case in ["kill", "kill, shared"] {
        let ended = run(case);
        for (rank, well) in ended.into_iter().enumerate() {
            assert_eq!(well, rank != VICTIM, "{case}: rank {rank}");
        }
    }
}

#[test]
fn a_rank_without_a_flag_page_delays_no_other() {
    assert_eq!(run("no-flag-page"), [true; RANKS]);
}

/// The body of a rank; the tests above start it.
#[test]
#[ignore = "the body of a process that a test starts"]
fn one_rank() {
    let case = env::var("DIRECT_TEST_CASE").expect("a test above starts this process");
    let rank: usize = env::var("DIRECT_TEST_RANK").unwrap().parse().unwrap();
    let address = env::var("DIRECT_TEST_STORE").unwrap();
    let world = World::builder().devices(RANKS).capacity(256 << 20).start().unwrap();
    // SAFETY: the functions are those of the living world, and nothing of it outlives the world.
    let (cuda, nccl) = unsafe {
        (
            cuda_driver::sys::Api::from_parts(world.cuda()).unwrap(),
            nccl_sys::Api::from_parts(world.nccl()).unwrap(),
        )
    };
    let (driver, nccl) = (Driver::new(cuda).unwrap(), Nccl::new(nccl));
    let context = driver.device(rank as u32).unwrap().retain_primary().unwrap();
    let store: Arc<dyn Store> = Arc::new(TcpStore::connect(&address, far()).unwrap());
    // The other ranks are processes.
    let rank = Rank { rank, size: RANKS, context, nccl, store, installed: Arc::new(Barrier::new(1)) };
    if case == "no-flag-page" {
        without_flag_page(&world, &rank);
    } else {
        body(&case, &rank);
    }
    let Rank { context, nccl, .. } = rank;
    wait_for_dropped(far());
    drop((context, nccl, driver));
    world.finish().unwrap();
}

/// Rank 0 cannot create its flag page. It tells the others before any of them connects to its socket.
fn without_flag_page(world: &World, rank: &Rank) {
    let group = rank.builder().build().unwrap();
    if rank.rank == 0 {
        let failure = Action::Fail(CUresult::CUDA_ERROR_UNKNOWN.0);
        world.faults().inject(Injection::new("cuMemHostRegister_v2", failure).nth(1)).unwrap();
    }
    let error = direct::install(&group, small()).unwrap_err();
    let ErrorKind::Unmade { rank: 0, problem } = error.kind() else { panic!("{error}") };
    assert!(problem.contains("cuMemHostRegister"), "{problem}");
    direct::install(&group, small()).unwrap();
    group.destroy(far()).unwrap();
}

fn body(case: &str, rank: &Rank) {
    let (group, direct) = rank.direct(rank.builder(), small());
    let (me, stream) = (rank.rank, rank.stream());
    let (next, before) = ((me + 1) % RANKS, (me + RANKS - 1) % RANKS);
    let memory = [rank.memory(&[0; 2000]), rank.memory(&[0; 2000])];
    let pool = rank.pool(&group);
    let blocks = [pool.allocate(2000).unwrap(), pool.allocate(2000).unwrap()];
    let is_shared = case.ends_with("shared");
    let [from, to] = match is_shared {
        true => blocks.each_ref().map(|block| block.ptr()),
        false => memory.each_ref().map(|memory| memory.ptr()),
    };
    if is_shared {
        assert_eq!(commit(&pool, &group), 1);
    }
    let exchange = || {
        group.batch(&stream, |batch| {
            // SAFETY: the memory lives until the stream is done.
            unsafe {
                batch.recv(Buffer::new(to, 2000, DataType::U8), before)?;
                batch.send(Buffer::new(from, 2000, DataType::U8), next)
            }
        })
    };
    for run in 0..20 {
        rank.write(from, &pattern(run * RANKS + me, 2000));
        exchange().unwrap().wait_until(far()).unwrap();
        assert!(rank.read(to, 2000) == pattern(run * RANKS + before, 2000), "run {run}");
    }
    let report = direct.report().unwrap();
    assert_eq!((report.zero_copy, report.staged), if is_shared { (40, 0) } else { (0, 40) });
    if case.starts_with("well") {
        return group.destroy(far()).unwrap();
    }
    if me == VICTIM {
        // The others are waiting by then.
        barrier(&*rank.store, "launched", me, RANKS, far()).unwrap();
        std::process::abort();
    }
    let work = exchange().unwrap();
    barrier(&*rank.store, "launched", me, RANKS, far()).unwrap();
    let error = work.wait_until(far()).unwrap_err();
    let named = matches!(error.kind(), GroupErrorKind::Lost { rank: VICTIM, loss: Loss::Died, .. });
    assert!(named, "{error}");
    stream.synchronize().unwrap();
    group.abort(far()).unwrap();
    // The context is still usable.
    rank.write(to, &[4; 2000]);
    assert!(rank.read(to, 2000) == [4; 2000]);
}
