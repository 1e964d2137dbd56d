//! The world's settings.

use std::sync::Arc;

use super::{Machine, World, WorldError, machine};

/// Treatment of errors that hardware ignores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Leaks and misuse are errors, with an explanation.
    Strict,
    /// Like hardware: no report, or a hang.
    Faithful,
}

/// Settings of a [`World`]. The default is one device of 80 GiB, NCCL 2.28.9, free-running, strict.
#[derive(Debug, Clone)]
#[must_use]
pub struct Builder {
    pub(super) devices: usize,
    pub(super) capacity: u64,
    pub(super) nccl_release: i32,
    pub(super) seed: Option<u64>,
    pub(super) mode: Mode,
    pub(super) fabric: bool,
    pub(super) is_private: bool,
    pub(super) reuses_addresses: bool,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            devices: 1,
            capacity: 80 << 30,
            nccl_release: 22809,
            seed: None,
            mode: Mode::Strict,
            fabric: false,
            is_private: false,
            reuses_addresses: false,
        }
    }
}

impl Builder {
    /// Sets the number of devices, 1 to 64.
    pub fn devices(mut self, devices: usize) -> Self {
        self.devices = devices;
        self
    }

    /// Sets the memory of each device in bytes, a multiple of 2 MiB.
    pub fn capacity(mut self, bytes: u64) -> Self {
        self.capacity = bytes;
        self
    }

    /// Sets the modelled NCCL release, as `ncclGetVersion` codes it (2.28.9 is 22809). Codes from 21304 (2.13.4) to
    /// 23203 (2.32.3) are modelled.
    pub fn nccl_release(mut self, code: i32) -> Self {
        self.nccl_release = code;
        self
    }

    /// Supports fabric handles, as a host with a configured fabric does.
    pub fn fabric(mut self) -> Self {
        self.fabric = true;
        self
    }

    /// Runs everything on the calling thread, in an order that `seed` decides.
    pub fn seeded(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Shows the world only to the thread that starts it, so that each thread can have one. Needs
    /// [`seeded`](Self::seeded), because the threads of a free-running world would not find it. A thread runs at most
    /// one seeded world. End the world on its thread, otherwise that thread can start no other one. The memory cannot
    /// be exported to other processes: `cuMemExportToShareableHandle` returns `CUDA_ERROR_NOT_SUPPORTED`. Freed memory
    /// goes back to the host when the world ends.
    pub fn on_this_thread(mut self) -> Self {
        self.is_private = true;
        self
    }

    /// Hands out freed addresses again soon. Each range has the lowest or the highest free addresses, or those after
    /// the last range. The seed decides which, so the allocations of two ranks lie in different orders. By default,
    /// freed addresses are reused as late as possible, and each range lies above the last one.
    pub fn reuse_addresses(mut self) -> Self {
        self.reuses_addresses = true;
        self
    }

    /// Behaves like hardware: no report where hardware gives none, and a hang where it hangs.
    pub fn faithful(mut self) -> Self {
        self.mode = Mode::Faithful;
        self
    }

    /// Makes the world.
    ///
    /// # Errors
    /// A world is alive already, a setting is out of range, or the system refuses the address space.
    pub fn start(self) -> Result<World, WorldError> {
        if !(1..=64).contains(&self.devices) {
            let value = self.devices.to_string();
            return Err(WorldError::BadSetting {
                setting: "devices",
                value,
                rule: "1 to 64 devices are modelled",
            });
        }
        if self.capacity == 0 || !self.capacity.is_multiple_of(2 << 20) || self.capacity > 1 << 40 {
            let value = self.capacity.to_string();
            let rule = "bytes, a multiple of 2 MiB, at most 1 TiB";
            return Err(WorldError::BadSetting { setting: "capacity", value, rule });
        }
        if self.is_private && self.seed.is_none() {
            return Err(WorldError::BadSetting {
                setting: "on_this_thread",
                value: "without a seed".to_owned(),
                rule: "the threads of a free-running world would not find it: call `seeded` too",
            });
        }
        // No release has a patch number above 9.
        if !(21304..=nccl_sys::NCCL_VERSION_CODE as i32).contains(&self.nccl_release)
            || self.nccl_release % 100 > 9
        {
            return Err(WorldError::BadSetting {
                setting: "nccl_release",
                value: self.nccl_release.to_string(),
                rule: "expected a release code from 21304 (2.13.4) to 23203 (2.32.3), such as 22809 (2.28.9)",
            });
        }
        machine::install(self.is_private, self.seed.is_some(), |id| Machine::new(id, &self).map(Arc::new))
            .map(|machine| World { machine: Some(machine) })
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::memory::AS_DESCRIPTOR;

    fn start(seed: u64) -> World {
        let world = World::builder().devices(2).seeded(seed).on_this_thread();
        world.reuse_addresses().start().unwrap()
    }

    #[test]
    fn each_thread_has_a_private_world() {
        let world = start(1);
        assert!(matches!(World::builder().on_this_thread().start(), Err(WorldError::BadSetting { .. })));
        let private = World::builder().seeded(1).on_this_thread();
        assert!(matches!(private.start(), Err(WorldError::AlreadyAlive)));
        let other = thread::spawn(|| {
            assert!(machine().is_none_or(|machine| machine.devices.len() != 2));
            start(2).finish().is_ok()
        });
        assert!(other.join().unwrap());
        assert!(world.finish().is_ok());
    }

    #[test]
    fn a_thread_runs_one_seeded_world() {
        let shared = || World::builder().seeded(1).start();
        let private = || World::builder().seeded(1).on_this_thread().start();
        let world = loop {
            // Another test may have a world.
            match shared() {
                Ok(world) => break world,
                Err(WorldError::AlreadyAlive) => thread::yield_now(),
                Err(error) => panic!("{error}"),
            }
        };
        assert!(matches!(private(), Err(WorldError::AlreadyAlive)));
        let other = thread::spawn(move || private().map(|world| world.finish().is_ok()));
        assert!(other.join().unwrap().unwrap());
        assert!(machine().is_some_and(|machine| machine.id == world.alive().id));
        assert!(world.finish().is_ok());
        let world = private().unwrap();
        assert!(matches!(shared(), Err(WorldError::AlreadyAlive)));
        let id = machine().unwrap().id;
        thread::spawn(move || assert!(world.finish().is_ok())).join().unwrap();
        assert!(machine().is_none_or(|machine| machine.id != id), "the thread still sees the ended world");
        assert!(matches!(private(), Err(WorldError::AlreadyAlive)));
    }

    #[test]
    fn memory_of_a_private_world_is_exportable_but_does_not_leave_it() {
        let world = start(4);
        let made = machine().unwrap().devices[0].arena.allocate(2 << 20, AS_DESCRIPTOR).unwrap();
        let other = machine().unwrap().devices[0].arena.allocate(2 << 20, 0).unwrap();
        assert!(made.is_exportable() && !made.can_leave());
        assert_ne!(made.offset(), other.offset());
        drop((made, other));
        assert!(world.finish().is_ok());
    }

    #[test]
    fn freed_addresses_are_used_again_and_new_ones_need_not_ascend() {
        let world = start(3);
        let region = machine().unwrap().memory.region().clone();
        let taken: Vec<u64> =
            (0..40).filter_map(|_| region.take(2 << 20, 2 << 20, None)).map(|range| range.start()).collect();
        let distinct: std::collections::BTreeSet<&u64> = taken.iter().collect();
        assert_eq!(taken.len(), 40);
        assert!(distinct.len() < 30, "{distinct:x?}");
        assert!(!taken.is_sorted());
        assert!(world.finish().is_ok());
    }
}
