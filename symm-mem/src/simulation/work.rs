//! The current meeting of a rank: one of the state machines, behind a common interface.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use super::{
    oracle::{Kind, Said},
    plans::Exchanging,
};
use crate::{
    agreement::{
        Commit, Conclusion, GroupId, Input, Length, Next, Outcome, Output, Plain, PlainVote, Release, Retire,
        RetireInput, RetireOutput, Retired, Segment,
        meeting::{self, Contribution},
    },
    commit::{GroupState, lock},
    exchange::protocol as exchange,
    rendezvous::protocol::{self, Meeting, Record},
};

/// A state machine with its context.
pub(super) enum Work {
    Commit {
        machine: Box<Commit>,
        seated: Arc<Mutex<GroupState>>,
        group: u64,
        segments: Vec<Segment>,
        /// For each registered segment, the index of its window.
        places: Vec<usize>,
        serials: Vec<u64>,
    },
    /// A commit of the second pool.
    Second {
        machine: Box<Commit>,
        seated: Arc<Mutex<GroupState>>,
        group: u64,
    },
    Plain {
        machine: PlainVote,
        seated: Arc<Mutex<GroupState>>,
        group: u64,
        segments: Vec<Segment>,
        /// True if this rank has registered the segments.
        registered: bool,
    },
    Retire {
        machine: Retire,
        ordinals: Vec<u32>,
        seats: Vec<(u64, Arc<Mutex<GroupState>>)>,
    },
    Length {
        machine: Length,
    },
    Exchange(Box<Exchanging>),
    Meet {
        machine: Meeting,
        group: u64,
        home: super::rank::Home,
        number: u64,
        token: u64,
        peers: Option<Vec<u64>>,
    },
}

/// An answer to a state machine.
#[derive(Debug, Clone)]
pub(super) enum Answer {
    Store(Input),
    Registered(Outcome, Vec<u64>),
    Quiet(Release),
    Deregistered(Release),
    /// The outcome, and the identities of the memory that this rank has mapped.
    Shared(protocol::Outcome, Option<Vec<u64>>),
    Opened(protocol::Outcome),
}

/// The next request of a state machine.
#[derive(Debug)]
pub(super) enum Want {
    Store(Output),
    Hashes(Vec<u64>),
    Recall(u64),
    Register { segments: usize, joined: Vec<u32>, until: Duration, verdict_key: String },
    Quiesce(Duration),
    Deregister(Duration),
    Share(Vec<Record>),
    Open(exchange::Agreement),
    Done(End),
}

/// The conclusion of a meeting.
#[derive(Debug)]
pub(super) enum End {
    Commit(Conclusion),
    Plain(Conclusion<Plain>),
    Retire(Conclusion<Retired>),
    Length(Conclusion<u64>),
    Meet(protocol::Conclusion),
    Exchange(exchange::Conclusion),
}

