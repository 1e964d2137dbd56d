//! Replays a recorded trace against the allocator over a host source and says what it cost.
//!
//! `zcat xtask/data/gpt2_train.trace.gz | cargo run --release -p lockstep-caching-alloc --example replay`
//!
//! One event a line: `CODE ADDRESS(hex) SIZE(bytes) STREAM`; `a` allocates, `r` lets go, `f` ends the use of another
//! stream; other codes are skipped.

use std::collections::HashMap;
use std::error::Error;
use std::io::{BufRead, stdin};
use std::sync::Arc;
use std::time::{Duration, Instant};

use caching_alloc::core::{Allocator, Block, Settings, StreamId, UNIT};
use caching_alloc::host::{HostSource, HostStreams};

enum Event {
    Allocate {
        slot: usize,
        bytes: u64,
        stream: StreamId,
    },
    /// With the stream whose use is to be waited for, if there is one.
    Free {
        slot: usize,
        user: Option<StreamId>,
    },
    Complete {
        user: StreamId,
    },
}

fn read() -> Result<(Vec<Event>, u64), Box<dyn Error>> {
    let mut lines = Vec::new();
    for line in stdin().lock().lines() {
        let line = line?;
        let mut fields = line.split_whitespace();
        if let (Some(code), Some(address), Some(bytes), Some(stream)) =
            (fields.next(), fields.next(), fields.next(), fields.next())
        {
            let code = code.chars().next().unwrap_or('?');
            lines.push((
                code,
                u64::from_str_radix(address, 16)?,
                bytes.parse::<u64>()?,
                stream.parse::<u64>()?,
            ));
        }
    }
    let mut events = Vec::new();
    let mut live: HashMap<u64, (usize, u64)> = HashMap::new();
    let mut users: HashMap<u64, StreamId> = HashMap::new();
    let (mut slots, mut active, mut peak) = (0, 0, 0u64);
    for (at, (code, address, bytes, stream)) in lines.iter().enumerate() {
        match code {
            'a' => {
                let rounded = bytes.next_multiple_of(UNIT);
                live.insert(*address, (slots, rounded));
                active += rounded;
                peak = peak.max(active);
                events.push(Event::Allocate { slot: slots, bytes: *bytes, stream: StreamId(*stream) });
                slots += 1;
            }
            'r' => {
                let (slot, rounded) = live.remove(address).ok_or("freed what was not allocated")?;
                let at_once = lines.get(at + 1).is_some_and(|next| next.0 == 'f' && next.1 == *address);
                let user = (!at_once).then_some(StreamId(1000 + slot as u64));
                match user {
                    Some(user) => drop(users.insert(*address, user)),
                    None => active -= rounded,
                }
                events.push(Event::Free { slot, user });
            }
            'f' => {
                if let Some(user) = users.remove(address) {
                    active -= bytes.next_multiple_of(UNIT);
                    events.push(Event::Complete { user });
                }
            }
            _ => {}
        }
    }
    Ok((events, peak))
}

fn main() -> Result<(), Box<dyn Error>> {
    let (events, peak_active) = read()?;
    let mut settings = Settings::default();
    for argument in std::env::args().skip(1) {
        let (key, value) = argument.split_once('=').ok_or("arguments are KEY=VALUE")?;
        let value: u64 = value.parse()?;
        match key {
            "front" => settings.front_bytes = value << 20,
            "large" => settings.large_segment = value << 20,
            "small" => settings.small_segment = value << 20,
            "divisor" => settings.growth_divisor = value,
            other => return Err(format!("no setting {other}").into()),
        }
    }
    let mut best = Duration::MAX;
    let mut last = None;
    for _ in 0..5 {
        let source = Arc::new(HostSource::new(u64::MAX));
        let streams = Arc::new(HostStreams::new());
        let allocator = Allocator::new(source.clone(), streams.clone(), settings.clone());
        let mut blocks: Vec<Option<Block>> = Vec::new();
        blocks.resize_with(events.len(), || None);
        let start = Instant::now();
        for event in &events {
            match event {
                Event::Allocate { slot, bytes, stream } => {
                    blocks[*slot] = Some(allocator.allocate(*bytes, *stream)?);
                }
                Event::Free { slot, user: None } => blocks[*slot] = None,
                Event::Free { slot, user: Some(user) } => {
                    let block = blocks[*slot].take().ok_or("freed twice")?;
                    streams.enqueue(*user);
                    block.record_stream(*user)?;
                }
                Event::Complete { user } => streams.complete(*user),
            }
        }
        best = best.min(start.elapsed());
        last = Some((allocator.stats(), source.calls()));
    }
    let (stats, calls) = last.ok_or("nothing was replayed")?;
    println!("operations      {}", events.len());
    println!("ns per operation {:.1}", best.as_nanos() as f64 / events.len() as f64);
    println!("peak active     {peak_active}");
    println!("peak reserved   {}", calls.peak_bytes);
    println!("ratio           {:.4}", calls.peak_bytes as f64 / peak_active as f64);
    println!("segments        {} (peak {})", stats.segments.total, stats.segments.peak);
    println!("source calls    {} + {}", calls.allocate, calls.release);
    Ok(())
}
