//! Time limits of actions and of the waits for outcomes.

use std::time::Duration;

/// The shortest limit of a member's wait for the outcomes that the other members post after an action. It is counted
/// from the deadline of the action.
pub const OUTCOME_FLOOR: Duration = Duration::from_secs(5);
/// The upper bound of the limits that [`action`] and [`outcomes`] return, except for the floor of an action. With this
/// bound, a member with a very long patience does not make the others wait for very long.
const CAP: Duration = Duration::from_secs(600);

/// Returns the time limit of an action: half of `patience`, at most [`CAP`], and at least `floor`. `patience` is the
/// longest among the members. `floor` is [`Protocol::ACTION_FLOOR`](super::Protocol::ACTION_FLOOR), and may exceed
/// [`CAP`].
pub(super) fn action(patience: Duration, floor: Duration) -> Duration {
    (patience / 2).min(CAP).max(floor)
}

/// Returns the time that a member waits for the outcomes after the deadline of the action: a quarter of `patience`, at
/// least [`OUTCOME_FLOOR`] and at most [`CAP`]. `patience` is the longest among the members.
pub(super) fn outcomes(patience: Duration) -> Duration {
    (patience / 4).clamp(OUTCOME_FLOOR, CAP)
}

/// The time limits of an action, on the clock of [`Agreement::step`](super::Agreement::step).
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Limits {
    /// The deadline of the action.
    pub(super) action: Duration,
    /// The end of the wait for the outcomes.
    pub(super) outcomes: Duration,
    /// The upper bound of `outcomes` for the next actions that share these limits.
    latest: Duration,
}

impl Limits {
    /// Returns the limits of an action that begins at the time `now`. See [`action`].
    pub(super) fn of(now: Duration, patience: Duration, floor: Duration) -> Self {
        let action = now.saturating_add(action(patience, floor));
        let outcomes = action.saturating_add(outcomes(patience));
        Self { action, outcomes, latest: outcomes.saturating_add(OUTCOME_FLOOR) }
    }

    /// Returns the limits of an action that begins at the time `now` and shares these limits. If the verdict on the
    /// action before it came late, the wait for the outcomes ends [`OUTCOME_FLOOR`] from now, and the action may take
    /// half of that. Otherwise, the action would have no time, or the verdict on it could name a member that is only a
    /// little slower than the others. All actions that share limits together can lengthen the wait by at most
    /// [`OUTCOME_FLOOR`].
    pub(super) fn for_next(self, now: Duration) -> Self {
        let outcomes = now.saturating_add(OUTCOME_FLOOR).clamp(self.outcomes, self.latest);
        let action = now.saturating_add(OUTCOME_FLOOR / 2).min(outcomes);
        Self { action: self.action.max(action), outcomes, ..self }
    }
}
