//! Works on the driver's default streams, several of which have the same handle.

use std::thread;

use cuda_driver::{Context, Stream};
use rusty_fork::rusty_fork_test;

use super::common::{far, hold, machine, soon};

fn per_thread(context: &Context) -> Stream {
    unsafe { Stream::borrowed(context, std::ptr::without_provenance_mut(2)) }
}

rusty_fork_test! {
    #[test]
    fn the_default_stream_of_another_device_waits() {
        let machine = machine(2);
        machine.ranks(1, |rank| {
            let [own, other] = [&rank.context, &machine.context(1)].map(Stream::legacy_default);
            let group = rank.world();
            let open = hold(&own);
            let work = group.track_graph_launch(&own).unwrap();
            // A refused call is not counted.
            let error = group.track_graph_launch(&other).unwrap_err();
            assert!(error.to_string().contains("device 1"), "{error}");
            assert_eq!(group.sequence(), 1);
            work.order_before(&own).unwrap();
            work.order_before(&other).unwrap();
            assert!(!other.query().unwrap());
            drop(open);
            other.synchronize().unwrap();
            assert!(work.is_completed().unwrap());
            group.destroy(far()).unwrap();
        });
        machine.world.finish().unwrap();
    }

    #[test]
    fn each_threads_default_stream_is_its_own() {
        let machine = machine(1);
        machine.ranks(1, |rank| {
            let (group, own) = (rank.world(), per_thread(&rank.context));
            let open = hold(&own);
            let work = group.track_graph_launch(&own).unwrap();
            thread::scope(|scope| {
                let there = scope.spawn(|| {
                    let other = per_thread(&rank.context);
                    // Enqueued later, and done earlier.
                    group.track_graph_launch(&other).unwrap().wait_until(far()).unwrap();
                    group.quiesce(soon()).unwrap_err();
                    work.order_before(&other).unwrap();
                    let waits = !other.query().unwrap();
                    drop(open);
                    other.synchronize().unwrap();
                    waits && work.is_completed().unwrap()
                });
                assert!(there.join().unwrap());
            });
            group.quiesce(far()).unwrap();
            group.destroy(far()).unwrap();
        });
        machine.world.finish().unwrap();
    }
}
