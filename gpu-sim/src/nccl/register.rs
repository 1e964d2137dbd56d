//! `ncclCommRegister`: local and lazy. It never blocks and does not notify the other ranks. They detect a difference
//! when a collective finds its memory registered on only some ranks (`plan`).

use std::collections::BTreeMap;

use super::error::{Failure, Result};

/// Granularity of a registration in bytes.
const PAGE: u64 = 4096;

/// One rank's registrations on one communicator.
#[derive(Debug, Default)]
pub(crate) struct Registrations {
    live: BTreeMap<usize, Registered>,
}

#[derive(Debug)]
struct Registered {
    start: u64,
    end: u64,
    references: u64,
}

impl Registrations {
    /// Registers a range under the handle `fresh`. If an existing registration contains the range, that one gets one
    /// more reference and its handle is returned.
    pub(crate) fn add(&mut self, address: u64, bytes: u64, fresh: usize) -> Result<usize> {
        let start = address / PAGE * PAGE;
        let end = address
            .checked_add(bytes)
            .and_then(|end| end.checked_next_multiple_of(PAGE))
            .ok_or_else(|| Failure::argument(format!("no memory has {bytes} bytes at {address:#x}")))?;
        for (&handle, known) in &mut self.live {
            if known.start <= start && end <= known.end {
                known.references += 1;
                return Ok(handle);
            }
        }
        self.live.insert(fresh, Registered { start, end, references: 1 });
        Ok(fresh)
    }

    /// Drops a reference.
    pub(crate) fn remove(&mut self, handle: usize) -> Result {
        let Some(known) = self.live.get_mut(&handle) else {
            return Err(Failure::usage(format!("{handle:#x} is no registration of this communicator")));
        };
        known.references -= 1;
        if known.references == 0 {
            self.live.remove(&handle);
        }
        Ok(())
    }

    /// True if a registration contains the range.
    pub(crate) fn contains(&self, address: u64, bytes: u64) -> bool {
        self.live.values().any(|known| known.start <= address && address.saturating_add(bytes) <= known.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contained_ranges_share_a_handle() {
        let mut table = Registrations::default();
        assert_eq!(table.add(0x10_0000, 0x10_0000, 1).unwrap(), 1);
        assert_eq!(table.add(0x12_0100, 0x100, 2).unwrap(), 1);
        assert_eq!(table.add(0x1f_f000, 0x2000, 3).unwrap(), 3);
        assert!(table.contains(0x10_0000, 0x10_0000) && !table.contains(0x0f_ffff, 2));
        table.remove(1).unwrap();
        assert!(table.contains(0x11_0000, 1));
        table.remove(1).unwrap();
        assert!(!table.contains(0x11_0000, 1));
        assert_eq!(table.remove(1).unwrap_err().code, nccl_sys::ncclResult_t::ncclInvalidUsage);
        assert!(table.add(u64::MAX - 10, 20, 4).is_err());
    }
}
