//! Time stamps. Calls record ticks, because reading them is cheaper than reading the system clock. Ticks are
//! converted to times of day when the log is read.
//!
//! On x86-64 processors with an invariant time-stamp counter (TSC), a tick is one step of that counter.
//! Elsewhere, a tick is one nanosecond of the system clock.

use std::time::{SystemTime, UNIX_EPOCH};

/// Returns the current time in ticks. Never returns 0, which stands for an unknown time.
#[inline]
pub(crate) fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    if counter::is_even() {
        return counter::read();
    }
    day()
}

/// Returns the system clock's time, in ns since 1970.
fn day() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX).max(1)
}

/// One moment, in ticks and in ns since 1970.
#[derive(Debug, Clone, Copy)]
struct Both {
    ticks: u64,
    day: u64,
}

impl Both {
    fn now() -> Self {
        Self { ticks: ticks(), day: day() }
    }
}

/// Converts ticks to times of day, for ticks taken after this clock was created.
#[derive(Debug)]
pub(super) struct Clock {
    beginning: Both,
}

impl Clock {
    pub(super) fn begin() -> Self {
        Self { beginning: Both::now() }
    }

    /// Returns a converter for ticks between the clock's creation and now.
    pub(super) fn scale(&self) -> Scale {
        Scale { from: self.beginning, to: Both::now() }
    }
}

/// Converts ticks between two moments to ns since 1970, by linear interpolation.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scale {
    from: Both,
    to: Both,
}

impl Scale {
    /// Converts `ticks` to ns since 1970.
    pub(super) fn day(&self, ticks: u64) -> u64 {
        let Self { from, to } = *self;
        let (all, back) = (to.ticks.saturating_sub(from.ticks), to.ticks.saturating_sub(ticks));
        // If the system clock was set back between the two moments, `from.day` is later than `to.day`. All
        // ticks are then converted to `to.day`.
        let ns =
            u128::from(to.day.saturating_sub(from.day)) * u128::from(back.min(all)) / u128::from(all.max(1));
        to.day.saturating_sub(u64::try_from(ns).unwrap_or(u64::MAX))
    }

    /// Returns the time at which this scale was made, in ns since 1970.
    pub(super) fn now(&self) -> u64 {
        self.to.day
    }
}

#[cfg(target_arch = "x86_64")]
mod counter {
    use std::{
        arch::x86_64::{__cpuid, _rdtsc},
        sync::atomic::{AtomicU8, Ordering},
    };

    /// Returns true if the TSC runs at a constant rate, independent of the processor's frequency and sleep
    /// states.
    #[inline]
    pub(super) fn is_even() -> bool {
        const UNKNOWN: u8 = 0;
        const EVEN: u8 = 1;
        const NOT: u8 = 2;
        static KNOWN: AtomicU8 = AtomicU8::new(UNKNOWN);
        match KNOWN.load(Ordering::Relaxed) {
            UNKNOWN => {
                let even = ask();
                KNOWN.store(if even { EVEN } else { NOT }, Ordering::Relaxed);
                even
            }
            known => known == EVEN,
        }
    }

    /// Asks CPUID whether the TSC is invariant: Intel's manual, volume 3, "Invariant TSC"; AMD's, volume 2,
    /// "Time-stamp counter".
    #[cold]
    fn ask() -> bool {
        const POWER: u32 = 0x8000_0007;
        const INVARIANT: u32 = 1 << 8;
        #[allow(unused_unsafe, reason = "newer releases of the compiler have it safe")]
        // SAFETY: every x86-64 processor has the CPUID instruction.
        unsafe {
            __cpuid(0x8000_0000).eax >= POWER && __cpuid(POWER).edx & INVARIANT != 0
        }
    }

    #[inline]
    pub(super) fn read() -> u64 {
        // SAFETY: every x86-64 processor has the RDTSC instruction, and Linux allows it in user mode.
        unsafe { _rdtsc() }.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::{thread, time::Duration};

    #[test]
    fn ticks_are_told_as_the_time_of_day() {
        let clock = Clock::begin();
        let moments: Vec<_> = (0..20)
            .map(|_| {
                thread::sleep(Duration::from_millis(1));
                let (before, ticks) = (day(), ticks());
                (before, ticks, day())
            })
            .collect();
        let scale = clock.scale();
        for (before, ticks, after) in moments {
            // The converted time lies between the two readings of the clock. The slack allows for the thread
            // being preempted between the two readings of a `Both`.
            let (told, slack) = (scale.day(ticks), 100_000_000);
            assert!((before - slack..=after + slack).contains(&told), "{before} {told} {after}");
        }
    }

    proptest! {
        /// Later ticks are never converted to earlier times, and both ends are converted exactly.
        #[test]
        fn order_stays(from: (u64, u64), to: (u64, u64), mut ticks in prop::collection::vec(any::<u64>(), 2..9)) {
            let both = |(ticks, day): (u64, u64)| Both { ticks, day };
            let scale = Scale { from: both(from), to: both(to) };
            ticks.sort_unstable();
            prop_assert!(ticks.windows(2).all(|pair| scale.day(pair[0]) <= scale.day(pair[1])));
            prop_assert_eq!(scale.day(to.0), to.1);
            if from.0 < to.0 && from.1 <= to.1 {
                prop_assert_eq!(scale.day(from.0), from.1);
            }
        }
    }
}
