//! Prepared ranges: lists of ranges of one rank's [regions](super::Regions) that are validated once, for many
//! transfers.

use std::{
    fmt, ops, ptr,
    sync::{Arc, Weak},
};

use super::{
    super::{
        TransferError,
        copy::{Direction, RangeCopy},
    },
    descriptor::{CopyList, RangePart, range_parts},
    invalid::{DescriptorError, Side},
    state::{RegionInfo, RegionsState},
};

/// A contiguous range of bytes of a region, for [`Regions::prepare`](super::Regions::prepare).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RegionRange {
    /// Index of the region: its position in the list that its rank passed to
    /// [`share_regions`](super::super::Exchange::share_regions).
    pub region: usize,
    /// First byte in the region, as an offset in bytes.
    pub offset: usize,
    /// Length in bytes.
    pub bytes: usize,
}

/// A list of ranges that lie in the regions of one rank, and that [`Regions::prepare`](super::Regions::prepare) has
/// validated. A transfer [selects](Self::select) some of the ranges by their indices. A list can be used for any number
/// of transfers, also from several threads. It does not keep the regions allocated.
pub struct PreparedRanges {
    /// Identifies the set of regions by its address, and is never upgraded. While this weak reference exists, no other
    /// set can have the same address.
    set: Weak<RegionsState>,
    regions: String,
    generation: u64,
    rank: usize,
    /// The [parts](RangePart) of all ranges, in the order of the ranges.
    parts: Vec<RangePart>,
    ranges: Vec<Prepared>,
}

/// One range of the list.
struct Prepared {
    bytes: usize,
    /// Indices of the range's parts in [`PreparedRanges::parts`].
    parts: ops::Range<usize>,
}

/// Ranges of a [`PreparedRanges`], in the order of the indices that were passed to [`select`](PreparedRanges::select).
#[derive(Debug, Clone, Copy)]
pub struct SelectedRanges<'a> {
    list: &'a PreparedRanges,
    indices: &'a [usize],
}

impl PreparedRanges {
    /// Validates `ranges` of `regions`, the regions of rank `rank` in `set`.
    pub(super) fn new(
        set: &Arc<RegionsState>,
        rank: usize,
        regions: &[RegionInfo],
        ranges: &[RegionRange],
    ) -> Result<Self, TransferError> {
        let side = if rank == set.owner.shared.info.rank() { Side::Local } else { Side::Remote };
        let mut list = Self {
            set: Arc::downgrade(set),
            regions: set.name.clone(),
            generation: set.generation,
            rank,
            parts: Vec::with_capacity(ranges.len()),
            ranges: Vec::with_capacity(ranges.len()),
        };
        for (at, &RegionRange { region, offset, bytes }) in ranges.iter().enumerate() {
            let parts = range_parts(side, regions, region, offset, bytes);
            let parts = parts.map_err(|problem| TransferError::Descriptor { at, problem })?;
            let begin = list.parts.len();
            list.parts.extend(parts);
            list.ranges.push(Prepared { bytes, parts: begin..list.parts.len() });
        }
        Ok(list)
    }

    /// The rank in whose regions the ranges lie, as a rank within the group.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Number of ranges.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Returns whether the list has no ranges.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Selects the ranges with these indices, in this order, for a transfer. The transfer, not this call, checks the
    /// indices.
    #[must_use]
    pub fn select<'a>(&'a self, indices: &'a [usize]) -> SelectedRanges<'a> {
        SelectedRanges { list: self, indices }
    }

    /// Fails if another set of regions has prepared the list, or if the ranges are not those of rank `rank`.
    pub(super) fn check(
        &self,
        set: &Arc<RegionsState>,
        side: Side,
        rank: usize,
    ) -> Result<(), TransferError> {
        if ptr::eq(self.set.as_ptr(), Arc::as_ptr(set)) && self.rank == rank {
            return Ok(());
        }
        let (regions, generation) = (self.regions.clone(), self.generation);
        Err(TransferError::OtherRanges { side, rank: self.rank, regions, generation })
    }
}

impl<'a> SelectedRanges<'a> {
    pub(super) fn list(&self) -> &'a PreparedRanges {
        self.list
    }

    /// Returns the length in bytes and the parts of the `at`-th selected range.
    fn get(&self, side: Side, at: usize) -> Result<(usize, &'a [RangePart]), TransferError> {
        let (index, ranges) = (self.indices[at], self.list.len());
        let problem = DescriptorError::NoSuchRange { side, index, ranges };
        let range = self.list.ranges.get(index).ok_or(TransferError::Descriptor { at, problem })?;
        Ok((range.bytes, &self.list.parts[range.parts.clone()]))
    }
}

/// Returns the copies between the n-th selected range of `local` and that of `remote`, for all n. They are sorted and
/// joined, and overlaps are refused, as in [`descriptor_copies`](super::descriptor::descriptor_copies). The time does
/// not depend on the number of ranges that are not selected.
pub(super) fn prepared_copies(
    direction: Direction,
    local: &SelectedRanges<'_>,
    remote: &SelectedRanges<'_>,
) -> Result<Vec<RangeCopy>, TransferError> {
    let (count, found) = (local.indices.len(), remote.indices.len());
    if count != found {
        return Err(TransferError::IndexCounts { local: count, remote: found });
    }
    let mut all = CopyList::new(direction, count);
    for at in 0..count {
        let (local_bytes, local_parts) = local.get(Side::Local, at)?;
        let (remote_bytes, remote_parts) = remote.get(Side::Remote, at)?;
        if local_bytes != remote_bytes {
            let problem = DescriptorError::Lengths { local: local_bytes, remote: remote_bytes };
            return Err(TransferError::Descriptor { at, problem });
        }
        all.add(at, local_parts, remote_parts);
    }
    all.finish()
}

impl fmt::Debug for PreparedRanges {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { regions, generation, rank, .. } = self;
        write!(out, "PreparedRanges({} of rank {rank} in {regions:?} of generation {generation})", self.len())
    }
}
