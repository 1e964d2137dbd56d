//! Every driver call of sharing regions and of transfers between them fails in turn.

use std::{sync::Mutex, time::Duration};

use cuda_driver::sys::CUresult;
use gpu_sim::{Action, Injection, World};
use symm_mem::exchange::{Direction, Fault, Regions, TransferError};

use super::{
    super::{LONG, Rank, on_world, options, pattern},
    BYTES, at, is_free, memory, share,
};

/// Driver calls of sharing regions, if ranks are threads.
const SHARING: [&str; 7] = [
    "cuMemsetD32Async",
    "cuStreamSynchronize",
    "cuIpcGetMemHandle",
    "cuCtxEnablePeerAccess",
    "cuMemAddressReserve",
    "cuMemMap",
    "cuMemSetAccess",
];

/// The number of copies of a transfer, its driver calls, and whether the transfers with the peer fail by that.
const TRANSFERRING: [(usize, &str, bool); 6] = [
    (2, "cuStreamIsCapturing", false),
    (1, "cuMemcpyDtoDAsync_v2", false),
    (2, "cuStreamWriteValue32_v2", true),
    (2, "cuEventRecord", true),
    (0, "cuEventRecord", true),
    (0, "cuStreamWriteValue32_v2", true),
];

fn inject(world: &World, call: &str, nth: u64) {
    let action = Action::Fail(CUresult::CUDA_ERROR_UNKNOWN.0);
    world.faults().inject(Injection::new(call, action).nth(nth)).unwrap();
}

/// Transfers of two copies to the other rank, from the other rank too, with a check of the bytes.
fn works(rank: &Rank<'_>) {
    let own = memory(rank);
    let regions = share(rank, "works", &own);
    (rank.meet)();
    let peer = 1 - rank.rank;
    exchange_once(rank, &regions, peer);
    assert_eq!(rank.read(&own[1])[..100], pattern(peer, 0, 100));
    (rank.meet)();
    drop((regions, own));
    is_free(rank);
}

fn exchange_once(rank: &Rank<'_>, regions: &Regions, peer: usize) {
    let list = [at((0, 0), (1, 0), 100), at((0, 200), (1, 200), 100)];
    // SAFETY: nobody else uses the bytes.
    let pending = unsafe { regions.transfer_and_notify(Direction::Put, peer, &list, &rank.stream, LONG) };
    let pending = pending.unwrap();
    regions.wait(peer, &rank.stream, LONG).unwrap();
    rank.stream.synchronize().unwrap();
    regions.check(peer).unwrap();
    assert!(pending.is_done().unwrap());
}

