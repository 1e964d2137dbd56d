//! The protocol of a job's watch: the next action of one rank, as a function of its inputs and the time.
//!
//! At regular intervals, each rank performs an exchange: it writes its heartbeat, and reads the heartbeats of a few
//! other ranks, the length of the trouble log, and the numbers of questions (the [progress
//! queries](crate::record::ProgressRpc) of other ranks) and of requests for dumps. A rank whose heartbeat has not
//! changed for 1.25 heartbeat periods is lost, so that the loss is reported within two periods. If the job has no ranks
//! of other sites, no rank detects losses by heartbeats, and a rank writes its heartbeat only if the contents have
//! changed, or if the rank leaves.
//!
//! A rank that notices a trouble appends the trouble to the log. The protocol acts on a trouble only when it reads the
//! trouble from the log, after all earlier entries, so it acts on the same trouble first on all ranks. Outside of the
//! protocol, [`peers`](crate::peers) also reports losses of this host to the groups directly. Failed store requests are
//! repeated. While the store fails, no rank counts as silent.

use std::{collections::VecDeque, ops::Range, time::Duration};

use super::{
    evidence::{CallHistory, find_divergence},
    trouble::Trouble,
};
use crate::peers::Loss;

/// Number of heartbeat periods for which the members' calls are compared, before an asynchronous error is attributed to
/// one rank. The first value applies while no difference is known, the second once two members' hashes differ.
pub(crate) const COMPARISON: [u32; 2] = [1, 4];

/// The protocol's parameters: this rank, the job's ranks, and time limits.
#[derive(Debug, Clone)]
pub(super) struct Post {
    /// This process's rank in the job.
    pub(super) rank: usize,
    /// The job's ranks, each with its site. Ranks of different sites detect each other's death only through the
    /// store.
    pub(super) sites: Vec<(usize, usize)>,
    /// Heartbeat period. A rank is lost when its heartbeat has not changed for more than 1.25 periods. The loss is
    /// reported within 2 periods.
    pub(super) heartbeat: Duration,
    /// Time between two exchanges. At most a quarter of `heartbeat` if other ranks read this rank's heartbeats.
    pub(super) pause: Duration,
}

impl Post {
    /// Maximum number of ranks that read the heartbeats of one rank.
    const WATCHERS: usize = 2;

    /// Returns true if the job has ranks of other sites. These detect this rank's death by its heartbeats.
    pub(super) fn is_heard(&self) -> bool {
        let own = self.sites.iter().find(|(rank, _)| *rank == self.rank);
        own.is_some_and(|(_, own)| self.sites.iter().any(|(_, site)| site != own))
    }

    /// Returns the ranks that read the heartbeats of the rank at index `place` of `sites`: the next ranks in circular
    /// order that have another site and are not lost.
    fn watchers<'a>(
        &'a self,
        place: usize,
        is_lost: impl Fn(usize) -> bool + 'a,
    ) -> impl Iterator<Item = usize> + 'a {
        let site = self.sites[place].1;
        let after = self.sites.iter().cycle().skip(place + 1).take(self.sites.len() - 1);
        let there = after.filter(move |(rank, other)| *other != site && !is_lost(*rank));
        there.take(Self::WATCHERS).map(|(rank, _)| *rank)
    }
}

/// The values that an exchange has read.
#[derive(Debug, Clone, Default)]
pub(super) struct StoreSnapshot {
    /// Number of questions.
    pub(super) asked: u64,
    /// Number of requests for dumps.
    pub(super) dumps: u64,
    /// Length of the trouble log.
    pub(super) troubles: u64,
    /// The ranks whose heartbeats were read, each with the heartbeat's number. The number is `None` if the rank has
    /// left.
    pub(super) beats: Vec<(usize, Option<u64>)>,
    /// One [`Trouble::Suspect`] for each difference between this rank's hashes and another rank's, and one
    /// [`Trouble::Left`] for each group that another rank has destroyed after fewer steps than this rank made.
    pub(super) noticed: Vec<Trouble>,
}

/// The result of the last action, or an event.
#[derive(Debug, Clone)]
pub(super) enum Input {
    /// The last action is done. Also the first input.
    Done,
    /// The sleep has ended, or a wake-up signal arrived.
    Woken(Notices),
    /// An exchange is done, and has read these values.
    Read(StoreSnapshot),
    /// The last action incremented a counter, whose new value is this.
    Counted(u64),
    /// The entries that were read from the trouble log. `None` for an entry that was never written or cannot be
    /// decoded.
    Troubles(Vec<Option<Trouble>>),
    /// The call histories that the members of a group have written so far. The second value is true if all members have
    /// written theirs. If some are missing and `whoever` of [`Output::Collect`] was false, the list is empty.
    Histories(Vec<(usize, CallHistory)>, bool),
    /// A store request of the last action failed. The action may have taken effect in part.
    StoreFailed,
}

