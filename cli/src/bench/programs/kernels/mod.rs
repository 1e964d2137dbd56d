//! Times of the collective kernels of peer-kernels by size, compared with NCCL's on the same devices. Checks the
//! results.
//!
//! `lockstep bench program kernels RANKS BYTES[,BYTES]...` measures a round for each length in the list. It prints the
//! machine, and why a contender is left out. A round prints lines separated by tabs: collective, length and way of
//! launching (see [`case_name`]), contender, ns. `lockstep bench kernels` prints a table of the medians, and alternates
//! with PyTorch where it is installed: with the argument `in-turn`, a round begins when a line is read from standard
//! input, and ends with an empty line.
//!
//! If each rank has a GPU of its own, each is a process. Rank 0 starts the others, with the arguments `member RANK
//! ADDRESS`. Otherwise the ranks are threads of one process, because embedded devices exist in one process only, and
//! kernels of several processes do not run on one GPU at the same time.

mod arguments;
mod case;
mod contenders;
mod devices;
mod rank;

use std::process::{Command, Stdio};
use std::sync::Arc;

use process_group::store::{HashStore, Store, TcpStore};

use crate::bench::programs::support::{Result, far};
use crate::child::KillOnDrop;
use arguments::{Arguments, MEMBER};
pub(in crate::bench) use case::{COLLECTIVES, Collective, Mode, case_name};
pub(in crate::bench) use contenders::Contender;
use devices::Devices;
use rank::Rank;

/// Samples of each figure.
pub(super) const ROUNDS: usize = 3;

pub(super) fn run() -> Result<()> {
    let arguments = Arguments::read()?;
    let devices = Devices::open(arguments.ranks)?;
    let measure = |rank: usize, store: Arc<dyn Store>| -> Result<()> {
        let context = devices.context(rank)?;
        context.with_current(|| Rank::new(&devices, rank, &context, store, &arguments)?.measure())?
    };
    if let Some((rank, address)) = &arguments.member {
        return measure(*rank, Arc::new(TcpStore::connect(address, far())?));
    }
    if devices.one_for_each() {
        let store = TcpStore::host(0)?;
        let others = (1..arguments.ranks).map(|rank| start(rank, &store.address()));
        let others = others.collect::<Result<Vec<_>>>()?;
        // The others may need the store until they have ended.
        measure(0, Arc::new(store.clone()))?;
        for mut other in others {
            let status = other.wait()?;
            if !status.success() {
                return Err(format!("another rank ended with {status}").into());
            }
        }
        return Ok(());
    }
    let store = Arc::new(HashStore::new());
    devices.run(|rank| measure(rank, store.clone()))
}

/// Starts the process of another rank.
fn start(rank: usize, address: &str) -> Result<KillOnDrop> {
    let own = std::env::args().skip(1).filter(|argument| argument != "in-turn");
    let mut command = Command::new(std::env::current_exe()?);
    command.args(own).args([MEMBER, &rank.to_string(), address]).stdin(Stdio::null());
    Ok(KillOnDrop(command.spawn()?))
}
