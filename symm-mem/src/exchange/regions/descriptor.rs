//! Descriptors of the ranges that a transfer between [regions](super::Regions) copies, and the resulting copies.

use cuda_driver::DevicePtr;

use super::{
    super::{
        TransferError,
        copy::{Direction, RangeCopy},
    },
    invalid::{DescriptorError, Side},
    state::RegionInfo,
};

/// One contiguous range of a transfer between regions: `bytes` bytes that are copied between a region of this rank and
/// a region of the peer. The index of a region is its position in the list that its rank passed to
/// [`share_regions`](super::super::Exchange::share_regions).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Descriptor {
    /// Index of this rank's region.
    pub local_region: usize,
    /// First byte in this rank's region, as an offset in bytes.
    pub local_offset: usize,
    /// Index of the peer's region.
    pub remote_region: usize,
    /// First byte in the peer's region, as an offset in bytes.
    pub remote_offset: usize,
    /// Length in bytes.
    pub bytes: usize,
}

/// The bytes of a range that lie in one *piece* of the region. A piece is a contiguous part of a region's memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct RangePart {
    begin: DevicePtr,
    bytes: usize,
    /// The index of the region, and the index of the piece in the region. A peer's region has one piece for each
    /// allocation, because a copy must not span two allocations of a peer, even if they are mapped at adjacent
    /// addresses. A region of this rank is one piece, because a copy may span several of this rank's allocations.
    piece: (usize, usize),
}

/// A copy of some or all bytes of a descriptor, between one piece of a region of this rank and one piece of a region of
/// the peer.
struct PieceCopy {
    copy: RangeCopy,
    /// Index of the descriptor.
    at: usize,
    /// This rank's piece, then the peer's.
    pieces: [(usize, usize); 2],
}

impl PieceCopy {
    /// Returns whether `next` lies in the same pieces, and begins where this copy ends, in the source and in the
    /// destination.
    fn is_continued_by(&self, next: &Self) -> bool {
        let (copy, next_copy) = (self.copy, next.copy);
        self.pieces == next.pieces
            && copy.to + copy.bytes == next_copy.to
            && copy.from + copy.bytes == next_copy.from
    }
}

/// Returns the copies of a transfer, in ascending order of their destination addresses. Two copies are joined if the
/// second begins where the first ends, in the source and in the destination, and if both are between the same pieces.
///
/// # Errors
/// [`TransferError::Descriptor`] with the first descriptor that is invalid by itself. If each descriptor is valid by
/// itself, but the destinations of two of them overlap, the error contains the later one of the two.
pub(super) fn descriptor_copies(
    direction: Direction,
    local: &[RegionInfo],
    remote: &[RegionInfo],
    descriptors: &[Descriptor],
) -> Result<Vec<RangeCopy>, TransferError> {
    let mut all = CopyList::new(direction, descriptors.len());
    for (at, descriptor) in descriptors.iter().enumerate() {
        let Descriptor { local_region, local_offset, remote_region, remote_offset, bytes } = *descriptor;
        let find = |side, regions: &[RegionInfo], region, offset| {
            range_parts(side, regions, region, offset, bytes)
                .map_err(|problem| TransferError::Descriptor { at, problem })
        };
        let own = find(Side::Local, local, local_region, local_offset)?;
        let other = find(Side::Remote, remote, remote_region, remote_offset)?;
        all.add(at, &own, &other);
    }
    all.finish()
}

/// Collects the copies of a transfer. In a transfer of [prepared ranges](super::PreparedRanges), a range of this rank
/// and the range of the peer that is paired with it count as a descriptor.
pub(super) struct CopyList {
    direction: Direction,
    all: Vec<PieceCopy>,
}

impl CopyList {
    pub(super) fn new(direction: Direction, descriptors: usize) -> Self {
        Self { direction, all: Vec::with_capacity(descriptors) }
    }

