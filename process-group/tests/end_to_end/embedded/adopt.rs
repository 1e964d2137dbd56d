//! Communicators that were made by calls of NCCL alone, and adopted.

use std::{
    any::Any,
    future::{Future, IntoFuture},
    pin::Pin,
    ptr,
    sync::{
        Arc, Barrier,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, Wake},
    thread,
    time::Duration,
};

use gpu_sim::{Action, Injection};
use nccl_sys::{ncclComm_t, ncclUniqueId};
use process_group::{
    ProcessGroup,
    comm::{
        CommError, Communicator, DataType::F32, Making, Origin, ReduceOp, Result, ShrinkMode, WindowOutcome,
        WindowRequest, wait_for_dropped,
    },
    group::{Buffer, GroupError, GroupErrorKind, Request, WorkFuture},
};
use rusty_fork::rusty_fork_test;

use super::{
    common::{Machine, Rank, far, machine, soon, values},
    window::segment,
};

/// Polls once, with a waker that counts its calls.
fn poll(future: &mut WorkFuture, woken: &Arc<Woken>) -> Poll<std::result::Result<(), GroupError>> {
    Pin::new(future).poll(&mut Context::from_waker(&woken.clone().into()))
}

#[derive(Default)]
struct Woken(AtomicU64);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

type Owner = Arc<dyn Any + Send + Sync>;

const ENDS: [&str; 4] = ["ncclCommFinalize", "ncclCommDestroy", "ncclCommAbort", "ncclCommRevoke"];

/// Makes a communicator as another library would.
fn make(rank: &Rank) -> ncclComm_t {
    let id = ncclUniqueId { internal: rank.id.as_bytes().map(|byte| byte as _) };
    let mut raw = ptr::null_mut();
    let (size, number) = (rank.size as i32, rank.rank as i32);
    let init = || unsafe { rank.nccl.api().comm_init_rank(&mut raw, size, id, number) };
    rank.context.with_current(init).unwrap().unwrap();
    raw
}

fn destroy(rank: &Rank, raw: ncclComm_t) {
    rank.context.with_current(|| unsafe { rank.nccl.api().comm_destroy(raw) }).unwrap().unwrap();
}

fn adopt(rank: &Rank, raw: ncclComm_t, owner: &Owner) -> Communicator {
    try_adopt(rank, raw, owner).unwrap()
}

fn try_adopt(rank: &Rank, raw: ncclComm_t, owner: &Owner) -> Result<Communicator> {
    let (number, size) = (rank.rank, rank.size);
    unsafe {
        Communicator::adopt(&rank.nccl, &rank.context, raw, number, size, &rank.config(), owner.clone())
    }
}

fn owner() -> Owner {
    Arc::new(())
}

/// Returns how often NCCL was told to end a communicator.
fn ends(machine: &Machine) -> [u64; 4] {
    ENDS.map(|name| machine.world.faults().calls(name))
}

fn all_reduce(rank: &Rank, communicator: &Communicator) -> Vec<f32> {
    let (stream, memory) = (rank.stream(), rank.memory(&[rank.rank as f32 + 1.0; 8]));
    unsafe { communicator.all_reduce(memory.ptr(), memory.ptr(), 8, F32, ReduceOp::Sum, &stream) }.unwrap();
    stream.synchronize().unwrap();
    values(&memory)
}

