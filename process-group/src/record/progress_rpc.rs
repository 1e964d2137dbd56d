//! Progress queries: ranks ask each other over the store while they run.
//!
//! The [heartbeat thread](crate::watch) of each rank polls for questions and answers with the rank's last
//! calls, even if the rank's own threads are busy or blocked in NCCL. A rank that does not answer has died,
//! has stopped, or cannot reach the store.
//!
//! Questions are numbered. Ranks that ask at the same time share the answers.

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

/// The folder of a group's own part of the store for questions and answers.
const FOLDER: &str = "flight";
/// The key of the number of ranks that answer.
const RANKS: &str = "ranks";

/// Asks all ranks that answer in this part of a store for their progress in all of their groups. The groups
/// are in the order in which they were made. A rank that has not answered by the deadline is listed without
/// an answer.
pub(crate) fn ask(store: PrefixStore, deadline: Deadline) -> Result<Vec<Progress>, StoreError> {
    let store = PrefixStore::new(FOLDER, Arc::new(store));
    let ranks = String::from_utf8_lossy(&store.get(RANKS, deadline)?).parse().unwrap_or(0);
    let ranks: Vec<usize> = (0..ranks).collect();
    let number = question(&store, deadline)?;
    let answers = ranks.iter().map(|rank| answers(&store, number, *rank, deadline));
    let answers = answers.collect::<Result<Vec<_>, _>>()?;
    // An id begins with the group's number, which gives the order.
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

/// Returns a rank's answer on a group.
fn member(rank: usize, id: &str, answers: Option<&Vec<Answer>>) -> MemberProgress {
    let own = answers.and_then(|answers| answers.iter().find(|answer| answer.id == id));
    MemberProgress { rank, last: own.map(|answer| answer.last.clone()) }
}

/// Asks on behalf of a group and the groups split from it.
pub(crate) struct ProgressRpc {
    store: PrefixStore,
}

impl ProgressRpc {
    /// The key of the number of questions.
    pub(crate) const ASKED: &'static str = "asked";

    /// Returns the folder in a group's part of the store for questions and answers.
    pub(crate) fn folder(store: &PrefixStore) -> PrefixStore {
        PrefixStore::new(FOLDER, Arc::new(store.clone()))
    }

    /// Opens it for so many ranks.
    pub(crate) fn open(store: &PrefixStore, ranks: usize) -> Result<Self, StoreError> {
        let store = Self::folder(store);
        store.set(RANKS, ranks.to_string().as_bytes())?;
        Ok(Self { store })
    }

    /// Asks all members of a group. A member that has not answered by the deadline is listed without an
    /// answer.
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

    /// Answers a question in a [folder](Self::folder).
    pub(crate) fn answer(store: &PrefixStore, number: u64, recorder: &Recorder) -> Result<(), StoreError> {
        let answers = Answers { all: own_answers(recorder) };
        store.set(&answer_key(number, recorder.rank), &answers.to_bytes())
    }

    /// Removes a rank's answer.
    pub(crate) fn forget(store: &PrefixStore, number: u64, rank: usize) -> Result<(), StoreError> {
        store.delete(&answer_key(number, rank)).map(drop)
    }
}

fn answer_key(number: u64, rank: usize) -> String {
    format!("answers/{number}/{rank}")
}

/// Asks the next question, and returns its number.
fn question(store: &PrefixStore, deadline: Deadline) -> Result<u64, StoreError> {
    let number = |text: &[u8]| std::str::from_utf8(text).ok()?.trim().parse::<u64>().ok();
    let held = store.get(ProgressRpc::ASKED, deadline)?;
    let next = number(&held).unwrap_or(0) + 1;
    let stands = store.compare_set(ProgressRpc::ASKED, &held, next.to_string().as_bytes())?;
    // A rank that asked meanwhile asked after this one, so its answers can be used.
    Ok(number(&stands).unwrap_or(next).max(next) - 1)
}

/// Returns a rank's answers. Returns `None` if it does not answer by the deadline, or if its answer cannot be read.
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

/// Returns a rank's answers, one for each of its groups.
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
