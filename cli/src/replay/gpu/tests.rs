//! Replays over the embedded device.

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::*;

const MIB: u64 = 1 << 20;

fn on_gpu(test: impl FnOnce(&Gpu)) {
    let _turn = crate::world_lock();
    test(&Gpu::open(Backend::Sim).unwrap());
}

/// A program of these requests over two streams. If `shared`, another stream uses every third block when its owner
/// frees it, until two more blocks have been freed.
fn program(requests: &[(u64, bool)], shared: bool) -> Program {
    let (mut calls, mut active) = (Vec::new(), Active::new(requests.len()));
    let mut make = |call| {
        active.follow(call);
        calls.push(call);
    };
    for (block, (bytes, second)) in (0..).zip(requests) {
        make(Call::Allocate { block, bytes: *bytes, stream: (*second).into() });
        let Some(old) = u32::checked_sub(block, 4) else { continue };
        make(if shared && old % 3 == 0 { Call::FreeInUse { block: old } } else { Call::Free { block: old } });
        if let Some(older) = old.checked_sub(2).filter(|older| shared && older % 3 == 0) {
            make(Call::EndUse { block: older });
        }
    }
    let operations = calls.iter().filter(|call| !matches!(call, Call::EndUse { .. })).count() as u64;
    let (blocks, peak_active) = (requests.len(), active.peak);
    Program { name: "made".into(), calls, blocks, streams: 2, operations, peak_active }
}

#[test]
fn every_block_holds_what_was_written_there() {
    on_gpu(|gpu| {
        let requests = prop::collection::vec((1..6 * MIB, any::<bool>()), 8..40);
        let mut runner = TestRunner::new(Config { cases: 8, failure_persistence: None, ..Config::default() });
        let outcome = runner.run(&requests, |requests| {
            let program = program(&requests, true);
            for policy in [Policy::Remap, Policy::Fixed] {
                let ample = gpu.check(&program, policy, u64::MAX, &|_| ());
                prop_assert!(ample.is_ok(), "{:?}: {:?}", policy, ample);
                // With scarce memory the host waits for the device, and movable memory moves.
                let scarce = program.peak_active.next_multiple_of(2 * MIB) + 2 * MIB;
                match gpu.check(&program, policy, scarce, &|_| ()) {
                    Err(error) if error.is_out_of_memory() => {}
                    scarce => prop_assert!(scarce.is_ok(), "{:?}: {:?}", policy, scarce),
                }
            }
            Ok(())
        });
        outcome.unwrap();
    });
}

#[test]
fn blocks_that_the_program_keeps_are_verified_too() {
    on_gpu(|gpu| {
        let program = program(&[(2 * MIB, false); 8], false);
        assert_eq!(gpu.check(&program, Policy::Remap, u64::MAX, &|_| ()).unwrap(), 16 * MIB);
    });
}

#[test]
fn a_device_makes_the_same_of_a_program_as_counting_does() {
    on_gpu(|gpu| {
        // The moment at which the host sees the end of another stream's use depends on the device. With one stream no
        // result depends on it, except if memory is scarce and old addresses are waited for.
        let requests: Vec<_> = (0..300u64).map(|at| ((at * 7919) % 37 * 100_000 + 512, false)).collect();
        let program = program(&requests, false);
        let counted = Figures::measure(&program, Policy::Remap, u64::MAX).unwrap();
        let real = gpu.measure(&program, Policy::Remap, u64::MAX, false, &|_| ()).unwrap();
        assert_eq!((real.peak_reserved, real.ratio), (counted.peak_reserved, counted.ratio));
        assert!(
            (real.peak_active..=real.peak_reserved).contains(&real.min_capacity),
            "{}",
            real.min_capacity
        );
    });
}

#[test]
fn hardware_holds_what_was_written_there() {
    let _turn = crate::world_lock();
    let gpu = match Gpu::open(Backend::Cuda) {
        Ok(gpu) => gpu,
        Err(error) => return println!("skipped: {error}"),
    };
    let requests: Vec<_> = (0..600u64).map(|at| ((at * 7919) % 37 * 1_000_000 + 512, at % 5 == 0)).collect();
    for policy in [Policy::Remap, Policy::Fixed] {
        gpu.check(&program(&requests, true), policy, u64::MAX, &|_| ()).unwrap();
    }
}

#[test]
fn memory_that_two_blocks_share_shows() {
    on_gpu(|gpu| {
        let stream = Stream::new(&gpu.context, cuda_driver::StreamFlags::NON_BLOCKING).unwrap();
        let memory = cuda_driver::memory::DeviceMemory::new(&gpu.context, 4096).unwrap();
        let pattern = Pattern::new(&gpu.context).unwrap();
        let at = memory.ptr().0;
        // SAFETY: the memory is alive until the stream has been waited for.
        unsafe {
            pattern.write(&stream, at, 4096, 1).unwrap();
            pattern.check(&stream, at, 4096, 1).unwrap();
            stream.synchronize().unwrap();
            assert_eq!(pattern.wrong().unwrap(), 0);
            pattern.write(&stream, at + 1024, 1024, 2).unwrap();
            pattern.check(&stream, at, 4096, 1).unwrap();
            pattern.check(&stream, at + 1024, 1024, 2).unwrap();
        }
        stream.synchronize().unwrap();
        assert_eq!(pattern.wrong().unwrap(), 256);
    });
}
