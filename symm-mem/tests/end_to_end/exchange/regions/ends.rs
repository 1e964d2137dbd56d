//! Invalid calls, late peers, and the end of regions.

use std::{thread, time::Duration};

use cuda_driver::{Stream, StreamFlags};
use process_group::store::Deadline;
use symm_mem::{
    ErrorKind,
    exchange::{
        Awaited, Descriptor, DescriptorError, Direction, ExchangeOptions, ExchangeRefusal, Fault, Regions,
        Side, TransferError,
    },
};

use super::{
    super::{LONG, Rank, on_ranks, options, pattern},
    BYTES, at, is_free, memory, share,
};

const SHORT: Duration = Duration::from_millis(50);

/// A put to `peer`.
fn put(
    rank: &Rank<'_>,
    regions: &Regions,
    peer: usize,
    list: &[Descriptor],
    deadline: Duration,
) -> Result<(), TransferError> {
    // SAFETY: the ranks of these tests use other bytes, or none.
    unsafe { regions.transfer_and_notify(Direction::Put, peer, list, &rank.stream, deadline) }.map(drop)
}

fn fault<T: std::fmt::Debug>(result: Result<T, TransferError>) -> Fault {
    match result.unwrap_err() {
        TransferError::Fault(fault) => fault,
        other => panic!("{other}"),
    }
}

#[test]
fn an_invalid_descriptor_is_named_and_nothing_is_copied() {
    on_ranks(2, options(), |rank| {
        let memory = memory(rank);
        let regions = share(rank, "invalid", &memory[..2 + rank.rank]);
        (rank.meet)();
        if rank.rank == 0 {
            let good = at((0, 0), (0, 0), 100);
            let refused = |bad: Descriptor| match put(rank, &regions, 1, &[good, bad], LONG) {
                Err(TransferError::Descriptor { at: 1, problem }) => problem,
                other => panic!("{other:?}"),
            };
            let (local, remote) = (Side::Local, Side::Remote);
            assert_eq!(
                refused(at((2, 0), (2, 0), 1)),
                DescriptorError::NoSuchRegion { side: local, region: 2, regions: 2 }
            );
            assert_eq!(
                refused(at((1, 0), (3, 0), 1)),
                DescriptorError::NoSuchRegion { side: remote, region: 3, regions: 3 }
            );
            assert_eq!(refused(at((1, 0), (1, 0), 0)), DescriptorError::Empty);
            let (region, whole) = (0, BYTES[0]);
            assert_eq!(
                refused(at((0, 3950), (1, 0), 51)),
                DescriptorError::OutOfBounds { side: local, region, offset: 3950, bytes: 51, whole }
            );
            assert_eq!(
                refused(at((1, 0), (0, usize::MAX), 2)),
                DescriptorError::OutOfBounds { side: remote, region, offset: usize::MAX, bytes: 2, whole }
            );
            assert_eq!(refused(at((1, 0), (0, 99), 2)), DescriptorError::Overlap { other: 0 });
            let text = put(rank, &regions, 1, &[at((0, 3950), (1, 0), 51)], LONG).unwrap_err().to_string();
            assert_eq!(text, "descriptor 0: 51 bytes at byte 3950 leave local region 0 of 4000 bytes");
            let to_self = put(rank, &regions, 0, &[good], LONG).unwrap_err();
            assert!(matches!(to_self, TransferError::ToSelf { rank: 0 }), "{to_self}");
            let nobody = put(rank, &regions, 2, &[good], LONG).unwrap_err();
            assert!(matches!(nobody, TransferError::NoSuchRank { rank: 2, world: 2 }), "{nobody}");
            // The same source twice is no overlap.
            put(rank, &regions, 1, &[at((1, 0), (2, 0), 9), at((1, 0), (2, 9), 9)], LONG).unwrap();
            rank.stream.synchronize().unwrap();
        }
        (rank.meet)();
        if rank.rank == 1 {
            assert_eq!(regions.notifications(0).unwrap(), 1);
            assert!(rank.read(&memory[0]) == pattern(1, 0, BYTES[0]), "nothing was copied");
            assert_eq!(rank.read(&memory[2])[..9], pattern(0, 1, 9));
        }
        (rank.meet)();
    });
}

