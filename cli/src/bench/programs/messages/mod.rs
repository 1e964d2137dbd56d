//! Cost of each policy for messages: time where messages could run concurrently, and device memory.
//!
//! `lockstep bench program messages [RANKS] [MIBxSLOTS…]`, with ranks as threads of one process. It prints the
//! machine, then lines separated by tabs: case, policy, ns, a line for each round; and once for each policy `memory`
//! with the bytes of a rank's device that it takes, beyond those of the first policy. `Direct` uses the default ring,
//! and prints one more line for each ring given as `8x4`. `Direct, shared` sends from blocks of a pool that its members
//! share; `memory for a peer` are the bytes of its rings for one peer. `lockstep bench p2p` prints a table of them.

mod cases;
mod rank;

use std::{
    collections::BTreeSet,
    sync::{Arc, Barrier},
};

use process_group::{
    group::{P2pPolicy, p2p::colours},
    store::HashStore,
};

use symm_mem::{CommitOptions, direct::DirectOptions};

use crate::bench::programs::support::{Machine, Result, far};
use cases::{CASES, Carrier, Messages};
use rank::Rank;

/// Rounds of every case.
pub(super) const ROUNDS: usize = 9;

/// The contenders whose messages take one copy.
pub(in crate::bench) const SHARED: &str = "Direct, shared";
pub(in crate::bench) const SHARED_BATCH: &str = "Direct, shared, in a batch";

/// A contender.
#[derive(Clone)]
struct Contender {
    name: String,
    policy: P2pPolicy,
    batched: bool,
    ring: DirectOptions,
    /// Its members commit the pool of the messages' memory.
    shares: bool,
}

/// Returns the policies, and the rings that the arguments name.
fn contenders(ranks: usize) -> Vec<Contender> {
    let ring = DirectOptions::default();
    let of = |name: String, policy, batched| Contender { name, policy, batched, ring, shares: false };
    let shared =
        |name: &str, batched| Contender { shares: true, ..of(name.to_owned(), P2pPolicy::Direct, batched) };
    let peers = colours(ranks) as u32;
    let mut all = vec![of("Shared".to_owned(), P2pPolicy::Shared, false)];
    let lanes: BTreeSet<_> = [1, peers, 2 * peers].into();
    all.extend(lanes.into_iter().map(|lanes| of(format!("Lanes({lanes})"), P2pPolicy::Lanes(lanes), false)));
    all.extend([
        of("PerPair".to_owned(), P2pPolicy::PerPair, false),
        of("Direct".to_owned(), P2pPolicy::Direct, false),
        of("in a batch".to_owned(), P2pPolicy::Shared, true),
        of("Direct, in a batch".to_owned(), P2pPolicy::Direct, true),
        shared(SHARED, false),
        shared(SHARED_BATCH, true),
    ]);
    let rings = std::env::args().filter_map(|argument| {
        let (mib, slots) = argument.split_once('x')?;
        Some((mib.parse::<usize>().ok()?, slots.parse().ok()?))
    });
    for (mib, slots) in rings {
        for (batched, how) in [(false, ""), (true, ", in a batch")] {
            let name = format!("Direct {mib} MiB x {slots}{how}");
            let ring = ring.slot_bytes(mib << 20).slots(slots);
            all.push(Contender { ring, ..of(name, P2pPolicy::Direct, batched) });
        }
    }
    all
}

pub(super) fn run() -> Result<()> {
    let machine = Machine::open()?;
    let (store, barrier) = (Arc::new(HashStore::new()), Barrier::new(machine.ranks));
    println!("machine\t{}", machine.description);
    for case in CASES {
        if let Some(why) = case.why_not(machine.ranks) {
            println!("skipped\t{}\t{why}", case.name());
        }
    }
    machine.run(|rank, context| {
        let rank = Rank { rank, machine: &machine, context, store: store.clone(), barrier: &barrier };
        context.with_current(|| measure(&rank))?
    })
}

fn measure(rank: &Rank<'_>) -> Result<()> {
    // Memory that the process takes once must not count for the first policy, so a group is made before the
    // measurement.
    let (first, _) = rank.group("first", P2pPolicy::Shared, DirectOptions::default())?;
    let messages = Messages::new(rank.context, &first)?;
    let first = Carrier::Group(first);
    messages.warm(rank, &first)?;
    let mut carriers = vec![("copy engine".to_owned(), Carrier::CopyEngine)];
    messages.warm(rank, &carriers[0].1)?;
    let (mut shared, mut sharing) = (None, Vec::new());
    for Contender { name, policy, batched, ring, shares } in contenders(rank.machine.ranks) {
        let before = rank.left()?;
        let (group, direct) = rank.group(&name, policy, ring)?;
        if let Some(direct) = direct.filter(|_| shares) {
            messages.pool.commit(&group, CommitOptions::default().windows(false))?;
            sharing.push(direct);
        }
        if let Some(path) = group.p2p().path.filter(|_| name == SHARED) {
            let peers = rank.machine.ranks.saturating_sub(1).max(1) as u64;
            rank.say(|| format!("memory for a peer\t{name}\t{}", path.device_bytes / peers));
        }
        let carrier = if batched { Carrier::Batches(group) } else { Carrier::Group(group) };
        messages.warm(rank, &carrier)?;
        let taken = before.saturating_sub(rank.left()?);
        let shared = *shared.get_or_insert(taken);
        if !batched {
            rank.say(|| format!("memory\t{name}\t{}", taken.saturating_sub(shared)));
        }
        carriers.push((name, carrier));
    }
    rank.say(|| format!("memory of a group\tShared\t{}", shared.unwrap_or_default()));
    for round in 0..ROUNDS {
        for case in CASES {
            // The order of the contenders rotates, because each finds the state that the previous one left.
            for turn in 0..carriers.len() {
                let (name, carrier) = &carriers[(round + turn) % carriers.len()];
                if cases::possible(rank, carrier).any(|able| able == case) {
                    let ns = messages.time(rank, case, carrier)?;
                    rank.say(|| format!("{}\t{name}\t{ns:.0}", case.name()));
                }
            }
        }
        rank.say(String::new);
    }
    for direct in &sharing {
        let staged = direct.report()?.staged;
        if staged > 0 {
            return Err(
                format!("{staged} messages from committed blocks went through rings; expected none").into()
            );
        }
    }
    drop(messages);
    for carrier in carriers.into_iter().map(|(_, carrier)| carrier).chain([first]) {
        if let Carrier::Group(group) | Carrier::Batches(group) = carrier {
            group.destroy(far())?;
        }
    }
    Ok(())
}
