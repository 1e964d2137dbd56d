//! Registration with communicators for messages, and with communicators that are made later than their group.

use gpu_sim::{Action, Injection};
use process_group::{
    ProcessGroup,
    comm::DataType::F32,
    group::{Buffer, NotRegistered, P2pPolicy, RegistrationStatus},
    registration::SegmentRegistrar,
};
use rusty_fork::rusty_fork_test;

use super::{
    super::common::{Machine, Rank, far, machine},
    LARGE, Memory, allocator_of, gather, numbers,
};

/// Sends this rank's number around the ring through the allocator's memory. Returns the number received.
fn pass_on(
    world: &ProcessGroup,
    allocator: &caching_alloc::core::Allocator,
    id: caching_alloc::core::StreamId,
) -> f32 {
    let block = allocator.allocate(8, id).unwrap();
    let at = |offset: u64| cuda_driver::DevicePtr(block.address() + offset);
    let (rank, size) = (world.rank(), world.size());
    let (next, last) = ((rank + 1) % size, (rank + size - 1) % size);
    unsafe { world.context().copy_from_host(at(0), &[rank as f32, -1.0]).unwrap() };
    let send =
        || unsafe { world.raw().send(Buffer::new(at(0), 1, F32), next, world.send_stream(next).unwrap()) };
    let receive =
        || unsafe { world.raw().recv(Buffer::new(at(4), 1, F32), last, world.recv_stream(last).unwrap()) };
    // A rank that blocks on the host until the other end comes will meet it: all use one order of the ring's
    // pairs.
    let works = if rank < next {
        [send().unwrap(), receive().unwrap()]
    } else {
        [receive().unwrap(), send().unwrap()]
    };
    works.iter().for_each(|work| work.wait_until(far()).unwrap());
    let mut found = [0f32];
    unsafe { world.context().copy_to_host(&mut found, at(4)).unwrap() };
    found[0]
}

/// Runs two ranks with a segment each. Returns the results of `body` on their group.
fn two<T: Send>(
    machine: &Machine,
    policy: P2pPolicy,
    lazy: bool,
    has_allocator: impl Fn(usize) -> bool + Sync,
    body: impl Fn(&Rank, &ProcessGroup, Option<&SegmentRegistrar>, &dyn Fn() -> f32, &dyn Fn() -> Vec<f32>) -> T
    + Sync,
) -> Vec<T> {
    machine.ranks(2, |rank| {
        let (allocator, id, stream) = allocator_of(&rank, Memory::Exportable);
        let registrar = has_allocator(rank.rank).then(|| SegmentRegistrar::attach(&allocator).unwrap());
        let block = allocator.allocate(LARGE, id).unwrap();
        // Makes the segment for small requests exist from the start.
        let small = allocator.allocate(8, id).unwrap();
        let builder = rank.builder().registration(true).p2p(policy);
        let world = if lazy { builder.lazy() } else { builder }.build().unwrap();
        let pass = || pass_on(&world, &allocator, id);
        let gathered = || gather(&world, &allocator, id, &stream);
        let said = body(&rank, &world, registrar.as_ref(), &pass, &gathered);
        world.destroy(far()).unwrap();
        drop((block, small));
        if let Some(registrar) = registrar {
            assert_eq!(registrar.counts().registrations, 0);
            registrar.detach().unwrap();
        }
        allocator.empty_cache().unwrap();
        said
    })
}

/// Returns the counts of the buffers of a lazy group's first call, on each rank.
fn first_calls(has_allocator: impl Fn(usize) -> bool + Sync) -> Vec<(u64, Vec<(RegistrationStatus, u64)>)> {
    let machine = machine(2);
    let reports = two(&machine, P2pPolicy::Auto, true, has_allocator, |_, world, _, _, gathered| {
        assert_eq!(world.registration(), Err(NotRegistered::Lazy));
        assert_eq!(gathered(), numbers(2));
        let report = world.registration_report();
        let [gather] = &report.operations[..] else { panic!("{report}") };
        (gather.registered, gather.unregistered.clone())
    });
    machine.world.finish().unwrap();
    reports
}

