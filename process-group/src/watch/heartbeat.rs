//! The heartbeat thread: one thread per rank and job, which runs the protocol of [`machine`](super::machine) over the
//! store.
//!
//! The heartbeat thread makes all store requests of the protocol, so that the watchdog's checks never block on the
//! network. Only the wake thread also waits for the store.

use std::{
    fmt, io,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use bootstrap::{
    runtime::{self, Instant, JoinHandle},
    wire::{Message, Unsent, wire_struct},
};

use super::{
    CallHistory, Trouble, WatchSignal,
    machine::{Input, Machine, Output, Post, StoreSnapshot},
    rolling::Mark,
    wake::{WakeThread, wake},
};
use crate::{
    group::{GroupHealth, Member, WorkMonitor},
    messages::message,
    peers::{Listener, Peers},
    record::{ProgressRpc, Recorder},
    store::{Deadline, PrefixStore, Result, Store, StoreError},
};

/// Store key of the length of the trouble log.
const TROUBLES: &str = "troubles";
/// Store key of the number of requests for dumps.
const DUMPS: &str = "dumps";
/// Value of a trouble log entry whose writer died before writing the entry.
const VOID: &[u8] = b"void";

/// The heartbeat that a rank writes to the store.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Heartbeat {
    /// Number of the heartbeat. `None` once the rank has left the job.
    number: Option<u64>,
    /// The hash marks of the rank's groups, each with the group's id.
    marks: Vec<(String, Vec<Mark>)>,
    /// The ids of the groups that the rank destroyed most recently, each with the number of
    /// [steps](WorkMonitor::steps) that the rank had made in the group.
    destroyed: Vec<(String, u64)>,
}
wire_struct!(Heartbeat { number, marks, destroyed });
message!(Heartbeat, HEARTBEAT);

impl Default for Heartbeat {
    fn default() -> Self {
        Self { number: Some(0), marks: Vec::new(), destroyed: Vec::new() }
    }
}

/// The groups of this rank that the heartbeat thread monitors.
#[derive(Default)]
struct Watched {
    groups: Vec<Weak<GroupHealth>>,
    /// Troubles reported so far. They are passed on to groups that are added later.
    known: Vec<Trouble>,
}

type Groups = Mutex<Watched>;

fn lock(groups: &Groups) -> MutexGuard<'_, Watched> {
    groups.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Health monitoring of one rank's groups: the first group, and the groups split from that group.
pub(crate) struct Watch {
    signal: Arc<WatchSignal>,
    groups: Arc<Groups>,
    peers: Peers,
    /// Callback for the losses that `peers` reports. Kept alive by the watch.
    _listener: Arc<Listener>,
}

