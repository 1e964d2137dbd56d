//! Recorded allocation traces: one event a line, `CODE ADDRESS(hex) SIZE(bytes) STREAM`, plain or gzipped.
//!
//! | code | meaning |
//! | --- | --- |
//! | `a` | allocation: SIZE is what the program asked for, before any rounding |
//! | `r` | free requested: the owner let go |
//! | `f` | free completed: the block is reusable, later than `r` where another stream still used it |
//! | `S` `D` `M` `U` | what the recorded allocator did with the driver; a replay leaves it out |
//!
//! A trace is read whole and checked before anything is replayed, so that a broken one costs nothing.

mod parse;
mod program;
pub(crate) mod snapshot;

use std::fmt;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use flate2::bufread::MultiGzDecoder;
use thiserror::Error;

use snapshot::{Format, Snapshot};

/// The recorded training run that the demo replays when no other is named.
pub(crate) const GPT2_TRAIN: &[u8] = include_bytes!("../../data/gpt2_train.trace.gz");

/// One thing that the recorded program did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// Block number `block` is asked for: `bytes` on stream number `stream`.
    Allocate { block: u32, bytes: u64, stream: u32 },
    /// The owner of `block` let go of it.
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
    /// The sum, at its highest, of the requests between `a` and `f`, each rounded up to 512 bytes.
    pub(crate) peak_active: u64,
}

/// What a file of either kind holds.
#[derive(Debug)]
pub(crate) enum Recording {
    Trace(Trace),
    Snapshot(Snapshot),
}

/// Where a trace came from, as errors name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    BuiltIn,
    File(PathBuf),
}

impl Origin {
    /// What the trace is called where no sentence is around it.
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
    #[error(
        "{origin}, line {line}: expected {expected}, found {found:?} \
         (a line is `CODE ADDRESS(hex) SIZE(bytes) STREAM`, CODE one of a r f S D M U)"
    )]
    Line { origin: Origin, line: u64, expected: &'static str, found: String },
    #[error("{origin}, a snapshot as {format}, at {place}: {problem}")]
    Snapshot { origin: Origin, format: Format, place: String, problem: String },
    #[error("{origin}: holds no allocation; expected lines like `a 7fa80c000000 154389504 0`")]
    Empty { origin: Origin },
}

impl Trace {
    /// Reads all traces at `path`: of a snapshot, one a device.
    pub(crate) fn load_all(path: &Path) -> Result<Vec<Self>, TraceError> {
        match Recording::load(path)? {
            Recording::Trace(trace) => Ok(vec![trace]),
            Recording::Snapshot(snapshot) => snapshot.traces(&Origin::File(path.to_owned())),
        }
    }

    /// Reads the trace at `path`, or the built-in one.
    pub(crate) fn load(path: Option<&Path>) -> Result<Self, TraceError> {
        match path {
            None => parse::read(GPT2_TRAIN, Origin::BuiltIn),
            Some(path) => {
                let origin = Origin::File(path.to_owned());
                let file = std::fs::File::open(path)
                    .map_err(|source| TraceError::Read { origin: origin.clone(), source })?;
                parse::read(file, origin)
            }
        }
    }
}

impl Recording {
    /// Reads the file at `path`, gzipped or not: a trace in text, or a snapshot as a pickle or as JSON.
    pub(crate) fn load(path: &Path) -> Result<Self, TraceError> {
        let origin = Origin::File(path.to_owned());
        let mut bytes =
            std::fs::read(path).map_err(|source| TraceError::Read { origin: origin.clone(), source })?;
        if bytes.starts_with(&parse::GZIP_MAGIC) {
            let mut unpacked = Vec::new();
            if let Err(source) = MultiGzDecoder::new(&bytes[..]).read_to_end(&mut unpacked) {
                return Err(TraceError::Gzip { origin, read: unpacked.len() as u64, source });
            }
            bytes = unpacked;
        }
        match Format::of(&bytes) {
            Some(format) => Snapshot::read(&bytes, format, &origin).map(Self::Snapshot),
            None => parse::read(&bytes[..], origin).map(Self::Trace),
        }
    }
}
