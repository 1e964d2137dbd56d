//! The blocks that a stream cache has taken from its heap. The heap places blocks in segments. [`BlockStatus`] lists
//! the states of these blocks.

use super::heap::{BlockId, NONE};
use super::request::{Request, RequestInfo};
use super::size::Units;

/// The value of [`BlockMeta::uses`] for a block whose list of uses is empty.
pub(super) const NO_USES: u32 = u32::MAX;

/// The state of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlockStatus {
    /// The record is unused: the heap has no block with this id, or the block is free there. In a re-mappable pool, the
    /// block may also belong to another stream's cache.
    None,
    /// Handed out, or reserved to be handed out.
    Owned,
    /// Free but cached whole, for a request of the same length.
    Kept,
    /// Freed by its owner, but other streams or graphs may still use it.
    Pending,
}

/// The record of a block that the cache has taken from its heap.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockMeta {
    /// Address of the first byte.
    pub(super) address: u64,
    /// The size that its owner requested, in bytes.
    pub(super) requested: u64,
    /// The block's length, in units of 512 bytes.
    pub(super) units: Units,
    /// The next block in the same slot of the quick list, which is the cache of whole freed blocks.
    pub(super) link: BlockId,
    /// The head of the block's list in [`Uses`](super::pending::Uses). The list has the other streams and the graphs
    /// that use the block while it is handed out. [`NO_USES`] if the list is empty. The uses of a pending block are in
    /// its [`Pending`](super::pending::Pending) instead.
    pub(super) uses: u32,
    pub(super) status: BlockStatus,
    /// The information about the request for the block.
    pub(super) info: RequestInfo,
    /// True if this record has changed after the running copy of the table began (see [`BlockTable`]), and before the
    /// copy reached the record. The former state is saved, so the copy skips this record.
    saved: bool,
}

const _: () = assert!(size_of::<BlockMeta>() == 48);

impl BlockMeta {
    fn unused() -> Self {
        Self {
            address: 0,
            requested: 0,
            units: 0,
            link: NONE,
            uses: NO_USES,
            status: BlockStatus::None,
            info: RequestInfo::here(),
            saved: false,
        }
    }
}

/// A copy of the record of a block that is handed out or [pending](BlockStatus::Pending).
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
/// The table can be copied piece by piece, with the cache unlocked between two pieces. The copy shows the table at
/// the moment when it [began](Self::begin_copy). Before a record that is not copied yet changes, its former state is
/// saved for the copy.
#[derive(Debug)]
pub(super) struct BlockTable {
    all: Vec<BlockMeta>,
    /// Records from here to `copy_end` are not copied yet. [`BlockId::MAX`] if no copy is running.
    uncopied: BlockId,
    copy_end: BlockId,
    saved: Vec<InUse>,
}

impl Default for BlockTable {
    fn default() -> Self {
        Self { all: Vec::new(), uncopied: BlockId::MAX, copy_end: 0, saved: Vec::new() }
    }
}

impl BlockTable {
    /// Adds a block that was taken from the heap, with the state [`BlockStatus::Owned`].
    #[inline]
    pub(super) fn add(&mut self, block: BlockId, address: u64, units: Units) {
        if self.all.len() <= block as usize {
            self.grow(block as usize + 1);
        }
        let meta = &mut self.all[block as usize];
        *meta = BlockMeta { address, units, saved: meta.saved, ..BlockMeta::unused() };
        self.set(block, BlockStatus::Owned);
    }

    #[cold]
    fn grow(&mut self, length: usize) {
        self.all.resize(length, BlockMeta::unused());
    }

    /// Removes a block from the table. The caller returns it to the heap.
    #[inline]
    pub(super) fn end(&mut self, block: BlockId) {
        self.set(block, BlockStatus::None);
    }

    /// Changes the state of a block. Returns the block's record.
    #[inline]
    pub(super) fn set(&mut self, block: BlockId, status: BlockStatus) -> &mut BlockMeta {
        if block >= self.uncopied {
            self.save(block);
        }
        let meta = &mut self.all[block as usize];
        meta.status = status;
        meta
    }

    /// Stores the requested size in bytes, and the information about the request. Called after the block's state was
    /// set to [`BlockStatus::Owned`], so that a running copy has saved the former state. Returns the block's record.
    #[inline]
    pub(super) fn set_request(&mut self, block: BlockId, requested: u64, info: RequestInfo) -> &BlockMeta {
        let meta = &mut self.all[block as usize];
        (meta.requested, meta.info) = (requested, info);
        meta
    }

    /// Begins a copy of the blocks that are in use at this moment.
    pub(super) fn begin_copy(&mut self) {
        self.uncopied = 0;
        self.copy_end = BlockId::try_from(self.all.len()).unwrap_or(BlockId::MAX);
    }

    /// Appends the next part of the copy to `copy`: at most `most` records, and the states that were saved since the
    /// last call. Returns true if there is more to copy.
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
        let BlockMeta { address, units, requested, status, info, .. } = self.all[block as usize];
        let is_pending = match status {
            BlockStatus::Owned => false,
            BlockStatus::Pending => true,
            BlockStatus::None | BlockStatus::Kept => return None,
        };
        Some(InUse { address, units, requested, is_pending, info })
    }

    /// Returns the address and the request of every block that is handed out.
    pub(super) fn owned(&self) -> Vec<(u64, Request)> {
        let owned = self.all.iter().filter(|meta| meta.status == BlockStatus::Owned);
        let request = |meta: &BlockMeta| {
            (meta.address, Request { units: meta.units, bytes: meta.requested, info: meta.info })
        };
        owned.map(request).collect()
    }

    /// Returns true if a block is handed out.
    pub(super) fn is_owned(&self, block: BlockId) -> bool {
        self.get(block).is_some_and(|meta| meta.status == BlockStatus::Owned)
    }

    /// Returns a block's record, if the cache has taken the block from the heap.
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

    /// An operation on a block, or the next part of a copy.
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
            Step::Set(status) if is_there => _ = blocks.set(block, status),
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
            // This runs twice: a copy leaves no state that would affect the next one.
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
