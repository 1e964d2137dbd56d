//! On the machine's own GPUs: needs two of them and NCCL, and reports a skip otherwise.

use std::{
    collections::BTreeSet,
    sync::{Barrier, MutexGuard},
};

use cuda_driver::{Driver, graph::CaptureMode, memory::DeviceMemory};
use process_group::{
    ProcessGroup,
    comm::{CommError, DataType, Nccl},
    group::{Buffer, GroupErrorKind},
};
use symm_mem::{SymmetricBlock, direct::DirectOptions};

use super::{
    ends::receive_first,
    job::commit,
    rig::{Rank, buffer, bytes, far, pattern, ranks, small},
};
use crate::common::turn;

/// Returns the machine's driver, its NCCL and the number of devices in use; or reports the reason to skip.
fn gpus() -> Option<(MutexGuard<'static, ()>, Driver, Nccl, usize)> {
    let turn = turn();
    let skip = |why: String| {
        println!("skipped: {why}");
        None
    };
    let found =
        Driver::load().and_then(|driver| driver.device_count().map(|devices| (driver, devices as usize)));
    let (driver, devices) = match found {
        Ok((_, devices @ (0 | 1))) => return skip(format!("{devices} device(s), two are needed")),
        Ok((driver, devices)) => (driver, devices.min(4)),
        Err(error) => return skip(error.to_string()),
    };
    match Nccl::load() {
        Ok(nccl) => Some((turn, driver, nccl, devices)),
        Err(error) => skip(error.to_string()),
    }
}

/// Exchanges messages of these lengths between all pairs of ranks. `exchange` gets the group, the buffers to send to
/// each peer, and the buffers to receive from each peer.
fn all_to_all(
    rank: &Rank,
    (options, lengths): (DirectOptions, &[usize]),
    exchange: impl Fn(&Rank, &ProcessGroup, &[DeviceMemory], &[DeviceMemory]),
) -> Vec<DeviceMemory> {
    let group = rank.group(options);
    let (me, size) = (rank.rank, rank.size);
    let mut kept = Vec::new();
    for length in lengths {
        let sent: Vec<_> = (0..size).map(|peer| rank.memory(&pattern(me * size + peer, *length))).collect();
        let received: Vec<_> = (0..size).map(|_| rank.memory(&vec![0; *length])).collect();
        exchange(rank, &group, &sent, &received);
        for (peer, memory) in received.iter().enumerate() {
            assert!(
                bytes(memory) == pattern(peer * size + me, *length),
                "{length} bytes of rank {peer} at {me}"
            );
        }
        kept.extend(sent.into_iter().chain(received));
    }
    group.destroy(far()).unwrap();
    kept
}

/// Sends and receives everything in one batch.
fn together(rank: &Rank, group: &ProcessGroup, sent: &[DeviceMemory], received: &[DeviceMemory]) {
    let work = group.batch(&rank.stream(), |batch| {
        (0..rank.size).try_for_each(|peer| {
            // SAFETY: the memory lives until the work is done.
            unsafe {
                batch.recv(buffer(&received[peer]), peer)?;
                batch.send(buffer(&sent[peer]), peer)
            }
        })
    });
    work.unwrap().wait_until(far()).unwrap();
}

/// Sends to each distance in turn, as separate calls on the group's own streams. Receives come first, so all of them
/// wait for later calls.
fn in_circles(rank: &Rank, group: &ProcessGroup, sent: &[DeviceMemory], received: &[DeviceMemory]) {
    let (me, size) = (rank.rank, rank.size);
    received[me].copy_from_host(0, &bytes(&sent[me])).unwrap();
    for far_away in 1..size {
        let (next, before) = ((me + far_away) % size, (me + size - far_away) % size);
        // SAFETY: as above.
        let works = unsafe {
            [
                group.raw().recv(buffer(&received[before]), before, group.recv_stream(before).unwrap()),
                group.raw().send(buffer(&sent[next]), next, group.send_stream(next).unwrap()),
            ]
        };
        works.into_iter().for_each(|work| work.unwrap().wait_until(far()).unwrap());
    }
}

