//! What the allocator's calls cost on the host: over counted memory, and on a GPU, if there is one, beside the
//! driver's own stream-ordered pool.
//!
//! `cargo bench -p lockstep-caching-alloc --bench alloc`

use std::error::Error;
use std::ffi::c_void;
use std::hint::black_box;
use std::sync::{Arc, Barrier};
use std::time::Instant;

use caching_alloc::core::{
    Allocator, Entry, Filter, SegmentSource, Settings, StreamId, Tracker, TrackerError,
};
use caching_alloc::driver::{DriverEvents, DriverSource, Sharing, VirtualMemorySource};
use caching_alloc::host::{HostSource, HostStreams};
use cuda_driver::memory::StreamMemory;
use cuda_driver::sys::{CUmemPool_attribute, CUresult};
use cuda_driver::{Context, Driver, Stream, StreamFlags};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const SIZES: [u64; 4] = [512, 64 << 10, 1 << 20, 16 << 20];

fn main() -> Result<()> {
    on_host()?;
    let context = Driver::load().and_then(|driver| driver.device(0)?.retain_primary());
    match context {
        Ok(context) => on_gpu(&context),
        Err(why) => {
            println!("\non a GPU: skipped: {}", why.to_string().split(';').next().unwrap_or_default());
            Ok(())
        }
    }
}

fn on_host() -> Result<()> {
    println!("counted memory, ns an operation");
    let quiet = host_allocator();
    let hit = || pairs(100_000, || quiet.allocate(black_box(4096), StreamId(1)));
    println!("hit pair             {:8.1}", hit()?);
    let attachment = quiet.attach(Arc::new(Count), Filter::structural())?;
    println!("  structural tracker {:8.1}", hit()?);
    attachment.detach()?;
    let attachment = quiet.attach(Arc::new(Count), Filter::all())?;
    println!("  block tracker      {:8.1}", hit()?);
    attachment.detach()?;
    for live in [256, 10_000] {
        let allocator = host_allocator();
        let time = churn(live, |bytes| allocator.allocate(bytes, StreamId(1)))?;
        println!("churn, {live:5} live   {time:8.1}");
    }
    for count in [1, 2, 4, 8] {
        let (own, one) = (threads(count, true), threads(count, false));
        println!("{count} threads: own streams {own:6.1} M pairs/s, one stream {one:6.1} M pairs/s");
    }
    Ok(())
}

fn on_gpu(context: &Context) -> Result<()> {
    println!("\n{}, ns an operation (ratio to cuMemAllocAsync)", context.device().name()?);
    let stream = Stream::new(context, StreamFlags::NON_BLOCKING)?;
    keep_pool(context)?;
    let pool = row(|bytes| StreamMemory::new(&stream, bytes as usize))?;
    let events = Arc::new(DriverEvents::new(context));
    let id = events.introduce(&stream);
    let over = |source: Arc<dyn SegmentSource>| {
        let allocator = Allocator::new(source, events.clone(), Settings::default());
        row(|bytes| allocator.allocate(bytes, id))
    };
    let rows = [
        ("cuMemAllocAsync", pool),
        ("cuMemAlloc segments", over(Arc::new(DriverSource::new(context)))?),
        ("virtual memory", over(Arc::new(VirtualMemorySource::new(context, Sharing::by_descriptor())?))?),
    ];
    print!("{:20}", "");
    SIZES.iter().for_each(|bytes| print!("{:>20}", format!("pair {bytes} B")));
    println!("{:>20}", "churn, 256 live");
    for (name, times) in rows {
        print!("{name:20}");
        times.iter().zip(pool).for_each(|(time, pool)| print!("{time:12.1} ({:5.2})", time / pool));
        println!();
    }
    stream.synchronize()?;
    Ok(())
}

