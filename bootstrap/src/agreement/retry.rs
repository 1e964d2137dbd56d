//! The repetition of failed requests by a member in doubt.

use std::time::Duration;

/// Decides how long a member in doubt repeats one failed request. The clock is the caller's.
///
/// [`run`](super::run) follows this rule, and a simulation that drives [`Agreement`](super::Agreement) itself can use
/// it too. The rule does not consider the kind of the error, or whether the object of the agreement has ended.
#[derive(Debug, Clone, Copy, Default)]
pub struct Retry {
    /// The time of the first error.
    first_failed: Option<Duration>,
}

impl Retry {
    /// The pause before each repetition.
    pub const PAUSE: Duration = Duration::from_millis(50);
    /// The shortest time, counted from the first error of the request, for which a member in doubt repeats it.
    pub const FLOOR: Duration = Duration::from_secs(5);

    /// Returns whether the request is repeated after an error at the time `now`: until the time `until`, and for at
    /// least [`FLOOR`](Self::FLOOR). `until` is `None` if the member is not in doubt. The request is then not repeated.
    pub fn is_due(&mut self, now: Duration, until: Option<Duration>) -> bool {
        let floor = *self.first_failed.get_or_insert(now) + Self::FLOOR;
        until.is_some_and(|until| now < until.max(floor))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Duration = Duration::from_millis(1);

    #[test]
    fn a_request_is_repeated_until_the_deadline_and_at_least_for_the_floor() {
        let first = Duration::from_secs(100);
        for until in [Duration::ZERO, first, first + Retry::FLOOR, first + 3 * Retry::FLOOR] {
            let (mut retry, end) = (Retry::default(), until.max(first + Retry::FLOOR));
            for now in [first, first + Retry::PAUSE, end - STEP] {
                assert!(retry.is_due(now, Some(until)), "at {now:?}, until {until:?}");
            }
            assert!(!retry.is_due(end, Some(until)), "at {end:?}, until {until:?}");
        }
    }

    #[test]
    fn a_member_that_is_not_in_doubt_repeats_nothing() {
        let mut retry = Retry::default();
        assert!(!retry.is_due(Duration::ZERO, None));
    }
}
