//! The communicators for messages: their number, and that both ends choose the same.

mod faults;
mod path;

use std::sync::Arc;

use cuda_driver::graph::CaptureMode;
use process_group::{
    ProcessGroup,
    comm::{CommError, DataType::F32, ReduceOp, wait_for_dropped},
    group::{
        Buffer, Disagreement, Explanation, GroupError, GroupErrorKind, P2pPolicy, PeerChannel, Request, lane,
    },
    store::Store,
};
use rusty_fork::rusty_fork_test;

use super::common::{Machine, Rank, far, machine, machine_with, soon, values};

const INIT: &str = "ncclCommInitRankConfig";
const SPLIT: &str = "ncclCommSplit";

/// Sends this rank's number to `peer` and receives that of `peer`, not grouped, on two streams.
fn exchange(rank: &Rank, group: &ProcessGroup, peer: usize) -> Result<(), GroupError> {
    let me = group.rank();
    let (from, to) = (rank.memory(&[me as f32]), rank.memory(&[-1.0]));
    let (from_buffer, to_buffer) = (Buffer::new(from.ptr(), 1, F32), Buffer::new(to.ptr(), 1, F32));
    let (out, back) = (group.send_stream(peer)?, group.recv_stream(peer)?);
    // On one communicator the messages have one order: both ends begin with the lower rank's.
    let send = || unsafe { group.raw().send(from_buffer, peer, out) };
    let recv = || unsafe { group.raw().recv(to_buffer, peer, back) };
    let works = if me < peer { [send()?, recv()?] } else { [recv()?, send()?] };
    works.iter().try_for_each(|work| work.wait_until(far()))?;
    assert_eq!(values(&to), [peer as f32]);
    Ok(())
}

/// All pairs exchange, in the order that all members use.
fn all_pairs(rank: &Rank, group: &ProcessGroup) {
    let me = group.rank();
    for low in 0..group.size() {
        for high in low + 1..group.size() {
            match (low == me, high == me) {
                (true, _) => exchange(rank, group, high).unwrap(),
                (_, true) => exchange(rank, group, low).unwrap(),
                _ => {}
            }
        }
    }
}

fn all_reduce(rank: &Rank, group: &ProcessGroup) -> Result<f32, GroupError> {
    let memory = rank.memory(&[group.rank() as f32]);
    let buffer = Buffer::new(memory.ptr(), 1, F32);
    let stream = rank.stream();
    unsafe { group.raw().all_reduce(buffer, buffer, ReduceOp::Sum, &stream) }?.wait_until(far())?;
    Ok(values(&memory)[0])
}

fn made(machine: &Machine) -> (u64, u64) {
    (machine.world.calls(INIT), machine.world.calls(SPLIT))
}