fn until_released(owner: &Owner) {
    let deadline = far();
    while Arc::strong_count(owner) > 1 {
        assert!(!deadline.expired(), "the owner is still held");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Records the number of deregistered windows and buffers when it is dropped.
struct Token {
    machine: Arc<Machine>,
    seen: Arc<AtomicU64>,
}

impl Drop for Token {
    fn drop(&mut self) {
        let calls = |name| self.machine.world.calls(name);
        self.seen.store(calls("ncclCommWindowDeregister") + calls("ncclCommDeregister"), Ordering::SeqCst);
    }
}

rusty_fork_test! {
    #[test]
    fn it_has_the_operations_of_any_and_is_only_released() {
        let machine = machine(3);
        machine.ranks(3, |rank| {
            let (raw, owner) = (make(&rank), owner());
            for drops in [true, false] {
                let communicator = adopt(&rank, raw, &owner);
                assert!(communicator.is_adopted());
                assert!(matches!(communicator.making(), Some(Making { origin: Origin::Adopted, .. })));
                assert_eq!(all_reduce(&rank, &communicator), [6.0; 8]);
                assert_eq!(Arc::strong_count(&owner), 2);
                if drops {
                    drop(communicator);
                    until_released(&owner);
                } else {
                    communicator.release(far()).unwrap();
                    assert_eq!(Arc::strong_count(&owner), 1);
                }
            }
            assert_eq!(ends(&machine)[..], [0; 4]);
            // It still belongs to its owner.
            let communicator = adopt(&rank, raw, &owner);
            let child = communicator.split(Some(0), 0, &rank.config(), far()).unwrap().unwrap();
            assert!(!child.is_adopted());
            communicator.release(far()).unwrap();
            assert_eq!(all_reduce(&rank, &child), [6.0; 8]);
            child.release(far()).unwrap();
            destroy(&rank, raw);
        });
        assert!(wait_for_dropped(far()));
        assert_eq!(ends(&machine), [3, 6, 0, 0], "the children, and the owner's own");
        machine.world.finish().unwrap();
    }

    #[test]
    fn what_is_registered_goes_before_the_owner() {
        let machine = Arc::new(machine(2));
        let turn = Barrier::new(2);
        for drops in [true, false] {
            let base = machine.world.calls("ncclCommWindowDeregister") + machine.world.calls("ncclCommDeregister");
            machine.ranks(2, |rank| {
                let raw = make(&rank);
                let (segment, seen) = (segment(&rank), Arc::new(AtomicU64::new(0)));
                let token: Owner = Arc::new(Token { machine: machine.clone(), seen: seen.clone() });
                let communicator = adopt(&rank, raw, &token);
                drop(token);
                let request = [WindowRequest::symmetric(segment.ptr(), segment.bytes())];
                let mut outcomes = unsafe { communicator.register_windows(&request, far()) }.unwrap();
                let Some(WindowOutcome::Registered(window)) = outcomes.pop() else { panic!("no window") };
                let memory = rank.memory(&[1.0; 8]);
                let registration = unsafe { communicator.register(memory.ptr(), 32, far()) }.unwrap();
                let kept = Arc::new(());
                communicator.keep(kept.clone());
                all_reduce(&rank, &communicator);
                turn.wait();
                assert_eq!(Arc::strong_count(&kept), 2);
                let end = |communicator: Communicator| if drops {
                    drop(communicator);
                    assert!(wait_for_dropped(far()));
                } else {
                    communicator.release(far()).unwrap();
                };
                // One rank after the other, so that each sees its own.
                if rank.rank == 0 {
                    end(communicator);
                    turn.wait();
                } else {
                    turn.wait();
                    end(communicator);
                }
                assert_eq!(seen.load(Ordering::SeqCst), base + 2 * (rank.rank as u64 + 1));
                assert_eq!(Arc::strong_count(&kept), 1);
                assert!(window.raw().is_null());
                drop(registration);
                destroy(&rank, raw);
            });
        }
        assert_eq!(ends(&machine), [0, 4, 0, 0]);
        Arc::into_inner(machine).unwrap().world.finish().unwrap();
    }

    #[test]
    fn another_rank_size_or_device_is_refused() {
        let machine = machine(2);
        machine.ranks(2, |rank| {
            let (raw, owner, other) = (make(&rank), owner(), 1 - rank.rank);
            let differs = |number: usize, size: usize, device: usize, named: (&str, usize, usize)| {
                let context = machine.context(device);
                let error = unsafe {
                    Communicator::adopt(&rank.nccl, &context, raw, number, size, &rank.config(), owner.clone())
                }
                .unwrap_err();
                assert!(matches!(
                    error,
                    CommError::AdoptionMismatch { what, expected, found, .. }
                        if (what, expected, found as usize) == named
                ), "{error}");
                assert_eq!(Arc::strong_count(&owner), 1);
            };
            differs(other, 2, rank.rank, ("rank", other, rank.rank));
            differs(rank.rank, 3, rank.rank, ("size", 3, 2));
            differs(rank.rank, 2, other, ("device", other, rank.rank));
            destroy(&rank, raw);
        });
        assert_eq!(ends(&machine), [0, 2, 0, 0]);
        machine.world.finish().unwrap();
    }

    #[test]
    fn every_call_of_nccl_can_fail() {
        let machine = machine(1);
        process_group::comm::set_drop_error_hook(|_| ());
        machine.ranks(1, |rank| {
            let faults = machine.world.faults();
            let raw = make(&rank);
            for name in ["ncclCommUserRank", "ncclCommCount", "ncclCommCuDevice", "ncclCommGetAsyncError"] {
                let owner = owner();
                faults.inject(Injection::new(name, Action::Fail(2))).unwrap();
                let error = try_adopt(&rank, raw, &owner).unwrap_err();
                assert!(matches!(error, CommError::Nccl { call, .. } if call == name), "{error}");
                assert_eq!(Arc::strong_count(&owner), 1, "{name}");
                faults.clear();
            }
            let owner = owner();
            let communicator = adopt(&rank, raw, &owner);
            assert_eq!(all_reduce(&rank, &communicator), [1.0; 8]);
        });
        assert!(wait_for_dropped(far()));
        assert_eq!(ends(&machine), [0; 4]);
    }

    #[test]
    fn what_cannot_be_deregistered_keeps_its_owner() {
        let machine = machine(2);
        for name in ["ncclCommWindowDeregister", "ncclCommDeregister"] {
            machine.world.faults().inject(Injection::new(name, Action::Fail(2)).forever()).unwrap();
            machine.ranks(2, |rank| {
                let (raw, owner, segment) = (make(&rank), owner(), segment(&rank));
                let communicator = adopt(&rank, raw, &owner);
                let memory = rank.memory(&[1.0; 8]);
                let registration = unsafe { communicator.register(memory.ptr(), 32, far()) }.unwrap();
                let request = [WindowRequest::symmetric(segment.ptr(), segment.bytes())];
                let outcomes = unsafe { communicator.register_windows(&request, far()) }.unwrap();
                assert!(outcomes[0].window().is_some(), "{outcomes:?}");
                communicator.keep(Arc::new((segment, memory)));
                let error = communicator.release(far()).unwrap_err();
                assert!(matches!(error, CommError::Nccl { call, .. } if call == name), "{error}");
                assert_eq!(Arc::strong_count(&owner), 2);
                drop(registration);
            });
            machine.world.faults().clear();
        }
        assert_eq!(ends(&machine), [0; 4]);
    }

    #[test]
    fn only_the_owner_may_end_it() {
        let machine = machine(2);
        machine.ranks(2, |rank| {
            let (raw, owner) = (make(&rank), owner());
            let refused = |result: Result<()>, name: &str| {
                let error = result.unwrap_err();
                assert!(matches!(error, CommError::Adopted { call, .. } if call == name), "{error}");
            };
            let communicator = adopt(&rank, raw, &owner);
            refused(communicator.revoke(far()), "ncclCommRevoke");
            refused(communicator.suspend(far()), "ncclCommSuspend");
            for mode in [ShrinkMode::Orderly, ShrinkMode::AfterFailure] {
                let shrunk = communicator.shrink(&[1 - rank.rank], mode, &rank.config(), far());
                refused(shrunk.map(drop), "ncclCommShrink");
            }
            assert_eq!(all_reduce(&rank, &communicator), [3.0; 8], "nothing has changed");
            refused(communicator.destroy(far()), "ncclCommDestroy");
            until_released(&owner);

            let communicator = adopt(&rank, raw, &owner);
            let memory = rank.memory(&[1.0; 8]);
            let registration = unsafe { communicator.register(memory.ptr(), 32, far()) }.unwrap();
            refused(communicator.abort_handle().abort(far()), "ncclCommAbort");
            let error = communicator.check().unwrap_err();
            assert!(matches!(error, CommError::Poisoned { .. }), "{error}");
            registration.deregister(far()).unwrap();
            refused(communicator.abort(far()), "ncclCommAbort");
            until_released(&owner);
            destroy(&rank, raw);
        });
        assert_eq!(machine.world.calls("ncclCommDeregister"), 2);
        assert_eq!(ends(&machine), [0, 2, 0, 0]);
        machine.world.finish().unwrap();
    }

    /// Nothing aborts the work, so windows stay until the owner has ended it.
    #[test]
    fn windows_under_blocked_work_keep_the_owner_until_it_ends_the_work() {
        let machine = machine(2);
        let turn = Barrier::new(2);
        machine.ranks(2, |rank| {
            let (raw, owner) = (make(&rank), owner());
            let communicator = adopt(&rank, raw, &owner);
            let (segment, stream) = (segment(&rank), rank.stream());
            let request = [WindowRequest::symmetric(segment.ptr(), segment.bytes())];
            unsafe { communicator.register_windows(&request, far()) }.unwrap();
            all_reduce(&rank, &communicator);
            if rank.rank == 0 {
                let at = segment.ptr();
                unsafe { communicator.all_reduce(at, at, 8, F32, ReduceOp::Sum, &stream) }.unwrap();
                let error = communicator.release(soon()).unwrap_err();
                assert!(matches!(error, CommError::Leaked { .. }), "{error}");
                assert_eq!(machine.world.calls("ncclCommWindowDeregister"), 0);
                assert_eq!(Arc::strong_count(&owner), 2);
                rank.context.with_current(|| unsafe { rank.nccl.api().comm_revoke(raw, 0) }).unwrap().unwrap();
                until_released(&owner);
                assert_eq!(machine.world.calls("ncclCommWindowDeregister"), 1);
                turn.wait();
            } else {
                turn.wait();
                communicator.release(far()).unwrap();
            }
            rank.context.with_current(|| unsafe { rank.nccl.api().comm_abort(raw) }).unwrap().unwrap();
        });
        machine.world.finish().unwrap();
    }

    /// Nothing ends a blocked call, so the owner is held until the call returns.
    #[test]
    fn a_call_that_returns_late_leaves_nothing_behind() {
        let machine = machine(2);
        let turn = Barrier::new(2);
        machine.ranks(2, |rank| {
            let (raw, owner, segment) = (make(&rank), owner(), segment(&rank));
            let communicator = adopt(&rank, raw, &owner);
            let request = [WindowRequest::symmetric(segment.ptr(), segment.bytes())];
            if rank.rank == 0 {
                let error = unsafe { communicator.register_windows(&request, soon()) }.unwrap_err();
                assert!(matches!(error, CommError::DeadlineExceeded { .. }), "{error}");
                let error = communicator.release(soon()).unwrap_err();
                assert!(matches!(error, CommError::Leaked { .. }), "{error}");
                assert_eq!(Arc::strong_count(&owner), 2);
                turn.wait();
            } else {
                turn.wait();
                unsafe { communicator.register_windows(&request, far()) }.unwrap();
                drop(communicator);
            }
            until_released(&owner);
            destroy(&rank, raw);
        });
        assert_eq!(machine.world.calls("ncclCommWindowDeregister"), 2);
        machine.world.finish().unwrap();
    }

    #[test]
    fn a_group_over_it_is_a_group() {
        let machine = machine(2);
        machine.ranks(2, |rank| {
            let (raw, owner) = (make(&rank), owner());
            let builder = rank.builder().rank(1 - rank.rank);
            let error = builder.build_with(adopt(&rank, raw, &owner)).unwrap_err();
            assert!(matches!(error.kind(), GroupErrorKind::Setting { .. }), "{error}");
            until_released(&owner);

            let group = ProcessGroup::builder().store(rank.store.clone()).timeout(Duration::from_secs(60));
            let group = group.build_with(adopt(&rank, raw, &owner)).unwrap();
            assert_eq!((group.rank(), group.size()), (rank.rank, 2));
            assert!(group.startup().to_string().ends_with("adopted"), "{}", group.startup());
            group.windows_supported().unwrap();
            let stream = rank.stream();
            let mut sums = stream.clone_htod(&[rank.rank as f32 + 1.0; 8]).unwrap();
            group.all_reduce(&mut sums, ReduceOp::Sum).unwrap().wait().unwrap();
            assert_eq!(stream.clone_dtoh(&sums).unwrap(), [3.0; 8]);
            let error = group.revoke(far()).unwrap_err();
            assert!(matches!(error.kind(), GroupErrorKind::Comm(CommError::Adopted { .. })), "{error}");
            group.barrier(far()).unwrap();
            let part = group.split("part", &Request::Color { color: Some(0), key: 0 }).unwrap();
            part.into_iter().for_each(|part| part.destroy(far()).unwrap());
            let alone = (rank.rank == 0).then(|| group.shrink(&[1], ShrinkMode::Orderly).unwrap());
            alone.into_iter().for_each(|alone| alone.destroy(far()).unwrap());
            drop(sums);
            group.destroy(far()).unwrap();
            assert_eq!(Arc::strong_count(&owner), 1);
            destroy(&rank, raw);
        });
        assert!(wait_for_dropped(far()));
        assert_eq!(machine.world.calls("ncclCommShrink"), 0);
        assert_eq!(ends(&machine)[2..], [0, 0]);
        machine.world.finish().unwrap();
    }

    #[test]
    fn a_group_over_it_ends_without_an_abort() {
        let machine = machine(2);
        let turn = Barrier::new(2);
        machine.ranks(2, |rank| {
            let (raw, owner) = (make(&rank), owner());
            let group = rank.builder().build_with(adopt(&rank, raw, &owner)).unwrap();
            let (stream, memory) = (rank.stream(), rank.memory(&[1.0; 8]));
            let buffer = Buffer::new(memory.ptr(), 8, F32);
            let reduce = || unsafe { group.raw().all_reduce(buffer, buffer, ReduceOp::Sum, &stream) };
            reduce().unwrap().wait().unwrap();
            if rank.rank == 0 {
                let work = reduce().unwrap();
                turn.wait();
                let (mut future, woken) = (work.clone().into_future(), Arc::new(Woken::default()));
                let error = loop {
                    match poll(&mut future, &woken) {
                        Poll::Ready(result) => break result.unwrap_err(),
                        Poll::Pending => {
                            let deadline = far();
                            while woken.0.swap(0, Ordering::SeqCst) == 0 {
                                assert!(!deadline.expired(), "not woken");
                                thread::sleep(Duration::from_millis(1));
                            }
                        }
                    }
                };
                assert!(matches!(error.kind(), GroupErrorKind::MemberFailed { rank: 1, .. }), "{error}");
                let error = work.wait_until(far()).unwrap_err();
                assert!(matches!(error.kind(), GroupErrorKind::MemberFailed { rank: 1, .. }), "{error}");
                let error = reduce().unwrap_err();
                assert!(matches!(error.kind(), GroupErrorKind::MemberFailed { rank: 1, .. }), "{error}");
                assert!(!stream.query().unwrap(), "it is still blocked");
                let error = group.abort(far()).unwrap_err();
                assert!(matches!(error.kind(), GroupErrorKind::Comm(CommError::Adopted { .. })), "{error}");
            } else {
                turn.wait();
                group.fail("a test");
                drop(group);
            }
            until_released(&owner);
            assert!(wait_for_dropped(far()));
            turn.wait();
            assert_eq!(ends(&machine), [0; 4]);
            turn.wait();
            rank.context.with_current(|| unsafe { rank.nccl.api().comm_abort(raw) }).unwrap().unwrap();
            stream.synchronize().unwrap();
        });
        machine.world.finish().unwrap();
    }
}
