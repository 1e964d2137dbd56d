//! Single pools, which are made and registered after the group.

use std::sync::Arc;

use caching_alloc::{
    core::{Allocator, Block, Pool, PoolSettings, StreamId},
    driver::DriverSource,
};
use cuda_driver::{DevicePtr, Stream};
use gpu_sim::{Action, Injection};
use process_group::{
    ProcessGroup,
    comm::{DataType::F32, ReduceOp},
    group::{Buffer, GroupError, GroupErrorKind, NotRegistered, P2pPolicy, RegistrationStatus},
    registration::{RegistrarError, SegmentRegistrar},
};
use rusty_fork::rusty_fork_test;

use super::{
    super::common::{far, machine, machine_with},
    LARGE, Memory, add, allocator_of,
};

fn pool(allocator: &Allocator, name: &str) -> Pool {
    allocator.pool(PoolSettings { name: name.into(), ..PoolSettings::default() }).unwrap()
}

fn all_reduce(world: &ProcessGroup, block: &Block, stream: &Stream) {
    let buffer = Buffer::new(DevicePtr(block.address()), 64, F32);
    unsafe { world.raw().all_reduce(buffer, buffer, ReduceOp::Sum, stream) }
        .unwrap()
        .wait_until(far())
        .unwrap();
}

/// Returns the number of buffers of all-reduces in registered memory, and in other memory.
fn seen(world: &ProcessGroup) -> (u64, u64) {
    let report = world.registration_report();
    let own = report.operations.iter().find(|one| one.operation == "all_reduce").unwrap();
    let others: Vec<_> = own.unregistered.iter().map(|(lying, _)| *lying).collect();
    assert!(others.iter().all(|lying| *lying == RegistrationStatus::Foreign), "{report}");
    (own.registered, own.unregistered.iter().map(|(_, count)| count).sum())
}

fn reason(error: GroupError) -> NotRegistered {
    let text = error.to_string();
    let group = error.group().unwrap().to_owned();
    let GroupErrorKind::NotRegistered { source } = error.into_kind() else { panic!("{text}") };
    let outcome = match source {
        NotRegistered::UnknownPool { .. } => "deregister_pool: nothing was deregistered",
        _ => "register_pool failed on all members, and no pool was registered",
    };
    assert_eq!(text, format!("{group}: {outcome}: {source}"));
    source
}