    /// Adds the copies of descriptor `at`. `own` are the parts of this rank's range. `other` are the parts of the
    /// peer's range, which has the same length.
    pub(super) fn add(&mut self, at: usize, own: &[RangePart], other: &[RangePart]) {
        let (mut own_parts, mut other_parts) = (own.iter().copied(), other.iter().copied());
        let (mut next_own, mut next_other) = (own_parts.next(), other_parts.next());
        while let (Some(own), Some(other)) = (next_own, next_other) {
            let bytes = own.bytes.min(other.bytes);
            let copy = RangeCopy::new(self.direction, own.begin, other.begin, bytes);
            self.all.push(PieceCopy { copy, at, pieces: [own.piece, other.piece] });
            next_own = own.after(bytes).or_else(|| own_parts.next());
            next_other = other.after(bytes).or_else(|| other_parts.next());
        }
    }

    /// Returns the copies: see [`descriptor_copies`].
    pub(super) fn finish(self) -> Result<Vec<RangeCopy>, TransferError> {
        joined(self.all)
    }
}

impl RangePart {
    /// The rest of this part after its first `bytes` bytes, or `None` if there is none.
    fn after(self, bytes: usize) -> Option<Self> {
        let left = self.bytes - bytes;
        (left > 0).then(|| Self { begin: self.begin + bytes, bytes: left, ..self })
    }
}

/// Sorts the copies by their destinations, refuses overlapping destinations, and joins adjacent copies.
fn joined(mut all: Vec<PieceCopy>) -> Result<Vec<RangeCopy>, TransferError> {
    all.sort_by_key(|part| part.copy.to);
    let overlap = all.windows(2).find(|pair| pair[1].copy.to < pair[0].copy.to + pair[0].copy.bytes);
    if let Some([one, two]) = overlap {
        let (other, at) = (one.at.min(two.at), one.at.max(two.at));
        return Err(TransferError::Descriptor { at, problem: DescriptorError::Overlap { other } });
    }
    let mut joined: Vec<PieceCopy> = Vec::with_capacity(all.len());
    for part in all {
        match joined.last_mut() {
            Some(last) if last.is_continued_by(&part) => last.copy.bytes += part.copy.bytes,
            _ => joined.push(part),
        }
    }
    Ok(joined.into_iter().map(|part| part.copy).collect())
}

