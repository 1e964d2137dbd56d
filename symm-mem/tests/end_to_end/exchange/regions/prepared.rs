//! Prepared ranges: lists that are validated once, for many transfers.

use symm_mem::exchange::{
    DescriptorError, Direction, Fault, Memory, PreparedRanges, RegionRange, Regions, Side, TransferError,
};

use super::{
    super::{LONG, Rank, on_ranks, options, pattern},
    BYTES,
    blocks::blocks,
    is_free, memory, share,
};

fn range(region: usize, offset: usize, bytes: usize) -> RegionRange {
    RegionRange { region, offset, bytes }
}

/// Ranges of 16 bytes in the region, in descending order of their addresses.
fn pages(region: usize) -> Vec<RegionRange> {
    (0..200).rev().map(|page| range(region, 16 * page, 16)).collect()
}

/// A put of the selected ranges, with a notification.
fn put(
    rank: &Rank<'_>,
    regions: &Regions,
    (own, local): (&PreparedRanges, &[usize]),
    (theirs, remote): (&PreparedRanges, &[usize]),
) -> Result<(), TransferError> {
    let (own, theirs) = (own.select(local), theirs.select(remote));
    // SAFETY: the peer waits for the notification, or nothing is copied.
    unsafe { regions.transfer_prepared_and_notify(Direction::Put, own, theirs, &rank.stream, LONG) }.map(drop)
}

/// One pair of lists serves transfers of other subsets in both directions.
#[test]
fn prepared_ranges_serve_many_transfers() {
    on_ranks(2, options(), |rank| {
        let memory = memory(rank);
        let regions = share(rank, "prepared", &memory);
        (rank.meet)();
        let peer = 1 - rank.rank;
        let own = regions.prepare(rank.rank, &pages(0)).unwrap();
        let theirs = regions.prepare(peer, &pages(rank.rank + 1)).unwrap();
        assert_eq!((own.rank(), own.len(), theirs.rank(), theirs.is_empty()), (rank.rank, 200, peer, false));
        let mut expected = pattern(rank.rank, peer + 1, BYTES[peer + 1]);
        for round in 0..8 {
            // Ranges that are adjacent on both sides, and ranges that are not.
            let local = [199 - round, 198 - round, 3 * round];
            let remote = [199 - 2 * round, 198 - 2 * round, round];
            put(rank, &regions, (&own, &local), (&theirs, &remote)).unwrap();
            regions.wait(peer, &rank.stream, LONG).unwrap();
            let sent = pattern(peer, 0, BYTES[0]);
            for (from, to) in local.into_iter().zip(remote) {
                let (from, to) = (16 * (199 - from), 16 * (199 - to));
                expected[to..to + 16].copy_from_slice(&sent[from..from + 16]);
            }
        }
        rank.stream.synchronize().unwrap();
        regions.check(peer).unwrap();
        assert!(rank.read(&memory[peer + 1]) == expected);
        (rank.meet)();
        // The same lists for a get.
        // SAFETY: nobody writes the regions.
        let got = unsafe {
            let (own, theirs) = (own.select(&[7]), theirs.select(&[8]));
            regions.transfer_prepared(Direction::Get, own, theirs, &rank.stream, LONG)
        };
        rank.stream.synchronize().unwrap();
        assert!(got.unwrap().is_done().unwrap());
        // No put wrote range 8 of the peer.
        let found = pattern(peer, rank.rank + 1, BYTES[rank.rank + 1]);
        assert_eq!(rank.read(&memory[0])[16 * 192..16 * 193], found[16 * 191..16 * 192]);
        (rank.meet)();
    });
}

/// Ranges on both sides cross pages, at other offsets.
#[test]
fn prepared_ranges_may_cross_pages() {
    on_ranks(2, options(), |rank| {
        let pages = Memory::block(&rank.context, blocks(rank).pop().unwrap()).unwrap();
        rank.write(&pages, &pattern(rank.rank, 0, pages.bytes()));
        let regions = rank.exchange.share_regions("pages", &[("pages", pages.clone())]).unwrap();
        (rank.meet)();
        let bytes = 5 << 19;
        let ranges = [range(0, 1, bytes), range(0, 5000, bytes), range(0, bytes + 1, 2 << 20)];
        let lists = [0, 1].map(|of| regions.prepare(of, &ranges).unwrap());
        if rank.rank == 0 {
            let (own, theirs) = (lists[0].select(&[2, 0]), lists[1].select(&[2, 1]));
            // SAFETY: nobody else uses this rank's region, and nobody writes the peer's.
            let got = unsafe { regions.transfer_prepared(Direction::Get, own, theirs, &rank.stream, LONG) };
            rank.stream.synchronize().unwrap();
            assert!(got.unwrap().is_done().unwrap());
            let (found, sent) = (rank.read(&pages), pattern(1, 0, pages.bytes()));
            assert!(found[1..=bytes] == sent[5000..5000 + bytes]);
            let second = bytes + 1..bytes + 1 + (2 << 20);
            assert!(found[second.clone()] == sent[second]);
        }
        (rank.meet)();
    });
}

