//! Buffers at another place of their window on one rank, with an NCCL that compares places. The embedded device
//! always compares them; NCCL does from 2.29.7 on with `NCCL_CHECK_MODE=DEBUG_GLOBAL`. The group adds the cause to
//! the library's error.

use std::{env, thread};

use cuda_driver::Driver;
use gpu_sim::process::test_command;
use process_group::{
    comm::{DataType, Nccl, ReduceOp},
    error_text,
    group::Buffer,
};

use crate::{
    common::turn,
    embedded::job::{self, Rank, options, soon},
};

/// The first release that compares places.
const COMPARES: i32 = 22907;

/// Reduces from the first block, on rank 1 from the second one. Returns the error.
fn disagree(rank: Rank) -> String {
    let pool = rank.pool();
    let blocks = [0, 1].map(|_| pool.allocate(4096).expect("there is room"));
    let report = pool.commit(&rank.world, options()).expect("the ranks agree");
    assert_eq!((report.new_segments, report.windows), (1, 1), "{report:?}");
    let at = blocks[usize::from(rank.rank == 1)].ptr();
    let buffer = Buffer::new(at, 64, DataType::F32);
    // SAFETY: the blocks are alive until the group has been aborted.
    let work = unsafe { rank.world.raw().all_reduce(buffer, buffer, ReduceOp::Sum, &rank.stream) };
    let ended = work.and_then(|work| work.wait_until(soon()));
    let said = error_text(&ended.expect_err("the library compares"));
    for group in [rank.dp, rank.tp, rank.world] {
        let _ = group.abort(soon());
    }
    drop((blocks, pool));
    said
}

fn on_all(ranks: Vec<Rank>) -> Vec<String> {
    thread::scope(|scope| {
        let threads: Vec<_> = ranks.into_iter().map(|rank| scope.spawn(|| disagree(rank))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no rank panics")).collect()
    })
}

#[test]
fn ranks_that_use_other_places_of_a_window_are_told_by_a_library_that_compares() {
    for said in job::run_on_one_thread(2, 22809, |_| {}, on_all) {
        // The group's comparison names the segment once, and both places in it.
        let segment = "in segment 0 of pool 0 of domain 0x";
        assert_eq!(said.matches(segment).count(), 1, "{said}");
        for offset in [0, 4096] {
            let place = format!("send and receive buffers at offset {offset} at ");
            assert!(said.contains(&place), "{said}");
        }
    }
}

/// The body of the test below, in a process of its own: NCCL reads its environment once.
#[test]
#[ignore = "the body of a process that a test starts"]
fn hardware_ranks_disagree() {
    assert_eq!(
        env::var("NCCL_CHECK_MODE").as_deref(),
        Ok("DEBUG_GLOBAL"),
        "the test below starts this process"
    );
    let _turn = turn();
    let found = Driver::load().map_err(|error| error.to_string()).and_then(|driver| {
        let nccl = Nccl::load().map_err(|error| error.to_string())?;
        let devices = driver.device_count().map_err(|error| error.to_string())?;
        match (devices, nccl.release()) {
            (0..2, _) => Err(format!("2 GPUs are needed, here are {devices}")),
            (_, release) if nccl_sys::version_code(release) < COMPARES => {
                Err(format!("NCCL {release} does not compare, which 2.29.7 is the first to do"))
            }
            _ => Ok((driver, nccl)),
        }
    });
    let (driver, nccl) = match found {
        Ok(found) => found,
        Err(why) => return println!("skipped: {why}"),
    };
    let ranks = job::ranks(&driver, &nccl, 2);
    if let Err(why) = ranks[0].world.windows_supported() {
        println!("skipped: {why}");
        return ranks.into_iter().for_each(Rank::abandon);
    }
    for (rank, said) in on_all(ranks).iter().enumerate() {
        println!("NCCL {} on rank {rank}: {said}", nccl.release());
    }
}

#[test]
fn hardware_disagreement() {
    let ended = test_command(concat!(module_path!(), "::hardware_ranks_disagree"))
        .unwrap()
        .env("NCCL_CHECK_MODE", "DEBUG_GLOBAL")
        .status()
        .expect("it can be started");
    assert!(ended.success(), "{ended}");
}
