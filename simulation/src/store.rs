//! Carries the requests of ranks to the store, and the answers back to the ranks. One or several *calls* to the store
//! execute a request, one after the other.
//!
//! A message travels in one or two pieces, each of which takes a random time. A connection breaks:
//! - If its rank dies or is cut off, or if the store dies. A rank that is not dead then repeats its request only if it
//!   is [in doubt](crate::work::Work::is_in_doubt) about the result of its [meeting](super), as in production.
//! - In some runs, at random, when the store answers a request that writes. The rank always repeats this request.

use std::{mem, time::Duration};

use bootstrap::{
    agreement::{Answer, Decision, Retry, read_verdict},
    store::machine::{self, Call, ClientId, Failure, client},
};
use symm_agreement::{CommitProtocol, RegistrationOutcome, Rejection};

use crate::{
    network::{Finished, Sent},
    requests::{Asked, Goal, Progress, StoreRequest},
    trouble::Trouble,
    violation::{Violation, bail},
    work,
    world::{Event, World, tell},
};

impl World {
    fn time(&self) -> Duration {
        Duration::from_micros(self.now)
    }

    pub(crate) fn reaches_store(&self, rank: u32) -> bool {
        !self.network.is_dead && self.ranks[rank as usize].cut_off <= self.now
    }

    /// Begins a rank's request to the store. `goal` selects the use of the answer.
    pub(crate) fn ask(&mut self, rank: u32, goal: Goal, request: StoreRequest) -> Result<(), Violation> {
        let until = request.waits_until().map(|until| self.ranks[rank as usize].world_time(until));
        let until = until.map(Duration::from_micros);
        self.go_on(Asked { rank, goal, request, until, replies: Vec::new(), retry: Retry::default() })
    }

    /// Continues a request: makes its next call, or passes its answer on.
    pub(crate) fn go_on(&mut self, asked: Asked) -> Result<(), Violation> {
        match asked.progress(self.time())? {
            Progress::Call(call) => self.call(asked, call),
            Progress::Done(answer) => self.answered(&asked, answer),
        }
    }

    /// Makes the next call of a request on an idle connection of the rank. If the rank has none, opens a connection,
    /// which begins with a greeting (its first messages). The call begins when the greeting has ended, see
    /// [`called`](Self::called).
    fn call(&mut self, asked: Asked, call: Call) -> Result<(), Violation> {
        let (rank, now) = (asked.rank, self.time());
        if !self.reaches_store(rank) {
            self.lose(asked);
            return Ok(());
        }
        let Some(id) = self.network.take_idle(rank) else {
            let greeting = self.network.open(asked, now)?;
            self.send(greeting, true);
            return Ok(());
        };
        let deadline = match &call {
            Call::WhenThere { deadline, .. } => Some(*deadline).filter(|deadline| *deadline > now),
            _ => None,
        };
        let loses_answer = match &call {
            Call::Now(
                machine::Request::Set { key, .. }
                | machine::Request::CompareSet { key, .. }
                | machine::Request::Add { key, .. },
            ) if self.scenario.repeats && self.random.one_in(6) => {
                self.network.keys.repeated.insert(String::from_utf8_lossy(key).into_owned());
                true
            }
            _ => false,
        };
        let outputs = self.network.begin(id, asked, call, now);
        if let Some(link) = self.network.link(id) {
            link.loses_answer = loses_answer;
            let tick = Event::Tick(id, link.calls);
            if let Some(deadline) = deadline {
                self.at(deadline.as_micros() as u64, tick);
            }
        }
        self.obey(id, outputs)
    }

    /// Sends bytes on a connection, to the store if `up` is true, else to the rank. Sometimes sends them in two pieces.
    fn send(&mut self, (id, mut bytes): Sent, up: bool) {
        let cut = if self.random.one_in(16) { self.random.below(bytes.len() as u64) as usize } else { 0 };
        let rest = (cut > 0).then(|| bytes.split_off(cut));
        for piece in [Some(bytes), rest].into_iter().flatten().filter(|piece| !piece.is_empty()) {
            self.network.push(id, up, piece);
            self.soon(if up { Event::AtStore(id) } else { Event::AtRank(id) });
        }
    }

