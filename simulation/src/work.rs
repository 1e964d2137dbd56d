//! The state machines of *meetings*. A meeting is one agreement among ranks, for example on a
//! [commit](symm_mem::SymmetricPool::commit). [`Work`] is the state machine of a rank's current meeting, with a variant
//! for each kind of meeting. All kinds get an [`Answer`] and return a [`Want`], their next request. The terms *record*,
//! *action*, *outcome* and *verdict* are defined in [`super`].

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use bootstrap::agreement::{self, Agreement, Member, Protocol, Request};
use symm_agreement as commits;
use symm_agreement::{
    Agreed, CommitPlan, CommitProtocol, Ending, GroupId, LengthProtocol, RegistrationOutcome,
    RegistrationProtocol, Release, RetireOutcome, RetirePlan, RetireProtocol, Segment, Start, commit_ending,
    exchange,
    exchange::ExchangeProtocol,
    length_ending, plain_ending,
    rendezvous::{RendezvousProtocol, RendezvousRecord},
    retirement_ending,
};
use symm_mem::internals::GroupState;

use crate::{
    exchanges::Exchanging, lock::lock, requests::StoreRequest, results::MeetingResult, violation::Violation,
};

/// Says which memory of the peers a rank has mapped in a rendezvous: that of a pool segment, by its ordinal (its number
/// in the pool), or that of a [persistent allocation](crate::rank::Rank::persistent), by its id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum MappingKey {
    Segment(u32),
    Persistent(u64),
}

/// The state machine of a meeting with the protocol `P`.
pub(crate) struct Machine<P: Protocol> {
    agreement: Agreement<P>,
    pub(crate) member: Member,
    /// The data (`Plan`) for the last action that the machine has requested. If the meeting fails, the error depends on
    /// this action. In an exchange, this data is also the result on which the members agree.
    pub(crate) last: Option<P::Plan>,
}

impl<P: Protocol> Machine<P> {
    pub(crate) fn new(start: Start<P>, nonce: u64) -> Result<Box<Self>, Violation> {
        let Start { member, record } = start;
        let agreement = Agreement::new(member.clone(), record, nonce).map_err(Violation)?;
        Ok(Box::new(Self { agreement, member, last: None }))
    }

    /// Passes an answer to the state machine at the time `now` of the rank's own clock, and returns its next request.
    ///
    /// - `outcome` converts an answer other than `Start` and `Store` to the outcome of an action. It returns `None` if
    ///   the answer belongs to another kind of meeting.
    /// - `act` converts an action to a request. Its arguments are the data (`Plan`) for the action, the deadline of
    ///   the action, and the store key of the verdict on its outcomes.
    /// - `said` converts the result of the meeting to a [`MeetingResult`].
    fn step(
        &mut self,
        answer: Answer,
        now: Duration,
        outcome: impl FnOnce(Answer) -> Option<P::Outcome>,
        act: impl FnOnce(P::Plan, Duration, String) -> Want,
        said: impl FnOnce(Result<P::Agreed, agreement::Ending<P>>, &Self) -> MeetingResult,
    ) -> Want {
        let output = match answer {
            Answer::Start => self.agreement.begin(now),
            Answer::Store(answer) => self.agreement.step(agreement::Input::Store(answer), now),
            other => {
                // If `outcome` returns `None`, the machine gets the store's answer `Expired` in place of the outcome.
                // This ends the machine with `OutOfStep`, which the simulation reports as an error.
                let expired = agreement::Input::Store(agreement::Answer::Expired);
                self.agreement.step(outcome(other).map_or(expired, agreement::Input::Acted), now)
            }
        };
        match output {
            agreement::Output::Store(request) => Want::Store(StoreRequest::Agreement(request)),
            agreement::Output::Act { plan, until, verdict } => {
                self.last = Some(plan.clone());
                act(plan, until, verdict)
            }
            agreement::Output::Done(end) => Want::Done(said(end.result, self), end.read),
        }
    }
}

/// The new segments that a commit has left without windows, because the library does not support windows. The rank then
/// registers these segments plainly, by `ncclCommRegister`.
pub(crate) struct Unregistered {
    pub(crate) group_state: Arc<Mutex<GroupState>>,
    pub(crate) segments: Vec<Segment>,
}

