//! The part of an agreement in which members are missing: the search for a circular wait, and for another explanation.

use std::time::Duration;

use super::{Agreement, Phase};
use crate::agreement::{
    failure::{Absentee, Failure},
    interface::{Ending, Member, Output},
    messages::{self, sealed_failure},
    place::{self, Place, Waiting},
    protocol::{Absence, Protocol},
    trace::{self, Trace, Traced},
    vote::{Request, Vote},
};

impl<P: Protocol> Agreement<P> {
    /// Proposes the decision if all records are posted. Otherwise searches for a circular wait through the missing
    /// members. `posted` and `places` are the stored values of the records and of the lists of places, one per member,
    /// in the order of the member list.
    pub(super) fn take_records(
        &mut self,
        vote: Vote,
        posted: &[Option<Vec<u8>>],
        places: &[Option<Vec<u8>>],
        now: Duration,
    ) -> Output<P> {
        let places = places.iter().map(|value| place::from_value(value.as_deref()));
        let places: Vec<_> = self.member.members.iter().copied().zip(places).collect();
        let missing = places.iter().zip(posted).filter(|(_, posted)| posted.is_none());
        let absentee = |((rank, places), _): (&(u32, Vec<Place>), _)| {
            let elsewhere = places.iter().filter(|place| place.name != self.member.name);
            Absentee { rank: *rank, elsewhere: elsewhere.cloned().collect() }
        };
        let mut missing: Vec<Absentee> = missing.map(absentee).collect();
        missing.sort_by_key(|absentee| absentee.rank);
        if missing.is_empty() {
            let sealed = self.decide(posted.iter().flatten());
            return self.propose(vote, None, sealed);
        }
        let trace = Trace::new(self.member.rank, self.place(), places);
        self.trace(vote, trace, missing, &[], now)
    }

    /// Begins the search for a circular wait, or continues it with `values`, the answer to its last request. When the
    /// search ends, fails all agreements of the circle. If there is no circle, asks for the keys that may explain why
    /// members are missing.
    pub(super) fn trace(
        &mut self,
        vote: Vote,
        mut trace: Trace,
        missing: Vec<Absentee>,
        values: &[Option<Vec<u8>>],
        now: Duration,
    ) -> Output<P> {
        let circle = match trace.step(values) {
            Traced::Unasked => return self.end(Err(Ending::OutOfStep), Vec::new()),
            Traced::Ask(ask) => {
                self.phase = Phase::Tracing(vote, trace, missing);
                return Output::Store(ask);
            }
            Traced::Circle(circle) => circle,
        };
        let keys = if circle.is_empty() { P::evidence(&self.member.name, &missing) } else { Vec::new() };
        if !keys.is_empty() {
            self.phase = Phase::Explaining(vote, missing);
            return Output::Store(Request::Fetch { keys });
        }
        let (by, waited_ms) = (self.member.rank, self.waited_ms(now));
        let others = self.failures_of(&circle, by, waited_ms);
        self.open(vote, others, Failure::Absent { missing, by, waited_ms, circle })
    }

    /// Refuses the agreement if [`Protocol::explain`] finds the reason why members are missing, and fails it otherwise.
    pub(super) fn explain(
        &mut self,
        vote: Vote,
        missing: Vec<Absentee>,
        values: &[Option<Vec<u8>>],
        now: Duration,
    ) -> Output<P> {
        let Member { name, members, rank: by, .. } = &self.member;
        let waited_ms = self.waited_ms(now);
        let absence = Absence { name, members, missing: &missing, waited_ms, values };
        let value = match P::explain(&absence) {
            Some(refusal) => messages::refusal::<P>(refusal),
            None => sealed_failure(Failure::Absent { missing, by: *by, waited_ms, circle: Vec::new() }),
        };
        self.propose(vote, None, value)
    }

    fn waited_ms(&self, now: Duration) -> u64 {
        now.saturating_sub(self.begun).as_millis() as u64
    }

    /// Returns the requests that fail the agreements of `circle` other than this one.
    pub(super) fn failures_of(&self, circle: &[Waiting], by: u32, waited_ms: u64) -> Vec<Request> {
        let failure = |(place, missing): (Place, Vec<Absentee>)| Request::Propose {
            key: place.decision_key(),
            value: sealed_failure(Failure::Absent { missing, by, waited_ms, circle: circle.to_vec() }),
        };
        trace::others(circle, &self.place()).into_iter().map(failure).collect()
    }

    /// Follows the stored `failure`. If it lists a circular wait of this member, fails the other agreements of the circle
    /// first. A member that arrives later is not in the circle, and finds all its agreements decided. Their keys may be
    /// removed by then, and a proposal would create a key that nobody removes.
    pub(super) fn follow(&mut self, failure: Failure) -> Output<P> {
        let Member { name, rank, .. } = &self.member;
        let is_own = |it: &Waiting| it.rank == *rank && it.place.name == *name;
        let rest = match &failure {
            Failure::Absent { by, waited_ms, circle, .. } if circle.iter().any(is_own) => {
                self.failures_of(circle, *by, *waited_ms)
            }
            _ => Vec::new(),
        };
        self.tell(rest, failure)
    }

    /// Sends the last request of `rest`, which fails another agreement of the circular wait that `failure` lists. If
    /// `rest` is empty, leaves this agreement. If a member of a circle left before all agreements of the circle have
    /// failed, another member could find no circle any more, and fail its agreement without naming one.
    pub(super) fn tell(&mut self, mut rest: Vec<Request>, failure: Failure) -> Output<P> {
        match rest.pop() {
            Some(ask) => {
                self.phase = Phase::Telling(rest, failure);
                Output::Store(ask)
            }
            None => self.leave(Err(Ending::Failed(failure)), true),
        }
    }

    /// Sends the last request of `rest`, which fails another agreement of a circular wait. If `rest` is empty, fails
    /// this agreement.
    pub(super) fn open(&mut self, vote: Vote, mut rest: Vec<Request>, failure: Failure) -> Output<P> {
        match rest.pop() {
            Some(ask) => {
                self.phase = Phase::Opening(vote, rest, failure);
                Output::Store(ask)
            }
            None => self.propose(vote, None, sealed_failure(failure)),
        }
    }
}
