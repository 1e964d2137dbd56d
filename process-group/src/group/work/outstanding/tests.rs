//! Streams that come and go.

use rusty_fork::rusty_fork_test;

use super::Outstanding;
use crate::embedded_machine::{far, hold, machine, soon};

rusty_fork_test! {
    #[test]
    fn streams_that_come_and_go_leave_nothing_and_open_work_stays() {
        let machine = machine(1);
        machine.ranks(1, |rank| {
            let group = rank.world();
            let held = rank.stream();
            let open = hold(&held);
            let late = group.track_graph_launch(&held).unwrap();
            for _ in 0..5 * Outstanding::<super::Work>::STREAMS {
                group.track_graph_launch(&rank.stream()).unwrap().wait_until(far()).unwrap();
            }
            let streams = group.outstanding.state().streams.len();
            assert!(streams <= Outstanding::<super::Work>::STREAMS, "{streams} streams");
            group.quiesce(soon()).unwrap_err();
            drop(open);
            late.wait_until(far()).unwrap();
            group.quiesce(far()).unwrap();
            group.destroy(far()).unwrap();
        });
        machine.world.finish().unwrap();
    }
}
