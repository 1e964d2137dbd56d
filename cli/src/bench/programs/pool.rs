//! Cost of symmetric pools: the same requests with one pool per group and with one that the groups share; entry and
//! exit; the look-up of an address.
//!
//! `lockstep bench program pool [RANKS]`, with ranks as threads of one process. It prints the machine, then lines
//! separated by tabs: case, contender, and a number in ns, bytes or windows. `lockstep bench pool` prints tables of
//! them.

use std::{
    collections::BTreeMap,
    hint::black_box,
    sync::Arc,
    time::{Duration, Instant},
};

use crate::bench::programs::support::{Machine, Result, far, timed};
use caching_alloc::host::HostSource;
use cuda_driver::{Context, DevicePtr};
use process_group::{
    ProcessGroup,
    group::Request,
    store::{HashStore, Store, barrier},
};
use symm_mem::{CommitOptions, Domain, Geometry, SymmetricBlock, SymmetricGroup, SymmetricPool, commit_all};

/// Samples of each figure.
const ROUNDS: usize = 21;

/// Parts of the benchmark. An empty line is printed after each one.
pub(super) const PARTS: usize = 5;

/// The groups of a rank: the world, and two orthogonal groups.
const GROUPS: usize = 3;

pub(super) fn run() -> Result<()> {
    let machine = Machine::open()?;
    println!("machine\t{}", machine.description);
    let store = Arc::new(HashStore::new());
    machine.run(|rank, context| {
        let builder = ProcessGroup::builder().rank(rank).world_size(machine.ranks).context(context);
        let world = builder.store(store.clone()).nccl(&machine.nccl).build()?;
        let ranks = machine.ranks;
        let colors = if ranks == 2 { [0, 0] } else { [rank / 2, rank % 2] };
        let split = |name: &str, color: usize| -> Result<ProcessGroup> {
            let request = Request::Color { color: Some(color as u32), key: rank as i64 };
            Ok(world.split(name, &request)?.ok_or("every rank has a color")?)
        };
        let [tp, dp, alone] = [split("tp", colors[0])?, split("dp", colors[1])?, split("alone", rank)?];
        let say = |line: String| {
            if rank == 0 {
                println!("{line}");
            }
        };
        for sharing in [Sharing::Apart, Sharing::Together] {
            layers(sharing, [&world, &tp, &dp], context, &say)?;
            say(String::new());
        }
        growth([&world, &tp, &dp], context, &say)?;
        say(String::new());
        if rank == 0 {
            entries(&say)?;
            say(String::new());
            lookups(&alone, &say)?;
            say(String::new());
        }
        // No group is destroyed during the measurements.
        barrier(&*store, "timed", rank, ranks, far())?;
        for group in [alone, tp, dp, world] {
            group.destroy(far())?;
        }
        Ok(())
    })
}

/// Assignment of pools to groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sharing {
    Apart,
    Together,
}

impl Sharing {
    const fn name(self) -> &'static str {
        match self {
            Self::Apart => "a pool a group",
            Self::Together => "one shared pool",
        }
    }
}

/// Allocations of one model layer as (group, bytes): those that stay, and those that are freed with the layer.
const STAYS: [(usize, u64); 2] = [(2, 25 << 20), (0, 1 << 20)];
const GOES: [(usize, u64); 4] = [(1, 24 << 20), (1, 40 << 20), (2, 30 << 20), (0, 12 << 20)];
const LAYERS: usize = 12;

