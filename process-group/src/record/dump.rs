//! The contents of the recorder, as data and as files.

use std::{
    collections::HashMap,
    fs, io,
    panic::Location,
    path::{Path, PathBuf},
    sync::atomic::Ordering,
    time::Duration,
};

use super::{
    call::{Call, Operation, REDUCTIONS, torch_type},
    clock::Scale,
    document::{Value, dict},
    recorder::Recorder,
    ring::Record,
};
use crate::{comm::DataType, memory::PlanNames};

/// The calls that one rank has recorded: its last 2,048 calls, in its group and in the groups split from it.
///
/// [`to_pickle`](Self::to_pickle) encodes it for PyTorch's analyser (`torchfrtrace`, format 2.10), and
/// [`to_json`](Self::to_json) encodes the same as JSON.
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
    pub(super) places: [Option<String>; 2],
}

/// The error of a dump that was not written.
#[derive(Debug, thiserror::Error)]
#[error("the flight recorder's dump cannot be written to {}; give another folder", .path.display())]
#[non_exhaustive]
pub struct DumpError {
    /// The file or the folder.
    pub path: PathBuf,
    /// The reason.
    pub source: io::Error,
}

impl Dump {
    /// The format's version, which selects how PyTorch's analyser matches entries.
    pub const VERSION: &'static str = "2.10";

    pub(super) fn of(recorder: &Recorder) -> Self {
        let records = recorder.ring.read();
        let groups = recorder.groups();
        let known = groups.known.iter().enumerate();
        let places: HashMap<_, _> =
            known.map(|(place, (number, (group, _)))| (*number, (place, &*group.plans))).collect();
        let groups: Vec<_> = groups
            .known
            .values()
            .map(|(group, counts)| DumpedGroup {
                id: group.id.clone(),
                name: group.name.to_string(),
                ranks: group.ranks.clone(),
                timeout: group.timeout,
                collectives: counts.collectives.load(Ordering::Relaxed),
                messages: counts.messages.load(Ordering::Relaxed),
            })
            .collect();
        Self {
            rank: recorder.rank,
            name: recorder.name.to_string(),
            library: recorder.library.clone(),
            entries: entries(&records, &places, recorder.clock.scale()),
            groups,
        }
    }

    /// Encodes it for PyTorch's analyser: a pickle of plain values, without one-sided calls, which the
    /// analyser does not know.
    #[must_use]
    pub fn to_pickle(&self) -> Vec<u8> {
        self.document(|operation| !operation.is_one_sided()).to_pickle()
    }

    /// Encodes it as JSON, with every call.
    #[must_use]
    pub fn to_json(&self) -> String {
        self.document(|_| true).to_json()
    }

    /// Writes the pickle to `folder`, as `flight_NAME_RANK`. Replaces an existing file atomically. PyTorch's
    /// analyser needs the files of all ranks in one folder, without other files.
    ///
    /// # Errors
    /// [`DumpError`] with the file.
    pub fn write(&self, folder: &Path) -> Result<PathBuf, DumpError> {
        let word = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
        let name: String = self.name.chars().map(word).collect();
        let path = folder.join(format!("flight_{name}_{}", self.rank));
        // Readers must not see a partial file. PyTorch's analyser ignores this temporary name.
        let half = folder.join(format!(".{}-{name}.half", self.rank));
        fs::write(&half, self.to_pickle())
            .and_then(|()| fs::rename(&half, &path))
            .map_err(|source| DumpError { path: path.clone(), source })?;
        Ok(path)
    }

    /// Builds the document with the calls of the operations that are `wanted`.
    fn document(&self, wanted: fn(Operation) -> bool) -> Value {
        let groups = |value: fn(&Self, usize, &DumpedGroup) -> Value| {
            let groups = self.groups.iter().enumerate();
            Value::Dict(groups.map(|(place, group)| (group.id.clone(), value(self, place, group))).collect())
        };
        let config = groups(|_, _, group| {
            let ranks: Vec<_> = group.ranks.iter().map(usize::to_string).collect();
            let ranks = format!("[{}]", ranks.join(", "));
            dict([
                ("name", group.id.as_str().into()),
                ("desc", group.name.as_str().into()),
                ("ranks", ranks.as_str().into()),
            ])
        });
        let status = groups(|dump, place, group| {
            let own = || dump.entries.iter().rev().filter(|entry| entry.group == place && !entry.is_message);
            let number = |entry: Option<&Entry>| Value::from(entry.map_or(0, |entry| entry.collective));
            let completed = own().find(|entry| entry.completed_ns.is_some());
            let started = own().find(|entry| entry.started_ns.or(entry.completed_ns).is_some());
            dict([
                ("last_enqueued_collective", group.collectives.into()),
                ("last_started_collective", number(started)),
                ("last_completed_collective", number(completed)),
            ])
        });
        let entries = self.entries.iter().filter(|entry| wanted(entry.operation));
        dict([
            ("version", Self::VERSION.into()),
            ("comm_lib_version", self.library.as_str().into()),
            ("rank", (self.rank as u64).into()),
            ("pg_config", config),
            ("pg_status", status),
            ("entries", Value::List(entries.map(|entry| self.entry(entry)).collect())),
        ])
    }

