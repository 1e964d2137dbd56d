//! A rank's ring, and the groups that write to it.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    panic::Location,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use super::{
    Dump, DumpError, DumpedGroup, Entry, Operation,
    call::{Call, REDUCTIONS},
    clock::{Clock, Scale, ticks},
    ring::{Position, Record, Ring, Span},
};
use crate::{
    comm::DataType,
    memory::PlanNames,
    watch::{Fold, Rolling, WatchSignal},
};

/// Finds out which operations of a group are done, and reports them by [`Track::completed`].
pub(crate) trait Look: Send + Sync {
    fn look(&self);
}

/// A group as the recorder knows it.
pub(crate) struct GroupEntry {
    /// Equal on all members, and never given to another group.
    pub(crate) id: String,
    pub(crate) name: Arc<str>,
    /// Ranks of the job.
    pub(crate) ranks: Vec<usize>,
    pub(crate) timeout: Duration,
    pub(crate) look: Weak<dyn Look>,
    /// The names of the plans that contain buffers of its calls.
    pub(crate) plans: Arc<PlanNames>,
}

/// Records the calls of one rank, in a group and the groups that were split from it.
pub(crate) struct Recorder {
    pub(super) ring: Ring,
    pub(super) clock: Clock,
    groups: Mutex<Groups>,
    /// This rank of the job.
    pub(super) rank: usize,
    /// The first group's name.
    pub(super) name: Arc<str>,
    /// NCCL's release.
    pub(super) library: String,
    /// The folder for dumps.
    folder: Option<PathBuf>,
    dumped: Mutex<Option<Instant>>,
    signal: Arc<WatchSignal>,
}

/// Groups by their numbers, which are never reused.
#[derive(Default)]
pub(super) struct Groups {
    pub(super) known: BTreeMap<u32, (GroupEntry, Arc<Counts>)>,
    next: u32,
}

/// The number of calls of this rank in a group.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) collectives: AtomicU64,
    pub(super) messages: AtomicU64,
}

impl Recorder {
    /// The number of calls that are kept.
    const SLOTS: usize = 2048;
    /// The number of groups above which dropped groups are removed.
    const GROUPS: usize = 64;
    /// The least time between two dumps.
    const PAUSE: Duration = Duration::from_secs(10);

    pub(crate) fn new(rank: usize, name: Arc<str>, library: String, folder: Option<PathBuf>) -> Arc<Self> {
        Arc::new(Self {
            ring: Ring::new(Self::SLOTS),
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

    /// Returns the signal that notifies the other ranks.
    pub(crate) fn signal(&self) -> &Arc<WatchSignal> {
        &self.signal
    }

    pub(super) fn groups(&self) -> MutexGuard<'_, Groups> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes every group find out which operations are done.
    pub(super) fn look(&self) {
        let groups: Vec<_> =
            self.groups().known.values().filter_map(|(group, _)| group.look.upgrade()).collect();
        groups.iter().for_each(|group| group.look());
    }

    /// Adds a group, and returns its number. When there are many groups, removes those that are dropped and
    /// have no calls in the ring.
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

    /// Returns the current contents.
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
            })
            .collect();
        Dump {
            rank: self.rank,
            name: self.name.to_string(),
            library: self.library.clone(),
            entries: entries(&records, &places, self.clock.scale()),
            groups,
        }
    }

    /// Called on an error: writes a dump, if there is a folder for it and no dump was written a moment ago,
    /// and makes the other ranks write theirs.
    pub(crate) fn trouble(&self) {
        let mut dumped = self.dumped.lock().unwrap_or_else(PoisonError::into_inner);
        if self.folder.is_some() && dumped.is_none_or(|dumped| dumped.elapsed() >= Self::PAUSE) {
            *dumped = Some(Instant::now());
            drop(dumped);
            // The folder existed when the group was made. A later failure to write must not hide the error
            // itself.
            let _ = self.last_words();
            self.signal.alarm();
        }
    }

    /// Writes a dump to the folder, if there is one.
    pub(crate) fn last_words(&self) -> Result<(), DumpError> {
        // Without the feature there is no folder: the group's builder has refused it.
        #[cfg(feature = "pickle")]
        if let Some(folder) = &self.folder {
            self.dump().write(folder)?;
        }
        Ok(())
    }
}

/// Writes one group's calls.
pub(crate) struct Track {
    recorder: Arc<Recorder>,
    group: u32,
    counts: Arc<Counts>,
    /// Messages to every member, then messages from every member.
    pairs: Box<[AtomicU64]>,
    /// The hash that members compare.
    rolling: Arc<Rolling>,
}

impl std::fmt::Debug for Track {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Track({}, {:?})", self.group, self.counts)
    }
}

/// A recorded call, until it is known whether it was launched.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Begun {
    record: u64,
    /// True if it raised its group's count.
    counted: bool,
}

/// The counts that a batch has raised.
#[derive(Debug, Clone, Copy, Default)]
struct Batched {
    collective: bool,
    message: bool,
}

impl Track {
    pub(crate) fn new(recorder: &Arc<Recorder>, group: GroupEntry, rolling: &Arc<Rolling>) -> Self {
        let rolling = rolling.clone();
        let counts = Arc::new(Counts::default());
        let pairs = (0..2 * group.ranks.len()).map(|_| AtomicU64::new(0)).collect();
        let group = recorder.add(group, counts.clone());
        Self { recorder: recorder.clone(), group, counts, pairs, rolling }
    }

    pub(crate) fn recorder(&self) -> &Arc<Recorder> {
        &self.recorder
    }

