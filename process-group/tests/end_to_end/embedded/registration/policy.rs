//! Either all ranks register or none, and all get the reason.

use std::sync::atomic::{AtomicU64, Ordering};

use gpu_sim::{Action, Injection};
use process_group::{
    group::{NotRegistered, RegistrationStatus, Request},
    registration::{RegistrarError, SegmentRegistrar, Unregistrable},
};
use rusty_fork::rusty_fork_test;

use super::{
    super::common::{Machine, far, machine, machine_with},
    LARGE, Memory, allocator_of, gather, numbers,
};

/// Returns the agreement of two ranks with this `memory` and the requests `asked`. The gathered data is
/// correct in any case.
fn agreed(machine: &Machine, asked: [bool; 2], memory: [Option<Memory>; 2]) -> Result<(), NotRegistered> {
    static EPOCH: AtomicU64 = AtomicU64::new(0);
    let epoch = EPOCH.fetch_add(1, Ordering::Relaxed);
    let mut outcomes = machine.ranks(2, |rank| {
        let me = rank.rank;
        let (allocator, id, stream) = allocator_of(&rank, memory[me].unwrap_or(Memory::Exportable));
        let registrar = memory[me].map(|_| SegmentRegistrar::attach(&allocator).unwrap());
        let early = allocator.allocate(LARGE, id).unwrap();
        let world = rank.builder().epoch(epoch).registration(asked[me]).build().unwrap();
        let pair = world.split("pair", &Request::Lists(vec![vec![1, 0]])).unwrap().unwrap();
        assert_eq!(world.registration(), pair.registration());
        let alive = registrar.as_ref().map_or(0, |registrar| registrar.counts().registrations);
        assert_eq!(alive > 0, world.registration().is_ok(), "{alive}");
        for group in [&world, &pair] {
            assert_eq!(gather(group, &allocator, id, &stream), numbers(2));
            let report = group.registration_report();
            let own = report.operations.iter().find(|one| one.operation == "all_gather").unwrap();
            let all = own.registered + own.unregistered.iter().map(|(_, count)| count).sum::<u64>();
            assert_eq!((all, own.registered > 0), (2, world.registration().is_ok()), "{report}");
        }
        let outcome = world.registration();
        pair.destroy(far()).unwrap();
        world.destroy(far()).unwrap();
        drop(early);
        if let Some(registrar) = registrar {
            assert_eq!(registrar.counts().registrations, 0);
            registrar.detach().unwrap();
        }
        allocator.empty_cache().unwrap();
        outcome
    });
    let (second, first) = (outcomes.pop().unwrap(), outcomes.pop().unwrap());
    assert_eq!(first, second);
    first
}

const BOTH: [Option<Memory>; 2] = [Some(Memory::Exportable); 2];

