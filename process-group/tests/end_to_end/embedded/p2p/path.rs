//! Messages on a path of another crate: the group's calls to the path, and its handling of the results.

use std::{
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use cuda_driver::Stream;
use gpu_sim::{Action, Injection};
use process_group::{
    Path,
    comm::{DataType::F32, wait_for_dropped},
    group::{
        Buffer, GroupError, GroupErrorKind, P2pPolicy, PathError, PeerChannel, Request,
        path::{Declined, Message, Operation, Way},
    },
    store::{Deadline, Store},
};
use rusty_fork::rusty_fork_test;

use super::super::common::{Rank, far, machine, values};
use super::{INIT, all_reduce, exchange};

/// Accepts only messages to the same rank, and copies them. Refuses some.
#[derive(Debug, Default)]
struct Mirror {
    refuses: Mutex<bool>,
    aborts: AtomicUsize,
}

impl Path for Mirror {
    fn name(&self) -> &'static str {
        "mirror"
    }

    fn describe(&self) -> String {
        "copies to oneself".into()
    }

    fn device_bytes(&self) -> u64 {
        0
    }

    fn plan(&self, operation: Operation) -> Result<(), Declined> {
        match operation {
            Operation::Message { from, to } if from == to => Ok(()),
            _ => Err(Declined("it is no mirror's".into())),
        }
    }

    unsafe fn launch(&self, messages: &[Message], stream: &Stream, _: Deadline) -> Result<(), PathError> {
        if *self.refuses.lock().unwrap() {
            return Err(PathError::Refused("not today".into()));
        }
        let [from, to] =
            [Way::Send, Way::Receive].map(|way| messages.iter().find(|m| m.way == way).unwrap().buffer);
        // SAFETY: the caller's contract.
        Ok(unsafe { stream.copy(to.ptr, from.ptr, from.bytes()) }?)
    }

    fn abort(&self, _: Deadline) {
        self.aborts.fetch_add(1, Ordering::Relaxed);
    }

    fn given_up(&self) -> Option<usize> {
        None
    }
}

/// A path whose calls return only when the group is over.
#[derive(Debug, Default)]
struct Stuck {
    is_over: Mutex<bool>,
    over: Condvar,
}

impl Path for Stuck {
    fn name(&self) -> &'static str {
        "stuck"
    }

    fn describe(&self) -> String {
        "holds up who calls".into()
    }

    fn device_bytes(&self) -> u64 {
        0
    }

    fn plan(&self, _: Operation) -> Result<(), Declined> {
        Ok(())
    }

    unsafe fn launch(&self, _: &[Message], _: &Stream, _: Deadline) -> Result<(), PathError> {
        drop(self.over.wait_while(self.is_over.lock().unwrap(), |is_over| !*is_over).unwrap());
        Err(PathError::Aborted)
    }

    fn abort(&self, _: Deadline) {
        *self.is_over.lock().unwrap() = true;
        self.over.notify_all();
    }

    fn given_up(&self) -> Option<usize> {
        None
    }
}

/// A path on which rank 0 of the group never calls.
#[derive(Debug)]
struct Ahead;

impl Path for Ahead {
    fn name(&self) -> &'static str {
        "ahead"
    }

    fn describe(&self) -> String {
        "waits for rank 0".into()
    }

    fn device_bytes(&self) -> u64 {
        0
    }

    fn plan(&self, _: Operation) -> Result<(), Declined> {
        Ok(())
    }

    unsafe fn launch(&self, _: &[Message], _: &Stream, _: Deadline) -> Result<(), PathError> {
        Err(PathError::Ahead { peer: 0, messages: 9, waited: Duration::from_secs(1) })
    }

    fn abort(&self, _: Deadline) {}

    fn given_up(&self) -> Option<usize> {
        None
    }
}

fn to_oneself(rank: &Rank, group: &process_group::ProcessGroup) -> Result<f32, GroupError> {
    let (from, to, stream) = (rank.memory(&[7.0]), rank.memory(&[0.0]), rank.stream());
    let work = group.batch(&stream, |batch| unsafe {
        batch.send(Buffer::new(from.ptr(), 1, F32), group.rank())?;
        batch.recv(Buffer::new(to.ptr(), 1, F32), group.rank())
    })?;
    work.wait_until(far())?;
    Ok(values(&to)[0])
}

