//! Checked mode: members compare their calls before anything is launched.

use process_group::{
    ProcessGroup,
    comm::{
        ArgumentError,
        DataType::{F32, I32},
        ReduceOp,
    },
    group::{Buffer, Disagreement, GroupErrorKind, Result, Work},
    store::Store,
};
use rusty_fork::rusty_fork_test;

use super::common::{Machine, Rank, far, machine, soon};

/// Returns the number of operations launched in NCCL.
pub(super) fn launches(machine: &Machine) -> u64 {
    const CALLS: [&str; 10] = [
        "ncclAllReduce",
        "ncclBroadcast",
        "ncclReduce",
        "ncclAllGather",
        "ncclReduceScatter",
        "ncclAlltoAll",
        "ncclGather",
        "ncclScatter",
        "ncclSend",
        "ncclRecv",
    ];
    CALLS.iter().map(|call| machine.world.calls(call)).sum()
}

/// Memory and a stream of a rank in a group with checked mode.
struct Place {
    world: ProcessGroup,
    stream: cuda_driver::Stream,
    memory: cuda_driver::memory::DeviceMemory,
    me: usize,
}

impl Place {
    fn new(rank: &Rank) -> Self {
        let world = rank.builder().checked(true).build().unwrap();
        Self { world, stream: rank.stream(), memory: rank.memory(&[0.0; 64]), me: rank.rank }
    }

    fn part(&self, at: usize, elements: usize) -> Buffer {
        Buffer::new(self.memory.ptr() + 4 * at, elements, F32)
    }
}

/// Returns the text without the call sites, which are in this file.
fn without_sites(text: &str) -> String {
    let mut parts = text.split(concat!(" at ", file!(), ":"));
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + part.trim_start_matches(|digit: char| digit.is_ascii_digit()))
}

/// A call that differs between ranks.
type Call = fn(&Place) -> Result<Work>;

