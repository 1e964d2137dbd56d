//! Every call of registration fails in turn: a typed error or none, nothing hangs, and nothing stays
//! registered or held.

use std::collections::BTreeMap;

use gpu_sim::{Action, Injection};
use process_group::{
    comm::{DataType::F32, ReduceOp, wait_for_dropped},
    group::Buffer,
    registration::SegmentRegistrar,
};
use rusty_fork::rusty_fork_test;

use super::{
    super::common::{Machine, Rank, far, machine},
    LARGE, Memory, allocator_of, alone,
};

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// The calls of a single rank with registration, from the attachment to the end. On any failure everything is
/// released.
fn flow(rank: &Rank, epoch: u64) -> Outcome {
    let (allocator, id, stream) = allocator_of(rank, Memory::Exportable);
    let outcome = registered(rank, epoch, &allocator, id, &stream);
    assert!(wait_for_dropped(far()));
    allocator.empty_cache()?;
    allocator.reap()?;
    let left = allocator.snapshot()?;
    assert_eq!((left.segments.len(), left.quarantined.len()), (0, 0), "{outcome:?}");
    outcome
}

fn registered(
    rank: &Rank,
    epoch: u64,
    allocator: &caching_alloc::core::Allocator,
    id: caching_alloc::core::StreamId,
    stream: &cuda_driver::Stream,
) -> Outcome {
    let early = allocator.allocate(LARGE, id)?;
    let registrar = SegmentRegistrar::attach(allocator)?;
    let world = rank.builder().epoch(epoch).registration(true).build()?;
    let registered = world.registration();
    let late = allocator.allocate(2 * LARGE, id)?;
    for block in [&early, &late] {
        let buffer = Buffer::new(cuda_driver::DevicePtr(block.address()), 8, F32);
        // SAFETY: the block is larger, and outlives the work.
        unsafe { world.raw().all_reduce(buffer, buffer, ReduceOp::Sum, stream) }?.wait_until(far())?;
    }
    drop(early);
    allocator.empty_cache()?;
    world.destroy(far())?;
    drop(late);
    assert_eq!(registrar.counts().registrations, 0);
    registrar.detach()?;
    registered.map_err(Into::into)
}

fn calls(machine: &Machine) -> BTreeMap<String, u64> {
    machine.world.faults().all_calls()
}

rusty_fork_test! {
    #[test]
    fn every_call_of_registration_can_fail() {
        // The calls of registration, and those that accompany them.
        const NAMES: [&str; 4] =
            ["ncclCommRegister", "ncclCommDeregister", "cuPointerGetAttributes", "cuThreadExchangeStreamCaptureMode"];
        let machine = machine(1);
        process_group::comm::set_drop_error_hook(|_| ());
        alone(&machine, |rank| {
            let before = calls(&machine);
            let mut epoch = 0;
            flow(&rank, epoch).unwrap();
            let after = calls(&machine);
            let mut struck = 0;
            for name in NAMES {
                let count = after.get(name).unwrap_or(&0) - before.get(name).unwrap_or(&0);
                for nth in 1..=count {
                    for code in [1, 2] {
                        epoch += 1;
                        let faults = machine.world.faults();
                        let hits = faults.hits();
                        faults.inject(Injection::new(name, Action::Fail(code)).nth(nth)).unwrap();
                        let outcome = flow(&rank, epoch);
                        if faults.hits() == hits {
                            // The number of queries in a wait varies between runs.
                            assert_eq!(name, "cuThreadExchangeStreamCaptureMode");
                            outcome.unwrap();
                            faults.clear();
                            continue;
                        }
                        // Memory that is registered and not deregistered in time is only kept for longer.
                        if name == "ncclCommRegister" {
                            outcome.unwrap_err();
                        }
                        faults.clear();
                        struck += 1;
                    }
                }
            }
            assert!(struck > 10, "only {struck} calls were made to fail");
            flow(&rank, epoch + 1).unwrap();
        });
        machine.world.finish().unwrap();
    }
}