/// Runs a few steps of a model. Reports the reserved bytes, the number of windows, and the time of entry and exit. A
/// window of a shared pool counts once for each of its groups.
fn layers(
    sharing: Sharing,
    groups: [&ProcessGroup; GROUPS],
    context: &Context,
    say: &dyn Fn(String),
) -> Result<()> {
    let geometry = Geometry::default();
    let pools: Vec<SymmetricPool> = match sharing {
        Sharing::Apart => {
            let pool =
                |group| -> Result<_> { Ok(SymmetricPool::new(&Domain::of(group)?, context, geometry)?) };
            groups.iter().map(|group| pool(group)).collect::<Result<_>>()?
        }
        Sharing::Together => vec![SymmetricPool::new(&Domain::of(groups[0])?, context, geometry)?],
    };
    let of = |group: usize| &pools[group.min(pools.len() - 1)];
    let mut staying = Vec::new();
    // A layer's buffers are freed before the next layer's are allocated, for all groups.
    for step in 0..3 {
        for _ in 0..LAYERS {
            if step == 0 {
                for (group, bytes) in STAYS {
                    staying.push(of(group).allocate(bytes)?);
                }
            }
            let goes = GOES.map(|(group, bytes)| of(group).allocate(bytes));
            goes.into_iter().try_for_each(|block| block.map(drop))?;
        }
    }
    let commits: Vec<(&SymmetricPool, &dyn SymmetricGroup)> =
        groups.iter().enumerate().map(|(at, group)| (of(at), *group as &dyn SymmetricGroup)).collect();
    let reports = commit_all(&commits, CommitOptions::default());
    let windows = reports.into_iter().map(|report| Ok(report?.windows)).sum::<Result<usize>>()?;
    let name = sharing.name();
    say(format!("reserved\t{name}\t{}", pools.iter().map(SymmetricPool::reserved).sum::<u64>()));
    say(format!("segments\t{name}\t{}", pools.iter().map(SymmetricPool::segments).sum::<usize>()));
    say(format!("windows\t{name}\t{windows}"));
    let mut blocks = Vec::with_capacity(GOES.len());
    for _ in 0..ROUNDS {
        let (mut entry, mut exit) = (Duration::ZERO, Duration::ZERO);
        for _ in 0..LAYERS {
            let begun = Instant::now();
            for (group, bytes) in GOES {
                blocks.push(of(group).allocate(bytes)?);
            }
            let entered = Instant::now();
            blocks.clear();
            (entry, exit) = (entry + (entered - begun), exit + entered.elapsed());
        }
        let ns = |time: Duration| time.as_secs_f64() * 1e9 / (LAYERS * GOES.len()) as f64;
        say(format!("entry\t{name}\t{:.1}", ns(entry)));
        say(format!("exit\t{name}\t{:.1}", ns(exit)));
    }
    Ok(())
}

/// Grows a pool from nothing to 8 GiB in blocks of mixed sizes up to 64 MiB, with a commit for each group when a
/// segment is added. Reports the windows per group, the bytes reserved at the end, and after the first segment the
/// highest ratio of the reserved bytes to their limit: twice the used bytes, or 512 MiB more than these.
fn growth(groups: [&ProcessGroup; GROUPS], context: &Context, say: &dyn Fn(String)) -> Result<()> {
    const ENOUGH: u64 = 8 << 30;
    let pool = SymmetricPool::new(&Domain::of(groups[0])?, context, Geometry::default())?;
    let commits = groups.map(|group| (&pool, group as &dyn SymmetricGroup));
    let (mut blocks, mut used, mut segments) = (Vec::new(), 0, 0);
    let (mut most, mut windows) = (0.0_f64, 0);
    // The same numbers on every rank, because all ranks must make the same requests.
    let mut random = Random(8);
    while used < ENOUGH {
        let scale = 1 << (12 + random.below(15));
        let block = pool.allocate(1 + random.below(scale) as u64)?;
        used += block.bytes();
        blocks.push(block);
        if pool.segments() > segments {
            segments = pool.segments();
            let reports = commit_all(&commits, CommitOptions::default());
            for report in reports {
                windows = report?.windows.max(windows);
            }
            if segments > 1 {
                let limit = (2 * used).max(used + (512 << 20));
                most = most.max(pool.reserved() as f64 / limit as f64);
            }
        }
    }
    say(format!("growth\twindows a group\t{windows}"));
    say(format!("growth\tmost reserved of the limit\t{most:.3}"));
    say(format!("growth\treserved in the end\t{}", pool.reserved()));
    Ok(())
}