rusty_fork_test! {
    #[test]
    fn an_eager_group_has_no_communicator_beyond_its_own() {
        for policy in [P2pPolicy::Auto, P2pPolicy::Shared] {
            let machine = machine(4);
            machine.ranks(4, |rank| {
                let world = rank.builder().p2p(policy).build().unwrap();
                assert!(world.is_connected());
                all_pairs(&rank, &world);
                let report = world.p2p();
                assert_eq!((report.policy, report.communicators, report.ctas), (policy, 0, None));
                assert_eq!(report.explanations, [Explanation::Serialised]);
                let others = report.peers.iter().enumerate().filter(|(peer, _)| *peer != rank.rank);
                assert!(others.into_iter().all(|(_, channel)| *channel == PeerChannel::Group));
                world.destroy(far()).unwrap();
            });
            assert_eq!(made(&machine), (4, 0));
            machine.world.finish().unwrap();
        }
    }

    #[test]
    fn a_lazy_group_has_one_for_each_pair_that_speaks_before_the_first_collective() {
        let machine = machine(4);
        machine.ranks(4, |rank| {
            let world = rank.builder().lazy().build().unwrap();
            assert!(!world.is_connected());
            assert!(matches!(world.communicator().check(), Err(CommError::Unmade { .. })));
            world.check().unwrap();
            let me = rank.rank;
            // The pairs 0-1 and 2-3, twice. Their communicators are made once.
            exchange(&rank, &world, me ^ 1).unwrap();
            exchange(&rank, &world, me ^ 1).unwrap();
            assert!(!world.is_connected());
            assert_eq!(world.p2p().explanations, [Explanation::CommunicatorsOfPairs]);
            assert_eq!(all_reduce(&rank, &world).unwrap(), 6.0);
            assert!(world.is_connected());
            // Earlier choices stay, and pairs with their first message now need no communicator of their own.
            all_pairs(&rank, &world);
            let report = world.p2p();
            assert_eq!(report.communicators, 1);
            for (peer, channel) in report.peers.iter().enumerate() {
                let expected = match peer {
                    peer if peer == me => PeerChannel::Oneself,
                    peer if peer == me ^ 1 => PeerChannel::Pair,
                    _ => PeerChannel::Group,
                };
                assert_eq!(*channel, expected);
            }
            world.destroy(far()).unwrap();
        });
        // Two ends of each of two pairs, and the group's four.
        assert_eq!(made(&machine), (8, 0));
        machine.world.finish().unwrap();
    }

    #[test]
    fn pairs_have_their_own_whatever_came_before() {
        for lazy in [false, true] {
            let machine = machine(3);
            machine.ranks(3, |rank| {
                let builder = rank.builder().p2p(P2pPolicy::PerPair);
                let world = if lazy { builder.lazy() } else { builder }.build().unwrap();
                all_reduce(&rank, &world).unwrap();
                all_pairs(&rank, &world);
                let report = world.p2p();
                assert_eq!(report.communicators, 2);
                // 132 multiprocessors, shared by the group's communicator and those of two pairs.
                assert_eq!(report.ctas, Some((1, 32)));
                world.destroy(far()).unwrap();
            });
            assert_eq!(made(&machine), (3 + 2 * 3, 0));
            machine.world.finish().unwrap();
        }
    }

    #[test]
    fn lanes_are_made_by_all_members_with_the_groups_communicator() {
        for (release, lazy) in [(22809, false), (22809, true), (21705, false), (21705, true)] {
            let machine = machine_with(4, release);
            machine.ranks(4, |rank| {
                let builder = rank.builder().p2p(P2pPolicy::Lanes(6));
                let world = if lazy { builder.lazy() } else { builder }.build().unwrap();
                all_pairs(&rank, &world);
                let report = world.p2p();
                assert_eq!((report.communicators, report.ctas), (6, Some((1, 18))));
                assert!(report.explanations.is_empty(), "{:?}", report.explanations);
                let me = rank.rank;
                for (peer, channel) in report.peers.iter().enumerate().filter(|(peer, _)| *peer != me) {
                    let (send, receive) = (lane(4, me, peer, 6), lane(4, peer, me, 6));
                    assert_eq!(*channel, PeerChannel::Lane { send, receive });
                }
                assert_eq!(all_reduce(&rank, &world).unwrap(), 6.0);
                world.destroy(far()).unwrap();
            });
            let expected = if release >= 21800 { (4, 24) } else { (28, 0) };
            assert_eq!(made(&machine), expected, "release {release}");
            machine.world.finish().unwrap();
        }
    }

    #[test]
    fn batches_and_subgroups_keep_to_the_policy() {
        for (lazy, policy) in [(false, P2pPolicy::Lanes(2)), (true, P2pPolicy::Auto), (true, P2pPolicy::PerPair)] {
            let machine = machine(4);
            machine.ranks(4, |rank| {
                let builder = rank.builder().p2p(policy);
                let world = if lazy { builder.lazy() } else { builder }.build().unwrap();
                let me = rank.rank;
                let (from, to, stream) = (rank.memory(&[me as f32]), rank.memory(&[0.0]), rank.stream());
                let (from, into) = (Buffer::new(from.ptr(), 1, F32), Buffer::new(to.ptr(), 1, F32));
                // In a circle, which only a batch can do.
                world.batch(&stream, |batch| unsafe {
                    batch.send(from, (me + 1) % 4)?;
                    batch.recv(into, (me + 3) % 4)
                }).unwrap().wait_until(far()).unwrap();
                assert_eq!(values(&to), [((me + 3) % 4) as f32]);
                assert!(world.is_connected());
                assert!(!world.p2p().peers.contains(&PeerChannel::Pair));
                let pair = world.split("pair", &Request::Color { color: Some(me as u32 / 2), key: 0 });
                let pair = pair.unwrap().unwrap();
                assert_eq!((pair.is_connected(), pair.p2p().policy), (!lazy, policy));
                exchange(&rank, &pair, 1 - pair.rank()).unwrap();
                assert_eq!(all_reduce(&rank, &pair).unwrap(), 1.0);
                let expected = if let P2pPolicy::Lanes(lanes) = policy { lanes as usize } else { 1 };
                assert_eq!(pair.p2p().communicators, expected);
                pair.destroy(far()).unwrap();
                world.destroy(far()).unwrap();
            });
            machine.world.finish().unwrap();
        }
    }

    #[test]
    fn what_is_never_used_is_never_made_and_ends_like_any_other() {
        let machine = machine(2);
        machine.ranks(2, |rank| {
            let world = rank.builder().lazy().build().unwrap();
            world.barrier(far()).unwrap();
            let again = world.split("again", &Request::Color { color: Some(0), key: 0 }).unwrap().unwrap();
            let third = world.split("third", &Request::Color { color: Some(0), key: 0 }).unwrap().unwrap();
            again.destroy(far()).unwrap();
            third.abort(far()).unwrap();
            world.quiesce(far()).unwrap();
            world.destroy(far()).unwrap();
            let dropped = rank.builder().epoch(1).lazy().build().unwrap();
            drop(dropped);
        });
        assert!(wait_for_dropped(far()));
        assert_eq!(made(&machine), (0, 0));
        assert_eq!(machine.world.calls("ncclCommAbort") + machine.world.calls("ncclCommDestroy"), 0);
        machine.world.finish().unwrap();
    }

    #[test]
    fn who_does_not_come_to_the_first_collective_is_named_and_may_come_to_the_next() {
        let machine = machine(3);
        machine.ranks(3, |rank| {
            let world = rank.builder().lazy().build().unwrap();
            if rank.rank != 1 {
                let error = world.connect(soon()).unwrap_err();
                assert!(matches!(error.kind(), GroupErrorKind::Absent { ranks, .. } if *ranks == [1]), "{error}");
                rank.store.set("tried", b"").unwrap();
            }
            // In the barrier it would wait for ranks that wait for it.
            rank.store.wait(&["tried"], far()).unwrap();
            world.barrier(far()).unwrap();
            if rank.rank == 1 {
                // Too late for that attempt, as the others know.
                let error = world.connect(soon()).unwrap_err();
                assert!(matches!(error.kind(), GroupErrorKind::Absent { ranks, .. } if *ranks == [1]), "{error}");
            }
            world.connect(far()).unwrap();
            assert_eq!(all_reduce(&rank, &world).unwrap(), 3.0);
            world.destroy(far()).unwrap();
        });
        machine.world.finish().unwrap();
    }

    #[test]
    fn who_does_not_answer_a_message_is_named_and_the_group_goes_on() {
        let machine = machine(3);
        machine.ranks(3, |rank| {
            let world = rank.builder().lazy().build().unwrap();
            if rank.rank == 0 {
                let error = world.connect_to(2, soon()).unwrap_err();
                assert!(matches!(error.kind(), GroupErrorKind::Absent { ranks, .. } if *ranks == [2]), "{error}");
                rank.store.set("tried", b"").unwrap();
            }
            // In the barrier it would wait for ranks that wait for it.
            rank.store.wait(&["tried"], far()).unwrap();
            world.barrier(far()).unwrap();
            if rank.rank == 2 {
                world.connect_to(0, soon()).unwrap_err();
            }
            all_pairs(&rank, &world);
            assert_eq!(all_reduce(&rank, &world).unwrap(), 3.0);
            world.destroy(far()).unwrap();
        });
        machine.world.finish().unwrap();
    }

    #[test]
    fn nothing_is_made_for_what_is_captured() {
        let machine = machine(2);
        machine.ranks(2, |rank| {
            let world = rank.builder().lazy().p2p(P2pPolicy::PerPair).build().unwrap();
            let (stream, memory) = (rank.stream(), rank.memory(&[1.0]));
            let buffer = Buffer::new(memory.ptr(), 1, F32);
            let capture = stream.begin_capture(CaptureMode::ThreadLocal).unwrap();
            for refused in [
                unsafe { world.raw().all_reduce(buffer, buffer, ReduceOp::Sum, &stream) },
                unsafe { world.raw().send(buffer, 1 - rank.rank, &stream) },
            ] {
                let error = refused.unwrap_err();
                assert!(matches!(error.kind(), GroupErrorKind::UnmadeInCapture), "{error}");
            }
            drop(capture.end().unwrap());
            assert_eq!((world.sequence(), world.dump().entries.len()), (0, 0));
            let outside = world.connect_to(2, far()).unwrap_err();
            assert!(matches!(outside.kind(), GroupErrorKind::NoSuchRank { rank: 2, size: 2 }), "{outside}");
            let itself = world.connect_to(rank.rank, far()).unwrap_err();
            let expected = format!("world: connect_to: rank {} is not another member of a group of 2", rank.rank);
            assert_eq!(itself.to_string(), expected);
            world.destroy(far()).unwrap();
        });
        machine.world.finish().unwrap();
    }

    #[test]
    fn members_that_were_told_differently_are_told_so() {
        let machine = machine(3);
        let different = [("p2p policy", "lanes(2)", "auto"), ("initialisation", "lazy", "eager")];
        for (epoch, (name, told, others)) in different.into_iter().enumerate() {
            machine.ranks(3, |rank| {
                let builder = rank.builder().epoch(epoch as u64);
                let builder = match (rank.rank, epoch) {
                    (1, 0) => builder.p2p(P2pPolicy::Lanes(2)),
                    (1, _) => builder.lazy(),
                    _ => builder,
                };
                let error = builder.build().unwrap_err();
                let GroupErrorKind::Disagreement { source: Disagreement::Setting { setting, rank: who, value, other, other_value }, .. } = error.kind()
                else { panic!("{error}") };
                assert_eq!((&**setting, *who, &**value, *other, &**other_value), (name, 1, told, 0, others));
            });
        }
        let refused = machine.ranks(1, |rank| rank.builder().p2p(P2pPolicy::Lanes(0)).build().unwrap_err());
        assert!(matches!(refused[0].kind(), GroupErrorKind::Setting { .. }), "{}", refused[0]);
        machine.world.finish().unwrap();
    }

    #[test]
    fn an_abort_ends_every_communicator_of_the_group() {
        for policy in [P2pPolicy::Lanes(2), P2pPolicy::PerPair] {
            let machine = super::common::faithful(2, 22809);
            machine.ranks(2, |rank| {
                let world = rank.builder().p2p(policy).build().unwrap();
                exchange(&rank, &world, 1 - rank.rank).unwrap();
                let (stream, memory) = (rank.stream(), rank.memory(&[0.0]));
                let buffer = Buffer::new(memory.ptr(), 1, F32);
                // No rank sends.
                let work = unsafe { world.raw().recv(buffer, 1 - rank.rank, &stream) }.unwrap();
                assert!(work.wait_until(soon()).is_err());
                let end = world.abort_handle();
                end.abort(far()).unwrap();
                let error = work.wait_until(far()).unwrap_err();
                // The other rank aborts too, and that may be known first.
                let is_it = matches!(error.kind(), GroupErrorKind::Comm(CommError::Closed { .. }) | GroupErrorKind::Left { .. });
                stream.synchronize().unwrap();
                assert!(is_it, "{error}");
                world.abort(far()).unwrap();
            });
            // The first abort frees the communicator. The second waits only until no call uses it.
            assert!(wait_for_dropped(far()));
            machine.world.finish().unwrap();
        }
    }

    #[test]
    fn two_threads_make_a_pairs_communicator_once() {
        let machine = machine(2);
        machine.ranks(2, |rank| {
            let world = Arc::new(rank.builder().lazy().build().unwrap());
            std::thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| world.connect_to(1 - rank.rank, far()).unwrap());
                }
            });
            assert_eq!(world.p2p().communicators, 1);
            Arc::into_inner(world).unwrap().destroy(far()).unwrap();
        });
        assert_eq!(made(&machine), (2, 0));
        machine.world.finish().unwrap();
    }
}
