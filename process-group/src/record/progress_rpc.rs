//! Progress queries: running ranks ask each other over the store for their last calls.
//!
//! The [heartbeat thread](crate::watch) of each rank polls for questions. It answers them with the rank's last
//! calls, even if the rank's own threads are busy or blocked in NCCL. A rank that does not answer has died,
//! has stopped, or cannot reach the store.
//!
//! Questions are numbered. Ranks that ask at the same time share one question and its answers.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bootstrap::wire::Message;

use super::{
    DumpedGroup, Entry, LastCall, MemberProgress, Progress,
    progress::{Answer, Answers},
    recorder::Recorder,
};
use crate::{
    store::{Deadline, PrefixStore, Store, StoreError},
    watch::wake,
};

/// Folder for questions and answers, in a group's part of the store.
const FOLDER: &str = "flight";
/// Store key of the number of ranks that answer questions.
const RANKS: &str = "ranks";

/// Asks all ranks that answer questions in `store` for their progress in all of their groups. Returns the progress of
/// each group, in the order in which the groups were made. A member that has not answered by the deadline is listed
/// without a last call.
pub(crate) fn ask(store: PrefixStore, deadline: Deadline) -> Result<Vec<Progress>, StoreError> {
    let store = PrefixStore::new(FOLDER, Arc::new(store));
    let ranks = String::from_utf8_lossy(&store.get(RANKS, deadline)?).parse().unwrap_or(0);
    let ranks: Vec<usize> = (0..ranks).collect();
    let number = question(&store, deadline)?;
    let answers = ranks.iter().map(|rank| answers(&store, number, *rank, deadline));
    let answers = answers.collect::<Result<Vec<_>, _>>()?;
    // Groups are made in the order of their numbers. The part of an id before the number is the same for all groups of
    // a store.
    let order = |id: &str| id.split('.').map(|part| part.parse().unwrap_or(u64::MAX)).collect::<Vec<_>>();
    let mut groups = BTreeMap::new();
    for Answer { id, name, ranks, .. } in answers.iter().flatten().flatten() {
        groups.entry((order(id), id)).or_insert((name, ranks));
    }
    let group = |((_, id), (name, ranks)): ((_, &String), (&String, &Vec<usize>))| Progress {
        group: name.clone(),
        members: ranks
            .iter()
            .map(|rank| member(*rank, id, answers.get(*rank).and_then(Option::as_ref)))
            .collect(),
    };
    Ok(groups.into_iter().map(group).collect())
}

/// Returns the progress of `rank` in the group `id`, taken from the rank's answers.
fn member(rank: usize, id: &str, answers: Option<&Vec<Answer>>) -> MemberProgress {
    let own = answers.and_then(|answers| answers.iter().find(|answer| answer.id == id));
    MemberProgress { rank, last: own.map(|answer| answer.last.clone()) }
}

/// Sends progress queries for a group and the groups split from that group.
pub(crate) struct ProgressRpc {
    store: PrefixStore,
}

impl ProgressRpc {
    /// Store key of the number of questions asked so far.
    pub(crate) const ASKED: &'static str = "asked";

    /// Returns the folder for questions and answers, in a group's part of the store.
    pub(crate) fn folder(store: &PrefixStore) -> PrefixStore {
        PrefixStore::new(FOLDER, Arc::new(store.clone()))
    }

    /// Makes a handle for queries, and publishes in the store that `ranks` ranks answer questions.
    pub(crate) fn open(store: &PrefixStore, ranks: usize) -> Result<Self, StoreError> {
        let store = Self::folder(store);
        store.set(RANKS, ranks.to_string().as_bytes())?;
        Ok(Self { store })
    }

    /// Asks all members of a group for their progress. A member that has not answered by the deadline is listed without
    /// a last call.
    pub(crate) fn ask(
        &self,
        id: &str,
        name: &str,
        ranks: &[usize],
        deadline: Deadline,
    ) -> Result<Progress, StoreError> {
        let number = question(&self.store, deadline)?;
        wake(&self.store, ranks.iter().copied())?;
        let ask = |rank: &usize| {
            let own = answers(&self.store, number, *rank, deadline)?;
            Ok::<_, StoreError>(member(*rank, id, own.as_ref()))
        };
        let members = ranks.iter().map(ask).collect::<Result<_, _>>()?;
        Ok(Progress { group: name.to_owned(), members })
    }

    /// Writes this rank's answers to question `number`. `store` is the [folder](Self::folder) for answers.
    pub(crate) fn answer(store: &PrefixStore, number: u64, recorder: &Recorder) -> Result<(), StoreError> {
        let answers = Answers { all: own_answers(recorder) };
        store.set(&answer_key(number, recorder.rank), &answers.to_bytes())
    }

    /// Removes the answers of `rank` to question `number`.
    pub(crate) fn forget(store: &PrefixStore, number: u64, rank: usize) -> Result<(), StoreError> {
        store.delete(&answer_key(number, rank)).map(drop)
    }
}

fn answer_key(number: u64, rank: usize) -> String {
    format!("answers/{number}/{rank}")
}

/// Asks the next question, and returns the question's number.
fn question(store: &PrefixStore, deadline: Deadline) -> Result<u64, StoreError> {
    let number = |text: &[u8]| std::str::from_utf8(text).ok()?.trim().parse::<u64>().ok();
    let held = store.get(ProgressRpc::ASKED, deadline)?;
    let next = number(&held).unwrap_or(0) + 1;
    let stands = store.compare_set(ProgressRpc::ASKED, &held, next.to_string().as_bytes())?;
    // If another rank asked a question in the meantime, that question is later than this call, so its answers can be
    // used.
    Ok(number(&stands).unwrap_or(next).max(next) - 1)
}

/// Reads the answers of `rank` to question `number`. Returns `None` if the rank does not answer by the deadline, or if
/// its answers cannot be decoded.
fn answers(
    store: &PrefixStore,
    number: u64,
    rank: usize,
    deadline: Deadline,
) -> Result<Option<Vec<Answer>>, StoreError> {
    match store.get(&answer_key(number, rank), deadline) {
        Ok(bytes) => Ok(Answers::from_bytes(&bytes).ok().map(|answers| answers.all)),
        Err(StoreError::Timeout { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the answers of this rank, one for each of its groups.
fn own_answers(recorder: &Recorder) -> Vec<Answer> {
    let dump = recorder.dump();
    let now = recorder.clock.scale().now();
    let answer = |(place, group): (usize, &DumpedGroup)| {
        let last = dump.entries.iter().rev().find(|entry| entry.group == place);
        let age = last.map_or(0, |entry| now.saturating_sub(entry.created_ns));
        Answer {
            id: group.id.clone(),
            name: group.name.clone(),
            ranks: group.ranks.clone(),
            last: LastCall {
                collectives: group.collectives,
                messages: group.messages,
                graph_launches: group.graph_launches,
                operation: last.map(Entry::words),
                is_completed: last.is_some_and(|entry| entry.completed_ns.is_some()),
                age: Duration::from_nanos(age),
                site: last
                    .map_or(String::new(), |entry| format!("{}:{}", entry.site.file(), entry.site.line())),
            },
        }
    };
    dump.groups.iter().enumerate().map(answer).collect()
}