#[test]
fn regions_are_shared_among_some_ranks() {
    on_ranks(3, options(), |rank| {
        if rank.rank < 2 {
            let own = memory(rank);
            let all = [("one", own[0].clone())];
            let regions = rank.exchange.share_regions_among(&[0, 1], "pair", &all).unwrap();
            let other = put(rank, &regions, 2, &[], LONG).unwrap_err();
            let TransferError::NotShared { rank: 2, members } = &other else { panic!("{other}") };
            assert_eq!(*members, [0, 1]);
            put(rank, &regions, 1 - rank.rank, &[], LONG).unwrap();
            regions.wait(1 - rank.rank, &rank.stream, LONG).unwrap();
            rank.stream.synchronize().unwrap();
            regions.check(1 - rank.rank).unwrap();
        } else {
            let error = rank.exchange.share_regions_among(&[0, 1], "pair", &[]).unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::NotAMember { rank: 2, world: 3, .. }), "{error}");
        }
        (rank.meet)();
    });
}

#[test]
fn ranks_that_differ_are_told_the_same() {
    on_ranks(2, options(), |rank| {
        let own = memory(rank);
        let one = [("one", own[0].clone())];
        // One rank exchanges a plan of that name, and the other shares regions.
        let error = match rank.rank {
            0 => rank.exchange.exchange("same", &[]).map(drop),
            _ => rank.exchange.share_regions("same", &one).map(drop),
        };
        let error = error.unwrap_err();
        let Some(ExchangeRefusal::PlanMismatch { plans }) = error.exchange_refusal() else {
            panic!("{error}")
        };
        assert!(plans.describe(String::clone).contains("regions same"), "{error}");
        (rank.meet)();
        let twice = [("twice", own[0].clone()), ("twice", own[1].clone())];
        let mine = if rank.rank == 1 { &twice[..] } else { &one[..] };
        let error = rank.exchange.share_regions("names", mine).unwrap_err();
        let Some(ExchangeRefusal::PeerPrepareFailed { rank: 1, cause }) = error.exchange_refusal() else {
            panic!("{error}")
        };
        assert!(cause.contains("two regions of the name \"twice\""), "{cause}");
        (rank.meet)();
        let nothing = [("nothing", own[0].part(5, 0).unwrap())];
        let mine = if rank.rank == 0 { &nothing } else { &one };
        let error = rank.exchange.share_regions("empty", mine).unwrap_err();
        let Some(ExchangeRefusal::PeerPrepareFailed { rank: 0, cause }) = error.exchange_refusal() else {
            panic!("{error}")
        };
        assert!(cause.contains("expected at least 1"), "{cause}");
        assert_eq!((rank.exchange.open_handles(), rank.exchange.free_channels()), (0, 64));
        (rank.meet)();
    });
}

#[test]
fn regions_need_a_channel_for_each_peer() {
    on_ranks(3, ExchangeOptions { channels: 3, ..options() }, |rank| {
        let regions = rank.exchange.share_regions("first", &[]).unwrap();
        assert_eq!(rank.exchange.free_channels(), 1);
        let error = rank.exchange.share_regions("second", &[]).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::NoChannels { wanted: 2, free: 1, .. }), "{error}");
        drop(regions);
        while rank.exchange.free_channels() < 3 {
            thread::yield_now();
        }
        (rank.meet)();
    });
}

#[test]
fn regions_that_were_shared_again_are_stale() {
    on_ranks(2, options(), |rank| {
        let own = memory(rank);
        let first = share(rank, "again", &own[..1]);
        let second = share(rank, "again", &own);
        assert_eq!((first.generation(), second.generation()), (1, 2));
        let stale = put(rank, &first, 1 - rank.rank, &[], LONG).unwrap_err();
        assert!(matches!(stale, TransferError::StalePlan { expected: 2, found: 1, .. }), "{stale}");
        let stale = first.wait(1 - rank.rank, &rank.stream, LONG).unwrap_err();
        assert!(matches!(stale, TransferError::StalePlan { .. }), "{stale}");
        put(rank, &second, 1 - rank.rank, &[], LONG).unwrap();
        second.wait(1 - rank.rank, &rank.stream, LONG).unwrap();
        rank.stream.synchronize().unwrap();
        second.check(1 - rank.rank).unwrap();
        drop((first, second));
        (rank.meet)();
        is_free(rank);
    });
}

