use super::local::Meetings;
use super::roster::{Joined, Roster};
use super::*;
use crate::nccl::shm::Shared;
use std::sync::Arc;
use std::thread;

fn hello(rank: usize, size: usize) -> Hello {
    Hello { rank, size, pid: std::process::id(), release: 22809, faithful: false }
}

fn join_all(id: UniqueId, hellos: Vec<Hello>) -> Vec<Result<Shared, JoinError>> {
    let ranks: Vec<_> =
        hellos.into_iter().map(|hello| thread::spawn(move || Joining::connect(id)?.finish(hello))).collect();
    ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
}

#[test]
fn ids_survive_their_bytes_and_others_are_refused() {
    let id = UniqueId::random().unwrap();
    let mut bytes = id.to_bytes();
    assert_eq!(UniqueId::from_bytes(&bytes), Some(id));
    bytes[0] ^= 1;
    assert_eq!(UniqueId::from_bytes(&bytes), None);
    assert_ne!(UniqueId::random().unwrap().hash(), id.hash());
}

#[test]
fn everybody_gets_the_same_memory() {
    for size in [1, 2, 5] {
        let id = UniqueId::random().unwrap();
        let root = Root::start(id).unwrap();
        let members = join_all(id, (0..size).map(|rank| hello(rank, size)).collect());
        for member in members {
            assert_eq!(member.unwrap().id(), id.hash());
        }
        drop(root);
        assert!(matches!(Joining::connect(id), Err(JoinError::NoRoot(_))), "an id serves one meeting");
    }
}

#[test]
fn a_contradiction_is_told_to_all() {
    let cases: [(&str, Hello); 4] = [
        ("rank count", hello(2, 4)),
        ("came twice", hello(1, 3)),
        ("different releases", Hello { release: 23007, ..hello(2, 3) }),
        ("strict and faithful", Hello { faithful: true, ..hello(2, 3) }),
    ];
    for (text, odd) in cases {
        let id = UniqueId::random().unwrap();
        let _root = Root::start(id).unwrap();
        for result in join_all(id, vec![hello(0, 3), hello(1, 3), odd]) {
            match result {
                Err(JoinError::Refused(said)) => assert!(said.contains(text), "{said}"),
                other => panic!("expected a refusal for {text}, got {other:?}"),
            }
        }
    }
}

#[test]
fn a_waiting_rank_can_be_called_off_and_replaced() {
    let id = UniqueId::random().unwrap();
    let _root = Root::start(id).unwrap();
    let waiting = Arc::new(Joining::connect(id).unwrap());
    let waiter = thread::spawn({
        let waiting = waiting.clone();
        move || waiting.finish(hello(0, 2))
    });
    waiting.cancel();
    assert!(matches!(waiter.join().unwrap(), Err(JoinError::Lost { rank: 0, size: 2 })));
    drop(waiting);
    let members = join_all(id, vec![hello(0, 2), hello(1, 2)]);
    assert!(members.iter().all(Result::is_ok), "{members:?}");
}

#[test]
fn a_root_that_ends_lets_go_of_those_who_wait() {
    let id = UniqueId::random().unwrap();
    let root = Root::start(id).unwrap();
    let waiting = Joining::connect(id).unwrap();
    drop(root);
    assert!(matches!(waiting.finish(hello(0, 2)), Err(JoinError::Lost { .. })));
}

#[test]
fn strangers_do_not_disturb_a_meeting() {
    let id = UniqueId::random().unwrap();
    let _root = Root::start(id).unwrap();
    let stranger = join::seqpacket().unwrap();
    rustix::net::connect(&stranger, &join::address(id).unwrap()).unwrap();
    rustix::net::send(&stranger, b"hello?", rustix::net::SendFlags::NOSIGNAL).unwrap();
    let silent = Joining::connect(id).unwrap();
    assert!(join_all(id, vec![hello(0, 2), hello(1, 2)]).iter().all(Result::is_ok));
    drop(silent);
}

#[test]
fn local_meetings_follow_the_same_rules() {
    let meetings = Meetings::default();
    let id = meetings.open();
    let first = meetings.join(id, hello(0, 2), |_| false);
    assert!(matches!(first, Err(JoinError::Lost { rank: 0, size: 2 })), "the wait gave up");
    let members = thread::scope(|scope| {
        let ranks: Vec<_> = (0..2)
            .map(|rank| {
                let meetings = &meetings;
                scope.spawn(move || {
                    meetings.join(id, hello(rank, 2), |arrived| {
                        while !arrived() {
                            thread::yield_now();
                        }
                        true
                    })
                })
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap().unwrap()).collect::<Vec<_>>()
    });
    assert!(Arc::ptr_eq(&members[0], &members[1]));
    assert!(matches!(meetings.join(id, hello(0, 2), |_| true), Err(JoinError::NoRoot(_))));
    assert_ne!(meetings.open(), id);
}

#[test]
fn who_leaves_may_be_replaced_and_a_failure_stays() {
    let mut roster = Roster::default();
    assert_eq!(roster.join(hello(1, 2)), Joined::Wait);
    roster.leave(1);
    assert_eq!(roster.join(hello(1, 2)), Joined::Wait);
    assert!(matches!(roster.join(hello(2, 2)), Joined::Refused(_)));
    assert!(matches!(roster.join(hello(0, 2)), Joined::Refused(_)));
}
