//! The actions of an agreement: their time limits, and the verdicts on their outcomes.

use std::time::Duration;

use super::{Agreement, Phase};
use crate::agreement::{
    budget::Limits,
    interface::Output,
    messages::{OUTCOME, VERDICT, message, read, unreadable},
    place::{outcomes, result_key},
    protocol::{Protocol, Report},
    vote::Gathering,
};

impl<P: Protocol> Agreement<P> {
    /// Asks for the action with this plan.
    pub(super) fn act(&mut self, plan: P::Plan, now: Duration) -> Output<P> {
        if self.actions == 0 || !P::shares_limits(&plan) {
            self.limits = Limits::of(now, self.patience, P::ACTION_FLOOR);
        } else {
            self.limits = self.limits.for_next(now);
        }
        self.has_acted = true;
        self.phase = Phase::Acting(plan.clone());
        let verdict = result_key(&outcomes(&self.member.name, self.actions));
        Output::Act { plan, until: self.limits.action, verdict }
    }

    /// Returns the encoded verdict on the outcomes of the action with this plan. Returns an encoded failure in its place
    /// if an outcome cannot be read.
    pub(super) fn judge(&self, plan: &P::Plan, posted: &[Option<Vec<u8>>], why: Gathering) -> Vec<u8> {
        let mut reports = Vec::new();
        for (rank, bytes) in self.member.members.iter().copied().zip(posted) {
            let report = match (bytes, why) {
                (Some(bytes), _) => match read::<P, P::Outcome>(OUTCOME, bytes) {
                    Ok(outcome) => Report::Outcome(outcome),
                    Err(malformed) => return unreadable(rank, &malformed),
                },
                (None, Gathering::Expired) => Report::Late,
                (None, Gathering::Now | Gathering::Counted) => Report::Pending,
            };
            reports.push((rank, report));
        }
        message::<P>(VERDICT, &P::judge(plan, &reports))
    }
}
