//! Several threads share streams and device memory. A thread fills each of its blocks on the device with a word that
//! names the thread and the block. Later it enqueues copies of the two ends of the block to the host, on the block's
//! stream or on another one, and frees the block without waiting for the copies. A *foreign* word is one that names
//! another thread or block. If the allocator gives a block to two owners, or reuses it too early, a copy can contain a
//! foreign word.
//!
//! `cargo run --release -p lockstep-caching-alloc --example device_owners [SECONDS] [fixed|remap]` runs on the first
//! GPU, or on the simulated device of `gpu_sim` if there is none. It exits with 1 at the first foreign word or error.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use caching_alloc::core::{AllocError, Allocator, Block, PoolKind, Settings, StreamId};
use caching_alloc::driver::{DriverEvents, Sharing, VirtualMemorySource};
use cuda_driver::memory::{PinnedFlags, PinnedMemory};
use cuda_driver::{Context, DevicePtr, Driver, Event, EventFlags, Stream, StreamFlags, sys};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const MIB: u64 = 1 << 20;
/// Device memory that the allocator may reserve: little, so that blocks are reused soon.
const CAPACITY: u64 = 256 * MIB;
/// Blocks that a thread has at most.
const HELD: usize = 12;
/// Blocks that a thread copies before it waits for all of these copies.
const COPIES: usize = 32;
/// Bytes that are read back at the beginning and at the end of each block. Of a shorter block, all bytes are read.
const READ: usize = 64 << 10;
const SIZES: [u64; 9] = [512, 512, 1000, 4096, 70_000, 300_000, MIB, 3 * MIB, 9 * MIB];

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let seconds: u64 = arguments.next().map_or(Ok(10), |seconds| seconds.parse())?;
    let kinds = match arguments.next().as_deref() {
        None => vec![PoolKind::Cached, PoolKind::Remappable],
        Some("fixed") => vec![PoolKind::Cached],
        Some("remap") => vec![PoolKind::Remappable],
        Some(other) => return Err(format!("unknown kind of pool {other}: expected fixed or remap").into()),
    };
    let (driver, _machine) = open()?;
    let device = driver.device(0)?;
    let context = device.retain_primary()?;
    println!("{}", device.name()?);
    let cases: Vec<_> = kinds.iter().flat_map(|kind| [(*kind, 2, 1), (*kind, 8, 4)]).collect();
    let length = Duration::from_secs(seconds) / cases.len() as u32;
    for (kind, threads, streams) in cases {
        let (blocks, reuses) = share(&context, kind, (threads, streams), length)?;
        println!(
            "{kind:?}, {threads} threads on {streams} streams: {blocks} blocks in {length:?}, {reuses} at an address \
             that the thread had before, none with a foreign word"
        );
    }
    Ok(())
}

/// Loads the driver of the GPUs. If there is no GPU, starts a simulated device and returns its driver. The caller
/// must then keep the returned `World`.
fn open() -> Result<(Driver, Option<gpu_sim::World>)> {
    if let Ok(driver) = Driver::load()
        && driver.device_count()? > 0
    {
        return Ok((driver, None));
    }
    let machine = gpu_sim::World::builder().capacity(2 * CAPACITY).start()?;
    // SAFETY: the table keeps the C contracts, and the caller keeps the machine.
    let driver = Driver::new(unsafe { sys::Api::from_parts(machine.cuda()) }?)?;
    Ok((driver, Some(machine)))
}

/// State that the threads of a case share.
struct Shared {
    allocator: Allocator,
    events: Arc<DriverEvents>,
    streams: Vec<(Stream, StreamId)>,
    stop: AtomicBool,
    end: Instant,
}

/// Runs a case. Returns the number of blocks, and the number of those at an address that their thread had used
/// before.
fn share(
    context: &Context,
    kind: PoolKind,
    (threads, streams): (u32, usize),
    length: Duration,
) -> Result<(u64, u64)> {
    let source = Arc::new(VirtualMemorySource::new(context, Sharing::none())?);
    let events = Arc::new(DriverEvents::new(context));
    let settings = Settings { memory_limit: Some(CAPACITY), ..Settings::default() };
    let allocator = match kind {
        PoolKind::Remappable => Allocator::remapping(source, events.clone(), settings)?,
        _ => Allocator::new(source, events.clone(), settings),
    };
    let stream = || -> Result<_> {
        let stream = Stream::new(context, StreamFlags::NON_BLOCKING)?;
        let id = events.register(&stream);
        Ok((stream, id))
    };
    let streams = (0..streams).map(|_| stream()).collect::<Result<Vec<_>>>()?;
    let end = Instant::now() + length;
    let shared = Shared { allocator, events: events.clone(), streams, stop: AtomicBool::new(false), end };
    let counts: Vec<Result<(u64, u64)>> = thread::scope(|scope| {
        let run = |me: u32| {
            let counts = context.with_current(|| Worker::new(&shared, context, me)?.run());
            let counts = counts.map_err(Into::into).and_then(|counts| counts);
            // The failure of one thread ends the others.
            shared.stop.fetch_or(counts.is_err(), Ordering::Relaxed);
            counts
        };
        let threads: Vec<_> = (1..=threads).map(|me| scope.spawn(move || run(me))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a thread panicked")).collect()
    });
    let counts = counts.into_iter().collect::<Result<Vec<_>>>()?;
    let stats = shared.allocator.stats();
    if stats.all.blocks.current != 0 || !shared.allocator.faults().is_empty() {
        return Err(format!(
            "{} blocks are left; faults: {:?}",
            stats.all.blocks.current,
            shared.allocator.faults()
        )
        .into());
    }
    Ok(counts.iter().fold((0, 0), |(blocks, reuses), count| (blocks + count.0, reuses + count.1)))
}

/// A thread of a case.
struct Worker<'a> {
    shared: &'a Shared,
    me: u32,
    random: u64,
    /// The stream on which the thread reads some of its blocks.
    side: (Stream, StreamId),
    /// The event for which the side stream waits before it reads a block.
    filled: Event,
    held: Vec<Owned>,
    /// Pinned memory, with a place of twice [`READ`] bytes for each copied block.
    place: PinnedMemory,
    /// For each block whose copies are under way, its word, and the length in bytes of each of the two copies.
    copies: Vec<(u32, usize)>,
    /// The addresses of all blocks that the thread has had.
    seen: std::collections::HashSet<u64>,
    blocks: u64,
    reuses: u64,
}

