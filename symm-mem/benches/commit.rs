//! What agreement adds to the registration of windows, and what a look-up costs.
//!
//! `cargo bench -p lockstep-symm-mem --bench commit [-- RANKS]`, on ranks as threads of one process.

#[path = "../../process-group/benches/support/mod.rs"]
mod support;

use std::{
    collections::BTreeMap,
    hint::black_box,
    sync::{Arc, Barrier},
};

use caching_alloc::{
    core::SegmentSource,
    driver::{Sharing, VirtualMemorySource},
    host::HostSource,
};
use cuda_driver::{Context, DevicePtr};
use process_group::{
    ProcessGroup,
    comm::{Communicator, WindowRequest},
    group::Request,
    store::{HashStore, Store, TcpStore},
};
use support::{Machine, Result, far, median, timed};
use symm_mem::{CommitOptions, Domain, Geometry, SymmetricBlock, SymmetricPool};

const SEGMENT: u64 = 2 << 20;
const GEOMETRY: Geometry = Geometry { first_segment: SEGMENT, largest_segment: SEGMENT };
const ROUNDS: usize = 7;
const COUNTS: [usize; 4] = [0, 1, 4, 16];
const WAYS: [&str; 4] = ["singly", "one NCCL group", "commit, store in process", "commit, store by TCP"];

fn main() -> Result<()> {
    let machine = Machine::open()?;
    println!("{}", machine.description);
    let in_process: Arc<dyn Store> = Arc::new(HashStore::new());
    let host = TcpStore::host(0)?;
    let barrier = Barrier::new(machine.ranks);
    let (windows, figures) = machine.run(|rank, context| {
        let by_tcp: Arc<dyn Store> = match rank {
            0 => Arc::new(host.clone()),
            _ => Arc::new(TcpStore::connect(&host.address(), far())?),
        };
        let builder = ProcessGroup::builder().rank(rank).world_size(machine.ranks).context(context);
        let world = builder.store(in_process.clone()).nccl(&machine.nccl).build()?;
        let domain = |store: &Arc<dyn Store>, uid| {
            Domain::new(store.clone(), uid, rank as u32, 0..machine.ranks as u32)
        };
        let domains = [domain(&in_process, 1)?, domain(&by_tcp, 2)?];
        let windows = world.windows_supported().map_err(|reason| reason.to_string());
        let commits = commits(&world, &domains, context, &barrier)?;
        let request = Request::Color { color: Some(rank as u32), key: 0 };
        let alone = world.split("alone", &request)?.ok_or("every rank has a color")?;
        let lookups = if rank == 0 { lookups(&alone)? } else { Vec::new() };
        alone.destroy(far())?;
        world.destroy(far())?;
        Ok((windows, (commits, lookups)))
    })?;

    let (commits, lookups) = figures;
    match windows {
        Ok(()) => println!("\nnew segments of 2 MiB made windows, ms (ratio to one NCCL group)"),
        Err(reason) => println!("\nnew segments of 2 MiB; no windows: {reason}; ms"),
    }
    println!("{:>8}{:>26}{:>26}{:>26}{:>26}", "segments", WAYS[0], WAYS[1], WAYS[2], WAYS[3]);
    for (count, times) in COUNTS.into_iter().zip(commits) {
        print!("{count:8}");
        for time in times {
            // Without segments there is the vote alone, and nothing to compare it with.
            match count {
                0 => print!("{:17.3} {:8}", time / 1e3, ""),
                _ => print!("{:17.3} ({:6.2})", time / 1e3, time / times[1]),
            }
        }
        println!();
    }
    println!("\nlook-up of an address, ns (ratio to SymmetricPool::lookup)");
    println!("{:>8}{:>18}{:>18}{:>18}", "segments", "lookup", "linear scan", "BTreeMap range");
    for (count, times) in lookups {
        print!("{count:8}");
        for time in times {
            print!("{time:9.1} ({:6.2})", time / times[0]);
        }
        println!();
    }
    Ok(())
}