impl Want {
    /// A code of the variant, for counting states.
    pub(super) fn code(&self) -> u64 {
        match self {
            Want::Store(Output::Set { .. } | Output::Post { .. }) => 1,
            Want::Store(Output::Add { .. }) => 2,
            Want::Store(Output::Fetch { .. }) => 3,
            Want::Store(Output::Propose { .. }) => 4,
            Want::Store(Output::Await { .. }) => 5,
            Want::Store(_) => 6,
            Want::Hashes(_) => 7,
            Want::Recall(_) => 8,
            Want::Register { .. } => 9,
            Want::Quiesce(_) => 10,
            Want::Deregister(_) => 11,
            Want::Share(_) => 12,
            Want::Done(_) => 13,
            Want::Open(_) => 14,
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

    /// Returns true if the others may act on the rank's posts.
    pub(super) fn is_in_doubt(&self) -> bool {
        match self {
            Work::Commit { machine, .. } | Work::Second { machine, .. } => machine.is_in_doubt(),
            Work::Plain { .. } => true,
            Work::Retire { machine, .. } => machine.is_in_doubt(),
            Work::Length { machine } => machine.is_in_doubt(),
            Work::Exchange(_) | Work::Meet { .. } => false,
        }
    }

    /// The groups of the meeting.
    pub(super) fn groups(&self) -> Vec<GroupId> {
        let id = |seated: &Arc<Mutex<GroupState>>| lock(seated).seat.group();
        match self {
            Work::Commit { seated, .. } | Work::Second { seated, .. } | Work::Plain { seated, .. } => {
                vec![id(seated)]
            }
            Work::Retire { seats, .. } => seats.iter().map(|(_, seated)| id(seated)).collect(),
            Work::Length { .. } | Work::Exchange(_) | Work::Meet { .. } => Vec::new(),
        }
    }

    /// A code of the variant, for counting states.
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

    /// Passes an answer to the state machine and returns its next request.
    pub(super) fn step(&mut self, answer: Answer, now: Duration) -> Want {
        match self {
            Work::Commit { machine, places, serials, .. } => {
                let input = match answer {
                    Answer::Store(input) => input,
                    Answer::Registered(outcome, made) => {
                        *serials = places.iter().filter_map(|at| made.get(*at).copied()).collect();
                        Input::Registered(outcome)
                    }
                    // An unexpected answer, which the machine reports as out of step.
                    _ => Input::Stored,
                };
                commit(machine.step(input, now))
            }
            Work::Second { machine, .. } => {
                let Answer::Store(input) = answer else { return commit(machine.step(Input::Stored, now)) };
                commit(machine.step(input, now))
            }
            Work::Plain { machine, .. } => {
                let Answer::Store(input) = answer else {
                    return Want::Store(Output::Fetch { keys: Vec::new() });
                };
                match machine.step(input) {
                    Next::Ask(ask) => Want::Store(ask),
                    Next::Done(meeting) => Want::Done(End::Plain(meeting)),
                }
            }
            Work::Retire { machine, .. } => {
                let input = match answer {
                    Answer::Store(input) => RetireInput::Answer(input),
                    Answer::Quiet(release) => RetireInput::Quiet(release),
                    Answer::Deregistered(release) => RetireInput::Deregistered(release),
                    _ => RetireInput::Answer(Input::Stored),
                };
                match machine.step(input, now) {
                    RetireOutput::Ask(ask) => Want::Store(ask),
                    RetireOutput::Quiesce { until } => Want::Quiesce(until),
                    RetireOutput::Deregister { until } => Want::Deregister(until),
                    RetireOutput::Done(meeting) => Want::Done(End::Retire(meeting)),
                }
            }
            Work::Length { machine } => {
                let Answer::Store(input) = answer else {
                    return Want::Store(Output::Fetch { keys: Vec::new() });
                };
                match machine.step(input, now) {
                    Next::Ask(ask) => Want::Store(ask),
                    Next::Done(meeting) => Want::Done(End::Length(meeting)),
                }
            }
            Work::Exchange(work) => meet(&mut work.machine, answer, now, Want::Open, End::Exchange),
            Work::Meet { machine, peers, .. } => {
                if let Answer::Shared(_, mapped) = &answer {
                    peers.clone_from(mapped);
                }
                meet(machine, answer, now, Want::Share, End::Meet)
            }
        }
    }
}

/// Converts the output of a commit's state machine.
fn commit(output: Output) -> Want {
    match output {
        Output::Done(conclusion) => Want::Done(End::Commit(conclusion)),
        Output::Hashes { lengths } => Want::Hashes(lengths),
        Output::Recall { sequence } => Want::Recall(sequence),
        Output::Register { segments, joined, until, verdict_key } => {
            Want::Register { segments: segments as usize, joined, until, verdict_key }
        }
        ask => Want::Store(ask),
    }
}

/// Passes an answer to a meeting's state machine and returns its next request.
fn meet<C: Contribution>(
    machine: &mut meeting::Meeting<C>,
    answer: Answer,
    now: Duration,
    open: fn(C::Opening) -> Want,
    end: fn(meeting::Conclusion<C>) -> End,
) -> Want {
    let input = match answer {
        Answer::Store(input) => meeting::Input::Store(input),
        Answer::Opened(outcome) | Answer::Shared(outcome, _) => meeting::Input::Opened(outcome),
        // An unexpected answer, which the machine reports as out of step.
        _ => meeting::Input::Store(Input::Start),
    };
    match machine.step(input, now) {
        meeting::Output::Store(ask) => Want::Store(ask),
        meeting::Output::Open { opening, .. } => open(opening),
        meeting::Output::Done(conclusion) => Want::Done(end(conclusion)),
    }
}
