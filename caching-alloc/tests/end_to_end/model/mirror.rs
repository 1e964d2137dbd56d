//! An allocator's live segments, rebuilt from its entries.

use std::collections::BTreeMap;

use caching_alloc::core::{Action, Allocator, Entry, Segment, Since, Snapshot, Tracker, TrackerError};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Live segments by address, as of a generation.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Mirror {
    generation: u64,
    segments: BTreeMap<u64, Segment>,
}

impl Mirror {
    /// Returns the state that a snapshot shows.
    pub(super) fn of(snapshot: &Snapshot) -> Self {
        let fixed = snapshot.segments.iter().map(|state| &state.segment);
        let pages = snapshot.mapped.iter().flat_map(|state| &state.segments);
        let segments = fixed.chain(pages).map(|segment| (segment.address(), segment.clone())).collect();
        Self { generation: snapshot.generation, segments }
    }

    pub(super) fn segment_at(&self, address: u64) -> Option<&Segment> {
        self.segments.get(&address)
    }

    /// Applies the next entry. Returns an error if it does not fit the state.
    pub(super) fn read(&mut self, entry: &Entry) -> Result<(), String> {
        self.generation += 1;
        if entry.number != self.generation {
            return Err(format!("entry {} came where {} was due", entry.number, self.generation));
        }
        match &entry.action {
            Action::SegmentAlloc(new) | Action::SegmentMap(new) => {
                let before = self.segments.range(..new.memory().end()).next_back();
                if let Some((_, other)) = before.filter(|(_, other)| other.memory().end() > new.address()) {
                    return Err(format!("{new:?} overlaps {other:?}"));
                }
                self.segments.insert(new.address(), new.clone());
            }
            Action::SegmentFree(old) | Action::SegmentUnmap(old)
                if self.segments.remove(&old.address()).as_ref() != Some(old) =>
            {
                return Err(format!("{old:?} goes, which was not there"));
            }
            _ => {}
        }
        Ok(())
    }

    /// Applies the entries that the allocator has added since the last one.
    pub(super) fn catch_up(&mut self, allocator: &Allocator) -> Result<(), String> {
        match allocator.since(self.generation).map_err(|error| error.to_string())? {
            Since::Entries(entries) => entries.iter().try_for_each(|entry| self.read(entry)),
            Since::TooOld(snapshot) => {
                *self = Self::of(&snapshot);
                Ok(())
            }
        }
    }
}

/// A tracker that is attached in the course of a scenario.
#[derive(Debug, Default)]
pub(super) struct Late(Mutex<Mirror>);

impl Late {
    pub(super) fn mirror(&self) -> MutexGuard<'_, Mirror> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tracker for Late {
    fn name(&self) -> &str {
        "late"
    }

    fn attached(&self, snapshot: &Snapshot) -> Result<(), TrackerError> {
        *self.mirror() = Mirror::of(snapshot);
        Ok(())
    }

    fn observe(&self, entries: &[Entry]) -> Result<(), TrackerError> {
        Ok(entries.iter().try_for_each(|entry| self.mirror().read(entry))?)
    }
}
