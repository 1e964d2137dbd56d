//! What the layers above NCCL's table add: to the making of communicators, and to calls; and whether the calls give what
//! NCCL's give, bit for bit.
//!
//! `cargo bench -p lockstep-process-group --bench collectives [-- RANKS]`, on ranks as threads of one process. Of calls
//! it prints a line for each round of a contender: case, contender, ns a call, with tabs between. `cargo xtask bench
//! call` makes a table of the medians, and lets PyTorch take its turns where it is installed: with the argument
//! `in-turn` there are only calls, a round begins when a line comes in, and ends with an empty line. The first round is
//! the comparison of results: the machine, and for each contender what was compared and how much of it differs.

mod bits;
mod calls;
mod making;
#[path = "../support/mod.rs"]
mod support;

use std::sync::{Arc, Barrier};

use cuda_driver::Context;
use nccl_sys::ncclResult_t;
use process_group::{
    ProcessGroup,
    comm::{Nccl, UniqueId},
    store::{HashStore, Store},
};

use bits::Tally;
use calls::{CONTENDERS, Calls};
use support::{Machine, Result, far};

/// Rounds of the calls.
const ROUNDS: usize = 11;

/// One rank of the job.
struct Rank<'a> {
    rank: usize,
    machine: &'a Machine,
    context: &'a Context,
    store: Arc<HashStore>,
    barrier: &'a Barrier,
}

fn main() -> Result<()> {
    let in_turn = std::env::args().any(|argument| argument == "in-turn");
    let machine = Machine::open()?;
    let (store, barrier, tally) = (Arc::new(HashStore::new()), Barrier::new(machine.ranks), Tally::default());
    if !in_turn {
        println!("{}", machine.description);
    }
    machine.run(|rank, context| {
        let store = store.clone();
        let rank = Rank { rank, machine: &machine, context, store, barrier: &barrier };
        if !in_turn {
            let times = making::measure(&rank)?;
            rank.say(|| times.print());
        }
        rank.calls(&tally, in_turn)
    })
}

impl Rank<'_> {
    fn size(&self) -> usize {
        self.machine.ranks
    }

    fn nccl(&self) -> &Nccl {
        &self.machine.nccl
    }

    /// Rank 0 speaks for all.
    fn say(&self, what: impl FnOnce()) {
        if self.rank == 0 {
            what();
        }
    }

    /// A new id, the same on all ranks.
    fn id(&self, name: &str) -> Result<UniqueId> {
        if self.rank == 0 {
            self.store.set(name, self.nccl().unique_id()?.as_bytes())?;
        }
        Ok(UniqueId::try_from(&self.store.get(name, far())?[..])?)
    }

    fn world(&self, name: &str) -> Result<ProcessGroup> {
        let builder = ProcessGroup::builder().name(name).store(self.store.clone()).rank(self.rank);
        Ok(builder.world_size(self.size()).context(self.context).nccl(self.nccl()).build()?)
    }

    /// Waits for the turn of all ranks.
    fn turn(&self, in_turn: bool) -> Result<()> {
        if in_turn && self.rank == 0 && std::io::stdin().read_line(&mut String::new())? == 0 {
            return Err("the input ended before the last round".into());
        }
        self.barrier.wait();
        Ok(())
    }

    fn calls(&self, tally: &Tally, in_turn: bool) -> Result<()> {
        let world = self.world("calls")?;
        // As programs have it: the device's context is current on the thread that enqueues.
        self.context.with_current(|| self.measure_calls(&world, tally, in_turn))??;
        Ok(world.destroy(far())?)
    }

    fn measure_calls(&self, world: &ProcessGroup, tally: &Tally, in_turn: bool) -> Result<()> {
        let calls = Calls::new(self, world)?;

        self.turn(in_turn)?;
        bits::compare(self, &calls, tally)?;
        self.say(|| {
            println!("machine\t{}", self.machine.description);
            tally.print();
            println!();
        });
        let cases = calls.cases()?;
        for round in 0..ROUNDS {
            self.turn(in_turn)?;
            for case in &cases {
                // Who comes first changes: what it finds is left by another case.
                for turn in 0..CONTENDERS.len() {
                    let contender = CONTENDERS[(round + turn) % CONTENDERS.len()];
                    let time = calls.time(case, contender)?;
                    self.say(|| println!("{}\t{}\t{time:.1}", case.name(), contender.name()));
                }
            }
            self.say(|| println!());
        }
        // NCCL waits for the graphs that use a communicator to be gone: they end here, before it does.
        drop((cases, calls));
        Ok(())
    }
}

fn check(code: ncclResult_t, call: &str) -> Result<()> {
    if code == ncclResult_t::ncclSuccess { Ok(()) } else { Err(format!("{call}: {code:?}").into()) }
}
