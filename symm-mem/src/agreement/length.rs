//! Agreement of a domain's ranks on the length of an allocation: the greatest that any of them needs.

use std::time::Duration;

use super::{
    decide::{Decision, unlike},
    machine::{Conclusion, Ending, Input, Output, share},
    meeting_id::{MeetingId, MeetingKind},
    ranks::RankList,
    record::PoolId,
    record_gather::{Arriving, RecordGather, read},
    refusal::Membership,
    wire::{Message, wire_struct},
};

/// The length that a rank needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Need {
    rank: u32,
    /// The ranks of the pool's domain.
    domain: RankList,
    bytes: u64,
}
wire_struct!(Need { rank, domain, bytes });

impl Message for Need {
    const PROTOCOL: crate::agreement::wire::Protocol = crate::agreement::PROTOCOL;
    const KIND: u8 = 9;
}

/// Decides on the greatest length of all `needs`.
fn decide(needs: &[Need]) -> Decision {
    match unlike(Membership::Domain, needs.iter().map(|need| (need.rank, &need.domain))) {
        Some(refusal) => Decision::refuse(refusal),
        None => Decision::Reserve {
            members: needs.first().map(|need| need.domain.clone()).unwrap_or_default(),
            bytes: needs.iter().map(|need| need.bytes).max().unwrap_or(0),
        },
    }
}

/// The next step of an agreement of the whole domain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next<T> {
    /// A request to the store.
    Ask(Output),
    /// The machine has ended.
    Done(Conclusion<T>),
}

/// One member's part in one agreement on a length.
#[derive(Debug)]
pub struct Length {
    members: Vec<u32>,
    arrival: RecordGather,
}

impl Length {
    /// Creates agreement number `round` among `members`. Rank `rank` needs `bytes` bytes, and the agreement takes at
    /// most `deadline`.
    pub fn new(
        pool: PoolId,
        round: u64,
        rank: u32,
        members: Vec<u32>,
        bytes: u64,
        deadline: Duration,
    ) -> Self {
        let place = MeetingId { pool, kind: MeetingKind::Length {}, round, members: members.clone() };
        let deadline_ms = u64::try_from(deadline.as_millis()).unwrap_or(u64::MAX);
        // No phase follows the decision, so the wait for the others gets all of the deadline except for the share of
        // the store requests.
        let patience = share(deadline_ms, 15);
        let need = Need { rank, domain: members.as_slice().into(), bytes };
        let arrival = RecordGather::new(rank, place, need.to_bytes(), patience);
        Self { members, arrival }
    }

    /// Returns true if this rank has posted its length, so that the others may have agreed.
    pub fn is_in_doubt(&self) -> bool {
        self.arrival.has_posted()
    }

    /// Processes an input at the time `now` (since any fixed moment) and returns the next step.
    pub fn step(&mut self, input: Input, now: Duration) -> Next<u64> {
        if input == Input::StoreFailed {
            return self.end(Err(Ending::StoreFailed { in_doubt: self.is_in_doubt() }), false);
        }
        match self.arrival.step(input, now) {
            Arriving::Ask(ask) => Next::Ask(ask),
            Arriving::Decide(posted) => {
                let decision = match read::<Need>(&self.members, &posted) {
                    Ok(needs) => decide(&needs),
                    Err(refusal) => Decision::refuse(refusal),
                };
                Next::Ask(self.arrival.propose(&decision))
            }
            Arriving::Stands(value) => match Decision::decode(&value) {
                Err(source) => self.end(Err(Ending::Unreadable { source }), false),
                Ok(decision) => {
                    let all_arrived = decision.is_of_all();
                    let result = match decision {
                        Decision::Reserve { bytes, .. } => Ok(bytes),
                        Decision::Refuse { refusal, .. } => Err(Ending::Refused(refusal)),
                        _ => Err(Ending::OutOfStep),
                    };
                    self.end(result, all_arrived)
                }
            },
            Arriving::Unasked => self.end(Err(Ending::OutOfStep), false),
        }
    }

    fn end(&mut self, result: Result<u64, Ending>, all_arrived: bool) -> Next<u64> {
        Next::Done(Conclusion { result, all_arrived, keys: self.arrival.keys_to_remove() })
    }
}
