//! The state machine of a rank's current meeting. A *meeting* is one run of an agreement. [`Work`] has a variant for
//! each kind of meeting: a commit of either of the rank's two pools, the agreement on plain registrations
//! (`ncclCommRegister`), a retirement, the agreement on the length of an allocation, an exchange, and a rendezvous. All
//! kinds get an [`Answer`] and return a [`Want`], their next request.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use bootstrap::agreement::{self, Agreement, Member, Protocol, Request};

use super::{
    exchanges::Exchanging,
    requests::StoreRequest,
    results::{Kind, Said},
    violation::Violation,
};
use crate::{
    agreement::{
        self as commits, Agreed, CommitProtocol, Ending, GroupId, LengthProtocol, Outcome, Plain, Plan,
        RegistrationProtocol, Release, RetireOutcome, RetirePlan, RetireProtocol, Retired, Segment,
        commit_ending, length_ending, plain_ending, retirement_ending,
    },
    exchange::protocol::{self as exchange, ExchangeRefusal},
    membership::{GroupState, lock},
    rendezvous::protocol::{self, Record, RendezvousProtocol, RendezvousRefusal},
};

/// The key of a mapping of peers' memory that a rank keeps after a rendezvous: the ordinal of a segment of the pool, or
/// the id of a persistent allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum MappingKey {
    Segment(u32),
    Persistent(u64),
}

/// The state machine of an agreement about a pool.
pub(super) struct Machine<P: Protocol> {
    pub(super) agreement: Agreement<P>,
    pub(super) member: Member,
    /// The plan of the last action that the machine has requested. The error of a failed agreement depends on it.
    pub(super) last: Option<P::Plan>,
}

impl<P: Protocol> Machine<P> {
    pub(super) fn new(start: commits::Start<P>, nonce: u64) -> Result<Self, Violation> {
        let commits::Start { member, record } = start;
        let agreement = Agreement::new(member.clone(), record, nonce).map_err(Violation)?;
        Ok(Self { agreement, member, last: None })
    }

    fn step(
        &mut self,
        answer: Answer,
        now: Duration,
        outcome: impl FnOnce(Answer) -> Option<P::Outcome>,
    ) -> agreement::Output<P> {
        let output = agree(&mut self.agreement, answer, now, outcome);
        if let agreement::Output::Act { plan, .. } = &output {
            self.last = Some(plan.clone());
        }
        output
    }
}

/// The state machine of a meeting, with the data that the rank needs when the meeting ends. `group` is the uid of the
/// group.
pub(super) enum Work {
    Commit {
        machine: Box<Machine<CommitProtocol>>,
        group_state: Arc<Mutex<GroupState>>,
        group: u64,
        segments: Vec<Segment>,
        /// For each segment that this commit registers, the index of its window among the windows that this commit
        /// creates.
        places: Vec<usize>,
        /// For each segment that this commit has registered, the serial of its window: the number of windows that the
        /// communicator had registered before. Empty until the registration has succeeded.
        serials: Vec<u64>,
    },
    /// A commit of the rank's [second pool](super::rank::Rank::second), which has no segments. With it, a run tests
    /// that commits of two pools for one group stay apart.
    Second {
        machine: Box<Machine<CommitProtocol>>,
        group_state: Arc<Mutex<GroupState>>,
        group: u64,
    },
    Plain {
        machine: Box<Agreement<RegistrationProtocol>>,
        group_state: Arc<Mutex<GroupState>>,
        group: u64,
        /// The segments that the commit before this meeting has left without windows.
        segments: Vec<Segment>,
        /// Before this meeting, the rank tries to register all `segments` by `ncclCommRegister`. True if this has
        /// succeeded.
        registered: bool,
    },
    Retire {
        machine: Box<Machine<RetireProtocol>>,
        /// The ordinals of the segments to retire.
        ordinals: Vec<u32>,
        /// The pool's groups on this rank that take part, each with its uid.
        group_states: Vec<(u64, Arc<Mutex<GroupState>>)>,
    },
    Length {
        machine: Box<Machine<LengthProtocol>>,
    },
    Exchange(Box<Exchanging>),
    Meet {
        machine: Box<Agreement<RendezvousProtocol>>,
        group: u64,
        mapping: MappingKey,
        /// The number of this rendezvous in its group.
        number: u64,
        /// The key of this rank's entry in [`World::offers`](super::world::World::offers).
        token: u64,
        /// The identities that this rank has read from the peers' memory, by which the simulation checks that it has
        /// mapped the right memory. `None` until this rank has mapped the memory of all peers.
        peers: Option<Vec<u64>>,
    },
}

