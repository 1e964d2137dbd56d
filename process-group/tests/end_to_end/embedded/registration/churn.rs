//! Memory and communicators that are made and dropped, in any order and on several threads.

use std::{
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
};

use caching_alloc::core::{Allocator, Block, StreamId};
use gpu_sim::{Action, Injection};
use process_group::{
    comm::{CommError, Communicator, Config, DataType::F32, ReduceOp},
    group::{Buffer, Request},
    registration::{RegistrarError, SegmentRegistrar},
};
use proptest::prelude::*;
use rusty_fork::rusty_fork_test;

use super::{
    super::common::{Machine, Rank, far, machine},
    LARGE, Memory, add, allocator_of, alone,
};

#[derive(Debug, Clone)]
enum Step {
    /// Allocates this many MiB.
    Allocate(u64),
    Free(prop::sample::Index),
    Trim,
    /// Makes a communicator, with or without registration.
    Make(bool),
    Serve(prop::sample::Index),
    Remove(prop::sample::Index),
    Destroy(prop::sample::Index),
    Abort(prop::sample::Index),
    /// Makes the next registration fail.
    Fail,
    /// Calls a communicator.
    Call(prop::sample::Index),
}

fn step() -> impl Strategy<Value = Step> {
    let index = any::<prop::sample::Index>;
    prop_oneof![
        8 => (1u64..16).prop_map(Step::Allocate),
        8 => index().prop_map(Step::Free),
        4 => Just(Step::Trim),
        3 => any::<bool>().prop_map(Step::Make),
        2 => index().prop_map(Step::Serve),
        2 => index().prop_map(Step::Remove),
        2 => index().prop_map(Step::Destroy),
        1 => index().prop_map(Step::Abort),
        1 => Just(Step::Fail),
        3 => index().prop_map(Step::Call),
    ]
}

/// Reports the end of a thread, also by a panic.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The existing objects, and the expected registrations.
struct Model<'a> {
    machine: &'a Machine,
    rank: &'a Rank,
    allocator: Allocator,
    id: StreamId,
    stream: cuda_driver::Stream,
    registrar: SegmentRegistrar,
    blocks: Vec<Block>,
    /// For each: true if it has registration, and true if a registration failed.
    communicators: Vec<(Communicator, bool, bool)>,
    fails: bool,
}

impl<'a> Model<'a> {
    fn new(machine: &'a Machine, rank: &'a Rank) -> Self {
        let (allocator, id, stream) = allocator_of(rank, Memory::Exportable);
        let registrar = SegmentRegistrar::attach(&allocator).unwrap();
        let (blocks, communicators, fails) = (Vec::new(), Vec::new(), false);
        Self { machine, rank, allocator, id, stream, registrar, blocks, communicators, fails }
    }

    fn segments(&self) -> usize {
        self.allocator.snapshot().unwrap().segments.len()
    }

    fn step(&mut self, step: &Step) {
        let pick = |index: &prop::sample::Index, len: usize| (len > 0).then(|| index.index(len));
        match step {
            Step::Allocate(mib) => {
                let before = self.segments();
                self.blocks.extend(self.allocator.allocate(mib << 20, self.id).ok());
                if self.segments() > before && self.fails {
                    // One of those with registration lacks the segment, and is poisoned. The others have it.
                    let poisoned = |(communicator, served, lacks): &&mut (Communicator, bool, bool)| {
                        *served && !*lacks && communicator.check().is_err()
                    };
                    if let Some(one) = self.communicators.iter_mut().find(poisoned) {
                        one.2 = true;
                        self.fails = false;
                    }
                }
            }
            Step::Free(index) => {
                if let Some(at) = pick(index, self.blocks.len()) {
                    drop(self.blocks.swap_remove(at));
                }
            }
            Step::Trim => {
                self.allocator.empty_cache().unwrap();
            }
            Step::Make(serve) if self.communicators.len() < 4 => {
                let id = self.rank.nccl.unique_id().unwrap();
                let config = Config::new();
                let made = Communicator::init(&self.rank.nccl, &self.rank.context, &id, 0, 1, &config, far());
                self.communicators.push((made.unwrap(), false, false));
                if *serve {
                    self.serve(self.communicators.len() - 1);
                }
            }
            Step::Make(_) => {}
            Step::Serve(index) => {
                if let Some(at) = pick(index, self.communicators.len()) {
                    self.serve(at);
                }
            }
            Step::Remove(index) => {
                if let Some(at) = pick(index, self.communicators.len()) {
                    let (communicator, served, _) = &mut self.communicators[at];
                    let removed = self.registrar.remove(communicator);
                    assert_eq!(removed.is_ok(), *served, "{removed:?}");
                    *served = false;
                }
            }
            Step::Destroy(index) | Step::Abort(index) => {
                if let Some(at) = pick(index, self.communicators.len()) {
                    let (communicator, _, lacks) = self.communicators.swap_remove(at);
                    match step {
                        Step::Destroy(_) if !lacks => communicator.destroy(far()).unwrap(),
                        _ => communicator.abort(far()).unwrap(),
                    }
                }
            }
            Step::Fail if !self.fails => {
                self.fails = true;
                self.machine
                    .world
                    .faults()
                    .inject(Injection::new("ncclCommRegister", Action::Fail(2)))
                    .unwrap();
            }
            Step::Fail => {}
            Step::Call(index) => {
                if let (Some(at), Some(block)) = (pick(index, self.communicators.len()), self.blocks.first())
                {
                    let (communicator, _, lacks) = &self.communicators[at];
                    let ptr = cuda_driver::DevicePtr(block.address());
                    // SAFETY: the block is larger, and outlives the work.
                    let called =
                        unsafe { communicator.all_reduce(ptr, ptr, 8, F32, ReduceOp::Sum, &self.stream) };
                    self.stream.synchronize().unwrap();
                    match called {
                        Ok(()) => assert!(!lacks),
                        Err(error) => {
                            assert!(*lacks && matches!(error, CommError::Poisoned { .. }), "{error}")
                        }
                    }
                }
            }
        }
        self.check();
    }

