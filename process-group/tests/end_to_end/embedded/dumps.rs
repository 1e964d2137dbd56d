//! The flight recorder's dumps: their formats, and the folder for them.

use std::{fs, thread, time::Duration};

use process_group::{
    comm::{DataType::F32, ReduceOp},
    group::Buffer,
    store::Deadline,
};
use rusty_fork::rusty_fork_test;

use super::super::python::{imports, python};
use super::common::{far, machine};

rusty_fork_test! {
    #[test]
    fn python_reads_the_same_from_both_formats() {
        let machine = machine(1);
        let folder = tempfile::tempdir().unwrap();
        machine.ranks(1, |rank| {
            let world = rank.builder().name("a \"name\"\n\u{e9}").timing(true).build().unwrap();
            let (stream, memory) = (rank.stream(), rank.memory(&[0.0; 2]));
            let two = Buffer::new(memory.ptr(), 2, F32);
            unsafe { world.raw().all_reduce(two, two, ReduceOp::Sum, &stream) }.unwrap().wait_until(far()).unwrap();
            let dump = world.dump();
            let pickle = dump.write(folder.path()).unwrap();
            let json = folder.path().join("json");
            fs::write(&json, dump.to_json().unwrap()).unwrap();
            world.destroy(far()).unwrap();
            if !imports("json") {
                println!("skipped: no Python; name one with PYTHON");
                return;
            }
            let script = "import json, pickle, sys; a = pickle.load(open(sys.argv[1], 'rb')); \
                          b = json.load(open(sys.argv[2])); assert a == b, (a, b); \
                          entry = a['entries'][0]; assert entry['input_sizes'] == [[2]], a; \
                          assert entry['duration_ms'] > 0, a";
            assert!(python().args(["-c", script]).args([&pickle, &json]).status().unwrap().success());
        });
    }

    #[test]
    fn threads_that_write_a_dump_at_the_same_time_leave_one_whole_file() {
        let machine = machine(1);
        let folder = tempfile::tempdir().unwrap();
        machine.ranks(1, |rank| {
            let world = rank.builder().build().unwrap();
            let dump = world.dump();
            let whole = dump.to_pickle().unwrap();
            thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        for _ in 0..50 {
                            let file = dump.write(folder.path()).unwrap();
                            assert_eq!(fs::read(file).unwrap(), whole);
                        }
                    });
                }
            });
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
            world.destroy(far()).unwrap();
        });
    }

    #[test]
    fn the_trouble_of_one_makes_all_dump() {
        let machine = machine(2);
        let folder = tempfile::tempdir().unwrap();
        machine.ranks(2, |rank| {
            let world = rank.builder().dump_folder(folder.path()).build().unwrap();
            let (stream, memory) = (rank.stream(), rank.memory(&[0.0; 2]));
            let two = Buffer::new(memory.ptr(), 2, F32);
            if rank.rank == 0 {
                let work = unsafe { world.raw().all_reduce(two, two, ReduceOp::Sum, &stream) }.unwrap();
                work.wait_until(Deadline::now()).unwrap_err();
            }
            let (both, patience) = (["flight_world_0", "flight_world_1"], far());
            while !both.iter().all(|file| folder.path().join(file).exists()) {
                assert!(!patience.expired(), "one has no dump");
                thread::sleep(Duration::from_millis(10));
            }
            world.abort(far()).unwrap();
        });
    }
}