/// The answer to a [request](Want) of a state machine.
#[derive(Debug, Clone)]
pub(super) enum Answer {
    Start,
    Store(agreement::Answer),
    /// The answer to [`Want::Search`].
    Searched(commits::Answer),
    /// The outcome of a registration of windows, and the serials of the windows.
    Registered(Outcome, Vec<u64>),
    Quiet(Release),
    Deregistered(Release),
    /// The outcome of [`Want::Share`], and the identities that this rank has read from the peers' memory. The second
    /// field is `None` if the rank could not map the memory of all peers.
    Shared(crate::sharing::Outcome, Option<Vec<u64>>),
    /// The outcome of [`Want::OpenSegments`] or [`Want::Open`].
    Opened(crate::sharing::Outcome),
}

/// The next request of a state machine.
#[derive(Debug)]
pub(super) enum Want {
    Store(StoreRequest),
    /// A step of a search. The members of a commit make it if their pools' allocation logs differ, to find the first
    /// operation that differs. The plan asks for hashes of this rank's log, or for one operation.
    Search(Plan),
    /// Registers the first `segments` new segments of a commit as windows. A segment whose ordinal is in `joined`
    /// shares the window of the segment before it.
    Register {
        segments: usize,
        joined: Vec<u32>,
        until: Duration,
        verdict_key: String,
    },
    /// In a retirement, waits until the device is idle, at most until this time on the rank's own clock.
    Quiesce(Duration),
    /// In a retirement, deregisters the segments, at most until this time on the rank's own clock.
    Deregister(Duration),
    /// Opens the segments that the other members of a commit offer.
    OpenSegments(Agreed),
    /// Maps the memory that the members of a rendezvous offer in their records.
    Share(Vec<Record>),
    /// Opens the peers' memory that the plan of an exchange uses.
    Open(exchange::Agreement),
    /// Requests nothing: the meeting has ended.
    Done(End),
}

/// The result of a meeting on a rank, by the kind of the meeting.
#[derive(Debug)]
pub(super) enum End {
    Commit(Ended<Agreed, Ending>),
    Plain(Ended<Plain, Ending>),
    Retire(Ended<Retired, Ending>),
    Length(Ended<u64, Ending>),
    Meet(Ended<u64, protocol::Ending>),
    Exchange(Ended<exchange::Agreement, exchange::Ending>),
}

/// The end of an agreement on a rank.
#[derive(Debug)]
pub(super) struct Ended<T, E> {
    pub(super) result: Result<T, E>,
    /// The keys of the agreement that this rank removes from the store at the end. Empty unless this rank has seen that
    /// all members have *read* the result. Copied from [`Conclusion::read`](agreement::Conclusion::read).
    pub(super) read: Vec<String>,
}

impl Want {
    /// Returns a number for the kind of request. The simulation counts the distinct states that its runs visit, and
    /// this number is a part of a rank's [state](super::rank::Rank::code). Similar requests to the store share a
    /// number, so that they do not count as different states.
    pub(super) fn code(&self) -> u64 {
        match self {
            Want::Store(StoreRequest::Set { .. }) => 1,
            Want::Store(StoreRequest::Agreement(request)) => match request {
                Request::Post { .. } => 1,
                Request::Add { .. } => 2,
                Request::Fetch { .. } | Request::Check { .. } => 3,
                Request::Propose { .. } => 4,
                Request::Await { .. } => 5,
                Request::Enter { .. } | Request::Leave { .. } => 6,
            },
            Want::Search(_) => 7,
            Want::Register { .. } => 9,
            Want::Quiesce(_) => 10,
            Want::Deregister(_) => 11,
            Want::Share(_) => 12,
            Want::Done(_) => 13,
            Want::Open(_) => 14,
            Want::OpenSegments(_) => 15,
        }
    }
}

impl End {
    pub(super) fn said(&self) -> Said {
        match self {
            End::Commit(end) => Said::Commit(end.result.clone()),
            End::Plain(end) => Said::Plain(end.result.clone()),
            End::Retire(end) => Said::Retire(end.result.clone()),
            End::Length(end) => Said::Length(end.result.clone()),
            End::Meet(end) => Said::Meet(end.result.clone()),
            End::Exchange(end) => Said::Exchange(end.result.clone()),
        }
    }
}