    fn serve(&mut self, at: usize) {
        let segments = self.segments();
        let (communicator, served, lacks) = &mut self.communicators[at];
        match add(&self.registrar, communicator) {
            Ok(()) => {
                assert!(!*served);
                *served = true;
            }
            Err(RegistrarError::AlreadyServed { .. }) => assert!(*served),
            Err(error) => {
                // All or nothing, and the communicator is still usable.
                assert!(*lacks || (self.fails && segments > 0), "{error}");
                self.fails &= *lacks;
            }
        }
    }

    fn check(&self) {
        let counts = self.registrar.counts();
        let segments = self.segments();
        let serving = self.communicators.iter().filter(|(_, served, lacks)| *served && !lacks).count();
        assert_eq!((counts.segments, counts.communicators), (segments, serving), "{counts:?}");
        assert!(counts.registrations >= segments * serving, "{counts:?}");
        let lacking = self.communicators.iter().any(|(_, _, lacks)| *lacks);
        if !lacking {
            assert_eq!(counts.registrations, segments * serving, "{counts:?}");
            assert_eq!(counts.kept, 0, "{counts:?}");
        }
        assert_eq!(
            self.registrar.check().is_err(),
            self.communicators.iter().any(|(_, served, lacks)| *served && *lacks)
        );
        for (communicator, _, lacks) in &self.communicators {
            assert_eq!(communicator.check().is_err(), *lacks);
        }
    }

    fn end(mut self) {
        self.blocks.clear();
        for (communicator, _, _) in self.communicators.drain(..) {
            communicator.abort(far()).unwrap();
        }
        let counts = self.registrar.counts();
        assert_eq!((counts.registrations, counts.registered), (0, counts.deregistered), "{counts:?}");
        self.registrar.detach().unwrap();
        self.allocator.empty_cache().unwrap();
        self.allocator.reap().unwrap();
        let left = self.allocator.snapshot().unwrap();
        assert_eq!((left.segments.len(), left.quarantined.len()), (0, 0));
        self.machine.world.faults().clear();
    }
}

rusty_fork_test! {
    #[test]
    fn what_is_registered_is_what_is_there_whatever_comes_and_goes() {
        let machine = machine(1);
        process_group::comm::set_drop_error_hook(|_| ());
        alone(&machine, |rank| {
            let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() });
            runner
                .run(&prop::collection::vec(step(), 1..120), |steps| {
                    let mut model = Model::new(&machine, &rank);
                    steps.iter().for_each(|step| model.step(step));
                    model.end();
                    Ok(())
                })
                .unwrap();
        });
        machine.world.finish().unwrap();
    }

    #[test]
    fn groups_come_and_go_while_memory_does() {
        const CYCLES: usize = 1500;
        let machine = machine(2);
        let cycles = AtomicUsize::new(0);
        machine.ranks(2, |rank| {
            let (allocator, id, stream) = allocator_of(&rank, Memory::Exportable);
            let registrar = SegmentRegistrar::attach(&allocator).unwrap();
            let world = rank.builder().registration(true).build().unwrap();
            let done = AtomicBool::new(false);
            thread::scope(|scope| {
                scope.spawn(|| {
                    let mut at = 0u64;
                    while !done.load(Ordering::Relaxed) || cycles.load(Ordering::Relaxed) < CYCLES {
                        let blocks: Vec<_> =
                            (0..3).map(|nth| allocator.allocate(LARGE + ((at + nth) % 5) * LARGE, id).unwrap()).collect();
                        drop(blocks);
                        allocator.empty_cache().unwrap();
                        at += 1;
                        cycles.fetch_add(3, Ordering::Relaxed);
                    }
                });
                let _end = End(&done);
                for round in 0..20 {
                    let pair = world.split(&format!("pair {round}"), &Request::Lists(vec![vec![1, 0]])).unwrap().unwrap();
                    pair.registration().unwrap();
                    for group in [&world, &pair] {
                        let block = allocator.allocate(64, id).unwrap();
                        let buffer = Buffer::new(cuda_driver::DevicePtr(block.address()), 4, F32);
                        // A strict machine refuses a call with one registered side.
                        unsafe {
                            world.context().copy_from_host(buffer.ptr, &[1f32; 4]).unwrap();
                            group.raw().all_reduce(buffer, buffer, ReduceOp::Sum, &stream).unwrap().wait_until(far()).unwrap();
                            let mut found = [0f32; 4];
                            world.context().copy_to_host(&mut found, buffer.ptr).unwrap();
                            assert_eq!(found, [2.0; 4]);
                        }
                        assert_eq!(group.registration_report().operations[0].unregistered, []);
                    }
                    pair.destroy(far()).unwrap();
                }
            });
            assert!(allocator.faults().is_empty() || registrar.check().is_ok(), "{:?}", allocator.faults());
            world.destroy(far()).unwrap();
            let counts = registrar.counts();
            assert_eq!((counts.registrations, counts.registered, counts.failures), (0, counts.deregistered, 0));
            registrar.detach().unwrap();
        });
        machine.world.finish().unwrap();
    }
}
