//! A process group over communicators that were made by calls of NCCL alone, as another library makes them.
//!
//! ```text
//! cargo run -p lockstep-process-group --example adopt
//! ```
//!
//! It runs on the embedded device. The ranks are threads.

use std::{error::Error, ptr, sync::Arc, thread, time::Duration};

use cuda_driver::{Context, Driver, Stream, StreamFlags, sys};
use nccl_sys::{ncclComm_t, ncclUniqueId};
use process_group::{
    ProcessGroup,
    comm::{Communicator, Config, Nccl, ReduceOp},
    store::{Deadline, HashStore},
};

const RANKS: usize = 2;

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

/// The other library's communicator. It is destroyed with the last reference to it.
struct Foreign {
    raw: ncclComm_t,
    nccl: nccl_sys::Api,
    context: Context,
}

// SAFETY: NCCL's handle may be used on any thread, by one at a time.
unsafe impl Send for Foreign {}
// SAFETY: only the value's drop uses the handle, and it has the value for itself.
unsafe impl Sync for Foreign {}

impl Foreign {
    fn join(nccl: &Nccl, context: &Context, id: ncclUniqueId, rank: usize) -> Result<Self> {
        let (nccl, mut raw) = (nccl.api().clone(), ptr::null_mut());
        let init = || {
            // SAFETY: writes one handle, to a local that outlives the call; the context is current.
            unsafe { nccl.comm_init_rank(&mut raw, RANKS as i32, id, rank as i32) }
        };
        context.with_current(init)??;
        Ok(Self { raw, nccl, context: context.clone() })
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        let destroy = || {
            // SAFETY: the last reference is gone, so nobody uses the communicator.
            unsafe { self.nccl.comm_destroy(self.raw) }
        };
        let destroyed = self.context.with_current(destroy);
        if !matches!(destroyed, Ok(Ok(()))) {
            eprintln!("the communicator was not destroyed: {destroyed:?}");
        }
    }
}

fn rank(nccl: &Nccl, context: &Context, id: ncclUniqueId, rank: usize, store: Arc<HashStore>) -> Result<()> {
    let soon = Deadline::after(Duration::from_secs(30));
    let foreign = Arc::new(Foreign::join(nccl, context, id, rank)?);
    // SAFETY: the communicator is made and blocking; it lives as long as `foreign`, and nobody else uses it meanwhile.
    let adopted = unsafe {
        Communicator::adopt(nccl, context, foreign.raw, rank, RANKS, &Config::new(), foreign.clone())
    }?;
    let builder = ProcessGroup::builder().store(store).timeout(Duration::from_secs(30));
    let world = builder.build_with(adopted)?;
    let stream = Stream::new(context, StreamFlags::NON_BLOCKING)?;
    let mut values = stream.clone_htod(&[rank as f32; 1024])?;
    world.all_reduce(&mut values, ReduceOp::Sum)?.wait()?;
    let sum = stream.clone_dtoh(&values)?[0];
    println!("rank {rank} of {RANKS}: the sum is {sum}");
    drop(values);
    // Destroys the group. The communicator is released to its owner, and destroyed with it.
    world.destroy(soon)?;
    assert_eq!(Arc::strong_count(&foreign), 1);
    if sum == 1.0 { Ok(()) } else { Err("the sum of 0 and 1 is not 1".into()) }
}

fn main() -> Result<()> {
    let machine = gpu_sim::World::builder().devices(RANKS).start()?;
    // SAFETY: the tables keep the C contracts, and the machine outlives everything made from them.
    let (cuda, nccl) =
        unsafe { (sys::Api::from_parts(machine.cuda())?, nccl_sys::Api::from_parts(machine.nccl())?) };
    let (driver, nccl, store) = (Driver::new(cuda)?, Nccl::new(nccl), Arc::new(HashStore::new()));
    let id = ncclUniqueId { internal: nccl.unique_id()?.as_bytes().map(|byte| byte as _) };
    thread::scope(|scope| {
        let start = |number| {
            let (driver, nccl, store) = (&driver, &nccl, store.clone());
            scope.spawn(move || {
                rank(nccl, &driver.device(number as u32)?.retain_primary()?, id, number, store)
            })
        };
        let ranks: Vec<_> = (0..RANKS).map(start).collect();
        ranks.into_iter().try_for_each(|rank| rank.join().expect("a rank does not panic"))
    })?;
    drop((driver, nccl));
    machine.finish()?;
    Ok(())
}
