//! The crate on the machine's own GPUs. Needs two GPUs and NCCL, and reports "skipped" without them.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "one promise for all: buffers are as long as said, and each test waits before it frees them"
)]

mod absent;

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use cuda_driver::{
    Context, Driver, Stream, StreamFlags,
    graph::CaptureMode,
    memory::DeviceMemory,
    vmm::{Access, HandleTypes, Mapping, PhysicalMemory, Reservation},
};
use process_group::{
    ProcessGroup,
    comm::{
        Communicator, Config, DataType::F32, Nccl, ReduceOp, UniqueId, WindowOutcome, WindowRequest,
        wait_for_dropped,
    },
    group::{Buffer, Request},
    store::{Deadline, HashStore},
};

fn far() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

/// Two devices and NCCL.
struct Hardware {
    contexts: Vec<Context>,
    nccl: Nccl,
    _turn: MutexGuard<'static, ()>,
}

/// Admits one test at a time. Without the hardware, prints why and returns `None`.
fn hardware() -> Option<Hardware> {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let skip = |why: String| {
        println!("skipped: {why}");
        None
    };
    let driver = match Driver::load() {
        Ok(driver) => driver,
        Err(error) => return skip(error.to_string()),
    };
    let devices = driver.devices().unwrap();
    if devices.len() < 2 {
        return skip(format!("{} device(s), two are needed", devices.len()));
    }
    let nccl = match Nccl::load() {
        Ok(nccl) => nccl,
        Err(error) => return skip(error.to_string()),
    };
    println!("NCCL {} at {:?}", nccl.release(), nccl.api().path());
    let contexts = devices[..2].iter().map(|device| device.retain_primary().unwrap()).collect();
    Some(Hardware { contexts, nccl, _turn: turn })
}

/// Waits for the communicators that were dropped, when it is dropped itself.
struct WaitForDropped;

impl Drop for WaitForDropped {
    fn drop(&mut self) {
        if !wait_for_dropped(far()) {
            eprintln!("dropped communicators are not freed after 60 s");
        }
    }
}