/// The state machine of a meeting, with the data that the rank needs when the meeting ends. The kinds of meetings are
/// described in [`Kind`](crate::results::Kind).
pub(crate) enum Work {
    /// A commit of the rank's first pool, or of its [second pool](crate::rank::Rank::second), which has no segments.
    Commit {
        machine: Box<Machine<CommitProtocol>>,
        group_state: Arc<Mutex<GroupState>>,
        segments: Vec<Segment>,
        /// For each segment that this commit registers, the index of its window among the windows that this commit
        /// creates.
        window_indexes: Vec<usize>,
        /// For each segment that this commit has registered, the serial of its window. The serials number all windows
        /// that this rank has registered with the communicator, from 0. Deregistered windows keep their numbers.
        /// Segments that share a window have the same serial. Empty until the registration has succeeded.
        serials: Vec<u64>,
    },
    /// The agreement on whether the members keep their plain registrations.
    Plain {
        machine: Box<Machine<RegistrationProtocol>>,
        unregistered: Unregistered,
        /// True if the rank has registered all segments by `ncclCommRegister`. The rank tries this before the meeting.
        registered: bool,
    },
    Retire {
        machine: Box<Machine<RetireProtocol>>,
        /// The ordinals of the segments to retire.
        ordinals: Vec<u32>,
        /// The pool's groups on this rank that take part.
        group_states: Vec<Arc<Mutex<GroupState>>>,
    },
    Length {
        machine: Box<Machine<LengthProtocol>>,
    },
    Exchange {
        machine: Box<Machine<ExchangeProtocol>>,
        exchanging: Box<Exchanging>,
    },
    Meet {
        machine: Box<Machine<RendezvousProtocol>>,
        /// The uid of the group.
        group: u64,
        mapping: MappingKey,
        /// The number of this rendezvous in its group.
        number: u64,
        /// The number with which this rank's memory begins: the [identity](crate::library::Extent::identity) of the
        /// segment, or the id of the persistent allocation. It must be equal on all members of a rendezvous that
        /// succeeds.
        identity: u64,
        /// The numbers that this rank has read from the start of the peers' memory, to check that it has mapped the
        /// right memory. `None` until this rank has mapped the memory of all peers.
        peers: Option<Vec<u64>>,
    },
}

/// The input of a state machine: the answer to its last [request](Want), or `Start`, which begins the meeting.
#[derive(Debug, Clone)]
pub(crate) enum Answer {
    Start,
    Store(agreement::Answer),
    /// The answer to [`Want::Search`].
    Searched(commits::CommitOutcome),
    /// The outcome of a registration of windows, and the serials of the windows.
    Registered(RegistrationOutcome, Vec<u64>),
    /// The outcome of [`Want::Quiesce`].
    Quiet(Release),
    /// The outcome of [`Want::Deregister`].
    Deregistered(Release),
    /// The outcome of [`Want::Share`], and the identities that this rank has read from the peers' memory. The second
    /// field is `None` if the rank could not map the memory of all peers.
    Shared(memory_sharing::OpeningOutcome, Option<Vec<u64>>),
    /// The outcome of [`Want::OpenSegments`] or [`Want::Open`].
    Opened(memory_sharing::OpeningOutcome),
}

/// The next request of a state machine.
#[derive(Debug)]
pub(crate) enum Want {
    Store(StoreRequest),
    /// A part of the search that follows if the [logs](super) of the pools differ between the members of a commit. The
    /// search finds the first operation that differs. The [`CommitPlan`] asks for some hashes of this rank's log, or
    /// for one operation in it.
    Search(CommitPlan),
    /// Registers windows for the first `segments` of the commit's new segments, those that were not committed before. A
    /// segment whose ordinal is in `joined` shares the window of the segment before it. If the registration has not
    /// ended by `until` on the rank's own clock, its outcome is `Blocked`. It may fail earlier, once the value at
    /// `verdict_key` in the store says that the commit has failed or has [poisoned](super) the group.
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
    Share(Vec<RendezvousRecord>),
    /// Opens the peers' memory that the plan of an exchange uses.
    Open(exchange::Agreement),
    /// Requests nothing: the meeting has ended with this result. The second field lists keys of the meeting that this
    /// rank now removes from the store. It is empty unless this rank has seen that all members have read the result.
    /// See [`Conclusion::read`](agreement::Conclusion::read).
    Done(MeetingResult, Vec<String>),
}

impl Want {
    /// Returns a number for the kind of request. The simulation counts the distinct states that its runs visit, and
    /// this number is a part of a rank's [state](crate::rank::Rank::code). Similar requests to the store share a
    /// number, so that they do not count as different states.
    pub(crate) fn code(&self) -> u64 {
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
            Want::Done(..) => 13,
            Want::Open(_) => 14,
            Want::OpenSegments(_) => 15,
        }
    }
}

impl Work {
    /// Returns true while the other members may reach a result by this rank's record, and this rank has not read the
    /// result. Returns false once the meeting has ended on this rank, even if the rank never learned the result.
    pub(crate) fn is_in_doubt(&self) -> bool {
        match self {
            Work::Commit { machine, .. } => machine.agreement.is_in_doubt(),
            Work::Plain { machine, .. } => machine.agreement.is_in_doubt(),
            Work::Retire { machine, .. } => machine.agreement.is_in_doubt(),
            Work::Length { machine } => machine.agreement.is_in_doubt(),
            Work::Exchange { machine, .. } => machine.agreement.is_in_doubt(),
            Work::Meet { machine, .. } => machine.agreement.is_in_doubt(),
        }
    }