impl Work {
    pub(super) fn kind(&self) -> Kind {
        match self {
            Work::Commit { group, .. } => Kind::Commit(*group),
            Work::Second { group, .. } => Kind::Second(*group),
            Work::Plain { group, .. } => Kind::Plain(*group),
            Work::Retire { .. } => Kind::Retire,
            Work::Length { .. } => Kind::Length,
            Work::Meet { group, .. } => Kind::Meet(*group),
            Work::Exchange(work) => Kind::Exchange(work.group),
        }
    }

    /// Returns true while the other members may act on this rank's record and the rank has not read the result.
    pub(super) fn is_in_doubt(&self) -> bool {
        match self {
            Work::Commit { machine, .. } | Work::Second { machine, .. } => machine.agreement.is_in_doubt(),
            Work::Plain { machine, .. } => machine.is_in_doubt(),
            Work::Retire { machine, .. } => machine.agreement.is_in_doubt(),
            Work::Length { machine } => machine.agreement.is_in_doubt(),
            Work::Exchange(work) => work.machine.is_in_doubt(),
            Work::Meet { machine, .. } => machine.is_in_doubt(),
        }
    }

    /// Returns the groups whose [logs](crate::agreement::GroupLog) the meeting uses. A rendezvous, an exchange and an
    /// agreement on a length use none.
    pub(super) fn groups(&self) -> Vec<GroupId> {
        let id = |group_state: &Arc<Mutex<GroupState>>| lock(group_state).log.group();
        match self {
            Work::Commit { group_state, .. }
            | Work::Second { group_state, .. }
            | Work::Plain { group_state, .. } => {
                vec![id(group_state)]
            }
            Work::Retire { group_states, .. } => {
                group_states.iter().map(|(_, group_state)| id(group_state)).collect()
            }
            Work::Length { .. } | Work::Exchange(_) | Work::Meet { .. } => Vec::new(),
        }
    }

    /// Returns a number for the kind of meeting. Like [`Want::code`], it is a part of a rank's
    /// [state](super::rank::Rank::code), because the simulation counts the distinct states that its runs visit.
    pub(super) fn code(&self) -> u64 {
        match self {
            Work::Commit { .. } => 1,
            Work::Retire { .. } => 2,
            Work::Length { .. } => 3,
            Work::Meet { .. } => 4,
            Work::Plain { .. } => 5,
            Work::Exchange(_) => 6,
            Work::Second { .. } => 7,
        }
    }