/// Makes a pool of this rank alone over memory that is never accessed, with `count` full segments.
fn pool_of(rank: u32, count: usize, segment: u64) -> Result<(SymmetricPool, Vec<SymmetricBlock>)> {
    let store: Arc<dyn Store> = Arc::new(HashStore::new());
    let geometry = Geometry { first_segment: segment, largest_segment: segment };
    let pool = SymmetricPool::with_source(
        &Domain::new(store, 3, rank, [rank])?,
        Arc::new(HostSource::new(u64::MAX)),
        geometry,
    )?;
    let blocks = (0..count).map(|_| pool.allocate(segment)).collect::<Result<_, _>>()?;
    Ok((pool, blocks))
}

/// ns of an allocation and of a free, of blocks of mixed sizes. Many are timed together, so that reading the clock
/// costs nothing.
fn entries(say: &dyn Fn(String)) -> Result<()> {
    const BLOCKS: usize = 256;
    let (pool, whole) = pool_of(0, 1, 1 << 30)?;
    drop(whole);
    let mut random = Random(1);
    let sizes: Vec<u64> = (0..BLOCKS).map(|_| 512 << random.below(12)).collect();
    let mut blocks = Vec::with_capacity(BLOCKS);
    let caller = |bytes: u64| pool.allocate(black_box(bytes));
    // The log keeps its last operations, so measure with a full one, as in a long run.
    for round in 0..ROUNDS + 16 {
        let begun = Instant::now();
        for bytes in &sizes {
            blocks.push(caller(*bytes)?);
        }
        let entry = begun.elapsed();
        let begun = Instant::now();
        blocks.clear();
        let exit = begun.elapsed();
        if round >= 16 {
            let ns = |time: Duration| time.as_secs_f64() * 1e9 / BLOCKS as f64;
            say(format!("allocation\tSymmetricPool\t{:.1}", ns(entry)));
            say(format!("free\tSymmetricPool\t{:.1}", ns(exit)));
        }
    }
    Ok(())
}

/// ns of a look-up: in the pool, committed for a group; by a linear scan; by a range look-up in a map.
fn lookups(alone: &ProcessGroup, say: &dyn Fn(String)) -> Result<()> {
    const LOOKUPS: usize = 4096;
    const SEGMENT: u64 = 2 << 20;
    for count in [10, 50, 100, 1000] {
        let (pool, blocks) = pool_of(alone.global_rank() as u32, count, SEGMENT)?;
        pool.commit(alone, CommitOptions::default())?;
        let group = alone.id();
        let mut random = Random(1);
        let mut place = || blocks[random.below(count)].ptr().0 + random.below(SEGMENT as usize - 64) as u64;
        let addresses: Vec<u64> = (0..LOOKUPS).map(|_| place()).collect();
        let extents: Vec<(u64, u64, u32)> = blocks
            .iter()
            .map(|block| (block.ptr().0, block.ptr().0 + SEGMENT, block.placement().ordinal))
            .collect();
        let map: BTreeMap<u64, (u64, u32)> =
            extents.iter().map(|(begin, end, ordinal)| (*begin, (*end, *ordinal))).collect();
        let ours = |address| {
            pool.lookup(DevicePtr(address), 64, group).is_ok_and(|found| black_box(found).is_some())
        };
        let scan = |address| {
            black_box(extents.iter().find(|(begin, end, _)| (*begin..*end).contains(&address))).is_some()
        };
        let range = |address| {
            let below = map.range(..=address).next_back();
            black_box(below.filter(|(_, (end, _))| address < *end)).is_some()
        };
        let ways: [(&str, &dyn Fn(u64) -> bool); 3] =
            [("SymmetricPool", &ours), ("linear scan", &scan), ("BTreeMap", &range)];
        for _ in 0..ROUNDS {
            for (name, look) in ways {
                let all = || Ok(addresses.iter().filter(|address| look(black_box(**address))).count());
                let (us, found) = timed(all)?;
                let ns = us * 1e3 / LOOKUPS as f64;
                if found != LOOKUPS {
                    return Err(format!("{name} found {found} of {LOOKUPS} addresses").into());
                }
                say(format!("look-up, {count} segments\t{name}\t{ns:.1}"));
            }
        }
    }
    Ok(())
}

/// Knuth's linear congruential generator.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }
}
