//! The end of a group ends all waits of its messages and reports the reason; the context stays usable.

use std::{sync::Barrier, thread, time::Duration};

use cuda_driver::Stream;
use process_group::{
    ProcessGroup,
    comm::{CommError, DataType},
    group::{Buffer, GroupError, GroupErrorKind, Work},
    store::Deadline,
};

use super::rig::{MORE_THAN_A_QUEUE, Machine, Rank, buffer, bytes, far, is_given_up, pattern, small};

/// Enqueues work that the other ranks never answer: a receive, a send that does not fit the ring, and a batch of
/// both.
fn unanswered(rank: &Rank, group: &ProcessGroup, at: Buffer, streams: &[Stream; 3]) -> Vec<Work> {
    let peer = (rank.rank + 1) % rank.size;
    // SAFETY: the memory lives until the streams are done.
    unsafe {
        vec![
            group.raw().send(at, peer, &streams[0]).unwrap(),
            group.raw().recv(at, peer, &streams[1]).unwrap(),
            group
                .batch(&streams[2], |batch| {
                    batch.recv(at, peer)?;
                    batch.send(at, peer)
                })
                .unwrap(),
        ]
    }
}

/// Runs unanswered messages until `end` ends them with the expected error.
fn ends(
    group: impl Fn(&Rank) -> ProcessGroup + Sync,
    end: impl Fn(&ProcessGroup) + Sync,
    is_it: fn(&GroupError) -> bool,
) {
    let machine = Machine::start(2);
    let done = Barrier::new(2);
    machine.ranks(2, |rank| {
        let group = group(&rank);
        let memory = rank.memory(&[7; 1000]);
        let streams = [rank.stream(), rank.stream(), rank.stream()];
        // Rank 1 makes no call, and does not leave before the other rank is done.
        let works = if rank.rank == 0 {
            unanswered(&rank, &group, buffer(&memory), &streams)
        } else {
            done.wait();
            Vec::new()
        };
        end(&group);
        for work in &works {
            let error = work.wait_until(far()).unwrap_err();
            assert!(is_it(&error), "{error}");
        }
        streams.iter().try_for_each(Stream::synchronize).unwrap();
        // SAFETY: refused.
        let refused = unsafe { group.raw().send(buffer(&memory), 1 - rank.rank, &streams[0]) }.unwrap_err();
        if rank.rank == 0 {
            assert!(is_it(&refused), "{refused}");
            done.wait();
        }
        // No rank leaves while `end` runs on the other.
        done.wait();
        group.abort(far()).unwrap();
        // The context is still usable.
        memory.copy_from_host(0, &[4u8; 1000]).unwrap();
        assert_eq!(bytes(&memory), [4; 1000]);
    });
    machine.finish();
}

#[test]
fn an_abort_ends_every_wait() {
    for lazy in [true, false] {
        let group = |rank: &Rank| {
            let builder = if lazy { rank.builder() } else { rank.eager() };
            rank.installed(builder, small())
        };
        let abort = |group: &ProcessGroup| group.abort_handle().abort(far()).unwrap();
        ends(group, abort, |error| matches!(error.kind(), GroupErrorKind::Comm(CommError::Closed { .. })));
    }
}

#[test]
fn work_that_is_late_ends_the_group() {
    let group = |rank: &Rank| {
        let builder =
            rank.builder().work_timeout(Duration::from_millis(300)).heartbeat(Duration::from_millis(100));
        rank.installed(builder, small())
    };
    let wait = |group: &ProcessGroup| {
        while group.standing().is_ok() {
            thread::sleep(Duration::from_millis(1));
        }
    };
    ends(group, wait, |error| matches!(error.kind(), GroupErrorKind::Overdue { .. }));
}

/// A receive of more than a queue holds blocks in the call until the message is sent.
#[test]
fn a_message_of_more_than_a_queue_holds_arrives() {
    let machine = Machine::start(2);
    machine.ranks(2, |rank| {
        let group = rank.group(small());
        let (stream, memory) = (rank.stream(), rank.memory(&pattern(rank.rank, MORE_THAN_A_QUEUE)));
        // SAFETY: the memory lives until the work is done.
        let work = unsafe {
            match rank.rank {
                0 => group.raw().recv(buffer(&memory), 1, &stream),
                _ => group.raw().send(buffer(&memory), 0, &stream),
            }
        };
        work.unwrap().wait_until(far()).unwrap();
        assert!(bytes(&memory) == pattern(1, MORE_THAN_A_QUEUE));
        group.destroy(far()).unwrap();
    });
    machine.finish();
}

/// If both ranks block like that, waiting for each other's next call, the deadline ends it.
#[test]
fn calls_that_wait_for_each_other_end() {
    let machine = Machine::start(2);
    machine.ranks(2, |rank| receive_first(&rank));
    machine.finish();
}

/// Both ranks first receive a message that is never sent, then a message that is larger than a queue. The calls fail
/// once the first one is late, and so does its work.
pub(super) fn receive_first(rank: &Rank) {
    let late = Duration::from_millis(500);
    let builder = rank.builder().work_timeout(late).heartbeat(Duration::from_millis(100));
    let group = rank.installed(builder, small());
    let (stream, memory) = (rank.stream(), rank.memory(&vec![0; MORE_THAN_A_QUEUE]));
    let few = Buffer::new(memory.ptr(), 10, DataType::U8);
    // SAFETY: the memory lives until the stream is done.
    let (work, error) = unsafe {
        let work = group.raw().recv(few, 1 - rank.rank, &stream).unwrap();
        (work, group.raw().recv(buffer(&memory), 1 - rank.rank, &stream).unwrap_err())
    };
    for error in [error, work.wait_until(far()).unwrap_err()] {
        assert!(matches!(error.kind(), GroupErrorKind::Overdue { .. }), "{error}");
    }
    stream.synchronize().unwrap();
    group.abort(far()).unwrap();
    memory.copy_from_host(0, &[4u8; 1000]).unwrap();
    assert_eq!(bytes(&memory)[..1000], [4; 1000]);
}

