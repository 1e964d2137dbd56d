//! The table of a [pool](crate::SymmetricPool) (its segments by address, and their states by group), and the results of
//! look-ups in the table. A [commit](crate::SymmetricPool::commit) adds segments of the pool to a group. A
//! [retirement](crate::SymmetricPool::retire) removes segments from the pool.

use std::sync::Arc;

use caching_alloc::core::symmetric::Placement;
use process_group::comm::Window;

use super::plain_registration::PlainRegistration;
use crate::{
    agreement::{GroupId, NoWindows, Poison, Refusal, Unmapped},
    rendezvous::PeerGroup,
};

/// State of a pool's segment in a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RegistrationState {
    /// Not [committed](crate::SymmetricPool::commit) for the group: the group's members must not use the segment as
    /// symmetric memory.
    Pending,
    /// Committed, but neither in a window nor registered with `ncclCommRegister`.
    Agreed,
    /// Committed without a window, but registered with `ncclCommRegister` on all members.
    Registered,
    /// Committed: all members have registered the segment as part of this NCCL window. Adjacent segments may share a
    /// window.
    Window {
        /// Number of windows that the group's communicator registered before this window; equal on all members.
        serial: u64,
    },
}

impl RegistrationState {
    fn serial(&self) -> Option<u64> {
        match self {
            Self::Window { serial } => Some(*serial),
            Self::Pending | Self::Agreed | Self::Registered => None,
        }
    }
}

/// Result of looking up a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BufferLocation {
    /// Segment and offset of the buffer, equal on all ranks whose pools got the same requests.
    pub placement: Placement,
    /// State of this segment in the group of the look-up.
    pub state: RegistrationState,
}

/// Error of a look-up.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LookupError {
    /// The range begins in a segment and extends beyond it, so it is no symmetric buffer. NCCL itself does not reject
    /// such a range.
    #[error(
        "SpansSegments: {bytes} bytes at {address:#x} run past the end of segment {ordinal} at {end:#x}; no collective \
         may use them as one buffer"
    )]
    SpansSegments {
        /// First address of the range.
        address: u64,
        /// Length of the range in bytes.
        bytes: u64,
        /// Ordinal (number in the pool) of the segment in which the range begins.
        ordinal: u32,
        /// First address after the segment.
        end: u64,
    },
}

#[derive(Debug, Clone, Copy)]
pub(super) struct SegmentRange {
    pub(super) begin: u64,
    pub(super) end: u64,
    pub(super) ordinal: u32,
}

/// States of a pool's segments in a group, by ordinal.
#[derive(Debug, Clone, Default)]
pub(crate) struct SegmentStates {
    states: Vec<RegistrationState>,
    /// By ordinal: the window that contains the segment, and the segment's offset in the window in bytes.
    windows: Vec<Option<(Window, u64)>>,
    /// This rank's registrations with `ncclCommRegister`, by ordinal.
    registered: Vec<(u32, Arc<PlainRegistration>)>,
    /// The owner of this rank's mappings of the members' segments, if the members have mapped any from each other.
    pub(crate) peers: Option<Arc<PeerGroup>>,
    /// Segments that the members have not mapped from each other, by ordinal, each with the reason.
    pub(super) unmapped: Vec<(u32, Unmapped)>,
    /// Committed segments without windows, by ordinal, each with the reason.
    pub(super) without: Vec<(u32, NoWindows)>,
    /// Committed segments without windows whose registration with `ncclCommRegister` failed on a member, by ordinal,
    /// each with the cause.
    pub(super) unregistered: Vec<(u32, String)>,
    /// The length of the pool's [log](crate::SymmetricPool::log) of requests up to which the last comparison found the
    /// logs of all members equal.
    pub(crate) compared: u64,
}

impl SegmentStates {
    /// Returns why the members have not mapped segment `ordinal`, which the group has committed, from each other.
    /// Returns `None` if they have mapped it.
    pub(crate) fn why_unmapped(&self, ordinal: u32) -> Option<&Unmapped> {
        reason(&self.unmapped, ordinal)
    }

    /// Returns why segment `ordinal`, which the group has committed, has no window. Returns `None` if it has one.
    pub(crate) fn why_without(&self, ordinal: u32) -> Option<&NoWindows> {
        reason(&self.without, ordinal)
    }

