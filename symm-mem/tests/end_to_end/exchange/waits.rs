//! Waits that end at their deadline, plans that are given up, and leases.

use std::{
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use cuda_driver::{Stream, StreamFlags, graph::CaptureMode, memory::DeviceMemory};
use gpu_sim::{Action, Injection};
use process_group::store::{Deadline, HashStore, Store};
use symm_mem::{
    Domain, Geometry, SymmetricPool,
    exchange::{Awaited, ExchangeOptions, Fault, Memory, Part, Plan, TransferError},
};

use super::{LONG, Rank, on_ranks, on_world, options, pattern};

const SHORT: Duration = Duration::from_millis(50);

/// A plan of two ranks with one transfer; `parts` are their roles.
fn one(rank: &Rank<'_>, name: &str, memory: &Memory, parts: [Part; 2]) -> Plan {
    let transfer = rank.transfer(1 - rank.rank, parts[rank.rank], memory);
    rank.exchange.exchange(name, &[transfer]).unwrap()
}

fn fault(plan: &Plan) -> Fault {
    match plan.check().unwrap_err() {
        TransferError::Fault(fault) => fault,
        other => panic!("{other}"),
    }
}

/// Checks that a new exchange of the plan works.
fn goes_on(rank: &Rank<'_>, name: &str, parts: [Part; 2]) {
    let memory = rank.mapped(4096);
    let plan = one(rank, name, &memory, parts);
    let from = parts.iter().position(|part| matches!(part, Part::PutInitiator | Part::GetBy)).unwrap();
    rank.write(&memory, &pattern(rank.rank, 9, 4096));
    (rank.meet)();
    rank.round(&plan, &[parts[rank.rank]]);
    assert!(rank.read(&memory) == pattern(from, 9, 4096));
    (rank.meet)();
}

#[test]
fn a_late_peer_is_an_error_on_both_and_the_context_lives() {
    on_ranks(2, options(), late);
}

/// Rank 0 waits in vain, in each role that waits.
pub(super) fn late(rank: &Rank<'_>) {
    for (part, awaited) in [
        (Part::PutInitiator, Awaited::Ready),
        (Part::GetFrom, Awaited::Ready),
        (Part::PutTarget, Awaited::Done),
        (Part::GetBy, Awaited::Done),
    ] {
        let memory = rank.mapped(4096);
        rank.write(&memory, &pattern(rank.rank, 0, 4096));
        let parts = [part, part.counterpart()];
        let plan = one(rank, "plan", &memory, parts);
        if rank.rank == 0 {
            rank.enqueue_round(&plan, &[part], SHORT);
            rank.stream.synchronize().unwrap();
            let found = fault(&plan);
            let Fault::Late { transfer: 0, peer: 1, awaited: for_what, waited } = found else {
                panic!("{found}")
            };
            assert_eq!(for_what, awaited);
            assert!(waited >= SHORT, "{waited:?}");
            (rank.meet)();
        } else {
            (rank.meet)();
            // The work of rank 1 is too late: it is released at once, and the reason is reported.
            rank.enqueue_round(&plan, &[part.counterpart()], LONG);
            rank.stream.synchronize().unwrap();
            assert_eq!(fault(&plan), Fault::Abandoned { peer: 0 });
        }
        (rank.meet)();
        goes_on(rank, "plan", parts);
    }
}

/// A rank that waits for a peer is released when the peer gives up, long before its own deadline.
#[test]
fn who_is_abandoned_does_not_wait_for_the_deadline() {
    on_ranks(2, options(), |rank| {
        let memory = rank.mapped(4096);
        let parts = [Part::PutInitiator, Part::PutTarget];
        let plan = one(rank, "plan", &memory, parts);
        if rank.rank == 1 {
            // Practically without a deadline.
            rank.enqueue_round(&plan, &parts[1..], 100 * LONG);
            (rank.meet)();
            rank.stream.synchronize().unwrap();
            assert_eq!(fault(&plan), Fault::Abandoned { peer: 0 });
        } else {
            (rank.meet)();
            plan.abort();
            assert_eq!(fault(&plan), Fault::Aborted);
        }
        (rank.meet)();
        goes_on(rank, "plan", parts);
    });
}

/// A device that does not get to a copy of the slots is given no further one, so its queue does not fill up.
#[test]
fn slots_are_read_once_at_a_time() {
    on_world(2, options(), |world, rank| {
        let memory = rank.mapped(4096);
        let parts = [Part::PutInitiator, Part::PutTarget];
        let plan = one(rank, "plan", &memory, parts);
        (rank.meet)();
        if rank.rank == 0 {
            const NOT_READY: u32 = 600;
            let never = Injection::new("cuEventQuery", Action::Fail(NOT_READY)).forever();
            world.faults().inject(never).unwrap();
            let copies = || world.calls("cuMemcpyDtoHAsync_v2");
            let before = copies();
            rank.enqueue_round(&plan, &parts[..1], LONG);
            // Long enough for several copies.
            thread::sleep(6 * SHORT);
            assert!(copies() <= before + 1, "{} copies", copies() - before);
            world.faults().clear();
        }
        (rank.meet)();
        if rank.rank == 1 {
            rank.enqueue_round(&plan, &parts[1..], LONG);
        }
        rank.stream.synchronize().unwrap();
        plan.check().unwrap();
        (rank.meet)();
    });
}

/// The signal of a released copy is not taken for a copy that was done in time.
#[test]
fn a_copy_that_was_let_go_does_not_count_for_the_peer() {
    on_ranks(2, options(), |rank| {
        let memory = rank.mapped(4096);
        let parts = [Part::PutInitiator, Part::PutTarget];
        let plan = one(rank, "plan", &memory, parts);
        if rank.rank == 0 {
            rank.enqueue_round(&plan, &parts[..1], SHORT);
            rank.stream.synchronize().unwrap();
        }
        (rank.meet)();
        if rank.rank == 1 {
            // The word already has the value for "done", so the wait returns at once.
            rank.enqueue_round(&plan, &parts[1..], LONG);
            rank.stream.synchronize().unwrap();
            assert_eq!(fault(&plan), Fault::Abandoned { peer: 0 });
        }
        (rank.meet)();
    });
}

#[test]
fn a_graph_is_bounded_by_its_launch() {
    on_ranks(2, options(), graph_is_bounded);
}

pub(super) fn graph_is_bounded(rank: &Rank<'_>) {
    let memory = rank.mapped(4096);
    let parts = [Part::GetFrom, Part::GetBy];
    let plan = one(rank, "plan", &memory, parts);
    let capture = rank.stream.begin_capture(CaptureMode::ThreadLocal).unwrap();
    for _ in 0..3 {
        rank.enqueue_round(&plan, &[parts[rank.rank]], LONG);
    }
    let graph = capture.end().unwrap().instantiate().unwrap();
    (rank.meet)();
    if rank.rank == 0 {
        plan.launch(&graph, &rank.stream, SHORT).unwrap();
        rank.stream.synchronize().unwrap();
        let late = fault(&plan);
        assert!(matches!(late, Fault::Late { peer: 1, awaited: Awaited::Graph, .. }), "{late}");
        // A run that is launched separately meanwhile ends too, and reports the fault.
        rank.stream.launch(&graph).unwrap();
        let refused = plan.watch(&rank.stream, LONG).unwrap_err();
        assert!(matches!(refused, TransferError::Fault(Fault::Late { .. })), "{refused}");
        rank.stream.synchronize().unwrap();
    }
    (rank.meet)();
    if rank.rank == 1 {
        assert_eq!(fault(&plan), Fault::Abandoned { peer: 0 });
    }
    drop(graph);
    (rank.meet)();
    goes_on(rank, "plan", parts);
}

/// A buffer in memory of `cuMemAlloc`, and the memory. Once the buffer is freed, this is the only reference to it.
fn observed(rank: &Rank<'_>) -> (Memory, Arc<DeviceMemory>) {
    let whole = Arc::new(DeviceMemory::new(&rank.context, 4096).unwrap());
    // SAFETY: the owner is the allocation.
    let memory = unsafe { Memory::foreign(&rank.context, whole.ptr(), 4096, whole.clone()) };
    (memory.unwrap(), whole)
}

fn until(is_done: impl Fn() -> bool) {
    let patience = Deadline::after(LONG);
    while !is_done() {
        assert!(!patience.expired(), "it does not come");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Both ranks drop a plan with memory of `cuMemAlloc`, while a transfer of another plan is under way. The plan is
/// closed, but the memory is not freed: the driver would block until the device is idle, and the ranks share it.
fn close_beside_a_transfer(rank: &Rank<'_>, job: impl FnOnce()) {
    let parts = [Part::PutInitiator, Part::PutTarget];
    let (memory, whole) = observed(rank);
    let transfers = [memory, rank.mapped(4096)];
    let transfers = transfers.map(|memory| rank.transfer(1 - rank.rank, parts[rank.rank], &memory));
    let gone = rank.exchange.exchange("gone", &transfers).unwrap();
    drop(transfers);
    let kept = one(rank, "kept", &rank.mapped(4096), parts);
    if rank.rank == 1 {
        rank.enqueue_round(&kept, &parts[1..], LONG);
    }
    (rank.meet)();
    drop(gone);
    let opened = [1, 0][rank.rank];
    until(|| (rank.exchange.open_handles(), rank.exchange.free_channels()) == (opened, 63));
    job();
    // Long enough for many polls of the closing thread.
    thread::sleep(2 * SHORT);
    assert_eq!(Arc::strong_count(&whole), 2, "a transfer is under way");
    (rank.meet)();
    if rank.rank == 0 {
        rank.enqueue_round(&kept, &parts[..1], LONG);
    }
    rank.stream.synchronize().unwrap();
    kept.check().unwrap();
    until(|| Arc::strong_count(&whole) == 1);
    (rank.meet)();
}

#[test]
fn plain_memory_is_not_freed_while_a_rank_of_the_process_has_a_transfer_under_way() {
    on_ranks(2, options(), |rank| close_beside_a_transfer(rank, || ()));
}

/// The transfer under way depends on a call that its rank makes only after the other rank has closed. So there is
/// never a quiet moment.
#[test]
fn closing_ends_also_where_nothing_can_be_freed() {
    on_ranks(2, options(), |rank| {
        close_beside_a_transfer(rank, || {
            if rank.rank == 0 {
                // The peer has closed the plan, so nothing is overdue.
                let overdue = rank.exchange.clone().close(Deadline::after(SHORT));
                assert!(overdue.is_empty(), "{overdue:?}");
            }
        });
    });
}

/// Rounds of a plan's only transfer, one after the other, until the plan is given up.
fn rounds_without_end(plan: &Plan, part: Part, streams: &[Stream]) {
    for stream in streams.iter().cycle() {
        stream.synchronize().unwrap();
        // SAFETY: the buffers are used by nobody else.
        let enqueued = unsafe {
            if part == Part::PutInitiator {
                plan.put(0, stream, LONG)
            } else {
                // Slow, so that the other end is ahead.
                thread::sleep(Duration::from_millis(1));
                plan.ready(0, stream).and_then(|()| plan.wait(0, stream, LONG))
            }
        };
        match enqueued {
            Ok(()) => {}
            Err(TransferError::Fault(_)) => return,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Runs `job` on two ranks of a process in which some transfer is always under way, so there is never a quiet moment.
/// `prepare` runs before the transfers begin.
fn beside_transfers_without_end<T>(
    rank: &Rank<'_>,
    prepare: impl FnOnce([Part; 2]) -> T,
    job: impl FnOnce(T),
) {
    let parts = [Part::PutInitiator, Part::PutTarget];
    let (prepared, kept) = (prepare(parts), one(rank, "kept", &rank.mapped(4096), parts));
    let ahead = if rank.rank == 0 { 4 } else { 1 };
    let streams: Vec<_> =
        (0..ahead).map(|_| Stream::new(&rank.context, StreamFlags::NON_BLOCKING).unwrap()).collect();
    thread::scope(|scope| {
        scope.spawn(|| rounds_without_end(&kept, parts[rank.rank], &streams));
        (rank.meet)();
        job(prepared);
        // Before anything is given up.
        (rank.meet)();
        kept.abort();
    });
    streams.iter().for_each(|stream| stream.synchronize().unwrap());
    (rank.meet)();
}

/// Virtual memory is closed and freed without a quiet moment.
#[test]
fn what_is_over_is_closed_also_while_transfers_follow_each_other_without_end() {
    on_ranks(2, options(), |rank| {
        let prepare = |parts| one(rank, "gone", &rank.mapped(4096), parts);
        beside_transfers_without_end(rank, prepare, |gone| {
            drop(gone);
            let overdue = rank.exchange.clone().close(Deadline::after(LONG));
            assert!(overdue.is_empty(), "{overdue:?}");
            assert_eq!(rank.exchange.free_channels(), 63);
        });
    });
}

/// A block of a pool whose memory the peers have mapped goes back to its pool without a quiet moment.
#[test]
fn a_block_goes_back_to_a_mapped_pool_while_transfers_follow_each_other_without_end() {
    let store: Arc<dyn Store> = Arc::new(HashStore::new());
    on_ranks(2, options(), |rank| {
        let domain = Domain::new(store.clone(), 7, rank.rank as u32, 0..2).unwrap();
        let geometry = Geometry { first_segment: 2 << 20, largest_segment: 2 << 20 };
        let pool = SymmetricPool::new(&domain, &rank.context, geometry).unwrap();
        let prepare = |parts| {
            let block = pool.allocate(4096).unwrap();
            drop(rank.rendezvous.rendezvous(&block).unwrap());
            (one(rank, "gone", &Memory::from(&block), parts), block.ptr())
        };
        beside_transfers_without_end(rank, prepare, |(gone, ptr)| {
            drop(gone);
            let overdue = rank.exchange.clone().close(Deadline::after(LONG));
            assert!(overdue.is_empty(), "{overdue:?}");
            assert_eq!(pool.allocate(4096).unwrap().ptr(), ptr);
        });
    });
}

/// Rank 1 has given up memory of `cuMemAlloc` that a plan of rank 0 still uses. So rank 0 frees it: not while a transfer
/// of the process is under way, because the driver would block.
#[test]
fn plain_memory_that_its_rank_has_given_up_is_not_freed_while_a_transfer_is_under_way() {
    on_ranks(2, options(), |rank| {
        let parts = [Part::PutInitiator, Part::PutTarget];
        let (memory, whole) = observed(rank);
        let gone = one(rank, "gone", &memory, parts);
        let owned = Arc::downgrade(&whole);
        drop((memory, whole));
        let kept = one(rank, "kept", &rank.mapped(4096), parts);
        let mut gone = Some(gone);
        if rank.rank == 1 {
            drop(gone.take());
            rank.enqueue_round(&kept, &parts[1..], LONG);
            for lent in rank.exchange.clone().close(Deadline::after(SHORT)) {
                // SAFETY: the peer makes no transfer of this plan.
                unsafe { lent.release() };
            }
            assert_eq!(owned.strong_count(), 1, "only the peer has it");
        }
        (rank.meet)();
        drop(gone);
        // Long enough for many polls of the closing thread.
        thread::sleep(4 * SHORT);
        assert_eq!(owned.strong_count(), 1, "a transfer is under way");
        (rank.meet)();
        if rank.rank == 0 {
            rank.enqueue_round(&kept, &parts[..1], LONG);
        }
        rank.stream.synchronize().unwrap();
        kept.check().unwrap();
        until(|| owned.strong_count() == 0);
        (rank.meet)();
    });
}

/// The peer that blocks the stream is named, even though the transfer behind it has the shorter deadline and a peer
/// that is ready.
#[test]
fn who_holds_up_a_stream_is_named() {
    on_ranks(3, options(), |rank| {
        let memory = [rank.mapped(64), rank.mapped(64)];
        let transfers: Vec<_> = match rank.rank {
            0 => [1, 2].map(|peer| rank.transfer(peer, Part::PutInitiator, &memory[peer - 1])).into(),
            _ => vec![rank.transfer(0, Part::PutTarget, &memory[0])],
        };
        let plan = rank.exchange.exchange("plan", &transfers).unwrap();
        if rank.rank == 2 {
            rank.enqueue_round(&plan, &[Part::PutTarget], LONG);
        }
        (rank.meet)();
        if rank.rank == 0 {
            // SAFETY: nobody else uses the buffers.
            let enqueued = unsafe {
                [(0, LONG), (1, SHORT)].map(|(transfer, deadline)| plan.put(transfer, &rank.stream, deadline))
            };
            enqueued.into_iter().collect::<Result<(), _>>().unwrap();
            rank.stream.synchronize().unwrap();
            let found = fault(&plan);
            assert!(matches!(found, Fault::Late { transfer: 0, peer: 1, .. }), "{found}");
        }
        (rank.meet)();
        rank.stream.synchronize().unwrap();
        (rank.meet)();
    });
}

/// An exchange in progress reports open memory and keeps it open. So the peer that owns it keeps it too, even after
/// the plan to which it was lent has ended.
#[test]
fn what_a_meeting_holds_is_not_said_to_be_let_go() {
    on_ranks(2, options(), |rank| {
        let memory = rank.mapped(4096);
        let parts = [Part::PutInitiator, Part::PutTarget];
        let gone = one(rank, "gone", &memory, parts);
        let (open, gate) = mpsc::channel::<()>();
        if rank.rank == 0 {
            // Under way until the next exchange has begun.
            rank.stream.launch_host_fn(move || gate.recv().unwrap_or_default()).unwrap();
        }
        rank.enqueue_round(&gone, &parts[rank.rank..=rank.rank], LONG);
        drop(gone);
        let next = thread::scope(|scope| {
            let next = || one(rank, "next", &memory, parts);
            if rank.rank == 1 {
                rank.stream.synchronize().unwrap();
                (rank.meet)();
                assert_eq!(rank.exchange.free_channels(), 63, "the other rank has it open");
                return next();
            }
            let next = scope.spawn(next);
            thread::sleep(SHORT);
            drop(open);
            rank.stream.synchronize().unwrap();
            // Longer than it takes to close the memory and to report that.
            thread::sleep(6 * SHORT);
            (rank.meet)();
            next.join().unwrap()
        });
        rank.round(&next, &parts[rank.rank..=rank.rank]);
        let overdue = rank.exchange.clone().close(Deadline::after(LONG));
        assert!(overdue.is_empty(), "{overdue:?}");
        assert_eq!(rank.exchange.free_channels(), 63);
        (rank.meet)();
    });
}

/// Includes a call that was inside the driver while another thread gave the plan up.
#[test]
fn what_is_enqueued_while_a_plan_is_given_up_is_let_go() {
    on_world(2, options(), |world, rank| {
        let memory = rank.mapped(4096);
        let parts = [Part::PutInitiator, Part::PutTarget];
        let plan = one(rank, "plan", &memory, parts);
        if rank.rank == 0 {
            let late = Action::Delay(4 * SHORT);
            world.faults().inject(Injection::new("cuStreamIsCapturing", late)).unwrap();
            let begun = Instant::now();
            thread::scope(|scope| {
                // SAFETY: nobody else uses the buffers.
                let put = scope.spawn(|| unsafe { plan.put(0, &rank.stream, LONG) });
                thread::sleep(SHORT);
                plan.abort();
                let put = put.join().unwrap();
                // A call that begins after the abort fails.
                assert!(matches!(put, Ok(()) | Err(TransferError::Fault(Fault::Aborted))), "{put:?}");
            });
            rank.stream.synchronize().unwrap();
            assert!(begun.elapsed() < LONG, "it was let go by its deadline");
            assert_eq!(fault(&plan), Fault::Aborted);
        }
        (rank.meet)();
        goes_on(rank, "plan", parts);
    });
}

#[test]
fn an_aborted_plan_lets_everybody_go() {
    on_ranks(2, options(), |rank| {
        let memory = rank.mapped(4096);
        let parts = [Part::PutInitiator, Part::PutTarget];
        let plan = one(rank, "plan", &memory, parts);
        if rank.rank == 0 {
            rank.enqueue_round(&plan, &parts[..1], LONG);
            plan.abort();
            rank.stream.synchronize().unwrap();
            assert_eq!(fault(&plan), Fault::Aborted);
            // SAFETY: refused.
            let refused = unsafe { plan.put(0, &rank.stream, LONG) }.unwrap_err();
            assert!(matches!(refused, TransferError::Fault(Fault::Aborted)), "{refused}");
        }
        (rank.meet)();
        goes_on(rank, "plan", parts);
    });
}

/// Closing does not wait for transfers under way: they are given up at the deadline.
#[test]
fn closing_ends_by_its_deadline() {
    on_ranks(2, options(), |rank| {
        let memory = rank.mapped(4096);
        let parts = [Part::PutInitiator, Part::PutTarget];
        let plan = one(rank, "plan", &memory, parts);
        if rank.rank == 0 {
            // Practically without a deadline.
            rank.enqueue_round(&plan, &parts[..1], 100 * LONG);
            drop(plan);
            let overdue = rank.exchange.clone().close(Deadline::after(SHORT));
            assert_eq!(overdue.len(), 1);
            assert_eq!(overdue[0].peers(), [1]);
            rank.stream.synchronize().unwrap();
            (rank.meet)();
            (rank.meet)();
            // SAFETY: the peer has closed its plan.
            overdue.into_iter().for_each(|kept| unsafe { kept.release() });
        } else {
            (rank.meet)();
            assert_eq!(fault(&plan), Fault::Abandoned { peer: 0 });
            drop(plan);
            assert!(rank.exchange.clone().close(Deadline::after(LONG)).is_empty());
            (rank.meet)();
        }
        goes_on(rank, "plan", parts);
    });
}

/// Memory lent to a peer that does not close it in time is kept, and never freed.
#[test]
fn what_a_peer_holds_on_to_is_kept_and_reported() {
    on_ranks(2, ExchangeOptions { lease: SHORT, ..options() }, |rank| {
        let memory = rank.plain(4096);
        let parts = [Part::GetFrom, Part::GetBy];
        let mut plan = Some(one(rank, "plan", &memory, parts));
        if rank.rank == 1 {
            drop(plan.take());
            let overdue = loop {
                if let Some(overdue) = rank.exchange.quarantine().pop() {
                    break overdue;
                }
                thread::yield_now();
            };
            assert_eq!((overdue.plan(), overdue.generation(), overdue.peers()), ("plan", 1, &[0][..]));
            assert!(overdue.memory().all(|lent| lent.ptr() == memory.ptr()));
            // The plan's slot is kept too.
            assert_eq!(rank.exchange.free_channels(), 63);
            (rank.meet)();
            // SAFETY: the peer has dropped the plan when the ranks meet again.
            let release = || unsafe { overdue.release() };
            (rank.meet)();
            release();
        } else {
            (rank.meet)();
            drop(plan.take());
            let _ = rank.exchange.clone().close(Deadline::after(LONG));
            (rank.meet)();
        }
    });
}
