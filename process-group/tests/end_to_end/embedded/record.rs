//! The flight recorder: its contents, and the ranks that it reports as missing.

use std::{sync::Barrier, thread, time::Duration};

use process_group::{
    ProcessGroup,
    comm::{DataType::F32, ReduceOp},
    group::{Buffer, Request},
    record::Operation,
    store::Deadline,
};
use rusty_fork::rusty_fork_test;

use super::common::{far, machine};

rusty_fork_test! {
    #[test]
    fn calls_are_recorded_and_refused_ones_are_not() {
        let machine = machine(2);
        machine.ranks(2, |rank| {
            let world = rank.world();
            let (stream, memory) = (rank.stream(), rank.memory(&[0.0; 8]));
            let two = Buffer::new(memory.ptr(), 2, F32);
            let line = line!() + 1;
            let work = unsafe { world.raw().all_reduce(two, two, ReduceOp::Max, &stream) }.unwrap();
            work.wait_until(far()).unwrap();
            unsafe { world.raw().broadcast(two, 7, &stream) }.unwrap_err();
            let other = world.rank() ^ 1;
            world.batch(&stream, |batch| unsafe {
                batch.send(two, other)?;
                batch.recv(Buffer::new(memory.ptr() + 8usize, 2, F32), other)
            }).unwrap();
            let pair = world.split("pair", &Request::Lists(vec![vec![1, 0]])).unwrap().unwrap();
            unsafe { pair.raw().broadcast(two, 1, &stream) }.unwrap();
            // The pair's events too: NCCL, which a destruction waits for, may be done a moment before them.
            stream.synchronize().unwrap();
            pair.destroy(far()).unwrap();

            let dump = world.dump();
            let ranks: Vec<_> = dump.groups.iter().map(|group| &group.ranks[..]).collect();
            assert_eq!(ranks, [&[0, 1][..], &[1, 0]]);
            let (whole, pair) = (&dump.groups[0], &dump.groups[1]);
            assert_eq!((whole.collectives, whole.messages, pair.collectives), (1, 1, 1));
            let found: Vec<_> = dump.entries.iter()
                .map(|entry| (entry.group, entry.operation, entry.collective, entry.message, entry.pair, entry.peer))
                .collect();
            assert_eq!(found, [
                (0, Operation::AllReduce, 1, 0, 0, None),
                (0, Operation::Send, 1, 1, 1, Some(other)),
                (0, Operation::Recv, 1, 1, 1, Some(other)),
                (0, Operation::Batch, 1, 1, 0, None),
                (1, Operation::Broadcast, 1, 0, 0, Some(1)),
            ]);
            let first = &dump.entries[0];
            assert_eq!((first.site.file(), first.site.line()), (file!(), line));
            assert_eq!((first.reduction, first.dtype, first.send, first.receive), (Some("max"), Some(F32), 2, 2));
            assert!(dump.entries.iter().all(|entry| entry.completed_ns.is_some_and(|time| time >= entry.created_ns)));
            assert!(dump.entries.iter().map(|entry| entry.record).eq(0..5));
            world.destroy(far()).unwrap();
        });
        machine.world.finish().unwrap();
    }

    #[test]
    fn what_messages_make_up_is_one_collective() {
        let machine = machine(3);
        machine.ranks(3, |rank| {
            let world = rank.world();
            let (stream, memory) = (rank.stream(), rank.memory(&[0.0; 12]));
            let part = |at: usize, elements| Buffer::new(memory.ptr() + 4 * at, elements, F32);
            let me = rank.rank;
            // Rank r sends r + 1 elements to each, so it receives 1, 2 and 3.
            let send: Vec<_> = (0..3).map(|_| part(0, me + 1)).collect();
            let receive = [part(4, 1), part(5, 2), part(7, 3)];
            unsafe { world.raw().all_to_all_list(&send, &receive, &stream) }.unwrap();
            let gathered = if me == 1 { &receive[..] } else { &[] };
            unsafe { world.raw().gather_list(send[0], gathered, 1, &stream) }.unwrap();
            world.quiesce(far()).unwrap();
            let dump = world.dump();
            let found: Vec<_> = dump.entries.iter()
                .map(|entry| (entry.operation, entry.collective, entry.is_message, entry.send, entry.receive))
                .collect();
            let sent = me as u64 + 1;
            let gathered = if me == 1 { 6 } else { 0 };
            assert_eq!(found, [
                (Operation::AllToAllList, 1, false, 3 * sent, 6),
                (Operation::GatherList, 2, false, sent, gathered),
            ]);
            world.destroy(far()).unwrap();
        });
        machine.world.finish().unwrap();
    }

    #[test]
    fn who_runs_far_ahead_keeps_the_last_calls() {
        let machine = machine(1);
        machine.ranks(1, |rank| {
            let world = rank.world();
            let (stream, memory) = (rank.stream(), rank.memory(&[0.0; 2]));
            let two = Buffer::new(memory.ptr(), 2, F32);
            for _ in 0..2100 {
                unsafe { world.raw().all_reduce(two, two, ReduceOp::Sum, &stream) }.unwrap();
            }
            world.quiesce(far()).unwrap();
            let dump = world.dump();
            assert!(dump.entries.iter().map(|entry| entry.collective).eq(53..2101));
            assert!(dump.entries.iter().all(|entry| entry.completed_ns.is_some()));
            world.destroy(far()).unwrap();
        });
        machine.world.finish().unwrap();
    }

    #[test]
    fn who_is_timed_knows_what_has_begun_and_how_long_it_took() {
        let machine = machine(2);
        let (called, looked) = (Barrier::new(2), Barrier::new(2));
        machine.ranks(2, |rank| {
            // Only some ranks need to time operations.
            let world = rank.builder().timing(rank.rank == 0).build().unwrap();
            let (stream, memory) = (rank.stream(), rank.memory(&[0.0; 2]));
            let two = Buffer::new(memory.ptr(), 2, F32);
            let all = || unsafe { world.raw().all_reduce(two, two, ReduceOp::Sum, &stream) }.unwrap();
            if rank.rank == 1 {
                called.wait();
                looked.wait();
                let works = [all(), all()];
                world.quiesce(far()).unwrap();
                assert!(works.iter().all(|work| work.elapsed_us().unwrap().is_none()));
                world.destroy(far()).unwrap();
                return;
            }
            let works = [all(), all()];
            assert!(works.iter().all(|work| work.elapsed_us().unwrap().is_none()));
            called.wait();
            let patience = far();
            loop {
                let entries = world.dump().entries;
                assert!(entries[1].started_ns.is_none(), "the second waits behind the first");
                if entries[0].started_ns.is_some() {
                    break;
                }
                assert!(!patience.expired(), "the first has not begun");
                thread::sleep(Duration::from_millis(1));
            }
            looked.wait();
            world.quiesce(far()).unwrap();
            assert!(works.iter().all(|work| work.elapsed_us().unwrap().is_some_and(|us| us >= 0.0)));
            let entries = world.dump().entries;
            assert!(entries.iter().all(|entry| entry.elapsed.is_some() && entry.completed_ns.is_some()));
            drop(works);
            world.destroy(far()).unwrap();
        });
        machine.world.finish().unwrap();
    }

    #[test]
    fn groups_that_are_gone_are_forgotten() {
        let machine = machine(1);
        machine.ranks(1, |rank| {
            let world = rank.world();
            let (stream, memory) = (rank.stream(), rank.memory(&[0.0; 2]));
            let two = Buffer::new(memory.ptr(), 2, F32);
            let split = || world.split("one", &Request::Lists(vec![vec![0]])).unwrap().unwrap();
            let called = split();
            unsafe { called.raw().all_reduce(two, two, ReduceOp::Sum, &stream) }.unwrap();
            called.destroy(far()).unwrap();
            for _ in 0..80 {
                split().destroy(far()).unwrap();
            }
            let dump = world.dump();
            assert!(dump.groups.len() < 70, "{}", dump.groups.len());
            // Groups with recorded calls, and groups that still exist, are listed.
            assert_eq!((&dump.groups[0].name[..], dump.groups[1].collectives), ("world", 1));
            assert_eq!((dump.entries.len(), dump.entries[0].group), (1, 1));
            world.destroy(far()).unwrap();
        });
        machine.world.finish().unwrap();
    }

    #[test]
    fn members_and_others_are_told_how_far_each_is() {
        let machine = machine(3);
        let (called, told) = (Barrier::new(3), Barrier::new(3));
        machine.ranks(3, |rank| {
            let world = rank.world();
            let pair = world.split("tp", &Request::Lists(vec![vec![1, 2]])).unwrap();
            let (stream, memory) = (rank.stream(), rank.memory(&[0.0; 2]));
            let two = Buffer::new(memory.ptr(), 2, F32);
            let all = |group: &ProcessGroup| unsafe { group.raw().all_reduce(two, two, ReduceOp::Sum, &stream) };
            all(&world).unwrap().wait_until(far()).unwrap();
            if rank.rank == 2 {
                all(pair.as_ref().unwrap()).unwrap();
            }
            called.wait();
            let soon = || Deadline::after(Duration::from_secs(30));
            if rank.rank == 2 {
                let progress = pair.as_ref().unwrap().progress(soon()).unwrap();
                assert!(progress.to_string().starts_with("rank 1 has not joined collective 1 of tp"), "{progress}");
                let progress = world.progress(soon()).unwrap();
                assert_eq!((progress.front().collectives, progress.not_joined().count()), (1, 0));
            } else if rank.rank == 0 {
                // From outside, where only the store is known.
                let groups = ProcessGroup::observe(rank.store.clone(), "world", 0, soon()).unwrap();
                assert_eq!(groups.iter().map(|group| group.members.len()).collect::<Vec<_>>(), [3, 2]);
                let missing: Vec<_> = groups[1].not_joined().map(|member| member.rank).collect();
                assert_eq!(missing, [1]);
                let last = groups[1].members[1].last.as_ref().unwrap();
                assert_eq!((last.operation.as_deref(), last.is_completed), (Some("all_reduce"), false));
                assert!(ProcessGroup::observe(rank.store.clone(), "other", 0, Deadline::now()).is_err());
            }
            told.wait();
            if let Some(pair) = pair {
                pair.abort(far()).unwrap();
            }
            world.abort(far()).unwrap();
        });
    }

    #[test]
    fn a_member_that_is_gone_does_not_answer() {
        let machine = machine(2);
        let gone = Barrier::new(2);
        machine.ranks(2, |rank| {
            let world = rank.world();
            if rank.rank == 1 {
                world.abort(far()).unwrap();
                gone.wait();
                return;
            }
            gone.wait();
            let progress = world.progress(Deadline::after(Duration::from_secs(3))).unwrap();
            assert_eq!((&progress.members[1].last, progress.members[1].rank), (&None, 1));
            assert!(progress.members[0].last.is_some());
            assert!(progress.to_string().contains("rank 1 does not answer"), "{progress}");
            world.abort(far()).unwrap();
        });
    }
}