    /// Executes the outputs of the client, the rank's end of a connection.
    pub(crate) fn obey(&mut self, id: ClientId, outputs: Vec<client::Output>) -> Result<(), Violation> {
        for output in outputs {
            match output {
                client::Output::Send(bytes) => self.send((id, bytes), true),
                client::Output::Done(outcome) => {
                    let done = self.network.finish(id, outcome);
                    done.map_or(Ok(()), |done| self.called(done))?;
                }
            }
        }
        Ok(())
    }

    /// Continues the request whose call has ended, unless the rank no longer waits for it or dies at this
    /// [step](super).
    fn called(&mut self, Finished { mut asked, outcome }: Finished) -> Result<(), Violation> {
        let is_stale = matches!(asked.goal, Goal::Meeting(token) if token != self.rank(asked.rank).token);
        match outcome {
            // The greeting of a new connection has ended. The request makes its next call.
            None => {}
            Some(_) if is_stale || !self.count_step(asked.rank)? => return Ok(()),
            Some(Ok(reply)) => asked.replies.push(Some(reply)),
            Some(Err(Failure::TimedOut { .. })) => asked.replies.push(None),
            // A call that waits for a key fails with this error if its rank was stopped and then reads the store's
            // answer more than 5 s after the call's deadline.
            Some(Err(Failure::Unresponsive)) => {
                self.lose(asked);
                return Ok(());
            }
            Some(Err(failure)) => bail!("a call to the store fails: {failure:?}"),
        }
        self.go_on(asked)
    }

    fn answered(&mut self, asked: &Asked, answer: Answer) -> Result<(), Violation> {
        match asked.goal {
            Goal::Meeting(token) => self.answer(asked.rank, token, work::Answer::Store(answer))?,
            Goal::Resume => self.at(self.now, Event::Resume(asked.rank)),
            // The request has set the key that reports to the lender that this rank has closed the lent memory. In
            // production, the lender polls for the key. In the simulation, this event makes the lender check for it.
            Goal::Closed(lender) => self.soon(Event::Collect(lender)),
        }
        Ok(())
    }

    /// Handles a request whose call gets no answer:
    /// - If the request belongs to a meeting, and the rank [may still repeat it](Self::retries_until): schedules the
    ///   repetition.
    /// - If the request belongs to a meeting, and the rank may not repeat it: passes `StoreFailed` to the state machine
    ///   of the meeting.
    /// - If the rank's program waits for the request: continues the program.
    /// - If the request reports a closed plan: does nothing.
    fn lose(&mut self, mut asked: Asked) {
        match asked.goal {
            Goal::Meeting(token)
                if asked.retry.is_due(self.time(), self.retries_until(asked.rank, token)) =>
            {
                let asked = Asked { replies: Vec::new(), ..asked };
                self.at(self.now + Retry::PAUSE.as_micros() as u64, Event::Repeat(Box::new(asked)));
            }
            Goal::Meeting(token) => {
                self.answer_soon(asked.rank, token, work::Answer::Store(Answer::StoreFailed));
            }
            Goal::Resume => self.soon(Event::Resume(asked.rank)),
            Goal::Closed(_) => {}
        }
    }

