//! Addresses of a block on the other members of a group, by its window.

use process_group::store::Deadline;

use super::{SymmetricBlock, SymmetricPool};
use crate::{
    commit::SymmetricGroup,
    rendezvous::{PeerBuffers, WindowPeersError},
};

impl SymmetricPool {
    /// Returns the address of `block` on every member of `group`, as mapped on this rank's device. NCCL mapped the
    /// memory when it registered the window, so this call neither exchanges nor maps anything. Not collective; call it
    /// after a [`commit`](Self::commit) for the group. The returned value holds the block, so that its segment is not
    /// retired.
    ///
    /// NCCL provides these addresses from 2.29 on. A [rendezvous](crate::rendezvous::Rendezvous::rendezvous) for the
    /// block returns the same type with every NCCL release, also for groups without windows.
    ///
    /// # Safety
    /// The addresses are valid only until the group's communicator is aborted or destroyed. Nothing may use them
    /// afterwards.
    ///
    /// # Errors
    /// [`WindowPeersError::NoWindow`] if the block is in no window of the group, or belongs to another pool;
    /// [`WindowPeersError::Comm`] if NCCL fails, does not return before `deadline`, or is older than 2.29;
    /// [`WindowPeersError::OutOfReach`] if this device cannot access a member's memory directly;
    /// [`WindowPeersError::Driver`] if the device array of the addresses cannot be made.
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