    fn entry(&self, entry: &Entry) -> Value {
        let group = self.groups.get(entry.group);
        let (id, name) = group.map_or(("", ""), |group| (&group.id, &group.name));
        let own = group.and_then(|group| group.ranks.iter().position(|rank| *rank == self.rank));
        let (own, peer) = (own.unwrap_or_default(), entry.peer.unwrap_or_default());
        let operation = entry.operation.torch_name();
        let profiling_name = match entry.operation {
            Operation::Send => format!("nccl:{operation} {own}->{peer}"),
            Operation::Recv => format!("nccl:{operation} {own}<-{peer}"),
            _ => format!("nccl:{operation}"),
        };
        let number = |number: Option<u64>| number.map_or(Value::None, Value::from);
        let side = |there: bool, elements: u64| match entry.dtype.filter(|_| there) {
            Some(dtype) => (
                Value::List(vec![Value::List(vec![elements.into()])]),
                Value::List(vec![torch_type(dtype).into()]),
            ),
            // The analyser reads the first entry of each list, so there is one, without dimensions.
            None => (Value::List(vec![Value::List(vec![])]), Value::List(vec![])),
        };
        let (input_sizes, input_dtypes) = side(entry.operation != Operation::Recv, entry.send);
        let (output_sizes, output_dtypes) = side(entry.operation != Operation::Send, entry.receive);
        let frame = dict([
            ("name", entry.operation.name().into()),
            ("filename", entry.site.file().into()),
            ("line", u64::from(entry.site.line()).into()),
        ]);
        let timeout = group.map_or(0, |group| u64::try_from(group.timeout.as_millis()).unwrap_or(u64::MAX));
        let state = match (entry.started_ns, entry.completed_ns) {
            (_, Some(_)) => "completed",
            (Some(_), None) => "started",
            (None, None) => "scheduled",
        };
        dict([
            ("record_id", entry.record.into()),
            ("pg_id", (entry.group as u64).into()),
            ("process_group", Value::List(vec![id.into(), name.into()])),
            ("collective_seq_id", entry.collective.into()),
            ("p2p_seq_id", entry.message.into()),
            ("op_id", (entry.record + 1).into()),
            ("profiling_name", profiling_name.as_str().into()),
            ("time_created_ns", entry.created_ns.into()),
            ("input_sizes", input_sizes),
            ("input_dtypes", input_dtypes),
            ("output_sizes", output_sizes),
            ("output_dtypes", output_dtypes),
            ("state", state.into()),
            ("time_discovered_started_ns", number(entry.started_ns)),
            ("time_discovered_completed_ns", number(entry.completed_ns)),
            (
                "duration_ms",
                entry.elapsed.map_or(Value::None, |elapsed| Value::Float(elapsed.as_secs_f64() * 1e3)),
            ),
            ("retired", Value::Bool(entry.completed_ns.is_some())),
            ("timeout_ms", timeout.into()),
            ("is_p2p", Value::Bool(entry.is_message)),
            ("frames", Value::List(vec![frame])),
            // Fields that PyTorch's format does not have.
            ("operation", entry.operation.name().into()),
            ("pair_seq_id", number((entry.pair > 0).then_some(entry.pair))),
            ("peer", number(entry.peer.map(|peer| peer as u64))),
            ("reduction", entry.reduction.map_or(Value::None, Value::from)),
            ("captured", Value::Bool(entry.is_captured)),
            ("path", if entry.is_on_path { "direct" } else { "nccl" }.into()),
        ])
    }
}

fn entries(records: &[Record], groups: &HashMap<u32, (usize, &PlanNames)>, scale: Scale) -> Vec<Entry> {
    let entry = |record: &Record| {
        let Call { operation, dtype, reduction, peer, send, receive, on_path, places: lie } = record.call;
        let place = &record.position;
        let (group, plans) = *groups.get(&place.group)?;
        let dtype = DataType::ALL.into_iter().find(|known| *known as u8 == dtype);
        Some(Entry {
            record: record.number,
            group,
            operation,
            collective: place.collective,
            message: place.messages,
            pair: place.pair,
            is_message: place.message,
            is_batched: place.batched,
            is_captured: record.captured,
            is_on_path: on_path,
            dtype: dtype.filter(|_| !operation.is_end()),
            reduction: REDUCTIONS.get(usize::from(reduction)).copied().filter(|name| !name.is_empty()),
            peer: peer.map(|peer| peer as usize),
            send,
            receive,
            created_ns: scale.day(record.created),
            started_ns: Some(record.started).filter(|time| *time > 0).map(|time| scale.day(time)),
            completed_ns: Some(record.completed).filter(|time| *time > 0).map(|time| scale.day(time)),
            elapsed: Some(record.elapsed).filter(|elapsed| *elapsed > 0).map(Duration::from_nanos),
            site: record.site,
            places: lie.map(|it| it.describe(plans)),
        })
    };
    records.iter().filter_map(entry).collect()
}
