//! Deadlines of waits.

use std::time::Duration;

use crate::runtime::Instant;

/// The time at which a wait gives up, on the clock of the current [runtime](crate::runtime). Pass a copy to several
/// waits to bound all of them together.
///
/// ```
/// use bootstrap::store::Deadline;
/// use std::time::Duration;
///
/// let deadline = Deadline::after(Duration::from_secs(30));
/// assert!(!deadline.expired());
/// assert!(deadline.remaining() <= Duration::from_secs(30));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadline {
    /// The time at which the deadline was created.
    set: Instant,
    timeout: Duration,
}

impl Deadline {
    /// The longest timeout: 100 years. It can be added to the current time without overflow.
    const FURTHEST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

    /// Returns the deadline `timeout` from now. A timeout of more than 100 years is shortened to 100 years.
    pub fn after(timeout: Duration) -> Self {
        Self { set: Instant::now(), timeout: timeout.min(Self::FURTHEST) }
    }

    /// Returns a deadline that has passed. An operation with this deadline checks its keys, but does not wait for them.
    /// The operation may still block until the store answers.
    pub fn now() -> Self {
        Self::after(Duration::ZERO)
    }

    /// Returns the time left. It is zero once the deadline has passed.
    pub fn remaining(&self) -> Duration {
        self.timeout.saturating_sub(self.set.elapsed())
    }

    /// Returns true if the deadline has passed.
    pub fn expired(&self) -> bool {
        self.remaining().is_zero()
    }

    /// Returns the time between the creation of this deadline and the time at which it passes.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Returns the time since this deadline was created.
    pub fn waited(&self) -> Duration {
        self.set.elapsed()
    }

    /// Returns a new deadline `timeout` from now if that is earlier than this deadline, otherwise this deadline.
    #[must_use]
    pub fn at_most(self, timeout: Duration) -> Self {
        let other = Self::after(timeout);
        if other.set + other.timeout < self.set + self.timeout { other } else { self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_extremes_hold() {
        assert!(Deadline::now().expired());
        assert!(Deadline::after(Duration::MAX).remaining() > Duration::from_secs(1 << 30));
        let hour = Deadline::after(Duration::from_secs(3600));
        assert_eq!(hour.at_most(Duration::MAX), hour);
        assert!(hour.at_most(Duration::ZERO).expired());
    }
}
