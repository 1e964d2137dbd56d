//! The same tests with one process for each rank. Compute-sanitizer needs this: it runs one kernel of a process at a
//! time, and the kernels of the ranks wait for each other.

use std::sync::Arc;

use cuda_driver::{Driver, sys::Api};
use gpu_sim::World;
use process_group::{comm::Nccl, link};

use super::commit_compute_and_leave;
use crate::{
    common::turn,
    embedded::job::{self, Rank, soon},
    processes::{End, Told, run},
};

const RANKS: usize = 2;

/// Name of the test that runs one rank.
const BODY: &str = concat!(module_path!(), "::one_rank");

/// The body of a rank; the tests below start it.
#[test]
#[ignore = "the body of a process that a test starts"]
fn one_rank() {
    let told = Told::hear();
    let join = |driver: &Driver, nccl: &Nccl| {
        job::join(driver, nccl, Arc::new(told.store()), told.rank as u32, RANKS as u32)
    };
    match told.what() {
        ("embedded", release) => {
            let world = World::builder().devices(RANKS).capacity(256 << 20).nccl_release(release as i32);
            let world = world.start().unwrap();
            // SAFETY: the functions are those of the living world, and nothing of it outlives the world.
            let (cuda, nccl) =
                unsafe { (Api::from_parts(world.cuda()), nccl_sys::Api::from_parts(world.nccl())) };
            commit_compute_and_leave(join(&Driver::new(cuda.unwrap()).unwrap(), &Nccl::new(nccl.unwrap())));
            process_group::comm::wait_for_dropped(soon());
            world.finish().unwrap();
        }
        ("gpus", _) => {
            let (driver, nccl, _) = super::gpus().unwrap();
            let rank = join(&driver, &nccl);
            match rank.world.windows_supported() {
                Ok(()) => commit_compute_and_leave(rank),
                Err(why) => {
                    println!("skipped: {why}");
                    Rank::abandon(rank);
                }
            }
        }
        _ => link::sweep(),
    }
}

#[test]
fn processes_have_windows_that_give_what_plain_memory_gives() {
    for release in [22809, 23007] {
        assert_eq!(run(BODY, &format!("embedded {release}"), RANKS), [End::Well; RANKS], "{release}");
    }
}

#[test]
fn hardware_processes_commit() {
    let _turn = turn();
    if let Err(why) = super::gpus() {
        return println!("skipped: {why}");
    }
    assert_eq!(run(BODY, "gpus", RANKS), [End::Well; RANKS]);
}