rusty_fork_test! {
    #[test]
    fn lanes_know_what_the_group_knows() {
        let machine = machine(2);
        two(&machine, P2pPolicy::Lanes(2), false, |_| true, |rank, world, registrar, pass, gathered| {
            assert_eq!(world.registration(), Ok(()));
            // Two segments, with the group's communicator and two lanes.
            assert_eq!(registrar.unwrap().counts().registrations, 6);
            assert_eq!(pass(), 1.0 - rank.rank as f32);
            assert_eq!(gathered(), numbers(2));
            let report = world.registration_report();
            assert!(report.operations.iter().all(|one| one.unregistered.is_empty()), "{report}");
            assert_eq!(report.operations.len(), 3, "{report}");
        });
        machine.world.finish().unwrap();
    }

    #[test]
    fn pairs_agree_for_themselves() {
        let machine = machine(2);
        two(&machine, P2pPolicy::PerPair, false, |_| true, |rank, world, registrar, pass, _| {
            assert_eq!(registrar.unwrap().counts().registrations, 2);
            assert_eq!(pass(), 1.0 - rank.rank as f32);
            assert_eq!(registrar.unwrap().counts().registrations, 4);
            assert_eq!(world.p2p().not_registered, []);
        });
        machine.world.finish().unwrap();
    }

    #[test]
    fn both_ends_of_a_pair_know_why_it_has_nothing() {
        let machine = machine(2);
        two(&machine, P2pPolicy::PerPair, false, |rank| rank == 0, |rank, world, registrar, pass, _| {
            assert_eq!(pass(), 1.0 - rank.rank as f32);
            let why = NotRegistered::NoAllocator { rank: 1 };
            assert_eq!(world.registration(), Err(why.clone()));
            assert_eq!(world.p2p().not_registered, [(1 - rank.rank, why)]);
            assert!(registrar.is_none_or(|registrar| registrar.counts().registrations == 0));
        });
        machine.world.finish().unwrap();
    }

    #[test]
    fn a_rank_that_cannot_register_for_a_pair_keeps_the_other_from_it() {
        let machine = machine(2);
        // Both ranks' two segments with the group's communicator, then one with the pair's.
        machine.world.faults().inject(Injection::new("ncclCommRegister", Action::Fail(2)).nth(6)).unwrap();
        let said = two(&machine, P2pPolicy::PerPair, false, |_| true, |rank, world, registrar, pass, _| {
            assert_eq!(world.registration(), Ok(()));
            assert_eq!(pass(), 1.0 - rank.rank as f32);
            assert_eq!(registrar.unwrap().counts().registrations, 2);
            world.p2p().not_registered
        });
        let [(1, NotRegistered::Failed { rank, problem })] = &said[0][..] else { panic!("{said:?}") };
        assert!(*rank < 2 && problem.contains("ncclCommRegister failed"), "{said:?}");
        assert_eq!(said[0][0].1, said[1][0].1);
        machine.world.finish().unwrap();
    }

    #[test]
    fn a_lazy_group_agrees_when_it_makes_its_communicator() {
        let machine = machine(2);
        two(&machine, P2pPolicy::Auto, true, |_| true, |rank, world, registrar, pass, gathered| {
            let count = || registrar.unwrap().counts().registrations;
            assert_eq!((world.registration(), count()), (Err(NotRegistered::Lazy), 0));
            // The pair's communicator is made first.
            assert_eq!(pass(), 1.0 - rank.rank as f32);
            assert_eq!((world.registration(), count()), (Err(NotRegistered::Lazy), 2));
            assert_eq!(gathered(), numbers(2));
            assert_eq!((world.registration(), count()), (Ok(()), 4));
            assert_eq!(gathered(), numbers(2));
            let report = world.registration_report();
            let lay = |name: &str| {
                let one = report.operations.iter().find(|one| one.operation == name).unwrap();
                (one.registered, one.unregistered.clone())
            };
            assert_eq!(lay("all_gather"), (4, vec![]), "{report}");
            // The counts include the call that made the pair's communicator.
            for message in ["send", "recv"] {
                assert_eq!(lay(message), (1, vec![]), "{report}");
            }
        });
        machine.world.finish().unwrap();
    }

    #[test]
    fn the_first_call_of_a_lazy_group_is_counted_as_its_buffers_lay() {
        let reports = first_calls(|_| true);
        assert!(reports.iter().all(|it| *it == (2, vec![])), "{reports:?}");
    }

    #[test]
    fn without_agreement_it_is_counted_as_not_agreed_to() {
        let reports = first_calls(|rank| rank == 0);
        assert_eq!(reports, [(0, vec![(RegistrationStatus::NotAgreed, 2)]), (0, vec![(RegistrationStatus::Foreign, 2)])]);
    }
}
