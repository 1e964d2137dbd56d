//! The protocol of a job's watch: the next action of one rank, as a function of its inputs and the time.
//!
//! At regular intervals a rank exchanges: it writes its heartbeat, and reads other heartbeats, the length of the
//! trouble log and the number of questions. It reads the heartbeats of only a few ranks. A rank is lost when it has
//! been silent so long that waiting longer would exceed twice the heartbeat. A rank that notices a trouble appends it
//! to the log. It acts on it only when it reads it there, after all earlier entries, so all ranks act on the same
//! trouble first. A failing store is asked again, and while it fails no rank counts as silent.

use std::{collections::VecDeque, ops::Range, time::Duration};

use super::{
    evidence::{CallHistory, judge},
    trouble::Trouble,
};
use crate::peers::Loss;

/// Number of heartbeats for which members' calls are compared before a failure in the background is attributed to one
/// rank: while no difference is known, and once there is one.
pub(crate) const COMPARISON: [u32; 2] = [1, 4];

/// The facts about a rank and its job that its watch needs.
#[derive(Debug, Clone)]
pub(super) struct Post {
    /// This rank in the job.
    pub(super) rank: usize,
    /// The job's ranks, each with its site. Ranks of different sites detect each other's death only through the
    /// store.
    pub(super) sites: Vec<(usize, usize)>,
    /// A rank is lost when it has been silent for longer than this plus the time between two exchanges. It is reported
    /// before twice this.
    pub(super) heartbeat: Duration,
    /// Time between two exchanges: at most a quarter of the heartbeat if heartbeats are read.
    pub(super) pause: Duration,
}

impl Post {
    /// Number of ranks that read a rank's heartbeats.
    const WATCHERS: usize = 2;

    /// Returns true if ranks of other sites watch this rank by its heartbeats.
    pub(super) fn is_heard(&self) -> bool {
        let own = self.sites.iter().find(|(rank, _)| *rank == self.rank);
        own.is_some_and(|(_, own)| self.sites.iter().any(|(_, site)| site != own))
    }

    /// Returns the ranks that read the heartbeats of the rank at `place`: the first ones after it, around the job,
    /// that are on another site and not lost.
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
pub(super) struct Board {
    /// Number of questions.
    pub(super) asked: u64,
    /// Number of requests for dumps.
    pub(super) dumps: u64,
    /// Length of the trouble log.
    pub(super) troubles: u64,
    /// The heartbeat counts of the ranks that are read; `None` if a rank has left.
    pub(super) beats: Vec<(usize, Option<u64>)>,
    /// Groups whose hashes differ from this rank's.
    pub(super) suspects: Vec<Trouble>,
}

/// The result of the last action, or an event.
#[derive(Debug, Clone)]
pub(super) enum Input {
    /// The last action is done. Also the first input.
    Done,
    /// The sleep has ended, or a wake-up signal arrived.
    Woken(Notices),
    /// An exchange has read these values.
    Read(Board),
    /// The new value of the counter that was incremented.
    Counted(u64),
    /// Entries of the log; `None` for an entry that was never written.
    Troubles(Vec<Option<Trouble>>),
    /// The call histories that the members of a group have written so far, and whether they are complete.
    Testimonies(Vec<(usize, CallHistory)>, bool),
    /// The store request failed, or was done in part.
    StoreFailed,
}

/// Notices of this process for the protocol.
#[derive(Debug, Clone, Default)]
pub(super) struct Notices {
    pub(super) troubles: Vec<Trouble>,
    /// All ranks are requested to write dumps.
    pub(super) alarm: bool,
    /// This rank leaves the job.
    pub(super) leave: bool,
    /// A thread waits for entries of other ranks, so an exchange is due.
    pub(super) hurry: bool,
}

/// The next action.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Output {
    /// Write the heartbeat with this count, or that this rank leaves; then read the board.
    Exchange { beat: Option<u64>, watched: Vec<usize> },
    /// Append to the log.
    Append(Trouble),
    /// Read these entries of the log.
    Fetch(Range<u64>),
    /// Handle an entry of the log.
    Act(Trouble),
    /// Read the call histories of this group's members if all have written theirs. With `whoever`, read those that
    /// exist.
    Collect { group: String, whoever: bool },
    /// Answer these questions.
    Answer(Range<u64>),
    /// Write a dump.
    Dump,
    /// Request dumps from all other ranks.
    CallDumps,
    /// Sleep until then, or until a wake-up signal.
    Sleep(Duration),
    /// The watch has ended.
    Gone,
}