/// Pairs of each of [`SIZES`], then churn.
fn row<T, E: Error + 'static>(
    mut allocate: impl FnMut(u64) -> std::result::Result<T, E>,
) -> Result<[f64; 5]> {
    let mut times = [0.0; 5];
    for (time, bytes) in times.iter_mut().zip(SIZES) {
        *time = pairs(10_000, || allocate(bytes))?;
    }
    times[4] = churn(256, allocate)?;
    Ok(times)
}

/// Lets the driver's pool keep what is freed, as a cache does.
fn keep_pool(context: &Context) -> Result<()> {
    let api = context.driver().api();
    let mut pool = std::ptr::null_mut();
    let mut threshold = u64::MAX;
    let attribute = CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    let value = (&raw mut threshold).cast::<c_void>();
    // SAFETY: the pool's handle is written to a local; the attribute's value is a 64-bit integer, and is read.
    let codes = unsafe {
        let found = (api.cuDeviceGetDefaultMemPool()?)(&mut pool, context.device().raw());
        [found, (api.cuMemPoolSetAttribute()?)(pool, attribute, value)]
    };
    if codes == [CUresult::CUDA_SUCCESS; 2] { Ok(()) } else { Err(format!("the pool: {codes:?}").into()) }
}

fn host_allocator() -> Allocator {
    Allocator::new(Arc::new(HostSource::new(u64::MAX)), Arc::new(HostStreams::new()), Settings::default())
}

/// The median of several runs of `run`, in ns per operation.
fn median(operations: u32, mut run: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut times = Vec::new();
    for _ in 0..11 {
        let start = Instant::now();
        run()?;
        times.push(start.elapsed().as_nanos() as f64 / f64::from(operations));
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

/// Allocates and frees at once.
fn pairs<T, E: Error + 'static>(
    count: u32,
    mut allocate: impl FnMut() -> std::result::Result<T, E>,
) -> Result<f64> {
    median(count, || {
        for _ in 0..count {
            black_box(allocate()?);
        }
        Ok(())
    })
}

/// A free and an allocation an operation, with `live` blocks of 512 bytes to 32 MiB alive, as many of each power of
/// two.
fn churn<T, E: Error + 'static>(
    live: usize,
    mut allocate: impl FnMut(u64) -> std::result::Result<T, E>,
) -> Result<f64> {
    let mut state = 1u64;
    let mut random = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize
    };
    let sizes: Vec<u64> =
        (0..4096).map(|_| 2f64.powf(9.0 + (random() % 1000) as f64 * 0.016) as u64).collect();
    let mut blocks = (0..live).map(|_| None).collect::<Vec<Option<T>>>();
    let mut step = |count: u32| {
        for _ in 0..count {
            let at = random() % live;
            blocks[at] = None;
            blocks[at] = Some(allocate(sizes[random() % sizes.len()])?);
        }
        Ok(())
    };
    step(20_000.max(10 * live as u32))?;
    median(10_000, || step(10_000))
}

/// Millions of pairs a second, of all threads together.
fn threads(count: u64, own_streams: bool) -> f64 {
    const PAIRS: u32 = 200_000;
    let allocator = host_allocator();
    let barrier = Barrier::new(count as usize + 1);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..count)
            .map(|worker| {
                let (allocator, barrier) = (allocator.clone(), &barrier);
                scope.spawn(move || {
                    let stream = StreamId(if own_streams { worker } else { 0 });
                    let pairs = |count| (0..count).for_each(|_| drop(allocator.allocate(4096, stream)));
                    pairs(1000);
                    barrier.wait();
                    pairs(PAIRS);
                })
            })
            .collect();
        barrier.wait();
        let start = Instant::now();
        workers.into_iter().for_each(|worker| drop(worker.join()));
        f64::from(PAIRS) * count as f64 / start.elapsed().as_secs_f64() / 1e6
    })
}

struct Count;

impl Tracker for Count {
    fn name(&self) -> &str {
        "count"
    }

    fn observe(&self, entries: &[Entry]) -> std::result::Result<(), TrackerError> {
        black_box(entries.len());
        Ok(())
    }
}
