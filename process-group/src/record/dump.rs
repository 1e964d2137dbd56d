//! The flight recorder's dump: a copy of the recorded calls and of their groups.

use std::{
    io,
    panic::Location,
    path::{Path, PathBuf},
    time::Duration,
};

use super::Operation;
use crate::{comm::DataType, memory::NamedPlace};

/// A copy of one rank's flight recorder: the last 2,048 entries, which are calls and ends of batches. The recorder
/// covers the rank's first group and all groups split from that group.
///
/// With the crate's feature `pickle`, `to_pickle` encodes a dump for PyTorch's analyser (`torchfrtrace`, format 2.10).
/// With the feature `json`, `to_json` encodes a dump as JSON.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Dump {
    /// The job rank of the process that recorded the calls.
    pub rank: usize,
    /// The name of this rank's first group, from which its other groups are split.
    pub name: String,
    /// Release of the loaded NCCL library.
    pub library: String,
    /// The time at which this dump was made, in ns since 1970.
    pub created_ns: u64,
    /// The groups known to the recorder, including the group of every entry.
    pub groups: Vec<DumpedGroup>,
    /// The calls and the ends of batches, oldest first.
    pub entries: Vec<Entry>,
}

/// A group in a [`Dump`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct DumpedGroup {
    /// The group's id, as displayed by [`GroupId`](crate::group::GroupId).
    pub id: String,
    /// The group's name.
    pub name: String,
    /// The members' ranks in the job, ordered by rank in the group.
    pub ranks: Vec<usize>,
    /// The group's default time limit for waits.
    pub timeout: Duration,
    /// Number of collectives that this rank has called in the group. All collectives of a batch count as one.
    pub collectives: u64,
    /// Number of messages that this rank has sent or received in the group. All messages of a batch count as one.
    pub messages: u64,
    /// Number of calls of [`track_graph_launch`](crate::ProcessGroup::track_graph_launch) for the group.
    pub graph_launches: u64,
}

/// A call in a [`Dump`], or the end of a batch.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Entry {
    /// Number of the entry among all entries that this rank has recorded, starting at 0.
    pub record: u64,
    /// Index of the call's group in [`Dump::groups`].
    pub group: usize,
    /// The operation that was called.
    pub operation: Operation,
    /// For a collective, and for the end of a batch with collectives: the collective's number in the group, starting at
    /// 1. For other entries: the number of collectives that this rank had called in the group before.
    pub collective: u64,
    /// For a message, and for the end of a batch with messages: the message's number among those that this rank has
    /// sent or received in the group, starting at 1. For other entries: the number of messages before.
    pub message: u64,
    /// For a message: its number among the messages in the same direction between this rank and the peer, starting at
    /// 1. For other entries: 0.
    pub pair: u64,
    /// True for a message or a one-sided call, and for the end of a batch that contains no collectives.
    pub is_message: bool,
    /// True if the call was made in a batch. All collectives of a batch share one number, and so do all messages.
    pub is_batched: bool,
    /// True if a graph captured the call. Launches of the graph are not recorded.
    pub is_captured: bool,
    /// True if the call used a [path](crate::Path) instead of NCCL, under
    /// [`P2pPolicy::Direct`](crate::group::P2pPolicy::Direct).
    pub is_on_path: bool,
    /// Element type. `None` for the end of a batch.
    pub dtype: Option<DataType>,
    /// Name of the reduction, if the operation has one.
    pub reduction: Option<&'static str>,
    /// Rank in the group of a collective's root or of a message's peer, if there is one.
    pub peer: Option<usize>,
    /// Number of elements that this rank reads.
    pub send: u64,
    /// Number of elements that this rank writes to the receive buffer, or number of signals that it waits for.
    pub receive: u64,
    /// The time of the call, in ns since 1970.
    pub created_ns: u64,
    /// Time at which the operation was first seen to have started, in ns since 1970. Known only with
    /// [timing](crate::group::Builder::timing), and only if the operation was queried after it had started.
    pub started_ns: Option<u64>,
    /// Time at which the operation was first seen to be complete, in ns since 1970.
    pub completed_ns: Option<u64>,
    /// Time that the operation took on the device, including the wait for the other members. Known only with timing.
    /// Every call of a batch has the time of the whole batch.
    pub elapsed: Option<Duration>,
    /// The call site.
    pub site: &'static Location<'static>,
    /// Window offsets of the send and the receive buffer, if they must be equal on all ranks.
    pub(super) places: [Option<NamedPlace>; 2],
}

/// A dump could not be written.
#[derive(Debug, thiserror::Error)]
#[error("{}", explain(.path))]
#[non_exhaustive]
pub struct DumpError {
    /// The dump's file or folder.
    pub path: PathBuf,
    /// The I/O error.
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
    /// Version of the dump format. PyTorch's analyser selects its rules for matching entries by this version.
    pub const VERSION: &'static str = "2.10";
}
