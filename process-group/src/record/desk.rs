//! Where ranks ask each other over the store, while they run.
//!
//! Each has a clerk: a thread that looks twice a second whether somebody asks, and answers with what the rank called
//! last, also for a rank whose own threads are busy elsewhere, or blocked in NCCL. A rank that does not answer is gone,
//! stopped, or cannot reach the store. Where something has gone wrong, the clerks have all ranks write their dumps: the
//! one that did not join does not know of it, and what it did instead is in its dump alone.
//!
//! Questions and calls for dumps are numbered, and each number is asked once, by whoever comes first: all that ask at
//! the same time share the answers.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use super::{
    MemberProgress, Progress,
    progress::{Answer, decode, encode},
    recorder::Recorder,
};
use crate::store::{Deadline, PrefixStore, Store, StoreError};

/// The folder of a group's own part of the store in which its ranks ask and answer.
const FOLDER: &str = "flight";
/// How many ranks answer.
const RANKS: &str = "ranks";
/// Questions.
const ASKED: &str = "asked";
/// Calls for dumps.
const DUMPS: &str = "dumps";

/// Asks all ranks that have a desk in this part of a store how far they are in all of their groups, which are in the
/// order of their making. Who has not answered by the deadline stands without an answer.
pub(crate) fn ask(store: PrefixStore, deadline: Deadline) -> Result<Vec<Progress>, StoreError> {
    let store = PrefixStore::new(FOLDER, Arc::new(store));
    let ranks = String::from_utf8_lossy(&store.get(RANKS, deadline)?).parse().unwrap_or(0);
    let ranks: Vec<usize> = (0..ranks).collect();
    let number = call(&store, ASKED, &AtomicU64::new(0))?;
    let answers = ranks.iter().map(|rank| answers(&store, number, *rank, deadline));
    let answers = answers.collect::<Result<Vec<_>, _>>()?;
    // An id begins with the group's number, which tells the order.
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

/// What a rank has answered of a group.
fn member(rank: usize, id: &str, answers: Option<&Vec<Answer>>) -> MemberProgress {
    let own = answers.and_then(|answers| answers.iter().find(|answer| answer.id == id));
    MemberProgress { rank, last: own.map(|answer| answer.last.clone()) }
}

/// Where a rank asks and answers, for a group and the groups split from it.
pub(crate) struct Desk {
    store: PrefixStore,
    bell: Arc<Bell>,
    /// The next question, as far as this desk knows.
    next: AtomicU64,
}

impl Desk {
    /// How often a rank looks for questions.
    const PAUSE: Duration = Duration::from_millis(500);
    /// How long a desk that closes waits for its clerk, who may be talking to the store.
    const FAREWELL: Duration = Duration::from_secs(2);

    /// Opens this rank's desk in its group's part of the store. A system that has no thread left for it goes without
    /// answers.
    pub(crate) fn open(
        store: PrefixStore,
        ranks: usize,
        recorder: &Arc<Recorder>,
    ) -> Result<Self, StoreError> {
        let store = PrefixStore::new(FOLDER, Arc::new(store));
        store.set(RANKS, ranks.to_string().as_bytes())?;
        let bell = recorder.bell.clone();
        let recorder = Arc::downgrade(recorder);
        let clerk = Clerk { store: store.clone(), recorder, bell: bell.clone(), questions: 0, dumps: 0 };
        if thread::Builder::new().name("flight-clerk".into()).spawn(move || clerk.work()).is_err() {
            bell.change(|state| state.gone = true);
        }
        Ok(Self { store, bell, next: AtomicU64::new(0) })
    }

    /// Asks all members of a group. Who has not answered by the deadline stands without an answer.
    pub(crate) fn ask(
        &self,
        id: &str,
        name: &str,
        ranks: &[usize],
        deadline: Deadline,
    ) -> Result<Progress, StoreError> {
        let number = call(&self.store, ASKED, &self.next)?;
        let ask = |rank: &usize| {
            let own = answers(&self.store, number, *rank, deadline)?;
            Ok::<_, StoreError>(member(*rank, id, own.as_ref()))
        };
        let members = ranks.iter().map(ask).collect::<Result<_, _>>()?;
        Ok(Progress { group: name.to_owned(), members })
    }

    /// Closes it when its clerk has passed on what is to be passed on, and has left the store.
    pub(crate) fn close(&self) {
        self.bell.change(|state| state.closed = true);
        let state = self.bell.lock();
        let left = self.bell.changed.wait_timeout_while(state, Self::FAREWELL, |state| !state.gone);
        drop(left.unwrap_or_else(PoisonError::into_inner));
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        self.close();
    }
}

/// What a clerk waits for, besides the next time to look.
#[derive(Default)]
pub(super) struct Bell {
    state: Mutex<BellState>,
    changed: Condvar,
}

#[derive(Default)]
pub(super) struct BellState {
    /// Something has gone wrong here.
    pub(super) alarm: bool,
    closed: bool,
    /// The clerk has left.
    gone: bool,
}

impl Bell {
    fn lock(&self) -> MutexGuard<'_, BellState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn change(&self, change: impl FnOnce(&mut BellState)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }
}

fn numbered(what: &str, number: u64) -> String {
    format!("{what}/{number}")
}

fn answer_key(number: u64, rank: usize) -> String {
    format!("answers/{number}/{rank}")
}

/// Asks the next question of a kind, from `next` on; its number.
fn call(store: &PrefixStore, what: &str, next: &AtomicU64) -> Result<u64, StoreError> {
    let mut number = next.load(Ordering::Relaxed);
    while store.check(&[&numbered(what, number)])? {
        number += 1;
    }
    store.set(&numbered(what, number), b"")?;
    next.store(number + 1, Ordering::Relaxed);
    Ok(number)
}

/// What a rank has answered, if it has by the deadline.
fn answers(
    store: &PrefixStore,
    number: u64,
    rank: usize,
    deadline: Deadline,
) -> Result<Option<Vec<Answer>>, StoreError> {
    match store.get(&answer_key(number, rank), deadline) {
        Ok(bytes) => Ok(Some(decode(&bytes))),
        Err(StoreError::Timeout { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Answers until the desk is closed.
struct Clerk {
    store: PrefixStore,
    recorder: Weak<Recorder>,
    bell: Arc<Bell>,
    /// The next question.
    questions: u64,
    /// The next call for dumps.
    dumps: u64,
}

impl Clerk {
    /// So many answers lie in the store.
    const KEPT: u64 = 256;

    fn work(mut self) {
        let mut alarm = false;
        loop {
            // A store that does not answer now may do so the next time.
            let _ = self.look(alarm);
            let state = self.bell.lock();
            let idle = |state: &mut BellState| !state.alarm && !state.closed;
            let waited = self.bell.changed.wait_timeout_while(state, Desk::PAUSE, idle);
            let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
            alarm = std::mem::take(&mut state.alarm);
            if state.closed && !alarm {
                drop(state);
                // Before the desk goes on: whoever hosts the store waits until it is left.
                let bell = self.bell.clone();
                drop(self);
                return bell.change(|state| state.gone = true);
            }
        }
    }

    /// Does what has been asked for since the last time, and calls for dumps if something has gone wrong here.
    fn look(&mut self, alarm: bool) -> Result<(), StoreError> {
        if alarm {
            // This rank has written its own.
            let next = AtomicU64::new(self.dumps);
            self.dumps = call(&self.store, DUMPS, &next)? + 1;
        }
        while self.store.check(&[&numbered(ASKED, self.questions)])? {
            let Some(recorder) = self.recorder.upgrade() else { return Ok(()) };
            let answers = encode(&Answer::all(&recorder));
            self.store.set(&answer_key(self.questions, recorder.rank), answers.as_bytes())?;
            if let Some(old) = self.questions.checked_sub(Self::KEPT) {
                self.store.delete(&answer_key(old, recorder.rank))?;
            }
            self.questions += 1;
        }
        while self.store.check(&[&numbered(DUMPS, self.dumps)])? {
            let Some(recorder) = self.recorder.upgrade() else { return Ok(()) };
            // The rank that called has said what is wrong; here nothing is.
            let _ = recorder.last_words();
            self.dumps += 1;
        }
        Ok(())
    }
}