    /// Returns the deadline of the rank's meeting on the simulation's clock. A rank repeats a failed request of the
    /// meeting until this time, and at least for [`Retry::FLOOR`] after the first failure. Returns `None` if the rank
    /// does not repeat the request, for one of these reasons:
    /// - The rank is not [in doubt](crate::work::Work::is_in_doubt).
    /// - The request is not the current one of the rank.
    /// - The watchdogs of the rank have [reported](crate::rank::Rank::is_over) a dead member.
    fn retries_until(&self, rank: u32, token: u64) -> Option<Duration> {
        let state = &self.ranks[rank as usize];
        let current = state.token == token && !state.is_over();
        let in_doubt = state.task.as_ref().filter(|task| current && task.work.is_in_doubt());
        in_doubt.map(|task| Duration::from_micros(task.span.begun + task.span.deadline))
    }

    /// Handles the arrival of a piece at the store: executes the calls that are complete, and sends the answers. If the
    /// piece is the one that [`Trouble::StoreDies`] names, the store dies and executes nothing.
    pub(crate) fn at_store(&mut self, id: ClientId) -> Result<(), Violation> {
        self.network.arrived += 1;
        if !self.network.is_dead
            && matches!(self.scenario.trouble, Trouble::StoreDies(at) if at <= self.network.arrived)
        {
            self.network.is_dead = true;
            self.outage = Some(self.now..u64::MAX);
            tell!(self, "the store dies");
            for rank in 0..self.ranks.len() as u32 {
                self.break_links(rank, false)?;
            }
        }
        let sent = self.network.serve(id, self.time())?;
        for (to, bytes) in sent {
            let loses_answer = self.network.link(to).is_some_and(|link| mem::take(&mut link.loses_answer));
            if !loses_answer {
                self.send((to, bytes), false);
                continue;
            }
            let (asked, sent) = self.network.close(to, false, self.time())?;
            if let Some(asked) = asked {
                self.soon(Event::Repeat(Box::new(Asked { replies: Vec::new(), ..asked })));
            }
            sent.into_iter().for_each(|sent| self.send(sent, false));
        }
        self.free_the_blocked();
        Ok(())
    }

    /// Breaks all connections of a rank. If `delivers` is true, then on about half of these connections, chosen at
    /// random, the pieces that the rank has already sent still arrive at the store.
    pub(crate) fn break_links(&mut self, rank: u32, delivers: bool) -> Result<(), Violation> {
        for id in self.network.links_of(rank) {
            let delivers = delivers && self.random.one_in(2);
            let (asked, sent) = self.network.close(id, delivers, self.time())?;
            sent.into_iter().for_each(|sent| self.send(sent, false));
            asked.filter(|_| !self.ranks[rank as usize].dead).into_iter().for_each(|asked| self.lose(asked));
        }
        self.free_the_blocked();
        Ok(())
    }

    /// For each commit whose [verdict](super) in the store says that the group is [dead](is_dead), ends the blocked
    /// window registrations of about three quarters of the members, chosen at random. In production, another thread of
    /// the member reads the verdict and aborts the communicator. That abort may come too late. So the simulation leaves
    /// the registrations of the remaining members blocked. Removes each entry of [`watched`](Self::watched) whose
    /// verdict is in the store.
    fn free_the_blocked(&mut self) {
        let network = &self.network;
        let has_verdict = |watched: &mut (String, u32, u64)| network.value(&watched.0).is_some();
        let ended: Vec<_> = self.watched.extract_if(.., has_verdict).collect();
        for (key, rank, token) in ended {
            let outcome = RegistrationOutcome::Failed { ordinal: None, cause: "aborted".to_owned() };
            if self.network.value(&key).is_some_and(is_dead) && !self.random.one_in(4) {
                self.answer_soon(rank, token, work::Answer::Registered(outcome, Vec::new()));
            }
        }
    }
}

/// Returns true if `verdict`, the value of a commit's verdict key, says that the group is dead: the commit has failed,
/// for example because outcomes are missing, or it has [poisoned](super) the group.
fn is_dead(verdict: &[u8]) -> bool {
    matches!(
        read_verdict::<CommitProtocol>(verdict),
        Some(Err(_) | Ok(Decision::Refused { refusal: Rejection::Poisoned(_) }))
    )
}
