//! What each policy for messages costs: time where messages could run at once, and device memory.
//!
//! `cargo bench -p lockstep-symm-mem --bench messages [-- RANKS] [MIBxSLOTS…]`, on ranks as threads of one process. It
//! prints the machine, then lines with tabs between: case, policy, ns, a line for each round; and once for each policy
//! `memory` with bytes that a rank's device has less for it, beyond what the first policy takes. `Direct` has the default
//! ring, and one more line for each that is given, as `8x4`. `cargo xtask bench p2p` makes a table of them.

mod cases;
#[path = "../../../process-group/benches/support/mod.rs"]
mod support;

use std::{
    collections::BTreeSet,
    sync::{Arc, Barrier},
};

use cuda_driver::Context;
use process_group::{
    ProcessGroup,
    group::{P2pPolicy, p2p::colours},
    store::HashStore,
};

use symm_mem::direct::{self, DirectOptions};

use cases::{CASES, Carrier, Case, Messages};
use support::{Machine, Result, far};

/// Rounds of every case.
const ROUNDS: usize = 9;

/// A contender.
#[derive(Clone)]
struct Contender {
    name: String,
    policy: P2pPolicy,
    batched: bool,
    ring: DirectOptions,
}

/// The policies, and rings that the arguments name.
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

/// One rank of the job.
struct Rank<'a> {
    rank: usize,
    machine: &'a Machine,
    context: &'a Context,
    store: Arc<HashStore>,
    barrier: &'a Barrier,
}

fn main() -> Result<()> {
    let machine = Machine::open()?;
    let (store, barrier) = (Arc::new(HashStore::new()), Barrier::new(machine.ranks));
    println!("machine\t{}", machine.description);
    for case in CASES {
        if let Some(why) = case.why_not(machine.ranks) {
            println!("skipped\t{}\t{why}", case.name());
        }
    }
    machine.run(|rank, context| {
        Rank { rank, machine: &machine, context, store: store.clone(), barrier: &barrier }.run()
    })
}

impl Rank<'_> {
    /// Rank 0 speaks for all.
    fn say(&self, what: impl FnOnce() -> String) {
        if self.rank == 0 {
            println!("{}", what());
        }
    }

    fn group(&self, name: &str, policy: P2pPolicy, ring: DirectOptions) -> Result<ProcessGroup> {
        let builder =
            ProcessGroup::builder().name(name).store(self.store.clone()).rank(self.rank).p2p(policy);
        let builder = builder.world_size(self.machine.ranks).context(self.context).nccl(&self.machine.nccl);
        let group = builder.build()?;
        if policy == P2pPolicy::Direct {
            direct::install(&group, ring)?;
        }
        Ok(group)
    }

    /// The device's memory that is left, when all ranks have come here.
    fn left(&self) -> Result<usize> {
        self.barrier.wait();
        self.context.synchronize()?;
        let (left, _) = self.context.memory_info()?;
        self.barrier.wait();
        Ok(left)
    }

    /// What so many ranks, and a carrier, can do.
    fn cases(&self, carrier: &Carrier) -> impl Iterator<Item = Case> {
        let (ranks, bare) = (self.machine.ranks, matches!(carrier, Carrier::CopyEngine));
        CASES.into_iter().filter(move |case| case.why_not(ranks).is_none() && !(bare && case.is_in_order()))
    }

    fn run(&self) -> Result<()> {
        self.context.with_current(|| self.run_in_current())?
    }

    fn run_in_current(&self) -> Result<()> {
        // What the process takes once is not counted for the first policy.
        let first = self.group("first", P2pPolicy::Shared, DirectOptions::default())?;
        let messages = Messages::new(self.context, &first)?;
        let first = Carrier::Group(first);
        messages.warm(self, &first)?;
        let mut carriers = vec![("copy engine".to_owned(), Carrier::CopyEngine)];
        messages.warm(self, &carriers[0].1)?;
        let mut shared = None;
        for Contender { name, policy, batched, ring } in contenders(self.machine.ranks) {
            let before = self.left()?;
            let group = self.group(&name, policy, ring)?;
            let carrier = if batched { Carrier::Batches(group) } else { Carrier::Group(group) };
            messages.warm(self, &carrier)?;
            let taken = before.saturating_sub(self.left()?);
            let shared = *shared.get_or_insert(taken);
            if !batched {
                self.say(|| format!("memory\t{name}\t{}", taken.saturating_sub(shared)));
            }
            carriers.push((name, carrier));
        }
        self.say(|| format!("memory of a group\tShared\t{}", shared.unwrap_or_default()));
        for round in 0..ROUNDS {
            for case in CASES {
                // Who comes first changes: what it finds is left by another.
                for turn in 0..carriers.len() {
                    let (name, carrier) = &carriers[(round + turn) % carriers.len()];
                    if self.cases(carrier).any(|able| able == case) {
                        let ns = messages.time(self, case, carrier)?;
                        self.say(|| format!("{}\t{name}\t{ns:.0}", case.name()));
                    }
                }
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
}
