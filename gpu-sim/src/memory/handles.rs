//! Physical memory that the program holds by handle (`CUmemGenericAllocationHandle`).

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{MemoryError, Physical};
use crate::world::Leak;

/// The table of handles. Numbers are never reused.
#[derive(Debug)]
pub(crate) struct Handles {
    next: u64,
    held: BTreeMap<u64, Held>,
}

#[derive(Debug)]
struct Held {
    physical: Arc<Physical>,
    /// Number of creates, imports and retains, minus releases.
    references: u64,
}

impl Default for Handles {
    fn default() -> Self {
        Self { next: 0x4d00_0001, held: BTreeMap::new() }
    }
}

impl Handles {
    pub(crate) fn add(&mut self, physical: Arc<Physical>) -> u64 {
        let handle = self.next;
        self.next += 1;
        self.held.insert(handle, Held { physical, references: 1 });
        handle
    }

    pub(crate) fn get(&self, handle: u64) -> Result<&Arc<Physical>, MemoryError> {
        let held = self.held.get(&handle).map(|h| &h.physical);
        held.ok_or_else(|| MemoryError::Invalid(format!("{handle:#x} is no live memory handle")))
    }

    /// Drops one reference. Mapped memory stays until it is unmapped.
    pub(crate) fn release(&mut self, handle: u64) -> Result<(), MemoryError> {
        self.get(handle)?;
        if let Some(held) = self.held.get_mut(&handle) {
            held.references -= 1;
            if held.references == 0 {
                self.held.remove(&handle);
            }
        }
        Ok(())
    }

    /// Adds a reference to `physical`, under the handle `known_as` if that is still valid.
    pub(crate) fn retain(&mut self, physical: &Arc<Physical>, known_as: u64) -> u64 {
        match self.held.get_mut(&known_as) {
            Some(held) => {
                held.references += 1;
                known_as
            }
            None => self.add(physical.clone()),
        }
    }

    pub(super) fn leaks(&self) -> Vec<Leak> {
        self.held
            .iter()
            .map(|(handle, held)| Leak {
                kind: "memory handle",
                what: format!(
                    "{handle:#x}: {} bytes on device {}, {} references",
                    held.physical.size(),
                    held.physical.device(),
                    held.references
                ),
            })
            .collect()
    }
}
