//! Windows: outcomes by release and support, order, deregistration, and refused calls.

use cuda_driver::{
    DevicePtr,
    vmm::{Access, HandleTypes, Mapping, PhysicalMemory, Reservation},
};
use nccl_sys::Version;
use process_group::comm::{
    CommError, WindowFacts, WindowOutcome, WindowRequest, WindowsUnsupported, register_windows_together,
};
use rusty_fork::rusty_fork_test;

use super::common::{Machine, Rank, far, machine, machine_with, soon};

const SEGMENT: usize = 2 << 20;

/// A segment that NCCL can export.
pub(crate) fn segment(rank: &Rank) -> Mapping {
    let physical = PhysicalMemory::create(&rank.context, SEGMENT, HandleTypes::POSIX_FD).unwrap();
    let reservation = Reservation::new(rank.context.driver(), SEGMENT, SEGMENT).unwrap();
    let mapping = reservation.map(0, &physical, 0, SEGMENT).unwrap();
    mapping.set_access(&[(rank.context.device(), Access::ReadWrite)]).unwrap();
    mapping
}

fn request(mapping: &Mapping) -> WindowRequest {
    WindowRequest::symmetric(mapping.ptr(), SEGMENT)
}

fn outcomes(machine: &Machine) -> Vec<Vec<WindowOutcome>> {
    machine.ranks(2, |rank| {
        let communicator = rank.communicator();
        let segments = [segment(&rank), segment(&rank)];
        let outcomes = unsafe { communicator.register_windows(&segments.each_ref().map(request), far()) };
        communicator.destroy(far()).unwrap();
        outcomes.unwrap()
    })
}

