//! Recorded programs: what they allocated and freed, in order.
//!
//! - `text`: our own form, one event a line: `CODE ADDRESS(hex) SIZE(bytes) STREAM`
//! - [`snapshot`](mod@snapshot): PyTorch's memory snapshots, and ours; `program`: what the program did that led to one
//! - `minimalloc`: minimalloc's CSV
//! - `builder`: what all of them become
//!
//! All may be gzipped. The codes of the text form:
//!
//! | code | meaning |
//! | --- | --- |
//! | `a` | allocation: SIZE is what the program asked for, before any rounding |
//! | `r` | free requested: the owner let go |
//! | `f` | free completed: the block is reusable, later than `r` where another stream still used it |
//! | `S` `D` `M` `U` | what the recorded allocator did with the driver; a replay leaves it out |
//!
//! A trace is read whole and checked before anything is replayed, so that a broken one costs nothing.

mod builder;
mod minimalloc;
mod program;
pub(crate) mod snapshot;
mod text;

use std::fmt;
use std::path::{Path, PathBuf};

use flate2::bufread::MultiGzDecoder;
use thiserror::Error;

use crate::budget::{Budget, ReadLimit, Spent};
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
    /// The trace of one device, where there are `several`.
    fn of_device(&self, device: usize, several: bool) -> Self {
        match self {
            Self::File(path) if several => {
                Self::File(PathBuf::from(format!("{} (device {device})", path.display())))
            }
            origin => origin.clone(),
        }
    }

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
    #[error("{origin}, line {line}: expected {expected}, found {found:?} ({shape})")]
    Line { origin: Origin, line: u64, expected: &'static str, found: String, shape: &'static str },
    #[error("{origin}, a snapshot as {format}, at {place}: {problem}")]
    Snapshot { origin: Origin, format: Format, place: String, problem: String },
    #[error("{origin}: is not read further")]
    Spent { origin: Origin, source: Spent },
    #[error("{origin}: holds no allocation; expected lines like `a 7fa80c000000 154389504 0`")]
    Empty { origin: Origin },
}

/// First bytes of a gzip stream.
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

impl Trace {
    /// Reads all traces at `path`: of a snapshot, one a device.
    pub(crate) fn load_all(path: &Path, limit: ReadLimit) -> Result<Vec<Self>, TraceError> {
        Recording::load(path, limit)?.traces(&Origin::File(path.to_owned()))
    }

    /// Reads the trace at `path`, the first of several, or the built-in one.
    pub(crate) fn load(path: Option<&Path>) -> Result<Self, TraceError> {
        let (origin, traces) = match path {
            None => {
                let origin = Origin::BuiltIn;
                let budget = ReadLimit::default().budget(GPT2_TRAIN.len() as u64);
                let traces = Recording::read(GPT2_TRAIN, &origin, &budget)?.traces(&origin)?;
                (origin, traces)
            }
            Some(path) => (Origin::File(path.to_owned()), Self::load_all(path, ReadLimit::default())?),
        };
        traces.into_iter().next().ok_or(TraceError::Empty { origin })
    }
}

impl Recording {
    /// Reads the file at `path`.
    pub(crate) fn load(path: &Path, limit: ReadLimit) -> Result<Self, TraceError> {
        let origin = Origin::File(path.to_owned());
        let unread = |source| TraceError::Read { origin: origin.clone(), source };
        let budget = limit.budget_for(path).map_err(unread)?;
        let read =
            budget.read_file(path).map_err(unread).and_then(|bytes| Self::read(&bytes, &origin, &budget));
        // Whatever the readers made of it.
        match budget.error() {
            Some(source) => Err(TraceError::Spent { origin, source }),
            None => read,
        }
    }

    /// Reads what a file holds, gzipped or not. Its first bytes tell which form it has, not its name.
    fn read(bytes: &[u8], origin: &Origin, budget: &Budget) -> Result<Self, TraceError> {
        let mut unpacked = Vec::new();
        let mut bytes = bytes;
        if bytes.starts_with(&GZIP_MAGIC) {
            if let Err(source) = budget.read_to_end(MultiGzDecoder::new(bytes), &mut unpacked) {
                let read = unpacked.len() as u64;
                return Err(TraceError::Gzip { origin: origin.clone(), read, source });
            }
            bytes = &unpacked;
        }
        match Format::of(bytes) {
            Some(format) => Snapshot::read(bytes, format, origin, budget).map(Self::Snapshot),
            None if minimalloc::is_header(bytes) => {
                minimalloc::read(bytes, origin.clone(), budget).map(Self::Trace)
            }
            None => text::read(bytes, origin.clone(), budget).map(Self::Trace),
        }
    }