/// Notices to the protocol from other threads of this process.
#[derive(Debug, Clone, Default)]
pub(super) struct Notices {
    pub(super) troubles: Vec<Trouble>,
    /// True to request dumps from all ranks.
    pub(super) alarm: bool,
    /// True if this rank leaves the job.
    pub(super) leave: bool,
    /// True to perform an exchange now, because a thread waits for entries of other ranks.
    pub(super) hurry: bool,
}

/// The next action.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Output {
    /// Write heartbeat number `beat`, or, if `beat` is `None`, that this rank leaves. If [`Post::is_heard`] is false, a
    /// heartbeat whose contents other than `beat` have not changed need not be written. Then read a [`StoreSnapshot`],
    /// with the heartbeats of the ranks `watched`.
    Exchange { beat: Option<u64>, watched: Vec<usize> },
    /// Append this trouble to the log.
    Append(Trouble),
    /// Read the log entries with these numbers.
    Fetch(Range<u64>),
    /// Act on this trouble, which was read from the log.
    Act(Trouble),
    /// Read the call histories of this group's members, if all members have written theirs. If some are missing, read
    /// the existing ones if `whoever` is true, and none otherwise.
    Collect { group: String, whoever: bool },
    /// Answer the questions with these numbers.
    Answer(Range<u64>),
    /// Write a dump.
    Dump,
    /// Request dumps from all other ranks.
    CallDumps,
    /// Sleep until this time, or until a wake-up signal.
    Sleep(Duration),
    /// The watch has ended.
    Gone,
}

/// A rank whose heartbeats are read.
#[derive(Debug, Clone)]
struct Watched {
    rank: usize,
    beat: Option<u64>,
    /// Time from which this rank's time limit counts. Set when a new heartbeat is read, and when the limit restarts.
    since: Duration,
    is_over: bool,
}

/// A comparison of call histories, after members had different hashes.
#[derive(Debug, Clone)]
struct Inquiry {
    group: String,
    ranks: [usize; 2],
    number: u64,
    /// Time from which on missing histories are no longer waited for.
    until: Duration,
    /// True if the histories are to be read before the next exchange.
    is_due: bool,
}

/// The state of one rank in its job's watch.
#[derive(Debug, Clone)]
pub(super) struct Machine {
    post: Post,
    watched: Vec<Watched>,
    beats: u64,
    /// Time of the next exchange.
    next: Duration,
    /// Time of the last successful exchange.
    read: Duration,
    /// Time before which no store request is made. Set after a store failure.
    retry: Duration,
    /// Number of consecutive store failures.
    failures: u32,
    noticed: VecDeque<Trouble>,
    /// Troubles that were read from the log and are still to be acted on.
    acts: VecDeque<Trouble>,
    standing: Vec<Trouble>,
    /// Numbers of the log entries that this rank has not read yet.
    log: Range<u64>,
    questions: Range<u64>,
    dumps: Range<u64>,
    alarm: bool,
    inquiries: Vec<Inquiry>,
    leaving: bool,
    /// True once this rank has written that it leaves, or has given up because the store failed too often.
    left: bool,
    /// Number of store failures since this rank began to leave, of requests of any kind.
    leave_attempts: u32,
    /// The last action, whose result is the next input.
    last: Option<Output>,
}

impl Machine {
    /// Maximum number of log entries per read.
    const BATCH: u64 = 16;
    /// Number of store failures, of requests of any kind, after which a leaving rank gives up.
    const LEAVE_ATTEMPTS: u32 = 4;

    pub(super) fn new(post: Post, now: Duration) -> Self {
        let mut machine = Self {
            post,
            watched: Vec::new(),
            beats: 0,
            next: now,
            read: now,
            retry: now,
            failures: 0,
            noticed: VecDeque::new(),
            acts: VecDeque::new(),
            standing: Vec::new(),
            log: 0..0,
            questions: 0..0,
            dumps: 0..0,
            alarm: false,
            inquiries: Vec::new(),
            leaving: false,
            left: false,
            leave_attempts: 0,
            last: None,
        };
        machine.watch(now);
        machine
    }