/// A peer that does not notify in time fails by itself: transfers with another one go on.
#[test]
fn a_late_peer_is_named_and_the_others_go_on() {
    on_ranks(3, options(), |rank| {
        let own = memory(rank);
        let regions = share(rank, "late", &own);
        (rank.meet)();
        match rank.rank {
            0 => {
                regions.wait(1, &rank.stream, SHORT).unwrap();
                rank.stream.synchronize().unwrap();
                let late = fault(regions.check(1));
                let Fault::Late { transfer: 0, peer: 1, awaited: Awaited::Notification, waited } = &late
                else {
                    panic!("{late}")
                };
                assert!(*waited >= SHORT);
                assert!(late.to_string().contains("rank 1 did not notify this rank"), "{late}");
                assert!(matches!(fault(put(rank, &regions, 1, &[], LONG)), Fault::Late { .. }));
                assert!(matches!(fault(regions.wait(1, &rank.stream, LONG)), Fault::Late { .. }));
                assert!(matches!(fault(regions.notifications(1)), Fault::Late { .. }));
                (rank.meet)();
            }
            1 => {
                (rank.meet)();
                assert_eq!(fault(regions.check(0)), Fault::Abandoned { peer: 0 });
            }
            _ => (rank.meet)(),
        }
        // Rank 2 and the others are as before.
        let pairs: &[usize] = if rank.rank == 2 { &[0, 1] } else { &[2] };
        for peer in pairs {
            put(rank, &regions, *peer, &[at((0, 0), (2, 100 * rank.rank), 100)], LONG).unwrap();
        }
        for peer in pairs {
            regions.wait(*peer, &rank.stream, LONG).unwrap();
        }
        rank.stream.synchronize().unwrap();
        for peer in pairs {
            regions.check(*peer).unwrap();
            assert_eq!(rank.read(&own[2])[100 * peer..][..100], pattern(*peer, 0, 100));
        }
        drop(regions);
        (rank.meet)();
        // An agreement of the same name makes regions that work.
        let regions = share(rank, "late", &own);
        let peer = (rank.rank + 1) % 3;
        put(rank, &regions, peer, &[], LONG).unwrap();
        regions.wait((rank.rank + 2) % 3, &rank.stream, LONG).unwrap();
        rank.stream.synchronize().unwrap();
        regions.check((rank.rank + 2) % 3).unwrap();
        drop(regions);
        (rank.meet)();
        is_free(rank);
    });
}

/// Copies behind work that does not end in time.
#[test]
fn copies_that_do_not_end_in_time_are_an_error() {
    on_ranks(2, options(), |rank| {
        let own = memory(rank);
        let regions = share(rank, "stuck", &own);
        (rank.meet)();
        if rank.rank == 0 {
            let (open, gate) = std::sync::mpsc::channel::<()>();
            rank.stream.launch_host_fn(move || gate.recv().unwrap_or_default()).unwrap();
            let list = [at((0, 0), (0, 0), 64)];
            // SAFETY: nobody uses the bytes.
            let pending = unsafe { regions.transfer(Direction::Put, 1, &list, &rank.stream, SHORT) }.unwrap();
            let late = loop {
                match pending.is_done() {
                    Ok(is_done) => assert!(!is_done),
                    Err(_) => break fault(pending.is_done()),
                }
                thread::yield_now();
            };
            assert!(matches!(late, Fault::Late { peer: 1, awaited: Awaited::Copies, .. }), "{late}");
            // The copies are under way still, so the memory is.
            drop((regions, pending));
            thread::sleep(3 * SHORT);
            assert!(rank.exchange.open_handles() > 0);
            drop(open);
            rank.stream.synchronize().unwrap();
            (rank.meet)();
        } else {
            (rank.meet)();
            assert_eq!(fault(regions.check(0)), Fault::Abandoned { peer: 0 });
            drop(regions);
        }
        is_free(rank);
    });
}

#[test]
fn who_gives_up_is_an_error_for_all_peers() {
    on_ranks(3, options(), |rank| {
        let regions = share(rank, "abort", &memory(rank));
        if rank.rank == 0 {
            (rank.meet)();
            regions.abort();
            assert_eq!(fault(regions.check(1)), Fault::Aborted);
            assert_eq!(fault(put(rank, &regions, 2, &[], LONG)), Fault::Aborted);
        } else {
            // Practically without a deadline.
            regions.wait(0, &rank.stream, 100 * LONG).unwrap();
            (rank.meet)();
            rank.stream.synchronize().unwrap();
            assert_eq!(fault(regions.check(0)), Fault::Abandoned { peer: 0 });
            regions.check(3 - rank.rank).unwrap();
        }
        (rank.meet)();
        drop(regions);
        is_free(rank);
    });
}