#[test]
fn a_call_that_fails_is_the_same_refusal_on_all_and_leaves_nothing() {
    for call in SHARING {
        let told = Mutex::new(Vec::new());
        on_world(2, options(), |world, rank| {
            // Peer access stays enabled, so a second agreement would not call this.
            if call != "cuCtxEnablePeerAccess" {
                works(rank);
            }
            let own = memory(rank);
            let regions = [("plain", own[0].clone()), ("virtual", own[1].clone())];
            (rank.meet)();
            if rank.rank == 0 {
                inject(world, call, 1);
            }
            (rank.meet)();
            let refused = rank.exchange.share_regions("failing", &regions).unwrap_err();
            let refusal =
                refused.exchange_refusal().unwrap_or_else(|| panic!("{call}: {refused}")).to_string();
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

#[test]
fn a_transfer_that_fails_is_an_error_and_nothing_hangs() {
    for (copies, call, breaks) in TRANSFERRING {
        on_world(2, options(), |world, rank| {
            let own = memory(rank);
            let regions = share(rank, "failing", &own);
            (rank.meet)();
            exchange_once(rank, &regions, 1 - rank.rank);
            (rank.meet)();
            let soon = Duration::from_millis(300);
            if rank.rank == 0 {
                let list = [at((0, 0), (2, 0), 50), at((0, 100), (2, 100), 50)];
                // SAFETY: nobody else uses the bytes.
                let put = || unsafe {
                    regions.transfer_and_notify(Direction::Put, 1, &list[..copies], &rank.stream, LONG)
                };
                inject(world, call, 1);
                let error = put().unwrap_err();
                assert!(
                    matches!(&error, TransferError::Driver(error) if error.to_string().contains(call)),
                    "{error}"
                );
                rank.stream.synchronize().unwrap();
                match (breaks, regions.check(1)) {
                    // The call can be repeated.
                    (false, Ok(())) => {
                        let pending = put().unwrap();
                        rank.stream.synchronize().unwrap();
                        assert!(pending.is_done().unwrap());
                    }
                    (true, Err(TransferError::Fault(Fault::Broken { cause, .. }))) => {
                        assert!(cause.contains(call), "{cause}");
                    }
                    other => panic!("{copies} {call}: {other:?}"),
                }
                (rank.meet)();
            } else {
                // Afterwards, because the wait makes calls too.
                (rank.meet)();
                regions.wait(0, &rank.stream, if breaks { soon } else { LONG }).unwrap();
                rank.stream.synchronize().unwrap();
                match (breaks, regions.check(0)) {
                    (false, Ok(())) => {
                        assert_eq!(
                            rank.read(&own[2])[..50 * copies.min(1)],
                            pattern(0, 0, 50)[..50 * copies.min(1)]
                        );
                    }
                    (
                        true,
                        Err(TransferError::Fault(Fault::Abandoned { peer: 0 } | Fault::Late { peer: 0, .. })),
                    ) => {}
                    // The notification was sent; the peer may look before it is told of the fault.
                    (true, Ok(())) if call == "cuEventRecord" => {}
                    other => panic!("{copies} {call}: {other:?}"),
                }
            }
            drop((regions, own));
            (rank.meet)();
            works(rank);
        });
    }
}

#[test]
fn a_wait_that_fails_is_an_error_and_nothing_hangs() {
    for (call, breaks) in
        [("cuStreamIsCapturing", false), ("cuStreamWaitValue32_v2", false), ("cuEventRecord", true)]
    {
        on_world(2, options(), |world, rank| {
            let own = memory(rank);
            let regions = share(rank, "failing", &own);
            (rank.meet)();
            exchange_once(rank, &regions, 1 - rank.rank);
            (rank.meet)();
            if rank.rank == 1 {
                inject(world, call, 1);
                let error = regions.wait(0, &rank.stream, LONG).unwrap_err();
                assert!(
                    matches!(&error, TransferError::Driver(error) if error.to_string().contains(call)),
                    "{error}"
                );
                if !breaks {
                    regions.wait(0, &rank.stream, LONG).unwrap();
                }
            }
            (rank.meet)();
            if rank.rank == 0 {
                // SAFETY: nothing is copied.
                let told = unsafe { regions.transfer_and_notify(Direction::Put, 1, &[], &rank.stream, LONG) };
                // If the wait broke, the peer may have told this rank already.
                if !breaks {
                    drop(told.unwrap());
                }
            }
            rank.stream.synchronize().unwrap();
            (rank.meet)();
            match (breaks, rank.rank, regions.check(1 - rank.rank)) {
                (false, _, Ok(())) => {}
                (true, 1, Err(TransferError::Fault(Fault::Broken { cause, .. }))) => {
                    assert!(cause.contains(call), "{cause}");
                }
                // The fault is told by another thread.
                (true, 0, Ok(()) | Err(TransferError::Fault(Fault::Abandoned { peer: 1 }))) => {}
                other => panic!("{call}: {other:?}"),
            }
            drop((regions, own));
            (rank.meet)();
            works(rank);
        });
    }
}

/// A peer is told that the regions were dropped also if the first call for it fails.
#[test]
fn a_drop_is_told_again_until_it_is_told() {
    on_world(2, options(), |world, rank| {
        let own = memory(rank);
        let regions = share(rank, "told", &own);
        (rank.meet)();
        if rank.rank == 0 {
            inject(world, "cuStreamWriteValue32_v2", 1);
            drop(regions);
            (rank.meet)();
        } else {
            (rank.meet)();
            regions.wait(0, &rank.stream, 100 * LONG).unwrap();
            rank.stream.synchronize().unwrap();
            let told = regions.check(0).unwrap_err();
            assert!(matches!(told, TransferError::Fault(Fault::Abandoned { peer: 0 })), "{told}");
            drop(regions);
        }
        (rank.meet)();
        if rank.rank == 0 {
            assert_eq!(world.faults().hits(), 1);
            world.faults().clear();
        }
        assert_eq!(own[0].bytes(), BYTES[0]);
        drop(own);
        is_free(rank);
        works(rank);
    });
}
