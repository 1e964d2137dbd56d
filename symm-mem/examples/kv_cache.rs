//! Ranks that prefill put pages of their KV caches into those of ranks that decode. Rank 0 decodes, and also tells the
//! others which pages they get; all others prefill. Which rank is a peer, and which pages it has, changes from call to
//! call: after the caches are shared, no call asks the store. Each rank is a process:
//!
//! ```text
//! cargo build -p lockstep-symm-mem --features twins --example kv_cache
//! lockstep launch -n 3 -- target/debug/examples/kv_cache
//! lockstep launch -n 3 -- target/debug/examples/kv_cache --embedded
//! ```
//!
//! With `--embedded` it needs no GPU: each process has an embedded device of its own, and they share memory all the same.

#[path = "support/mod.rs"]
mod support;

use std::{process::ExitCode, sync::Arc};

use caching_alloc::{
    core::{Allocator, Settings},
    driver::{DriverEvents, Sharing, VirtualMemorySource},
};
use cuda_driver::{Stream, StreamFlags};
use process_group::ProcessGroup;
use symm_mem::{
    exchange::{Descriptor, Direction, Exchange, ExchangeOptions, Memory, Regions},
    rendezvous::{Rendezvous, RendezvousOptions},
};

use support::{PATIENCE, Result, as_rank, embedded, exit_code, soon};

/// Words of 4 bytes of a page.
const WORDS: usize = 16 << 10;
const PAGE: usize = 4 * WORDS;
/// Pages of each cache.
const PAGES: usize = 32;
/// Requests that each rank prefills. Each has two pages.
const REQUESTS: usize = 5;
/// The rank that decodes.
const DECODER: usize = 0;

fn main() -> ExitCode {
    exit_code(
        embedded()
            .and_then(|embedded| as_rank(embedded, gpu_sim::Builder::start, |builder| run(builder.build()?))),
    )
}

fn run(world: ProcessGroup) -> Result<()> {
    let prefilling = world.size() - 1;
    if !(1..=3).contains(&prefilling) {
        return Err(format!("this is for 2 to 4 ranks, there are {}", world.size()).into());
    }
    let rendezvous = Rendezvous::of(&world, RendezvousOptions::default().deadline(PATIENCE))?;
    let exchange = Exchange::new(&rendezvous, ExchangeOptions::default().deadline(PATIENCE).channels(64))?;
    let stream = Stream::new(world.context(), StreamFlags::NON_BLOCKING)?;
    // The cache is a block of a caching allocator, whose memory can be exported.
    let events = Arc::new(DriverEvents::new(world.context()));
    let number = events.register(&stream);
    let source = VirtualMemorySource::new(world.context(), Sharing::granted(world.context())?)?;
    let allocator = Allocator::new(Arc::new(source), events, Settings::default());
    let cache = Memory::block(world.context(), allocator.allocate((PAGES * PAGE) as u64, number)?)?;
    let regions = exchange.share_regions("kv", &[("cache", cache.clone())])?;
    if world.rank() == DECODER {
        decode(&world, &regions, &cache, &stream)?;
    } else {
        prefill(&world, &regions, &cache, &stream)?;
    }
    drop((regions, cache));
    let overdue = exchange.close(soon());
    if !overdue.is_empty() {
        return Err(format!("memory that peers have not closed: {overdue:?}").into());
    }
    drop((rendezvous, stream, allocator));
    world.destroy(soon())?;
    Ok(())
}

/// The pages of request `request` of a rank: in the rank's cache, and in the decoder's. They lie apart.
fn pages(rank: usize, request: usize) -> [(usize, usize); 2] {
    let begin = 2 * (REQUESTS * (rank - 1) + request);
    [(2 * request, (begin * 7) % PAGES), (2 * request + 1, ((begin + 1) * 7) % PAGES)]
}

/// The value of all words of a page.
fn value(rank: usize, request: usize, page: usize) -> u32 {
    (1000 * rank + 10 * request + page) as u32
}

fn prefill(world: &ProcessGroup, regions: &Regions, cache: &Memory, stream: &Stream) -> Result<()> {
    let rank = world.rank();
    let remote_region = regions.find(DECODER, "cache")?.ok_or("the decoder shares no cache")?;
    for request in 0..REQUESTS {
        for (page, (own, _)) in pages(rank, request).into_iter().enumerate() {
            let at = cache.ptr() + own * PAGE;
            // SAFETY: the page lies in this rank's cache, which no other rank uses. (A model would run here.)
            unsafe { stream.fill_u32(at, value(rank, request, page), WORDS)? };
        }
        let list = pages(rank, request).map(|(own, theirs)| Descriptor {
            local_region: 0,
            local_offset: own * PAGE,
            remote_region,
            remote_offset: theirs * PAGE,
            bytes: PAGE,
        });
        // SAFETY: the decoder reads its pages after the notification. This rank writes its own only once.
        let pending =
            unsafe { regions.transfer_and_notify(Direction::Put, DECODER, &list, stream, PATIENCE)? };
        while !pending.is_done()? {
            std::thread::yield_now();
        }
    }
    // The decoder has read all pages.
    regions.wait(DECODER, stream, PATIENCE)?;
    stream.synchronize()?;
    regions.check(DECODER)?;
    println!("rank {rank}: put {} pages into the cache of rank {DECODER}", 2 * REQUESTS);
    Ok(())
}

fn decode(world: &ProcessGroup, regions: &Regions, cache: &Memory, stream: &Stream) -> Result<()> {
    let mut found = vec![0u32; WORDS];
    for request in 0..REQUESTS {
        for peer in 1..world.size() {
            regions.wait(peer, stream, PATIENCE)?;
            stream.synchronize()?;
            regions.check(peer)?;
            for (page, (_, own)) in pages(peer, request).into_iter().enumerate() {
                // SAFETY: the peer has notified this rank, and does not write the page again.
                unsafe { world.context().copy_to_host(&mut found, cache.ptr() + own * PAGE)? };
                let expected = value(peer, request, page);
                if let Some(at) = found.iter().position(|word| *word != expected) {
                    let found = found[at];
                    return Err(format!("word {at} of page {own} is {found}, expected {expected}").into());
                }
            }
        }
    }
    for peer in 1..world.size() {
        // SAFETY: nothing is copied.
        let _ = unsafe { regions.transfer_and_notify(Direction::Put, peer, &[], stream, PATIENCE)? };
    }
    stream.synchronize()?;
    println!(
        "rank {DECODER}: decoded {} requests of {} ranks",
        REQUESTS * (world.size() - 1),
        world.size() - 1
    );
    Ok(())
}