    /// Passes an answer to the state machine at the time `now` of the rank's own clock, and returns its next request.
    pub(super) fn step(&mut self, answer: Answer, now: Duration) -> Want {
        match self {
            Work::Commit { machine, places, serials, .. } => {
                if let Answer::Registered(_, made) = &answer {
                    *serials = places.iter().filter_map(|at| made.get(*at).copied()).collect();
                }
                commit(machine, answer, now)
            }
            Work::Second { machine, .. } => commit(machine, answer, now),
            Work::Plain { machine, .. } => match agree(machine, answer, now, |_| None) {
                agreement::Output::Store(request) => Want::Store(StoreRequest::Agreement(request)),
                agreement::Output::Act { plan, .. } => match plan {},
                agreement::Output::Done(end) => {
                    Want::Done(End::Plain(Ended { result: end.result.map_err(plain_ending), read: end.read }))
                }
            },
            Work::Retire { machine, .. } => {
                let outcome = |answer| match answer {
                    Answer::Quiet(release) => Some(RetireOutcome::Quiet(release)),
                    Answer::Deregistered(release) => Some(RetireOutcome::Deregistered(release)),
                    _ => None,
                };
                match machine.step(answer, now, outcome) {
                    agreement::Output::Store(request) => Want::Store(StoreRequest::Agreement(request)),
                    agreement::Output::Act { plan: RetirePlan::Quiesce {}, until, .. } => {
                        Want::Quiesce(until)
                    }
                    agreement::Output::Act { plan: RetirePlan::Deregister {}, until, .. } => {
                        Want::Deregister(until)
                    }
                    agreement::Output::Done(end) => {
                        let ending =
                            |ending| retirement_ending(ending, &machine.member, machine.last.as_ref());
                        Want::Done(End::Retire(Ended { result: end.result.or_else(ending), read: end.read }))
                    }
                }
            }
            Work::Length { machine } => match machine.step(answer, now, |_| None) {
                agreement::Output::Store(request) => Want::Store(StoreRequest::Agreement(request)),
                agreement::Output::Act { plan, .. } => match plan {},
                agreement::Output::Done(end) => {
                    let ending = |ending| length_ending(ending, &machine.member);
                    Want::Done(End::Length(Ended { result: end.result.map_err(ending), read: end.read }))
                }
            },
            Work::Exchange(work) => match agree(&mut work.machine, answer, now, opened) {
                agreement::Output::Store(request) => Want::Store(StoreRequest::Agreement(request)),
                agreement::Output::Act { plan, .. } => {
                    work.acted = Some(plan.clone());
                    Want::Open(plan)
                }
                agreement::Output::Done(end) => {
                    let agreed = |agreed: Option<exchange::Agreement>| {
                        agreed.or(work.acted.take()).ok_or(Ending::OutOfStep)
                    };
                    let error = |ending| Ending::of(ending, |failure| ExchangeRefusal::from(failure).into());
                    let result = end.result.map_err(error);
                    Want::Done(End::Exchange(Ended { result: result.and_then(agreed), read: end.read }))
                }
            },
            Work::Meet { machine, peers, .. } => {
                if let Answer::Shared(_, mapped) = &answer {
                    peers.clone_from(mapped);
                }
                match agree(machine, answer, now, opened) {
                    agreement::Output::Store(request) => Want::Store(StoreRequest::Agreement(request)),
                    agreement::Output::Act { plan, .. } => Want::Share(plan),
                    agreement::Output::Done(end) => {
                        let error =
                            |ending| Ending::of(ending, |failure| RendezvousRefusal::from(failure).into());
                        let result = end.result.map_err(error);
                        Want::Done(End::Meet(Ended { result, read: end.read }))
                    }
                }
            }
        }
    }
}

/// If the answer is that to opening or mapping the peers' memory, returns its outcome. Otherwise returns `None`.
fn opened(answer: Answer) -> Option<crate::sharing::Outcome> {
    match answer {
        Answer::Opened(outcome) | Answer::Shared(outcome, _) => Some(outcome),
        _ => None,
    }
}

/// Passes an answer to the state machine of an agreement, and returns its next output. `outcome` converts an answer
/// that is neither the start nor from the store to the outcome of an action. It returns `None` if the answer belongs to
/// another kind of agreement.
fn agree<P: Protocol>(
    machine: &mut Agreement<P>,
    answer: Answer,
    now: Duration,
    outcome: impl FnOnce(Answer) -> Option<P::Outcome>,
) -> agreement::Output<P> {
    match answer {
        Answer::Start => machine.begin(now),
        Answer::Store(answer) => machine.step(agreement::Input::Store(answer), now),
        // If `outcome` returns `None`, the machine gets the store's answer `Expired`. A machine that waits for the
        // outcome of an action cannot use it, so it ends with `OutOfStep`, which the simulation reports as an error.
        other => machine.step(
            outcome(other)
                .map_or(agreement::Input::Store(agreement::Answer::Expired), agreement::Input::Acted),
            now,
        ),
    }
}

/// Passes an answer to the state machine of a commit, and returns its next request.
fn commit(machine: &mut Machine<CommitProtocol>, answer: Answer, now: Duration) -> Want {
    let outcome = |answer| match answer {
        Answer::Searched(answer) => Some(answer),
        Answer::Registered(outcome, _) => Some(commits::Answer::Registered(outcome)),
        Answer::Opened(outcome) => Some(commits::Answer::Opened(outcome)),
        _ => None,
    };
    match machine.step(answer, now, outcome) {
        agreement::Output::Store(request) => Want::Store(StoreRequest::Agreement(request)),
        agreement::Output::Act { plan: Plan::Register(agreed), until, verdict } => Want::Register {
            segments: agreed.segments as usize,
            joined: agreed.joined,
            until,
            verdict_key: verdict,
        },
        agreement::Output::Act { plan: Plan::Open(agreed), .. } => Want::OpenSegments(agreed),
        agreement::Output::Act { plan, .. } => Want::Search(plan),
        agreement::Output::Done(end) => {
            let ending = |ending| commit_ending(ending, &machine.member, machine.last.as_ref());
            Want::Done(End::Commit(Ended { result: end.result.map_err(ending), read: end.read }))
        }
    }
}
