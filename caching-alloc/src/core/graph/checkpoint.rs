//! Checkpoints of a graph pool. A checkpoint is a list of the blocks that are handed out at one moment. They can be
//! handed out again later, at the same addresses.

use super::GraphPool;
use crate::core::block::Block;
use crate::core::pool_core::{Conflict, SavedBlock};
use crate::core::segment::PoolId;

/// The blocks of a [`GraphPool`] that were handed out at one moment; see [`GraphPool::checkpoint`].
#[derive(Debug, Clone)]
pub struct Checkpoint {
    /// The number of the pool among all pools of the process.
    key: u64,
    blocks: Vec<SavedBlock>,
}

/// The reason why a checkpoint could not be restored. The pool is unchanged then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RestoreError {
    /// The checkpoint was made by another pool.
    #[error("a checkpoint of another pool cannot be restored in pool {}: restore it in the pool that made it", pool.0)]
    OtherPool {
        /// The pool of the failed call, which did not make the checkpoint.
        pool: PoolId,
    },
    /// A block of the checkpoint cannot be handed out, because some of its memory is in use: another block there is
    /// handed out, or another stream may still use a block that was freed there.
    #[error(
        "the block of {bytes} bytes at {address:#x} cannot be restored: a block that was handed out later lies there, or \
         another stream still uses one; drop it, and wait for the stream"
    )]
    Occupied {
        /// The first byte of the checkpoint's block.
        address: u64,
        /// Its length in bytes.
        bytes: u64,
    },
    /// A block of the checkpoint cannot be handed out, because its memory was released to its source.
    #[error(
        "the block of {bytes} bytes at {address:#x} cannot be restored: its memory was released; keep the `GraphMemory` of \
         the captures as long as their checkpoints"
    )]
    Released {
        /// The first byte of the checkpoint's block.
        address: u64,
        /// Its length in bytes.
        bytes: u64,
    },
    /// A method of a [`Tracker`](crate::core::Tracker) made the call.
    #[error(
        "restoring a checkpoint inside a tracker would wait for the entry that is being delivered; do it elsewhere"
    )]
    Reentrant,
}

impl Checkpoint {
    /// Returns the number of blocks.
    #[must_use]
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Returns true if the checkpoint has no blocks.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Returns the address of the first byte, and the length in bytes, of each block.
    pub fn blocks(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.blocks.iter().map(SavedBlock::span)
    }
}

impl GraphPool {
    /// Returns a checkpoint: the blocks of the pool that are handed out now.
    ///
    /// Checkpoints are for trees of graphs that share a pool. After the capture of a graph, the blocks of its outputs
    /// are handed out. The program drops them when it no longer needs the outputs, and may launch the graph again
    /// later. The graph then writes to the same memory, although this memory is free in the pool.
    /// [Restore](Self::restore) the checkpoint then, so that the next capture does not use this memory.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use caching_alloc::core::{Allocator, PoolSettings, Settings, StreamId};
    /// # use caching_alloc::host::{HostSource, HostStreams};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (source, streams) = (Arc::new(HostSource::new(1 << 30)), Arc::new(HostStreams::new()));
    /// # let allocator = Allocator::new(source, streams, Settings::default());
    /// let pool = allocator.graph_pool(PoolSettings::default())?;
    /// let stream = StreamId(1);
    /// let first = pool.capture(&[stream]);
    /// let output = allocator.allocate(1 << 20, stream)?;
    /// let address = output.address();
    /// let memory = first.end();
    /// let after_first = pool.checkpoint();
    /// drop(output);
    /// // The first graph is replayed: its output is there again.
    /// let outputs = pool.restore(&after_first)?;
    /// assert_eq!(outputs[0].address(), address);
    /// // The capture of a second graph does not use it.
    /// let second = pool.capture(&[stream]);
    /// assert_ne!(allocator.allocate(1 << 20, stream)?.address(), address);
    /// # drop((memory, second));
    /// # Ok(())
    /// # }
    /// ```
    /// Blocks while a pool of the allocator grows or is trimmed, except inside a tracker.
    #[must_use]
    #[doc(alias = "getCheckpointState")]
    pub fn checkpoint(&self) -> Checkpoint {
        Checkpoint { key: self.0.key(), blocks: self.0.owned_blocks() }
    }

    /// Hands out those blocks of a checkpoint that are not handed out now, each at its address. Returns these blocks.
    /// Blocks of the checkpoint that are still handed out stay with their owners. A newer block with the same address
    /// and length counts as the block of the checkpoint. Blocks that are not in the checkpoint are not changed.
    ///
    /// Blocks while a pool of the allocator grows or is trimmed. Makes no driver call.
    ///
    /// # Errors
    /// [`RestoreError`]. No block is handed out then.
    #[doc(alias = "setCheckpointPoolState")]
    pub fn restore(&self, checkpoint: &Checkpoint) -> Result<Vec<Block>, RestoreError> {
        if checkpoint.key != self.0.key() {
            return Err(RestoreError::OtherPool { pool: self.id() });
        }
        self.0.restore(&checkpoint.blocks).map_err(|conflict| match conflict {
            Conflict::Occupied(block) => {
                let (address, bytes) = block.span();
                RestoreError::Occupied { address, bytes }
            }
            Conflict::Released(block) => {
                let (address, bytes) = block.span();
                RestoreError::Released { address, bytes }
            }
            Conflict::Reentrant => RestoreError::Reentrant,
        })
    }
}
