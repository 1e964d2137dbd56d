//! Unique ids that another process creates.

use std::io::Write as _;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::Receiver;
use std::time::Duration;

use anyhow::{Context as _, Result};
use process_group::comm::UniqueId;

use lockstep_cli::backend::{self, Backend};
use lockstep_cli::child::{self, KillOnDrop};

/// Ids per process, which holds descriptors for each of them.
const OF_ONE: u32 = 100;

/// Time limit for an id, including the start of the libraries.
const PATIENCE: Duration = Duration::from_secs(60);

/// Creates unique ids in another process. NCCL listens for the ranks of an id in the process that created it, until
/// all ranks have joined. If some never join, the thread and the sockets stay for the life of that process.
pub(super) struct IdMaker {
    backend: Backend,
    maker: Maker,
    left: u32,
}

struct Maker {
    _process: KillOnDrop,
    ask: ChildStdin,
    answers: Receiver<String>,
}

impl IdMaker {
    pub(super) fn start(backend: Backend) -> Result<Self> {
        Ok(Self { backend, maker: Maker::start(backend)?, left: OF_ONE })
    }

    pub(super) fn next(&mut self) -> Result<UniqueId> {
        if self.left == 0 {
            (self.maker, self.left) = (Maker::start(self.backend)?, OF_ONE);
        }
        self.left -= 1;
        writeln!(self.maker.ask)?;
        let line = self.maker.answers.recv_timeout(PATIENCE).context("the process that makes unique ids")?;
        let bytes: Vec<u8> = serde_json::from_str(&line).context("the process that makes unique ids")?;
        Ok(UniqueId::try_from(&bytes[..])?)
    }
}

impl Maker {
    fn start(backend: Backend) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["soak", "ids", "--backend", backend.name()]);
        let mut process = KillOnDrop(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?);
        let ask = process.stdin.take().context("no pipe")?;
        let answers = child::lines(process.stdout.take());
        Ok(Self { _process: process, ask, answers })
    }
}

#[derive(clap::Args)]
pub(in crate::soak) struct IdOptions {
    #[arg(long, value_enum)]
    backend: Backend,
}

/// Creates an id for each line of the standard input.
pub(in crate::soak) fn make_ids(options: &IdOptions) -> Result<()> {
    let devices = backend::open(options.backend, 1)?;
    for line in std::io::stdin().lines() {
        line?;
        child::answer(&devices.nccl.unique_id()?.as_bytes().to_vec())?;
    }
    Ok(())
}