rusty_fork_test! {
    #[test]
    fn the_peer_that_has_not_called_is_named_by_its_rank_of_the_job() {
        let machine = machine(3);
        machine.ranks(3, |rank| {
            let world = rank.builder().lazy().p2p(P2pPolicy::Direct).build().unwrap();
            let part = Request::Color { color: (rank.rank > 0).then_some(0), key: 0 };
            if let Some(part) = world.split("part", &part).unwrap() {
                part.install(Arc::new(Ahead)).unwrap();
                let (memory, stream) = (rank.memory(&[7.0]), rank.stream());
                let message = Buffer::new(memory.ptr(), 1, F32);
                if part.rank() == 1 {
                    // A failure before the other member has the group would be an error of its split.
                    rank.store.wait(&["installed"], far()).unwrap();
                    unsafe { part.raw().send(message, 0, &stream) }.unwrap_err();
                } else {
                    rank.store.set("installed", b"").unwrap();
                }
                let error = loop {
                    match part.check() {
                        Err(error) => break error,
                        Ok(()) => thread::sleep(Duration::from_millis(1)),
                    }
                };
                let GroupErrorKind::MemberFailed { rank: 2, reason, .. } = error.kind() else { panic!("{error}") };
                assert!(reason.contains("messages with rank 1 are under way"), "{reason}");
                part.abort(far()).unwrap();
            }
            world.barrier(far()).unwrap();
            world.destroy(far()).unwrap();
        });
    }

    #[test]
    fn what_a_path_declines_goes_to_the_group_and_what_it_refuses_changes_nothing() {
        let machine = machine(2);
        machine.ranks(2, |rank| {
            let world = rank.builder().lazy().p2p(P2pPolicy::Direct).build().unwrap();
            let path = Arc::new(Mirror::default());
            world.install(path.clone()).unwrap();
            let refused = world.install(path.clone()).unwrap_err();
            assert!(matches!(refused.kind(), GroupErrorKind::PathRefused { path: "mirror", .. }), "{refused}");
            let me = rank.rank;
            assert_eq!((world.p2p().peers[me], world.p2p().peers[1 - me]), (PeerChannel::Path, PeerChannel::Group));

            assert_eq!(to_oneself(&rank, &world).unwrap(), 7.0);
            assert!(!world.is_connected(), "no communicator for it");
            let done = (world.sequence(), world.dump().entries.len());
            *path.refuses.lock().unwrap() = true;
            let error = to_oneself(&rank, &world).unwrap_err();
            let GroupErrorKind::Path { source, .. } = error.kind() else { panic!("{error}") };
            assert!(matches!(&**source, PathError::Refused(why) if why == "not today"), "{source}");
            assert_eq!((world.sequence(), world.dump().entries.len()), done);
            *path.refuses.lock().unwrap() = false;
            assert_eq!(to_oneself(&rank, &world).unwrap(), 7.0);

            exchange(&rank, &world, 1 - me).unwrap();
            assert!(world.is_connected());
            assert_eq!(all_reduce(&rank, &world).unwrap(), 1.0);
            let dump = world.dump();
            let others = dump.entries.iter().filter(|entry| entry.is_message && !entry.operation.is_end() && !entry.is_on_path);
            assert_eq!(others.count(), 2, "the exchange's two");
            assert_eq!(path.aborts.load(Ordering::Relaxed), 0);
            world.abort(far()).unwrap();
            assert!(path.aborts.load(Ordering::Relaxed) > 0);
        });
        assert!(wait_for_dropped(far()));
        assert_eq!(machine.world.calls(INIT), 2);
        machine.world.finish().unwrap();
    }

    #[test]
    fn a_batch_of_which_only_the_messages_on_the_path_are_launched_ends_the_group() {
        for call in ["ncclGroupStart", "ncclSend", "ncclGroupEnd"] {
            let machine = machine(2);
            machine.ranks(2, |rank| {
                let builder = rank.builder().p2p(P2pPolicy::Direct).heartbeat(Duration::from_millis(100));
                let world = builder.build().unwrap();
                world.install(Arc::new(Mirror::default())).unwrap();
                world.barrier(far()).unwrap();
                let me = rank.rank;
                if me == 0 {
                    machine.world.faults().inject(Injection::new(call, Action::Fail(3))).unwrap();
                    let (memory, stream) = (rank.memory(&[7.0; 4]), rank.stream());
                    let at = |element: u64| Buffer::new(memory.ptr() + element * 4, 1, F32);
                    let error = world
                        .batch(&stream, |batch| unsafe {
                            batch.send(at(0), me)?;
                            batch.recv(at(1), me)?;
                            batch.send(at(2), 1 - me)?;
                            batch.recv(at(3), 1 - me)
                        })
                        .unwrap_err();
                    let GroupErrorKind::MemberFailed { rank: 0, reason, .. } = error.kind() else { panic!("{error}") };
                    assert!(reason.contains("mirror") && reason.contains(call), "{reason}");
                }
                let patience = far();
                while world.standing().is_ok() {
                    assert!(!patience.expired(), "the group goes on after {call}");
                    thread::sleep(Duration::from_millis(1));
                }
                let error = world.standing().unwrap_err();
                assert!(matches!(error.kind(), GroupErrorKind::MemberFailed { rank: 0, .. }), "{error}");
                world.abort(far()).unwrap();
            });
            assert!(wait_for_dropped(far()));
            machine.world.finish().unwrap();
        }
    }

    #[test]
    fn a_call_that_does_not_return_ends_the_group() {
        let machine = machine(2);
        machine.ranks(2, |rank| {
            let builder = rank.builder().lazy().p2p(P2pPolicy::Direct).heartbeat(Duration::from_millis(100));
            let world = builder.work_timeout(Duration::from_millis(300)).build().unwrap();
            world.install(Arc::new(Stuck::default())).unwrap();
            if rank.rank == 0 {
                let error = to_oneself(&rank, &world).unwrap_err();
                assert!(matches!(error.kind(), GroupErrorKind::Overdue { rank: 0, sequence: 1, .. }), "{error}");
            }
            while world.standing().is_ok() {
                thread::sleep(Duration::from_millis(1));
            }
            let error = world.standing().unwrap_err();
            assert!(matches!(error.kind(), GroupErrorKind::Overdue { rank: 0, sequence: 1, .. }), "{error}");
            world.abort(far()).unwrap();
        });
        assert!(wait_for_dropped(far()));
        machine.world.finish().unwrap();
    }
}