impl Hardware {
    fn ranks<T: Send>(
        &self,
        body: impl Fn(usize, &Context, Arc<HashStore>, &UniqueId) -> T + Sync,
    ) -> Vec<T> {
        // Also after a panic: a process that exits while a dropped communicator is aborted in the background runs
        // NCCL's exit handlers beside the abort.
        let _dropped = WaitForDropped;
        let store = Arc::new(HashStore::new());
        let id = self.nccl.unique_id().unwrap();
        thread::scope(|scope| {
            let (body, id) = (&body, &id);
            let spawn = |(rank, context)| {
                let store = store.clone();
                scope.spawn(move || body(rank, context, store, id))
            };
            let threads: Vec<_> = self.contexts.iter().enumerate().map(spawn).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    fn communicator(&self, rank: usize, context: &Context, id: &UniqueId) -> Communicator {
        let mut config = Config::new().name("hardware");
        (config.window_facts.one_host, config.window_facts.peer_access) = (Some(true), Some(true));
        Communicator::init(&self.nccl, context, id, rank, 2, &config, far()).unwrap()
    }
}

fn segment(context: &Context, bytes: usize) -> Mapping {
    let physical = PhysicalMemory::create(context, bytes, HandleTypes::POSIX_FD).unwrap();
    let reservation = Reservation::new(context.driver(), bytes, 2 << 20).unwrap();
    let mapping = reservation.map(0, &physical, 0, bytes).unwrap();
    mapping.set_access(&[(context.device(), Access::ReadWrite)]).unwrap();
    mapping
}

#[test]
fn a_group_works_from_windows_and_in_graphs() {
    let Some(hardware) = hardware() else { return };
    hardware.ranks(|rank, context, store, _| {
        let world = ProcessGroup::builder()
            .store(store)
            .rank(rank)
            .world_size(2)
            .context(context)
            .nccl(&hardware.nccl)
            .timeout(Duration::from_secs(60))
            .build()
            .unwrap();
        let pair = world.split("pair", &Request::Lists(vec![vec![1, 0]])).unwrap().unwrap();
        assert_eq!(pair.rank(), 1 - rank);
        let segments = [segment(context, 32 << 20), segment(context, 2 << 20)];
        let stream = Stream::new(context, StreamFlags::NON_BLOCKING).unwrap();
        for group in [&world, &pair] {
            let requests = segments.each_ref().map(|s| WindowRequest::symmetric(s.ptr(), s.bytes()));
            let began = Instant::now();
            let outcomes = unsafe { group.communicator().register_windows(&requests, far()) }.unwrap();
            println!("rank {rank} {}: {outcomes:?} in {:?}", group.name(), began.elapsed());
            assert_eq!(group.windows_supported().is_ok(), outcomes[0].window().is_some());
            let elements = 1 << 20;
            let values = vec![rank as f32 + 1.0; elements];
            unsafe { context.copy_from_host(segments[0].ptr(), &values) }.unwrap();
            let buffer = Buffer::new(segments[0].ptr(), elements, F32);
            let work = unsafe { group.raw().all_reduce(buffer, buffer, ReduceOp::Sum, &stream) }.unwrap();
            work.wait_until(far()).unwrap();
            let capture = stream.begin_capture(CaptureMode::ThreadLocal).unwrap();
            unsafe { group.raw().all_reduce(buffer, buffer, ReduceOp::Sum, &stream) }.unwrap();
            let exec = capture.end().unwrap().instantiate().unwrap();
            stream.launch(&exec).unwrap();
            stream.synchronize().unwrap();
            let mut found = vec![0f32; elements];
            unsafe { context.copy_to_host(&mut found, segments[0].ptr()) }.unwrap();
            assert!(found.iter().all(|value| *value == 6.0));
            drop(exec);
            let windows: Vec<_> = outcomes
                .into_iter()
                .filter_map(|outcome| match outcome {
                    WindowOutcome::Registered(window) => Some(window),
                    _ => None,
                })
                .collect();
            world.barrier(far()).unwrap();
            unsafe { group.communicator().deregister_windows(windows, far()) }.unwrap();
        }
        pair.destroy(far()).unwrap();
        world.destroy(far()).unwrap();
    });
}

#[test]
fn every_operation_gives_what_it_should() {
    let Some(hardware) = hardware() else { return };
    hardware.ranks(|rank, context, store, _| {
        let world = ProcessGroup::builder().store(store).rank(rank).world_size(2).context(context);
        let world = world.nccl(&hardware.nccl).timeout(Duration::from_secs(60)).build().unwrap();
        let stream = Stream::new(context, StreamFlags::NON_BLOCKING).unwrap();
        super::embedded::operations::every_operation(&world, &stream);
        world.destroy(far()).unwrap();
    });
}

#[test]
fn members_write_into_each_other() {
    let Some(hardware) = hardware() else { return };
    let api = hardware.nccl.api();
    if let Err(missing) = api.require(nccl_sys::Feature::ONE_SIDED) {
        return println!("skipped: {missing}");
    }
    hardware.ranks(|rank, context, store, _| {
        let world = ProcessGroup::builder().store(store).rank(rank).world_size(2).context(context);
        let world = world.nccl(&hardware.nccl).timeout(Duration::from_secs(60)).build().unwrap();
        if let Err(reason) = world.communicator().one_sided_supported() {
            println!("skipped: {reason}");
            return world.destroy(far()).unwrap();
        }
        let stream = Stream::new(context, StreamFlags::NON_BLOCKING).unwrap();
        let segment = segment(context, 2 << 20);
        super::embedded::one_sided::windowed(&world, &segment);
        let (ptr, bytes) = (segment.ptr(), segment.bytes());
        super::embedded::one_sided::every_one_sided(&world, ptr, bytes, &stream);
        if api.has(nccl_sys::Feature::CAPTURED_ONE_SIDED) {
            super::embedded::one_sided::captured_one_sided(&world, ptr, bytes, &stream);
        }
        world.destroy(far()).unwrap();
    });
}

/// Returns the sum over the group of 1 from each rank.
fn sum(group: &ProcessGroup, context: &Context) -> f32 {
    let stream = Stream::new(context, StreamFlags::NON_BLOCKING).unwrap();
    let memory = DeviceMemory::new(context, 4).unwrap();
    memory.copy_from_host(0, &[1f32]).unwrap();
    let one = Buffer::new(memory.ptr(), 1, F32);
    let work = unsafe { group.raw().all_reduce(one, one, ReduceOp::Sum, &stream) }.unwrap();
    work.wait_until(far()).unwrap();
    let mut found = [0f32];
    memory.copy_to_host(0, &mut found).unwrap();
    found[0]
}

#[test]
fn a_suspended_group_holds_less_memory_and_works_after_it_is_resumed() {
    let Some(hardware) = hardware() else { return };
    if let Err(missing) = hardware.nccl.api().require(nccl_sys::Feature::SUSPEND) {
        return println!("skipped: {missing}");
    }
    hardware.ranks(|rank, context, store, _| {
        let world = ProcessGroup::builder().store(store).rank(rank).world_size(2).context(context);
        let world = world.nccl(&hardware.nccl).timeout(Duration::from_secs(60)).build().unwrap();
        let stream = Stream::new(context, StreamFlags::NON_BLOCKING).unwrap();
        let memory = DeviceMemory::new(context, 4).unwrap();
        let one = Buffer::new(memory.ptr(), 1, F32);
        // All ranks are in the same state: memory of this device that a peer has mapped is free when the peer has
        // unmapped it too, and NCCL does not wait for that.
        let free = || {
            context.synchronize().unwrap();
            world.barrier(far()).unwrap();
            let free = context.memory_info().unwrap().0;
            world.barrier(far()).unwrap();
            free
        };
        for round in 0..4 {
            assert_eq!(sum(&world, context), 2.0);
            world.quiesce(far()).unwrap();
            let before = free();
            let statistics = world.communicator().memory_statistics(far()).unwrap();
            assert!(statistics.suspendable > 0 && !statistics.suspended, "{statistics:?}");
            world.suspend(far()).unwrap();
            let suspended = free();
            assert!(world.communicator().memory_statistics(far()).unwrap().suspended);
            unsafe { world.raw().all_reduce(one, one, ReduceOp::Sum, &stream) }.unwrap_err();
            world.resume(far()).unwrap();
            let after = free();
            println!(
                "rank {rank}, round {round}: {before} bytes were free, {suspended} while suspended, {after} after; \
                 {} suspendable",
                statistics.suspendable
            );
            // The first collective, suspension and resumption also allocate what the driver and NCCL keep:
            // connections, modules, buffers for copies to the host.
            if round > 0 {
                assert!(suspended > before, "{before} bytes were free, and {suspended} bytes while suspended");
                assert!(suspended > after, "{suspended} bytes were free while suspended, and {after} bytes after");
            }
        }
        assert_eq!(sum(&world, context), 2.0);
        world.destroy(far()).unwrap();
    });
}

#[test]
fn a_rank_joins_a_group_that_grows() {
    let Some(hardware) = hardware() else { return };
    if let Err(missing) = hardware.nccl.api().require(nccl_sys::Feature::GROW) {
        return println!("skipped: {missing}");
    }
    hardware.ranks(|rank, context, store, _| {
        let builder = |size| {
            let builder = ProcessGroup::builder().store(store.clone()).rank(rank).world_size(size);
            builder.context(context).nccl(&hardware.nccl).timeout(Duration::from_secs(60)).epoch(size as u64)
        };
        let old = (rank == 0).then(|| builder(1).build().unwrap());
        let grown = match &old {
            Some(old) => old.grow(builder(2)).unwrap(),
            None => builder(2).join_grown().unwrap(),
        };
        assert_eq!((grown.rank(), grown.size()), (rank, 2));
        assert_eq!(sum(&grown, context), 2.0);
        if let Some(old) = old {
            assert_eq!(sum(&old, context), 1.0);
            old.destroy(far()).unwrap();
        }
        assert_eq!(sum(&grown, context), 2.0);
        grown.destroy(far()).unwrap();
    });
}
