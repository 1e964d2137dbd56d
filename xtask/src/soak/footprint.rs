//! What this process holds of its host and its devices.

use std::collections::BTreeMap;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use cuda_driver::Context;

/// How long threads that were told to end may take.
const PATIENCE: Duration = Duration::from_secs(5);

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

    /// What there is now beyond this, once it no longer falls; `slack` bytes of a device are not told of.
    pub(super) fn beyond(&self, contexts: &[Context], slack: u64) -> Result<Option<String>> {
        let began = Instant::now();
        let mut pause = Duration::from_micros(200);
        loop {
            let found = self.compare(&Self::take(contexts)?, slack);
            if found.is_none() || began.elapsed() > PATIENCE {
                return Ok(found);
            }
            thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(20));
        }
    }

    fn compare(&self, now: &Self, slack: u64) -> Option<String> {
        let mut more = Vec::new();
        for (name, count) in &now.threads {
            let before = self.threads.get(name).copied().unwrap_or(0);
            if *count > before {
                more.push(format!("{} thread(s) {name:?}", count - before));
            }
        }
        if now.descriptors > self.descriptors {
            more.push(format!("{} descriptor(s)", now.descriptors - self.descriptors));
        }
        if now.shared > self.shared {
            more.push(format!("{} shared mapping(s)", now.shared - self.shared));
        }
        for (device, (before, now)) in self.free.iter().zip(&now.free).enumerate() {
            let taken = before.saturating_sub(*now);
            if taken > slack {
                more.push(format!("{taken} bytes of device {device}"));
            }
        }
        (!more.is_empty()).then(|| more.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_behind_is_told() {
        let before = Footprint::take(&[]).unwrap();
        let file = fs::File::open("/dev/null").unwrap();
        let now = Footprint { descriptors: before.descriptors + 1, ..before.clone() };
        assert_eq!(before.compare(&now, 0).unwrap(), "1 descriptor(s)");
        drop(file);
        let less = Footprint { free: vec![5], ..before.clone() };
        let before = Footprint { free: vec![9], ..before };
        assert_eq!(before.compare(&less, 3).unwrap(), "4 bytes of device 0");
        assert_eq!(before.compare(&less, 4), None);
    }
}
