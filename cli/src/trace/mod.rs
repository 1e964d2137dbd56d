//! Recorded programs: their allocations and frees, in order.
//!
//! - `text`: our own form, one event per line: `CODE ADDRESS(hex) SIZE(bytes) STREAM`
//! - [`snapshot`](mod@snapshot): PyTorch's memory snapshots, and ours; `program`: the program's calls before a
//!   snapshot
//! - `minimalloc`: minimalloc's CSV
//! - `types`: traces and errors; `builder`: makes a trace of events
//! - [`budget`]: a limit for the memory that reading a file takes
//! - [`pickle`]: Python's pickles
//!
//! All may be gzipped. The codes of the text form:
//!
//! | code | meaning |
//! | --- | --- |
//! | `a` | allocation: SIZE is the requested size, before any rounding |
//! | `r` | free requested by the owner |
//! | `f` | free completed: the block is reusable, later than `r` if another stream still used it |
//! | `S` `D` `M` `U` | driver calls of the recorded allocator; a replay ignores them |
//!
//! A trace is read whole and checked before the replay, so that a broken one fails early.

pub(crate) mod budget;
mod builder;
mod minimalloc;
pub(crate) mod pickle;
mod program;
pub(crate) mod snapshot;
mod text;
mod types;

use std::path::Path;
#[cfg(test)]
use std::path::PathBuf;

use flate2::bufread::MultiGzDecoder;

use budget::{Budget, ReadLimit};
use snapshot::Snapshot;
use types::TraceError;
pub(crate) use types::{Event, Format, Origin, Trace};

/// The recorded training run that the demo replays by default.
pub(crate) const GPT2_TRAIN: &[u8] = include_bytes!("../../data/gpt2_train.trace.gz");

/// Content of a file of either kind.
#[derive(Debug)]
pub(crate) enum Recording {
    Trace(Trace),
    Snapshot(Snapshot),
}

/// First bytes of a gzip stream.
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

impl Trace {
    /// Reads all traces at `path`; a snapshot has one per device.
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
        // The budget's error has precedence over the reader's result.
        match budget.error() {
            Some(source) => Err(TraceError::Spent { origin, source }),
            None => read,
        }
    }

    /// Reads a file's content, gzipped or not. Its first bytes decide the form, not its name.
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

    /// Returns the traces; a snapshot has one per device.
    fn traces(self, origin: &Origin) -> Result<Vec<Trace>, TraceError> {
        match self {
            Self::Trace(trace) => Ok(vec![trace]),
            Self::Snapshot(snapshot) => snapshot.traces(origin),
        }
    }
}

/// A recorded trace of this repository. In a bundle the traces lie in a folder beside the tests.
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

    /// Bytes that begin like one of the forms, so that all readers get garbage.
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
            // Opcodes that build values, more often than by chance.
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

    #[test]
    fn the_budget_can_be_raised() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("trace.gz");
        let events = b"a 1 1 0\nr 1 1 0\nf 1 1 0\n".repeat(1_000_000);
        std::fs::write(&file, packed(&events)).unwrap();
        assert!(Trace::load_all(&file, ReadLimit::of_mib(1)).is_err());
        let traces = Trace::load_all(&file, ReadLimit::of_mib(1 << 10)).unwrap();
        assert_eq!(traces[0].allocations, 1_000_000);
    }
}