    /// Returns the groups whose [logs](symm_agreement::GroupLog) the meeting uses. A rendezvous, an exchange and an
    /// agreement on a length use none.
    pub(crate) fn groups(&self) -> Vec<GroupId> {
        let states = match self {
            Work::Commit { group_state, .. } => std::slice::from_ref(group_state),
            Work::Plain { unregistered, .. } => std::slice::from_ref(&unregistered.group_state),
            Work::Retire { group_states, .. } => group_states,
            Work::Length { .. } | Work::Exchange { .. } | Work::Meet { .. } => &[],
        };
        states.iter().map(|group_state| lock(group_state).log.group()).collect()
    }

    /// Passes an answer to the state machine at the time `now` of the rank's own clock, and returns its next request.
    pub(crate) fn step(&mut self, answer: Answer, now: Duration) -> Want {
        match self {
            Work::Commit { machine, window_indexes, serials, .. } => {
                if let Answer::Registered(_, made) = &answer {
                    *serials = window_indexes.iter().filter_map(|at| made.get(*at).copied()).collect();
                }
                step_commit(machine, answer, now)
            }
            Work::Plain { machine, .. } => machine.step(
                answer,
                now,
                |_| None,
                |plan, _, _| match plan {},
                |result, _| MeetingResult::Plain(result.map_err(plain_ending)),
            ),
            Work::Retire { machine, .. } => step_retirement(machine, answer, now),
            Work::Length { machine } => machine.step(
                answer,
                now,
                |_| None,
                |plan, _, _| match plan {},
                |result, it| {
                    MeetingResult::Length(result.map_err(|ending| length_ending(ending, &it.member)))
                },
            ),
            Work::Exchange { machine, .. } => machine.step(
                answer,
                now,
                opened,
                |plan, _, _| Want::Open(plan),
                |result, it| {
                    // `None` means that the members have agreed on the value in `Want::Open`, which `last` holds.
                    let agreed = |agreed: Option<exchange::Agreement>| {
                        agreed.or_else(|| it.last.clone()).ok_or(Ending::OutOfStep)
                    };
                    MeetingResult::Exchange(result.map_err(Ending::of_meeting).and_then(agreed))
                },
            ),
            Work::Meet { machine, peers, .. } => {
                if let Answer::Shared(_, mapped) = &answer {
                    peers.clone_from(mapped);
                }
                machine.step(
                    answer,
                    now,
                    opened,
                    |plan, _, _| Want::Share(plan),
                    |result, _| MeetingResult::Meet(result.map_err(Ending::of_meeting)),
                )
            }
        }
    }
}

fn step_commit(machine: &mut Machine<CommitProtocol>, answer: Answer, now: Duration) -> Want {
    let outcome = |answer| match answer {
        Answer::Searched(answer) => Some(answer),
        Answer::Registered(outcome, _) => Some(commits::CommitOutcome::Registered(outcome)),
        Answer::Opened(outcome) => Some(commits::CommitOutcome::Opened(outcome)),
        _ => None,
    };
    let act = |plan, until, verdict_key| match plan {
        CommitPlan::Register(agreed) => {
            Want::Register { segments: agreed.segments as usize, joined: agreed.joined, until, verdict_key }
        }
        CommitPlan::Open(agreed) => Want::OpenSegments(agreed),
        plan => Want::Search(plan),
    };
    machine.step(answer, now, outcome, act, |result, it| {
        MeetingResult::Commit(result.map_err(|ending| commit_ending(ending, &it.member, it.last.as_ref())))
    })
}

fn step_retirement(machine: &mut Machine<RetireProtocol>, answer: Answer, now: Duration) -> Want {
    let outcome = |answer| match answer {
        Answer::Quiet(release) => Some(RetireOutcome::Quiet(release)),
        Answer::Deregistered(release) => Some(RetireOutcome::Deregistered(release)),
        _ => None,
    };
    let act = |plan, until, _| match plan {
        RetirePlan::Quiesce {} => Want::Quiesce(until),
        RetirePlan::Deregister {} => Want::Deregister(until),
    };
    machine.step(answer, now, outcome, act, |result, it| {
        let ending = |ending| retirement_ending(ending, &it.member, it.last.as_ref());
        MeetingResult::Retire(result.or_else(ending))
    })
}

/// Returns the outcome of opening or mapping the peers' memory, or `None` for other answers.
fn opened(answer: Answer) -> Option<memory_sharing::OpeningOutcome> {
    match answer {
        Answer::Opened(outcome) | Answer::Shared(outcome, _) => Some(outcome),
        _ => None,
    }
}