/// A peer that has dropped its regions sends nothing more. What it sent before counts, and its memory is there.
#[test]
fn a_peer_that_has_dropped_its_regions_is_named() {
    on_ranks(2, options(), |rank| {
        let own = memory(rank);
        let regions = share(rank, "dropped", &own);
        (rank.meet)();
        if rank.rank == 0 {
            put(rank, &regions, 1, &[at((0, 0), (0, 0), 64)], LONG).unwrap();
            rank.stream.synchronize().unwrap();
            drop(regions);
            (rank.meet)();
        } else {
            let other = Stream::new(&rank.context, StreamFlags::NON_BLOCKING).unwrap();
            regions.wait(0, &rank.stream, LONG).unwrap();
            rank.stream.synchronize().unwrap();
            (rank.meet)();
            // No check has noticed the drop yet.
            put(rank, &regions, 0, &[at((1, 0), (1, 0), 64)], LONG).unwrap();
            regions.check(0).unwrap();
            assert_eq!(rank.read(&own[0])[..64], pattern(0, 0, 64));
            rank.stream.synchronize().unwrap();
            // Practically without a deadline.
            regions.wait(0, &other, 100 * LONG).unwrap();
            other.synchronize().unwrap();
            assert_eq!(fault(regions.check(0)), Fault::Abandoned { peer: 0 });
            assert_eq!(fault(put(rank, &regions, 0, &[], LONG)), Fault::Abandoned { peer: 0 });
            drop(regions);
        }
        is_free(rank);
    });
}

/// A check notices that the peer has dropped its regions: then nothing is copied there, but nothing has failed.
#[test]
fn nothing_is_copied_to_a_peer_that_is_known_to_have_dropped_its_regions() {
    on_ranks(2, options(), |rank| {
        let regions = share(rank, "gone", &memory(rank));
        (rank.meet)();
        if rank.rank == 0 {
            drop(regions);
        } else {
            loop {
                regions.check(0).unwrap();
                match put(rank, &regions, 0, &[at((0, 0), (0, 0), 8)], LONG) {
                    Ok(()) => thread::yield_now(),
                    Err(error) => break assert_eq!(fault::<()>(Err(error)), Fault::Abandoned { peer: 0 }),
                }
            }
            rank.stream.synchronize().unwrap();
            regions.check(0).unwrap();
            drop(regions);
        }
        (rank.meet)();
        is_free(rank);
    });
}

/// Memory of a peer that does not close in time is kept, for each peer by itself.
#[test]
fn what_a_peer_holds_on_to_is_kept_and_reported() {
    on_ranks(3, ExchangeOptions { lease: SHORT, ..options() }, |rank| {
        let own = memory(rank);
        let mut regions = Some(share(rank, "kept", &own));
        if rank.rank == 0 {
            // Rank 2 closes, and rank 1 does not.
            (rank.meet)();
            drop(regions.take());
            let overdue = loop {
                if let Some(overdue) = rank.exchange.quarantine().pop() {
                    break overdue;
                }
                thread::yield_now();
            };
            assert_eq!((overdue.plan(), overdue.peers()), ("kept", &[1][..]));
            let kept: Vec<_> = overdue.memory().map(|memory| memory.ptr()).collect();
            assert_eq!(kept, own.each_ref().map(|memory| memory.ptr()));
            while rank.exchange.free_channels() != 63 {
                thread::yield_now();
            }
            (rank.meet)();
            (rank.meet)();
            // SAFETY: the peer has closed its regions.
            unsafe { overdue.release() };
        } else {
            if rank.rank == 2 {
                drop(regions.take());
                while rank.exchange.open_handles() > 0 {
                    thread::yield_now();
                }
            }
            (rank.meet)();
            (rank.meet)();
            drop(regions.take());
            for overdue in rank.exchange.clone().close(Deadline::after(LONG)) {
                // SAFETY: as below: no rank uses the regions.
                unsafe { overdue.release() };
            }
            (rank.meet)();
        }
    });
}
