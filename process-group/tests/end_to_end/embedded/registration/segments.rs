//! Segments are registered before their first block is handed out, and for as long as they are there.

use std::{
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use caching_alloc::core::{Action as Event, ActionKind, Entry, Filter, Tracker, TrackerError};
use gpu_sim::{Action, Injection};
use process_group::registration::{RegistrarError, SegmentRegistrar};
use rusty_fork::rusty_fork_test;

use super::{
    super::common::{Rank, far, machine},
    LARGE, add, allocator, alone,
};

/// Records the number of registrations at each new segment.
struct Witness {
    registrar: Mutex<Option<Arc<SegmentRegistrar>>>,
    seen: Mutex<Vec<usize>>,
}

impl Tracker for Witness {
    fn name(&self) -> &str {
        "witness"
    }

    fn observe(&self, entries: &[Entry]) -> Result<(), TrackerError> {
        for entry in entries {
            if let (Event::SegmentAlloc(_), Some(registrar)) =
                (&entry.action, &*self.registrar.lock().unwrap())
            {
                self.seen.lock().unwrap().push(registrar.counts().registrations);
            }
        }
        Ok(())
    }
}

rusty_fork_test! {
    #[test]
    fn every_segment_is_registered_with_every_communicator_while_it_lives() {
        let machine = machine(1);
        alone(&machine, |rank| {
            let (allocator, stream) = allocator(&rank);
            let early = allocator.allocate(LARGE, stream).unwrap();
            let registrar = Arc::new(SegmentRegistrar::attach(&allocator).unwrap());
            let witness = Arc::new(Witness { registrar: Mutex::new(Some(registrar.clone())), seen: Mutex::default() });
            let watching = allocator.attach(witness.clone(), Filter::only(&[ActionKind::SegmentAlloc])).unwrap();
            let first = rank.communicator();
            add(&registrar, &first).unwrap();
            let twice = add(&registrar, &first).unwrap_err();
            assert!(matches!(twice, RegistrarError::AlreadyServed { .. }), "{twice}");
            assert_eq!(registrar.counts().registrations, 1);
            let second = allocator.allocate(LARGE, stream).unwrap();
            let child = first.split(Some(0), 0, &rank.config(), far()).unwrap().unwrap();
            add(&registrar, &child).unwrap();
            let third = allocator.allocate(LARGE, stream).unwrap();
            assert_eq!(*witness.seen.lock().unwrap(), [2, 6]);
            let counts = registrar.counts();
            assert_eq!((counts.segments, counts.communicators, counts.registrations), (3, 2, 6));
            assert_eq!(machine.world.calls("ncclCommRegister"), 6);

            drop(second);
            allocator.empty_cache().unwrap();
            let counts = registrar.counts();
            assert_eq!((counts.segments, counts.registrations, counts.deregistered), (2, 4, 2));

            registrar.remove(&child).unwrap();
            assert_eq!(registrar.counts().registrations, 2);
            child.destroy(far()).unwrap();
            drop((early, third));
            registrar.check().unwrap();
            first.destroy(far()).unwrap();
            assert_eq!((registrar.counts().communicators, registrar.counts().registrations), (0, 0));
            witness.registrar.lock().unwrap().take();
            watching.detach().unwrap();
            Arc::into_inner(registrar).unwrap().detach().unwrap();
            allocator.empty_cache().unwrap();
        });
        machine.world.finish().unwrap();
    }

    #[test]
    fn nobody_waits_for_a_registration_that_takes_long() {
        let machine = machine(1);
        alone(&machine, |rank| {
            let (allocator, stream) = allocator(&rank);
            let registrar = SegmentRegistrar::attach(&allocator).unwrap();
            let communicator = rank.communicator();
            add(&registrar, &communicator).unwrap();
            let slow = Action::Delay(Duration::from_secs(3));
            machine.world.faults().inject(Injection::new("ncclCommRegister", slow)).unwrap();
            thread::scope(|scope| {
                let allocating = scope.spawn(|| drop(allocator.allocate(LARGE, stream).unwrap()));
                while machine.world.calls("ncclCommRegister") == 0 {
                    thread::yield_now();
                }
                assert_eq!(registrar.counts().segments, 1);
                assert!(!allocating.is_finished(), "the registrar was locked until NCCL returned");
            });
            assert_eq!(registrar.counts().registrations, 1);
            allocator.empty_cache().unwrap();
            assert_eq!((registrar.counts().registrations, registrar.counts().kept), (0, 0));
            communicator.destroy(far()).unwrap();
            registrar.detach().unwrap();
        });
        machine.world.finish().unwrap();
    }

    #[test]
    fn a_failed_registration_poisons_the_communicator_and_harms_nobody_else() {
        let machine = machine(1);
        alone(&machine, |rank| {
            let (allocator, stream) = allocator(&rank);
            let registrar = SegmentRegistrar::attach(&allocator).unwrap();
            let communicator = rank.communicator();
            let other = communicator.split(Some(0), 0, &rank.config(), far()).unwrap().unwrap();
            add(&registrar, &communicator).unwrap();
            add(&registrar, &other).unwrap();
            machine.world.faults().inject(Injection::new("ncclCommRegister", Action::Fail(2))).unwrap();
            let block = allocator.allocate(LARGE, stream).unwrap();
            let error = registrar.check().unwrap_err();
            assert!(error.to_string().contains("ncclCommRegister failed"), "{error}");
            assert_eq!(allocator.faults().len(), 1);
            let poisoned = communicator.check().unwrap_err();
            assert!(poisoned.to_string().contains("could not be registered"), "{poisoned}");
            let another = allocator.allocate(LARGE, stream).unwrap();
            let counts = registrar.counts();
            assert_eq!((counts.failures, counts.communicators, counts.registrations), (1, 1, 2));
            other.check().unwrap();
            communicator.abort(far()).unwrap();
            registrar.check().unwrap();
            drop((block, another));
            registrar.detach().unwrap();
            other.destroy(far()).unwrap();
            allocator.empty_cache().unwrap();
        });
        machine.world.finish().unwrap();
    }

    #[test]
    fn a_communicator_that_cannot_take_all_segments_takes_none() {
        let machine = machine(1);
        alone(&machine, |rank| {
            let (allocator, stream) = allocator(&rank);
            let blocks: Vec<_> = (0..3).map(|_| allocator.allocate(LARGE, stream).unwrap()).collect();
            let registrar = SegmentRegistrar::attach(&allocator).unwrap();
            let communicator = rank.communicator();
            machine.world.faults().inject(Injection::new("ncclCommRegister", Action::Fail(2)).nth(3)).unwrap();
            let error = add(&registrar, &communicator).unwrap_err();
            assert!(matches!(error, RegistrarError::Register { .. }), "{error}");
            assert_eq!(machine.world.calls("ncclCommDeregister"), 2);
            assert_eq!(registrar.counts().registrations, 0);
            add(&registrar, &communicator).unwrap();
            assert_eq!(registrar.counts().registrations, 3);
            drop(registrar);
            assert_eq!(machine.world.calls("ncclCommDeregister"), 5);
            communicator.destroy(far()).unwrap();
            drop(blocks);
            allocator.empty_cache().unwrap();
        });
        machine.world.finish().unwrap();
    }

    #[test]
    fn memory_that_could_not_be_deregistered_is_held() {
        let machine = machine(1);
        alone(&machine, |rank| {
            let (allocator, stream) = allocator(&rank);
            let registrar = SegmentRegistrar::attach_with(&allocator, Duration::from_millis(50)).unwrap();
            let communicator = rank.communicator();
            add(&registrar, &communicator).unwrap();
            drop(allocator.allocate(LARGE, stream).unwrap());
            machine.world.faults().inject(Injection::new("ncclCommDeregister", Action::Fail(2))).unwrap();
            allocator.empty_cache().unwrap();
            assert_eq!((registrar.counts().segments, registrar.counts().kept), (0, 1));
            assert_eq!(allocator.snapshot().unwrap().quarantined.len(), 1);
            communicator.destroy(far()).unwrap();
            registrar.detach().unwrap();
            allocator.reap().unwrap();
            assert_eq!(allocator.snapshot().unwrap().quarantined.len(), 0);
        });
        machine.world.finish().unwrap();
    }

    #[test]
    fn a_communicator_of_another_device_is_refused() {
        let machine = machine(2);
        machine.ranks(2, |rank| {
            let communicator = rank.communicator();
            if rank.rank == 1 {
                let zero = Rank { context: machine.context(0), ..rank };
                let registrar = SegmentRegistrar::attach(&allocator(&zero).0).unwrap();
                let error = add(&registrar, &communicator).unwrap_err();
                assert!(matches!(error, RegistrarError::WrongDevice { found: 1, wanted: 0, .. }), "{error}");
            }
            communicator.destroy(far()).unwrap();
        });
        machine.world.finish().unwrap();
    }
}
