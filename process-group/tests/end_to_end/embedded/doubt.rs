//! Agreements of a group whose store fails, or that outlast the caller's deadline.

use std::{sync::Arc, time::Duration};

use gpu_sim::{Action, Injection};
use process_group::{
    ProcessGroup,
    group::{GroupError, GroupErrorKind, P2pPolicy},
    store::{Deadline, Store, StoreError},
};
use rusty_fork::rusty_fork_test;

use super::{
    common::{far, machine},
    hooked::Hooked,
};

rusty_fork_test! {
    #[test]
    fn a_rank_that_is_in_doubt_ends_the_group() {
        let machine = machine(2);
        machine.ranks(2, |rank| {
            let store: Arc<dyn Store> = match rank.rank {
                0 => Arc::new(Hooked::new(&rank.store, |_, key| match key.ends_with("barrier/0/records/result") {
                    true => Err(StoreError::Argument("a test".into())),
                    false => Ok(()),
                })),
                _ => rank.store.clone(),
            };
            let world: ProcessGroup = rank.builder().store(store).build().unwrap();
            let met = world.barrier(far());
            let is_right = |error: &GroupError| {
                let GroupErrorKind::MemberFailed { rank: 0, reason, .. } = error.kind() else { return false };
                reason.contains("in doubt about the barrier") && reason.contains("a test")
            };
            if rank.rank == 0 {
                let error = met.unwrap_err();
                assert!(is_right(&error), "{error}");
            }
            let error = loop {
                match world.check() {
                    Ok(()) => std::thread::sleep(Duration::from_millis(1)),
                    Err(error) => break error,
                }
            };
            assert!(is_right(&error), "{error}");
            world.abort(far()).unwrap();
        });
    }

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
