//! The recorder of one rank: the ring of its calls, and the groups in which the calls are made.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fmt,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak, atomic::Ordering},
    time::{Duration, Instant},
};

use super::{
    Dump, DumpError, DumpedGroup, Entry,
    call::{Call, REDUCTIONS, Record},
    clock::{Clock, Scale},
    log::{Counts, Log, Ring},
};
use crate::{
    comm::DataType,
    memory::PlanNames,
    watch::{Rolling, WatchSignal},
};

/// Queries which operations of a group are complete, and reports those to the flight recorder.
pub(crate) trait Look: Send + Sync {
    fn look(&self);
}

/// The recorder's data about a group.
pub(crate) struct GroupEntry {
    /// The group's id. Equal on all members, and never reused for another group.
    pub(crate) id: String,
    pub(crate) name: Arc<str>,
    /// The members' ranks in the job.
    pub(crate) ranks: Vec<usize>,
    pub(crate) timeout: Duration,
    pub(crate) look: Weak<dyn Look>,
    /// Names of the window plans that contain buffers of the group's calls.
    pub(crate) plans: Arc<PlanNames>,
}

/// Records the calls of one rank, in its first group and in the groups split from that group.
pub(crate) struct Recorder {
    pub(super) ring: Arc<Ring>,
    pub(super) clock: Clock,
    groups: Mutex<Groups>,
    /// This process's rank in the job.
    pub(super) rank: usize,
    /// The name of the first group, from which the other groups are split.
    pub(super) name: Arc<str>,
    /// Release of the loaded NCCL library.
    pub(super) library: String,
    /// Folder for dumps. `None` if no dumps are to be written.
    folder: Option<PathBuf>,
    dumped: Mutex<Option<Instant>>,
    signal: Arc<WatchSignal>,
}

/// The known groups, by number. Numbers are never reused.
#[derive(Default)]
pub(super) struct Groups {
    pub(super) known: BTreeMap<u32, (GroupEntry, Arc<Counts>)>,
    next: u32,
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").field("rank", &self.rank).finish_non_exhaustive()
    }
}

impl Recorder {
    /// Number of calls that the ring keeps.
    const SLOTS: usize = 2048;
    /// Number of known groups from which on dropped groups are removed.
    const GROUPS: usize = 64;
    /// Minimum time between two dumps that [`trouble`](Self::trouble) writes.
    const PAUSE: Duration = Duration::from_secs(10);

    pub(crate) fn new(rank: usize, name: Arc<str>, library: String, folder: Option<PathBuf>) -> Arc<Self> {
        Arc::new(Self {
            ring: Arc::new(Ring::new(Self::SLOTS)),
            clock: Clock::begin(),
            groups: Mutex::default(),
            rank,
            name,
            library,
            folder,
            dumped: Mutex::default(),
            signal: Arc::default(),
        })
    }

    /// Returns the signal that wakes this rank's heartbeat thread, which notifies the other ranks.
    pub(crate) fn signal(&self) -> &Arc<WatchSignal> {
        &self.signal
    }

    pub(crate) fn ring(&self) -> &Arc<Ring> {
        &self.ring
    }

    pub(super) fn groups(&self) -> MutexGuard<'_, Groups> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes every group query which of its operations are complete.
    pub(super) fn look(&self) {
        let groups: Vec<_> =
            self.groups().known.values().filter_map(|(group, _)| group.look.upgrade()).collect();
        groups.iter().for_each(|group| group.look());
    }

    /// Adds a group in which this rank is `rank`, and returns the group's log. The log keeps `counts` and `rolling`,
    /// the hash that members compare, up to date.
    pub(crate) fn log(
        &self,
        group: GroupEntry,
        rank: usize,
        counts: &Arc<Counts>,
        rolling: &Arc<Rolling>,
    ) -> Log {
        let size = group.ranks.len();
        let number = self.add(group, counts.clone());
        Log::new(&self.ring, (number, counts.clone()), (rank, size), rolling)
    }

