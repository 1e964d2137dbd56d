//! Every driver call of an exchange and of its transfers fails in turn.

use std::{
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

use cuda_driver::sys::CUresult;
use gpu_sim::{Action, Injection, World};
use process_group::store::Deadline;
use symm_mem::{
    Error,
    exchange::{Exchange, Fault, Part, Plan, TransferError},
};

use super::{LONG, Rank, on_world, options, pattern};

/// Driver calls of an exchange, if ranks are threads.
const OPENING: [&str; 7] = [
    "cuMemsetD32Async",
    "cuStreamSynchronize",
    "cuIpcGetMemHandle",
    "cuCtxEnablePeerAccess",
    "cuMemAddressReserve",
    "cuMemMap",
    "cuMemSetAccess",
];

/// Driver calls of a transfer on the end that copies, and whether anything has been enqueued before.
const COPYING: [(&str, bool); 5] = [
    ("cuStreamIsCapturing", false),
    ("cuStreamWaitValue32_v2", false),
    ("cuMemcpyDtoDAsync_v2", true),
    ("cuStreamWriteValue32_v2", true),
    ("cuEventRecord", true),
];

fn inject(world: &World, call: &str, nth: u64) {
    let action = Action::Fail(CUresult::CUDA_ERROR_UNKNOWN.0);
    world.faults().inject(Injection::new(call, action).nth(nth)).unwrap();
}

/// A plan of two transfers from rank 0 to rank 1: a put into plain memory, and a get from virtual memory.
fn plan(rank: &Rank<'_>) -> Result<(Plan, Vec<Part>), Error> {
    let parts = match rank.rank {
        0 => vec![Part::PutInitiator, Part::GetBy],
        _ => vec![Part::PutTarget, Part::GetFrom],
    };
    let memory = [rank.plain(4096), rank.mapped(4096)];
    for memory in &memory {
        rank.write(memory, &pattern(rank.rank, 0, 4096));
    }
    let transfers: Vec<_> =
        parts.iter().zip(&memory).map(|(part, memory)| rank.transfer(1 - rank.rank, *part, memory)).collect();
    (rank.meet)();
    let plan = rank.exchange.exchange("plan", &transfers)?;
    Ok((plan, parts))
}

/// Checks that the next exchange works.
fn works(rank: &Rank<'_>) {
    let (plan, parts) = plan(rank).unwrap();
    rank.round(&plan, &parts);
    drop(plan);
    while (rank.exchange.open_handles(), rank.exchange.free_channels()) != (0, 64) {
        thread::yield_now();
    }
    (rank.meet)();
}

#[test]
fn a_call_that_fails_is_the_same_refusal_on_all_and_leaves_nothing() {
    for call in OPENING {
        for nth in 1..=2 {
            let told = Mutex::new(Vec::new());
            on_world(2, options(), |world, rank| {
                // Peer access stays enabled, so a second exchange would not call this.
                if call != "cuCtxEnablePeerAccess" {
                    works(rank);
                }
                let memory = [rank.plain(4096), rank.mapped(4096)];
                let parts = [Part::PutInitiator, Part::GetFrom, Part::PutTarget, Part::GetBy];
                let parts = parts.map(|part| if rank.rank == 0 { part } else { part.counterpart() });
                let transfers: Vec<_> = parts
                    .iter()
                    .zip(memory.iter().cycle())
                    .map(|(part, memory)| rank.transfer(1 - rank.rank, *part, memory))
                    .collect();
                (rank.meet)();
                if rank.rank == 0 {
                    inject(world, call, nth);
                }
                (rank.meet)();
                let refused = rank.exchange.exchange("failing", &transfers).unwrap_err();
                let refusal = refused
                    .exchange_refusal()
                    .unwrap_or_else(|| panic!("{call} {nth}: {refused}"))
                    .to_string();
                assert!(refusal.contains(call), "{call} is not in {refusal}");
                told.lock().unwrap().push(refusal);
                assert_eq!((rank.exchange.open_handles(), rank.exchange.free_channels()), (0, 64));
                (rank.meet)();
                if rank.rank == 0 {
                    world.faults().clear();
                }
                (rank.meet)();
                works(rank);
            });
            let told = told.into_inner().unwrap();
            assert_eq!(told[0], told[1]);
        }
    }
}

/// Driver calls of making an exchange, before and in its rendezvous.
const MAKING: [&str; 8] = [
    "cuMemCreate",
    "cuMemsetD8Async",
    "cuCtxGetStreamPriorityRange",
    "cuStreamCreateWithPriority",
    "cuMemHostAlloc",
    "cuEventCreate",
    "cuMemExportToShareableHandle",
    "cuMemAlloc_v2",
];

#[test]
fn an_exchange_that_cannot_be_made_is_an_error_on_all_and_the_next_one_is_made() {
    on_world(2, options(), |world, rank| {
        for call in MAKING {
            (rank.meet)();
            if rank.rank == 0 {
                inject(world, call, 1);
            }
            (rank.meet)();
            let error = Exchange::new(&rank.rendezvous, options()).unwrap_err();
            (rank.meet)();
            let hit = error.to_string().contains(call);
            // One rank fails itself and the other is told; or both are told.
            assert!(hit, "{call} is not in {error}");
            (rank.meet)();
            let exchange = Exchange::new(&rank.rendezvous, options()).unwrap();
            exchange.exchange("nothing", &[]).unwrap();
            (rank.meet)();
            assert!(exchange.close(Deadline::after(LONG)).is_empty());
        }
    });
}

#[test]
fn a_transfer_that_fails_is_an_error_on_both_and_nothing_hangs() {
    for (call, enqueued) in COPYING {
        on_world(2, options(), |world, rank| {
            let (plan, parts) = plan(rank).unwrap();
            rank.round(&plan, &parts);
            (rank.meet)();
            if rank.rank == 0 {
                inject(world, call, 1);
                // SAFETY: nobody else uses the buffer.
                let error = unsafe { plan.put(0, &rank.stream, LONG) }.unwrap_err();
                assert!(
                    matches!(&error, TransferError::Driver(error) if error.to_string().contains(call)),
                    "{error}"
                );
            }
            (rank.meet)();
            let soon = Duration::from_millis(300);
            // SAFETY: as above.
            unsafe {
                match rank.rank {
                    0 => {}
                    _ => {
                        plan.ready(0, &rank.stream).unwrap();
                        plan.wait(0, &rank.stream, if enqueued { soon } else { LONG }).unwrap();
                    }
                }
                // Nothing was enqueued, so the call can be repeated.
                if rank.rank == 0 && !enqueued {
                    plan.put(0, &rank.stream, LONG).unwrap();
                }
            }
            rank.stream.synchronize().unwrap();
            match (enqueued, plan.check(), rank.rank) {
                (false, Ok(()), _) => {}
                // Everything was enqueued; the peer may complete before it is told.
                (true, Ok(()), 1) if call == "cuEventRecord" => {}
                (true, Err(TransferError::Fault(Fault::Broken { transfer: 0, cause })), 0) => {
                    assert!(cause.contains(call), "{cause}");
                }
                (
                    true,
                    Err(TransferError::Fault(Fault::Abandoned { peer: 0 } | Fault::Late { peer: 0, .. })),
                    1,
                ) => {}
                other => panic!("{call}: {other:?}"),
            }
            (rank.meet)();
            drop(plan);
            works(rank);
        });
    }
}

/// A query that fails is repeated: work under way is not considered ended.
#[test]
fn a_question_that_fails_is_asked_again() {
    on_world(2, options(), |world, rank| {
        let (plan, parts) = plan(rank).unwrap();
        if rank.rank == 0 {
            (1..=3).for_each(|nth| inject(world, "cuEventQuery", nth));
            // SAFETY: nobody else uses the buffer.
            unsafe { plan.put(0, &rank.stream, LONG) }.unwrap();
            drop(plan);
            while world.faults().hits() < 3 {
                thread::yield_now();
            }
            // The plan still holds its memory: the peer is not ready yet.
            assert_eq!(rank.exchange.open_handles(), 1);
            (rank.meet)();
        } else {
            (rank.meet)();
            // SAFETY: as above.
            unsafe {
                plan.ready(0, &rank.stream).unwrap();
                plan.wait(0, &rank.stream, LONG).unwrap();
            }
            rank.stream.synchronize().unwrap();
            plan.check().unwrap();
            drop(plan);
        }
        rank.stream.synchronize().unwrap();
        assert_eq!(parts.len(), 2);
        (rank.meet)();
        if rank.rank == 0 {
            world.faults().clear();
        }
        (rank.meet)();
        works(rank);
    });
}

/// Giving up repeats its calls if they fail at first: the peer is told, and the waits are released.
#[test]
fn giving_up_is_done_again_until_it_is_done() {
    on_world(2, options(), |world, rank| {
        let (plan, _) = plan(rank).unwrap();
        (rank.meet)();
        if rank.rank == 0 {
            // SAFETY: nobody else uses the buffer.
            unsafe { plan.put(0, &rank.stream, Duration::from_millis(20)) }.unwrap();
            for nth in 1..=3 {
                inject(world, "cuStreamWriteValue32_v2", nth);
            }
            rank.stream.synchronize().unwrap();
            assert!(matches!(plan.check(), Err(TransferError::Fault(Fault::Late { peer: 1, .. }))));
        }
        (rank.meet)();
        if rank.rank == 1 {
            assert!(matches!(plan.check(), Err(TransferError::Fault(Fault::Abandoned { peer: 0 }))));
        }
        (rank.meet)();
        drop(plan);
        works(rank);
    });
}

/// The driver may block copies while it frees memory. The deadline is enforced nevertheless, long before the copy of
/// the slots returns, which rank 0 makes because it waits in vain.
#[test]
fn a_deadline_is_enforced_while_the_driver_blocks_a_copy() {
    const BLOCKED: Duration = Duration::from_secs(10);
    on_world(2, options(), |world, rank| {
        let memory = rank.mapped(64);
        let part = [Part::PutInitiator, Part::PutTarget][rank.rank];
        let plan = rank.exchange.exchange("plan", &[rank.transfer(1 - rank.rank, part, &memory)]).unwrap();
        (rank.meet)();
        if rank.rank == 0 {
            let copy = Injection::new("cuMemcpyDtoHAsync_v2", Action::Delay(BLOCKED));
            world.faults().inject(copy).unwrap();
            let begun = Instant::now();
            // SAFETY: nobody else uses the buffer.
            unsafe { plan.put(0, &rank.stream, Duration::from_millis(500)) }.unwrap();
            rank.stream.synchronize().unwrap();
            assert!(begun.elapsed() < BLOCKED / 2, "{:?}", begun.elapsed());
            let fault = plan.check().unwrap_err();
            assert!(matches!(fault, TransferError::Fault(Fault::Late { peer: 1, .. })), "{fault}");
            // The world must not end before the copy.
            thread::sleep((BLOCKED + Duration::from_secs(1)).saturating_sub(begun.elapsed()));
        }
        (rank.meet)();
    });
}
