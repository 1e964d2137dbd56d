//! Reads dumps of flight recorders in PyTorch's format 2, which our recorder writes too.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Deserializer};

use super::jobs::{self, OtherJob};
use crate::{
    trace::budget::{Budget, ReadLimit, Spent},
    trace::pickle::{Pickle, PickleError},
};

/// One rank's dump.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Dump {
    /// The file of the dump.
    #[serde(skip)]
    pub(super) file: PathBuf,
    pub(super) version: String,
    /// The rank; PyTorch stores it only in the file's name.
    #[serde(default)]
    rank: Option<usize>,
    /// The time at which the dump was made, in ns since 1970. PyTorch does not store it.
    #[serde(default, rename = "time_created_ns")]
    pub(super) written_ns: Option<u64>,
    pub(super) pg_config: BTreeMap<String, GroupConfig>,
    #[serde(default)]
    pub(super) pg_status: BTreeMap<String, GroupStatus>,
    pub(super) entries: Vec<Entry>,
}

/// A group as one of its members recorded it.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct GroupConfig {
    pub(super) desc: String,
    /// A list as text: `[0, 1]`.
    #[serde(rename = "ranks")]
    ranks_text: String,
    #[serde(skip)]
    pub(super) ranks: Vec<usize>,
}

/// Progress of a rank in a group.
#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct GroupStatus {
    #[serde(default, deserialize_with = "number")]
    pub(super) last_enqueued_collective: i64,
}

/// One call.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Entry {
    pub(super) record_id: u64,
    pub(super) process_group: (String, String),
    pub(super) collective_seq_id: u64,
    pub(super) is_p2p: bool,
    profiling_name: String,
    pub(super) input_sizes: Vec<Vec<u64>>,
    pub(super) input_dtypes: Vec<String>,
    pub(super) output_sizes: Vec<Vec<u64>>,
    pub(super) output_dtypes: Vec<String>,
    pub(super) state: String,
    /// The time of the call, in ns since 1970.
    #[serde(default, rename = "time_created_ns")]
    pub(super) created_ns: Option<u64>,
    /// PyTorch's mark for done, if its backend does not record the time.
    #[serde(default)]
    pub(super) retired: bool,
    #[serde(default)]
    pub(super) frames: Vec<Frame>,
    /// This and the following fields exist only in our dumps: the operation, if PyTorch's analyser has no word for
    /// it.
    #[serde(default)]
    operation: Option<String>,
    /// The message's number among those of its direction between the two ranks.
    #[serde(default)]
    pub(super) pair_seq_id: Option<u64>,
    #[serde(default)]
    pub(super) peer: Option<u64>,
    #[serde(default)]
    pub(super) reduction: Option<String>,
    #[serde(default)]
    pub(super) captured: bool,
}

/// Returns the number of elements of these sizes.
pub(super) fn elements(sizes: &[Vec<u64>]) -> u64 {
    let product = |size: &Vec<u64>| size.iter().fold(1, |n: u64, d| n.saturating_mul(*d));
    sizes.iter().filter(|size| !size.is_empty()).map(product).fold(0, u64::saturating_add)
}

/// Source location of a call.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Frame {
    pub(super) filename: String,
    pub(super) line: u64,
}

impl Entry {
    /// Returns the operation.
    pub(super) fn operation(&self) -> &str {
        match &self.operation {
            Some(operation) => operation,
            None => self.words().split(' ').next().unwrap_or_default(),
        }
    }

    /// Returns PyTorch's name of the operation; for a message, its two ends follow.
    pub(super) fn words(&self) -> &str {
        self.profiling_name.rsplit(':').next().unwrap_or_default()
    }

    /// Returns the source location of the call.
    pub(super) fn site(&self) -> Option<String> {
        self.frames.first().map(|frame| format!("{}:{}", frame.filename, frame.line))
    }

    /// The location as the end of a sentence.
    pub(super) fn place(&self) -> String {
        self.site().map_or(String::new(), |site| format!(" at {site}"))
    }