#[test]
fn an_invalid_range_is_named_when_it_is_prepared() {
    on_ranks(2, options(), |rank| {
        let memory = memory(rank);
        let regions = share(rank, "prepared", &memory[..2 + rank.rank]);
        let prepare = |of: usize, bad| match regions.prepare(of, &[range(0, 0, 1), bad]) {
            Err(TransferError::Descriptor { at: 1, problem }) => problem,
            other => panic!("{other:?}"),
        };
        let (own, peer, count) = (rank.rank, 1 - rank.rank, 2 + rank.rank);
        let none = DescriptorError::NoSuchRegion { side: Side::Local, region: 3, regions: count };
        assert_eq!(prepare(own, range(3, 0, 1)), none);
        let none = DescriptorError::NoSuchRegion { side: Side::Remote, region: 3, regions: 5 - count };
        assert_eq!(prepare(peer, range(3, 0, 1)), none);
        assert_eq!(prepare(own, range(0, 0, 0)), DescriptorError::Empty);
        let (side, offset, bytes, whole) = (Side::Remote, usize::MAX, 2, BYTES[0]);
        assert_eq!(
            prepare(peer, range(0, offset, bytes)),
            DescriptorError::OutOfBounds { side, region: 0, offset, bytes, whole }
        );
        let nobody = regions.prepare(2, &[]).unwrap_err();
        assert!(matches!(nobody, TransferError::NoSuchRank { rank: 2, world: 2 }), "{nobody}");
        (rank.meet)();
    });
}

#[test]
fn an_invalid_selection_is_named_and_nothing_is_copied() {
    on_ranks(2, options(), |rank| {
        let memory = memory(rank);
        let regions = share(rank, "prepared", &memory);
        let former = share(rank, "other", &memory);
        let other = share(rank, "other", &memory);
        (rank.meet)();
        if rank.rank == 0 {
            let ranges = [range(0, 0, 10), range(0, 5, 10), range(1, 0, 20), range(2, 0, 20)];
            let lists = |set: &Regions| [0, 1].map(|of| set.prepare(of, &ranges).unwrap());
            let [own, theirs] = lists(&regions);
            let refused = |local: &[usize], remote: &[usize]| match put(
                rank,
                &regions,
                (&own, local),
                (&theirs, remote),
            ) {
                Err(TransferError::Descriptor { at, problem }) => (at, problem),
                other => panic!("{other:?}"),
            };
            let missing = |side| DescriptorError::NoSuchRange { side, index: 4, ranges: 4 };
            assert_eq!(refused(&[0, 4], &[0, 1]), (1, missing(Side::Local)));
            assert_eq!(refused(&[0, 1], &[2, 4]), (0, DescriptorError::Lengths { local: 10, remote: 20 }));
            assert_eq!(refused(&[0, 1], &[0, 4]), (1, missing(Side::Remote)));
            // The ranges of a list may overlap, but not those of one transfer that are written.
            assert_eq!(refused(&[0, 0], &[0, 1]), (1, DescriptorError::Overlap { other: 0 }));
            assert_eq!(refused(&[0, 1], &[0, 0]), (1, DescriptorError::Overlap { other: 0 }));
            let counts = put(rank, &regions, (&own, &[0, 1]), (&theirs, &[0])).unwrap_err();
            assert!(matches!(counts, TransferError::IndexCounts { local: 2, remote: 1 }), "{counts}");
            // Lists of another set, of an earlier set of the same name, and of the wrong rank.
            for (set, name, generation) in [(&regions, "prepared", 1), (&former, "other", 1)] {
                let [own, theirs] = lists(set);
                let [right, to] = lists(&other);
                for (mine, at, side) in [(&own, &to, Side::Local), (&right, &theirs, Side::Remote)] {
                    let refused = put(rank, &other, (mine, &[0]), (at, &[0])).unwrap_err();
                    let TransferError::OtherRanges { side: found, regions, generation: of, .. } = &refused
                    else {
                        panic!("{refused}")
                    };
                    assert_eq!((*found, regions.as_str(), *of), (side, name, generation));
                }
            }
            let swapped = put(rank, &regions, (&theirs, &[0]), (&theirs, &[0])).unwrap_err();
            assert!(
                matches!(swapped, TransferError::OtherRanges { side: Side::Local, rank: 1, .. }),
                "{swapped}"
            );
            let to_self = put(rank, &regions, (&own, &[0]), (&own, &[0])).unwrap_err();
            assert!(matches!(to_self, TransferError::ToSelf { rank: 0 }), "{to_self}");
            // The same source twice is no overlap.
            put(rank, &regions, (&own, &[2, 2]), (&theirs, &[2, 3])).unwrap();
            rank.stream.synchronize().unwrap();
        }
        (rank.meet)();
        if rank.rank == 1 {
            assert_eq!(regions.notifications(0).unwrap(), 1);
            assert!(rank.read(&memory[0]) == pattern(1, 0, BYTES[0]), "nothing was copied");
            assert_eq!(rank.read(&memory[2])[..20], pattern(0, 1, 20));
        }
        (rank.meet)();
    });
}

#[test]
fn prepared_ranges_of_a_peer_that_has_closed_its_regions_are_refused() {
    on_ranks(2, options(), |rank| {
        let memory = memory(rank);
        let regions = share(rank, "closed", &memory);
        let lists = [0, 1].map(|of| regions.prepare(of, &pages(0)).unwrap());
        (rank.meet)();
        if rank.rank == 0 {
            drop(regions);
        } else {
            let [theirs, own] = &lists;
            let closed = loop {
                regions.check(0).unwrap();
                match put(rank, &regions, (own, &[3, 5]), (theirs, &[5, 3])) {
                    Ok(()) => std::thread::yield_now(),
                    Err(error) => break error,
                }
            };
            assert!(matches!(closed, TransferError::Fault(Fault::Abandoned { peer: 0 })), "{closed}");
            rank.stream.synchronize().unwrap();
            drop(regions);
        }
        (rank.meet)();
        // The lists keep neither the regions nor the peer's memory.
        is_free(rank);
        drop(lists);
    });
}
