//! Addresses of a block on the other members of a group, by its window.

use process_group::store::Deadline;

use super::{SymmetricBlock, SymmetricPool};
use crate::{
    commit::SymmetricGroup,
    rendezvous::{PeerBuffers, WindowPeersError},
};

impl SymmetricPool {
    /// Returns the addresses of `block` on every member of `group`, as this rank's device accesses them. They are
    /// NCCL's own mappings of the block's window, so nothing is exchanged or mapped again. Not collective; call it
    /// after a [`commit`](Self::commit) for the group. The returned value holds the block, so that its segment is not
    /// retired.
    ///
    /// NCCL provides these addresses from 2.29 on. A [rendezvous](crate::rendezvous::Rendezvous::rendezvous) for the
    /// block gives the same type with every NCCL release, also for groups without windows.
    ///
    /// # Safety
    /// The addresses are valid while the group's communicator is: nothing may use them after it was aborted or
    /// destroyed.
    ///
    /// # Errors
    /// [`WindowPeersError::NoWindow`] for a block that is in no window of the group, or of another pool;
    /// [`WindowPeersError::Comm`] if NCCL fails, does not return before `deadline`, or is older than 2.29;
    /// [`WindowPeersError::OutOfReach`] if this device cannot access a member's memory directly;
    /// [`WindowPeersError::Driver`] if the array of the addresses cannot be made.
    ///
    /// ```no_run
    /// # use process_group::{ProcessGroup, store::Deadline};
    /// # use symm_mem::{CommitOptions, SymmetricPool};
    /// # fn rank(pool: &SymmetricPool, world: &ProcessGroup) -> Result<(), Box<dyn std::error::Error>> {
    /// let block = pool.allocate(1 << 20)?;
    /// pool.commit(world, CommitOptions::default())?;
    /// // SAFETY: used before the group ends.
    /// let peers = unsafe { pool.peers(&block, world, Deadline::after(std::time::Duration::from_secs(10))) }?;
    /// println!("rank 1 has it at {:#x} from here", peers.addresses()[1].0);
    /// # Ok(())
    /// # }
    /// ```
    pub unsafe fn peers(
        &self,
        block: &SymmetricBlock,
        group: &dyn SymmetricGroup,
        deadline: Deadline,
    ) -> Result<PeerBuffers, WindowPeersError> {
        // A block does not extend beyond its segment.
        match self.window(block.ptr(), block.bytes(), group.id()) {
            Ok(Some((window, offset))) => {
                PeerBuffers::of_block(group.communicator(), &window, offset, block, deadline)
            }
            _ => Err(WindowPeersError::NoWindow { ordinal: block.placement().ordinal, group: group.id() }),
        }
    }
}
