//! Time limits of the steps of an agreement.

use std::time::Duration;

/// The least time that members wait for each other's outcomes.
const OUTCOME_FLOOR: Duration = Duration::from_secs(5);
/// The longest time for an action, and for the wait for its outcomes. It bounds how long the long patience of one
/// member can block the others.
const CAP: Duration = Duration::from_secs(600);

/// Returns the time for an action. `patience`: the longest among the members. `floor`: the protocol's least time,
/// which may exceed [`CAP`].
pub(super) fn action(patience: Duration, floor: Duration) -> Duration {
    (patience / 2).min(CAP).max(floor)
}

/// Returns the time to wait for the outcomes after the deadline of the action. `patience`: the longest among the
/// members.
pub(super) fn outcomes(patience: Duration) -> Duration {
    (patience / 4).clamp(OUTCOME_FLOOR, CAP)
}
