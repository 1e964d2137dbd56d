//! The jobs whose dumps lie in one folder. A rank that writes no dump leaves that of an earlier job in its place.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::load::Dump;

/// A dump and its rank.
type RankDump = (usize, Dump);

/// Dumps that are not analyzed, because another job is newer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct OtherJob {
    /// The first number in the ids of its groups; empty if they have none.
    pub(super) job: String,
    /// The ranks of the dumps.
    pub(super) ranks: BTreeSet<usize>,
}

/// The dumps are of several jobs, and not all have a time.
#[derive(Debug, PartialEq)]
pub(super) struct NoNewest {
    pub(super) jobs: usize,
}

/// Returns the dumps of the newest job, and the other jobs.
pub(super) fn newest(dumps: Vec<RankDump>) -> Result<(Vec<RankDump>, Vec<OtherJob>), NoNewest> {
    let mut jobs: BTreeMap<String, Vec<RankDump>> = BTreeMap::new();
    for (rank, dump) in dumps {
        jobs.entry(job(&dump).to_owned()).or_default().push((rank, dump));
    }
    if jobs.len() > 1 && jobs.values().flatten().any(|(_, dump)| dump.written_ns.is_none()) {
        return Err(NoNewest { jobs: jobs.len() });
    }
    let written = |dumps: &[RankDump]| dumps.iter().filter_map(|(_, dump)| dump.written_ns).max();
    let newest = jobs.iter().max_by_key(|(_, dumps)| written(dumps)).map(|(job, _)| job.clone());
    let newest = newest.and_then(|job| jobs.remove(&job)).unwrap_or_default();
    let others = jobs.into_iter().map(|(job, dumps)| {
        let ranks = dumps.into_iter().map(|(rank, _)| rank).collect();
        OtherJob { job, ranks }
    });
    Ok((newest, others.collect()))
}

/// Returns the random number of the job's store, the first of three in the ids of its groups. It is empty for groups
/// of PyTorch, whose ids do not name the job.
fn job(dump: &Dump) -> &str {
    let parts = dump.pg_config.keys().filter_map(|id| id.split_once('.'));
    parts.filter(|(_, rest)| rest.contains('.')).map(|(store, _)| store).next().unwrap_or_default()
}
