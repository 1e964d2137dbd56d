//! The ranks of one part, one process each. A process that hangs is killed, and reported as such.

use std::{
    env, fmt,
    io::{BufRead, BufReader, Read},
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc::{self, Receiver, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

use process_group::store::TcpStore;

use crate::{
    bare::WRONG,
    support::{EMBEDDED, PATIENCE, Result},
};

/// Prefix of the argument that names the part.
pub(crate) const PART: &str = "--part=";

/// Time that the ranks have once all have begun: a hundred times the usual time.
const DEADLINE: Duration = Duration::from_secs(10);

/// Line that a rank prints when it is prepared, before the step that may hang.
pub(crate) const BEGUN: &str = "begun";

/// End of a rank's process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Well,
    Failed(ExitStatus),
    Hung,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Well => f.write_str("ended"),
            Self::Failed(status) => write!(f, "failed: {status}"),
            Self::Hung => write!(f, "hung, and was killed after {} s", DEADLINE.as_secs()),
        }
    }
}

/// Output of a rank, and the end of its process.
pub(crate) struct Told {
    /// The rank was prepared.
    begun: bool,
    pub(crate) lines: Vec<String>,
    pub(crate) end: End,
}

impl Told {
    /// Returns whether the rank has begun and then hung, crashed, failed or computed wrong sums.
    pub(crate) fn is_wrong(&self) -> bool {
        let ended = match self.end {
            End::Well => false,
            End::Failed(status) => status.code().is_none(),
            End::Hung => true,
        };
        self.begun && (ended || self.lines.iter().any(|line| line.starts_with(WRONG)))
    }
}

/// A rank's process; killed on drop.
struct Rank {
    process: Child,
    lines: Receiver<String>,
}

impl Drop for Rank {
    fn drop(&mut self) {
        // Both fail only if the process has ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Ends this process when its parent is gone.
pub(crate) fn follow() {
    thread::spawn(|| {
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(1);
    });
}

/// Runs a part with this many ranks, and prints the output of each.
pub(crate) fn run(part: &str, ranks: usize, embedded: bool) -> Result<Vec<Told>> {
    let store = TcpStore::host(0)?;
    let mut all =
        (0..ranks).map(|rank| start(part, rank, ranks, embedded, &store)).collect::<Result<Vec<_>>>()?;
    let mut told: Vec<Told> =
        all.iter().map(|_| Told { begun: false, lines: Vec::new(), end: End::Hung }).collect();
    // The time starts when all have begun.
    let beginning = Instant::now() + PATIENCE;
    for (rank, told) in all.iter().zip(&mut told) {
        listen(rank, beginning, |line| {
            told.begun = line == BEGUN;
            told.lines.extend((!told.begun).then_some(line));
            !told.begun
        });
    }
    let deadline = Instant::now() + DEADLINE;
    for (number, (rank, told)) in all.iter_mut().zip(&mut told).enumerate() {
        let ended = listen(rank, deadline, |line| {
            told.lines.push(line);
            true
        });
        if ended {
            let status = rank.process.wait()?;
            told.end = if status.success() { End::Well } else { End::Failed(status) };
        }
        told.lines.iter().for_each(|line| println!("  rank {number}: {line}"));
        if told.end != End::Well {
            println!("  rank {number} {}", told.end);
        }
    }
    Ok(told)
}

/// Reads a rank's lines until `each` returns false or the time is over. Returns whether the rank has closed its
/// output.
fn listen(rank: &Rank, until: Instant, mut each: impl FnMut(String) -> bool) -> bool {
    loop {
        match rank.lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(line) => {
                if !each(line) {
                    return false;
                }
            }
            Err(RecvTimeoutError::Timeout) => return false,
            Err(RecvTimeoutError::Disconnected) => return true,
        }
    }
}

fn start(part: &str, rank: usize, ranks: usize, embedded: bool, store: &TcpStore) -> Result<Rank> {
    let address = store.address();
    let (host, port) = address.rsplit_once(':').ok_or("an address has a port")?;
    let mut process = Command::new(env::current_exe()?)
        .arg(format!("{PART}{part}"))
        .args(embedded.then_some(EMBEDDED))
        .envs(
            [("RANK", rank), ("LOCAL_RANK", rank), ("WORLD_SIZE", ranks)]
                .map(|(name, it)| (name, it.to_string())),
        )
        .envs([("MASTER_ADDR", host), ("MASTER_PORT", port), ("TORCHELASTIC_USE_AGENT_STORE", "True")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let (said, lines) = mpsc::channel();
    let output = process.stdout.take();
    thread::spawn(move || {
        let lines = output.into_iter().flat_map(|output| BufReader::new(output).lines());
        lines.map_while(std::io::Result::ok).all(|line| said.send(line).is_ok())
    });
    Ok(Rank { process, lines })
}
