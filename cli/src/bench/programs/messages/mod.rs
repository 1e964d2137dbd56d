//! Cost of each policy for messages: time where messages could run concurrently, and device memory.
//!
//! `lockstep bench program messages [RANKS] [MIBxSLOTS…]`, with ranks as threads of one process. It prints the
//! machine, then lines separated by tabs: case, policy, ns, a line for each round; and once for each policy `memory`
//! with the bytes of a rank's device that it takes, beyond those of the first policy. `Direct` uses the default ring,
//! and prints one more line for each ring given as `8x4`. `lockstep bench p2p` prints a table of them.

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

use symm_mem::direct::DirectOptions;

use crate::bench::programs::support::{Machine, Result, far};
use cases::{CASES, Carrier, Messages};
use rank::Rank;

/// Rounds of every case.
pub(super) const ROUNDS: usize = 9;

/// A contender.
#[derive(Clone)]
struct Contender {
    name: String,
    policy: P2pPolicy,
    batched: bool,
    ring: DirectOptions,
}

/// Returns the policies, and the rings that the arguments name.
fn contenders(ranks: usize) -> Vec<Contender> {
    let ring = DirectOptions::default();
    let of = |name: String, policy, batched| Contender { name, policy, batched, ring };
    let peers = colours(ranks) as u32;
    let mut all = vec![of("Shared".to_owned(), P2pPolicy::Shared, false)];
    let lanes: BTreeSet<_> = [1, peers, 2 * peers].into();
    all.extend(lanes.into_iter().map(|lanes| of(format!("Lanes({lanes})"), P2pPolicy::Lanes(lanes), false)));
    all.extend([
        of("PerPair".to_owned(), P2pPolicy::PerPair, false),
        of("Direct".to_owned(), P2pPolicy::Direct, false),
        of("in a batch".to_owned(), P2pPolicy::Shared, true),
        of("Direct, in a batch".to_owned(), P2pPolicy::Direct, true),
    ]);
    let rings = std::env::args().filter_map(|argument| {
        let (mib, slots) = argument.split_once('x')?;
        Some((mib.parse::<usize>().ok()?, slots.parse().ok()?))
    });
    for (mib, slots) in rings {
        for (batched, how) in [(false, ""), (true, ", in a batch")] {
            let name = format!("Direct {mib} MiB x {slots}{how}");
            let ring = ring.slot_bytes(mib << 20).slots(slots);
            all.push(Contender { name, policy: P2pPolicy::Direct, batched, ring });
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
    let first = rank.group("first", P2pPolicy::Shared, DirectOptions::default())?;
    let messages = Messages::new(rank.context, &first)?;
    let first = Carrier::Group(first);
    messages.warm(rank, &first)?;
    let mut carriers = vec![("copy engine".to_owned(), Carrier::CopyEngine)];
    messages.warm(rank, &carriers[0].1)?;
    let mut shared = None;
    for Contender { name, policy, batched, ring } in contenders(rank.machine.ranks) {
        let before = rank.left()?;
        let group = rank.group(&name, policy, ring)?;
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
    drop(messages);
    for carrier in carriers.into_iter().map(|(_, carrier)| carrier).chain([first]) {
        if let Carrier::Group(group) | Carrier::Batches(group) = carrier {
            group.destroy(far())?;
        }
    }
    Ok(())
}
