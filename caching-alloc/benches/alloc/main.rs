//! What the allocator's calls cost on the host: over counted memory, and on a GPU, if there is one; beside a
//! best-fit map behind a mutex and the driver's own stream-ordered pool.
//!
//! `cargo bench -p lockstep-caching-alloc --bench alloc`. Prints a line for each case: case, contender, ns an
//! operation (the median of several runs), with tabs between. `cargo xtask bench alloc` makes a table of them, and
//! adds PyTorch's allocator where it is installed.

mod cases;
mod contenders;

use std::error::Error;
use std::ffi::c_void;
use std::sync::Arc;

use caching_alloc::core::{
    Allocator, Entry, Filter, SegmentSource, Settings, StreamEvents, StreamId, Tracker, TrackerError,
};
use caching_alloc::driver::{DriverEvents, DriverSource, Sharing, VirtualMemorySource};
use caching_alloc::host::{HostSource, HostStreams};
use cuda_driver::sys::{CUmemPool_attribute, CUresult};
use cuda_driver::{Context, Driver, Stream, StreamFlags};

use contenders::{BestFit, Ours, StreamPool};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Streams that the cases use.
const STREAMS: usize = 8;

fn main() -> Result<()> {
    on_host()?;
    let context = Driver::load().and_then(|driver| driver.device(0)?.retain_primary());
    match context {
        Ok(context) => on_gpu(&context),
        Err(why) => {
            eprintln!("on a GPU: skipped: {}", why.to_string().split(';').next().unwrap_or_default());
            Ok(())
        }
    }
}

fn on_host() -> Result<()> {
    let streams: Vec<StreamId> = (1..).map(StreamId).take(STREAMS).collect();
    let ours = |settings| {
        let (source, events) = (Arc::new(HostSource::new(u64::MAX)), Arc::new(HostStreams::new()));
        Ours { allocator: Allocator::new(source, events, settings), streams: streams.clone() }
    };
    let allocator = || ours(Settings::default());
    cases::all("ours, counted memory", allocator)?;
    cases::of_ours("ours, counted memory", allocator)?;
    let tracked = allocator();
    for (name, filter) in [("structural tracker", Filter::structural()), ("block tracker", Filter::all())] {
        let attachment = tracked.allocator.attach(Arc::new(Count), filter)?;
        cases::pair(&format!("ours, {name}"), &tracked, 4096)?;
        attachment.detach()?;
    }
    let remapping = || {
        let (source, events) = (Arc::new(HostSource::new(u64::MAX)), Arc::new(HostStreams::new()));
        let allocator =
            Allocator::remapping(source, events, Settings::default()).expect("the host's source has pages");
        Ours { allocator, streams: streams.clone() }
    };
    cases::all("ours, re-mappable, counted memory", remapping)?;
    cases::all("best-fit map", BestFit::default)
}

fn on_gpu(context: &Context) -> Result<()> {
    let streams: Vec<Stream> = (0..STREAMS)
        .map(|_| Stream::new(context, StreamFlags::NON_BLOCKING))
        .collect::<std::result::Result<_, _>>()?;
    keep_pool(context)?;
    let events = Arc::new(DriverEvents::new(context));
    let ids: Vec<StreamId> = streams.iter().map(|stream| events.introduce(stream)).collect();
    let ours = |source: Arc<dyn SegmentSource>| {
        let events: Arc<dyn StreamEvents> = events.clone();
        Ours { allocator: Allocator::new(source, events, Settings::default()), streams: ids.clone() }
    };
    let plain = || ours(Arc::new(DriverSource::new(context)));
    cases::all("ours", plain)?;
    cases::of_ours("ours", plain)?;
    let pages: Arc<dyn SegmentSource> =
        Arc::new(VirtualMemorySource::new(context, Sharing::by_descriptor())?);
    cases::all("ours, virtual memory", || ours(pages.clone()))?;
    cases::all("cuMemAllocAsync", || StreamPool { streams: &streams })?;
    streams.iter().try_for_each(Stream::synchronize)?;
    Ok(())
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

/// A tracker that looks at what it gets, and no more.
struct Count;

impl Tracker for Count {
    fn name(&self) -> &str {
        "count"
    }

    fn observe(&self, entries: &[Entry]) -> std::result::Result<(), TrackerError> {
        std::hint::black_box(entries.len());
        Ok(())
    }
}