    /// Returns the counter of a message's pair and direction.
    #[inline(always)]
    fn pair(&self, call: &Call) -> Option<&AtomicU64> {
        let direction = match call.operation {
            Operation::Send => 0,
            Operation::Recv => self.pairs.len() / 2,
            // A put has no matching call.
            _ => return None,
        };
        let peer = call.peer? as usize;
        self.pairs.get(direction + peer).filter(|_| peer < self.pairs.len() / 2)
    }

    /// Records a call that is about to be launched. `batch` is the counts that its batch has raised already:
    /// a batch counts once as a collective and once as a message. `work` is the records of its work so far.
    #[inline(always)]
    fn begin(
        &self,
        call: &Call,
        batch: Option<&mut Batched>,
        work: Span,
        site: &'static Location<'static>,
    ) -> Begun {
        let batched = batch.is_some();
        let message = call.operation.is_message();
        let mut alone = Batched::default();
        let batch = batch.unwrap_or(&mut alone);
        let seen = if message { &mut batch.message } else { &mut batch.collective };
        let counted = !call.operation.is_one_sided() && !std::mem::replace(seen, true);
        let count = |counter: &AtomicU64, new: bool| {
            if new { counter.fetch_add(1, Ordering::Relaxed) + 1 } else { counter.load(Ordering::Relaxed) }
        };
        let position = Position {
            group: self.group,
            collective: count(&self.counts.collectives, counted && !message),
            messages: count(&self.counts.messages, counted && message),
            pair: self.pair(call).map_or(0, |pair| count(pair, true)),
            message,
            batched,
        };
        Begun { record: self.recorder.ring.write(call, position, work, site, ticks()), counted }
    }

    /// Removes a call that was refused.
    #[cold]
    fn refuse(&self, call: &Call, begun: Begun, batch: Option<&mut Batched>) {
        let Begun { record, counted } = begun;
        self.recorder.ring.retract(record);
        if let Some(pair) = self.pair(call) {
            pair.fetch_sub(1, Ordering::Relaxed);
        }
        if counted {
            let mut alone = Batched::default();
            let batch = batch.unwrap_or(&mut alone);
            let (seen, counter) = match call.operation.is_message() {
                true => (&mut batch.message, &self.counts.messages),
                false => (&mut batch.collective, &self.counts.collectives),
            };
            *seen = false;
            counter.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Records the end of the batch that `operation` consists of, if the batch had any calls. Returns the record's
    /// number.
    fn end_batch(
        &self,
        batch: Batched,
        operation: Operation,
        work: Span,
        site: &'static Location<'static>,
    ) -> Option<u64> {
        (batch.collective || batch.message).then(|| {
            let position = Position {
                group: self.group,
                collective: self.counts.collectives.load(Ordering::Relaxed),
                messages: self.counts.messages.load(Ordering::Relaxed),
                pair: 0,
                message: !batch.collective,
                batched: true,
            };
            self.recorder.ring.write(&Call::end(operation), position, work, site, ticks())
        })
    }

    /// Records a call that is not in a batch and is about to be launched.
    #[inline(always)]
    pub(crate) fn begin_one(&self, call: &Call, site: &'static Location<'static>) -> Begun {
        self.begin(call, None, Span::default(), site)
    }

    /// Removes a call that was refused.
    #[cold]
    pub(crate) fn refuse_one(&self, call: Call, begun: Begun) {
        self.refuse(&call, begun, None);
    }

    /// Returns the record of a call that was launched.
    #[inline(always)]
    pub(crate) fn launched_one(&self, call: &Call, begun: Begun) -> Span {
        self.rolling.step(call.fold(Fold::default()));
        Span::default().with(begun.record)
    }

    /// Marks these calls as captured by a graph.
    #[cold]
    pub(crate) fn captured(&self, span: Span) {
        self.recorder.ring.captured(span);
    }

    /// Records that these calls were seen to have begun.
    pub(crate) fn started(&self, span: Span) {
        self.recorder.ring.started(span, ticks);
    }

    /// Records that these calls were seen to be done. The time is `now`, unless it was recorded before.
    /// `elapsed` is the time that the device took, in µs, if it was measured.
    pub(crate) fn completed(
        &self,
        span: Span,
        now: impl FnOnce() -> u64,
        elapsed: impl FnOnce() -> Option<f64>,
    ) {
        // At least 1, because 0 stands for "not measured".
        let elapsed = || elapsed().map_or(0, |us| ((us * 1e3) as u64).max(1));
        self.recorder.ring.completed(span, now, elapsed);
    }
}

/// Records the calls of a batch as they are launched.
pub(crate) struct Recording<'a> {
    track: &'a Track,
    site: &'static Location<'static>,
    /// The counts that it has raised. `None` for a single call that consists of others.
    batch: Option<Batched>,
    span: Span,
    fold: Fold,
}

impl<'a> Recording<'a> {
    /// Begins a batch called at `site`, or a call that consists of others and has one record.
    pub(crate) fn new(track: &'a Track, site: &'static Location<'static>, batch: bool) -> Self {
        let batch = batch.then(Batched::default);
        Self { track, site, batch, span: Span::default(), fold: Fold::default() }
    }

    /// Records and launches a call. Removes the record if the launch fails.
    pub(crate) fn call<E>(&mut self, call: &Call, launch: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        let begun = self.track.begin(call, self.batch.as_mut(), self.span, self.site);
        if let Err(error) = launch() {
            self.track.refuse(call, begun, self.batch.as_mut());
            return Err(error);
        }
        self.span = self.span.with(begun.record);
        self.fold = call.fold(self.fold);
        Ok(())
    }

    /// Ends `operation` after all its calls were launched. Returns their records.
    pub(crate) fn end(self, operation: Operation) -> Span {
        self.track.rolling.step(self.fold);
        let end = self.batch.and_then(|batch| self.track.end_batch(batch, operation, self.span, self.site));
        end.map_or(self.span, |end| self.span.with(end))
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
