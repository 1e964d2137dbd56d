//! The protocol of a job's watch: what one rank does next, from what it has read and noticed, at which time.
//!
//! Every so often a rank exchanges: it says that it runs, and reads how far the others' heartbeats, the log of troubles
//! and the questions are. It reads the heartbeats of a few alone; a rank that is silent for so long that the others could
//! not know in time otherwise is lost. Whoever notices a trouble appends it to the log, and acts when it has read it
//! there, with all that stand before it: so all act on the same trouble first. A store that does not answer is asked
//! again, and while it does not, nobody is silent.

use std::{collections::VecDeque, ops::Range, time::Duration};

use super::{
    evidence::{Testimony, judge},
    trouble::Trouble,
};
use crate::peers::Loss;

/// For how many heartbeats members' calls are compared before a failure in the background is taken for that of one rank:
/// while no difference is known, and once there is one.
pub(crate) const COMPARISON: [u32; 2] = [1, 4];

/// Where a rank stands, as far as its watch depends on it.
#[derive(Debug, Clone)]
pub(super) struct Post {
    /// This rank of the job.
    pub(super) rank: usize,
    /// The job's ranks, and where each is: only the store can tell ranks of different sites of each other.
    pub(super) sites: Vec<(usize, usize)>,
    /// A rank is lost when it has been silent for more than the time between two exchanges over this, and before twice
    /// this.
    pub(super) heartbeat: Duration,
    /// Between two exchanges: a quarter of the heartbeat at most, where heartbeats are read.
    pub(super) pause: Duration,
}

impl Post {
    /// How many read a rank's heartbeats.
    const WATCHERS: usize = 2;

    /// Whether others know of this rank by its heartbeats alone.
    pub(super) fn is_heard(&self) -> bool {
        let own = self.sites.iter().find(|(rank, _)| *rank == self.rank);
        own.is_some_and(|(_, own)| self.sites.iter().any(|(_, site)| site != own))
    }

    /// Who reads a rank's heartbeats, by its place: the first after it, around the job, that are elsewhere and there.
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

/// What an exchange has read.
#[derive(Debug, Clone, Default)]
pub(super) struct Board {
    /// How many questions there are.
    pub(super) asked: u64,
    /// How often dumps were called for.
    pub(super) dumps: u64,
    /// How long the log of troubles is.
    pub(super) troubles: u64,
    /// Of ranks that are read, their count of heartbeats; `None` if they have left.
    pub(super) beats: Vec<(usize, Option<u64>)>,
    /// Where hashes differ from this rank's.
    pub(super) suspects: Vec<Trouble>,
}

/// What has happened.
#[derive(Debug, Clone)]
pub(super) enum Input {
    /// What was asked for is done; or nothing, at the beginning.
    Done,
    /// It is time, or somebody rang.
    Woken(Notices),
    /// An exchange has read this.
    Read(Board),
    /// What was counted up is so many now.
    Counted(u64),
    /// These stand in the log; `None` for an entry that nobody wrote.
    Troubles(Vec<Option<Trouble>>),
    /// What the members of a group have testified so far, and whether that is all.
    Testimonies(Vec<(usize, Testimony)>, bool),
    /// What was asked of the store was not done, or not to its end.
    StoreFailed,
}

/// What this process has to say.
#[derive(Debug, Clone, Default)]
pub(super) struct Notices {
    pub(super) troubles: Vec<Trouble>,
    /// All ranks are to write dumps.
    pub(super) alarm: bool,
    /// The job is left.
    pub(super) leave: bool,
    /// Somebody waits for what others may have said: it is time for an exchange.
    pub(super) hurry: bool,
}

/// What is to be done next.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Output {
    /// Say that this rank runs, with this count, or that it leaves; then read the board.
    Exchange { beat: Option<u64>, watched: Vec<usize> },
    /// Append to the log.
    Append(Trouble),
    /// Read these entries of the log.
    Fetch(Range<u64>),
    /// It stands in the log.
    Act(Trouble),
    /// Read what the members of this group have testified: if all have, or else from whom there is.
    Collect { group: String, whoever: bool },
    /// Answer these questions.
    Answer(Range<u64>),
    /// Write a dump.
    Dump,
    /// Have all others write theirs.
    CallDumps,
    /// Wait until then, or until somebody rings.
    Sleep(Duration),
    /// The end.
    Gone,
}

/// A rank whose heartbeats are read.
#[derive(Debug, Clone)]
struct Watched {
    rank: usize,
    beat: Option<u64>,
    /// When the last one was seen.
    since: Duration,
    is_over: bool,
}

/// Members have different hashes, and this rank finds out why.
#[derive(Debug, Clone)]
struct Inquiry {
    group: String,
    ranks: [usize; 2],
    number: u64,
    /// Then who has not testified is not waited for.
    until: Duration,
    /// Whether testimonies are read in this round.
    is_due: bool,
}

/// One rank's part in its job's watch.
#[derive(Debug, Clone)]
pub(super) struct Machine {
    post: Post,
    watched: Vec<Watched>,
    beats: u64,
    /// When the next exchange is due.
    next: Duration,
    /// When the last succeeded.
    read: Duration,
    /// The store failed: it is not asked before this.
    retry: Duration,
    /// How often in a row.
    failures: u32,
    noticed: VecDeque<Trouble>,
    /// Of the log, what is to be acted on.
    acts: VecDeque<Trouble>,
    standing: Vec<Trouble>,
    /// How much of the log was read, and how long it is.
    log: Range<u64>,
    questions: Range<u64>,
    dumps: Range<u64>,
    alarm: bool,
    inquiries: Vec<Inquiry>,
    leaving: bool,
    /// Its last heartbeat says that it leaves, or nobody could be told.
    left: bool,
    /// How often that was tried in vain.
    farewells: u32,
    /// What was asked for last.
    last: Option<Output>,
}

impl Machine {
    /// How many entries of the log are read at a time.
    const BATCH: u64 = 16;
    /// How often a rank that leaves tries to say so.
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

    /// Reads the heartbeats also of ranks whose readers are lost.
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

    /// Takes in what has happened, which is the answer to what it asked for last; says what to do next.
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
                // Soon, since the others wait for a heartbeat; but a store that is gone is not asked all the time.
                self.retry = now + if self.failures < 8 { self.post.pause / 4 } else { self.post.pause };
                self.failures = self.failures.saturating_add(1);
                self.next = self.next.min(self.retry);
                self.farewells += u32::from(self.leaving);
                // Who leaves a store that does not answer has left it.
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
                // It is acted on when it was read, with all that stand before it.
                self.log.end = self.log.end.max(count);
            }
            Some(Output::CallDumps) => {
                // This rank has written its own.
                self.alarm = false;
                self.dumps = count..count;
            }
            _ => {}
        }
    }

    fn read(&mut self, board: Board, now: Duration) {
        // A rank that was stopped itself, or could not read, knows nothing of the others yet.
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

    /// The next entry of the log.
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

    /// Judges, if there is enough to judge by.
    fn hear(&mut self, members: &[(usize, Testimony)], all: bool) {
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
                // From when it was due, unless that is long past: a rank that wakes late does not drift.
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
        /// Every rank is read by two of other sites, or by as many as there are, whoever is lost.
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
