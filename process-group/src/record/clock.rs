//! Time stamps: recorded as ticks, which are cheaper than the time of day, and converted when they are read.
//!
//! A tick is one step of the processor's counter if that runs at a constant rate in every state, and a
//! nanosecond otherwise.

use std::time::{SystemTime, UNIX_EPOCH};

/// Returns the current time in ticks; never 0.
#[inline]
pub(crate) fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    if counter::is_even() {
        return counter::read();
    }
    day()
}

/// Returns the time of day, in ns since 1970.
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

/// Converts ticks since its creation to times of day.
#[derive(Debug)]
pub(super) struct Clock {
    beginning: Both,
}

impl Clock {
    pub(super) fn begin() -> Self {
        Self { beginning: Both::now() }
    }

    /// Returns the scale for ticks up to now.
    pub(super) fn scale(&self) -> Scale {
        Scale { from: self.beginning, to: Both::now() }
    }
}

/// Converts ticks between two moments to ns since 1970. Ticks close to either moment are as exact as that
/// moment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scale {
    from: Both,
    to: Both,
}

impl Scale {
    /// Returns ns since 1970.
    pub(super) fn day(&self, ticks: u64) -> u64 {
        let Self { from, to } = *self;
        let (all, back) = (to.ticks.saturating_sub(from.ticks), to.ticks.saturating_sub(ticks));
        // If the time of day was set back meanwhile, the start lies after the end. Every time is then
        // converted to the end.
        let ns =
            u128::from(to.day.saturating_sub(from.day)) * u128::from(back.min(all)) / u128::from(all.max(1));
        to.day.saturating_sub(u64::try_from(ns).unwrap_or(u64::MAX))
    }

    /// Returns the last moment, in ns since 1970.
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

    /// Returns true if the counter runs at a constant rate, independent of the processor's frequency and
    /// sleep states.
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

    /// The invariant TSC: Intel's manual, volume 3, "Invariant TSC"; AMD's, volume 2, "Time-stamp counter".
    #[cold]
    fn ask() -> bool {
        const POWER: u32 = 0x8000_0007;
        const INVARIANT: u32 = 1 << 8;
        #[allow(unused_unsafe, reason = "newer releases of the compiler have it safe")]
        // SAFETY: every processor of this architecture has the instruction.
        unsafe {
            __cpuid(0x8000_0000).eax >= POWER && __cpuid(POWER).edx & INVARIANT != 0
        }
    }

    #[inline]
    pub(super) fn read() -> u64 {
        // SAFETY: every processor of this architecture has the instruction, and Linux leaves it to everybody.
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
            // Between the two, except for the precision of the ends: the thread may have been preempted
            // there.
            let (told, slack) = (scale.day(ticks), 100_000_000);
            assert!((before - slack..=after + slack).contains(&told), "{before} {told} {after}");
        }
    }

    proptest! {
        /// Later ticks are never converted to earlier times, and the ends are exact.
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
