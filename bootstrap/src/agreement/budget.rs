//! Time limits of the steps of an agreement.

use std::time::Duration;

/// The least time for an action of all members.
pub(super) const ACTION_FLOOR: Duration = Duration::from_secs(10);
/// The least time that members wait for each other's outcomes.
pub(super) const OUTCOME_FLOOR: Duration = Duration::from_secs(5);

/// Returns the time for an action, from the longest patience among the members.
pub(super) fn action(patience: Duration) -> Duration {
    (patience / 2).max(ACTION_FLOOR)
}

/// Returns the time to wait for the outcomes of an action, from the longest patience among the members.
pub(super) fn outcomes(patience: Duration) -> Duration {
    (patience / 4).max(OUTCOME_FLOOR)
}
