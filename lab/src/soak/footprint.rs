//! Resources of this process on its host and its devices.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use cuda_driver::Context;
use serde::Serialize;

/// Prefix of the names of the embedded devices' threads.
const EMBEDDED: &str = "device ";

/// Number of resources by kind.
type Counts = BTreeMap<String, usize>;

/// Counts of resources that could be leaked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Footprint {
    /// Threads by name, without the embedded device's own, which are kept for reuse.
    threads: Counts,
    /// Descriptors by kind of file.
    descriptors: Counts,
    /// Mappings that processes can share, by kind of file.
    shared: Counts,
    /// Free bytes of each device.
    free: Vec<u64>,
}

/// Growth between two footprints.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(super) struct Growth {
    threads: Counts,
    descriptors: Counts,
    shared_mappings: Counts,
    /// Bytes by device.
    device_bytes: Vec<u64>,
}

/// Returns the kinds of which `now` has more than `before`.
fn more(before: &Counts, now: &Counts) -> Counts {
    let more = |(kind, count): (&String, &usize)| {
        let more = count.saturating_sub(before.get(kind).copied().unwrap_or(0));
        (more > 0).then(|| (kind.clone(), more))
    };
    now.iter().filter_map(more).collect()
}

fn add(to: &mut Counts, more: &Counts) {
    more.iter().for_each(|(kind, count)| *to.entry(kind.clone()).or_insert(0) += count);
}

/// Returns the kind of a descriptor's or mapping's file. Numbers, and names in folders of temporary names, are
/// removed, so that equal kinds have one name.
fn kind(of: &str) -> String {
    let of = of.strip_suffix(" (deleted)").unwrap_or(of);
    match of.split_once(":[") {
        Some((kind @ ("socket" | "pipe"), _)) => kind.to_owned(),
        _ if of.is_empty() => "anonymous".to_owned(),
        _ => match ["/dev/shm/", "/tmp/", "/proc/", "/memfd:"].iter().find(|place| of.starts_with(**place)) {
            Some(place) => (*place).to_owned(),
            None => of.to_owned(),
        },
    }
}

/// Returns the kind of a shared mapping from a line of `/proc/self/maps`.
fn shared_mapping(line: &str) -> Option<String> {
    let mut words = line.split_whitespace();
    let shared = words.nth(1)?.ends_with('s');
    shared.then(|| kind(&words.skip(3).collect::<Vec<_>>().join(" ")))
}

impl Growth {
    fn counts(&self) -> [(&Counts, &'static str); 3] {
        [
            (&self.threads, "thread(s)"),
            (&self.descriptors, "descriptor(s)"),
            (&self.shared_mappings, "shared mapping(s)"),
        ]
    }

    pub(super) fn is_none(&self) -> bool {
        self.counts().iter().all(|(counts, _)| counts.is_empty())
            && self.device_bytes.iter().all(|bytes| *bytes == 0)
    }

    /// Scales the growth of `rounds` rounds to `times` rounds, rounded up.
    pub(super) fn of_rounds(mut self, rounds: u32, times: u32) -> Self {
        let scaled = |count: u64| (count * u64::from(times)).div_ceil(u64::from(rounds.max(1)));
        for counts in [&mut self.threads, &mut self.descriptors, &mut self.shared_mappings] {
            counts.values_mut().for_each(|count| *count = scaled(*count as u64) as usize);
        }
        self.device_bytes.iter_mut().for_each(|bytes| *bytes = scaled(*bytes));
        self
    }

    /// True if this is no more than `other`, with a tolerance of `slack` bytes per device.
    pub(super) fn is_within(&self, other: &Self, slack: u64) -> bool {
        let device = |device: usize| other.device_bytes.get(device).copied().unwrap_or(0);
        let counts = self.counts().into_iter().zip(other.counts());
        counts.into_iter().all(|((ours, _), (others, _))| more(others, ours).is_empty())
            && self.device_bytes.iter().enumerate().all(|(at, bytes)| *bytes <= device(at) + slack)
    }
}

impl fmt::Display for Growth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        for (counts, what) in self.counts() {
            parts.extend(counts.iter().map(|(kind, count)| format!("{count} {what} {kind:?}")));
        }
        for (device, bytes) in self.device_bytes.iter().enumerate().filter(|(_, bytes)| **bytes > 0) {
            parts.push(format!("{bytes} bytes of device {device}"));
        }
        f.write_str(if parts.is_empty() { "nothing" } else { "" })?;
        f.write_str(&parts.join(", "))
    }
}

