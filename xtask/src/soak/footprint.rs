//! What this process holds of its host and its devices.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use cuda_driver::Context;
use serde::Serialize;

/// How the names of the embedded devices' threads begin.
const EMBEDDED: &str = "device ";

/// Counts of what could be left behind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Footprint {
    /// Threads by name, without the embedded device's own, which are kept for what comes.
    threads: BTreeMap<String, usize>,
    descriptors: usize,
    /// Mappings that processes can share.
    shared: usize,
    /// Free bytes of each device.
    free: Vec<u64>,
}

/// What there is more at one time than at another.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(super) struct Growth {
    threads: BTreeMap<String, usize>,
    descriptors: usize,
    shared_mappings: usize,
    /// Of each device.
    device_bytes: Vec<u64>,
}

impl Growth {
    pub(super) fn is_none(&self) -> bool {
        let none = self.threads.is_empty() && self.descriptors == 0 && self.shared_mappings == 0;
        none && self.device_bytes.iter().all(|bytes| *bytes == 0)
    }
}

impl Growth {
    /// What `times` rounds leave if `rounds` left this: rounded up.
    pub(super) fn of_rounds(mut self, rounds: u32, times: u32) -> Self {
        let scaled = |count: u64| (count * u64::from(times)).div_ceil(u64::from(rounds.max(1)));
        let scale = |count: &mut usize| *count = scaled(*count as u64) as usize;
        self.threads.values_mut().for_each(scale);
        scale(&mut self.descriptors);
        scale(&mut self.shared_mappings);
        self.device_bytes.iter_mut().for_each(|bytes| *bytes = scaled(*bytes));
        self
    }

    /// Whether this is no more than `other`, devices up to `slack` bytes excepted.
    pub(super) fn is_within(&self, other: &Self, slack: u64) -> bool {
        let of = |name| other.threads.get(name).copied().unwrap_or(0);
        self.threads.iter().all(|(name, count)| *count <= of(name))
            && self.descriptors <= other.descriptors
            && self.shared_mappings <= other.shared_mappings
            && self
                .device_bytes
                .iter()
                .enumerate()
                .all(|(device, bytes)| *bytes <= other.device_bytes.get(device).copied().unwrap_or(0) + slack)
    }
}

impl fmt::Display for Growth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts: Vec<_> =
            self.threads.iter().map(|(name, count)| format!("{count} thread(s) {name:?}")).collect();
        let counts = [(self.descriptors, "descriptor(s)"), (self.shared_mappings, "shared mapping(s)")];
        parts.extend(
            counts.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")),
        );
        for (device, bytes) in self.device_bytes.iter().enumerate().filter(|(_, bytes)| **bytes > 0) {
            parts.push(format!("{bytes} bytes of device {device}"));
        }
        f.write_str(if parts.is_empty() { "nothing" } else { "" })?;
        f.write_str(&parts.join(", "))
    }
}

impl Footprint {
    pub(super) fn take(contexts: &[Context]) -> Result<Self> {
        let mut threads = BTreeMap::new();
        for task in fs::read_dir("/proc/self/task")? {
            // One that ends meanwhile has no name.
            let Ok(name) = fs::read_to_string(task?.path().join("comm")) else { continue };
            let name = name.trim().to_owned();
            if !name.starts_with(EMBEDDED) {
                *threads.entry(name).or_insert(0) += 1;
            }
        }
        let maps = fs::read_to_string("/proc/self/maps")?;
        let is_shared =
            |line: &&str| line.split_whitespace().nth(1).is_some_and(|rights| rights.ends_with('s'));
        Ok(Self {
            threads,
            descriptors: fs::read_dir("/proc/self/fd")?.count(),
            shared: maps.lines().filter(is_shared).count(),
            free: contexts
                .iter()
                .map(|context| Ok(context.memory_info()?.0 as u64))
                .collect::<Result<_>>()?,
        })
    }

    /// What there is once it no longer changes.
    pub(super) fn settled(contexts: &[Context]) -> Result<Self> {
        let mut last = Self::take(contexts)?;
        for _ in 0..100 {
            thread::sleep(Duration::from_millis(20));
            let now = Self::take(contexts)?;
            if now == last {
                break;
            }
            last = now;
        }
        Ok(last)
    }

    /// What there is more than this after waiting so long for it to go; up to `slack` bytes of a device are not told of.
    pub(super) fn beyond(&self, contexts: &[Context], slack: u64, patience: Duration) -> Result<Growth> {
        let began = Instant::now();
        let mut pause = Duration::from_micros(200);
        loop {
            let more = self.growth(&Self::take(contexts)?, slack);
            if more.is_none() || began.elapsed() > patience {
                return Ok(more);
            }
            thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(20));
        }
    }

    /// What there is more `now`, devices up to `slack` bytes excepted.
    pub(super) fn growth(&self, now: &Self, slack: u64) -> Growth {
        let thread = |(name, count): (&String, &usize)| {
            let more = count.saturating_sub(self.threads.get(name).copied().unwrap_or(0));
            (more > 0).then(|| (name.clone(), more))
        };
        let device = |(before, now): (&u64, &u64)| {
            let taken = before.saturating_sub(*now);
            if taken > slack { taken } else { 0 }
        };
        Growth {
            threads: now.threads.iter().filter_map(thread).collect(),
            descriptors: now.descriptors.saturating_sub(self.descriptors),
            shared_mappings: now.shared.saturating_sub(self.shared),
            device_bytes: self.free.iter().zip(&now.free).map(device).collect(),
        }
    }

    /// This with `more`, so that it is told of once.
    pub(super) fn with(mut self, more: &Growth) -> Self {
        for (name, count) in &more.threads {
            *self.threads.entry(name.clone()).or_insert(0) += count;
        }
        self.descriptors += more.descriptors;
        self.shared += more.shared_mappings;
        for (free, taken) in self.free.iter_mut().zip(&more.device_bytes) {
            *free = free.saturating_sub(*taken);
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_behind_is_told_once() {
        let before = Footprint { free: vec![9, 9], ..Footprint::take(&[]).unwrap() };
        let mut now = Footprint { descriptors: before.descriptors + 1, free: vec![5, 9], ..before.clone() };
        *now.threads.entry("late".into()).or_insert(0) += 2;
        let more = before.growth(&now, 3);
        assert_eq!(more.to_string(), "2 thread(s) \"late\", 1 descriptor(s), 4 bytes of device 0");
        let marked = before.clone().with(&more);
        assert!(marked.growth(&now, 0).is_none());
        now.free[1] = 8;
        assert_eq!(marked.growth(&now, 0).to_string(), "1 bytes of device 1");
        assert_eq!(marked.growth(&now, 1).to_string(), "nothing");
        // What is there no longer is no growth.
        assert!(now.growth(&before, 0).is_none());
    }

    #[test]
    fn rounds_are_held_against_as_many_others() {
        let alone = Growth { descriptors: 3, device_bytes: vec![10, 0], ..Growth::default() }.of_rounds(2, 5);
        assert_eq!(alone.to_string(), "8 descriptor(s), 25 bytes of device 0");
        let ours = |descriptors, bytes| Growth { descriptors, device_bytes: bytes, ..Growth::default() };
        assert!(ours(8, vec![26, 1]).is_within(&alone, 1));
        assert!(!ours(8, vec![26, 1]).is_within(&alone, 0));
        assert!(!ours(9, vec![0, 0]).is_within(&alone, 1));
    }
}
