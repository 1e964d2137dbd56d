//! Reads dumps of flight recorders: format 2 of PyTorch's, which ours is too.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Deserializer};

use crate::pickle::{Pickle, PickleError};

/// One rank's dump.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Dump {
    /// Where it was read from.
    #[serde(skip)]
    pub(super) file: PathBuf,
    pub(super) version: String,
    /// The rank; PyTorch says it only in the file's name.
    #[serde(default)]
    rank: Option<usize>,
    pub(super) pg_config: BTreeMap<String, GroupConfig>,
    #[serde(default)]
    pub(super) pg_status: BTreeMap<String, GroupStatus>,
    pub(super) entries: Vec<Entry>,
}

/// A group as one of its members knows it.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct GroupConfig {
    pub(super) desc: String,
    #[serde(deserialize_with = "ranks")]
    pub(super) ranks: Vec<usize>,
}

/// How far a rank is in a group.
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
    /// PyTorch's word for done, where its backend does not say when.
    #[serde(default)]
    pub(super) retired: bool,
    #[serde(default)]
    pub(super) frames: Vec<Frame>,
    /// Only in ours, as is what follows: what was called, where PyTorch's analyser has no word for it.
    #[serde(default)]
    operation: Option<String>,
    /// The message's number among those of its direction between the two.
    #[serde(default)]
    pub(super) pair_seq_id: Option<u64>,
    #[serde(default)]
    pub(super) peer: Option<u64>,
    #[serde(default)]
    pub(super) reduction: Option<String>,
    #[serde(default)]
    pub(super) captured: bool,
}

/// How many elements these sizes are.
pub(super) fn elements(sizes: &[Vec<u64>]) -> u64 {
    let product = |size: &Vec<u64>| size.iter().fold(1, |n: u64, d| n.saturating_mul(*d));
    sizes.iter().filter(|size| !size.is_empty()).map(product).fold(0, u64::saturating_add)
}

/// Where a call was made.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Frame {
    pub(super) filename: String,
    pub(super) line: u64,
}

impl Entry {
    /// What was called.
    pub(super) fn operation(&self) -> &str {
        match &self.operation {
            Some(operation) => operation,
            None => self.words().split(' ').next().unwrap_or_default(),
        }
    }

    /// What PyTorch calls it, and of a message its two ends.
    pub(super) fn words(&self) -> &str {
        self.profiling_name.rsplit(':').next().unwrap_or_default()
    }

    /// Where it was called.
    pub(super) fn site(&self) -> Option<String> {
        self.frames.first().map(|frame| format!("{}:{}", frame.filename, frame.line))
    }

    /// The same as the end of a sentence.
    pub(super) fn place(&self) -> String {
        self.site().map_or(String::new(), |site| format!(" at {site}"))
    }

    pub(super) fn is_done(&self) -> bool {
        self.retired || self.state == "completed"
    }
}

impl Dump {
    /// Gives the only group the name that its calls have: PyTorch's own groups over gloo have none in `pg_config`.
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
    #[error("{} holds no dump; give the folder that the ranks wrote to", .folder.display())]
    Empty { folder: PathBuf },
    #[error("{} is no pickle of a flight recorder's dump", .file.display())]
    Pickle { file: PathBuf, source: PickleError },
    #[error("{} is a pickle, but not of a flight recorder's dump", .file.display())]
    Content { file: PathBuf, source: serde::de::value::Error },
    #[error("{} is no JSON of a flight recorder's dump", .file.display())]
    Json { file: PathBuf, source: serde_json::Error },
    #[error("{} has version {found:?}; known are 2.0 to 2.x", .file.display())]
    Version { file: PathBuf, found: String },
    #[error("{} does not say of which rank it is: name it SOMETHING_RANK", .file.display())]
    Rank { file: PathBuf },
    #[error("{} and {} are both of rank {rank}", .first.display(), .second.display())]
    Twice { rank: usize, first: PathBuf, second: PathBuf },
    #[error("{}: record {record} is of the group {group:?}, which pg_config does not have", .file.display())]
    Group { file: PathBuf, record: u64, group: String },
}

/// The dumps in `folder`, by rank. Files whose names begin with a dot are passed over.
pub(super) fn folder(folder: &Path) -> Result<BTreeMap<usize, Dump>, LoadError> {
    let unread = |source| LoadError::Read { file: folder.into(), source };
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(unread)? {
        let entry = entry.map_err(unread)?;
        let hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
        if !hidden && entry.path().is_file() {
            files.push(entry.path());
        }
    }
    files.sort();
    let mut dumps: BTreeMap<usize, Dump> = BTreeMap::new();
    for file in files {
        let bytes = fs::read(&file).map_err(|source| LoadError::Read { file: file.clone(), source })?;
        let (rank, dump) = read(&file, &bytes)?;
        if let Some(first) = dumps.insert(rank, dump) {
            return Err(LoadError::Twice { rank, first: first.file, second: file });
        }
    }
    if dumps.is_empty() { Err(LoadError::Empty { folder: folder.into() }) } else { Ok(dumps) }
}

/// One dump and its rank.
pub(super) fn read(file: &Path, bytes: &[u8]) -> Result<(usize, Dump), LoadError> {
    let json = bytes.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'{');
    let mut dump: Dump = if json {
        serde_json::from_slice(bytes).map_err(|source| LoadError::Json { file: file.into(), source })?
    } else {
        let pickle =
            Pickle::parse(bytes).map_err(|source| LoadError::Pickle { file: file.into(), source })?;
        Dump::deserialize(pickle.value())
            .map_err(|source| LoadError::Content { file: file.into(), source })?
    };
    if !dump.version.starts_with("2.") {
        return Err(LoadError::Version { file: file.into(), found: dump.version });
    }
    dump.name_only_group();
    let foreign = dump.entries.iter().find(|entry| !dump.pg_config.contains_key(&entry.process_group.0));
    if let Some(Entry { record_id, process_group, .. }) = foreign {
        let (record, group) = (*record_id, process_group.0.clone());
        return Err(LoadError::Group { file: file.into(), record, group });
    }
    let rank = dump.rank.or_else(|| named_rank(file)).ok_or_else(|| LoadError::Rank { file: file.into() })?;
    Ok((rank, Dump { file: file.into(), ..dump }))
}

/// The number that a file's name ends in, before its extension.
fn named_rank(file: &Path) -> Option<usize> {
    let name = file.file_stem()?.to_str()?;
    let digits = name.len() - name.trim_end_matches(|c: char| c.is_ascii_digit()).len();
    name[name.len() - digits..].parse().ok()
}

/// A number, which PyTorch's JSON has as a text.
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

/// A list of ranks, which is a text: `[0, 1]`.
fn ranks<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<usize>, D::Error> {
    let text = String::deserialize(deserializer)?;
    serde_json::from_str(&text).map_err(|_| serde::de::Error::custom(format!("ranks are {text:?}")))
}