    /// Returns why segment `ordinal`, which has no window, is not registered with `ncclCommRegister` either. Returns
    /// `None` if it is registered, or if the commit did not try to register it.
    pub(crate) fn why_unregistered(&self, ordinal: u32) -> Option<&str> {
        reason(&self.unregistered, ordinal).map(String::as_str)
    }

    /// Sets the state of segment `ordinal`. `window` has the segment's window, and the segment's offset in the window
    /// in bytes.
    pub(crate) fn enter(&mut self, ordinal: u32, state: RegistrationState, window: Option<(Window, u64)>) {
        let at = ordinal as usize;
        if self.states.len() <= at {
            self.states.resize(at + 1, RegistrationState::Pending);
            self.windows.resize(at + 1, None);
        }
        self.states[at] = state;
        self.windows[at] = window;
    }

    /// Marks the segments `ordinals`, which have no window, as registered with `ncclCommRegister`. `registered` are
    /// this rank's registrations, by ordinal.
    pub(crate) fn enter_registered(
        &mut self,
        ordinals: impl IntoIterator<Item = u32>,
        registered: Vec<(u32, Arc<PlainRegistration>)>,
    ) {
        for ordinal in ordinals {
            if let Some(state) = self.states.get_mut(ordinal as usize) {
                *state = RegistrationState::Registered;
            }
        }
        self.registered.extend(registered);
    }

    /// Number of segments that are committed for the group.
    pub(crate) fn committed(&self) -> usize {
        self.states.iter().filter(|state| **state != RegistrationState::Pending).count()
    }

    /// Number of windows that contain segments of the pool.
    pub(crate) fn windows(&self) -> usize {
        let mut serials: Vec<u64> = self.states.iter().filter_map(RegistrationState::serial).collect();
        // Equal serials are adjacent: the segments of a window have consecutive ordinals, except for retired segments
        // between them. `filter_map` has removed these, because they have no serial.
        serials.dedup();
        serials.len()
    }

    /// The segments in the window of segment `ordinal`, including this segment. Empty if this segment has no window.
    fn sharing(&self, ordinal: u32) -> impl Iterator<Item = u32> + '_ {
        let own = self.at(ordinal).serial();
        let shares = move |state: &RegistrationState| own.is_some() && state.serial() == own;
        (0..).zip(&self.states).filter(move |(_, state)| shares(state)).map(|(ordinal, _)| ordinal)
    }

    /// Resets segment `ordinal` to [`RegistrationState::Pending`].
    pub(crate) fn remove(&mut self, ordinal: u32) {
        if let Some(state) = self.states.get_mut(ordinal as usize) {
            *state = RegistrationState::Pending;
        }
        if let Some(window) = self.windows.get_mut(ordinal as usize) {
            *window = None;
        }
        self.registered.retain(|(at, _)| *at != ordinal);
    }

    pub(super) fn at(&self, ordinal: u32) -> RegistrationState {
        self.states.get(ordinal as usize).copied().unwrap_or(RegistrationState::Pending)
    }
}

fn reason<T>(reasons: &[(u32, T)], ordinal: u32) -> Option<&T> {
    reasons.iter().find(|(at, _)| *at == ordinal).map(|(_, reason)| reason)
}

/// The pool's segments that are not retired (sorted by address), and their states in each group. A published table does
/// not change: an update publishes a new table.
#[derive(Debug, Clone, Default)]
pub(crate) struct Table {
    pub(super) ranges: Vec<SegmentRange>,
    pub(super) groups: Vec<(GroupId, SegmentStates)>,
    /// The [poisoned](Poison) groups, each with the reason.
    poisoned: Vec<(GroupId, Poison)>,
    /// Groups whose last commit was refused or has left segments pending, each with the refusal, or with the reason
    /// ([`CommitReport::pending`](crate::CommitReport::pending)).
    pending: Vec<(GroupId, Refusal)>,
}

impl Table {
    /// Returns the table with one more segment, of `bytes` bytes at `begin`.
    pub(crate) fn with_segment(&self, ordinal: u32, begin: u64, bytes: u64) -> Self {
        let mut table = self.clone();
        let at = table.ranges.partition_point(|range| range.begin < begin);
        table.ranges.insert(at, SegmentRange { begin, end: begin + bytes, ordinal });
        table
    }

