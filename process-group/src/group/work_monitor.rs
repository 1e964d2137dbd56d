//! The watchdog's state of one group.

use std::{
    cmp::Reverse,
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bootstrap::runtime::Instant;

use super::{
    GroupSettings,
    calls::{Calls, Pending},
};
use crate::{
    record::{Counts, ProgressRpc},
    store::PrefixStore,
    watch::Rolling,
};

/// The enqueued work of a group, as the watchdog sees it.
pub(super) trait OpenWork: Send + Sync {
    /// Returns true if all enqueued work is known to be done.
    fn is_done(&self) -> bool;

    /// Returns the oldest unfinished work of every stream that has unfinished work. Queries the driver once for a
    /// stream whose oldest work has not finished since the last call, and may query it more often for other streams.
    fn oldest(&self) -> Vec<OldestWork>;
}

/// The oldest unfinished work of a stream.
pub(super) struct OldestWork {
    /// A key that is different for each work of the group.
    pub(super) key: u64,
    pub(super) operation: &'static str,
    pub(super) sequence: u64,
}

/// The watchdog's state of one group. The value is created when the group is made.
pub(crate) struct WorkMonitor {
    /// The group's id, as members use it in the store.
    pub(super) id: String,
    /// The group's own part of the store.
    pub(super) store: PrefixStore,
    pub(super) progress_rpc: Arc<ProgressRpc>,
    rolling: Arc<Rolling>,
    counts: Arc<Counts>,
    work: Weak<dyn OpenWork>,
    work_timeout: Duration,
    /// The longest pause between two checks by the watchdog.
    pause: Duration,
    /// Calls on the group's path, a transport besides NCCL, that have not returned.
    calls: Calls,
    oldest: Mutex<Oldest>,
    /// True if members were found to have made different calls.
    suspected: AtomicBool,
    /// The time at which the other members were asked about late work, and the sequence number of that work.
    /// Reset to `None` if the answer is overdue and that work is done.
    pub(super) asked: Mutex<Option<(Instant, u64)>>,
}

/// The oldest unfinished work of each stream.
#[derive(Default)]
struct Oldest {
    /// The time of the last check.
    looked: Option<Instant>,
    /// The key of each work, and how long the work has been seen as the oldest of its stream.
    works: Vec<(u64, Duration)>,
}

impl WorkMonitor {
    /// The least value of [`longest_step`](Self::longest_step).
    pub(super) const STEP: Duration = Duration::from_secs(1);

    pub(super) fn new(
        id: String,
        store: PrefixStore,
        progress_rpc: &Arc<ProgressRpc>,
        work: Weak<dyn OpenWork>,
        settings: &GroupSettings,
    ) -> Self {
        let (work_timeout, pause) = (settings.work_limit(), settings.pause());
        let progress_rpc = progress_rpc.clone();
        let (rolling, counts, calls) = (Arc::new(Rolling::new()), Arc::default(), Calls::default());
        let (oldest, asked) = (Mutex::default(), Mutex::default());
        let suspected = AtomicBool::new(false);
        Self {
            id,
            store,
            progress_rpc,
            rolling,
            counts,
            work,
            work_timeout,
            pause,
            calls,
            oldest,
            suspected,
            asked,
        }
    }

    /// Returns the group's id.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// Returns the rolling hash of the group's calls.
    pub(crate) fn rolling(&self) -> &Arc<Rolling> {
        &self.rolling
    }

    /// Returns the counters of the group's recorded calls: collectives, messages and graph launches.
    pub(super) fn counts(&self) -> &Arc<Counts> {
        &self.counts
    }

    /// Returns the number of calls that wait for all members: collectives, and marked launches of graphs.
    pub(crate) fn steps(&self) -> u64 {
        self.rolling.count() + self.counts.graph_launches()
    }

    /// Records that members have made different calls. The members then find out which calls differ.
    pub(crate) fn suspect(&self) {
        self.suspected.store(true, Ordering::Release);
    }

    /// Returns true if members were found to have made different calls.
    pub(super) fn is_suspected(&self) -> bool {
        self.suspected.load(Ordering::Acquire)
    }

    /// Returns the calls on the group's path that have not returned.
    pub(super) fn calls(&self) -> &Calls {
        &self.calls
    }

    /// Returns the longest pause between two checks by the watchdog.
    pub(crate) fn pause(&self) -> Duration {
        self.pause
    }

    /// Returns the most time that one check adds to the age of work. If this process was stopped between two
    /// checks, for example by a debugger, the rest of that time does not count as a wait for other ranks. The
    /// value is more than a pause, so that a check that is a little late still counts in full.
    fn longest_step(&self) -> Duration {
        (self.pause * 2).max(Self::STEP)
    }

    /// Returns true if all enqueued work is known to be done.
    pub(super) fn is_done(&self) -> bool {
        self.work.upgrade().is_some_and(|work| work.is_done())
    }

    /// Checks enqueued work and calls on the path, and returns the one that is late. If several are late,
    /// returns the one that has waited longest; of equals, the one with the lowest sequence number.
    pub(super) fn look(&self, now: Instant) -> Option<Pending> {
        let open = self.work.upgrade().map_or(Vec::new(), |work| work.oldest());
        let mut oldest = self.oldest.lock().unwrap_or_else(PoisonError::into_inner);
        let Oldest { looked, works } = std::mem::take(&mut *oldest);
        oldest.looked = Some(now);
        let step = looked.map_or(Duration::ZERO, |looked| now.saturating_duration_since(looked));
        let step = step.min(self.longest_step());
        let works = open.into_iter().map(|work| {
            let former = works.iter().find(|(other, _)| *other == work.key);
            let waited = former.map_or(Duration::ZERO, |(_, waited)| *waited + step);
            oldest.works.push((work.key, waited));
            Pending { operation: work.operation, sequence: work.sequence, waited }
        });
        let pending = works.chain(self.calls.look(step));
        let late = pending.filter(|pending| pending.waited >= self.work_timeout);
        late.max_by_key(|late| (late.waited, Reverse(late.sequence)))
    }
}