/// Medians in µs on this rank, for each of [`COUNTS`], of each of [`WAYS`], turn by turn. Windows stay until the
/// communicator ends, on every way alike.
fn commits(
    world: &ProcessGroup,
    domains: &[Domain; 2],
    context: &Context,
    barrier: &Barrier,
) -> Result<Vec<[f64; 4]>> {
    let communicator = world.communicator();
    let source = Arc::new(VirtualMemorySource::new(context, Sharing::by_descriptor())?);
    let segments = |count| -> Result<Vec<WindowRequest>> {
        let segment = |_| {
            let memory = source.allocate(SEGMENT)?;
            Ok(WindowRequest::symmetric(DevicePtr(memory.address), SEGMENT as usize))
        };
        (0..count).map(segment).collect()
    };
    // Nothing of the source is given back before the communicator is gone.
    communicator.keep(source.clone());
    // The first window of a communicator costs more than the later ones.
    for request in segments(1)? {
        register(communicator, &[request])?;
    }

    let mut medians = Vec::new();
    for count in COUNTS {
        let mut samples: [Vec<f64>; 4] = Default::default();
        for _ in 0..ROUNDS {
            let (singly, together) = (segments(count)?, segments(count)?);
            let pools: Vec<(SymmetricPool, Vec<SymmetricBlock>)> =
                domains.iter().map(|domain| pool(domain, context, count)).collect::<Result<_>>()?;
            let commit = |pool: usize| -> Result<()> {
                pools[pool].0.commit(world, CommitOptions::default())?;
                Ok(())
            };
            let mut ways: [&mut dyn FnMut() -> Result<()>; 4] = [
                &mut || singly.chunks(1).try_for_each(|one| register(communicator, one)),
                &mut || register(communicator, &together),
                &mut || commit(0),
                &mut || commit(1),
            ];
            for (samples, way) in samples.iter_mut().zip(&mut ways) {
                barrier.wait();
                samples.push(timed(way)?.0);
            }
        }
        medians.push(samples.map(median));
    }
    Ok(medians)
}

fn register(communicator: &Communicator, requests: &[WindowRequest]) -> Result<()> {
    // SAFETY: the communicator keeps the source, which keeps the memory.
    unsafe { communicator.register_windows(requests, far()) }?;
    Ok(())
}

/// A pool with `count` segments, each full.
fn pool(domain: &Domain, context: &Context, count: usize) -> Result<(SymmetricPool, Vec<SymmetricBlock>)> {
    let pool = SymmetricPool::new(domain, context, GEOMETRY)?;
    let blocks = (0..count).map(|_| pool.allocate(SEGMENT)).collect::<std::result::Result<_, _>>()?;
    Ok((pool, blocks))
}

/// ns a look-up: the pool's, committed for a group, a linear scan's, a range look-up's in a map.
fn lookups(alone: &ProcessGroup) -> Result<Vec<(usize, [f64; 3])>> {
    const LOOKUPS: usize = 4096;
    let store: Arc<dyn Store> = Arc::new(HashStore::new());
    let domain = Domain::new(store, 3, alone.global_rank() as u32, [alone.global_rank() as u32])?;
    let mut figures = Vec::new();
    for count in [10, 100, 1000] {
        let pool = SymmetricPool::with_source(&domain, Arc::new(HostSource::new(u64::MAX)), GEOMETRY)?;
        let blocks: Vec<_> =
            (0..count).map(|_| pool.allocate(SEGMENT)).collect::<std::result::Result<_, _>>()?;
        pool.commit(alone, CommitOptions::default())?;
        let mut random = 1u64;
        let addresses: Vec<u64> = (0..LOOKUPS)
            .map(|_| {
                random =
                    random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                blocks[(random >> 33) as usize % count].ptr().0 + (random >> 12) % (SEGMENT - 64)
            })
            .collect();
        let extents: Vec<(u64, u64, u32)> = blocks
            .iter()
            .map(|block| (block.ptr().0, block.ptr().0 + SEGMENT, block.placement().ordinal))
            .collect();
        let map: BTreeMap<u64, (u64, u32)> =
            extents.iter().map(|(begin, end, ordinal)| (*begin, (*end, *ordinal))).collect();
        let id = alone.id();
        let time = |lookup: &dyn Fn(u64) -> bool| {
            let sample = |_| {
                let all = || Ok(addresses.iter().filter(|address| lookup(black_box(**address))).count());
                let (time, found) = timed(all)?;
                if found == LOOKUPS { Ok(time * 1e3 / LOOKUPS as f64) } else { Err("not found".into()) }
            };
            (0..21).map(sample).collect::<Result<Vec<f64>>>().map(median)
        };
        let times = [
            time(&|address| black_box(pool.lookup(DevicePtr(address), 64, id)).is_ok_and(|it| it.is_some()))?,
            time(&|address| {
                black_box(extents.iter().find(|(begin, end, _)| (*begin..*end).contains(&address))).is_some()
            })?,
            time(&|address| {
                let below = map.range(..=address).next_back();
                black_box(below.filter(|(_, (end, _))| address < *end)).is_some()
            })?,
        ];
        figures.push((count, times));
    }
    Ok(figures)
}