impl Watch {
    /// Maximum wait for the heartbeat thread when a watch ends. The thread may be blocked in a store request.
    const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);

    /// Creates the keys of rank `rank` in the store. Called before the ranks meet, so that the keys exist when other
    /// ranks read them.
    pub(crate) fn announce(store: &PrefixStore, rank: usize) -> Result<()> {
        let store = ProgressRpc::folder(store);
        for counter in [TROUBLES, DUMPS, ProgressRpc::ASKED] {
            store.add(counter, 0)?;
        }
        store.set(&beat_key(rank), &Heartbeat::default().to_bytes())
    }

    /// Starts to monitor the members through the job's part of the store. `peers` already monitors the members on this
    /// host.
    ///
    /// # Errors
    /// The I/O error, if the operating system did not start a thread.
    pub(crate) fn begin(
        store: &PrefixStore,
        rank: usize,
        members: &[Member],
        heartbeat: Duration,
        recorder: &Arc<Recorder>,
        peers: Peers,
    ) -> io::Result<Self> {
        let signal = recorder.signal().clone();
        let groups = Arc::<Groups>::default();
        let told = signal.clone();
        let listener: Arc<Listener> = Arc::new(move |rank, loss| told.tell(Trouble::Lost { rank, loss }));
        peers.tell(&listener);
        let post = Post { rank, sites: sites(members), heartbeat, pause: Duration::ZERO };
        let is_heard = post.is_heard();
        let pause = (heartbeat / if is_heard { 4 } else { 2 }).min(HeartbeatThread::PAUSE);
        let post = Post { pause, ..post };
        let store = ProgressRpc::folder(store);
        let woken = signal.clone();
        let heartbeat = HeartbeatThread {
            _wake: WakeThread::start(&store, rank, move || woken.hurry())?,
            store,
            rank,
            present: members.iter().map(|member| member.rank).collect(),
            is_heard,
            patience: heartbeat.max(Duration::from_millis(100)),
            begun: Instant::now(),
            machine: Machine::new(post, Duration::ZERO),
            said: Heartbeat::default(),
            recorder: Arc::downgrade(recorder),
            dumping: None,
            groups: groups.clone(),
            signal: signal.clone(),
        };
        runtime::spawn("watch-heartbeat", move || heartbeat.work())?;
        Ok(Self { signal, groups, peers, _listener: listener })
    }

    pub(crate) fn signal(&self) -> &Arc<WatchSignal> {
        &self.signal
    }

    /// Adds a group to the watched groups.
    pub(crate) fn add(&self, health: &Arc<GroupHealth>) {
        if let Some(listener) = health.loss_listener() {
            self.peers.tell(listener);
        }
        let mut watched = lock(&self.groups);
        watched.groups.retain(|health| health.strong_count() > 0);
        watched.groups.push(Arc::downgrade(health));
        drop(watched);
        self.recall(health);
    }

    /// Reports earlier troubles to a group: those that were reported before the group was added, or before the group
    /// had its id.
    pub(crate) fn recall(&self, health: &Arc<GroupHealth>) {
        let known = lock(&self.groups).known.clone();
        known
            .into_iter()
            .filter(|trouble| health.is_about(trouble))
            .for_each(|trouble| health.trouble(trouble));
    }

    /// Ends the watch. Waits, for at most `LEAVE_TIMEOUT`, until the heartbeat thread has sent all notices and makes no
    /// more store requests.
    pub(crate) fn close(&self) {
        self.signal.leave(Self::LEAVE_TIMEOUT);
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").field("peers", &self.peers).finish_non_exhaustive()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.close();
    }
}

/// Returns each member's rank in the job and its site, a number. Members of the same site are in one process, or detect
/// each other's death without the store.
fn sites(members: &[Member]) -> Vec<(usize, usize)> {
    let is_together = |one: &Member, other: &Member| {
        one.is_beside(other) || (one.host, one.process) == (other.host, other.process)
    };
    let site =
        |member: &Member| members.iter().position(|other| is_together(other, member)).unwrap_or_default();
    members.iter().map(|member| (member.rank, site(member))).collect()
}

fn beat_key(rank: usize) -> String {
    format!("beats/{rank}")
}

fn trouble_key(number: u64) -> String {
    format!("trouble/{number}")
}

fn history_key(group: &str, rank: usize) -> String {
    format!("history/{group}/{rank}")
}