rusty_fork_test! {
    #[test]
    fn one_pool_is_registered_and_no_other_memory() {
        let machine = machine(2);
        let calls = || (machine.world.calls("ncclCommRegister"), machine.world.calls("ncclCommDeregister"));
        machine.ranks(2, |rank| {
            // Two communicators: the group's own and a lane.
            let world = rank.builder().p2p(P2pPolicy::Lanes(1)).build().unwrap();
            let step = |wanted: (u64, u64)| {
                world.barrier(far()).unwrap();
                assert_eq!(calls(), wanted);
                world.barrier(far()).unwrap();
            };
            let (allocator, id, stream): (_, StreamId, _) = allocator_of(&rank, Memory::Exportable);
            let (wanted, other) = (pool(&allocator, "wanted"), pool(&allocator, "other"));
            let early = wanted.allocate(LARGE, id).unwrap();
            let foreign = [other.allocate(LARGE, id).unwrap(), allocator.allocate(LARGE, id).unwrap()];
            all_reduce(&world, &early, &stream);
            assert_eq!(seen(&world), (0, 1));
            step((0, 0));
            world.register_pool(&wanted, far()).unwrap();
            step((4, 0));
            // Later segments, of this pool and of others.
            let late = wanted.allocate(2 * LARGE, id).unwrap();
            let more = other.allocate(2 * LARGE, id).unwrap();
            step((8, 0));
            for block in [&early, &late, &foreign[0], &foreign[1], &more] {
                all_reduce(&world, block, &stream);
            }
            assert_eq!(seen(&world), (2, 4));
            assert_eq!(world.registration(), Err(NotRegistered::NotAsked));
            let again = reason(world.register_pool(&wanted, far()).unwrap_err());
            assert!(matches!(&again, NotRegistered::Failed { rank: 0, problem } if problem.contains("already")), "{again}");
            // Segments leave NCCL before their memory goes.
            drop((late, more));
            allocator.empty_cache().unwrap();
            step((8, 4));
            // SAFETY: no graph uses the memory.
            unsafe { world.deregister_pool(&wanted, far()) }.unwrap();
            step((8, 8));
            all_reduce(&world, &early, &stream);
            assert_eq!(seen(&world), (2, 5));
            // SAFETY: no graph uses the memory.
            let unknown = reason(unsafe { world.deregister_pool(&other, far()) }.unwrap_err());
            assert_eq!(unknown, NotRegistered::UnknownPool { pool: "other".into() });
            world.register_pool(&wanted, far()).unwrap();
            step((12, 8));
            world.destroy(far()).unwrap();
            drop((early, foreign, wanted, other));
            allocator.empty_cache().unwrap();
        });
        assert_eq!(calls(), (12, 12));
        machine.world.finish().unwrap();
    }

    #[test]
    fn a_member_that_cannot_register_its_pool_is_named_and_nothing_is_registered() {
        let machine = machine(2);
        machine.ranks(2, |rank| {
            let world = rank.builder().lazy().build().unwrap();
            let (allocator, id, _stream) = allocator_of(&rank, Memory::Exportable);
            let mut settings = PoolSettings::default();
            if rank.rank == 1 {
                settings.source = Some(Arc::new(DriverSource::new(&rank.context)));
            }
            let plain = allocator.pool(settings).unwrap();
            let block = plain.allocate(LARGE, id).unwrap();
            let refused = reason(world.register_pool(&plain, far()).unwrap_err());
            assert!(matches!(&refused, NotRegistered::Allocators { rank: 1, other: 0, .. }), "{refused}");
            drop(block);
            // A group that registers the whole allocator.
            world.destroy(far()).unwrap();
            let registrar = SegmentRegistrar::attach(&allocator).unwrap();
            let world = rank.builder().epoch(1).registration(true).build().unwrap();
            world.registration().unwrap();
            let twice = reason(world.register_pool(&pool(&allocator, "part"), far()).unwrap_err());
            assert!(matches!(&twice, NotRegistered::Failed { rank: 0, .. }), "{twice}");
            world.destroy(far()).unwrap();
            registrar.detach().unwrap();
            drop(plain);
            allocator.empty_cache().unwrap();
        });
        machine.world.finish().unwrap();
        let machine = machine_with(1, 21705);
        machine.ranks(1, |rank| {
            let world = rank.world();
            let (allocator, ..) = allocator_of(&rank, Memory::Exportable);
            let refused = reason(world.register_pool(&pool(&allocator, "old"), far()).unwrap_err());
            assert!(matches!(&refused, NotRegistered::Failed { problem, .. } if problem.contains("2.17.5")), "{refused}");
            world.destroy(far()).unwrap();
        });
        machine.world.finish().unwrap();
    }

    #[test]
    fn a_second_pool_that_cannot_be_registered_leaves_the_group_and_the_first_pool_as_they_were() {
        let machine = machine(2);
        machine.ranks(2, |rank| {
            let world = rank.world();
            let (allocator, id, stream) = allocator_of(&rank, Memory::Exportable);
            let (first, second) = (pool(&allocator, "first"), pool(&allocator, "second"));
            let block = second.allocate(LARGE, id).unwrap();
            world.register_pool(&first, far()).unwrap();
            world.barrier(far()).unwrap();
            if rank.rank == 1 {
                machine.world.faults().inject(Injection::new("ncclCommRegister", Action::Fail(2))).unwrap();
            }
            world.barrier(far()).unwrap();
            let refused = reason(world.register_pool(&second, far()).unwrap_err());
            assert!(matches!(&refused, NotRegistered::Failed { .. }), "{refused}");
            // Later segments of the first pool are still registered, and the second pool can be.
            let late = first.allocate(LARGE, id).unwrap();
            all_reduce(&world, &late, &stream);
            assert_eq!(seen(&world), (1, 0));
            world.register_pool(&second, far()).unwrap();
            all_reduce(&world, &block, &stream);
            assert_eq!(seen(&world), (2, 0));
            world.destroy(far()).unwrap();
            drop((block, late, first, second));
        });
        machine.world.finish().unwrap();
    }

    #[test]
    fn a_registrar_that_meets_memory_of_a_registered_pool_changes_nothing() {
        let machine = machine(1);
        machine.ranks(1, |rank| {
            let world = rank.world();
            let (allocator, id, stream) = allocator_of(&rank, Memory::Exportable);
            let part = pool(&allocator, "part");
            let other = allocator.allocate(LARGE, id).unwrap();
            let block = part.allocate(LARGE, id).unwrap();
            world.register_pool(&part, far()).unwrap();
            let registrar = SegmentRegistrar::attach(&allocator).unwrap();
            let clash = add(&registrar, world.communicator()).unwrap_err();
            assert!(matches!(clash, RegistrarError::Register { .. }), "{clash}");
            assert_eq!(registrar.counts().registrations, 0);
            world.check().unwrap();
            all_reduce(&world, &block, &stream);
            assert_eq!((machine.world.calls("ncclCommRegister"), machine.world.calls("ncclCommDeregister")), (1, 0));
            world.destroy(far()).unwrap();
            registrar.detach().unwrap();
            drop((block, other, part));
        });
        machine.world.finish().unwrap();
    }

    #[test]
    fn a_segment_that_cannot_be_deregistered_ends_the_group() {
        let machine = machine(2);
        machine.ranks(2, |rank| {
            let world = rank.world();
            let (allocator, id, _stream) = allocator_of(&rank, Memory::Exportable);
            let pool = pool(&allocator, "stuck");
            let block = pool.allocate(LARGE, id).unwrap();
            world.register_pool(&pool, far()).unwrap();
            if rank.rank == 1 {
                // On either rank.
                machine.world.faults().inject(Injection::new("ncclCommDeregister", Action::Fail(2))).unwrap();
            }
            // SAFETY: no graph uses the memory.
            let left = unsafe { world.deregister_pool(&pool, far()) };
            let error = left.and_then(|()| world.barrier(far())).unwrap_err();
            assert!(matches!(error.kind(), GroupErrorKind::MemberFailed { reason, .. } if reason.contains("deregister")), "{error}");
            world.abort(far()).unwrap();
            drop((block, pool));
        });
    }

    #[test]
    fn a_later_segment_that_cannot_be_registered_ends_the_group() {
        let machine = machine(2);
        machine.ranks(2, |rank| {
            let world = rank.world();
            let (allocator, id, _stream) = allocator_of(&rank, Memory::Exportable);
            let growing = pool(&allocator, "growing");
            world.register_pool(&growing, far()).unwrap();
            world.barrier(far()).unwrap();
            let block = (rank.rank == 1).then(|| {
                machine.world.faults().inject(Injection::new("ncclCommRegister", Action::Fail(2))).unwrap();
                growing.allocate(LARGE, id).unwrap()
            });
            let error = loop {
                match world.check() {
                    Err(error) => break error,
                    Ok(()) => std::thread::sleep(std::time::Duration::from_millis(1)),
                }
            };
            let failed = matches!(error.kind(), GroupErrorKind::MemberFailed { rank: 1, reason, .. } if reason.contains("ncclCommRegister"));
            // The rank that failed has poisoned its communicator already.
            assert!(failed || rank.rank == 1, "{error}");
            world.abort(far()).unwrap();
            drop((block, growing));
        });
    }
}
