//! Barriers and signals: earlier writes are visible afterwards; a missing rank is reported; after a failure, kernels
//! do nothing.

use cuda_driver::Driver;
use cuda_driver::graph::CaptureMode;
use symm_mem::kernels::{Kernel, KernelError, Late, PadLayout, Ranks, WaitKind};

use super::rig::{self, Rank, all_done};
use super::{LONG, SHORT, on_devices};

const WORDS: usize = 256;

fn words(rank: &Rank, at: usize) -> Vec<u32> {
    let mut words = vec![0; WORDS];
    rank.block.copy_to_host(at * 4, &mut words).unwrap();
    words
}

fn late(result: Result<(), KernelError>) -> Late {
    match result {
        Err(KernelError::Late(late)) => late,
        other => panic!("not late: {other:?}"),
    }
}

/// In rank order, each rank fills its first words and signals the next one, which copies them behind its own.
pub(super) fn a_signal_brings_what_was_written_before(driver: &Driver, devices: u32, world: u32) {
    let ranks = rig::ranks(driver, devices, world, WORDS * 8, LONG).unwrap();
    for round in 1..4_u32 {
        for rank in &ranks {
            let me = rank.ranks.rank;
            let (next, former) = ((me + 1) % world, (me + world - 1) % world);
            let from = &ranks[former as usize];
            // SAFETY: the rig keeps the kernels' contract; everything lives until all is done.
            unsafe {
                rank.stream.fill_u32(rank.block.ptr(), round * 100 + me, WORDS).unwrap();
                rank.kernels.put_signal(&rank.stream, &rank.ranks, next, 5).unwrap();
                rank.kernels.wait_signal(&rank.stream, &rank.ranks, former, 5).unwrap();
                let to = (rank.block.ptr() + WORDS * 4, rank.context());
                rank.stream.copy_peer(to, (from.block.ptr(), from.context()), WORDS * 4).unwrap();
                rank.kernels.barrier(&rank.stream, &rank.ranks, 31).unwrap();
            }
        }
        all_done(&ranks);
        for rank in &ranks {
            let former = (rank.ranks.rank + world - 1) % world;
            assert_eq!(words(rank, WORDS), vec![round * 100 + former; WORDS], "rank {}", rank.ranks.rank);
            let mut pad = vec![0_u8; rank.pad.bytes()];
            rank.pad.copy_to_host(0, &mut pad).unwrap();
            assert!(pad.iter().all(|byte| *byte == 0), "every signal was taken");
        }
    }
}

/// A barrier that only one rank launches: it reports the failure, its context lives, and its kernels do nothing from
/// then on.
pub(super) fn an_absent_rank_is_named_and_the_context_lives(driver: &Driver, devices: u32) {
    let ranks = rig::ranks(driver, devices, 3, 4096, SHORT).unwrap();
    let Some(present) = ranks.first() else { unreachable!("three ranks") };
    let launch = |rank: &Rank, deadline_ns| {
        let ranks = Ranks { deadline_ns, ..rank.ranks };
        // SAFETY: the rig keeps the kernels' contract; everything lives until all is done.
        unsafe { rank.kernels.barrier(&rank.stream, &ranks, 7).unwrap() };
    };
    launch(present, present.ranks.deadline_ns);
    let late = late(present.done());
    assert_eq!(
        (late.kernel, late.waiting, late.channel),
        (Some(Kernel::Barrier), WaitKind::Signal, 7),
        "{late}"
    );
    assert!(late.peer != 0 && late.waited >= SHORT, "{late}");

    // The device works; but kernels of this rank send no more signals, though its peer waits.
    // SAFETY: the block has this many words, and nothing else uses it now.
    unsafe {
        present.stream.fill_u32(present.block.ptr(), 9, WORDS).unwrap();
        present.kernels.put_signal(&present.stream, &present.ranks, 2, 8).unwrap();
    }
    present.stream.synchronize().unwrap();
    assert_eq!(words(present, 0), vec![9; WORDS]);
    let mut slot = [7_u32];
    ranks[2].pad.copy_to_host(PadLayout::new(3).slot(8, 0), &mut slot).unwrap();
    assert_eq!(slot, [0], "a rank that gave up signals nobody");
    let first = present.record.read().unwrap();
    assert_eq!((first.kernel, first.channel), (Some(Kernel::Barrier), 7), "the first fault stays");

    // With zeroed pads and cleared records, all ranks can synchronize again.
    for rank in &ranks {
        rank.pad.copy_from_host(0, &vec![0_u8; rank.pad.bytes()]).unwrap();
        rank.record.clear();
    }
    rig::settle(&ranks);
    ranks.iter().for_each(|rank| launch(rank, LONG.as_nanos() as u64));
    all_done(&ranks);
}