    /// What the recorded programs did: of a snapshot, one trace a device.
    fn traces(self, origin: &Origin) -> Result<Vec<Trace>, TraceError> {
        match self {
            Self::Trace(trace) => Ok(vec![trace]),
            Self::Snapshot(snapshot) => snapshot.traces(origin),
        }
    }
}

/// A recorded trace of this repository; in a bundle they lie in a folder beside the tests'.
#[cfg(test)]
pub(crate) fn recorded(name: &str) -> PathBuf {
    let folder = match std::env::var_os("CARGO_MANIFEST_DIR") {
        Some(package) => Path::new(&package).join("data"),
        None => std::env::current_exe().unwrap().parent().unwrap().with_file_name("traces"),
    };
    folder.join(name)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use flate2::Compression;
    use flate2::write::GzEncoder;
    use proptest::prelude::*;

    use super::*;

    fn read(bytes: &[u8]) -> Result<Vec<Trace>, TraceError> {
        Recording::read(bytes, &Origin::BuiltIn, &ReadLimit::default().budget(bytes.len() as u64))?
            .traces(&Origin::BuiltIn)
    }

    fn packed(bytes: &[u8]) -> Vec<u8> {
        let mut packer = GzEncoder::new(Vec::new(), Compression::fast());
        packer.write_all(bytes).unwrap();
        packer.finish().unwrap()
    }

    /// Bytes that begin as one of the forms does, so that all readers see garbage.
    fn disguised() -> impl Strategy<Value = Vec<u8>> {
        let heads: [&[u8]; 7] = [
            b"",
            b"\x80\x04",
            b"\x80\x02}",
            b"{\"device_traces\":",
            b"id,lower,upper,size\n",
            b"a 10 1 0\n",
            b"(",
        ];
        let rest = prop_oneof![
            prop::collection::vec(any::<u8>(), 0..400),
            // Opcodes that build something, more often than chance would have them.
            prop::collection::vec(
                prop::sample::select(&b"}](.sueatlq\x85\x86\x87\x94\x8cK\x01NIJ0"[..]),
                0..400
            ),
            "[-0-9a-f, rS\n]{0,200}".prop_map(String::into_bytes),
        ];
        (prop::sample::select(heads.to_vec()), rest).prop_map(|(head, rest)| [head, &rest].concat())
    }

    #[test]
    fn packed_and_plain_are_the_same() {
        for text in ["a 10 1000 0\nr 10 1000 0\nf 10 1000 0\n", "id,lower,upper,size\nb,0,3,7\n"] {
            let [plain, packed] =
                [text.as_bytes().to_vec(), packed(text.as_bytes())].map(|bytes| read(&bytes).unwrap());
            assert_eq!(plain[0].events, packed[0].events);
        }
    }

    #[test]
    fn nesting_without_end_is_an_error() {
        let mut pickle = b"\x80\x02N".to_vec();
        pickle.resize(200_000, 0x85);
        pickle.push(b'.');
        assert!(read(&pickle).is_err());
        assert!(read(&[b"{\"segments\":".to_vec(), vec![b'['; 200_000]].concat()).is_err());
    }

    proptest! {
        #[test]
        fn a_truncated_gzip_is_an_error(keep in 0.0..1.0f64) {
            let cut = &GPT2_TRAIN[..(GPT2_TRAIN.len() as f64 * keep) as usize];
            prop_assert!(read(cut).is_err());
        }

        #[test]
        fn no_input_panics(bytes in disguised(), pack: bool) {
            let bytes = if pack { packed(&bytes) } else { bytes };
            if let Err(error) = read(&bytes) {
                prop_assert!(!error.to_string().is_empty());
            }
        }

        #[test]
        fn damage_to_a_trace_never_panics(at in any::<prop::sample::Index>(), with: u8) {
            let mut bytes = GPT2_TRAIN.to_vec();
            *at.get_mut(&mut bytes) = with;
            _ = read(&bytes);
        }
    }
}
