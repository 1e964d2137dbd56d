//! Messages of a rank to the launcher: JSON, one message per line, over the socket that is the rank's standard input.
//!
//! Standard output stays free for output of the libraries.

use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use serde::{Deserialize, Serialize};

use crate::exit::explain;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Message {
    /// The rank enters a stage of its work.
    Stage(Stage),
    /// Progress within its stage.
    Progress {
        done: u64,
        total: u64,
    },
    /// The NCCL version and the device that it uses.
    Ready {
        nccl_version: String,
        device: String,
    },
    Replayed(Replayed),
    Committed(Committed),
    Reduced(Reduced),
    /// The diverging rank enters its commit.
    Diverging {
        nanoseconds: u64,
    },
    /// A commit was refused; `kind` and `text` are the error's.
    Refused {
        group: u32,
        kind: String,
        text: String,
        /// The ranks that have a segment which others lack, as the error has it.
        ahead: Vec<u32>,
        nanoseconds: u64,
    },
    /// All stages are done.
    Finished,
    /// The rank gives up.
    Failed {
        stage: Stage,
        error: String,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Stage {
    Start,
    Meet,
    Connect,
    Replay,
    Commit,
    Reduce,
    Graph,
    Diverge,
    GoOn,
    Finish,
}

/// Result of the trace's replay on one rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Replayed {
    pub(crate) allocations: u64,
    pub(crate) segments: u64,
    pub(crate) peak_active: u64,
    pub(crate) peak_reserved: u64,
    /// Segments registered with communicators, counted once per segment and communicator; all are deregistered again.
    pub(crate) registrations: u64,
    pub(crate) milliseconds: f64,
}

/// Result of a commit on one member of group number `group`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Committed {
    pub(crate) group: u32,
    pub(crate) windows: u64,
    /// The reason if there are no windows.
    pub(crate) no_windows: Option<String>,
    pub(crate) milliseconds: f64,
}

/// One pass over all buckets on one member of group number `group`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Reduced {
    pub(crate) group: u32,
    pub(crate) mode: Mode,
    pub(crate) verified_bytes: u64,
    pub(crate) milliseconds: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Mode {
    Eager,
    Graph,
    /// Eagerly again, after the divergence.
    GoOn,
}

impl Mode {
    pub(crate) fn describe(self) -> &'static str {
        match self {
            Self::Eager => "the eager pass",
            Self::Graph => "the captured graph's pass",
            Self::GoOn => "the pass after the divergence",
        }
    }
}

impl Stage {
    pub(crate) fn describe(self) -> &'static str {
        match self {
            Self::Start => "starting",
            Self::Meet => "waiting for all ranks",
            Self::Connect => "creating communicators",
            Self::Replay => "replaying the trace",
            Self::Commit => "committing the symmetric pool",
            Self::Reduce => "reducing gradient buckets",
            Self::Graph => "reducing them again by captured graphs",
            Self::Diverge => "letting one rank diverge",
            Self::GoOn => "going on with the groups that agree",
            Self::Finish => "finishing",
        }
    }
}

/// The rank's side of the socket.
pub(crate) struct Reporter {
    socket: UnixStream,
    stage: Stage,
    has_failed: bool,
}

impl Reporter {
    /// Takes standard input, which the launcher made a socket.
    pub(crate) fn from_stdin() -> io::Result<Self> {
        let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
        Ok(Self { socket, stage: Stage::Start, has_failed: false })
    }

    pub(crate) fn enter(&mut self, stage: Stage) -> io::Result<()> {
        self.stage = stage;
        self.send(&Message::Stage(stage))
    }

    /// Reports that the rank gives up, unless an earlier call did. Returns the error.
    pub(crate) fn fail(&mut self, error: anyhow::Error) -> anyhow::Error {
        if std::mem::replace(&mut self.has_failed, true) {
            return error;
        }
        match self.send(&Message::Failed { stage: self.stage, error: explain(&error) }) {
            Ok(()) => error,
            Err(lost) => error.context(format!("the launcher cannot be told: {lost}")),
        }
    }

    pub(crate) fn send(&mut self, message: &Message) -> io::Result<()> {
        let mut line = serde_json::to_vec(message)?;
        line.push(b'\n');
        self.socket.write_all(&line)
    }
}

/// The launcher's side of the socket: the messages until the rank's process has ended.
pub(crate) fn messages(socket: UnixStream) -> impl Iterator<Item = io::Result<Message>> {
    BufReader::new(socket).lines().map(|line| Ok(serde_json::from_str(&line?)?))
}

/// Nanoseconds of the clock that all processes of a host share.
pub(crate) fn monotonic_nanoseconds() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