    /// Adds to `watched` the ranks whose heartbeats this rank must now read. These change when a rank is lost, because
    /// the lost rank no longer reads the heartbeats of others.
    fn watch(&mut self, now: Duration) {
        let Self { post, standing, watched, .. } = self;
        let is_lost = |lost: usize| {
            standing.iter().any(|trouble| matches!(trouble, Trouble::Lost { rank, .. } if *rank == lost))
        };
        for (place, (rank, _)) in post.sites.iter().enumerate() {
            let is_known = watched.iter().any(|watched| watched.rank == *rank);
            if !is_known
                && !is_lost(*rank)
                && post.watchers(place, is_lost).any(|watcher| watcher == post.rank)
            {
                watched.push(Watched { rank: *rank, beat: None, since: now, is_over: false });
            }
        }
    }

    /// Handles the result of the last action, and returns the next action.
    pub(super) fn step(&mut self, input: Input, now: Duration) -> Output {
        match input {
            Input::Done => self.done(),
            Input::Woken(Notices { troubles, alarm, leave, hurry }) => {
                self.noticed.extend(troubles);
                self.alarm |= alarm;
                self.leaving |= leave;
                if hurry {
                    self.next = self.next.min(now);
                }
            }
            Input::Counted(count) => self.counted(count),
            Input::Read(snapshot) => self.read(snapshot, now),
            Input::Troubles(troubles) => troubles.into_iter().for_each(|trouble| self.stand(trouble, now)),
            Input::Histories(members, all) => self.compare_histories(&members, all),
            Input::StoreFailed => {
                // The request is repeated soon, because other ranks wait for this rank's heartbeat. After several
                // failures it is repeated less often.
                self.retry = now + if self.failures < 8 { self.post.pause / 4 } else { self.post.pause };
                self.failures = self.failures.saturating_add(1);
                self.next = self.next.min(self.retry);
                self.leave_attempts += u32::from(self.leaving);
                // After some failed attempts, a leaving rank ends its watch without having written that it leaves.
                self.left |= self.leave_attempts >= Self::LEAVE_ATTEMPTS;
                if let Some(Output::Act(trouble)) = self.last.take() {
                    self.acts.push_front(trouble);
                }
            }
        }
        let output = self.choose(now);
        self.last = Some(output.clone());
        output
    }

    fn done(&mut self) {
        match self.last.take() {
            Some(Output::Answer(answered)) => self.questions.start = answered.end,
            Some(Output::Dump) => self.dumps.start = self.dumps.end,
            _ => {}
        }
    }

    fn counted(&mut self, count: u64) {
        match self.last.take() {
            Some(Output::Append(_)) => {
                self.noticed.pop_front();
                // The rank acts on the trouble when it reads the entry, after all earlier entries.
                self.log.end = self.log.end.max(count);
            }
            Some(Output::CallDumps) => {
                // This rank has already written its own dump, so it skips this request.
                self.alarm = false;
                self.dumps = count..count;
            }
            _ => {}
        }
    }

    fn read(&mut self, snapshot: StoreSnapshot, now: Duration) {
        // If this rank was stopped, or could not read the store, the heartbeats that it has seen are out of date. The
        // time limits of the watched ranks then start again.
        let was_away = now - self.read > self.post.heartbeat;
        (self.read, self.failures) = (now, 0);
        self.left |= self.leaving;
        self.log.end = self.log.end.max(snapshot.troubles);
        self.questions.end = self.questions.end.max(snapshot.asked);
        self.dumps.end = self.dumps.end.max(snapshot.dumps);
        let limit = self.post.heartbeat + self.post.heartbeat / 4;
        for watched in &mut self.watched {
            let Some((_, beat)) = snapshot.beats.iter().find(|(rank, _)| *rank == watched.rank) else {
                continue;
            };
            let Some(beat) = beat else {
                watched.is_over = true;
                continue;
            };
            if watched.beat != Some(*beat) || was_away {
                (watched.beat, watched.since) = (Some(*beat), now);
            } else if now - watched.since > limit && !watched.is_over {
                watched.is_over = true;
                let loss = Loss::Silent(now - watched.since);
                self.noticed.push_back(Trouble::Lost { rank: watched.rank, loss });
            }
        }
        self.noticed.extend(snapshot.noticed);
        for inquiry in &mut self.inquiries {
            inquiry.is_due = true;
        }
    }