    pub(super) fn is_done(&self) -> bool {
        self.retired || self.state == "completed"
    }
}

/// Memory charged per byte of the text, for a rank and its copies. Each rank takes at least two bytes of text.
const RANK: u64 = 32;

impl Dump {
    /// Reads the groups' ranks from their texts.
    fn read_ranks(&mut self, file: &Path, budget: &Budget) -> Result<(), LoadError> {
        for (group, config) in &mut self.pg_config {
            let text = std::mem::take(&mut config.ranks_text);
            let charged = budget.charge(RANK * text.len() as u64);
            charged.map_err(|source| LoadError::Spent { file: file.into(), source })?;
            config.ranks = serde_json::from_str(&text).map_err(|_| {
                let found = text.chars().take(80).collect();
                LoadError::Ranks { file: file.into(), group: group.clone(), found }
            })?;
        }
        Ok(())
    }

    /// Names the only group as its calls do: PyTorch's own groups over gloo have no name in `pg_config`.
    fn name_only_group(&mut self) {
        let [(nameless, _)] = &self.pg_config.iter().collect::<Vec<_>>()[..] else { return };
        let Some((id, name)) = self.entries.first().map(|entry| entry.process_group.clone()) else { return };
        let one = self.entries.iter().all(|entry| entry.process_group.0 == id);
        if !one || !nameless.is_empty() {
            return;
        }
        if let Some(mut config) = self.pg_config.remove("") {
            config.desc = name;
            self.pg_config.insert(id, config);
        }
    }
}

/// Why dumps cannot be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum LoadError {
    #[error("{} cannot be read", .file.display())]
    Read { file: PathBuf, source: io::Error },
    #[error("{} is not read further", .file.display())]
    Spent { file: PathBuf, source: Spent },
    #[error("{} holds no dump; give the folder that the ranks wrote to. Ranks write one when work misses its deadline, NCCL fails or a group is aborted, but not when a commit is refused or a checked call differs", .folder.display())]
    Empty { folder: PathBuf },
    #[error("{} is not a folder; give the folder that holds the dumps of all ranks", .file.display())]
    NotFolder { file: PathBuf },
    #[error("{} is no pickle or JSON of a flight recorder's dump; if it is another file, move it out of the folder", .file.display())]
    Pickle { file: PathBuf, source: PickleError },
    #[error("{} is a pickle, but not of a flight recorder's dump; if it is another file, move it out of the folder", .file.display())]
    Content { file: PathBuf, source: serde::de::value::Error },
    #[error("{} is no JSON of a flight recorder's dump; if it is another file, move it out of the folder", .file.display())]
    Json { file: PathBuf, source: serde_json::Error },
    #[error("{} says of the group {group:?} that its ranks are {found:?}, which is no list of numbers", .file.display())]
    Ranks { file: PathBuf, group: String, found: String },
    #[error("{} has version {found:?}; known are 2.0 to 2.x", .file.display())]
    Version { file: PathBuf, found: String },
    #[error("{} does not say of which rank it is: expected a name that ends with the rank, such as trace_0", .file.display())]
    Rank { file: PathBuf },
    #[error("{} and {} are both of rank {rank}", .first.display(), .second.display())]
    Twice { rank: usize, first: PathBuf, second: PathBuf },
    #[error("{} holds dumps of {jobs} jobs, some without a time, so that the newest is not known; empty the folder before each job", .folder.display())]
    Jobs { folder: PathBuf, jobs: usize },
    #[error("{}: record {record} is of the group {group:?}, which pg_config does not have", .file.display())]
    Group { file: PathBuf, record: u64, group: String },
}

/// The content of a folder.
#[derive(Debug)]
pub(super) struct Folder {
    /// The dumps of the newest job, by rank.
    pub(super) dumps: BTreeMap<usize, Dump>,
    pub(super) other_jobs: Vec<OtherJob>,
}

