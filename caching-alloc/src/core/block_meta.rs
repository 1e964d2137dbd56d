//! The blocks that a cache has taken from its heap: handed out, cached for the next request, or still in use
//! by other streams.

use super::heap::{BlockId, NONE};
use super::request::{Request, RequestInfo};
use super::size::Units;

/// The list of uses of a block that no other stream uses.
pub(super) const NO_USES: u32 = u32::MAX;

/// The state of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlockStatus {
    /// It belongs to the heap, or to another cache.
    None,
    /// Handed out.
    Owned,
    /// Free but cached whole, for a request of the same length.
    Kept,
    /// Freed by its owner, in use by other streams.
    Pending,
}

/// A block that the cache has taken from its heap. Two records share a cache line.
#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
pub(super) struct BlockMeta {
    /// First byte.
    pub(super) address: u64,
    /// The size that its owner requested, in bytes.
    pub(super) requested: u64,
    /// Its length.
    pub(super) units: Units,
    /// The next block of the same list.
    pub(super) link: BlockId,
    /// The other streams that use it.
    pub(super) uses: u32,
    pub(super) status: BlockStatus,
    /// True if the running copy need not read it: it has changed since the copy began, and its former state
    /// is saved.
    saved: bool,
}

const _: () = assert!(size_of::<BlockMeta>() == 32);

/// A block that is handed out, or that other streams still use.
#[derive(Clone, Copy, Debug)]
pub(super) struct InUse {
    pub(super) address: u64,
    pub(super) units: Units,
    pub(super) requested: u64,
    pub(super) is_pending: bool,
    pub(super) info: RequestInfo,
}

/// The blocks of a cache, indexed by the heap's block ids.
///
/// They can be copied piece by piece, with the lock released in between. The copy is of the moment at which
/// it [began](Self::begin_copy): a change to a record that is not copied yet first saves its former state.
#[derive(Debug)]
pub(super) struct BlockTable {
    all: Vec<BlockMeta>,
    /// The information of each request: written with every block, rarely read.
    infos: Vec<RequestInfo>,
    /// BlockTable from here to `copy_end` are not copied yet; [`BlockId::MAX`] if no copy is running.
    uncopied: BlockId,
    copy_end: BlockId,
    saved: Vec<InUse>,
}

impl Default for BlockTable {
    fn default() -> Self {
        let (all, infos, saved) = (Vec::new(), Vec::new(), Vec::new());
        Self { all, infos, uncopied: BlockId::MAX, copy_end: 0, saved }
    }
}

impl BlockTable {
    /// Takes a block from the heap, as handed out.
    #[inline]
    pub(super) fn add(&mut self, block: BlockId, address: u64, units: Units) {
        if self.all.len() <= block as usize {
            self.grow(block as usize + 1);
        }
        let meta = &mut self.all[block as usize];
        let saved = meta.saved;
        *meta = BlockMeta {
            address,
            requested: 0,
            units,
            link: NONE,
            uses: NO_USES,
            status: BlockStatus::None,
            saved,
        };
        self.set(block, BlockStatus::Owned);
    }

    #[cold]
    fn grow(&mut self, length: usize) {
        let (status, saved) = (BlockStatus::None, false);
        let none = BlockMeta { address: 0, requested: 0, units: 0, link: NONE, uses: NO_USES, status, saved };
        self.all.resize(length, none);
        self.infos.resize(length, RequestInfo::here());
    }

    /// Removes a block, which returns to the heap.
    #[inline]
    pub(super) fn end(&mut self, block: BlockId) {
        self.set(block, BlockStatus::None);
    }

    /// Changes the state of a block.
    #[inline]
    pub(super) fn set(&mut self, block: BlockId, status: BlockStatus) {
        if block >= self.uncopied {
            self.save(block);
        }
        self.all[block as usize].status = status;
    }

    /// Stores the size and the information of a request. Called after the block was set to handed out.
    #[inline]
    pub(super) fn set_request(&mut self, block: BlockId, requested: u64, info: RequestInfo) {
        self.all[block as usize].requested = requested;
        self.infos[block as usize] = info;
    }

    /// Begins a copy of the blocks in use now.
    pub(super) fn begin_copy(&mut self) {
        self.uncopied = 0;
        self.copy_end = BlockId::try_from(self.all.len()).unwrap_or(BlockId::MAX);
    }

    /// Appends the next part of the copy: `most` blocks, and the states saved meanwhile. Returns whether
    /// there is more.
    pub(super) fn copy_next(&mut self, copy: &mut Vec<InUse>, most: u32) -> bool {
        copy.append(&mut self.saved);
        let end = self.copy_end.min(self.uncopied.saturating_add(most));
        for block in self.uncopied..end {
            if !std::mem::take(&mut self.all[block as usize].saved) {
                copy.extend(self.in_use(block));
            }
        }
        self.uncopied = if end < self.copy_end { end } else { BlockId::MAX };
        end < self.copy_end
    }