/// Parses a number from the store. Invalid text counts as 0.
fn number(bytes: &[u8]) -> u64 {
    std::str::from_utf8(bytes).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

/// Returns the predecessor and the successor of `rank` in `ranks`, taken as a ring.
fn neighbours(ranks: &[usize], rank: usize) -> impl Iterator<Item = usize> {
    let (size, own) = (ranks.len(), ranks.iter().position(|other| *other == rank));
    let around = own.map(|own| [ranks[(own + size - 1) % size], ranks[(own + 1) % size]]);
    around.into_iter().flatten().filter(move |other| *other != rank)
}

/// State of the heartbeat thread. The thread runs the protocol until the watch ends.
struct HeartbeatThread {
    store: PrefixStore,
    rank: usize,
    /// The ranks of the job, which write heartbeats.
    present: Vec<usize>,
    /// True if other ranks read this rank's heartbeats.
    is_heard: bool,
    /// Maximum wait for a store key that should exist.
    patience: Duration,
    begun: Instant,
    machine: Machine,
    /// The last heartbeat that was written.
    said: Heartbeat,
    recorder: Weak<Recorder>,
    /// The last thread that was started to write a dump.
    dumping: Option<JoinHandle<()>>,
    groups: Arc<Groups>,
    signal: Arc<WatchSignal>,
    _wake: WakeThread,
}

impl HeartbeatThread {
    /// Maximum time between two exchanges, and therefore until a question is read.
    const PAUSE: Duration = Duration::from_millis(500);
    /// Number of this rank's latest answers that stay in the store.
    const KEPT: u64 = 256;

    fn work(mut self) {
        let mut input = Input::Done;
        loop {
            let output = self.machine.step(input, self.begun.elapsed());
            if output == Output::Gone {
                break;
            }
            // A store request that failed may succeed when it is repeated.
            input = self.perform(output).unwrap_or(Input::StoreFailed);
        }
        // The store handle is dropped before `is_gone` is signalled, because the rank that hosts the store waits for
        // that signal.
        let signal = self.signal.clone();
        if let Some(dumping) = self.dumping.take() {
            let _ = dumping.join();
        }
        drop(self);
        signal.is_gone();
    }

    fn groups(&self) -> Vec<Arc<GroupHealth>> {
        lock(&self.groups).groups.iter().filter_map(Weak::upgrade).collect()
    }

    fn health(&self, id: &str) -> Option<Arc<GroupHealth>> {
        self.groups().into_iter().find(|health| health.monitor().is_some_and(|monitor| monitor.id() == id))
    }

    fn soon(&self) -> Deadline {
        Deadline::after(self.patience)
    }

    fn perform(&mut self, output: Output) -> Result<Input> {
        match output {
            Output::Exchange { beat, watched } => return self.exchange(beat, &watched).map(Input::Read),
            Output::Append(trouble) => return self.append(&trouble).map(Input::Counted),
            Output::Fetch(numbers) => {
                let stand = |number| {
                    let stands = match self.store.get(&trouble_key(number), self.soon()) {
                        // The rank that reserved this entry died before writing it. All ranks use the value that the
                        // store holds after this request.
                        Err(StoreError::Timeout { .. }) => {
                            self.store.compare_set(&trouble_key(number), b"", VOID)?
                        }
                        stands => stands?,
                    };
                    Ok(Trouble::from_bytes(&stands).ok())
                };
                return numbers.map(stand).collect::<Result<_>>().map(Input::Troubles);
            }
            Output::Act(trouble) => self.act(trouble)?,
            Output::Collect { group, whoever } => return self.collect(&group, whoever),
            Output::Answer(questions) => {
                for question in questions {
                    let Some(recorder) = self.recorder.upgrade() else { break };
                    ProgressRpc::answer(&self.store, question, &recorder)?;
                    if let Some(old) = question.checked_sub(Self::KEPT) {
                        ProgressRpc::forget(&self.store, old, self.rank)?;
                    }
                }
            }
            Output::Dump => {
                // Dumps are written on a separate thread, one at a time: writing to a folder may be slow, and a rank
                // without heartbeats counts as lost. Errors are ignored, because the rank that requested the dumps
                // reports the trouble.
                if let Some(recorder) = self.recorder.upgrade()
                    && self.dumping.as_ref().is_none_or(JoinHandle::is_finished)
                {
                    let dump = move || _ = recorder.last_words();
                    self.dumping = runtime::spawn("flight-dump", dump).ok();
                }
            }
            Output::CallDumps => return Ok(Input::Counted(self.store.add(DUMPS, 1)?.unsigned_abs())),
            Output::Sleep(until) => return Ok(Input::Woken(self.signal.wait(self.begun + until))),
            Output::Gone => {}
        }
        Ok(Input::Done)
    }

    /// Appends an entry to the trouble log, and wakes the ranks that must read this entry. Returns the log's length.
    fn append(&self, trouble: &Trouble) -> Result<u64> {
        let own = self.rank.to_string();
        let is_first = self.store.compare_set(&trouble.claim(), b"", own.as_bytes())? == own.as_bytes();
        let about = match trouble {
            // One entry is enough if several members leave a group.
            Trouble::Left { .. } if !is_first => return Ok(self.store.add(TROUBLES, 0)?.unsigned_abs()),
            Trouble::Left { members, .. } => members.0.to_vec(),
            Trouble::Lost { .. } => self.present.clone(),
            other => self.members(other.group().unwrap_or_default()),
        };
        let count = self.store.add(TROUBLES, 1)?.unsigned_abs();
        self.store.compare_set(&trouble_key(count - 1), b"", &trouble.to_bytes())?;
        if is_first {
            self.wake_all(&about)?;
        }
        Ok(count)
    }

    /// Wakes those of `ranks` that are in the job, except this rank.
    fn wake_all(&self, ranks: &[usize]) -> Result<()> {
        wake(
            &self.store,
            ranks.iter().copied().filter(|rank| *rank != self.rank && self.present.contains(rank)),
        )
    }

    /// Returns the members' ranks in the job. Empty if this rank no longer has the group.
    fn members(&self, id: &str) -> Vec<usize> {
        self.health(id).map(|health| health.ranks().to_vec()).unwrap_or_default()
    }

    fn exchange(&mut self, beat: Option<u64>, watched: &[usize]) -> Result<StoreSnapshot> {
        // `groups` is dropped before the store request, so that this thread does not keep a group alive that ends
        // during the request.
        let groups = self.groups();
        let of = |monitor: &WorkMonitor| (monitor.id().to_owned(), monitor.rolling().marks());
        let marks: Vec<_> = groups.iter().filter_map(|health| health.monitor()).map(of).collect();
        let mut read = watched.to_vec();
        read.extend(groups.iter().flat_map(|health| neighbours(health.ranks(), self.rank)));
        drop(groups);
        let destroyed = self.signal.destroyed();
        let has_news = (&marks, &destroyed) != (&self.said.marks, &self.said.destroyed);
        if beat.is_none() || self.is_heard || has_news {
            let heartbeat = Heartbeat { number: beat, marks, destroyed };
            self.store.set(&beat_key(self.rank), &heartbeat.to_bytes())?;
            self.said = heartbeat;
        }
        let wakes = self.signal.take_wakes();
        self.wake_all(&wakes)?;
        read.retain(|rank| self.present.contains(rank));
        read.sort_unstable();
        read.dedup();
        let keys: Vec<_> = read.iter().map(|rank| beat_key(*rank)).collect();
        let all: Vec<_> = [ProgressRpc::ASKED, DUMPS, TROUBLES]
            .into_iter()
            .chain(keys.iter().map(String::as_str))
            .collect();
        let values = self.store.multi_get(&all, self.soon())?;
        let (counts, beats) = values.split_at_checked(3).unwrap_or_default();
        let counts: Vec<_> = counts.iter().map(|count| number(count)).collect();
        let [asked, dumps, troubles] = counts[..] else { return Ok(StoreSnapshot::default()) };
        let mut snapshot = StoreSnapshot { asked, dumps, troubles, ..StoreSnapshot::default() };
        let groups = self.groups();
        for (other, bytes) in read.into_iter().zip(beats) {
            // A heartbeat that cannot be decoded is replaced by a constant, so that its rank counts as silent.
            let Heartbeat { number, marks, destroyed } = Heartbeat::from_bytes(bytes).unwrap_or_default();
            snapshot.beats.push((other, number));
            for (group, steps) in destroyed {
                // Calls whose work was revoked wait for no member.
                let waits = |health: &&Arc<GroupHealth>| !health.is_being_destroyed() && !health.is_revoked();
                let open = || groups.iter().filter(waits);
                let health = open().find(|health| {
                    let monitor = health.monitor().filter(|monitor| monitor.id() == group);
                    monitor.is_some_and(|monitor| monitor.steps() > steps)
                });
                if let Some(members) = health.map(|health| Unsent(health.ranks().into())) {
                    let how = Trouble::DESTROYED.into();
                    snapshot.noticed.push(Trouble::Left { group, rank: other, how, steps, members });
                }
            }
            for (group, marks) in marks {
                let monitors = groups.iter().filter_map(|health| health.monitor());
                let own = monitors.filter(|monitor| monitor.id() == group);
                for number in own.filter_map(|monitor| monitor.rolling().differs(&marks)) {
                    let (group, ranks) = (group.clone(), [self.rank, other]);
                    snapshot.noticed.push(Trouble::Suspect { group, number, ranks });
                }
            }
        }
        Ok(snapshot)
    }

    fn act(&self, trouble: Trouble) -> Result<()> {
        if let Trouble::Suspect { group, ranks, .. } = &trouble {
            let history = {
                let health = self.health(group);
                let monitor = health.as_ref().and_then(|health| health.monitor());
                let Some((monitor, recorder)) = monitor.zip(self.recorder.upgrade()) else { return Ok(()) };
                monitor.suspect();
                CallHistory::of(group, monitor.rolling(), &recorder.dump())
            };
            self.store.set(&history_key(group, self.rank), &history.to_bytes())?;
            // The other members wait for this history.
            self.signal.hurry();
            return self.wake_all(ranks);
        }
        // A rank that has dropped or aborted a group needs no notice of that. A rank that destroys a group needs it,
        // because it may be waiting for the other members.
        if matches!(&trouble, Trouble::Left { rank, how, .. } if *rank == self.rank && how != Trouble::DESTROYED)
        {
            return Ok(());
        }
        lock(&self.groups).known.push(trouble.clone());
        self.groups()
            .iter()
            .filter(|health| health.is_about(&trouble))
            .for_each(|health| health.trouble(trouble.clone()));
        Ok(())
    }

    /// Reads the call histories of a group's members if all members have written theirs. If some are missing, reads the
    /// existing ones if `whoever` is true, and none otherwise.
    fn collect(&self, group: &str, whoever: bool) -> Result<Input> {
        // If this rank no longer has the group, it needs no result of the comparison.
        let ranks = self.members(group);
        let keys: Vec<_> = ranks.iter().map(|rank| history_key(group, *rank)).collect();
        let names: Vec<_> = keys.iter().map(String::as_str).collect();
        let all = self.store.check(&names)?;
        let mut found = Vec::new();
        for (rank, key) in ranks.into_iter().zip(&names).filter(|_| all || whoever) {
            if all || self.store.check(&[key])? {
                let history = CallHistory::from_bytes(&self.store.get(key, self.soon())?);
                found.push((rank, history.unwrap_or_default()));
            }
        }
        Ok(Input::Histories(found, all))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::Witnesses;

    #[test]
    fn a_site_is_a_host_or_a_process() {
        let mut members: Vec<_> =
            [7, 8, 7, 8, 9].iter().enumerate().map(|(rank, host)| Member::example(rank, *host)).collect();
        members[4].process = members[3].process;
        let found = |members: &[Member]| sites(members).into_iter().map(|(_, site)| site).collect::<Vec<_>>();
        assert_eq!(found(&members), [0, 1, 0, 1, 4]);
        members.iter_mut().for_each(|member| member.witnesses = Witnesses::Store);
        assert_eq!(found(&members), [0, 1, 2, 3, 4]);
        members[2].process = members[0].process;
        assert_eq!(found(&members), [0, 1, 0, 3, 4]);
    }

    #[test]
    fn neighbours_are_around() {
        let around = |ranks: &[usize], rank| neighbours(ranks, rank).collect::<Vec<_>>();
        assert_eq!(around(&[4, 7, 9], 4), [9, 7]);
        assert_eq!(around(&[4, 7], 7), [4, 4]);
        assert!(around(&[4], 4).is_empty() && around(&[4, 5], 6).is_empty());
    }
}
