//! Commits for a group over a communicator that was made by calls of NCCL alone.

use std::{any::Any, ptr, sync::Arc};

use nccl_sys::{ncclComm_t, ncclUniqueId};
use process_group::{
    comm::{Communicator, Config, wait_for_dropped},
    store::Store,
};

use super::{NCCL_2_28_9, job, options, run, soon, windows};

/// Makes a communicator of all ranks as another library would.
fn make(rank: &job::Rank) -> ncclComm_t {
    let (nccl, store) = (rank.world.nccl(), rank.world.store());
    if rank.rank == 0 {
        let id = nccl.unique_id().expect("an id");
        store.set("foreign", id.as_bytes()).expect("the store is there");
    }
    let id = store.get("foreign", soon()).expect("rank 0 writes it");
    let mut internal = [0; 128];
    internal.iter_mut().zip(id).for_each(|(to, from)| *to = from as _);
    let (mut raw, size) = (ptr::null_mut(), rank.world.size() as i32);
    // SAFETY: writes one handle, to a local that outlives the call; the context is current.
    let init =
        || unsafe { nccl.api().comm_init_rank(&mut raw, size, ncclUniqueId { internal }, rank.rank as i32) };
    rank.context.with_current(init).expect("the context is alive").expect("all ranks join");
    raw
}

#[test]
fn a_group_over_an_adopted_communicator_has_windows() {
    for is_dropped in [false, true] {
        run(
            2,
            NCCL_2_28_9,
            |_| {},
            |rank| {
                let (raw, owner) = (make(&rank), Arc::new(()) as Arc<dyn Any + Send + Sync>);
                let (nccl, number, size) = (rank.world.nccl(), rank.rank as usize, rank.world.size());
                // SAFETY: the communicator is blocking, and is used by nobody else and destroyed after the owner is
                // released.
                let adopted = unsafe {
                    Communicator::adopt(nccl, &rank.context, raw, number, size, &Config::new(), owner.clone())
                };
                let adopted = adopted.expect("it is as NCCL says");
                let group =
                    rank.builder().name("adopted").epoch(1).build_with(adopted).expect("all ranks join");
                let (pool, block) = rank.pool_with_bucket();
                assert_eq!(windows(&pool.commit(&group, options())), (1, 1));
                rank.sum(&block, &group);
                // The world's windows over the same memory stay.
                assert_eq!(windows(&pool.commit(&rank.world, options())), (1, 1));
                if is_dropped {
                    rank.world.barrier(soon()).expect("all ranks are done");
                    drop(group);
                    assert!(wait_for_dropped(soon()));
                } else {
                    group.destroy(soon()).expect("all ranks leave");
                }
                assert_eq!(Arc::strong_count(&owner), 1);
                rank.sum(&block, &rank.world);
                let destroy = || {
                    // SAFETY: nobody uses the communicator any more.
                    unsafe { nccl.api().comm_destroy(raw) }
                };
                rank.context.with_current(destroy).expect("the context is alive").expect("all ranks come");
                drop((block, pool));
                rank.leave();
            },
        );
    }
}