/// A rank whose heartbeats are read.
#[derive(Debug, Clone)]
struct Watched {
    rank: usize,
    beat: Option<u64>,
    /// Time at which its last new heartbeat was read.
    since: Duration,
    is_over: bool,
}

/// A comparison of call histories, after members had different hashes.
#[derive(Debug, Clone)]
struct Inquiry {
    group: String,
    ranks: [usize; 2],
    number: u64,
    /// From then on, missing histories are not waited for.
    until: Duration,
    /// True if the histories are to be read in this round.
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
    /// After a store failure: time of the next request.
    retry: Duration,
    /// Number of consecutive failures.
    failures: u32,
    noticed: VecDeque<Trouble>,
    /// Entries of the log that are still to be handled.
    acts: VecDeque<Trouble>,
    standing: Vec<Trouble>,
    /// From the next entry to read, to the length of the log.
    log: Range<u64>,
    questions: Range<u64>,
    dumps: Range<u64>,
    alarm: bool,
    inquiries: Vec<Inquiry>,
    leaving: bool,
    /// Its last heartbeat says that it leaves, or the attempts to write it are used up.
    left: bool,
    /// Number of failed attempts to write that it leaves.
    farewells: u32,
    /// The last action.
    last: Option<Output>,
}

impl Machine {
    /// Maximum number of log entries per read.
    const BATCH: u64 = 16;
    /// Number of attempts of a leaving rank to write that it leaves.
    const FAREWELLS: u32 = 4;

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
            farewells: 0,
            last: None,
        };
        machine.watch(now);
        machine
    }

    /// Adds the ranks whose readers are lost to the ranks that are read.
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
            Input::Read(board) => self.read(board, now),
            Input::Troubles(troubles) => troubles.into_iter().for_each(|trouble| self.stand(trouble, now)),
            Input::Testimonies(members, all) => self.hear(&members, all),
            Input::StoreFailed => {
                // Retries soon, because the others wait for a heartbeat. A store that stays unavailable is asked less
                // often.
                self.retry = now + if self.failures < 8 { self.post.pause / 4 } else { self.post.pause };
                self.failures = self.failures.saturating_add(1);
                self.next = self.next.min(self.retry);
                self.farewells += u32::from(self.leaving);
                // A rank that leaves while its store does not answer counts as having left.
                self.left |= self.farewells >= Self::FAREWELLS;
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
                // It is handled when it is read, after all earlier entries.
                self.log.end = self.log.end.max(count);
            }
            Some(Output::CallDumps) => {
                // This rank has written its own dump already.
                self.alarm = false;
                self.dumps = count..count;
            }
            _ => {}
        }
    }

    fn read(&mut self, board: Board, now: Duration) {
        // If this rank was stopped, or could not read, its view of the others is out of date.
        let was_away = now - self.read > self.post.heartbeat;
        (self.read, self.failures) = (now, 0);
        self.left |= self.leaving;
        self.log.end = self.log.end.max(board.troubles);
        self.questions.end = self.questions.end.max(board.asked);
        self.dumps.end = self.dumps.end.max(board.dumps);
        let limit = self.post.heartbeat + self.post.heartbeat / 4;
        for watched in &mut self.watched {
            let Some((_, beat)) = board.beats.iter().find(|(rank, _)| *rank == watched.rank) else {
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
        self.noticed.extend(board.suspects);
        for inquiry in &mut self.inquiries {
            inquiry.is_due = true;
        }
    }

    /// Handles the next entry of the log.
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

    /// Evaluates the histories, if they are sufficient.
    fn hear(&mut self, members: &[(usize, CallHistory)], all: bool) {
        let Some(Output::Collect { group, whoever }) = self.last.take() else { return };
        let Some(at) = self.inquiries.iter().position(|inquiry| inquiry.group == group) else { return };
        if all || whoever {
            let Inquiry { group, ranks, number, .. } = self.inquiries.swap_remove(at);
            let divergence = judge(members, ranks, number);
            self.noticed.push_back(Trouble::Diverged { group, divergence });
        }
    }

    fn choose(&mut self, now: Duration) -> Output {
        if let Some(trouble) = self.acts.pop_front() {
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
                // Counted from the due time, unless that is long past. A rank with a late wake-up does not drift.
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
        /// Every rank is read by two ranks of other sites that are not lost, or by as many as there are.
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
