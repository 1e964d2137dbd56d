//! What symmetric memory costs beside what it stands on: commits beside bare registrations, rendezvous, signals, transfers
//! beside the bare copy engine and NCCL's messages.
//!
//! `cargo bench -p lockstep-symm-mem --features twins --bench symm [-- RANKS]`, on ranks as threads of one process that agree
//! through a store by TCP. It prints the machine, then lines with tabs between: case, contender, ns. `cargo xtask bench symm`
//! makes tables of them, and lets PyTorch take its turns where it is installed: with the argument `in-turn` a round begins
//! when a line comes in, and ends with an empty line.

mod commits;
mod signals;
#[path = "../../../process-group/benches/support/mod.rs"]
mod support;
mod transfers;

use std::sync::{Arc, Barrier};

use cuda_driver::Context;
use process_group::{
    ProcessGroup,
    group::Request,
    store::{Store, TcpStore},
};
use symm_mem::rendezvous::{Rendezvous, RendezvousOptions};

use support::{Machine, Result, far};

/// How often each figure is taken.
const ROUNDS: usize = 7;

/// One rank of the job.
struct Rank<'a> {
    rank: usize,
    context: &'a Context,
    world: ProcessGroup,
    /// Two groups over all ranks of two, or across each other.
    groups: [ProcessGroup; 2],
    barrier: &'a Barrier,
    in_turn: bool,
    /// On an embedded device, whose times are no figures, all is small.
    embedded: bool,
}

fn main() -> Result<()> {
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
        Rank { rank, context, world, groups, barrier: &barrier, in_turn, embedded }.run(&machine.description)
    })
}

impl Rank<'_> {
    /// Rank 0 speaks for all.
    fn say(&self, what: impl FnOnce() -> String) {
        if self.rank == 0 {
            println!("{}", what());
        }
    }

    /// Waits for the turn of all ranks.
    fn turn(&self) -> Result<()> {
        if self.in_turn && self.rank == 0 && std::io::stdin().read_line(&mut String::new())? == 0 {
            return Err("the input ended before the last round".into());
        }
        self.barrier.wait();
        Ok(())
    }

    fn run(self, machine: &str) -> Result<()> {
        self.context.with_current(|| self.measure(machine))??;
        let Self { world, groups: [first, second], .. } = self;
        for group in [second, first, world] {
            group.destroy(far())?;
        }
        Ok(())
    }

    fn measure(&self, machine: &str) -> Result<()> {
        self.turn()?;
        self.say(|| format!("machine\t{machine}"));
        let rendezvous = Rendezvous::of(&self.world, RendezvousOptions::default())?;
        let commits = commits::Commits::new(self)?;
        let signals = signals::Signals::new(self, &rendezvous)?;
        let transfers = transfers::Transfers::new(self, &rendezvous)?;
        self.say(String::new);
        for round in 0..ROUNDS {
            self.turn()?;
            commits.round(self, round)?;
            signals.round(self, &rendezvous)?;
            transfers.round(self, round)?;
            self.say(String::new);
        }
        transfers.close();
        drop((commits, signals, rendezvous));
        Ok(())
    }
}
