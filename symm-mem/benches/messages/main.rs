//! What each policy for messages costs: time where messages could run at once, and device memory.
//!
//! `cargo bench -p lockstep-symm-mem --bench messages [-- RANKS]`, on ranks as threads of one process. It prints the
//! machine, then lines with tabs between: case, policy, ns, a line for each round; and once for each policy `memory` with
//! bytes that a rank's device has less for it, beyond what the first policy takes. `cargo xtask bench p2p` makes a table
//! of them.

mod cases;
#[path = "../../../process-group/benches/support/mod.rs"]
mod support;

use std::sync::{Arc, Barrier};

use cuda_driver::Context;
use process_group::{
    ProcessGroup,
    group::{P2pPolicy, p2p::colours},
    store::HashStore,
};

use symm_mem::direct::{self, DirectOptions};

use cases::{CASES, Messages};
use support::{Machine, Result, far};

/// Rounds of every case.
const ROUNDS: usize = 9;

/// The policies: what each is called, what it is, and whether messages are in batches.
fn policies(ranks: usize) -> Vec<(String, P2pPolicy, bool)> {
    let peers = colours(ranks) as u32;
    let mut policies = vec![("Shared".to_owned(), P2pPolicy::Shared, false)];
    policies.extend(
        [1, peers, 2 * peers]
            .into_iter()
            .collect::<std::collections::BTreeSet<_>>()
            .into_iter()
            .map(|lanes| (format!("Lanes({lanes})"), P2pPolicy::Lanes(lanes), false)),
    );
    policies.extend([
        ("PerPair".to_owned(), P2pPolicy::PerPair, false),
        ("Direct".to_owned(), P2pPolicy::Direct, false),
        ("in a batch".to_owned(), P2pPolicy::Shared, true),
        ("Direct, in a batch".to_owned(), P2pPolicy::Direct, true),
    ]);
    policies
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

    fn group(&self, name: &str, policy: P2pPolicy) -> Result<ProcessGroup> {
        let builder =
            ProcessGroup::builder().name(name).store(self.store.clone()).rank(self.rank).p2p(policy);
        let builder = builder.world_size(self.machine.ranks).context(self.context).nccl(&self.machine.nccl);
        let group = builder.build()?;
        if policy == P2pPolicy::Direct {
            direct::install(&group, DirectOptions::default())?;
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

    fn run(&self) -> Result<()> {
        let _current = self.context.enter()?;
        let messages = Messages::new(self.context)?;
        // What the process takes once is not counted for the first policy.
        let first = self.group("first", P2pPolicy::Shared)?;
        messages.warm(self, &first, false)?;
        let mut groups = Vec::new();
        let mut shared = 0;
        for (name, policy, batched) in policies(self.machine.ranks) {
            let before = self.left()?;
            let group = self.group(&name, policy)?;
            messages.warm(self, &group, batched)?;
            let taken = before.saturating_sub(self.left()?);
            if groups.is_empty() {
                shared = taken;
            }
            if !batched {
                self.say(|| format!("memory\t{name}\t{}", taken.saturating_sub(shared)));
            }
            groups.push((name, batched, group));
        }
        self.say(|| format!("memory of a group\tShared\t{shared}"));
        for round in 0..ROUNDS {
            for case in CASES.into_iter().filter(|case| case.why_not(self.machine.ranks).is_none()) {
                // Who comes first changes: what it finds is left by another.
                for turn in 0..groups.len() {
                    let (name, batched, group) = &groups[(round + turn) % groups.len()];
                    let ns = messages.time(self, case, group, *batched)?;
                    self.say(|| format!("{}\t{name}\t{ns:.0}", case.name()));
                }
            }
        }
        for (.., group) in groups {
            group.destroy(far())?;
        }
        Ok(first.destroy(far())?)
    }
}