/// Reads the dumps in `folder`. Files whose names begin with a dot are skipped. All share one budget.
pub(super) fn folder(folder: &Path, limit: ReadLimit) -> Result<Folder, LoadError> {
    let unread = |source| LoadError::Read { file: folder.into(), source };
    if folder.is_file() {
        return Err(LoadError::NotFolder { file: folder.into() });
    }
    let (mut files, mut size) = (Vec::new(), 0);
    for entry in fs::read_dir(folder).map_err(unread)? {
        let entry = entry.map_err(unread)?;
        let hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
        let path = entry.path();
        if let Some(found) = path.metadata().ok().filter(|found| !hidden && found.is_file()) {
            size += found.len();
            files.push(path);
        }
    }
    files.sort();
    let budget = limit.budget(size);
    let mut read_dumps = Vec::new();
    for file in files {
        let bytes = budget.read_file(&file).map_err(|source| match budget.error() {
            Some(source) => LoadError::Spent { file: file.clone(), source },
            None => LoadError::Read { file: file.clone(), source },
        })?;
        read_dumps.push(read(&file, &bytes, &budget)?);
        budget.refund(bytes.len() as u64);
    }
    if read_dumps.is_empty() {
        return Err(LoadError::Empty { folder: folder.into() });
    }
    let (newest, other_jobs) = jobs::newest(read_dumps)
        .map_err(|found| LoadError::Jobs { folder: folder.into(), jobs: found.jobs })?;
    let mut dumps: BTreeMap<usize, Dump> = BTreeMap::new();
    for (rank, dump) in newest {
        let file = dump.file.clone();
        if let Some(first) = dumps.insert(rank, dump) {
            return Err(LoadError::Twice { rank, first: first.file, second: file });
        }
    }
    Ok(Folder { dumps, other_jobs })
}

/// One dump and its rank.
pub(super) fn read(file: &Path, bytes: &[u8], budget: &Budget) -> Result<(usize, Dump), LoadError> {
    let found = dump(file, bytes, budget);
    let mut dump = match budget.error() {
        Some(source) => return Err(LoadError::Spent { file: file.into(), source }),
        None => found?,
    };
    if !dump.version.starts_with("2.") {
        return Err(LoadError::Version { file: file.into(), found: dump.version });
    }
    dump.read_ranks(file, budget)?;
    dump.name_only_group();
    let foreign = dump.entries.iter().find(|entry| !dump.pg_config.contains_key(&entry.process_group.0));
    if let Some(Entry { record_id, process_group, .. }) = foreign {
        let (record, group) = (*record_id, process_group.0.clone());
        return Err(LoadError::Group { file: file.into(), record, group });
    }
    let rank = dump.rank.or_else(|| named_rank(file)).ok_or_else(|| LoadError::Rank { file: file.into() })?;
    Ok((rank, Dump { file: file.into(), ..dump }))
}

/// Parses a file's content, unchecked.
fn dump(file: &Path, bytes: &[u8], budget: &Budget) -> Result<Dump, LoadError> {
    let json = bytes.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'{');
    if json {
        budget.charge_json(bytes).map_err(|source| LoadError::Spent { file: file.into(), source })?;
        return serde_json::from_slice(bytes).map_err(|source| LoadError::Json { file: file.into(), source });
    }
    let pickle = Pickle::parse(bytes, budget);
    let pickle = pickle.map_err(|source| LoadError::Pickle { file: file.into(), source })?;
    Dump::deserialize(pickle.value()).map_err(|source| LoadError::Content { file: file.into(), source })
}

/// Returns the number at the end of a file's name, before its extension.
fn named_rank(file: &Path) -> Option<usize> {
    let name = file.file_stem()?.to_str()?;
    let digits = name.len() - name.trim_end_matches(|c: char| c.is_ascii_digit()).len();
    name[name.len() - digits..].parse().ok()
}

/// A number, which PyTorch's JSON stores as text.
fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i64, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Number {
        Plain(i64),
        Text(String),
    }
    match Number::deserialize(deserializer)? {
        Number::Plain(number) => Ok(number),
        Number::Text(text) => {
            text.parse().map_err(|_| serde::de::Error::custom(format!("a number is {text:?}")))
        }
    }
}
