//! Time limits of the steps of an agreement.

use std::time::Duration;

/// The least time that members wait for each other's outcomes.
const OUTCOME_FLOOR: Duration = Duration::from_secs(5);
/// The most time for an action, and for the wait for its outcomes, so that one member's long patience does not keep the
/// others for as long.
const CAP: Duration = Duration::from_secs(600);

/// Returns the time for an action, from the longest patience among the members and the protocol's least time.
pub(super) fn action(patience: Duration, floor: Duration) -> Duration {
    (patience / 2).min(CAP).max(floor)
}

/// Returns the time to wait for the outcomes of an action, from the longest patience among the members.
pub(super) fn outcomes(patience: Duration) -> Duration {
    (patience / 4).clamp(OUTCOME_FLOOR, CAP)
}