rusty_fork_test! {
    #[test]
    fn windows_are_registered_used_and_deregistered_in_order() {
        let machine = machine(2);
        machine.ranks(2, |rank| {
            let communicator = rank.communicator();
            communicator.windows_supported().unwrap();
            let segments = [segment(&rank), segment(&rank)];
            let outcomes =
                unsafe { communicator.register_windows(&segments.each_ref().map(request), far()) }.unwrap();
            let windows: Vec<_> = outcomes
                .into_iter()
                .map(|outcome| match outcome {
                    WindowOutcome::Registered(window) => window,
                    other => panic!("{other:?}"),
                })
                .collect();
            assert_eq!(windows.iter().map(|window| window.serial()).collect::<Vec<_>>(), [0, 1]);
            assert!(windows.iter().all(|window| !window.raw().is_null()));
            let again = unsafe { communicator.register_windows(&[request(&segments[0])], far()) };
            assert!(matches!(again, Err(CommError::WindowRequest(_))), "{again:?}");
            unsafe { communicator.deregister_windows(windows.clone(), far()) }.unwrap();
            // NCCL must not be given the handle of a window that is gone.
            let twice = unsafe { communicator.deregister_windows(windows, far()) };
            assert!(matches!(&twice, Err(CommError::WindowRequest(error)) if error.index == 0), "{twice:?}");
            unsafe { communicator.register_windows(&[request(&segments[0])], far()) }.unwrap();
            communicator.destroy(far()).unwrap();
        });
        assert_eq!(machine.world.calls("ncclCommWindowRegister"), 6);
        assert_eq!(machine.world.calls("ncclCommWindowDeregister"), 4);
        machine.world.finish().unwrap();
    }

    #[test]
    fn one_thread_registers_for_several_ranks() {
        let machine = machine(2);
        let ranks = machine.ranks(2, |rank| (rank.communicator(), segment(&rank)));
        let requests: Vec<_> = ranks.iter().map(|(_, segment)| [request(segment)]).collect();
        let jobs: Vec<_> = ranks.iter().zip(&requests).map(|((communicator, _), r)| (communicator, &r[..])).collect();
        for outcome in unsafe { register_windows_together(&jobs, far()) } {
            assert!(outcome.unwrap()[0].window().is_some());
        }
        let (communicators, segments): (Vec<_>, Vec<_>) = ranks.into_iter().unzip();
        for result in process_group::comm::Communicator::destroy_together(communicators, far()) {
            result.unwrap();
        }
        drop(segments);
        machine.world.finish().unwrap();
    }

    #[test]
    fn a_rank_that_does_not_come_is_a_deadline_and_poisons() {
        let machine = machine(2);
        machine.ranks(2, |rank| {
            let communicator = rank.communicator();
            let segment = segment(&rank);
            if rank.rank == 0 {
                let error = unsafe { communicator.register_windows(&[request(&segment)], soon()) }.unwrap_err();
                assert!(matches!(error, CommError::DeadlineExceeded { .. }), "{error}");
                assert!(error.to_string().contains("register 1 windows in the same order"), "{error}");
                let error = communicator.check().unwrap_err();
                assert!(matches!(error, CommError::Poisoned { .. }), "{error}");
            }
            communicator.abort(far()).unwrap();
        });
        machine.world.finish().unwrap();
    }

    #[test]
    fn the_release_known_to_be_bad_has_none_and_says_why() {
        let machine = machine_with(2, 22803);
        for outcome in outcomes(&machine).into_iter().flatten() {
            let WindowOutcome::Unsupported(reason) = outcome else { panic!("{outcome:?}") };
            assert!(reason.to_string().contains("2.28.3"), "{reason}");
        }
        assert_eq!(machine.world.calls("ncclCommWindowRegister"), 0);
        machine.world.finish().unwrap();
    }

    #[test]
    fn a_release_that_is_too_old_has_none() {
        let machine = machine_with(2, 22105);
        for outcome in outcomes(&machine).into_iter().flatten() {
            assert!(matches!(outcome, WindowOutcome::Unsupported(WindowsUnsupported::Release(_))));
        }
        machine.world.finish().unwrap();
    }

    #[test]
    fn later_releases_register_too() {
        for release in [22705, 22907, 23007] {
            let machine = machine_with(2, release);
            for outcome in outcomes(&machine).into_iter().flatten() {
                assert!(outcome.window().is_some(), "{release}: {outcome:?}");
            }
            machine.world.finish().unwrap();
        }
    }

    #[test]
    fn an_environment_without_windows_is_seen_before_the_call() {
        // SAFETY: this process has one thread yet.
        unsafe { std::env::set_var("NCCL_WIN_ENABLE", "0") };
        let machine = machine(2);
        for outcome in outcomes(&machine).into_iter().flatten() {
            assert!(matches!(
                outcome,
                WindowOutcome::Unsupported(WindowsUnsupported::Disabled { variable: "NCCL_WIN_ENABLE" })
            ));
        }
        machine.world.finish().unwrap();
    }

    #[test]
    fn null_from_a_later_release_is_unsupported() {
        // SAFETY: this process has one thread yet.
        unsafe { std::env::set_var("NCCL_WIN_ENABLE", "0") };
        let machine = machine_with(2, 22907);
        machine.ranks(2, |rank| {
            let mut config = rank.config();
            // The same as members that have not published it.
            config.window_facts = WindowFacts { window_enable: Some(true), ..WindowFacts::default() };
            let communicator = process_group::comm::Communicator::init(
                &rank.nccl, &rank.context, &rank.id, rank.rank, 2, &config, far(),
            ).unwrap();
            let segment = segment(&rank);
            let outcomes = unsafe { communicator.register_windows(&[request(&segment)], far()) }.unwrap();
            assert!(matches!(
                outcomes[0],
                WindowOutcome::Unsupported(WindowsUnsupported::NoHandle { .. })
            ), "{outcomes:?}");
            communicator.destroy(far()).unwrap();
        });
        machine.world.finish().unwrap();
    }

    /// Members with other drivers get the same answer, or some of them would wait for the others to register a window.
    #[test]
    fn the_oldest_driver_of_the_members_decides() {
        let machine = machine(2);
        machine.ranks(2, |rank| {
            let old = Version::new(11, 8, 0);
            assert!(rank.context.driver().version() > old);
            let mut config = rank.config();
            config.window_facts = WindowFacts { oldest_driver: Some(old), ..config.window_facts };
            let communicator = process_group::comm::Communicator::init(
                &rank.nccl, &rank.context, &rank.id, rank.rank, 2, &config, far(),
            ).unwrap();
            assert_eq!(communicator.windows_supported(), Err(WindowsUnsupported::Driver { found: old }));
            communicator.destroy(far()).unwrap();

            let world = rank.world();
            let oldest = world.members().iter().map(|member| member.driver).min();
            assert_eq!(world.communicator().config().window_facts.oldest_driver, oldest);
            world.destroy(far()).unwrap();
        });
        machine.world.finish().unwrap();
    }

    #[test]
    fn requests_that_one_rank_can_refuse_are_refused() {
        let machine = machine(2);
        machine.ranks(2, |rank| {
            let communicator = rank.communicator();
            let at = |address, bytes| WindowRequest::symmetric(DevicePtr(address), bytes);
            for bad in [at(0, SEGMENT), at(4096, 0), at(4097, SEGMENT)] {
                let error = unsafe { communicator.register_windows(&[bad], far()) }.unwrap_err();
                assert!(matches!(error, CommError::WindowRequest(_)), "{error}");
            }
            communicator.destroy(far()).unwrap();
        });
        machine.world.finish().unwrap();
    }
}
