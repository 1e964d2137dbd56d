//! Settings that a group has of its own, and those that it inherits.

use std::{thread, time::Duration};

use process_group::{
    ProcessGroup,
    comm::{Config, ConfigBuilder, DataType::F32, ReduceOp, ShrinkMode},
    group::{Buffer, GroupErrorKind, GroupSettings, Request, Work},
};
use rusty_fork::rusty_fork_test;

use super::common::{far, hold, machine};

rusty_fork_test! {
    #[test]
    fn splits_and_shrunk_groups_inherit_settings_or_have_their_own() {
        let machine = machine(2);
        machine.ranks(2, |rank| {
            let classes = |class| Config::new().nccl(ConfigBuilder::new().traffic_class(class));
            let settings = GroupSettings::new().config(classes(3)).check_interval(Duration::from_millis(2));
            let world = rank.builder().settings(settings).timing(true).build().unwrap();
            let class = |group: &ProcessGroup| group.communicator().config().nccl.raw().trafficClass;
            let (stream, memory) = (rank.stream(), rank.memory(&[1.0]));
            let one = Buffer::new(memory.ptr(), 1, F32);
            let all_reduce = |group: &ProcessGroup| -> Work {
                unsafe { group.raw().all_reduce(one, one, ReduceOp::Sum, &stream) }.unwrap()
            };
            let is_timed = |group: &ProcessGroup| {
                let work = all_reduce(group);
                work.wait_until(far()).unwrap();
                work.elapsed_us().unwrap().is_some()
            };
            let all = Request::Lists(vec![vec![0, 1]]);
            let split = |of: &ProcessGroup, settings: GroupSettings| {
                of.split_with("all", &all, settings, far()).unwrap().unwrap()
            };
            let same = world.split("same", &all).unwrap().unwrap();
            assert_eq!((class(&world), class(&same)), (3, 3));
            assert!(is_timed(&world) && is_timed(&same));
            let short = GroupSettings::new().work_timeout(Duration::from_millis(300)).timing(false);
            let own = split(&world, short.config(classes(4)).timeout(Duration::from_secs(30)));
            let below = split(&own, GroupSettings::new());
            if rank.rank == 0 {
                let shrunk = world.shrink_with(&[1], ShrinkMode::Orderly, classes(5), far()).unwrap();
                assert_eq!((class(&shrunk), is_timed(&shrunk)), (5, true));
                shrunk.destroy(far()).unwrap();
            }
            for group in [&own, &below] {
                assert_eq!((class(group), is_timed(group)), (4, false));
                assert!(group.timeout().remaining() <= Duration::from_secs(30));
            }
            // Work that is late there only.
            let open = hold(&stream);
            let [_late, in_time] = [&below, &world].map(all_reduce);
            let error = loop {
                match below.check() {
                    Err(error) => break error,
                    Ok(()) => thread::sleep(Duration::from_millis(2)),
                }
            };
            assert!(matches!(error.kind(), GroupErrorKind::Overdue { .. }), "{error}");
            drop(open);
            in_time.wait_until(far()).unwrap();
            world.barrier(far()).unwrap();
            below.abort(far()).unwrap();
            own.destroy(far()).unwrap();
            same.destroy(far()).unwrap();
            world.destroy(far()).unwrap();
        });
    }
}
