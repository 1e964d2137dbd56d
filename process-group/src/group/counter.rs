//! Counts the work that a group enqueues on its device, in numbers that its members can compare.
//!
//! Only calls that all members make alike are compared: collectives, and the messages between a sender and a
//! receiver. A member's total number of calls cannot be compared. In a pipeline the stages in the middle make
//! more calls than those at its ends.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use cuda_driver::Device;

use super::{GroupId, health::GroupHealth};
use crate::{
    comm::{Primitive, Task},
    record::Track,
};

/// Counts the work that a group has enqueued on its device.
#[derive(Debug)]
pub(super) struct Counter {
    pub(super) id: GroupId,
    pub(super) name: Arc<str>,
    pub(super) track: Track,
    pub(super) health: Arc<GroupHealth>,
    /// The time limit of waits for work.
    pub(super) timeout: Duration,
    /// This rank, and the ranks of the job that are members.
    rank: usize,
    ranks: Arc<[usize]>,
    /// Distinguishes devices of two drivers, both of which a test process may hold.
    device: (usize, u32),
    /// All calls. Calls that are not collectives are also counted in `others`, so that a collective costs one
    /// counter.
    calls: AtomicU64,
    others: Mutex<Others>,
}

/// Counts calls that not all members make.
#[derive(Debug, Default)]
struct Others {
    calls: u64,
    /// The messages by the peer's rank in the group.
    messages: BTreeMap<usize, Exchanged>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Exchanged {
    sent: u64,
    received: u64,
    captured: bool,
}

/// The kind of a launch, for counting.
#[derive(Debug, Clone, Copy)]
pub(super) enum Count<'a> {
    /// A call that all members make.
    Collective,
    /// A launch that contains messages. `collective` is true if all members still make the call.
    Messages { tasks: &'a [Task], collective: bool },
    /// A call that members need not make equally often.
    Nothing,
}

impl<'a> Count<'a> {
    /// Returns the kind of tasks that are launched together.
    pub(super) fn of(tasks: &'a [Task], collective: bool) -> Self {
        if !tasks.is_empty() && tasks.iter().all(|task| task.primitive.is_one_sided()) {
            return Self::Nothing;
        }
        match collective && !tasks.iter().any(Task::is_message) {
            true => Self::Collective,
            false => Self::Messages { tasks, collective },
        }
    }

    /// Returns the kind of a single task.
    #[inline(always)]
    pub(super) fn of_one(task: &'a Task) -> Self {
        if task.primitive.is_one_sided() {
            Self::Nothing
        } else if task.is_message() {
            Self::Messages { tasks: std::slice::from_ref(task), collective: false }
        } else {
            Self::Collective
        }
    }
}

/// The work that one group of this process has enqueued.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Enqueued {
    /// The group.
    pub id: GroupId,
    /// The group's name.
    pub name: String,
    /// The number of calls; see [`ProcessGroup::sequence`](super::ProcessGroup::sequence).
    pub sequence: u64,
    /// The number of calls that all members make, including batches with a collective and marked launches of
    /// graphs. Equal on all members whenever none has enqueued a call that another has not.
    pub collectives: u64,
    /// The messages by peer, in ascending order. Peers without messages are left out.
    pub messages: Vec<MessageCounts>,
}

/// The messages of one group between this rank and a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct MessageCounts {
    /// The peer's rank of the job.
    pub peer: usize,
    /// The number of messages sent to the peer. Equal to the peer's `received` whenever neither has enqueued
    /// a message that the other has not.
    pub sent: u64,
    /// The number of messages received from the peer.
    pub received: u64,
    /// True if a graph captured any of them. The graph's launches are not counted, so the counts cannot be
    /// compared then.
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
    /// Makes a counter for `rank` in the group of `ranks`, and registers it for [`enqueued_on`].
    pub(super) fn new(
        id: GroupId,
        name: Arc<str>,
        track: Track,
        (health, timeout): (Arc<GroupHealth>, Duration),
        (rank, ranks): (usize, Arc<[usize]>),
        device: &Device,
    ) -> Arc<Self> {
        let (device, calls, others) = (key(device), AtomicU64::new(0), Mutex::default());
        let counter = Arc::new(Self { id, name, track, health, timeout, rank, ranks, device, calls, others });
        let mut counters = counters();
        counters.retain(|counter| counter.strong_count() > 0);
        counters.push(Arc::downgrade(&counter));
        counter
    }

    /// Returns the number of calls.
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
            match task.primitive {
                Primitive::Send => with.sent += 1,
                _ => with.received += 1,
            }
        }
        // Under the lock, so that readers see both counts or neither.
        self.calls.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Marks the counted messages as captured by a graph.
    #[cold]
    pub(super) fn captured(&self, count: Count<'_>) {
        let Count::Messages { tasks, .. } = count else { return };
        let mut others = self.others();
        self.exchanged(tasks).for_each(|task| others.messages.entry(task.rank).or_default().captured = true);
    }

    /// Returns the tasks that have a matching call on another rank.
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

/// Returns the work that every group of this process has enqueued on `device`, in the order of their ids.
///
/// Registering windows maps memory and synchronises with kernels that may wait for a peer. Members must not
/// begin it while one has enqueued a collective, or one end of a message, that another has not.
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
