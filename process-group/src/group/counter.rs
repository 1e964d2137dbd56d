//! How much a group was given to do on its device, in numbers that its members can compare.
//!
//! What is compared is what all members make alike: collectives, and between two members the messages that one sends and
//! the other receives. A member's calls as such say nothing: in a pipeline the stages in the middle make more of them
//! than those at its ends.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

use cuda_driver::Device;

use super::{GroupId, vigil::Vigil};
use crate::{
    comm::{Operation, Task},
    record::Track,
};

/// What a group has enqueued on its device.
#[derive(Debug)]
pub(super) struct Counter {
    pub(super) id: GroupId,
    pub(super) name: Arc<str>,
    pub(super) track: Track,
    pub(super) vigil: Arc<Vigil>,
    /// This rank, and the ranks of the job that are members.
    rank: usize,
    ranks: Arc<[usize]>,
    /// Tells devices of two drivers apart, which one process may hold in tests.
    device: (usize, u32),
    /// All calls. What is no collective is counted apart from it as well, so that collectives pay for one counter.
    calls: AtomicU64,
    others: Mutex<Others>,
}

/// What was called that not all members call.
#[derive(Debug, Default)]
struct Others {
    calls: u64,
    /// By the peer's rank in the group.
    messages: BTreeMap<usize, Exchanged>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Exchanged {
    sent: u64,
    received: u64,
    captured: bool,
}

/// What a launch is counted as.
#[derive(Debug, Clone, Copy)]
pub(super) enum Count<'a> {
    /// What all members call.
    Collective,
    /// With messages among it; `collective` says whether all members make the call all the same.
    Messages { tasks: &'a [Task], collective: bool },
    /// What members need not call equally often.
    Nothing,
}

impl<'a> Count<'a> {
    /// Of what is launched together.
    pub(super) fn of(tasks: &'a [Task], collective: bool) -> Self {
        if !tasks.is_empty() && tasks.iter().all(|task| task.operation.is_one_sided()) {
            return Self::Nothing;
        }
        match collective && !tasks.iter().any(Task::is_message) {
            true => Self::Collective,
            false => Self::Messages { tasks, collective },
        }
    }

    /// Of one task by itself.
    #[inline(always)]
    pub(super) fn of_one(task: &'a Task) -> Self {
        if task.operation.is_one_sided() {
            Self::Nothing
        } else if task.is_message() {
            Self::Messages { tasks: std::slice::from_ref(task), collective: false }
        } else {
            Self::Collective
        }
    }
}

/// What one group of this process has enqueued.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Enqueued {
    /// The group.
    pub id: GroupId,
    /// What it is called.
    pub name: String,
    /// How many calls; see [`ProcessGroup::sequence`](super::ProcessGroup::sequence).
    pub sequence: u64,
    /// How many of them all members make, batches with a collective among them and marked launches of graphs included:
    /// equal on all members whenever none has enqueued what another has not.
    pub collectives: u64,
    /// The messages, by peer, ascending; none of peers with which there were none.
    pub messages: Vec<MessageCounts>,
}

/// The messages of one group between this rank and a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct MessageCounts {
    /// The peer's rank of the job.
    pub peer: usize,
    /// How many were sent to it: as many as it has received whenever none has enqueued what the other has not.
    pub sent: u64,
    /// How many were received from it.
    pub received: u64,
    /// Whether a graph captured any of them. Its launches are not seen, so that the counts say nothing then.
    pub captured: bool,
}

static COUNTERS: Mutex<Vec<Weak<Counter>>> = Mutex::new(Vec::new());

fn counters() -> MutexGuard<'static, Vec<Weak<Counter>>> {
    COUNTERS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn key(device: &Device) -> (usize, u32) {
    (std::ptr::from_ref(device.driver().api().table()).addr(), device.ordinal())
}

impl Counter {
    /// A counter that [`enqueued_on`] knows of, of `rank` in the group of `ranks`.
    pub(super) fn new(
        id: GroupId,
        name: Arc<str>,
        track: Track,
        vigil: Arc<Vigil>,
        (rank, ranks): (usize, Arc<[usize]>),
        device: &Device,
    ) -> Arc<Self> {
        let (device, calls, others) = (key(device), AtomicU64::new(0), Mutex::default());
        let counter = Arc::new(Self { id, name, track, vigil, rank, ranks, device, calls, others });
        let mut counters = counters();
        counters.retain(|counter| counter.strong_count() > 0);
        counters.push(Arc::downgrade(&counter));
        counter
    }

    /// How many calls there were.
    pub(super) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Acquire)
    }

    /// Counts a launch, and returns its number.
    #[inline(always)]
    pub(super) fn count(&self, count: Count<'_>) -> u64 {
        match count {
            Count::Collective => self.calls.fetch_add(1, Ordering::AcqRel) + 1,
            Count::Messages { tasks, collective } => self.count_messages(tasks, collective),
            Count::Nothing => self.calls(),
        }
    }

    #[inline(never)]
    fn count_messages(&self, tasks: &[Task], collective: bool) -> u64 {
        let mut others = self.others();
        others.calls += u64::from(!collective);
        for task in self.exchanged(tasks) {
            let with = others.messages.entry(task.rank).or_default();
            match task.operation {
                Operation::Send => with.sent += 1,
                _ => with.received += 1,
            }
        }
        // Under the lock: who looks sees both counts, or none.
        self.calls.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// What was counted was captured by a graph.
    #[cold]
    pub(super) fn captured(&self, count: Count<'_>) {
        let Count::Messages { tasks, .. } = count else { return };
        let mut others = self.others();
        self.exchanged(tasks).for_each(|task| others.messages.entry(task.rank).or_default().captured = true);
    }

    /// Those that have another end.
    fn exchanged<'a>(&self, tasks: &'a [Task]) -> impl Iterator<Item = &'a Task> + use<'a> {
        let rank = self.rank;
        tasks.iter().filter(move |task| task.is_message() && task.rank != rank)
    }

    fn others(&self) -> MutexGuard<'_, Others> {
        self.others.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enqueued(&self) -> Enqueued {
        let others = self.others();
        let sequence = self.calls();
        let messages = |(peer, with): (&usize, &Exchanged)| MessageCounts {
            peer: self.ranks.get(*peer).copied().unwrap_or(*peer),
            sent: with.sent,
            received: with.received,
            captured: with.captured,
        };
        let mut messages: Vec<MessageCounts> = others.messages.iter().map(messages).collect();
        messages.sort_unstable_by_key(|with| with.peer);
        let (id, name, collectives) = (self.id, self.name.to_string(), sequence - others.calls);
        Enqueued { id, name, sequence, collectives, messages }
    }
}

/// What every group of this process has enqueued on `device`, in the order of their ids.
///
/// Registering windows maps memory and synchronises under kernels that may wait for a peer; members of which one has
/// enqueued a collective or an end of a message that another has not must not begin it.
#[must_use]
pub fn enqueued_on(device: &Device) -> Vec<Enqueued> {
    let wanted = key(device);
    let mut found: Vec<_> = counters()
        .iter()
        .filter_map(Weak::upgrade)
        .filter(|counter| counter.device == wanted)
        .map(|counter| counter.enqueued())
        .collect();
    found.sort_unstable_by_key(|counter| counter.id);
    found
}
