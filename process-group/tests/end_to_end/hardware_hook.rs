//! The test of the allocator hook on the machine's GPUs. Ranks are processes, and the environment or the
//! builder switches registration on. Registrations are counted by this crate and by NCCL's own messages.
//! Needs two GPUs and NCCL, and reports "skipped" without them.

use std::{
    env, fs,
    sync::Arc,
    time::{Duration, Instant},
};

use caching_alloc::{
    core::{Allocator, PoolSettings, Settings, StreamId},
    driver::{DriverEvents, Sharing, VirtualMemorySource},
};
use cuda_driver::{DevicePtr, Driver, Stream, StreamFlags, graph::CaptureMode};
use process_group::{
    ProcessGroup,
    comm::{DataType::F32, Nccl},
    group::{Buffer, Request},
    registration::SegmentRegistrar,
    store::{Deadline, TcpStore},
};

use super::embedded::processes::{all_succeed, spawn_with};

const RANKS: usize = 2;
const CASE: &str = "PROCESS_GROUP_TEST_HARDWARE_HOOK";
const MESSAGES: &str = "PROCESS_GROUP_TEST_MESSAGES";

fn far() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

/// Gathers `elements` of the ranks' numbers through the allocator's memory, also in a graph whose capture
/// allocated the memory.
fn gather(world: &ProcessGroup, allocator: &Allocator, id: StreamId, stream: &Stream, elements: usize) {
    let size = world.size();
    let bytes = (elements * 4) as u64;
    let pool = allocator.graph_pool(PoolSettings::default()).unwrap();
    let requests = pool.capture(&[id]);
    let capture = stream.begin_capture(CaptureMode::Global).unwrap();
    let send = allocator.allocate(bytes, id).unwrap();
    let receive = allocator.allocate(bytes * size as u64, id).unwrap();
    let from = Buffer::new(DevicePtr(send.address()), elements, F32);
    let to = Buffer::new(DevicePtr(receive.address()), elements * size, F32);
    // SAFETY: the blocks are as long, and outlive the work and the graph.
    unsafe { world.raw().all_gather(from, to, stream) }.unwrap();
    let exec = capture.end().unwrap().instantiate().unwrap();
    let _memory = requests.end();
    let check = |what: &str| {
        let mut found = vec![-1f32; elements * size];
        // SAFETY: the block is as long.
        unsafe { world.context().copy_to_host(&mut found, to.ptr) }.unwrap();
        for (rank, part) in found.chunks(elements).enumerate() {
            assert!(part.iter().all(|value| *value == rank as f32), "{what}: rank {rank}'s part");
        }
        // SAFETY: as above.
        unsafe { world.context().copy_from_host(to.ptr, &vec![-1f32; elements * size]) }.unwrap();
    };
    // SAFETY: the block is as long.
    unsafe { world.context().copy_from_host(from.ptr, &vec![world.rank() as f32; elements]) }.unwrap();
    // SAFETY: as above.
    unsafe { world.raw().all_gather(from, to, stream) }.unwrap().wait_until(far()).unwrap();
    check("enqueued");
    world.barrier(far()).unwrap();
    stream.launch(&exec).unwrap();
    stream.synchronize().unwrap();
    check("track_graph_launch");
    world.barrier(far()).unwrap();
}

/// The body of a rank, when it is started by one of the tests below.
#[test]
#[ignore = "the body of a process that a test starts"]
fn one_rank() {
    let case = env::var(CASE).expect("a test below starts this process");
    let ordinal: u32 = env::var("LOCAL_RANK").unwrap().parse().unwrap();
    let context = Driver::load().unwrap().device(ordinal).unwrap().retain_primary().unwrap();
    let nccl = Nccl::load().unwrap();
    let source = VirtualMemorySource::new(&context, Sharing::by_descriptor()).unwrap();
    let events = Arc::new(DriverEvents::new(&context));
    let stream = Stream::new(&context, StreamFlags::NON_BLOCKING).unwrap();
    let id = events.register(&stream);
    let allocator = Allocator::new(Arc::new(source), events, Settings::default());
    let early = allocator.allocate(64 << 20, id).unwrap();
    let registrar = SegmentRegistrar::attach(&allocator).unwrap();
    let builder = ProcessGroup::builder().context(&context).nccl(&nccl).timeout(Duration::from_secs(60));
    let builder = if case == "told" { builder.registration(true) } else { builder };
    let began = Instant::now();
    let world = builder.build().unwrap();
    println!("rank {ordinal}: NCCL {}, {case}: made in {:?}", nccl.release(), began.elapsed());
    let pair = world.split("pair", &Request::Lists(vec![vec![1, 0]])).unwrap().unwrap();
    for group in [&world, &pair] {
        group.registration().unwrap();
        // One number, as in the hook's embedded test, and enough for NCCL to use registered memory.
        for elements in [1, 4 << 20] {
            gather(group, &allocator, id, &stream, elements);
        }
        let report = group.registration_report();
        let [gathered] = &report.operations[..] else { panic!("{report}") };
        assert_eq!((gathered.operation, gathered.registered), ("all_gather", 8), "{report}");
        assert!(gathered.unregistered.is_empty(), "{report}");
    }
    let counts = registrar.counts();
    println!("rank {ordinal}: {counts:?}");
    assert_eq!(counts.registrations, 2 * counts.segments, "{counts:?}");
    // Freed memory is deregistered first, while the communicators exist.
    drop(early);
    allocator.empty_cache().unwrap();
    let counts = registrar.counts();
    assert_eq!((counts.registrations, counts.segments, counts.kept), (0, 0, 0), "{counts:?}");
    pair.destroy(far()).unwrap();
    world.destroy(far()).unwrap();
    registrar.detach().unwrap();
    // NCCL's own count. It also registers captured buffers, unless they are registered already.
    let folder = env::var(MESSAGES).unwrap();
    let text = fs::read_to_string(format!("{folder}/{}", std::process::id())).unwrap_or_default();
    let said = text.lines().filter(|line| line.contains(" register comm ")).count() as u64;
    println!(
        "rank {ordinal}: NCCL says that it registered {said} ranges; this registered {}",
        counts.registered
    );
    assert!(said >= counts.registered, "NCCL's messages:\n{text}");
}

fn run(case: &str, hook: Option<&str>) {
    let devices = Driver::load().map_err(|error| error.to_string()).and_then(|driver| {
        Nccl::load().map_err(|error| error.to_string())?;
        Ok(driver.devices().unwrap().len())
    });
    match devices {
        Err(why) => return println!("skipped: {why}"),
        Ok(found) if found < RANKS => return println!("skipped: {found} device(s), two are needed"),
        Ok(_) => {}
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let messages = format!("{path}/%p");
    let mut variables = vec![
        (CASE, case),
        (MESSAGES, path),
        ("NCCL_DEBUG", "INFO"),
        ("NCCL_DEBUG_SUBSYS", "REG"),
        ("NCCL_DEBUG_FILE", &messages),
    ];
    variables.extend(hook.map(|hook| (hook, "1")));
    let store = TcpStore::host(0).unwrap();
    let test = concat!(module_path!(), "::one_rank");
    all_succeed((0..RANKS).map(|rank| spawn_with(test, &variables, rank, RANKS, &store.address())).collect());
}

#[test]
fn the_hook_on_by_the_environment() {
    run("environment", Some("NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK"));
}

#[test]
fn the_hook_on_by_the_builder() {
    run("told", None);
}