rusty_fork_test! {
    #[test]
    fn calls_that_do_not_fit_are_refused_on_all_and_the_group_goes_on() {
        let machine = machine(3);
        let calls: [(Call, &str); 9] = [
            (|p| unsafe { p.world.raw().all_reduce(p.part(0, 1 + p.me / 2), p.part(0, 1 + p.me / 2), ReduceOp::Sum, &p.stream) },
                "rank 2 calls all_reduce of 2 f32 by sum, but rank 0 calls all_reduce of 1 f32 by sum"),
            (|p| {
                let buffer = Buffer::new(p.memory.ptr(), 4, if p.me == 1 { I32 } else { F32 });
                unsafe { p.world.raw().all_reduce(buffer, buffer, ReduceOp::Sum, &p.stream) }
            }, "rank 1 calls all_reduce of 4 i32 by sum, but rank 0 calls all_reduce of 4 f32 by sum"),
            (|p| {
                let op = if p.me == 0 { ReduceOp::Max } else { ReduceOp::Sum };
                unsafe { p.world.raw().all_reduce(p.part(0, 4), p.part(0, 4), op, &p.stream) }
            }, "rank 0 calls all_reduce of 4 f32 by max, but rank 1 calls all_reduce of 4 f32 by sum"),
            (|p| unsafe { p.world.raw().broadcast(p.part(0, 4), p.me / 2, &p.stream) },
                "rank 2 calls broadcast of 4 f32 with root 1, but rank 0 calls broadcast of 4 f32 with root 0"),
            (|p| match p.me {
                1 => unsafe { p.world.raw().all_gather(p.part(0, 1), p.part(8, 3), &p.stream) },
                _ => unsafe { p.world.raw().all_reduce(p.part(0, 1), p.part(0, 1), ReduceOp::Sum, &p.stream) },
            }, "rank 1 calls all_gather of 1 f32, but rank 0 calls all_reduce of 1 f32 by sum"),
            // Rank 2 expects one element from rank 1, which sends two.
            (|p| {
                let send = [p.part(0, 1), p.part(1, 1), p.part(2, if p.me == 1 { 2 } else { 1 })];
                let receive = [p.part(10, 1), p.part(11, 1), p.part(12, 1)];
                unsafe { p.world.raw().all_to_all_list(&send, &receive, &p.stream) }
            }, "rank 1 sends to rank 2 2 f32, but rank 2 receives from rank 1 1 f32"),
            (|p| {
                let parts = [p.part(10, 1), p.part(11, 1), p.part(12, 1)];
                let root = if p.me == 1 { 2 } else { 0 };
                unsafe { p.world.raw().gather_list(p.part(0, 1), if p.me == 0 { &parts } else { &[] }, root, &p.stream) }
            }, "rank 0 receives from rank 1 1 f32"),
            (|p| p.world.batch(&p.stream, |batch| unsafe {
                batch.all_reduce(p.part(0, 4), p.part(0, 4), ReduceOp::Sum)?;
                if p.me == 2 { Ok(()) } else { batch.broadcast(p.part(8, 4), 0) }
            }), "rank 2 calls all_reduce of 4 f32 by sum, but rank 0 calls all_reduce of 4 f32 by sum, broadcast of 4 f32 \
                 with root 0"),
            (|p| match p.me {
                0 => unsafe { p.world.raw().send(p.part(0, 3), 1, &p.stream) },
                1 => unsafe { p.world.raw().recv(p.part(0, 4), 0, &p.stream) },
                // This rank is not involved.
                _ => Err(GroupErrorKind::CallsDiffer {
                    rank: 0, call: concat!("sends to rank 1 3 f32 at ", file!(), ":1").into(),
                    other: 1, other_call: "receives from rank 0 4 f32".into(),
                }.into()),
            }, "rank 0 sends to rank 1 3 f32, but rank 1 receives from rank 0 4 f32"),
        ];
        machine.ranks(3, |rank| {
            let place = Place::new(&rank);
            for (call, expected) in calls {
                let error = call(&place).unwrap_err();
                assert!(matches!(error.kind(), GroupErrorKind::CallsDiffer { .. }), "{error}");
                assert!(error.to_string().contains(file!()), "{error}");
                let flat = without_sites(&error.to_string());
                assert!(flat.contains(expected), "{flat}\nexpected {expected}");
            }
            place.world.barrier(far()).unwrap();
            assert_eq!((launches(&machine), place.world.sequence()), (0, 0));
            place.world.barrier(far()).unwrap();
            // The group is still usable.
            let Place { world, stream, memory, me } = &place;
            memory.copy_from_host(0, &[*me as f32 + 1.0]).unwrap();
            let one = Buffer::new(memory.ptr(), 1, F32);
            unsafe { world.raw().all_reduce(one, one, ReduceOp::Sum, stream) }.unwrap().wait_until(far()).unwrap();
            let mut sum = [0f32];
            memory.copy_to_host(0, &mut sum).unwrap();
            assert_eq!(sum, [6.0]);
            place.world.destroy(far()).unwrap();
        });
        machine.world.finish().unwrap();
    }

    #[test]
    fn calls_that_fit_are_launched_and_leave_nothing_in_the_store() {
        let machine = machine(3);
        machine.ranks(3, |rank| {
            let place = Place::new(&rank);
            let Place { world, stream, .. } = &place;
            let me = rank.rank;
            for _ in 0..5 {
                let send: Vec<_> = (0..3).map(|_| place.part(0, me + 1)).collect();
                let receive = [place.part(4, 1), place.part(5, 2), place.part(7, 3)];
                unsafe {
                    world.raw().all_to_all_list(&send, &receive, stream).unwrap();
                    world.raw().gather_list(send[0], if me == 1 { &receive } else { &[] }, 1, stream).unwrap();
                    world.raw().reduce_scatter(place.part(0, 3), place.part(20, 1), ReduceOp::Sum, stream).unwrap();
                    world.raw().all_gather_list(place.part(30 + me, 1), &[place.part(30, 1), place.part(31, 1), place.part(32, 1)], stream).unwrap();
                    world.batch(stream, |batch| {
                        batch.send(place.part(0, 2), (me + 1) % 3)?;
                        batch.recv(place.part(40, 2), (me + 2) % 3)?;
                        batch.all_reduce(place.part(50, 2), place.part(50, 2), ReduceOp::Max)
                    }).unwrap();
                    match me {
                        0 => world.raw().send(place.part(0, 2), 2, stream).map(drop).unwrap(),
                        2 => world.raw().recv(place.part(60, 2), 0, stream).map(drop).unwrap(),
                        _ => {}
                    }
                }
            }
            world.quiesce(far()).unwrap();
            world.barrier(far()).unwrap();
            if me == 0 {
                let keys: Vec<_> = rank.store.list_keys().unwrap().into_iter().filter(|key| key.contains("checked/")).collect();
                assert!(keys.is_empty(), "{keys:?}");
            }
            world.barrier(far()).unwrap();
            place.world.destroy(far()).unwrap();
        });
        machine.world.finish().unwrap();
    }

    #[test]
    fn what_one_finds_wrong_by_itself_is_told_to_the_others() {
        let machine = machine(2);
        machine.ranks(2, |rank| {
            let place = Place::new(&rank);
            let receive = if rank.rank == 1 { 3 } else { 2 };
            let sum = |receive: usize| unsafe {
                place.world.raw().all_reduce(place.part(0, 2), place.part(8, receive), ReduceOp::Sum, &place.stream)
            };
            let error = sum(receive).unwrap_err();
            match rank.rank {
                0 => assert!(error.to_string().contains("rank 1 calls all_reduce with arguments that were refused (all_reduce of 2 ranks"), "{error}"),
                _ => assert!(matches!(error.kind(), GroupErrorKind::Argument { source: ArgumentError::Lengths { .. }, .. }), "{error}"),
            }
            assert_eq!(launches(&machine), 0);
            place.world.barrier(far()).unwrap();
            sum(2).unwrap().wait_until(far()).unwrap();
            place.world.destroy(far()).unwrap();
        });
        machine.world.finish().unwrap();
    }

    #[test]
    fn a_member_that_does_not_call_is_named() {
        let machine = machine(2);
        machine.ranks(2, |rank| {
            let world = rank.builder().checked(true).timeout(std::time::Duration::from_millis(500)).build().unwrap();
            let (stream, memory) = (rank.stream(), rank.memory(&[0.0]));
            let one = Buffer::new(memory.ptr(), 1, F32);
            if rank.rank == 0 {
                let error = unsafe { world.raw().all_reduce(one, one, ReduceOp::Sum, &stream) }.unwrap_err();
                assert!(matches!(error.kind(), GroupErrorKind::Absent { ranks, .. } if *ranks == [1]), "{error}");
                assert!(error.to_string().contains("never came to a checked call"), "{error}");
                rank.store.set("tried", b"").unwrap();
            }
            // In the barrier it would wait for ranks that wait for it.
            rank.store.wait(&["tried"], far()).unwrap();
            world.barrier(far()).unwrap();
            assert_eq!(launches(&machine), 0);
            world.destroy(far()).unwrap();
        });
        machine.world.finish().unwrap();
    }

    #[test]
    fn all_check_or_none() {
        let machine = machine(2);
        machine.ranks(2, |rank| {
            let error = rank.builder().checked(rank.rank == 1).build().unwrap_err();
            assert!(
                matches!(error.kind(), GroupErrorKind::Disagreement { source: Disagreement::Checked { rank: 1, other: 0 }, .. }),
                "{error}"
            );
        });
        machine.world.finish().unwrap();
    }

    #[test]
    fn what_follows_from_a_loss_is_told_to_who_compares() {
        let machine = machine(2);
        machine.ranks(2, |rank| {
            let builder = rank.builder().checked(true).heartbeat(std::time::Duration::from_millis(100));
            let world = builder.build().unwrap();
            let (stream, memory) = (rank.stream(), rank.memory(&[0.0]));
            let one = Buffer::new(memory.ptr(), 1, F32);
            if rank.rank == 0 {
                let error = unsafe { world.raw().all_reduce(one, one, ReduceOp::Sum, &stream) }.unwrap_err();
                assert!(matches!(error.kind(), GroupErrorKind::MemberFailed { rank: 0 | 1, .. }), "{error}");
            } else {
                std::thread::sleep(std::time::Duration::from_millis(100));
                machine.world.faults().inject(gpu_sim::Injection::new("ncclCommGetAsyncError", gpu_sim::Action::Fail(2))).unwrap();
                // On either rank: the one that asks next. A rank that aborts before the failure is known does
                // not tell the other one.
                let patience = far();
                while world.standing().is_ok() {
                    let _ = world.check();
                    assert!(!patience.expired(), "the group goes on");
                    std::thread::sleep(std::time::Duration::from_millis(5));
                }
            }
            let _ = world.barrier(soon());
            world.abort(far()).unwrap();
        });
    }
}