/// A block that a thread holds. It is filled with `word`, on the stream with index `stream` in [`Shared::streams`].
struct Owned {
    block: Block,
    stream: usize,
    word: u32,
}

impl<'a> Worker<'a> {
    fn new(shared: &'a Shared, context: &Context, me: u32) -> Result<Self> {
        let side = Stream::new(context, StreamFlags::NON_BLOCKING)?;
        let id = shared.events.register(&side);
        Ok(Self {
            shared,
            me,
            random: u64::from(me).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            side: (side, id),
            filled: Event::new(context, EventFlags::DISABLE_TIMING)?,
            held: Vec::new(),
            place: PinnedMemory::new(context, COPIES * 2 * READ, PinnedFlags::empty())?,
            copies: Vec::new(),
            seen: std::collections::HashSet::new(),
            blocks: 0,
            reuses: 0,
        })
    }

    fn run(mut self) -> Result<(u64, u64)> {
        while !self.shared.stop.load(Ordering::Relaxed) && Instant::now() < self.shared.end {
            match self.below(100) {
                0..55 => self.allocate()?,
                55..99 => self.free_any()?,
                _ => _ = self.shared.allocator.trim_to(CAPACITY / 4)?,
            }
        }
        while !self.held.is_empty() {
            self.free_any()?;
        }
        self.compare()?;
        Ok((self.blocks, self.reuses))
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 16) % limit
    }

    fn allocate(&mut self) -> Result<()> {
        if self.held.len() >= HELD {
            return self.free_any();
        }
        let stream = self.below(self.shared.streams.len() as u64) as usize;
        let bytes = SIZES[self.below(SIZES.len() as u64) as usize];
        let (queue, id) = &self.shared.streams[stream];
        let block = match self.shared.allocator.allocate(bytes, *id) {
            Ok(block) => block,
            Err(AllocError::OutOfMemory(_)) => return self.free_any(),
            Err(error) => return Err(error.into()),
        };
        self.blocks += 1;
        self.reuses += u64::from(!self.seen.insert(block.address()));
        let word = self.me << 24 | (self.blocks as u32 & 0xff_ffff);
        // SAFETY: the block has these bytes, and is freed on this stream, so its memory is reused only after the fill.
        unsafe { queue.fill_u32(DevicePtr(block.address()), word, block.bytes() as usize / 4)? };
        self.held.push(Owned { block, stream, word });
        Ok(())
    }

    /// Copies the two ends of a block to the host, on its stream or on the side stream, and frees the block without
    /// waiting for the copies.
    fn free_any(&mut self) -> Result<()> {
        if self.held.is_empty() {
            return Ok(());
        }
        if self.copies.len() == COPIES {
            self.compare()?;
        }
        let at = self.below(self.held.len() as u64) as usize;
        let Owned { block, stream, word } = self.held.swap_remove(at);
        let (queue, _) = &self.shared.streams[stream];
        let queue = if self.below(3) == 0 {
            queue.record(&self.filled)?;
            self.side.0.wait(&self.filled)?;
            block.record_stream(self.side.1)?;
            &self.side.0
        } else {
            queue
        };
        let bytes = block.bytes() as usize;
        let part = bytes.min(READ);
        let first = self.place.as_ptr().wrapping_add(self.copies.len() * 2 * READ);
        let end = DevicePtr(block.address() + (bytes - part) as u64);
        // SAFETY: the block has these bytes, and so does the place. The block's memory is not reused before the copies
        // have ended, because it is freed on this stream, or its use on this stream is recorded. The place is dropped
        // after `compare` has waited for the copies, unless an error ends the example.
        unsafe {
            queue.copy_to_host(first.cast(), DevicePtr(block.address()), part)?;
            queue.copy_to_host(first.wrapping_add(READ).cast(), end, part)?;
        }
        self.copies.push((word, part));
        Ok(())
    }

    /// Waits for all copies, and compares them with the words that their blocks must have.
    fn compare(&mut self) -> Result<()> {
        self.side.0.synchronize()?;
        self.shared.streams.iter().try_for_each(|(stream, _)| stream.synchronize())?;
        for (place, (word, part)) in
            self.place.as_slice().chunks(READ).zip(self.copies.iter().flat_map(|copy| [copy, copy]))
        {
            let foreign = place[..*part].chunks_exact(4).position(|found| found != word.to_ne_bytes());
            if let Some(at) = foreign {
                let found = &place[4 * at..4 * at + 4];
                return Err(format!("a block of {word:#010x} has the word {found:02x?} at {}", 4 * at).into());
            }
        }
        self.copies.clear();
        Ok(())
    }
}