    /// Returns the table without these segments.
    pub(crate) fn without_segments(&self, ordinals: &[u32]) -> Self {
        let mut table = self.clone();
        table.ranges.retain(|range| !ordinals.contains(&range.ordinal));
        for (_, states) in &mut table.groups {
            ordinals.iter().for_each(|ordinal| states.remove(*ordinal));
        }
        table
    }

    /// Returns the table in which the segments of `group` have `states`.
    pub(crate) fn with_group(&self, group: GroupId, states: SegmentStates) -> Self {
        let mut table = self.without_group(group);
        table.groups.push((group, states));
        table
    }

    /// Returns the table in which `group` is poisoned and has no segments.
    pub(crate) fn with_poison(&self, group: GroupId, poison: Poison) -> Self {
        let mut table = self.without_group(group);
        table.poisoned.push((group, poison));
        table
    }

    /// Returns the table in which the last commit for `group` was refused, or has left segments pending, for the reason
    /// `pending`. If `pending` is `None`, the commit has succeeded and left no segments pending.
    pub(crate) fn with_pending(&self, group: GroupId, pending: Option<Refusal>) -> Self {
        let mut table = self.clone();
        table.pending.retain(|(id, _)| *id != group);
        table.pending.extend(pending.map(|pending| (group, pending)));
        table
    }

    pub(crate) fn without_group(&self, group: GroupId) -> Self {
        let mut table = self.clone();
        table.groups.retain(|(id, _)| *id != group);
        table.poisoned.retain(|(id, _)| *id != group);
        table
    }

    pub(crate) fn poison(&self, group: GroupId) -> Option<&Poison> {
        self.poisoned.iter().find(|(id, _)| *id == group).map(|(_, poison)| poison)
    }

    /// Returns why the last commit for `group` was refused, or has left segments pending. `None` if it has succeeded
    /// and left none pending.
    pub(crate) fn pending(&self, group: GroupId) -> Option<&Refusal> {
        self.pending.iter().find(|(id, _)| *id == group).map(|(_, pending)| pending)
    }

    /// States of the pool's segments in `group`. `None` if the group has no successful commit, is poisoned, or was
    /// [forgotten](crate::SymmetricPool::forget).
    pub(crate) fn states(&self, group: GroupId) -> Option<&SegmentStates> {
        self.groups.iter().find(|(id, _)| *id == group).map(|(_, states)| states)
    }