impl Footprint {
    pub(super) fn take(contexts: &[Context]) -> Result<Self> {
        let mut threads = Counts::new();
        for task in fs::read_dir("/proc/self/task")? {
            // A thread that ends meanwhile has no name.
            let Ok(name) = fs::read_to_string(task?.path().join("comm")) else { continue };
            let name = name.trim().to_owned();
            if !name.starts_with(EMBEDDED) {
                *threads.entry(name).or_insert(0) += 1;
            }
        }
        let mut descriptors = Counts::new();
        for entry in fs::read_dir("/proc/self/fd")? {
            // A descriptor that is closed meanwhile has no target; nor has the descriptor of this listing,
            // afterwards.
            let Ok(of) = fs::read_link(entry?.path()) else { continue };
            *descriptors.entry(kind(&of.to_string_lossy())).or_insert(0) += 1;
        }
        let mut shared = Counts::new();
        for line in fs::read_to_string("/proc/self/maps")?.lines() {
            shared_mapping(line).into_iter().for_each(|kind| *shared.entry(kind).or_insert(0) += 1);
        }
        Ok(Self {
            threads,
            descriptors,
            shared,
            free: contexts
                .iter()
                .map(|context| Ok(context.memory_info()?.0 as u64))
                .collect::<Result<_>>()?,
        })
    }

    /// Returns the footprint once it no longer changes.
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

    /// Returns the growth that remains after at most `patience`; up to `slack` bytes of a device are ignored.
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

    /// Returns the growth until `now`; up to `slack` bytes of a device are ignored.
    pub(super) fn growth(&self, now: &Self, slack: u64) -> Growth {
        let device = |(before, now): (&u64, &u64)| {
            let taken = before.saturating_sub(*now);
            if taken > slack { taken } else { 0 }
        };
        Growth {
            threads: more(&self.threads, &now.threads),
            descriptors: more(&self.descriptors, &now.descriptors),
            shared_mappings: more(&self.shared, &now.shared),
            device_bytes: self.free.iter().zip(&now.free).map(device).collect(),
        }
    }

    /// Adds `more` to this growth, so that both are reported once.
    pub(super) fn with(mut self, more: &Growth) -> Self {
        add(&mut self.threads, &more.threads);
        add(&mut self.descriptors, &more.descriptors);
        add(&mut self.shared, &more.shared_mappings);
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
        let mut now = Footprint { free: vec![5, 9], ..before.clone() };
        add(&mut now.threads, &[("late".to_owned(), 2)].into());
        add(&mut now.descriptors, &[("socket".to_owned(), 1)].into());
        let more = before.growth(&now, 3);
        let told = "2 thread(s) \"late\", 1 descriptor(s) \"socket\", 4 bytes of device 0";
        assert_eq!(more.to_string(), told);
        let marked = before.clone().with(&more);
        assert!(marked.growth(&now, 0).is_none());
        now.free[1] = 8;
        assert_eq!(marked.growth(&now, 0).to_string(), "1 bytes of device 1");
        assert_eq!(marked.growth(&now, 1).to_string(), "nothing");
        // A decrease is no growth.
        assert!(now.growth(&before, 0).is_none());
    }

    #[test]
    fn rounds_are_held_against_as_many_others() {
        let ours = |sockets: usize, bytes| Growth {
            descriptors: [("socket".to_owned(), sockets)].into(),
            device_bytes: bytes,
            ..Growth::default()
        };
        let alone = ours(3, vec![10, 0]).of_rounds(2, 5);
        assert_eq!(alone.to_string(), "8 descriptor(s) \"socket\", 25 bytes of device 0");
        assert!(ours(8, vec![26, 1]).is_within(&alone, 1));
        assert!(!ours(8, vec![26, 1]).is_within(&alone, 0));
        assert!(!ours(9, vec![0, 0]).is_within(&alone, 1));
    }

    #[test]
    fn what_is_alike_is_one_kind() {
        let same = [("socket:[12]", "socket:[7]"), ("/dev/shm/nccl-a1 (deleted)", "/dev/shm/nccl-b2")];
        same.into_iter().for_each(|(one, other)| assert_eq!(kind(one), kind(other)));
        assert_ne!(kind("anon_inode:[eventfd]"), kind("anon_inode:[eventpoll]"));
        let line = "7f00-7f10 rw-s 00000000 00:01 42      /dev/shm/nccl-Xy (deleted)";
        assert_eq!(shared_mapping(line).as_deref(), Some("/dev/shm/"));
        assert_eq!(shared_mapping("7f00-7f10 rw-s 00000000 00:01 42").as_deref(), Some("anonymous"));
        assert_eq!(shared_mapping("7f00-7f10 rw-p 00000000 00:01 42 /dev/shm/x"), None);
    }
}
