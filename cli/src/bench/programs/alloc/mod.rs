//! Host time of the allocator's calls, over counted memory, and on a GPU if there is one. The other contenders are a
//! best-fit map behind a mutex and the driver's own stream-ordered pool.
//!
//! `lockstep bench program alloc`. Each case runs in rounds, one round of each contender after the other, because the
//! speed of shared machines changes within seconds. Prints a line for each round of a contender: case, contender, ns
//! per operation, separated by tabs. `lockstep bench alloc` prints a table of the medians, and alternates with
//! PyTorch's allocator where it is installed: with the argument `in-turn`, a round begins when a line is read from
//! standard input, and ends with an empty line.

mod cases;
mod contenders;

use std::ffi::c_void;
use std::sync::Arc;

use caching_alloc::core::{
    Allocator, Entry, Filter, SegmentSource, Settings, StreamEvents, StreamId, Tracker, TrackerError,
};
use caching_alloc::driver::{DriverEvents, DriverSource, Sharing, VirtualMemorySource};
use caching_alloc::host::{HostSource, HostStreams};
use cuda_driver::sys::CUmemPool_attribute;
use cuda_driver::{Context, Driver, Stream, StreamFlags};

use crate::bench::programs::support::Result;
use cases::Case;
use contenders::{BestFit, Contender, Ours, STREAMS, StreamPool};

/// Rounds of a case.
const ROUNDS: usize = 11;

/// Rounds of all cases.
pub(super) fn rounds() -> usize {
    Case::all().len() * ROUNDS
}

pub(super) fn run() -> Result<()> {
    let in_turn = std::env::args().any(|argument| argument == "in-turn");
    let mut contenders = on_host()?;
    let context = Driver::load().and_then(|driver| driver.device(0)?.retain_primary());
    match &context {
        Ok(context) => contenders.extend(on_gpu(context)?),
        Err(why) => {
            eprintln!("on a GPU: skipped: {}", why.to_string().split(';').next().unwrap_or_default());
        }
    }
    let mut turns = std::io::stdin().lines();
    for case in Case::all() {
        let mut rounds = Vec::new();
        for (who, contender) in &contenders {
            if let Some(round) = contender.prepare(&case)? {
                rounds.push((who, round));
            }
        }
        for _ in 0..ROUNDS {
            if in_turn && turns.next().transpose()?.is_none() {
                return Err("the input ended before the last round".into());
            }
            for (who, round) in &mut rounds {
                println!("{}\t{who}\t{:.1}", case.name(), round()?);
            }
            println!();
        }
    }
    Ok(())
}

/// The contenders, by name.
type Contenders = Vec<(&'static str, Box<dyn Contend>)>;

/// A contender, for any type of its blocks.
trait Contend {
    fn prepare(&self, case: &Case) -> Result<Option<cases::Round<'_>>>;
}

impl<C: Contender> Contend for C {
    fn prepare(&self, case: &Case) -> Result<Option<cases::Round<'_>>> {
        case.with(self)
    }
}

fn on_host() -> Result<Contenders> {
    let streams: Vec<StreamId> = (1..).map(StreamId).take(STREAMS).collect();
    let memory = || (Arc::new(HostSource::new(u64::MAX)), Arc::new(HostStreams::new()));
    let counted = |filter: Option<Filter>| -> Result<Box<dyn Contend>> {
        let (source, events) = memory();
        let allocator = Allocator::new(source, events, Settings::default());
        let attachment = filter.map(|filter| allocator.attach(Arc::new(Count), filter)).transpose()?;
        Ok(Box::new(Ours { allocator, streams: streams.clone(), _attachment: attachment }))
    };
    let (source, events) = memory();
    let allocator = Allocator::remapping(source, events, Settings::default())?;
    let remappable = Ours { allocator, streams: streams.clone(), _attachment: None };
    Ok(vec![
        ("ours, counted memory", counted(None)?),
        ("ours, structural tracker", counted(Some(Filter::structural()))?),
        ("ours, block tracker", counted(Some(Filter::all()))?),
        ("ours, re-mappable, counted memory", Box::new(remappable)),
        ("best-fit map", Box::new(BestFit::default())),
    ])
}

fn on_gpu(context: &Context) -> Result<Contenders> {
    let streams: Vec<Stream> = (0..STREAMS)
        .map(|_| Stream::new(context, StreamFlags::NON_BLOCKING))
        .collect::<std::result::Result<_, _>>()?;
    keep_pool(context)?;
    let events = Arc::new(DriverEvents::new(context));
    let ids: Vec<StreamId> = streams.iter().map(|stream| events.register(stream)).collect();
    let ours = |source: Arc<dyn SegmentSource>| {
        let events: Arc<dyn StreamEvents> = events.clone();
        let allocator = Allocator::new(source, events, Settings::default());
        Box::new(Ours { allocator, streams: ids.clone(), _attachment: None })
    };
    let pages = VirtualMemorySource::new(context, Sharing::by_descriptor())?;
    Ok(vec![
        ("ours", ours(Arc::new(DriverSource::new(context)))),
        ("ours, virtual memory", ours(Arc::new(pages))),
        ("cuMemAllocAsync", Box::new(StreamPool { streams })),
    ])
}

/// Makes the driver's pool keep freed memory, as a cache does.
fn keep_pool(context: &Context) -> Result<()> {
    let api = context.driver().api();
    let mut pool = std::ptr::null_mut();
    let mut threshold = u64::MAX;
    let attribute = CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    let value = (&raw mut threshold).cast::<c_void>();
    // SAFETY: the pool's handle is written to a local; the attribute's value is a 64-bit integer, and is read.
    unsafe {
        api.device_get_default_mem_pool(&mut pool, context.device().raw())?;
        api.mem_pool_set_attribute(pool, attribute, value)?;
    }
    Ok(())
}

/// A tracker that only reads its arguments.
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
