//! The recorder's contents as JSON and as pickles.

use std::io;
#[cfg(feature = "pickle")]
use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use serde::ser::{Serialize, SerializeMap, Serializer};

#[cfg(feature = "pickle")]
use super::DumpError;
use super::{
    Operation,
    dump::{Dump, DumpedGroup, Entry},
};
use crate::comm::DataType;

/// A value in the JSON or pickle document.
#[derive(Debug, Clone, PartialEq)]
enum Value {
    None,
    Bool(bool),
    Int(i64),
    /// Must be finite.
    Float(f64),
    Text(String),
    List(Vec<Value>),
    /// Keys with values. The order is kept.
    Dict(Vec<(String, Value)>),
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.into())
    }
}

impl From<u64> for Value {
    fn from(number: u64) -> Self {
        Self::Int(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

/// Makes a dictionary of these entries.
fn dict<const N: usize>(entries: [(&str, Value); N]) -> Value {
    Value::Dict(entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::None => serializer.serialize_none(),
            Self::Bool(value) => value.serialize(serializer),
            Self::Int(number) => number.serialize(serializer),
            Self::Float(number) => number.serialize(serializer),
            Self::Text(text) => text.serialize(serializer),
            Self::List(values) => values.serialize(serializer),
            Self::Dict(entries) => {
                let mut map = serializer.serialize_map(Some(entries.len()))?;
                entries.iter().try_for_each(|(key, value)| map.serialize_entry(key, value))?;
                map.end()
            }
        }
    }
}

impl Dump {
    /// Encodes the dump as a pickle for PyTorch's analyser. The pickle contains plain values only. One-sided calls are
    /// omitted, because the analyser does not know them.
    ///
    /// # Errors
    /// The encoder's error. No dump is known to cause one.
    #[cfg(feature = "pickle")]
    pub fn to_pickle(&self) -> io::Result<Vec<u8>> {
        let document = self.document(|operation| !operation.is_one_sided());
        // All of PyTorch's readers accept pickle protocol 2.
        let options = serde_pickle::SerOptions::new().proto_v2();
        serde_pickle::to_vec(&document, options).map_err(io::Error::other)
    }

    /// Encodes the dump as JSON. All calls are included.
    ///
    /// # Errors
    /// The encoder's error. No dump is known to cause one.
    #[cfg(feature = "json")]
    pub fn to_json(&self) -> io::Result<String> {
        serde_json::to_string(&self.document(|_| true)).map_err(io::Error::from)
    }

    /// Writes the dump as a pickle to the file `flight_NAME_RANK` in `folder`, and returns the file's path. NAME is
    /// [`name`](Self::name), in which all characters except ASCII letters, digits and `-` become `_`. RANK is
    /// [`rank`](Self::rank). An existing file is replaced atomically. PyTorch's analyser needs the files of all ranks
    /// in one folder, without other files.
    ///
    /// # Errors
    /// [`DumpError`] with the file's path.
    #[cfg(feature = "pickle")]
    pub fn write(&self, folder: &Path) -> Result<PathBuf, DumpError> {
        let word = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
        let name: String = self.name.chars().map(word).collect();
        let path = folder.join(format!("flight_{name}_{}", self.rank));
        // Readers must not see a partial file, and threads may write dumps at the same time. PyTorch's analyser ignores
        // this temporary name.
        static WRITTEN: AtomicU64 = AtomicU64::new(0);
        let number = WRITTEN.fetch_add(1, Ordering::Relaxed);
        let half = folder.join(format!(".{}-{name}-{}-{number}.half", self.rank, std::process::id()));
        self.to_pickle()
            .and_then(|pickle| fs::write(&half, pickle))
            .and_then(|()| fs::rename(&half, &path))
            .map_err(|source| DumpError { path: path.clone(), source })?;
        Ok(path)
    }

    /// Builds the document. It contains the calls for whose operation `wanted` returns true.
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
            ("time_created_ns", self.created_ns.into()),
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
            // The analyser reads the first entry of each list of sizes, so the list must not be empty. The entry has no
            // dimensions.
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

/// Returns PyTorch's name of an element type.
fn torch_type(dtype: DataType) -> &'static str {
    match dtype {
        DataType::I8 => "Char",
        DataType::U8 => "Byte",
        DataType::Bool => "Bool",
        DataType::I32 => "Int",
        DataType::U32 => "UInt32",
        DataType::I64 => "Long",
        DataType::U64 => "UInt64",
        DataType::F16 => "Half",
        DataType::F32 => "Float",
        DataType::F64 => "Double",
        DataType::Bf16 => "BFloat16",
        DataType::F8E4M3 => "Float8_e4m3fn",
        DataType::F8E5M2 => "Float8_e5m2",
    }
}
