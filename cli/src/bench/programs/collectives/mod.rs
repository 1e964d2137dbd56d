//! Overhead of the layers above NCCL's table, for creating communicators and for calls; and a comparison of their
//! results with NCCL's, bit for bit.
//!
//! `lockstep bench program collectives [RANKS]`, with ranks as threads of one process. For calls it prints a line for
//! each round of a contender: case, contender, ns per call, separated by tabs. `lockstep bench call` prints a table
//! of the medians, and alternates with PyTorch where it is installed: with the argument `in-turn` there are only
//! calls; a round begins when a line is read from standard input, and ends with an empty line. The first round is the
//! comparison of results: the machine, and for each contender the number of results compared and the number that
//! differ.

mod bits;
mod calls;
mod making;
mod rank;

use std::sync::{Arc, Barrier};

use process_group::ProcessGroup;
use process_group::store::HashStore;

use crate::bench::programs::support::{Machine, Result, far};
use bits::Tally;
use calls::{Calls, TIMED};
use rank::Rank;

/// Rounds of the calls.
pub(super) const ROUNDS: usize = 11;

pub(super) fn run() -> Result<()> {
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
        calls(&rank, &tally, in_turn)
    })
}

fn calls(rank: &Rank<'_>, tally: &Tally, in_turn: bool) -> Result<()> {
    let world = rank.world("calls")?;
    // Like in real programs, the device's context is current on the enqueuing thread.
    rank.context.with_current(|| measure_calls(rank, &world, tally, in_turn))??;
    Ok(world.destroy(far())?)
}

fn measure_calls(rank: &Rank<'_>, world: &ProcessGroup, tally: &Tally, in_turn: bool) -> Result<()> {
    let calls = Calls::new(rank, world)?;

    rank.turn(in_turn)?;
    bits::compare(rank, &calls, tally)?;
    rank.say(|| {
        println!("machine\t{}", rank.machine.description);
        tally.print();
        println!();
    });
    let cases = calls.cases()?;
    for round in 0..ROUNDS {
        rank.turn(in_turn)?;
        for case in &cases {
            // The order of the contenders rotates, because each one's state of the machine depends on the case before
            // it.
            for turn in 0..TIMED.len() {
                let at = (round + turn) % TIMED.len();
                let time = calls.time(case, at)?;
                rank.say(|| println!("{}\t{}\t{time:.1}", case.name(), TIMED[at].name()));
            }
        }
        rank.say(|| println!());
    }
    // NCCL waits until the graphs that use a communicator are gone, so they are dropped before it.
    drop((cases, calls));
    Ok(())
}