rusty_fork_test! {
    #[test]
    fn all_register_or_none_and_all_know_why() {
        use Memory::{Exportable, Plain, Remappable};
        let machine = machine(2);
        assert_eq!(agreed(&machine, [true, true], BOTH), Ok(()));
        let registered = machine.world.calls("ncclCommRegister");
        assert!(registered >= 4, "{registered}");
        assert_eq!(agreed(&machine, [false, false], BOTH), Err(NotRegistered::NotAsked));
        assert_eq!(agreed(&machine, [true, false], BOTH), Err(NotRegistered::NotAskedOf { rank: 1 }));
        // No rank has registered unless the others have.
        assert_eq!(machine.world.calls("ncclCommRegister"), registered);
        let none = agreed(&machine, [true, true], [Some(Exportable), None]);
        assert_eq!(none, Err(NotRegistered::NoAllocator { rank: 1 }));
        let other = agreed(&machine, [true, true], [Some(Exportable), Some(Plain)]);
        assert!(matches!(other, Err(NotRegistered::Allocators { rank: 1, other: 0, .. })), "{other:?}");
        for (memory, reason) in [(Plain, Unregistrable::NotExportable), (Remappable, Unregistrable::Remappable)] {
            let refused = agreed(&machine, [true, true], [Some(memory); 2]);
            assert_eq!(refused, Err(NotRegistered::Unregistrable { reason }));
        }
        machine.world.finish().unwrap();
    }

    #[test]
    fn a_release_without_registration_is_named() {
        let machine = machine_with(2, 21705);
        let outcome = agreed(&machine, [true, true], BOTH);
        assert!(matches!(outcome, Err(NotRegistered::Release { rank: 0, .. })), "{outcome:?}");
        assert!(outcome.unwrap_err().to_string().contains("2.17.5"));
        machine.world.finish().unwrap();
    }

    #[test]
    fn a_rank_that_cannot_register_what_it_has_keeps_all_from_it() {
        let machine = machine(2);
        // One rank's call, the later one. The other has registered its segment, and deregisters it.
        machine.world.faults().inject(Injection::new("ncclCommRegister", Action::Fail(2)).nth(2)).unwrap();
        let outcome = agreed_once(&machine);
        let Err(NotRegistered::Failed { problem, .. }) = &outcome else { panic!("{outcome:?}") };
        assert!(problem.contains("ncclCommRegister failed"), "{problem}");
        machine.world.finish().unwrap();
    }

    #[test]
    fn what_is_not_registered_is_counted_with_the_reason() {
        let machine = machine(2);
        machine.ranks(2, |rank| {
            let (allocator, id, stream) = allocator_of(&rank, Memory::Exportable);
            let registrar = SegmentRegistrar::attach(&allocator).unwrap();
            let twice = SegmentRegistrar::attach(&allocator).unwrap_err();
            assert!(matches!(twice, RegistrarError::AlreadyAttached { .. }), "{twice}");
            let world = rank.builder().registration(true).build().unwrap();
            assert_eq!(gather(&world, &allocator, id, &stream), numbers(2));
            // An allocator attached later registers with no existing communicator: on another rank it might
            // be attached even later.
            let (late, late_id, late_stream) = allocator_of(&rank, Memory::Exportable);
            let late_registrar = SegmentRegistrar::attach(&late).unwrap();
            assert_eq!(gather(&world, &late, late_id, &late_stream), numbers(2));
            let memory = rank.memory(&[1.0; 2]);
            let buffer = process_group::group::Buffer::new(memory.ptr(), 2, process_group::comm::DataType::F32);
            let sum = process_group::comm::ReduceOp::Sum;
            unsafe { world.raw().all_reduce(buffer, buffer, sum, &stream) }.unwrap().wait_until(far()).unwrap();
            let report = world.registration_report();
            assert!(report.policy.is_ok());
            let found: Vec<_> = report.operations.iter().map(|one| (one.operation, one.registered, &one.unregistered[..])).collect();
            assert_eq!(found, [
                ("all_reduce", 0, &[(RegistrationStatus::Foreign, 1)][..]),
                ("all_gather", 2, &[(RegistrationStatus::Late, 2)][..]),
            ], "{report}");
            assert_eq!(late_registrar.counts().registrations, 0);
            let busy = registrar.detach().unwrap_err();
            assert!(matches!(busy, RegistrarError::InUse { groups: 1 }), "{busy}");
            world.destroy(far()).unwrap();
            late_registrar.detach().unwrap();
            // The last group has released it.
            SegmentRegistrar::attach(&allocator).unwrap().detach().unwrap();
        });
        machine.world.finish().unwrap();
    }
}

/// Like [`agreed`], for one group.
fn agreed_once(machine: &Machine) -> Result<(), NotRegistered> {
    let mut outcomes = machine.ranks(2, |rank| {
        let (allocator, id, stream) = allocator_of(&rank, Memory::Exportable);
        let registrar = SegmentRegistrar::attach(&allocator).unwrap();
        let early = allocator.allocate(LARGE, id).unwrap();
        let world = rank.builder().registration(true).build().unwrap();
        assert_eq!(registrar.counts().registrations, 0);
        assert_eq!(gather(&world, &allocator, id, &stream), numbers(2));
        // A later segment is not registered either.
        let later = allocator.allocate(4 * LARGE, id).unwrap();
        assert_eq!(registrar.counts().registrations, 0);
        let outcome = world.registration();
        world.destroy(far()).unwrap();
        drop((early, later));
        outcome
    });
    let (second, first) = (outcomes.pop().unwrap(), outcomes.pop().unwrap());
    assert_eq!(first, second);
    first
}
