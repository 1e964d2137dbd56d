//! Cost of symmetric memory compared with the layers below it: commits compared with bare registrations, rendezvous,
//! signals, transfers compared with the bare copy engine and NCCL's messages.
//!
//! `lockstep bench program symm [RANKS]`, with ranks as threads of one process that agree through a TCP store. It
//! prints the machine, then lines separated by tabs: case, contender, ns. `lockstep bench symm` prints tables of
//! them, and alternates with PyTorch where it is installed: with the argument `in-turn`, a round begins when a line
//! is read from standard input, and ends with an empty line.

mod commits;
mod rank;
mod signals;
mod transfers;

use std::sync::{Arc, Barrier};

use process_group::{
    ProcessGroup,
    group::Request,
    store::{Store, TcpStore},
};
use symm_mem::rendezvous::{Rendezvous, RendezvousOptions};

use rank::Rank;

use crate::bench::programs::support::{Machine, Result, far};

/// Samples of each figure.
pub(super) const ROUNDS: usize = 7;

pub(super) fn run() -> Result<()> {
    let machine = Machine::open()?;
    machine.world().inspect(|world| symm_mem::kernels::twins::register(world));
    let (host, barrier) = (TcpStore::host(0)?, Barrier::new(machine.ranks));
    machine.run(|rank, context| {
        let store: Arc<dyn Store> = match rank {
            0 => Arc::new(host.clone()),
            _ => Arc::new(TcpStore::connect(&host.address(), far())?),
        };
        let builder = ProcessGroup::builder().rank(rank).world_size(machine.ranks).context(context);
        let world = builder.store(store).nccl(&machine.nccl).build()?;
        let colors = if machine.ranks == 2 { [0, 0] } else { [rank / 2, rank % 2] };
        let split = |name: &str, color: usize| -> Result<ProcessGroup> {
            let request = Request::Color { color: Some(color as u32), key: rank as i64 };
            Ok(world.split(name, &request)?.ok_or("every rank has a color")?)
        };
        let groups = [split("first", colors[0])?, split("second", colors[1])?];
        let in_turn = std::env::args().any(|argument| argument == "in-turn");
        let embedded = machine.world().is_some();
        let rank = Rank { rank, context, world, groups, barrier: &barrier, in_turn, embedded };
        measure_and_close(rank, &machine.description)
    })
}

fn measure_and_close(rank: Rank<'_>, machine: &str) -> Result<()> {
    rank.context.with_current(|| measure(&rank, machine))??;
    let Rank { world, groups: [first, second], .. } = rank;
    for group in [second, first, world] {
        group.destroy(far())?;
    }
    Ok(())
}

fn measure(rank: &Rank<'_>, machine: &str) -> Result<()> {
    rank.turn()?;
    rank.say(|| format!("machine\t{machine}"));
    let rendezvous = Rendezvous::of(&rank.world, RendezvousOptions::default())?;
    let commits = commits::Commits::new(rank)?;
    let signals = signals::Signals::new(rank, &rendezvous)?;
    let transfers = transfers::Transfers::new(rank, &rendezvous)?;
    rank.say(String::new);
    for round in 0..ROUNDS {
        rank.turn()?;
        commits.round(rank, round)?;
        signals.round(rank, &rendezvous)?;
        transfers.round(rank, round)?;
        rank.say(String::new);
    }
    transfers.close();
    drop((commits, signals, rendezvous));
    Ok(())
}