/// Returns the parts of the range of `bytes` bytes at `offset` in region `region`: the range is split at the ends of
/// the region's pieces. Fails if the range is empty or not inside the region.
pub(super) fn range_parts(
    side: Side,
    all: &[RegionInfo],
    region: usize,
    offset: usize,
    bytes: usize,
) -> Result<Vec<RangePart>, DescriptorError> {
    let regions = all.len();
    let info = all.get(region).ok_or(DescriptorError::NoSuchRegion { side, region, regions })?;
    if bytes == 0 {
        return Err(DescriptorError::Empty);
    }
    let whole = info.bytes();
    if offset.checked_add(bytes).is_none_or(|end| end > whole) {
        return Err(DescriptorError::OutOfBounds { side, region, offset, bytes, whole });
    }
    let parts = info.parts(offset, bytes).into_iter();
    Ok(parts.map(|(begin, bytes, piece)| RangePart { begin, bytes, piece: (region, piece) }).collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The regions of one side, with pieces of these lengths and gaps of one byte between the pieces. The regions begin
    /// at `base` + 1000, `base` + 2000, and so on.
    fn regions(base: u64, lengths: &[Vec<usize>]) -> Vec<RegionInfo> {
        let region = |(at, lengths): (u64, &Vec<usize>)| {
            let mut begin = DevicePtr(base + 1000 * at);
            let pieces = lengths.iter().map(|bytes| {
                let piece = (begin, *bytes);
                begin = begin + *bytes + 1usize;
                piece
            });
            RegionInfo::new("", pieces.collect())
        };
        (1..).zip(lengths).map(region).collect()
    }

    fn address(region: &RegionInfo, offset: usize) -> u64 {
        let [(begin, 1, _)] = region.parts(offset, 1)[..] else { panic!("one byte") };
        begin.0
    }

    fn lengths() -> impl Strategy<Value = Vec<Vec<usize>>> {
        prop::collection::vec(prop::collection::vec(1usize..20, 1..4), 2..3)
    }

    proptest! {
        /// The copies move each byte of each descriptor, and no other byte. Overlapping destinations are refused.
        #[test]
        fn the_copies_are_those_of_the_bytes(
            local in lengths(),
            remote in lengths(),
            get in any::<bool>(),
            list in prop::collection::vec((0usize..3, 0usize..40, 0usize..3, 0usize..40, 0usize..20), 0..6),
        ) {
            let (local, remote) = (regions(0, &local), regions(10_000, &remote));
            let direction = if get { Direction::Get } else { Direction::Put };
            let list: Vec<Descriptor> = list.into_iter().map(|(local_region, local_offset, remote_region, remote_offset, bytes)| {
                Descriptor { local_region, local_offset, remote_region, remote_offset, bytes }
            }).collect();
            let mut model: Vec<(u64, u64)> = Vec::new();
            let mut problem = None;
            for (at, it) in list.iter().enumerate() {
                let side = |all: &[RegionInfo], region: usize, offset: usize, side| match all.get(region) {
                    None => Err(DescriptorError::NoSuchRegion { side, region, regions: 2 }),
                    _ if it.bytes == 0 => Err(DescriptorError::Empty),
                    Some(of) if offset + it.bytes > of.bytes() => {
                        Err(DescriptorError::OutOfBounds { side, region, offset, bytes: it.bytes, whole: of.bytes() })
                    }
                    Some(of) => Ok((offset..offset + it.bytes).map(|at| address(of, at)).collect::<Vec<_>>()),
                };
                let own = side(&local, it.local_region, it.local_offset, Side::Local);
                let both = own.and_then(|own| {
                    let other = side(&remote, it.remote_region, it.remote_offset, Side::Remote)?;
                    Ok(if get { (own, other) } else { (other, own) })
                });
                match both {
                    Ok((to, from)) => model.extend(to.into_iter().zip(from)),
                    Err(found) => {
                        problem = Some((at, found));
                        break;
                    }
                }
            }
            let found = descriptor_copies(direction, &local, &remote, &list);
            if let Some((at, problem)) = problem {
                let Err(TransferError::Descriptor { at: found_at, problem: found }) = found else {
                    panic!("{found:?} in place of {problem}")
                };
                prop_assert_eq!((found_at, found), (at, problem));
                return Ok(());
            }
            model.sort_unstable();
            let is_twice = model.windows(2).any(|pair| pair[0].0 == pair[1].0);
            match found {
                Err(TransferError::Descriptor { at, problem: DescriptorError::Overlap { other } }) => {
                    prop_assert!(is_twice && other < at);
                }
                Ok(found) => {
                    prop_assert!(!is_twice);
                    let bytes = found.iter().flat_map(|copy| {
                        (0..copy.bytes as u64).map(|at| (copy.to.0 + at, copy.from.0 + at))
                    });
                    prop_assert_eq!(bytes.collect::<Vec<_>>(), model);
                    let joins = |pair: &[RangeCopy]| {
                        let end = |begin: DevicePtr| begin + pair[0].bytes;
                        end(pair[0].to) == pair[1].to && end(pair[0].from) == pair[1].from
                    };
                    prop_assert!(!found.windows(2).any(joins));
                }
                Err(other) => panic!("{other}"),
            }
        }
    }

    #[test]
    fn a_copy_spans_no_two_allocations() {
        let whole = [RegionInfo::new("", vec![(DevicePtr(1000), 20)])];
        let halves = [RegionInfo::new("", vec![(DevicePtr(5000), 10), (DevicePtr(5010), 10)])];
        let descriptor = |offset, bytes| Descriptor {
            local_region: 0,
            local_offset: offset,
            remote_region: 0,
            remote_offset: offset,
            bytes,
        };
        let copy = |to, from, bytes| RangeCopy { to: DevicePtr(to), from: DevicePtr(from), bytes };
        let both = descriptor_copies(Direction::Get, &whole, &halves, &[descriptor(8, 10), descriptor(4, 4)])
            .unwrap();
        assert_eq!(both, [copy(1004, 5004, 6), copy(1010, 5010, 8)]);
    }
}
