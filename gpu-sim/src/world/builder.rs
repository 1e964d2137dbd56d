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

    /// Sets the modelled NCCL release, as `ncclGetVersion` codes it (2.28.9 is 22809). Codes from 21304 (2.13.4) to 23203
    /// (2.32.3) are modelled.
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
        machine::install(|id| Machine::new(id, &self).map(Arc::new))
            .map(|machine| World { machine: Some(machine) })
    }
}