/// A wait that times out does not change the group.
#[test]
fn a_wait_that_times_out_says_so_and_the_message_comes_all_the_same() {
    let machine = Machine::start(2);
    machine.ranks(2, |rank| {
        let group = rank.group(small());
        let (stream, memory) = (rank.stream(), rank.memory(&[rank.rank as u8; 300]));
        let soon = Deadline::after(Duration::from_millis(100));
        // SAFETY: the memory lives until the stream is done.
        unsafe {
            if rank.rank == 0 {
                let work = group.raw().recv(buffer(&memory), 1, &stream).unwrap();
                let error = work.wait_until(soon).unwrap_err();
                assert!(matches!(error.kind(), GroupErrorKind::WorkTimeout { .. }), "{error}");
                assert_eq!((error.operation(), error.sequence()), (Some("recv"), Some(1)), "{error}");
                group.barrier(far()).unwrap();
                work.wait_until(far()).unwrap();
            } else {
                group.barrier(far()).unwrap();
                group.raw().send(buffer(&memory), 0, &stream).unwrap();
            }
        }
        stream.synchronize().unwrap();
        assert_eq!(bytes(&memory), [1; 300]);
        group.destroy(far()).unwrap();
    });
    machine.finish();
}

/// The rank that comes second finds the difference, whether it sends or receives; all ranks are told.
#[test]
fn lengths_that_differ_are_named_and_nothing_is_taken_for_right() {
    for first in [0, 1] {
        let machine = Machine::start(3);
        let errors = machine.ranks(3, |rank| {
            let group = rank.group(small());
            let (stream, memory) = (rank.stream(), rank.memory(&[rank.rank as u8; 400]));
            let at = |elements| Buffer { elements, ..buffer(&memory) };
            let message = |elements| {
                // SAFETY: the memory lives until the stream is done.
                unsafe {
                    if rank.rank == 0 {
                        group.raw().send(at(elements), 1, &stream)
                    } else {
                        group.raw().recv(at(elements), 0, &stream)
                    }
                }
            };
            let mut works = Vec::new();
            if rank.rank < 2 {
                works.push(message(300));
                works[0].as_ref().unwrap().wait_until(far()).unwrap();
            }
            group.barrier(far()).unwrap();
            if rank.rank == first {
                works.push(message(200 + rank.rank));
            }
            group.barrier(far()).unwrap();
            if rank.rank == 1 - first {
                works.push(message(200 + rank.rank));
            }
            let last = works.pop().map(|work| work.and_then(|work| work.wait_until(far())));
            let error = match last {
                Some(ended) => ended.unwrap_err(),
                None => loop {
                    if let Err(error) = group.check() {
                        break error;
                    }
                    thread::yield_now();
                },
            };
            stream.synchronize().unwrap();
            if rank.rank == 1 {
                // The memory still holds data of the first message.
                assert_eq!(bytes(&memory)[200..], [vec![0; 100], vec![1; 100]].concat());
            }
            group.abort(far()).unwrap();
            error.to_string()
        });
        for error in &errors {
            assert!(
                error.contains("message 2 of rank 0 to rank 1: 200 u8 were sent, but 201 u8 received"),
                "{error}"
            );
        }
        machine.finish();
    }
}

#[test]
fn a_revoked_group_has_received_nothing() {
    let connected = |rank: &Rank| {
        let group = rank.group(small());
        group.connect(far()).unwrap();
        group
    };
    let is_it = |error: &GroupError| matches!(error.kind(), GroupErrorKind::Comm(CommError::Revoked { .. }));
    ends(connected, |group| group.revoke(far()).unwrap(), is_it);
}

/// Drops a group with messages that nobody answers, or that prevent its destruction.
#[test]
fn a_group_that_goes_leaves_nothing_and_no_message_that_seems_to_have_come() {
    for destroys in [false, true] {
        let machine = Machine::start(2);
        let enqueued = Barrier::new(2);
        machine.ranks(2, |rank| {
            let group = rank.group(small());
            let (stream, memory) = (rank.stream(), rank.memory(&[0; 1000]));
            // SAFETY: the memory lives until the stream is done.
            let work = unsafe { group.raw().recv(buffer(&memory), 1 - rank.rank, &stream) }.unwrap();
            enqueued.wait();
            if destroys {
                let error = group.destroy(Deadline::now()).unwrap_err();
                // The other may have given up by then.
                let is_it = matches!(error.kind(), GroupErrorKind::WorkTimeout { .. })
                    || is_given_up(&error, 1 - rank.rank);
                assert!(is_it, "{error}");
            } else {
                drop(group);
            }
            stream.synchronize().unwrap();
            // Work that was given up is not reported as done.
            let error = work.wait_until(far()).unwrap_err();
            let is_it = matches!(
                error.kind(),
                GroupErrorKind::Comm(CommError::Closed { .. }) | GroupErrorKind::Left { .. }
            );
            assert!(is_it, "{error}");
            drop(work);
        });
        machine.finish();
    }
}