    /// Adds a group, and returns the group's number. If there are many groups, first removes the dropped
    /// groups that have no calls in the ring.
    fn add(&self, group: GroupEntry, counts: Arc<Counts>) -> u32 {
        let mut groups = self.groups();
        if groups.known.len() >= Self::GROUPS {
            let remembered: HashSet<_> =
                self.ring.read().iter().map(|record| record.position.group).collect();
            groups
                .known
                .retain(|number, (group, _)| group.look.strong_count() > 0 || remembered.contains(number));
        }
        let number = groups.next;
        groups.next += 1;
        groups.known.insert(number, (group, counts));
        number
    }

    /// Updates the state of all operations, and returns the recorded calls.
    pub(crate) fn dump(&self) -> Dump {
        self.look();
        let records = self.ring.read();
        let groups = self.groups();
        let known = groups.known.iter().enumerate();
        let places: HashMap<_, _> =
            known.map(|(place, (number, (group, _)))| (*number, (place, &*group.plans))).collect();
        let groups: Vec<_> = groups
            .known
            .values()
            .map(|(group, counts)| DumpedGroup {
                id: group.id.clone(),
                name: group.name.to_string(),
                ranks: group.ranks.clone(),
                timeout: group.timeout,
                collectives: counts.collectives.load(Ordering::Relaxed),
                messages: counts.messages.load(Ordering::Relaxed),
                graph_launches: counts.graph_launches(),
            })
            .collect();
        let scale = self.clock.scale();
        Dump {
            rank: self.rank,
            name: self.name.to_string(),
            library: self.library.clone(),
            created_ns: scale.now(),
            entries: entries(&records, &places, scale),
            groups,
        }
    }

    /// Called on an error. If a dump folder is set and the last such dump is at least `PAUSE` old, writes a
    /// dump and requests dumps from the other ranks.
    pub(crate) fn trouble(&self) {
        let mut dumped = self.dumped.lock().unwrap_or_else(PoisonError::into_inner);
        if self.folder.is_some() && dumped.is_none_or(|dumped| dumped.elapsed() >= Self::PAUSE) {
            *dumped = Some(Instant::now());
            drop(dumped);
            // The folder existed when the group was made. A later failure to write the dump is ignored,
            // because it must not hide the error that caused the dump.
            let _ = self.last_words();
            self.signal.alarm();
        }
    }

    /// Writes a dump, if a dump folder is set.
    pub(crate) fn last_words(&self) -> Result<(), DumpError> {
        // Without the feature `pickle`, `folder` is `None`, because the group's builder refuses a dump
        // folder.
        #[cfg(feature = "pickle")]
        if let Some(folder) = &self.folder {
            self.dump().write(folder)?;
        }
        Ok(())
    }
}

fn entries(records: &[Record], groups: &HashMap<u32, (usize, &PlanNames)>, scale: Scale) -> Vec<Entry> {
    let entry = |record: &Record| {
        let Call { operation, dtype, reduction, peer, send, receive, on_path, places: lie } = record.call;
        let place = &record.position;
        let (group, plans) = *groups.get(&place.group)?;
        let dtype = DataType::ALL.into_iter().find(|known| *known as u8 == dtype);
        Some(Entry {
            record: record.number,
            group,
            operation,
            collective: place.collective,
            message: place.messages,
            pair: place.pair,
            is_message: place.message,
            is_batched: place.batched,
            is_captured: record.captured,
            is_on_path: on_path,
            dtype: dtype.filter(|_| !operation.is_end()),
            reduction: REDUCTIONS.get(usize::from(reduction)).copied().filter(|name| !name.is_empty()),
            peer: peer.map(|peer| peer as usize),
            send,
            receive,
            created_ns: scale.day(record.created),
            started_ns: Some(record.started).filter(|time| *time > 0).map(|time| scale.day(time)),
            completed_ns: Some(record.completed).filter(|time| *time > 0).map(|time| scale.day(time)),
            elapsed: Some(record.elapsed).filter(|elapsed| *elapsed > 0).map(Duration::from_nanos),
            site: record.site,
            places: lie.map(|it| it.describe(plans)),
        })
    };
    records.iter().filter_map(entry).collect()
}
