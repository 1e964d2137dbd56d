//! When something happened: noted as ticks, which cost less than the time of day does, and told as that when somebody
//! reads.
//!
//! A tick is of the processor's counter where that counts evenly in every state, and a nanosecond elsewhere.

use std::time::{SystemTime, UNIX_EPOCH};

/// This moment; never 0.
#[inline]
pub(crate) fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    if counter::is_even() {
        return counter::read();
    }
    day()
}

/// ns since 1970.
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

/// Tells ticks from its beginning on as times of day.
#[derive(Debug)]
pub(super) struct Clock {
    beginning: Both,
}

impl Clock {
    pub(super) fn begin() -> Self {
        Self { beginning: Both::now() }
    }

    /// For ticks up to now.
    pub(super) fn scale(&self) -> Scale {
        Scale { from: self.beginning, to: Both::now() }
    }
}

/// What ticks between two moments are in ns since 1970. Those close to either are told as exactly as that was.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scale {
    from: Both,
    to: Both,
}

impl Scale {
    /// ns since 1970.
    pub(super) fn day(&self, ticks: u64) -> u64 {
        let Self { from, to } = *self;
        let (all, back) = (to.ticks.saturating_sub(from.ticks), to.ticks.saturating_sub(ticks));
        // A day that was set back meanwhile began later than it ends; then all is told as its end.
        let ns =
            u128::from(to.day.saturating_sub(from.day)) * u128::from(back.min(all)) / u128::from(all.max(1));
        to.day.saturating_sub(u64::try_from(ns).unwrap_or(u64::MAX))
    }

    /// The last moment, in ns since 1970.
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

    /// Whether the counter counts evenly, whatever the processor's frequency, and while it sleeps.
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
            // Between the two, but for how exactly the ends were noted: a thread may have been held up there.
            let (told, slack) = (scale.day(ticks), 100_000_000);
            assert!((before - slack..=after + slack).contains(&told), "{before} {told} {after}");
        }
    }

    proptest! {
        /// Later is never told as earlier, and the ends as what they were.
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