    #[cold]
    fn save(&mut self, block: BlockId) {
        if block < self.copy_end && !std::mem::replace(&mut self.all[block as usize].saved, true) {
            self.saved.extend(self.in_use(block));
        }
    }

    fn in_use(&self, block: BlockId) -> Option<InUse> {
        let BlockMeta { address, units, requested, status, .. } = self.all[block as usize];
        let is_pending = match status {
            BlockStatus::Owned => false,
            BlockStatus::Pending => true,
            BlockStatus::None | BlockStatus::Kept => return None,
        };
        Some(InUse { address, units, requested, is_pending, info: self.infos[block as usize] })
    }

    /// Address and request of every block that is handed out.
    pub(super) fn owned(&self) -> Vec<(u64, Request)> {
        let owned = self.all.iter().zip(&self.infos).filter(|(meta, _)| meta.status == BlockStatus::Owned);
        let request = |(meta, info): (&BlockMeta, &RequestInfo)| {
            (meta.address, Request { units: meta.units, bytes: meta.requested, info: *info })
        };
        owned.map(request).collect()
    }

    /// Returns true if a block is handed out.
    pub(super) fn is_owned(&self, block: BlockId) -> bool {
        self.get(block).is_some_and(|meta| meta.status == BlockStatus::Owned)
    }

    /// The information of the request for a block.
    #[inline]
    pub(super) fn info(&self, block: BlockId) -> RequestInfo {
        self.infos[block as usize]
    }

    /// A block, if the cache has taken it.
    pub(super) fn get(&self, block: BlockId) -> Option<&BlockMeta> {
        self.all.get(block as usize).filter(|meta| meta.status != BlockStatus::None)
    }
}

impl std::ops::Index<BlockId> for BlockTable {
    type Output = BlockMeta;
    #[inline]
    fn index(&self, block: BlockId) -> &BlockMeta {
        &self.all[block as usize]
    }
}

impl std::ops::IndexMut<BlockId> for BlockTable {
    #[inline]
    fn index_mut(&mut self, block: BlockId) -> &mut BlockMeta {
        &mut self.all[block as usize]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A block that gets an owner, changes state, or returns to the heap; or the next part of a copy.
    #[derive(Clone, Copy, Debug)]
    enum Step {
        Add(u64),
        Set(BlockStatus),
        End,
        Copy(u32),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (1..1000u64).prop_map(Step::Add),
            prop_oneof![Just(BlockStatus::Owned), Just(BlockStatus::Kept), Just(BlockStatus::Pending)]
                .prop_map(Step::Set),
            Just(Step::End),
            (1..5u32).prop_map(Step::Copy),
        ]
    }

    fn apply(blocks: &mut BlockTable, block: BlockId, step: Step) {
        let is_there = blocks.get(block).is_some();
        match step {
            Step::Add(requested) if !is_there => {
                blocks.add(block, u64::from(block) * 512, 1);
                blocks.set_request(block, requested, RequestInfo::here());
            }
            Step::Set(status) if is_there => blocks.set(block, status),
            Step::End if is_there => blocks.end(block),
            _ => {}
        }
    }

    fn sorted(mut copy: Vec<InUse>) -> Vec<(u64, u64, bool)> {
        copy.sort_by_key(|block| block.address);
        copy.iter().map(|block| (block.address, block.requested, block.is_pending)).collect()
    }

    proptest! {
        #[test]
        fn a_copy_is_of_the_moment_at_which_it_began(
            before in prop::collection::vec((1..20u32, step()), 0..60),
            during in prop::collection::vec((1..30u32, step()), 0..100),
        ) {
            let mut blocks = BlockTable::default();
            // Twice: a copy leaves no state that would affect the next one.
            for _ in 0..2 {
                before.iter().for_each(|(block, step)| apply(&mut blocks, *block, *step));
                let all = BlockId::try_from(blocks.all.len()).unwrap();
                let now = (0..all).filter_map(|block| blocks.in_use(block)).collect();
                let mut copy = Vec::new();
                blocks.begin_copy();
                for (block, step) in &during {
                    match step {
                        Step::Copy(most) => _ = blocks.copy_next(&mut copy, *most),
                        step => apply(&mut blocks, *block, *step),
                    }
                }
                while blocks.copy_next(&mut copy, 3) {}
                prop_assert_eq!(sorted(copy), sorted(now));
                prop_assert!(blocks.saved.is_empty() && blocks.all.iter().all(|meta| !meta.saved));
            }
        }
    }
}