    /// The groups for which segment `ordinal` is committed.
    pub(crate) fn groups_of(&self, ordinal: u32) -> impl Iterator<Item = GroupId> + '_ {
        let has = move |(id, it): &(GroupId, SegmentStates)| {
            (it.at(ordinal) != RegistrationState::Pending).then_some(*id)
        };
        self.groups.iter().filter_map(has)
    }

    /// The window of `group` that contains segment `ordinal`, and the segment's offset in the window in bytes.
    pub(crate) fn window(&self, ordinal: u32, group: GroupId) -> Option<&(Window, u64)> {
        self.states(group)?.windows.get(ordinal as usize)?.as_ref()
    }

    /// The registration (`ncclCommRegister`) of segment `ordinal` with the communicator of `group`, if there is one.
    pub(crate) fn registered(&self, ordinal: u32, group: GroupId) -> Option<&Arc<PlainRegistration>> {
        let registered = &self.states(group)?.registered;
        registered.iter().find(|(at, _)| *at == ordinal).map(|(_, registration)| registration)
    }

    /// Finds a segment in `ordinals` that shares a window with segments that are not in `ordinals`. Such a segment
    /// cannot be retired without the others of its window, because NCCL deregisters only whole windows. Returns the
    /// found segment, the group of the window, and the segments of the window that are not in `ordinals`. Returns
    /// `None` if there is no such segment.
    pub(crate) fn split_window(&self, ordinals: &[u32]) -> Option<(u32, GroupId, Vec<u32>)> {
        ordinals.iter().find_map(|ordinal| {
            self.groups.iter().find_map(|(group, states)| {
                let others = states.sharing(*ordinal).filter(|other| !ordinals.contains(other));
                let others: Vec<u32> = others.collect();
                (!others.is_empty()).then_some((*ordinal, *group, others))
            })
        })
    }

    /// The ordinal, first address and end address of the segment that contains `address`, if the segment lies in a
    /// window of `group`.
    pub(crate) fn windowed(&self, address: u64, group: GroupId) -> Option<(u32, u64, u64)> {
        let after = self.ranges.partition_point(|range| range.begin <= address);
        let range = self.ranges.get(after.checked_sub(1)?).filter(|range| address < range.end)?;
        let serial = self.states(group)?.at(range.ordinal).serial();
        serial.map(|_| (range.ordinal, range.begin, range.end))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::membership::index::Index;

    impl Table {
        fn lookup(
            &self,
            address: u64,
            bytes: u64,
            group: GroupId,
        ) -> Result<Option<BufferLocation>, LookupError> {
            Index::of(self, 0).lookup(address, bytes, group)
        }
    }

    const GROUP: GroupId = GroupId { uid: 1, epoch: 0 };

    proptest! {
        /// The look-up agrees with a linear search through all segments.
        #[test]
        fn every_address_is_found_where_it_lies(
            mut order in Just((0u64..20).collect::<Vec<_>>()).prop_shuffle(),
            count in 1usize..=20,
            committed in 0usize..20,
            address in 0u64..2200,
            bytes in 0u64..200,
        ) {
            order.truncate(count);
            // A segment in slot k begins at 100 k + 50. If k is a multiple of 3, it ends where a segment in slot k + 1
            // begins; otherwise there is a gap.
            let place = |slot: u64| (100 * slot + 50, if slot.is_multiple_of(3) { 100 } else { 60 });
            let mut table = Table::default();
            for (ordinal, slot) in (0..).zip(&order) {
                let (begin, length) = place(*slot);
                table = table.with_segment(ordinal, begin, length);
            }
            let mut states = SegmentStates::default();
            (0..committed as u32).for_each(|ordinal| states.enter(ordinal, RegistrationState::Agreed, None));
            table = table.with_group(GROUP, states);

            let lies = (0u32..).zip(&order).find_map(|(ordinal, slot)| {
                let (begin, length) = place(*slot);
                (begin..begin + length).contains(&address).then_some((ordinal, begin, begin + length))
            });
            let found = table.lookup(address, bytes, GROUP);
            match lies {
                None => prop_assert_eq!(found, Ok(None)),
                Some((ordinal, _, end)) if address + bytes > end => {
                    prop_assert_eq!(found, Err(LookupError::SpansSegments { address, bytes, ordinal, end }));
                }
                Some((ordinal, begin, _)) => {
                    let state = match (ordinal as usize) < committed {
                        true => RegistrationState::Agreed,
                        false => RegistrationState::Pending,
                    };
                    let placement = Placement { ordinal, offset: address - begin };
                    prop_assert_eq!(found, Ok(Some(BufferLocation { placement, state })));
                }
            }
        }
    }

    #[test]
    fn the_last_byte_belongs_and_lengths_do_not_wrap() {
        let table = Table::default().with_segment(0, 1000, 100);
        assert!(matches!(table.lookup(1099, 1, GROUP), Ok(Some(_))));
        assert_eq!(table.lookup(1100, 0, GROUP), Ok(None));
        assert!(table.lookup(1099, u64::MAX, GROUP).is_err());
        let mut states = SegmentStates::default();
        states.enter(0, RegistrationState::Agreed, None);
        let gone = table.with_group(GROUP, states.clone()).without_group(GROUP);
        let pending = gone.lookup(1000, 1, GROUP).map(|found| found.map(|it| it.state));
        assert_eq!(pending, Ok(Some(RegistrationState::Pending)));
    }

    #[test]
    fn a_retired_segment_is_found_by_nobody_and_its_number_stays_taken() {
        let mut states = SegmentStates::default();
        [0, 2].into_iter().for_each(|ordinal| states.enter(ordinal, RegistrationState::Agreed, None));
        assert_eq!(states.committed(), 2);
        let table =
            Table::default().with_segment(0, 1000, 100).with_segment(1, 2000, 100).with_segment(2, 3000, 100);
        let table = table.with_group(GROUP, states);
        let state = |table: &Table, at| table.lookup(at, 1, GROUP).map(|found| found.map(|it| it.state));
        assert_eq!(state(&table, 2000), Ok(Some(RegistrationState::Pending)));
        let table = table.without_segments(&[0]);
        assert_eq!(
            (state(&table, 1000), state(&table, 3000)),
            (Ok(None), Ok(Some(RegistrationState::Agreed)))
        );
        assert_eq!((table.groups_of(0).count(), table.groups_of(2).count()), (0, 1));
    }
}
