//! The contents of the recorder, as data and as files.

use std::{
    io,
    panic::Location,
    path::{Path, PathBuf},
    time::Duration,
};

use super::Operation;
use crate::{comm::DataType, memory::NamedPlace};

/// The calls that one rank has recorded: its last 2,048 calls, in its group and in the groups split from it.
///
/// With the crate's feature `pickle`, `to_pickle` encodes it for PyTorch's analyser (`torchfrtrace`, format 2.10), and
/// with `json`, `to_json` encodes the same as JSON.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Dump {
    /// The rank of the job.
    pub rank: usize,
    /// The name of the first group.
    pub name: String,
    /// NCCL's release.
    pub library: String,
    /// The groups of the calls.
    pub groups: Vec<DumpedGroup>,
    /// The calls, oldest first.
    pub entries: Vec<Entry>,
}

/// A group in a [`Dump`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct DumpedGroup {
    /// Its id: `uid.epoch`.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Its members' ranks of the job, in the order of their ranks in the group.
    pub ranks: Vec<usize>,
    /// The group's default time limit for waits.
    pub timeout: Duration,
    /// The number of collectives that this rank has called; a batch counts once.
    pub collectives: u64,
    /// The number of messages that this rank has called; a batch counts once.
    pub messages: u64,
}

/// A call in a [`Dump`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Entry {
    /// Its number among the rank's calls, beginning with 0.
    pub record: u64,
    /// The index of its group in [`Dump::groups`].
    pub group: usize,
    /// The operation.
    pub operation: Operation,
    /// The number of the collective in its group; for a message, of the last one before it.
    pub collective: u64,
    /// The number of the message among the rank's in its group; for a collective, of the last one before it.
    pub message: u64,
    /// For a message: its number among those of this direction between the two.
    pub pair: u64,
    /// True if it is a message, or the end of a batch of messages alone.
    pub is_message: bool,
    /// True if it was called in a batch, whose calls share their numbers.
    pub is_batched: bool,
    /// True if a graph captured it. The entry then has no data on the graph's launches.
    pub is_captured: bool,
    /// True if it used a [path](crate::Path) besides NCCL, under
    /// [`P2pPolicy::Direct`](crate::group::P2pPolicy::Direct).
    pub is_on_path: bool,
    /// The type of its elements; `None` for the end of a batch.
    pub dtype: Option<DataType>,
    /// The name of its reduction.
    pub reduction: Option<&'static str>,
    /// The rank of the root, or of the other end, in the group.
    pub peer: Option<usize>,
    /// Elements read.
    pub send: u64,
    /// Elements written.
    pub receive: u64,
    /// The time of the call, in ns since 1970.
    pub created_ns: u64,
    /// The time at which it was seen to have begun, in ns since 1970. Only with
    /// [timing](crate::group::Builder::timing), and only if it was queried while it ran.
    pub started_ns: Option<u64>,
    /// The time at which it was seen to be done, in ns since 1970.
    pub completed_ns: Option<u64>,
    /// The time that the device took, including the wait for the other members. Only with timing. For the
    /// calls of a batch it is their common time.
    pub elapsed: Option<Duration>,
    /// The call site.
    pub site: &'static Location<'static>,
    /// The positions of the send and the receive buffer, if they need the same position on all ranks.
    pub(super) places: [Option<NamedPlace>; 2],
}

/// The error of a dump that was not written.
#[derive(Debug, thiserror::Error)]
#[error("{}", explain(.path))]
#[non_exhaustive]
pub struct DumpError {
    /// The file or the folder.
    pub path: PathBuf,
    /// The reason.
    pub source: io::Error,
}

fn explain(path: &Path) -> String {
    if cfg!(feature = "pickle") {
        format!("the flight recorder's dump cannot be written to {}; give another folder", path.display())
    } else {
        "dumps need the feature `pickle` of process-group; add it to Cargo.toml, or unset PROCESS_GROUP_DUMP_FOLDER"
            .into()
    }
}

impl Dump {
    /// The format's version, which selects how PyTorch's analyser matches entries.
    pub const VERSION: &'static str = "2.10";
}
