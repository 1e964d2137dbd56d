//! Agreements of a group that outlast the caller's deadline.

use std::time::Duration;

use gpu_sim::{Action, Injection};
use process_group::{group::P2pPolicy, store::Deadline};
use rusty_fork::rusty_fork_test;

use super::common::{far, machine};

rusty_fork_test! {
    /// NCCL takes longer than the deadline, within the limit of the action. The lanes follow.
    #[test]
    fn agreements_that_follow_a_slow_action_have_time() {
        let machine = machine(2);
        machine.ranks(2, |rank| {
            let world = rank.builder().lazy().p2p(P2pPolicy::Lanes(1)).build().unwrap();
            if rank.rank == 0 {
                let slow = Action::Delay(Duration::from_secs(3));
                machine.world.faults().inject(Injection::new("ncclCommInitRankConfig", slow)).unwrap();
            }
            world.barrier(far()).unwrap();
            world.connect(Deadline::after(Duration::from_secs(2))).unwrap();
            world.destroy(far()).unwrap();
        });
        machine.world.finish().unwrap();
    }
}
