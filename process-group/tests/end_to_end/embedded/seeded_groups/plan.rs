//! The program that a seed stands for.

use std::time::Duration;

/// A random number generator (SplitMix64).
#[derive(Debug, Clone)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}

/// A step of the program, which all ranks take.
#[derive(Debug, Clone)]
pub(super) enum Step {
    /// `calls` all-reduces of so many elements, then a wait for all of them. `in_split`: in the newest split group.
    AllReduce {
        elements: usize,
        calls: usize,
        in_split: bool,
    },
    /// A broadcast from the member at `root` modulo the size.
    Broadcast {
        root: usize,
        in_split: bool,
    },
    Barrier {
        in_split: bool,
    },
    /// A split of the world. Each rank has a color, or none.
    Split {
        colors: Vec<Option<u32>>,
    },
    /// The ranks leave out this one together.
    Shrink {
        excluded: usize,
    },
    /// Each rank does something else for its time.
    Pause {
        times: Vec<Duration>,
    },
}

/// What happens to one rank before a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    None,
    /// Its machine fails: nothing of it arrives at the store any more, not even the ends of its connections.
    Crash,
    /// It does nothing for a while. Its threads go on.
    Stall(Duration),
    /// Its connections to the store are cut, and new ones refused, from this time on.
    LoseStore(Duration),
    /// Its connections to the store are cut after this time. New ones can be made.
    CutStore(Duration),
    /// No byte arrives at the store or comes from it, from this time on.
    Silence(Duration),
    /// It aborts all its groups.
    Abort,
    /// Another thread of it aborts the world after this time.
    AbortAside(Duration),
    /// It drops all its groups.
    Drop,
    /// It reports a failure.
    Fail,
    /// It calls a broadcast instead of the step.
    Differ,
}

impl Fault {
    /// True if the rank ends its part in all groups, at least if it has an error.
    pub(super) fn is_end(self) -> bool {
        matches!(self, Self::Crash | Self::Silence(_) | Self::LoseStore(_) | Self::CutStore(_))
            || matches!(self, Self::Abort | Self::AbortAside(_) | Self::Drop)
    }
}

/// A program of several ranks, one of which has a fault.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) seed: u64,
    pub(super) size: usize,
    pub(super) steps: Vec<Step>,
    pub(super) heartbeat: Duration,
    pub(super) work_timeout: Duration,
    pub(super) checked: bool,
    pub(super) lazy: bool,
    pub(super) fault: Fault,
    /// The rank that has the fault.
    pub(super) culprit: usize,
    /// The number of steps before its fault. 0: before it makes the world; more than the steps: before the end.
    pub(super) at: usize,
}

impl Plan {
    pub(super) fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let size = 2 + random.below(4) as usize;
        let count = 2 + random.below(5) as usize;
        let mut steps: Vec<_> = (0..count).map(|_| Self::step(&mut random, size)).collect();
        let heartbeat = Duration::from_millis(200 + random.below(800));
        let work_timeout = Duration::from_millis(1500 + random.below(2500));
        let (checked, lazy) = (random.below(6) == 0, random.below(6) == 0);
        let soon = Duration::from_micros(random.below(2) * random.below(20_000));
        let fault = match random.below(12) {
            0 | 1 => Fault::None,
            2 | 3 => Fault::Crash,
            4 => Fault::Stall(Duration::from_millis(random.below(16_000))),
            5 if seed.is_multiple_of(2) => Fault::LoseStore(soon),
            5 => Fault::CutStore(soon),
            6 => Fault::Silence(soon),
            7 => Fault::Abort,
            8 => Fault::AbortAside(soon),
            9 => Fault::Drop,
            10 => Fault::Fail,
            _ => Fault::Differ,
        };
        let (culprit, at) = (random.below(size as u64) as usize, random.below(count as u64 + 2) as usize);
        if random.below(4) == 0 {
            let (excluded, place) =
                (random.below(size as u64) as usize, random.below(count as u64 + 1) as usize);
            // The survivors of a fault leave out the culprit. Those that come to this step meanwhile do so too. Two ranks
            // that leave out each other have no member in common, so the second of them is told of the first one's group.
            let is_before_fault = at >= place + 2 && size > 2;
            let excluded = if fault.is_end() && !is_before_fault { culprit } else { excluded };
            steps.insert(place, Step::Shrink { excluded });
        }
        Self { seed, size, steps, heartbeat, work_timeout, checked, lazy, fault, culprit, at }
    }

    fn step(random: &mut Random, size: usize) -> Step {
        let in_split = random.below(2) == 0;
        match random.below(12) {
            0..=3 => {
                let (elements, calls) = (1 + random.below(64) as usize, 1 + random.below(4) as usize);
                Step::AllReduce { elements, calls, in_split }
            }
            4 | 5 => Step::Broadcast { root: random.below(8) as usize, in_split },
            6 => Step::Barrier { in_split },
            7 | 8 => {
                let color = |_| [None, Some(0), Some(0), Some(1)][random.below(4) as usize];
                Step::Split { colors: (0..size).map(color).collect() }
            }
            _ => {
                let time = |_| Duration::from_micros(random.below(300_000));
                Step::Pause { times: (0..size).map(time).collect() }
            }
        }
    }
}
