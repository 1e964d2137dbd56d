//! Creation and end of communicators: init, split, shrink, finalize, abort, revoke; releases, counters, faults.

use std::ffi::c_int;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::Duration;

use super::rig::{Comm, OK, Rig, Shared, run, run_in_comm, until_waiting, world};
use gpu_sim::{Action, Injection, World, WorldError};
use nccl_sys::*;
use rusty_fork::rusty_fork_test;

const UNUSABLE: ncclResult_t = ncclResult_t::ncclInvalidArgument;

/// Splits a communicator whose other ranks never arrive. Aborts it, then the child, whose handle is returned all the
/// same. Returns the code of the split.
fn split_until_aborted(world: &World, rig: &Rig, comm: Comm) -> ncclResult_t {
    let split = |comm: Comm| {
        let mut child = std::ptr::null_mut();
        let code = nccl!(rig, ncclCommSplit(comm.0, 0, 0, &mut child, std::ptr::null_mut()));
        (code, Comm(child))
    };
    let (code, child) = std::thread::scope(|scope| {
        let split = scope.spawn(move || split(comm));
        until_waiting(world, "ncclCommSplit", 1);
        rig.abort(comm);
        split.join().unwrap()
    });
    rig.abort(child);
    code
}

rusty_fork_test! {
    #![rusty_fork(timeout_ms = 300000)]

    #[test]
    fn ranks_disagree_at_init() {
        let world = world(3);
        let rig = Rig::new(&world);
        // (rank, size) of the three callers, and the error text.
        let cases = [([(0, 3), (1, 3), (2, 4)], "rank count"), ([(0, 3), (1, 3), (1, 3)], "came twice")];
        for (places, text) in cases {
            let id = rig.unique_id();
            run(&world, 3, move |rank| {
                let (place, size) = places[rank.rank];
                let mut comm = std::ptr::null_mut();
                let code = nccl!(rank.rig, ncclCommInitRank(&mut comm, size, id.0, place));
                assert_eq!(code, ncclResult_t::ncclInvalidUsage);
                assert!(comm.is_null());
                assert!(rank.rig.last_error().contains(text), "{}", rank.rig.last_error());
            });
        }
        let id = rig.unique_id();
        run(&world, 1, move |rank| {
            rank.rig.destroy(rank.init(id, 1));
            let mut comm = std::ptr::null_mut();
            let mut init = |id, size, place| nccl!(rank.rig, ncclCommInitRank(&mut comm, size, id, place));
            assert_eq!(init(id.0, 1, 0), ncclResult_t::ncclSystemError, "an id serves once");
            assert_eq!(init(id.0, 1, 1), UNUSABLE);
            assert_eq!(init(id.0, 0, 0), UNUSABLE);
            assert_eq!(init(ncclUniqueId { internal: [3; 128] }, 1, 0), UNUSABLE);
        });
        world.finish().unwrap();
    }

    #[test]
    fn two_ranks_on_one_device_are_refused() {
        let world = world(1);
        let rig = Rig::new(&world);
        let rank = rig.rank(0);
        let mut comms = [std::ptr::null_mut(); 2];
        let code = nccl!(rig, ncclCommInitAll(comms.as_mut_ptr(), 2, [0, 0].as_ptr()));
        assert_eq!(code, ncclResult_t::ncclInvalidUsage);
        assert!(rig.last_error().contains("both on device 0"), "{}", rig.last_error());
        assert_eq!(comms, [std::ptr::null_mut(); 2]);
        rank.leave();
        world.finish().unwrap();
    }

    #[test]
    fn configurations_and_scalable_init() {
        let world = World::builder().devices(2).capacity(1 << 30).nccl_release(23203).start().unwrap();
        let rig = Rig::new(&world);
        let ids = [rig.unique_id(), rig.unique_id()];
        run(&world, 2, move |rank| {
            let mut config = ncclConfig_t {
                size: size_of::<ncclConfig_t>(),
                magic: 0xcafe_beef,
                version: 23203,
                blocking: 0,
                ..ncclConfig_t::default()
            };
            let mut comm = std::ptr::null_mut();
            let (mut ids, place) = (ids.map(|id| id.0), rank.rank as c_int);
            let mut init = |config: &mut ncclConfig_t| {
                nccl!(rank.rig, ncclCommInitRankScalable(&mut comm, 2, place, 2, ids.as_mut_ptr(), config))
            };
            assert_eq!(init(&mut config), UNUSABLE, "non-blocking");
            config.blocking = c_int::MIN;
            (config.minCTAs, config.maxCTAs, config.cgaClusterSize) = (c_int::MIN, c_int::MIN, c_int::MIN);
            assert_eq!(init(&mut config), OK, "{}", rank.rig.last_error());
            assert_eq!(rank.sum(Comm(comm), 1), 2);
            rank.rig.destroy(Comm(comm));
        });
        world.finish().unwrap();
    }

    #[test]
    fn splits_follow_colour_and_key() {
        let world = world(5);
        run_in_comm(&world, 5, |rank, comm| {
            // Odd ranks in reverse order, even ranks in order, and rank 4 in no child.
            let color = if rank.rank == 4 { -1 } else { (rank.rank % 2) as c_int };
            let key = if color == 1 { -(rank.rank as c_int) } else { 0 };
            let child = rank.rig.split(comm, color, key);
            if rank.rank == 4 {
                assert!(child.0.is_null());
            } else {
                let wanted = match rank.rank {
                    0 | 3 => 0,
                    _ => 1,
                };
                assert_eq!(rank.rig.place(child), (wanted, 2));
                assert_eq!(rank.sum(child, 1 << rank.rank), if color == 1 { 0b1010 } else { 0b0101 });
                // A child of the child; the parent stays usable beside them.
                let grandchild = rank.rig.split(child, 0, 0);
                assert_eq!(rank.sum(grandchild, 1), 2);
                rank.rig.destroy(grandchild);
                rank.rig.destroy(child);
            }
            assert_eq!(rank.sum(comm, 1), 5);
            let mut child = std::ptr::null_mut();
            assert_eq!(nccl!(rank.rig, ncclCommSplit(comm.0, -2, 0, &mut child, std::ptr::null_mut())), UNUSABLE);
        });
        world.finish().unwrap();
    }

    #[test]
    fn survivors_shrink_without_the_excluded() {
        let world = world(4);
        let id = Rig::new(&world).unique_id();
        run(&world, 4, move |rank| {
            let comm = rank.init(id, 4);
            let without = |excluded: &mut [c_int]| {
                let mut child = std::ptr::null_mut();
                let count = excluded.len() as c_int;
                let config = std::ptr::null_mut();
                let list = excluded.as_mut_ptr();
                let code = nccl!(rank.rig, ncclCommShrink(comm.0, list, count, &mut child, config, 0));
                (code, Comm(child))
            };
            if rank.rank != 0 {
                let (code, child) = without(&mut [0]);
                assert_eq!(code, OK, "{}", rank.rig.last_error());
                assert_eq!(rank.sum(child, 1), 3);
                rank.rig.destroy(child);
            }
            assert_eq!(without(&mut [4]).0, UNUSABLE);
            assert_eq!(without(&mut []).0, UNUSABLE);
            if rank.rank < 2 {
                let (code, child) = without(&mut [3, 2]);
                assert_eq!(code, OK, "{}", rank.rig.last_error());
                assert_eq!(rank.rig.place(child), (rank.rank, 2));
                assert_eq!(rank.sum(child, 1), 2);
                rank.rig.destroy(child);
            }
            rank.rig.destroy(comm);
        });
        world.finish().unwrap();
    }

    #[test]
    fn an_abort_gets_an_init_out() {
        let world = world(1);
        let rig = Rig::new(&world);
        let rank = rig.rank(0);
        let id = rig.unique_id();
        // The handle is written before the ranks meet, so that another thread can abort.
        static SEEN: AtomicPtr<ncclComm> = AtomicPtr::new(std::ptr::null_mut());
        let aborter = std::thread::spawn({
            let rig = rig.clone();
            move || loop {
                let comm = SEEN.load(Ordering::SeqCst);
                if !comm.is_null() {
                    std::thread::sleep(Duration::from_millis(20));
                    return rig.abort(Comm(comm));
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let code = nccl!(rig, ncclCommInitRank(SEEN.as_ptr(), 2, id.0, 0));
        assert_eq!(code, ncclResult_t::ncclInternalError, "{}", rig.last_error());
        aborter.join().unwrap();
        rank.leave();
        world.finish().unwrap();
    }

    #[test]
    fn an_abort_gets_work_on_streams_and_a_split_out() {
        let world = world(2);
        let rig = Rig::new(&world);
        let id = rig.unique_id();
        let comms: Vec<Comm> = run(&world, 2, move |rank| rank.init(id, 2));
        let rank = rig.rank(0);
        let buffer = rank.alloc(64);
        for _ in 0..3 {
            assert_eq!(rank.all_reduce(comms[0], buffer, 16), OK);
        }
        assert_eq!(split_until_aborted(&world, &rig, comms[0]), ncclResult_t::ncclInternalError);
        rank.synchronize();
        assert_eq!(rank.all_reduce(comms[0], buffer, 1), UNUSABLE, "the handle is gone");
        rig.abort(comms[1]);
        rank.free(buffer);
        rank.leave();
        world.finish().unwrap();
    }

    #[test]
    fn aborts_in_a_group_free_at_its_end() {
        let world = world(1);
        let id = Rig::new(&world).unique_id();
        run(&world, 1, move |rank| {
            let comm = rank.init(id, 1);
            ok!(rank.rig, ncclGroupStart());
            rank.rig.abort(comm);
            assert_eq!(rank.rig.place(comm), (0, 1), "the flag is up, the communicator is there");
            ok!(rank.rig, ncclGroupEnd());
            assert_eq!(nccl!(rank.rig, ncclCommCount(comm.0, &mut 0)), UNUSABLE);
        });
        world.finish().unwrap();
    }

    #[test]
    fn below_2_22_an_abort_under_a_caller_is_misuse() {
        let world = World::builder().devices(2).capacity(1 << 30).nccl_release(22105).start().unwrap();
        let rig = Rig::new(&world);
        let id = rig.unique_id();
        let comms: Vec<Comm> = run(&world, 2, move |rank| rank.init(id, 2));
        assert_eq!(split_until_aborted(&world, &rig, comms[0]), ncclResult_t::ncclInternalError);
        rig.abort(comms[1]);
        let error = world.finish().unwrap_err().to_string();
        assert!(error.contains("below 2.22"), "{error}");
    }

    #[test]
    fn a_group_that_fails_forgets_its_inits() {
        let world = world(1);
        let id = Rig::new(&world).unique_id();
        run(&world, 1, move |rank| {
            let mut comm = std::ptr::null_mut();
            ok!(rank.rig, ncclGroupStart());
            ok!(rank.rig, ncclCommInitRank(&mut comm, 1, id.0, 0));
            assert!(!comm.is_null());
            let mut other = std::ptr::null_mut();
            assert_eq!(nccl!(rank.rig, ncclCommInitRank(&mut other, 1, id.0, 7)), UNUSABLE);
            assert_eq!(nccl!(rank.rig, ncclGroupEnd()), UNUSABLE);
            assert!(comm.is_null());
        });
        world.finish().unwrap();
    }

    #[test]
    fn revoked_communicators_can_only_have_children() {
        let world = world(3);
        let id = Rig::new(&world).unique_id();
        run(&world, 3, move |rank| {
            let comm = rank.init(id, 3);
            let buffer = rank.alloc(64);
            if rank.rank != 2 {
                // Rank 2 never joins this one.
                assert_eq!(rank.all_reduce(comm, buffer, 16), OK);
            }
            ok!(rank.rig, ncclCommRevoke(comm.0, 0));
            rank.synchronize();
            assert_eq!(rank.all_reduce(comm, buffer, 16), ncclResult_t::ncclInvalidUsage);
            assert_eq!(nccl!(rank.rig, ncclCommFinalize(comm.0)), UNUSABLE);
            let child = rank.rig.split(comm, 0, 0);
            assert_eq!(rank.sum(child, 1), 3);
            rank.rig.destroy(child);
            rank.rig.destroy(comm);
            rank.free(buffer);
        });
        world.finish().unwrap();
    }

    #[test]
    fn a_meeting_for_a_child_ends_when_its_parent_is_aborted_first() {
        let world = world(2);
        let id = Rig::new(&world).unique_id();
        run(&world, 2, move |rank| {
            let comm = rank.init(id, 2);
            if rank.rank == 0 {
                let (mut child, mut excluded) = (std::ptr::null_mut(), [1]);
                ok!(rank.rig, ncclGroupStart());
                let list = excluded.as_mut_ptr();
                ok!(rank.rig, ncclCommShrink(comm.0, list, 1, &mut child, std::ptr::null_mut(), 0));
                std::thread::scope(|scope| scope.spawn(|| rank.rig.abort(comm)).join()).unwrap();
                assert_ne!(nccl!(rank.rig, ncclGroupEnd()), OK);
                rank.rig.abort(Comm(child));
            } else {
                rank.rig.abort(comm);
            }
        });
        // The root of the parent ends by itself, some time after its ranks have met.
        let roots = || {
            let names = std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path().join("comm"));
            names.filter(|name| std::fs::read_to_string(name).is_ok_and(|name| name.trim() == "nccl-root")).count()
        };
        let over = (0..6000).any(|_| {
            let over = roots() == 0;
            over || { std::thread::sleep(Duration::from_millis(10)); false }
        });
        assert!(over, "a root still waits for ranks");
        world.finish().unwrap();
    }

    #[test]
    fn a_child_that_fails_is_there_until_it_is_aborted_and_not_before_its_parent() {
        for parent_first in [true, false] {
            let world = world(2);
            let id = Rig::new(&world).unique_id();
            run(&world, 2, move |rank| {
                let comm = rank.init(id, 2);
                if rank.rank == 1 {
                    return rank.rig.destroy(comm);
                }
                let mut child = std::ptr::null_mut();
                let code = nccl!(rank.rig, ncclCommSplit(comm.0, 0, 0, &mut child, std::ptr::null_mut()));
                assert_eq!(code, ncclResult_t::ncclRemoteError);
                let ends = [comm, Comm(child)];
                ends.into_iter().cycle().skip(usize::from(!parent_first)).take(2).for_each(|comm| rank.rig.abort(comm));
            });
            let end = world.finish().map_err(|error| error.to_string());
            assert_eq!(end.is_ok(), parent_first, "{end:?}");
            assert!(end.err().is_none_or(|error| error.contains("still writes to that one's abort flag")));
        }
    }

    #[test]
    fn finalize_ends_the_work_and_comes_once() {
        let world = world(2);
        run_in_comm(&world, 2, |rank, comm| {
            let buffer = rank.upload(&1i32.to_ne_bytes());
            for _ in 0..5 {
                assert_eq!(rank.all_reduce(comm, buffer, 1), OK);
            }
            ok!(rank.rig, ncclCommFinalize(comm.0));
            assert_eq!(nccl!(rank.rig, ncclCommFinalize(comm.0)), UNUSABLE);
            assert_eq!(rank.all_reduce(comm, buffer, 1), ncclResult_t::ncclInvalidUsage);
            rank.synchronize();
            assert_eq!(rank.read(buffer, 4), 32i32.to_ne_bytes());
            rank.free(buffer);
        });
        world.finish().unwrap();
    }

    #[test]
    fn a_suspended_communicator_releases_its_buffers_and_refuses_what_needs_them() {
        let world = World::builder().devices(2).capacity(1 << 30).nccl_release(22907).start().unwrap();
        run_in_comm(&world, 2, |rank, comm| {
            let usage = ncclResult_t::ncclInvalidUsage;
            let buffer = rank.symmetric(1 << 21);
            let free = || {
                let (mut free, mut total) = (0, 0);
                cuda!(rank.rig, cuMemGetInfo_v2(&mut free, &mut total));
                free
            };
            let suspend = |flags| nccl!(rank.rig, ncclCommSuspend(comm.0, flags));
            assert_eq!([suspend(0), suspend(3)], [UNUSABLE; 2], "not modelled");
            let mut suspendable = 0;
            let which = ncclCommMemStat_t::ncclStatGpuMemSuspend;
            ok!(rank.rig, ncclCommMemStats(comm.0, which, &mut suspendable));
            assert_eq!(rank.sum(comm, 1), 2);
            let before = free();
            assert_eq!(suspend(1), OK);
            assert_eq!(free() - before, suspendable as usize);
            let (mut window, mut child) = (std::ptr::null_mut(), std::ptr::null_mut());
            let pointer = buffer as *mut std::ffi::c_void;
            assert_eq!(rank.all_reduce(comm, buffer, 1), usage);
            let registered = nccl!(rank.rig, ncclCommWindowRegister(comm.0, pointer, 1 << 21, &mut window, 1));
            assert_eq!(registered, usage);
            let split = nccl!(rank.rig, ncclCommSplit(comm.0, 0, 0, &mut child, std::ptr::null_mut()));
            assert_eq!(split, usage);
            assert_eq!(nccl!(rank.rig, ncclCommResume(comm.0)), OK);
            assert_eq!(free(), before);
            assert_eq!(rank.sum(comm, 2), 4);
            // It may end in this state.
            assert_eq!(suspend(1), OK);
            rank.free_symmetric(buffer);
        });
        world.finish().unwrap();
    }

    #[test]
    fn a_communicator_grows_by_ranks_that_have_its_unique_id() {
        let world = World::builder().devices(4).capacity(1 << 30).nccl_release(22907).start().unwrap();
        let id = Rig::new(&world).unique_id();
        let invitation = Shared::<Option<ncclUniqueId>>::default();
        run(&world, 4, move |rank| {
            let none = std::ptr::null_mut();
            let mut grown = std::ptr::null_mut();
            if rank.rank >= 2 {
                let mut grow = |id: *const ncclUniqueId, place| {
                    nccl!(rank.rig, ncclCommGrow(none, 4, id, place, &mut grown, std::ptr::null_mut()))
                };
                assert_eq!(grow(std::ptr::null(), 2), UNUSABLE, "no id");
                let invited = loop {
                    if let Some(id) = *invitation.lock().unwrap() {
                        break id;
                    }
                    std::thread::sleep(Duration::from_millis(1));
                };
                assert_eq!(grow(&invited, -1), UNUSABLE, "no rank");
                assert_eq!(grow(&invited, rank.rank as c_int), OK, "{}", rank.rig.last_error());
            } else {
                let comm = rank.init(id, 2);
                let mut grow = |size, id: *const ncclUniqueId, place| {
                    nccl!(rank.rig, ncclCommGrow(comm.0, size, id, place, &mut grown, std::ptr::null_mut()))
                };
                assert_eq!(grow(2, std::ptr::null(), -1), UNUSABLE, "not more ranks");
                assert_eq!(grow(4, std::ptr::null(), rank.rank as c_int), UNUSABLE, "a rank");
                let mut own = ncclUniqueId { internal: [0; 128] };
                assert_eq!(grow(4, if rank.rank == 1 { &own } else { std::ptr::null() }, -1), match rank.rank {
                    0 => ncclResult_t::ncclInvalidUsage,
                    _ => UNUSABLE,
                });
                if rank.rank == 1 {
                    assert_eq!(grow(4, std::ptr::null(), -1), ncclResult_t::ncclInvalidUsage, "nobody has an id");
                }
                rank.rig.abort(Comm(grown));
                if rank.rank == 1 {
                    let mut make = || nccl!(rank.rig, ncclCommGetUniqueId(comm.0, &mut own));
                    assert_eq!([make(), make()], [OK, ncclResult_t::ncclInvalidUsage], "one at a time");
                    *invitation.lock().unwrap() = Some(own);
                }
                let mut grow = |id: *const ncclUniqueId| {
                    nccl!(rank.rig, ncclCommGrow(comm.0, 4, id, -1, &mut grown, std::ptr::null_mut()))
                };
                let code = if rank.rank == 1 { grow(&own) } else { grow(std::ptr::null()) };
                assert_eq!(code, OK, "{}", rank.rig.last_error());
                assert_eq!(rank.sum(comm, 1), 2);
                rank.rig.destroy(comm);
            }
            let grown = Comm(grown);
            assert_eq!(rank.rig.place(grown), (rank.rank, 4));
            assert_eq!(rank.sum(grown, 1), 4);
            rank.rig.destroy(grown);
        });
        world.finish().unwrap();
    }

    #[test]
    fn a_suspension_that_another_rank_does_not_join_is_an_error() {
        let world = World::builder().devices(2).capacity(1 << 30).nccl_release(22907).start().unwrap();
        run_in_comm(&world, 2, |rank, comm| {
            let code = match rank.rank {
                0 => nccl!(rank.rig, ncclCommSuspend(comm.0, 1)),
                _ => {
                    let mut child = std::ptr::null_mut();
                    nccl!(rank.rig, ncclCommSplit(comm.0, 0, 0, &mut child, std::ptr::null_mut()))
                }
            };
            assert_eq!(code, ncclResult_t::ncclInvalidUsage);
            assert!(rank.rig.last_error().contains("rank 0: ncclCommSuspend"), "{}", rank.rig.last_error());
        });
    }

    #[test]
    fn a_communicator_that_is_left_is_a_leak() {
        let world = world(1);
        let id = Rig::new(&world).unique_id();
        run(&world, 1, move |rank| rank.init(id, 1));
        let error = world.finish().unwrap_err().to_string();
        assert!(error.contains("communicator") && error.contains("rank 0 of 1"), "{error}");
    }

    #[test]
    fn functions_that_a_release_lacks_are_absent() {
        let has = |release: i32| {
            let world = World::builder().nccl_release(release).start().unwrap();
            let table = world.nccl();
            let mut version = 0;
            // SAFETY: the version is written in place.
            unsafe { table.ncclGetVersion.unwrap()(&mut version) };
            assert_eq!(version, release);
            world.finish().unwrap();
            [
                table.ncclCommSplit.is_some(),
                table.ncclCommRegister.is_some(),
                table.ncclCommInitRankScalable.is_some(),
                table.ncclCommWindowRegister.is_some() && table.ncclCommShrink.is_some(),
                table.ncclAlltoAll.is_some(),
                table.ncclCommRevoke.is_some(),
                table.ncclCommMemStats.is_some()
                    && table.ncclCommGrow.is_some()
                    && table.ncclCommSuspend.is_some()
                    && table.ncclCommResume.is_some(),
            ]
        };
        assert_eq!(has(21304), [false; 7]);
        assert_eq!(has(21903), [true, true, false, false, false, false, false]);
        assert_eq!(has(22703), [true, true, true, true, false, false, false]);
        assert_eq!(has(22803), [true, true, true, true, true, false, false]);
        assert_eq!(has(22809), [true, true, true, true, true, true, false]);
        assert_eq!(has(22907), [true; 7]);
    }

    #[test]
    fn a_code_of_no_release_is_refused() {
        for code in [0, -1, 2289, 21303, 22850, 22899, 23204, 23300, 228_090] {
            let error = World::builder().nccl_release(code).start().unwrap_err();
            assert!(matches!(error, WorldError::BadSetting { setting: "nccl_release", .. }), "{code}: {error}");
            let text = error.to_string();
            assert!(text.contains(&code.to_string()) && text.contains(&NCCL_VERSION_CODE.to_string()), "{text}");
        }
    }

    #[test]
    fn calls_are_counted_and_can_fail() {
        let world = world(1);
        let rig = Rig::new(&world);
        world.faults().inject(Injection::new("ncclGetUniqueId", Action::Fail(2))).unwrap();
        let mut id = ncclUniqueId { internal: [0; 128] };
        assert_eq!(nccl!(rig, ncclGetUniqueId(&mut id)), ncclResult_t::ncclSystemError);
        rig.unique_id();
        assert_eq!(world.calls("ncclGetUniqueId"), 2);
        // An injected failure of a queued call leaves the group usable.
        run_in_comm(&world, 1, |rank, comm| {
            let buffer = rank.upload(&5i32.to_ne_bytes());
            assert_eq!(rank.all_reduce(comm, buffer, 1), OK);
            rank.synchronize();
            rank.free(buffer);
        });
        assert_eq!(world.calls("ncclAllReduce"), 1);
        world.finish().unwrap();
    }

    #[test]
    fn texts_of_codes() {
        let world = world(1);
        let rig = Rig::new(&world);
        let text = |code| {
            // SAFETY: the answer is a C string that lives for ever.
            unsafe { std::ffi::CStr::from_ptr(rig.nccl.ncclGetErrorString.unwrap()(code)) }.to_str().unwrap()
        };
        assert_eq!(text(OK), "no error");
        assert_eq!(text(ncclResult_t(99)), "unknown result code");
        assert_eq!(text(ncclResult_t::ncclTimeout), "unknown result code", "2.28 has no such code");
        world.finish().unwrap();
    }
}