/// Sends lengths around the sizes of chunks and rings, and `long`: through small rings, through rings with an even
/// number of slots, and through default rings.
fn arrive(long: usize, exchange: impl Fn(&Rank, &ProcessGroup, &[DeviceMemory], &[DeviceMemory]) + Sync) {
    let Some((_turn, driver, nccl, devices)) = gpus() else { return };
    let cases: [(DirectOptions, &[usize]); 3] = [
        (small(), &[1, 64, 65, 1000]),
        (small().slots(4), &[129, 1000, long]),
        (DirectOptions::default(), &[3, 64 << 10, (16 << 20) + 1, 100 << 20]),
    ];
    for size in BTreeSet::from([2, devices]) {
        for case in cases {
            // Freeing blocks until all devices are idle, and delays a rank that is about to call what they wait for.
            // So it is done at the end.
            drop(ranks(&driver, &nccl, size, |rank| all_to_all(&rank, case, &exchange)));
        }
        println!("{size} ranks: what was sent is what was received");
    }
}

#[test]
fn hardware_batches_arrive() {
    arrive(100_000, together);
}

#[test]
fn hardware_messages_arrive() {
    // All ranks receive before they send, so the receives must fit in a queue of the device.
    arrive(10_000, in_circles);
}

/// Blocks of a committed pool go between all pairs of ranks, in batches and in a graph, and no ring is used.
#[test]
fn hardware_shared_blocks_arrive() {
    let Some((_turn, driver, nccl, devices)) = gpus() else { return };
    for size in BTreeSet::from([2, devices]) {
        drop(ranks(&driver, &nccl, size, |rank| shared_blocks(&rank)));
        println!("{size} ranks: what was sent from shared blocks is what was received");
    }
}

fn shared_blocks(rank: &Rank) -> Vec<SymmetricBlock> {
    const LENGTHS: [usize; 5] = [1, 4095, 64 << 10, (16 << 20) + 3, 100 << 20];
    let (group, direct) = rank.direct(rank.builder(), DirectOptions::default());
    let (me, size, stream, pool) = (rank.rank, rank.size, rank.stream(), rank.pool(&group));
    // By end and peer.
    let blocks: Vec<_> = (0..2 * size).map(|_| pool.allocate(101 << 20).unwrap()).collect();
    commit(&pool, &group);
    let others: Vec<_> = (0..size).filter(|peer| *peer != me).collect();
    let exchange = |offset: usize, length: usize| {
        let buffer = |at: usize| Buffer::new(blocks[at].ptr() + offset, length, DataType::U8);
        let work = group.batch(&stream, |batch| {
            others.iter().try_for_each(|peer| {
                // SAFETY: the memory lives until the stream is done.
                unsafe {
                    batch.recv(buffer(size + peer), *peer)?;
                    batch.send(buffer(*peer), *peer)
                }
            })
        });
        work.unwrap()
    };
    let fill = |number: usize, offset: usize, length: usize| {
        for peer in &others {
            rank.write(blocks[*peer].ptr() + offset, &pattern(number + me * size + peer, length));
        }
    };
    let check = |number: usize, offset: usize, length: usize| {
        for peer in &others {
            let found = rank.read(blocks[size + peer].ptr() + offset, length);
            assert!(found == pattern(number + peer * size + me, length), "{length} bytes of {peer} at {me}");
        }
    };
    for (number, length) in LENGTHS.into_iter().enumerate() {
        let offset = number * 7;
        fill(number, offset, length);
        exchange(offset, length).wait_until(far()).unwrap();
        check(number, offset, length);
    }
    let capture = stream.begin_capture(CaptureMode::ThreadLocal).unwrap();
    exchange(5, 1 << 20);
    let graph = capture.end().unwrap().instantiate().unwrap();
    for run in 0..100 {
        fill(run, 5, 1 << 20);
        stream.launch(&graph).unwrap();
        stream.synchronize().unwrap();
        check(run, 5, 1 << 20);
    }
    let report = direct.report().unwrap();
    assert_eq!((report.zero_copy, report.staged), (12 * (size as u64 - 1), 0));
    drop(graph);
    group.destroy(far()).unwrap();
    blocks
}

