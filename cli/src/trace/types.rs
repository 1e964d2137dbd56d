//! Traces, their origin, and the errors of reading them.

use std::fmt;
use std::path::PathBuf;

use thiserror::Error;

use super::budget::Spent;

/// One event of the recorded program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// Block number `block` is requested: `bytes` on stream number `stream`.
    Allocate { block: u32, bytes: u64, stream: u32 },
    /// The owner of `block` freed it.
    RequestFree { block: u32 },
    /// The last use of `block` ended.
    CompleteFree { block: u32 },
}

/// A checked trace: blocks are numbered in the order of their allocation.
#[derive(Debug)]
pub(crate) struct Trace {
    pub(crate) origin: Origin,
    pub(crate) events: Vec<Event>,
    /// Blocks that the trace allocates.
    pub(crate) allocations: u32,
    /// Streams that the trace names, numbered from 0.
    pub(crate) streams: u32,
    /// Peak of the summed requests between `a` and `f`, each rounded up to 512 bytes.
    pub(crate) peak_active: u64,
}

/// Source of a trace, for errors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    BuiltIn,
    File(PathBuf),
}

impl Origin {
    /// The origin of one device's trace; names the device if there are `several`.
    pub(super) fn of_device(&self, device: usize, several: bool) -> Self {
        match self {
            Self::File(path) if several => {
                Self::File(PathBuf::from(format!("{} (device {device})", path.display())))
            }
            origin => origin.clone(),
        }
    }

    /// Short name of the trace, for tables.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::BuiltIn => "gpt2_train".into(),
            Self::File(path) => path.display().to_string(),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BuiltIn => f.write_str("the built-in gpt2_train trace"),
            Self::File(path) => write!(f, "trace file {}", path.display()),
        }
    }
}

#[derive(Debug, Error)]
#[non_exhaustive]
pub(crate) enum TraceError {
    #[error("{origin}: cannot be read")]
    Read { origin: Origin, source: std::io::Error },
    #[error("{origin}: the gzip stream is damaged or cut short after {read} bytes of text")]
    Gzip { origin: Origin, read: u64, source: std::io::Error },
    #[error("{origin}, line {line}: expected {expected}, found {found:?} ({shape})")]
    Line { origin: Origin, line: u64, expected: &'static str, found: String, shape: &'static str },
    #[error("{origin}, line {line}: expected {expected}, found {found:?}")]
    Event { origin: Origin, line: u64, expected: &'static str, found: String },
    #[error("{origin}, a snapshot as {format}, at {place}: {problem}")]
    Snapshot { origin: Origin, format: Format, place: String, problem: String },
    #[error(
        "{origin}: expected a memory snapshot or an allocation trace, found a flight recorder's dump, whose folder \
         `lockstep fr analyze` reads"
    )]
    FlightDump { origin: Origin },
    #[error("{origin}: is not read further")]
    Spent { origin: Origin, source: Spent },
    #[error("{origin}: holds no allocation; expected lines like `a 7fa80c000000 154389504 0`")]
    Empty { origin: Origin },
    #[error(
        "{origin}: the snapshot has no recorded allocation; with PyTorch, call \
         torch.cuda.memory._record_memory_history before the allocations"
    )]
    Unrecorded { origin: Origin },
}

/// The encoding of a snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Format {
    #[default]
    Pickle,
    Json,
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pickle => "pickle",
            Self::Json => "JSON",
        })
    }
}

impl Format {
    /// Detects the encoding by the first bytes of a file: a pickle of protocol 2 or later, or a JSON object.
    pub(crate) fn of(head: &[u8]) -> Option<Self> {
        match head.iter().find(|byte| !byte.is_ascii_whitespace())? {
            0x80 => Some(Self::Pickle),
            b'{' => Some(Self::Json),
            _ => None,
        }
    }
}