/// A signal that nobody takes blocks the next one.
pub(super) fn a_signal_that_is_not_taken_stops_the_next(driver: &Driver, devices: u32) {
    let ranks = rig::ranks(driver, devices, 2, 4096, SHORT).unwrap();
    let rank = &ranks[0];
    for _ in 0..2 {
        // SAFETY: the rig keeps the kernels' contract; everything lives until all is done.
        unsafe { rank.kernels.put_signal(&rank.stream, &rank.ranks, 1, 0).unwrap() };
    }
    let late = late(rank.done());
    let told = (late.kernel, late.waiting, late.peer, late.channel);
    assert_eq!(told, (Some(Kernel::PutSignal), WaitKind::Room, 1, 0), "{late}");
}

/// Captured once, launched several times.
pub(super) fn graphs_meet_as_often_as_they_are_launched(driver: &Driver, devices: u32) {
    let ranks = rig::ranks(driver, devices, 2, WORDS * 8, LONG).unwrap();
    let graphs: Vec<_> = ranks
        .iter()
        .map(|rank| {
            let (me, other) = (rank.ranks.rank, 1 - rank.ranks.rank);
            let from = &ranks[other as usize];
            let capture = rank.stream.begin_capture(CaptureMode::ThreadLocal).unwrap();
            // SAFETY: the rig keeps the kernels' contract; everything lives until all is done.
            unsafe {
                rank.stream.fill_u32(rank.block.ptr(), 40 + me, WORDS).unwrap();
                rank.kernels.put_signal(&rank.stream, &rank.ranks, other, 2).unwrap();
                rank.kernels.wait_signal(&rank.stream, &rank.ranks, other, 2).unwrap();
                rank.stream.copy(rank.block.ptr() + WORDS * 4, from.block.ptr(), WORDS * 4).unwrap();
                rank.kernels.barrier(&rank.stream, &rank.ranks, 3).unwrap();
            }
            capture.end().unwrap().instantiate().unwrap()
        })
        .collect();
    for _ in 0..5 {
        for (rank, graph) in ranks.iter().zip(&graphs) {
            rank.stream.launch(graph).unwrap();
        }
    }
    all_done(&ranks);
    for rank in &ranks {
        assert_eq!(words(rank, WORDS), vec![41 - rank.ranks.rank; WORDS]);
    }
}

#[test]
fn signals_bring_what_was_written_before() {
    for (devices, world) in [(1, 1), (2, 2), (1, 3), (4, 4), (3, 8)] {
        on_devices(devices as usize, |_, driver| {
            a_signal_brings_what_was_written_before(driver, devices, world);
        });
    }
}

#[test]
fn absent_ranks_are_named() {
    for devices in [1, 3] {
        on_devices(devices as usize, |_, driver| {
            an_absent_rank_is_named_and_the_context_lives(driver, devices)
        });
    }
}

#[test]
fn signals_wait_for_room() {
    on_devices(2, |_, driver| a_signal_that_is_not_taken_stops_the_next(driver, 2));
}

#[test]
fn graphs_meet() {
    on_devices(2, |_, driver| graphs_meet_as_often_as_they_are_launched(driver, 2));
}

#[test]
fn what_no_kernel_can_do_is_refused_before_a_launch() {
    on_devices(1, |world, driver| {
        let ranks = rig::ranks(driver, 1, 2, 4096, LONG).unwrap();
        let Some(rank) = ranks.first() else { unreachable!("two ranks") };
        let launches = world.calls("cuLaunchKernel");
        let told = rank.ranks;
        let refused = |ranks: Ranks, channel| {
            // SAFETY: refused before anything is launched.
            let refused = unsafe { rank.kernels.barrier(&rank.stream, &ranks, channel) };
            refused.unwrap_err().to_string()
        };
        assert_eq!(refused(told, 32), "barrier on channel 32: programs have channels 0 to 31");
        let without = refused(Ranks { deadline_ns: 0, ..told }, 0);
        assert_eq!(without, "barrier without a deadline: a kernel must not wait for ever");
        assert_eq!(refused(Ranks { world: 65, ..told }, 0), "barrier for 65 ranks: 1 to 64 are served");
        assert_eq!(refused(Ranks { world: 1, rank: 1, ..told }, 0), "barrier as rank 1 of 1");
        // SAFETY: refused before anything is launched.
        let refused = unsafe { rank.kernels.put_signal(&rank.stream, &rank.ranks, 2, 0) };
        assert_eq!(refused.unwrap_err().to_string(), "put_signal to rank 2 of 2");
        assert_eq!(world.calls("cuLaunchKernel"), launches);
    });
}