/// A receive from a shared block that nobody sends: the abort withdraws the offer, and the context stays usable.
#[test]
fn hardware_an_abort_withdraws_offers() {
    let Some((_turn, driver, nccl, _)) = gpus() else { return };
    let enqueued = Barrier::new(2);
    drop(ranks(&driver, &nccl, 2, |rank| {
        let (group, _) = rank.direct(rank.builder(), small());
        let (stream, pool) = (rank.stream(), rank.pool(&group));
        let block = pool.allocate(1 << 20).unwrap();
        commit(&pool, &group);
        let buffer = Buffer::new(block.ptr(), 1 << 20, DataType::U8);
        // SAFETY: the memory lives until the stream is done.
        let work = unsafe { group.raw().recv(buffer, 1 - rank.rank, &stream) }.unwrap();
        enqueued.wait();
        group.abort_handle().abort(far()).unwrap();
        work.wait_until(far()).unwrap_err();
        stream.synchronize().unwrap();
        group.abort(far()).unwrap();
        rank.write(block.ptr(), &[4; 1000]);
        assert!(rank.read(block.ptr(), 1000) == [4; 1000]);
        block
    }));
}

#[test]
fn hardware_calls_that_wait_for_each_other_end() {
    let Some((_turn, driver, nccl, _)) = gpus() else { return };
    ranks(&driver, &nccl, 2, |rank| receive_first(&rank));
}

#[test]
fn hardware_graphs_run_again() {
    let Some((_turn, driver, nccl, _)) = gpus() else { return };
    ranks(&driver, &nccl, 2, |rank| {
        let group = rank.group(small());
        let (me, peer, stream) = (rank.rank, 1 - rank.rank, rank.stream());
        let (from, to) = (rank.memory(&[0; 500]), rank.memory(&[0; 500]));
        let capture = stream.begin_capture(CaptureMode::ThreadLocal).unwrap();
        let work = group.batch(&stream, |batch| {
            // SAFETY: the memory lives until the graph's last run is done.
            unsafe {
                batch.send(buffer(&from), peer)?;
                batch.recv(buffer(&to), peer)
            }
        });
        work.unwrap();
        let graph = capture.end().unwrap().instantiate().unwrap();
        for run in 0..20 {
            rank.fill(&from, &pattern(10 * run + me, 500));
            stream.launch(&graph).unwrap();
            stream.synchronize().unwrap();
            assert_eq!(bytes(&to), pattern(10 * run + peer, 500), "run {run}");
        }
        drop(graph);
        group.destroy(far()).unwrap();
    });
}

/// Unanswered waits on more streams than the device has queues.
#[test]
fn hardware_an_abort_ends_every_wait() {
    let Some((_turn, driver, nccl, _)) = gpus() else { return };
    // An abort ends the group for both ranks, so both enqueue first.
    let enqueued = Barrier::new(2);
    ranks(&driver, &nccl, 2, |rank| {
        let group = rank.group(small());
        let memory = rank.memory(&[7; 1000]);
        let streams: Vec<_> = (0..40).map(|_| rank.stream()).collect();
        let works: Vec<_> = streams
            .iter()
            .enumerate()
            // SAFETY: the memory lives until the streams are done.
            .map(|(at, stream)| unsafe {
                let peer = 1 - rank.rank;
                if at % 2 == rank.rank {
                    group.raw().recv(buffer(&memory), peer, stream).unwrap()
                } else {
                    group.batch(stream, |batch| batch.recv(buffer(&memory), peer)).unwrap()
                }
            })
            .collect();
        enqueued.wait();
        let began = std::time::Instant::now();
        group.abort_handle().abort(far()).unwrap();
        for work in &works {
            let error = work.wait_until(far()).unwrap_err();
            // The other rank's abort may be seen first.
            let is_abort = matches!(
                error.kind(),
                GroupErrorKind::Comm(CommError::Closed { .. }) | GroupErrorKind::Left { .. }
            );
            assert!(is_abort, "{error}");
        }
        for stream in &streams {
            stream.synchronize().unwrap();
        }
        println!("rank {}: 40 streams came to their end after {:?}", rank.rank, began.elapsed());
        group.abort(far()).unwrap();
        memory.copy_from_host(0, &[4u8; 1000]).unwrap();
        assert_eq!(bytes(&memory), [4; 1000]);
    });
}