    /// Handles the next entry of the log. `None` is an entry that was never written or cannot be decoded.
    fn stand(&mut self, trouble: Option<Trouble>, now: Duration) {
        self.log.start += 1;
        self.log.end = self.log.end.max(self.log.start);
        let Some(trouble) = trouble else { return };
        match &trouble {
            Trouble::Lost { rank, .. } => {
                self.watched
                    .iter_mut()
                    .filter(|watched| watched.rank == *rank)
                    .for_each(|watched| watched.is_over = true);
            }
            Trouble::Suspect { group, number, ranks } => {
                let is_first = !self.standing.iter().any(|other| trouble.is_covered_by(other));
                if is_first && ranks.contains(&self.post.rank) {
                    let (group, ranks, number) = (group.clone(), *ranks, *number);
                    let until = now + self.post.heartbeat * 2;
                    self.inquiries.push(Inquiry { group, ranks, number, until, is_due: false });
                }
            }
            other => self.inquiries.retain(|inquiry| other.group() != Some(&inquiry.group)),
        }
        if !self.standing.contains(&trouble) {
            let is_loss = matches!(trouble, Trouble::Lost { .. });
            self.standing.push(trouble.clone());
            self.acts.push_back(trouble);
            if is_loss {
                self.watch(now);
            }
        }
    }

    /// Compares the histories, if all members have written theirs or the wait for missing ones is over.
    fn compare_histories(&mut self, members: &[(usize, CallHistory)], all: bool) {
        let Some(Output::Collect { group, whoever }) = self.last.take() else { return };
        let Some(at) = self.inquiries.iter().position(|inquiry| inquiry.group == group) else { return };
        if all || whoever {
            let Inquiry { group, ranks, number, .. } = self.inquiries.swap_remove(at);
            let divergence = find_divergence(members, ranks, number);
            self.noticed.push_back(Trouble::Diverged { group, divergence });
        }
    }

    fn choose(&mut self, now: Duration) -> Output {
        // Only the act for a suspicion makes store requests: it writes this rank's call history.
        let may_act = |trouble: &Trouble| now >= self.retry || !matches!(trouble, Trouble::Suspect { .. });
        if let Some(trouble) = self.acts.iter().position(may_act).and_then(|at| self.acts.remove(at)) {
            return Output::Act(trouble);
        }
        if !self.dumps.is_empty() {
            return Output::Dump;
        }
        if self.left && self.leaving {
            return Output::Gone;
        }
        if now >= self.retry {
            if !self.log.is_empty() {
                return Output::Fetch(self.log.start..self.log.end.min(self.log.start + Self::BATCH));
            }
            while let Some(trouble) = self.noticed.front() {
                if self.standing.iter().any(|other| trouble.is_covered_by(other)) {
                    self.noticed.pop_front();
                    continue;
                }
                return Output::Append(trouble.clone());
            }
            if self.alarm {
                return Output::CallDumps;
            }
            if !self.questions.is_empty() {
                return Output::Answer(self.questions.clone());
            }
            if let Some(inquiry) = self.inquiries.iter_mut().find(|inquiry| inquiry.is_due) {
                inquiry.is_due = false;
                return Output::Collect { group: inquiry.group.clone(), whoever: now >= inquiry.until };
            }
            if now >= self.next || self.leaving {
                // The next due time is counted from the last due time, unless that is long past, so late wake-ups do
                // not add up.
                self.next = (self.next + self.post.pause).max(now + self.post.pause / 2);
                self.beats += 1;
                let watched =
                    self.watched.iter().filter(|watched| !watched.is_over).map(|watched| watched.rank);
                return Output::Exchange {
                    beat: Some(self.beats).filter(|_| !self.leaving),
                    watched: watched.collect(),
                };
            }
        }
        Output::Sleep(self.next.max(self.retry))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// The heartbeats of every rank are read by two ranks of other sites that are not lost, or by one or none if
        /// there are fewer.
        #[test]
        fn everybody_is_watched(sites in prop::collection::vec((0usize..4, any::<bool>()), 1..12)) {
            let (heartbeat, pause) = (Duration::from_secs(1), Duration::from_millis(250));
            let is_lost = |rank: usize| sites[rank].1;
            let post = Post { rank: 0, sites: sites.iter().map(|(site, _)| *site).enumerate().collect(), heartbeat, pause };
            for place in 0..sites.len() {
                let watchers: Vec<_> = post.watchers(place, is_lost).collect();
                let apart = sites.iter().filter(|(site, lost)| *site != sites[place].0 && !lost).count();
                prop_assert_eq!(watchers.len(), apart.min(2));
                prop_assert!(watchers.iter().all(|other| sites[*other].0 != sites[place].0 && !is_lost(*other)));
            }
        }
    }
}
