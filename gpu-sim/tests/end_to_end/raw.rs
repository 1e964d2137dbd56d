//! The raw crates' example, run as a user runs it.

#[allow(dead_code, unreachable_pub, reason = "a program, of which its `run` is taken")]
#[path = "../../../nccl-sys/examples/raw_all_reduce.rs"]
mod all_reduce;

use gpu_sim::World;
use rusty_fork::rusty_fork_test;

rusty_fork_test! {
    #[test]
    fn two_devices_add_up() {
        for release in [21304, 22105, 22809, 23203] {
            let world = World::builder().devices(2).capacity(64 << 20).nccl_release(release).start().unwrap();
            // SAFETY: the functions behave as the driver's and NCCL's, and the world outlives what is made of them.
            let (cuda, nccl) = unsafe {
                (
                    cuda_driver_sys::Api::from_parts(world.cuda()).unwrap(),
                    nccl_sys::Api::from_parts(world.nccl()).unwrap(),
                )
            };
            all_reduce::run(&cuda, &nccl).unwrap();
            assert_eq!(world.calls("ncclAllReduce"), 2);
            world.finish().unwrap();
        }
    }
}
